// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of the BPF program. A small interpreter runs it with a simulated kernel that consists of
//! lists of protocols.

use super::*;
use std::collections::BTreeMap;

/// Simulated address of the end of the stack.
const STACK: u64 = 0x1_0000;
const ARRAY: u64 = 0x2_0000;
/// Simulated addresses of the heads of the two lists.
const HEADS: [u64; 2] = [0xffff_8880_0000_1000, 0xffff_8880_0000_2000];

/// Simulated address of the operations of all entries.
const OPS: u64 = 0xffff_ffff_c000_1000;
const MODULE: u64 = 0xffff_ffff_c000_2000;

/// Simulated state of the kernel that the program can read.
struct Kernel {
    memory: BTreeMap<u64, u8>,
    comm: &'static str,
    under: bool,
}

impl Kernel {
    /// Creates a kernel with these registered protocols of IPv4 (first slice) and IPv6 (second
    /// slice).
    fn new(protocols: [&[u16]; 2]) -> Self {
        let mut kernel = Self {
            memory: BTreeMap::new(),
            comm: "program",
            under: false,
        };
        for (head, list) in HEADS.into_iter().zip(protocols) {
            let at = |i: usize| head + 0x100 * i as u64;
            for i in 0..=list.len() {
                kernel.write(at(i), 8, at((i + 1) % (list.len() + 1)));
                if i > 0 {
                    kernel.write(at(i) + 18, 2, list[i - 1].into());
                    kernel.write(at(i) + 32, 8, OPS);
                }
            }
        }
        kernel.write(OPS + 8, 8, MODULE);
        kernel.write(MODULE, 4, 0);
        kernel
    }

    fn write(&mut self, at: u64, bytes: usize, value: u64) {
        for (i, byte) in value.to_le_bytes()[..bytes].iter().enumerate() {
            self.memory.insert(at + i as u64, *byte);
        }
    }

    fn read(&self, at: u64, bytes: usize) -> Option<u64> {
        let mut value = [0; 8];
        for (i, byte) in value[..bytes].iter_mut().enumerate() {
            *byte = *self.memory.get(&(at + i as u64))?;
        }
        Some(u64::from_le_bytes(value))
    }

    fn count(&self, which: u32) -> u64 {
        self.read(ARRAY + u64::from(which), 8).unwrap_or(0)
    }

    fn call(&mut self, helper: i32, r: &[u64; 11]) -> u64 {
        match helper {
            16 => {
                assert_eq!(r[2], COMM as u64);
                for (i, word) in comm(self.comm).into_iter().enumerate() {
                    self.write(r[1] + 8 * i as u64, 8, word);
                }
                0
            }
            37 => {
                assert_eq!((r[1], r[2]), (77, 0));
                self.under.into()
            }
            113 => match self.read(r[3], r[2] as usize) {
                Some(value) => {
                    self.write(r[1], r[2] as usize, value);
                    0
                }
                None => -14i64 as u64,
            },
            other => panic!("helper {other}"),
        }
    }

    /// Returns the protocol of the socket that a caller of `socket()` gets.
    fn socket(&mut self, switch: &Switch, family: u64, kind: u64, protocol: u64) -> u64 {
        let program = switch.program().unwrap();
        let context = 0x3_0000;
        // The upper halves of the arguments are undefined.
        for (i, argument) in [family, kind, protocol].into_iter().enumerate() {
            self.write(context + 8 * i as u64, 8, argument | (0xdead_beef << 32));
        }
        let mut r = [0u64; 11];
        (r[1], r[10]) = (context, STACK);
        let (mut pc, mut steps) = (0, 0);
        let result = loop {
            steps += 1;
            assert!(steps < 5000, "it does not end");
            let i = program[pc];
            let (code, to, from) = (i as u8, ((i >> 8) & 15) as usize, ((i >> 12) & 15) as usize);
            let (offset, imm) = ((i >> 16) as i16 as i64, (i >> 32) as i32);
            let wide = imm as i64 as u64;
            pc += 1;
            let by = |yes: bool| if yes { offset } else { 0 };
            let jump = match code {
                0xbf => {
                    r[to] = r[from];
                    0
                }
                0xb7 => {
                    r[to] = wide;
                    0
                }
                0x07 => {
                    r[to] = r[to].wrapping_add(wide);
                    0
                }
                0x54 => {
                    r[to] = u64::from(r[to] as u32 & imm as u32);
                    0
                }
                0x18 => {
                    let high = program[pc] >> 32;
                    pc += 1;
                    r[to] = match from {
                        0 => u64::from(imm as u32) | (high << 32),
                        1 => imm as u64,
                        _ => ARRAY + high,
                    };
                    0
                }
                0x79 | 0x69 => {
                    let bytes = if code == 0x79 { 8 } else { 2 };
                    let at = r[from].wrapping_add(offset as u64);
                    r[to] = self.read(at, bytes).expect("memory that was not written");
                    0
                }
                0xdb => {
                    let old = self.read(r[to], 8).unwrap_or(0);
                    self.write(r[to], 8, old + r[from]);
                    0
                }
                0x85 => {
                    r[0] = self.call(imm, &r);
                    // The argument registers are overwritten, so that the program cannot rely on
                    // them after a call.
                    r[1..6].fill(0xbad0_bad0_bad0_bad0);
                    0
                }
                0x95 => break r[0],
                0x05 => offset,
                0x16 => by(r[to] as u32 == imm as u32),
                0x56 => by(r[to] as u32 != imm as u32),
                0x55 => by(r[to] != wide),
                0xa5 => by(r[to] < wide),
                0x1d => by(r[to] == r[from]),
                0x5d => by(r[to] != r[from]),
                other => panic!("instruction {other:#x}"),
            };
            pc = (pc as i64 + jump) as usize;
        };
        // After the result 0, the kernel runs the function itself.
        if result == 0 {
            protocol
        } else {
            result
        }
    }
}

fn switch() -> Switch {
    Switch {
        protocol: 259,
        lists: HEADS.map(Some),
        protocol_offset: 18,
        list_offset: 0,
        owner: Owner {
            ops: 32,
            module: 8,
            state: 0,
        },
        ..Switch::default()
    }
}

#[test]
fn sockets_of_tcp_change_and_no_others() {
    let mut kernel = Kernel::new([&[6, 262, 259], &[259, 6]]);
    let all = switch();
    for family in [2, 10] {
        for kind in [1, 1 | 0o4000, 1 | 0o2000000 | 0o4000] {
            assert_eq!(kernel.socket(&all, family, kind, 0), 259);
            assert_eq!(kernel.socket(&all, family, kind, 6), 259);
            assert_eq!(kernel.socket(&all, family, kind, 132), 132);
            assert_eq!(kernel.socket(&all, family, kind, 262), 259);
        }
        assert_eq!(kernel.socket(&all, family, 2, 0), 0);
        assert_eq!(kernel.socket(&all, family, 3, 6), 6);
    }
    assert_eq!(kernel.socket(&all, 1, 1, 0), 0);
    assert_eq!((kernel.count(SWITCHED), kernel.count(ABSENT)), (18, 0));
}

#[test]
fn without_the_module_nothing_changes() {
    let mut kernel = Kernel::new([&[6, 262], &[]]);
    assert_eq!(kernel.socket(&switch(), 2, 1, 0), 0);
    assert_eq!(kernel.socket(&switch(), 10, 1, 6), 6);
    assert_eq!((kernel.count(SWITCHED), kernel.count(ABSENT)), (0, 2));
    // The protocol is registered for only one of the two IP versions.
    let mut kernel = Kernel::new([&[6], &[6, 259]]);
    assert_eq!(kernel.socket(&switch(), 2, 1, 0), 0);
    assert_eq!(kernel.socket(&switch(), 10, 1, 0), 259);
    let one = Switch {
        lists: [Some(HEADS[0]), None],
        ..switch()
    };
    assert_eq!(kernel.socket(&one, 10, 1, 0), 0);
    let other = Switch {
        protocol: 260,
        ..switch()
    };
    assert_eq!(kernel.socket(&other, 10, 1, 0), 0);
}

#[test]
fn a_list_that_has_no_end_or_cannot_be_read_ends() {
    let mut kernel = Kernel::new([&[6], &[6]]);
    let round = HEADS[0] + 0x100;
    kernel.write(round, 8, round);
    assert_eq!(kernel.socket(&switch(), 2, 1, 0), 0);
    kernel.write(round, 8, 0x1234);
    assert_eq!(kernel.socket(&switch(), 2, 1, 0), 0);
    assert_eq!(kernel.count(ABSENT), 2);
}

#[test]
fn a_module_on_its_way_out_is_left_alone() {
    let mut kernel = Kernel::new([&[6, 259], &[259]]);
    // The module states are MODULE_STATE_LIVE, COMING, GOING and UNFORMED.
    for (state, protocol) in [(0, 259), (1, 0), (2, 0), (3, 0), (0, 259)] {
        kernel.write(MODULE, 4, state);
        assert_eq!(kernel.socket(&switch(), 2, 1, 0), protocol);
        assert_eq!(kernel.socket(&switch(), 10, 1, 0), protocol);
    }
    assert_eq!((kernel.count(SWITCHED), kernel.count(ABSENT)), (4, 6));
    // The pointer leads to memory that was freed.
    kernel.write(OPS + 8, 8, 0x1234);
    assert_eq!(kernel.socket(&switch(), 2, 1, 0), 0);
}

#[test]
fn the_list_may_be_anywhere_in_an_entry() {
    let mut kernel = Kernel::new([&[259], &[259]]);
    // The list links are at offset 8 of an entry.
    let moved = Switch {
        protocol_offset: 26,
        list_offset: 8,
        owner: Owner {
            ops: 40,
            ..switch().owner
        },
        ..switch()
    };
    assert_eq!(kernel.socket(&moved, 2, 1, 0), 259);
}

#[test]
fn programs_are_chosen_by_name() {
    let names = |list: &[&str]| list.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let mut kernel = Kernel::new([&[259], &[259]]);
    let mut says = |comm, only: &[&str], not: &[&str]| {
        kernel.comm = comm;
        let chosen = Switch {
            only: names(only),
            not: names(not),
            ..switch()
        };
        kernel.socket(&chosen, 2, 1, 0) == 259
    };
    assert!(says("a", &["b", "a"], &[]));
    assert!(!says("a", &["b", "aa"], &[]));
    assert!(!says("aa", &["b", "a"], &[]));
    assert!(says("a", &[], &["b", "aa"]));
    assert!(!says("a", &[], &["b", "a"]));
    assert!(!says("a", &["a"], &["a"]));
    assert!(says("a", &["a"], &["b"]));
    // The program must compare both words of a name. Names are truncated as in the kernel.
    assert!(!says("redis-server-1", &["redis-server-2"], &[]));
    assert!(says(
        "postgres-client-of-mine",
        &["postgres-client-of-mine"],
        &[]
    ));
    assert_eq!(comm("postgres-client-of-mine"), comm("postgres-client"));
}

#[test]
fn a_control_group_is_asked_for() {
    let mut kernel = Kernel::new([&[259], &[259]]);
    let group = Switch {
        cgroup_map: Some(77),
        ..switch()
    };
    assert_eq!(kernel.socket(&group, 2, 1, 0), 0);
    kernel.under = true;
    assert_eq!(kernel.socket(&group, 2, 1, 0), 259);
    assert_eq!((kernel.count(SWITCHED), kernel.count(ABSENT)), (1, 0));
}

#[test]
fn as_many_names_as_are_allowed_fit() {
    let names: Vec<String> = (0..MAX_NAMES).map(|i| format!("program-{i}")).collect();
    let mut kernel = Kernel::new([&[259], &[259]]);
    kernel.comm = "program-63";
    let all = Switch {
        only: names.clone(),
        not: names[..MAX_NAMES - 1].to_vec(),
        ..switch()
    };
    assert_eq!(kernel.socket(&all, 2, 1, 0), 259);
    assert!(all.program().unwrap().len() < 1000);
}
