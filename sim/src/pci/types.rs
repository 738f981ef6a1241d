//! Injected bugs, and results of runs.

use super::MS;

/// A bug that a test injects into the driver code of the simulation or, through a limit, into the
/// state machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// The lender reuses numbers of targets as soon as they are closed.
    LenderNumbersAtOnce,
    /// The borrower reuses numbers of targets as soon as they are closed.
    BorrowerNumbersAtOnce,
    /// The delay of messages is ignored.
    NoHold,
    /// A driver lends and borrows as soon as it is loaded.
    NoQuarantine,
    /// The borrower confirms closed windows too early.
    BorrowerClosedEarly,
    /// The lender confirms closed windows too early.
    LenderClosedEarly,
    /// Devices are not reset.
    NoReset,
    /// Devices stay bus master when their windows are closed.
    NoMasterOff,
    /// Repeated messages count as new.
    Renumbered,
    /// Registers are accessed after the access was reported.
    LateConfig,
    /// A silent node counts as down.
    SilentIsDown,
    /// Timers are ignored.
    NoTimer,
    /// Unanswered messages are not repeated.
    NeverAsk,
    /// Messages are attributed to another node.
    Unsourced,
    /// A restarted driver draws the same random numbers again.
    SameNumbers,
    /// A lost device stays reachable until its driver has finished.
    SlowClose,
    /// A device whose lease has ended stays active until an earlier reset has finished.
    SlowReset,
    /// A restarted driver waits for earlier leases only as long as its own time-out.
    OwnTimeout,
}

impl Mutation {
    /// Returns parts of the texts of the violations that the bug causes.
    #[must_use]
    pub const fn shows(self) -> &'static [&'static str] {
        match self {
            Self::LenderNumbersAtOnce
            | Self::BorrowerNumbersAtOnce
            | Self::NoQuarantine
            | Self::BorrowerClosedEarly
            | Self::LenderClosedEarly
            | Self::SlowClose
            | Self::SlowReset
            | Self::OwnTimeout
            | Self::SilentIsDown => &["leads to", "arrives at"],
            Self::NoHold => &["arrives at"],
            Self::NoReset => &["was not reset"],
            Self::NoMasterOff => &["leads to", "arrives at", "masters the bus"],
            Self::Renumbered => &["was written twice"],
            Self::LateConfig => &["after its lease"],
            Self::NoTimer => &["overdue", "has to be lent", "ends do not agree"],
            Self::NeverAsk => &["has to be lent", "is fenced"],
            Self::Unsourced => &[
                "has to be lent",
                "is fenced",
                "ends do not agree",
                "leads to",
            ],
            Self::SameNumbers => &["leads to", "arrives at", "after its lease", "written twice"],
        }
    }

    /// All mutations.
    pub const ALL: &'static [Self] = &[
        Self::LenderNumbersAtOnce,
        Self::BorrowerNumbersAtOnce,
        Self::NoHold,
        Self::NoQuarantine,
        Self::BorrowerClosedEarly,
        Self::LenderClosedEarly,
        Self::NoReset,
        Self::NoMasterOff,
        Self::Renumbered,
        Self::LateConfig,
        Self::SilentIsDown,
        Self::NoTimer,
        Self::NeverAsk,
        Self::Unsourced,
        Self::SameNumbers,
        Self::SlowClose,
        Self::SlowReset,
        Self::OwnTimeout,
    ];
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

macro_rules! summary {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Statistics of runs.
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Summary { $($(#[$doc])* pub $name: u64,)* }

        impl Summary {
            /// Returns the sum of two statistics.
            #[must_use]
            pub fn and(self, o: Self) -> Self {
                Self { $($name: self.$name + o.$name,)* }
            }
        }
    };
}

summary! {
    /// Requested leases.
    asked,
    /// Established leases.
    up,
    /// Leases that had to be established.
    demanded,
    /// Requests that were rejected or not answered.
    refused,
    /// Leases that were returned.
    returned,
    /// Leases that the borrower lost.
    lost,
    /// Leases that the lender ended because the borrower was silent.
    expired,
    /// Leases that the lender reclaimed.
    reclaimed,
    /// Register accesses.
    accesses,
    /// Register accesses without an answer.
    timed_out,
    /// Executed writes.
    writes,
    /// Resets requested by borrowers.
    resets,
    /// Accesses and DMA through windows.
    packets,
    /// Accesses and DMA through windows that arrived at a target of their own lease.
    arrived,
    /// Messages.
    messages,
    /// Lost messages.
    lost_messages,
    /// Requests that were sent again.
    again,
    /// Messages without a lease, or late ones.
    odd,
    /// Accesses of the borrower that does not wait for answers.
    lies,
    /// Number of times that MSI was enabled.
    enabled,
    /// Leases lost because the lender did not answer accesses.
    stuck,
    /// Numbers that are fenced in the end.
    fenced,
    /// Faults.
    faults,
}
