// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Positions in a stream.

/// Position in a stream, modulo 2^32. It is a random start value plus the number of bytes before
/// the position, where the end of the stream counts as one byte. Compared positions must be less
/// than 2^31 apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// Returns the position `n` bytes after this position.
    #[inline]
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// Returns the number of bytes from `earlier` to this position, modulo 2^32.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns the number of bytes from `other` to this position, negative if `other` is later.
    #[inline]
    #[must_use]
    pub const fn distance(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Returns whether this position is before `other`.
    #[inline]
    #[must_use]
    pub const fn before(self, other: Self) -> bool {
        self.distance(other) < 0
    }

    /// Returns the earlier of two positions.
    #[inline]
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        if other.before(self) {
            other
        } else {
            self
        }
    }

    /// Returns the later of two positions.
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
