// SPDX-License-Identifier: GPL-2.0-only

//! Sending side of a port: credit, copies for replay, and repair of the requester's write-combining buffer
//! (HW §8). [`wire::sending`] decides; here are the registers, the lock, and the work item that looks.
//!
//! The hot path reads no register: 255 packets may be outstanding, and the committed count is read only when
//! by the last known count none is left. Since a dropped packet would go unnoticed when nothing follows it,
//! the work item looks at the state some milliseconds after sending, and as long as something is outstanding.
//!
//! Who keeps it from running, as he has interrupts off, looks and repairs by [`Tx::poll`].
//!
//! Nothing is logged with the lock held: the line may have to leave through this very port (netconsole).

mod repair;

use crate::{
    context::Context,
    hw::Hw,
    stats::{add, PortStats, Reason},
    time::{now, ticks},
    vpid::{SendSide, Table},
};
use kernel::{
    impl_has_delayed_work,
    prelude::*,
    static_lock_class,
    sync::{atomic::Relaxed, Arc, SpinLockIrq},
    time::{delay::fsleep, msecs_to_jiffies, Delta, Instant, Monotonic},
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::work;
use wire::{
    ids::{Unit, Vpid},
    regs::wcbuf,
    sending::{Admission, Kick, Next, Refusal, Sending},
    wcbuf::{State, COPIES},
};

/// The lock checker compares names by address, and literals in generic code may be there more than once.
static LOCK_NAME: &CStr = c"extoll_tx";
static WATCH_NAME: &CStr = c"extoll_tx_watch";
static TIMER_NAME: &CStr = c"extoll_tx_watch_timer";

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

/// How long the committed count may stand still before that is reported.
const STALL_MS: u32 = 1000;
/// Pause between looks at the state while something is outstanding.
const WATCH_MS: u32 = 4;
/// Looks in quick succession while somebody waits for room, and the pause between them.
const QUICK_LOOKS: u32 = 20;
const QUICK_PAUSE: Delta = Delta::from_micros(50);

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
    machine: Sending,
    copies: KVVec<Packet<N>>,
    /// When the last repair began. Not by jiffies, which may stand still while interrupts are off.
    repair: Option<Instant<Monotonic>>,
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
    /// The sending side of a VPID whose state is fresh. May sleep.
    pub(crate) fn new(
        ctx: &Arc<Context>,
        table: &Arc<Table>,
        vpid: Vpid,
        stats: Arc<PortStats>,
    ) -> Result<Arc<Self>> {
        let copies = KVVec::from_elem(Packet::EMPTY, COPIES, GFP_KERNEL)?;
        let machine = Sending::new(ticks(STALL_MS));
        Arc::pin_init(
            try_pin_init!(Self {
                ctx: ctx.clone(),
                table: table.clone(),
                unit: table.unit(),
                vpid,
                stats,
                inner <- SpinLockIrq::new(Inner { machine, copies, repair: None }, LOCK_NAME, static_lock_class!()),
                watch <- DelayedWork::new(WATCH_NAME, static_lock_class!(), TIMER_NAME, static_lock_class!()),
            }),
            GFP_KERNEL,
        )
    }

    /// Number of packets that can be sent by the last known state. No register access. Any context.
    pub(crate) fn room(&self) -> usize {
        self.inner.lock().machine.room().into()
    }

    /// Packets posted since the port was opened, and those that the NIC will not be given again, by the last
    /// known state: it has them, or they were given up. Any context.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let posted = self.stats.posted.load(Relaxed);
        let outstanding = inner.machine.credits().outstanding();
        (posted, posted.saturating_sub(u64::from(outstanding)))
    }

    /// Makes sure that `n` packets fit, or has the port's client told when they do. Any context.
    pub(crate) fn reserve(self: &Arc<Self>, n: usize) -> Result<(), SendError> {
        let n = u8::try_from(n).map_err(|_| SendError::Invalid)?;
        let mut kick = Kick::Nothing;
        let result = {
            let mut inner = self.inner.lock();
            self.admit(&mut inner, n, &mut kick)
        };
        self.kick(kick);
        result
    }

    /// Sends the packet that `fill` makes; returns its number. Any context.
    #[inline]
    pub(crate) fn post(
        self: &Arc<Self>,
        fill: impl FnOnce(&mut Packet<N>),
    ) -> Result<u8, SendError> {
        let mut kick = Kick::Nothing;
        let result = {
            let mut inner = self.inner.lock();
            self.post_locked(&mut inner, fill, &mut kick)
        };
        self.kick(kick);
        result
    }

    #[inline]
    fn post_locked(
        &self,
        inner: &mut Inner<N>,
        fill: impl FnOnce(&mut Packet<N>),
        kick: &mut Kick,
    ) -> Result<u8, SendError> {
        self.admit(inner, 1, kick)?;
        let hw = self.ctx.alive_access().ok_or(SendError::Down)?;
        let window = hw.window(self.unit);
        let number = inner.machine.take().ok_or(SendError::Full)?;
        if let Some(packet) = inner.copies.get_mut(usize::from(number)) {
            fill(packet);
            window.push(packet.page, packet.words());
        }
        add(&self.stats.posted, 1);
        *kick = inner.machine.sent(now);
        Ok(number)
    }

    #[inline]
    fn admit(&self, inner: &mut Inner<N>, n: u8, kick: &mut Kick) -> Result<(), SendError> {
        if !self.ctx.is_alive() {
            return Err(SendError::Down);
        }
        let admission = match inner.machine.admit(n) {
            Admission::Granted => return Ok(()),
            // Credit by the last known count is used up: look at the register.
            Admission::Look => {
                let state = self.read_state().ok_or(SendError::Down)?;
                let (admission, soon) = inner.machine.admit_by(n, state, now());
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

    /// Tells the port's client of room if it waits for some. Process context.
    fn wake(&self) {
        let wake = self.inner.lock().machine.wake();
        if wake {
            self.table.writable(self.vpid);
        }
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
}
