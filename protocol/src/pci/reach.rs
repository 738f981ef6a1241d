// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Bus addresses at the lender that lead into memory of the borrower.

/// Maximum number of interrupt vectors of a lease, which is the maximum of MSI-X.
pub const VECTORS: u32 = 2048;

/// Window in the lender's NIC. An access of the device to an address in the window reaches the same
/// offset of the borrower's target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    base: u64,
    bytes: u64,
}

impl Reach {
    /// Returns the window of `bytes` bytes at bus address `base` of the lender. Returns `None` if
    /// `bytes` is 0 or the end exceeds 64 bits.
    #[must_use]
    pub const fn new(base: u64, bytes: u64) -> Option<Self> {
        match base.checked_add(bytes) {
            Some(_) if bytes != 0 => Some(Self { base, bytes }),
            _ => None,
        }
    }

    /// Returns the bus address of the window's first byte at the lender.
    #[must_use]
    pub const fn base(self) -> u64 {
        self.base
    }

    /// Returns the size of the window in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the bus address of `len` bytes at `offset`; `None` if they exceed the window.
    #[must_use]
    pub const fn address(self, offset: u64, len: u64) -> Option<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes => Some(self.base + offset),
            _ => None,
        }
    }

    /// Returns the offset of `len` bytes at bus address `address`; `None` if they exceed the
    /// window.
    #[must_use]
    pub const fn offset(self, address: u64, len: u64) -> Option<u64> {
        match address.checked_sub(self.base) {
            Some(offset) if self.address(offset, len).is_some() => Some(offset),
            _ => None,
        }
    }

    /// Returns address and data of the message for an interrupt vector, if this is the interrupt
    /// window. Returns `None` for vectors from [`VECTORS`] on. All vectors share one address,
    /// because multi-message MSI requires this. The borrower's NIC reports neither address nor data
    /// (G26).
    #[must_use]
    pub const fn message(self, vector: u32) -> Option<(u64, u32)> {
        if vector < VECTORS && self.bytes >= 4 {
            Some((self.base, vector))
        } else {
            None
        }
    }
}
