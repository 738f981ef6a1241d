//! Tests of set-up errors by software that the model reports. They concern the interrupt packet of
//! the SNQ, segments and slots of queues, units and packet sizes of the RMA, and traffic classes of
//! the SMFU.

use super::rig::*;
use super::rma::Pair;
use extoll_emulator::nic::NicConfig;
use wire::bq::{SegmentWord, WritePointers};
use wire::ids::{RegOffset, Unit, Vpid};
use wire::regs::{rma as regs, smfu, snq, BqRegs};
use wire::velo::SlotSize;

const BQ: BqRegs = BqRegs(Unit::Velo);

fn found(rig: &Rig, i: usize) -> u64 {
    rig.nodes[i].nic.counters().bad_setup
}

fn rig() -> Rig {
    Rig::probed(2, SlotSize::B128)
}

/// Sends `n` messages to VPID 9 of node 1, and pops them.
fn through(rig: &mut Rig, q: &mut Queue, n: u64) {
    for k in 0..n {
        rig.velo_send(0, 7, (8 << 48) | (9 << 16) | 1, &k.to_le_bytes());
        let (_, data) = rig.velo_take(q).expect("a message");
        assert_eq!(data, k.to_le_bytes());
        rig.commit(q, false);
    }
}

fn registers(rig: &mut Rig) -> (u64, u64, u16) {
    let v = Vpid::from(9);
    let (c, n) = (BQ.c_base_size_valid(v), BQ.n_base_size_valid(v));
    let pointers = WritePointers(rig.read(1, BQ.wp_lwp_dcq_rp(v)));
    let base = |word: u64| SegmentWord(word).segment().base.0;
    (
        base(rig.read(1, c)),
        base(rig.read(1, n)),
        pointers.dcq_rp(),
    )
}

/// The registers of the current segment, of the next segment and of the next descriptor follow the
/// write pointer (HW §7).
#[test]
fn segment_registers_move_on() {
    for segments in [1, 2, 3, 5] {
        let mut r = rig();
        let mut q = r.open_velo(1, 9, SlotSize::B128, segments, 4);
        for k in 0..3 * segments {
            through(&mut r, &mut q, 4);
            let at = |by: u32| ((k + by) % segments) as usize;
            let want = (q.bases[at(0)], q.bases[at(1)], at(2) as u16);
            assert_eq!(registers(&mut r), want, "{segments} segments, {k}");
        }
        assert_eq!(found(&r, 1), 0);
    }
}

#[test]
fn segment_registers_against_the_page_are_found() {
    let v = Vpid::from(9);
    let wrong: [(RegOffset, u64); 3] = [
        (BQ.c_base_size_valid(v), 1 << 18),
        (BQ.n_base_size_valid(v), 1 << 18),
        (BQ.wp_lwp_dcq_rp(v), 1),
    ];
    for (at, change) in wrong {
        let mut r = rig();
        let mut q = r.open_velo(1, 9, SlotSize::B128, 3, 4);
        let value = r.read(1, at);
        r.write(1, at, value ^ change);
        through(&mut r, &mut q, 30);
        assert_eq!(found(&r, 1), 1, "{at}");
    }
}

/// The NIC reads descriptors when it needs them. Their page must therefore keep its content and its
/// address.
#[test]
fn descriptors_are_read_again_in_every_round() {
    let mut r = rig();
    let mut q = r.open_velo(1, 9, SlotSize::B128, 3, 4);
    through(&mut r, &mut q, 5);
    let moved = r.nodes[1].ram.alloc(4096);
    let page = r.read(1, BQ.dcq_base_dcq_ub(Vpid::from(9))) >> 16 << 12;
    let word = SegmentWord(r.nodes[1].ram.qw(page)).with_base_page(moved >> 12);
    r.nodes[1].ram.set_qw(page, word.raw());
    through(&mut r, &mut q, 7);
    assert_eq!(found(&r, 1), 1);
    q.bases[0] = moved;
    through(&mut r, &mut q, 30);
    assert_eq!(found(&r, 1), 1);
}

#[test]
fn units_and_packet_sizes_of_the_rma_are_checked() {
    let mut p = Pair::with_config(NicConfig::default());
    let entry = regs::vpid_table(Vpid::from(5));
    let open = regs::VpidTable(regs::VPID_ENABLED);
    assert_eq!(found(&p.rig, 0), 0);
    p.rig.write(0, entry, open.with_tu_completer(2).raw());
    p.rig.write(0, entry, open.with_tu_responder(1).raw());
    assert_eq!(found(&p.rig, 0), 2);
    p.rig.write(0, entry, regs::VPID_DISABLED);
    let good = regs::Config(p.rig.read(0, regs::CONFIG));
    for bad in [
        good.with_mtu(496),
        good.with_pcie_mode(0),
        good.with_pcie_mode_reads(3),
    ] {
        let before = found(&p.rig, 0);
        p.rig.write(0, regs::CONFIG, bad.raw());
        assert_eq!(found(&p.rig, 0), before, "no VPID needs it yet");
        p.rig.write(0, entry, open.raw());
        assert_eq!(found(&p.rig, 0), before + 1, "{:#x}", bad.raw());
    }
    // Packets that are larger than the bus allows are an error.
    let before = found(&p.rig, 0);
    for (write, read) in [(128, 512), (256, 256), (128, 128)] {
        let config = regs::Config::for_pcie(write, read);
        p.rig.write(0, regs::CONFIG, config.raw());
        for (limits, more) in [((512, 4096), 0), ((128, 256), u64::from(read > 256))] {
            p.rig.nodes[0].nic.set_bus_limits(limits.0, limits.1);
            let before = found(&p.rig, 0);
            p.rig.write(0, entry, open.raw());
            let more = more | u64::from(write > limits.0);
            assert_eq!(found(&p.rig, 0), before + more, "{write} {read} {limits:?}");
        }
    }
    assert_eq!(found(&p.rig, 0), before + 2);
}

/// Requests and responses must have different classes. Otherwise, a response that waits behind a
/// request could wait for ever (HW §12).
#[test]
fn classes_of_the_smfu_have_to_differ() {
    let mut r = rig();
    assert_eq!(found(&r, 0), 0);
    r.write(0, smfu::TRAFFIC_CLASS, 0x323);
    assert_eq!(found(&r, 0), 1);
    r.write(0, smfu::STATUS_CONTROL, 0);
    r.write(0, smfu::TRAFFIC_CLASS, 0x101);
    assert_eq!(found(&r, 0), 1, "the unit is off");
    r.write(0, smfu::STATUS_CONTROL, 1);
    assert_eq!(found(&r, 0), 2);
    r.write(0, smfu::TRAFFIC_CLASS, smfu::TRAFFIC_CLASS_INIT);
    assert_eq!(found(&r, 0), 2);
}

/// The SNQ must start after its interrupt packet and its HTAX routes have been set (HW §3.1 step 7,
/// §6.2).
#[test]
fn interrupt_packet_and_ways_of_the_snq_are_checked() {
    let mut r = rig();
    let start = |r: &mut Rig, at: RegOffset, value: u64| {
        let before = found(r, 0);
        r.write(0, snq::EXECUTE, 0);
        let good = r.read(0, at);
        r.write(0, at, value);
        assert_eq!(found(r, 0), before, "not needed before the start");
        r.write(0, snq::EXECUTE, 1);
        r.write(0, snq::EXECUTE, 1);
        r.write(0, at, good);
        found(r, 0) - before
    };
    for bad in [0, 0x6D_0040_002D, snq::IRQ_0_INIT ^ 1] {
        assert_eq!(start(&mut r, snq::IRQ_0, bad), 1, "{bad:#x}");
    }
    for bad in [0, snq::HTAX_INIT ^ 3] {
        assert_eq!(start(&mut r, snq::HTAX, bad), 1, "{bad:#x}");
    }
    // Any address in the interrupt range is allowed.
    let other = snq::IRQ_0_INIT | (0xFF_FFFC << 24);
    for good in [snq::IRQ_0_INIT, other] {
        assert_eq!(start(&mut r, snq::IRQ_0, good), 0, "{good:#x}");
    }
}

/// Software clears a slot before it returns the slot (HW §7, §9.5). The NIC checks neither queues
/// of user processes nor invalid queues.
#[test]
fn slots_that_are_given_back_uncleared_are_found() {
    for (vpid, watched) in [(254, 1), (9, 0)] {
        let mut r = rig();
        let mut q = r.open_velo(1, vpid, SlotSize::B128, 1, 4);
        let rp = BQ.rp(Vpid::from(vpid));
        let slots = |r: &Rig| r.nodes[1].nic.counters().bad_slots;
        let send = |r: &mut Rig, n: u64| {
            r.velo_send(
                0,
                7,
                (8 << 48) | (u64::from(vpid) << 16) | 1,
                &n.to_le_bytes(),
            );
        };
        for n in 0..9 {
            send(&mut r, n);
            assert!(r.velo_take(&mut q).is_some());
            r.commit(&q, false);
        }
        assert_eq!(slots(&r), 0);
        // Slot 1 is returned without being cleared. Slots 2, 3 and 0 are used before slot 1 is used
        // again.
        send(&mut r, 9);
        r.write(1, rp, 2);
        for n in [3, 0, 1] {
            send(&mut r, n);
            assert_eq!(slots(&r), 0);
            r.nodes[1]
                .ram
                .set_qw(q.bases[0] + 128 * ((n + 3) % 4) + 120, 0);
            r.write(1, rp, n);
        }
        send(&mut r, 1);
        assert_eq!(slots(&r), watched);
        // The queue has slots 0 to 3.
        r.write(1, rp, 3);
        assert_eq!(slots(&r), watched);
        r.write(1, rp, 4);
        assert_eq!(slots(&r), 2 * watched);
        r.write(1, BQ.c_base_size_valid(Vpid::from(vpid)), 0);
        r.write(1, rp, 4);
        assert_eq!(slots(&r), 2 * watched);
    }
}
