// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Time for state machines. State machines have no clock. Their caller passes the time.

/// A point in time, in ticks of the caller's choice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// Returns the ticks from `then` to this time, or 0 if `then` is later. A later `then` is
    /// possible because two CPUs may read the clock in one order and call the state machine in the
    /// other order.
    #[inline]
    #[must_use]
    pub const fn since(self, then: Time) -> u64 {
        self.0.saturating_sub(then.0)
    }

    /// Returns the time that is the given number of ticks later, saturating at the maximum.
    #[inline]
    #[must_use]
    pub const fn after(self, ticks: u64) -> Time {
        Time(self.0.saturating_add(ticks))
    }
}
