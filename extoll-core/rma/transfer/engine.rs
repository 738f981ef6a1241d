// SPDX-License-Identifier: GPL-2.0-only

//! Creation of an engine, its owner handle, and its shutdown. Creation and drop may sleep.

use super::{
    run::{Inner, Shared, SoftClient, WorkClient, CALLS},
    CallIn, Capacity, Listener, Quiet, Submitter, ABSORB,
};
use crate::{
    rma::{Notifications, Requester},
    vpid::Client,
};
use core::ops::Deref;
use kernel::{
    new_delayed_work, new_spinlock_irq, new_work,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc,
    },
    time::{delay::fsleep, Delta, Instant},
};
use kernel_ext::{sched::cond_resched, work};
use protocol::transfer::{Limits, Queue, Transfers, Unclaimed};

/// Parameters of an engine.
pub struct Setup {
    /// Sizes of the tables. A transfer needs about 700 bytes, a fragment 24, a command 80. Each
    /// node may use half of the slots for transfers and half of the slots for fragments. A transfer
    /// needs slots for the fragments of both sides. A transfer with more fragments than that always
    /// fails.
    pub capacity: Capacity,
    /// Receives the notifications that belong to no transfer. Without a listener they are counted
    /// and dropped.
    pub listener: Option<(Arc<dyn Listener>, CallIn)>,
    /// Maximum number of notifications queued for the listener.
    pub unclaimed: u16,
    /// Maximum number of notifications queued for the listener per node.
    pub unclaimed_per_node: u16,
    /// Process notifications in a softirq after the interrupt, instead of in a work item. Owners
    /// with [`CallIn::Poll`] are then usually called in the softirq, which saves context switches.
    pub soft: bool,
}

impl Default for Setup {
    /// Returns parameters for 512 transfers with 2,048 fragments, 512 commands in flight and no
    /// listener.
    fn default() -> Self {
        Self {
            capacity: Capacity {
                transfers: 512,
                fragments: 2048,
                commands: 512,
            },
            listener: None,
            unclaimed: 1024,
            unclaimed_per_node: 256,
            soft: false,
        }
    }
}

/// Port with an engine for transfers, and its owner handle. Several threads can call the methods of
/// [`Submitter`] at the same time.
///
/// Drop ends all transfers with `Down`, calls the remaining completions in the caller's context,
/// whatever context they requested, and closes the port. It may sleep. It waits for running
/// completions and the listener, so they must not call it. They do not run afterwards.
pub struct Engine {
    requester: Requester,
    submitter: Submitter,
}

impl Deref for Engine {
    type Target = Submitter;

    fn deref(&self) -> &Submitter {
        &self.submitter
    }
}

impl Engine {
    /// Makes an engine with the default [`Setup`] for a port that has no client. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(requester: Requester, notifications: Notifications) -> Result<Self> {
        Self::with(requester, notifications, Setup::default())
    }

    /// Makes an engine for a port that has no client. May sleep. The engine allocates no memory
    /// afterwards.
    ///
    /// ```
    /// # use extoll_core::rma::{self, transfer::{CallIn, Listener}, DEFAULT_QUEUE_BYTES};
    /// use extoll_core::{nic::Nic, rma::transfer::{Capacity, Engine, Setup}};
    /// use kernel::{prelude::*, sync::Arc};
    ///
    /// /// Makes an engine for 256 concurrent transfers of up to 257 fragments on either side.
    /// fn engine(
    ///     port: (rma::Requester, rma::Notifications),
    ///     target: Arc<dyn Listener>,
    /// ) -> Result<Engine> {
    ///     let setup = Setup {
    ///         capacity: Capacity { transfers: 256, fragments: 256 * 2 * 257, commands: 512 },
    ///         listener: Some((target, CallIn::Process)),
    ///         ..Setup::default()
    ///     };
    ///     Engine::with(port.0, port.1, setup)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn with(requester: Requester, notifications: Notifications, setup: Setup) -> Result<Self> {
        let Setup {
            capacity,
            listener,
            unclaimed,
            unclaimed_per_node,
            soft,
        } = setup;
        let absorb = u64::try_from(ABSORB.as_nanos()).unwrap_or(u64::MAX);
        let limits = Limits::new(&capacity, absorb);
        let inner = Inner {
            requester: requester.clone(),
            notifications,
            table: Transfers::new(&capacity, &limits)?,
            listener,
            unclaimed: Unclaimed::new(unclaimed, unclaimed_per_node)?,
            scheduled: None,
        };
        let shared = Arc::pin_init(
            pin_init!(Shared {
                epoch: Instant::now(),
                inner <- new_spinlock_irq!(Some(inner), "extoll_rma_engine"),
                closing: AtomicFlag::new(false),
                poll <- new_work!("extoll_rma_engine"),
                deadline <- new_delayed_work!("extoll_rma_deadline"),
                calls <- new_work!("extoll_rma_tell"),
            }),
            GFP_KERNEL,
        )?;
        let client: Arc<dyn Client> = if soft {
            Arc::new(SoftClient::new(&shared)?, GFP_KERNEL)?
        } else {
            Arc::new(WorkClient(shared.clone()), GFP_KERNEL)?
        };
        requester.attach(client);
        // The work item processes notifications that have already arrived, and arms the interrupt.
        shared.enqueue_poll();
        Ok(Self {
            requester,
            submitter: Submitter(shared),
        })
    }

    /// Returns the port, for example to register memory for its VPID.
    pub fn requester(&self) -> &Requester {
        &self.requester
    }

    /// Returns a reference to the engine for other submitters.
    pub fn submitter(&self) -> Submitter {
        self.submitter.clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let shared = &self.submitter.0;
        shared.closing.store(true, Relaxed);
        self.requester.detach();
        // After this line only the work items queue themselves, and they check `closing`.
        work::cancel_sync::<Shared, 0>(shared);
        work::cancel_sync::<Shared, 2>(shared);
        shared.close(Quiet::Closed);
        // Cancelled after `close`, because it is queued with the lock held, and later lock holders
        // find `closing` set.
        work::cancel_delayed_sync::<Shared, 1>(shared);
        loop {
            let direct = shared.call_owners(Queue::Direct, CALLS);
            if !shared.call_owners(Queue::Deferred, CALLS) && !direct {
                // A caller of `poll` may still be running a completion or the listener.
                if shared.with(|inner| inner.is_idle()) != Some(false) {
                    break;
                }
                fsleep(Delta::from_millis(1));
            }
            cond_resched();
        }
        // A work item may have been queued just before `closing` was set.
        work::cancel_sync::<Shared, 0>(shared);
        work::cancel_sync::<Shared, 2>(shared);
        // `self` holds the last reference to the port, which closes it.
        let inner = Option::take(&mut *shared.inner.lock());
        drop(inner);
    }
}
