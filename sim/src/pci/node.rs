//! A node: its table of intervals, and the state machines of its driver.

use super::{Mutation, END, LIMITS, LONGEST_MS};
use crate::Heap;
use protocol::pci::lender::Open;
use protocol::pci::{Borrower, Config, EndReason, Handle, Lender, OpenError, Opened};
use protocol::Time;
use rand::rngs::SmallRng;
use rand::Rng;
use wire::pci::{Grant, LeaseId, Numbers};

/// Number of intervals.
pub(super) const INTERVALS: usize = 64;

/// A window or a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    /// Node that a window leads to.
    pub(super) node: usize,
    pub(super) lease: LeaseId,
    pub(super) since: u64,
    /// Function that a DMA window belongs to.
    pub(super) function: Option<usize>,
}

/// Work that takes time. It is executed first and reported afterwards.
#[derive(Debug, Clone)]
pub(super) enum Job {
    Open(Open),
    Opened(u32, Result<Opened, OpenError>),
    Close(u32, Numbers),
    Closed(u32),
    Reset(u32),
    WasReset(u32, bool),
    Config(Config),
    /// A register access that was reported before it is made.
    Late(Config),
    Take(Handle, Grant),
    Taken(Handle, bool),
    GiveBack(Handle),
    Drop(Handle, EndReason),
    Dropped(Handle),
    /// Windows of a lease on this node that should already be closed.
    Lag(LeaseId),
    /// A lost device is disconnected from its driver.
    Cut(Handle),
    /// Bus mastering of a device ends, because its lease has ended.
    Stop(u32),
}

/// The driver while it is loaded.
pub(super) struct Life {
    pub(super) lender: Lender<Heap>,
    pub(super) borrower: Borrower<Heap>,
    pub(super) since: u64,
    /// Time of the next poll.
    pub(super) poll: Option<u64>,
    /// Counter that makes repeated messages look new.
    pub(super) count: u32,
}

/// A node.
pub(super) struct Node {
    pub(super) windows: [Option<Link>; INTERVALS],
    pub(super) targets: [Option<Link>; INTERVALS],
    /// Target numbers that are reserved, as a bit set.
    pub(super) parked: u64,
    pub(super) life: Option<Life>,
    /// Number of incarnations.
    pub(super) lives: u32,
    pub(super) random: u64,
    /// True if other users take interval numbers as soon as these are free.
    pub(super) greedy: bool,
    /// True if its incarnations have different time-outs.
    mixed: bool,
    /// True if the node's device resets and drivers are slow.
    pub(super) slow: bool,
    /// True while the node has power.
    pub(super) on: bool,
    /// True if the node never runs a driver again.
    pub(super) dead: bool,
}

fn free(table: &[Option<Link>; INTERVALS], not: u64) -> u64 {
    (1..INTERVALS - 1)
        .filter(|n| table[*n].is_none())
        .fold(0, |set, n| set | (1 << n))
        & !not
}

/// Returns the numbers in a bit set.
pub(super) fn numbers(set: u64) -> impl Iterator<Item = usize> + Clone {
    (0..INTERVALS).filter(move |n| (set >> n) & 1 != 0)
}

impl Node {
    /// Creates a node. `mixed`: nodes have different properties.
    pub(super) fn new(mixed: bool, rng: &mut SmallRng) -> Self {
        Self {
            mixed,
            windows: [None; INTERVALS],
            targets: [None; INTERVALS],
            parked: 0,
            life: None,
            lives: 0,
            random: rng.random(),
            greedy: false,
            slow: mixed && rng.random_bool(0.4),
            on: true,
            dead: false,
        }
    }

    pub(super) fn free_windows(&self) -> u64 {
        free(&self.windows, 0)
    }

    pub(super) fn free_targets(&self) -> u64 {
        free(&self.targets, self.parked)
    }

    /// Resets the NIC to its power-on state.
    pub(super) fn clear(&mut self) {
        self.windows = [None; INTERVALS];
        self.targets = [None; INTERVALS];
        self.parked = 0;
    }

    /// Starts the driver.
    pub(super) fn load(&mut self, now: u64, rng: &mut SmallRng, mutation: Option<Mutation>) {
        let mut limits = LIMITS;
        if self.mixed {
            limits.longest_ms = LONGEST_MS;
            limits = limits.with_quarantine(END);
            if rng.random_bool(0.5) {
                limits.timeout_ms = LONGEST_MS;
            }
        }
        match mutation {
            Some(Mutation::OwnTimeout) => {
                let longest = core::mem::replace(&mut limits.longest_ms, limits.timeout_ms);
                limits = limits.with_quarantine(END);
                limits.longest_ms = longest;
            }
            Some(Mutation::NoHold) => limits.in_flight_max = 0,
            Some(Mutation::NoQuarantine) => limits.quarantine = 0,
            Some(Mutation::NeverAsk) => {
                limits.retry = u64::MAX / 4;
                limits.retry_max = u64::MAX / 4;
            }
            _ => {}
        }
        if mutation != Some(Mutation::SameNumbers) {
            self.random = rng.random();
        }
        // The first incarnations need not wait for earlier leases.
        if self.lives == 0 {
            limits.quarantine = 0;
        }
        let time = Time(now);
        let Ok(lender) = Lender::new(time, 4, &limits, self.random);
        let Ok(borrower) = Borrower::new(time, 4, &limits, !self.random);
        self.lives += 1;
        self.on = true;
        self.life = Some(Life {
            lender,
            borrower,
            since: now,
            poll: None,
            count: 1 << 20,
        });
    }

    /// Returns the driver if it is still the given incarnation.
    pub(super) fn life(&mut self, life: u32) -> Option<&mut Life> {
        let same = self.lives == life;
        self.life.as_mut().filter(|_| same)
    }
}
