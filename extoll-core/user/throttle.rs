// SPDX-License-Identifier: GPL-2.0-only

//! Who waits for a port's interrupt, and a limit of how often it may come.
//!
//! A process re-arms the interrupt of its VPID by a store to the page with its read pointer (HW §6.5), as fast as it likes, and nothing
//! in the hardware takes that back. So when a port, or all ports of a user, had more interrupts than their share of [`WINDOW_MS`], that page is withheld for
//! [`PAUSE_MS`]: stores to it wait in the page fault, and ioctls that would arm do so at the end of the pause. Then everybody who
//! waits is woken to look again, since what came meanwhile did not interrupt.

use super::{policy::Settings, port::UserQueue};
use crate::{
    context::Context,
    hw::Hw,
    port::PortBase,
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
use wire::{
    bq::{Rp, WritePointers},
    ids::{RegOffset, Vpid},
    intake::may_store_again,
    regs::BqRegs,
    time::Time,
};

/// Time over which interrupts are counted.
const WINDOW_MS: u32 = 100;
/// How long a port that had too many gets none.
const PAUSE_MS: u32 = 100;
/// When those who wait look again at a queue that could not be armed, as something is on its way to it.
const SOON_MS: u32 = 1;
/// After so many such looks in vain they are told to look for themselves: what comes is behind a hole.
const STUCK: u32 = 100;
/// No slot.
const NONE: u32 = u32::MAX;
/// Pages that are withheld: that of the read pointer is the first of a queue's mapping.
const RP_PAGES: usize = 1;

/// What hears the interrupts of a process's port.
#[pin_data]
pub(super) struct UserWatch {
    ctx: Arc<Context>,
    table: Arc<Table>,
    vpid: Vpid,
    settings: Settings,
    stats: Arc<PortStats>,
    pub(super) changed: PollCondVarBox,
    /// An interrupt came since the process armed: it is masked.
    fired: AtomicFlag,
    /// Interrupts of this port, and of all of its user.
    own: Budget,
    all: Option<Arc<Budget>>,
    /// A pause was asked for and is not over.
    asked: AtomicFlag,
    /// Read pointer that [`UserWatch::arm`] stored last, or [`NONE`].
    stored: Atomic<u32>,
    /// How often in a row the interrupt could not be armed.
    refused: Atomic<u32>,
    /// Taken with the port's lock held, never the other way round.
    #[pin]
    gate: Mutex<Gate>,
    #[pin]
    work: DelayedWork<UserWatch>,
}

/// Interrupts in windows of [`WINDOW_MS`].
pub(super) struct Budget {
    /// When the present window began, and interrupts since then.
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

    /// Whether its window is over, and the pause that may follow.
    pub(super) fn is_idle(&self) -> bool {
        now().since(self.window.load()) > ticks(WINDOW_MS + PAUSE_MS)
    }

    fn restart(&self) {
        self.window.store(now());
        self.count.store(0, Relaxed);
    }

    /// Counts an interrupt; true when there are more now than `limit` per second allows (0: any number). Several at a time may be
    /// counted in a window too many or too few. Any context.
    fn is_exceeded(&self, limit: u32) -> bool {
        if now().since(self.window.load()) >= ticks(WINDOW_MS) {
            self.restart();
        }
        let count = self.count.fetch_add(1, Relaxed);
        limit != 0 && count >= (limit / (1000 / WINDOW_MS)).max(1)
    }
}

struct Gate {
    shut: bool,
    /// Since when.
    since: Time,
    /// Somebody wanted to arm meanwhile.
    arm: bool,
    /// The queue of the port as the process has it mapped, and its memory.
    queue: Option<(Arc<Mapping>, Arc<UserQueue>)>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<UserWatch> for UserWatch { self.work }
}

impl WorkItem for UserWatch {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut gate = this.gate.lock();
        if !gate.shut && this.asked.load(Relaxed) {
            this.shut(&mut gate);
        }
        if gate.shut {
            // Others may have had this run before the time, to look again.
            let rest = ticks(PAUSE_MS).saturating_sub(now().since(gate.since));
            if rest == 0 {
                this.open(&mut gate);
            } else {
                let _ = work::cancel_delayed(&this);
                let _ = work::enqueue_waiting(this.clone(), rest as Jiffies);
            }
        }
        drop(gate);
        this.changed.notify_all();
    }
}

/// Waits until a store to `reg` has arrived. What came before one that arms may have no interrupt (G7), and is in the queue now: the
/// answer to the read comes behind it.
fn settle(hw: &Hw, reg: RegOffset) {
    hw.rf.read(reg);
}

/// The client of the VPID.
struct Listener(Arc<UserWatch>);

impl Client for Listener {
    fn interrupt(&self) {
        self.0.fired.store(true, Relaxed);
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
    /// For a VPID that the caller owns; nothing is heard before [`UserWatch::listen`]. May sleep.
    pub(super) fn new(
        base: &PortBase,
        vpid: Vpid,
        settings: Settings,
        stats: Arc<PortStats>,
        all: Option<Arc<Budget>>,
    ) -> Result<Arc<Self>> {
        let changed = PollCondVarBox::new(c"extoll_port", static_lock_class!())?;
        let gate = Gate {
            shut: false,
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
                fired: AtomicFlag::new(false),
                own: Budget::new(),
                all,
                asked: AtomicFlag::new(false),
                stored: Atomic::new(NONE),
                refused: Atomic::new(0),
                gate <- new_mutex!(gate, "extoll_gate"),
                work <- new_delayed_work!("extoll_throttle"),
            }),
            GFP_KERNEL,
        )
    }

    /// Hears the interrupts of the VPID from now on.
    pub(super) fn listen(self: &Arc<Self>) -> Result {
        let listener = Arc::new(Listener(self.clone()), GFP_KERNEL)?;
        self.table.set_client(self.vpid, Some(listener));
        Ok(())
    }

    /// Ends [`UserWatch::listen`], for ever. May sleep.
    pub(super) fn stop(self: &Arc<Self>) {
        self.table.set_client(self.vpid, None);
        work::cancel_delayed_sync(self);
        self.gate.lock().queue = None;
        self.changed.notify_all();
    }

    /// A new mapping of the port's queue.
    pub(super) fn watch(self: &Arc<Self>, mapping: Arc<Mapping>, queue: Arc<UserQueue>) {
        let mut gate = self.gate.lock();
        if gate.shut {
            mapping.withhold(RP_PAGES);
        }
        self.stored.store(NONE, Relaxed);
        // A pause ended before the queue was here.
        if !gate.shut && core::mem::take(&mut gate.arm) {
            self.retrigger(&queue);
        }
        gate.queue = Some((mapping, queue));
    }

    /// The queue is about to be destroyed.
    pub(super) fn forget(&self) {
        self.gate.lock().queue = None;
    }

    /// Has `f` make a queue; it is told whether it may arm the interrupt. During a pause that is done at its end.
    pub(super) fn arming(&self, f: impl FnOnce(bool) -> Result) -> Result {
        let mut gate = self.gate.lock();
        gate.arm |= gate.shut;
        f(!gate.shut)
    }

    /// Writes the read pointer for the process; during a pause the interrupt stays masked until its end. `ENODEV`.
    pub(super) fn store_rp(&self, rp: Rp) -> Result {
        let mut gate = self.gate.lock();
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        self.write_rp(&mut gate, &hw, rp);
        Ok(())
    }

    fn write_rp(&self, gate: &mut Gate, hw: &Hw, rp: Rp) {
        if rp.irq_retrigger() {
            self.fired.store(false, Relaxed);
        }
        gate.arm |= gate.shut && rp.irq_retrigger();
        let rp = rp.with_irq_retrigger(rp.irq_retrigger() && !gate.shut);
        let reg = BqRegs(self.table.unit()).rp(self.vpid);
        hw.rf.write(reg, rp.raw());
        if rp.irq_retrigger() {
            settle(hw, reg);
        }
    }

    /// Arms the interrupt behind what was read up to `slot`, unless the queue holds something there: true then, as there is nothing
    /// to wait for. During a pause the interrupt stays masked until its end. `ENODEV`.
    ///
    /// A store of the pointer that the NIC has already may undo that the queue is full (G10): not if half of the queue has been written,
    /// or may be on its way to memory. True then, too, and those who wait are woken a while later. No other task runs on this processor
    /// between the look and the store, so that what comes meanwhile is less than half of a queue.
    pub(super) fn arm(self: &Arc<Self>, slot: u32, queue: &UserQueue) -> Result<bool> {
        let holds = || queue.status(slot) != 0;
        if holds() {
            return Ok(true);
        }
        let mut gate = self.gate.lock();
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        let old = Rp(hw.rf.read(BqRegs(self.table.unit()).rp(self.vpid))).lrp();
        // Not back, if a program leaves no slot unused.
        let rp = if old == slot {
            slot
        } else {
            queue.before(slot)
        };
        let looks_empty = old == rp && self.looks_empty(queue, rp);
        let _bh = BhDisabled::new();
        if old == rp && !self.may_store(&hw, queue, rp, looks_empty) {
            self.look_soon();
            return Ok(true);
        }
        if holds() {
            return Ok(true);
        }
        self.refused.store(0, Relaxed);
        self.stored
            .store(if rp == slot { NONE } else { rp }, Relaxed);
        let rp = Rp(0).with_lrp(rp).with_irq_retrigger(true);
        self.write_rp(&mut gate, &hw, rp);
        Ok(false)
    }

    /// Arms again if the interrupt that was armed has come: it may have been for something that the process had taken before
    /// (G7), and then nothing would announce what comes next. True if so: look at the queue again.
    pub(super) fn renew(self: &Arc<Self>) -> bool {
        if !self.fired.load(Relaxed) {
            return false;
        }
        let mut gate = self.gate.lock();
        self.fired.store(false, Relaxed);
        if gate.shut {
            gate.arm = true;
        } else if let Some((mapping, queue)) = &gate.queue {
            // No register is known to arm and do nothing else (HW §6.5): this one is read and written, and what the process stored to it
            // between would be undone.
            mapping.withhold(RP_PAGES);
            self.retrigger(queue);
            mapping.give_back();
        }
        true
    }

    /// Unmasks the interrupt, and leaves the read pointer where it is. Nobody else writes it meanwhile. As for [`UserWatch::arm`], not if
    /// the queue may become full: the process finds what there is, when it is woken a while later at the latest.
    ///
    /// Nothing is said by single slots: the process may be reading while this runs.
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
            self.look_soon();
        }
    }

    /// Whether a queue whose pointers would be equal with `rp` is empty, as far as can be seen: that of a process that leaves no
    /// slot unused. May take some milliseconds.
    fn looks_empty(&self, queue: &UserQueue, rp: u32) -> bool {
        rp != self.stored.load(Relaxed) && (0..queue.slots()).all(|slot| queue.status(slot) == 0)
    }

    /// Whether the pointer that the NIC has already may be stored.
    fn may_store(&self, hw: &Hw, queue: &UserQueue, rp: u32, looks_empty: bool) -> bool {
        let wp = self.write_pointer(hw);
        may_store_again(queue.slots(), rp, wp) || looks_empty && wp == rp
    }

    /// Whether arming has been refused for so long that something is missing in the queue.
    pub(super) fn is_stuck(&self) -> bool {
        self.refused.load(Relaxed) >= STUCK
    }

    /// Has those who wait look again, and arm, a while later.
    fn look_soon(self: &Arc<Self>) {
        self.fired.store(true, Relaxed);
        self.refused.fetch_add(1, Relaxed);
        let _ = work::enqueue_waiting(self.clone(), msecs_to_jiffies(SOON_MS));
    }

    fn write_pointer(&self, hw: &Hw) -> u32 {
        let reg = BqRegs(self.table.unit()).wp_lwp_dcq_rp(self.vpid);
        WritePointers(hw.rf.read(reg)).lwp()
    }

    /// Counts an interrupt; true when it is one too many and there is no pause yet.
    fn is_too_much(&self) -> bool {
        let settings = &self.settings;
        let own = self.own.is_exceeded(settings.user_interrupts);
        let all = self
            .all
            .as_ref()
            .is_some_and(|all| all.is_exceeded(settings.interrupts_per_user));
        (own || all) && !self.asked.xchg(true, Relaxed)
    }

    fn shut(&self, gate: &mut Gate) {
        gate.shut = true;
        gate.since = now();
        if let Some((mapping, _)) = &gate.queue {
            mapping.withhold(RP_PAGES);
        }
        add(&self.stats.throttled, 1);
        self.ctx.error(
            Reason::Throttled,
            u64::from(self.vpid.get()) | (self.table.unit() as u64) << 32,
        );
    }

    fn open(self: &Arc<Self>, gate: &mut Gate) {
        gate.shut = false;
        self.own.restart();
        self.asked.store(false, Relaxed);
        if let Some((mapping, queue)) = &gate.queue {
            if core::mem::take(&mut gate.arm) {
                self.retrigger(queue);
            }
            mapping.give_back();
        }
    }
}
