//! Tests of the ATU: tables, page sizes, rights, cache, commands and faults (HW §11, G17).

use super::rig::*;
use super::rma::{desc, get, put, Pair, ALL, PLAIN};
use extoll_emulator::nic::{AtuTlb, Faults, NicConfig, ResetKind};
use std::num::NonZeroU32;
use wire::ids::RegOffset;
use wire::regs::rma as regs;
use wire::rma::{Descriptor, Modifiers, Notification, NotifySpec, Operation, PageOptions};
use wire::velo::SlotSize;

const TE: PageOptions = PageOptions {
    translate: true,
    ..PLAIN
};
/// Addresses of the translation tables of GAT 3 and GAT 4.
const TABLES: [u64; 2] = [0x0280_0000, 0x02A0_0000];
const COMMAND: RegOffset = RegOffset(0xC008);
const FIRST: u64 = 3;

fn nla(gat: u64, entry: u64, offset: u64) -> u64 {
    (gat << 30) | (entry << 12) | offset
}

fn gate(page: u64, vpid: u8, access: u64) -> u64 {
    page | (u64::from(vpid) << 2) | access
}

fn flush(gat: u64, entry: u64, count: u64) -> u64 {
    (1 << 60) | ((count - 1) << 28) | (gat << 18) | entry
}

fn base(rig: &mut Rig, i: usize, gat: u64, table: u64) {
    rig.write(
        i,
        RegOffset(0xE000 + 8 * gat as u32),
        (1 << 31) | (table >> 21),
    );
}

/// Sets an entry of GAT 3 or GAT 4. Returns the NLA of the first byte of its page.
fn set(rig: &mut Rig, i: usize, gat: u64, entry: u64, value: u64) -> u64 {
    let table = TABLES[(gat - FIRST) as usize];
    rig.nodes[i].ram.set_qw(table + 8 * entry, value);
    nla(gat, entry, 0)
}

struct Mapped {
    p: Pair,
    /// NLA of the first page of node 0's memory.
    local: u64,
    /// NLA of the first page of node 1's memory.
    remote: u64,
}

/// Creates a pair of NICs with GATs on both sides. In GAT 3, 16 pages are mapped from entry 100 on,
/// for reading and writing.
fn mapped(cfg: NicConfig) -> Mapped {
    let mut p = Pair::with_config(cfg);
    for i in 0..2 {
        for (k, table) in (0..).zip(TABLES) {
            base(&mut p.rig, i, FIRST + k, table);
        }
    }
    for k in 0..16 {
        set(&mut p.rig, 0, 3, 100 + k, gate(p.m0 + 4096 * k, 5, 3));
        set(&mut p.rig, 1, 3, 100 + k, gate(p.m1 + 4096 * k, 6, 3));
    }
    Mapped {
        p,
        local: nla(3, 100, 0),
        remote: nla(3, 100, 0),
    }
}

fn default() -> Mapped {
    mapped(NicConfig::default())
}

impl Mapped {
    fn tlb(mode: AtuTlb, entries: u32) -> Self {
        mapped(NicConfig {
            atu_tlb: mode,
            atu_tlb_entries: NonZeroU32::new(entries).expect("not 0"),
            ..NicConfig::default()
        })
    }

    /// Puts one byte at an NLA of node 1. Returns the error bits in the completer's notification.
    fn poke(&mut self, to: u64, byte: u8) -> u8 {
        let op = Operation::ImmediatePut {
            len: 1,
            remote: to,
            value: byte.into(),
        };
        self.p.post(TE, &desc(1, 6, ALL, op));
        let (a, b) = self.p.notes();
        assert_eq!((a.len(), b.len()), (1, 1));
        b[0].error
    }

    fn byte(&self, offset: u64) -> u8 {
        self.p.rig.nodes[1].ram.get(self.p.m1 + offset, 1)[0]
    }

    fn command(&mut self, value: u64) {
        self.p.rig.write(1, COMMAND, value);
    }

    fn counters(&self, i: usize) -> extoll_emulator::nic::AtuCounters {
        self.p.rig.nodes[i].nic.counters().atu.clone()
    }

    fn faults(&mut self, i: usize, faults: Faults) {
        self.p.rig.with(i, |nic, env| nic.set_faults(faults, env));
    }

    /// Returns the numbers of translation errors that the requester, the responder and the
    /// completer of a node have counted.
    fn trans(&mut self, i: usize) -> [u64; 3] {
        [
            regs::REQUESTER_ERROR_CNT_0,
            regs::RESPONDER_ERROR_CNT_1,
            regs::COMPLETER_ERROR_CNT_2,
        ]
        .map(|at| self.p.rig.read(i, at) >> 48)
    }
}

#[test]
fn every_page_size() {
    let mut m = default();
    let at = m.p.m1 + 0x1234;
    for code in 0..=18u64 {
        // Entries are indexed by 4 KiB units. The NLA provides the address bits inside the page.
        let inside = (4096u64 << code) - 1;
        let whole = nla(4, 0x2_A5A5 & (0x3_FFFF >> code << code), 0) | (at & inside);
        let entry = (whole >> 12) & 0x3_FFFF;
        let garbage = 0x0A5A_5000 & inside & !0xFFF;
        let page = (at & !inside) | garbage;
        let to = set(&mut m.p.rig, 1, 4, entry, gate(page, 6, 3) | (code << 59)) | (at & 0xFFF);
        assert_eq!(to, whole);
        assert_eq!(m.poke(to, code as u8 + 1), 0, "size code {code}");
        assert_eq!(m.byte(0x1234), code as u8 + 1, "size code {code}");
        m.p.rig.write(1, COMMAND, flush(4, entry, 1));
    }
    for code in 19..32u64 {
        let to = set(&mut m.p.rig, 1, 4, 7, gate(m.p.m1, 6, 3) | (code << 59));
        assert_eq!(m.poke(to, 1), 4, "size code {code}");
    }
    for bit in 52..59 {
        let to = set(&mut m.p.rig, 1, 4, 7, gate(m.p.m1, 6, 3) | (1 << bit));
        assert_eq!(m.poke(to, 1), 4, "reserved bit {bit}");
    }
}

#[test]
fn base_table_and_address_bits() {
    let mut m = default();
    // The last GAT of a 40-bit NLA works. If a higher bit is set, the NLA is invalid.
    base(&mut m.p.rig, 1, 1023, TABLES[1]);
    set(&mut m.p.rig, 1, 4, 0x3_FFFF, gate(m.p.m1, 6, 3));
    assert_eq!(m.poke(nla(1023, 0x3_FFFF, 5), 1), 0);
    assert_eq!(m.byte(5), 1);
    assert_eq!(m.poke(nla(1023, 0x3_FFFF, 5) | (1 << 40), 2), 4);
    // The valid bit of the GAT is not set.
    assert_eq!(m.poke(nla(1022, 0x3_FFFF, 5), 3), 4);
    m.p.rig
        .write(1, RegOffset(0xE000 + 8 * 1022), TABLES[1] >> 21);
    assert_eq!(m.poke(nla(1022, 0x3_FFFF, 5), 3), 4);
    // The table of the GAT is outside memory.
    base(&mut m.p.rig, 1, 1022, 1 << 40);
    assert_eq!(m.poke(nla(1022, 0x3_FFFF, 5), 3), 4);
    // The transfer crosses from the end of one GAT to the next GAT.
    set(&mut m.p.rig, 1, 3, 0x3_FFFF, gate(m.p.m1 + 0x5000, 6, 3));
    set(&mut m.p.rig, 1, 4, 0, gate(m.p.m1 + 0x2000, 6, 3));
    let data = pattern(1, 4096);
    m.p.rig.nodes[0].ram.put(m.p.m0, &data);
    let start = nla(3, 0x3_FFFF, 2048);
    let local = m.local;
    m.p.post(TE, &desc(1, 6, ALL, put(4096, local, start)));
    let ram = &m.p.rig.nodes[1].ram;
    assert_eq!(ram.get(m.p.m1 + 0x5800, 2048), &data[..2048]);
    assert_eq!(ram.get(m.p.m1 + 0x2000, 2048), &data[2048..]);
    m.p.notes();
    // A disabled ATU translates no address, not even a cached one.
    m.p.rig.write(1, RegOffset(0xC000), 0);
    assert_eq!(m.poke(start, 9), 4);
    m.p.rig.write(1, RegOffset(0xC000), 1);
    assert_eq!(m.poke(start, 9), 0);
}

/// The requester translates the addresses of its own data. The responder and the completer
/// translate remote addresses. The completer at the origin translates the target address of a GET.
#[test]
fn rights_are_checked_by_the_unit_that_translates() {
    for access in 0..4u64 {
        for owner in [true, false] {
            let mut m = default();
            let foreign = |vpid: u8| if owner { vpid } else { vpid ^ 0x80 };
            let bad0 = set(&mut m.p.rig, 0, 4, 9, gate(m.p.m0, foreign(5), access));
            let bad1 = set(&mut m.p.rig, 1, 4, 9, gate(m.p.m1, foreign(6), access));
            let (local, remote) = (m.local + 0x8000, m.remote + 0x8000);
            let ok = |need: u64| owner && access & need != 0;
            // Each case has an operation, the right that it needs, and the node and the unit that
            // translate the page under test.
            let cases = [
                (put(64, bad0, remote), 1, 0, 1u8),
                (put(64, local, bad1), 2, 1, 4),
                (get(64, bad1, local), 1, 1, 2),
                (get(64, remote, bad0), 2, 0, 4),
            ];
            for (n, (op, need, node, unit)) in cases.into_iter().enumerate() {
                let tag = format!("access {access}, owner {owner}, case {n}");
                for (i, at) in [(0, m.p.m0), (1, m.p.m1)] {
                    let fill = pattern(n as u64 * 2 + i as u64, 0x9000);
                    m.p.rig.nodes[i].ram.put(at, &fill);
                }
                let bytes = |m: &Mapped, i: usize| {
                    let at = [m.p.m0, m.p.m1][i];
                    m.p.rig.nodes[i].ram.get(at, 0x9000).to_vec()
                };
                let before = [0, 1].map(|i| bytes(&m, i));
                let (errors, events) =
                    (m.trans(node), m.p.rig.nodes[node].nic.counters().events[27]);
                let drops = m.p.rig.nodes[node].nic.counters().drops.translation;
                m.p.post(TE, &desc(1, 6, ALL, op));
                let (a, b) = m.p.notes();
                let seen: Vec<_> = a
                    .iter()
                    .chain(&b)
                    .map(|n| (n.kind.code(), n.error))
                    .collect();
                let e = if ok(need) { 0 } else { unit };
                let want = match (n, e) {
                    // A PUT whose data cannot be read sends no packet.
                    (0, 1) => vec![(1, 1)],
                    (0 | 1, _) => vec![(1, 0), (4, e)],
                    // The completer at the origin reports the responder's error, too.
                    (2, _) => vec![(1, 0), (4, e), (2, e)],
                    (_, _) => vec![(1, 0), (4, e), (2, 0)],
                };
                assert_eq!(seen, want, "{tag}");
                let mut counted = m.trans(node);
                counted[unit.trailing_zeros() as usize] -= u64::from(e != 0);
                assert_eq!(counted, errors, "{tag}");
                let c = m.p.rig.nodes[node].nic.counters();
                assert_eq!(c.events[27] - events, u64::from(e != 0), "{tag}");
                assert_eq!(c.drops.translation - drops, u64::from(e != 0), "{tag}");
                // Either all data was transferred, or no byte.
                for (i, before) in before.iter().enumerate() {
                    let moved = e == 0 && i == [1, 1, 0, 0][n];
                    assert_eq!(bytes(&m, i) != *before, moved, "{tag}, node {i}");
                }
            }
        }
    }
}

#[test]
fn a_hole_ends_a_transfer() {
    let ntr = Modifiers {
        ntr: true,
        ..Modifiers::NONE
    };
    for modifiers in [Modifiers::NONE, ntr] {
        let mut m = default();
        // 16 pages are mapped, but the transfers need 17. The first byte without a mapping is byte
        // 61,696, in the fragment that begins at byte 61,504.
        let (len, start, first) = (62_100, 0xF00, 61_504);
        m.p.rig.nodes[0].ram.put(m.p.m0, &[1; 0x1_0000]);
        m.p.rig.nodes[1].ram.put(m.p.m1, &[2; 0x1_0000]);
        for (i, vpid) in [(0, 5), (1, 6)] {
            let other = m.p.rig.nodes[i].ram.alloc(0x1_0000);
            m.p.rig.nodes[i].ram.put(other, &[3; 0x1_0000]);
            for k in 0..16 {
                set(&mut m.p.rig, i, 4, k, gate(other + 4096 * k, vpid, 3));
            }
        }
        let fine = nla(4, 0, 0);
        let (local, remote) = (m.local + start, m.remote + start);
        // Returns the failures at both nodes, and the types of the notifications that report no
        // failure.
        let mut post = |op| {
            let d = Descriptor {
                modifiers,
                ..desc(1, 6, ALL, op)
            };
            m.p.post(TE, &d);
            let (a, b) = m.p.notes();
            let failed = |list: &[Notification]| -> Vec<_> {
                let bad = list.iter().filter(|n| n.error != 0);
                bad.map(|n| (n.word0, n.last_size(), n.error)).collect()
            };
            let good = a.iter().chain(&b).filter(|n| n.error == 0);
            let mut kinds: Vec<u8> = good.map(|n| n.kind.code()).collect();
            kinds.dedup();
            (failed(&a), failed(&b), kinds)
        };
        let bad = |at: u64, unit: u8| vec![(at + first, 496, unit)];
        // With NTR, every fragment before the hole has a notification. Without NTR, none has.
        let good = |list: &[u8]| if modifiers.ntr { list.to_vec() } else { vec![] };
        // Case 1: the local write fails.
        let kinds = if modifiers.ntr {
            vec![1, 4, 2]
        } else {
            vec![1, 2]
        };
        let want = (bad(local, 4), vec![], kinds);
        assert_eq!(post(get(len, fine, local)), want);
        // Case 2: the local read fails. The peer has received the fragments before the hole, and
        // receives a packet that ends the transfer.
        let want = (bad(local, 1), bad(fine, 1), good(&[1, 4]));
        assert_eq!(post(put(len, local, fine)), want);
        // Case 3: the remote write fails.
        let want = (vec![], bad(remote, 4), [vec![1], good(&[4])].concat());
        assert_eq!(post(put(len, fine, remote)), want);
        // Case 4: the remote read fails. The notifications at both sides name the fragment, each
        // with the address on its side.
        let want = (
            bad(fine, 2),
            bad(remote, 2),
            [vec![1], good(&[4, 2])].concat(),
        );
        assert_eq!(post(get(len, remote, fine)), want);
        // The local and the remote write must change memory only before the fragment with the hole.
        for (i, at, old) in [(0, m.p.m0, 1u8), (1, m.p.m1, 2)] {
            let ram = m.p.rig.nodes[i].ram.get(at, 0x1_0000);
            let (before, after) = ram.split_at((start + first) as usize);
            let (untouched, moved) = before.split_at(start as usize);
            assert!(untouched.iter().chain(after).all(|b| *b == old), "node {i}");
            assert!(moved.iter().all(|b| *b == 3), "node {i}");
        }
    }
}

#[test]
fn cached_until_flushed() {
    let mut m = default();
    let at = m.remote + 4096;
    assert_eq!((m.poke(at, 1), m.byte(4096)), (0, 1));
    // The page is unregistered only in memory. The cached translation still leads to the page,
    // which may already have another owner.
    set(&mut m.p.rig, 1, 3, 101, 0);
    assert_eq!((m.poke(at, 2), m.byte(4096)), (0, 2));
    assert_eq!(m.counters(1).stale_hits, 1);
    let log = &m.p.rig.nodes[1].log.diagnostics;
    assert!(log.iter().any(|d| d.contains("not flushed")));
    // Flushes of other pages, other tables and other VPIDs have no effect.
    for command in [
        flush(3, 100, 1),
        flush(3, 102, 1024),
        flush(4, 101, 1),
        (2 << 60) | 5,
    ] {
        m.command(command);
        assert_eq!(m.poke(at, 3), 0, "{command:#x}");
    }
    m.command(flush(3, 101, 1));
    assert_eq!((m.poke(at, 4), m.byte(4096)), (4, 3));
    // A page whose translation failed can be registered without a flush.
    set(&mut m.p.rig, 1, 3, 101, gate(m.p.m1 + 0x2000, 6, 3));
    assert_eq!((m.poke(at, 5), m.byte(0x2000)), (0, 5));
    // The rights of a cached page are cached, too. They are checked for every VPID.
    set(&mut m.p.rig, 1, 3, 101, gate(m.p.m1 + 0x2000, 6, 1));
    assert_eq!(m.poke(at, 6), 0);
    m.command(flush(3, 90, 12));
    assert_eq!(m.poke(at, 7), 4, "read only");
    // Clearing the base table does not flush the cache. Switching the unit off and on does not,
    // either.
    assert_eq!(m.poke(m.remote, 8), 0);
    m.p.rig.write(1, RegOffset(0xE000 + 8 * 3), 0);
    m.p.rig.write(1, RegOffset(0xC000), 0);
    m.p.rig.write(1, RegOffset(0xC000), 1);
    assert_eq!(m.poke(m.remote, 9), 0);
    m.command((2 << 60) | 6);
    assert_eq!(m.poke(m.remote, 10), 4);
    assert_eq!(m.counters(1).cached, 0);
}

#[test]
fn a_flush_takes_up_to_1024_pages() {
    let mut m = default();
    // The range of one command contains 16 entries, spread over the range.
    let places: Vec<u64> = (0..16).map(|k| 2000 + k * 1023 / 15).collect();
    for (k, &entry) in (0..).zip(&places) {
        let to = set(&mut m.p.rig, 1, 4, entry, gate(m.p.m1 + 4096 * k, 6, 3));
        assert_eq!(m.poke(to, 1), 0);
        set(&mut m.p.rig, 1, 4, entry, 0);
    }
    assert_eq!(m.counters(1).cached, 16);
    m.command(flush(4, 2000, 1023));
    assert_eq!(m.poke(nla(4, 3023, 0), 1), 0, "the last one is not in it");
    assert_eq!(m.poke(nla(4, 3022, 0), 1), 4);
    m.command(flush(4, 2000, 1024));
    for &entry in &places {
        assert_eq!(m.poke(nla(4, entry, 0), 1), 4);
    }
    assert_eq!((m.counters(1).flushed, m.counters(1).cached), (16, 0));
    // A flush does not continue into the table of the next GAT.
    m.p.rig.nodes[1].log.diagnostics.clear();
    let next = set(&mut m.p.rig, 1, 4, 0, gate(m.p.m1, 6, 3));
    assert_eq!(m.poke(next, 1), 0);
    set(&mut m.p.rig, 1, 4, 0, 0);
    m.command(flush(3, 0x3_FFFF, 2));
    assert_eq!(m.poke(next, 1), 0);
    let log = &m.p.rig.nodes[1].log.diagnostics;
    assert!(log.iter().any(|d| d.contains("leaves GAT 3")));
}

#[test]
fn flush_by_vpid_leaves_others_alone() {
    let mut m = default();
    let mut q = m.p.rig.open_rma(1, 7, 2, 256);
    let mine = m.remote;
    let other = set(&mut m.p.rig, 1, 4, 1, gate(m.p.m1 + 0x1000, 7, 3));
    let poke7 = |m: &mut Mapped, q: &mut Queue| {
        let op = Operation::ImmediatePut {
            len: 1,
            remote: other,
            value: 1,
        };
        m.p.post(TE, &desc(1, 7, ALL, op));
        m.p.notes();
        m.p.rig.rma_take(q).expect("notification")[1] >> 61
    };
    assert_eq!((m.poke(mine, 1), poke7(&mut m, &mut q)), (0, 0));
    // A cached translation of one VPID is not used for another VPID.
    assert_eq!(m.poke(other, 1), 4);
    set(&mut m.p.rig, 1, 3, 100, 0);
    set(&mut m.p.rig, 1, 4, 1, 0);
    m.command((2 << 60) | 7);
    assert_eq!((m.poke(mine, 2), poke7(&mut m, &mut q)), (0, 4));
}

#[test]
fn the_cache_can_be_small_or_off() {
    let mut m = Mapped::tlb(AtuTlb::On, 2);
    for k in [0, 1, 0, 2] {
        assert_eq!(m.poke(m.remote + 4096 * k, 1), 0);
    }
    for k in 0..3 {
        set(&mut m.p.rig, 1, 3, 100 + k, 0);
    }
    let errors = [1, 0, 2].map(|k| m.poke(m.remote + 4096 * k, 2));
    assert_eq!(
        errors,
        [4, 0, 0],
        "the least recently used entry was replaced"
    );
    assert_eq!(m.counters(1).cached, 2);

    let mut m = Mapped::tlb(AtuTlb::Off, 2);
    assert_eq!(m.poke(m.remote, 1), 0);
    set(&mut m.p.rig, 1, 3, 100, 0);
    assert_eq!(m.poke(m.remote, 2), 4);
    let c = m.counters(1);
    assert_eq!((c.cached, c.tlb_hits, c.stale_hits), (0, 0, 0));
}

#[test]
fn whole_pages_can_be_cached_as_one() {
    // A page of 64 KiB, which 16 entries describe.
    let big = |m: &mut Mapped, value: u64, step: u64| {
        for k in 0..16 {
            set(&mut m.p.rig, 1, 4, 32 + k, value + step * k);
        }
    };
    for (mode, entries, after) in [(AtuTlb::On, 2, 4), (AtuTlb::WholePages, 1, 0)] {
        let mut m = Mapped::tlb(mode, 64);
        let place = 0x02C0_0000;
        let value = gate(place, 6, 3) | (4 << 59);
        // The low address bits have no meaning. Here they make all entries different.
        big(&mut m, value, 4096);
        let at = |k: u64| nla(4, 32 + k, 7);
        assert_eq!((m.poke(at(0), 1), m.poke(at(5), 2)), (0, 0));
        assert_eq!(m.p.rig.nodes[1].ram.get(place + 0x5007, 1), [2]);
        assert_eq!(m.counters(1).cached, entries, "{mode:?}");
        big(&mut m, 0, 0);
        // This unit has not been translated before.
        assert_eq!(m.poke(at(9), 3), after, "{mode:?}");
        // With whole pages, a flush of any unit drops the entry of the page. Otherwise, it drops
        // only the entry of the unit.
        m.command(flush(4, 32 + 5, 1));
        let whole = u8::from(mode == AtuTlb::WholePages) * 4;
        assert_eq!((m.poke(at(5), 4), m.poke(at(0), 4)), (4, whole), "{mode:?}");
        let c = m.counters(1);
        assert_eq!(c.stale_hits, 1, "{mode:?}: {c:?}");
    }
}

#[test]
fn resets_clear_the_cache() {
    for kind in [ResetKind::PowerOn, ResetKind::FunctionLevel] {
        let mut m = default();
        assert_eq!(m.poke(m.remote, 1), 0);
        set(&mut m.p.rig, 1, 3, 100, 0);
        m.p.rig.with(1, |nic, env| nic.reset(kind, env));
        assert_eq!(m.counters(1).cached, 0, "{kind:?}");
        super::probe::probe(&mut m.p.rig, 1, SlotSize::B128);
        m.p.q1 = m.p.rig.open_rma(1, 6, 2, 256);
        base(&mut m.p.rig, 1, 3, TABLES[0]);
        let at = m.remote;
        assert_eq!((m.poke(at, 2), m.poke(at + 4096, 2)), (4, 0), "{kind:?}");
    }
}

#[test]
fn commands_count_and_answer_in_order() {
    let mut m = default();
    let at = m.p.m1 + 8 * 6;
    for (n, opcode) in [(1u64, 3u64), (2, 4)] {
        m.p.rig.nodes[1].ram.set_qw(at, 0);
        assert_eq!(m.poke(m.remote, 1), 0);
        m.command(flush(3, 100, 8));
        m.command((2 << 60) | 5);
        assert_eq!(m.p.rig.nodes[1].ram.qw(at), 0);
        m.command((opcode << 60) | at);
        assert_eq!(m.p.rig.nodes[1].ram.qw(at), 1);
        let r = |m: &mut Mapped, at: u32| m.p.rig.read(1, RegOffset(at));
        assert_eq!(r(&mut m, 0xC020), ((2 * n) << 32) | (3 * n), "flushes, all");
        assert_eq!(r(&mut m, 0xC030), (n << 16) | n, "by index, by VPID");
        let (fences, notifications) = (1, n - 1);
        assert_eq!(r(&mut m, 0xC028), (notifications << 32) | fences);
        assert_eq!(m.counters(1).answers, n);
    }
    // Every sub-unit must have received and answered the fence.
    for at in [
        regs::PERF_REQUESTER_ATU_2,
        regs::PERF_RESPONDER_ATU_2,
        regs::PERF_COMPLETER_ATU_2,
    ] {
        assert_eq!(m.p.rig.read(1, at), (1 << 32) | 1);
    }
    // Software can write the counters, but cannot read the command register.
    m.p.rig.write(1, RegOffset(0xC020), 0);
    assert_eq!(m.p.rig.read(1, RegOffset(0xC020)), 0);
    assert_eq!(m.p.rig.read(1, COMMAND), 0);
    for (bad, why) in [
        (0, "opcode 0"),
        (5 << 60, "opcode 5"),
        ((2 << 60) | 256, "operand"),
    ] {
        m.command(bad);
        let log = &m.p.rig.nodes[1].log.diagnostics;
        assert!(log.last().is_some_and(|d| d.contains(why)), "{log:?}");
    }
    assert_eq!(m.p.rig.read(1, RegOffset(0xC020)), 0, "not commands");
    // The answer is sent to an address without memory.
    m.command((4 << 60) | (1 << 47));
    assert_eq!(m.counters(1).answers, 2);
    assert_eq!(m.p.rig.nodes[1].nic.counters().dma_faults, 1);
}

#[test]
fn translations_count() {
    let mut m = default();
    let (local, remote) = (m.local, m.remote);
    for _ in 0..2 {
        m.p.post(
            TE,
            &desc(1, 6, NotifySpec::NONE, put(3 * 4096, local, remote)),
        );
    }
    m.p.post(TE, &desc(1, 6, NotifySpec::NONE, get(8, 900 << 30, local)));
    m.p.post(TE, &desc(1, 6, NotifySpec::NONE, get(8, remote, local)));
    let r = |m: &mut Mapped, i, at: u32| m.p.rig.read(i, RegOffset(at));
    // At node 0: two PUTs of three pages, each of 25 packets of which two cross a page boundary,
    // and one GET of a cached page. At node 1: the other sides of these transfers, and a
    // translation that fails.
    let n = 2 * (25 + 2);
    assert_eq!(r(&mut m, 0, 0xC010), (3 << 32) | (n + 1));
    assert_eq!(r(&mut m, 1, 0xC010), (3 << 32) | (n + 1));
    assert_eq!((r(&mut m, 0, 0xC038), r(&mut m, 1, 0xC038)), (n + 1, n + 2));
    let perf = |m: &mut Mapped, i, at| m.p.rig.read(i, at);
    assert_eq!(perf(&mut m, 0, regs::PERF_REQUESTER_ATU_0), (n << 32) | n);
    assert_eq!(perf(&mut m, 0, regs::PERF_COMPLETER_ATU_0), (1 << 32) | 1);
    assert_eq!(perf(&mut m, 1, regs::PERF_COMPLETER_ATU_0), (n << 32) | n);
    assert_eq!(perf(&mut m, 1, regs::PERF_RESPONDER_ATU_0), (2 << 32) | 2);
    assert_eq!(perf(&mut m, 1, regs::PERF_RESPONDER_ATU_1), 1);
    let c = m.counters(1);
    assert_eq!((c.requests, c.refused), (n + 2, 1));
    assert_eq!((c.tlb_hits, c.cached), (n + 1 - 3, 3));
}

#[test]
fn preload_is_only_storage() {
    let mut m = default();
    let page = nla(3, 500, 0);
    let pa = m.p.m1 >> 12;
    m.p.rig
        .write(1, RegOffset(0xD000 + 16 * 6), 0xD | ((page >> 13) << 4));
    let qw1 = ((page >> 12) & 1) | (6 << 1) | (pa << 21) | (3 << 62);
    m.p.rig.write(1, RegOffset(0xD008 + 16 * 6), qw1);
    assert_eq!(m.p.rig.read(1, RegOffset(0xD008 + 16 * 6)), qw1);
    assert_eq!(m.poke(page, 1), 4);
}

#[test]
fn injected_translation_faults() {
    let mut m = default();
    let every = |n| Faults {
        atu_fault_every: n,
        ..Faults::default()
    };
    m.faults(1, every(Some(3)));
    let errors: Vec<u8> = (0..7).map(|_| m.poke(m.remote, 1)).collect();
    assert_eq!(errors, [0, 0, 4, 0, 0, 4, 0]);
    // Counting for the fault starts when the fault is set, even in the middle of a transfer.
    m.faults(1, every(None));
    assert_eq!(m.poke(m.remote, 1), 0);
    m.faults(1, every(Some(3)));
    let (local, remote) = (m.local, m.remote);
    m.p.post(TE, &desc(1, 6, ALL, get(4 * 4096, remote, local)));
    let (a, b) = m.p.notes();
    // Each packet is translated separately.
    let first = 2 * 496;
    assert_eq!((a[1].error, a[1].word0), (2, local + first));
    assert_eq!((b[0].error, b[0].word0), (2, remote + first));
    // The fault has the same effect on the requester's side.
    m.faults(1, every(None));
    m.faults(0, every(Some(1)));
    m.p.post(TE, &desc(1, 6, ALL, put(8, local, remote)));
    let (a, b) = m.p.notes();
    assert_eq!((a[0].error, b.len()), (1, 0));
}

#[test]
fn delayed_and_lost_answers() {
    const MS: u64 = 1_000_000;
    let mut m = default();
    let at = m.p.m1 + 0x8000;
    let faults = |delay, lose| Faults {
        atu_delay_ns: delay,
        atu_lose_every: lose,
        ..Faults::default()
    };
    let now = |m: &Mapped| m.p.rig.nodes[1].ram.now;
    m.faults(1, faults(Some(5 * MS), None));
    assert_eq!(m.poke(m.remote, 1), 0);
    set(&mut m.p.rig, 1, 3, 100, 0);
    m.command(flush(3, 100, 1));
    m.command((4 << 60) | at);
    let start = now(&m);
    assert_eq!(m.counters(1).waiting, 2);
    assert_eq!(m.p.rig.nodes[1].nic.next_deadline(), Some(start + 5 * MS));
    // During the delay, the page stays in use and no command is answered.
    m.p.rig.nodes[1].ram.now = start + 5 * MS - 1;
    m.p.rig.tick(1);
    assert_eq!((m.poke(m.remote, 2), m.p.rig.nodes[1].ram.qw(at)), (0, 0));
    m.p.rig.nodes[1].ram.now = start + 5 * MS;
    assert_eq!(m.p.rig.tick(1), None);
    assert_eq!((m.poke(m.remote, 3), m.p.rig.nodes[1].ram.qw(at)), (4, 1));
    // Commands must not overtake each other after the delay has been shortened. Ending the delay
    // executes all delayed commands.
    m.command((4 << 60) | at);
    m.faults(1, faults(Some(1), None));
    m.command((4 << 60) | (at + 8));
    m.p.rig.nodes[1].ram.now += 2;
    m.p.rig.tick(1);
    assert_eq!(m.p.rig.nodes[1].ram.qw(at + 8), 0);
    m.faults(1, faults(None, None));
    assert_eq!(m.p.rig.nodes[1].ram.qw(at + 8), 1);
    assert_eq!(m.counters(1).waiting, 0);
    // The number of delayed commands is limited. If there are more, the oldest commands are
    // executed early.
    m.faults(1, faults(Some(MS), None));
    for k in 0..5000 {
        m.command((4 << 60) | (at + 16 + 8 * k));
    }
    assert_eq!(m.counters(1).waiting, 4096);
    assert_eq!(m.p.rig.nodes[1].ram.qw(at + 16 + 8 * 903), 1);
    assert_eq!(m.p.rig.nodes[1].ram.qw(at + 16 + 8 * 904), 0);
    // A reset drops delayed commands.
    m.p.rig
        .with(1, |nic, env| nic.reset(ResetKind::FunctionLevel, env));
    assert_eq!(m.p.rig.nodes[1].nic.next_deadline(), None);

    let mut m = default();
    m.faults(1, faults(None, Some(2)));
    for k in 0..4 {
        m.command(((3 + k % 2) << 60) | (at + 8 * k));
    }
    let seen = [0, 1, 2, 3].map(|k| m.p.rig.nodes[1].ram.qw(at + 8 * k));
    assert_eq!(seen, [1, 0, 1, 0]);
    assert_eq!((m.counters(1).answers, m.counters(1).lost_answers), (2, 2));
}
