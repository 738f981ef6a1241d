// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The sending side of a port, as a state machine without I/O: who may send, when to look at the state of
//! the write-combining buffer (HW §8), who is told of room, what is a stall.
//!
//! Whoever drives it has a lock around it, the copies for [`wcbuf::Replay`](wire::wcbuf::Replay), and a
//! *watch*: something that runs some time after it was asked for, looks at the state register, and goes on as
//! long as [`Watched`] says so. For a dropped packet would go unnoticed when nothing follows it, and those
//! who wait for room have to hear of it.
//!
//! A repair goes step by step, each with the lock held and by whoever comes first: the watch, or somebody who
//! keeps the watch from running, as he has interrupts off, and looks by himself ([`Sending::noticed`]).

use crate::Time;
use wire::wcbuf::{Action, Credits, Event, Replay, State, Verdict};

/// State of the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Packets may be sent.
    Open,
    /// What was dropped is being sent again; nothing else may be.
    Repair,
    /// No packet is sent any more.
    Closed,
}

impl Mode {
    /// Its name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Open => "open",
            Mode::Repair => "repair",
            Mode::Closed => "closed",
        }
    }
}

/// Why nothing is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// No room. The watch reports when there is some.
    Full,
    /// Lost packets are being sent again. The watch reports when there is room.
    Retry,
    /// For ever.
    Down,
}

/// Whether packets may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It may.
    Granted,
    /// By what is known there is no room: read the state register and ask by [`Sending::admit_by`].
    Look,
    /// It may not.
    Refused(Unavailable),
}

/// How soon the watch has to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kick {
    /// It looks anyway.
    Nothing,
    /// Some milliseconds from now.
    Soon,
    /// At once.
    Now,
}

/// What the watch does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing: it ends.
    Idle,
    /// It looks again, in quick succession if somebody waits for room.
    Again {
        /// Somebody waits.
        waiting: bool,
    },
    /// It repairs.
    Repair,
}

/// What the watch found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched {
    /// What it does next.
    pub next: Next,
    /// Nothing was committed for a long time although packets are outstanding; once per stall.
    pub stalled: bool,
}

/// A repair that has begun.
#[derive(Debug)]
struct Repair {
    replay: Replay,
    /// What is to be done next.
    action: Action,
    /// [`Sending::repair_began`] has said so.
    told: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Sending {
    mode: Mode,
    credits: Credits,
    /// Number of credits that refused sends need; 0 if none was refused since the last wakeup.
    wanted: u8,
    /// Ticks without a commit after which outstanding packets are a stall.
    stall: u64,
    /// The watch was asked for and will look.
    watching: bool,
    /// Committed count at the last progress, and when that was; nothing before the first look.
    progress: Option<(u8, Time)>,
    /// The present stall was told.
    told: bool,
    /// In [`Mode::Repair`], and if the port was closed meanwhile.
    repair: Option<Repair>,
}

impl Sending {
    /// An open port, whose state register is fresh. `stall`: ticks without a commit after which
    /// outstanding packets are a stall.
    #[must_use]
    pub fn new(stall: u64) -> Self {
        Self {
            mode: Mode::Open,
            credits: Credits::new(),
            wanted: 0,
            stall,
            watching: false,
            progress: None,
            told: false,
            repair: None,
        }
    }

    /// State of the port.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Packet numbers.
    #[inline]
    pub fn credits(&self) -> &Credits {
        &self.credits
    }

    /// Number of packets that can be sent by the last known state.
    pub fn room(&self) -> u8 {
        match self.mode {
            Mode::Open => self.credits.room(),
            Mode::Repair | Mode::Closed => 0,
        }
    }

    /// Whether `n` packets may be sent.
    #[inline]
    pub fn admit(&mut self, n: u8) -> Admission {
        match self.mode {
            Mode::Open if self.room() >= n => Admission::Granted,
            Mode::Open => Admission::Look,
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

    /// As [`Sending::admit`], with a state that was read after the last packet was sent, and how soon the
    /// watch has to look if it is refused. All ones from a device that is not gone say nothing: the watch
    /// looks again.
    pub fn admit_by(&mut self, n: u8, state: State, now: Time) -> (Admission, Kick) {
        let (refusal, kick) = match self.credits.on_state(state) {
            // After a pause: a device that does not answer makes each read a long one.
            Verdict::Unread => (Unavailable::Full, Kick::Soon),
            Verdict::Ok { .. } | Verdict::Full if self.room() >= n => {
                return (Admission::Granted, Kick::Nothing)
            }
            Verdict::Ok { .. } | Verdict::Full => (Unavailable::Full, Kick::Now),
            Verdict::Retry { .. } | Verdict::Desync { .. } => {
                self.begin_repair();
                (Unavailable::Retry, Kick::Now)
            }
        };
        self.want(n);
        self.watch_from(now);
        (Admission::Refused(refusal), kick)
    }

    /// Number of the next packet, to be sent now; `None` without credit.
    #[inline]
    pub fn take(&mut self) -> Option<u8> {
        let number = self.credits.take()?;
        if self.wanted > 1 {
            // Not 0: another thread may wait for room too.
            self.wanted -= 1;
        }
        Some(number)
    }

    /// Packets were sent: how soon the watch has to look.
    #[inline]
    pub fn sent(&mut self, now: impl FnOnce() -> Time) -> Kick {
        if self.watching {
            return Kick::Nothing;
        }
        self.watch_from(now());
        Kick::Soon
    }

    fn watch_from(&mut self, now: Time) {
        if !self.watching {
            self.watching = true;
            self.progress = Some((self.credits.committed(), now));
        }
    }

    /// The watch begins: whether the state is to be read, for [`Sending::watched`]; else what to do.
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

    /// The watch has read the state, of a device that is not gone.
    pub fn watched(&mut self, state: State, now: Time) -> Watched {
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
            // Nobody else would look for what is outstanding, and for those who wait.
            Verdict::Unread => {
                stalled = self.is_stall(now);
                Next::Again { waiting: false }
            }
        };
        self.watching = next != Next::Idle;
        Watched { next, stalled }
    }

    /// Whether the port's client has to be told of room now. True once per refused send or several.
    pub fn wake(&mut self) -> bool {
        let wake =
            self.mode == Mode::Open && self.wanted != 0 && self.credits.room() >= self.wanted;
        if wake {
            self.wanted = 0;
        }
        wake
    }

    /// True once per stall.
    fn is_stall(&mut self, now: Time) -> bool {
        let committed = self.credits.committed();
        let since = match self.progress {
            Some((before, since)) if before == committed && self.credits.outstanding() != 0 => {
                since
            }
            _ => {
                self.progress = Some((committed, now));
                self.told = false;
                return false;
            }
        };
        let stalled = !self.told && now.since(since) >= self.stall;
        self.told |= stalled;
        stalled
    }

    /// Whether somebody who looks by himself has to read the state, for [`Sending::noticed`].
    pub fn is_in_doubt(&self) -> bool {
        self.mode == Mode::Open && self.credits.outstanding() != 0
    }

    /// Somebody other than the watch has read the state, and goes on with the repair if there has to be one
    /// ([`Sending::repair`]). Those who wait are told by the watch all the same, which looks as before.
    pub fn noticed(&mut self, state: State) {
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
            told: false,
        });
    }

    /// What the repair does next, with the lock held, to be told to [`Sending::repair_did`]: reading the
    /// state, writing it, or sending a packet again. After [`Action::Failed`] only [`Sending::give_up`] helps.
    /// `None` if there is nothing to repair.
    pub fn repair(&self) -> Option<Action> {
        match self.mode {
            Mode::Repair => self.repair.as_ref().map(|r| r.action),
            Mode::Open | Mode::Closed => None,
        }
    }

    /// True once per repair.
    pub fn repair_began(&mut self) -> bool {
        match &mut self.repair {
            Some(repair) => !core::mem::replace(&mut repair.told, true),
            None => false,
        }
    }

    /// What the repair was to do is done. True if it waits for the NIC: the next step needs some time.
    /// When all is committed the port is open again, unless it was closed.
    pub fn repair_did(&mut self, event: Event) -> bool {
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

    /// All outstanding packets are given up, and the state register is fresh; the port is open, unless it
    /// was closed. Returns their number.
    pub fn give_up(&mut self) -> u8 {
        let lost = self.credits.outstanding();
        self.credits = Credits::new();
        self.progress = None;
        self.repaired();
        lost
    }

    /// Nothing is sent any more.
    pub fn close(&mut self) {
        self.mode = Mode::Closed;
    }
}
