// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! State machine without I/O that empties the requester pages of a VPID that is being reclaimed (HW
//! §8, G8, G11).
//!
//! The contents of a requester page cannot be read, and no register clears them. If a command
//! without effect is stored to the page twice, the page is empty afterwards, regardless of its
//! previous contents (see [`stores`]). The counts of the VPID then show that the NIC has accepted
//! both commands, provided that no other command changes the counts. The state machine therefore
//! first waits until all commands of the last owner are counted. If they are never counted, the
//! pages stay unchanged ([`Outcome::Unclear`]).
//!
//! A read of the state register need not wait for stores to a requester page, because the stores
//! take another path through the chip (HW §5). A count is therefore accepted only after it has
//! stayed the same for `QUIET_US`.

use super::quirks::{QUIET_READS, QUIET_US, RECLAIM_SHARE};
use wire::wcbuf::State;

/// Returns the stores that empty a page, as word numbers of a command of `len` words without
/// effect. A fence must follow each store. The sequence stores the words in ascending order, and
/// then once more with the first word at the end. The NIC accepts two commands.
///
/// The first store replaces the first word of a command that the last owner has begun, so that the
/// begun command is never executed. The page may hold any other words of the last owner. The NIC
/// accepts the first command when the last missing word is stored. The command may contain words of
/// the last owner, but they cannot give it an effect. Words that are stored afterwards stay in the
/// page and belong to the second command, because the NIC accepts the words of a command in any
/// order (HW §17).
pub fn stores(len: u8) -> impl Iterator<Item = u8> {
    (0..len).chain(1..len).chain(core::iter::once(0))
}

/// Action that the caller must perform next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Pause for some microseconds, then read the state register and report it.
    ReadState,
    /// Write this value to the state register, then report [`Event::Done`].
    Write(State),
    /// Store all of [`stores`] to page `.0` of the pages to be emptied, then report
    /// [`Event::Done`].
    Store(u8),
    /// The state machine has ended with this result.
    End(Outcome),
}

/// Report from the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The state register was read.
    State(State),
    /// The requested action is complete.
    Done,
}

/// Final result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All pages are empty, and no command is in flight.
    Empty,
    /// Commands may be left in a page or in flight. The caller must try again later.
    Unclear,
    /// The state register reads as all ones, so the NIC is unreachable.
    Absent,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Waits until no command of the last owner is in flight. `forced` is true if the state
    /// register was overwritten.
    WaitIdle {
        forced: bool,
    },
    /// The state register is being written, because the VPID did not become idle. The last owner
    /// may have written different toggles.
    Force,
    /// The state register is being written so that the NIC accepts commands.
    Open,
    /// Waits for a stable state from which commands are counted.
    Base,
    /// The commands are being stored.
    Store {
        before: State,
    },
    /// Waits until the commands are counted.
    Count {
        before: State,
    },
    End(Outcome),
}

/// Time since which the state has been the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stable {
    state: State,
    since: u64,
    reads: u8,
}

/// State machine that empties pages. The VPID's owner must not store any more, and its earlier
/// stores must have left the CPUs. Times are in microseconds and may come from any monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reclaim {
    step: Step,
    pages: u8,
    page: u8,
    patience: u64,
    until: u64,
    stable: Option<Stable>,
}

/// Returns the number of descriptors that the NIC has either accepted or dropped as a whole.
fn through(state: State) -> u8 {
    state.committed_count().wrapping_add(state.retry_count())
}

impl Reclaim {
    /// Number of commands that the NIC accepts per page.
    const COMMANDS: u8 = 2;

    /// Returns a state machine for `pages` pages. `patience` is the time in microseconds that the
    /// last owner's commands may take from `now` on.
    pub const fn new(pages: u8, patience: u64, now: u64) -> Self {
        Self {
            step: Step::WaitIdle { forced: false },
            pages,
            page: 0,
            patience,
            until: now.saturating_add(patience),
            stable: None,
        }
    }

    /// Returns the first action.
    pub const fn start(&self) -> Action {
        Action::ReadState
    }

    /// Returns the next action after `event`.
    pub fn step(&mut self, event: Event, now: u64) -> Action {
        match (self.step, event) {
            (Step::End(outcome), _) => Action::End(outcome),
            (_, Event::State(state)) if state.is_all_ones() => self.end(Outcome::Absent),
            (Step::WaitIdle { forced }, Event::State(state)) => self.wait_idle(state, forced, now),
            (Step::Force, Event::Done) => {
                self.wait(Step::WaitIdle { forced: true }, 2 * self.patience, now)
            }
            (Step::Open, Event::Done) => self.wait(Step::Base, self.patience, now),
            (Step::Base, Event::State(state)) => self.base(state, now),
            (Step::Store { before }, Event::Done) => {
                self.wait(Step::Count { before }, RECLAIM_SHARE * self.patience, now)
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
        self.stable = None;
        Action::ReadState
    }

    /// Returns true if the state has been the same for `time` microseconds.
    fn is_stable(&mut self, state: State, time: u64, now: u64) -> bool {
        let stable = match self.stable {
            Some(stable) if stable.state == state => Stable {
                reads: stable.reads.saturating_add(1),
                ..stable
            },
            _ => Stable {
                state,
                since: now,
                reads: 1,
            },
        };
        self.stable = Some(stable);
        stable.reads >= QUIET_READS && now.saturating_sub(stable.since) >= time
    }

    fn is_expired(&self, now: u64) -> bool {
        now >= self.until
    }

    fn wait_idle(&mut self, state: State, forced: bool, now: u64) -> Action {
        // Overwritten toggles may hide a command in flight, so the counts must stay the same for
        // longer.
        let time = if forced { self.patience } else { QUIET_US };
        if state.is_idle() && self.is_stable(state, time, now) {
            return self.open(state);
        }
        if !state.is_idle() {
            self.stable = None;
        }
        match (self.is_expired(now), forced) {
            (false, _) => Action::ReadState,
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
        if open && self.is_stable(state, QUIET_US, now) {
            if self.page == self.pages {
                return self.end(Outcome::Empty);
            }
            self.step = Step::Store { before: state };
            return Action::Store(self.page);
        }
        if open && !self.is_expired(now) {
            return Action::ReadState;
        }
        self.end(Outcome::Unclear)
    }

    fn count(&mut self, before: State, state: State, now: u64) -> Action {
        let done = through(state).wrapping_sub(through(before));
        if done > Self::COMMANDS {
            // Another command was counted, so the effect of the stored commands is unknown.
            return self.end(Outcome::Unclear);
        }
        if done == Self::COMMANDS && state.is_idle() && self.is_stable(state, QUIET_US, now) {
            self.page += 1;
            // Dropped commands have left the page too. The state register must be written, so that
            // the NIC accepts the next commands.
            return self.open(state);
        }
        if self.is_expired(now) {
            return self.end(Outcome::Unclear);
        }
        Action::ReadState
    }
}
