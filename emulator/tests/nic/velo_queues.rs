//! Tests of mailboxes that are full, closed or inconsistent, and of back-pressure of the network.

use super::rig::*;
use super::velo::send;
use extoll_emulator::nic::{
    Faults, FullRule, HoldClosed, HoldScope, LoseWrite, LossyRing, NicConfig, QueueFull, QueueUnit,
    ResetKind,
};
use wire::ids::{NodeId, RegOffset, Unit, Vpid};
use wire::regs::{velo as regs, velo_bq, BqRegs};
use wire::velo::{Descriptor, Mtt, SlotSize, Target};

fn to(vpid: u8, len: usize) -> Descriptor {
    Descriptor {
        target: Target::Node(NodeId(1)),
        vpid: Vpid::from(vpid),
        mtt: Mtt::from_low_bits(0),
        irq: false,
        tag: 0,
        len: len as u16,
    }
}

fn rig(cfg: NicConfig, slots: SlotSize) -> Rig {
    let mut rig = Rig::with_config(2, cfg);
    rig.probe_all(slots);
    rig
}

fn numbers(rig: &mut Rig, vpid: u8, n: std::ops::Range<u64>) {
    for k in n {
        send(rig, 0, 7, to(vpid, 8), &k.to_le_bytes());
    }
}

fn take_all(rig: &mut Rig, q: &mut Queue) -> Vec<u64> {
    let mut got = Vec::new();
    while let Some((_, data)) = rig.velo_take(q) {
        got.push(u64::from_le_bytes(data.try_into().expect("8 bytes")));
    }
    got
}

#[test]
fn full_mailbox_holds_and_releases_in_order() {
    for (rule, usable) in [(FullRule::KeepOneFree, 7), (FullRule::FlagOnEqual, 8)] {
        let mut rig = rig(
            NicConfig {
                full_rule: rule,
                ..NicConfig::default()
            },
            SlotSize::B128,
        );
        let mut q = rig.open_velo(1, 9, SlotSize::B128, 2, 4);
        numbers(&mut rig, 9, 0..30);
        assert_eq!(rig.nodes[1].nic.counters().velo.received, usable);
        assert_eq!(rig.nodes[1].nic.counters().velo.holding, 30 - usable);
        let mut got = Vec::new();
        while got.len() < 30 {
            let batch = take_all(&mut rig, &mut q);
            assert!(!batch.is_empty());
            got.extend(batch);
            rig.commit(&q, false);
        }
        assert_eq!(got, (0..30).collect::<Vec<_>>());
        assert_eq!(rig.nodes[1].nic.counters().velo.holding, 0);
    }
}

#[test]
fn held_messages_interrupt_when_they_are_stored() {
    let mut rig = rig(NicConfig::default(), SlotSize::B128);
    let mut q = rig.open_velo(1, 9, SlotSize::B128, 1, 2);
    let irq = Descriptor {
        irq: true,
        ..to(9, 8)
    };
    send(&mut rig, 0, 7, irq, &[0; 8]);
    send(&mut rig, 0, 7, irq, &[1; 8]);
    assert_eq!(super::velo::vectors(&rig.snq_handle(1)), [9]);
    assert!(rig.velo_take(&mut q).is_some());
    rig.commit(&q, true);
    assert_eq!(super::velo::vectors(&rig.snq_handle(1)), [9]);
    assert!(rig.velo_take(&mut q).is_some());
}

#[test]
fn a_message_needs_all_its_slots() {
    let mut rig = rig(NicConfig::default(), SlotSize::B64);
    let mut q = rig.open_velo(1, 9, SlotSize::B64, 2, 3); // 5 usable slots
    for k in 0..3 {
        send(&mut rig, 0, 7, to(9, 120), &pattern(k, 120));
    }
    assert_eq!(
        rig.nodes[1].nic.counters().velo.received,
        1,
        "3 + 3 slots do not fit"
    );
    for k in 0..3 {
        assert_eq!(rig.velo_take(&mut q).expect("message").1, pattern(k, 120));
        assert!(rig.velo_take(&mut q).is_none());
        rig.commit(&q, false);
    }
    // If a mailbox is too small for a message, the message is dropped. It is not held for ever.
    let mut small = rig.open_velo(1, 10, SlotSize::B64, 1, 3);
    send(&mut rig, 0, 7, to(10, 120), &pattern(0, 120));
    send(&mut rig, 0, 7, to(10, 8), &[1; 8]);
    assert_eq!(rig.nodes[1].nic.counters().drops.queue_bad, 1);
    assert!(rig.velo_take(&mut small).is_some());
    let general = rig.read(1, velo_bq::GENERAL);
    assert_eq!((general >> 4) & 0xFF, 10, "error queue");
    assert_eq!(general >> 12, 1, "error count");
    assert!(rig.nodes[1].nic.counters().events[21] > 0);
}

#[test]
fn hold_scope_decides_who_waits() {
    for (scope, passed) in [(HoldScope::Vpid, 1), (HoldScope::Unit, 0)] {
        let mut rig = rig(
            NicConfig {
                hold_scope: scope,
                ..NicConfig::default()
            },
            SlotSize::B128,
        );
        let mut a = rig.open_velo(1, 9, SlotSize::B128, 1, 4);
        let mut b = rig.open_velo(1, 10, SlotSize::B128, 1, 4);
        numbers(&mut rig, 9, 0..5);
        numbers(&mut rig, 10, 0..1);
        assert_eq!(take_all(&mut rig, &mut b).len(), passed);
        assert_eq!(take_all(&mut rig, &mut a), [0, 1, 2]);
        rig.commit(&a, false);
        assert_eq!(take_all(&mut rig, &mut a), [3, 4]);
        assert_eq!(take_all(&mut rig, &mut b).len(), 1 - passed);
    }
}

#[test]
fn closing_a_queue_frees_the_unit() {
    for scope in [HoldScope::Vpid, HoldScope::Unit] {
        for disable_vpid in [false, true] {
            let mut rig = rig(
                NicConfig {
                    hold_scope: scope,
                    ..NicConfig::default()
                },
                SlotSize::B128,
            );
            let a = rig.open_velo(1, 9, SlotSize::B128, 1, 4);
            let mut b = rig.open_velo(1, 10, SlotSize::B128, 1, 4);
            numbers(&mut rig, 9, 0..6);
            numbers(&mut rig, 10, 0..1);
            if disable_vpid {
                rig.write(1, regs::comp_prot_desc(Vpid::from(9)), 0);
            } else {
                rig.write(1, velo_bq::c_base_size_valid(Vpid::from(a.vpid)), 0);
            }
            assert_eq!(rig.nodes[1].nic.counters().drops.hold_closed, 3);
            assert_eq!(rig.nodes[1].nic.counters().velo.holding, 0);
            assert_eq!(take_all(&mut rig, &mut b), [0]);
        }
    }
}

/// With `hold-closed` = `keep`, messages for a closed queue stay on hold, and other messages wait
/// behind them until the timeout. If software drains the queue before it disables the VPID, no
/// message is delayed.
#[test]
fn what_waits_for_a_closed_queue_may_stay() {
    for drained in [false, true] {
        let mut rig = rig(
            NicConfig {
                hold_scope: HoldScope::Unit,
                hold_closed: HoldClosed::Keep,
                ..NicConfig::default()
            },
            SlotSize::B128,
        );
        let vpid = Vpid::from(9);
        rig.open_velo(1, 9, SlotSize::B128, 1, 4);
        let mut b = rig.open_velo(1, 10, SlotSize::B128, 1, 4);
        numbers(&mut rig, 9, 0..6);
        numbers(&mut rig, 10, 0..1);
        let empty = |rig: &mut Rig| {
            let lwp = rig.read(1, velo_bq::wp_lwp_dcq_rp(vpid)) >> 32;
            rig.write(1, velo_bq::rp(vpid), lwp);
        };
        if drained {
            empty(&mut rig);
        }
        rig.write(1, regs::comp_prot_desc(vpid), 0);
        empty(&mut rig);
        rig.write(1, velo_bq::c_base_size_valid(vpid), 0);
        let c = rig.nodes[1].nic.counters();
        assert_eq!(c.velo.holding, if drained { 0 } else { 4 });
        assert_eq!(c.drops.hold_closed, 0);
        assert_eq!(take_all(&mut rig, &mut b).len(), usize::from(drained));
        // The next owner of the VPID receives none of these messages.
        let mut heir = rig.open_velo(1, 9, SlotSize::B128, 1, 4);
        assert!(take_all(&mut rig, &mut heir).is_empty());
        assert_eq!(rig.nodes[1].nic.counters().velo.holding, 0);
    }
}

#[test]
fn hold_limit_and_time() {
    let cfg = NicConfig {
        hold_limit_bytes: 10 * 256,
        ..NicConfig::default()
    };
    let mut r = rig(cfg, SlotSize::B128);
    r.open_velo(1, 9, SlotSize::B128, 1, 2);
    numbers(&mut r, 9, 0..20);
    let c = r.nodes[1].nic.counters();
    assert_eq!(
        (c.velo.received, c.velo.holding, c.drops.hold_limit),
        (1, 10, 9)
    );
    assert_eq!(r.read(1, velo_bq::GENERAL) & 4, 4, "timeout_assert");

    let cfg = NicConfig {
        hold_time_ns: Some(1000),
        ..NicConfig::default()
    };
    let mut r = rig(cfg, SlotSize::B128);
    let mut q = r.open_velo(1, 9, SlotSize::B128, 1, 2);
    numbers(&mut r, 9, 0..3);
    let due = r.nodes[1].nic.next_deadline().expect("deadline");
    r.nodes[1].ram.now = due - 1;
    r.tick(1);
    assert_eq!(r.nodes[1].nic.counters().drops.hold_limit, 0);
    r.nodes[1].ram.now = due;
    assert_eq!(r.tick(1), None);
    assert_eq!(r.nodes[1].nic.counters().drops.hold_limit, 2);
    assert_eq!(take_all(&mut r, &mut q), [0]);
}

/// Without the enable bit of the timeout register, messages for a full queue stay on hold for ever.
/// With the bit, they stay for the programmed number of units (HW §9.3, §10.7, G10).
#[test]
fn the_time_out_registers_say_how_long_full_queues_hold() {
    const UNIT: u64 = 1000;
    let cfg = NicConfig {
        hold_timeout_unit_ns: UNIT,
        ..NicConfig::default()
    };
    let mut r = rig(cfg, SlotSize::B128);
    let mut q = r.open_velo(1, 9, SlotSize::B128, 1, 4);
    let mut other = r.open_velo(1, 10, SlotSize::B128, 1, 4);
    r.write(1, regs::TIMEOUT, 0x20);
    numbers(&mut r, 9, 0..5);
    assert_eq!(r.nodes[1].nic.next_deadline(), None, "not enabled");
    r.write(1, regs::TIMEOUT, regs::TIMEOUT_INIT);
    let due = r.nodes[1].nic.next_deadline().expect("deadline");
    assert_eq!(due - r.nodes[1].ram.now, 0x20 * UNIT);
    r.nodes[1].ram.now = due - 1;
    r.tick(1);
    let drops = |r: &Rig| r.nodes[1].nic.counters().drops.hold_limit;
    assert_eq!((drops(&r), r.nodes[1].nic.counters().velo.holding), (0, 2));
    let events = |r: &Rig| r.nodes[1].nic.counters().events[21];
    assert_eq!(events(&r), 0);
    r.nodes[1].ram.now = due;
    r.tick(1);
    assert_eq!(
        (drops(&r), events(&r)),
        (2, 1),
        "assert, count, TE 21, drop"
    );
    let general = r.read(1, velo_bq::GENERAL);
    assert_eq!(
        (general & 4, (general >> 4) & 0xFF, general >> 12),
        (4, 9, 2)
    );
    // While the queue stays full, new messages for it are dropped at once. Other queues work
    // normally.
    numbers(&mut r, 9, 5..7);
    numbers(&mut r, 10, 0..1);
    assert_eq!((drops(&r), events(&r)), (4, 1));
    assert_eq!(r.nodes[1].nic.next_deadline(), None);
    assert_eq!(take_all(&mut r, &mut other), [0]);
    // After software has returned a slot, messages for the queue are held again.
    assert_eq!(take_all(&mut r, &mut q), [0, 1, 2]);
    r.commit(&q, false);
    numbers(&mut r, 9, 7..11);
    assert_eq!(r.nodes[1].nic.counters().velo.holding, 1);
    assert_eq!(take_all(&mut r, &mut q), [7, 8, 9]);
    r.commit(&q, false);
    assert_eq!(take_all(&mut r, &mut q), [10]);
}

/// The timeout applies to queues that make no progress, not to messages that waited for long behind
/// other messages (HW §9.6).
#[test]
fn a_queue_that_moves_is_not_timed_out() {
    const UNIT: u64 = 1000;
    for scope in [HoldScope::Vpid, HoldScope::Unit] {
        let cfg = NicConfig {
            hold_timeout_unit_ns: UNIT,
            hold_scope: scope,
            ..NicConfig::default()
        };
        let mut r = rig(cfg, SlotSize::B128);
        let mut q = r.open_velo(1, 9, SlotSize::B128, 1, 4);
        r.write(1, regs::TIMEOUT, regs::TIMEOUT_INIT);
        numbers(&mut r, 9, 0..40);
        let drops = |r: &Rig| r.nodes[1].nic.counters().drops.hold_limit;
        for n in 0..20u64 {
            r.nodes[1].ram.now += 0x1F * UNIT;
            r.tick(1);
            let (_, data) = r.velo_take(&mut q).expect("a message");
            assert_eq!(data, n.to_le_bytes());
            r.commit(&q, false);
        }
        assert_eq!((drops(&r), r.nodes[1].nic.counters().events[21]), (0, 0));
        assert_eq!(r.nodes[1].nic.counters().velo.holding, 17);
        let due = r.nodes[1].nic.next_deadline().expect("a deadline");
        assert_eq!(due, r.nodes[1].ram.now + 0x20 * UNIT);
        r.nodes[1].ram.now = due;
        r.tick(1);
        assert_eq!((drops(&r), r.nodes[1].nic.counters().events[21]), (17, 1));
    }
}

/// A unit holds a limited number of bytes (G10). Above the limit it accepts no more packets from
/// the network (HW §9.6), for any VPID, until slots are free or the timeout expires. Other units
/// continue.
#[test]
fn a_unit_that_holds_enough_takes_no_more() {
    use extoll_emulator::lane::Lane;
    let cfg = NicConfig {
        hold_buffer_bytes: 4 * 256,
        hold_time_ns: Some(1000),
        ..NicConfig::default()
    };
    let mut r = rig(cfg, SlotSize::B128);
    let mut q = r.open_velo(1, 9, SlotSize::B128, 1, 8);
    numbers(&mut r, 9, 0..10);
    assert_eq!(r.nodes[1].nic.takes(), Lane::EVERY, "three on hold");
    numbers(&mut r, 9, 10..11);
    assert_eq!(r.nodes[1].nic.takes(), Lane::EVERY & !Lane::VELO);
    assert_eq!(take_all(&mut r, &mut q).len(), 7);
    r.commit(&q, false);
    assert_eq!(r.nodes[1].nic.takes(), Lane::EVERY);
    assert_eq!(take_all(&mut r, &mut q).len(), 4);
    numbers(&mut r, 9, 0..10);
    assert_eq!(r.nodes[1].nic.takes(), Lane::EVERY & !Lane::VELO);
    r.nodes[1].ram.now += 1000;
    r.tick(1);
    assert_eq!(r.nodes[1].nic.takes(), Lane::EVERY);
}

#[test]
fn forced_full_queues() {
    let mut rig = rig(NicConfig::default(), SlotSize::B128);
    let mut a = rig.open_velo(1, 9, SlotSize::B128, 1, 16);
    let mut b = rig.open_velo(1, 10, SlotSize::B128, 1, 16);
    let full = |vpid| Faults {
        queue_full: vec![QueueFull {
            unit: QueueUnit::Velo,
            vpid,
            slots: None,
        }],
        ..Faults::default()
    };
    rig.with(1, |nic, env| nic.set_faults(full(Some(9)), env));
    numbers(&mut rig, 9, 0..3);
    numbers(&mut rig, 10, 0..3);
    assert_eq!(take_all(&mut rig, &mut a).len(), 0);
    assert_eq!(take_all(&mut rig, &mut b).len(), 3);
    rig.commit(&b, false);
    rig.with(1, |nic, env| nic.set_faults(full(None), env));
    numbers(&mut rig, 10, 3..6);
    assert_eq!(take_all(&mut rig, &mut b).len(), 0);
    rig.with(1, |nic, env| nic.set_faults(Faults::default(), env));
    assert_eq!(take_all(&mut rig, &mut a), [0, 1, 2]);
    assert_eq!(take_all(&mut rig, &mut b), [3, 4, 5]);
}

#[test]
fn queues_full_with_a_few_slots() {
    let mut rig = rig(NicConfig::default(), SlotSize::B128);
    let mut q = rig.open_velo(1, 9, SlotSize::B128, 1, 16);
    let faults = Faults {
        queue_full: vec![QueueFull {
            unit: QueueUnit::Velo,
            vpid: None,
            slots: Some(3),
        }],
        ..Faults::default()
    };
    rig.with(1, |nic, env| nic.set_faults(faults, env));
    // The write pointer wraps more than once during the loop.
    let mut got = Vec::new();
    for start in [0, 10, 20] {
        numbers(&mut rig, 9, start..start + 10);
        for expected in [3, 3, 3, 1] {
            let batch = take_all(&mut rig, &mut q);
            assert_eq!(batch.len(), expected);
            got.extend(batch);
            rig.commit(&q, false);
        }
    }
    assert_eq!(got, (0..30).collect::<Vec<u64>>());
}

#[test]
fn lost_writes_leave_holes() {
    let lose = |slot, count| Faults {
        lose_writes: vec![LoseWrite {
            ring: LossyRing::Velo,
            vpid: Some(9),
            slot,
            count,
        }],
        ..Faults::default()
    };
    let mut rig = rig(NicConfig::default(), SlotSize::B64);
    let q = rig.open_velo(1, 9, SlotSize::B64, 1, 64);
    let mut other = rig.open_velo(1, 10, SlotSize::B64, 1, 64);
    rig.with(1, |nic, env| nic.set_faults(lose(None, 2), env));
    numbers(&mut rig, 10, 0..1);
    numbers(&mut rig, 9, 1..5);
    assert_eq!(take_all(&mut rig, &mut other), [0], "another VPID");
    let status = |rig: &Rig, slot: u32| rig.nodes[1].ram.qw(q.addr(slot) + 56);
    let seen: Vec<bool> = (0..5).map(|s| status(&rig, s) != 0).collect();
    assert_eq!(seen, [false, false, true, true, false]);
    // The write pointer has passed the holes, and the fault has ended.
    let pointers = BqRegs(Unit::Velo).wp_lwp_dcq_rp(Vpid::from(9));
    assert_eq!(rig.read(1, pointers) >> 32, 4);
    assert_eq!(rig.nodes[1].nic.config().faults, Faults::default());
    assert_eq!(rig.nodes[1].nic.counters().drops.lost_write, 2);
    // The fault loses one slot of a message of three slots. Messages without
    // that slot are not affected.
    rig.with(1, |nic, env| nic.set_faults(lose(Some(1), 1), env));
    send(&mut rig, 0, 7, to(9, 8), &[1; 8]);
    send(&mut rig, 0, 7, to(9, 120), &[2; 120]);
    let seen: Vec<bool> = (4..9).map(|s| status(&rig, s) != 0).collect();
    assert_eq!(seen, [true, true, false, true, false]);
    // A write that fails is posted like a write that an injected fault loses, so the pointer
    // advances, too.
    let faults = Faults {
        dma_fault_every: Some(1),
        ..Faults::default()
    };
    rig.with(1, |nic, env| nic.set_faults(faults, env));
    numbers(&mut rig, 9, 0..1);
    assert_eq!(rig.read(1, pointers) >> 32, 9);
    assert_eq!(rig.nodes[1].nic.counters().drops.dma, 1);
}

#[test]
fn network_without_credit_makes_the_requester_wait_then_retry() {
    let mut rig = rig(
        NicConfig {
            tx_queue_limit: 4,
            ..NicConfig::default()
        },
        SlotSize::B128,
    );
    let mut q = rig.open_velo(1, 9, SlotSize::B128, 1, 64);
    rig.credit = 0;
    numbers(&mut rig, 9, 0..10);
    assert!(rig.nodes[0].nic.tx_waiting());
    // Messages that wait for the network do not count as accepted (HW §8).
    let state = |rig: &mut Rig| {
        let at = wire::regs::wcbuf::velo::state(Vpid::from(7));
        wire::wcbuf::State(rig.read(0, at))
    };
    let s = state(&mut rig);
    assert_eq!((s.committed_count(), s.retry_count()), (0, 6));
    assert!(!s.is_idle());
    assert_eq!(take_all(&mut rig, &mut q).len(), 0);
    rig.credit = 2 * (8 + extoll_emulator::lane::OVERHEAD); // two small packets per work pass
    rig.tick(0);
    assert_eq!(take_all(&mut rig, &mut q), [0, 1]);
    assert_eq!(state(&mut rig).committed_count(), 2);
    rig.tick(0);
    assert_eq!(take_all(&mut rig, &mut q), [2, 3]);
    assert!(!rig.nodes[0].nic.tx_waiting());
    let s = state(&mut rig);
    assert!(s.is_idle());
    assert_eq!((s.committed_count(), s.retry_count()), (4, 6));
}

#[test]
fn nothing_overtakes_what_waits_for_credit() {
    let mut rig = rig(NicConfig::default(), SlotSize::B128);
    let mut q = rig.open_velo(1, 9, SlotSize::B128, 1, 64);
    rig.credit = 0;
    numbers(&mut rig, 9, 0..3);
    rig.hold_wire = true;
    rig.credit = u64::MAX;
    // One store completes the message, so the first three messages still wait when it is executed.
    let mut message = to(9, 8)
        .encode()
        .expect("descriptor")
        .to_le_bytes()
        .to_vec();
    message.extend_from_slice(&3u64.to_le_bytes());
    rig.store(0, 0, 0x220_0000 + 7 * 4096, &message);
    rig.pump();
    assert_eq!(take_all(&mut rig, &mut q), [0, 1, 2, 3]);
    // A message of this VPID in another class does not overtake the waiting messages (HW §9.1). It
    // does not delay other VPIDs in its lane.
    rig.credit = 0;
    rig.hold_wire = false;
    numbers(&mut rig, 9, 4..6);
    for (vpid, number) in [(7, 6u64), (8, 7)] {
        message[8..].copy_from_slice(&number.to_le_bytes());
        rig.store(0, 0, 0x200_0000 + vpid * 4096, &message);
    }
    rig.credit = u64::MAX;
    rig.tick(0);
    assert_eq!(take_all(&mut rig, &mut q), [7, 4, 5, 6]);
}

#[test]
fn layout_mistakes_are_reported_not_followed() {
    let mut rig = rig(NicConfig::default(), SlotSize::B128);
    // The slots have the wrong size.
    rig.open_velo(1, 1, SlotSize::B64, 1, 16);
    numbers(&mut rig, 1, 0..1);
    // The segments end before the queue does.
    let mut q = rig.open_velo(1, 2, SlotSize::B128, 2, 4);
    rig.write(1, velo_bq::ub(Vpid::from(2)), 99);
    numbers(&mut rig, 2, 0..9);
    assert_eq!(take_all(&mut rig, &mut q).len(), 8);
    // The descriptor page is outside memory. After that, the queue has too many segments.
    rig.open_velo(1, 3, SlotSize::B128, 2, 4);
    rig.write(
        1,
        velo_bq::dcq_base_dcq_ub(Vpid::from(3)),
        0x00FF_FFFF_FFFF_0001,
    );
    numbers(&mut rig, 3, 0..1);
    rig.write(1, velo_bq::dcq_base_dcq_ub(Vpid::from(3)), 0xFFFF);
    numbers(&mut rig, 3, 0..1);
    assert_eq!(rig.nodes[1].nic.counters().drops.queue_bad, 4);
    // The segment is outside memory. The message is lost, but the queue stays usable.
    rig.open_velo(1, 4, SlotSize::B128, 1, 4);
    let c = velo_bq::c_base_size_valid(Vpid::from(4));
    let good = rig.read(1, c);
    rig.write(1, c, (1 << 58) | (0xFF_FFFF_FFFF << 18) | (3 << 2) | 3);
    numbers(&mut rig, 4, 0..1);
    assert_eq!(rig.nodes[1].nic.counters().drops.dma, 1);
    rig.write(1, c, good);
    numbers(&mut rig, 4, 0..1);
    assert_eq!(rig.nodes[1].nic.counters().velo.received, 9);
}

#[test]
fn read_pointer_may_jump() {
    // Any value of the read pointer must be accepted, because the vendor's RMA queues write the
    // index within the segment (HW §9.5).
    let mut rig = rig(NicConfig::default(), SlotSize::B128);
    let mut q = rig.open_velo(1, 9, SlotSize::B128, 4, 4);
    let mut rng = Rng(5);
    for k in 0..500u64 {
        numbers(&mut rig, 9, k..k + 1);
        assert_eq!(take_all(&mut rig, &mut q), [k]);
        let rp = if rng.below(4) == 0 {
            rng.next() & 0xFFFF_FFFF
        } else {
            u64::from(q.read % 4)
        };
        // An index that makes the queue look full delays messages. The next index releases them.
        rig.write(1, velo_bq::rp(Vpid::from(9)), rp);
        rig.commit(&q, false);
    }
}

#[test]
fn live_pointers_and_software_write_pointer() {
    let mut rig = rig(NicConfig::default(), SlotSize::B128);
    let q = rig.open_velo(1, 9, SlotSize::B128, 4, 4);
    numbers(&mut rig, 9, 0..6);
    let at = velo_bq::wp_lwp_dcq_rp(Vpid::from(9));
    let p = wire::bq::WritePointers(rig.read(1, at));
    assert_eq!(p.lwp(), 6);
    rig.write(1, at, p.with_lwp(1).raw());
    numbers(&mut rig, 9, 50..51);
    assert_eq!(
        rig.nodes[1].ram.qw(q.addr(1) + 112),
        50,
        "written at the pointer that software set"
    );
}

#[test]
fn reset_forgets_what_was_held() {
    let mut rig = rig(NicConfig::default(), SlotSize::B128);
    rig.open_velo(1, 9, SlotSize::B128, 1, 2);
    numbers(&mut rig, 9, 0..5);
    rig.with(1, |nic, env| nic.reset(ResetKind::FunctionLevel, env));
    let c = rig.nodes[1].nic.counters();
    assert_eq!((c.drops.reset, c.velo.holding), (4, 0));
    numbers(&mut rig, 9, 5..6);
    assert_eq!(rig.nodes[1].nic.counters().drops.vpid_disabled, 1);
    assert_eq!(rig.read(1, RegOffset(0xC0_0000)), 0);
}
