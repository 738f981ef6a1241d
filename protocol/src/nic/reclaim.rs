// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Emptying the requester pages of a VPID that changes hands, as a state machine without I/O (HW §8, G8, G11).
//!
//! Nothing reads what a requester page holds, and no register clears it. But a command that does nothing to anybody can be stored
//! over it, twice, and then the page is empty whatever it held ([`stores`]). The counts tell that the NIC has taken both commands,
//! as long as nothing else moves them: so nothing is stored before everything of the last owner has been counted, and what is never
//! counted leaves the pages alone ([`Outcome::Unclear`]).
//!
//! No rule says that a read of the state register waits for stores to a requester page, which take another way through the chip
//! (HW §5). A count is believed when it stands still for a while ([`QUIET_US`]).

use wire::wcbuf::State;

/// How long a state has to stay the same to be that of a requester that does nothing, in microseconds.
pub const QUIET_US: u64 = 100;
/// How often, at least, it is looked at in that time.
const QUIET_LOOKS: u8 = 3;
/// How much longer the NIC may take for commands that were stored than for those of the last owner, who had time.
const OWN_SHARE: u64 = 5;

/// The stores that empty a page, as numbers of words of a command of `len` words that does nothing, each to be fenced: the words from
/// first to last, then once more with the first one last. Two commands are accepted.
///
/// The first word replaces that of a command which somebody began, so that this one is never executed. Then the page may hold any words
/// but the first, and the first command is accepted at the last word that was missing, perhaps with words of somebody else, which make
/// nothing of it; what is stored after that stays. So do at most all words but the first, and the second command begins with these: the NIC
/// takes the words of a command in any order (HW §17).
pub fn stores(len: u8) -> impl Iterator<Item = u8> {
    (0..len).chain(1..len).chain(core::iter::once(0))
}

/// What the caller must do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Pause for some microseconds, read the state register, report it.
    Look,
    /// Write this value to the state register, then report [`Event::Done`].
    Write(State),
    /// Store all of [`stores`] to page `.0` of those to be emptied, then report [`Event::Done`].
    Store(u8),
    /// The end; the machine stays in this state.
    End(Outcome),
}

/// What the caller reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The state register was read.
    State(State),
    /// What was asked for is done.
    Done,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All pages are empty, and nothing is on its way.
    Empty,
    /// Something may be left or on its way: try again later.
    Unclear,
    /// The state reads all ones.
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Until nothing of the last owner is on its way. `forced`: the state was written meanwhile.
    Settle {
        forced: bool,
    },
    /// The state is being written because it did not settle: the last owner may have written toggles that differ.
    Force,
    /// The state is being written, so that the NIC takes commands.
    Open,
    /// Until there is a state to count from.
    Base,
    /// The commands are being stored.
    Store {
        before: State,
    },
    /// Until they are counted.
    Count {
        before: State,
    },
    End(Outcome),
}

/// How long the state has been the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Still {
    state: State,
    since: u64,
    looks: u8,
}

/// Empties pages. The VPID's owner stores nothing any more, and what he stored has left the processors. Times are microseconds of any clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reclaim {
    step: Step,
    pages: u8,
    page: u8,
    patience: u64,
    until: u64,
    still: Option<Still>,
}

/// Descriptors that the NIC is through with, accepted or dropped as a whole.
fn through(state: State) -> u8 {
    state.committed_count().wrapping_add(state.retry_count())
}

impl Reclaim {
    /// Commands that are accepted per page.
    const COMMANDS: u8 = 2;

    /// For so many pages; `patience`: how long the last owner's commands may take from now on.
    pub const fn new(pages: u8, patience: u64, now: u64) -> Self {
        Self {
            step: Step::Settle { forced: false },
            pages,
            page: 0,
            patience,
            until: now.saturating_add(patience),
            still: None,
        }
    }

    /// First action.
    pub const fn start(&self) -> Action {
        Action::Look
    }

    /// Next action after `event`.
    pub fn step(&mut self, event: Event, now: u64) -> Action {
        match (self.step, event) {
            (Step::End(outcome), _) => Action::End(outcome),
            (_, Event::State(state)) if state.is_all_ones() => self.end(Outcome::Gone),
            (Step::Settle { forced }, Event::State(state)) => self.settle(state, forced, now),
            (Step::Force, Event::Done) => {
                self.wait(Step::Settle { forced: true }, 2 * self.patience, now)
            }
            (Step::Open, Event::Done) => self.wait(Step::Base, self.patience, now),
            (Step::Base, Event::State(state)) => self.base(state, now),
            (Step::Store { before }, Event::Done) => {
                self.wait(Step::Count { before }, OWN_SHARE * self.patience, now)
            }
            (Step::Count { before }, Event::State(state)) => self.count(before, state, now),
            _ => self.end(Outcome::Unclear),
        }
    }

    fn end(&mut self, outcome: Outcome) -> Action {
        self.step = Step::End(outcome);
        Action::End(outcome)
    }

    fn wait(&mut self, step: Step, patience: u64, now: u64) -> Action {
        self.step = step;
        self.until = now.saturating_add(patience);
        self.still = None;
        Action::Look
    }

    /// Whether the state has been the same for `time`.
    fn is_still(&mut self, state: State, time: u64, now: u64) -> bool {
        let still = match self.still {
            Some(still) if still.state == state => Still {
                looks: still.looks.saturating_add(1),
                ..still
            },
            _ => Still {
                state,
                since: now,
                looks: 1,
            },
        };
        self.still = Some(still);
        still.looks >= QUIET_LOOKS && now.saturating_sub(still.since) >= time
    }

    fn is_over(&self, now: u64) -> bool {
        now >= self.until
    }

    fn settle(&mut self, state: State, forced: bool, now: u64) -> Action {
        // What was written over toggles may hide that something is on its way: then counts have to stand still for longer.
        let time = if forced { self.patience } else { QUIET_US };
        if state.is_idle() && self.is_still(state, time, now) {
            return self.open(state);
        }
        if !state.is_idle() {
            self.still = None;
        }
        match (self.is_over(now), forced) {
            (false, _) => Action::Look,
            (true, false) => {
                self.step = Step::Force;
                Action::Write(state.fresh())
            }
            (true, true) => self.end(Outcome::Unclear),
        }
    }

    fn open(&mut self, state: State) -> Action {
        self.step = Step::Open;
        Action::Write(state.fresh())
    }

    fn base(&mut self, state: State, now: u64) -> Action {
        let open = state.is_idle() && !state.retry();
        if open && self.is_still(state, QUIET_US, now) {
            if self.page == self.pages {
                return self.end(Outcome::Empty);
            }
            self.step = Step::Store { before: state };
            return Action::Store(self.page);
        }
        if open && !self.is_over(now) {
            return Action::Look;
        }
        self.end(Outcome::Unclear)
    }

    fn count(&mut self, before: State, state: State, now: u64) -> Action {
        let done = through(state).wrapping_sub(through(before));
        if done > Self::COMMANDS {
            // Something else was counted: nobody knows what the commands met.
            return self.end(Outcome::Unclear);
        }
        if done == Self::COMMANDS && state.is_idle() && self.is_still(state, QUIET_US, now) {
            self.page += 1;
            // Those that were dropped have left the page as well; the next ones want a NIC that takes them.
            return self.open(state);
        }
        if self.is_over(now) {
            return self.end(Outcome::Unclear);
        }
        Action::Look
    }
}
