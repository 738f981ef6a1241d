// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Configuration registers of a lent function, as a borrower may read and write them.
//!
//! * [`Layout`]: the capabilities of the function, and the selection of those that a borrower sees.
//!   Lender and borrower each read the layout once.
//! * [`Space`]: the registers as the borrower's kernel sees them, with the borrower's addresses in
//!   BARs.
//! * [`Filter`]: the lender's rules for accesses. The lender applies the rules to every request,
//!   because it does not trust the borrower.

mod filter;
mod layout;
mod msix;
mod space;

pub use filter::{Filter, Verdict};
pub use layout::{Capability, Layout, LayoutError, Shown};
pub use msix::{Msix, NotInBar};
pub use space::{Read, Space, Written};

/// Offset of the command (16 bits) and status registers.
pub(super) const COMMAND: u16 = 0x04;
/// Offset of cache line size, latency timer, header type, self test.
pub(super) const HEADER: u16 = 0x0C;
/// Offset of the first BAR.
pub(super) const BAR: u16 = 0x10;
/// First offset after the BARs.
pub(super) const BARS_END: u16 = 0x28;
/// Offset of the expansion ROM's BAR.
pub(super) const ROM: u16 = 0x30;
/// Offset of the pointer to the first capability.
pub(super) const POINTER: u16 = 0x34;
/// Offset of interrupt line and pin.
pub(super) const INTERRUPT: u16 = 0x3C;
/// First offset after the header.
pub(super) const HEADER_END: u16 = 0x40;
/// Offset of the first extended capability.
pub(super) const EXTENDED: u16 = 0x100;

/// Bits of the command and status registers, as 32 bits.
pub(super) mod command {
    /// Enables the decoding of I/O ports.
    pub(in super::super) const IO: u32 = 1 << 0;
    /// Enables the decoding of memory.
    pub(in super::super) const MEMORY: u32 = 1 << 1;
    /// Enables bus mastering.
    pub(in super::super) const MASTER: u32 = 1 << 2;
    /// Enables the response to parity errors.
    pub(in super::super) const PARITY: u32 = 1 << 6;
    /// Enables the report of system errors.
    pub(in super::super) const SERR: u32 = 1 << 8;
    /// Disables the interrupt pin.
    pub(in super::super) const NO_PIN: u32 = 1 << 10;
    /// Status bit: the function has capabilities.
    pub(in super::super) const CAPABILITIES: u32 = 1 << 20;
    /// Status bits for errors, which are cleared by writing ones.
    pub(in super::super) const ERRORS: u32 = 0xF900_0000;
}

/// Returns `old` with the bits in `mask` replaced by those of `value`.
pub(super) const fn merge(old: u32, value: u32, mask: u32) -> u32 {
    old & !mask | value & mask
}
