//! Options of the PCI function of a NIC.

use serde::{Deserialize, Serialize};

/// Identity and BARs of the function. The default is the modelled Tourmalet board (HW §1, G3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PciConfig {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID: 0x0011 is Tourmalet revision 2, 0x0010 revision 1.
    pub device: u16,
    /// Revision ID. The vendor's driver refuses revision 0x42.
    pub revision: u8,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
    /// Size of BAR0 in bytes: a power of two from 4 KiB.
    pub bar0_size: u64,
    /// Size of BAR2 in bytes: a power of two from 4 KiB.
    pub bar2_size: u64,
    /// True if the MSI capability is present.
    pub msi: bool,
    /// Number of MSI vectors offered: 1, 2, 4, 8, 16 or 32.
    pub msi_vectors: u8,
}

impl Default for PciConfig {
    fn default() -> Self {
        Self {
            vendor: 0x1cad,
            device: 0x0011,
            revision: 0x40,
            subsystem_vendor: 0x1cad,
            subsystem: 0x0011,
            bar0_size: 256 << 20,
            bar2_size: 256 << 20,
            msi: true,
            msi_vectors: 1,
        }
    }
}

impl PciConfig {
    /// Checks the ranges. The error names the field.
    pub fn validate(&self) -> Result<(), String> {
        for (name, size) in [("bar0-size", self.bar0_size), ("bar2-size", self.bar2_size)] {
            if !size.is_power_of_two() || !(4096..=1 << 40).contains(&size) {
                return Err(format!(
                    "pci.{name} = {size}: must be a power of two from 4 KiB to 1 TiB"
                ));
            }
        }
        if !self.msi_vectors.is_power_of_two() || self.msi_vectors > 32 {
            return Err(format!(
                "pci.msi-vectors = {}: must be 1, 2, 4, 8, 16 or 32",
                self.msi_vectors
            ));
        }
        Ok(())
    }
    /// Returns a copy in which `fields` have new values.
    ///
    /// # Errors
    ///
    /// When a field does not exist or cannot have the value.
    pub fn with(
        &self,
        fields: serde_json::Map<String, serde_json::Value>,
    ) -> serde_json::Result<Self> {
        let mut all = serde_json::to_value(self)?;
        if let Some(known) = all.as_object_mut() {
            known.extend(fields);
        }
        serde_json::from_value(all)
    }
}
