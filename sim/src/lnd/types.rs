//! Injected bugs, and results of runs.

use super::MS;

/// A bug that a test injects into the driver code of the simulation or, through a limit, into the
/// state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A letter's memory counts as revoked when the revocation starts.
    MemoryAtOnce,
    /// A letter's address is reused as soon as its owner has the outcome.
    AddressAtOnce,
    /// Memory of GETs counts as revoked when the revocation starts.
    SinkAtOnce,
    /// The address of GETs is reused as soon as it is revoked.
    SinkAddressAtOnce,
    /// GETs are posted whenever the peer was last known to be alive.
    Stale,
    /// Peers that are silent are never asked whether they are alive.
    NeverAsk,
    /// Messages are attributed to another node.
    Unsourced,
    /// GETs count as complete although data are missing.
    Unmarked,
    /// GETs count as complete when they are posted.
    Hasty,
    /// A restarted node draws the same random keys again.
    SameKeys,
    /// Deadlines are not checked.
    NoTimer,
    /// LNet gets no data.
    Nothing,
}

impl Mutation {
    /// Returns parts of the texts of the violations that the bug causes.
    #[must_use]
    pub const fn shows(self) -> &'static [&'static str] {
        match self {
            Self::MemoryAtOnce | Self::AddressAtOnce | Self::Stale | Self::Unmarked => {
                &["is not what was sent"]
            }
            Self::SinkAtOnce | Self::SinkAddressAtOnce => &[
                "was written to while nobody used it",
                "for an address that is used again",
                "is not what was sent",
            ],
            Self::NeverAsk => &["between healthy nodes ends with", "messages out and"],
            Self::Unsourced => &["between healthy nodes ends with", "not even offered"],
            Self::Hasty => &[
                "is not what was sent",
                "was written to while nobody used it",
            ],
            Self::SameKeys => &["is said", "is not what was sent", "twice"],
            Self::NoTimer => &["overdue"],
            Self::Nothing => &["is not all of it"],
        }
    }

    /// All mutations.
    pub const ALL: &'static [Self] = &[
        Self::MemoryAtOnce,
        Self::AddressAtOnce,
        Self::SinkAtOnce,
        Self::SinkAddressAtOnce,
        Self::Stale,
        Self::NeverAsk,
        Self::Unsourced,
        Self::Unmarked,
        Self::Hasty,
        Self::SameKeys,
        Self::NoTimer,
        Self::Nothing,
    ];
}

/// Properties of the nodes of a run; only the time-out for peers varies between nodes.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Maximum duration of a revocation in ns.
    pub revoke: u64,
    /// Maximum time in ns for which LNet holds a message.
    pub patience: u64,
    /// True if LNet copies held messages. It then holds messages whose data must be fetched only
    /// briefly.
    pub keeps: bool,
    /// Time in ns without an answer after which a peer counts as down.
    pub give_up: u64,
    /// Number of the first request of a session.
    pub numbers: u16,
    /// Maximum size of a GET in bytes.
    pub command: u32,
}

/// A violated invariant.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Seed of the run.
    pub seed: u64,
    /// Simulated time in ns.
    pub at: u64,
    /// Description.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, at, what } = self;
        write!(f, "seed {seed}, {:.3} ms: {what}", *at as f64 / MS as f64)
    }
}

/// Statistics of runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    /// Letters.
    pub letters: u64,
    /// Letters that had to be delivered.
    pub demanded: u64,
    /// Letters that were delivered.
    pub delivered: u64,
    /// Letters that were reported as not delivered.
    pub not_delivered: u64,
    /// Letters that the peer's LNet received without their payload.
    pub failed: u64,
    /// Letters whose delivery is unknown.
    pub unknown: u64,
    /// Letters without a free slot.
    pub refused: u64,
    /// Fetched payloads.
    pub fetched: u64,
    /// Repeated GETs.
    pub gets_again: u64,
    /// Completed GETs with holes.
    pub holes: u64,
    /// Repeated requests.
    pub again: u64,
    /// Requests to a busy peer.
    pub busy: u64,
    /// Messages that were repeated, early or without a session.
    pub odd: u64,
    /// Sessions.
    pub sessions: u64,
    /// Faults.
    pub faults: u64,
}

impl Summary {
    /// Returns the sum of two statistics.
    #[must_use]
    pub fn and(self, o: Self) -> Self {
        Self {
            letters: self.letters + o.letters,
            demanded: self.demanded + o.demanded,
            delivered: self.delivered + o.delivered,
            not_delivered: self.not_delivered + o.not_delivered,
            failed: self.failed + o.failed,
            unknown: self.unknown + o.unknown,
            refused: self.refused + o.refused,
            fetched: self.fetched + o.fetched,
            gets_again: self.gets_again + o.gets_again,
            holes: self.holes + o.holes,
            again: self.again + o.again,
            busy: self.busy + o.busy,
            odd: self.odd + o.odd,
            sessions: self.sessions + o.sessions,
            faults: self.faults + o.faults,
        }
    }
}
