//! RMA with translated addresses, locks, remote registers.

use super::rig::*;
use super::rma::{desc, get, put, Pair, ALL, PLAIN};
use wire::ids::RegOffset;
use wire::regs::rma as regs;
use wire::rma::{
    last_fragment_start, Command, LockTarget, NotificationType, NotifySpec, Operation, PageOptions,
};

const TE: PageOptions = PageOptions {
    translate: true,
    ..PLAIN
};
const RRA: PageOptions = PageOptions {
    rra: true,
    traffic_class: 2,
    ..PLAIN
};

/// Maps `pages` pages at GAT 3, entry 100 on, for a VPID; returns the NLA.
fn map(rig: &mut Rig, i: usize, vpid: u8, pages: &[u64], access: u64) -> u64 {
    let gat = 0x0280_0000; // 2 MiB aligned
    for (k, page) in (100..).zip(pages) {
        rig.nodes[i]
            .ram
            .set_qw(gat + 8 * k, page | (u64::from(vpid) << 2) | access);
    }
    rig.write(i, RegOffset(0xE000 + 8 * 3), (1 << 31) | (gat >> 21));
    (3 << 30) | (100 << 12)
}

#[test]
fn translated_transfers() {
    let mut p = Pair::new();
    // Scattered pages on both sides, unaligned start.
    let pages = |m: u64| [m + 0x3000, m + 0x1000, m + 0x7000];
    let local = map(&mut p.rig, 0, 5, &pages(p.m0), 3) + 0x800;
    let remote = map(&mut p.rig, 1, 6, &pages(p.m1), 3) + 0x123;
    let data = pattern(4, 8000);
    for (k, byte) in data.iter().enumerate() {
        let at = 0x800 + k;
        p.rig.nodes[0]
            .ram
            .put(pages(p.m0)[at / 4096] + (at % 4096) as u64, &[*byte]);
    }
    p.post(TE, &desc(1, 6, ALL, put(8000, local, remote)));
    for (k, byte) in data.iter().enumerate() {
        let at = 0x123 + k;
        assert_eq!(
            p.rig.nodes[1]
                .ram
                .get(pages(p.m1)[at / 4096] + (at % 4096) as u64, 1),
            [*byte]
        );
    }
    let (a, b) = p.notes();
    assert_eq!(
        (a[0].word0, a[0].mode.bits()),
        (last_fragment_start(local, 8000), 4)
    );
    assert_eq!(b[0].word0, last_fragment_start(remote, 8000));
    // Beyond the mapping, wrong owner, read-only, invalid GAT, ATU off.
    p.post(TE, &desc(1, 6, ALL, put(12_000, local, remote)));
    assert_eq!(p.notes().0[0].error, 1);
    p.post(TE, &desc(1, 6, ALL, get(12_000, remote, local)));
    let (a, b) = p.notes();
    assert_eq!(
        (a[1].error, b[0].error, b[0].word0),
        (2, 2, remote + 11_904)
    );
    let foreign = map(&mut p.rig, 1, 9, &pages(p.m1), 3);
    p.post(TE, &desc(1, 6, ALL, put(8, local, foreign)));
    assert_eq!(p.notes().1[0].error, 4);
    let read_only = map(&mut p.rig, 1, 6, &pages(p.m1), 1);
    p.post(TE, &desc(1, 6, ALL, put(8, local, read_only)));
    assert_eq!(p.notes().1[0].error, 4);
    p.post(TE, &desc(1, 6, ALL, get(8, read_only, local)));
    assert_eq!(p.notes().0[1].error, 0);
    p.post(TE, &desc(1, 6, ALL, get(8, 900 << 30, local)));
    assert_eq!(p.notes().0[1].error, 2);
    p.rig.write(1, RegOffset(0xC000), 0);
    p.post(TE, &desc(1, 6, ALL, get(8, read_only, local)));
    assert_eq!(p.notes().0[1].error, 2);
    assert_eq!(p.rig.read(0, regs::REQUESTER_ERROR_CNT_0) >> 48, 1);
    assert_eq!(p.rig.read(1, regs::RESPONDER_ERROR_CNT_1) >> 48, 3);
    assert_eq!(p.rig.read(1, regs::COMPLETER_ERROR_CNT_2) >> 48, 2);
}

#[test]
fn large_pages() {
    let mut p = Pair::new();
    // A 64 KiB page (size code 4) that 16 entries describe; the NLA supplies the low bits.
    let big = 0x02C0_0000u64;
    let entry = big | (4 << 59);
    let nla = map(&mut p.rig, 1, 6, &[entry; 16], 3);
    p.rig.nodes[1]
        .ram
        .put(big + (nla & 0xFFFF) + 5000, &[9; 16]);
    let local = map(&mut p.rig, 0, 5, &[p.m0], 3);
    p.post(TE, &desc(1, 6, ALL, get(16, nla + 5000, local)));
    assert_eq!(p.rig.nodes[0].ram.get(p.m0, 16), [9; 16]);
}

#[test]
fn atu_commands_answer() {
    let mut p = Pair::new();
    let at = p.m0 + 8 * 5;
    for (n, opcode) in [(1u64, 3u64), (2, 4)] {
        p.rig.nodes[0].ram.set_qw(at, 0);
        p.rig.write(0, RegOffset(0xC008), (1 << 60) | (7 << 28));
        p.rig.write(0, RegOffset(0xC008), (2 << 60) | 5);
        p.rig.write(0, RegOffset(0xC008), (opcode << 60) | at);
        assert_eq!(p.rig.nodes[0].ram.qw(at), 1);
        assert_eq!(p.rig.read(0, RegOffset(0xC020)), ((2 * n) << 32) | (3 * n));
    }
    p.rig.write(0, RegOffset(0xC008), 9 << 60);
    assert!(p.rig.nodes[0]
        .log
        .diagnostics
        .iter()
        .any(|d| d.contains("opcode 9")));
}

#[test]
fn locks() {
    let mut p = Pair::new();
    let base = p.rig.read(1, regs::LOCK_BASE);
    let lock = |at, number, compare, add| Operation::Lock {
        at,
        number,
        compare,
        add,
    };
    for (k, at) in [LockTarget::Responder, LockTarget::Completer]
        .into_iter()
        .enumerate()
    {
        let number = 2 + k as u32;
        let cell = base + 4 * (6 + 256 * u64::from(number));
        let value = |p: &Pair| p.rig.nodes[1].ram.qw(cell) as i32;
        // 0 ≤ 0: taken. 1 ≤ 0: not. Then released. Word 0: number, result, value afterwards.
        for (compare, add, result, after) in [
            (0, 1, 1u64, 1),
            (0, 1, 0, 1),
            (i32::MAX, -1, 1, 0),
            (-1, 5, 0, 0),
        ] {
            p.post(PLAIN, &desc(1, 6, ALL, lock(at, number, compare, add)));
            assert_eq!(value(&p), after);
            let (a, b) = p.notes();
            let word0 = |result: u64, v: i32| {
                (u64::from(v as u32) << 32) | (result << 24) | u64::from(number)
            };
            assert_eq!(
                (a[0].kind, a[0].command),
                (NotificationType::Requester, Command::Lock)
            );
            assert_eq!(
                a[0].word0,
                word0(0, compare),
                "the requester shows the operand"
            );
            assert_eq!(
                (a[1].kind, a[1].command),
                (NotificationType::Completer, Command::LockResponse)
            );
            assert_eq!((a[1].word0, a[1].error), (word0(result, after), 0));
            assert_eq!(
                (b[0].kind, b[0].command),
                (NotificationType::Responder, Command::Lock)
            );
            assert_eq!(b[0].word0, word0(result, after));
        }
        p.post(PLAIN, &desc(1, 6, ALL, lock(at, 16, 0, 1)));
        let (a, _) = p.notes();
        assert_eq!(a[1].error, if at == LockTarget::Responder { 2 } else { 4 });
        assert_eq!(a[1].word0, 16);
    }
    assert_eq!(
        (p.rig.read(1, regs::RESPONDER_ERROR_CNT_1) >> 32) & 0x7FFF,
        2
    );
}

#[test]
fn remote_register_access() {
    let mut p = Pair::new();
    let reg = 0x8050;
    let write = |value| Operation::ImmediatePut {
        len: 8,
        remote: reg,
        value,
    };
    let requester = NotifySpec {
        requester: true,
        ..NotifySpec::NONE
    };
    p.post(RRA, &desc(1, 252, requester, write(1)));
    let (a, _) = p.notes();
    assert_eq!(
        (
            a[0].command.code(),
            a[0].kind.code(),
            a[0].word0,
            a[0].error
        ),
        (6, 1, 1, 0)
    );
    assert_eq!(p.rig.read(1, RegOffset(0x8050)), 1);
    // Side effects are those of a local access: the network-state event.
    assert_eq!(p.rig.snq_handle(1).len(), 1);
    let completer = NotifySpec {
        completer: true,
        ..NotifySpec::NONE
    };
    p.post(RRA, &desc(1, 252, completer, get(8, 0x8008, p.m0)));
    let (a, _) = p.notes();
    assert_eq!(
        (
            a[0].command.code(),
            a[0].kind.code(),
            a[0].word0,
            a[0].error
        ),
        (10, 4, p.m0, 0)
    );
    let node = p.rig.read(1, RegOffset(0x8008));
    assert_eq!(p.rig.nodes[0].ram.qw(p.m0), node);
    // Blocks of registers by put.
    p.rig.nodes[0].ram.put(p.m0, &pattern(1, 24));
    p.post(RRA, &desc(1, 252, NotifySpec::NONE, put(24, p.m0, 0x8058)));
    p.post(
        RRA,
        &desc(1, 252, NotifySpec::NONE, get(24, 0x8058, p.m0 + 64)),
    );
    assert_eq!(p.rig.nodes[0].ram.get(p.m0 + 64, 24), pattern(1, 24));
    // Unaligned, partial, outside.
    for (len, at) in [
        (8, 0x8004),
        (4, 0x8008),
        (8, 0x200_0000),
        (16, u64::MAX - 7),
    ] {
        p.post(RRA, &desc(1, 252, completer, get(len, at, p.m0)));
        assert_eq!(p.notes().0[0].error, 2);
        p.post(RRA, &desc(1, 6, completer, put(len, p.m0, at)));
        assert_eq!(p.notes().1[0].error, 4);
    }
    assert_eq!(
        (p.rig.read(1, regs::RESPONDER_ERROR_CNT_0) >> 32) & 0x7FFF,
        4
    );
}
