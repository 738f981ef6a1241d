// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Enumeration of the machine's NICs through sysfs and debugfs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const VENDOR: u32 = 0x1CAD;

/// A NIC of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// PCI address, for example `0000:00:02.0`.
    pub pci: String,
    /// PCI device ID: 0x10 is revision 1 of the chip, 0x11 revision 2 (HW §1).
    pub device_id: u32,
    /// PCI revision.
    pub revision: u32,
    /// Name of the bound driver.
    pub driver: Option<String>,
    /// NUMA node of the NIC; −1 if it has none.
    pub numa_node: i32,
    /// Names of the NIC's network interfaces.
    pub interfaces: Vec<String>,
    /// Directory of the NIC in sysfs.
    pub sysfs: PathBuf,
    /// Directory of the NIC in debugfs, which only root can read.
    pub debugfs: PathBuf,
}

/// Status of a NIC, from the driver's debugfs file `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicStatus {
    /// Name and value of every line of the file.
    pub fields: BTreeMap<String, String>,
}

impl NicStatus {
    /// Returns the number in field `name`; `None` if the field is absent or not a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        let text = self.fields.get(name)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }

    fn parse(text: &str) -> Self {
        let pair = |line: &str| {
            let (name, value) = line.trim().split_once(' ')?;
            Some((name.to_string(), value.trim().to_string()))
        };
        Self {
            fields: text.lines().filter_map(pair).collect(),
        }
    }
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_string())
}

fn hex(path: &Path) -> Option<u32> {
    u32::from_str_radix(text(path)?.trim_start_matches("0x"), 16).ok()
}

fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    all.sort();
    all
}

impl Nic {
    fn read(root: &Path, pci: &str) -> Option<Self> {
        let sysfs = root.join("sys/bus/pci/devices").join(pci);
        if hex(&sysfs.join("vendor"))? != VENDOR {
            return None;
        }
        let driver = fs::read_link(sysfs.join("driver")).ok();
        // The network device is a child of the auxiliary device that the driver creates.
        let interfaces = names(&sysfs)
            .iter()
            .map(|child| sysfs.join(child).join("net"))
            .chain([sysfs.join("net")])
            .flat_map(|dir| names(&dir))
            .collect();
        Some(Self {
            pci: pci.to_string(),
            device_id: hex(&sysfs.join("device"))?,
            revision: hex(&sysfs.join("revision")).unwrap_or(0),
            driver: driver.and_then(|d| Some(d.file_name()?.to_string_lossy().into_owned())),
            numa_node: text(&sysfs.join("numa_node"))
                .and_then(|t| t.parse().ok())
                .unwrap_or(-1),
            interfaces,
            debugfs: root.join("sys/kernel/debug").join(format!("extoll-{pci}")),
            sysfs,
        })
    }

    /// Returns the driver's status; `None` if debugfs is not readable.
    pub fn status(&self) -> Option<NicStatus> {
        text(&self.debugfs.join("status")).map(|t| NicStatus::parse(&t))
    }

    /// Returns the directory with one file per register. Only some drivers provide it.
    pub fn registers(&self) -> PathBuf {
        self.sysfs.join("extoll_rf")
    }
}

/// Returns all NICs, sorted by PCI address. `root` is `/` in programs and another directory in
/// tests.
pub fn nics(root: &Path) -> Vec<Nic> {
    names(&root.join("sys/bus/pci/devices"))
        .iter()
        .filter_map(|pci| Nic::read(root, pci))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nics_are_found_among_other_devices() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, content: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        for (pci, vendor) in [("0000:00:02.0", "0x1cad"), ("0000:00:01.0", "0x8086")] {
            let dir = format!("sys/bus/pci/devices/{pci}");
            put(&format!("{dir}/vendor"), &format!("{vendor}\n"));
            put(&format!("{dir}/device"), "0x0010\n");
            put(&format!("{dir}/revision"), "0x01\n");
            put(&format!("{dir}/extoll.exn.16/net/exn0/mtu"), "1500\n");
        }
        std::os::unix::fs::symlink(
            "../../../bus/pci/drivers/extoll",
            root.path().join("sys/bus/pci/devices/0000:00:02.0/driver"),
        )
        .unwrap();
        put(
            "sys/kernel/debug/extoll-0000:00:02.0/status",
            "node 3\nnetwork Up\nsnq_enabled 0x0000ffff\n",
        );
        let all = nics(root.path());
        assert_eq!(all.len(), 1);
        let nic = &all[0];
        assert_eq!(
            (nic.pci.as_str(), nic.device_id, nic.driver.as_deref()),
            ("0000:00:02.0", 0x10, Some("extoll"))
        );
        assert_eq!(
            (nic.numa_node, &nic.interfaces[..]),
            (-1, &["exn0".to_string()][..])
        );
        let status = nic.status().unwrap();
        assert_eq!(status.number("node"), Some(3));
        assert_eq!(status.number("snq_enabled"), Some(0xFFFF));
        assert_eq!(status.fields["network"], "Up");
        assert_eq!(status.number("network"), None);
    }
}
