// SPDX-License-Identifier: GPL-2.0-only

//! The engine: a port, its tables, its end.

use super::{
    run::{Inner, Kick, Shared, SoftKick, CALLS},
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

/// What an engine is made with.
pub struct Setup {
    /// Sizes of the tables: about 700 bytes per transfer, 24 per fragment, 80 per command. A node may
    /// have half of the places for transfers, and of those for fragments, which a transfer needs for
    /// both sides: one with more is never taken.
    pub capacity: Capacity,
    /// Gets the notifications that no transfer waits for; without one they are counted and dropped.
    pub listener: Option<(Arc<dyn Listener>, CallIn)>,
    /// Notifications on their way to the listener.
    pub unclaimed: u16,
    /// Of these, of one node.
    pub unclaimed_per_node: u16,
    /// Notifications are handled in a softirq behind the interrupt, and not in a work item: owners that
    /// want to be called in [`CallIn::Poll`] mostly are called there. It saves changes of task.
    pub soft: bool,
}

impl Default for Setup {
    /// 512 transfers with 2,048 fragments, 512 commands in flight, no listener.
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

/// A port used for transfers, and its owner: all of [`Submitter`], by several threads at once.
///
/// Drop ends all transfers with `Down` and calls the completions that were not called yet, whatever
/// context they asked for, closes the port, and may sleep. It waits for completions that are being
/// called, and for the listener, so it must not happen in one of them; none is called afterwards.
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
    /// Takes a port, which must not have a client, with the default [`Setup`]. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(requester: Requester, notifications: Notifications) -> Result<Self> {
        Self::with(requester, notifications, Setup::default())
    }

    /// Takes a port, which must not have a client. May sleep; afterwards no memory is needed.
    ///
    /// ```
    /// # use extoll_core::rma::{self, transfer::{CallIn, Listener}, DEFAULT_QUEUE_BYTES};
    /// use extoll_core::{nic::Nic, rma::transfer::{Capacity, Engine, Setup}};
    /// use kernel::{prelude::*, sync::Arc};
    ///
    /// /// For 256 transfers of up to 257 fragments on either side at a time.
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
                tell <- new_work!("extoll_rma_tell"),
            }),
            GFP_KERNEL,
        )?;
        let kick: Arc<dyn Client> = match soft {
            true => Arc::new(SoftKick::new(&shared)?, GFP_KERNEL)?,
            false => Arc::new(Kick(shared.clone()), GFP_KERNEL)?,
        };
        requester.attach(kick);
        // What is there already, and arms.
        shared.enqueue_poll();
        Ok(Self {
            requester,
            submitter: Submitter(shared),
        })
    }

    /// The port, e.g. to register memory for its VPID.
    pub fn requester(&self) -> &Requester {
        &self.requester
    }

    /// A reference for others.
    pub fn submitter(&self) -> Submitter {
        self.submitter.clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let shared = &self.submitter.0;
        shared.closing.store(true, Relaxed);
        self.requester.detach();
        // Nobody starts them any more but themselves, and they look whether the engine is closing.
        work::cancel_sync::<Shared, 0>(shared);
        work::cancel_sync::<Shared, 2>(shared);
        shared.close(Quiet::Closed);
        // Here, as it is started with the lock held: whoever takes that after `close` has knows that
        // the engine is closing.
        work::cancel_delayed_sync::<Shared, 1>(shared);
        loop {
            let direct = shared.call_owners(Queue::Direct, CALLS);
            if !shared.call_owners(Queue::Deferred, CALLS) && !direct {
                // Somebody who polls may be calling one, or the listener.
                if shared.with(|inner| inner.is_idle()) != Some(false) {
                    break;
                }
                fsleep(Delta::from_millis(1));
            }
            cond_resched();
        }
        // One may have been started just before they were told not to.
        work::cancel_sync::<Shared, 0>(shared);
        work::cancel_sync::<Shared, 2>(shared);
        // The port is closed with its last reference, which `self` has.
        let inner = Option::take(&mut *shared.inner.lock());
        drop(inner);
    }
}
