//! Sizes of tables and times of a simulated node, and errors that can be put into it.

use protocol::eth::poll::Periods;
use protocol::eth::rendezvous::Limits;

/// Sizes of the tables of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    /// Announced frames in flight.
    pub flight: u16,
    /// Frames given up whose memory is kept.
    pub quarantine: u16,
    /// Fetches in flight.
    pub fetches: u16,
    /// Fetches lost whose memory is kept.
    pub lost: u16,
    /// Announcements that wait.
    pub waiting: u16,
}

/// Small ones, so that all bounds are reached.
pub const SMALL: Tables = Tables {
    flight: 16,
    quarantine: 16,
    fetches: 16,
    lost: 16,
    waiting: 48,
};

/// As those of `exn.ko`.
pub const LARGE: Tables = Tables {
    flight: 256,
    quarantine: 512,
    fetches: 256,
    lost: 256,
    waiting: 1024,
};

const fn most(a: usize, b: usize) -> usize {
    match a > b {
        true => a,
        false => b,
    }
}

impl Tables {
    /// Buffers that all of it may hold, with one for scratch.
    #[must_use]
    pub const fn buffers(&self) -> usize {
        (self.flight + self.quarantine + self.fetches + self.lost + 1) as usize
    }

    /// The limits of `exn.ko` with tables of this size, and times that faults outlast, in ns.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        let source = (self.fetches - self.fetches / 4) as usize;
        Limits {
            stall: 100 * MS,
            lag: 25 * MS,
            probation: 1_000 * MS,
            timeout: 1_000 * MS,
            keep: 4_000 * MS,
            patience: 300 * MS,
            flight: self.flight as usize,
            stalled_peer: most(self.flight as usize / 16, 2),
            fetches: self.fetches as usize,
            source,
            lossy_source: most(source / 4, 4),
            waiting: self.waiting as usize / 2,
            slow_waiting: most(self.waiting as usize / 16, 6),
        }
    }
}

/// Longest frame.
pub const MAX_FRAME: u32 = 2000;
/// Shorter frames go in a message, if they overtake nothing.
pub const THRESHOLD: u32 = 120;

const MS: u64 = 1_000_000;

/// The limits of a node with small tables. Times are the same with others.
pub const LIMITS: Limits = SMALL.limits();

/// As those of `exn.ko`.
pub const PERIODS: Periods = Periods {
    busy: 20 * MS,
    idle: 250 * MS,
    pause: MS,
};

/// An error put into the glue or, by its limits, into the machine, to see that the simulation finds
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Memory that was given up is used again at once.
    NoQuarantine,
    /// Only that of lost fetches.
    NoFetchQuarantine,
    /// A notification ends a transfer whoever it is with.
    AnyPeer,
    /// No bound for peers that stand still.
    NoPeerBound,
    /// A source may have any number of announcements waiting, and for any time: none counts as slow
    /// before its fetches are lost.
    NoWaitingBound,
    /// Notifications are counted, but the machine does not hear of some.
    DeafToNotifications,
    /// An announcement is fetched twice.
    FetchTwice,
    /// Announcements count as sent when they are read.
    NoAge,
    /// The timer is set once.
    NoTimer,
    /// Frames take the way that suits their length, whatever is on its way.
    PathByLength,
    /// Frames count as fetched whatever is missing in them.
    NoMarks,
    /// Peers that fetch late are peers as any other.
    NoLag,
}

impl Mutation {
    /// Those that show in what a node may do to others; [`Mutation::NoLag`] shows in how much of
    /// the traffic is left.
    pub const ALL: &'static [Self] = &[
        Self::NoQuarantine,
        Self::NoFetchQuarantine,
        Self::AnyPeer,
        Self::NoPeerBound,
        Self::NoWaitingBound,
        Self::DeafToNotifications,
        Self::FetchTwice,
        Self::NoAge,
        Self::NoTimer,
        Self::PathByLength,
        Self::NoMarks,
    ];
}

/// Tables that are full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Full {
    /// Announced frames that move.
    pub flight: bool,
    /// Frames given up.
    pub quarantine: bool,
    /// Fetches in flight.
    pub fetches: bool,
    /// Fetches lost: none is left for sources that were silent.
    pub lost: bool,
    /// Announcements that wait.
    pub waiting: bool,
}

impl Full {
    /// What is full in one or the other.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            flight: self.flight | other.flight,
            quarantine: self.quarantine | other.quarantine,
            fetches: self.fetches | other.fetches,
            lost: self.lost | other.lost,
            waiting: self.waiting | other.waiting,
        }
    }
}
