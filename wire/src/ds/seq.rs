// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Places in a stream.

/// A place in a stream: bytes since its beginning, and then the end, counted from a random number
/// modulo 2^32. No two places that are compared are 2^31 or more apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// The place `n` bytes later.
    #[inline]
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// Bytes from `earlier` to here, modulo 2^32.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Bytes from `other` to here, negative if it is later.
    #[inline]
    #[must_use]
    pub const fn distance(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Whether this place is before `other`.
    #[inline]
    #[must_use]
    pub const fn before(self, other: Self) -> bool {
        self.distance(other) < 0
    }

    /// The earlier of two places.
    #[inline]
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        if other.before(self) {
            other
        } else {
            self
        }
    }

    /// The later of two places.
    #[inline]
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if self.before(other) {
            other
        } else {
            self
        }
    }
}
