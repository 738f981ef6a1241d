// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Generator of the BPF program. The kernel runs the program for every call of `socket()`, before
//! the function `update_socket_protocol(family, type, protocol)`. The program returns the protocol
//! to use. If it returns 0, the kernel runs the function itself, which returns the requested
//! protocol.
//!
//! The module af_extl may be unloaded while the program is attached. The program therefore returns
//! the module's protocol only while this protocol is registered. It searches the kernel's lists of
//! protocols (`inetsw[SOCK_STREAM]`, `inetsw6[SOCK_STREAM]`), which `socket()` searches afterwards.
//! It ignores an entry of a module that is being unloaded ([`Owner`]).
//!
//! The module waits for an RCU grace period before it unregisters the protocol. A `socket()` call
//! whose protocol was replaced earlier therefore finds the protocol. The call fails only if the
//! kernel preempts it for longer than the grace period and cannot load the module again.

use crate::asm::{Error, Helper, If, Program, Reg, Size};

/// Maximum number of list entries that the program checks.
const ENTRIES: i32 = 64;
/// Size of a program's name in bytes, including the terminating 0 (`TASK_COMM_LEN`).
pub const COMM: usize = 16;
/// Maximum number of program names. With more names, jumps of the program could be too long.
pub const MAX_NAMES: usize = 64;

/// Byte offset in the state array of the counter of replaced sockets.
pub const SWITCHED: u32 = 0;
/// Byte offset in the state array of the counter of sockets that use TCP because the module was not
/// loaded.
pub const ABSENT: u32 = 8;
/// Byte offset in the state array of a text that the user of this crate stores.
pub const NOTES: usize = 16;

/// Byte offsets of the pointers and members that lead from a list entry to the state of its module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner {
    /// Byte offset of the pointer to the operations in a list entry.
    pub ops: u32,
    /// Byte offset of the pointer to the module in the operations.
    pub module: u32,
    /// Byte offset of the state in the module.
    pub state: u32,
}

/// Value `MODULE_STATE_LIVE` of a loaded module's state.
const LIVE: i32 = 0;

/// Parameters of the program.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    /// Protocol number of the sockets that replace TCP sockets.
    pub protocol: u16,
    /// Addresses of the kernel's lists of stream protocols for IPv4 and IPv6. If an address is
    /// `None`, sockets of this IP version keep their protocol.
    pub lists: [Option<u64>; 2],
    /// Byte offset of the protocol number in a list entry.
    pub protocol_offset: u32,
    /// Byte offset of the list links in a list entry.
    pub list_offset: u32,
    /// Byte offsets that lead to the state of an entry's module.
    pub owner: Owner,
    /// Descriptor of the map with the control group whose programs are selected; `None` for all
    /// programs.
    pub cgroup_map: Option<i32>,
    /// Names of the selected programs; empty for all programs.
    pub only: Vec<String>,
    /// Names of programs that use TCP.
    pub not: Vec<String>,
    /// File descriptor of the state array.
    pub state_map: i32,
}

/// Returns a name in the kernel's form: truncated, padded with zeros, and split into two words.
fn comm(name: &str) -> [u64; 2] {
    let mut bytes = [0; COMM];
    for (to, from) in bytes.iter_mut().zip(name.bytes().take(COMM - 1)) {
        *to = from;
    }
    let [low, high] = [0, 8].map(|at| {
        let half: [u8; 8] = std::array::from_fn(|i| bytes[at + i]);
        u64::from_ne_bytes(half)
    });
    [low, high]
}

impl Switch {
    /// Returns the instructions of the program.
    pub fn program(&self) -> Result<Vec<u64>, Error> {
        use Reg::*;
        let mut p = Program::new();
        let [leave, v4, v6, found, done] = std::array::from_fn(|_| p.label());
        p.mov(R6, R1);
        // Arguments are 64-bit words. An `int` argument is the lower half of its word.
        p.load(Size::Double, R2, R6, 8);
        p.and32(R2, 0xf);
        p.jump_if32(R2, If::Ne, 1, leave); // type SOCK_STREAM
        let asked = p.label();
        p.load(Size::Double, R2, R6, 16);
        p.jump_if32(R2, If::Eq, 0, asked);
        // Protocol IPPROTO_MPTCP. Servers written in Go request it by default and accept TCP.
        p.jump_if32(R2, If::Eq, 262, asked);
        p.jump_if32(R2, If::Ne, 6, leave); // IPPROTO_TCP
        p.here(asked);
        p.load(Size::Double, R2, R6, 0);
        p.jump_if32(R2, If::Eq, 2, v4); // AF_INET
        p.jump_if32(R2, If::Eq, 10, v6); // AF_INET6
        p.jump(leave);
        let chosen = p.label();
        for (label, list) in [(v4, self.lists[0]), (v6, self.lists[1])] {
            p.here(label);
            match list {
                Some(address) => {
                    p.set64(R7, address);
                    p.jump(chosen);
                }
                None => p.jump(leave),
            }
        }
        p.here(chosen);
        if let Some(map) = self.cgroup_map {
            p.set_map(R1, map);
            p.set(R2, 0);
            p.call(Helper::CurrentUnderCgroup);
            p.jump_if32(R0, If::Ne, 1, leave);
        }
        self.names(&mut p, leave);
        // The loop searches the list. R9 is an entry, R7 the head, R8 the number of checked
        // entries.
        let (next, listed) = (p.label(), p.label());
        let absent = p.label();
        p.mov(R9, R7);
        p.set(R8, 0);
        p.here(next);
        read(&mut p, 8, R9, 0);
        p.jump_if32(R0, If::Ne, 0, absent);
        p.load(Size::Double, R9, R10, -8);
        p.jump_if(R9, If::Eq, R7, absent);
        let protocol = self.protocol_offset as i32 - self.list_offset as i32;
        read(&mut p, 2, R9, protocol);
        p.jump_if32(R0, If::Ne, 0, absent);
        p.load(Size::Half, R1, R10, -8);
        p.jump_if32(R1, If::Eq, self.protocol.into(), listed);
        p.add(R8, 1);
        p.jump_if_value(R8, If::Lt, ENTRIES, next);
        p.jump(absent);
        p.here(listed);
        let Owner { ops, module, state } = self.owner;
        for offset in [ops as i32 - self.list_offset as i32, module as i32] {
            read(&mut p, 8, R9, offset);
            p.jump_if32(R0, If::Ne, 0, absent);
            p.load(Size::Double, R9, R10, -8);
        }
        // Reads the lower two bytes of the int, which come first on little-endian machines.
        read(&mut p, 2, R9, state as i32);
        p.jump_if32(R0, If::Ne, 0, absent);
        p.load(Size::Half, R1, R10, -8);
        p.jump_if32(R1, If::Eq, LIVE, found);
        p.here(absent);
        self.count(&mut p, ABSENT);
        p.here(leave);
        p.set(R0, 0);
        p.jump(done);
        p.here(found);
        self.count(&mut p, SWITCHED);
        p.set(R0, self.protocol.into());
        p.here(done);
        p.exit();
        p.finish()
    }

    /// Appends a jump to `leave` that is taken if the name of the current program is not selected.
    fn names(&self, p: &mut Program, leave: crate::asm::Label) {
        use Reg::*;
        if self.only.is_empty() && self.not.is_empty() {
            return;
        }
        p.mov(R1, R10);
        p.add(R1, -16);
        p.set(R2, COMM as i32);
        p.call(Helper::CurrentComm);
        p.jump_if_value(R0, If::Ne, 0, leave);
        p.load(Size::Double, R8, R10, -16);
        p.load(Size::Double, R9, R10, -8);
        let meant = p.label();
        let all = self.not.iter().map(|name| (name, leave));
        for (name, to) in all.chain(self.only.iter().map(|name| (name, meant))) {
            let other = p.label();
            let [low, high] = comm(name);
            p.set64(R1, low);
            p.jump_if(R8, If::Ne, R1, other);
            p.set64(R1, high);
            p.jump_if(R9, If::Eq, R1, to);
            p.here(other);
        }
        if !self.only.is_empty() {
            p.jump(leave);
        }
        p.here(meant);
    }

    fn count(&self, p: &mut Program, offset: u32) {
        p.set_map_value(Reg::R1, self.state_map, offset);
        p.set(Reg::R2, 1);
        p.atomic_add(Reg::R1, 0, Reg::R2);
    }
}

/// Appends a read of kernel memory into the last bytes of the stack. `R0` is 0 on success.
fn read(p: &mut Program, bytes: i32, from: Reg, offset: i32) {
    p.mov(Reg::R3, from);
    p.add(Reg::R3, offset);
    p.mov(Reg::R1, Reg::R10);
    p.add(Reg::R1, -8);
    p.set(Reg::R2, bytes);
    p.call(Helper::ProbeReadKernel);
}

#[cfg(test)]
mod tests;
