//! Built-in PCI devices behind NICs without a host.

use serde::{Deserialize, Serialize};

/// Kind of a device. All kinds except [`Nvme`](Self::Nvme) are the test device with a particular
/// behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// Behaves correctly.
    #[default]
    Plain,
    /// Reads and writes addresses outside its buffers before each transfer.
    Astray,
    /// Sends each interrupt several thousand times.
    Storm,
    /// Returns different values from its configuration registers each time.
    Garbage,
    /// Has a BAR of 2^45 bytes.
    Huge,
    /// Has a BAR whose writable bits have a gap.
    Gap,
    /// Stops answering configuration requests after its first transfer, until a reset of its NIC.
    Mute,
    /// Is an NVMe drive.
    Nvme,
}

impl DeviceKind {
    /// All kinds with their names.
    pub const ALL: [(&'static str, Self); 8] = [
        ("plain", Self::Plain),
        ("astray", Self::Astray),
        ("storm", Self::Storm),
        ("garbage", Self::Garbage),
        ("huge", Self::Huge),
        ("gap", Self::Gap),
        ("mute", Self::Mute),
        ("nvme", Self::Nvme),
    ];
}

impl std::str::FromStr for DeviceKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(n, _)| *n == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(n, _)| *n).collect();
            format!("'{name}' is not a kind of device ({})", names.join(", "))
        })
    }
}

/// Maximum size of a drive in MiB. The emulator's memory contains the blocks of the drive.
pub const MOST_MIB: u64 = 4096;

/// Parses a size in MiB: `64M`, `2G` or `64`. Returns `None` for any other text.
pub fn mib(text: &str) -> Option<u64> {
    let (number, factor) = match text.strip_suffix('G') {
        Some(number) => (number, 1024),
        None => (text.strip_suffix('M').unwrap_or(text), 1),
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// A device on a command line: `KIND` or, for a drive, `nvme:SIZE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceChoice {
    /// Kind of the device.
    pub kind: DeviceKind,
    /// Size of a drive in MiB; if absent, the size from the configuration file.
    pub mib: Option<u64>,
}

impl From<DeviceKind> for DeviceChoice {
    fn from(kind: DeviceKind) -> Self {
        Self { kind, mib: None }
    }
}

impl std::str::FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((kind, size)) = text.split_once(':') else {
            return text.parse::<DeviceKind>().map(Self::from);
        };
        let kind = kind.parse()?;
        if kind != DeviceKind::Nvme {
            return Err(format!("'{text}': only nvme has a size"));
        }
        let mib = mib(size).filter(|n| (1..=MOST_MIB).contains(n));
        if mib.is_none() {
            return Err(format!("'{size}' is not a size from 1M to {MOST_MIB}M"));
        }
        Ok(Self { kind, mib })
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let found = DeviceKind::ALL.iter().find(|(_, kind)| *kind == self.kind);
        f.write_str(found.map_or("", |(name, _)| name))?;
        match self.mib {
            Some(mib) => write!(f, ":{mib}M"),
            None => Ok(()),
        }
    }
}

/// Options of a built-in device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeviceConfig {
    /// Kind of the device.
    pub kind: DeviceKind,
    /// Vendor ID of a test device.
    pub vendor: u16,
    /// Device ID of a test device.
    pub device: u16,
    /// Number of MSI and of MSI-X vectors: 1, 2, 4, 8, 16 or 32.
    pub vectors: u8,
    /// Time in ns without progress after which a DMA access fails.
    pub dma_timeout_ns: u64,
    /// Size of a drive in MiB.
    pub size_mib: u64,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            kind: DeviceKind::Plain,
            vendor: 0x1cad,
            device: 0x7e57,
            vectors: 4,
            dma_timeout_ns: 1_000_000_000,
            size_mib: 64,
        }
    }
}

impl DeviceConfig {
    /// Checks the ranges. The error names the field.
    pub fn validate(&self) -> Result<(), String> {
        if !self.vectors.is_power_of_two() || self.vectors > 32 {
            return Err(format!(
                "accelerator.vectors = {}: must be 1, 2, 4, 8, 16 or 32",
                self.vectors
            ));
        }
        if !(1..=MOST_MIB).contains(&self.size_mib) {
            return Err(format!(
                "accelerator.size-mib = {}: must be 1 to {MOST_MIB}",
                self.size_mib
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_written_as_kind_and_size() {
        let parse = |text: &str| text.parse::<DeviceChoice>();
        let nvme = |mib| DeviceChoice {
            kind: DeviceKind::Nvme,
            mib,
        };
        for (text, want) in [
            ("plain", DeviceKind::Plain.into()),
            ("gap", DeviceKind::Gap.into()),
            ("nvme", nvme(None)),
            ("nvme:64M", nvme(Some(64))),
        ] {
            assert_eq!(parse(text), Ok(want));
            assert_eq!(want.to_string(), text);
        }
        assert_eq!(parse("nvme:2G"), Ok(nvme(Some(2048))));
        assert_eq!(parse("nvme:8"), Ok(nvme(Some(8))));
        for wrong in [
            "",
            "disk",
            "nvme:",
            "nvme:0",
            "nvme:x",
            "nvme:64K",
            "nvme:5G",
            "nvme:99999999999999999G",
            "plain:64M",
            "nvme:1M:2M",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
