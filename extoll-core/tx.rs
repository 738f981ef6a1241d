// SPDX-License-Identifier: GPL-2.0-only

//! Sending side of a port: credit, copies for replay, and repair of the requester's write-combining buffer
//! (HW §8). [`wire::sending`] decides; here are the registers, the lock, and the work item that looks.
//!
//! The hot path reads no register: 255 packets may be outstanding, and the committed count is read only when
//! by the last known count none is left. Since a dropped packet would go unnoticed when nothing follows it,
//! the work item looks at the state some milliseconds after sending, and as long as something is outstanding.
//!
//! Several parties may share a port; [`wire::room_queue`] tells whose turn it is.

mod parties;

pub(crate) use parties::Party;
pub use parties::RoomClient;

use crate::{
    context::Context,
    hw::Hw,
    stats::{add, PortStats, Reason},
    time::{now, ticks},
    vpid::{SendSide, Table},
};
use kernel::{
    impl_has_delayed_work, new_delayed_work,
    prelude::*,
    sync::{atomic::Relaxed, new_spinlock_irq, Arc, SpinLockIrq},
    time::{delay::fsleep, msecs_to_jiffies, Delta, Instant, Monotonic},
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::work;
use parties::Parties;
use wire::{
    ids::{Unit, Vpid},
    regs::wcbuf,
    room_queue::{PartyId, RoomPlace},
    sending::{Admission, Kick, Limits, Mode, Next, Refusal, Sending},
    wcbuf::{Action, Event, Failure, Replay, State, COPIES},
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

/// How long a repair may take before its packets are given up: longer than full queues at the other end may
/// hold the fabric up (the programmed time-outs, HW §9.3, §10.7).
const REPAIR_DEADLINE_MS: i64 = 5000;
/// How long the committed count may stand still before that is reported.
const STALL_MS: u32 = 1000;
/// How long room that somebody was told of is kept for him.
const GRANT_MS: u32 = 20;
/// Pause between looks at the state while something is outstanding.
const WATCH_MS: u32 = 4;
/// Looks in quick succession while somebody waits for room, and the pause between them.
const QUICK_LOOKS: u32 = 20;
const QUICK_PAUSE: Delta = Delta::from_micros(50);
/// Pause between looks of a repair.
const REPAIR_PAUSE: Delta = Delta::from_micros(20);
/// Parties that are told of room in one go.
const WAKES: usize = 16;
/// Packets of a batch: for so long interrupts are off.
pub(crate) const MOST_AT_ONCE: u8 = 32;

/// A packet as it is stored to the requester, and its copy for a replay.
#[derive(Clone, Copy)]
pub(crate) struct Packet<const N: usize> {
    /// The words, of which the first `len` count.
    pub(crate) words: [u64; N],
    /// Requester page, as an offset in the window of the unit.
    pub(crate) page: u32,
    /// Number of words.
    pub(crate) len: u8,
}

impl<const N: usize> Packet<N> {
    const EMPTY: Self = Self {
        words: [0; N],
        page: 0,
        len: 0,
    };

    fn words(&self) -> &[u64] {
        self.words.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

struct Inner<const N: usize> {
    machine: Sending<KVVec<RoomPlace>>,
    copies: KVVec<Packet<N>>,
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
    parties: Parties,
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
    /// The sending side of a VPID whose state is fresh. May sleep.
    pub(crate) fn new(
        ctx: &Arc<Context>,
        table: &Arc<Table>,
        vpid: Vpid,
        stats: Arc<PortStats>,
    ) -> Result<Arc<Self>> {
        let copies = KVVec::from_elem(Packet::EMPTY, COPIES, GFP_KERNEL)?;
        let limits = Limits {
            stall: ticks(STALL_MS),
            grant: ticks(GRANT_MS),
        };
        let machine = Sending::new(KVVec::from_elem(RoomPlace::FREE, 1, GFP_KERNEL)?, limits);
        Arc::pin_init(
            try_pin_init!(Self {
                ctx: ctx.clone(),
                table: table.clone(),
                unit: table.unit(),
                vpid,
                stats,
                inner <- new_spinlock_irq!(Inner { machine, copies }, "extoll_tx"),
                parties <- Parties::new(),
                watch <- new_delayed_work!("extoll_tx_watch"),
            }),
            GFP_KERNEL,
        )
    }

    /// Packets that a party can send by the last known state. No register access. Any context.
    pub(crate) fn room(&self, party: PartyId) -> usize {
        self.inner.lock().machine.room(party) as usize
    }

    /// Packets posted since the port was opened, and those that the NIC will not be given again, by the last
    /// known state: it has them, or they were given up. Any context.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let posted = self.stats.posted.load(Relaxed);
        let outstanding = inner.machine.credits().outstanding();
        (posted, posted.saturating_sub(u64::from(outstanding)))
    }

    /// Makes sure that `n` packets fit, or arranges for the party to be told when they do. Any context.
    pub(crate) fn reserve(self: &Arc<Self>, party: PartyId, n: usize) -> Result<(), SendError> {
        let n = u8::try_from(n).map_err(|_| SendError::Invalid)?;
        let mut kick = Kick::Nothing;
        let result = {
            let mut inner = self.inner.lock();
            self.admit(&mut inner, party, n, &mut kick)
        };
        self.kick(kick);
        result
    }

    /// Sends `count` packets, which `fill` makes one after the other, or none; returns the number of the first.
    /// Any context.
    #[inline]
    pub(crate) fn post(
        self: &Arc<Self>,
        party: PartyId,
        count: u8,
        fill: impl FnMut(u8, &mut Packet<N>),
    ) -> Result<u8, SendError> {
        let mut kick = Kick::Nothing;
        let result = {
            let mut inner = self.inner.lock();
            self.post_locked(&mut inner, party, count, fill, &mut kick)
        };
        self.kick(kick);
        result
    }

    #[inline]
    fn post_locked(
        &self,
        inner: &mut Inner<N>,
        party: PartyId,
        count: u8,
        mut fill: impl FnMut(u8, &mut Packet<N>),
        kick: &mut Kick,
    ) -> Result<u8, SendError> {
        self.admit(inner, party, count, kick)?;
        let hw = self.ctx.alive_access().ok_or(SendError::Down)?;
        let window = hw.window(self.unit);
        let first = inner.machine.credits().pwp();
        for k in 0..count {
            let number = inner.machine.take(party).ok_or(SendError::Full)?;
            if let Some(packet) = inner.copies.get_mut(usize::from(number)) {
                fill(k, packet);
                // Each has a fence of its own behind it (HW §9.1, §10.2); the one before the first is enough
                // for what all of them refer to.
                if k == 0 {
                    window.push(packet.page, packet.words());
                } else {
                    window.push_next(packet.page, packet.words());
                }
            }
        }
        add(&self.stats.posted, count.into());
        *kick = inner.machine.sent(now);
        Ok(first)
    }

    #[inline]
    fn admit(
        &self,
        inner: &mut Inner<N>,
        party: PartyId,
        n: u8,
        kick: &mut Kick,
    ) -> Result<(), SendError> {
        if !self.ctx.is_alive() {
            return Err(SendError::Down);
        }
        let admission = match inner.machine.admit(party, n, now) {
            Admission::Granted => return Ok(()),
            // Credit by the last known count is used up: look at the register.
            Admission::Look => {
                let state = self.read_state().ok_or(SendError::Down)?;
                let (admission, soon) = inner.machine.admit_by(party, n, state, now());
                *kick = soon;
                admission
            }
            refused => refused,
        };
        match admission {
            Admission::Granted => Ok(()),
            Admission::Refused(Refusal::Retry) => {
                add(&self.stats.busy, 1);
                Err(SendError::Retry)
            }
            Admission::Refused(Refusal::Full) | Admission::Look => {
                add(&self.stats.full, 1);
                Err(SendError::Full)
            }
            Admission::Refused(Refusal::Down) => Err(SendError::Down),
        }
    }

    /// Reads the state register; `None` if the device is gone. All ones: it did not answer this once.
    fn read_state(&self) -> Option<State> {
        let hw = self.ctx.alive_access()?;
        add(&self.stats.state_reads, 1);
        let raw = hw.rf.read(wcbuf::state(self.unit, self.vpid));
        (!self.ctx.is_gone(&hw, raw)).then_some(State(raw))
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

    /// The work item: looks, wakes, repairs, until nothing is outstanding and nobody waits.
    fn watch(self: &Arc<Self>) {
        let mut looks = 0;
        loop {
            match self.look() {
                Next::Idle => return,
                Next::Repair => {
                    self.repair();
                    looks = 0;
                }
                Next::Again { waiting: true } if looks < QUICK_LOOKS => {
                    looks += 1;
                    fsleep(QUICK_PAUSE);
                }
                Next::Again { .. } => {
                    let delay = msecs_to_jiffies(WATCH_MS);
                    let _ = work::enqueue_delayed(self.clone(), delay);
                    return;
                }
            }
        }
    }

    fn look(&self) -> Next {
        let watched = {
            let mut inner = self.inner.lock();
            if let Err(next) = inner.machine.watch(self.ctx.is_alive()) {
                return next;
            }
            let Some(state) = self.read_state() else {
                return Next::Idle;
            };
            inner.machine.watched(state, now())
        };
        if watched.stalled {
            self.ctx.error(Reason::Stalled, u64::from(self.vpid.get()));
        }
        self.wake();
        watched.next
    }

    /// Tells those who wait of room, if there is some. Process context.
    fn wake(&self) {
        loop {
            let mut told = [PartyId::FIRST; WAKES];
            let mut count = 0;
            {
                let mut inner = self.inner.lock();
                let now = now();
                for place in &mut told {
                    let Some(party) = inner.machine.wake(now) else {
                        break;
                    };
                    *place = party;
                    count += 1;
                }
            }
            for party in told.iter().take(count) {
                if *party == PartyId::FIRST {
                    self.table.writable(self.vpid);
                } else {
                    self.parties.writable(*party);
                }
            }
            if count < WAKES {
                return;
            }
        }
    }

    /// Drives the repair of HW §8 until it is done, its deadline has passed, or the port is closed.
    fn repair(&self) {
        let began: Instant<Monotonic> = Instant::now();
        add(&self.stats.retries, 1);
        self.ctx.error(Reason::Retry, u64::from(self.vpid.get()));
        let mut replay = Replay::new();
        let mut action = replay.start();
        let lost = loop {
            let waits = matches!(action, Action::ReadState);
            {
                let mut guard = self.inner.lock();
                let inner = &mut *guard;
                let hw = match self.ctx.alive_access() {
                    Some(hw) if inner.machine.mode() == Mode::Repair => hw,
                    _ => return,
                };
                let reg = wcbuf::state(self.unit, self.vpid);
                let event = match action {
                    Action::ReadState => match self.read_state() {
                        Some(state) => Event::State(state),
                        None => return,
                    },
                    Action::WriteState(state) => {
                        hw.rf.write(reg, state.raw());
                        Event::Written
                    }
                    Action::Send(number) => {
                        if let Some(packet) = inner.copies.get(usize::from(number)) {
                            hw.window(self.unit).push(packet.page, packet.words());
                        }
                        Event::Sent
                    }
                    Action::Done => {
                        inner.machine.repaired();
                        break None;
                    }
                    Action::Failed(failure) => {
                        if matches!(failure, Failure::Desync { .. }) {
                            self.ctx.note(Reason::BadCommit, u64::from(self.vpid.get()));
                        }
                        break Some(self.give_up(inner, &hw));
                    }
                };
                action = replay.step(inner.machine.credits_mut(), event);
                // The rounds are bounded too: the NIC may drop what is sent again.
                if began.elapsed().as_millis() >= REPAIR_DEADLINE_MS {
                    break Some(self.give_up(inner, &hw));
                }
            }
            if waits && matches!(action, Action::ReadState) {
                fsleep(REPAIR_PAUSE);
            }
        };
        lost.into_iter().for_each(|lost| self.report_loss(lost));
        add(&self.stats.replayed, u64::from(replay.resent()));
        self.wake();
    }

    /// Forgets all outstanding packets and starts afresh. Their number, for [`Tx::report_loss`].
    fn give_up(&self, inner: &mut Inner<N>, hw: &Hw) -> u8 {
        reset_state(hw, self.unit, self.vpid);
        let lost = inner.machine.give_up();
        add(&self.stats.lost, u64::from(lost));
        lost
    }

    /// Packets were given up. Without the lock, as it may log.
    fn report_loss(&self, lost: u8) {
        self.ctx.error(
            Reason::RepairFailed,
            u64::from(self.vpid.get()) | u64::from(lost) << 32,
        );
    }

    /// Gives up everything outstanding, e.g. after a transmit time-out. Does nothing while a repair runs,
    /// which has a deadline of its own. Any context.
    pub(crate) fn reset(self: &Arc<Self>) {
        let lost = {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            let outstanding = inner.machine.credits().outstanding();
            if inner.machine.mode() != Mode::Open || outstanding == 0 {
                return;
            }
            let Some(hw) = self.ctx.alive_access() else {
                return;
            };
            self.give_up(inner, &hw)
        };
        self.report_loss(lost);
        // There is room for those who wait.
        self.kick(Kick::Now);
    }

    /// Refuses further packets, and waits for the work item. May sleep.
    pub(crate) fn close(self: &Arc<Self>) {
        self.inner.lock().machine.close();
        work::cancel_delayed_sync(self);
    }

    /// Packets were sent. Any context.
    pub(crate) fn is_used(&self) -> bool {
        self.stats.posted.load(Relaxed) != 0
    }
}

/// Clears the state of a VPID as opening does (HW §3.3), and what an earlier user or a stuck buffer left in it.
pub(crate) fn reset_state(hw: &Hw, unit: Unit, vpid: Vpid) {
    hw.rf
        .update(wcbuf::state(unit, vpid), |v| State(v).fresh().raw());
}

impl<const N: usize> SendSide for Tx<N> {
    fn show(&self) -> (&'static str, u8, u8) {
        let inner = self.inner.lock();
        let credits = inner.machine.credits();
        (
            inner.machine.mode().name(),
            credits.pwp(),
            credits.committed(),
        )
    }

    fn enabled(&self) {
        self.parties.all(|client| client.writable());
    }

    fn down(&self) {
        self.parties.all(|client| client.down());
    }
}
