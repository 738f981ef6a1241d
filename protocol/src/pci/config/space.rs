// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Configuration registers of a lent function as the borrower's kernel sees them.

use super::{
    command, merge, Layout, Shown, BAR, BARS_END, COMMAND, EXTENDED, HEADER, INTERRUPT, POINTER,
    ROM,
};
use wire::pci::{Bar, Register, BARS};

/// Source of a register's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// The register has this value.
    Value(u32),
    /// The lender reads the register, and [`Space::seen`] converts its value.
    Ask,
}

/// Effect of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// The write is complete.
    Done,
    /// The lender writes this value to this register.
    Ask(Register, u32),
    /// The function is reset.
    Reset,
}

/// Bit in the device control of PCI Express that starts a function level reset.
const EXPRESS_RESET: u32 = 1 << 15;
/// Bit in the control register of Advanced Features that starts a function level reset.
const ADVANCED_RESET: u32 = 1;

/// Bit in the power management's control and status register: the function keeps its state in
/// D3hot.
const NO_SOFT_RESET: u32 = 1 << 3;

/// Registers of one function. The caller serializes accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    layout: Layout,
    bars: [Option<Bar>; BARS],
    /// Values of the BAR registers without the bits for kind and size.
    addresses: [u32; BARS],
    /// Bus addresses of the windows that lead to the device.
    assigned: [u64; BARS],
    line: u8,
}

impl Space {
    /// Creates the registers. The BARs are at the bus addresses `at` of the borrower, at which
    /// windows lead to the device. Each address is a multiple of its BAR's size. Addresses of
    /// missing BARs are ignored.
    #[must_use]
    pub fn new(layout: &Layout, bars: &[Option<Bar>; BARS], at: &[u64; BARS]) -> Self {
        let mut space = Self {
            layout: *layout,
            bars: *bars,
            addresses: [0; BARS],
            assigned: *at,
            line: 0,
        };
        for (i, (bar, at)) in bars.iter().zip(at).enumerate() {
            if let Some(bar) = bar {
                space.set(i, *at as u32);
                if bar.is_64bit {
                    space.set(i + 1, (*at >> 32) as u32);
                }
            }
        }
        space
    }

    /// Returns the BAR to which a BAR register belongs, with true for its upper half.
    fn bar(&self, i: usize) -> Option<(Bar, bool)> {
        let own = self.bars.get(i).copied().flatten().map(|bar| (bar, false));
        let below = i.checked_sub(1).and_then(|i| self.bars.get(i).copied());
        let below = below.flatten().filter(|bar| bar.is_64bit);
        own.or(below.map(|bar| (bar, true)))
    }

    /// Returns a mask of the address bits of a BAR register, and the value of its other bits.
    fn form(&self, i: usize) -> (u32, u32) {
        match self.bar(i) {
            None => (0, 0),
            Some((bar, upper)) => {
                let mask = !(bar.bytes() - 1);
                let kind = ((bar.is_64bit as u32) << 2) | ((bar.prefetchable as u32) << 3);
                if upper {
                    ((mask >> 32) as u32, 0)
                } else {
                    (mask as u32, kind)
                }
            }
        }
    }

    fn set(&mut self, i: usize, value: u32) {
        let (mask, _) = self.form(i);
        if let Some(address) = self.addresses.get_mut(i) {
            *address = value & mask;
        }
    }

    /// Returns the address that was last written to a BAR.
    #[must_use]
    pub fn address(&self, i: usize) -> Option<u64> {
        let bar = self.bars.get(i).copied().flatten()?;
        let low = u64::from(*self.addresses.get(i)?);
        let high = if bar.is_64bit {
            u64::from(*self.addresses.get(i + 1)?)
        } else {
            0
        };
        Some((high << 32) | low)
    }

    /// Returns a mask of the bits whose values do not come from the device, and their values.
    fn own(&self, dword: u16) -> (u32, u32) {
        const ALL: u32 = u32::MAX;
        match dword {
            COMMAND => {
                let none = self.layout.first() == 0;
                let list = if none { command::CAPABILITIES } else { 0 };
                (command::IO | list, 0)
            }
            // Report a single function and no self test.
            HEADER => (0xFF80_0000, 0),
            BAR..BARS_END => {
                let i = usize::from((dword - BAR) / 4);
                let address = self.addresses.get(i).copied().unwrap_or(0);
                (ALL, address | self.form(i).1)
            }
            ROM => (ALL, 0),
            POINTER => (ALL, self.layout.first().into()),
            // Report no interrupt pin.
            INTERRUPT => (0xFFFF, self.line.into()),
            _ => match self.layout.at(dword) {
                Some(c) if c.shown.is_some() && dword == c.at => {
                    if c.is_extended() {
                        (0xFFF0_0000, u32::from(c.next) << 20)
                    } else {
                        (0xFF00, u32::from(c.next) << 8)
                    }
                }
                // The lender denies D3hot if it would reset the function. Set the bit, so that the
                // kernel does not use D3hot as a reset method.
                Some(c) if c.shown == Some(Shown::Power) && dword == c.at + 4 => {
                    (NO_SOFT_RESET, NO_SOFT_RESET)
                }
                Some(c) if c.shown.is_some() => (0, 0),
                // If the capability at 0x100 is hidden, an empty header links to the first visible
                // capability.
                Some(_) | None if dword == EXTENDED => {
                    (ALL, u32::from(self.layout.first_extended()) << 20)
                }
                Some(_) => (ALL, 0),
                None if dword > EXTENDED => (ALL, 0),
                None => (0, 0),
            },
        }
    }

    /// Returns the source of a register's value.
    #[must_use]
    pub fn read(&self, register: Register) -> Read {
        let (mask, value) = self.own(register.dword());
        let field = register.ones() << register.shift();
        if mask & field == field {
            Read::Value((value >> register.shift()) & register.ones())
        } else {
            Read::Ask
        }
    }

    /// Returns the value that the kernel sees in a register whose value the lender has read. A
    /// value of all ones, which a failed read returns, remains unchanged.
    #[must_use]
    pub fn seen(&self, register: Register, value: u32) -> u32 {
        let ones = register.ones();
        let (mask, own) = self.own(register.dword());
        let shift = register.shift();
        if value & ones == ones && register.size() > 1 {
            return ones;
        }
        merge(value, own >> shift, mask >> shift) & ones
    }

    /// Applies a write of the kernel and returns its effect.
    #[must_use]
    pub fn write(&mut self, register: Register, value: u32) -> Written {
        let (dword, shift) = (register.dword(), register.shift());
        let field = register.ones() << shift;
        let bits = (value << shift) & field;
        match dword {
            BAR..BARS_END => {
                let i = usize::from((dword - BAR) / 4);
                let old = self.addresses.get(i).copied().unwrap_or(0);
                self.set(i, merge(old, bits, field));
                return Written::Done;
            }
            INTERRUPT => {
                self.line = merge(self.line.into(), bits, field & 0xFF) as u8;
                return Written::Done;
            }
            _ => {}
        }
        let (mask, _) = self.own(dword);
        if mask & field == field {
            return Written::Done;
        }
        let capability = self
            .layout
            .at(dword)
            .and_then(|c| Some((c.shown?, dword - c.at)));
        let reset = match capability {
            Some((Shown::Express, 8)) => bits & EXPRESS_RESET != 0,
            Some((Shown::Advanced, 4)) => bits & ADVANCED_RESET != 0,
            _ => false,
        };
        if reset {
            return Written::Reset;
        }
        Written::Ask(register, value & register.ones() & !(mask >> shift))
    }
}
