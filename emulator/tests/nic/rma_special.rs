//! Tests of RMA with translated addresses, and of locks.

use super::rig::*;
use super::rma::{desc, put, Pair, ALL, PLAIN};
use wire::ids::RegOffset;
use wire::regs::rma as regs;
use wire::rma::{
    last_fragment_start, Command, LockTarget, NotificationType, Operation, PageOptions,
};

const TE: PageOptions = PageOptions {
    translate: true,
    ..PLAIN
};
/// Maps `pages` for a VPID, from entry 100 of GAT 3 on. Returns the NLA of the first byte.
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
    // The pages are scattered on both sides, and the start of the data is unaligned.
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
        // The first operation takes the lock (0 ≤ 0), the second fails (1 > 0), and the third
        // releases it. Word 0 contains number, result and value after the operation.
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
fn locks_that_do_not_exist() {
    let mut p = Pair::new();
    let base = p.rig.read(1, regs::LOCK_BASE);
    let count = |p: &mut Pair| (p.rig.read(1, regs::RESPONDER_ERROR_CNT_1) >> 32) & 0x7FFF;
    let post = |p: &mut Pair, at, number| {
        let op = Operation::Lock {
            at,
            number,
            compare: 5,
            add: 1,
        };
        p.post(PLAIN, &desc(1, 6, ALL, op));
        let (a, b) = p.notes();
        assert_eq!((a[1].word0, a[1].error), (b[0].word0, b[0].error));
        assert_eq!(a[0].error, 0);
        (b[0].word0, b[0].error)
    };
    let taken = |number: u32| (1 << 32) | (1 << 24) | u64::from(number);
    let units = [(LockTarget::Responder, 2u8), (LockTarget::Completer, 4)];
    let mut errors = 0;
    for (at, unit) in units {
        // Number of locks, number of VPIDs, address of the lock memory, number of the lock, and
        // true if the lock exists. VPID 6 is the seventh VPID.
        for (locks, vpids, memory, number, fine) in [
            (16, 256, base, 15, true),
            (16, 256, base, 16, false),
            (16, 256, base, 0xFF_FFFF, false),
            (3, 256, base, 2, true),
            (3, 256, base, 3, false),
            (0, 256, base, 0, false),
            (16, 7, base, 4, true),
            (16, 6, base, 4, false),
            (16, 256, 1 << 51, 1, false),
        ] {
            p.rig.write(1, regs::LOCK_CFG, (vpids << 31) | locks);
            p.rig.write(1, regs::LOCK_BASE, memory);
            p.rig.nodes[1].ram.put(base, &[0; 16 << 10]);
            let want = match fine {
                true => (taken(number), 0),
                false => (number.into(), unit),
            };
            assert_eq!(post(&mut p, at, number), want, "{locks} {vpids} {number}");
            errors += u64::from(!fine);
            assert_eq!(count(&mut p), errors);
            // The address of a lock is independent of the number of VPIDs.
            let memory = p.rig.nodes[1].ram.get(base, 16 << 10);
            let place = 4 * (6 + 256 * (number as usize % 16));
            let set = memory.iter().position(|b| *b != 0);
            assert_eq!(set, fine.then_some(place));
        }
    }
}
