//! PCI configuration space of a NIC (G3), with variants for negative tests.
//!
//! QEMU keeps its own copy of BARs and most capability bits, and forwards every configuration
//! write. The model tracks only the state that the device needs: BAR addresses, bus mastering, MSI
//! enable, power state and function-level reset.

mod space;

pub use space::{Space, CONFIG_SIZE};

pub use extoll_emulator_api::pci::PciConfig;

const PM: usize = 0x40;
const MSI: usize = 0x50;
const EXP: usize = 0x70;
/// Offset of base address registers 0 to 3, which form two registers of 64 bits.
const BARS: u64 = 0x10;

/// Effects of a configuration write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effects {
    /// True after a function-level reset, or after a return from D3hot to D0, which loses the
    /// function's state. The caller must reset the NIC.
    pub reset: bool,
}

/// Configuration space of one NIC.
#[derive(Clone)]
pub struct ConfigSpace {
    shape: PciConfig,
    space: Space,
}

impl ConfigSpace {
    /// Returns the space in its power-on state.
    pub fn new(shape: PciConfig) -> Self {
        let mut c = Self {
            shape,
            space: Space::default(),
        };
        c.fill();
        c
    }

    /// Restores the power-on state. Identity and shape stay.
    pub fn reset(&mut self) {
        self.space.clear();
        self.fill();
    }

    /// Performs a function-level reset. The base addresses stay: QEMU shows its own copy to the
    /// guest, so the guest does not restore them. For a passed-through device, the kernel's VFIO
    /// driver would restore them.
    pub fn function_reset(&mut self) {
        let mut bars = [0; 16];
        self.read(BARS, &mut bars);
        self.reset();
        self.write(BARS, &bars);
    }

    /// Returns identity and shape.
    pub fn shape(&self) -> &PciConfig {
        &self.shape
    }

    /// Changes identity and shape, and restores the power-on state. QEMU reads both only when it
    /// starts.
    pub fn set_shape(&mut self, shape: PciConfig) {
        self.shape = shape;
        self.reset();
    }

    fn fill(&mut self) {
        let (s, p) = (&self.shape, &mut self.space);
        p.put(0x00, &s.vendor.to_le_bytes(), &[]);
        p.put(0x02, &s.device.to_le_bytes(), &[]);
        // Command bits that software can write: memory space, bus master, parity, SERR, INTx
        // disable.
        p.put(0x04, &[0, 0], &[0x46, 0x05]);
        // Status: the device has a capability list.
        p.put(0x06, &[0x10, 0], &[]);
        // Class 0x028000: network controller, other.
        p.put(0x08, &[s.revision, 0x00, 0x80, 0x02], &[]);
        p.put(0x0c, &[0, 0], &[0xff, 0xff]);
        for (at, size) in [(0x10, s.bar0_size), (0x18, s.bar2_size)] {
            // BAR type: 64-bit, prefetchable.
            p.put(at, &0xcu64.to_le_bytes(), &(!(size - 1)).to_le_bytes());
        }
        p.put(0x2c, &s.subsystem_vendor.to_le_bytes(), &[]);
        p.put(0x2e, &s.subsystem.to_le_bytes(), &[]);
        p.put(0x34, &[PM as u8], &[]);
        p.put(0x3c, &[0], &[0xff]);
        // PM 1.2 without soft-reset protection, so a return from D3hot to D0 resets the function.
        p.put(
            PM,
            &[0x01, if s.msi { MSI } else { EXP } as u8, 0x03, 0x00, 0, 0],
            &[0, 0, 0, 0, 0x03, 0],
        );
        if s.msi {
            // MSI with 64-bit addresses, without per-vector masking.
            let control = 0x0080 | ((s.msi_vectors.trailing_zeros() as u16) << 1);
            p.put(MSI, &[0x05, EXP as u8], &[]);
            p.put(MSI + 2, &control.to_le_bytes(), &[0x71, 0]);
            p.put(
                MSI + 4,
                &[0; 10],
                &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            );
        }
        // PCIe capability version 2, endpoint.
        p.put(EXP, &[0x10, 0x00, 0x02, 0x00], &[]);
        // Device Capabilities: MPS 256 bytes, role-based errors, function-level reset. Device
        // Control: relaxed ordering, no snoop, and MRRS 512 bytes at reset.
        p.put32(EXP + 4, 0x1000_8001, 0);
        p.put(EXP + 8, &[0x10, 0x28, 0, 0], &[0xff, 0x7f, 0, 0]);
        // Link Capabilities: Gen3 x16, port 0. Link Control: ASPM and common clock.
        p.put32(EXP + 0xc, 0x0000_0103, 0);
        p.put(EXP + 0x10, &[0, 0, 0x03, 0x11], &[0xc3, 0, 0, 0]);
        // Device Capabilities 2: no ranges of completion timeouts. Link Capabilities 2: 2.5, 5 and
        // 8 GT/s.
        p.put(EXP + 0x28, &[0, 0], &[0x1f, 0]);
        p.put32(EXP + 0x2c, 0x0000_000e, 0);
        p.put(EXP + 0x30, &[0x03, 0, 0, 0], &[0x0f, 0, 0, 0]);
    }

    /// Reads bytes. Bytes behind the end of the space are all ones.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        self.space.read(offset, data);
    }

    /// Writes bytes. Read-only bits and bytes behind the end of the space are ignored.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Effects {
        let before = self.power_state();
        let mut effects = Effects::default();
        for (i, &v) in data.iter().enumerate() {
            let Some(at) = usize::try_from(offset).ok().and_then(|o| o.checked_add(i)) else {
                break;
            };
            // Bit 15 of Device Control starts a function-level reset. It reads as zero.
            if at == EXP + 9 && v & 0x80 != 0 {
                effects.reset = true;
            }
            self.space.write_byte(at, v);
        }
        effects.reset |= before == 3 && self.power_state() == 0;
        effects
    }

    /// Returns the address of BAR 0 or 2, or `None` while memory decoding is off.
    pub fn bar(&self, n: usize) -> Option<u64> {
        let raw = self.space.u64(0x10 + 4 * n);
        (self.command() & 2 != 0).then_some(raw & !0xf)
    }

    fn command(&self) -> u16 {
        self.space.u16(4)
    }

    /// Returns the power state as 0 (D0) to 3 (D3hot).
    pub fn power_state(&self) -> u8 {
        self.space.u8(PM + 4) & 3
    }

    /// Returns true if the function may perform DMA, because bus mastering is on and the power
    /// state is D0.
    pub fn bus_master(&self) -> bool {
        self.command() & 4 != 0 && self.power_state() == 0
    }

    /// Returns the number of MSI vectors that may be sent now; 0 while MSI is disabled.
    pub fn msi_enabled(&self) -> u16 {
        let control = if self.shape.msi {
            self.space.u16(MSI + 2)
        } else {
            0
        };
        if control & 1 == 0 {
            return 0;
        }
        (1 << ((control >> 4) & 7).min(5)).min(u16::from(self.shape.msi_vectors))
    }

    /// Returns the maximum payload size and the maximum read request size that software has set, in
    /// bytes.
    pub fn payload_and_read_request(&self) -> (u32, u32) {
        let c = self.space.u16(EXP + 8);
        (128 << ((c >> 5) & 7), 128 << ((c >> 12) & 7))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn r32(c: &ConfigSpace, at: u64) -> u32 {
        let mut b = [0; 4];
        c.read(at, &mut b);
        u32::from_le_bytes(b)
    }

    #[test]
    fn identity_and_capability_chain() {
        let c = ConfigSpace::new(PciConfig::default());
        assert_eq!(r32(&c, 0), 0x0011_1cad);
        assert_eq!(r32(&c, 8), 0x0280_0040);
        let mut at = r32(&c, 0x34) as u64 & 0xff;
        let mut ids = Vec::new();
        while at != 0 {
            let w = r32(&c, at);
            ids.push(w & 0xff);
            at = u64::from((w >> 8) & 0xff);
        }
        assert_eq!(ids, [0x01, 0x05, 0x10]);
        let c = ConfigSpace::new(PciConfig {
            msi: false,
            ..PciConfig::default()
        });
        assert_eq!(
            (r32(&c, 0x40) >> 8) & 0xff,
            EXP as u32,
            "MSI left out of the chain"
        );
    }

    #[test]
    fn bars_size_and_move() {
        let mut c = ConfigSpace::new(PciConfig::default());
        c.write(0x10, &[0xff; 8]);
        assert_eq!(r32(&c, 0x10), 0xf000_000c);
        assert_eq!(r32(&c, 0x14), 0xffff_ffff);
        assert_eq!(c.bar(0), None, "decoding off");
        c.write(0x10, &0x38_0000_0000u64.to_le_bytes());
        c.write(4, &[6, 0]);
        assert_eq!(c.bar(0), Some(0x38_0000_0000));
        assert!(c.bus_master());
    }

    #[test]
    fn flr_and_d3_reset() {
        let mut c = ConfigSpace::new(PciConfig::default());
        assert!(c.write(EXP as u64 + 8, &[0x10, 0xa8]).reset);
        assert_eq!(r32(&c, EXP as u64 + 8) & 0x8000, 0, "FLR bit reads zero");
        assert!(!c.write(PM as u64 + 4, &[3]).reset);
        assert!(!c.bus_master());
        assert!(c.write(PM as u64 + 4, &[0]).reset);
    }

    #[test]
    fn base_addresses_survive_a_function_reset() {
        let mut c = ConfigSpace::new(PciConfig::default());
        c.write(0x10, &0x38_0000_0000u64.to_le_bytes());
        c.write(0x18, &0x40_0000_0000u64.to_le_bytes());
        c.write(4, &[6, 0]);
        c.function_reset();
        assert!(!c.bus_master());
        assert_eq!(c.bar(0), None, "decoding off");
        c.write(4, &[2]);
        assert_eq!(c.bar(0), Some(0x38_0000_0000));
        assert_eq!(c.bar(2), Some(0x40_0000_0000));
    }

    #[test]
    fn msi_vectors_follow_enable_and_mme() {
        let mut c = ConfigSpace::new(PciConfig {
            msi_vectors: 4,
            ..PciConfig::default()
        });
        assert_eq!(c.msi_enabled(), 0);
        c.write(MSI as u64 + 2, &[0x01]);
        assert_eq!(c.msi_enabled(), 1);
        c.write(MSI as u64 + 2, &[0x51]);
        assert_eq!(c.msi_enabled(), 4, "never more than offered");
    }

    #[test]
    fn any_access_is_survived() {
        let mut c = ConfigSpace::new(PciConfig::default());
        for at in [0u64, 4095, 4096, u64::MAX, u64::MAX - 3] {
            c.write(at, &[0xff; 16]);
            c.read(at, &mut [0; 16]);
        }
        assert_eq!(r32(&c, 0), 0x0011_1cad);
    }
}
