// SPDX-License-Identifier: GPL-2.0-only

//! Threads that call LNet, and their queues. Tasks are queued in process context, also with the
//! lock `core` held.

use super::{receive::Finished, Ni};
use crate::{
    ffi::{
        lnet::{address, End},
        thread::{Current, Doorbell, Run},
    },
    ring::Ring,
};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{Arc, SpinLock},
};
use protocol::lnd::Ticket;
use wire::ids::NodeId;

/// Type of thread; each CPT has one thread of each type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Passes incoming messages to LNet, which may block the thread while LNet's configuration
    /// changes.
    Arrivals,
    /// Finalizes messages and reports the state of peers.
    Endings,
}

impl Kind {
    pub(super) fn name(self) -> &'static CStr {
        match self {
            Self::Arrivals => c"in",
            Self::Endings => c"end",
        }
    }
}

/// Task of a thread that calls LNet.
pub(super) enum Task {
    /// Pass an incoming message to LNet.
    Offer(Ticket, NodeId),
    /// Finalize an outgoing message.
    Sent(u32, End),
    /// Finalize an incoming message whose payload was fetched or lost.
    Finished(Finished),
    /// Report a peer as alive or dead.
    Peer(NodeId, bool),
    /// Report the interface as usable or unusable, according to the state when the task is
    /// executed.
    Fatal,
}

/// Task queue of a thread.
#[pin_data]
pub(super) struct Queue {
    doorbell: Doorbell,
    #[pin]
    tasks: SpinLock<Ring<Task>>,
}

impl Queue {
    /// Creates a queue for `size` tasks. May sleep.
    pub(super) fn new(size: usize) -> Result<Arc<Self>> {
        let (doorbell, ring) = (Doorbell::new()?, Ring::new(size)?);
        Arc::pin_init(
            pin_init!(Self {
                doorbell,
                tasks <- new_spinlock!(ring, "exlnd_tasks"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds a task. Returns the task as an error if the queue is full.
    pub(super) fn push(&self, task: Task) -> Result<(), Task> {
        self.tasks.lock().push(task)?;
        self.doorbell.notify();
        Ok(())
    }

    /// Returns the number of tasks.
    pub(super) fn len(&self) -> usize {
        self.tasks.lock().len()
    }
}

/// A thread that calls LNet.
pub(super) struct Worker {
    ni: Arc<Ni>,
    queue: Arc<Queue>,
}

impl Worker {
    pub(super) fn new(ni: Arc<Ni>, queue: Arc<Queue>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { ni, queue }, GFP_KERNEL)?)
    }

    fn work_off(&self) {
        loop {
            let task = self.queue.tasks.lock().pop();
            match task {
                None => return,
                Some(Task::Offer(ticket, node)) => self.ni.offer(ticket, node),
                Some(Task::Sent(token, end)) => self.ni.sent(token, end),
                Some(Task::Finished(finished)) => finished.end(&self.ni),
                Some(Task::Fatal) => self.ni.report_fatal(),
                Some(Task::Peer(node, alive)) => self.ni.raw.notify(address(node), alive),
            }
        }
    }
}

impl Run for Worker {
    fn run(&self, current: &Current) {
        loop {
            self.work_off();
            if !self.queue.doorbell.wait(current, None) {
                return self.work_off();
            }
        }
    }
}
