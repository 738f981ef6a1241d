// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Allocation of lock numbers.

/// Allocator of lock numbers for operations that do not change a lock. An answer contains only the
/// lock number, so a number is not reused while an answer with this number may arrive.
#[derive(Clone, Debug, Default)]
pub struct LockNumbers {
    next: u32,
}

impl LockNumbers {
    /// Number of locks that every NIC has for a VPID (HW §10.6).
    pub const COUNT: u32 = 16;

    /// Returns the next number, cyclically, whose bit in `used` is clear; `None` if all bits are
    /// set.
    pub fn take(&mut self, used: u16) -> Option<u32> {
        let number = (self.next..)
            .take(Self::COUNT as usize)
            .map(|n| n % Self::COUNT)
            .find(|n| used & (1 << n) == 0)?;
        self.next = (number + 1) % Self::COUNT;
        Some(number)
    }
}
