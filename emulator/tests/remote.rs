//! Tests of accesses to registers of other nodes over several hops, and of faults of the ATU, over
//! the emulator's sockets.

mod common;

use common::{Emu, Guest};
use serde_json::json;
use std::time::{Duration, Instant};

const VPID: u64 = 252;
const QUEUE: u64 = 0x40_0000;
const DCQ: u64 = 0x41_0000;
const BUFFER: u64 = 0x42_0000;
const SLOTS: u64 = 512;
/// Page options that select traffic class 2 and register access.
const RRA: u64 = 6;

/// VPID 252 of a guest, opened by the sequence of HW §10.9.
struct Port {
    guest: Guest,
    next: u64,
}

impl Port {
    fn open(emu: &Emu, nic: usize) -> Self {
        let mut g = emu.guest(nic);
        g.init();
        for at in [0x9498, 0x9518] {
            g.w(at, 0xFF);
        }
        g.w(0x160_0080, 0x84_0200);
        g.w(0xE0_0000, 1);
        g.w(0x160_0800 + 8 * VPID, 0xF523);
        g.w(0x140_0000 + 0x1000 * VPID, 0);
        let segment = |k: u64| ((SLOTS / 2 - 1) << 2) | (((QUEUE >> 12) + k) << 18);
        for k in 0..2 {
            assert!(g.ram.write(DCQ + 8 * k, &segment(k).to_le_bytes()));
        }
        g.w(0xE0_0800 + 8 * VPID, SLOTS - 1);
        g.w(0xE0_1000 + 8 * VPID, 1 | ((DCQ >> 12) << 16));
        g.w(0xE0_2800 + 8 * VPID, 0);
        g.w(0xF0_0000 + 0x1000 * VPID, 1 << 32);
        g.w(0xE0_1800 + 8 * VPID, segment(0) | (1 << 58));
        g.w(0xE0_2000 + 8 * VPID, segment(1) | (1 << 58));
        g.barrier();
        Self { guest: g, next: 0 }
    }

    fn post(&mut self, options: u64, words: [u64; 3]) {
        let page = 0x400_0000 + (options << 20) + (VPID << 12);
        for (k, word) in (0..).zip(words) {
            self.guest.w(page + 8 * k, word);
        }
        self.guest.barrier();
    }

    /// Waits for the next notification. Returns its words.
    fn notification(&mut self) -> [u64; 2] {
        let at = QUEUE + 16 * self.next;
        let word = |port: &Self, at| port.qw(at);
        let deadline = Instant::now() + Duration::from_secs(30);
        while word(self, at + 8) == 0 {
            assert!(Instant::now() < deadline, "no notification");
            std::thread::sleep(Duration::from_millis(1));
        }
        let words = [word(self, at), word(self, at + 8)];
        assert!(self.guest.ram.write(at + 8, &[0; 8]));
        self.next = (self.next + 1) % SLOTS;
        words
    }

    fn qw(&self, at: u64) -> u64 {
        let mut raw = [0; 8];
        assert!(self.guest.ram.read(at, &mut raw));
        u64::from_le_bytes(raw)
    }

    /// Writes a register of a node by an immediate PUT with a requester notification (HW §13).
    fn rra_write(&mut self, node: u64, at: u64, value: u64) {
        let word0 = 3 | (6 << 2) | (VPID << 8) | (node << 16) | (1 << 32) | (7 << 40);
        self.post(RRA, [word0, at, value]);
        let status = 7 | (VPID << 23) | (node << 32) | (1 << 48) | (6 << 51) | (1 << 55);
        assert_eq!(self.notification(), [value, status], "node {node}");
    }

    /// Reads a register of a node by a byte GET into the buffer, with a completer notification.
    fn rra_read(&mut self, node: u64, at: u64) -> u64 {
        assert!(self.guest.ram.write(BUFFER, &[0xEE; 8]));
        let word0 = 3 | (VPID << 8) | (node << 16) | (4 << 32) | (7 << 40);
        self.post(RRA, [word0, at, BUFFER]);
        let status = 7 | (VPID << 23) | (node << 32) | (4 << 48) | (10 << 51) | (1 << 55);
        assert_eq!(self.notification(), [BUFFER, status], "node {node}");
        self.qw(BUFFER)
    }
}

#[test]
fn registers_of_every_node_of_a_torus() {
    let emu = Emu::start(&["--topology", "torus:2x2x2"]);
    let mut port = Port::open(&emu, 0);
    // These nodes have no guest. The set-up step has enabled their network ports.
    for nic in 1..8 {
        for offset in [0x9498, 0x9518] {
            emu.ctl(json!({"cmd": "poke", "nic": nic, "offset": offset, "value": 0xFF}));
        }
    }
    for node in 0..8u64 {
        assert_eq!((port.rra_read(node, 0x8008) >> 24) & 0xFFFF, node);
        port.rra_write(node, 0x8058, 0x1234_0000 + node);
        assert_eq!(port.rra_read(node, 0x8058), 0x1234_0000 + node);
        let peek = json!({"cmd": "peek", "nic": node, "offset": 0x8058});
        assert_eq!(emu.ctl(peek).as_u64(), Some(0x1234_0000 + node));
    }
    // Node 7 is three hops away. Three packets to it and two packets back have crossed the last
    // cables.
    let c = emu.counters();
    let to7: u64 = (c.links.iter())
        .filter(|l| l.ends.0.starts_with("7:") || l.ends.1.starts_with("7:"))
        .map(|l| l.forward.packets + l.backward.packets)
        .sum();
    assert_eq!(to7, 5);
    // A packet to a node that does not exist is lost in the network. Software must time out.
    let word0 = 3 | (VPID << 8) | (99 << 16) | (4 << 32) | (7 << 40);
    port.post(RRA, [word0, 0x8008, BUFFER]);
    assert_eq!(emu.counters().nics[0].network.illegal_routing, 1);
}

#[test]
fn answers_of_the_atu_can_be_delayed_and_lost() {
    let emu = Emu::start(&["--topology", "pair"]);
    let mut port = Port::open(&emu, 0);
    let notify = |port: &mut Port, at: u64| {
        assert!(port.guest.ram.write(at, &[0; 8]));
        port.guest.w(0xC008, (1 << 60) | 5);
        port.guest.w(0xC008, (4 << 60) | at);
        port.guest.barrier();
    };
    let faults =
        |f: serde_json::Value| drop(emu.ctl(json!({"cmd": "faults", "nic": 0, "faults": f})));
    let chip = |path: &str| emu.counters().nics[0].chip(path).unwrap();
    notify(&mut port, BUFFER);
    assert_eq!(port.qw(BUFFER), 1);
    // The delay is an hour, but the test ends it early.
    faults(json!({"atu-delay-ns": 3_600_000_000_000u64}));
    notify(&mut port, BUFFER);
    assert_eq!((port.qw(BUFFER), chip("atu.waiting")), (0, 2));
    faults(json!({}));
    assert_eq!((port.qw(BUFFER), chip("atu.waiting")), (1, 0));
    // This delay is short and ends without action of the test.
    faults(json!({"atu-delay-ns": 20_000_000}));
    notify(&mut port, BUFFER);
    let deadline = Instant::now() + Duration::from_secs(30);
    while port.qw(BUFFER) == 0 {
        assert!(Instant::now() < deadline, "no answer");
        std::thread::sleep(Duration::from_millis(1));
    }
    faults(json!({"atu-lose-every": 1}));
    notify(&mut port, BUFFER);
    assert_eq!((port.qw(BUFFER), chip("atu.lost_answers")), (0, 1));
    assert_eq!(emu.status().nics[0].faults.atu_lose_every, Some(1));
}

/// A cached translation that is not flushed is used again, unless the cache is off.
#[test]
fn the_cache_is_a_switch() {
    for (option, stale) in [("atu-tlb=on", true), ("atu-tlb=off", false)] {
        let emu = Emu::start(&["--topology", "pair", "--nic-option", option]);
        let mut port = Port::open(&emu, 0);
        let gat = 0x60_0000;
        assert!(port
            .guest
            .ram
            .write(gat, &(BUFFER | (VPID << 2) | 3).to_le_bytes()));
        port.guest.w(0xE000, (1 << 31) | (gat >> 21));
        port.guest.w(0xC000, 1);
        // This is a translated PUT to this node, with a completer notification.
        let word0 = 3 | (6 << 2) | (VPID << 8) | (4 << 32);
        let mut put = |value| {
            port.post(16, [word0, 8, value]);
            let error = port.notification()[1] >> 61;
            let now = port.qw(BUFFER + 8);
            assert!(port.guest.ram.write(gat, &[0; 8]));
            (error, now)
        };
        assert_eq!(put(1), (0, 1));
        let want = if stale { (0, 2) } else { (4, 1) };
        assert_eq!(put(2), want, "{option}");
        let found = emu.counters().nics[0].chip("atu.stale_hits").unwrap();
        assert_eq!(found, u64::from(stale));
    }
}
