// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Use of the SMFU window: intervals (HW §12).

use crate::ids::BusAddr;
use crate::regs::smfu::INTERVALS;

/// Granularity of intervals in bytes.
pub const PAGE: u64 = 4096;
/// Intervals that software sets up (HW §3.6); number 0 leads to remote register files.
pub const USABLE: u32 = INTERVALS - 1;

/// Addresses `start..end` as offsets in the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
}

impl Span {
    /// Whether both have a byte in common.
    #[must_use]
    pub const fn meets(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// Where accesses go that nothing is opened for: 90 TiB, where no machine has memory or devices.
/// Base 0 may be the beginning of all memory, or mean the default (G18).
pub const NOWHERE: BusAddr = BusAddr(0x5A00_0000_0000);
