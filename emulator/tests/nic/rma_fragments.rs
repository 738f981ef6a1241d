//! Tests of transfers as packets of 496 bytes (HW §10.3, G12, G29): partial arrival, order of
//! packets, and transfers that never complete.

use super::rig::*;
use super::rma::{desc, get, put, Pair, ALL, PLAIN};
use extoll_emulator::env::Packet;
use extoll_emulator::nic::{Body, Faults, NicConfig, ResetKind, RmaKind};
use std::collections::BTreeSet;
use wire::ids::Vpid;
use wire::regs::rma as regs;
use wire::rma::{Descriptor, Modifiers, Operation, PageOptions};
use wire::velo::SlotSize;

/// Maximum number of packets that a NIC sends per call (MODEL).
const TURN: usize = 64;

/// Returns the origin of a packet, its VPID, and the offset of its data within the transfer.
fn place(packet: &Packet) -> (u16, u8, u64) {
    let Body::Rma(m) = &packet.body else {
        panic!("{packet:?}")
    };
    let addr = match &m.kind {
        RmaKind::Put { addr, .. } => *addr,
        RmaKind::GetResponse { write_addr, .. } => *write_addr,
        other => panic!("{other:?}"),
    };
    assert!(packet.bytes <= 496);
    (packet.src.0, m.origin_vpid, addr)
}

#[test]
fn the_first_fragment_is_not_the_transfer() {
    let mut p = Pair::new();
    let len = 4 * 496 + 16;
    let data = pattern(1, len);
    let (from, to) = (p.m0 + 3, p.m1 + 5);
    p.rig.nodes[0].ram.put(from, &data);
    p.rig.hold_wire = true;
    p.post(PLAIN, &desc(1, 6, ALL, put(len as u32, from, to)));
    assert_eq!(p.rig.wire.len(), 5);
    // All packets were sent. The requester's notification guarantees nothing else (HW §10.5).
    let (a, b) = p.notes();
    assert_eq!((a.len(), b.len()), (1, 0));
    assert_eq!(p.rig.nodes[1].ram.get(to, len), vec![0; len]);
    for k in 1..=5 {
        p.rig.pump_some(1);
        let mut want = data.clone();
        want[len.min(k * 496)..].fill(0);
        assert_eq!(p.rig.nodes[1].ram.get(to, len), want, "packet {k}");
        let (_, b) = p.notes();
        assert_eq!(b.len(), usize::from(k == 5), "packet {k}");
    }

    // This transfer is a GET. The responder has read all data, but the origin has only the first
    // fragment.
    let back = p.m0 + 0x4001;
    p.post(PLAIN, &desc(1, 6, ALL, get(len as u32, to, back)));
    p.rig.pump_some(1);
    assert_eq!(p.rig.wire.len(), 5);
    let (a, b) = p.notes();
    assert_eq!((a.len(), b.len()), (1, 1));
    for k in 1..=5 {
        p.rig.pump_some(1);
        let mut want = data.clone();
        want[len.min(k * 496)..].fill(0);
        assert_eq!(p.rig.nodes[0].ram.get(back, len), want, "packet {k}");
        let (a, _) = p.notes();
        assert_eq!(a.len(), usize::from(k == 5), "packet {k}");
    }
}

#[test]
fn a_call_sends_so_much_and_memory_is_read_when_it_is_sent() {
    let mut p = Pair::new();
    let len = 100 * 496;
    p.rig.nodes[0].ram.put(p.m0, &vec![1; len]);
    p.rig.hold_wire = true;
    p.post(PLAIN, &desc(1, 6, ALL, put(len as u32, p.m0, p.m1)));
    assert_eq!(p.rig.wire.len(), TURN);
    assert!(p.rig.nodes[0].nic.tx_waiting());
    let told = p.rig.nodes[0].nic.counters().rma.notifications;
    assert_eq!(told, 0, "not sent yet");
    p.rig.nodes[0].ram.put(p.m0, &vec![2; len]);
    p.rig.tick(0);
    assert_eq!(p.rig.wire.len(), 100);
    assert!(!p.rig.nodes[0].nic.tx_waiting());
    assert_eq!(p.notes().0.len(), 1);
    p.rig.pump();
    let got = p.rig.nodes[1].ram.get(p.m1, len);
    let (early, late) = got.split_at(TURN * 496);
    assert!(early.iter().all(|b| *b == 1) && late.iter().all(|b| *b == 2));
    assert_eq!(p.notes().1.len(), 1);
}

/// Returns the order of the packets of PUTs by VPIDs 5 and 7 of node 0, and of a GET by node 1 from
/// node 0.
fn crowd(seed: u64) -> Vec<(u16, u8, u64)> {
    let mut p = Pair::with_config(NicConfig {
        seed,
        ..NicConfig::default()
    });
    p.rig.open_rma(0, 7, 1, 256);
    p.rig.hold_wire = true;
    // Without credit, no transfer begins before all transfers are posted.
    p.rig.credit = 0;
    let len = 10 * 496;
    for k in 0..2 {
        for vpid in [5, 7] {
            let to = p.m1 + k * 0x4000;
            let d = desc(1, 6, ALL, put(len, p.m0, to));
            p.rig.rma_post(0, vpid, PLAIN, &d);
        }
    }
    p.rig.credit = u64::MAX;
    p.rig
        .rma_post(1, 6, PLAIN, &desc(0, 5, ALL, get(len, p.m0, p.m1)));
    let request = p.rig.wire.pop_back().expect("a request");
    p.rig.credit = 0;
    p.rig.with(0, |nic, env| nic.receive(request, env));
    p.rig.credit = u64::MAX;
    p.rig.tick(0);
    p.rig.wire.iter().map(place).collect()
}

#[test]
fn vpids_and_units_interleave_and_a_vpid_keeps_its_order() {
    let mut orders = BTreeSet::new();
    for seed in 0..8 {
        let order = crowd(seed);
        assert_eq!(order, crowd(seed), "seed {seed} gives one order");
        assert_eq!(order.len(), 50);
        for (origin, count) in [(5u8, 20), (7, 20), (6, 10)] {
            let mine: Vec<u64> = order
                .iter()
                .filter(|(_, vpid, _)| *vpid == origin)
                .map(|(.., addr)| *addr)
                .collect();
            assert_eq!(mine.len(), count);
            assert!(mine.is_sorted(), "seed {seed}, VPID {origin}: {mine:x?}");
        }
        let changes = order.windows(2).filter(|w| w[0].1 != w[1].1).count();
        assert!(changes > 10, "seed {seed}: {changes} changes in 50 packets");
        orders.insert(order);
    }
    assert!(orders.len() > 6, "seeds make a difference");
}

/// A notification PUT follows a PUT. In the traffic class of the PUT, it stays behind the whole
/// PUT. In another class, it may overtake the PUT (HW §10.8).
#[test]
fn classes_are_not_ordered() {
    let mut overtook = 0;
    for seed in 0..10 {
        for tc in [0, 1] {
            let mut p = Pair::with_config(NicConfig {
                seed,
                ..NicConfig::default()
            });
            p.rig.hold_wire = true;
            p.rig.credit = 0;
            p.post(PLAIN, &desc(1, 6, ALL, put(20 * 496, p.m0, p.m1)));
            let page = PageOptions {
                traffic_class: tc,
                ..PLAIN
            };
            let op = Operation::NotificationPut { class: 1, value: 2 };
            p.post(page, &desc(1, 6, ALL, op));
            p.rig.credit = u64::MAX;
            p.rig.tick(0);
            assert_eq!(p.rig.wire.len(), 21);
            let at = p.rig.wire.iter().position(|packet| match &packet.body {
                Body::Rma(m) => matches!(m.kind, RmaKind::Notify { .. }),
                _ => false,
            });
            let last = at == Some(20);
            assert!(last || tc != 0, "overtook its own class");
            overtook += usize::from(!last);
        }
    }
    assert!(overtook > 5, "{overtook} of 10");
}

/// The target cannot write the third packet. Earlier packets stay written, later packets are
/// dropped, and one notification reports the failure (G13, G17).
#[test]
fn the_rest_of_a_failed_transfer_is_left_out() {
    let mut p = Pair::new();
    let gat = 0x0280_0000;
    // Only pages 0 and 2 of three pages are mapped.
    for k in [0, 2] {
        let gate = (p.m1 + 4096 * k) | (6 << 2) | 3;
        p.rig.nodes[1].ram.set_qw(gat + 8 * k, gate);
    }
    p.rig
        .write(1, wire::ids::RegOffset(0xE000), (1 << 31) | (gat >> 21));
    for k in 0..3 {
        let gate = (p.m0 + 4096 * k) | (5 << 2) | 3;
        p.rig.nodes[0].ram.set_qw(gat + 8 * k, gate);
    }
    p.rig
        .write(0, wire::ids::RegOffset(0xE000), (1 << 31) | (gat >> 21));
    let translate = PageOptions {
        translate: true,
        ..PLAIN
    };
    p.rig.nodes[0].ram.put(p.m0, &[7; 3 * 4096]);
    p.post(translate, &desc(1, 6, ALL, put(3 * 4096, 0, 0)));
    let (_, b) = p.notes();
    // Byte 4096 is in the packet that begins at offset 3968.
    let seen: Vec<_> = b.iter().map(|n| (n.word0, n.error)).collect();
    assert_eq!(seen, [(3968, 4)]);
    let ram = p.rig.nodes[1].ram.get(p.m1, 3 * 4096);
    assert!(ram[..3968].iter().all(|b| *b == 7));
    assert!(ram[3968..].iter().all(|b| *b == 0));
    assert_eq!(p.rig.nodes[1].nic.counters().drops.translation, 1);
    assert_eq!(p.rig.read(1, regs::PERF_COMPLETER_IN_0), 25 << 32);

    // The end of a failed transfer is lost. Then its sender is reset and numbers its transfers from
    // the start again. The target must not drop packets of the new transfers.
    p.rig.hold_wire = true;
    p.post(translate, &desc(1, 6, ALL, put(3 * 4096, 0, 0)));
    p.rig.pump_some(20);
    p.rig.wire.clear();
    p.rig.hold_wire = false;
    p.notes();
    p.rig.with(0, |nic, env| nic.reset(ResetKind::PowerOn, env));
    super::probe::probe(&mut p.rig, 0, SlotSize::B128);
    p.q0 = p.rig.open_rma(0, 5, 1, 256);
    for k in 0..4 {
        p.rig.nodes[0].ram.put(p.m0, &[8 + k; 3968]);
        p.post(PLAIN, &desc(1, 6, ALL, put(3968, p.m0, p.m1)));
        assert_eq!(p.rig.nodes[1].ram.get(p.m1, 3968), [8 + k; 3968]);
        assert_eq!(p.notes().1.len(), 1);
    }
}

#[test]
fn lost_packets_leave_a_transfer_without_its_end_and_others_alone() {
    let mut p = Pair::new();
    let ntr = Modifiers {
        ntr: true,
        ..Modifiers::NONE
    };
    for lost in 0..3 {
        p.rig.nodes[0].ram.put(p.m0, &[lost as u8 + 1; 1200]);
        p.rig.nodes[1].ram.put(p.m1, &[0; 1200]);
        for modifiers in [Modifiers::NONE, ntr] {
            p.rig.hold_wire = true;
            let d = Descriptor {
                modifiers,
                ..desc(1, 6, ALL, put(1200, p.m0, p.m1))
            };
            p.post(PLAIN, &d);
            p.rig.wire.remove(lost);
            p.rig.hold_wire = false;
            p.rig.pump();
            let told = match (modifiers.ntr, lost) {
                (true, _) => 2,
                (false, 2) => 0,
                (false, _) => 1,
            };
            assert_eq!(p.notes().1.len(), told, "packet {lost}");
        }
        for (k, part) in p.rig.nodes[1].ram.get(p.m1, 1200).chunks(496).enumerate() {
            let want = if k == lost { 0 } else { lost as u8 + 1 };
            assert!(part.iter().all(|b| *b == want), "packet {lost}, part {k}");
        }
    }
    p.post(PLAIN, &desc(1, 6, ALL, put(1200, p.m0, p.m1)));
    assert_eq!(p.notes().1.len(), 1);
}

/// HW §10.8 orders the requests of a VPID in one class, but not the work of two units of the
/// target. A posted write may pass a read that waits.
#[test]
fn a_put_passes_an_earlier_get_at_the_target() {
    let mut p = Pair::new();
    let back = p.m0 + 0x1000;
    p.rig.nodes[0].ram.put(p.m0, &[2; 8]);
    p.rig.nodes[1].ram.put(p.m1, &[1; 8]);
    p.rig.hold_wire = true;
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1, back)));
    p.post(PLAIN, &desc(1, 6, ALL, put(8, p.m0, p.m1)));
    let order: Vec<bool> = (p.rig.wire.iter())
        .map(|packet| matches!(&packet.body, Body::Rma(m) if matches!(m.kind, RmaKind::Put { .. })))
        .collect();
    assert_eq!(order, [false, true], "they travel in order");
    // There is no credit for the responder's answers yet.
    p.rig.credit = 0;
    p.rig.pump();
    assert_eq!(p.rig.nodes[1].ram.get(p.m1, 8), [2; 8]);
    p.rig.credit = u64::MAX;
    p.rig.hold_wire = false;
    p.rig.tick(1);
    assert_eq!(p.rig.nodes[0].ram.get(back, 8), [2; 8]);
}

/// A VPID is closed during its transfers and during requests from other nodes. The remaining
/// packets are dropped without a notification, and the transfers do not continue when the VPID is
/// opened again.
#[test]
fn a_closed_vpid_sends_no_more() {
    let table = |vpid: u8| regs::vpid_table(Vpid::from(vpid));
    let mut p = Pair::new();
    let len = 100 * 496;
    p.rig.nodes[0].ram.put(p.m0, &vec![1; len as usize]);
    p.rig.hold_transfers = true;
    p.rig.hold_wire = true;
    p.post(PLAIN, &desc(1, 6, ALL, put(len, p.m0, p.m1)));
    // The credit is limited, because otherwise each access of the host would send another batch of
    // packets.
    p.rig.credit = 1;
    p.post(PLAIN, &desc(1, 6, ALL, put(8, p.m0, p.m1)));
    p.rig.write(0, table(5), regs::VPID_DISABLED);
    p.rig.write(0, table(5), regs::VPID_ENABLED);
    assert!(!p.rig.nodes[0].nic.tx_waiting());
    assert_eq!(p.rig.nodes[0].nic.counters().drops.hold_closed, 2);
    p.rig.credit = u64::MAX;
    p.rig.pump();
    let got = p.rig.nodes[1].ram.get(p.m1, len as usize);
    let sent = got.iter().filter(|b| **b == 1).count();
    assert!((TURN * 496..len as usize).contains(&sent), "{sent}");
    let (a, b) = p.notes();
    assert_eq!((a.len(), b.len()), (0, 0));
    // Closing the VPID has the same effect on transfers of the responder.
    p.post(PLAIN, &desc(1, 6, ALL, get(len, p.m1, p.m0)));
    p.rig.pump_some(1);
    assert!(p.rig.nodes[1].nic.tx_waiting());
    p.rig.write(1, table(6), regs::VPID_DISABLED);
    p.rig.write(1, table(6), regs::VPID_ENABLED);
    assert!(!p.rig.nodes[1].nic.tx_waiting());
    p.rig.pump();
    let (a, b) = p.notes();
    assert_eq!((a.len(), b.len()), (1, 0), "the request was sent");
    // Closing the VPID has the same effect on commands that have not begun, because there is no
    // credit.
    p.rig.credit = 0;
    p.post(PLAIN, &desc(1, 6, ALL, put(8, p.m0, p.m1)));
    p.rig.write(0, table(5), regs::VPID_DISABLED);
    p.rig.write(0, table(5), regs::VPID_ENABLED);
    p.rig.credit = u64::MAX;
    p.rig.tick(0);
    assert!(p.rig.wire.is_empty());
    assert_eq!(p.rig.nodes[0].nic.counters().drops.hold_closed, 3);
    // After the VPID has been opened again, both directions work.
    p.rig.hold_transfers = false;
    p.rig.hold_wire = false;
    p.post(PLAIN, &desc(1, 6, ALL, get(len, p.m1, p.m0)));
    p.post(PLAIN, &desc(1, 6, ALL, put(len, p.m0, p.m1)));
    let (a, b) = p.notes();
    assert_eq!((a.len(), b.len()), (3, 2));
}

/// A reset ends all transfers. Packets in flight to the node are dropped, because its VPIDs are
/// closed.
#[test]
fn resets_end_transfers() {
    let mut p = Pair::new();
    p.rig.hold_wire = true;
    p.post(PLAIN, &desc(1, 6, ALL, put(100 * 496, p.m0, p.m1)));
    p.rig.pump_some(10);
    let reset = ResetKind::FunctionLevel;
    p.rig.with(0, |nic, env| nic.reset(reset, env));
    assert!(!p.rig.nodes[0].nic.tx_waiting());
    assert_eq!(p.rig.nodes[0].nic.counters().drops.reset, 1);
    p.rig.with(1, |nic, env| nic.reset(reset, env));
    p.rig.pump();
    let c = p.rig.nodes[1].nic.counters();
    assert_eq!(c.drops.vpid_disabled, TURN as u64 - 10);
    assert_eq!(c.rma.notifications, 0);
}

/// A link that is down for a moment loses packets. The transfer completes normally, unless its last
/// packet is lost.
#[test]
fn a_lost_packet_before_the_last_one_leaves_a_hole() {
    let mut p = Pair::new();
    let len = 3 * 496 + 16;
    let data = pattern(1, len);
    p.rig.nodes[0].ram.put(p.m0, &data);
    let lose = |p: &mut Pair, node, every| {
        let faults = Faults {
            lose_inner_every: every,
            ..Faults::default()
        };
        p.rig.with(node, |nic, env| nic.set_faults(faults, env));
    };
    let lost = |p: &Pair, node: usize| p.rig.nodes[node].nic.counters().drops.lost_inner;
    // A PUT of four packets has three that are not the last packet. The third of them is lost.
    lose(&mut p, 1, Some(3));
    for k in 0..3 {
        let to = p.m1 + k * 0x1000;
        p.post(PLAIN, &desc(1, 6, ALL, put(len as u32, p.m0, to)));
        let (a, b) = p.notes();
        assert_eq!((a.len(), b.len()), (1, 1), "put {k}");
        assert!(a.iter().chain(&b).all(|n| n.error == 0));
        let mut want = data.clone();
        want[2 * 496..3 * 496].fill(0);
        assert_eq!(p.rig.nodes[1].ram.get(to, len), want, "put {k}");
    }
    assert_eq!(lost(&p, 1), 3);
    // A GET loses all packets except the last. A GET with a single packet loses no packet.
    lose(&mut p, 1, None);
    p.rig.nodes[1].ram.put(p.m1, &data);
    lose(&mut p, 0, Some(1));
    let back = p.m0 + 0x4000;
    for (len, missing) in [(len, 3 * 496), (496, 0)] {
        p.rig.nodes[0].ram.put(back, &vec![0; len]);
        p.post(PLAIN, &desc(1, 6, ALL, get(len as u32, p.m1, back)));
        let (a, b) = p.notes();
        assert_eq!((a.len(), b.len()), (2, 1));
        assert!(a.iter().chain(&b).all(|n| n.error == 0));
        let mut want = data[..len].to_vec();
        want[..missing].fill(0);
        assert_eq!(p.rig.nodes[0].ram.get(back, len), want);
    }
    assert_eq!((lost(&p, 0), lost(&p, 1)), (3, 3));
}
