// SPDX-License-Identifier: GPL-2.0-only

//! Clock of the state machines in `wire`: jiffies as [`Time`], whose differences cannot be
//! negative. This file also contains the factor by which time-outs are extended in slow guests. No
//! locks; any context.

use kernel::{
    sync::atomic::{Atomic, Relaxed},
    time::msecs_to_jiffies,
};
use kernel_ext::net::jiffies64;
use protocol::Time;

/// Returns the current time. Any context.
#[inline]
pub(crate) fn now() -> Time {
    Time(jiffies64())
}

/// Converts `ms` milliseconds to ticks of [`now`].
#[inline]
pub(crate) fn ticks(ms: u32) -> u64 {
    msecs_to_jiffies(ms) as u64
}

/// Factor by which [`patience`] multiplies.
static SLOW: Atomic<u32> = Atomic::new(1);

/// Sets the factor of [`patience`] for all modules. The module entry calls this function before a
/// NIC is bound.
pub fn set_slow(factor: u32) {
    SLOW.store(factor, Relaxed);
}

/// Returns `ms` milliseconds, multiplied by the module parameter `slow`.
///
/// This is for time-outs after which a peer or the NIC counts as stalled. In slow guests the host
/// may suspend an emulated CPU for longer than such a time-out. Pauses between polls and limits of
/// busy waiting are not multiplied. Any context.
#[inline]
pub fn patience(ms: u32) -> u32 {
    ms.saturating_mul(SLOW.load(Relaxed))
}

/// Atomic [`Time`].
pub struct AtomicTime(Atomic<u64>);

impl AtomicTime {
    /// Makes an atomic time with the value `at`.
    pub fn new(at: Time) -> Self {
        Self(Atomic::new(at.0))
    }

    /// Returns the stored time. Any context.
    #[inline]
    pub fn load(&self) -> Time {
        Time(self.0.load(Relaxed))
    }

    /// Stores a time. Any context.
    #[inline]
    pub fn store(&self, at: Time) {
        self.0.store(at.0, Relaxed);
    }
}
