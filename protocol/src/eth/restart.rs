// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Pauses between restarts of ports that look stuck, and between attempts to open ports.
//!
//! A restart closes the ports and opens them again. The behaviour of peers decides whether a port
//! looks stuck (see [`super::stuck`]), so a malicious peer can cause restarts. A restart interrupts
//! the traffic with all other peers. Each pause is therefore twice the previous one.

use crate::Time;

/// Pauses in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pauses {
    /// Pause after the first restart.
    pub restart: u64,
    /// Maximum pause after a restart. After twice this time without a restart, the next pause is
    /// `restart` again.
    pub longest_restart: u64,
    /// Pause after the first failed attempt to open the ports.
    pub retry: u64,
    /// Maximum pause after a failed attempt.
    pub longest_retry: u64,
}

/// History of restarts and failed attempts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Restarts {
    /// Time of the last restart, and the pause after it in ticks.
    last: Option<(Time, u64)>,
    /// Number of failed attempts since the ports were last open.
    failed: u32,
}

impl Restarts {
    /// Creates an empty history.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            last: None,
            failed: 0,
        }
    }

    /// Returns true if ports that look stuck must be reopened now, and records the restart. Returns
    /// false during a pause.
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

    /// Records a failed attempt to open the ports. Returns the time until the next attempt in
    /// ticks.
    #[must_use]
    pub fn failed(&mut self, pauses: &Pauses) -> u64 {
        let doubled = 1u64
            .checked_shl(self.failed)
            .map_or(u64::MAX, |n| pauses.retry.saturating_mul(n));
        self.failed = self.failed.saturating_add(1);
        doubled.min(pauses.longest_retry)
    }

    /// Returns true if the last attempt to open the ports failed.
    #[must_use]
    pub const fn is_failing(&self) -> bool {
        self.failed != 0
    }

    /// Records that the ports are open, or that the interface was brought down.
    pub fn succeeded(&mut self) {
        self.failed = 0;
    }
}
