//! Tests of the SMFU: windows, both modes, registers of other nodes, interrupts, order, timeouts
//! and counters (HW §12, G18, G26).

use super::rig::*;
use extoll_emulator::nic::{Body, NicConfig, ResetKind, SmfuMessage, ZeroMask};
use wire::ids::{NodeId, RegOffset};
use wire::regs::smfu as r;
use wire::regs::{info, np};
use wire::velo::SlotSize;

const TARGET: u64 = 0x80_0000;
const FLAG: u64 = 1 << 32;
const ONES: [u8; 8] = [0xFF; 8];

/// Creates two nodes on which the probe sequence has run. Interval 1 of node 0 leads to `TARGET` at
/// node 1.
fn pair() -> Rig {
    let mut rig = Rig::probed(2, SlotSize::B128);
    window_to(&mut rig, 1, 1, TARGET);
    rig
}

fn window_to(rig: &mut Rig, k: u32, node: u16, target: u64) {
    rig.smfu_interval(0, k, node);
    rig.write(usize::from(node), r::vpid_t_start_addr(k), target);
}

fn smfu(rig: &Rig, i: usize) -> &extoll_emulator::nic::SmfuCounters {
    &rig.nodes[i].nic.counters().smfu
}

#[test]
fn every_size_and_alignment() {
    let mut rig = pair();
    let mut want = pattern(1, 64);
    rig.nodes[1].ram.put(TARGET, &want);
    for len in 1..=8 {
        for at in 0..24 {
            let mut data = vec![0; len];
            assert!(rig.load(0, 2, window(1) + at, &mut data));
            assert_eq!(
                data,
                want[at as usize..at as usize + len],
                "load of {len} at {at}"
            );
            let data = pattern(at * 9 + len as u64, len);
            rig.store(0, 2, window(1) + at, &data);
            want[at as usize..at as usize + len].copy_from_slice(&data);
            assert_eq!(
                rig.nodes[1].ram.get(TARGET, 64),
                want,
                "store of {len} at {at}"
            );
        }
    }
}

#[test]
fn intervals_name_node_and_base() {
    let mut rig = Rig::probed(3, SlotSize::B128);
    // Interval 2 has a base of its own. Interval 3 uses the default base. Interval 4 leads to the
    // sending node.
    window_to(&mut rig, 2, 1, 0x90_0000);
    rig.smfu_interval(0, 3, 2);
    rig.write(2, r::T_START_ADDR_DEFAULT, 0xA0_0000);
    window_to(&mut rig, 4, 0, 0xB0_0000);
    for (k, node, base) in [(2, 1, 0x90_0000), (3, 2, 0xA0_0000), (4, 0, 0xB0_0000)] {
        let data = pattern(k.into(), 8);
        rig.store(0, 2, window(k) + 0x128, &data);
        assert_eq!(
            rig.nodes[node].ram.get(base + 0x128, 8),
            data,
            "interval {k}"
        );
    }
    // A load that crosses the border of two intervals goes to two nodes.
    rig.nodes[1].ram.put(0x90_0000 + WINDOW - 4, &[1, 2, 3, 4]);
    rig.nodes[2].ram.put(0xA0_0000, &[5, 6, 7, 8]);
    let mut data = [0; 8];
    assert!(rig.load(0, 2, window(3) - 4, &mut data));
    assert_eq!(data, [1, 2, 3, 4, 5, 6, 7, 8]);
    // A long load is split into several requests.
    let want = pattern(9, 20_000);
    rig.nodes[1].ram.put(0x90_0123, &want);
    let mut data = vec![0; want.len()];
    assert!(rig.load(0, 2, window(2) + 0x123, &mut data));
    assert_eq!(data, want);
}

#[test]
fn the_lowest_interval_wins_and_ends_are_exclusive() {
    let mut rig = pair();
    let start = BAR2 + window(1);
    let hit = |rig: &mut Rig, at: u64| {
        let before = smfu(rig, 0).stores;
        rig.store(0, 2, at - BAR2, &[1; 8]);
        smfu(rig, 0).stores - before
    };
    rig.write(0, r::interval_endaddr(1), start + 0x1000);
    assert_eq!(
        (hit(&mut rig, start + 0xFF8), hit(&mut rig, start + 0x1000)),
        (1, 0)
    );
    // An end address whose low bits are all ones is inclusive.
    rig.write(0, r::interval_endaddr(1), start + 0x1FFF);
    assert_eq!(
        (hit(&mut rig, start + 0x1FF8), hit(&mut rig, start + 0x2000)),
        (1, 0)
    );
    assert_eq!((hit(&mut rig, start), hit(&mut rig, start - 8)), (1, 0));
    // Interval 63 at the same address has no effect until interval 1 is removed.
    rig.write(0, r::interval_startaddr(63), start);
    rig.write(0, r::interval_endaddr(63), start + 0x1000);
    rig.write(0, r::interval_control(63), 0x1_0301);
    rig.write(1, r::vpid_t_start_addr(63), 0x90_0000);
    rig.store(0, 2, window(1), &[7; 8]);
    assert_eq!(rig.nodes[1].ram.get(TARGET, 1), [7]);
    rig.write(0, r::interval_control(1), 0x1_0300);
    rig.store(0, 2, window(1), &[8; 8]);
    assert_eq!(rig.nodes[1].ram.get(0x90_0000, 1), [8]);
}

#[test]
fn mask_mode() {
    let mut rig = Rig::probed(3, SlotSize::B128);
    // Bits [27:26] of the window offset select the node, so each node has 64 MiB.
    rig.write(0, r::ADDR_MASK, 3 << 26);
    rig.write(0, r::N_NODE_OFFSET, 26);
    for i in 0..3 {
        rig.write(i, r::T_START_ADDR_DEFAULT, 0x40_0000);
    }
    for node in 0..3u64 {
        let at = (node << 26) + 0x200_0100;
        rig.store(0, 2, at, &[node as u8 + 1; 8]);
        assert_eq!(
            rig.nodes[node as usize].ram.get(0x240_0100, 8),
            [node as u8 + 1; 8]
        );
        let mut data = [0; 8];
        assert!(rig.load(0, 2, at, &mut data));
        assert_eq!(data, [node as u8 + 1; 8]);
    }
    // Intervals take precedence in mask mode, too.
    window_to(&mut rig, 2, 1, TARGET);
    rig.store(0, 2, window(2), &[9; 8]);
    assert_eq!(rig.nodes[1].ram.get(TARGET, 8), [9; 8]);
    // With mask 0 there is no target. In the other interpretation of HW §12, the target is node 0.
    rig.write(0, r::ADDR_MASK, 0);
    rig.store(0, 2, window(5), &[4; 8]);
    assert_eq!(rig.nodes[0].nic.counters().drops.smfu_no_interval, 1);
    let mut rig = Rig::with_config(
        1,
        NicConfig {
            smfu_zero_mask: ZeroMask::NodeZero,
            ..NicConfig::default()
        },
    );
    rig.probe_all(SlotSize::B128);
    rig.write(0, r::T_START_ADDR_DEFAULT, 0x10_0000);
    rig.store(0, 2, window(5), &[4; 8]);
    assert_eq!(rig.nodes[0].ram.get(0x10_0000 + window(5), 8), [4; 8]);
}

#[test]
fn registers_of_another_node() {
    let mut rig = pair();
    rig.smfu_rra(0, 1);
    rig.remote_write(0, info::scratchpad(5), 0x1122_3344_5566_7788);
    assert_eq!(rig.read(1, info::scratchpad(5)), 0x1122_3344_5566_7788);
    assert_eq!(
        rig.remote_read(0, info::scratchpad(5)),
        0x1122_3344_5566_7788
    );
    assert_eq!((rig.remote_read(0, info::NODE) >> 24) & 0xFFFF, 1);
    // Writes have the side effects of local accesses. This write changes the network state and
    // raises TE 28.
    rig.remote_write(0, info::NW_STATE, 1);
    assert_eq!(rig.nodes[1].nic.counters().events[28], 1);
    // Writes to half of a register are merged like local accesses (G32).
    rig.store(0, 2, u64::from(info::scratchpad(5).0) + 4, &[0xAA; 4]);
    assert_eq!(rig.read(1, info::scratchpad(5)), 0xAAAA_AAAA_5566_7788);
    let mut half = [0; 4];
    assert!(rig.load(0, 2, u64::from(info::scratchpad(5).0), &mut half));
    assert_eq!(half, [0x88, 0x77, 0x66, 0x55]);
    assert_eq!(rig.nodes[1].nic.counters().odd_accesses, 2);
    // The SMFU looks up the node in interval 0 at every access.
    rig.smfu_rra(0, 0);
    assert_eq!((rig.remote_read(0, info::NODE) >> 24) & 0xFFFF, 0);
}

#[test]
fn stores_to_the_interrupt_range_interrupt() {
    let mut rig = pair();
    rig.write(1, r::vpid_t_start_addr(1), 0xFD_0000_0000);
    rig.msis(1);
    rig.store(0, 2, window(1) + 0x23, &[1; 4]);
    assert_eq!((rig.msis(1), rig.msis(0)), (1, 0));
    // This covers the last address of the interrupt range, and the first address behind it, where
    // there is no memory.
    rig.write(1, r::vpid_t_start_addr(1), 0xFD_FFFF_F000);
    rig.store(0, 2, window(1) + 0xFFC, &[1; 4]);
    assert_eq!(rig.msis(1), 1);
    rig.store(0, 2, window(1) + 0x1000, &[1; 4]);
    assert_eq!((rig.msis(1), rig.nodes[1].nic.counters().drops.dma), (0, 1));
}

#[test]
fn a_load_pushes_the_stores_before_it() {
    let mut rig = pair();
    rig.hold_wire = true;
    for i in 0..10u8 {
        rig.store(0, 2, window(1) + 8 * u64::from(i), &[i; 8]);
    }
    let mut data = [0; 8];
    assert!(
        !rig.load(0, 2, window(1) + 72, &mut data),
        "the load is in flight"
    );
    assert_eq!(data, ONES);
    assert!(rig.nodes[0].nic.host_waits());
    let kinds: Vec<&str> = rig.wire.iter().map(|p| p.body.kind()).collect();
    assert_eq!(kinds[9..], ["smfu-write", "smfu-read"]);
    assert!(!rig.nodes[0].nic.finish_load(&mut data));
    rig.hold_wire = false;
    rig.pump();
    assert!(rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!(data, [9; 8]);
    assert!(!rig.nodes[0].nic.host_waits());
}

#[test]
fn classes_and_counters() {
    let mut rig = pair();
    rig.hold_wire = true;
    rig.store(0, 2, window(1), &[1; 8]);
    rig.load(0, 2, window(1), &mut [0; 8]);
    assert_eq!(
        rig.wire.iter().map(|p| p.tc).collect::<Vec<_>>(),
        [2, 3],
        "0x223 (HW §3.6)"
    );
    rig.hold_wire = false;
    rig.write(1, r::TRAFFIC_CLASS, 0x103);
    rig.pump();
    assert!(rig.nodes[0].nic.finish_load(&mut [0; 8]));
    let sent = |rig: &mut Rig, i| {
        [
            r::SENT_COUNT_NP,
            r::SENT_COUNT_P,
            r::SENT_COUNT_RSP,
            r::RCVD_COUNT_NP,
            r::RCVD_COUNT_P,
            r::RCVD_COUNT_RSP,
        ]
        .map(|at| rig.read(i, at))
    };
    assert_eq!(sent(&mut rig, 0), [1, 1, 0, 0, 0, 1]);
    assert_eq!(sent(&mut rig, 1), [0, 0, 1, 1, 1, 0]);
    assert_eq!(rig.read(0, r::interval_counter(1)), (1 << 32) | 1);
    assert_eq!(rig.read(0, r::interval_counter(2)), 0);
    let misc = r::MiscCount(rig.read(0, r::MISC_COUNT));
    assert_eq!(misc.max_outstanding_nps(), 1);
    rig.write(0, r::COUNTER_RESET, 1);
    assert_eq!(sent(&mut rig, 0), [0; 6]);
    assert_eq!(
        (
            rig.read(0, r::interval_counter(1)),
            rig.read(0, r::MISC_COUNT)
        ),
        (0, 0)
    );
    let c = smfu(&rig, 1);
    assert_eq!((c.served, c.bytes_stored, smfu(&rig, 0).loads), (1, 8, 1));
}

#[test]
fn a_load_without_answer_ends_at_its_time() {
    let mut rig = pair();
    rig.smfu_interval(0, 2, 77);
    let mut data = [0; 8];
    assert!(!rig.load(0, 2, window(2), &mut data));
    // The register is read by management software, because the host has only one load at a time.
    let status = rig.with(0, |nic, env| nic.reg_peek(r::STATUS_CONTROL.0, env));
    assert!(!r::StatusControl(status).idle());
    let at = rig.nodes[0].nic.next_deadline().unwrap();
    assert_eq!(at, rig.nodes[0].ram.now + 500_000_000, "default");
    rig.nodes[0].ram.now = at - 1;
    rig.tick(0);
    assert!(!rig.nodes[0].nic.finish_load(&mut data));
    rig.snq_handle(0);
    rig.nodes[0].ram.now = at;
    rig.tick(0);
    assert!(rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!(data, ONES);
    assert_eq!(rig.read(0, r::TIMEOUT_CONTROL), FLAG);
    assert!(r::StatusControl(rig.read(0, r::STATUS_CONTROL)).idle());
    assert_eq!(rig.nodes[0].nic.counters().events[12], 1);
    assert_eq!(rig.snq_handle(0).len(), 1, "TE 12 is in the ring");
    assert_eq!((smfu(&rig, 0).timeouts, smfu(&rig, 0).outstanding), (1, 0));
    assert_eq!(rig.nodes[0].nic.next_deadline(), None);
    // The timeout register is set to 50 µs. Only writing 1 clears the flag in this register.
    rig.write(0, r::TIMEOUT_CONTROL, 50);
    assert_eq!(rig.read(0, r::TIMEOUT_CONTROL), FLAG | 50);
    rig.write(0, r::TIMEOUT_CONTROL, FLAG | 50);
    assert_eq!(rig.read(0, r::TIMEOUT_CONTROL), 50);
    assert!(!rig.load(0, 2, window(2), &mut data));
    assert_eq!(rig.nodes[0].nic.next_deadline(), Some(at + 50_000));
}

#[test]
fn a_late_answer_is_no_answer() {
    let mut rig = pair();
    rig.nodes[1].ram.put(TARGET, &[5; 16]);
    rig.hold_wire = true;
    let mut data = [0; 8];
    assert!(!rig.load(0, 2, window(1), &mut data));
    rig.nodes[0].ram.now += 500_000_000;
    rig.tick(0);
    assert!(rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!(data, ONES);
    // The next load is in flight when the answer to the first load arrives.
    rig.nodes[1].ram.put(TARGET + 8, &[6; 8]);
    assert!(!rig.load(0, 2, window(1) + 8, &mut data));
    rig.hold_wire = false;
    rig.pump();
    assert!(rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!((data, smfu(&rig, 0).late), ([6; 8], 1));
}

#[test]
fn forged_answers_are_ignored() {
    let mut rig = pair();
    rig.hold_wire = true;
    let mut data = [0; 8];
    assert!(!rig.load(0, 2, window(1), &mut data));
    let mut packet = rig.wire[0].clone();
    let Body::Smfu(request) = &packet.body else {
        panic!("{packet:?}")
    };
    let SmfuMessage::Read { tag, .. } = **request else {
        panic!("{request:?}")
    };
    for (src, tag, len) in [(2, tag, 8), (1, tag + 1, 8), (1, tag, 7), (1, tag, 9)] {
        packet.src = NodeId(src);
        let data = Some(vec![3; len]);
        packet.body = Body::Smfu(Box::new(SmfuMessage::Response { tag, data }));
        let packet = packet.clone();
        rig.with(0, |nic, env| nic.receive(packet, env));
    }
    assert!(!rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!(smfu(&rig, 0).late, 4);
    rig.hold_wire = false;
    rig.pump();
    assert!(rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!(data, [0; 8]);
}

#[test]
fn what_the_target_can_not_do() {
    let mut rig = pair();
    rig.write(1, r::vpid_t_start_addr(1), 1 << 40);
    let mut data = [0; 8];
    assert!(rig.load(0, 2, window(1), &mut data));
    assert_eq!((data, smfu(&rig, 0).refused), (ONES, 1));
    rig.store(0, 2, window(1), &[0; 8]);
    assert_eq!(rig.nodes[1].nic.counters().drops.dma, 1);
    assert_eq!(
        rig.read(0, r::TIMEOUT_CONTROL),
        0,
        "a refusal is not a timeout"
    );
    // The request is for a register beyond the end of the register file.
    let forged = |message| extoll_emulator::env::Packet {
        src: NodeId(0),
        dst: extoll_emulator::env::Dest::Node(NodeId(1)),
        port: extoll_emulator::env::NetPort::Smfu,
        tc: 0,
        bytes: 8,
        body: Body::Smfu(Box::new(message)),
    };
    use extoll_emulator::nic::SmfuSpace::{Memory, Registers};
    for (space, addr, len) in [
        (Registers, 0x1FF_FFFC, 8),
        (Registers, u64::MAX, 8),
        (Memory(Some(200)), u64::MAX, u32::MAX),
    ] {
        let read = SmfuMessage::Read {
            space,
            addr,
            len,
            tag: 1,
        };
        rig.with(1, |nic, env| nic.receive(forged(read), env));
        let data = vec![1; 8];
        let write = SmfuMessage::Write { space, addr, data };
        rig.with(1, |nic, env| nic.receive(forged(write), env));
    }
    assert_eq!(rig.nodes[1].nic.counters().bad_accesses, 4);
}

#[test]
fn a_unit_that_is_off_does_nothing() {
    let mut rig = pair();
    rig.write(0, r::STATUS_CONTROL, 0);
    let mut data = [0; 8];
    assert!(rig.load(0, 2, window(1), &mut data));
    rig.store(0, 2, window(1), &[1; 8]);
    assert_eq!(
        (data, rig.nodes[0].nic.counters().drops.smfu_disabled),
        (ONES, 2)
    );
    assert_eq!(rig.nodes[0].nic.counters().events[12], 0);
    rig.write(0, r::STATUS_CONTROL, 1);
    rig.write(1, r::STATUS_CONTROL, 0);
    assert!(
        !rig.load(0, 2, window(1), &mut data),
        "a unit that is off does not answer"
    );
    assert_eq!(rig.nodes[1].nic.counters().drops.smfu_disabled, 1);
    // A reset ends the load, which returns all ones. A later response is ignored.
    rig.with(0, |nic, env| nic.reset(ResetKind::FunctionLevel, env));
    data = [0; 8];
    assert!(rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!(data, ONES);
    assert_eq!(rig.nodes[0].nic.next_deadline(), None);
}

#[test]
fn the_matching_store_has_an_end() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    for k in 0..4 {
        rig.smfu_interval(0, k + 1, 9);
    }
    let mut data = vec![0; 4096 * 514];
    assert!(!rig.load(0, 2, window(1), &mut data));
    assert_eq!(rig.nodes[0].nic.counters().drops.smfu_store_full, 2);
    assert_eq!(rig.nodes[0].nic.counters().events[11], 2);
    let status = r::StatusControl(rig.read(0, r::STATUS_CONTROL));
    assert!(status.matching_store_empty() && !status.idle());
    assert_eq!(smfu(&rig, 0).outstanding, 512);
    // A new load replaces the old load, whose requests still time out.
    assert!(rig.load(0, 0, 0x8008, &mut [0; 8]));
    rig.nodes[0].ram.now += 500_000_000;
    rig.tick(0);
    assert_eq!(
        (smfu(&rig, 0).outstanding, smfu(&rig, 0).timeouts),
        (0, 512)
    );
}

/// A message of the host may contain 200 stores. The host can be stopped only between messages.
#[test]
fn a_message_of_many_stores_fits_whatever_the_limit() {
    let mut rig = Rig::with_config(
        2,
        NicConfig {
            tx_queue_limit: 8,
            ..NicConfig::default()
        },
    );
    rig.probe_all(SlotSize::B128);
    window_to(&mut rig, 1, 1, TARGET);
    rig.credit = 0;
    let store = |rig: &mut Rig, i: u64| rig.store(0, 2, window(1) + 8 * i, &[i as u8 + 1; 8]);
    (0..207).for_each(|i| store(&mut rig, i));
    assert!(rig.nodes[0].nic.host_stalled());
    rig.credit = u64::MAX;
    rig.tick(0);
    for i in 0..207u64 {
        assert_eq!(rig.nodes[1].ram.get(TARGET + 8 * i, 8), [i as u8 + 1; 8]);
    }
    assert_eq!(rig.nodes[0].nic.counters().drops.smfu_congested, 0);
}

#[test]
fn a_network_that_takes_nothing_stops_the_host_for_a_while() {
    let mut rig = Rig::with_config(
        2,
        NicConfig {
            tx_queue_limit: 8,
            ..NicConfig::default()
        },
    );
    rig.probe_all(SlotSize::B128);
    window_to(&mut rig, 1, 1, TARGET);
    rig.credit = 0;
    let store = |rig: &mut Rig, i: u64| rig.store(0, 2, window(1) + 8 * i, &[i as u8 + 1; 8]);
    (0..8).for_each(|i| store(&mut rig, i));
    assert!(!rig.nodes[0].nic.host_stalled());
    // Stores that were already in flight from the host are still accepted.
    (8..12).for_each(|i| store(&mut rig, i));
    assert!(rig.nodes[0].nic.host_stalled() && rig.nodes[0].nic.host_waits());
    let until = rig.nodes[0].nic.next_deadline().unwrap();
    rig.nodes[0].ram.now = until;
    rig.tick(0);
    assert!(!rig.nodes[0].nic.host_stalled(), "the stall ends");
    store(&mut rig, 12);
    assert_eq!(rig.nodes[0].nic.counters().drops.smfu_congested, 1);
    assert_eq!(rig.read(0, r::TIMEOUT_CONTROL), FLAG);
    assert_eq!(rig.nodes[1].ram.get(TARGET, 8), [0; 8]);
    rig.credit = u64::MAX;
    rig.tick(0);
    for i in 0..12u64 {
        assert_eq!(rig.nodes[1].ram.get(TARGET + 8 * i, 8), [i as u8 + 1; 8]);
    }
    store(&mut rig, 13);
    assert_eq!(
        rig.nodes[1].ram.get(TARGET + 8 * 13, 8),
        [14; 8],
        "stores work again"
    );
    assert_eq!(smfu(&rig, 0).stalls, 1);
}

#[test]
fn a_load_that_waits_for_the_network_is_sent_late() {
    let mut rig = pair();
    rig.credit = 0;
    let mut data = [0; 8];
    assert!(!rig.load(0, 2, window(1), &mut data));
    rig.nodes[0].ram.now += 500_000_000;
    rig.tick(0);
    assert!(rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!(data, ONES);
    rig.credit = u64::MAX;
    rig.tick(0);
    assert_eq!(smfu(&rig, 0).late, 1);
}

#[test]
fn remote_memory_and_registers_meet_at_32_mib() {
    let mut rig = pair();
    // Interval 5 of the HTAX ends at 32 MiB. An SMFU interval across this border is reachable on
    // both sides.
    let start = BAR2 + 0x200_0000 - 0x1000;
    rig.write(0, r::interval_endaddr(0), start);
    rig.write(0, r::interval_startaddr(1), start);
    rig.write(0, r::interval_endaddr(1), start + 0x3000);
    rig.store(0, 2, 0x200_0000, &[1; 8]);
    assert_eq!(rig.nodes[1].ram.get(TARGET + 0x1000, 8), [1; 8]);
    rig.store(0, 2, 0x200_0000 - 8, &[1; 8]);
    assert_eq!(rig.nodes[1].nic.counters().bad_accesses, 1, "RF+0xFF8");
    assert_eq!(rig.read(0, RegOffset(np::general(3).0)), np::GENERAL_INIT);
}
