//! The built-in device behind a NIC without a host.

use serde::{Deserialize, Serialize};

/// How the device behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// As it should.
    #[default]
    Plain,
    /// Before each transfer it also writes to, and reads from, addresses that nobody gave it.
    Astray,
    /// Each interrupt is sent some thousand times.
    Storm,
    /// Its configuration registers have something else each time.
    Garbage,
    /// Its BAR has 2^45 bytes.
    Huge,
    /// The bits of its BAR that can be written have a gap.
    Gap,
}

impl DeviceKind {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 6] = [
        ("plain", Self::Plain),
        ("astray", Self::Astray),
        ("storm", Self::Storm),
        ("garbage", Self::Garbage),
        ("huge", Self::Huge),
        ("gap", Self::Gap),
    ];
}

impl std::str::FromStr for DeviceKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(n, _)| *n == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(n, _)| *n).collect();
            format!("'{name}' is no kind of device ({})", names.join(", "))
        })
    }
}

/// Options of the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TestDeviceConfig {
    /// How it behaves.
    pub kind: DeviceKind,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// MSI and MSI-X vectors: 1, 2, 4, 8, 16 or 32.
    pub vectors: u8,
    /// Time in ns without progress after which a DMA transfer fails.
    pub dma_timeout_ns: u64,
}

impl Default for TestDeviceConfig {
    fn default() -> Self {
        Self {
            kind: DeviceKind::Plain,
            vendor: 0x1cad,
            device: 0x7e57,
            vectors: 4,
            dma_timeout_ns: 1_000_000_000,
        }
    }
}

impl TestDeviceConfig {
    /// Checks the ranges; the message names the field.
    pub fn validate(&self) -> Result<(), String> {
        if !self.vectors.is_power_of_two() || self.vectors > 32 {
            return Err(format!(
                "accelerator.vectors = {}: must be 1, 2, 4, 8, 16 or 32",
                self.vectors
            ));
        }
        Ok(())
    }
}
