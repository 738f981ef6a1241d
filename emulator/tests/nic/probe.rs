//! Tests of the accesses in HW §3, of access rights, identity, time and resets.

use super::rig::*;
use extoll_emulator::nic::{Access, FlrScope, NicConfig, RegMap, ResetKind, Te};
use wire::ids::RegOffset;
use wire::velo::SlotSize;

/// Performs the steps of HW §3.1…3.6 in order, as a driver does, and checks every value read.
pub fn probe(rig: &mut Rig, i: usize, slots: SlotSize) {
    let w = |rig: &mut Rig, at: u32, value: u64| rig.write(i, RegOffset(at), value);
    let r = |rig: &mut Rig, at: u32| rig.read(i, RegOffset(at));
    let node = u64::from(rig.nodes[i].nic.node_id().0);
    // Step 3 of HW §3: the intervals are programmed in the order 0, 1, 2, 5, 3, 4.
    let intervals = [
        (0, BAR0, 0x200_0000, 0xC107),
        (1, BAR0 + 0x200_0000, 0x200_0000, 0x4209),
        (2, BAR0 + 0x400_0000, 0x200_0000, 0x440B),
        (5, BAR2, 0x200_0000, 0xE007),
        (3, BAR2 + 0x200_0000, BAR2_SIZE - 0x200_0000, 0x6001),
        (4, BAR2 + 0x200_0000, BAR2_SIZE - 0x200_0000, 0xA003),
    ];
    for (k, start, size, control) in intervals {
        w(rig, 0x9200 + 24 * k, (start + size) >> 12);
        w(rig, 0x9208 + 24 * k, (start >> 12) - 1);
        w(rig, 0x9210 + 24 * k, control);
    }
    w(rig, 0x9290, 0x8088);
    // Steps 4 and 5 of HW §3.
    assert_eq!(r(rig, 0x8050), 0, "network state");
    w(rig, 0x42_C290, 0x400_0000);
    // Steps 6 and 7 program the SNQ. The ring is at the address that a driver would use.
    w(rig, 0x1_0068, 0);
    rig.nodes[i].ram.put(RING, &[0; 64 * RING_ENTRIES as usize]);
    w(rig, 0x1_0028, 0xFF);
    w(rig, 0x1_0020, RING >> 10);
    let wp = r(rig, 0x1_0030);
    assert_eq!(wp, 0, "SNQ write pointer");
    w(rig, 0x1_0038, wp.wrapping_sub(1) & 0xFF);
    w(rig, 0x1_0040, 0x1_0000 | (wp + 1));
    for (k, word) in (0..).zip(wire::snq::TOURMALET.words()) {
        w(rig, 0x1_0800 + 8 * k, *word);
    }
    w(rig, 0x1_0000, 0x1FED_DFFD);
    w(rig, 0x1_0048, 0xFD23_0000_0040_002D);
    w(rig, 0x1_0050, 0x0300_0100_0000);
    w(rig, 0x1_0058, 0);
    w(rig, 0x1_0070, 0x20_1201);
    w(rig, 0x1_0068, 1);
    rig.nodes[i].ring = wire::snq::Ring::new(RING_ENTRIES, wp as u16);
    // Step 8 of HW §3.
    assert_eq!(r(rig, 0x8050), 0);
    // Steps 9 to 11 of HW §3.
    for base in [0xC0_0000, 0xE0_0000] {
        for q in 0..256 {
            for at in [
                0x0800 + 8 * q,
                0x1000 + 8 * q,
                0x1800 + 8 * q,
                0x2000 + 8 * q,
                0x2800 + 8 * q,
            ] {
                w(rig, base + at, 0);
            }
            w(rig, base + 0x10_0000 + 0x1000 * q, 0);
        }
    }
    for base in [0xC0_0000, 0xE0_0000] {
        let general = r(rig, base);
        assert_eq!(general, 0);
        w(rig, base, general | 1);
    }
    // Step 12 of HW §3.
    for v in 0..256u32 {
        let at = 0x120_0800 + 8 * v;
        let value = r(rig, at);
        assert_eq!(value, 0);
        w(rig, at, value & !0xFFFF);
        assert_eq!((r(rig, 0x8008) >> 24) & 0xFFFF, node, "node ID");
        let value = r(rig, at);
        w(
            rig,
            at,
            value & !0xFF_FFFF_0000 | (node << 16) | (u64::from(v) << 32),
        );
        let at = 0x120_1000 + 8 * v;
        for mask in [!0xFFFF, !(1 << 16), 0x1_FFFF] {
            let value = r(rig, at);
            assert_eq!(value, 0);
            w(rig, at, value & mask);
        }
        let at = 0x100_0000 + 0x1000 * v;
        let state = r(rig, at);
        assert_eq!(state, 0, "VELO wcbuf state");
        w(rig, at, state & 0x00FF_FFFF_FF00_0000);
    }
    // Steps 13 to 15 of HW §3.
    w(rig, 0x120_1800, 0x1_0000_0020);
    w(rig, 0x110_0000, 0x20_0000_0001);
    let completer = r(rig, 0x120_1808);
    assert_eq!(completer, 0);
    w(rig, 0x120_1808, completer & !0x1FF | 8);
    let completer = r(rig, 0x120_1808);
    assert_eq!(completer, 8);
    w(
        rig,
        0x120_1808,
        completer & !(1 << 9) | (u64::from(slots == SlotSize::B128) << 9),
    );
    w(rig, 0x9418, 81);
    // Steps 16 and 17 of HW §3.
    for k in 0..1024u32 {
        w(rig, 0xE000 + 8 * k, 0);
    }
    w(rig, 0xC000, 1);
    // Step 18 of HW §3.
    assert_eq!((r(rig, 0x8008) >> 24) & 0xFFFF, node);
    for v in 0..256u32 {
        w(rig, 0x160_0800 + 8 * v, 0xF522);
        let at = 0x140_0000 + 0x1000 * v;
        let state = r(rig, at);
        assert_eq!(state, 0, "RMA wcbuf state");
        w(rig, at, state & 0x00FF_FFFF_FF00_0000);
    }
    // Steps 19 to 23 of HW §3.
    w(rig, 0x160_0080, 0x84_0200);
    let locks = rig.nodes[i].ram.alloc(16 << 10);
    w(rig, 0x160_0088, locks);
    w(rig, 0x160_0090, 0x80_0000_0010);
    for at in [0x160_1000, 0x160_1028, 0x160_1058] {
        let value = r(rig, at);
        assert_eq!(value, 0);
        w(rig, at, value & 0xFF_FFFE);
    }
    let timeout = r(rig, 0x160_0098);
    assert_eq!(timeout, 0);
    w(rig, 0x160_0098, timeout & !0xFFFF_FFFF | 0xA);
    let timeout = r(rig, 0x160_0098);
    assert_eq!(timeout, 0xA);
    w(rig, 0x160_0098, timeout | (1 << 32));
    let wcbuf = r(rig, 0x150_0000);
    assert_eq!(wcbuf, 0);
    w(rig, 0x150_0000, wcbuf & 0xFFFF_FFFF | (0x20 << 32));
    let wcbuf = r(rig, 0x150_0000);
    assert_eq!(wcbuf, 0x20_0000_0000);
    w(rig, 0x150_0000, wcbuf | 1);
    for n in [0x9498, 0x9518] {
        w(rig, n, 0xFF);
    }
    // Steps 24 to 26 of HW §3.
    w(rig, 0xA058, BAR2);
    let target = rig.nodes[i].ram.alloc(4096);
    w(rig, 0xA060, target);
    w(rig, 0xA070, 0);
    w(rig, 0xA008, 0x223);
    w(rig, 0x9598, 0xFF);
    w(rig, 0xA000, 1);
    for k in 0..63 {
        for at in [0xA088, 0xA090, 0xA080] {
            w(rig, at + 32 * k, 0);
        }
    }
    w(rig, 0xA080, 0x301);
    w(rig, 0xA088, BAR2);
    w(rig, 0xA090, BAR2 + 0x200_0000);
}

#[test]
fn probe_sequence_meets_its_expectations() {
    for slots in [SlotSize::B64, SlotSize::B128] {
        let rig = Rig::probed(1, slots);
        let c = rig.nodes[0].nic.counters();
        assert_eq!(c.bad_accesses, 0, "{:?}", rig.nodes[0].log.diagnostics);
        assert_eq!(c.odd_accesses, 0);
        assert_eq!(c.diagnostics, 0);
        assert_eq!(c.interrupts, 0);
        assert_eq!(c.events, [0; 32]);
        assert_eq!(c.dma_reads + c.dma_writes, 0);
    }
}

#[test]
fn probe_is_traced_in_order() {
    let mut rig = Rig::new(1);
    rig.nodes[0].log.on = true;
    probe(&mut rig, 0, SlotSize::B128);
    let regs = &rig.nodes[0].log.regs;
    assert_eq!(regs[0], (true, 0x9200, (BAR0 + 0x200_0000) >> 12));
    assert_eq!(regs[17], (true, 0x9210 + 24 * 4, 0xA003));
    assert_eq!(regs[18], (true, 0x9290, 0x8088));
    assert_eq!(regs[19], (false, 0x8050, 0));
    let c = rig.nodes[0].nic.counters();
    assert_eq!(regs.len() as u64, c.mmio_reads + c.mmio_writes);
}

#[test]
fn driver_can_probe_again() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    rig.with(0, |nic, env| nic.reset(ResetKind::FunctionLevel, env));
    probe(&mut rig, 0, SlotSize::B64);
    assert_eq!(rig.nodes[0].nic.counters().bad_accesses, 0);
}

#[test]
fn intervals_decide_where_accesses_go() {
    let mut rig = Rig::new(1);
    // Without programmed intervals, the register file has its default address, and the remainder of
    // the BAR is empty (G3).
    assert_eq!(rig.read(0, RegOffset(0x8000)), 0x1_0000);
    rig.velo_send(0, 0, 8 << 48, &[1; 8]);
    assert_eq!(rig.nodes[0].nic.counters().velo_stores, 0);
    assert_eq!(rig.nodes[0].nic.counters().bad_accesses, 2);
    probe(&mut rig, 0, SlotSize::B128);
    rig.velo_send(0, 0, 8 << 48, &[1; 8]);
    assert_eq!(rig.nodes[0].nic.counters().velo_stores, 2);
    // Requester pages read as 0. The upper 160 MiB of the BAR read as 0, too, and ignore writes.
    let mut word = [0xAA; 8];
    rig.load(0, 0, 0x200_0000, &mut word);
    assert_eq!(word, [0; 8]);
    rig.store(0, 0, 0x0800_0000, &[0xFF; 8]);
    rig.load(0, 0, 0x0800_0000, &mut word);
    assert_eq!(word, [0; 8]);
    // The register file moves with its interval, as in the layout of another chip build.
    rig.write(0, RegOffset(0x9200), (BAR0 + 0x0A00_0000) >> 12);
    rig.write(0, RegOffset(0x9208), ((BAR0 + 0x0800_0000) >> 12) - 1);
    rig.load(0, 0, 0x0800_8000, &mut word);
    assert_eq!(u64::from_le_bytes(word), 0x1_0000);
    // The default port still leads to the register file.
    assert_eq!(rig.read(0, RegOffset(0x8000)), 0x1_0000);
}

#[test]
fn intervals_match_channel_and_both_bounds() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    let velo = |rig: &mut Rig| {
        for page in [0, 1, 0x1FFF] {
            rig.store(0, 0, 0x200_0000 + page * 4096 + 64, &[1; 8]);
        }
        std::mem::take(&mut rig.nodes[0].log.diagnostics);
        rig.nodes[0].nic.counters().velo_stores
    };
    assert_eq!(velo(&mut rig), 3);
    // The VELO interval accepts only posted requests, so a load goes to the default port.
    assert_eq!(rig.nodes[0].nic.counters().bad_accesses, 0);
    rig.load(0, 0, 0x200_0000, &mut [0; 8]);
    assert_eq!(rig.nodes[0].nic.counters().bad_accesses, 1);
    // Both bounds are exclusive, so each step excludes one page.
    rig.write(0, RegOffset(0x9208 + 24), (BAR0 + 0x200_0000) >> 12);
    assert_eq!(velo(&mut rig), 5);
    rig.write(0, RegOffset(0x9200 + 24), ((BAR0 + 0x400_0000) >> 12) - 1);
    assert_eq!(velo(&mut rig), 6);
    // This interval is not enabled. The next interval leads to a port without a unit.
    rig.write(0, RegOffset(0x9210 + 24), 0x4208);
    assert_eq!(velo(&mut rig), 6);
    rig.write(0, RegOffset(0x9210 + 24), 0x4001 | (0x40 << 5));
    assert_eq!(velo(&mut rig), 6);
    assert_eq!(rig.read(0, RegOffset(0x92B8)), 1, "discarded, posted");
    assert_eq!(rig.nodes[0].nic.counters().events[9], 1);
}

#[test]
fn smfu_window_without_interval_reads_all_ones() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    let mut word = [0; 8];
    rig.load(0, 2, 0x300_0000, &mut word);
    assert_eq!(word, [0xFF; 8]);
    assert_eq!(rig.nodes[0].nic.counters().drops.smfu_no_interval, 1);
    assert_eq!(rig.read(0, RegOffset(0xA010)), 1 << 32);
    // The SNQ program of trigger event 12 has written an entry. The register value in the entry is
    // stale.
    let entries = rig.snq_handle(0);
    assert_eq!(entries.len(), 1);
    rig.write(0, RegOffset(0xA010), 1 << 32);
    assert_eq!(rig.read(0, RegOffset(0xA010)), 0);
}

/// Returns true for registers that do not return the written value, or whose write affects other
/// registers.
fn is_live(offset: u32) -> bool {
    matches!(offset,
        0x8008 | 0x8028 | 0x8080                        // identity, time
        | 0x9200..=0x92BF                               // HTAX
        | 0x5498 | 0x5600 | 0x5608                      // backdoor
        | 0xA000 | 0xA010 | 0xA018
        | 0x1_0000..=0x1_0078                           // SNQ
        | 0xC0_2800..=0xC0_2FFF | 0xE0_2800..=0xE0_2FFF // queue pointers
        | 0x120_0040..=0x120_005F | 0x160_0040..=0x160_005F
        | 0x160_1000 | 0x160_1028 | 0x160_1058)
}

#[test]
fn every_register_has_its_access_rights() {
    let mut rig = Rig::new(1);
    let all: Vec<_> = RegMap::get().registers().to_vec();
    let mut rng = Rng(7);
    for r in &all {
        for k in 0..r.entries {
            let at = RegOffset(r.offset + k * r.stride);
            if is_live(at.0) {
                continue;
            }
            let before = rig.read(0, at);
            let value = rng.next();
            rig.write(0, at, value);
            let after = rig.read(0, at);
            match r.access {
                Access::ReadWrite => assert_eq!(after, value, "{} {at}", r.name),
                Access::ReadOnly => assert_eq!(after, before, "{} {at}", r.name),
                Access::WriteOnly => assert_eq!((before, after), (0, 0), "{} {at}", r.name),
            }
        }
    }
    assert_eq!(all.len(), 2525);
}

#[test]
fn odd_accesses_are_merged_and_reported() {
    let mut rig = Rig::new(1);
    let at = 0x8040;
    rig.store(0, 0, at, &0x1111_2222_3333_4444u64.to_le_bytes());
    rig.store(0, 0, at + 4, &0xAAAA_BBBBu32.to_le_bytes());
    rig.store(0, 0, at + 1, &[0xCC]);
    assert_eq!(rig.read(0, RegOffset(at as u32)), 0xAAAA_BBBB_3333_CC44);
    let mut half = [0; 4];
    rig.load(0, 0, at + 4, &mut half);
    assert_eq!(u32::from_le_bytes(half), 0xAAAA_BBBB);
    // The store crosses two registers.
    rig.store(0, 0, at + 6, &[1, 2, 3, 4]);
    assert_eq!(rig.read(0, RegOffset(at as u32)) >> 48, 0x0201);
    assert_eq!(rig.read(0, RegOffset(at as u32 + 8)), 0x0403);
    // A burst of whole registers is allowed.
    rig.store(0, 0, at, &[7; 16]);
    assert_eq!(rig.read(0, RegOffset(at as u32 + 8)), 0x0707_0707_0707_0707);
    assert_eq!(rig.nodes[0].nic.counters().odd_accesses, 5);
    assert!(!rig.nodes[0].log.diagnostics.is_empty());
    // These registers are missing, read only and write only.
    rig.write(0, RegOffset(0x88), 1);
    assert_eq!(rig.read(0, RegOffset(0x88)), 0);
    rig.write(0, RegOffset(0x8000), 1);
    assert_eq!(rig.read(0, RegOffset(0x8000)), 0x1_0000);
    assert_eq!(rig.read(0, RegOffset(0xC008)), 0);
    assert_eq!(rig.nodes[0].nic.counters().bad_accesses, 4);
}

#[test]
fn identity_and_network_state() {
    let cfg = NicConfig {
        node_id: 0,
        guid: Some(0xABCDEF),
        ..NicConfig::default()
    };
    let mut rig = Rig::with_config(1, cfg);
    assert_eq!(rig.read(0, RegOffset(0x8008)), (256 << 40) | 0xABCDEF);
    probe(&mut rig, 0, SlotSize::B128);
    rig.write(0, RegOffset(0x8008), 0x12_3400_0000);
    assert_eq!(rig.nodes[0].nic.node_id().0, 0x1234);
    // Any change of scratchpad 3 raises TE 28. Writing an equal value does not (G23).
    rig.with(0, |nic, env| nic.reg_poke(0x8050, 1, env));
    rig.with(0, |nic, env| nic.reg_poke(0x8050, 1, env));
    assert_eq!(rig.with(0, |nic, env| nic.reg_peek(0x8050, env)), 1);
    assert_eq!(rig.nodes[0].nic.network_state(), 1);
    assert_eq!(rig.msis(0), 1);
    let entries = rig.snq_handle(0);
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].header.pc(), 28);
    assert_eq!(entries[0].words(1), [1]);
}

#[test]
fn link_status_says_gen3_x16() {
    let mut rig = Rig::new(1);
    assert_eq!(
        rig.read(0, RegOffset(0x4780)),
        3 | (0x11 << 2) | (3 << 24) | (16 << 26)
    );
}

#[test]
fn time_stamp_counter_counts_at_its_frequency() {
    let mut rig = Rig::new(1);
    let tsc = RegOffset(0x8028);
    let start = rig.read(0, tsc);
    rig.nodes[0].ram.now += 1_000_000;
    assert_eq!(rig.read(0, tsc) - start, 100_000);
    rig.write(0, tsc, (1 << 48) - 10);
    rig.nodes[0].ram.now += 200;
    assert_eq!(rig.read(0, tsc), 10, "48 bits");
}

#[test]
fn timer_fires_periodically_or_once() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    let timer = RegOffset(0x8080);
    assert_eq!(rig.tick(0), None);
    rig.write(0, timer, (1 << 48) | 100_000); // 1 ms
    let due = rig.nodes[0].nic.next_deadline().expect("deadline");
    assert_eq!(due, 1_000 + 1_000_000);
    rig.nodes[0].ram.now = due - 1;
    assert_eq!(rig.tick(0), Some(due));
    assert_eq!(rig.msis(0), 0);
    rig.nodes[0].ram.now = due;
    assert_eq!(rig.tick(0), Some(due + 1_000_000));
    assert_eq!(rig.msis(0), 1);
    let e = rig.snq_handle(0);
    assert_eq!((e.len(), e[0].header.pc()), (1, 7));
    assert_eq!(
        e[0].words(1),
        [(1 << 56) | (1 << 48) | 100_000],
        "toggle bit"
    );
    // Ten missed periods raise only one event.
    rig.nodes[0].ram.now += 10_000_000;
    rig.tick(0);
    assert_eq!(rig.snq_handle(0).len(), 1);
    rig.write(0, timer, (1 << 49) | (1 << 48) | 100_000);
    rig.nodes[0].ram.now += 1_000_000;
    assert_eq!(rig.tick(0), None);
    assert_eq!(rig.snq_handle(0).len(), 1);
    // A guest must not load the host by a period of one tick.
    rig.write(0, timer, (1 << 48) | 1);
    let now = rig.nodes[0].ram.now;
    assert_eq!(rig.nodes[0].nic.next_deadline(), Some(now + 10_000));
    rig.write(0, timer, 0);
    assert_eq!(rig.tick(0), None);
}

#[test]
fn resets_clear_what_they_should() {
    for (scope, kind, kept) in [
        (FlrScope::Everything, ResetKind::FunctionLevel, false),
        (FlrScope::KeepNetwork, ResetKind::FunctionLevel, true),
        (FlrScope::KeepNetwork, ResetKind::PowerOn, false),
    ] {
        let mut rig = Rig::with_config(
            1,
            NicConfig {
                flr_scope: scope,
                ..NicConfig::default()
            },
        );
        probe(&mut rig, 0, SlotSize::B128);
        rig.write(0, RegOffset(0x8008), 5 << 24);
        rig.write(0, RegOffset(0x8050), 1);
        rig.write(0, RegOffset(0x40_2008), 77); // a routing table entry
        rig.with(0, |nic, env| nic.reset(kind, env));
        assert_eq!(rig.nodes[0].nic.node_id().0, if kept { 5 } else { 0 });
        assert_eq!(rig.read(0, RegOffset(0x8050)), u64::from(kept));
        assert_eq!(rig.read(0, RegOffset(0x40_2008)), if kept { 77 } else { 0 });
        assert_eq!(rig.read(0, RegOffset(0x1_0068)), 0, "SNQ stopped");
        assert_eq!(rig.read(0, RegOffset(0x9290)), 0, "HTAX back to default");
        assert_ne!(rig.read(0, RegOffset(0x4780)), 0);
        assert_eq!(
            rig.nodes[0].nic.counters().mmio_writes == 0,
            kind == ResetKind::PowerOn
        );
    }
}

#[test]
fn outside_events_reach_the_ring() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    rig.with(0, |nic, env| {
        nic.raise_event(Te::BarrierGlobalInterrupt, env)
    });
    let e = rig.snq_handle(0);
    assert_eq!((e.len(), e[0].header.pc() > 31), (1, true));
}

#[test]
fn network_registers_belong_to_their_owner() {
    use extoll_emulator::nic::NetworkRegs;
    struct Fake(Option<(u32, u64)>);
    impl NetworkRegs for Fake {
        fn read(&mut self, offset: u32) -> Option<u64> {
            (offset == 0x46_0008).then_some(3)
        }
        fn write(&mut self, offset: u32, value: u64) -> bool {
            self.0 = Some((offset, value));
            offset == 0x40_2000
        }
    }
    let mut rig = Rig::new(1);
    rig.nodes[0].nic.set_network_regs(Box::new(Fake(None)));
    assert_eq!(rig.read(0, RegOffset(0x46_0008)), 3);
    rig.write(0, RegOffset(0x40_2000), 9);
    assert_eq!(rig.read(0, RegOffset(0x40_2000)), 0, "taken, so not stored");
    rig.write(0, RegOffset(0x40_2008), 9);
    assert_eq!(rig.read(0, RegOffset(0x40_2008)), 9, "not taken, so stored");
    // Read-only registers must stay read only.
    rig.write(0, RegOffset(0x48_0100), 1);
    assert_eq!(rig.read(0, RegOffset(0x48_0100)), 0);
}
