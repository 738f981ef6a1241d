// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Address translation formats (HW §11): NLAs, GAT entries, GAT base entries and commands.

use crate::ids::{BusAddr, Nla, Vpid};
use core::fmt;

/// Number of entries of a GAT.
pub const GAT_ENTRIES: u32 = 1 << 18;
/// Size and alignment of a GAT in host memory, in bytes.
pub const GAT_BYTES: u64 = 2 << 20;
/// Size code of the largest page, 1 GiB.
pub const MAX_SIZE_CODE: u8 = 18;
/// Maximum number of pages that one command flushes.
pub const MAX_FLUSH: u32 = 1024;

bits! {
    /// Fields of an NLA.
    pub struct NlaParts {
        /// Byte offset in the 4 KiB page.
        offset / with_offset: u16 [11:0];
        /// GAT entry index.
        entry / with_entry: u32 [29:12];
        /// GAT index.
        gat / with_gat: u16 [39:30];
    }
}

impl From<Nla> for NlaParts {
    fn from(nla: Nla) -> Self {
        Self(nla.0)
    }
}

impl From<NlaParts> for Nla {
    fn from(parts: NlaParts) -> Self {
        Nla(parts.0)
    }
}

bits! {
    /// GAT base table entry on the chip.
    pub struct GatBase {
        /// Bits `[51:21]` of the GAT's address.
        gat_2m / with_gat_2m: u64 [30:0];
        /// The entry is valid.
        valid / with_valid: bool [31:31];
    }
}

impl GatBase {
    /// Returns a valid entry for the GAT at `addr`; `None` if `addr` is not 2 MiB aligned or needs
    /// more than 52 bits.
    pub const fn new(addr: BusAddr) -> Option<Self> {
        if addr.0 % GAT_BYTES != 0 || addr.0 >= BusAddr::END {
            return None;
        }
        Some(Self(0).with_gat_2m(addr.0 >> 21).with_valid(true))
    }

    /// Returns the address of the GAT.
    pub const fn addr(self) -> BusAddr {
        BusAddr(self.gat_2m() << 21)
    }

    /// Returns the address of GAT entry `index`, of which the low 18 bits are used.
    pub const fn entry_addr(self, index: u32) -> BusAddr {
        BusAddr((self.gat_2m() << 21) + 8 * (index % GAT_ENTRIES) as u64)
    }
}

bits! {
    /// GAT entry in host memory. The value 0 is invalid.
    pub struct GatEntry {
        /// Remote nodes may read the page.
        read / with_read: bool [0:0];
        /// Remote nodes may write the page.
        write / with_write: bool [1:1];
        /// VPID that owns the page; NICs use eight bits of it.
        vpid / with_vpid: u16 [11:2];
        /// Bits `[51:12]` of the page address.
        page / with_page: u64 [51:12];
        /// Page size code. The page has 4 KiB << code.
        size / with_size: u8 [63:59];
    }
}

/// Reason why a translation fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// The entry is 0.
    Invalid,
    /// The entry belongs to another VPID.
    Vpid,
    /// The page may not be read or written as requested.
    Access,
    /// Reserved bits are set, or the size code is above [`MAX_SIZE_CODE`].
    Malformed,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Invalid => "no translation",
            Fault::Vpid => "page belongs to another VPID",
            Fault::Access => "access not allowed",
            Fault::Malformed => "malformed translation entry",
        })
    }
}

impl GatEntry {
    /// Returns an entry for a 4 KiB page; `None` if `page` is not a page address.
    pub const fn new(page: BusAddr, vpid: Vpid, read: bool, write: bool) -> Option<Self> {
        if !page.is_page() {
            return None;
        }
        Some(
            Self(0)
                .with_read(read)
                .with_write(write)
                .with_vpid(vpid.get())
                .with_page(page.0 >> 12),
        )
    }

    /// Returns whether the entry is not 0, has no reserved bits set and describes a page of up to 1
    /// GiB.
    pub const fn is_well_formed(self) -> bool {
        self.0 != 0 && self.0 & !Self::KNOWN == 0 && self.size() <= MAX_SIZE_CODE
    }

    /// Returns the entry with the page address bits cleared that the NLA supplies. All entries of
    /// one large page then are equal. The size code must not exceed [`MAX_SIZE_CODE`].
    pub const fn start(self) -> Self {
        self.with_page(self.page() >> self.size() << self.size())
    }

    /// Translates `nla` for `vpid`. Fails if the page has another owner or does not allow the
    /// access. With size code s, the low s bits of the page number come from the NLA (G17).
    pub const fn translate(self, nla: Nla, vpid: Vpid, write: bool) -> Result<BusAddr, Fault> {
        if self.0 == 0 {
            return Err(Fault::Invalid);
        }
        if !self.is_well_formed() {
            return Err(Fault::Malformed);
        }
        if self.vpid() != vpid.get() {
            return Err(Fault::Vpid);
        }
        if (write && !self.write()) || (!write && !self.read()) {
            return Err(Fault::Access);
        }
        let low = (4096 << self.size()) - 1;
        Ok(BusAddr(((self.page() << 12) & !low) | (nla.0 & low)))
    }
}

bits! {
    /// Register word of `cmd_interface`. The meaning of the operands depends on the opcode.
    /// [`Command`] is the decoded form.
    pub struct CommandWord {
        /// Flush: GAT entry index.
        entry / with_entry: u32 [17:0];
        /// Flush: GAT index.
        gat / with_gat: u16 [27:18];
        /// Flush: number of pages − 1.
        count_minus_1 / with_count_minus_1: u16 [37:28];
        /// Fence, notification: host address.
        address / with_address: u64 [47:0];
        /// Flush of a VPID: the VPID.
        vpid / with_vpid: u16 [9:0];
        /// Opcode.
        opcode / with_opcode: u8 [63:60];
    }
}

/// ATU commands (HW §11.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// 1: drops cached translations of consecutive GAT entries.
    FlushPages {
        /// GAT index, 0…1023.
        gat: u16,
        /// First GAT entry to flush.
        entry: u32,
        /// Number of entries, 1…1024.
        count: u32,
    },
    /// 3: fence, after which the ATU writes an answer to this address.
    FlushVpid(Vpid),
    /// 3: fence; the ATU writes an answer to this address.
    Fence(BusAddr),
    /// 4: writes a non-zero quadword to this address after all earlier commands are complete.
    Notify(BusAddr),
}

/// Reason why a command is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CommandError {
    /// Unknown opcode.
    Opcode(u8),
    /// An operand does not fit its field.
    Operand,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::Opcode(op) => write!(f, "unknown ATU opcode {op}"),
            CommandError::Operand => f.write_str("ATU command operand out of range"),
        }
    }
}

impl Command {
    /// Returns the register value.
    pub const fn encode(&self) -> Result<CommandWord, CommandError> {
        let word = CommandWord(0);
        match *self {
            Command::FlushPages { gat, entry, count } => {
                if gat >= 1024 || entry >= GAT_ENTRIES || count == 0 || count > MAX_FLUSH {
                    return Err(CommandError::Operand);
                }
                Ok(word
                    .with_opcode(1)
                    .with_gat(gat)
                    .with_entry(entry)
                    .with_count_minus_1((count - 1) as u16))
            }
            Command::FlushVpid(vpid) => Ok(word.with_opcode(2).with_vpid(vpid.get())),
            Command::Fence(addr) | Command::Notify(addr) => {
                if addr.0 >> 48 != 0 {
                    return Err(CommandError::Operand);
                }
                let opcode = if matches!(self, Command::Fence(_)) {
                    3
                } else {
                    4
                };
                Ok(word.with_opcode(opcode).with_address(addr.0))
            }
        }
    }

    /// Decodes a register value. Ignores bits outside of the command's operands.
    pub const fn decode(word: CommandWord) -> Result<Self, CommandError> {
        Ok(match word.opcode() {
            1 => Command::FlushPages {
                gat: word.gat(),
                entry: word.entry(),
                count: word.count_minus_1() as u32 + 1,
            },
            2 => {
                let Some(vpid) = Vpid::new(word.vpid()) else {
                    return Err(CommandError::Operand);
                };
                Command::FlushVpid(vpid)
            }
            3 => Command::Fence(BusAddr(word.address())),
            4 => Command::Notify(BusAddr(word.address())),
            opcode => return Err(CommandError::Opcode(opcode)),
        })
    }
}
