// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The registers of a lent function as the borrower's kernel sees them.

use super::{
    command, merge, Layout, Shown, BAR, BARS_END, COMMAND, EXTENDED, HEADER, INTERRUPT, POINTER,
    ROM,
};
use wire::pci::{Bar, Register, BARS};

/// How a register is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// This is what it has.
    Value(u32),
    /// The lender is to be asked; what it says goes through [`Space::seen`].
    Ask,
}

/// What becomes of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// Nothing more.
    Done,
    /// This is to be written by the lender.
    Ask(Register, u32),
    /// The function is to be reset.
    Reset,
}

/// Enables the reset of a PCI Express function.
const EXPRESS_RESET: u32 = 1 << 15;
/// The same of one that is not.
const ADVANCED_RESET: u32 = 1;

/// Of power management, in its second four bytes: the function is not reset by going to D3hot.
const NO_SOFT_RESET: u32 = 1 << 3;

/// See the module's documentation. Has no locks: its owner keeps accesses apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    layout: Layout,
    bars: [Option<Bar>; BARS],
    /// What BAR registers have, but for the bits that say what they are.
    addresses: [u32; BARS],
    /// Bus addresses that lead to the device.
    assigned: [u64; BARS],
    line: u8,
}

impl Space {
    /// With BARs at these bus addresses of the borrower, each a multiple of its size: windows lead
    /// from there to the device. Those of BARs that are not there are ignored.
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
                if bar.wide {
                    space.set(i + 1, (*at >> 32) as u32);
                }
            }
        }
        space
    }

    /// The BAR whose register this is, whether it is its upper half.
    fn bar(&self, i: usize) -> Option<(Bar, bool)> {
        let own = self.bars.get(i).copied().flatten().map(|bar| (bar, false));
        let below = i.checked_sub(1).and_then(|i| self.bars.get(i).copied());
        let below = below.flatten().filter(|bar| bar.wide);
        own.or(below.map(|bar| (bar, true)))
    }

    /// Bits of a BAR register that an address has, and what the others say.
    fn form(&self, i: usize) -> (u32, u32) {
        match self.bar(i) {
            None => (0, 0),
            Some((bar, upper)) => {
                let mask = !(bar.bytes() - 1);
                let kind = ((bar.wide as u32) << 2) | ((bar.prefetchable as u32) << 3);
                match upper {
                    true => ((mask >> 32) as u32, 0),
                    false => (mask as u32, kind),
                }
            }
        }
    }

    fn set(&mut self, i: usize, value: u32) {
        let (mask, _) = self.form(i);
        if let Some(place) = self.addresses.get_mut(i) {
            *place = value & mask;
        }
    }

    /// Where a BAR is, as it was written last.
    #[must_use]
    pub fn address(&self, i: usize) -> Option<u64> {
        let bar = self.bars.get(i).copied().flatten()?;
        let low = u64::from(*self.addresses.get(i)?);
        let high = match bar.wide {
            true => u64::from(*self.addresses.get(i + 1)?),
            false => 0,
        };
        Some((high << 32) | low)
    }

    /// Whether all BARs are where windows lead to the device.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let mut all = self.assigned.iter().enumerate();
        all.all(|(i, at)| self.address(i).is_none_or(|a| a == *at))
    }

    /// Bits of four bytes that are not the device's, and what they are.
    fn own(&self, dword: u16) -> (u32, u32) {
        const ALL: u32 = u32::MAX;
        match dword {
            COMMAND => {
                let none = self.layout.first() == 0;
                let list = if none { command::CAPABILITIES } else { 0 };
                (command::IO | list, 0)
            }
            // One function, no self test.
            HEADER => (0xFF80_0000, 0),
            BAR..BARS_END => {
                let i = usize::from((dword - BAR) / 4);
                let address = self.addresses.get(i).copied().unwrap_or(0);
                (ALL, address | self.form(i).1)
            }
            ROM => (ALL, 0),
            POINTER => (ALL, self.layout.first().into()),
            // No pin.
            INTERRUPT => (0xFFFF, self.line.into()),
            _ => match self.layout.at(dword) {
                Some(c) if c.shown.is_some() && dword == c.at => match c.is_extended() {
                    true => (0xFFF0_0000, u32::from(c.next) << 20),
                    false => (0xFF00, u32::from(c.next) << 8),
                },
                // The lender lets none go there that would be reset by that, so nobody may take it for
                // a way to reset the function.
                Some(c) if c.shown == Some(Shown::Power) && dword == c.at + 4 => {
                    (NO_SOFT_RESET, NO_SOFT_RESET)
                }
                Some(c) if c.shown.is_some() => (0, 0),
                // One that is not shown is nothing, but leads to those that are.
                Some(_) | None if dword == EXTENDED => {
                    (ALL, u32::from(self.layout.first_extended()) << 20)
                }
                Some(_) => (ALL, 0),
                None if dword > EXTENDED => (ALL, 0),
                None => (0, 0),
            },
        }
    }

    /// How a register is read.
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

    /// What the kernel sees of a register that the lender has read. All ones when nobody answers stay
    /// what they are.
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

    /// What becomes of a write.
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
