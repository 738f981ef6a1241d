// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The program. It is run by the kernel whenever somebody calls `socket()`, in place of the function `update_socket_protocol(family, type,
//! protocol)`, whose result is the protocol that is used: 0 leaves that to the function itself, which returns what was asked for.
//!
//! The module may go while the program is attached. So it asks for the module's protocol only if that is registered now, as the
//! kernel's own list of protocols says (`inetsw[SOCK_STREAM]`, `inetsw6[SOCK_STREAM]`, which `socket()` goes through just after): else the
//! caller gets what it asked for. A module that is on its way out has its protocol in the list for some time, and is not asked for either
//! ([`Owner`]); it waits for a grace period of RCU before it takes the protocol off, so that whoever was switched before has found it. Only where
//! the kernel is preempted between both looks for that long, and can't load the module again, is a socket refused.

use crate::asm::{Error, Helper, If, Program, Reg, Size};

/// Most entries of the kernel's list that are looked at.
const ENTRIES: i32 = 64;
/// Bytes of a program's name, with the 0 at its end (`TASK_COMM_LEN`).
pub const COMM: usize = 16;
/// Where the names of programs stop mattering: more would make the program too long for its jumps.
pub const MOST_NAMES: usize = 64;

/// Offsets in the array that belongs to the program: sockets that were switched, and those that could not be, since the module was not
/// there. Behind them is room for what the user wants to know of it.
pub const SWITCHED: u32 = 0;
/// See [`SWITCHED`].
pub const ABSENT: u32 = 8;
/// Where the room begins.
pub const NOTES: usize = 16;

/// Where the state of an entry's module is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner {
    /// Of the table of operations in an entry of the lists.
    pub ops: u32,
    /// Of the module in the table.
    pub module: u32,
    /// Of its state in the module.
    pub state: u32,
}

/// State of a module that is there (`MODULE_STATE_LIVE`).
const LIVE: i32 = 0;

/// What is fixed when the program is made.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    /// Protocol number to use.
    pub protocol: u16,
    /// Addresses of the kernel's lists of protocols for stream sockets of IPv4 and IPv6; without one, sockets of that version stay as
    /// they are.
    pub lists: [Option<u64>; 2],
    /// Where the protocol number is in an entry of the lists, and the list in an entry.
    pub protocol_offset: u32,
    /// See there.
    pub list_offset: u32,
    /// See there.
    pub owner: Owner,
    /// A map with the control group whose programs are meant; else all.
    pub cgroup_map: Option<i32>,
    /// Only programs of these names, if there are any.
    pub only: Vec<String>,
    /// No programs of these names.
    pub not: Vec<String>,
    /// The array that belongs to it.
    pub state_map: i32,
}

/// A name as the kernel has it: cut, and filled up with 0, in two words.
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
    /// The instructions.
    pub fn program(&self) -> Result<Vec<u64>, Error> {
        use Reg::*;
        let mut p = Program::new();
        let [leave, v4, v6, found, done] = std::array::from_fn(|_| p.label());
        p.mov(R6, R1);
        // Arguments of the function are words of 64 bits here, of which an int has the lower half.
        p.load(Size::Double, R2, R6, 8);
        p.and32(R2, 0xf);
        p.jump_if32(R2, If::Ne, 1, leave); // SOCK_STREAM
        let asked = p.label();
        p.load(Size::Double, R2, R6, 16);
        p.jump_if32(R2, If::Eq, 0, asked);
        // IPPROTO_MPTCP: servers in Go ask for it if they have not been told otherwise, and take TCP.
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
        // The list: R9 is an element, R7 its head, R8 counts.
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
        // Of an int on a machine where the lower half comes first.
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

    /// Leaves if the name of the current program is not one of those that are meant.
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

/// Reads memory of the kernel to the end of the stack; `R0` is 0 if it could be read.
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
