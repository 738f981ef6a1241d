// SPDX-License-Identifier: GPL-2.0-only

//! Consumer of a buffer queue. [`protocol::nic::ring_consumer`] makes the decisions. This file
//! contains the slots, the registers, and the work item that monitors a queue whose owner waits for
//! an interrupt.
//!
//! A queue has one consumer, so there are no locks. Functions run in any context unless their
//! comment says otherwise.

use crate::{
    context::Context,
    queue::{self, Queue},
    quirks,
    stats::{add, PortStats},
    time::{now, ticks, AtomicTime},
    vpid::Table,
};
use core::ops::ControlFlow;
use kernel::{
    impl_has_delayed_work, new_delayed_work,
    prelude::*,
    sync::{
        atomic::{Atomic, AtomicFlag, Full, Relaxed},
        Arc,
    },
    time::msecs_to_jiffies,
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::{barrier, net::BhDisabled, work};
use protocol::nic::ring_consumer::{LostIrqGuard, RingConsumer};
use wire::ids::Vpid;

/// Value of `next` for a queue that could not be armed. Its owner waits without an interrupt, so
/// the monitor wakes it for any write pointer.
const UNARMED: u32 = u32::MAX;

/// How a poll ends before its budget is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The poll ends, and the last entry was consumed.
    Consumed,
    /// The poll ends, and the last entry stays in the queue as the first one of the next poll.
    Kept,
}

/// Return type of the closure that a poll calls: `()`, or a value that says whether to stop.
pub trait PollFlow {
    /// Returns whether to continue, or how to stop.
    fn flow(self) -> ControlFlow<Stop>;
}

impl PollFlow for () {
    fn flow(self) -> ControlFlow<Stop> {
        ControlFlow::Continue(())
    }
}

impl PollFlow for ControlFlow<Stop> {
    fn flow(self) -> ControlFlow<Stop> {
        self
    }
}

/// Consumer of one queue. Drop cancels the monitor's work item unless it is running.
pub(crate) struct Consumer {
    consumer: RingConsumer,
    guard: LostIrqGuard,
    /// Slot at which the queue was last armed, and the number of interrupts before that.
    armed: Option<(u32, u64)>,
    monitor: Arc<QueueMonitor>,
}

impl Consumer {
    /// Makes a consumer at slot 0 of a new queue, which `monitor` watches. Any context.
    pub(crate) fn new(queue: &Queue, monitor: &Arc<QueueMonitor>) -> Self {
        Self {
            consumer: RingConsumer::new(queue.slots(), ticks(quirks::QUEUE_HOLE_MS)),
            guard: LostIrqGuard::NONE,
            armed: None,
            monitor: monitor.clone(),
        }
    }

    /// Returns the next slot to read.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.consumer.next()
    }

    /// Frees the next `slots` slots.
    #[inline]
    pub(crate) fn advance(&mut self, queue: &Queue, slots: u32) {
        for k in 0..slots {
            queue.free(queue.next(self.consumer.next(), k));
        }
        self.consumer.advance(slots);
    }

    /// Returns the number of slots, from the next one on, whose entries are overdue; 0 if no entry
    /// is missing. Called when the next slot, or a later one of the same message, is empty.
    pub(crate) fn overdue(&mut self) -> u32 {
        let monitor = &self.monitor;
        self.consumer
            .overdue(now(), |consumer| monitor.unread(consumer))
    }

    /// Returns the number of empty slots from the next one on, up to `limit`.
    pub(crate) fn run_of_empty(&self, queue: &Queue, limit: u32) -> u32 {
        (0..limit)
            .take_while(|i| queue.status(queue.next(self.next(), *i)) == 0)
            .count() as u32
    }

    /// Returns the number of slots that the NIC has written and that were not read. Reads a
    /// register.
    pub(crate) fn unread(&self) -> u32 {
        self.monitor.unread(&self.consumer)
    }

    /// Updates the NIC's read pointer if many slots were freed.
    #[inline]
    pub(crate) fn commit_if_due(&mut self, queue: &Queue, stats: &PortStats) {
        if self.consumer.is_commit_due() {
            let lrp = self.consumer.free();
            self.monitor.commit(queue, lrp, false, stats);
        }
    }

    /// Updates the NIC's read pointer and unmasks the interrupt. The caller must disable interrupts
    /// or bottom halves, so that little time passes between the check of the queue and the store.
    pub(crate) fn rearm(&mut self, queue: &Queue, stats: &PortStats) {
        let next = self.consumer.next();
        // The count is read before the store, so that later interrupts are noticed.
        let armed = Some((next, stats.interrupts.load(Relaxed)));
        if self.armed == armed {
            // No interrupt arrived since the queue was armed: another event caused this poll, for
            // example an interrupt of the interface's other queue.
            self.monitor.expect(next, false);
            return;
        }
        match self.consumer.arm(|| self.monitor.pointer()) {
            None => self.monitor.expect(UNARMED, true),
            Some(lrp) => {
                self.armed = armed;
                self.monitor.commit(queue, lrp, true, stats);
                if self.monitor.found.xchg(false, Full) {
                    self.guard.found();
                }
                // The register is read before the slot is checked, because an entry that the
                // register counts may arrive in the queue in between.
                let comes = self.guard.must_confirm()
                    && self.monitor.unread(&self.consumer) != 0
                    && queue.status(next) == 0;
                self.monitor.expect(next, comes);
            }
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // The queue has no consumer any more, so the monitor's call is not needed.
        let _ = work::cancel_delayed(&self.monitor);
    }
}

/// Monitor of a queue whose owner waits for an interrupt. Some time after the queue was armed, it
/// compares the pointers once, and makes the owner poll if they differ.
#[pin_data]
pub(crate) struct QueueMonitor {
    ctx: Arc<Context>,
    table: Arc<Table>,
    vpid: Vpid,
    /// Slot that the owner waits for, or [`UNARMED`]; `since` is the time at which the wait began.
    next: Atomic<u32>,
    since: AtomicTime,
    /// Set if the monitor found an entry without an interrupt.
    found: AtomicFlag,
    #[pin]
    work: DelayedWork<QueueMonitor>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<QueueMonitor> for QueueMonitor { self.work }
}

impl WorkItem for QueueMonitor {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let waits_for = this.next.load(Relaxed);
        if this.pointer().is_some_and(|lwp| lwp != waits_for) {
            let late = now().since(this.since.load()) >= ticks(quirks::QUEUE_HOLE_MS / 2);
            if late && waits_for != UNARMED {
                this.found.store(true, Relaxed);
            }
            // The owner's poll detects a missing entry or a lost interrupt. Softirqs that the owner
            // raises run when bottom halves are enabled again.
            let _bh = BhDisabled::new();
            this.table.interrupt(this.vpid);
        }
    }
}

impl QueueMonitor {
    /// Makes a monitor for the queue of a VPID. May sleep.
    pub(crate) fn new(ctx: &Arc<Context>, table: &Arc<Table>, vpid: Vpid) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                ctx: ctx.clone(),
                table: table.clone(),
                vpid,
                next: Atomic::new(0),
                since: AtomicTime::new(now()),
                found: AtomicFlag::new(false),
                work <- new_delayed_work!("extoll_queue_monitor"),
            }),
            GFP_KERNEL,
        )
    }

    /// Cancels the work item and waits for it. The caller prevents later calls of `expect`. May
    /// sleep.
    pub(crate) fn stop(self: &Arc<Self>) {
        work::cancel_delayed_sync(self);
    }

    /// Returns the NIC's write pointer.
    fn pointer(&self) -> Option<u32> {
        queue::write_pointer(&self.ctx, self.table.unit(), self.vpid)
    }

    /// Returns the number of slots from the consumer's position to the NIC's write pointer.
    fn unread(&self, consumer: &RingConsumer) -> u32 {
        self.pointer().map_or(0, |lwp| consumer.unread(lwp))
    }

    fn commit(&self, queue: &Queue, lrp: u32, arm: bool, stats: &PortStats) {
        if let Some(hw) = self.ctx.alive_access() {
            // The zeroed status words must be visible before the NIC can reuse the slots.
            barrier::wmb();
            queue.commit(&hw, lrp, arm);
            add(&stats.commits, 1);
        }
    }

    /// Queues the work item, which then compares the write pointer with `next`. `comes` says that
    /// an entry is known to be in flight; the delay is then short.
    fn expect(self: &Arc<Self>, next: u32, comes: bool) {
        self.next.store(next, Relaxed);
        self.since.store(now());
        if comes {
            let _ = work::cancel_delayed(self);
        }
        let ms = if comes {
            quirks::QUEUE_SOON_MS
        } else {
            quirks::QUEUE_HOLE_MS
        };
        let _ = work::enqueue_delayed(self.clone(), msecs_to_jiffies(ms));
    }
}
