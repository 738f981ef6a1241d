// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! State machine without I/O of the transmit side of a port. It implements flow control by the
//! state of the write-combining buffer (HW §8), wakeups, stall detection and repair.
//!
//! The caller provides a lock, the copies for [`wcbuf::Replay`](wire::wcbuf::Replay), and a
//! *watch*. The watch is a function that runs some time after it was requested, reads the state
//! register, and runs again as [`WatchResult`] demands. The watch notices a dropped packet even if
//! no further packet is sent. It also wakes senders that wait for credits.
//!
//! Each step of a repair is performed separately with the lock held. The watch performs the steps.
//! A sender with interrupts disabled blocks the watch. The sender then performs the steps itself
//! and polls the state ([`TxPort::polled`]).

use crate::Time;
use wire::wcbuf::{Action, Credits, Event, Replay, State, Verdict};

/// State of the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Packets may be sent.
    Open,
    /// Dropped packets are being sent again. No other packet may be sent.
    Repair,
    /// No packet may be sent any more.
    Closed,
}

impl Mode {
    /// Returns the name of the state in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Open => "open",
            Mode::Repair => "repair",
            Mode::Closed => "closed",
        }
    }
}

/// Reason why a packet cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// The port has too few credits. The watch wakes the client when enough credits are available.
    Full,
    /// Dropped packets are being sent again. The watch wakes the client when credits are available
    /// again.
    Retry,
    /// The port is permanently closed.
    Down,
}

/// Result of a request to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The packets may be sent.
    Granted,
    /// The last known state has too few credits. The caller must read the state register and call
    /// [`TxPort::admit_by`].
    ReadState,
    /// The packets may not be sent.
    Refused(Unavailable),
}

/// Time at which the watch must run next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchDelay {
    /// The watch is scheduled already.
    Nothing,
    /// The watch must run some milliseconds from now.
    Soon,
    /// The watch must run immediately.
    Now,
}

/// Next action of the watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The watch ends.
    Idle,
    /// The watch reads the state again, after a short time if a sender waits for credits.
    Again {
        /// True if a sender waits for credits.
        waiting: bool,
    },
    /// The watch performs the repair.
    Repair,
}

/// Result of a run of the watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchResult {
    /// Next action of the watch.
    pub next: Next,
    /// True once per stall. A stall means that packets are outstanding, and that the NIC has
    /// committed none of them for a long time.
    pub stalled: bool,
}

/// Repair in progress.
#[derive(Debug)]
struct Repair {
    replay: Replay,
    /// Next action of the repair.
    action: Action,
    /// True after [`TxPort::repair_began`] has reported this repair.
    reported: bool,
}

/// Transmit side of a port; see the module's documentation.
#[derive(Debug)]
pub struct TxPort {
    mode: Mode,
    credits: Credits,
    /// Number of credits that refused send requests need; 0 if no request was refused since the
    /// last wakeup.
    wanted: u8,
    /// Time in ticks without a commit after which outstanding packets count as a stall.
    stall: u64,
    /// True while the watch is scheduled.
    watching: bool,
    /// Number of committed packets at the last progress, and time of that progress; `None` before
    /// the first read.
    progress: Option<(u8, Time)>,
    /// True after the current stall was reported.
    reported: bool,
    /// Repair in progress. Set in [`Mode::Repair`], and after the port was closed during a repair.
    repair: Option<Repair>,
}

impl TxPort {
    /// Returns an open port, whose state register is in its initial state. `stall` is the time in
    /// ticks without a commit after which outstanding packets count as a stall.
    #[must_use]
    pub fn new(stall: u64) -> Self {
        Self {
            mode: Mode::Open,
            credits: Credits::new(),
            wanted: 0,
            stall,
            watching: false,
            progress: None,
            reported: false,
            repair: None,
        }
    }

    /// Returns the state of the port.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the numbers of sent and committed packets.
    #[inline]
    pub fn credits(&self) -> &Credits {
        &self.credits
    }

    /// Returns the number of packets that may be sent according to the last known state.
    pub fn room(&self) -> u8 {
        match self.mode {
            Mode::Open => self.credits.room(),
            Mode::Repair | Mode::Closed => 0,
        }
    }

    /// Decides if `n` packets may be sent.
    #[inline]
    pub fn admit(&mut self, n: u8) -> Admission {
        match self.mode {
            Mode::Open if self.room() >= n => Admission::Granted,
            Mode::Open => Admission::ReadState,
            Mode::Repair => {
                self.want(n);
                Admission::Refused(Unavailable::Retry)
            }
            Mode::Closed => Admission::Refused(Unavailable::Down),
        }
    }

    fn want(&mut self, n: u8) {
        self.wanted = self.wanted.max(n).max(1);
    }

    /// Decides like [`TxPort::admit`], based on a state that was read after the last packet was
    /// sent. Returns the result, and the time of the watch's next run if the request is denied. If
    /// a present device returns a state of all ones, the state is unknown, and the watch reads it
    /// again.
    pub fn admit_by(&mut self, n: u8, state: State, now: Time) -> (Admission, WatchDelay) {
        let (refusal, delay) = match self.credits.on_state(state) {
            // Let the watch run after a pause, because each read of a device that does not answer
            // takes long.
            Verdict::Unread => (Unavailable::Full, WatchDelay::Soon),
            Verdict::Ok { .. } | Verdict::Full if self.room() >= n => {
                return (Admission::Granted, WatchDelay::Nothing)
            }
            Verdict::Ok { .. } | Verdict::Full => (Unavailable::Full, WatchDelay::Now),
            Verdict::Retry { .. } | Verdict::Desync { .. } => {
                self.begin_repair();
                (Unavailable::Retry, WatchDelay::Now)
            }
        };
        self.want(n);
        self.watch_from(now);
        (Admission::Refused(refusal), delay)
    }

    /// Returns the number of the next packet, which the caller must send now; `None` without
    /// credit.
    #[inline]
    pub fn take(&mut self) -> Option<u8> {
        let number = self.credits.take()?;
        if self.wanted > 1 {
            // Keep the number above 0, because another thread may wait for credits too.
            self.wanted -= 1;
        }
        Some(number)
    }

    /// Records that packets were sent. Returns the time at which the watch must run.
    #[inline]
    pub fn sent(&mut self, now: impl FnOnce() -> Time) -> WatchDelay {
        if self.watching {
            return WatchDelay::Nothing;
        }
        self.watch_from(now());
        WatchDelay::Soon
    }

    fn watch_from(&mut self, now: Time) {
        if !self.watching {
            self.watching = true;
            self.progress = Some((self.credits.committed(), now));
        }
    }

    /// Starts a run of the watch. If the result is `Ok`, the caller must read the state register
    /// and call [`TxPort::watched`]. `Err` contains the next action.
    pub fn watch(&mut self, alive: bool) -> Result<(), Next> {
        let next = match self.mode {
            _ if !alive => Next::Idle,
            Mode::Closed => Next::Idle,
            Mode::Repair => Next::Repair,
            Mode::Open => return Ok(()),
        };
        self.watching = next != Next::Idle;
        Err(next)
    }

    /// Processes a state that the watch has read from a device that is present.
    pub fn watched(&mut self, state: State, now: Time) -> WatchResult {
        let mut stalled = false;
        let next = match self.credits.on_state(state) {
            Verdict::Ok { .. } | Verdict::Full => {
                stalled = self.is_stall(now);
                let waiting = self.wanted != 0;
                match self.credits.outstanding() {
                    0 if !waiting => Next::Idle,
                    _ => Next::Again { waiting },
                }
            }
            Verdict::Retry { .. } | Verdict::Desync { .. } => {
                self.begin_repair();
                Next::Repair
            }
            // The watch must continue, because no other event serves outstanding packets and
            // waiting senders.
            Verdict::Unread => {
                stalled = self.is_stall(now);
                Next::Again { waiting: false }
            }
        };
        self.watching = next != Next::Idle;
        WatchResult { next, stalled }
    }

    /// Returns true if the port's client must be woken because credits are available. Returns true
    /// only once for all requests denied so far.
    pub fn wake(&mut self) -> bool {
        let wake =
            self.mode == Mode::Open && self.wanted != 0 && self.credits.room() >= self.wanted;
        if wake {
            self.wanted = 0;
        }
        wake
    }

    /// Returns true once per stall.
    fn is_stall(&mut self, now: Time) -> bool {
        let committed = self.credits.committed();
        let since = match self.progress {
            Some((before, since)) if before == committed && self.credits.outstanding() != 0 => {
                since
            }
            _ => {
                self.progress = Some((committed, now));
                self.reported = false;
                return false;
            }
        };
        let stalled = !self.reported && now.since(since) >= self.stall;
        self.reported |= stalled;
        stalled
    }

    /// Returns true if a sender that polls by itself must read the state and pass it to
    /// [`TxPort::polled`].
    pub fn is_in_doubt(&self) -> bool {
        self.mode == Mode::Open && self.credits.outstanding() != 0
    }

    /// Processes a state that was read outside of the watch. The caller then performs the actions
    /// of [`TxPort::repair`], if any. The watch continues unchanged, and still wakes waiting
    /// senders.
    pub fn polled(&mut self, state: State) {
        if !self.is_in_doubt() {
            return;
        }
        if let Verdict::Retry { .. } | Verdict::Desync { .. } = self.credits.on_state(state) {
            self.begin_repair();
        }
    }

    fn begin_repair(&mut self) {
        let replay = Replay::new();
        self.mode = Mode::Repair;
        self.repair = Some(Repair {
            action: replay.start(),
            replay,
            reported: false,
        });
    }

    /// Returns the next action of the repair; `None` if there is no repair. The caller holds the
    /// lock, performs the action and reports it to [`TxPort::repair_done`]. The actions are reading
    /// the state, writing it, and sending a packet again. After [`Action::Failed`] the caller must
    /// call [`TxPort::discard`].
    pub fn repair(&self) -> Option<Action> {
        match self.mode {
            Mode::Repair => self.repair.as_ref().map(|r| r.action),
            Mode::Open | Mode::Closed => None,
        }
    }

    /// Returns true once per repair.
    pub fn repair_began(&mut self) -> bool {
        match &mut self.repair {
            Some(repair) => !core::mem::replace(&mut repair.reported, true),
            None => false,
        }
    }

    /// Records that the repair's action was performed. Returns true if the repair waits for the
    /// NIC, so that the next step needs some time. The port is open again when all packets are
    /// committed, unless it was closed.
    pub fn repair_done(&mut self, event: Event) -> bool {
        let Some(repair) = &mut self.repair else {
            return false;
        };
        let waited = repair.action == Action::ReadState;
        repair.action = repair.replay.step(&mut self.credits, event);
        match repair.action {
            Action::Done => {
                self.repaired();
                false
            }
            action => waited && action == Action::ReadState,
        }
    }

    fn repaired(&mut self) {
        self.repair = None;
        if self.mode == Mode::Repair {
            self.mode = Mode::Open;
        }
    }

    /// Gives up all outstanding packets and returns their number. The state register is in its
    /// initial state again, and the port is open unless it was closed.
    pub fn discard(&mut self) -> u8 {
        let lost = self.credits.outstanding();
        self.credits = Credits::new();
        self.progress = None;
        self.repaired();
        lost
    }

    /// Closes the port.
    pub fn close(&mut self) {
        self.mode = Mode::Closed;
    }
}
