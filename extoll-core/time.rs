// SPDX-License-Identifier: GPL-2.0-only

//! The clock of the state machines in `wire`: jiffies, as points in time that can't be taken from each other
//! the wrong way round.

use kernel::{
    sync::atomic::{Atomic, Relaxed},
    time::msecs_to_jiffies,
};
use kernel_ext::net::jiffies64;
use wire::time::Time;

/// Now. Any context.
#[inline]
pub(crate) fn now() -> Time {
    Time(jiffies64())
}

/// `ms` milliseconds in ticks of [`now`].
#[inline]
pub(crate) fn ticks(ms: u32) -> u64 {
    msecs_to_jiffies(ms) as u64
}

/// A [`Time`] that any context may read and change.
pub struct AtomicTime(Atomic<u64>);

impl AtomicTime {
    /// Noted at first.
    pub fn new(at: Time) -> Self {
        Self(Atomic::new(at.0))
    }

    /// The time noted last. Any context.
    #[inline]
    pub fn load(&self) -> Time {
        Time(self.0.load(Relaxed))
    }

    /// Notes a time. Any context.
    #[inline]
    pub fn store(&self, at: Time) {
        self.0.store(at.0, Relaxed);
    }
}
