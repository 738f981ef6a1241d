// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What the lender makes of an access to a configuration register.
//!
//! A borrower may write what its kernel needs to run the function: command bits, power states, MSI,
//! MSI-X, some bits of PCI Express. It never writes BARs or whatever moves the function elsewhere, and MSI
//! addresses lead into its window for interrupts. (The table of MSI-X is in a BAR, which the borrower
//! writes past the lender: only an IOMMU bounds what a function does with it, or with DMA.)

use super::super::{lender::Write, Reach};
use super::{command, Layout, Shown, BAR, BARS_END, COMMAND, EXTENDED, HEADER, HEADER_END, ROM};
use wire::pci::Register;

/// What is to be done with an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The register may be read.
    Read,
    /// This may be written, to [`Filter::place`].
    Write(Write),
    /// Nothing.
    Denied,
}

/// Bits of four bytes that may be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Rule {
    /// Bits that get what is written.
    write: u32,
    /// Bits that are cleared by writing ones.
    clear: u32,
    /// Bits that are always written as ones.
    force: u32,
}

/// What has to be known of a lease for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    interrupts: Option<Reach>,
    /// Both halves of MSI's address have been written since the last reset, and lead into the window.
    low: bool,
    high: bool,
}

impl Filter {
    /// With the window for interrupts; without one no interrupts can be enabled.
    #[must_use]
    pub const fn new(interrupts: Option<Reach>) -> Self {
        Self {
            interrupts,
            low: false,
            high: false,
        }
    }

    /// The function has been reset.
    pub fn reset(&mut self) {
        self.low = false;
        self.high = false;
    }

    /// Whether a register may be read: those that tell where something is in the lender may not. That
    /// are BARs, and what is in hidden capabilities behind their first four bytes (BARs of virtual
    /// functions, headers of packets that failed), which lead to the next one. Of the extended
    /// registers those of no capability may not either, as nobody knows what they are.
    #[must_use]
    pub fn read(&self, layout: &Layout, register: Register) -> Verdict {
        let dword = register.dword();
        let allowed = match dword {
            BAR..BARS_END | ROM => false,
            // There may be no list at all.
            EXTENDED => true,
            _ => match layout.at(dword) {
                Some(c) => c.shown.is_some() || dword == c.at,
                None => dword < EXTENDED,
            },
        };
        match allowed {
            true => Verdict::Read,
            false => Verdict::Denied,
        }
    }

    /// The register that is written in place of another one: what [`Verdict::Write`] has is of that. The
    /// first byte of command is written with the second one, in which interrupts by a pin are
    /// disabled. Others are written themselves.
    #[must_use]
    pub fn place(register: Register) -> Register {
        match (register.offset(), register.size()) {
            (COMMAND, 1) => Register::new(COMMAND, 2).unwrap_or(register),
            _ => register,
        }
    }

    /// Whether a value may be written to a register, and what of it. Nothing has been written by that:
    /// [`Filter::made`] is to be called when it has.
    #[must_use]
    pub fn write(&self, layout: &Layout, register: Register, value: u32) -> Verdict {
        let (dword, shift) = (register.dword(), register.shift());
        // What the borrower writes, and what is accessed for that.
        let field = register.ones() << shift;
        let place = Self::place(register).ones() << shift;
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
        let force = rule.force & place;
        let bits = value & (write | clear) | force;
        Verdict::Write(Write {
            value: bits >> shift,
            keep: (place & !(write | clear | force)) >> shift,
        })
    }

    /// A write that was allowed has been made to this register.
    pub fn made(&mut self, layout: &Layout, register: Register) {
        let dword = register.dword();
        let capability = layout.at(dword);
        match capability.and_then(|c| Some((c.shown?, dword - c.at))) {
            // These are written as a whole only.
            Some((Shown::Msi { .. }, 4)) => self.low = true,
            Some((Shown::Msi { wide: true, .. }, 8)) => self.high = true,
            _ => {}
        }
    }

    /// What of four bytes of a capability may be written.
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
            (Shown::Power, 4) => rule(if layout.keeps() { 3 } else { 0 }, 1 << 15),
            // Enable, function mask.
            (Shown::MsiX, 0) => rule(3 << 30, 0),
            // Relaxed ordering, extended tags, no snoop, size of reads; errors.
            (Shown::Express, 8) => rule(0x7910, 0xF << 16),
            (Shown::Msi { wide, .. }, 0) => {
                let enable = value & (1 << 16) != 0;
                if enable && !(self.low && (self.high || !wide && self.is_low())) {
                    return None;
                }
                // Enable, number of vectors.
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
            // Data, masks.
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

    /// Whether addresses of 32 bits reach the window.
    fn is_low(&self) -> bool {
        self.interrupts.is_some_and(|reach| reach.base() >> 32 == 0)
    }
}
