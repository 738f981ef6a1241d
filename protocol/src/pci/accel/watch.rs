// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Whether an accelerator still is its borrower's.

use crate::Time;
use wire::accel::{Mark, State};
use wire::ids::NodeId;

/// Why a borrower has lost its device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Gone {
    /// Nothing was heard of its NIC for the time-out.
    Silent,
    /// Its NIC was reset, or had no power.
    Reset,
    /// Its word is another one.
    Taken(State, NodeId),
    /// The ways to it are closed, although the word is the borrower's.
    Closed,
    /// Its NIC answers, and it does not ([`super::Front::silent_since`]).
    Stuck,
}

/// What follows from a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    /// Nothing.
    Fine,
    /// Somebody who was late has written its claim over the word: it is to be written again.
    Rewrite(u64),
    /// The device is lost.
    Lost(Gone),
}

/// Looks at the word of a lease every now and then. Times in ticks; any context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch {
    mark: Mark,
    /// When a question was sent that was answered.
    heard: Time,
    next: Time,
    timeout: u64,
}

impl Watch {
    /// Of a lease that has this word, as was seen by a question that was sent then. It looks eight
    /// times within `timeout`.
    #[must_use]
    pub const fn new(mark: Mark, sent: Time, timeout: u64) -> Self {
        Self {
            mark,
            heard: sent,
            next: sent,
            timeout,
        }
    }

    /// The word.
    #[must_use]
    pub const fn mark(&self) -> Mark {
        self.mark
    }

    /// When it looks next.
    #[must_use]
    pub const fn next(&self) -> Time {
        self.next
    }

    /// Whether its NIC has answered a question that was sent at this time or later.
    #[must_use]
    pub const fn has_heard(&self, since: Time) -> bool {
        self.heard.0 >= since.0
    }

    /// A question was sent then; `answer`: the word, and whether the ways are open as they were made.
    /// `None`: nobody answered.
    pub fn looked(&mut self, sent: Time, now: Time, answer: Option<(u64, bool)>) -> Sight {
        self.next = Time(now.0.saturating_add(self.timeout / 8));
        let Some((word, open)) = answer else {
            return match now.since(self.heard) >= self.timeout {
                true => Sight::Lost(Gone::Silent),
                false => Sight::Fine,
            };
        };
        self.heard = sent;
        match Mark::parse(word) {
            None => Sight::Lost(Gone::Reset),
            Some(mark) if mark == self.mark => match open {
                true => Sight::Fine,
                false => Sight::Lost(Gone::Closed),
            },
            // Who takes the device closes the ways to it.
            Some(mark) if mark.state == State::Claimed && open => Sight::Rewrite(self.mark.raw()),
            Some(mark) => Sight::Lost(Gone::Taken(mark.state, mark.node)),
        }
    }
}
