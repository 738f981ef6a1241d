// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Golden vectors: every number that the hardware reference specifies ("HW §n").

#![allow(clippy::precedence)] // bit patterns as the reference writes them

use wire::ids::{BusAddr, CpuAddr, Nla, NodeId, RegOffset, Unit, Vpid};
use wire::regs::{self, BqRegs};
use wire::{atu, bq, htax, rma, route, snq, velo, wcbuf};

fn vpid(v: u16) -> Vpid {
    Vpid::new(v).unwrap()
}

#[test]
fn htax_control_words_decode_as_described() {
    // Columns: control word, port, one-hot port, virtual channels (HW §3.1 and §5).
    for (raw, port, oh, vcs, unit) in [
        (0xC107, 3, 0x008, 3, htax::Port::Rf),
        (0x4209, 4, 0x010, 1, htax::Port::Velo),
        (0x440B, 5, 0x020, 1, htax::Port::Rma),
        (0xE007, 3, 0x100, 3, htax::Port::Smfu),
        (0x6001, 0, 0x100, 1, htax::Port::Smfu),
        (0xA003, 1, 0x100, 2, htax::Port::Smfu),
    ] {
        let c = regs::htax::IntvlControl(raw);
        assert_eq!(
            (c.enable(), c.port(), c.port_oh(), c.vcs()),
            (true, port, oh, vcs),
            "{raw:#x}"
        );
        assert_eq!(c.port_oh(), 1 << unit.number());
        assert_eq!(
            regs::htax::IntvlControl::KNOWN | raw,
            regs::htax::IntvlControl::KNOWN
        );
    }
    let g = regs::htax::General(regs::htax::GENERAL_INIT);
    assert_eq!(g.raw(), 0x8088);
    assert!(g.enable() && !g.enable_emmio() && !g.use_sf_mode() && !g.mask_error_bit());
    assert_eq!((g.default_port(), g.default_port_oh()), (8, 8));
    assert_eq!(
        htax::vc::POSTED | htax::vc::NONPOSTED | htax::vc::RESPONSE,
        7
    );
}

#[test]
fn htax_init_sequence() {
    let (bar0, bar2, size) = (0xF000_0000u64, 0x40_0000_0000u64, 0x1000_0000u64);
    let seq = htax::Windows::standard(BusAddr(bar0), BusAddr(bar2), size)
        .intervals()
        .unwrap();
    assert_eq!(seq.map(|(i, _)| i), [0, 1, 2, 5, 3, 4]);
    let want = [
        ((bar0 + 0x200_0000) >> 12, (bar0 >> 12) - 1, 0xC107),
        (
            (bar0 + 0x400_0000) >> 12,
            ((bar0 + 0x200_0000) >> 12) - 1,
            0x4209,
        ),
        (
            (bar0 + 0x600_0000) >> 12,
            ((bar0 + 0x400_0000) >> 12) - 1,
            0x440B,
        ),
        ((bar2 + 0x200_0000) >> 12, (bar2 >> 12) - 1, 0xE007),
        ((bar2 + size) >> 12, ((bar2 + 0x200_0000) >> 12) - 1, 0x6001),
        ((bar2 + size) >> 12, ((bar2 + 0x200_0000) >> 12) - 1, 0xA003),
    ];
    for ((i, interval), (upper, lower, control)) in seq.into_iter().zip(want) {
        assert_eq!(interval.upper.raw(), upper, "interval {i}");
        assert_eq!(interval.lower.raw(), lower, "interval {i}");
        assert_eq!(interval.control.raw(), control, "interval {i}");
    }
    let rf = seq[0].1;
    assert!(rf.contains(BusAddr(bar0)) && rf.contains(BusAddr(bar0 + 0x1FF_FFFF)));
    assert!(!rf.contains(BusAddr(bar0 - 1)) && !rf.contains(BusAddr(bar0 + 0x200_0000)));
    assert_eq!(seq[1].1.offset(BusAddr(bar0 + 0x200_1234)), Some(0x1234));
    assert_eq!(
        htax::Windows::standard(BusAddr(0), BusAddr(bar2), size).intervals(),
        None
    );
    assert_eq!(
        htax::Windows::standard(BusAddr(bar0), BusAddr(bar2), 0x200_0000).intervals(),
        None
    );
    assert_eq!(
        htax::Windows::standard(BusAddr(u64::MAX - 0xFFF), BusAddr(bar2), size).intervals(),
        None
    );
}

/// The driver maps CPU addresses, but writes bus addresses to registers.
#[test]
fn windows_have_two_sides() {
    let bar = |cpu, bus, size| htax::Bar {
        cpu: CpuAddr(cpu),
        bus: BusAddr(bus),
        size,
    };
    let (bar0, bar2) = (
        bar(0x60_0000_0000, 0xE000_0000, 0x1000_0000),
        bar(0x70_0000_0000, 0x10_0000_0000, 0x1000_0000),
    );
    let sides = htax::Sides::standard(bar0, bar2).unwrap();
    let cpu = sides.cpu;
    assert_eq!(
        [cpu.rf, cpu.velo, cpu.rma, cpu.smfu].map(|a| a.0),
        [
            0x60_0000_0000,
            0x60_0200_0000,
            0x60_0400_0000,
            0x70_0000_0000
        ]
    );
    let bus = sides.bus;
    let standard = htax::Windows::standard(bar0.bus, bar2.bus, bar2.size);
    assert_eq!(bus, standard);
    assert_eq!(bus.rf, BusAddr(0xE000_0000));
    assert_eq!(bus.smfu, BusAddr(0x10_0000_0000));
    // Registers contain bus addresses.
    for (_, interval) in bus.intervals().unwrap() {
        assert!(interval.lower.bound() << 12 < 0x11_0000_0000);
    }
    // These BARs are too small or have addresses that exceed the registers.
    let refused = |bar0, bar2| assert_eq!(htax::Sides::standard(bar0, bar2), None);
    refused(bar(0x60_0000_0000, 0xE000_0000, 0x400_0000), bar2);
    refused(bar0, bar(0x70_0000_0000, 0x10_0000_0000, 0x200_0000));
    refused(
        bar0,
        bar(0x70_0000_0000, (1 << 48) - 0x1000_0000, 0x1000_0000),
    );
    refused(
        bar(0x60_0000_0000, (1 << 52) - 0x400_0000, 0x1000_0000),
        bar2,
    );
    refused(bar(u64::MAX - 0xFFF, 0xE000_0000, 0x1000_0000), bar2);
    let high = bar(0x70_0000_0000, (1 << 48) - 0x2000_0000, 0x1000_0000);
    assert!(htax::Sides::standard(bar0, high).is_some());
    // The CPU address of the window does not affect the registers of the NIC.
    let far = bar(1 << 50, 0x10_0000_0000, 0x1000_0000);
    assert_eq!(htax::Sides::standard(bar0, far).unwrap().bus, bus);
}

#[test]
fn register_addresses_of_the_init_sequence() {
    let o = |r: RegOffset| r.get();
    for (i, a) in [(0, 0x9200), (1, 0x9218), (5, 0x9278)] {
        assert_eq!(o(regs::htax::intvl_upper(i)), a);
        assert_eq!(o(regs::htax::intvl_lower(i)), a + 8);
        assert_eq!(o(regs::htax::intvl_control(i)), a + 16);
    }
    assert_eq!(o(regs::htax::GENERAL), 0x9290);
    assert_eq!(o(regs::info::NW_STATE), 0x8050);
    assert_eq!(o(regs::info::CHIP_REV), 0x8038);
    assert_eq!(
        o(regs::xbar::outp::general(regs::xbar::outp::DRAIN_PORT)),
        0x42C290
    );
    assert_eq!(regs::xbar::outp::GENERAL_INIT, 0x4000000);
    assert_eq!(o(regs::snq::EXECUTE), 0x10068);
    assert_eq!(o(regs::snq::program_ram(255)), 0x10800 + 8 * 255);
    let v = vpid(7);
    for (unit, base, rp) in [
        (Unit::Velo, 0xC00000, 0xD00000),
        (Unit::Rma, 0xE00000, 0xF00000),
    ] {
        let b = BqRegs(unit);
        assert_eq!(o(b.general()), base);
        assert_eq!(o(b.ub(v)), base + 0x800 + 56);
        assert_eq!(o(b.dcq_base_dcq_ub(v)), base + 0x1000 + 56);
        assert_eq!(o(b.c_base_size_valid(v)), base + 0x1800 + 56);
        assert_eq!(o(b.n_base_size_valid(v)), base + 0x2000 + 56);
        assert_eq!(o(b.wp_lwp_dcq_rp(v)), base + 0x2800 + 56);
        assert_eq!(o(b.rp(v)), rp + 0x7000);
    }
    assert_eq!(o(regs::velo::node_vpid_prot_desc(v)), 0x1200800 + 56);
    assert_eq!(o(regs::velo::comp_prot_desc(v)), 0x1201000 + 56);
    assert_eq!(o(regs::wcbuf::state(Unit::Velo, v)), 0x1007000);
    assert_eq!(o(regs::wcbuf::state(Unit::Rma, v)), 0x1407000);
    assert_eq!(o(regs::velo::TIMEOUT), 0x1201800);
    assert_eq!(o(regs::wcbuf::velo::TIMEOUT), 0x1100000);
    assert_eq!(o(regs::wcbuf::rma::TIMEOUT), 0x1500000);
    assert_eq!(o(regs::velo::COMPLETER), 0x1201808);
    for (n, a) in [
        (regs::np::VELO, 0x9418),
        (1, 0x9498),
        (2, 0x9518),
        (regs::np::SMFU, 0x9598),
    ] {
        assert_eq!(o(regs::np::general(n)), a);
    }
    assert_eq!(o(regs::atu::gat(3)), 0xE018);
    assert_eq!(o(regs::atu::CONTROL), 0xC000);
    assert_eq!(o(regs::rma::vpid_table(v)), 0x1600800 + 56);
    assert_eq!(o(regs::rma::CONFIG), 0x1600080);
    assert_eq!(o(regs::rma::LOCK_BASE), 0x1600088);
    assert_eq!(o(regs::rma::LOCK_CFG), 0x1600090);
    assert_eq!(o(regs::rma::BQ_TIMEOUT), 0x1600098);
    assert_eq!(o(regs::smfu::interval_control(1)), 0xA0A0);
    assert_eq!(o(regs::smfu::interval_startaddr(62)), 0xA088 + 32 * 62);
    assert_eq!(o(regs::smfu::interval_endaddr(0)), 0xA090);
    assert_eq!(o(regs::velo::int_vec(3)), 0x1200038);
    assert_eq!(o(regs::rma::int_vec(3)), 0x1600038);
    assert_eq!(o(regs::phy::status_training(6)), 0x4B6110);
    assert_eq!(
        o(regs::xbar::inp::lrt(10, 1023)),
        0x428000 + 0x2000 + 8 * 1023
    );
    assert_eq!(o(regs::lp::status(6)), 0x460308);
    for bad in [
        regs::htax::intvl_upper(6),
        regs::snq::program_ram(256),
        regs::xbar::inp::lrt(11, 0),
        regs::xbar::inp::grt(0, 64),
        regs::np::general(u32::MAX),
    ] {
        assert_eq!(bad, RegOffset::INVALID);
        assert!(!bad.is_valid());
    }
}

#[test]
fn values_of_the_init_sequence() {
    let c = regs::xbar::outp::Credits0(0).with_fcc(9);
    assert_eq!(c.raw(), 0x240);
    assert_eq!(regs::xbar::outp::Credits0(0).with_fcc(1).raw(), 0x040);
    let c = regs::xbar::outp::Credits1(regs::xbar::outp::CREDITS_1_DRAIN);
    assert_eq!(c.raw(), 0x2830008000);
    let counts = (
        c.new_max_fcc_count(),
        c.new_max_shared_count(),
        c.new_shared_count(),
    );
    assert_eq!(
        (counts, c.new_max_total_count(), c.new_total_count()),
        ((0x28, 0x30, 0), 0x80, 0)
    );
    assert_eq!(regs::xbar::outp::fcc_credit_sum(u64::MAX), 630);
    assert_eq!(regs::xbar::outp::fcc_credit_sum(0b000010_000001), 3);

    assert_eq!(
        regs::velo::Timeout(0)
            .with_value(0x20)
            .with_enable(true)
            .raw(),
        regs::velo::TIMEOUT_INIT
    );
    assert_eq!(regs::velo::TIMEOUT_INIT, 0x1_0000_0020);
    let t = regs::wcbuf::Timeout(0)
        .with_timeout(0x20)
        .with_timeout_active(true);
    assert_eq!(
        (t.raw(), regs::wcbuf::TIMEOUT_INIT),
        (0x20_0000_0001, 0x20_0000_0001)
    );
    let np = regs::np::General(regs::np::GENERAL_INIT_VELO);
    assert_eq!(
        (np.raw(), np.enable(), np.utilization(), np.recv_mode()),
        (0x51, true, 40, false)
    );
    assert_eq!(
        regs::velo::Completer(0)
            .with_target_htax_port(8)
            .with_packets_128b(true)
            .raw(),
        0x208
    );

    // The example of HW §3.5 for the size classes 128→2, 256→4, 512→8, others→1.
    assert_eq!(regs::rma::Config::for_pcie(256, 512).raw(), 0x840200);
    assert_eq!(regs::rma::Config::for_pcie(128, 4096).raw(), 0x120200);
    let off = regs::rma::VpidTable(regs::rma::VPID_DISABLED);
    assert_eq!(off.raw(), 0xF522);
    assert_eq!(
        (off.vpid_enable(), off.tu_completer(), off.tu_responder()),
        (false, 1, 2)
    );
    assert_eq!(
        (
            off.tc0(),
            off.tc1(),
            off.tc2(),
            off.tc3(),
            off.excell_enable()
        ),
        (1, 1, 3, 3, false)
    );
    assert_eq!(off.with_vpid_enable(true).raw(), 0xF523);
    assert_eq!(regs::rma::VPID_ENABLED, 0xF523);
    let l = regs::rma::LockCfg(0)
        .with_number_allowed(16)
        .with_vpids_allowed(256);
    assert_eq!(
        (l.raw(), regs::rma::LOCK_CFG_INIT),
        (0x8000000010, 0x8000000010)
    );
    assert_eq!(regs::rma::BQ_TIMEOUT_INIT, (1 << 32) | 0xA);
    assert_eq!(regs::rma::ERROR_CTRL_INIT_MASK, 0xFFFFFE);

    let tc = regs::smfu::TrafficClass(regs::smfu::TRAFFIC_CLASS_INIT);
    assert_eq!(
        (tc.raw(), tc.tc_np(), tc.tc_p(), tc.tc_rsp()),
        (0x223, 3, 2, 2)
    );
    assert_eq!(regs::smfu::IntervalControl::to_node(NodeId(0)).raw(), 0x301);
    assert_eq!(
        regs::smfu::IntervalControl::to_node(NodeId(0x1234)).raw(),
        0x301 | 0x1234 << 16
    );
    let lp = regs::lp::LpIn(regs::lp::LP_IN_CLEAR);
    assert_eq!(lp.raw(), 0x0180000000000003);
    assert!(lp.guid_received() && lp.node_id_received());
    assert_eq!(lp.buffer_threshold(), 3);
    // A script sets the node ID by writing 0x‹id›000000 (HW §4.2).
    assert_eq!(regs::info::Node(0x2A00_0000).node_id(), NodeId(0x2A));
    for (raw, state) in [
        (0, regs::info::NetworkState::Unconfigured),
        (1, regs::info::NetworkState::Running),
        (2, regs::info::NetworkState::Stopped),
        (9, regs::info::NetworkState::Unknown(9)),
    ] {
        assert_eq!(regs::info::NetworkState::from_raw(raw), state);
        assert_eq!(state.raw(), raw);
    }
    // Link status of the emulator (MODEL): Gen3 x16, up (G2).
    let link = regs::pcie::NwlGeneral0(0)
        .with_phy_layer_up(true)
        .with_dl_layer_up(true)
        .with_ltssm_state(0x11)
        .with_current_link_speed(3)
        .with_link_width(16);
    assert_eq!(link.raw(), 0x4300_0047);
}

#[test]
fn snq_values() {
    let h = regs::snq::IrqHeader(regs::snq::IRQ_0_INIT);
    assert_eq!(h.raw(), 0xFD2300000040002D);
    assert_eq!(
        (h.command(), h.count(), h.address()),
        (0x2D, 1, 0xFD_2300_0000)
    );
    assert_eq!(regs::snq::IRQ_1_INIT, 0x030001000000);
    let x = regs::snq::Htax(regs::snq::HTAX_INIT);
    assert_eq!(
        (x.raw(), x.snqm_port_oh(), x.snqm_vc_oh()),
        (0x201201, 1, 1)
    );
    assert_eq!((x.irq_port_oh(), x.irq_vc_oh()), (1, 1));
    assert_eq!(
        regs::snq::IrqWatermark(0)
            .with_watermark(1)
            .with_enable(true)
            .raw(),
        0x10001
    );
    assert_eq!(snq::TriggerMask::DEFAULT.raw(), 0x1FEDDFFD);
    assert_eq!(snq::TriggerMask::DRAINING.raw(), 0x1FED9FFD);
    assert_eq!(
        snq::TriggerMask::DEFAULT.without(snq::TriggerEvent::XbarOutport),
        snq::TriggerMask::DRAINING
    );
    // Events in the "off" column of HW §6.5.
    let off: Vec<u8> = snq::TriggerEvent::ALL
        .into_iter()
        .filter(|e| !snq::TriggerMask::DEFAULT.contains(*e))
        .map(|e| e.number())
        .collect();
    assert_eq!(off, [1, 13, 17, 20, 29, 30, 31]);
    let header = snq::Header(0)
        .with_ts(0x12_3456_789A)
        .with_tc(0xBC)
        .with_pc(0x05C)
        .with_flip(true);
    assert_eq!(header.raw(), 0x805C_BC12_3456_789A);
}

#[test]
fn velo_values() {
    // The kernel sends on traffic class 2, at window offset 0x200000 + vpid << 12 (HW §9.1).
    assert_eq!(
        velo::RequesterAddr::page(vpid(5), 2).encode(),
        0x200000 + (5 << 12)
    );
    assert_eq!(velo::RequesterAddr::page(Vpid::NET, 2).encode(), 0x2FE000);
    assert_eq!(
        velo::RequesterAddr::decode(0x01C0_0000 | 0x2FE078).encode(),
        0x2FE078
    );
    // The status is at offset 120 of a 128-byte slot, and at offset 56 of a 64-byte slot.
    assert_eq!(velo::SlotSize::B128.status_offset(), 120);
    assert_eq!(velo::SlotSize::B64.status_offset(), 56);
    for len in 1..=120u16 {
        let p: Vec<_> = velo::SlotSize::B128.parts(len).collect();
        assert_eq!(p.len(), 1);
        assert_eq!(u16::from(p[0].slot_offset), 120 - 8 * len.div_ceil(8));
        let n = if len <= 56 {
            1
        } else if len <= 112 {
            2
        } else {
            3
        };
        assert_eq!(velo::SlotSize::B64.slots_for(len), n, "{len}");
        let p: Vec<_> = velo::SlotSize::B64.parts(len).collect();
        assert_eq!(p.len(), n as usize);
        let last = p[p.len() - 1];
        let rest = len - 56 * (n as u16 - 1);
        assert_eq!(u16::from(last.slot_offset), 56 - 8 * rest.div_ceil(8));
        assert_eq!(u16::from(last.len), rest);
        for q in &p[..p.len() - 1] {
            assert_eq!((q.slot_offset, q.len), (0, 56));
        }
    }
    assert_eq!(velo::SlotSize::B64.parts(0).len(), 0);
    assert_eq!(velo::Descriptor::decode(0), Err(velo::Error::Length(0)));
    assert_eq!(
        velo::Descriptor::decode(121 << 48),
        Err(velo::Error::Length(121))
    );
    assert_eq!(
        velo::Descriptor::decode(1 << 48 | 1 << 26),
        Err(velo::Error::Reserved(1 << 26))
    );
    assert_eq!(velo::Status::decode(0), Ok(None));
}

#[test]
fn rma_values() {
    use rma::{last_fragment_start, PageOptions};
    let page = |o| rma::RequesterAddr::page(Vpid::NET, o).encode();
    assert_eq!(
        page(PageOptions {
            irq: true,
            ..Default::default()
        }),
        0x8FE000
    );
    assert_eq!(
        PageOptions {
            translate: true,
            ..Default::default()
        }
        .index(),
        16
    );
    assert_eq!(
        PageOptions {
            rra: true,
            traffic_class: 2,
            ..Default::default()
        }
        .index(),
        6
    );
    // A write to a remote register is an immediate put of eight bytes to VPID 252 with a requester
    // notification (HW §13).
    let d = rma::Descriptor {
        node: NodeId(9),
        vpid: Vpid::RRA,
        notify: rma::NotifySpec::from_bits(1),
        modifiers: rma::Modifiers::NONE,
        op: rma::Operation::ImmediatePut {
            len: 8,
            remote: 0x8050,
            value: 1,
        },
    };
    assert_eq!(d.encode(), Ok([0x0000_0701_0009_FC1B, 0x8050, 1]));
    // Lock layout of HW §10.2.
    let d = rma::Descriptor {
        op: rma::Operation::Lock {
            at: rma::LockTarget::Responder,
            number: 0x123456,
            compare: -1,
            add: 2,
        },
        ..d
    };
    assert_eq!(
        d.encode(),
        Ok([0x0000_0101_0009_FC33, 0xFFFF_FFFF_0012_3456, 2 << 32])
    );
    let d = rma::Descriptor {
        op: rma::Operation::NotificationPut {
            class: 0xAB,
            value: 77,
        },
        ..d
    };
    assert_eq!(d.encode(), Ok([0x0000_AB01_0009_FC17, 77, 0]));
    // The largest byte count is 8,388,608.
    let max = rma::Operation::Put {
        qw: true,
        len: rma::MAX_LEN,
        local: 8,
        remote: 16,
    };
    let d = rma::Descriptor { op: max, ..d };
    assert_eq!(d.encode(), Ok([0x7FFF_FF01_0009_FC0F, 8, 16]));
    let over = rma::Operation::Put {
        qw: false,
        len: rma::MAX_LEN + 1,
        local: 0,
        remote: 0,
    };
    let d = rma::Descriptor { op: over, ..d };
    assert_eq!(
        d.encode(),
        Err(rma::DescriptorError::Count(rma::MAX_LEN + 1))
    );
    // The tests of librma use command 4 as an illegal command.
    assert_eq!(
        rma::Descriptor::decode([3 | 4 << 2, 0, 0]),
        Err(rma::DescriptorError::Command(4))
    );
    assert_eq!(
        rma::Descriptor::decode([3 | 10 << 2, 0, 0]),
        Err(rma::DescriptorError::Command(10))
    );
    assert_eq!(
        rma::Descriptor::decode([2, 0, 0]),
        Err(rma::DescriptorError::LengthField(2))
    );

    assert_eq!(rma::FRAGMENT, 512 - 16);
    assert_eq!(last_fragment_start(0x1000, 496), 0x1000);
    assert_eq!(last_fragment_start(0x1000, 497), 0x1000 + 496);
    assert_eq!(last_fragment_start(0x1000, 0), 0x1000);
    let f: Vec<_> = rma::fragments(1514)
        .map(|f| (f.offset, f.len, f.last))
        .collect();
    assert_eq!(
        f,
        [
            (0, 496, false),
            (496, 496, false),
            (992, 496, false),
            (1488, 26, true)
        ]
    );
    let r = rma::LockResult(0)
        .with_number(5)
        .with_result(1)
        .with_value(9);
    assert_eq!(r.raw(), 0x0000_0009_0100_0005);
}

#[test]
fn queue_values() {
    assert_eq!(bq::Rp(0).with_irq_retrigger(true).raw(), 0x1_0000_0000);
    assert_eq!(bq::WritePointers::initial(2).raw(), 0);
    assert_eq!(bq::WritePointers::initial(3).raw(), 2);
    let seg = bq::SegmentDesc {
        slot: bq::SlotCode::B128,
        slots: 32_768,
        base: BusAddr(0x1234_5000),
    };
    assert_eq!(seg.bytes(), 4 << 20);
    assert_eq!(seg.encode().unwrap().raw(), 0x12345 << 18 | 32_767 << 2 | 3);
    assert_eq!(
        seg.encode().unwrap().with_valid(true).raw(),
        1 << 58 | 0x12345 << 18 | 32_767 << 2 | 3
    );
    let d = bq::DcqBase {
        segments: 32,
        page: BusAddr(0xF_FFFF_FFFF_F000),
    };
    assert_eq!(d.encode().unwrap().raw(), 0xFF_FFFF_FFFF << 16 | 31);
    for (code, bytes) in [16, 32, 64, 128].into_iter().enumerate() {
        assert_eq!(bq::SlotCode::from_code(code as u8).bytes(), bytes);
    }
    assert_eq!(
        bq::SegmentDesc { slots: 0, ..seg }.encode(),
        Err(bq::Error::Slots(0))
    );
    assert!(bq::SegmentDesc {
        base: BusAddr(0x800),
        ..seg
    }
    .encode()
    .is_err());
    assert!(bq::DcqBase { segments: 513, ..d }.encode().is_err());
    assert_eq!(wcbuf::OPEN_MASK, 0x00FFFFFFFF000000);
    let all = wcbuf::State(u64::MAX).opened();
    assert_eq!(
        (all.committed_count(), all.retry_count(), all.retry()),
        (0, 0, true)
    );
}

#[test]
fn atu_values() {
    let base = atu::GatBase::new(BusAddr(0x7F_FFE0_0000)).unwrap();
    assert_eq!(base.raw(), 1 << 31 | 0x7F_FFE0_0000 >> 21);
    assert_eq!(base.addr(), BusAddr(0x7F_FFE0_0000));
    assert_eq!(atu::GatBase::new(BusAddr(0x10_0000)), None);
    // An entry of a 4 KiB page is pa | vpid << 2 | 3.
    let e = atu::GatEntry::new(BusAddr(0x12_3456_7000), vpid(200), true, true).unwrap();
    assert_eq!(e.raw(), 0x12_3456_7000 | 200 << 2 | 3);
    let nla = Nla::from(
        atu::NlaParts(0)
            .with_offset(0xABC)
            .with_entry(0x3FFFF)
            .with_gat(5),
    );
    assert_eq!(nla.0, 5 << 30 | 0x3FFFF << 12 | 0xABC);
    assert_eq!(
        e.translate(nla, vpid(200), true),
        Ok(BusAddr(0x12_3456_7ABC))
    );
    assert_eq!(e.translate(nla, vpid(201), true), Err(atu::Fault::Vpid));
    assert_eq!(
        e.with_write(false).translate(nla, vpid(200), true),
        Err(atu::Fault::Access)
    );
    assert_eq!(
        atu::GatEntry(0).translate(nla, vpid(0), false),
        Err(atu::Fault::Invalid)
    );
    // With size code 9 (2 MiB), the low nine page bits come from the NLA.
    let big = atu::GatEntry::new(BusAddr(0x4000_0000), vpid(1), true, false)
        .unwrap()
        .with_size(9);
    assert_eq!(
        big.translate(Nla(0x1F_5678), vpid(1), false),
        Ok(BusAddr(0x401F_5678))
    );
    // The 512 entries of a 2 MiB page may differ in those nine bits and still are a single
    // translation.
    let other = atu::GatEntry(big.raw() | 0x1A_5000);
    assert_eq!((other.start(), big.start()), (big, big));
    assert_eq!(e.start(), e);
    let largest = big.with_size(atu::MAX_SIZE_CODE);
    assert!(big.is_well_formed() && largest.is_well_formed());
    for bad in [
        atu::GatEntry(0),
        atu::GatEntry(e.raw() | 1 << 52),
        big.with_size(19),
    ] {
        assert!(!bad.is_well_formed());
    }
    let flush = atu::Command::FlushPages {
        gat: 3,
        entry: 7,
        count: 1024,
    };
    assert_eq!(
        flush.encode().unwrap().raw(),
        1 << 60 | 1023 << 28 | 3 << 18 | 7
    );
    let noti = atu::Command::Notify(BusAddr(0x1000 + 8 * 254));
    assert_eq!(noti.encode().unwrap().raw(), 4 << 60 | 0x17F0);
    assert!(atu::Command::Fence(BusAddr(1 << 48)).encode().is_err());
}

#[test]
fn route_model() {
    use route::{McastEntry, OutPort, RouteEntry, RouteError, RouteWord};
    let to = |n| RouteEntry::Port(OutPort::new(n).unwrap()).encode();
    let node = NodeId(0x0C05);
    assert_eq!((node.segment(), node.local()), (3, 5));
    let port = route::lookup(
        node,
        |g| if g == 3 { to(6) } else { RouteWord(0) },
        |_| RouteWord(0),
    );
    assert_eq!(port.map(OutPort::get), Ok(6));
    let local = RouteEntry::Local.encode();
    let port = route::lookup(
        node,
        |_| local,
        |l| if l == 5 { to(7) } else { RouteWord(0) },
    );
    assert_eq!(port.map(OutPort::kind), Ok(route::PortKind::Network(0)));
    assert_eq!(
        route::lookup(node, |_| RouteWord(0), |_| to(1)),
        Err(RouteError::NoSegment)
    );
    assert_eq!(
        route::lookup(node, |_| local, |_| RouteWord(0)),
        Err(RouteError::NoNode)
    );
    assert_eq!(
        route::lookup(node, |_| local, |_| local),
        Err(RouteError::NoNode)
    );
    assert_eq!(
        route::lookup(node, |_| RouteWord(1 | 11 << 4), |_| local),
        Err(RouteError::BadPort(11))
    );
    let m = McastEntry(0)
        .with(OutPort::link(2).unwrap())
        .with(OutPort::network(0).unwrap());
    assert_eq!(m.raw(), 1 << 2 | 1 << 7);
    assert_eq!(McastEntry(u64::MAX).iter().count(), 11);
    assert_eq!(m.iter().map(OutPort::get).collect::<Vec<_>>(), [2, 7]);
    assert_eq!(OutPort::new(11), None);
    assert_eq!(OutPort::link(7), None);
    assert_eq!(OutPort::network(4), None);
}

#[test]
fn vpids() {
    let special = [Vpid::RRA, Vpid::DS, Vpid::NET, Vpid::MGMT].map(Vpid::get);
    assert_eq!(special, [252, 253, 254, 255]);
    assert_eq!(Vpid::new(256), None);
    assert_eq!(Vpid::all().count(), 256);
    assert!(
        NodeId(0xFFFE).is_reserved()
            && NodeId(0xFFFF).is_reserved()
            && !NodeId(0xFFFD).is_reserved()
    );
}
