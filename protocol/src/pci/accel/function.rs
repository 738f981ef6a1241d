// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What a function is that no host has enumerated: its capabilities and BARs.
//!
//! Nothing that it says is believed beyond what it can be. A function whose registers say something
//! impossible is refused with a reason, and what is only strange is hidden.

use crate::pci::config::{Layout, LayoutError, Shown, BAR, COMMAND};
use wire::pci::{Bar, Identity, Register, BARS};

/// Configuration cycles of a function. `None`: they were not answered, or refused.
pub trait Cycles {
    /// Reads a register.
    fn read(&mut self, register: Register) -> Option<u32>;
    /// Writes a register.
    fn write(&mut self, register: Register, value: u32) -> Option<()>;
}

/// Why a function can't be borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FunctionError {
    /// It does not answer.
    Gone,
    /// Its header or capabilities lead nowhere.
    Layout(LayoutError),
    /// This BAR's register reads as this, which none can.
    Bar(usize, u32),
    /// It has no memory BAR.
    NoBars,
    /// It can't be reset, so that the next borrower would have what is left of this one.
    NoReset,
    /// It says something else each time.
    Unsteady,
}

impl FunctionError {
    /// Number of the reason, for logs.
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

/// How a function is reset: this is written to that register, over what it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResetBy {
    /// The register.
    pub register: Register,
    /// The bit.
    pub bit: u32,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Who made it.
    pub identity: Identity,
    /// Its capabilities.
    pub layout: Layout,
    /// Its memory BARs.
    pub bars: [Option<Bar>; BARS],
    /// How it is reset.
    pub reset: ResetBy,
}

/// PCI Express, device capabilities: the function can be reset.
const EXPRESS_CAN: u32 = 1 << 28;
/// PCI Express, device control: resets it.
const EXPRESS_RESET: u32 = 1 << 15;
/// Advanced features, capabilities: the function can be reset.
const ADVANCED_CAN: u32 = 1 << 25;
/// Advanced features, control: resets it.
const ADVANCED_RESET: u32 = 1;
/// The largest BAR of 32 bits.
const NARROW_MOST: u32 = 31;

fn dword(cycles: &mut impl Cycles, offset: u16) -> Option<u32> {
    cycles.read(Register::new(offset, 4)?)
}

/// Finds out what a function is. Its memory is not decoded any more afterwards, it may not master the
/// bus, and BARs have what they had. `cycles` may be called some hundred times.
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
        if let Some(place) = bars.get_mut(i) {
            *place = bar.filter(|b| b.log2 != 0);
        }
        i += if bar.is_some_and(|b| b.wide) { 2 } else { 1 };
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

/// What a BAR's register has with all ones written; it has what it had afterwards.
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

/// BAR `i`: one of size 0 (`log2` 0) takes two registers and is not there; `None`: no memory.
fn bar(cycles: &mut impl Cycles, i: usize) -> Result<Option<Bar>, FunctionError> {
    let low = size(cycles, i)?;
    let odd = FunctionError::Bar(i, low);
    // None, or I/O ports.
    if low == 0 || low & 1 != 0 && low != u32::MAX {
        return Ok(None);
    }
    let wide = match (low >> 1) & 3 {
        0 => false,
        2 => true,
        _ => return Err(odd),
    };
    let high = match wide {
        true if i + 1 < BARS => size(cycles, i + 1)?,
        true => return Err(odd),
        false => u32::MAX,
    };
    let mask = (u64::from(high) << 32) | u64::from(low & !0xF);
    let prefetchable = low & 8 != 0;
    let log2 = mask.trailing_zeros();
    let most = if wide {
        Bar::LOG2_MOST.into()
    } else {
        NARROW_MOST
    };
    let whole = mask != 0 && mask.leading_ones() + log2 == 64;
    if !whole || log2 > most {
        return Err(odd);
    }
    Ok(Some(Bar {
        log2: log2 as u8,
        wide,
        prefetchable,
    }))
}
