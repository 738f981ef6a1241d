//! Test of a drive behind another NIC. A command, its data and its interrupt cross the fabric.
//! `tests/nvme` contains the tests of other behaviour of the drive.

use super::borrow::*;
use extoll_emulator::endpoint::nvme::{command, regs};
use extoll_emulator::endpoint::{DeviceConfig, Disk, Nvme};
use extoll_emulator::nic::NicConfig;

#[test]
fn a_drive_is_borrowed() {
    let drive = Nvme::new(&DeviceConfig::default(), 7, Disk::new(1));
    let mut b = Borrow::with(NicConfig::default(), Box::new(drive));
    assert_eq!(
        (b.cfg_read(0), b.cfg_read(8) >> 8),
        (0x7E58_1CAD, 0x01_0802)
    );
    b.open();
    b.enable_msi();
    b.set_reg(regs::AQA, 0x7_0007);
    for (at, home) in [(regs::ASQ, HOME), (regs::ACQ, HOME + 0x1000)] {
        b.set_reg(at, home as u32);
        b.set_reg(at + 4, (home >> 32) as u32);
    }
    b.set_reg(regs::CC, regs::CC_ENTRIES | regs::CC_ENABLE);
    assert_eq!(b.reg(regs::CSTS), regs::CSTS_READY);
    // This command must succeed.
    let ram = &mut b.rig.nodes[0].ram;
    ram.put(BUFFER, &[command::admin::IDENTIFY, 0, 0x34, 0x12]);
    ram.set_qw(BUFFER + 24, HOME + 0x2000);
    ram.put(BUFFER + 40, &[1]);
    b.set_reg(regs::tail(0), 1);
    let ram = &b.rig.nodes[0].ram;
    assert_eq!(ram.get(BUFFER + 0x2000, 4), [0xAD, 0x1C, 0xAD, 0x1C]);
    // Completion entry with submission queue head, command ID and phase.
    assert_eq!(ram.qw(BUFFER + 0x1008), 0x0001_1234_0000_0001);
    assert_eq!(b.rig.msis(0), 1);
    // This command has a data page at an unmapped address.
    let ram = &mut b.rig.nodes[0].ram;
    ram.put(BUFFER + 64, &[command::admin::IDENTIFY]);
    ram.set_qw(BUFFER + 64 + 24, 0x1000);
    ram.put(BUFFER + 64 + 40, &[1]);
    b.set_reg(regs::tail(0), 2);
    assert_eq!((b.rig.msis(0), b.reg(regs::CSTS)), (1, regs::CSTS_READY));
    // This time, a queue has an unmapped address.
    b.set_reg(regs::CC, 0);
    b.set_reg(regs::ASQ + 4, 0);
    b.set_reg(regs::CC, regs::CC_ENTRIES | regs::CC_ENABLE);
    b.set_reg(regs::tail(0), 1);
    assert_eq!(b.reg(regs::CSTS) & regs::CSTS_FATAL, regs::CSTS_FATAL);
}
