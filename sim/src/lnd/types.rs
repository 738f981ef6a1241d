//! Errors that can be put into a run, and what runs tell.

use super::MS;

/// An error in the glue, or a limit of the machine that is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A letter's memory counts as revoked when that begins.
    MemoryAtOnce,
    /// Its address leads to something else when its owner was told.
    AddressAtOnce,
    /// Memory that GETs write to counts as revoked when that begins.
    SinkAtOnce,
    /// Its address leads to something else when it was revoked.
    SinkAddressAtOnce,
    /// GETs are posted whenever the peer was last known to be alive.
    Stale,
    /// Nobody asks.
    NeverAsk,
    /// Messages are taken for those of another node.
    Unsourced,
    /// GETs count as done whatever is missing in them.
    Unmarked,
    /// GETs count as done when they are posted.
    Hasty,
    /// A node that restarts draws the same keys again.
    SameKeys,
    /// Nobody looks at the deadlines.
    NoTimer,
    /// LNet gets nothing of what it wants.
    Nothing,
}

impl Mutation {
    /// What a violation says by which it shows.
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

    /// All of them.
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

/// What a node is like; the same for all of a run but its patience with peers.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// A revocation takes less than this.
    pub revoke: u64,
    /// LNet may keep a message for so long.
    pub patience: u64,
    /// It copies what it keeps; what has to be fetched it does not keep for long then.
    pub keeps: bool,
    /// After so long without an answer a peer has gone.
    pub give_up: u64,
    /// Requests of a session are counted from this number on.
    pub numbers: u16,
    /// Bytes of a GET at most.
    pub command: u32,
}

/// What is wrong, and when.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Seed of the run.
    pub seed: u64,
    /// When, in ns.
    pub at: u64,
    /// What.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, at, what } = self;
        write!(f, "seed {seed}, {:.3} ms: {what}", *at as f64 / MS as f64)
    }
}

/// What runs did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    /// Letters.
    pub letters: u64,
    /// Of these, that had to be delivered.
    pub demanded: u64,
    /// Delivered.
    pub delivered: u64,
    /// Certainly not delivered.
    pub not_delivered: u64,
    /// Delivered without their payload.
    pub failed: u64,
    /// Of which nobody knows.
    pub unknown: u64,
    /// That there was no place for.
    pub refused: u64,
    /// Payloads that were fetched, and GETs made anew.
    pub fetched: u64,
    /// See `fetched`.
    pub gets_again: u64,
    /// GETs that were done and had lost something.
    pub holes: u64,
    /// Requests sent once more, and requests that a peer was busy for.
    pub again: u64,
    /// See `again`.
    pub busy: u64,
    /// Messages that came twice, too early, or of no session.
    pub odd: u64,
    /// Sessions.
    pub sessions: u64,
    /// Faults.
    pub faults: u64,
}

impl Summary {
    /// The sum of both.
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
