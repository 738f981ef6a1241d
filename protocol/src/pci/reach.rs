// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Addresses at the lender that lead into memory of the borrower.

/// Vectors of a lease at most: MSI-X has no more.
pub const VECTORS: u32 = 2048;

/// A window of the lender's NIC: what a device stores to or loads from an address in it arrives in
/// the borrower at the same offset of what is open there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    base: u64,
    bytes: u64,
}

impl Reach {
    /// The window of `bytes` bytes at bus address `base` of the lender; `None` if there is none, or
    /// it does not end within 64 bits.
    #[must_use]
    pub const fn new(base: u64, bytes: u64) -> Option<Self> {
        match base.checked_add(bytes) {
            Some(_) if bytes != 0 => Some(Self { base, bytes }),
            _ => None,
        }
    }

    /// Bus address at the lender of the first byte.
    #[must_use]
    pub const fn base(self) -> u64 {
        self.base
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Where the device finds `len` bytes at an offset; `None` if they are not all inside.
    #[must_use]
    pub const fn address(self, offset: u64, len: u64) -> Option<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes => Some(self.base + offset),
            _ => None,
        }
    }

    /// The offset of `len` bytes that the device finds there; `None` if they are not all inside.
    #[must_use]
    pub const fn offset(self, address: u64, len: u64) -> Option<u64> {
        match address.checked_sub(self.base) {
            Some(offset) if self.address(offset, len).is_some() => Some(offset),
            _ => None,
        }
    }

    /// Address and data of the message of an interrupt vector, if this is the window for
    /// interrupts; `None` from [`VECTORS`] on. All vectors have the same address, so that those
    /// of MSI can be several. The borrower's NIC tells neither address nor data (G26).
    #[must_use]
    pub const fn message(self, vector: u32) -> Option<(u64, u32)> {
        if vector < VECTORS && self.bytes >= 4 {
            Some((self.base, vector))
        } else {
            None
        }
    }
}
