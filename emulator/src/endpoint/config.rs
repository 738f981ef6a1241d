//! Configuration space of the built-in devices. It has one 64-bit BAR and the capabilities PM, MSI,
//! MSI-X, and PCIe with function-level reset.

use crate::pci::Space;
use std::cell::Cell;

const PM: usize = 0x40;
const MSI: usize = 0x50;
const EXP: usize = 0x70;
const MSIX: usize = 0xB0;

/// Effects of a configuration write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// True after a function-level reset or a return from D3hot to D0.
    pub reset: bool,
    /// True if interrupts may have been unmasked.
    pub interrupts: bool,
}

/// Properties that differ between devices.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// Vendor ID, which is also the vendor ID of the subsystem.
    pub vendor: u16,
    /// Device ID, which is also the device ID of the subsystem.
    pub device: u16,
    /// Class, subclass and programming interface.
    pub class: u32,
    /// Number of MSI and of MSI-X vectors: a power of two, up to 32.
    pub vectors: u8,
    /// Bits of BAR0 that software can write.
    pub bar: u64,
    /// Offset of the MSI-X table in BAR0.
    pub table: u32,
    /// Offset of the MSI-X pending bits in BAR0.
    pub pending: u32,
    /// True if reads of all registers except the first return random values.
    pub garbage: bool,
}

/// Configuration space of one device.
pub(super) struct Config {
    shape: Shape,
    space: Space,
    noise: Cell<u32>,
}

impl Config {
    pub fn new(shape: Shape) -> Self {
        let mut c = Self {
            shape,
            space: Space::default(),
            noise: Cell::new(1),
        };
        c.reset();
        c
    }

    pub fn reset(&mut self) {
        let (s, p) = (&self.shape, &mut self.space);
        p.clear();
        p.put(0x00, &s.vendor.to_le_bytes(), &[]);
        p.put(0x02, &s.device.to_le_bytes(), &[]);
        // Command bits that software can write: memory space, bus master, parity, SERR, INTx
        // disable. Status: capability list.
        p.put(0x04, &[0, 0, 0x10, 0], &[0x46, 0x05]);
        // The revision ID is 1.
        p.put32(0x08, (s.class << 8) | 1, 0);
        p.put(0x0C, &[0, 0], &[0xFF]);
        // BAR0: 64-bit, not prefetchable.
        p.put(0x10, &4u64.to_le_bytes(), &s.bar.to_le_bytes());
        p.put(0x2C, &s.vendor.to_le_bytes(), &[]);
        p.put(0x2E, &s.device.to_le_bytes(), &[]);
        p.put(0x34, &[PM as u8], &[]);
        p.put(0x3C, &[0], &[0xFF]);
        p.put(
            PM,
            &[0x01, MSI as u8, 0x03, 0x00, 0, 0],
            &[0, 0, 0, 0, 0x03, 0],
        );
        // MSI: 64-bit addresses, per-vector masking.
        let control = 0x0180 | ((s.vectors.trailing_zeros() as u16) << 1);
        p.put(MSI, &[0x05, EXP as u8], &[]);
        p.put(MSI + 2, &control.to_le_bytes(), &[0x71, 0]);
        p.put32(MSI + 4, 0, 0xFFFF_FFFC);
        p.put32(MSI + 8, 0, u32::MAX);
        p.put(MSI + 0xC, &[0, 0], &[0xFF, 0xFF]);
        p.put32(
            MSI + 0x10,
            0,
            (1u64 << s.vectors).wrapping_sub(1).min(u32::MAX.into()) as u32,
        );
        // PCIe capability version 2, endpoint. MPS 256 bytes, function-level reset, MRRS 512 bytes.
        p.put(EXP, &[0x10, MSIX as u8, 0x02, 0x00], &[]);
        p.put32(EXP + 4, 0x1000_8001, 0);
        p.put(EXP + 8, &[0x10, 0x28, 0, 0], &[0xFF, 0x7F, 0, 0]);
        p.put32(EXP + 0xC, 0x0000_0103, 0);
        p.put(EXP + 0x10, &[0, 0, 0x03, 0x11], &[0xC3, 0, 0, 0]);
        p.put(EXP + 0x28, &[0, 0], &[0x1F, 0]);
        p.put32(EXP + 0x2C, 0x0000_000E, 0);
        p.put(EXP + 0x30, &[0x03, 0, 0, 0], &[0x0F, 0, 0, 0]);
        // MSI-X: BAR0 contains table and pending bits.
        p.put(MSIX, &[0x11, 0], &[]);
        p.put(
            MSIX + 2,
            &(u16::from(s.vectors) - 1).to_le_bytes(),
            &[0, 0xC0],
        );
        p.put32(MSIX + 4, s.table, 0);
        p.put32(MSIX + 8, s.pending, 0);
    }

    /// Reads one dword.
    pub fn read(&self, register: u16) -> [u8; 4] {
        let mut data = [0; 4];
        self.space.read(register.into(), &mut data);
        // The vendor and device IDs are correct, so that software continues to read.
        if self.shape.garbage && register != 0 {
            let noise = self.noise.get();
            let noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            self.noise.set(noise);
            return noise.rotate_left(13).to_le_bytes();
        }
        data
    }

    /// Writes one dword with byte enables.
    pub fn write(&mut self, register: u16, enables: u8, data: [u8; 4]) -> Effects {
        let asleep = self.power_state() == 3;
        let mut effects = Effects::default();
        for (i, &v) in data
            .iter()
            .enumerate()
            .filter(|(i, _)| enables & (1 << i) != 0)
        {
            let at = usize::from(register) + i;
            // Bit 15 of Device Control starts a function-level reset. It reads as zero.
            effects.reset |= at == EXP + 9 && v & 0x80 != 0;
            self.space.write_byte(at, v);
        }
        effects.reset |= asleep && self.power_state() == 0;
        let at = usize::from(register);
        effects.interrupts = at == 4 || (MSI..MSI + 0x18).contains(&at) || at == MSIX;
        effects
    }

    fn command(&self) -> u16 {
        self.space.u16(4)
    }

    fn power_state(&self) -> u8 {
        self.space.u8(PM + 4) & 3
    }

    /// Returns true if the device may send requests.
    pub fn bus_master(&self) -> bool {
        self.command() & 4 != 0 && self.power_state() == 0
    }

    /// Returns the address of BAR0, or `None` while memory decoding is off.
    pub fn bar(&self) -> Option<u64> {
        (self.command() & 2 != 0 && self.power_state() == 0).then_some(self.space.u64(0x10) & !0xF)
    }

    /// Returns the maximum payload size and the maximum read request size that software has set, in
    /// bytes.
    pub fn payload_and_read_request(&self) -> (u32, u32) {
        let c = self.space.u16(EXP + 8);
        (128 << ((c >> 5) & 7).min(1), 128 << ((c >> 12) & 7).min(2))
    }

    /// Returns the MSI-X enable bit and the bit that masks all vectors of the function.
    pub fn msix(&self) -> (bool, bool) {
        let control = self.space.u16(MSIX + 2);
        (control & 0x8000 != 0, control & 0x4000 != 0)
    }

    /// Returns address and data of the message of an MSI vector, or `None` while MSI is off.
    /// Vectors that software has not enabled use the messages of enabled vectors.
    pub fn msi(&self, vector: u8) -> Option<(u64, u16)> {
        let control = self.space.u16(MSI + 2);
        if control & 1 == 0 {
            return None;
        }
        let enabled = 1u16 << ((control >> 4) & 7).min(5);
        let data = self.space.u16(MSI + 0xC);
        let low = u16::from(vector) % enabled;
        Some((self.space.u64(MSI + 4), data & !(enabled - 1) | low))
    }

    /// Returns the mask bit of an MSI vector.
    pub fn msi_masked(&self, vector: u8) -> bool {
        self.space.u8(MSI + 0x10 + usize::from(vector) / 8) & (1 << (vector % 8)) != 0
    }

    /// Sets the pending bits of all MSI vectors.
    pub fn set_msi_pending(&mut self, pending: u32) {
        self.space.put32(MSI + 0x14, pending, 0);
    }
}
