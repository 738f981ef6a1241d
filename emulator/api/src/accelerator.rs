//! The built-in device behind a NIC without a host.

use serde::{Deserialize, Serialize};

/// Options of the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TestDeviceConfig {
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
