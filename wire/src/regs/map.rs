// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Every register of the map by name, with its fields: for sysfs, dumps and decoded reports.
//!
//! The map is `data/registers.map`, a short form of `data/tourmalet-registers.csv` (tests make and compare it): one line per
//! set of alike registers, whose names and offsets differ by indices only. Nothing is unpacked: a [`Register`] is a line
//! and a number, and is taken apart when it is used.

use crate::ids::RegOffset;
use core::fmt;

/// The map.
pub const TEXT: &str = include_str!("../../data/registers.map");
/// What all names in the vendor's files begin with.
pub const PREFIX: &str = "extoll_rf_";
/// Most indices in a name.
const MAX_DIMS: usize = 4;

/// What software may do with a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read and write.
    ReadWrite,
    /// Read.
    ReadOnly,
    /// Write.
    WriteOnly,
    /// Nothing.
    Hardware,
}

impl Access {
    /// Whether it can be read.
    pub const fn reads(self) -> bool {
        matches!(self, Access::ReadWrite | Access::ReadOnly)
    }

    /// Whether it can be written.
    pub const fn writes(self) -> bool {
        matches!(self, Access::ReadWrite | Access::WriteOnly)
    }
}

/// Registers whose reading changes something: FIFOs that a read pops (HW §14), interrupt vectors that a read clears (G7) and
/// history windows (HW §10.7). Dumps leave them out.
pub const DESTRUCTIVE: [&str; 7] = [
    "pcie_rf_bridge_rf_pcie_to_htoc_backdoor_info",
    "pcie_rf_bridge_rf_pcie_to_htoc_backdoor_data",
    "velo_rf_noti_interrupt_handler_int_vec",
    "rma_rf_noti_interrupt_handler_int_vec",
    "rma_rf_requester_history",
    "rma_rf_responder_history",
    "rma_rf_completer_history",
];

/// A bit field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Name.
    pub name: &'static str,
    /// Highest bit.
    pub msb: u8,
    /// Lowest bit.
    pub lsb: u8,
}

impl Field {
    /// A register without known fields.
    pub const WHOLE: Self = Self {
        name: "",
        msb: 63,
        lsb: 0,
    };

    /// The bits that it occupies.
    pub const fn mask(self) -> u64 {
        (u64::MAX >> (63 - (self.msb - self.lsb) as u32 % 64)) << (self.lsb % 64)
    }

    /// Its value in a register.
    pub const fn of(self, value: u64) -> u64 {
        (value & self.mask()) >> (self.lsb % 64)
    }
}

/// One index of a name.
#[derive(Clone, Copy, Default)]
struct Dim {
    first: u32,
    count: u32,
    stride: u32,
}

/// A line of the map, taken apart.
#[derive(Clone, Copy)]
struct Line {
    /// Position in [`TEXT`].
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

/// The lines of the map.
fn lines() -> impl Iterator<Item = Line> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let line = Line::parse(at)?;
        at += TEXT.get(at..)?.find('\n')? + 1;
        Some(line)
    })
}

/// Where a register is in the map, in 28 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u32);

/// Bits of a [`Place`] for the number within the line; 16 for the line's position.
const NUMBER_BITS: u32 = 12;
const _: () = assert!(TEXT.len() < 1 << 16);

impl Place {
    /// As a number below 2^28.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// From [`Place::get`].
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// One register, or one array of them. Prints its name, without [`PREFIX`].
#[derive(Clone, Copy)]
pub struct Register {
    line: Line,
    /// Which of the line's registers: the last index counts fastest.
    number: u32,
}

impl Register {
    /// All registers of the map, 2,525, ordered by line.
    pub fn all() -> impl Iterator<Item = Self> {
        lines().flat_map(|line| (0..line.registers()).map(move |number| Self { line, number }))
    }

    /// The register or array that `offset` belongs to, and the index in the array.
    pub fn find(offset: RegOffset) -> Option<(Self, u32)> {
        // Lines are sorted by offset.
        lines()
            .take_while(|line| line.offset <= offset.get())
            .find_map(|line| {
                let mut rest = offset.get().checked_sub(line.offset)?;
                let elements = Dim {
                    first: 0,
                    count: line.entries,
                    stride: line.stride,
                };
                // The array index and those of the name, the one with the largest stride first.
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

    /// The register at a place.
    pub fn at(place: Place) -> Option<Self> {
        Some(Self {
            line: Line::parse((place.0 >> NUMBER_BITS) as usize)?,
            number: place.0 & ((1 << NUMBER_BITS) - 1),
        })
    }

    /// Its place.
    pub fn place(&self) -> Place {
        Place((self.line.at << NUMBER_BITS) | self.number)
    }

    /// The indices in the name, in its order.
    fn indices(&self) -> [u32; MAX_DIMS] {
        let mut out = [0; MAX_DIMS];
        let mut rest = self.number;
        for (i, dim) in out.iter_mut().zip(&self.line.dims).rev() {
            *i = rest % dim.count.max(1);
            rest /= dim.count.max(1);
        }
        out
    }

    /// Offset of element `entry`; of a register that is no array 0.
    pub fn offset(&self, entry: u32) -> RegOffset {
        if entry >= self.line.entries {
            return RegOffset::INVALID;
        }
        let dims = self.line.dims.iter().zip(self.indices());
        let base = dims.fold(self.line.offset, |at, (dim, i)| at + dim.stride * i);
        RegOffset(base + entry * self.line.stride)
    }

    /// Elements: more than 1 for an array.
    pub fn entries(&self) -> u32 {
        self.line.entries
    }

    /// Bytes from element to element.
    pub fn stride(&self) -> u32 {
        self.line.stride
    }

    /// What software may do with it.
    pub fn access(&self) -> Access {
        self.line.access
    }

    /// Whether reading it changes something; see [`DESTRUCTIVE`].
    pub fn is_destructive(&self) -> bool {
        DESTRUCTIVE.contains(&self.line.name)
    }

    /// Whether a dump may read it.
    pub fn is_dumped(&self) -> bool {
        self.access().reads() && !self.is_destructive()
    }

    /// Known fields; none for most registers.
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

    /// The section that it belongs to.
    pub fn section(&self) -> &'static str {
        section(self.line.name)
    }

    /// All sections of the map.
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

/// The unit: what stands before the first `_rf_`, and that.
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
