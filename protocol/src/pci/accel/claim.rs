// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! How one node among several gets an accelerator's lease word.
//!
//! No register of the NIC can be compared and changed at once (its locks are in host memory, HW
//! §10.6, and there is no host). So this is mutual exclusion by time: who sees that nobody has the
//! device writes its claim, waits until whoever saw the same has written, and has the device if its
//! claim is still there. It needs a bound on how long an access is on its way ([`Times::settle`]),
//! as fences do; who was slower than [`Times::window`] between looking and having written waits so
//! long that an owner whose word it may have overwritten has written it again.

use crate::Time;
use wire::accel::{Mark, State};
use wire::ids::NodeId;

/// Times in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// From looking at the word to having written it, usually.
    pub window: u64,
    /// How long a claim is left alone before it counts: more than `window`, and than an access is on
    /// its way.
    pub settle: u64,
    /// The same of who takes the device from its owner, or enrols a NIC whose owner may not know of
    /// its reset: more than the time between two looks of an owner, who lets go of the device's
    /// registers when it sees that.
    pub taken: u64,
    /// The same of one that was later than `window`: more than the time after which an owner that does
    /// not look at its word gives the device up.
    pub late: u64,
}

/// What is wanted of the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// The device, if it is free.
    Borrow,
    /// The device, of whoever has it.
    Reclaim {
        /// Or of nobody.
        free: bool,
    },
    /// To be the first one: the NIC has no word yet.
    Enrol,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Read the word, then call [`Claim::read`].
    Read,
    /// Write this, then call [`Claim::written`].
    Write(u64),
    /// Wait until then, then call [`Claim::waited`].
    Wait(Time),
    /// It is over.
    Over(Result<Mark, Unclaimed>),
}

/// Why the word was not had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unclaimed {
    /// The NIC is no accelerator's, or was reset, so that nobody has said yet that it is one.
    Unknown,
    /// It is one already.
    Known,
    /// It is so, by that node.
    Taken(State, NodeId),
    /// Nobody has it.
    Free,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Look,
    Mark(Time),
    Confirm(Time),
    Settle(Time),
    Check,
    Hold(Time),
    /// When the word was looked at before it was written, as long as that counts.
    Held(Option<Time>),
    Again(Time),
    Over(Result<Mark, Unclaimed>),
}

/// See the module's documentation. Any context.
#[derive(Clone, Debug)]
pub struct Claim {
    goal: Goal,
    claim: Mark,
    times: Times,
    step: Step,
}

impl Claim {
    /// Of node `me`; `nonce` was drawn for this claim.
    #[must_use]
    pub const fn new(goal: Goal, me: NodeId, nonce: u32, times: Times) -> Self {
        let state = match goal {
            Goal::Borrow => State::Claimed,
            Goal::Reclaim { .. } | Goal::Enrol => State::Taken,
        };
        let claim = Mark {
            state,
            node: me,
            nonce,
        };
        Self {
            goal,
            claim,
            times,
            step: Step::Look,
        }
    }

    /// The word when it is had.
    const fn held(&self) -> Mark {
        match self.goal {
            Goal::Borrow => self.claim.with(State::Lent),
            Goal::Reclaim { .. } | Goal::Enrol => self.claim,
        }
    }

    /// What is to be done next.
    #[must_use]
    pub const fn next(&self) -> Want {
        match self.step {
            Step::Look | Step::Confirm(_) | Step::Check | Step::Held(_) => Want::Read,
            Step::Mark(_) => Want::Write(self.claim.raw()),
            Step::Settle(until) | Step::Again(until) => Want::Wait(until),
            Step::Hold(_) => Want::Write(self.held().raw()),
            Step::Over(how) => Want::Over(how),
        }
    }

    /// Whether somebody has the device, or may it be claimed.
    const fn may_claim(&self, seen: Option<Mark>) -> Result<(), Unclaimed> {
        match (self.goal, seen) {
            (Goal::Enrol, None) => Ok(()),
            (Goal::Enrol, Some(_)) => Err(Unclaimed::Known),
            (_, None) => Err(Unclaimed::Unknown),
            (Goal::Borrow, Some(mark)) => match mark.state {
                State::Free => Ok(()),
                state => Err(Unclaimed::Taken(state, mark.node)),
            },
            (Goal::Reclaim { free }, Some(mark)) => match mark.state {
                State::Free if !free => Err(Unclaimed::Free),
                _ => Ok(()),
            },
        }
    }

    /// What the claim says, whatever becomes of it: its state aside, the word that may have been written.
    #[must_use]
    pub const fn mark(&self) -> Mark {
        self.claim
    }

    /// What the word was; the question was sent at `sent`.
    pub fn read(&mut self, sent: Time, now: Time, word: u64) {
        let seen = Mark::parse(word);
        let lost = Unclaimed::from_seen(seen);
        self.step = match self.step {
            Step::Look => match self.may_claim(seen) {
                Ok(()) => Step::Mark(sent),
                Err(why) => Step::Over(Err(why)),
            },
            Step::Confirm(looked) if seen == Some(self.claim) => {
                let settle = match self.goal {
                    Goal::Reclaim { .. } | Goal::Enrol => self.times.taken,
                    Goal::Borrow => self.times.settle,
                };
                let wait = match self.is_late(looked, now) {
                    true => self.times.late.saturating_add(settle),
                    false => settle,
                };
                Step::Settle(Time(now.0.saturating_add(wait)))
            }
            Step::Check if seen == Some(self.claim) => Step::Hold(sent),
            Step::Held(looked) if seen == Some(self.held()) => match looked {
                // Somebody may have had it in between, whose word this was written over.
                Some(looked) if self.is_late(looked, now) => {
                    Step::Again(Time(now.0.saturating_add(self.times.late)))
                }
                _ => Step::Over(Ok(self.held())),
            },
            Step::Confirm(_) | Step::Check | Step::Held(_) => Step::Over(Err(lost)),
            other => other,
        };
    }

    /// The word was written, or is about to be.
    pub fn written(&mut self) {
        self.step = match self.step {
            Step::Mark(looked) => Step::Confirm(looked),
            Step::Hold(looked) => Step::Held(Some(looked)),
            other => other,
        };
    }

    /// Time went by.
    pub fn waited(&mut self, now: Time) {
        self.step = match self.step {
            Step::Settle(until) if now >= until => Step::Check,
            Step::Again(until) if now >= until => Step::Held(None),
            other => other,
        };
    }

    /// Whether it took too long from looking at the word to having written it.
    const fn is_late(&self, looked: Time, now: Time) -> bool {
        now.since(looked) > self.times.window
    }
}

impl Unclaimed {
    const fn from_seen(seen: Option<Mark>) -> Self {
        match seen {
            None => Unclaimed::Unknown,
            Some(mark) => Unclaimed::Taken(mark.state, mark.node),
        }
    }
}
