//! Tests of a NIC as root port: backdoor, device, DMA and interrupts to the host that borrows the
//! device (HW §14, G20, G26).

use super::borrow::*;
use super::rig::*;
use extoll_emulator::endpoint::{
    regs as dev, DeviceConfig, Endpoint, Link, PciePacket, TestDevice, MEMORY_OFFSET, PBA_OFFSET,
    TABLE_OFFSET,
};
use extoll_emulator::nic::{BackdoorInfoRead, NicConfig, ResetKind};
use wire::ids::NodeId;
use wire::regs::pcie::{self as p, BackdoorControl, PcieToHtocCfg};
use wire::regs::smfu as r;
use wire::tlp::{Bdf, CfgType, Kind, Span, Status, Tlp};
use wire::velo::SlotSize;

#[test]
fn configuration_space_through_the_backdoor() {
    let mut b = Borrow::new();
    assert_eq!(b.cfg_read(0), 0x7E57_1CAD);
    assert_eq!(b.cfg_read(8) >> 8, 0x12_0000);
    // The written ones show the size and the type of the BAR: 1 MiB, 64-bit, memory.
    b.cfg_write(0x10, u32::MAX);
    b.cfg_write(0x14, u32::MAX);
    assert_eq!(
        (b.cfg_read(0x10), b.cfg_read(0x14)),
        (0xFFF0_0004, u32::MAX)
    );
    assert_eq!(b.cfg_read(0x18), 0, "no second BAR");
    for id in [0x01, 0x05, 0x10, 0x11] {
        b.capability(id);
    }
    let msix = b.capability(0x11);
    assert_eq!((b.cfg_read(msix) >> 16) & 0x7FF, 3);
    assert_eq!(
        (b.cfg_read(msix + 4), b.cfg_read(msix + 8)),
        (TABLE_OFFSET as u32, PBA_OFFSET as u32)
    );
    // The next requests use byte enables, extended space, other functions and type 1.
    b.config(CfgType::Type0, DEVICE, 0x3C, Some((0x1234_5678, 0x2)));
    assert_eq!(
        b.cfg_read(0x3C) & 0xFFFF,
        0,
        "only byte 1, which is read only"
    );
    b.config(CfgType::Type0, DEVICE, 0x3C, Some((0x1234_5678, 0x1)));
    assert_eq!(b.cfg_read(0x3C) & 0xFFFF, 0x78);
    assert_eq!(b.cfg_read(0xFFC), 0);
    let other = Bdf::new(1, 0, 1);
    assert_eq!(
        b.config(CfgType::Type0, other, 0, None),
        (Status::Unsupported, u32::MAX)
    );
    assert_eq!(
        b.config(CfgType::Type1, DEVICE, 0, None).0,
        Status::Unsupported
    );
    let map = p::HtocToPcie(0).with_map_config_to_0(true);
    b.rig.remote_write(0, p::HTOC_TO_PCIE, map.raw());
    assert_eq!(b.config(CfgType::Type1, DEVICE, 0, None).1, 0x7E57_1CAD);
    // The completer ID in completions is the target of the last configuration write.
    b.inject(
        Kind::CfgRead {
            ty: CfgType::Type0,
            requester: Bdf(0x0810),
            tag: 0,
            target: DEVICE,
            register: 0,
            enables: 0xF,
        }
        .into(),
        &[],
    );
    let (tlp, _) = b.fetch().unwrap();
    match tlp.kind {
        Kind::Completion {
            completer,
            requester,
            tag,
            byte_count,
            lower_addr,
            ..
        } => assert_eq!(
            (completer, requester, tag, byte_count, lower_addr),
            (DEVICE, Bdf(0x0810), 0, 4, 0)
        ),
        other => panic!("{other:?}"),
    }
    assert_eq!(b.fetch(), None);
}

#[test]
fn the_fifo_is_read_destructively() {
    for (how, left) in [(BackdoorInfoRead::Pop, 0), (BackdoorInfoRead::Peek, 7)] {
        let cfg = NicConfig {
            backdoor_info_read: how,
            ..NicConfig::default()
        };
        let device = TestDevice::new(DeviceConfig::default());
        let mut b = Borrow::with(cfg, Box::new(device));
        let read: Tlp = Kind::CfgRead {
            ty: CfgType::Type0,
            requester: Bdf(0),
            tag: 0,
            target: DEVICE,
            register: 0,
            enables: 0xF,
        }
        .into();
        b.inject(read, &[]);
        b.inject(read, &[]);
        let info = |b: &mut Borrow| b.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_INFO);
        let data = |b: &mut Borrow| b.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_DATA);
        assert_eq!(info(&mut b), 7, "valid, three quadwords");
        data(&mut b);
        data(&mut b);
        assert_eq!(data(&mut b), 0x7E57_1CAD);
        assert_eq!((info(&mut b), info(&mut b)), (7, left), "{how:?}");
        (0..3).for_each(|_| assert_ne!(data(&mut b), 1));
        assert_eq!((info(&mut b), data(&mut b)), (0, 0));
        let control = BackdoorControl(b.rig.remote_read(0, p::HTOC_TO_PCIE_BACKDOOR_CONTROL));
        assert_eq!((control.send(), control.sent_tlp_count()), (false, 2));
        // A partial store to a read-only register must not remove an entry of the FIFO.
        b.inject(read, &[]);
        b.rig
            .store(0, 2, p::PCIE_TO_HTOC_BACKDOOR_INFO.0.into(), &[0; 4]);
        assert_eq!(info(&mut b), 7);
    }
}

#[test]
fn what_goes_to_the_fifo_is_configured() {
    let mut b = Borrow::new();
    let read = |tag| -> Tlp {
        Kind::CfgRead {
            ty: CfgType::Type0,
            requester: Bdf(0),
            tag,
            target: DEVICE,
            register: 0,
            enables: 0xF,
        }
        .into()
    };
    // Only completions with tag 0 are expected. Other completions are dropped.
    b.inject(read(5), &[]);
    assert_eq!(b.fetch(), None);
    assert_eq!(b.rig.nodes[1].nic.counters().drops.pcie_packet, 1);
    let set = |b: &mut Borrow, cfg: PcieToHtocCfg| {
        b.rig.remote_write(0, p::PCIE_TO_HTOC_CFG, cfg.raw());
    };
    set(&mut b, PcieToHtocCfg(0));
    b.inject(read(0), &[]);
    assert_eq!(b.fetch(), None);
    set(
        &mut b,
        PcieToHtocCfg(0)
            .with_regfwd_rdrsp_all(true)
            .with_info_trigger(true),
    );
    b.inject(read(5), &[]);
    assert!(b.fetch().is_some());
    assert_eq!(b.rig.nodes[1].nic.counters().events[4], 1);
    // The counters must show three requests that were sent and one completion that was stored.
    let get = |b: &mut Borrow, at| b.rig.remote_read(0, at);
    assert_eq!(get(&mut b, p::HTOC_TO_PCIE_NP_COUNTER), 3);
    assert_eq!(
        p::ResponseCounter(get(&mut b, p::PCIE_TO_HTOC_COUNTER_RDRSP)).regfile(),
        1
    );
    // The FIFO holds 64 packets.
    (0..66).for_each(|_| b.inject(read(0), &[]));
    let drop = p::RegfwdDrop(get(&mut b, p::PCIE_TO_HTOC_REGFWD_DROP));
    assert_eq!(
        (drop.response(), drop.nonposted(), drop.posted()),
        (2, 0, 0)
    );
    assert_eq!(std::iter::from_fn(|| b.fetch()).count(), 64);
}

#[test]
fn malformed_packets_go_nowhere() {
    let mut b = Borrow::new();
    let send = |b: &mut Borrow, qws: [u64; 3], payload: u8| {
        for (k, qw) in (0..).zip(qws) {
            b.rig.remote_write(0, p::htoc_to_pcie_backdoor_data(k), qw);
        }
        let c = BackdoorControl(0)
            .with_payload_qw_length(payload)
            .with_send(true);
        b.rig
            .remote_write(0, p::HTOC_TO_PCIE_BACKDOOR_CONTROL, c.raw());
    };
    send(&mut b, [u64::MAX; 3], 1);
    send(&mut b, [0x0000_000F_4400_0001, 0x0100_0010, 0], 0); // no payload
    send(&mut b, [0x0000_000F_0200_0001, 0, 0], 0); // I/O
    assert_eq!(b.rig.nodes[1].nic.counters().events[5], 3);
    assert_eq!(b.rig.nodes[1].nic.counters().bridge.to_device, 0);
    assert_eq!(
        p::ForwardCounter(b.rig.remote_read(0, p::HTOC_TO_PCIE_NP_COUNTER)).disc_pkts(),
        3
    );
    // Surplus quadwords have no effect. A length above the size of the RAM has no effect, either.
    send(&mut b, [0x0000_000F_0400_0001, 0x0100_0000, 0], 31);
    assert!(b.fetch().is_some());
}

#[test]
fn a_host_does_not_answer_the_backdoor() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    rig.write(0, p::PCIE_TO_HTOC_CFG, 0x3_0002);
    rig.write(0, p::htoc_to_pcie_backdoor_data(0), 0x0000_000F_0400_0001);
    rig.write(0, p::htoc_to_pcie_backdoor_data(1), 0x0100_0000);
    rig.write(0, p::HTOC_TO_PCIE_BACKDOOR_CONTROL, 1 << 40);
    assert_eq!(rig.read(0, p::PCIE_TO_HTOC_BACKDOOR_INFO), 0);
    assert_eq!(rig.read(0, p::HTOC_TO_PCIE_BACKDOOR_CONTROL) >> 48, 1);
}

#[test]
fn memory_through_the_window() {
    let mut b = Borrow::new();
    b.open();
    assert_eq!(b.reg(dev::ID), dev::ID_VALUE);
    assert_eq!(b.reg(dev::MEMORY_SIZE), 1 << 19);
    b.set_reg(dev::SCRATCH, 0x1234_5678);
    assert_eq!(
        b.load(dev::SCRATCH, 8),
        [0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0]
    );
    let mut want = pattern(3, 64);
    b.rig.store(0, 2, window(MMIO) + MEMORY_OFFSET, &want);
    for len in 1..=8 {
        for at in 0..16 {
            assert_eq!(
                b.load(MEMORY_OFFSET + at, len),
                want[at as usize..at as usize + len]
            );
            let data = pattern(77 + at, len);
            b.rig.store(0, 2, window(MMIO) + MEMORY_OFFSET + at, &data);
            want[at as usize..at as usize + len].copy_from_slice(&data);
            assert_eq!(b.load(MEMORY_OFFSET, 64), want);
        }
    }
    // The load consists of many packets, which are split at pages and payload sizes.
    let want = pattern(5, 9000);
    b.rig
        .store(0, 2, window(MMIO) + MEMORY_OFFSET + 0x7F3, &want);
    assert_eq!(b.load(MEMORY_OFFSET + 0x7F3, 9000), want);
    // The same memory is accessed through the backdoor.
    let span = Span::bytes(BAR + MEMORY_OFFSET + 0x7F3, 5).unwrap();
    b.inject(
        Kind::MemRead {
            requester: Bdf(0),
            tag: 0,
            span,
        }
        .into(),
        &[],
    );
    let (tlp, data) = b.fetch().unwrap();
    assert_eq!(data[3..8], want[..5]);
    assert!(matches!(
        tlp.kind,
        Kind::Completion {
            byte_count: 5,
            lower_addr: 0x73,
            dwords: 2,
            ..
        }
    ));
    b.inject(
        Kind::MemWrite {
            requester: Bdf(0),
            tag: 0,
            span: Span::bytes(BAR + dev::SCRATCH, 4).unwrap(),
        }
        .into(),
        &[1, 2, 3, 4],
    );
    assert_eq!(b.reg(dev::SCRATCH), 0x0403_0201);
    // A read outside the BAR is answered with an error.
    b.rig
        .remote_write(0, r::vpid_t_start_addr(MMIO), BAR + (1 << 20));
    assert_eq!(b.load(0, 4), [0xFF; 4]);
    b.rig.remote_write(0, r::vpid_t_start_addr(MMIO), BAR);
    // While memory decoding is off, every read is answered with an error.
    b.cfg_write(4, 0);
    assert_eq!(b.load(0, 4), [0xFF; 4]);
    assert_eq!(b.rig.nodes[0].nic.counters().smfu.refused, 2);
}

#[test]
fn dma_reaches_the_borrowers_memory() {
    let mut b = Borrow::new();
    b.open();
    let want = pattern(11, 70_000);
    b.rig.nodes[0].ram.put(BUFFER + 0x123, &want);
    assert_eq!(b.dma(HOME + 0x123, 0x1001, 70_000, false), 2);
    assert_eq!(b.load(MEMORY_OFFSET + 0x1001, 70_000), want);
    let want = pattern(12, 70_000);
    b.rig
        .store(0, 2, window(MMIO) + MEMORY_OFFSET + 0x2003, &want);
    assert_eq!(b.dma(HOME + 0x2_0001, 0x2003, 70_000, true), 2);
    assert_eq!(b.rig.nodes[0].ram.get(BUFFER + 0x2_0001, 70_000), want);
    assert_eq!(b.dma(HOME, 0, 0, true), 2, "nothing to do");
    // Both halves of the interval counter in node 1's SMFU must count.
    let sent = b.rig.remote_read(0, r::interval_counter(MEMORY));
    assert!(sent as u32 > 100 && sent >> 32 > 200, "{sent:#x}");
    let forwarded = p::RequestCounter(b.rig.remote_read(0, p::PCIE_TO_HTOC_COUNTER_MEMWR));
    assert_eq!(u64::from(forwarded.fwd()), sent >> 32);
}

#[test]
fn dma_that_leads_nowhere_fails() {
    let mut b = Borrow::new();
    b.open();
    // The causes are a missing HTAX interval, an SMFU interval to missing memory, an address beyond
    // the device's memory, and disabled bus mastering.
    assert_eq!(b.dma(0x50_0000_0000, 0, 64, false), 3);
    let memrd = p::RequestCounter(b.rig.remote_read(0, p::PCIE_TO_HTOC_COUNTER_MEMRD));
    assert_eq!(memrd.error(), 1);
    b.rig.write(0, r::vpid_t_start_addr(MEMORY), 1 << 40);
    assert_eq!(b.dma(HOME, 0, 64, false), 3);
    assert_eq!(
        b.dma(HOME, 0, 64, true),
        2,
        "posted, so the failure is not reported"
    );
    b.rig.write(0, r::vpid_t_start_addr(MEMORY), BUFFER);
    assert_eq!(b.dma(HOME, (1 << 19) - 32, 64, true), 3);
    assert_eq!(b.dma(HOME, u32::MAX, u32::MAX, true), 3);
    b.cfg_write(4, 2);
    assert_eq!(b.dma(HOME, 0, 64, true), 3);
    b.cfg_write(4, 6);
    assert_eq!(b.dma(HOME, 0, 64, false), 2, "works again");
    // Packets without an interval go to the FIFO if software enables that. The transfer must then
    // time out.
    let cfg = PcieToHtocCfg(0)
        .with_regfwd_srctag0(true)
        .with_regfwd_memrd_cantmap(true);
    b.rig.remote_write(0, p::PCIE_TO_HTOC_CFG, cfg.raw());
    assert_eq!(b.dma(0x50_0000_0000, 0, 64, false), 1);
    let (tlp, _) = b.fetch().unwrap();
    let want = Span::bytes(0x50_0000_0000, 64).unwrap();
    assert!(matches!(tlp.kind, Kind::MemRead { span, requester: DEVICE, .. } if span == want));
    let at = b.rig.nodes[1].nic.next_deadline().unwrap();
    b.rig.nodes[1].ram.now = at;
    b.rig.tick(1);
    assert_eq!(b.reg(dev::DMA_STATUS), 3);
}

#[test]
fn msi_becomes_the_hosts_interrupt_after_the_data() {
    let mut b = Borrow::new();
    b.open();
    b.enable_msi();
    b.rig.store(0, 2, window(MMIO) + MEMORY_OFFSET, &[9; 4096]);
    b.rig.hold_wire = true;
    let start = |b: &mut Borrow| {
        for (at, value) in [
            (dev::DMA_BUS, HOME as u32),
            (dev::DMA_BUS + 4, (HOME >> 32) as u32),
            (dev::DMA_MEMORY, 0),
            (dev::DMA_LEN, 4096),
            (dev::DMA_CONTROL, dev::DMA_START | dev::DMA_TO_BUS),
        ] {
            b.set_reg(at, value);
        }
    };
    start(&mut b);
    // Packets are delivered one by one. When the interrupt arrives, all data must have arrived.
    while let Some(packet) = b.rig.wire.pop_front() {
        let extoll_emulator::env::Dest::Node(to) = packet.dst else {
            panic!("{packet:?}")
        };
        b.rig.with(to.0.into(), |nic, env| nic.receive(packet, env));
        let done = b.rig.nodes[0].ram.get(BUFFER, 4096) == [9; 4096];
        assert!(b.rig.nodes[0].ram.msi == 0 || done);
    }
    b.rig.hold_wire = false;
    assert_eq!(b.rig.msis(0), 1);
    assert_eq!((b.reg(dev::INT_STATUS), b.reg(dev::INT_COUNT)), (1, 1));
    b.set_reg(dev::INT_STATUS, 1);
    assert_eq!(b.reg(dev::INT_STATUS), 0);
    // A pending reason raises an interrupt when the reason becomes enabled.
    b.set_reg(dev::INT_ENABLE, 0);
    b.set_reg(dev::INT_SET, 0x10);
    assert_eq!(b.rig.msis(0), 0);
    b.set_reg(dev::INT_ENABLE, 0x10);
    assert_eq!(b.rig.msis(0), 1);
    // The mask bit of MSI makes the interrupt wait.
    let at = b.capability(5);
    b.cfg_write(at + 0x10, 1);
    b.set_reg(dev::INT_SET, 0x10);
    assert_eq!((b.rig.msis(0), b.cfg_read(at + 0x14)), (0, 1));
    b.cfg_write(at + 0x10, 0);
    assert_eq!((b.rig.msis(0), b.cfg_read(at + 0x14)), (1, 0));
    // Without bus mastering, the device sends no packet.
    b.cfg_write(4, 2);
    b.set_reg(dev::INT_SET, 0x10);
    assert_eq!(b.rig.msis(0), 0);
}

#[test]
fn msix_vectors() {
    let mut b = Borrow::new();
    b.open();
    let at = b.capability(0x11);
    // All vectors are masked initially. Vector 2 writes to memory, where the test can read its
    // message.
    let entry = TABLE_OFFSET + 2 * 16;
    assert_eq!(b.reg(entry + 12), 1);
    b.set_reg(entry, (HOME + 0x40) as u32);
    b.set_reg(entry + 4, (HOME >> 32) as u32);
    b.set_reg(entry + 8, 0xCAFE_0002);
    b.cfg_write(at, 0x8000 << 16);
    b.set_reg(dev::INT_ENABLE, u32::MAX);
    b.set_reg(dev::INT_VECTOR, 2);
    b.set_reg(dev::INT_SET, 4);
    assert_eq!(
        (b.reg(PBA_OFFSET), b.rig.nodes[0].ram.qw(BUFFER + 0x40)),
        (4, 0)
    );
    b.set_reg(entry + 12, 0);
    assert_eq!(
        (b.reg(PBA_OFFSET), b.rig.nodes[0].ram.qw(BUFFER + 0x40)),
        (0, 0xCAFE_0002)
    );
    // The function mask masks all vectors.
    b.rig.nodes[0].ram.set_qw(BUFFER + 0x40, 0);
    b.cfg_write(at, 0xC000 << 16);
    b.set_reg(dev::INT_SET, 4);
    assert_eq!(b.reg(PBA_OFFSET), 4);
    b.cfg_write(at, 0x8000 << 16);
    assert_eq!(b.rig.nodes[0].ram.qw(BUFFER + 0x40), 0xCAFE_0002);
    // A function-level reset clears the MSI-X table and the configuration space, but not the device
    // memory.
    b.rig.store(0, 2, window(MMIO) + MEMORY_OFFSET, &[7; 8]);
    let exp = b.capability(0x10);
    b.cfg_write(exp + 8, 0x8000);
    assert_eq!((b.cfg_read(4) & 6, b.cfg_read(0x10)), (0, 4));
    b.open();
    assert_eq!(b.reg(entry + 12), 1);
    assert_eq!(b.load(MEMORY_OFFSET, 8), [7; 8]);
    // A reset of the NIC resets the device.
    b.rig.with(1, |nic, env| nic.reset(ResetKind::PowerOn, env));
    assert!(b.rig.nodes[1].nic.is_root_port());
}

/// Device that accepts all packets and answers none.
struct Silent;

impl Endpoint for Silent {
    fn receive(&mut self, _: PciePacket, _: &mut Link<'_>) {}
    fn tick(&mut self, _: &mut Link<'_>) {}
    fn next_deadline(&self) -> Option<u64> {
        None
    }
    fn wants_credit(&self) -> bool {
        false
    }
    fn reset(&mut self) {}
}

#[test]
fn a_device_that_does_not_answer() {
    let mut b = Borrow::with(NicConfig::default(), Box::new(Silent));
    b.rig.smfu_interval(0, MMIO, 1);
    let mut data = [0; 8];
    assert!(!b.rig.load(0, 2, window(MMIO), &mut data));
    // The timeout of the bridge expires before the timeout of the origin.
    let at = b.rig.nodes[1].nic.next_deadline().unwrap();
    assert!(at < b.rig.nodes[0].nic.next_deadline().unwrap());
    b.rig.nodes[1].ram.now = at;
    b.rig.tick(1);
    assert!(b.rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!(data, [0xFF; 8]);
    let c = b.rig.nodes[1].nic.counters();
    assert_eq!(
        (
            c.bridge.timeouts,
            b.rig.nodes[0].nic.counters().smfu.refused
        ),
        (1, 1)
    );
    assert_eq!(b.rig.nodes[1].nic.next_deadline(), None);
    // There are 255 tags. A read for which no tag is free fails at once.
    let mut data = vec![0; 512 * 256];
    assert!(!b.rig.load(0, 2, window(MMIO), &mut data));
    let c = b.rig.nodes[1].nic.counters();
    assert_eq!((c.drops.smfu_store_full, c.events[11]), (1, 1));
    b.rig.nodes[1].ram.now += 50_000_000;
    b.rig.tick(1);
    assert!(b.rig.nodes[0].nic.finish_load(&mut data));
    assert!(data.iter().all(|&v| v == 0xFF));
}

/// Device that answers with garbage: wrong tags, too much or too little data, and requests to
/// arbitrary addresses.
struct Hostile(Rng);

impl Endpoint for Hostile {
    fn receive(&mut self, packet: PciePacket, link: &mut Link<'_>) {
        for _ in 0..self.0.below(3) {
            let addr =
                [0, HOME, HOME_MSI, u64::MAX - 7, self.0.next() << 11][self.0.below(5) as usize];
            let len = self.0.below(300) as u32;
            let span = Span::bytes(addr, len).unwrap_or(Span {
                addr: HOME,
                dwords: 1,
                first_be: 0,
                last_be: 0,
            });
            let requester = Bdf(self.0.next() as u16);
            let tag = match packet.tlp.kind {
                Kind::MemRead { tag, .. } if self.0.below(2) == 0 => tag,
                _ => self.0.next() as u8,
            };
            let dwords = self.0.below(70) as u16;
            let kind = match self.0.below(4) {
                0 => Kind::MemRead {
                    requester,
                    tag,
                    span,
                },
                1 => Kind::MemWrite {
                    requester,
                    tag,
                    span,
                },
                2 => Kind::CfgRead {
                    ty: CfgType::Type0,
                    requester,
                    tag,
                    target: DEVICE,
                    register: 0,
                    enables: 15,
                },
                _ => Kind::Completion {
                    completer: DEVICE,
                    status: Status::Success,
                    modified: false,
                    byte_count: self.0.below(4096) as u16 + 1,
                    requester,
                    tag,
                    lower_addr: self.0.below(128) as u8,
                    dwords,
                },
            };
            let tlp = Tlp::from(kind);
            let data = vec![0xEE; usize::from(tlp.payload_dwords()) * 4];
            link.send(PciePacket { tlp, data });
        }
    }
    fn tick(&mut self, _: &mut Link<'_>) {}
    fn next_deadline(&self) -> Option<u64> {
        None
    }
    fn wants_credit(&self) -> bool {
        false
    }
    fn reset(&mut self) {}
}

#[test]
fn a_hostile_device_breaks_nothing() {
    for seed in 1..20 {
        let mut b = Borrow::with(NicConfig::default(), Box::new(Hostile(Rng(seed))));
        let mut rng = Rng(seed * 7919);
        b.rig.smfu_interval(0, MMIO, 1);
        for k in [MEMORY, MSI] {
            let control = r::IntervalControl::to_node(NodeId(0));
            b.rig.remote_write(0, r::interval_startaddr(k), HOME);
            b.rig
                .remote_write(0, r::interval_endaddr(k), HOME + (1 << 37));
            b.rig.remote_write(0, r::interval_control(k), control.raw());
            b.rig
                .remote_write(0, wire::regs::htax::intvl_upper(k), u64::MAX >> 12);
            b.rig.remote_write(
                0,
                wire::regs::htax::intvl_control(k),
                1 | (0x100 << 5) | (3 << 14),
            );
        }
        b.rig.remote_write(0, wire::regs::htax::GENERAL, 0x8088);
        for _ in 0..200 {
            let at = window(MMIO) + rng.below(1 << 20);
            let mut data = vec![0; rng.below(600) as usize + 1];
            if rng.below(2) == 0 {
                b.rig.store(0, 2, at, &data);
            } else {
                b.rig.load(0, 2, at, &mut data);
            }
            for node in &mut b.rig.nodes {
                node.ram.now += 20_000_000;
            }
            b.rig.tick(0);
            b.rig.tick(1);
        }
        for node in &mut b.rig.nodes {
            node.ram.now += 200_000_000;
        }
        b.rig.tick(1);
        b.rig.tick(0);
        assert_eq!(b.rig.nodes[0].nic.counters().smfu.outstanding, 0);
        assert_eq!(b.rig.nodes[1].nic.counters().smfu.outstanding, 0);
        assert_eq!(b.rig.nodes[1].nic.next_deadline(), None);
    }
}
