// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Location of a lent function's MSI-X table.
//!
//! The borrower's kernel maps the table at the location in the capability, and stores addresses
//! there that the lender has chosen. The location is therefore read once, and later reads return
//! the same values. A malicious lender could otherwise make the kernel store to another location.

use super::Layout;
use wire::pci::{Bar, Register, BARS};

const ID: u16 = 0x11;
/// Offsets of the control register, the table location, the pending bits' location and the end in
/// the capability.
const CONTROL: u16 = 2;
const TABLE: u16 = 4;
const PENDING: u16 = 8;
const END: u16 = 12;
/// Bits of the control register that contain the number of vectors minus 1.
const SIZE: u32 = 0x7ff;
/// Size of a vector's table entry in bytes.
const ENTRY: u64 = 16;

/// Number of vectors, and locations of the table and the pending bits, as read once at the start of
/// a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Msix {
    at: u16,
    size: u32,
    table: u32,
    pending: u32,
}

/// Error if the table or the pending bits are not in a BAR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotInBar;

impl Msix {
    /// Reads the capability by `dword`, which is called with offsets in configuration space that
    /// are multiples of 4. Returns `None` if the function has no MSI-X.
    ///
    /// # Errors
    ///
    /// Returns an error if the table or the pending bits exceed their BAR.
    pub fn read(
        layout: &Layout,
        bars: &[Option<Bar>; BARS],
        mut dword: impl FnMut(u16) -> u32,
    ) -> Result<Option<Self>, NotInBar> {
        let mut all = layout.capabilities().iter();
        let Some(capability) = all.find(|c| c.id == ID && !c.is_extended() && c.shown.is_some())
        else {
            return Ok(None);
        };
        let at = capability.at;
        let size = (dword(at) >> 16) & SIZE;
        let this = Self {
            at,
            size,
            table: dword(at + TABLE),
            pending: dword(at + PENDING),
        };
        let vectors = u64::from(size) + 1;
        let inside = |location: u32, bytes: u64| {
            let bar = bars.get((location & 7) as usize).copied().flatten();
            bar.is_some_and(|bar| u64::from(location & !7) + bytes <= bar.bytes())
        };
        if inside(this.table, vectors * ENTRY) && inside(this.pending, vectors.div_ceil(64) * 8) {
            Ok(Some(this))
        } else {
            Err(NotInBar)
        }
    }

    /// Returns the number of vectors.
    #[must_use]
    pub const fn vectors(&self) -> u32 {
        self.size + 1
    }

    /// Returns the value of a register for the borrower's kernel, where `value` was read from the
    /// function.
    #[must_use]
    pub fn seen(&self, register: Register, value: u32) -> u32 {
        let mut bytes = value.to_le_bytes();
        let fixed = |at: u16| {
            let byte =
                |word: u32, from: u16| word.to_le_bytes().get(usize::from(at - from)).copied();
            match at {
                CONTROL => Some((self.size as u8, 0xff)),
                3 => Some(((self.size >> 8) as u8, (SIZE >> 8) as u8)),
                TABLE..PENDING => byte(self.table, TABLE).map(|b| (b, 0xff)),
                PENDING..END => byte(self.pending, PENDING).map(|b| (b, 0xff)),
                _ => None,
            }
        };
        for (to, i) in bytes.iter_mut().zip(0..u16::from(register.size())) {
            let at = (register.offset() + i).checked_sub(self.at);
            if let Some((byte, mask)) = at.and_then(fixed) {
                *to = (*to & !mask) | (byte & mask);
            }
        }
        u32::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSIX: Msix = Msix {
        at: 0x40,
        size: 0x105,
        table: 0x2003,
        pending: 0x3003,
    };

    fn seen(offset: u16, size: u8, value: u32) -> u32 {
        MSIX.seen(Register::new(offset, size).unwrap(), value)
    }

    #[test]
    fn what_was_seen_once_stays() {
        assert_eq!(seen(0x44, 4, 0x3fff_fff8), 0x2003);
        assert_eq!(seen(0x48, 4, 0), 0x3003);
        assert_eq!(seen(0x45, 1, 0xff), 0x20);
        assert_eq!(seen(0x4a, 2, 0xffff), 0);
        // Enable and mask bits come from the function.
        assert_eq!(seen(0x40, 4, 0xffff_0011), 0xf905_0011);
        assert_eq!(seen(0x42, 2, 0xc7ff), 0xc105);
        assert_eq!(seen(0x43, 1, 0x80), 0x81);
        for offset in [0x3c, 0x4c] {
            assert_eq!(seen(offset, 4, 0x1234_5678), 0x1234_5678);
        }
    }
}
