//! Tests of the access to registers of other nodes by RMA (HW §13, G19).

use super::rig::*;
use super::rma::{desc, get, put, Pair, ALL, PLAIN};
use extoll_emulator::nic::{NicConfig, RraVpid};
use wire::ids::{RegOffset, Vpid};
use wire::regs::{rma as regs, BqRegs};
use wire::rma::{Descriptor, LockTarget, Modifiers, NotifySpec, Operation, PageOptions};

const RRA: PageOptions = PageOptions {
    rra: true,
    traffic_class: 2,
    ..PLAIN
};
const NONE: NotifySpec = NotifySpec::NONE;
/// VPID that the vendor's software uses. With [`RraVpid::Open`], it must be open at the target.
const VPID: u8 = 252;

fn write(at: u64, value: u64) -> Operation {
    Operation::ImmediatePut {
        len: 8,
        remote: at,
        value,
    }
}

/// Returns the counters of command errors of node 1's responder and completer.
fn errcmd(p: &mut Pair) -> [u64; 2] {
    let field = |p: &mut Pair, at, shift: u32| (p.rig.read(1, at) >> shift) & 0x7FFF;
    [
        field(p, regs::RESPONDER_ERROR_CNT_0, 32),
        field(p, regs::COMPLETER_ERROR_CNT_1, 48),
    ]
}

#[test]
fn as_the_vendors_stack_does_it() {
    let mut p = Pair::new();
    let requester = NotifySpec {
        requester: true,
        ..NONE
    };
    p.post(RRA, &desc(1, VPID, requester, write(0x8050, 1)));
    let (a, _) = p.notes();
    let seen = |n: &wire::rma::Notification| {
        let (command, kind) = (n.command.code(), n.kind.code());
        (command, kind, n.word0, n.error, n.mode.bits())
    };
    assert_eq!(seen(&a[0]), (6, 1, 1, 0, 1));
    assert_eq!(p.rig.read(1, RegOffset(0x8050)), 1);
    // The write has the side effects of a local access. It raises the event of the network state.
    assert_eq!(p.rig.snq_handle(1).len(), 1);
    let completer = NotifySpec {
        completer: true,
        ..NONE
    };
    p.post(RRA, &desc(1, VPID, completer, get(8, 0x8008, p.m0)));
    let (a, _) = p.notes();
    assert_eq!(seen(&a[0]), (10, 4, p.m0, 0, 1));
    let node = p.rig.read(1, RegOffset(0x8008));
    assert_eq!(p.rig.nodes[0].ram.qw(p.m0), node);
}

#[test]
fn blocks_of_registers_in_every_way() {
    for (local_te, qw, node, peer) in [
        (false, false, 1, VPID),
        (true, false, 1, 6),
        (false, true, 0, VPID),
        (true, true, 0, 5),
    ] {
        let mut p = Pair::new();
        // Register addresses are never translated. The page option determines whether the local
        // address is translated.
        let gat = 0x0280_0000;
        for k in 0..2u64 {
            let page = p.m0 + 0x4000 - 0x2000 * k;
            p.rig.nodes[0].ram.set_qw(gat + 8 * k, page | (5 << 2) | 3);
        }
        p.rig.write(0, RegOffset(0xE000), (1 << 31) | (gat >> 21));
        let options = PageOptions {
            translate: local_te,
            ..RRA
        };
        let at = |offset: u64| if local_te { offset } else { p.m0 + offset };
        let place = |offset: u64| match (local_te, offset / 4096) {
            (false, _) => p.m0 + offset,
            (true, k) => p.m0 + 0x4000 - 0x2000 * k + offset % 4096,
        };
        // The transfer writes 512 registers that only store values (the ATU's preload memory), from
        // a source that crosses a page.
        let data = pattern(5, 4096);
        let from = 3001;
        for (k, byte) in (from..).zip(&data) {
            p.rig.nodes[0].ram.put(place(k), &[*byte]);
        }
        let mut words = desc(node, peer, ALL, put(4096, at(from), 0xD000))
            .encode()
            .expect("words");
        words[0] |= u64::from(qw) << 2;
        p.rig.rma_raw(0, 5, options, words);
        let i = usize::from(node);
        for (k, qw) in (0..).zip(data.chunks_exact(8)) {
            let want = u64::from_le_bytes(qw.try_into().expect("8 bytes"));
            assert_eq!(p.rig.read(i, RegOffset(0xD000 + 8 * k)), want);
        }
        let back = 1111;
        let mut words = desc(node, peer, ALL, get(4096, 0xD000, at(back)))
            .encode()
            .expect("words");
        words[0] |= u64::from(qw) << 2;
        p.rig.rma_raw(0, 5, options, words);
        let got: Vec<u8> = (back..back + 4096)
            .map(|k| p.rig.nodes[0].ram.get(place(k), 1)[0])
            .collect();
        assert_eq!(got, data);
        let (a, b) = p.notes();
        let all: Vec<_> = a.iter().chain(&b).collect();
        assert!(all.iter().all(|n| n.error == 0 && n.mode.rra));
        assert!(all.iter().all(|n| n.mode.translate == local_te));
        // Remote addresses are register offsets. A transfer of 4096 bytes ends in a fragment at
        // offset 3968.
        let remote = all.iter().filter(|n| n.word0 == 0xD000 + 3968).count();
        let want = match (node, peer) {
            (_, VPID) => 0, // no queue there
            _ => 2,
        };
        assert_eq!(remote, want);
    }
}

#[test]
fn fragments_can_notify() {
    let mut p = Pair::new();
    let ntr = Modifiers {
        ntr: true,
        ..Modifiers::NONE
    };
    let d = Descriptor {
        modifiers: ntr,
        ..desc(1, 6, ALL, put(1000, p.m0, 0xD000))
    };
    p.post(RRA, &d);
    let (a, b) = p.notes();
    let word0 =
        |list: &[wire::rma::Notification]| -> Vec<u64> { list.iter().map(|n| n.word0).collect() };
    assert_eq!(word0(&a), [p.m0, p.m0 + 496, p.m0 + 992]);
    assert_eq!(word0(&b), [0xD000, 0xD000 + 496, 0xD000 + 992]);
}

#[test]
fn side_effects_are_those_of_local_accesses() {
    let mut p = Pair::new();
    let go = |p: &mut Pair, op| p.post(RRA, &desc(1, VPID, NONE, op));
    // The write of this register raises a trigger event.
    let now = wire::regs::snq::TRIGGER_NOW.0;
    go(&mut p, write(now.into(), 1 << 28));
    assert_eq!(p.rig.snq_handle(1).len(), 1);
    // The ATU commands are a flush, and a notification that writes into the target's memory.
    p.rig.nodes[1].ram.set_qw(p.m1, 0);
    go(&mut p, write(0xC008, (1 << 60) | (3 << 18)));
    let to = p.m1;
    go(&mut p, write(0xC008, (4 << 60) | to));
    assert_eq!(p.rig.nodes[1].ram.qw(to), 1);
    assert_eq!(p.rig.read(1, RegOffset(0xC020)), (1 << 32) | 2);
    // Writing a read pointer with the retrigger bit sends the missed interrupt.
    let irq = PageOptions { irq: true, ..PLAIN };
    for value in 0..2 {
        let op = Operation::NotificationPut { class: 0, value };
        p.post(irq, &desc(1, 6, ALL, op));
    }
    assert_eq!(p.rig.snq_handle(1).len(), 1);
    let rp = BqRegs(wire::ids::Unit::Rma).rp(Vpid::from(6));
    go(&mut p, write(rp.0.into(), (1 << 32) | 2));
    assert_eq!(super::velo::vectors(&p.rig.snq_handle(1)), [6]);
    // This write opens a VPID.
    let table = regs::vpid_table(Vpid::from(9));
    let op = Operation::NotificationPut { class: 0, value: 7 };
    p.post(PLAIN, &desc(1, 9, ALL, op));
    let drops = |p: &Pair| p.rig.nodes[1].nic.counters().drops.vpid_disabled;
    assert_eq!(drops(&p), 1);
    go(&mut p, write(table.0.into(), regs::VPID_ENABLED));
    p.post(PLAIN, &desc(1, 9, ALL, op));
    assert_eq!(drops(&p), 1);
    // Access rights apply: read-only registers keep their value; write-only registers and gaps read
    // 0.
    let version = p.rig.read(1, RegOffset(0x8000));
    for at in [0x8000, 0x88] {
        go(&mut p, write(at, 0x55));
    }
    assert_eq!(p.rig.read(1, RegOffset(0x8000)), version);
    p.rig.nodes[0].ram.put(p.m0, &[0xEE; 16]);
    let to = p.m0;
    go(&mut p, get(8, 0xC008, to));
    go(&mut p, get(8, 0x88, to + 8));
    assert_eq!(p.rig.nodes[0].ram.get(to, 16), [0; 16]);
    // Remote reads of interrupt vectors do not clear them. Only reads by an SNQ program do.
    let vec = regs::int_vec(0);
    p.rig.write(1, wire::regs::snq::TRIGGER_ENABLE, 0);
    p.rig.commit(&p.q1, true);
    let op = Operation::NotificationPut { class: 0, value: 7 };
    p.post(irq, &desc(1, 6, ALL, op));
    for _ in 0..2 {
        go(&mut p, get(8, vec.0.into(), to));
        assert_eq!(p.rig.nodes[0].ram.qw(to), 1 << 6);
    }
}

#[test]
fn what_is_not_whole_registers_is_an_error() {
    let mut p = Pair::new();
    let before = p.rig.read(1, RegOffset(0x8058));
    let cases = [
        (8u32, 0x8054u64),
        (8, 0x8059),
        (4, 0x8058),
        (7, 0x8058),
        (9, 0x8058),
        (12, 0x8058),
        (8, 0x200_0000),
        (16, 0x1FF_FFF8),
        (16, u64::MAX - 7),
        (8, 1 << 40),
    ];
    p.rig.nodes[0].ram.put(p.m0, &[0x77; 64]);
    for (n, (len, at)) in (1..).zip(cases) {
        let tag = format!("{len} bytes at {at:#x}");
        p.post(RRA, &desc(1, 6, ALL, get(len, at, p.m0 + 32)));
        let (a, b) = p.notes();
        let seen = |list: &[wire::rma::Notification]| -> Vec<_> {
            list.iter().map(|n| (n.kind.code(), n.error)).collect()
        };
        assert_eq!(
            (seen(&a), seen(&b)),
            (vec![(1, 0), (4, 2)], vec![(2, 2)]),
            "{tag}"
        );
        assert_eq!((a[1].word0, b[0].word0), (p.m0 + 32, at), "{tag}");
        p.post(RRA, &desc(1, 6, ALL, put(len, p.m0, at)));
        let (a, b) = p.notes();
        assert_eq!((seen(&a), seen(&b)), (vec![(1, 0)], vec![(4, 4)]), "{tag}");
        assert_eq!(errcmd(&mut p), [n, n], "{tag}");
    }
    let events = p.rig.nodes[1].nic.counters().events[27];
    for len in 1..8 {
        let op = Operation::ImmediatePut {
            len,
            remote: 0x8058,
            value: u64::MAX,
        };
        p.post(RRA, &desc(1, 6, ALL, op));
        let (a, b) = p.notes();
        assert_eq!((a[0].error, b[0].error, b[0].word0), (0, 4, 0x8058));
    }
    assert_eq!(p.rig.nodes[1].nic.counters().events[27], events + 7);
    assert_eq!(p.rig.read(1, RegOffset(0x8058)), before);
    assert_eq!(p.rig.nodes[0].ram.get(p.m0 + 32, 16), [0x77; 16]);
    assert_eq!(p.rig.nodes[1].nic.counters().drops.translation, 0);
}

/// G19 exempts register accesses from the checks of the target VPID. Other commands on a page for
/// register access are checked.
#[test]
fn other_commands_are_checked_as_ever() {
    let mut p = Pair::new();
    let closed = 9;
    let lock = Operation::Lock {
        at: LockTarget::Responder,
        number: 1,
        compare: 0,
        add: 1,
    };
    let note = Operation::NotificationPut { class: 0, value: 1 };
    for op in [lock, note] {
        p.post(RRA, &desc(1, closed, ALL, op));
        assert_eq!(p.notes().0.len(), 1, "only the requester's notification");
    }
    assert_eq!(p.rig.nodes[1].nic.counters().drops.vpid_disabled, 2);
    let base = p.rig.read(1, regs::LOCK_BASE);
    let cell = |p: &Pair, vpid: u64| p.rig.nodes[1].ram.qw(base + 4 * (vpid + 256)) as u32;
    assert_eq!(cell(&p, closed.into()), 0);
    // If the VPID is open, these commands work as on other pages.
    for op in [lock, note] {
        p.post(RRA, &desc(1, 6, ALL, op));
    }
    assert_eq!(cell(&p, 6), 1);
    let (a, b) = p.notes();
    assert_eq!((a.len(), b.len()), (3, 2));
    assert!(a.iter().chain(&b).all(|n| n.error == 0 && n.mode.rra));
}

/// With [`RraVpid::Open`], the target VPID is checked as for all other commands (G19, HW §10.7).
#[test]
fn a_chip_may_want_the_vpid_to_be_open() {
    let mut p = Pair::with_config(NicConfig {
        rra_vpid: RraVpid::Open,
        ..NicConfig::default()
    });
    let both = |p: &mut Pair, value| {
        p.post(RRA, &desc(1, VPID, ALL, write(0x8058, value)));
        p.rig.nodes[0].ram.set_qw(p.m0, 0);
        p.post(RRA, &desc(1, VPID, ALL, get(8, 0x8058, p.m0)));
        (
            p.rig.read(1, RegOffset(0x8058)),
            p.rig.nodes[0].ram.qw(p.m0),
        )
    };
    let drops = |p: &Pair| {
        let drops = &p.rig.nodes[1].nic.counters().drops;
        (drops.vpid_disabled, drops.wrong_protection)
    };
    assert_eq!((both(&mut p, 7), drops(&p)), ((0, 0), (2, 0)));
    assert_eq!(p.notes().0.len(), 2, "only the requester's notification");
    let table = regs::vpid_table(Vpid::from(VPID));
    let open = regs::VpidTable(regs::VPID_ENABLED);
    p.rig.write(1, table, open.with_prot_desc(1).raw());
    assert_eq!((both(&mut p, 8), drops(&p)), ((0, 0), (2, 2)));
    p.rig.write(1, table, open.raw());
    assert_eq!((both(&mut p, 9), drops(&p)), ((9, 9), (2, 2)));
}
