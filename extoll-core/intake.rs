// SPDX-License-Identifier: GPL-2.0-only

//! Reading side of a buffer queue: where it is, what the NIC knows of that, and what to do about lost writes.
//!
//! DMA writes are posted. One that gets lost leaves a *hole*: a slot whose status word stays 0 although the NIC's write
//! pointer passed it, behind which everything would wait for ever. A slot that is empty and passed at two looks, at least
//! [`HOLE_MS`] apart, is skipped.
//!
//! Looks happen while the owner polls an empty queue, which costs a register read every [`HOLE_MS`] at most. For an owner
//! that waits for interrupts there is [`Lookout`]: once, some time after the queue was re-armed, it compares the pointers and has the
//! owner poll if they differ. So nothing runs while nothing arrives.
//!
//! An interrupt may be wanted while the store that arms it is on its way, and a NIC may forget it then (G7), before what it tells of
//! can be seen. A look at the queue right after the store does not find that, a look behind the answer to a register read does; but such a read
//! costs more than all the rest. So it is made only once the lookout has found something that nobody was told of, for the next
//! [`CAREFUL`] times.

use crate::{
    bq::Queue,
    context::Context,
    stats::{add, PortStats},
    vpid::Table,
};
use kernel::{
    impl_has_delayed_work, new_delayed_work,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
    time::msecs_to_jiffies,
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::{
    barrier,
    net::{jiffies64, BhDisabled},
    work,
};
use wire::{bq::WritePointers, ids::Vpid, regs::BqRegs};

/// Pause between two looks at a slot that stays empty.
pub(crate) const HOLE_MS: u32 = 100;
/// How often arming is made sure of after something came without its interrupt.
const CAREFUL: u32 = 10_000;
/// When the lookout looks for what is known to be on its way.
const SOON_MS: u32 = 1;
/// Read pointer updates happen at least every this many slots (or quarter of the queue).
const COMMIT_SLOTS: u32 = 256;

/// The next slot was found empty.
struct Empty {
    /// When that was noticed, or the last look, in jiffies.
    since: u64,
    /// Slots by which the NIC's write pointer was ahead at the last look.
    ahead: u32,
}

/// Reading side of one queue. Drop sleeps.
pub(crate) struct Reader {
    next: u32,
    /// Read pointer as the NIC knows it.
    committed: u32,
    empty: Option<Empty>,
    /// Slots from `next` on that had to be there by now.
    overdue: u32,
    lookout: Arc<Lookout>,
}

impl Reader {
    /// At slot 0 of a new queue. May sleep.
    pub(crate) fn new(ctx: &Arc<Context>, table: &Arc<Table>, vpid: Vpid) -> Result<Self> {
        Ok(Self {
            next: 0,
            committed: 0,
            empty: None,
            overdue: 0,
            lookout: Lookout::new(ctx, table, vpid)?,
        })
    }

    /// Next slot to read.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Frees `slots` slots.
    pub(crate) fn advance(&mut self, queue: &Queue, slots: u32) {
        for _ in 0..slots {
            queue.free(self.next);
            self.next = queue.next(self.next, 1);
        }
        self.overdue = self.overdue.saturating_sub(slots);
        self.empty = None;
    }

    /// To be called when the next slot, or a later one of the same message, is empty: number of slots from the next one on
    /// whose content had to be there by now, 0 if there is no hole.
    pub(crate) fn overdue(&mut self, queue: &Queue) -> u32 {
        if self.overdue != 0 {
            return self.overdue;
        }
        let now = jiffies64();
        let Some(empty) = &mut self.empty else {
            self.empty = Some(Empty {
                since: now,
                ahead: 0,
            });
            return 0;
        };
        if now.saturating_sub(empty.since) < msecs_to_jiffies(HOLE_MS) as u64 {
            return 0;
        }
        let before = core::mem::replace(&mut empty.ahead, self.lookout.ahead(queue, self.next));
        empty.since = now;
        if empty.ahead != 0 {
            self.overdue = before;
        }
        self.overdue
    }

    /// Number of empty slots from the next one on, at most `limit`.
    pub(crate) fn run_of_empty(&self, queue: &Queue, limit: u32) -> u32 {
        (0..limit)
            .take_while(|i| queue.status(queue.next(self.next, *i)) == 0)
            .count() as u32
    }

    /// Slots that the NIC has written, from the next one on. Reads a register.
    pub(crate) fn backlog(&self, queue: &Queue) -> u32 {
        self.lookout.ahead(queue, self.next)
    }

    /// Tells the NIC about freed slots if there are many.
    pub(crate) fn commit_if_due(&mut self, queue: &Queue, stats: &PortStats) {
        let behind = self.next.wrapping_sub(self.committed) & (queue.slots() - 1);
        if behind >= COMMIT_SLOTS.min(queue.slots() / 4) {
            self.commit(queue, stats, false);
        }
    }

    /// Tells the NIC about freed slots and unmasks the interrupt.
    pub(crate) fn rearm(&mut self, queue: &Queue, stats: &PortStats) {
        self.commit(queue, stats, true);
        // The register first: what it tells of may be in the queue by then.
        let comes = self.lookout.take_care()
            && self.lookout.ahead(queue, self.next) != 0
            && queue.status(self.next) == 0;
        self.lookout.expect(self.next, comes);
    }

    fn commit(&mut self, queue: &Queue, stats: &PortStats, rearm: bool) {
        if let Some(hw) = self.lookout.ctx.alive_access() {
            // The status words were zeroed before the NIC may reuse the slots.
            barrier::wmb();
            // A store of the pointer that the NIC has already may undo that it found the queue full meanwhile (G10), and all that is in
            // it is overwritten then. So what only frees leaves one slot to the store that arms.
            let lrp = match rearm {
                true => self.next,
                false => queue.next(self.next, queue.slots() - 1),
            };
            queue.commit(&hw, lrp, rearm);
            self.committed = self.next;
            add(&stats.commits, 1);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        work::cancel_delayed_sync(&self.lookout);
    }
}

/// Looks after a queue whose owner waits for an interrupt.
#[pin_data]
struct Lookout {
    ctx: Arc<Context>,
    table: Arc<Table>,
    vpid: Vpid,
    /// Slot that the owner waits for, and since when, in jiffies.
    next: Atomic<u32>,
    since: Atomic<u64>,
    /// How often arming is still made sure of.
    careful: Atomic<u32>,
    #[pin]
    work: DelayedWork<Lookout>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Lookout> for Lookout { self.work }
}

impl WorkItem for Lookout {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this
            .pointer()
            .is_some_and(|lwp| lwp != this.next.load(Relaxed))
        {
            let waited = jiffies64().saturating_sub(this.since.load(Relaxed));
            if waited >= msecs_to_jiffies(HOLE_MS / 2) as u64 {
                this.careful.store(CAREFUL, Relaxed);
            }
            // Its poll finds out whether there is a hole, an interrupt got lost, or all is well. With bottom halves off, so
            // that what it schedules runs when they are on again.
            let _bh = BhDisabled::new();
            this.table.interrupt(this.vpid);
        }
    }
}

impl Lookout {
    fn new(ctx: &Arc<Context>, table: &Arc<Table>, vpid: Vpid) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                ctx: ctx.clone(),
                table: table.clone(),
                vpid,
                next: Atomic::new(0),
                since: Atomic::new(0),
                careful: Atomic::new(0),
                work <- new_delayed_work!("extoll_lookout"),
            }),
            GFP_KERNEL,
        )
    }

    /// The NIC's write pointer.
    fn pointer(&self) -> Option<u32> {
        let hw = self.ctx.alive_access()?;
        let raw = hw
            .rf
            .read(BqRegs(self.table.unit()).wp_lwp_dcq_rp(self.vpid));
        (!self.ctx.is_gone(&hw, raw)).then(|| WritePointers(raw).lwp())
    }

    /// Slots by which the NIC's write pointer is ahead of `next`.
    fn ahead(&self, queue: &Queue, next: u32) -> u32 {
        match self.pointer() {
            Some(lwp) if lwp >= queue.slots() => 0,
            // Equal pointers may also mean that the queue is full (G10): then the slot behind is in use.
            Some(lwp) if lwp == next && queue.status(queue.next(next, 1)) != 0 => queue.slots(),
            Some(lwp) => lwp.wrapping_sub(next) & (queue.slots() - 1),
            None => 0,
        }
    }

    /// Whether arming is to be made sure of this time.
    fn take_care(&self) -> bool {
        let left = self.careful.load(Relaxed);
        if left != 0 {
            self.careful.store(left - 1, Relaxed);
        }
        left != 0
    }

    /// Has a look some time from now, unless one is due anyway; soon if something comes for certain.
    fn expect(self: &Arc<Self>, next: u32, comes: bool) {
        self.next.store(next, Relaxed);
        self.since.store(jiffies64(), Relaxed);
        if comes {
            let _ = work::cancel_delayed(self);
        }
        let ms = if comes { SOON_MS } else { HOLE_MS };
        let _ = work::enqueue_delayed(self.clone(), msecs_to_jiffies(ms));
    }
}
