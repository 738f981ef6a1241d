//! Table sizes and times of a simulated node, and bugs that can be injected.

use protocol::eth::poll::Periods;
use protocol::eth::rendezvous::Limits;

/// Sizes of the tables of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    /// Announced frames in flight.
    pub flight: u16,
    /// Abandoned frames whose memory is kept.
    pub quarantine: u16,
    /// GETs in flight.
    pub fetches: u16,
    /// Lost GETs whose memory is kept.
    pub lost: u16,
    /// Waiting announcements.
    pub waiting: u16,
}

/// Small tables, so that all limits are reached.
pub const SMALL: Tables = Tables {
    flight: 16,
    quarantine: 16,
    fetches: 16,
    lost: 16,
    waiting: 48,
};

/// Tables of the size of `exn.ko`.
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
    /// Returns the maximum number of buffers in use, including one scratch buffer.
    #[must_use]
    pub const fn buffers(&self) -> usize {
        (self.flight + self.quarantine + self.fetches + self.lost + 1) as usize
    }

    /// Returns the limits of `exn.ko` with tables of this size, and with times in ns that faults
    /// outlast.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        let source = (self.fetches - self.fetches / 4) as usize;
        Limits {
            stall: 100 * MS,
            lag: 25 * MS,
            lag_hold: 1_000 * MS,
            timeout: 1_000 * MS,
            quarantine: 4_000 * MS,
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

/// Maximum length of a frame.
pub const MAX_FRAME: u32 = 2000;
/// Length below which a frame is sent as a message, if it overtakes no other.
pub const THRESHOLD: u32 = 120;

const MS: u64 = 1_000_000;

/// Limits of a node with small tables. Times are the same with large ones.
pub const LIMITS: Limits = SMALL.limits();

/// Periods of `exn.ko`.
pub const PERIODS: Periods = Periods {
    busy: 20 * MS,
    idle: 250 * MS,
    pause: MS,
};

/// A bug that a test injects into the driver code of the simulation or, through limits, into the
/// state machine. The simulation must detect it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Abandoned memory is reused at once.
    NoQuarantine,
    /// Memory of lost GETs is reused at once.
    NoFetchQuarantine,
    /// A notification ends a transfer with any peer.
    AnyPeer,
    /// The number of stalled peers is not limited.
    NoPeerBound,
    /// A source may have any number of announcements waiting for any time. It does not count as
    /// slow before its GETs are lost.
    NoWaitingBound,
    /// Some notifications are counted, but not passed to the state machine.
    DeafToNotifications,
    /// Each GET is posted twice.
    FetchTwice,
    /// The age of an announcement counts from its reading, not from its sending.
    NoAge,
    /// The timer is set only once.
    NoTimer,
    /// The path of a frame depends on its length only.
    PathByLength,
    /// Frames count as fetched although data are missing.
    NoMarks,
    /// Peers that fetch late are treated like peers that fetch in time.
    NoLag,
}

impl Mutation {
    /// Mutations that violate an invariant. [`Mutation::NoLag`] only reduces the remaining traffic.
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
    /// Announced frames in flight.
    pub flight: bool,
    /// Abandoned frames.
    pub quarantine: bool,
    /// GETs in flight.
    pub fetches: bool,
    /// Lost GETs: no slot is left for sources that were silent.
    pub lost: bool,
    /// Waiting announcements.
    pub waiting: bool,
}

impl Full {
    /// Returns the tables that are full in `self` or `other`.
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
