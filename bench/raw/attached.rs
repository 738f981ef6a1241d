// SPDX-License-Identifier: GPL-2.0-only

//! NICs that commands can use, and the activities of commands on each NIC.

use crate::{regions::Offer, server::Server, transfer::PendingMemory, wait::Waiter};
use extoll_core::{child::Handle, smfu::Window};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex, MutexGuard},
    time::{Delta, Instant, Monotonic},
};
use wire::ids::Vpid;

/// All NICs of this host that are bound to the module.
#[pin_data]
pub(crate) struct Registry {
    #[pin]
    nics: Mutex<KVec<Arc<Attached>>>,
}

impl Registry {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { nics <- new_mutex!(KVec::new(), "extoll_bench_nics") }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn add(&self, nic: Arc<Attached>) -> Result {
        Ok(self.nics.lock().push(nic, GFP_KERNEL)?)
    }

    pub(crate) fn remove(&self, nic: &Arc<Attached>) {
        self.nics.lock().retain(|n| !Arc::ptr_eq(n, nic));
    }

    /// Returns the NIC that was bound as number `index`, counted from 0.
    pub(crate) fn get(&self, index: usize) -> Option<Arc<Attached>> {
        self.nics.lock().get(index).cloned()
    }
}

/// State of the commands on one NIC.
#[pin_data]
pub(crate) struct Attached {
    /// Resources of runs; `None` while the NIC is being removed. A run holds the lock, so that only
    /// one run at a time uses the NIC.
    #[pin]
    run: Mutex<Option<RunState>>,
    #[pin]
    server: Mutex<Serving>,
    /// Registered memory that peers may access.
    #[pin]
    offer: Mutex<Option<Offer>>,
    /// Window that stays open until the NIC is removed.
    #[pin]
    window: Mutex<Option<Window>>,
    /// Waiter to wake when the NIC is removed.
    #[pin]
    waiting: Mutex<Waiting>,
}

/// Resources that a run uses.
pub(crate) struct RunState {
    pub(crate) nic: Handle,
    /// Memory that an aborted run left, and the time before which it must not be freed.
    pub(crate) pending: Option<(Instant<Monotonic>, PendingMemory)>,
}

struct Serving {
    nic: Option<Handle>,
    server: Option<Arc<Server>>,
    /// Time until which a peer may still write to the memory of the last server. No new server may
    /// start before.
    quarantine: Option<Instant<Monotonic>>,
}

struct Waiting {
    removing: bool,
    waiter: Option<Arc<Waiter>>,
}

/// Permission to run a command on a NIC, released on drop.
pub(crate) struct Run<'a> {
    attached: &'a Attached,
    state: MutexGuard<'a, Option<RunState>>,
    pub(crate) waiter: Arc<Waiter>,
}

impl Run<'_> {
    pub(crate) fn nic(&self) -> Result<Handle> {
        Ok(self.state.as_ref().ok_or(ENODEV)?.nic.clone())
    }

    pub(crate) fn state(&mut self) -> Result<&mut RunState> {
        Option::as_mut(&mut *self.state).ok_or(ENODEV)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.attached.waiting.lock().waiter = None;
    }
}

/// Returns true while the time `at` is in the future.
fn before(at: Instant<Monotonic>) -> bool {
    (at - Instant::now()).as_millis() > 0
}

impl Attached {
    pub(crate) fn new(nic: Handle) -> Result<Arc<Self>> {
        let state = RunState {
            nic: nic.clone(),
            pending: None,
        };
        let serving = Serving {
            nic: Some(nic),
            server: None,
            quarantine: None,
        };
        let waiting = Waiting {
            removing: false,
            waiter: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                run <- new_mutex!(Some(state), "extoll_bench_run"),
                server <- new_mutex!(serving, "extoll_bench_server"),
                offer <- new_mutex!(None, "extoll_bench_offer"),
                window <- new_mutex!(None, "extoll_bench_window"),
                waiting <- new_mutex!(waiting, "extoll_bench_waiting"),
            }),
            GFP_KERNEL,
        )
    }

    /// Begins a run that lasts up to `timeout`. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` during another run, or while memory of an aborted run must not be freed; `ENODEV` if
    /// the NIC is being removed; `ENOMEM`.
    pub(crate) fn begin(&self, timeout: Delta) -> Result<Run<'_>> {
        let waiter = Waiter::new(timeout)?;
        let mut state = self.run.try_lock().ok_or(EBUSY)?;
        let here = Option::as_mut(&mut *state).ok_or(ENODEV)?;
        if here
            .pending
            .as_ref()
            .is_some_and(|(until, _)| before(*until))
        {
            return Err(EBUSY);
        }
        here.pending = None;
        let mut waiting = self.waiting.lock();
        if waiting.removing {
            return Err(ENODEV);
        }
        waiting.waiter = Some(waiter.clone());
        drop(waiting);
        Ok(Run {
            attached: self,
            state,
            waiter,
        })
    }

    /// Starts the server with the given VELO VPID. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is a server, if the memory of the last server may still be in use, or if
    /// the VPID is in use; `ENODEV` if the NIC is being removed; `ENOMEM`.
    pub(crate) fn serve(&self, vpid: Vpid) -> Result {
        let mut serving = self.server.lock();
        if serving.server.is_some() || serving.quarantine.is_some_and(before) {
            return Err(EBUSY);
        }
        let nic = serving.nic.clone().ok_or(ENODEV)?;
        serving.server = Some(Server::start(&nic, vpid)?);
        Ok(())
    }

    /// Stops the server. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no server.
    pub(crate) fn stop(&self) -> Result {
        let mut serving = self.server.lock();
        let server = serving.server.take().ok_or(ENOENT)?;
        serving.quarantine = server.stop();
        Ok(())
    }

    /// Returns the server if there is one.
    pub(crate) fn server(&self) -> Option<Arc<Server>> {
        self.server.lock().server.clone()
    }

    /// Locks the offer. A caller that creates an offer must check with the lock held that the NIC
    /// is not being removed, because `shutdown` removes the NIC before the offer.
    pub(crate) fn offer(&self) -> MutexGuard<'_, Option<Offer>> {
        self.offer.lock()
    }

    /// Locks the window that stays open until the NIC is removed.
    pub(crate) fn kept_window(&self) -> MutexGuard<'_, Option<Window>> {
        self.window.lock()
    }

    /// Returns the NIC, unless it is being removed.
    pub(crate) fn nic(&self) -> Option<Handle> {
        self.server.lock().nic.clone()
    }

    /// Ends all activities and releases the NIC. May sleep.
    pub(crate) fn shutdown(&self) {
        {
            let mut waiting = self.waiting.lock();
            waiting.removing = true;
            if let Some(waiter) = waiting.waiter.take() {
                waiter.cancel();
            }
        }
        drop(self.run.lock().take());
        let mut serving = self.server.lock();
        serving.nic = None;
        if let Some(server) = serving.server.take() {
            server.stop();
        }
        drop(serving);
        drop(self.offer.lock().take());
        drop(self.window.lock().take());
    }
}
