// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Assembler for BPF instructions (RFC 9669) with labels for jumps.

use std::fmt;

/// BPF register. `R0` receives the results of calls and of the program. `R1` to `R5` are arguments
/// of calls, which overwrite them. Calls preserve `R6` to `R9`. `R10` is the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Kernel functions that BPF programs may call, with their numbers (`enum bpf_func_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// `bpf_get_current_comm(to, size)`: stores the name of the current task.
    CurrentComm = 16,
    /// `bpf_current_task_under_cgroup(map, index)`: returns 1 if the current task is in the control
    /// group.
    CurrentUnderCgroup = 37,
    /// `bpf_probe_read_kernel(to, size, from)`: copies kernel memory and returns 0 on success.
    ProbeReadKernel = 113,
}

/// Meaning of a 64-bit constant in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Pseudo {
    Number = 0,
    MapFd = 1,
    MapValue = 2,
}

/// Target of jumps in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Condition of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum If {
    /// The operands are equal.
    Eq = 0x10,
    /// The first operand is less than the second. Both are unsigned numbers.
    Lt = 0xa0,
    /// The operands differ.
    Ne = 0x50,
}

/// Error of [`Program::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A jump's target was not set with [`Program::here`].
    NoPlace,
    /// A jump spans more than 32,767 instructions.
    TooFar,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPlace => "the target of a jump is undefined",
            Self::TooFar => "a jump spans too many instructions",
        })
    }
}

impl std::error::Error for Error {}

const CLASS_LD_IMM64: u8 = 0x18;
const CLASS_LDX: u8 = 0x61;
const CLASS_ATOMIC_DW: u8 = 0xdb;
const CLASS_JMP: u8 = 0x05;
const CLASS_JMP32: u8 = 0x06;
const SOURCE_REG: u8 = 0x08;
const MOV64: u8 = 0xb7;
const ADD64: u8 = 0x07;
const AND32: u8 = 0x54;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const JA: u8 = 0x05;

/// Size of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    /// Access of 2 bytes.
    Half = 0x08,
    /// Access of 8 bytes.
    Double = 0x18,
}

/// Program under construction.
#[derive(Default, Debug)]
pub struct Program {
    instructions: Vec<u64>,
    labels: Vec<Option<usize>>,
    /// Jumps of the program: index of the instruction, and target.
    jumps: Vec<(usize, Label)>,
}

impl Program {
    /// Returns an empty program.
    pub fn new() -> Self {
        Self::default()
    }

    fn put(&mut self, code: u8, to: Reg, from: u8, offset: i16, imm: i32) {
        let registers = to as u8 | (from << 4);
        self.instructions.push(
            u64::from(code)
                | (u64::from(registers) << 8)
                | (u64::from(offset as u16) << 16)
                | (u64::from(imm as u32) << 32),
        );
    }

    /// Returns a new label, whose position [`Program::here`] sets.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Sets the position of the label to the next instruction.
    pub fn here(&mut self, label: Label) {
        if let Some(at) = self.labels.get_mut(label.0) {
            *at = Some(self.instructions.len());
        }
    }

    /// Appends `to = from`.
    pub fn mov(&mut self, to: Reg, from: Reg) {
        self.put(MOV64 | SOURCE_REG, to, from as u8, 0, 0);
    }

    /// Appends `to = value`.
    pub fn set(&mut self, to: Reg, value: i32) {
        self.put(MOV64, to, 0, 0, value);
    }

    /// Appends `to += value`.
    pub fn add(&mut self, to: Reg, value: i32) {
        self.put(ADD64, to, 0, 0, value);
    }

    /// Appends an instruction that masks the lower 32 bits of `to` with `bits` and clears the upper
    /// 32 bits.
    pub fn and32(&mut self, to: Reg, bits: i32) {
        self.put(AND32, to, 0, 0, bits);
    }

    fn wide(&mut self, to: Reg, pseudo: Pseudo, low: u32, high: u32) {
        self.put(CLASS_LD_IMM64, to, pseudo as u8, 0, low as i32);
        self.put(0, Reg::R0, 0, 0, high as i32);
    }

    /// Appends `to = value` with a 64-bit constant.
    pub fn set64(&mut self, to: Reg, value: u64) {
        self.wide(to, Pseudo::Number, value as u32, (value >> 32) as u32);
    }

    /// Appends an instruction that sets `to` to a map, which helpers take as an argument.
    pub fn set_map(&mut self, to: Reg, fd: i32) {
        self.wide(to, Pseudo::MapFd, fd as u32, 0);
    }

    /// Appends an instruction that sets `to` to the address of byte `offset` in the only value of
    /// an array.
    pub fn set_map_value(&mut self, to: Reg, fd: i32, offset: u32) {
        self.wide(to, Pseudo::MapValue, fd as u32, offset);
    }

    /// Appends a load of `to` from memory at `from + offset`.
    pub fn load(&mut self, size: Size, to: Reg, from: Reg, offset: i16) {
        self.put(CLASS_LDX | size as u8, to, from as u8, offset, 0);
    }

    /// Appends an atomic addition of `from` to the 64-bit number at `to + offset`.
    pub fn atomic_add(&mut self, to: Reg, offset: i16, from: Reg) {
        self.put(CLASS_ATOMIC_DW, to, from as u8, offset, 0);
    }

    /// Appends a call of a kernel function.
    pub fn call(&mut self, helper: Helper) {
        self.put(CALL, Reg::R0, 0, 0, helper as i32);
    }

    /// Appends the end of the program. `R0` is the result.
    pub fn exit(&mut self) {
        self.put(EXIT, Reg::R0, 0, 0, 0);
    }

    fn to(&mut self, label: Label) {
        self.jumps.push((self.instructions.len(), label));
    }

    /// Appends a jump to a label.
    pub fn jump(&mut self, label: Label) {
        self.to(label);
        self.put(JA, Reg::R0, 0, 0, 0);
    }

    /// Appends a jump to a label that is taken if the condition is true for two registers.
    pub fn jump_if(&mut self, a: Reg, how: If, b: Reg, label: Label) {
        self.to(label);
        self.put(CLASS_JMP | SOURCE_REG | how as u8, a, b as u8, 0, 0);
    }

    /// Appends a jump to a label that is taken if the condition is true for a register and a
    /// number.
    pub fn jump_if_value(&mut self, a: Reg, how: If, value: i32, label: Label) {
        self.to(label);
        self.put(CLASS_JMP | how as u8, a, 0, 0, value);
    }

    /// Appends a jump like [`Program::jump_if_value`], which compares only the lower 32 bits of the
    /// register.
    pub fn jump_if32(&mut self, a: Reg, how: If, value: i32, label: Label) {
        self.to(label);
        self.put(CLASS_JMP32 | how as u8, a, 0, 0, value);
    }

    /// Resolves all jumps and returns the instructions.
    pub fn finish(mut self) -> Result<Vec<u64>, Error> {
        for (at, label) in self.jumps {
            let to = self.labels.get(label.0).copied().flatten();
            let to = to.ok_or(Error::NoPlace)?;
            // Jump offsets count from the instruction after the jump.
            let offset = to as i64 - at as i64 - 1;
            let offset = i16::try_from(offset).map_err(|_| Error::TooFar)?;
            self.instructions[at] |= u64::from(offset as u16) << 16;
        }
        Ok(self.instructions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of the first instruction in memory order.
    fn one(write: impl FnOnce(&mut Program)) -> Vec<[u8; 8]> {
        let mut program = Program::new();
        write(&mut program);
        let all = program.finish().unwrap();
        all.iter().map(|i| i.to_le_bytes()).collect()
    }

    #[test]
    fn instructions_are_those_of_the_standard() {
        use Reg::*;
        assert_eq!(one(|p| p.mov(R6, R1)), [[0xbf, 0x16, 0, 0, 0, 0, 0, 0]]);
        assert_eq!(
            one(|p| p.set(R0, -1)),
            [[0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]]
        );
        assert_eq!(
            one(|p| p.add(R1, -16)),
            [[0x07, 1, 0, 0, 0xf0, 0xff, 0xff, 0xff]]
        );
        assert_eq!(one(|p| p.and32(R3, 15)), [[0x54, 3, 0, 0, 15, 0, 0, 0]]);
        assert_eq!(
            one(|p| p.load(Size::Double, R2, R6, 8)),
            [[0x79, 0x62, 8, 0, 0, 0, 0, 0]]
        );
        assert_eq!(
            one(|p| p.load(Size::Half, R1, R10, -16)),
            [[0x69, 0xa1, 0xf0, 0xff, 0, 0, 0, 0]]
        );
        assert_eq!(
            one(|p| p.atomic_add(R1, 8, R2)),
            [[0xdb, 0x21, 8, 0, 0, 0, 0, 0]]
        );
        assert_eq!(
            one(|p| p.call(Helper::ProbeReadKernel)),
            [[0x85, 0, 0, 0, 113, 0, 0, 0]]
        );
        assert_eq!(one(Program::exit), [[0x95, 0, 0, 0, 0, 0, 0, 0]]);
    }

    #[test]
    fn constants_of_64_bits_take_two() {
        assert_eq!(
            one(|p| p.set64(Reg::R7, 0x1122_3344_5566_7788)),
            [
                [0x18, 7, 0, 0, 0x88, 0x77, 0x66, 0x55],
                [0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11]
            ]
        );
        assert_eq!(
            one(|p| p.set_map(Reg::R1, 5)),
            [[0x18, 0x11, 0, 0, 5, 0, 0, 0], [0; 8]]
        );
        assert_eq!(
            one(|p| p.set_map_value(Reg::R1, 5, 8)),
            [[0x18, 0x21, 0, 0, 5, 0, 0, 0], [0, 0, 0, 0, 8, 0, 0, 0]]
        );
    }

    #[test]
    fn jumps_count_from_behind_them() {
        let said = one(|p| {
            let (back, end) = (p.label(), p.label());
            p.here(back);
            p.jump_if32(Reg::R2, If::Eq, 10, end);
            p.jump_if_value(Reg::R8, If::Lt, 3, back);
            p.jump_if(Reg::R9, If::Ne, Reg::R7, end);
            p.jump(back);
            p.here(end);
            p.exit();
        });
        assert_eq!(said[0], [0x16, 2, 3, 0, 10, 0, 0, 0]);
        assert_eq!(said[1], [0xa5, 8, 0xfe, 0xff, 3, 0, 0, 0]);
        assert_eq!(said[2], [0x5d, 0x79, 1, 0, 0, 0, 0, 0]);
        assert_eq!(said[3], [0x05, 0, 0xfc, 0xff, 0, 0, 0, 0]);
    }

    #[test]
    fn a_jump_needs_a_place_that_it_reaches() {
        let mut program = Program::new();
        let nowhere = program.label();
        program.jump(nowhere);
        assert_eq!(program.finish(), Err(Error::NoPlace));
        let mut program = Program::new();
        let far = program.label();
        program.jump(far);
        (0..40_000).for_each(|_| program.exit());
        program.here(far);
        assert_eq!(program.finish(), Err(Error::TooFar));
    }
}
