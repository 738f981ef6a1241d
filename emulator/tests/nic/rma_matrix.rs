//! Tests of every RMA command with all notifications, page options, replication and several sizes.
//! They check data, notification words, traffic classes and interrupts. The expected values come
//! from the tables of HW §10, bit by bit, not from the formats that the model uses.

#![allow(clippy::precedence)] // bit patterns as the reference writes them

use super::rig::*;
use super::rma::Pair;
use extoll_emulator::env::NetPort;
use extoll_emulator::nic::NicConfig;
use wire::ids::RegOffset;
use wire::rma::PageOptions;

const GAT: u64 = 0x0280_0000;
/// NLA of the first byte of the memory of each node.
const NLA: u64 = (7 << 30) | (33 << 12);
const TARGET: u64 = (1 << 16) | (6 << 8);

/// The words of a descriptor, and its expected result.
struct Case {
    words: [u64; 3],
    command: u64,
    /// Code of the command in the completer's notification.
    response: u64,
    /// Word 0 in the notifications of requester, responder and completer: the start address of the
    /// transfer, or the value.
    word0: [u64; 3],
    /// Length of a transfer in bytes. For other commands, `Err` with the size field.
    len: Result<u64, u64>,
}

impl Case {
    /// Returns the expected notifications at the origin and at the peer.
    fn notes(&self, spec: u64, options: u64, ntr: bool) -> [Vec<[u64; 2]>; 2] {
        let get = matches!(self.command, 0 | 1 | 12);
        let mode = (options >> 2 & 1) | (options >> 3 & 1) << 1 | (options >> 4 & 1) << 2;
        let mode = mode | u64::from(ntr) << 4;
        let mut at = [vec![], vec![]];
        for unit in 0..3 {
            let here = match (unit, get) {
                (0, _) | (2, true) => 0,
                (1, true) | (2, false) => 1,
                _ => continue,
            };
            if spec & (1 << unit) == 0 {
                continue;
            }
            let (node, vpid) = [(1, 6), (0, 5)][here];
            let command = if unit == 2 {
                self.response
            } else {
                self.command
            };
            let fixed = vpid << 23 | node << 32 | 1 << (48 + unit) | command << 51 | mode << 55;
            let word0 = self.word0[unit];
            // The requester's notification of an immediate PUT contains the value.
            match self.len {
                Ok(len) if !(self.command == 6 && unit == 0) => {
                    let last = (len - 1) / 496;
                    for k in if ntr { 0..=last } else { last..=last } {
                        let size = (len - 496 * k).min(496);
                        at[here].push([word0 + 496 * k, fixed | (size - 1)]);
                    }
                }
                Ok(len) => at[here].push([word0, fixed | (len - 1)]),
                Err(field) => at[here].push([word0, fixed | field]),
            }
        }
        at
    }
}

fn word0(command: u64, spec: u64, ntr: bool, count: u64) -> u64 {
    3 | command << 2 | TARGET | spec << 32 | u64::from(ntr) << 36 | count << 40
}

struct Bench {
    p: Pair,
    locks: u64,
}

impl Bench {
    fn new() -> Self {
        let mut p = Pair::with_config(NicConfig::default());
        // The pages are mapped in reverse order on both sides.
        for (i, (m, vpid)) in [(p.m0, 5u64), (p.m1, 6)].into_iter().enumerate() {
            for k in 0..16 {
                let gate = (m + 4096 * (15 - k)) | vpid << 2 | 3;
                p.rig.nodes[i].ram.set_qw(GAT + 8 * (33 + k), gate);
            }
            p.rig
                .write(i, RegOffset(0xE000 + 8 * 7), 1 << 31 | GAT >> 21);
        }
        let locks = p.rig.read(1, RegOffset(0x160_0088));
        Self { p, locks }
    }

    fn at(&self, i: usize, translate: bool, offset: u64) -> u64 {
        offset
            + if translate {
                NLA
            } else {
                [self.p.m0, self.p.m1][i]
            }
    }

    /// Returns the physical address of the byte at `offset`.
    fn place(&self, i: usize, translate: bool, offset: u64) -> u64 {
        let m = [self.p.m0, self.p.m1][i];
        match translate {
            true => m + 4096 * (15 - offset / 4096) + offset % 4096,
            false => m + offset,
        }
    }

    fn store(&mut self, i: usize, translate: bool, offset: u64, data: &[u8]) {
        for (k, byte) in (offset..).zip(data) {
            let at = self.place(i, translate, k);
            self.p.rig.nodes[i].ram.put(at, &[*byte]);
        }
    }

    fn load(&self, i: usize, translate: bool, offset: u64, len: u64) -> Vec<u8> {
        let bytes = (offset..offset + len).map(|k| {
            let at = self.place(i, translate, k);
            self.p.rig.nodes[i].ram.get(at, 1)[0]
        });
        bytes.collect()
    }

    /// Executes a case on a requester page. Checks all results except the data.
    fn run(&mut self, case: &Case, spec: u64, options: u64, ntr: bool) {
        let tag = format!("{:x?} spec {spec} page {options} ntr {ntr}", case.words);
        let rig = &mut self.p.rig;
        // Arms the interrupts again, and discards interrupts that were missed in the last case.
        for (i, q) in [&self.p.q0, &self.p.q1].into_iter().enumerate() {
            rig.commit(q, true);
            while !rig.snq_handle(i).is_empty() {
                rig.commit(q, true);
            }
        }
        rig.carried.clear();
        rig.rma_raw(0, 5, PageOptions::from_index(options as u8), case.words);
        let want = case.notes(spec, options, ntr);
        let seen = [rig.rma_drain(&mut self.p.q0), rig.rma_drain(&mut self.p.q1)];
        assert_eq!(seen, want, "{tag}");
        // Requests keep their traffic class. Responses to classes 0 and 1 have class 1, responses
        // to classes 2 and 3 have class 3.
        let tc = (options & 3) as u8;
        let back = [1, 1, 3, 3][usize::from(tc)];
        // Data is sent in packets of 496 bytes (HW §10.3).
        let packets = case.len.map_or(1, |len| len.div_ceil(496)) as usize;
        let answers = |n| std::iter::repeat_n((NetPort::RmaCompleter, back), n);
        let mut carried = vec![];
        match case.command {
            0 | 1 => {
                carried.push((NetPort::RmaResponder, tc));
                carried.extend(answers(packets));
            }
            12 => {
                let responder = case.words[0] >> 40 & 1 == 1;
                let port = [NetPort::RmaCompleter, NetPort::RmaResponder][usize::from(responder)];
                carried.push((port, tc));
                carried.extend(answers(1));
            }
            _ => carried.extend(std::iter::repeat_n((NetPort::RmaCompleter, tc), packets)),
        }
        assert_eq!(rig.carried, carried, "{tag}");
        // Every VPID that received a notification raises one interrupt if the page has interrupts
        // enabled.
        for (i, want) in want.iter().enumerate() {
            let entries = rig.snq_handle(i);
            let due = usize::from(options & 8 != 0 && !want.is_empty());
            assert_eq!(entries.len(), due, "{tag}, node {i}");
            if due == 1 {
                assert_eq!(super::velo::vectors(&entries), [5 + i as u16], "{tag}");
            }
        }
    }
}

/// Tests transfers by the command with code `command`, with lengths `lens` in bytes.
fn transfers(command: u64, lens: &[u64]) {
    let mut b = Bench::new();
    let mut seed = command << 32;
    for &len in lens {
        for page in 0..32u64 {
            if page & 4 != 0 {
                continue; // Another test covers registers.
            }
            let te = page & 16 != 0;
            for spec in 0..8 {
                for ntr in [false, true] {
                    seed += 1;
                    // The addresses have all alignments. Quadword commands accept any alignment,
                    // too (G12).
                    let (here, there) = (seed % 64 + 300, seed * 7 % 64 + 4000);
                    let (local, remote) = (b.at(0, te, here), b.at(1, te, there));
                    let is_get = command < 2;
                    let data = pattern(seed, len as usize);
                    let (from, at, to, dest) = match is_get {
                        true => (1, there, 0, here),
                        false => (0, here, 1, there),
                    };
                    b.store(from, te, at, &data);
                    b.store(to, te, dest - 1, &vec![0xEE; len as usize + 2]);
                    let (word1, word2, word) = match is_get {
                        true => (remote, local, [local, remote, local]),
                        false => (local, remote, [local, 0, remote]),
                    };
                    let case = Case {
                        words: [word0(command, spec, ntr, len - 1), word1, word2],
                        command,
                        response: if is_get { command + 10 } else { command },
                        word0: word,
                        len: Ok(len),
                    };
                    b.run(&case, spec, page, ntr);
                    let got = b.load(to, te, dest - 1, len + 2);
                    assert_eq!(got[1..got.len() - 1], data, "{:x?}", case.words);
                    assert_eq!((got[0], got[got.len() - 1]), (0xEE, 0xEE), "around it");
                }
            }
        }
    }
}

const LENS: [u64; 12] = [1, 8, 119, 120, 121, 495, 496, 497, 992, 4095, 4096, 4097];

#[test]
fn byte_gets() {
    transfers(0, &LENS);
}

#[test]
fn quadword_gets() {
    transfers(1, &LENS);
}

#[test]
fn byte_puts() {
    transfers(2, &LENS);
}

#[test]
fn quadword_puts() {
    transfers(3, &LENS);
}

#[test]
fn puts_without_memory_at_the_origin() {
    let mut b = Bench::new();
    let value = 0x1122_3344_5566_7788u64;
    for page in (0..32u64).filter(|p| p & 4 == 0) {
        let te = page & 16 != 0;
        for spec in 0..8 {
            for ntr in [false, true] {
                let class = 0x80 | page;
                let case = Case {
                    words: [word0(5, spec, ntr, class), value, 0],
                    command: 5,
                    response: 5,
                    word0: [value; 3],
                    len: Err(class),
                };
                b.run(&case, spec, page, ntr);
                for len in 1..=8u64 {
                    // The data crosses the end of a page.
                    let offset = 4096 - len / 2;
                    b.store(1, te, offset - 1, &[0xEE; 10]);
                    let to = b.at(1, te, offset);
                    let case = Case {
                        words: [word0(6, spec, ntr, len - 1), to, value],
                        command: 6,
                        response: 6,
                        word0: [value, 0, to],
                        len: Ok(len),
                    };
                    b.run(&case, spec, page, ntr);
                    let mut want = [0xEE; 10];
                    let n = len as usize;
                    want[1..=n].copy_from_slice(&value.to_le_bytes()[..n]);
                    assert_eq!(b.load(1, te, offset - 1, 10), want, "{len} bytes");
                }
            }
        }
    }
}

#[test]
fn locks_of_both_units() {
    let mut b = Bench::new();
    // Value before, compare operand, addend, result and value after. The comparison is signed, and
    // the sum wraps (G16).
    let ops: [(i32, i32, i32, u64, i32); 7] = [
        (0, 0, 1, 1, 1),
        (1, 0, 1, 0, 1),
        (1, i32::MAX, -1, 1, 0),
        (-5, -5, 2, 1, -3),
        (-3, -4, 2, 0, -3),
        (i32::MIN, -1, -1, 1, i32::MAX),
        (i32::MAX, i32::MAX, 1, 1, i32::MIN),
    ];
    for unit in 0..2u64 {
        for page in (0..32u64).filter(|p| p & 4 == 0) {
            for spec in 0..8 {
                for (k, (old, compare, add, result, new)) in ops.into_iter().enumerate() {
                    let number = (page + k as u64) % 16;
                    let cell = b.locks + 4 * (6 + 256 * number);
                    b.p.rig.nodes[1].ram.put(cell, &old.to_le_bytes());
                    let word = |result: u64, value: i32| {
                        number | result << 24 | u64::from(value as u32) << 32
                    };
                    let told = word(result, new);
                    let case = Case {
                        words: [
                            word0(12, spec, false, unit),
                            u64::from(compare as u32) << 32 | number,
                            u64::from(add as u32) << 32,
                        ],
                        command: 12,
                        response: 13,
                        word0: [word(0, compare), told, told],
                        len: Err(0),
                    };
                    b.run(&case, spec, page, false);
                    assert_eq!(b.p.rig.nodes[1].ram.get(cell, 4), new.to_le_bytes());
                }
            }
        }
    }
}

#[test]
fn modifiers_that_are_not_there() {
    let mut b = Bench::new();
    let (x, y) = (0x1111_0000_0000_0123u64, 0x2222_0000_0000_0456u64);
    // Command, descriptor bits above 39, and word 0 and size field of the requester's notification.
    let cases = [
        (0u64, 999u64, y, 495u64),
        (1, 7, y, 7),
        (2, 999, x, 495),
        (3, 495, x, 495),
        (5, 0xC5, x, 0xC5),
        (6, 3, y, 3),
        (12, 1, 0x1111_0000_0000_0123, 0),
    ];
    let counted = |b: &mut Bench| b.p.rig.read(0, RegOffset(0x160_1018)) >> 16;
    let mut want = 0u64;
    for (command, count, told, size) in cases {
        for modifiers in (1..16u64).filter(|m| m & 0b1101 != 0) {
            for page in 0..32u64 {
                for spec in [0, 1, 6, 7] {
                    let words = [word0(command, spec, false, count) | modifiers << 35, x, y];
                    b.p.rig
                        .rma_raw(0, 5, PageOptions::from_index(page as u8), words);
                    // Accelerator modes count in `exldis`, multicast counts in `cmdt` (G14).
                    want += if modifiers & 12 != 0 { 1 << 16 } else { 1 };
                    let bits = [
                        page >> 2,
                        page >> 3,
                        page >> 4,
                        modifiers >> 3,
                        modifiers >> 1,
                        modifiers >> 2,
                    ];
                    let mode = (0..)
                        .zip(bits)
                        .fold(0, |sum, (k, bit)| sum | (bit & 1) << k);
                    let fixed = 6 << 23 | 1 << 32 | 1 << 48 | command << 51 | mode << 55 | 1 << 61;
                    let all = b.p.rig.rma_drain(&mut b.p.q0);
                    let tells = if spec & 1 == 1 {
                        vec![[told, fixed | size]]
                    } else {
                        vec![]
                    };
                    assert_eq!(all, tells, "{words:x?} page {page}");
                }
                b.p.rig.commit(&b.p.q0, false);
            }
        }
    }
    assert_eq!(counted(&mut b), want);
    assert_eq!(b.p.rig.nodes[1].nic.counters().packets_received, 0);
}

/// These sizes are too large for the test of all options.
#[test]
fn large_transfers() {
    let mut p = Pair::new();
    let len = 8u64 << 20;
    let (from, to) = (
        p.rig.nodes[0].ram.alloc(len + 4096),
        p.rig.nodes[1].ram.alloc(len + 4096),
    );
    for i in 0..2 {
        for k in 0..2049 {
            let (m, vpid) = [(from, 5u64), (to, 6)][i];
            p.rig.nodes[i]
                .ram
                .set_qw(GAT + 8 * (33 + k), (m + 4096 * k) | vpid << 2 | 3);
        }
        p.rig
            .write(i, RegOffset(0xE000 + 8 * 7), 1 << 31 | GAT >> 21);
    }
    for (n, len) in [1 << 20, len - 1, len].into_iter().enumerate() {
        for page in [0u8, 16] {
            let data = pattern(n as u64, len as usize);
            p.rig.nodes[0].ram.put(from + 9, &data);
            let start = |m: u64| 9 + if page == 0 { m } else { NLA };
            let (local, remote) = (start(from), start(to));
            let put = [word0(2, 5, false, len - 1), local, remote];
            p.rig.rma_raw(0, 5, PageOptions::from_index(page), put);
            assert!(p.rig.nodes[1].ram.get(to + 9, len as usize) == data);
            p.rig.nodes[0].ram.put(from, &vec![0; len as usize + 9]);
            let get = [word0(0, 4, false, len - 1), remote, local];
            p.rig.rma_raw(0, 5, PageOptions::from_index(page), get);
            assert!(p.rig.nodes[0].ram.get(from + 9, len as usize) == data);
            let last = (len - 1) / 496 * 496;
            let (a, b) = p.notes();
            let seen: Vec<_> = a.iter().chain(&b).map(|n| n.word0).collect();
            assert_eq!(seen, [local + last, local + last, remote + last]);
            assert!(a
                .iter()
                .chain(&b)
                .all(|n| u64::from(n.last_size()) == len - last));
        }
    }
}
