// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Periodic check that an accelerator still belongs to its borrower.
//!
//! Eight times per time-out, the driver reads the lease word and two registers of the path to the
//! device, and reports them by [`Watch::looked`]. The result is to continue, to write the word
//! again, or to give the device up.

use crate::Time;
use wire::accel::{Mark, State};
use wire::ids::NodeId;

/// Reason for which a borrower has lost its device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Gone {
    /// The NIC did not answer during the time-out.
    Silent,
    /// The NIC was reset, or had no power.
    Reset,
    /// Another node has written the lease word.
    Taken(State, NodeId),
    /// The paths to the device are closed, although the word is the borrower's.
    Closed,
    /// The NIC answers but the device does not ([`super::Front::silent_since`]).
    Stuck,
}

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    /// The device still belongs to the borrower.
    Fine,
    /// A node that was late has written its claim over the word. Write this word again.
    Rewrite(u64),
    /// The device is lost.
    Lost(Gone),
}

/// Schedule and state of the checks of a lease. Times are in ticks. Any context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch {
    mark: Mark,
    /// Time at which the last answered read was sent.
    heard: Time,
    next: Time,
    timeout: u64,
}

impl Watch {
    /// Creates the checks of a lease with this word, which was seen by a read sent at `sent`. Eight
    /// checks are due per `timeout`.
    #[must_use]
    pub const fn new(mark: Mark, sent: Time, timeout: u64) -> Self {
        Self {
            mark,
            heard: sent,
            next: sent,
            timeout,
        }
    }

    /// Returns the lease word.
    #[must_use]
    pub const fn mark(&self) -> Mark {
        self.mark
    }

    /// Returns the time of the next check.
    #[must_use]
    pub const fn next(&self) -> Time {
        self.next
    }

    /// Returns true if the NIC has answered a read that was sent at `since` or later.
    #[must_use]
    pub const fn has_heard(&self, since: Time) -> bool {
        self.heard.0 >= since.0
    }

    /// Reports a check whose reads were sent at `sent`. `answer` is the word, and true if the paths
    /// are still open; `None` if the NIC did not answer.
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
            // A node that takes the device closes its paths first.
            Some(mark) if mark.state == State::Claimed && open => Sight::Rewrite(self.mark.raw()),
            Some(mark) => Sight::Lost(Gone::Taken(mark.state, mark.node)),
        }
    }
}
