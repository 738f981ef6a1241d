// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Instruction format of the notification program (HW §6.6). The semantics are an assumption (G4).

use crate::ids::RegOffset;
use core::fmt;

/// Maximum number of registers in one entry, which limits a burst.
pub const MAX_BURST: u8 = 7;

bits! {
    /// Instruction word with any bit pattern. [`Instruction`] is the checked form.
    pub struct InstructionWord {
        /// Opcode.
        opcode / with_opcode: u8 [3:0];
        /// Program address of the next instruction.
        next / with_next: u8 [11:4];
        /// Index of the payload word in the entry that receives the first register.
        slot / with_slot: u8 [18:16];
        /// Number of registers to read − 1.
        len_minus_1 / with_len_minus_1: u8 [21:19];
        /// Byte offset of the first register, divided by 8.
        addr_div_8 / with_addr_div_8: u32 [47:22];
        /// True if the NIC writes the entry after this instruction.
        emit / with_emit: bool [48:48];
        /// Number of payload words of the entry.
        words / with_words: u8 [51:49];
    }
}

/// Known opcodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opcode {
    /// 1: idle loop, which is only at address 255.
    Idle,
    /// 3: reads registers, then writes the entry if `emit` is set.
    Read,
    /// 4: the event has no program.
    NoProgram,
    /// 6: writes the entry without reading registers.
    Emit,
}

impl Opcode {
    /// Returns the four-bit code.
    pub const fn code(self) -> u8 {
        match self {
            Opcode::Idle => 1,
            Opcode::Read => 3,
            Opcode::NoProgram => 4,
            Opcode::Emit => 6,
        }
    }

    /// Returns the opcode with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Opcode::Idle),
            3 => Some(Opcode::Read),
            4 => Some(Opcode::NoProgram),
            6 => Some(Opcode::Emit),
            _ => None,
        }
    }
}

/// Reason why an instruction word is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InstructionError {
    /// Unknown opcode. Opcode 0 marks an unused address.
    Opcode(u8),
    /// Bits that are 0 in every known instruction are set.
    Reserved(u64),
    /// Read that exceeds the seven payload words of an entry.
    Overflow {
        /// Index of the first payload word.
        slot: u8,
        /// Number of registers to read.
        len: u8,
    },
}

impl fmt::Display for InstructionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstructionError::Opcode(code) => write!(f, "unknown opcode {code}"),
            InstructionError::Reserved(bits) => write!(f, "reserved bits {bits:#x} are set"),
            InstructionError::Overflow { slot, len } => {
                write!(f, "{len} registers from word {slot} on exceed the entry")
            }
        }
    }
}

/// Instruction of the notification program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Instruction {
    /// Operation.
    pub opcode: Opcode,
    /// Program address of the next instruction. [`super::END`] ends the program.
    pub next: u8,
    /// Index of the payload word that receives the first register, 0…6.
    pub slot: u8,
    /// Number of consecutive registers to read, 1…7.
    pub len: u8,
    /// Offset of the first register to read.
    pub addr: RegOffset,
    /// True if the NIC writes the entry after this instruction.
    pub emit: bool,
    /// Number of payload words of the entry, 0…7. Used only with `emit`.
    pub words: u8,
}

impl Instruction {
    /// Returns the instruction word. Drops excess bits of the values.
    pub const fn encode(&self) -> u64 {
        InstructionWord(0)
            .with_opcode(self.opcode.code())
            .with_next(self.next)
            .with_slot(self.slot)
            .with_len_minus_1(self.len.saturating_sub(1))
            .with_addr_div_8(self.addr.0 / 8)
            .with_emit(self.emit)
            .with_words(self.words)
            .raw()
    }

    /// Decodes and checks an instruction word.
    pub const fn decode(raw: u64) -> Result<Self, InstructionError> {
        let word = InstructionWord(raw);
        let Some(opcode) = Opcode::from_code(word.opcode()) else {
            return Err(InstructionError::Opcode(word.opcode()));
        };
        let reserved = raw & !InstructionWord::KNOWN;
        if reserved != 0 {
            return Err(InstructionError::Reserved(reserved));
        }
        let len = word.len_minus_1() + 1;
        if matches!(opcode, Opcode::Read) && word.slot() + len > MAX_BURST {
            return Err(InstructionError::Overflow {
                slot: word.slot(),
                len,
            });
        }
        Ok(Self {
            opcode,
            next: word.next(),
            slot: word.slot(),
            len,
            addr: RegOffset(word.addr_div_8() * 8),
            emit: word.emit(),
            words: word.words(),
        })
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opcode {
            Opcode::Idle => f.write_str("idle")?,
            Opcode::NoProgram => f.write_str("none")?,
            Opcode::Emit => f.write_str("emit")?,
            Opcode::Read => write!(f, "read {} x{} -> word {}", self.addr, self.len, self.slot)?,
        }
        if self.emit {
            write!(f, ", write entry of {}", self.words)?;
        }
        write!(f, ", next {}", self.next)
    }
}
