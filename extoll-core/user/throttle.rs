// SPDX-License-Identifier: GPL-2.0-only

//! Interrupts of a process's port: wakes waiting threads, and limits the interrupt rate.
//!
//! A process re-arms the interrupt of its VPID by a store to the page with its read pointer (HW
//! §6.5). The hardware does not limit the rate of such stores. The driver therefore limits the
//! interrupts per [`WINDOW_MS`] of a port, and of all ports of a user. If there are more, it unmaps
//! the page for [`PAUSE_MS`]. During this pause, stores to the page wait in the page fault, and
//! ioctls that arm take effect at its end. Then all waiting threads are woken to poll, because
//! events during the pause raised no interrupt.
//!
//! The mutex `pause` protects the state of the pause. It is acquired with the port's mutex held.
//! The interrupt handler only counts interrupts, wakes threads, and queues the work item.

use super::{policy::Settings, port::UserQueue};
use crate::{
    context::Context,
    hw::Hw,
    port::PortBase,
    quirks,
    stats::{add, PortStats, Reason},
    time::{now, ticks, AtomicTime},
    vpid::{Client, Table},
};
use kernel::{
    impl_has_delayed_work, new_delayed_work, new_mutex,
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, AtomicFlag, Relaxed},
        poll::PollCondVarBox,
        Arc, Mutex,
    },
    time::{msecs_to_jiffies, Jiffies},
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::{chardev::Mapping, net::BhDisabled, work};
use protocol::{nic::ring_consumer::may_store_again, Time};
use wire::{
    bq::{Rp, WritePointers},
    ids::{RegOffset, Vpid},
    regs::BqRegs,
};

/// Time in milliseconds over which interrupts are counted.
const WINDOW_MS: u32 = 100;
/// Length of a pause in milliseconds.
const PAUSE_MS: u32 = 100;
/// Value that stands for no slot.
const NONE: u32 = u32::MAX;
/// Number of pages that are unmapped during a pause. The page of the read pointer is the first page
/// of a queue's mapping.
const RP_PAGES: usize = 1;

/// State for the interrupts of a process's port.
#[pin_data]
pub(super) struct UserWatch {
    ctx: Arc<Context>,
    table: Arc<Table>,
    vpid: Vpid,
    settings: Settings,
    stats: Arc<PortStats>,
    pub(super) changed: PollCondVarBox,
    /// Set by an interrupt, which is then masked; cleared when the process arms it.
    interrupted: AtomicFlag,
    /// Interrupt count of this port; `all` is the count of all ports of its user.
    own: Budget,
    all: Option<Arc<Budget>>,
    /// Set from the request of a pause until the end of that pause.
    pause_requested: AtomicFlag,
    /// Read pointer that [`UserWatch::arm`] stored last, or [`NONE`].
    stored: Atomic<u32>,
    /// Number of consecutive attempts to arm the interrupt that failed.
    refused: Atomic<u32>,
    /// State of the pause. Acquired with the port's mutex held, never in the opposite order.
    #[pin]
    pause: Mutex<Pause>,
    #[pin]
    work: DelayedWork<UserWatch>,
}

/// Count of interrupts in windows of [`WINDOW_MS`].
pub(super) struct Budget {
    /// Start of the current window; `count` is the number of interrupts since then.
    window: AtomicTime,
    count: Atomic<u32>,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            window: AtomicTime::new(now()),
            count: Atomic::new(0),
        }
    }

    /// Returns whether the window, and a pause that may follow it, have passed.
    pub(super) fn is_idle(&self) -> bool {
        now().since(self.window.load()) > ticks(WINDOW_MS + PAUSE_MS)
    }

    fn restart(&self) {
        self.window.store(now());
        self.count.store(0, Relaxed);
    }

    /// Counts an interrupt. Returns whether the count exceeds `limit` per second; 0 sets no limit.
    /// Concurrent calls may count a few interrupts in the wrong window. Any context.
    fn is_exceeded(&self, limit: u32) -> bool {
        if now().since(self.window.load()) >= ticks(WINDOW_MS) {
            self.restart();
        }
        let count = self.count.fetch_add(1, Relaxed);
        limit != 0 && count >= (limit / (1000 / WINDOW_MS)).max(1)
    }
}

struct Pause {
    active: bool,
    /// Start time of the pause.
    since: Time,
    /// Set if the process tried to arm the interrupt during the pause.
    arm: bool,
    /// The process's mapping of the port's queue, and the queue.
    queue: Option<(Arc<Mapping>, Arc<UserQueue>)>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<UserWatch> for UserWatch { self.work }
}

impl WorkItem for UserWatch {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut pause = this.pause.lock();
        if !pause.active && this.pause_requested.load(Relaxed) {
            this.pause(&mut pause);
        }
        if pause.active {
            // The work item may have been queued early, for a check of the queue.
            let remainder = ticks(PAUSE_MS).saturating_sub(now().since(pause.since));
            if remainder == 0 {
                this.resume(&mut pause);
            } else {
                let _ = work::cancel_delayed(&this);
                let _ = work::enqueue_waiting(this.clone(), remainder as Jiffies);
            }
        }
        drop(pause);
        this.changed.notify_all();
    }
}

/// Waits until a store to `reg` has arrived. Entries that the NIC wrote before an arming store may
/// raise no interrupt (G7). They are in the queue when the read returns.
fn settle(hw: &Hw, reg: RegOffset) {
    hw.rf.read(reg);
}

/// Client of the VPID's interrupts.
struct Listener(Arc<UserWatch>);

impl Client for Listener {
    fn interrupt(&self) {
        self.0.interrupted.store(true, Relaxed);
        self.0.changed.notify_all();
        if self.0.is_too_much() {
            let _ = work::enqueue_waiting(self.0.clone(), 0);
        }
    }

    fn writable(&self) {}

    fn down(&self) {
        self.0.changed.notify_all();
    }
}

impl UserWatch {
    /// Makes the object for a VPID that the caller owns. It takes effect with
    /// [`UserWatch::listen`]. May sleep.
    pub(super) fn new(
        base: &PortBase,
        vpid: Vpid,
        settings: Settings,
        stats: Arc<PortStats>,
        all: Option<Arc<Budget>>,
    ) -> Result<Arc<Self>> {
        let changed = PollCondVarBox::new(c"extoll_port", static_lock_class!())?;
        let pause = Pause {
            active: false,
            since: now(),
            arm: false,
            queue: None,
        };
        Arc::pin_init(
            try_pin_init!(Self {
                ctx: base.ctx.clone(),
                table: base.table.clone(),
                vpid,
                settings,
                stats,
                changed,
                interrupted: AtomicFlag::new(false),
                own: Budget::new(),
                all,
                pause_requested: AtomicFlag::new(false),
                stored: Atomic::new(NONE),
                refused: Atomic::new(0),
                pause <- new_mutex!(pause, "extoll_gate"),
                work <- new_delayed_work!("extoll_throttle"),
            }),
            GFP_KERNEL,
        )
    }

    /// Starts to receive the interrupts of the VPID.
    pub(super) fn listen(self: &Arc<Self>) -> Result {
        let listener = Arc::new(Listener(self.clone()), GFP_KERNEL)?;
        self.table.set_client(self.vpid, Some(listener));
        Ok(())
    }

    /// Stops receiving interrupts permanently. May sleep.
    pub(super) fn stop(self: &Arc<Self>) {
        self.table.set_client(self.vpid, None);
        work::cancel_delayed_sync(self);
        self.pause.lock().queue = None;
        self.changed.notify_all();
    }

    /// Records a new mapping of the port's queue.
    pub(super) fn watch(self: &Arc<Self>, mapping: Arc<Mapping>, queue: Arc<UserQueue>) {
        let mut pause = self.pause.lock();
        if pause.active {
            mapping.withhold(RP_PAGES);
        }
        self.stored.store(NONE, Relaxed);
        // A pause has ended before the queue was recorded, so its deferred arming is done here.
        if !pause.active && core::mem::take(&mut pause.arm) {
            self.retrigger(&queue);
        }
        pause.queue = Some((mapping, queue));
    }

    /// Forgets the queue, because it is about to be destroyed.
    pub(super) fn forget(&self) {
        self.pause.lock().queue = None;
    }

    /// Calls `f`, which makes a queue. The argument of `f` says whether `f` may arm the interrupt.
    /// During a pause, arming is deferred to the end of the pause.
    pub(super) fn arming(&self, f: impl FnOnce(bool) -> Result) -> Result {
        let mut pause = self.pause.lock();
        pause.arm |= pause.active;
        f(!pause.active)
    }

    /// Writes the read pointer for the process. During a pause, the interrupt stays masked until
    /// the end of the pause. Returns `ENODEV` if the device was removed.
    pub(super) fn store_rp(&self, rp: Rp) -> Result {
        let mut pause = self.pause.lock();
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        self.write_rp(&mut pause, &hw, rp);
        Ok(())
    }

    fn write_rp(&self, pause: &mut Pause, hw: &Hw, rp: Rp) {
        if rp.irq_retrigger() {
            self.interrupted.store(false, Relaxed);
        }
        pause.arm |= pause.active && rp.irq_retrigger();
        let rp = rp.with_irq_retrigger(rp.irq_retrigger() && !pause.active);
        let reg = BqRegs(self.table.unit()).rp(self.vpid);
        hw.rf.write(reg, rp.raw());
        if rp.irq_retrigger() {
            settle(hw, reg);
        }
    }

    /// Arms the interrupt for entries from `slot` on. If the slot already contains an entry,
    /// returns true and does not arm, because the process need not wait. During a pause, the
    /// interrupt stays masked until the end of the pause. Returns `ENODEV` if the device was
    /// removed.
    ///
    /// Storing the unchanged read pointer again may clear the NIC's flag that the queue is full
    /// (G10). The pointer is therefore not stored if half of the queue has been written or may be
    /// in flight. In this case the function also returns true, and wakes waiting threads a little
    /// later. Bottom halves are disabled between the check and the store, so that less than half of
    /// a queue can arrive between them.
    pub(super) fn arm(self: &Arc<Self>, slot: u32, queue: &UserQueue) -> Result<bool> {
        let holds = || queue.status(slot) != 0;
        if holds() {
            return Ok(true);
        }
        let mut pause = self.pause.lock();
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        let old = Rp(hw.rf.read(BqRegs(self.table.unit()).rp(self.vpid))).lrp();
        // If a program leaves no slot unused, the read pointer is not moved back.
        let rp = if old == slot {
            slot
        } else {
            queue.before(slot)
        };
        let looks_empty = old == rp && self.looks_empty(queue, rp);
        let _bh = BhDisabled::new();
        if old == rp && !self.may_store(&hw, queue, rp, looks_empty) {
            self.recheck_soon();
            return Ok(true);
        }
        if holds() {
            return Ok(true);
        }
        self.refused.store(0, Relaxed);
        self.stored
            .store(if rp == slot { NONE } else { rp }, Relaxed);
        let rp = Rp(0).with_lrp(rp).with_irq_retrigger(true);
        self.write_rp(&mut pause, &hw, rp);
        Ok(false)
    }

    /// Re-arms the interrupt if it was raised, because it may have reported an entry that the
    /// process had already consumed (G7). No interrupt would then report later entries. Returns
    /// whether it re-armed. In that case the caller must check the queue again.
    pub(super) fn renew(self: &Arc<Self>) -> bool {
        if !self.interrupted.load(Relaxed) {
            return false;
        }
        let mut pause = self.pause.lock();
        self.interrupted.store(false, Relaxed);
        if pause.active {
            pause.arm = true;
        } else if let Some((mapping, queue)) = &pause.queue {
            // No known register only arms the interrupt (HW §6.5), so the read pointer is read and
            // written back. The page is unmapped until then, because a store of the process between
            // the two accesses would be undone.
            mapping.withhold(RP_PAGES);
            self.retrigger(queue);
            mapping.give_back();
        }
        true
    }

    /// Unmasks the interrupt without moving the read pointer. The caller prevents other writes to
    /// it. Like [`UserWatch::arm`], does not store if the queue may become full. The process is
    /// then woken a little later and finds the entries.
    ///
    /// Does not rely on the state of single slots, because the process may be consuming entries.
    fn retrigger(self: &Arc<Self>, queue: &UserQueue) {
        let Some(hw) = self.ctx.alive_access() else {
            return;
        };
        let reg = BqRegs(self.table.unit()).rp(self.vpid);
        let rp = Rp(hw.rf.read(reg));
        let looks_empty = self.looks_empty(queue, rp.lrp());
        let _bh = BhDisabled::new();
        if self.may_store(&hw, queue, rp.lrp(), looks_empty) {
            self.refused.store(0, Relaxed);
            hw.rf.write(reg, rp.with_irq_retrigger(true).raw());
            settle(&hw, reg);
        } else {
            self.recheck_soon();
        }
    }

    /// Returns whether all slots are free and `rp` is not the pointer that was stored last. If a
    /// process leaves no slot unused, the read and write pointers of an empty queue are equal. May
    /// take some milliseconds.
    fn looks_empty(&self, queue: &UserQueue, rp: u32) -> bool {
        rp != self.stored.load(Relaxed) && (0..queue.slots()).all(|slot| queue.status(slot) == 0)
    }

    /// Returns whether the unchanged read pointer may be stored again.
    fn may_store(&self, hw: &Hw, queue: &UserQueue, rp: u32, looks_empty: bool) -> bool {
        let wp = self.write_pointer(hw);
        may_store_again(queue.slots(), rp, wp) || looks_empty && wp == rp
    }

    /// Returns whether arming has failed [`quirks::MAX_REFUSED_ARMINGS`] times in a row. An entry
    /// is then missing.
    pub(super) fn is_stuck(&self) -> bool {
        self.refused.load(Relaxed) >= quirks::MAX_REFUSED_ARMINGS
    }

    /// Wakes waiting threads a little later, so that they check the queue and arm again.
    fn recheck_soon(self: &Arc<Self>) {
        self.interrupted.store(true, Relaxed);
        self.refused.fetch_add(1, Relaxed);
        let _ = work::enqueue_waiting(self.clone(), msecs_to_jiffies(quirks::USER_RECHECK_MS));
    }

    fn write_pointer(&self, hw: &Hw) -> u32 {
        let reg = BqRegs(self.table.unit()).wp_lwp_dcq_rp(self.vpid);
        WritePointers(hw.rf.read(reg)).lwp()
    }

    /// Counts an interrupt. Returns whether it exceeds a limit and a pause must be requested.
    fn is_too_much(&self) -> bool {
        let settings = &self.settings;
        let own = self.own.is_exceeded(settings.user_interrupts);
        let all = self
            .all
            .as_ref()
            .is_some_and(|all| all.is_exceeded(settings.interrupts_per_user));
        (own || all) && !self.pause_requested.xchg(true, Relaxed)
    }

    fn pause(&self, pause: &mut Pause) {
        pause.active = true;
        pause.since = now();
        if let Some((mapping, _)) = &pause.queue {
            mapping.withhold(RP_PAGES);
        }
        add(&self.stats.throttled, 1);
        self.ctx.error(
            Reason::Throttled,
            u64::from(self.vpid.get()) | (self.table.unit() as u64) << 32,
        );
    }

    fn resume(self: &Arc<Self>, pause: &mut Pause) {
        pause.active = false;
        self.own.restart();
        self.pause_requested.store(false, Relaxed);
        if let Some((mapping, queue)) = &pause.queue {
            if core::mem::take(&mut pause.arm) {
                self.retrigger(queue);
            }
            mapping.give_back();
        }
    }
}
