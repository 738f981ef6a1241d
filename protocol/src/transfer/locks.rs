// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Numbers of locks.

/// Lock numbers for operations that change nothing: an answer names its number only, so no number
/// is used again while an answer with it may come.
#[derive(Clone, Debug, Default)]
pub struct LockNumbers {
    next: u32,
}

impl LockNumbers {
    /// Numbers that every NIC has for a VPID (HW §10.6).
    pub const COUNT: u32 = 16;

    /// The next number, cyclically, whose bit in `used` is clear; `None` if there is none.
    pub fn take(&mut self, used: u16) -> Option<u32> {
        let number = (self.next..)
            .take(Self::COUNT as usize)
            .map(|n| n % Self::COUNT)
            .find(|n| used & (1 << n) == 0)?;
        self.next = (number + 1) % Self::COUNT;
        Some(number)
    }
}
