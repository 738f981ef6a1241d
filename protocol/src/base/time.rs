// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Time as the state machines know it: they have no clock, whoever drives them tells it.

/// A point in time, in ticks of the caller's choice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// Ticks from `then` to here; none if `then` is later: processors look at the clock one after the
    /// other, and take what it said to the machine in another order.
    #[inline]
    #[must_use]
    pub const fn since(self, then: Time) -> u64 {
        self.0.saturating_sub(then.0)
    }

    /// The point so many ticks later; the last there is if that is beyond it.
    #[inline]
    #[must_use]
    pub const fn after(self, ticks: u64) -> Time {
        Time(self.0.saturating_add(ticks))
    }
}
