// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Identity, capabilities and BARs of a function that no host has enumerated.
//!
//! The function is not trusted. Impossible register values make [`describe`] fail with a reason.
//! Unknown capabilities are hidden from the borrower's kernel.

use crate::pci::config::{Layout, LayoutError, Shown, BAR, COMMAND};
use wire::pci::{Bar, Identity, Register, BARS};

/// Configuration cycles of a function. A result of `None` means that the cycle was not answered, or
/// was refused.
pub trait Cycles {
    /// Reads a register.
    fn read(&mut self, register: Register) -> Option<u32>;
    /// Writes a register.
    fn write(&mut self, register: Register, value: u32) -> Option<()>;
}

/// Reason for which a function cannot be borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FunctionError {
    /// The function does not answer.
    Gone,
    /// The header or the list of capabilities is invalid.
    Layout(LayoutError),
    /// The register of this BAR has a value that no BAR can have.
    Bar(usize, u32),
    /// The function has no memory BAR.
    NoBars,
    /// The function cannot be reset, so the next borrower would find it in the state that this
    /// borrower leaves.
    NoReset,
    /// The function returns different values for the same register.
    Unsteady,
}

impl FunctionError {
    /// Returns the number of the reason, which logs contain.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            FunctionError::Gone => 1,
            FunctionError::Layout(_) => 2,
            FunctionError::Bar(..) => 3,
            FunctionError::NoBars => 4,
            FunctionError::NoReset => 5,
            FunctionError::Unsteady => 6,
        }
    }
}

/// Register bit that resets a function. The register's other bits keep their values when the bit is
/// written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResetBy {
    /// Register that contains the bit.
    pub register: Register,
    /// Mask of the bit.
    pub bit: u32,
}

/// Description of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Vendor, device and class.
    pub identity: Identity,
    /// Capabilities.
    pub layout: Layout,
    /// Memory BARs.
    pub bars: [Option<Bar>; BARS],
    /// Register bit that resets the function.
    pub reset: ResetBy,
}

/// Bit in the device capabilities of PCI Express: the function supports a function level reset.
const EXPRESS_CAN: u32 = 1 << 28;
/// Bit in the device control of PCI Express that starts a function level reset.
const EXPRESS_RESET: u32 = 1 << 15;
/// Bit in the capabilities of Advanced Features: the function supports a function level reset.
const ADVANCED_CAN: u32 = 1 << 25;
/// Bit in the control register of Advanced Features that starts a function level reset.
const ADVANCED_RESET: u32 = 1;
/// Maximum log2 of the size of a 32-bit BAR.
const NARROW_MAX: u32 = 31;

fn dword(cycles: &mut impl Cycles, offset: u16) -> Option<u32> {
    cycles.read(Register::new(offset, 4)?)
}

/// Reads the description of a function. Leaves memory decoding and bus mastering disabled, and
/// leaves BARs unchanged. Executes up to a few hundred configuration cycles.
///
/// # Errors
///
/// See [`FunctionError`].
pub fn describe(cycles: &mut impl Cycles) -> Result<Found, FunctionError> {
    let mut read = |offset| dword(cycles, offset).ok_or(FunctionError::Gone);
    let ids = read(0)?;
    if ids & 0xFFFF == 0xFFFF || ids & 0xFFFF == 0 {
        return Err(FunctionError::Gone);
    }
    let (class, subsystem) = (read(8)?, read(0x2C)?);
    let layout =
        Layout::read(|at| dword(cycles, at).unwrap_or(u32::MAX)).map_err(FunctionError::Layout)?;
    if dword(cycles, 0) != Some(ids) {
        return Err(FunctionError::Unsteady);
    }
    let reset = reset_by(cycles, &layout).ok_or(FunctionError::NoReset)?;
    let command = Register::new(COMMAND, 2).ok_or(FunctionError::Gone)?;
    cycles.write(command, 0).ok_or(FunctionError::Gone)?;
    let mut bars = [None; BARS];
    let mut i = 0;
    while i < BARS {
        let bar = bar(cycles, i)?;
        if let Some(slot) = bars.get_mut(i) {
            *slot = bar.filter(|b| b.log2 != 0);
        }
        i += if bar.is_some_and(|b| b.is_64bit) {
            2
        } else {
            1
        };
    }
    if bars.iter().flatten().next().is_none() {
        return Err(FunctionError::NoBars);
    }
    Ok(Found {
        identity: Identity {
            vendor: ids as u16,
            device: (ids >> 16) as u16,
            subsystem_vendor: subsystem as u16,
            subsystem: (subsystem >> 16) as u16,
            class: class >> 8,
            revision: class as u8,
        },
        layout,
        bars,
        reset,
    })
}

fn reset_by(cycles: &mut impl Cycles, layout: &Layout) -> Option<ResetBy> {
    layout.capabilities().iter().find_map(|c| {
        let (can, at, bit) = match c.shown? {
            Shown::Express => {
                let can = dword(cycles, c.at + 4)?;
                (can != u32::MAX && can & EXPRESS_CAN != 0, 8, EXPRESS_RESET)
            }
            Shown::Advanced => {
                let can = dword(cycles, c.at)?;
                (
                    can != u32::MAX && can & ADVANCED_CAN != 0,
                    4,
                    ADVANCED_RESET,
                )
            }
            _ => return None,
        };
        let register = Register::new(c.at + at, 2)?;
        can.then_some(ResetBy { register, bit })
    })
}

/// Writes all ones to a BAR's register, reads it, and restores it. Returns the value read.
fn size(cycles: &mut impl Cycles, i: usize) -> Result<u32, FunctionError> {
    let mut done = || {
        let register = Register::new(BAR + 4 * i as u16, 4)?;
        let old = cycles.read(register)?;
        cycles.write(register, u32::MAX)?;
        let size = cycles.read(register)?;
        cycles.write(register, old)?;
        Some(size)
    };
    done().ok_or(FunctionError::Gone)
}

/// Returns BAR `i`. `log2` is 0 for a 64-bit BAR of size 0, which occupies two registers. Returns
/// `None` if BAR `i` is not a memory BAR.
fn bar(cycles: &mut impl Cycles, i: usize) -> Result<Option<Bar>, FunctionError> {
    let low = size(cycles, i)?;
    let odd = FunctionError::Bar(i, low);
    // The BAR is not implemented, or is for I/O ports.
    if low == 0 || low & 1 != 0 && low != u32::MAX {
        return Ok(None);
    }
    let is_64bit = match (low >> 1) & 3 {
        0 => false,
        2 => true,
        _ => return Err(odd),
    };
    let high = if !is_64bit {
        u32::MAX
    } else if i + 1 < BARS {
        size(cycles, i + 1)?
    } else {
        return Err(odd);
    };
    let mask = (u64::from(high) << 32) | u64::from(low & !0xF);
    let prefetchable = low & 8 != 0;
    let log2 = mask.trailing_zeros();
    let max = if is_64bit {
        Bar::LOG2_MAX.into()
    } else {
        NARROW_MAX
    };
    let whole = mask != 0 && mask.leading_ones() + log2 == 64;
    if !whole || log2 > max {
        return Err(odd);
    }
    Ok(Some(Bar {
        log2: log2 as u8,
        is_64bit,
        prefetchable,
    }))
}
