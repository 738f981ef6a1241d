// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Acquisition of an accelerator's lease word by one of several nodes.
//!
//! Registers of the NIC have no compare-and-swap, because its locks are in host memory (HW §10.6)
//! and an accelerator has no host. Nodes therefore exclude each other by time:
//!
//! 1. Read the word. For [`Goal::Borrow`] it must be free.
//! 2. Write a claim, which contains a random number, and read it back.
//! 3. Wait until each node that read the same word in its step 1 has written its claim. The waiting
//!    time is [`Times::claim_wait`] for [`Goal::Borrow`], and [`Times::take_wait`] for the other
//!    goals.
//! 4. If the word still contains the claim, write the final word and read it back.
//!
//! A node that takes longer than [`Times::window`] from reading to writing may have overwritten the
//! word of an owner. The node waits [`Times::late_wait`] longer, so that the owner can write its
//! word again. The method requires an upper bound on the time for which a register access is in
//! flight.
//!
//! The driver executes the operation that [`Claim::next`] returns and reports it by `read`,
//! `written` or `waited`, until `next` returns [`ClaimStep::Finished`].

use crate::Time;
use wire::accel::{LeaseRecord, State};
use wire::ids::NodeId;

/// Waiting times of a claim, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Maximum time from reading the word to having written it in the normal case.
    pub window: u64,
    /// Time for which a claim must remain unchanged. It must be longer than `window`, and longer
    /// than an access can be in flight.
    pub claim_wait: u64,
    /// Time for which a claim must remain unchanged for [`Goal::Reclaim`] and [`Goal::Enrol`]. It
    /// must be longer than the time between two checks of an owner, because the owner stops using
    /// the device's registers when it finds the claim.
    pub take_wait: u64,
    /// Additional waiting time of a node that was later than `window`. It must be longer than the
    /// time after which an owner that cannot read its word gives the device up.
    pub late_wait: u64,
}

/// Purpose for which the word is acquired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// Borrow the device, if it is free.
    Borrow,
    /// Take the device from its owner.
    Reclaim {
        /// True if the claim may succeed for a free device too.
        free: bool,
    },
    /// Write the first word into a NIC that has no lease word.
    Enrol,
}

/// Next operation of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimStep {
    /// Read the word, then call [`Claim::read`].
    Read,
    /// Write this word, then call [`Claim::written`].
    Write(u64),
    /// Wait until this time, then call [`Claim::waited`].
    Wait(Time),
    /// The claim is finished, with the acquired word or an error.
    Finished(Result<LeaseRecord, Unclaimed>),
}

/// Reason for which the word was not acquired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unclaimed {
    /// The NIC has no lease word, because it was never enrolled or was reset.
    Unknown,
    /// The NIC has a lease word already.
    Known,
    /// The word has this state and was written by this node.
    Taken(State, NodeId),
    /// The device is free, so there is no owner to take it from.
    Free,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Read,
    WriteClaim(Time),
    Confirm(Time),
    Wait(Time),
    Check,
    Hold(Time),
    /// Time at which the word was read before it was written; `None` if a late node has waited.
    Held(Option<Time>),
    Again(Time),
    Finished(Result<LeaseRecord, Unclaimed>),
}

/// Acquisition of a lease word. Its functions may be called in any context.
#[derive(Clone, Debug)]
pub struct Claim {
    goal: Goal,
    claim: LeaseRecord,
    times: Times,
    step: Step,
}

impl Claim {
    /// Creates a claim of node `me`. `nonce` is a random number for this claim.
    #[must_use]
    pub const fn new(goal: Goal, me: NodeId, nonce: u32, times: Times) -> Self {
        let state = match goal {
            Goal::Borrow => State::Claimed,
            Goal::Reclaim { .. } | Goal::Enrol => State::Taken,
        };
        let claim = LeaseRecord {
            state,
            node: me,
            nonce,
        };
        Self {
            goal,
            claim,
            times,
            step: Step::Read,
        }
    }

    /// Returns the word after a successful claim.
    const fn held(&self) -> LeaseRecord {
        match self.goal {
            Goal::Borrow => self.claim.with(State::Lent),
            Goal::Reclaim { .. } | Goal::Enrol => self.claim,
        }
    }

    /// Returns the next operation.
    #[must_use]
    pub const fn next(&self) -> ClaimStep {
        match self.step {
            Step::Read | Step::Confirm(_) | Step::Check | Step::Held(_) => ClaimStep::Read,
            Step::WriteClaim(_) => ClaimStep::Write(self.claim.raw()),
            Step::Wait(until) | Step::Again(until) => ClaimStep::Wait(until),
            Step::Hold(_) => ClaimStep::Write(self.held().raw()),
            Step::Finished(how) => ClaimStep::Finished(how),
        }
    }

    /// Checks that the goal may be pursued, given the word that was read.
    const fn may_claim(&self, seen: Option<LeaseRecord>) -> Result<(), Unclaimed> {
        match (self.goal, seen) {
            (Goal::Enrol, None) => Ok(()),
            (Goal::Enrol, Some(_)) => Err(Unclaimed::Known),
            (_, None) => Err(Unclaimed::Unknown),
            (Goal::Borrow, Some(record)) => match record.state {
                State::Free => Ok(()),
                state => Err(Unclaimed::Taken(state, record.node)),
            },
            (Goal::Reclaim { free }, Some(record)) => match record.state {
                State::Free if !free => Err(Unclaimed::Free),
                _ => Ok(()),
            },
        }
    }

    /// Returns the claim as it is written to the word. The final word may have another state.
    #[must_use]
    pub const fn record(&self) -> LeaseRecord {
        self.claim
    }

    /// Reports the word that was read. The read request was sent at `sent`.
    pub fn read(&mut self, sent: Time, now: Time, word: u64) {
        let seen = LeaseRecord::parse(word);
        let lost = Unclaimed::from_seen(seen);
        self.step = match self.step {
            Step::Read => match self.may_claim(seen) {
                Ok(()) => Step::WriteClaim(sent),
                Err(why) => Step::Finished(Err(why)),
            },
            Step::Confirm(read_at) if seen == Some(self.claim) => {
                let wait = match self.goal {
                    Goal::Reclaim { .. } | Goal::Enrol => self.times.take_wait,
                    Goal::Borrow => self.times.claim_wait,
                };
                let wait = if self.is_late(read_at, now) {
                    self.times.late_wait.saturating_add(wait)
                } else {
                    wait
                };
                Step::Wait(Time(now.0.saturating_add(wait)))
            }
            Step::Check if seen == Some(self.claim) => Step::Hold(sent),
            Step::Held(read_at) if seen == Some(self.held()) => match read_at {
                // Wait, because a late write may have replaced the word of a new owner.
                Some(read_at) if self.is_late(read_at, now) => {
                    Step::Again(Time(now.0.saturating_add(self.times.late_wait)))
                }
                _ => Step::Finished(Ok(self.held())),
            },
            Step::Confirm(_) | Step::Check | Step::Held(_) => Step::Finished(Err(lost)),
            other => other,
        };
    }

    /// Reports that the word was written. The driver may also call this function just before the
    /// write.
    pub fn written(&mut self) {
        self.step = match self.step {
            Step::WriteClaim(read_at) => Step::Confirm(read_at),
            Step::Hold(read_at) => Step::Held(Some(read_at)),
            other => other,
        };
    }

    /// Reports that the waiting time has passed.
    pub fn waited(&mut self, now: Time) {
        self.step = match self.step {
            Step::Wait(until) if now >= until => Step::Check,
            Step::Again(until) if now >= until => Step::Held(None),
            other => other,
        };
    }

    /// Returns true if the time from reading the word to having written it exceeds `window`.
    const fn is_late(&self, read_at: Time, now: Time) -> bool {
        now.since(read_at) > self.times.window
    }
}

impl Unclaimed {
    const fn from_seen(seen: Option<LeaseRecord>) -> Self {
        match seen {
            None => Unclaimed::Unknown,
            Some(record) => Unclaimed::Taken(record.state, record.node),
        }
    }
}
