// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! How often a driver closes and opens its ports again because they look stuck, and when it tries
//! again after opening failed.
//!
//! Whether ports are stuck is seen by what peers do and leave undone, so a peer can make them look
//! so. What each restart costs the others is bounded by pauses that double.

use crate::Time;

/// Times in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pauses {
    /// Between the first two restarts.
    pub restart: u64,
    /// Between two restarts at most. After twice this time without one the pauses begin anew.
    pub longest_restart: u64,
    /// Between the first two attempts to open the ports.
    pub retry: u64,
    /// Between two attempts at most.
    pub longest_retry: u64,
}

/// See the module's documentation.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Restarts {
    /// When the last one was, and how long the pause behind it is.
    last: Option<(Time, u64)>,
    /// Attempts to open the ports that failed since they were open.
    failed: u32,
}

impl Restarts {
    /// None so far.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            last: None,
            failed: 0,
        }
    }

    /// The ports look stuck: whether they are to be reopened now, which counts as done then.
    #[must_use]
    pub fn begin(&mut self, now: Time, pauses: &Pauses) -> bool {
        let pause = match self.last {
            Some((at, pause)) if now.since(at) < pause => return false,
            Some((at, pause)) if now.since(at) < pauses.longest_restart.saturating_mul(2) => {
                pause.saturating_mul(2).min(pauses.longest_restart)
            }
            _ => pauses.restart,
        };
        self.last = Some((now, pause));
        true
    }

    /// The ports could not be opened: time until the next attempt.
    #[must_use]
    pub fn failed(&mut self, pauses: &Pauses) -> u64 {
        let doubled = 1u64
            .checked_shl(self.failed)
            .map_or(u64::MAX, |n| pauses.retry.saturating_mul(n));
        self.failed = self.failed.saturating_add(1);
        doubled.min(pauses.longest_retry)
    }

    /// Whether opening has failed and is to be tried again.
    #[must_use]
    pub const fn is_failing(&self) -> bool {
        self.failed != 0
    }

    /// The ports are open, or not wanted.
    pub fn settled(&mut self) {
        self.failed = 0;
    }
}
