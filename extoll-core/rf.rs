// SPDX-License-Identifier: GPL-2.0-only

//! Register file in sysfs (directory `extoll_rf/` of the PCI device) and in debugfs (`registers/`,
//! one file per unit).
//!
//! Names and formats of the sysfs files are those of the vendor's driver (docs/driver.md). Access
//! requires `CAP_SYS_RAWIO`, because registers contain DMA addresses. It is refused under kernel
//! lockdown. Registers with read side effects ([`wire::regs::map::DESTRUCTIVE`]) are read only by
//! the command `read`, which is written to the register's file. Reading the file then returns the
//! value that the command has read.
//!
//! Process context. A mutex protects the values that the command has read.

use crate::{
    nic::{Context, Nic},
    rra,
    stats::Reason,
};
use core::fmt::{self, Write};
use kernel::{
    device::{self, Bound},
    new_mutex,
    prelude::*,
    str::CString,
    sync::{Arc, Mutex},
};
use kernel_ext::{
    security::{capable, locked_down, Capability, Locked},
    sysfs::{Entry, Files, Group, Text},
};
use wire::{
    ids::RegOffset,
    regs::map::{Field, Register, RegisterIndex, PREFIX},
};

/// Maximum number of array elements in one file.
const PART: u32 = 128;
/// Maximum number of stored values that the command `read` has read.
const MAX_FOUND: usize = 32;
/// Maximum size of a decoded array in bytes.
const PAGE: usize = 4096;

/// Directory `extoll_rf/`.
pub(crate) type Directory = Group<RegisterFiles>;

/// Data of the files.
#[pin_data]
pub(crate) struct RegisterFiles {
    ctx: Arc<Context>,
    /// Offsets and values of registers that the command `read` has read.
    #[pin]
    found: Mutex<KVec<(RegOffset, u64)>>,
}

/// Identity of a file: register, part of an array, and format.
#[derive(Clone, Copy)]
struct Id {
    index: RegisterIndex,
    part: u32,
    raw: bool,
}

impl Id {
    fn encode(self) -> u32 {
        self.index.get() << 4 | self.part << 1 | u32::from(self.raw)
    }

    fn decode(id: u32) -> Self {
        Self {
            index: RegisterIndex::from_number(id >> 4),
            part: id >> 1 & 7,
            raw: id & 1 != 0,
        }
    }
}

/// Name of a file.
struct Name(Register, Id);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(register, id) = self;
        write!(f, "{PREFIX}{register}")?;
        if register.entries() > PART {
            write!(f, "_p{}", id.part)?;
        }
        f.write_str(if id.raw { "_raw" } else { "" })
    }
}

/// Makes the sysfs directory. May sleep.
pub(crate) fn directory(dev: &device::Device<Bound>, ctx: &Arc<Context>) -> Result<Directory> {
    let init = pin_init!(RegisterFiles {
        ctx: ctx.clone(),
        found <- new_mutex!(KVec::new(), "extoll_rf"),
    });
    let data = Arc::pin_init(init, GFP_KERNEL)?;
    let parts = |r: Register| (0..r.entries().div_ceil(PART)).map(move |part| (r, part));
    let files = Register::all()
        .filter(|r| r.access().reads() || r.access().writes())
        .flat_map(parts)
        .flat_map(|(r, part)| [false, true].map(|raw| (r, part, raw)));
    let entries = files.map(|(register, part, raw)| {
        let index = register.index();
        let id = Id { index, part, raw };
        let access = register.access();
        // A register that only the command `read` reads must be writable for that command.
        let write = access.writes() || register.is_destructive();
        Entry {
            name: Name(register, id),
            id: id.encode(),
            access: (access.reads(), write),
        }
    });
    Group::new(dev, c"extoll_rf", data, entries)
}

/// Parses a number as `strtol` with base 0 does, but accepts no octal numbers and no signs.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl RegisterFiles {
    /// Returns the range of array elements that a file shows.
    fn range(register: &Register, id: Id) -> core::ops::Range<u32> {
        let first = id.part * PART;
        first..(first + PART).min(register.entries())
    }

    fn value(&self, register: &Register, entry: u32) -> Result<u64> {
        let offset = register.offset(entry);
        if !register.is_destructive() {
            return Ok(rra::read_local(&self.ctx, offset)?);
        }
        let found = self.found.lock();
        let known = found.iter().find(|(o, _)| *o == offset);
        Ok(known.ok_or(ENODATA)?.1)
    }

    /// Executes the command `read`, which reads a register and stores its value.
    fn read(&self, offset: RegOffset) -> Result {
        let mut found = self.found.lock();
        let value = rra::read_local(&self.ctx, offset)?;
        if let Some(known) = found.iter_mut().find(|(o, _)| *o == offset) {
            known.1 = value;
            return Ok(());
        }
        if found.len() >= MAX_FOUND {
            let _ = found.remove(0);
        }
        Ok(found.push((offset, value), GFP_KERNEL)?)
    }

    /// Executes a command: `value`, or `index value` for arrays. For a register with read side
    /// effects, `read` in place of the value reads the register.
    fn command(&self, register: &Register, id: Id, text: &str) -> Result {
        let mut words = text.split_ascii_whitespace();
        let entry = if register.entries() > 1 {
            let index = words.next().and_then(number).ok_or(EINVAL)?;
            u32::try_from(index).map_err(|_| EINVAL)?
        } else {
            0
        };
        let what = words.next().ok_or(EINVAL)?;
        if words.next().is_some() || !Self::range(register, id).contains(&entry) {
            return Err(EINVAL);
        }
        let offset = register.offset(entry);
        if what == "read" && register.is_destructive() {
            return self.read(offset);
        }
        if !register.access().writes() {
            return Err(EPERM);
        }
        let value = number(what).ok_or(EINVAL)?;
        Ok(rra::write_local(&self.ctx, offset, value)?)
    }
}

/// Returns the fields of a register, or one field for the whole register if none are known.
fn fields(register: &Register) -> impl Iterator<Item = Field> + Clone {
    let none = register.fields().next().is_none();
    Iterator::chain(
        register.fields(),
        none.then_some(Field {
            name: "value",
            ..Field::WHOLE
        }),
    )
}

/// Returns the length in bytes of the fields of one element in a line.
fn width(register: &Register) -> usize {
    let each = |f: Field| f.name.len() + 3 + usize::from((f.msb - f.lsb) / 4 + 1);
    register.fields().map(each).sum()
}

/// Checks that the calling process may access registers.
///
/// # Errors
///
/// `EPERM`: without `CAP_SYS_RAWIO`, or under kernel lockdown.
fn admit() -> Result {
    if !capable(Capability::SysRawio) {
        return Err(EPERM);
    }
    locked_down(Locked::PciAccess)
}

impl Files for RegisterFiles {
    fn show(&self, id: u32, out: &mut Text<'_>) -> Result {
        let id = Id::decode(id);
        let register = Register::at(id.index).ok_or(EINVAL)?;
        admit()?;
        let range = Self::range(&register, id);
        // The constant 32 is the length of "Entry    0: 0000000000000000;".
        let fit = range.len() * (32 + width(&register)) < PAGE;
        let mut shown = 0;
        for entry in range {
            let value = match self.value(&register, entry) {
                // Elements of an array that no command has read are omitted.
                Err(e) if e == ENODATA && register.entries() > 1 => continue,
                value => value?,
            };
            shown += 1;
            let done = if id.raw {
                writeln!(out, "{value:x}")
            } else if register.entries() > 1 {
                let mut fields = register.fields().filter(|_| fit);
                write!(out, "Entry {entry:4}: {value:16x};")
                    .and_then(|()| {
                        fields.try_for_each(|f| write!(out, " {} {:x};", f.name, f.of(value)))
                    })
                    .and_then(|()| writeln!(out))
            } else {
                fields(&register).try_for_each(|f| {
                    writeln!(out, "{} [{}:{}] : {:x};", f.name, f.msb, f.lsb, f.of(value))
                })
            };
            done.map_err(|_| E2BIG)?;
        }
        if shown == 0 {
            return Err(ENODATA);
        }
        Ok(())
    }

    fn store(&self, id: u32, text: &str) -> Result {
        let id = Id::decode(id);
        let register = Register::at(id.index).ok_or(EINVAL)?;
        admit()?;
        self.command(&register, id, text).inspect_err(|_| {
            let offset = register.offset(0).get();
            self.ctx.error(Reason::RegisterCommand, offset.into());
        })
    }
}

/// Returns the names of the files in debugfs `registers/`; a file's number is its index.
pub(crate) fn sections() -> Result<KVec<CString>> {
    let mut names = KVec::new();
    for section in Register::sections() {
        names.push(CString::try_from_fmt(fmt!("{section}"))?, GFP_KERNEL)?;
    }
    Ok(names)
}

/// Writes the registers of section number `n` except those with read side effects. Elements of long
/// arrays are omitted if they are zero.
pub(crate) fn show_section(nic: &Nic, n: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let section = Register::sections().nth(n as usize);
    let wanted = |r: &Register| Some(r.section()) == section && r.is_dumped();
    for register in Register::all().filter(wanted) {
        for entry in 0..register.entries() {
            let offset = register.offset(entry);
            let Some(value) = nic.alive_access().map(|hw| hw.rf.read(offset)) else {
                return writeln!(f, "device gone");
            };
            if register.entries() > 8 && value == 0 {
                continue;
            }
            write!(f, "{:#09x} {register}", offset.get())?;
            if register.entries() > 1 {
                write!(f, "[{entry}]")?;
            }
            write!(f, " {value:#x}")?;
            for field in register.fields() {
                write!(f, " {}={:#x}", field.name, field.of(value))?;
            }
            writeln!(f)?;
        }
    }
    Ok(())
}
