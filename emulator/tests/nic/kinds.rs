//! Tests of broken and malicious devices. Each device behaves as its kind describes. The root port
//! discards packets of a device to unmapped addresses.

use super::borrow::*;
use super::rig::*;
use extoll_emulator::endpoint::{regs as dev, DeviceConfig, DeviceKind, TestDevice};
use extoll_emulator::nic::NicConfig;
use wire::regs::htax::{DiscardedCounter, DISCARDED_COUNTER};
use wire::tlp::{Bdf, CfgType, Kind};

fn borrow(kind: DeviceKind) -> Borrow {
    let cfg = DeviceConfig {
        kind,
        ..DeviceConfig::default()
    };
    Borrow::with(NicConfig::default(), Box::new(TestDevice::new(cfg)))
}

#[test]
fn what_goes_astray_is_discarded() {
    let mut b = borrow(DeviceKind::Astray);
    b.open();
    b.enable_msi();
    let want = pattern(3, 200_000);
    b.rig.nodes[0].ram.put(BUFFER, &want);
    let around = b.rig.nodes[0].ram.get(0, 4096).to_vec();
    let transfers = 3u16;
    for n in 0..transfers {
        // The transfer needs more reads than there are tags.
        assert_eq!(b.dma(HOME, 0, 200_000, false), 2, "{n}");
    }
    let told = DiscardedCounter(b.rig.remote_read(0, DISCARDED_COUNTER));
    assert_eq!(
        (told.posted(), told.nonposted()),
        (7 * transfers, 7 * transfers)
    );
    assert_eq!(b.rig.nodes[0].ram.get(0, 4096), around);
    // Each transfer sends its own interrupt. The stray writes to 0xFD… send no interrupt.
    assert_eq!(b.rig.msis(0), u32::from(transfers));
}

#[test]
fn a_storm_is_many_interrupts() {
    let mut b = borrow(DeviceKind::Storm);
    b.open();
    b.enable_msi();
    b.set_reg(dev::INT_SET, 4);
    assert!(b.rig.msis(0) > 1000);
    assert_eq!(b.dma(HOME, 0, 64, false), 2, "transfers still work");
}

#[test]
fn garbage_is_never_the_same() {
    let mut b = borrow(DeviceKind::Garbage);
    assert_eq!(b.cfg_read(0), 0x7E57_1CAD);
    let read: std::collections::BTreeSet<u32> = (0..20).map(|_| b.cfg_read(0x34)).collect();
    assert!(read.len() > 15, "{read:x?}");
}

#[test]
fn one_that_is_mute_was_not_before_its_first_transfer() {
    let mut b = borrow(DeviceKind::Mute);
    b.open();
    assert_eq!(b.cfg_read(0), 0x7E57_1CAD);
    assert_eq!(b.dma(HOME, 0, 64, false), 2);
    let id = Kind::config(false, CfgType::Type0, (Bdf(0), 0), DEVICE, 0, 0xF);
    b.inject(id.into(), &[]);
    assert!(b.fetch().is_none());
    assert_eq!(b.dma(HOME, 0, 64, false), 2, "the transfer works");
}

#[test]
fn bars_are_absurd() {
    for (kind, want) in [
        (DeviceKind::Plain, 0xFFFF_FFFF_FFF0_0004u64),
        (DeviceKind::Huge, 0xFFFF_E000_0000_0004),
        (DeviceKind::Gap, 0xFFFF_FFFF_BFF0_0004),
    ] {
        let mut b = borrow(kind);
        b.cfg_write(0x10, u32::MAX);
        b.cfg_write(0x14, u32::MAX);
        let size = (u64::from(b.cfg_read(0x14)) << 32) | u64::from(b.cfg_read(0x10));
        assert_eq!(size, want, "{kind:?}");
    }
}
