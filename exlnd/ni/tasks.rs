// SPDX-License-Identifier: GPL-2.0-only

//! What threads do that call LNet.

use super::{receive::Got, Ni};
use crate::{
    ffi::{
        lnet::{address, End},
        thread::{Bell, Current, Run},
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

/// Which thread of a CPT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Gives LNet messages. LNet may keep it from that for as long as its configuration changes.
    Arrivals,
    /// Tells LNet what has ended.
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

/// Something to be done.
pub(super) enum Task {
    /// LNet has to be given a message.
    Offer(Ticket, NodeId),
    /// A message that went out has ended.
    Sent(u32, End),
    /// A message that was to be fetched has ended.
    Got(Got),
    /// A peer is alive, or not.
    Peer(NodeId, bool),
    /// The NIC is lost, or there again: what holds when this is done.
    Fatal,
}

/// Tasks of a thread.
#[pin_data]
pub(super) struct Queue {
    bell: Bell,
    #[pin]
    tasks: SpinLock<Ring<Task>>,
}

impl Queue {
    /// For so many tasks. May sleep.
    pub(super) fn new(size: usize) -> Result<Arc<Self>> {
        let (bell, ring) = (Bell::new()?, Ring::new(size)?);
        Arc::pin_init(
            pin_init!(Self {
                bell,
                tasks <- new_spinlock!(ring, "exlnd_tasks"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds one; back if there is no place.
    pub(super) fn push(&self, task: Task) -> Result<(), Task> {
        self.tasks.lock().push(task)?;
        self.bell.ring();
        Ok(())
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.tasks.lock().len()
    }
}

/// A thread.
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
                Some(Task::Got(got)) => got.end(&self.ni),
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
            if !self.queue.bell.wait(current, None) {
                return self.work_off();
            }
        }
    }
}
