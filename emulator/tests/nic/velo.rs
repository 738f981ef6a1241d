//! Tests of VELO messages: formats, identity, protection, interrupts, assembly and retry.

use super::rig::*;
use extoll_emulator::nic::{Faults, IrqMissed, NicConfig};
use wire::ids::{NodeId, RegOffset, Vpid};
use wire::regs::{velo as regs, wcbuf};
use wire::snq::Entry;
use wire::velo::{Descriptor, Mtt, SlotSize, SourceId, Target};
use wire::wcbuf::{Action, Credits, Event, Replay, State};

fn to(node: u16, vpid: u8, len: usize) -> Descriptor {
    Descriptor {
        target: Target::Node(NodeId(node)),
        vpid: Vpid::from(vpid),
        mtt: Mtt::from_low_bits(2),
        irq: false,
        tag: 0x5A,
        len: len as u16,
    }
}

pub fn send(rig: &mut Rig, i: usize, vpid: u8, d: Descriptor, data: &[u8]) {
    rig.velo_send(i, vpid, d.encode().expect("descriptor"), data);
}

fn drops(rig: &Rig, i: usize) -> extoll_emulator::nic::Drops {
    rig.nodes[i].nic.counters().drops.clone()
}

#[test]
fn every_length_arrives_in_both_slot_sizes() {
    for slots in [SlotSize::B64, SlotSize::B128] {
        let mut rig = Rig::probed(2, slots);
        // The mailbox has 50 slots in 5 segments, so that messages of all sizes cross the ends of
        // segments and of the ring.
        let mut q = rig.open_velo(1, 9, slots, 5, 10);
        for round in 0..3 {
            for len in 1..=120usize {
                let data = pattern((round * 200 + len) as u64, len);
                send(&mut rig, 0, 7, to(1, 9, len), &data);
                let (status, got) = rig.velo_take(&mut q).expect("message");
                assert_eq!(got, data);
                assert_eq!(
                    status.source,
                    SourceId {
                        node: NodeId(0),
                        vpid: Vpid::from(7)
                    }
                );
                assert_eq!(
                    (status.mtt.get(), status.tag, status.len as usize),
                    (2, 0x5A, len)
                );
                assert!(!status.err);
                rig.commit(&q, false);
            }
        }
        let lwp = rig.read(1, RegOffset(0xC0_2800 + 8 * 9)) >> 32;
        assert_eq!(lwp, u64::from(q.read));
        let c = &rig.nodes[1].nic.counters().velo;
        assert_eq!((c.received, c.held), (360, 0));
        assert_eq!(rig.nodes[0].nic.counters().velo.sent, 360);
        assert_eq!(rig.read(0, regs::COUNTER_0), 360 << 32);
        assert_eq!(rig.read(1, regs::COUNTER_0), 360);
    }
}

#[test]
fn slot_layout_and_status_word() {
    // Checks an RTS message of the Ethernet protocol, word by word.
    let mut rig = Rig::probed(3, SlotSize::B128);
    let q = rig.open_velo(2, 254, SlotSize::B128, 1, 32);
    rig.nodes[2].ram.put(q.addr(0), &[0xEE; 128]);
    rig.velo_send(1, 254, 0x0010_0005_00FE_0002, &pattern(1, 16));
    let ram = &rig.nodes[2].ram;
    assert_eq!(ram.qw(q.addr(0) + 120) & !(1 << 36), 0x0010_0001_00FE_0001);
    assert_eq!((ram.qw(q.addr(0) + 120) >> 36) & 3, 1, "EOM, no ERR");
    assert_eq!(ram.get(q.addr(0) + 104, 16), pattern(1, 16));
    assert!(
        ram.get(q.addr(0), 104).iter().all(|b| *b == 0xEE),
        "unused payload must be unchanged"
    );

    let mut rig = Rig::probed(2, SlotSize::B64);
    let q = rig.open_velo(1, 1, SlotSize::B64, 1, 32);
    let data = pattern(2, 115);
    send(&mut rig, 0, 3, to(1, 1, 115), &data);
    let ram = &rig.nodes[1].ram;
    assert_eq!(ram.get(q.addr(0), 56), &data[..56]);
    assert_eq!(ram.get(q.addr(1), 56), &data[56..112]);
    assert_eq!(ram.get(q.addr(2) + 48, 3), &data[112..]);
    let eom: Vec<_> = (0..3).map(|k| (ram.qw(q.addr(k) + 56) >> 36) & 1).collect();
    assert_eq!(eom, [0, 0, 1]);
}

#[test]
fn multicast_reaches_the_others() {
    let mut rig = Rig::probed(4, SlotSize::B128);
    let mut queues: Vec<_> = (0..4)
        .map(|i| rig.open_velo(i, 254, SlotSize::B128, 1, 16))
        .collect();
    rig.velo_send(2, 254, 0x002A_0007_80FE_003F, &pattern(5, 42));
    for (i, q) in queues.iter_mut().enumerate() {
        let got = rig.velo_take(q);
        assert_eq!(got.is_some(), i != 2);
        if let Some((status, data)) = got {
            assert_eq!(status.source.node, NodeId(2));
            assert_eq!(data, pattern(5, 42));
        }
    }
    // The group number is invalid, because there are only 64 groups.
    rig.velo_send(2, 254, 0x002A_0007_80FE_0040, &pattern(5, 42));
    assert_eq!(drops(&rig, 2).velo_bad_descriptor, 1);
}

#[test]
fn loop_back_and_forged_identity() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    let mut q = rig.open_velo(0, 5, SlotSize::B128, 1, 16);
    // The source comes from the tables. It does not depend on the node and the VPID that own the
    // page.
    rig.write(0, regs::node_vpid_prot_desc(Vpid::from(6)), 0x22_1111_0000);
    send(&mut rig, 0, 6, to(0, 5, 4), &[1, 2, 3, 4]);
    let (status, _) = rig.velo_take(&mut q).expect("message");
    assert_eq!(
        status.source,
        SourceId {
            node: NodeId(0x1111),
            vpid: Vpid::from(0x22)
        }
    );
}

#[test]
fn protection_and_disabled_mailboxes() {
    let mut rig = Rig::probed(2, SlotSize::B128);
    let mut q = rig.open_velo(1, 5, SlotSize::B128, 1, 16);
    let expect = regs::comp_prot_desc(Vpid::from(5));
    rig.write(1, expect, (1 << 17) | 0x77);
    send(&mut rig, 0, 6, to(1, 5, 1), &[1]);
    assert!(rig.velo_take(&mut q).is_none());
    assert_eq!(drops(&rig, 1).wrong_protection, 1);
    rig.write(
        0,
        regs::node_vpid_prot_desc(Vpid::from(6)),
        (6 << 32) | 0x77,
    );
    send(&mut rig, 0, 6, to(1, 5, 1), &[2]);
    assert!(rig.velo_take(&mut q).is_some());
    // One destination VPID is disabled, the other does not exist.
    send(&mut rig, 0, 6, to(1, 4, 1), &[3]);
    rig.velo_send(0, 6, (1 << 48) | (0x105 << 16) | 1, &[4]);
    assert_eq!(drops(&rig, 1).vpid_disabled, 2);
    assert_eq!(rig.read(1, regs::COUNTER_1), (2 << 32) | 1);
    let debug = rig.read(1, regs::DEBUG_1);
    assert_eq!((debug >> 32) & 0xFF_FFFF, 3);
    assert_eq!(debug & 0xFFFF_FFFF, 0x0506_0000);
    // This destination VPID is enabled, but has no queue.
    rig.write(1, regs::comp_prot_desc(Vpid::from(8)), 1 << 17);
    rig.write(0, regs::node_vpid_prot_desc(Vpid::from(6)), 6 << 32);
    send(&mut rig, 0, 6, to(1, 8, 1), &[5]);
    assert_eq!(drops(&rig, 1).queue_invalid, 1);
    // Each dropped message has raised TE 24.
    assert_eq!(rig.nodes[1].nic.counters().events[24], 3);
    let e = rig.snq_handle(1);
    assert!(e.iter().all(|e| e.header.pc() == 24));
    // The queue engine is off.
    rig.write(1, RegOffset(0xC0_0000), 0);
    rig.write(1, expect, 1 << 17);
    send(&mut rig, 0, 6, to(1, 5, 1), &[6]);
    assert_eq!(drops(&rig, 1).queue_invalid, 2);
}

/// Returns the VPIDs in a list of TE 23 or TE 25 entries.
pub fn vectors(entries: &[Entry]) -> Vec<u16> {
    let bits = |e: &Entry| {
        let words = [e.payload[3], e.payload[4], e.payload[5], e.payload[6]];
        (0..256)
            .filter(move |v| (words[v / 64] >> (v % 64)) & 1 != 0)
            .map(|v| v as u16)
    };
    entries.iter().flat_map(bits).collect()
}

#[test]
fn interrupts_are_masked_until_retriggered() {
    let mut rig = Rig::probed(2, SlotSize::B128);
    let mut q = rig.open_velo(1, 200, SlotSize::B128, 1, 64);
    let mut other = rig.open_velo(1, 3, SlotSize::B128, 1, 64);
    let irq = Descriptor {
        irq: true,
        ..to(1, 200, 8)
    };
    send(&mut rig, 0, 1, to(1, 200, 8), &[0; 8]);
    assert_eq!(rig.msis(1), 0, "no interrupt requested");
    for _ in 0..5 {
        send(&mut rig, 0, 1, irq, &[1; 8]);
    }
    assert_eq!(rig.msis(1), 1);
    assert_eq!(vectors(&rig.snq_handle(1)), [200], "masked after the first");
    // Writing the read pointer does not arm the interrupt.
    while rig.velo_take(&mut q).is_some() {}
    rig.commit(&q, false);
    send(&mut rig, 0, 1, irq, &[2; 8]);
    assert_eq!(vectors(&rig.snq_handle(1)), [] as [u16; 0]);
    // Arming sends the recorded interrupt immediately.
    rig.msis(1);
    rig.commit(&q, true);
    assert_eq!(rig.msis(1), 1);
    assert_eq!(vectors(&rig.snq_handle(1)), [200]);
    // No interrupt is recorded now.
    assert!(rig.velo_take(&mut q).is_some());
    rig.commit(&q, true);
    assert_eq!(rig.snq_handle(1).len(), 0);
    // Two VPIDs raise an interrupt before the program can run. One entry reports both.
    rig.write(1, wire::regs::snq::TRIGGER_ENABLE, 0);
    send(&mut rig, 0, 1, irq, &[3; 8]);
    send(
        &mut rig,
        0,
        1,
        Descriptor {
            irq: true,
            ..to(1, 3, 8)
        },
        &[3; 8],
    );
    assert_eq!(
        rig.read(1, regs::int_vec(3)),
        1 << (200 - 192),
        "software reads don't clear"
    );
    rig.write(1, wire::regs::snq::TRIGGER_ENABLE, 0x1FED_DFFD);
    let e = rig.snq_handle(1);
    assert_eq!((e.len(), vectors(&e)), (1, vec![3, 200]));
    assert_eq!(rig.read(1, regs::int_vec(3)), 0);
    // The VPID is armed through the register.
    send(&mut rig, 0, 1, irq, &[4; 8]);
    assert_eq!(rig.read(1, regs::int_retrig_vec(3)), 0);
    rig.write(1, regs::int_retrig_vec(3), 1 << (200 - 192));
    assert_eq!(vectors(&rig.snq_handle(1)), [200]);
    assert!(rig.velo_take(&mut other).is_some());
    // Removing the queue clears the interrupt flags of its VPID.
    send(&mut rig, 0, 1, irq, &[5; 8]);
    rig.write(1, RegOffset(0xC0_1800 + 8 * 200), 0);
    rig.write(1, regs::int_retrig_vec(3), 1 << (200 - 192));
    assert_eq!(rig.snq_handle(1).len(), 0);
}

/// G7 allows a chip that drops interrupts of a masked VPID.
#[test]
fn a_masked_interrupt_may_be_forgotten() {
    let mut rig = Rig::with_config(
        2,
        NicConfig {
            irq_missed: IrqMissed::Forget,
            ..NicConfig::default()
        },
    );
    rig.probe_all(SlotSize::B128);
    let q = rig.open_velo(1, 200, SlotSize::B128, 1, 64);
    let irq = Descriptor {
        irq: true,
        ..to(1, 200, 8)
    };
    for arm in 0..3 {
        for _ in 0..2 {
            send(&mut rig, 0, 1, irq, &[1; 8]);
        }
        assert_eq!(
            vectors(&rig.snq_handle(1)),
            [200],
            "only the first message's interrupt"
        );
        match arm {
            0 => rig.commit(&q, true),
            _ => rig.write(1, regs::int_retrig_vec(3), 1 << (200 - 192)),
        }
        assert_eq!(rig.snq_handle(1).len(), 0);
    }
}

#[test]
fn stores_in_any_order_and_split_make_one_message() {
    let mut rig = Rig::probed(2, SlotSize::B128);
    let mut q = rig.open_velo(1, 9, SlotSize::B128, 1, 512);
    let mut rng = Rng(11);
    let (mut torn, mut misplaced) = (0, 0);
    for round in 0..200u64 {
        let len = 1 + rng.below(120) as usize;
        let data = pattern(round, len);
        let mut bytes = to(1, 9, len)
            .encode()
            .expect("descriptor")
            .to_le_bytes()
            .to_vec();
        bytes.extend_from_slice(&data);
        bytes.resize(8 + len.div_ceil(8) * 8, 0);
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let n = (1 + rng.below(64) as usize).min(bytes.len() - at);
            pieces.push((at, n));
            at += n;
        }
        while !pieces.is_empty() {
            let (at, n) = pieces.swap_remove(rng.below(pieces.len() as u64) as usize);
            // The requester ignores bits [11:7] of the offset.
            let page = 128 * rng.below(32);
            torn += u64::from(at % 8 != 0 || n % 8 != 0);
            misplaced += u64::from(page != 0);
            let page = 0x0200_0000 + 7 * 4096 + page;
            rig.store(0, 0, page + at as u64, &bytes[at..at + n]);
        }
        assert_eq!(
            rig.velo_take(&mut q).expect("message").1,
            data,
            "round {round}"
        );
        rig.commit(&q, false);
    }
    // All stores were executed, but two kinds are reported: stores beyond the first 128 bytes of a
    // page (G8), and stores that are not whole quadwords.
    let c = rig.nodes[0].nic.counters();
    assert_eq!((c.wc_not_aligned, c.wc_misplaced), (torn, misplaced));
    assert_eq!(c.events[22], torn);
    assert!(torn > 100 && misplaced > 100);
    assert_eq!(
        rig.read(0, wcbuf::velo::ERRORS1) & 0xFFFF_FFFF,
        (7 << 24) | torn
    );
}

#[test]
fn traffic_classes_assemble_separately() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    let mut q = rig.open_velo(0, 9, SlotSize::B128, 1, 16);
    let d = to(0, 9, 8).encode().expect("descriptor").to_le_bytes();
    for tc in 0..4 {
        rig.store(0, 0, 0x0200_0000 + (tc << 20) + 7 * 4096, &d);
    }
    for tc in 0..4u64 {
        rig.store(
            0,
            0,
            0x0200_0000 + (tc << 20) + 7 * 4096 + 8,
            &[tc as u8; 8],
        );
        assert_eq!(rig.velo_take(&mut q).expect("message").1, [tc as u8; 8]);
    }
}

#[test]
fn assembly_errors_are_counted() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    let mut q = rig.open_velo(0, 9, SlotSize::B128, 1, 16);
    for len in [0u64, 121, 4095] {
        rig.velo_send(0, 7, (len << 48) | (9 << 16), &[]);
    }
    assert_eq!(rig.read(0, wcbuf::velo::ERRORS0), (7 << 56) | (3 << 32));
    assert_eq!(drops(&rig, 0).velo_bad_descriptor, 3);
    // A new descriptor is stored before the message is complete.
    rig.velo_send(0, 7, to(0, 9, 16).encode().expect("descriptor"), &[1; 8]);
    rig.velo_send(0, 7, to(0, 9, 8).encode().expect("descriptor"), &[2; 8]);
    assert_eq!(rig.velo_take(&mut q).expect("message").1, [2; 8]);
    assert_eq!(
        rig.read(0, wcbuf::velo::ERRORS0) & 0xFFFF_FFFF,
        (7 << 24) | 1
    );
    // Words behind the end of the message are stored.
    rig.store(0, 0, 0x0200_0000 + 7 * 4096 + 24, &[9; 8]);
    rig.velo_send(0, 7, to(0, 9, 8).encode().expect("descriptor"), &[3; 8]);
    rig.store(0, 0, 0x0200_0000 + 7 * 4096 + 24, &[9; 8]);
    rig.store(
        0,
        0,
        0x0200_0000 + 7 * 4096,
        &to(0, 9, 8).encode().expect("descriptor").to_le_bytes(),
    );
    rig.store(0, 0, 0x0200_0000 + 7 * 4096 + 8, &[4; 8]);
    assert_eq!(rig.read(0, wcbuf::velo::ERRORS1) >> 32, (7 << 24) | 1);
    let e = rig.snq_handle(0);
    assert_eq!(rig.nodes[0].nic.counters().events[22], 5);
    assert!(e.iter().all(|e| e.header.pc() == 22 || e.words(4)[0] != 0));
}

fn state(rig: &mut Rig, vpid: u8) -> State {
    State(rig.read(0, wcbuf::velo::state(Vpid::from(vpid))))
}

#[test]
fn committed_count_follows_each_message() {
    let mut rig = Rig::probed(2, SlotSize::B128);
    let mut q = rig.open_velo(1, 9, SlotSize::B128, 1, 16);
    for n in 1..=600u64 {
        send(&mut rig, 0, 7, to(1, 9, 8), &n.to_le_bytes());
        let s = state(&mut rig, 7);
        assert_eq!(
            (s.committed_count(), s.retry(), s.retry_count()),
            (n as u8, false, 0)
        );
        assert!(s.is_idle());
        assert!(rig.velo_take(&mut q).is_some());
        rig.commit(&q, false);
    }
    // Software writes the state back when it opens a VPID. The write sets the count.
    let at = wcbuf::velo::state(Vpid::from(7));
    let opened = rig.read(0, at) & 0x00FF_FFFF_FF00_0000;
    rig.write(0, at, opened);
    assert_eq!(state(&mut rig, 7), State(0));
    assert_eq!(state(&mut rig, 8), State(0));
}

#[test]
fn forced_retries_lose_and_repeat_nothing() {
    for every in [2, 3, 17] {
        let faults = Faults {
            wcbuf_retry_every: Some(every),
            ..Faults::default()
        };
        let mut rig = Rig::with_config(
            2,
            NicConfig {
                faults,
                ..NicConfig::default()
            },
        );
        rig.probe_all(SlotSize::B128);
        let mut q = rig.open_velo(1, 9, SlotSize::B128, 1, 4096);
        let mut credits = Credits::new();
        let mut copies = vec![0u64; 256];
        let (mut sent, mut replays) = (0u64, 0);
        while sent < 1000 {
            for _ in 0..50 {
                let slot = credits.take().expect("credit");
                copies[usize::from(slot)] = sent;
                send(&mut rig, 0, 7, to(1, 9, 8), &sent.to_le_bytes());
                sent += 1;
            }
            let s = state(&mut rig, 7);
            credits.on_state(s);
            if !s.needs_replay() {
                continue;
            }
            replays += 1;
            let mut machine = Replay::new();
            let mut action = machine.start();
            for _ in 0..1_000_000 {
                let event = match action {
                    Action::ReadState => Event::State(state(&mut rig, 7)),
                    Action::WriteState(value) => {
                        rig.write(0, wcbuf::velo::state(Vpid::from(7)), value.raw());
                        Event::Written
                    }
                    Action::Send(slot) => {
                        let n = copies[usize::from(slot)];
                        send(&mut rig, 0, 7, to(1, 9, 8), &n.to_le_bytes());
                        Event::Sent
                    }
                    Action::Done => break,
                    Action::Failed(why) => panic!("{why}"),
                };
                action = machine.step(&mut credits, event);
            }
            assert_eq!(action, Action::Done);
        }
        assert!(replays > 0);
        for n in 0..sent {
            let (_, data) = rig.velo_take(&mut q).expect("message");
            assert_eq!(data, n.to_le_bytes());
        }
        assert!(rig.velo_take(&mut q).is_none());
        let c = &rig.nodes[0].nic.counters().velo;
        assert!(c.retries >= replays && c.retry_drops >= c.retries);
    }
}

#[test]
fn with_retry_on_every_descriptor_nothing_gets_through() {
    let mut rig = Rig::probed(2, SlotSize::B128);
    let mut q = rig.open_velo(1, 9, SlotSize::B128, 1, 16);
    let faults = Faults {
        wcbuf_retry_every: Some(1),
        ..Faults::default()
    };
    rig.with(0, |nic, env| nic.set_faults(faults, env));
    for round in 1..4 {
        send(&mut rig, 0, 7, to(1, 9, 8), &[1; 8]);
        let s = state(&mut rig, 7);
        assert_eq!((s.committed_count(), s.retry_count()), (0, 1), "{round}");
        rig.write(0, wcbuf::velo::state(Vpid::from(7)), s.cleared().raw());
    }
    assert!(rig.velo_take(&mut q).is_none());
}

#[test]
fn stuck_buffers_keep_what_is_sent() {
    let stuck = |on| Faults {
        wcbuf_stuck: on,
        ..Faults::default()
    };
    let mut rig = Rig::probed(2, SlotSize::B128);
    let mut q = rig.open_velo(1, 9, SlotSize::B128, 1, 16);
    rig.with(0, |nic, env| nic.set_faults(stuck(true), env));
    for n in 0..3u8 {
        send(&mut rig, 0, 7, to(1, 9, 8), &[n; 8]);
        send(&mut rig, 0, 8, to(1, 9, 8), &[n + 100; 8]);
    }
    let s = state(&mut rig, 7);
    assert_eq!((s.committed_count(), s.retry()), (0, false));
    assert!(!s.is_idle(), "a kept descriptor is visible");
    assert!(rig.velo_take(&mut q).is_none());
    // Opening a port drops the descriptors that a stuck buffer keeps.
    let at = wcbuf::velo::state(Vpid::from(8));
    rig.write(0, at, 0);
    assert!(state(&mut rig, 8).is_idle());
    rig.with(0, |nic, env| nic.set_faults(stuck(false), env));
    assert_eq!(state(&mut rig, 7), State(0).with_committed_count(3));
    assert_eq!(state(&mut rig, 8), State(0));
    let got: Vec<u8> = std::iter::from_fn(|| rig.velo_take(&mut q))
        .map(|(_, data)| data[0])
        .collect();
    assert_eq!(got, [0, 1, 2]);
}

#[test]
fn retry_when_the_destination_is_congested() {
    use extoll_emulator::nic::Pressure;
    let faults = Faults {
        wcbuf_retry_waiting: Some(3),
        ..Faults::default()
    };
    let mut rig = Rig::with_config(
        2,
        NicConfig {
            faults,
            ..NicConfig::default()
        },
    );
    let pressure = Pressure::default();
    for node in &mut rig.nodes {
        node.nic.set_pressure(pressure.clone());
    }
    rig.probe_all(SlotSize::B128);
    let mut q = rig.open_velo(1, 9, SlotSize::B128, 1, 4); // 3 usable
    for n in 0..10u64 {
        send(&mut rig, 0, 7, to(1, 9, 8), &n.to_le_bytes());
    }
    // Three messages are stored and four are on hold. The others are rejected.
    let s = state(&mut rig, 7);
    assert_eq!(
        (s.committed_count(), s.retry(), s.retry_count()),
        (7, true, 3)
    );
    assert_eq!(rig.nodes[1].nic.counters().velo.holding, 4);
    // If `retry` is cleared without progress, it is set again. After the receiver has caught up,
    // descriptors are accepted.
    rig.write(0, wcbuf::velo::state(Vpid::from(7)), s.cleared().raw());
    send(&mut rig, 0, 7, to(1, 9, 8), &7u64.to_le_bytes());
    assert!(state(&mut rig, 7).retry());
    let mut got = Vec::new();
    for _ in 0..4 {
        while let Some((_, data)) = rig.velo_take(&mut q) {
            got.push(data[0]);
        }
        rig.commit(&q, false);
    }
    rig.write(0, wcbuf::velo::state(Vpid::from(7)), s.cleared().raw());
    send(&mut rig, 0, 7, to(1, 9, 8), &7u64.to_le_bytes());
    assert_eq!(state(&mut rig, 7).committed_count(), 8);
    got.push(rig.velo_take(&mut q).expect("message").1[0]);
    assert_eq!(got, [0, 1, 2, 3, 4, 5, 6, 7]);
}
