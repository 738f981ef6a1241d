// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Assembler, disassembler, and map from program addresses to events.

use super::isa::{Instruction, Opcode, MAX_BURST};
use super::TriggerEvent;
use crate::ids::RegOffset;
use core::fmt;

/// Number of words of the program RAM.
pub const PROGRAM_WORDS: usize = 256;
/// Address of the idle loop. As next address, it ends a program.
pub const END: u8 = 255;
/// First address of continuation code. The program of event i starts at address i.
pub const FIRST_CONTINUATION: u8 = 32;

/// Kind of instructions that record an event's registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Style {
    /// One instruction reads a run of consecutive registers. The last read of an entry also writes
    /// the entry.
    Burst,
    /// One instruction reads one register, and a separate instruction writes the entry (opcode 6).
    /// The vendor's program uses these instructions for events 12, 23 and 25. The reason is unknown
    /// (G4), so this program uses them as well.
    Single,
}

/// Registers to record for one event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventProgram {
    /// Event that starts the program.
    pub event: TriggerEvent,
    /// Registers in the order in which they are recorded, seven per entry. With an empty list, the
    /// event writes no entry.
    pub registers: &'static [RegOffset],
    /// Kind of instructions that record the registers.
    pub style: Style,
}

/// Reason why a table cannot be assembled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AssembleError {
    /// The program does not fit into 256 words.
    TooLong,
    /// The table contains an event twice.
    Duplicate(TriggerEvent),
    /// A register offset is outside of the register file or not a multiple of 8.
    Register(RegOffset),
}

impl fmt::Display for AssembleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AssembleError::TooLong => f.write_str("program does not fit into 256 words"),
            AssembleError::Duplicate(event) => write!(f, "event {event} appears twice"),
            AssembleError::Register(offset) => write!(f, "{offset} is not a register"),
        }
    }
}

/// Table row and position of an entry. The key is the program address in the entry's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Source {
    /// Index of the row in the table.
    row: u8,
    /// Index of the entry among the event's entries, from 0.
    part: u8,
}

/// Assembled program. It has about 3 KiB and therefore belongs into a `static`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Program {
    ram: [u64; PROGRAM_WORDS],
    sources: [Option<Source>; PROGRAM_WORDS],
    table: &'static [EventProgram],
    used: u16,
}

/// Description of the entries with a certain program address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Emission {
    /// Event that caused the entry.
    pub event: TriggerEvent,
    /// Index of the entry among the event's entries, from 0.
    pub part: u8,
    /// Recorded registers. Payload word j of the entry is register j.
    pub registers: &'static [RegOffset],
}

impl Program {
    /// Returns the 256 words for the program RAM.
    pub const fn words(&self) -> &[u64; PROGRAM_WORDS] {
        &self.ram
    }

    /// Returns the number of words that contain instructions.
    pub const fn used(&self) -> u16 {
        self.used
    }

    /// Returns the description of entries with program address `pc`. Returns `None` if the
    /// instruction at this address writes no entry.
    pub fn emission(&self, pc: u16) -> Option<Emission> {
        let source = (*self.sources.get(pc as usize)?)?;
        let row = self.table.get(source.row as usize)?;
        let registers = row
            .registers
            .chunks(MAX_BURST as usize)
            .nth(source.part as usize)?;
        Some(Emission {
            event: row.event,
            part: source.part,
            registers,
        })
    }

    /// Returns the number of entries that `event` causes.
    pub fn parts(&self, event: TriggerEvent) -> u32 {
        let row = self
            .table
            .iter()
            .find(|row| row.event.number() == event.number());
        row.map_or(0, |row| {
            row.registers.len().div_ceil(MAX_BURST as usize) as u32
        })
    }
}

/// Assembles a program. Events without registers and events that are not in the table get opcode 4.
///
/// The function is intended for `const` evaluation. An invalid table is then a compile-time error,
/// and the program needs no stack.
pub const fn assemble(table: &'static [EventProgram]) -> Result<Program, AssembleError> {
    let mut program = Program {
        ram: [0; PROGRAM_WORDS],
        sources: [None; PROGRAM_WORDS],
        table,
        used: 0,
    };
    let none = Instruction {
        opcode: Opcode::NoProgram,
        next: END,
        slot: 0,
        len: 1,
        addr: RegOffset(0),
        emit: false,
        words: 0,
    };
    let mut te = 0;
    while te < FIRST_CONTINUATION as usize {
        program.ram[te] = none.encode();
        te += 1;
    }
    program.ram[END as usize] = Instruction {
        opcode: Opcode::Idle,
        ..none
    }
    .encode();
    program.used = FIRST_CONTINUATION as u16 + 1;

    let mut seen: u32 = 0;
    let mut free = FIRST_CONTINUATION;
    let mut row = 0;
    while row < table.len() {
        let event = table[row].event;
        if (seen >> event.number()) & 1 != 0 {
            return Err(AssembleError::Duplicate(event));
        }
        seen |= 1 << event.number();
        free = match place(&mut program, row, free) {
            Ok(free) => free,
            Err(e) => return Err(e),
        };
        row += 1;
    }
    Ok(program)
}

/// Stores the instructions of one event. Returns the next free continuation address.
const fn place(program: &mut Program, row: usize, mut free: u8) -> Result<u8, AssembleError> {
    let EventProgram {
        event,
        registers,
        style,
    } = program.table[row];
    let mut pc = event.number();
    let mut i = 0;
    while i < registers.len() {
        if !registers[i].is_valid() {
            return Err(AssembleError::Register(registers[i]));
        }
        let part = i / MAX_BURST as usize;
        let rest = registers.len() - part * MAX_BURST as usize;
        let words = if rest > MAX_BURST as usize {
            MAX_BURST
        } else {
            rest as u8
        };
        let slot = (i % MAX_BURST as usize) as u8;
        let mut len = 1;
        if matches!(style, Style::Burst) {
            while slot + len < words
                && registers[i + len as usize].0 == registers[i].0 + 8 * len as u32
            {
                len += 1;
            }
        }
        let entry_done = slot + len == words;
        i += len as usize;
        let last = i == registers.len();
        let emit_here = entry_done && matches!(style, Style::Burst);

        let mut read = Instruction {
            opcode: Opcode::Read,
            next: END,
            slot,
            len,
            addr: registers[i - len as usize],
            emit: emit_here,
            words: if emit_here { words } else { 0 },
        };
        let source = Some(Source {
            row: row as u8,
            part: part as u8,
        });
        if emit_here {
            program.sources[pc as usize] = source;
        }
        if !(last && emit_here) {
            if free == END {
                return Err(AssembleError::TooLong);
            }
            read.next = free;
            free += 1;
            program.used += 1;
        }
        program.ram[pc as usize] = read.encode();
        pc = read.next;

        if entry_done && !emit_here {
            let mut emit = Instruction {
                opcode: Opcode::Emit,
                next: END,
                slot: 0,
                len: 1,
                addr: RegOffset(0),
                emit: true,
                words,
            };
            program.sources[pc as usize] = source;
            if !last {
                if free == END {
                    return Err(AssembleError::TooLong);
                }
                emit.next = free;
                free += 1;
                program.used += 1;
            }
            program.ram[pc as usize] = emit.encode();
            pc = emit.next;
        }
    }
    Ok(free)
}
