// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Periodic check that an accelerator still belongs to its borrower.
//!
//! The driver reads the lease word and two registers of the path to the device eight times per
//! time-out, and reports their values by [`Watch::checked`]. The result is to continue, to write
//! the word again, or to give the device up.

use crate::Time;
use wire::accel::{LeaseRecord, State};
use wire::ids::NodeId;

/// Reason for which a borrower has lost its device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LossReason {
    /// The NIC did not answer any read during the time-out.
    Silent,
    /// The NIC was reset, or had no power.
    Reset,
    /// Another node has written the lease word.
    Taken(State, NodeId),
    /// The paths to the device are closed, although the lease word names the borrower.
    Closed,
    /// The NIC answers but the device does not ([`super::AccessFilter::silent_since`]).
    Stuck,
}

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckResult {
    /// The device still belongs to the borrower.
    Fine,
    /// A late node has overwritten the lease word with its claim. The driver must write this word
    /// again.
    Rewrite(u64),
    /// The device is lost.
    Lost(LossReason),
}

/// Schedule and state of the checks of a lease. Times are in ticks. All functions may be called in
/// any context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch {
    record: LeaseRecord,
    /// Time at which the last answered read was sent.
    last_answer: Time,
    next: Time,
    timeout: u64,
}

impl Watch {
    /// Creates the checks of a lease with this lease word, which was returned by a read that was
    /// sent at `sent`. Eight checks are due per `timeout`.
    #[must_use]
    pub const fn new(record: LeaseRecord, sent: Time, timeout: u64) -> Self {
        Self {
            record,
            last_answer: sent,
            next: sent,
            timeout,
        }
    }

    /// Returns the lease word.
    #[must_use]
    pub const fn record(&self) -> LeaseRecord {
        self.record
    }

    /// Returns the time of the next check.
    #[must_use]
    pub const fn next(&self) -> Time {
        self.next
    }

    /// Returns true if the NIC has answered a read that was sent at `since` or later.
    #[must_use]
    pub const fn has_answered(&self, since: Time) -> bool {
        self.last_answer.0 >= since.0
    }

    /// Reports a check whose reads were sent at `sent`. `answer` contains the lease word, and true
    /// if the paths are still open. It is `None` if the NIC did not answer.
    pub fn checked(&mut self, sent: Time, now: Time, answer: Option<(u64, bool)>) -> CheckResult {
        self.next = Time(now.0.saturating_add(self.timeout / 8));
        let Some((word, open)) = answer else {
            return if now.since(self.last_answer) >= self.timeout {
                CheckResult::Lost(LossReason::Silent)
            } else {
                CheckResult::Fine
            };
        };
        self.last_answer = sent;
        match LeaseRecord::parse(word) {
            None => CheckResult::Lost(LossReason::Reset),
            Some(record) if record == self.record => {
                if open {
                    CheckResult::Fine
                } else {
                    CheckResult::Lost(LossReason::Closed)
                }
            }
            // The paths are open, so the claim is late: a node that acquires the device closes its
            // paths first.
            Some(record) if record.state == State::Claimed && open => {
                CheckResult::Rewrite(self.record.raw())
            }
            Some(record) => CheckResult::Lost(LossReason::Taken(record.state, record.node)),
        }
    }
}
