// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Map of all registers by name, with their fields, for sysfs, dumps and decoded reports.
//!
//! The map is `data/registers.map`, a compact form of `data/tourmalet-registers.csv`. A test
//! generates the map from the CSV file and compares the two. Each line describes a set of similar
//! registers, whose names and offsets differ only by indices. The text is never unpacked. A
//! [`Register`] consists of a line and a number, and each use decodes the line again.

use crate::ids::RegOffset;
use core::fmt;

/// Text of the register map.
pub const TEXT: &str = include_str!("../../data/registers.map");
/// Common prefix of all names in the vendor's files.
pub const PREFIX: &str = "extoll_rf_";
/// Maximum number of indices in a name.
const MAX_DIMS: usize = 4;

/// Accesses that software may make to a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Software may read and write the register.
    ReadWrite,
    /// Software may only read the register.
    ReadOnly,
    /// Software may only write the register.
    WriteOnly,
    /// Software may not access the register.
    Hardware,
}

impl Access {
    /// Returns whether software may read the register.
    pub const fn reads(self) -> bool {
        matches!(self, Access::ReadWrite | Access::ReadOnly)
    }

    /// Returns whether software may write the register.
    pub const fn writes(self) -> bool {
        matches!(self, Access::ReadWrite | Access::WriteOnly)
    }
}

/// Registers whose reading has a side effect. They are FIFOs that a read pops (HW §14), interrupt
/// vectors that a read clears (G7), and history windows (HW §10.7). Dumps omit them.
pub const DESTRUCTIVE: [&str; 7] = [
    "pcie_rf_bridge_rf_pcie_to_htoc_backdoor_info",
    "pcie_rf_bridge_rf_pcie_to_htoc_backdoor_data",
    "velo_rf_noti_interrupt_handler_int_vec",
    "rma_rf_noti_interrupt_handler_int_vec",
    "rma_rf_requester_history",
    "rma_rf_responder_history",
    "rma_rf_completer_history",
];

/// Bit field of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Highest bit.
    pub msb: u8,
    /// Lowest bit.
    pub lsb: u8,
}

impl Field {
    /// Field that covers a whole register.
    pub const WHOLE: Self = Self {
        name: "",
        msb: 63,
        lsb: 0,
    };

    /// Returns the mask of the field's bits.
    pub const fn mask(self) -> u64 {
        (u64::MAX >> (63 - (self.msb - self.lsb) as u32 % 64)) << (self.lsb % 64)
    }

    /// Returns the value of the field in a register value.
    pub const fn of(self, value: u64) -> u64 {
        (value & self.mask()) >> (self.lsb % 64)
    }
}

/// Index in the name of a register.
#[derive(Clone, Copy, Default)]
struct Dim {
    first: u32,
    count: u32,
    stride: u32,
}

/// Decoded line of the map.
#[derive(Clone, Copy)]
struct Line {
    /// Byte offset of the line in [`TEXT`].
    at: u32,
    name: &'static str,
    offset: u32,
    access: Access,
    entries: u32,
    stride: u32,
    dims: [Dim; MAX_DIMS],
    fields: &'static str,
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

impl Line {
    fn parse(at: usize) -> Option<Self> {
        let line = TEXT.get(at..)?.lines().next()?;
        let mut words = line.split(' ');
        let mut next = || words.next();
        let (name, offset) = (next()?, hex(next()?)?);
        let access = match next()? {
            "rw" => Access::ReadWrite,
            "ro" => Access::ReadOnly,
            "wo" => Access::WriteOnly,
            _ => Access::Hardware,
        };
        let (entries, stride) = (next()?.parse().ok()?, hex(next()?)?);
        let mut dims = [Dim::default(); MAX_DIMS];
        let list = next()?.split(';').filter(|d| *d != "-");
        for (dim, text) in dims.iter_mut().zip(list) {
            let mut numbers = text.split(',');
            *dim = Dim {
                first: numbers.next()?.parse().ok()?,
                count: numbers.next()?.parse().ok()?,
                stride: hex(numbers.next()?)?,
            };
        }
        Some(Self {
            at: at as u32,
            name,
            offset,
            access,
            entries,
            stride,
            dims,
            fields: next()?,
        })
    }

    fn registers(&self) -> u32 {
        self.dims.iter().map(|d| d.count.max(1)).product()
    }
}

/// Iterates over the lines of the map.
fn lines() -> impl Iterator<Item = Line> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let line = Line::parse(at)?;
        at += TEXT.get(at..)?.find('\n')? + 1;
        Some(line)
    })
}

/// Position of a register in the map, as a number of 28 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterIndex(u32);

/// Number of bits in a [`RegisterIndex`] for the register's number within its line. The other 16
/// bits are the offset of the line.
const NUMBER_BITS: u32 = 12;
const _: () = assert!(TEXT.len() < 1 << 16);

impl RegisterIndex {
    /// Returns the position as a number below 2^28.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Converts the number that [`RegisterIndex::get`] returned.
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Register, or array of registers. Its `Display` form is its name without [`PREFIX`].
#[derive(Clone, Copy)]
pub struct Register {
    line: Line,
    /// Number of the register within its line. The last index of the name varies fastest.
    number: u32,
}

impl Register {
    /// Iterates over all 2,525 registers, line by line.
    pub fn all() -> impl Iterator<Item = Self> {
        lines().flat_map(|line| (0..line.registers()).map(move |number| Self { line, number }))
    }

    /// Returns the register or array that contains `offset`, and the index in the array.
    pub fn find(offset: RegOffset) -> Option<(Self, u32)> {
        // The search can stop early, because lines are sorted by offset.
        lines()
            .take_while(|line| line.offset <= offset.get())
            .find_map(|line| {
                let mut rest = offset.get().checked_sub(line.offset)?;
                let elements = Dim {
                    first: 0,
                    count: line.entries,
                    stride: line.stride,
                };
                // Dimensions without an index so far: those of the name, then the array. They are
                // resolved in the order of descending stride.
                let mut left = [elements; MAX_DIMS + 1];
                left.iter_mut().zip(line.dims).for_each(|(l, d)| *l = d);
                let mut index = [0; MAX_DIMS + 1];
                while let Some((d, dim)) = left
                    .iter()
                    .copied()
                    .enumerate()
                    .max_by_key(|(_, d)| d.stride)
                {
                    if dim.stride == 0 {
                        break;
                    }
                    let i = (rest / dim.stride).min(dim.count - 1);
                    rest -= i * dim.stride;
                    *index.get_mut(d)? = i;
                    *left.get_mut(d)? = Dim::default();
                }
                if rest != 0 {
                    return None;
                }
                let dims = line.dims.iter().zip(index);
                let number = dims.fold(0, |n, (dim, i)| n * dim.count.max(1) + i);
                Some((Self { line, number }, *index.last()?))
            })
    }

    /// Returns the register at a position.
    pub fn at(index: RegisterIndex) -> Option<Self> {
        Some(Self {
            line: Line::parse((index.0 >> NUMBER_BITS) as usize)?,
            number: index.0 & ((1 << NUMBER_BITS) - 1),
        })
    }

    /// Returns the position of the register.
    pub fn index(&self) -> RegisterIndex {
        RegisterIndex((self.line.at << NUMBER_BITS) | self.number)
    }

    /// Returns the values of the name's indices in their order.
    fn indices(&self) -> [u32; MAX_DIMS] {
        let mut out = [0; MAX_DIMS];
        let mut rest = self.number;
        for (i, dim) in out.iter_mut().zip(&self.line.dims).rev() {
            *i = rest % dim.count.max(1);
            rest /= dim.count.max(1);
        }
        out
    }

    /// Returns the offset of element `entry`. `entry` must be 0 for a register that is not an
    /// array.
    pub fn offset(&self, entry: u32) -> RegOffset {
        if entry >= self.line.entries {
            return RegOffset::INVALID;
        }
        let dims = self.line.dims.iter().zip(self.indices());
        let base = dims.fold(self.line.offset, |at, (dim, i)| at + dim.stride * i);
        RegOffset(base + entry * self.line.stride)
    }

    /// Returns the number of elements, which is 1 for a register that is not an array.
    pub fn entries(&self) -> u32 {
        self.line.entries
    }

    /// Returns the distance between elements in bytes.
    pub fn stride(&self) -> u32 {
        self.line.stride
    }

    /// Returns the accesses that software may make to the register.
    pub fn access(&self) -> Access {
        self.line.access
    }

    /// Returns whether a read has a side effect; see [`DESTRUCTIVE`].
    pub fn is_destructive(&self) -> bool {
        DESTRUCTIVE.contains(&self.line.name)
    }

    /// Returns whether a dump may read the register.
    pub fn is_dumped(&self) -> bool {
        self.access().reads() && !self.is_destructive()
    }

    /// Iterates over the known fields of the register. Most registers have no known fields.
    pub fn fields(&self) -> impl Iterator<Item = Field> + Clone {
        let list = self.line.fields.split(',').filter(|f| *f != "-");
        list.filter_map(|text| {
            let mut parts = text.split(':');
            Some(Field {
                name: parts.next()?,
                msb: parts.next()?.parse().ok()?,
                lsb: parts.next()?.parse().ok()?,
            })
        })
    }

    /// Returns the section that the register belongs to.
    pub fn section(&self) -> &'static str {
        section(self.line.name)
    }

    /// Iterates over all sections of the map.
    pub fn sections() -> impl Iterator<Item = &'static str> {
        let mut last = "";
        lines().filter_map(move |line| {
            let section = section(line.name);
            let again = section == core::mem::replace(&mut last, section)
                || lines()
                    .take_while(|l| l.at < line.at)
                    .any(|l| self::section(l.name) == section);
            (!again).then_some(section)
        })
    }
}

/// Returns the section of a name: its part up to the first `_rf_`, inclusive.
fn section(name: &'static str) -> &'static str {
    let end = name.find("_rf_").map_or(name.len(), |i| i + 3);
    name.get(..end).unwrap_or(name)
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.line.name.split('#');
        f.write_str(parts.next().unwrap_or(""))?;
        for ((part, dim), i) in parts.zip(&self.line.dims).zip(self.indices()) {
            write!(f, "{}{part}", dim.first + i)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
