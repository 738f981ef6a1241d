//! Tests with guests that behave arbitrarily. The NIC must not panic, hang or use unlimited memory,
//! and must stay usable.

use super::rig::*;
use extoll_emulator::nic::{FullRule, HoldScope, NicConfig, RegMap, ResetKind};
use wire::ids::RegOffset;
use wire::velo::SlotSize;

/// Returns a random register offset, in most cases that of an existing register.
fn offset(rng: &mut Rng) -> u64 {
    let regs = RegMap::get().registers();
    let r = &regs[rng.below(regs.len() as u64) as usize];
    match rng.below(8) {
        0 => rng.below(0x0700_0000),
        1 => {
            // Registers of units that have side effects.
            let bases = [
                0x8000, 0x9200, 0xC000, 0x1_0000, 0xC0_0000, 0xE0_0000, 0x100_0000, 0x120_0000,
                0x140_0000, 0x160_0000, 0x5000, 0xA000,
            ];
            bases[rng.below(12) as usize] + rng.below(0x3000)
        }
        _ => {
            u64::from(r.offset + rng.below(r.entries.into()) as u32 * r.stride)
                + [0, 0, 0, 0, 4, 1][rng.below(6) as usize]
        }
    }
}

fn value(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << rng.below(64),
        3 => rng.below(RAM_BYTES),
        4 => rng.next() & rng.next(),
        _ => (rng.next() << 11) | rng.below(2048),
    }
}

const RAM_BYTES: u64 = 48 << 20;

/// Executes one random action of guest `i`.
fn act(rig: &mut Rig, i: usize, rng: &mut Rng) {
    let sizes = [1, 2, 3, 4, 5, 7, 8, 8, 8, 8, 16, 64, 200, 5000];
    let len = sizes[rng.below(sizes.len() as u64) as usize];
    match rng.below(20) {
        0..=5 => {
            let at = offset(rng);
            let data: Vec<u8> = (0..len)
                .flat_map(|_| value(rng).to_le_bytes())
                .take(len)
                .collect();
            rig.store(i, 0, at, &data);
        }
        6..=8 => {
            let at = offset(rng);
            rig.load(i, 0, at, &mut vec![0; len]);
        }
        // These actions store VELO messages and RMA descriptors that are almost valid, on few
        // VPIDs.
        9..=12 => {
            let d = (rng.below(130) << 48)
                | (rng.below(8) << 32)
                | (rng.below(4) << 16)
                | rng.below(3)
                | ((rng.below(8) / 7) << 31);
            let data = pattern(rng.next(), rng.below(125) as usize);
            rig.velo_send(i, rng.below(4) as u8, d, &data);
        }
        13..=15 => {
            let size = [0, 7, 495, 496, 5000, 70_000][rng.below(6) as usize];
            let modifiers = if rng.below(2) == 0 { 0 } else { rng.below(16) };
            let fields = [
                3,
                rng.below(16) << 2,
                rng.below(4) << 8,
                rng.below(3) << 16,
                rng.below(8) << 32,
                modifiers << 35,
                size << 40,
            ];
            let word0 = fields.iter().fold(0, |word, field| word | field);
            let options = wire::rma::PageOptions::from_index(rng.below(32) as u8);
            let words = [word0, value(rng), value(rng)];
            rig.rma_raw(i, rng.below(4) as u8, options, words);
        }
        16 => {
            let bar = rng.below(8) as u8;
            let at = value(rng);
            rig.store(i, bar, at, &vec![rng.next() as u8; len]);
            rig.load(i, bar, at, &mut vec![0; len]);
        }
        17 => {
            rig.nodes[i].ram.now = rig.nodes[i]
                .ram
                .now
                .saturating_add(rng.below(1_000_000_000));
            rig.tick(i);
        }
        18 => rig.nodes[i].nic.set_bus_master(rng.below(8) != 0),
        _ => {
            let at = offset(rng);
            let v = value(rng);
            rig.with(i, |nic, env| {
                nic.reg_poke(at as u32, v, env);
                nic.reg_peek(at as u32, env)
            });
        }
    }
}

fn config(seed: u64) -> NicConfig {
    let mut cfg = NicConfig {
        hold_limit_bytes: 100_000,
        tx_queue_limit: 50,
        ..NicConfig::default()
    };
    if seed % 2 == 1 {
        cfg.full_rule = FullRule::FlagOnEqual;
        cfg.hold_scope = HoldScope::Unit;
        cfg.hold_time_ns = Some(1_000_000);
        cfg.snq_stale_words = true;
        cfg.faults.dma_fault_every = Some(50);
        cfg.faults.wcbuf_retry_every = Some(5);
        cfg.faults.wcbuf_retry_waiting = Some(2);
    }
    cfg
}

#[test]
fn random_guests_on_a_working_fabric() {
    for seed in 1..=12 {
        let mut rng = Rng(seed * 0x1234_5678_9ABC);
        let mut rig = Rig::with_config(3, config(seed));
        rig.probe_all(SlotSize::B64);
        for i in 0..3 {
            for vpid in 0..4 {
                rig.open_velo(i, vpid, SlotSize::B64, 2, 8);
                rig.open_rma(i, vpid, 3, 16);
            }
        }
        for step in 0..6000u64 {
            rig.credit = if step % 100 < 80 {
                u64::MAX
            } else {
                rng.below(3) * 100
            };
            let i = rng.below(3) as usize;
            act(&mut rig, i, &mut rng);
            assert!(rig.wire.is_empty());
        }
        still_works(&mut rig);
    }
}

#[test]
fn random_guests_on_a_bare_chip() {
    for seed in 1..=6 {
        let mut rng = Rng(seed * 0xABCD_EF01);
        let mut rig = Rig::with_config(2, config(seed));
        for _ in 0..15_000 {
            let i = rng.below(2) as usize;
            act(&mut rig, i, &mut rng);
        }
        still_works(&mut rig);
    }
}

/// Checks that a reset restores the initial state.
fn still_works(rig: &mut Rig) {
    rig.credit = u64::MAX;
    for i in 0..rig.nodes.len() {
        rig.with(i, |nic, env| nic.set_faults(Default::default(), env));
        rig.with(i, |nic, env| nic.reset(ResetKind::FunctionLevel, env));
        rig.nodes[i].nic.set_bus_master(true);
    }
    rig.probe_all(SlotSize::B128);
    let mut q = rig.open_velo(1, 3, SlotSize::B128, 2, 16);
    rig.write(0, RegOffset(0x8050), 1);
    rig.velo_send(0, 2, (8 << 48) | (1 << 34) | (3 << 16) | 1, &[5; 8]);
    assert_eq!(rig.velo_take(&mut q).map(|m| m.1), Some(vec![5; 8]));
    assert_eq!(super::velo::vectors(&rig.snq_handle(1)), [3]);
}

#[test]
fn floods_are_bounded() {
    // The requests come from a node to which responses are blocked. The messages go to a queue that
    // is not read.
    let cfg = NicConfig {
        hold_limit_bytes: 1 << 20,
        ..NicConfig::default()
    };
    let mut rig = Rig::with_config(2, cfg);
    rig.probe_all(SlotSize::B128);
    rig.open_velo(1, 3, SlotSize::B128, 1, 2);
    rig.open_rma(0, 5, 1, 256);
    rig.open_rma(1, 5, 1, 256);
    for _ in 0..10_000 {
        rig.velo_send(0, 2, (8 << 48) | (3 << 16) | 1, &[5; 8]);
    }
    let c = rig.nodes[1].nic.counters();
    assert_eq!(c.velo.holding, (1 << 20) / 256);
    let before = c.drops.hold_limit;
    assert_eq!(before, 10_000 - 1 - (1 << 20) / 256);
    rig.hold_wire = true;
    for _ in 0..10_000 {
        rig.rma_raw(
            0,
            5,
            Default::default(),
            [3 | (5 << 8) | (1 << 16) | (7 << 40), 0, 0x20_0000],
        );
    }
    rig.credit = 0;
    rig.pump();
    let dropped = rig.nodes[1].nic.counters().drops.hold_limit - before;
    assert!((5_000..10_000).contains(&dropped), "{dropped}");
    rig.credit = u64::MAX;
    rig.hold_wire = false;
    rig.tick(1);
    assert!(!rig.nodes[1].nic.tx_waiting());
}

#[test]
fn diagnostics_are_rate_limited() {
    let mut rig = Rig::new(1);
    for _ in 0..10_000 {
        rig.read(0, RegOffset(0x88));
    }
    assert_eq!(rig.nodes[0].nic.counters().diagnostics, 10_000);
    assert!(rig.nodes[0].log.diagnostics.len() < 100);
    rig.nodes[0].ram.now += 1_000_000_000;
    let before = rig.nodes[0].log.diagnostics.len();
    rig.read(0, RegOffset(0x88));
    assert_eq!(rig.nodes[0].log.diagnostics.len(), before + 1);
}
