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
    time::msecs_to_jiffies,
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::{chardev::Mapping, net::BhDisabled, work};
use wire::{
    bq::Rp,
    ids::{RegOffset, Vpid},
    regs::BqRegs,
};

/// Time over which interrupts are counted.
const WINDOW_MS: u32 = 100;
/// How long a port that had too many gets none.
const PAUSE_MS: u32 = 100;
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
        if gate.shut {
            this.open(&mut gate);
        } else {
            this.shut(&mut gate);
            let _ = work::enqueue_waiting(this.clone(), msecs_to_jiffies(PAUSE_MS));
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
    pub(super) fn watch(&self, mapping: Arc<Mapping>, queue: Arc<UserQueue>) {
        let mut gate = self.gate.lock();
        if gate.shut {
            mapping.withhold(RP_PAGES);
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

    /// Arms the interrupt behind what was read up to `slot`, unless the queue `holds` something there: then there is nothing to
    /// wait for, and a store of the pointer that the NIC has already may undo that the queue is full (G10). True if it holds
    /// something. During a pause the interrupt stays masked until its end. `ENODEV`.
    ///
    /// Whoever asks for the same slot `again` may do so as the NIC stood still for a while, and has much to deliver now: all that
    /// it has written is there when it answers. No other task runs on this processor between the look and the store, so that
    /// what comes meanwhile is less than a queue takes.
    pub(super) fn arm(&self, slot: u32, again: bool, holds: impl Fn() -> bool) -> Result<bool> {
        if holds() {
            return Ok(true);
        }
        let mut gate = self.gate.lock();
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        let reg = BqRegs(self.table.unit()).rp(self.vpid);
        let _bh = BhDisabled::new();
        if again {
            settle(&hw, reg);
        }
        if holds() {
            return Ok(true);
        }
        self.write_rp(
            &mut gate,
            &hw,
            Rp(0).with_lrp(slot).with_irq_retrigger(true),
        );
        Ok(false)
    }

    /// Arms again if the interrupt that was armed has come: it may have been for something that the process had taken before
    /// (G7), and then nothing would announce what comes next. True if so: look at the queue again.
    pub(super) fn renew(&self) -> bool {
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
            self.retrigger(Some(queue));
            mapping.give_back();
        }
        true
    }

    /// Unmasks the interrupt, and leaves the read pointer where it is. Nobody else writes it meanwhile. Does nothing while the queue holds
    /// something: whoever waits finds that, and a store of the same pointer may undo that the queue is full (G10).
    fn retrigger(&self, queue: Option<&UserQueue>) {
        if let Some(hw) = self.ctx.alive_access() {
            let reg = BqRegs(self.table.unit()).rp(self.vpid);
            // As for `arm`. What the NIC had written is there when it answers.
            let _bh = BhDisabled::new();
            let rp = Rp(hw.rf.read(reg));
            // The slot at the pointer may have been read, as one is left to the store that arms.
            let holds = |queue: &UserQueue| {
                let next = rp.lrp().wrapping_add(1) % queue.slots().max(1);
                queue.status(rp.lrp()) != 0 || queue.status(next) != 0
            };
            if !queue.is_some_and(holds) {
                hw.rf.write(reg, rp.with_irq_retrigger(true).raw());
                settle(&hw, reg);
            }
        }
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
        if let Some((mapping, _)) = &gate.queue {
            mapping.withhold(RP_PAGES);
        }
        add(&self.stats.throttled, 1);
        self.ctx.error(
            Reason::Throttled,
            u64::from(self.vpid.get()) | (self.table.unit() as u64) << 32,
        );
    }

    fn open(&self, gate: &mut Gate) {
        gate.shut = false;
        self.own.restart();
        self.asked.store(false, Relaxed);
        let arm = core::mem::take(&mut gate.arm);
        let queue = gate.queue.as_ref();
        if arm {
            self.retrigger(queue.map(|(_, queue)| &**queue));
        }
        if let Some((mapping, _)) = queue {
            mapping.give_back();
        }
    }
}
