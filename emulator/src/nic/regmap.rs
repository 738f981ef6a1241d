//! Map of the existing registers with their access rights, and storage for values that no unit
//! keeps.
//!
//! The map comes from the register table (2,525 registers, 24,942 quadwords) and is parsed once per
//! process. The values of a NIC are stored in chunks. A chunk is allocated at the first write of a
//! nonzero value, so that hundreds of NICs need little memory.

use std::collections::HashMap;
use std::sync::OnceLock;

const TABLE: &str = include_str!("../../../wire/data/tourmalet-registers.csv");
/// Size of the register file window in bytes (HW §1.2).
pub const RF_SIZE: u32 = 0x0200_0000;
const PAGE: u32 = 4096;
const SLOTS: usize = (PAGE / 8) as usize;
const CHUNK: usize = 64;

/// Access rights of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Software can only read the register. Writes are ignored.
    ReadOnly,
    /// Software can read and write the register.
    ReadWrite,
    /// Software can only write the register, which reads as 0.
    WriteOnly,
}

/// Position of a register's value in [`Storage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Access rights of the register.
    pub access: Access,
    index: u32,
}

/// A register, or an array of registers, in the register table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Register {
    /// Name of the register in the hardware's documentation.
    pub name: String,
    /// Byte offset of the first register in the register file.
    pub offset: u32,
    /// Number of registers in the array; 1 for a single register.
    pub entries: u32,
    /// Distance in bytes between registers of the array.
    pub stride: u32,
    /// Access rights. A register that software cannot access counts as read only.
    pub access: Access,
}

/// The register map, shared by all NICs.
pub struct RegMap {
    registers: Vec<Register>,
    /// For each 4 KiB page: the index of its shape plus 1 (0 for a page without registers), and the
    /// index of its first value in the storage.
    pages: Vec<(u16, u32)>,
    /// For each shape and quadword: 0, or access code + 4 × (index of the register within the
    /// page).
    shapes: Vec<[u16; SLOTS]>,
    values: u32,
}

impl RegMap {
    /// Returns the map of the Tourmalet register file.
    pub fn get() -> &'static RegMap {
        static MAP: OnceLock<RegMap> = OnceLock::new();
        MAP.get_or_init(|| RegMap::parse(TABLE).expect("built-in register table"))
    }

    fn parse(table: &str) -> Result<RegMap, String> {
        let mut registers: Vec<Register> = Vec::new();
        let mut reader = csv::Reader::from_reader(table.as_bytes());
        for row in reader.records() {
            let row = row.map_err(|e| e.to_string())?;
            let field = |i: usize| row.get(i).ok_or_else(|| format!("short row {row:?}"));
            let name = field(0)?;
            if registers.last().is_some_and(|r| r.name == name) {
                continue;
            }
            let hex = field(1)?.trim_start_matches("0x");
            let number = |text: &str, default: u32| match text {
                "" => Ok(default),
                text => text.parse::<u32>().map_err(|e| format!("{name}: {e}")),
            };
            registers.push(Register {
                name: name.to_owned(),
                offset: u32::from_str_radix(hex, 16).map_err(|e| format!("{name}: {e}"))?,
                entries: number(field(3)?, 1)?,
                stride: number(field(4)?, 8)?,
                access: match field(8)? {
                    "ro" | "hw" => Access::ReadOnly,
                    "rw" => Access::ReadWrite,
                    "wo" => Access::WriteOnly,
                    other => return Err(format!("{name}: access {other}")),
                },
            });
        }
        Self::build(registers)
    }

    fn build(registers: Vec<Register>) -> Result<RegMap, String> {
        let mut access = HashMap::new();
        for r in &registers {
            for i in 0..r.entries {
                let offset = r.offset + i * r.stride;
                if offset % 8 != 0 || offset >= RF_SIZE {
                    return Err(format!("{}: offset {offset:#x}", r.name));
                }
                if access.insert(offset, r.access).is_some() {
                    return Err(format!("{}: {offset:#x} twice", r.name));
                }
            }
        }
        let mut offsets: Vec<u32> = access.keys().copied().collect();
        offsets.sort_unstable();
        let mut map = RegMap {
            registers,
            pages: vec![(0, 0); (RF_SIZE / PAGE) as usize],
            shapes: Vec::new(),
            values: 0,
        };
        let mut known: HashMap<[u16; SLOTS], u16> = HashMap::new();
        for page in offsets.chunk_by(|a, b| a / PAGE == b / PAGE) {
            let mut shape = [0u16; SLOTS];
            for (i, offset) in page.iter().enumerate() {
                let code = match access[offset] {
                    Access::ReadOnly => 1,
                    Access::ReadWrite => 2,
                    Access::WriteOnly => 3,
                };
                shape[(offset % PAGE / 8) as usize] = code + 4 * i as u16;
            }
            let id = *known.entry(shape).or_insert_with(|| {
                map.shapes.push(shape);
                map.shapes.len() as u16
            });
            map.pages[(page[0] / PAGE) as usize] = (id, map.values);
            map.values += page.len() as u32;
        }
        Ok(map)
    }

    /// Returns all registers in table order.
    pub fn registers(&self) -> &[Register] {
        &self.registers
    }

    /// Looks up the quadword register at byte offset `offset`.
    #[inline]
    pub fn slot(&self, offset: u32) -> Option<Slot> {
        let &(shape, base) = self.pages.get((offset / PAGE) as usize)?;
        let shape = self.shapes.get(usize::from(shape).checked_sub(1)?)?;
        let code = shape[(offset % PAGE / 8) as usize];
        let access = match code & 3 {
            1 => Access::ReadOnly,
            2 => Access::ReadWrite,
            3 => Access::WriteOnly,
            _ => return None,
        };
        Some(Slot {
            access,
            index: base + u32::from(code / 4),
        })
    }
}

/// Values of the registers that no unit keeps.
pub struct Storage {
    chunks: Vec<Option<Box<[u64; CHUNK]>>>,
}

impl Storage {
    /// Returns a storage with all values 0.
    pub fn new() -> Self {
        let n = (RegMap::get().values as usize).div_ceil(CHUNK);
        Self {
            chunks: vec![None; n],
        }
    }

    /// Returns the value of a register.
    pub fn get(&self, slot: Slot) -> u64 {
        let i = slot.index as usize;
        match self.chunks.get(i / CHUNK) {
            Some(Some(chunk)) => chunk[i % CHUNK],
            _ => 0,
        }
    }

    /// Sets the value of a register.
    pub fn set(&mut self, slot: Slot, value: u64) {
        let i = slot.index as usize;
        if let Some(chunk) = self.chunks.get_mut(i / CHUNK) {
            if chunk.is_none() && value == 0 {
                return;
            }
            chunk.get_or_insert_with(|| Box::new([0; CHUNK]))[i % CHUNK] = value;
        }
    }

    /// Returns the value of the register at a byte offset, or 0 if there is no register.
    pub fn at(&self, offset: u32) -> u64 {
        RegMap::get().slot(offset).map_or(0, |s| self.get(s))
    }

    /// Sets the value of the register at a byte offset, if there is a register.
    pub fn set_at(&mut self, offset: u32, value: u64) {
        if let Some(slot) = RegMap::get().slot(offset) {
            self.set(slot, value);
        }
    }

    /// Sets every register to 0, except the registers for which `keep` returns true.
    pub fn clear(&mut self, keep: impl Fn(u32) -> bool) {
        let map = RegMap::get();
        let mut fresh = Self::new();
        for r in &map.registers {
            for i in 0..r.entries {
                let offset = r.offset + i * r.stride;
                if keep(offset) {
                    fresh.set_at(offset, self.at(offset));
                }
            }
        }
        *self = fresh;
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_complete() {
        let map = RegMap::get();
        assert_eq!(map.registers.len(), 2525);
        assert_eq!(map.values, 24_942);
        let count = |a| map.registers.iter().filter(|r| r.access == a).count();
        assert_eq!(count(Access::ReadWrite), 1360);
        assert_eq!(count(Access::WriteOnly), 109);
        assert_eq!(count(Access::ReadOnly), 1053 + 3);
    }

    #[test]
    fn every_quadword_has_its_own_slot() {
        let map = RegMap::get();
        let mut seen = vec![false; map.values as usize];
        for r in &map.registers {
            for i in 0..r.entries {
                let slot = map.slot(r.offset + i * r.stride).expect("slot");
                assert_eq!(slot.access, r.access, "{}", r.name);
                assert!(!std::mem::replace(&mut seen[slot.index as usize], true));
            }
        }
        assert!(seen.into_iter().all(|s| s));
        assert!(map.shapes.len() < 200, "{} shapes", map.shapes.len());
        assert_eq!(map.slot(0x0000_0088), None);
        assert_eq!(map.slot(RF_SIZE), None);
        assert_eq!(map.slot(u32::MAX), None);
    }

    #[test]
    fn storage_keeps_what_it_should() {
        let mut s = Storage::new();
        s.set_at(0x8038, 7);
        s.set_at(0x8040, 8);
        s.set_at(0x88, 9);
        assert_eq!((s.at(0x8038), s.at(0x8040), s.at(0x88)), (7, 8, 0));
        s.clear(|offset| offset == 0x8040);
        assert_eq!((s.at(0x8038), s.at(0x8040)), (0, 8));
    }
}
