// SPDX-License-Identifier: GPL-2.0-only

//! Sending side of a port: credit, copies for replay, and repair of the requester's write-combining buffer (HW §8).
//!
//! The hot path reads no register: 255 packets may be outstanding, and the committed count is read only when by the
//! last known count none is left. Since a dropped packet would go unnoticed when nothing follows it, a work item looks
//! at the state some milliseconds after sending, and as long as something is outstanding.

use crate::{
    context::Context,
    hw::Hw,
    residue,
    stats::{add, PortStats, Reason},
    vpid::{ShowTx, Table},
};
use kernel::{
    impl_has_delayed_work, new_delayed_work,
    prelude::*,
    sync::{atomic::Relaxed, new_spinlock_irq, Arc, SpinLockIrq},
    time::{delay::fsleep, msecs_to_jiffies, Delta, Instant, Monotonic},
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::work;
use wire::{
    ids::{Unit, Vpid},
    regs::wcbuf,
    residue::QUIET_US,
    wcbuf::{Action, Credits, Event, Failure, Replay, State, Verdict, COPIES},
};

/// Why a packet was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// No credit; [`Client::writable`](crate::vpid::Client::writable) follows.
    Full,
    /// Lost packets are being sent again; [`Client::writable`](crate::vpid::Client::writable) follows.
    Retry,
    /// The port is closed, or the device gone or unbound. Final.
    Down,
    /// The arguments do not form a legal packet.
    Invalid,
}

impl From<SendError> for Error {
    fn from(e: SendError) -> Error {
        match e {
            SendError::Full | SendError::Retry => EAGAIN,
            SendError::Down => ENODEV,
            SendError::Invalid => EINVAL,
        }
    }
}

/// How long a repair may take before its packets are given up: longer than full queues at the other end may hold the fabric up (the
/// programmed time-outs, HW §9.3, §10.7).
const REPAIR_DEADLINE_MS: i64 = 5000;
/// How long the committed count may stand still before that is reported.
const STALL_MS: i64 = 1000;
/// Pause between looks at the state while something is outstanding.
const WATCH_MS: u32 = 4;
/// Looks in quick succession while somebody waits for room.
const QUICK_LOOKS: u32 = 20;

#[derive(Clone, Copy)]
struct Copy<const N: usize> {
    words: [u64; N],
    page: u32,
    len: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    /// The work item owns the credits; nothing else may be sent.
    Repair,
    Closed,
}

struct Inner<const N: usize> {
    mode: Mode,
    credits: Credits,
    copies: KVVec<Copy<N>>,
    /// Room that somebody waits for, 0 = nobody.
    wanted: u8,
    /// The work item is queued or running and will look again.
    watching: bool,
    /// Committed count at the last progress, and when that was.
    progress: (u8, Instant<Monotonic>),
    /// The present stall was reported.
    reported: bool,
}

impl<const N: usize> Inner<N> {
    /// True once per stall: packets are outstanding and none was committed for a while.
    fn stalled(&mut self) -> bool {
        let committed = self.credits.committed();
        if self.credits.outstanding() == 0 || committed != self.progress.0 {
            self.progress = (committed, Instant::now());
            self.reported = false;
            return false;
        }
        if self.reported || self.progress.1.elapsed().as_millis() < STALL_MS {
            return false;
        }
        self.reported = true;
        true
    }
}

/// What the caller has to do after releasing the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kick {
    Nothing,
    Soon,
    Now,
}

/// Sending side; `N` is the longest packet in words.
#[pin_data]
pub(crate) struct Tx<const N: usize> {
    ctx: Arc<Context>,
    table: Arc<Table>,
    unit: Unit,
    vpid: Vpid,
    stats: Arc<PortStats>,
    #[pin]
    inner: SpinLockIrq<Inner<N>>,
    #[pin]
    watch: DelayedWork<Tx<N>>,
}

impl_has_delayed_work! {
    impl{const N: usize} HasDelayedWork<Tx<N>> for Tx<N> { self.watch }
}

impl<const N: usize> WorkItem for Tx<N> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.watch();
    }
}

impl<const N: usize> Tx<N> {
    pub(crate) fn new(
        ctx: &Arc<Context>,
        table: &Arc<Table>,
        vpid: Vpid,
        stats: Arc<PortStats>,
    ) -> Result<Arc<Self>> {
        let mut copies = KVVec::with_capacity(COPIES, GFP_KERNEL)?;
        for _ in 0..COPIES {
            copies.push(
                Copy {
                    words: [0; N],
                    page: 0,
                    len: 0,
                },
                GFP_KERNEL,
            )?;
        }
        Arc::pin_init(
            try_pin_init!(Self {
                ctx: ctx.clone(),
                table: table.clone(),
                unit: table.unit(),
                vpid,
                stats,
                inner <- new_spinlock_irq!(
                    Inner {
                        mode: Mode::Open,
                        credits: Credits::new(),
                        copies,
                        wanted: 0,
                        watching: false,
                        progress: (0, Instant::now()),
                        reported: false,
                    },
                    "extoll_tx"
                ),
                watch <- new_delayed_work!("extoll_tx_watch"),
            }),
            GFP_KERNEL,
        )
    }

    /// Packets that fit by the last known state. No register access.
    pub(crate) fn room(&self) -> usize {
        let inner = self.inner.lock();
        if inner.mode == Mode::Open {
            usize::from(inner.credits.room())
        } else {
            0
        }
    }

    /// Packets posted since the port was opened, and those that the NIC will not be given again, by the last known state: it has
    /// them, or they were given up.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let posted = self.stats.posted.load(Relaxed);
        (
            posted,
            posted.saturating_sub(u64::from(inner.credits.outstanding())),
        )
    }

    /// Makes sure that `n` packets fit, or arranges for `writable` when they do.
    pub(crate) fn reserve(self: &Arc<Self>, n: usize) -> Result<(), SendError> {
        let n = u8::try_from(n).map_err(|_| SendError::Invalid)?;
        let mut kick = Kick::Nothing;
        let result = {
            let mut inner = self.inner.lock();
            self.check_room(&mut inner, n, &mut kick)
        };
        self.kick(kick);
        result
    }

    /// Sends one packet from the page at window offset `page`; returns its number.
    pub(crate) fn post(self: &Arc<Self>, page: u32, words: &[u64]) -> Result<u8, SendError> {
        if words.len() > N {
            return Err(SendError::Invalid);
        }
        let mut kick = Kick::Nothing;
        let result = {
            let mut inner = self.inner.lock();
            self.post_locked(&mut inner, page, words, &mut kick)
        };
        self.kick(kick);
        result
    }

    fn post_locked(
        self: &Arc<Self>,
        inner: &mut Inner<N>,
        page: u32,
        words: &[u64],
        kick: &mut Kick,
    ) -> Result<u8, SendError> {
        self.check_room(inner, 1, kick)?;
        let hw = self.ctx.alive_access().ok_or(SendError::Down)?;
        let index = inner.credits.take().ok_or(SendError::Full)?;
        if let Some(copy) = inner.copies.get_mut(usize::from(index)) {
            copy.page = page;
            copy.len = words.len() as u8;
            for (to, from) in copy.words.iter_mut().zip(words) {
                *to = *from;
            }
        }
        hw.window(self.unit).push(page, words);
        add(&self.stats.posted, 1);
        if !inner.watching {
            inner.watching = true;
            inner.progress = (inner.credits.committed(), Instant::now());
            *kick = Kick::Soon;
        }
        Ok(index)
    }

    fn check_room(
        self: &Arc<Self>,
        inner: &mut Inner<N>,
        n: u8,
        kick: &mut Kick,
    ) -> Result<(), SendError> {
        if !self.ctx.is_alive() {
            return Err(SendError::Down);
        }
        match inner.mode {
            Mode::Open => {}
            Mode::Repair => {
                inner.wanted = inner.wanted.max(n);
                add(&self.stats.busy, 1);
                return Err(SendError::Retry);
            }
            Mode::Closed => return Err(SendError::Down),
        }
        if inner.credits.room() >= n {
            return Ok(());
        }
        // Credit by the last known count is used up: look at the register.
        let error = match self.look(inner)? {
            Verdict::Ok { .. } | Verdict::Full if inner.credits.room() >= n => return Ok(()),
            Verdict::Ok { .. } | Verdict::Full => {
                add(&self.stats.full, 1);
                SendError::Full
            }
            Verdict::Retry { .. } | Verdict::Desync { .. } => {
                inner.mode = Mode::Repair;
                add(&self.stats.busy, 1);
                SendError::Retry
            }
            Verdict::Gone => return Err(SendError::Down),
        };
        inner.wanted = inner.wanted.max(n);
        if !inner.watching {
            inner.watching = true;
            inner.progress = (inner.credits.committed(), Instant::now());
        }
        *kick = Kick::Now;
        Err(error)
    }

    /// Reads the state register and takes it in.
    fn look(&self, inner: &mut Inner<N>) -> Result<Verdict, SendError> {
        let hw = self.ctx.alive_access().ok_or(SendError::Down)?;
        add(&self.stats.state_reads, 1);
        let state = State(hw.rf.read(wcbuf::state(self.unit, self.vpid)));
        let verdict = inner.credits.on_state(state);
        if verdict == Verdict::Gone {
            self.ctx.is_gone(&hw, u64::MAX);
        }
        Ok(verdict)
    }

    fn kick(self: &Arc<Self>, kick: Kick) {
        let delay = match kick {
            Kick::Nothing => return,
            Kick::Soon => msecs_to_jiffies(WATCH_MS),
            Kick::Now => {
                // A look may be scheduled for later already.
                work::cancel_delayed(self);
                0
            }
        };
        let _ = work::enqueue_delayed(self.clone(), delay);
    }

    /// The work item: looks, wakes, repairs, until nothing is outstanding.
    fn watch(self: &Arc<Self>) {
        let mut looks = 0;
        loop {
            match self.watch_step() {
                Step::Idle => return,
                Step::Repair => {
                    self.repair();
                    looks = 0;
                }
                Step::Busy { waiting } if waiting && looks < QUICK_LOOKS => {
                    looks += 1;
                    fsleep(Delta::from_micros(50));
                }
                Step::Busy { .. } => {
                    let delay = msecs_to_jiffies(WATCH_MS);
                    let _ = work::enqueue_delayed(self.clone(), delay);
                    return;
                }
            }
        }
    }

    fn watch_step(&self) -> Step {
        let mut wake = false;
        let mut stalled = false;
        let step = {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            let step = match inner.mode {
                _ if !self.ctx.is_alive() => Step::Idle,
                Mode::Closed => Step::Idle,
                Mode::Repair => Step::Repair,
                Mode::Open => match self.look(inner) {
                    Ok(Verdict::Ok { .. } | Verdict::Full) => {
                        if inner.wanted != 0 && inner.credits.room() >= inner.wanted {
                            inner.wanted = 0;
                            wake = true;
                        }
                        stalled = inner.stalled();
                        if inner.credits.outstanding() == 0 {
                            Step::Idle
                        } else {
                            Step::Busy {
                                waiting: inner.wanted != 0,
                            }
                        }
                    }
                    Ok(Verdict::Retry { .. } | Verdict::Desync { .. }) => {
                        inner.mode = Mode::Repair;
                        Step::Repair
                    }
                    Ok(Verdict::Gone) | Err(_) => Step::Idle,
                },
            };
            inner.watching = step != Step::Idle;
            step
        };
        if stalled {
            self.ctx.error(Reason::Stalled, u64::from(self.vpid.get()));
        }
        if wake {
            self.table.writable(self.vpid);
        }
        step
    }

    /// Drives the repair of HW §8 until it is done, its deadline has passed, or the port is closed.
    fn repair(&self) {
        let began: Instant<Monotonic> = Instant::now();
        add(&self.stats.retries, 1);
        self.ctx.error(Reason::Retry, u64::from(self.vpid.get()));
        let mut replay = Replay::new();
        let mut action = replay.start();
        loop {
            let waits = matches!(action, Action::ReadState);
            {
                let mut guard = self.inner.lock();
                let inner = &mut *guard;
                let hw = match self.ctx.alive_access() {
                    Some(hw) if inner.mode == Mode::Repair => hw,
                    _ => return,
                };
                let reg = wcbuf::state(self.unit, self.vpid);
                let event = match action {
                    Action::ReadState => {
                        add(&self.stats.state_reads, 1);
                        Event::State(State(hw.rf.read(reg)))
                    }
                    Action::WriteState(state) => {
                        hw.rf.write(reg, state.raw());
                        Event::Written
                    }
                    Action::Send(index) => {
                        if let Some(copy) = inner.copies.get(usize::from(index)) {
                            let words = copy.words.get(..usize::from(copy.len)).unwrap_or(&[]);
                            hw.window(self.unit).push(copy.page, words);
                        }
                        Event::Sent
                    }
                    Action::Done => {
                        inner.mode = Mode::Open;
                        break;
                    }
                    Action::Failed(Failure::Gone) => {
                        self.ctx.is_gone(&hw, u64::MAX);
                        return;
                    }
                    Action::Failed(failure) => {
                        if matches!(failure, Failure::Desync { .. }) {
                            self.ctx.note(Reason::BadCommit, u64::from(self.vpid.get()));
                        }
                        self.give_up(inner, &hw);
                        break;
                    }
                };
                action = replay.step(&mut inner.credits, event);
                // The rounds are bounded too: the NIC may drop what is sent again.
                if began.elapsed().as_millis() >= REPAIR_DEADLINE_MS {
                    self.give_up(inner, &hw);
                    break;
                }
            }
            if waits && matches!(action, Action::ReadState) {
                fsleep(Delta::from_micros(20));
            }
        }
        add(&self.stats.replayed, u64::from(replay.resent()));
        let wake = core::mem::take(&mut self.inner.lock().wanted) != 0;
        if wake {
            self.table.writable(self.vpid);
        }
    }

    /// Forgets all outstanding packets and starts afresh.
    fn give_up(&self, inner: &mut Inner<N>, hw: &Hw) {
        let lost = inner.credits.outstanding();
        add(&self.stats.lost, u64::from(lost));
        self.ctx.error(
            Reason::RepairFailed,
            u64::from(self.vpid.get()) | u64::from(lost) << 32,
        );
        reset_state(hw, self.unit, self.vpid);
        inner.credits = Credits::new();
        inner.mode = Mode::Open;
    }

    /// Gives up everything outstanding, e.g. after a transmit time-out. Does nothing while a repair runs, which has a
    /// deadline of its own.
    pub(crate) fn reset(&self) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.mode == Mode::Open && inner.credits.outstanding() != 0 {
            if let Some(hw) = self.ctx.alive_access() {
                self.give_up(inner, &hw);
            }
        }
    }

    /// Refuses further packets, waits for the work item and for what the NIC has not finished. False if that takes too long. May sleep.
    pub(crate) fn close(self: &Arc<Self>) -> bool {
        self.inner.lock().mode = Mode::Closed;
        work::cancel_delayed_sync(self);
        !self.is_used() || residue::settle(&self.ctx, self.unit, self.vpid)
    }

    /// Packets were sent.
    pub(crate) fn is_used(&self) -> bool {
        self.stats.posted.load(Relaxed) != 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing outstanding, or no use in looking.
    Idle,
    Busy {
        waiting: bool,
    },
    Repair,
}

/// Clears the state of a VPID as opening does (HW §3.3), and what an earlier user or a stuck buffer left in it.
pub(crate) fn reset_state(hw: &Hw, unit: Unit, vpid: Vpid) {
    hw.rf
        .update(wcbuf::state(unit, vpid), |v| State(v).fresh().raw());
}

/// How long the NIC may take to finish with what it accepted, when a VPID changes hands.
const SETTLE_MS: i64 = 10;

/// Waits until nothing of the VPID is on the way any more: what is counted as committed later would be taken for a packet of the
/// next owner. Gives up after a while, since a stuck buffer never ends. False then. May sleep.
pub(crate) fn settle(ctx: &Context, unit: Unit, vpid: Vpid) -> bool {
    let began: Instant<Monotonic> = Instant::now();
    let mut last = None;
    loop {
        let Some(hw) = ctx.alive_access() else {
            return true;
        };
        let state = State(hw.rf.read(wcbuf::state(unit, vpid)));
        drop(hw);
        // The first look may have overtaken a descriptor that was stored before.
        if state.is_idle() && last == Some(state) {
            return true;
        }
        last = Some(state);
        if began.elapsed().as_millis() >= SETTLE_MS {
            return false;
        }
        fsleep(Delta::from_micros(QUIET_US as i64));
    }
}

impl<const N: usize> ShowTx for Tx<N> {
    fn show(&self) -> (&'static str, u8, u8) {
        let inner = self.inner.lock();
        let mode = match inner.mode {
            Mode::Open => "open",
            Mode::Repair => "repair",
            Mode::Closed => "closed",
        };
        (mode, inner.credits.pwp(), inner.credits.committed())
    }
}
