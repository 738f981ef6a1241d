// SPDX-License-Identifier: GPL-2.0-only

//! Sending side of a port: credit, copies for replay, and repair of the requester's write-combining
//! buffer (HW §8). [`protocol::nic::sending`] makes the decisions. This file contains the
//! registers, the lock and the work item `watch`.
//!
//! The fast path reads no register. Up to 255 packets may be outstanding, and the committed count
//! is read only when the last known count leaves no credit. If no packet follows a dropped packet,
//! the drop would not be detected. The work item therefore checks the state some milliseconds after
//! sending, and as long as packets are outstanding.
//!
//! Callers that prevent the work item from running, because they disable interrupts, check and
//! repair the port by [`Tx::poll`].
//!
//! A spinlock that disables interrupts protects the state. It is not held while a line is logged,
//! because netconsole may send the line through this port.

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
use protocol::nic::sending::{Admission, Next, TxPort, Unavailable, WatchDelay};
use wire::{
    ids::{Unit, Vpid},
    regs::wcbuf,
    wcbuf::{State, COPIES},
};

/// These are statics, because lockdep compares names by address, and literals in generic code may
/// exist several times.
static LOCK_NAME: &CStr = c"extoll_tx";
static WATCH_NAME: &CStr = c"extoll_tx_watch";
static TIMER_NAME: &CStr = c"extoll_tx_watch_timer";

/// Reason why a packet was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// There is no credit. [`Client::writable`](crate::vpid::Client::writable) is called later.
    Full,
    /// Dropped packets are being sent again. [`Client::writable`](crate::vpid::Client::writable) is
    /// called later.
    Retry,
    /// The port is closed, or the device was removed or unbound. The error is permanent.
    Down,
    /// The arguments do not form a valid packet.
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

/// Time in milliseconds without a change of the committed count after which a stall is reported.
const STALL_MS: u32 = 1000;
/// Pause in milliseconds between two checks of the state while packets are outstanding.
const WATCH_MS: u32 = 4;
/// Number of checks in quick succession while a client waits for credit, and the pause between
/// them.
const QUICK_CHECKS: u32 = 20;
const QUICK_PAUSE: Delta = Delta::from_micros(50);

/// Packet as it is stored to the requester; also its copy for a replay.
#[derive(Clone, Copy)]
pub(crate) struct Packet<const N: usize> {
    /// Words of the packet; the first `len` are valid.
    pub(crate) words: [u64; N],
    /// Offset of the requester page in the unit's window.
    pub(crate) page: u32,
    /// Number of valid words.
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
    port: TxPort,
    copies: KVVec<Packet<N>>,
    /// Start of the last repair. It is not in jiffies, which may not advance while interrupts are
    /// disabled.
    repair: Option<Instant<Monotonic>>,
}

/// Sending side of a port. `N` is the maximum packet length in words.
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
    /// Makes the sending side of a VPID. The state of the VPID has been reset. May sleep.
    pub(crate) fn new(
        ctx: &Arc<Context>,
        table: &Arc<Table>,
        vpid: Vpid,
        stats: Arc<PortStats>,
    ) -> Result<Arc<Self>> {
        let copies = KVVec::from_elem(Packet::EMPTY, COPIES, GFP_KERNEL)?;
        let port = TxPort::new(ticks(STALL_MS));
        Arc::pin_init(
            try_pin_init!(Self {
                ctx: ctx.clone(),
                table: table.clone(),
                unit: table.unit(),
                vpid,
                stats,
                inner <- SpinLockIrq::new(
                    Inner { port, copies, repair: None },
                    LOCK_NAME,
                    static_lock_class!(),
                ),
                watch <- DelayedWork::new(
                    WATCH_NAME,
                    static_lock_class!(),
                    TIMER_NAME,
                    static_lock_class!(),
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the number of packets that can be sent according to the NIC's last known state. No
    /// register access. Any context.
    pub(crate) fn credit(&self) -> usize {
        self.inner.lock().port.room().into()
    }

    /// Returns the number of packets posted since the port was opened, and how many of them will
    /// not be posted again, because the NIC has committed them or they were discarded. Any context.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let posted = self.stats.posted.load(Relaxed);
        let outstanding = inner.port.credits().outstanding();
        (posted, posted.saturating_sub(u64::from(outstanding)))
    }

    /// Ensures that there is credit for `n` packets. Otherwise returns an error, and the port's
    /// client is called when there is. Any context.
    pub(crate) fn reserve(self: &Arc<Self>, n: usize) -> Result<(), SendError> {
        let n = u8::try_from(n).map_err(|_| SendError::Invalid)?;
        let mut watch_delay = WatchDelay::Nothing;
        let result = {
            let mut inner = self.inner.lock();
            self.admit(&mut inner, n, &mut watch_delay)
        };
        self.schedule(watch_delay);
        result
    }

    /// Sends the packet that `fill` makes. Returns the packet's number. Any context.
    #[inline]
    pub(crate) fn post(
        self: &Arc<Self>,
        fill: impl FnOnce(&mut Packet<N>),
    ) -> Result<u8, SendError> {
        let mut watch_delay = WatchDelay::Nothing;
        let result = {
            let mut inner = self.inner.lock();
            self.post_locked(&mut inner, fill, &mut watch_delay)
        };
        self.schedule(watch_delay);
        result
    }

    #[inline]
    fn post_locked(
        &self,
        inner: &mut Inner<N>,
        fill: impl FnOnce(&mut Packet<N>),
        watch_delay: &mut WatchDelay,
    ) -> Result<u8, SendError> {
        self.admit(inner, 1, watch_delay)?;
        let hw = self.ctx.alive_access().ok_or(SendError::Down)?;
        let window = hw.window(self.unit);
        let number = inner.port.take().ok_or(SendError::Full)?;
        if let Some(packet) = inner.copies.get_mut(usize::from(number)) {
            fill(packet);
            window.push(packet.page, packet.words());
        }
        add(&self.stats.posted, 1);
        *watch_delay = inner.port.sent(now);
        Ok(number)
    }

    #[inline]
    fn admit(
        &self,
        inner: &mut Inner<N>,
        n: u8,
        watch_delay: &mut WatchDelay,
    ) -> Result<(), SendError> {
        if !self.ctx.is_alive() {
            return Err(SendError::Down);
        }
        let admission = match inner.port.admit(n) {
            Admission::Granted => return Ok(()),
            // The last known committed count leaves no credit, so the register is read.
            Admission::ReadState => {
                let state = self.read_state().ok_or(SendError::Down)?;
                let (admission, soon) = inner.port.admit_by(n, state, now());
                *watch_delay = soon;
                admission
            }
            refused => refused,
        };
        match admission {
            Admission::Granted => Ok(()),
            Admission::Refused(Unavailable::Retry) => {
                add(&self.stats.busy, 1);
                Err(SendError::Retry)
            }
            Admission::Refused(Unavailable::Full) | Admission::ReadState => {
                add(&self.stats.full, 1);
                Err(SendError::Full)
            }
            Admission::Refused(Unavailable::Down) => Err(SendError::Down),
        }
    }

    /// Reads the state register; `None` if the device was removed. A value of all ones means that
    /// the device did not answer this read.
    fn read_state(&self) -> Option<State> {
        let hw = self.ctx.alive_access()?;
        add(&self.stats.state_reads, 1);
        let raw = hw.rf.read(wcbuf::state(self.unit, self.vpid));
        (!self.ctx.check_removed(&hw, raw)).then_some(State(raw))
    }

    fn schedule(self: &Arc<Self>, watch_delay: WatchDelay) {
        let delay = match watch_delay {
            WatchDelay::Nothing => return,
            WatchDelay::Soon => msecs_to_jiffies(WATCH_MS),
            WatchDelay::Now => {
                // The work item may already be queued for a later time.
                work::cancel_delayed(self);
                0
            }
        };
        let _ = work::enqueue_delayed(self.clone(), delay);
    }

    /// Runs the work item: checks the state, wakes the client and repairs the port, until no packet
    /// is outstanding and no client waits.
    fn watch(self: &Arc<Self>) {
        let mut checks = 0;
        loop {
            match self.check() {
                Next::Idle => return,
                Next::Repair => {
                    self.repair();
                    checks = 0;
                }
                Next::Again { waiting: true } if checks < QUICK_CHECKS => {
                    checks += 1;
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

    fn check(&self) -> Next {
        let watched = {
            let mut inner = self.inner.lock();
            if let Err(next) = inner.port.watch(self.ctx.is_alive()) {
                return next;
            }
            let Some(state) = self.read_state() else {
                return Next::Idle;
            };
            inner.port.watched(state, now())
        };
        if watched.stalled {
            self.ctx.error(Reason::Stalled, u64::from(self.vpid.get()));
        }
        self.wake();
        watched.next
    }

    /// Calls the port's client if it waits for credit and there is some. Process context.
    fn wake(&self) {
        let wake = self.inner.lock().port.wake();
        if wake {
            self.table.writable(self.vpid);
        }
    }

    /// Prevents further sends, and waits for the work item. May sleep.
    pub(crate) fn close(self: &Arc<Self>) {
        self.inner.lock().port.close();
        work::cancel_delayed_sync(self);
    }

    /// Returns whether packets were sent. Any context.
    pub(crate) fn is_used(&self) -> bool {
        self.stats.posted.load(Relaxed) != 0
    }
}

/// Resets the sending state of a VPID as opening a port does (HW §3.3). This clears the state that
/// an earlier user or a stuck buffer has left as well.
pub(crate) fn reset_state(hw: &Hw, unit: Unit, vpid: Vpid) {
    hw.rf
        .update(wcbuf::state(unit, vpid), |v| State(v).fresh().raw());
}

impl<const N: usize> SendSide for Tx<N> {
    fn show(&self) -> (&'static str, u8, u8) {
        let inner = self.inner.lock();
        let credits = inner.port.credits();
        (inner.port.mode().name(), credits.pwp(), credits.committed())
    }
}
