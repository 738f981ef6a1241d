//! Errors that can be put into a run, and what runs tell.

use super::MS;

/// An error in the glue, or a limit of the machines that is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// The lender gives numbers of targets away when they are closed.
    LenderNumbersAtOnce,
    /// The borrower does.
    BorrowerNumbersAtOnce,
    /// Nothing is on its way.
    NoHold,
    /// Whoever begins lends and borrows at once.
    NoQuarantine,
    /// The borrower says that its windows are gone before they are.
    BorrowerClosedEarly,
    /// The lender says so.
    LenderClosedEarly,
    /// Devices are not reset.
    NoReset,
    /// Devices go on mastering the bus when their windows are taken away.
    NoMasterOff,
    /// Whatever comes again is taken for something new.
    Renumbered,
    /// Registers are accessed after that was said.
    LateConfig,
    /// A node of which nothing is heard counts as down.
    SilentIsDown,
    /// Nobody looks at the clock.
    NoTimer,
    /// Nobody asks twice.
    NeverAsk,
    /// Messages are taken for those of another node.
    Unsourced,
    /// Whoever begins again draws the same numbers.
    SameNumbers,
    /// A device that is lost is out of reach only when its driver is done with it.
    SlowClose,
    /// A device of which the lease is over goes on until a reset is done that had begun before.
    SlowReset,
    /// Whoever begins waits for leases of his own time-out.
    OwnTimeout,
}

impl Mutation {
    /// What a violation says by which it shows.
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

    /// All of them.
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

macro_rules! summary {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What runs did.
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Summary { $($(#[$doc])* pub $name: u64,)* }

        impl Summary {
            /// The sum of both.
            #[must_use]
            pub fn and(self, o: Self) -> Self {
                Self { $($name: self.$name + o.$name,)* }
            }
        }
    };
}

summary! {
    /// Leases that were asked for.
    asked,
    /// Of these, that were up.
    up,
    /// Of these, that had to be up.
    demanded,
    /// Requests that were refused, or not answered.
    refused,
    /// Leases that were given back.
    returned,
    /// Leases that the borrower lost.
    lost,
    /// Leases that the lender ended because it heard nothing.
    expired,
    /// Leases that the lender took back.
    reclaimed,
    /// Accesses to registers.
    accesses,
    /// Of these, that nobody answered.
    timed_out,
    /// Writes that were made.
    writes,
    /// Resets that borrowers asked for.
    resets,
    /// Accesses and DMA that went through windows.
    packets,
    /// Of these, that arrived where their lease is.
    arrived,
    /// Messages, and those that were lost.
    messages,
    /// See `messages`.
    lost_messages,
    /// Requests that were made again.
    again,
    /// Messages of no lease, or too late.
    odd,
    /// Accesses of whoever does not wait for answers.
    lies,
    /// How often MSI was enabled.
    enabled,
    /// Leases that were lost because the lender answered no accesses.
    stuck,
    /// Numbers that are fenced in the end.
    fenced,
    /// Faults.
    faults,
}
