//! A function to be lent: its configuration registers and its bus-master state.

use super::MS;
use protocol::pci::config::Layout;
use rand::rngs::SmallRng;
use rand::Rng;
use wire::pci::{Bar, Device, LeaseId, Location, Register, BARS};

/// Offset of the MSI capability, which has 64-bit addresses and masks.
pub(super) const MSI: u16 = 0x40;

/// A function to be lent.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) home: usize,
    pub(super) bars: [Option<Bar>; BARS],
    /// Handle given by the current incarnation of its lender.
    pub(super) handle: Option<u32>,
    /// Lease for which the device is bus master, and number of its window at the lender.
    pub(super) master: Option<(LeaseId, u8)>,
    /// Lease whose borrower changed the state of the device since the last reset.
    pub(super) used_by: Option<LeaseId>,
    /// Pause between two accesses in ns.
    pub(super) pause: u64,
    pub(super) works: bool,
    /// True if bus mastering is about to be disabled.
    pub(super) stopping: bool,
    /// Address of the borrower's window for interrupts.
    pub(super) interrupts: u64,
    /// State of MSI: enabled, address, data and masks.
    enabled: bool,
    address: [u32; 2],
    data: u32,
    masks: u32,
}

impl Function {
    pub(super) fn new(home: usize, rng: &mut SmallRng) -> Self {
        let mut bars = [None; BARS];
        for bar in bars.iter_mut().step_by(2).take(rng.random_range(1..=3)) {
            *bar = Some(Bar {
                log2: 14,
                is_64bit: true,
                prefetchable: false,
            });
        }
        Self {
            home,
            bars,
            handle: None,
            master: None,
            used_by: None,
            pause: rng.random_range(MS..20 * MS),
            works: true,
            stopping: false,
            interrupts: 0,
            enabled: false,
            address: [0; 2],
            data: 0,
            masks: 0,
        }
    }

    pub(super) fn device(&self) -> Device {
        Device {
            bars: self.bars,
            location: Location::default(),
            ..Device::default()
        }
    }

    fn dword(&self, at: u16) -> u32 {
        match at {
            0x00 => 0x0010_1b36,
            // The lender disables the pin.
            0x04 => 0x0010_0400 | (u32::from(self.master.is_some()) << 2),
            0x34 => MSI.into(),
            MSI => 0x0180_0005 | (u32::from(self.enabled) << 16),
            0x44 => self.address[0],
            0x48 => self.address[1],
            0x4c => self.data,
            0x50 => self.masks,
            _ => 0,
        }
    }

    pub(super) fn layout(&self) -> Layout {
        Layout::read(|at| self.dword(at)).expect("a layout")
    }

    pub(super) fn read(&self, register: Register) -> u32 {
        (self.dword(register.dword()) >> register.shift()) & register.ones()
    }

    pub(super) fn reset(&mut self) {
        self.master = None;
        self.used_by = None;
        self.enabled = false;
        self.address = [0; 2];
        self.data = 0;
        self.masks = 0;
    }

    /// Writes a register of MSI. Returns false if it is another register.
    pub(super) fn set_msi(&mut self, offset: u16, value: u32) -> bool {
        match offset {
            0x42 => self.enabled = value & 1 != 0,
            0x44 => self.address[0] = value,
            0x48 => self.address[1] = value,
            0x4c => self.data = value,
            0x50 => self.masks = value,
            _ => return false,
        }
        true
    }

    /// Returns the address that it writes to raise an interrupt.
    pub(super) fn message(&self) -> Option<u64> {
        let [low, high] = self.address.map(u64::from);
        self.enabled.then_some(low | (high << 32))
    }
}
