// SPDX-License-Identifier: GPL-2.0-only

//! Reading side of a buffer queue: [`wire::intake`] decides, here are the slots, the registers, and the work
//! item that looks after a queue whose owner waits for an interrupt.

use crate::{
    context::Context,
    queue::{self, Queue},
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
use wire::{
    ids::Vpid,
    intake::{Care, Intake},
};

/// Pause between two looks at a slot that stays empty.
pub(crate) const HOLE_MS: u32 = 100;
/// When the monitor looks for what is known to be on its way.
const SOON_MS: u32 = 1;
/// No slot: the owner waits without an interrupt, so that it has to poll wherever the NIC is.
const UNARMED: u32 = u32::MAX;

/// How a poll ends before its budget is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// What was looked at last is taken.
    Taken,
    /// It stays where it is, and is the first one of the next poll.
    Left,
}

/// What the closure of a poll says about going on: nothing, or when to stop.
pub trait PollFlow {
    /// To go on, or how to stop.
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

/// Reading side of one queue. Its drop ends the looks at the queue, but for one that runs.
pub(crate) struct Reader {
    intake: Intake,
    care: Care,
    /// Slot that the queue was armed at last, and interrupts until then.
    armed: Option<(u32, u64)>,
    monitor: Arc<QueueMonitor>,
}

impl Reader {
    /// At slot 0 of a new queue, which `monitor` looks after. Any context.
    pub(crate) fn new(queue: &Queue, monitor: &Arc<QueueMonitor>) -> Self {
        Self {
            intake: Intake::new(queue.slots(), ticks(HOLE_MS)),
            care: Care::NONE,
            armed: None,
            monitor: monitor.clone(),
        }
    }

    /// Next slot to read.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.intake.next()
    }

    /// Frees the next `slots` slots.
    #[inline]
    pub(crate) fn advance(&mut self, queue: &Queue, slots: u32) {
        for k in 0..slots {
            queue.free(queue.next(self.intake.next(), k));
        }
        self.intake.advance(slots);
    }

    /// To be called when the next slot, or a later one of the same message, is empty: number of slots from the
    /// next one on whose content had to be there by now, 0 if there is no hole.
    pub(crate) fn overdue(&mut self) -> u32 {
        let monitor = &self.monitor;
        self.intake.overdue(now(), |intake| monitor.ahead(intake))
    }

    /// Number of empty slots from the next one on, at most `limit`.
    pub(crate) fn run_of_empty(&self, queue: &Queue, limit: u32) -> u32 {
        (0..limit)
            .take_while(|i| queue.status(queue.next(self.next(), *i)) == 0)
            .count() as u32
    }

    /// Slots that the NIC has written, from the next one on. Reads a register.
    pub(crate) fn backlog(&self) -> u32 {
        self.monitor.ahead(&self.intake)
    }

    /// Tells the NIC about freed slots if there are many.
    #[inline]
    pub(crate) fn commit_if_due(&mut self, queue: &Queue, stats: &PortStats) {
        if self.intake.is_commit_due() {
            let lrp = self.intake.free();
            self.monitor.commit(queue, lrp, false, stats);
        }
    }

    /// Tells the NIC about freed slots and unmasks the interrupt. Not to be kept from running for
    /// long between its look at the queue and the store: with interrupts or bottom halves off.
    pub(crate) fn rearm(&mut self, queue: &Queue, stats: &PortStats) {
        let next = self.intake.next();
        // Before the store: what comes after it may be counted at once.
        let armed = Some((next, stats.interrupts.load(Relaxed)));
        if self.armed == armed {
            // Nothing came since then. The other queue of an interface, say, has it polled.
            self.monitor.expect(next, false);
            return;
        }
        match self.intake.arm(|| self.monitor.pointer()) {
            None => self.monitor.expect(UNARMED, true),
            Some(lrp) => {
                self.armed = armed;
                self.monitor.commit(queue, lrp, true, stats);
                if self.monitor.found.xchg(false, Full) {
                    self.care.found();
                }
                // The register first: what it tells of may be in the queue by then.
                let comes = self.care.take()
                    && self.monitor.ahead(&self.intake) != 0
                    && queue.status(next) == 0;
                self.monitor.expect(next, comes);
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // What it would call is told nothing that matters to somebody who does not read.
        let _ = work::cancel_delayed(&self.monitor);
    }
}

/// Looks after a queue whose owner waits for an interrupt: once, some time after the queue was armed, it
/// compares the pointers, and has the owner poll if they differ.
#[pin_data]
pub(crate) struct QueueMonitor {
    ctx: Arc<Context>,
    table: Arc<Table>,
    vpid: Vpid,
    /// Slot that the owner waits for, or [`UNARMED`], and since when.
    next: Atomic<u32>,
    since: AtomicTime,
    /// Something was found without an interrupt.
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
            let late = now().since(this.since.load()) >= ticks(HOLE_MS / 2);
            if late && waits_for != UNARMED {
                this.found.store(true, Relaxed);
            }
            // Its poll finds out whether there is a hole, an interrupt got lost, or all is well. With bottom
            // halves off, so that what it schedules runs when they are on again.
            let _bh = BhDisabled::new();
            this.table.interrupt(this.vpid);
        }
    }
}

impl QueueMonitor {
    /// For the queue of a VPID. May sleep.
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

    /// Ends all looks; nobody asks for one any more. May sleep.
    pub(crate) fn stop(self: &Arc<Self>) {
        work::cancel_delayed_sync(self);
    }

    /// The NIC's write pointer.
    fn pointer(&self) -> Option<u32> {
        queue::write_pointer(&self.ctx, self.table.unit(), self.vpid)
    }

    /// Slots by which the NIC's write pointer is ahead.
    fn ahead(&self, intake: &Intake) -> u32 {
        self.pointer().map_or(0, |lwp| intake.ahead(lwp))
    }

    fn commit(&self, queue: &Queue, lrp: u32, arm: bool, stats: &PortStats) {
        if let Some(hw) = self.ctx.alive_access() {
            // The status words were zeroed before the NIC may reuse the slots.
            barrier::wmb();
            queue.commit(&hw, lrp, arm);
            add(&stats.commits, 1);
        }
    }

    /// Has a look some time from now, unless one is due anyway; soon if something comes for certain.
    fn expect(self: &Arc<Self>, next: u32, comes: bool) {
        self.next.store(next, Relaxed);
        self.since.store(now());
        if comes {
            let _ = work::cancel_delayed(self);
        }
        let ms = if comes { SOON_MS } else { HOLE_MS };
        let _ = work::enqueue_delayed(self.clone(), msecs_to_jiffies(ms));
    }
}
