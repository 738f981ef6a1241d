// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The lender's rules for accesses to configuration registers.
//!
//! A borrower may write the registers that its kernel needs to operate the function: command bits,
//! power states, MSI, MSI-X, some bits of PCI Express. It may not write BARs or other registers
//! that change the function's addresses. MSI addresses must be in its interrupt window. The MSI-X
//! table is in a BAR, which the borrower writes without the lender. Therefore only an IOMMU limits
//! the addresses to which a function can write by MSI-X and DMA.

use super::super::{lender::Write, Reach};
use super::{command, Layout, Shown, BAR, BARS_END, COMMAND, EXTENDED, HEADER, HEADER_END, ROM};
use wire::pci::Register;

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The register may be read.
    Read,
    /// The value may be written, to the register [`Filter::accessed_register`].
    Write(Write),
    /// The access is denied.
    Denied,
}

/// Writable bits of a 32-bit register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Rule {
    /// Bits that receive the written value.
    write: u32,
    /// Bits that are cleared by writing ones.
    clear: u32,
    /// Bits that are always written as ones.
    force: u32,
}

/// Access rules of a lease, and the state of MSI's address on which they depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    interrupts: Option<Reach>,
    /// True if the lower half of MSI's address was written since the last reset, with an address in
    /// the window.
    low: bool,
    /// True if the upper half of MSI's address was written since the last reset, with an address in
    /// the window.
    high: bool,
}

impl Filter {
    /// Creates the rules of a lease. `interrupts` is the interrupt window. If it is `None`,
    /// interrupts cannot be enabled.
    #[must_use]
    pub const fn new(interrupts: Option<Reach>) -> Self {
        Self {
            interrupts,
            low: false,
            high: false,
        }
    }

    /// Reports a reset of the function.
    pub fn reset(&mut self) {
        self.low = false;
        self.high = false;
    }

    /// Checks a read. Registers that reveal addresses at the lender are denied. These are BARs, and
    /// hidden capabilities except their first four bytes, which link to the next capability. Hidden
    /// capabilities contain BARs of virtual functions and headers of failed packets, for example.
    /// Extended registers outside of capabilities are denied too, because their meaning is unknown.
    #[must_use]
    pub fn read(&self, layout: &Layout, register: Register) -> Verdict {
        let dword = register.dword();
        let allowed = match dword {
            BAR..BARS_END | ROM => false,
            // Permit the header at the start of the extended registers, even if there is no
            // extended capability.
            EXTENDED => true,
            _ => match layout.at(dword) {
                Some(c) => c.shown.is_some() || dword == c.at,
                None => dword < EXTENDED,
            },
        };
        if allowed {
            Verdict::Read
        } else {
            Verdict::Denied
        }
    }

    /// Returns the register that is accessed for a write, to which [`Verdict::Write`] applies. A
    /// write to the first byte of the command register includes its second byte, which disables the
    /// interrupt pin. All other registers are returned unchanged.
    #[must_use]
    pub fn accessed_register(register: Register) -> Register {
        match (register.offset(), register.size()) {
            (COMMAND, 1) => Register::new(COMMAND, 2).unwrap_or(register),
            _ => register,
        }
    }

    /// Checks a write. Returns the bits that are written. The caller reports an executed write by
    /// [`Filter::executed`].
    #[must_use]
    pub fn write(&self, layout: &Layout, register: Register, value: u32) -> Verdict {
        let (dword, shift) = (register.dword(), register.shift());
        // `field` contains the bits that the borrower writes, and `accessed` the bits of the
        // register that is accessed.
        let field = register.ones() << shift;
        let accessed = Self::accessed_register(register).ones() << shift;
        let value = (value << shift) & field;
        let rule = match dword {
            COMMAND => Rule {
                write: command::MEMORY | command::MASTER | command::PARITY | command::SERR,
                clear: command::ERRORS,
                force: command::NO_PIN,
            },
            HEADER => Rule {
                write: 0xFFFF,
                ..Rule::default()
            },
            0..HEADER_END => Rule::default(),
            _ => match self.capability(layout, register, value) {
                Some(rule) => rule,
                None => return Verdict::Denied,
            },
        };
        let (write, clear) = (rule.write & field, rule.clear & field);
        if write | clear == 0 {
            return Verdict::Denied;
        }
        let force = rule.force & accessed;
        let bits = value & (write | clear) | force;
        Verdict::Write(Write {
            value: bits >> shift,
            keep: (accessed & !(write | clear | force)) >> shift,
        })
    }

    /// Reports an executed write to this register.
    pub fn executed(&mut self, layout: &Layout, register: Register) {
        let dword = register.dword();
        let capability = layout.at(dword);
        match capability.and_then(|c| Some((c.shown?, dword - c.at))) {
            // The rules allow only 4-byte writes to these registers.
            Some((Shown::Msi { .. }, 4)) => self.low = true,
            Some((Shown::Msi { wide: true, .. }, 8)) => self.high = true,
            _ => {}
        }
    }

    /// Returns the writable bits of a 32-bit register of a capability; `None` to deny the write.
    fn capability(&self, layout: &Layout, register: Register, value: u32) -> Option<Rule> {
        let dword = register.dword();
        let capability = layout.at(dword)?;
        let whole = register.size() == 4;
        let rule = |write, clear| Rule {
            write,
            clear,
            force: 0,
        };
        Some(match (capability.shown?, dword - capability.at) {
            (Shown::Power, 4) => rule(if layout.has_no_soft_reset() { 3 } else { 0 }, 1 << 15),
            // Writable bits: enable, function mask.
            (Shown::MsiX, 0) => rule(3 << 30, 0),
            // Writable bits: relaxed ordering, extended tags, no snoop, read request size. Error
            // bits are cleared by writing ones.
            (Shown::Express, 8) => rule(0x7910, 0xF << 16),
            (Shown::Msi { wide, .. }, 0) => {
                let enable = value & (1 << 16) != 0;
                if enable && !(self.low && (self.high || !wide && self.is_low())) {
                    return None;
                }
                // Writable bits: enable, number of vectors.
                rule(0x71 << 16, 0)
            }
            (Shown::Msi { .. }, 4) => {
                let reach = self.interrupts.filter(|_| whole)?;
                let high = reach.base() & !0xFFFF_FFFF;
                reach.offset(high | u64::from(value), 4)?;
                rule(u32::MAX, 0)
            }
            (Shown::Msi { wide: true, .. }, 8) => {
                let reach = self.interrupts.filter(|_| whole)?;
                if reach.base() >> 32 != value.into() {
                    return None;
                }
                rule(u32::MAX, 0)
            }
            // The message data are writable.
            (Shown::Msi { wide: false, .. }, 8) | (Shown::Msi { wide: true, .. }, 12) => {
                rule(0xFFFF, 0)
            }
            (Shown::Msi { wide, masks: true }, 12 | 16)
                if (dword - capability.at == 16) == wide =>
            {
                rule(u32::MAX, 0)
            }
            _ => return None,
        })
    }

    /// Returns true if the interrupt window is below 4 GiB.
    fn is_low(&self) -> bool {
        self.interrupts.is_some_and(|reach| reach.base() >> 32 == 0)
    }
}
