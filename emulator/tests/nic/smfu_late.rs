//! Tests of assumptions that drivers must not make about the SMFU: stores to the window take time,
//! and 0 may be an address (G18, G35).

use super::borrow::*;
use super::rig::*;
use extoll_emulator::endpoint::{DeviceConfig, TestDevice};
use extoll_emulator::nic::{BackdoorInfoRead, NicConfig, ZeroBase};
use wire::regs::pcie as p;
use wire::regs::smfu as r;
use wire::tlp::backdoor::{self, Config, Info};
use wire::tlp::{Bdf, CfgType, Status};
use wire::velo::SlotSize;

const TARGET: u64 = 0x80_0000;
const LATE_NS: u64 = 1_000;

fn pair(cfg: NicConfig) -> Rig {
    let mut rig = Rig::with_config(2, cfg);
    rig.probe_all(SlotSize::B128);
    rig.smfu_interval(0, 1, 1);
    rig.write(1, r::vpid_t_start_addr(1), TARGET);
    rig
}

fn late() -> Rig {
    pair(NicConfig {
        smfu_store_ns: LATE_NS,
        ..NicConfig::default()
    })
}

fn pass(rig: &mut Rig, ns: u64) {
    rig.nodes[0].ram.now += ns;
    rig.tick(0);
}

/// A register write may pass earlier stores to the window. The target of a store depends on the
/// interval when the store arrives at the SMFU.
#[test]
fn register_writes_pass_stores_to_the_window() {
    let mut rig = late();
    rig.store(0, 2, window(1), &[5; 8]);
    assert_eq!(rig.nodes[1].ram.get(TARGET, 8), [0; 8]);
    // A register read does not push the stores.
    rig.read(0, r::ADDR_MASK);
    rig.write(0, r::interval_control(1), 0);
    pass(&mut rig, LATE_NS);
    assert_eq!(rig.nodes[1].ram.get(TARGET, 8), [0; 8], "the store is lost");
    assert_eq!(rig.nodes[0].nic.counters().drops.smfu_no_interval, 1);
    // If the interval does not change, the store arrives.
    let mut rig = late();
    rig.store(0, 2, window(1), &[5; 8]);
    pass(&mut rig, LATE_NS - 1);
    assert_eq!(rig.nodes[1].ram.get(TARGET, 8), [0; 8]);
    pass(&mut rig, 1);
    assert_eq!(rig.nodes[1].ram.get(TARGET, 8), [5; 8]);
}

/// A load through an interval waits for the earlier stores. If the interval has no target by then,
/// the load fails normally.
#[test]
fn loads_wait_behind_stores_to_the_window() {
    let mut rig = late();
    rig.store(0, 2, window(1), &[5; 8]);
    let mut data = [0; 8];
    assert!(!rig.load(0, 2, window(1), &mut data));
    assert!(!rig.nodes[0].nic.finish_load(&mut data));
    pass(&mut rig, LATE_NS);
    assert!(rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!(data, [5; 8]);
    rig.write(0, r::interval_control(1), 0);
    assert_eq!(rig.nodes[0].nic.counters().drops.smfu_no_interval, 0);
    rig.store(0, 2, window(1), &[6; 8]);
    assert!(!rig.load(0, 2, window(1), &mut data));
    pass(&mut rig, LATE_NS);
    assert!(rig.nodes[0].nic.finish_load(&mut data));
    assert_eq!(data, [0xFF; 8]);
    assert_eq!(rig.nodes[0].nic.counters().drops.smfu_no_interval, 2);
}

#[test]
fn base_zero_is_the_default_or_an_address() {
    for (zero, at) in [(ZeroBase::Default, 0x40_0000), (ZeroBase::Address, 0)] {
        let mut rig = pair(NicConfig {
            smfu_zero_base: zero,
            ..NicConfig::default()
        });
        rig.write(1, r::T_START_ADDR_DEFAULT, 0x40_0000);
        rig.write(1, r::vpid_t_start_addr(1), 0);
        rig.store(0, 2, window(1) + 0x100, &[7; 8]);
        assert_eq!(rig.nodes[1].ram.get(at + 0x100, 8), [7; 8], "{zero:?}");
    }
}

fn read(b: &mut Borrow, config: Config) -> (Status, u32) {
    for (register, value) in backdoor::send(&config.read(), &[]).unwrap() {
        b.rig.remote_write(0, register, value);
    }
    fetch(b, config)
}

fn fetch(b: &mut Borrow, config: Config) -> (Status, u32) {
    let info = b.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_INFO);
    let Info::Packet(n) = backdoor::info(info) else {
        panic!("info {info:#x}");
    };
    let words: Vec<u64> = (0..n)
        .map(|_| b.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_DATA))
        .collect();
    let completion = backdoor::completion(&words).unwrap();
    (completion.status, config.value(completion.value))
}

/// A driver's sequence has an equal result with both behaviours of the FIFO's registers, even after
/// an aborted sequence.
#[test]
fn a_backdoor_sequence_works_with_either_fifo() {
    for how in [BackdoorInfoRead::Pop, BackdoorInfoRead::Peek] {
        let cfg = NicConfig {
            backdoor_info_read: how,
            ..NicConfig::default()
        };
        let device = TestDevice::new(DeviceConfig::default());
        let mut b = Borrow::with(cfg, Box::new(device));
        let config =
            |register, bytes| Config::new(DEVICE, CfgType::Type0, register, bytes).unwrap();
        assert_eq!(read(&mut b, config(0, 4)), (Status::Success, 0x7E57_1CAD));
        assert_eq!(read(&mut b, config(2, 2)), (Status::Success, 0x7E57));
        assert_eq!(read(&mut b, config(1, 1)), (Status::Success, 0x1C));
        let (tlp, payload) = config(0x3D, 1).write(0x1_23);
        for (register, value) in backdoor::send(&tlp, &payload).unwrap() {
            b.rig.remote_write(0, register, value);
        }
        assert_eq!(fetch(&mut b, config(0x3D, 1)).0, Status::Success);
        let nobody = Config::new(Bdf::new(1, 0, 1), CfgType::Type0, 0, 4).unwrap();
        assert_eq!(read(&mut b, nobody), (Status::Unsupported, u32::MAX));
        assert_eq!(
            backdoor::info(b.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_INFO)),
            Info::Empty
        );
        // The sequence is aborted after one quadword. Then the FIFO is emptied as the driver does.
        for (register, value) in backdoor::send(&config(0, 4).read(), &[]).unwrap() {
            b.rig.remote_write(0, register, value);
        }
        b.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_INFO);
        b.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_DATA);
        let mut rounds = 0;
        loop {
            rounds += 1;
            for _ in 0..wire::tlp::words::MAX {
                b.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_DATA);
            }
            let info = b.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_INFO);
            if backdoor::info(info) == Info::Empty {
                break;
            }
        }
        assert!(rounds <= 2, "{how:?}: {rounds}");
        assert_eq!(read(&mut b, config(0, 4)), (Status::Success, 0x7E57_1CAD));
    }
}

/// A burst of stores stops the host as soon as the limit is exceeded. All stores arrive.
#[test]
fn a_burst_on_its_way_stops_the_host_and_is_complete() {
    let mut rig = pair(NicConfig {
        smfu_store_ns: LATE_NS,
        tx_queue_limit: 8,
        ..NicConfig::default()
    });
    let store = |rig: &mut Rig, i: u64| rig.store(0, 2, window(1) + 8 * i, &[i as u8 + 1; 8]);
    for i in 0..8 {
        assert!(!rig.nodes[0].nic.host_stalled());
        store(&mut rig, i);
    }
    // Stores that the host has already sent are still accepted.
    (8..207).for_each(|i| store(&mut rig, i));
    assert!(rig.nodes[0].nic.host_stalled());
    // The network accepts no packets when the stores become due.
    rig.credit = 0;
    pass(&mut rig, LATE_NS);
    assert!(rig.nodes[0].nic.host_stalled());
    rig.credit = u64::MAX;
    rig.tick(0);
    assert!(!rig.nodes[0].nic.host_stalled());
    for i in 0..207u64 {
        assert_eq!(rig.nodes[1].ram.get(TARGET + 8 * i, 8), [i as u8 + 1; 8]);
    }
    assert_eq!(rig.nodes[0].nic.counters().drops.smfu_congested, 0);
}
