//! A node: its table of intervals, and the machines of its driver.

use super::{Mutation, END, LIMITS, LONGEST_MS};
use crate::Heap;
use protocol::pci::lender::Open;
use protocol::pci::{Borrower, Config, Handle, Lender, OpenError, Opened, Why};
use protocol::Time;
use rand::rngs::SmallRng;
use rand::Rng;
use wire::pci::{Grant, LeaseId, Numbers};

/// Intervals.
pub(super) const INTERVALS: usize = 64;

/// A window or a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    /// Of a window, where it leads.
    pub(super) node: usize,
    pub(super) lease: LeaseId,
    pub(super) since: u64,
    /// Of a window for DMA, whose.
    pub(super) function: Option<usize>,
}

/// What takes a while: first something is done, then it is said.
#[derive(Debug, Clone)]
pub(super) enum Job {
    Open(Open),
    Opened(u32, Result<Opened, OpenError>),
    Close(u32, Numbers),
    Closed(u32),
    Reset(u32),
    WasReset(u32, bool),
    Config(Config),
    /// A register is accessed after that was said.
    Late(Config),
    Take(Handle, Grant),
    Taken(Handle, bool),
    GiveBack(Handle),
    Drop(Handle, Why),
    Dropped(Handle),
    /// Windows that should be gone already, of the lease and this node.
    Lag(LeaseId),
    /// The device is out of reach of its driver here.
    Cut(Handle),
    /// A device of which the lease is over masters the bus no more.
    Stop(u32),
}

/// The driver, as long as it is loaded.
pub(super) struct Life {
    pub(super) lender: Lender<Heap>,
    pub(super) borrower: Borrower<Heap>,
    pub(super) since: u64,
    /// When it is polled next.
    pub(super) poll: Option<u64>,
    /// Numbers for messages that are taken for new ones.
    pub(super) count: u32,
}

/// See the module's documentation.
pub(super) struct Node {
    pub(super) windows: [Option<Link>; INTERVALS],
    pub(super) targets: [Option<Link>; INTERVALS],
    /// Numbers of targets that nobody may have.
    pub(super) parked: u64,
    pub(super) life: Option<Life>,
    /// How often it began.
    pub(super) lives: u32,
    pub(super) random: u64,
    /// Others in it take numbers as soon as they are free.
    pub(super) greedy: bool,
    /// Its lives have different time-outs, as others have.
    mixed: bool,
    /// Its devices' resets, and its drivers, take long.
    pub(super) slow: bool,
    /// It has power.
    pub(super) on: bool,
    /// It never comes back.
    pub(super) dead: bool,
}

fn free(table: &[Option<Link>; INTERVALS], not: u64) -> u64 {
    (1..INTERVALS - 1)
        .filter(|n| table[*n].is_none())
        .fold(0, |set, n| set | (1 << n))
        & !not
}

/// Numbers of a set.
pub(super) fn numbers(set: u64) -> impl Iterator<Item = usize> + Clone {
    (0..INTERVALS).filter(move |n| (set >> n) & 1 != 0)
}

impl Node {
    /// `mixed`: nodes differ.
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

    /// The NIC is as after power-on.
    pub(super) fn clear(&mut self) {
        self.windows = [None; INTERVALS];
        self.targets = [None; INTERVALS];
        self.parked = 0;
    }

    /// The driver begins.
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
            Some(Mutation::NoHold) => limits.hold = 0,
            Some(Mutation::NoQuarantine) => limits.quarantine = 0,
            Some(Mutation::NeverAsk) => {
                limits.ask = u64::MAX / 4;
                limits.ask_most = u64::MAX / 4;
            }
            _ => {}
        }
        if mutation != Some(Mutation::SameNumbers) {
            self.random = rng.random();
        }
        // The first lives begin with nothing to wait for.
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

    /// The driver of this life, if it is still there.
    pub(super) fn life(&mut self, life: u32) -> Option<&mut Life> {
        let same = self.lives == life;
        self.life.as_mut().filter(|_| same)
    }
}
