// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Layout of the SMFU window and its intervals (HW §12).

use crate::ids::BusAddr;
use crate::quirks;
use crate::regs::smfu::INTERVALS;

/// Granularity of intervals in bytes.
pub const PAGE: u64 = 4096;
/// Number of intervals that software configures. Interval 0 is included (HW §3.6). It leads to the
/// register files of remote nodes.
pub const USABLE: u32 = INTERVALS - 1;

/// Range `start..end` of byte offsets in the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
}

impl Span {
    /// Returns whether the two ranges overlap.
    #[must_use]
    pub const fn meets(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Returns the size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// Base address of an interval while no memory is mapped into it (G18).
pub const UNMAPPED_BASE: BusAddr = BusAddr(quirks::UNMAPPED_ADDRESS);
