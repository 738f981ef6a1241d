//! Additional PCI devices of nodes, emulated by QEMU.
//!
//! QEMU's options let the device models access the NIC's windows by DMA. QEMU maps addresses that
//! are not memory through a bounce buffer of 4 KiB per device; `e1000e` needs a larger buffer. By
//! default `edu` reaches only 256 MiB. Each device is behind a root port of its own. The port can
//! reset the device, because `edu` cannot reset itself.

use crate::spec::parse_node;
use anyhow::{bail, ensure, Context, Result};
use extoll_emulator_api::accelerator;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Maximum number of additional devices per node.
pub const MOST: usize = 8;
/// Chassis number and slot number of the first device's root port. The NICs' root ports have lower
/// numbers.
const SLOT: usize = 32;
/// Default size of an NVMe drive in MiB.
const USUAL_MIB: u64 = 64;
/// Address and port of the echo service in the network of an Ethernet adapter.
const ECHO: &str = "10.0.2.100:7";
/// Maximum size of an NVMe drive in MiB. The file is sparse.
const LARGEST_MIB: u64 = 1 << 20;

/// Device model of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// An NVMe drive, stored in a file in the lab's directory.
    Nvme {
        /// Size in MiB.
        mib: u64,
    },
    /// An Ethernet adapter in an isolated network, which QEMU emulates: a DHCP server and a host at
    /// 10.0.2.2, and an echo service at 10.0.2.100 port 7.
    E1000e,
    /// QEMU's educational device.
    Edu,
}

/// An additional PCI device of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Number of the node.
    pub node: usize,
    /// Model of the device.
    pub model: Model,
}

/// Parses a size in MiB, such as `64M` or `2G`.
fn mib(text: &str) -> Result<u64> {
    let mib = accelerator::mib(text).context("expected a size such as 64M or 2G")?;
    ensure!(
        (1..=LARGEST_MIB).contains(&mib),
        "a drive has 1 MiB to {LARGEST_MIB} MiB"
    );
    Ok(mib)
}

impl FromStr for Device {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (node, rest) = text
            .split_once(':')
            .context("expected NODE:nvme,size=64M, NODE:e1000e or NODE:edu")?;
        let node = parse_node(node)?;
        let mut words = rest.split(',');
        let mut model = match words.next() {
            Some("nvme") => Model::Nvme { mib: USUAL_MIB },
            Some("e1000e") => Model::E1000e,
            Some("edu") => Model::Edu,
            other => bail!(
                "'{}' is not a device; expected nvme, e1000e or edu",
                other.unwrap_or_default()
            ),
        };
        for word in words {
            match (word.split_once('='), &mut model) {
                (Some(("size", size)), Model::Nvme { mib: all }) => {
                    *all = mib(size).with_context(|| format!("size '{size}'"))?;
                }
                _ => bail!("'{word}' is not an option of this device"),
            }
        }
        Ok(Self { node, model })
    }
}

/// Checks the devices of a lab with `nodes` nodes.
///
/// # Errors
/// When a device belongs to a node that does not exist, or a node has too many devices.
pub fn check(devices: &[Device], nodes: usize) -> Result<()> {
    for d in devices {
        ensure!(
            d.node < nodes,
            "there is a device for node {}, but the lab has {nodes} nodes",
            d.node
        );
        let n = devices.iter().filter(|other| other.node == d.node).count();
        ensure!(
            n <= MOST,
            "node {} has {n} devices; the maximum is {MOST}",
            d.node
        );
    }
    Ok(())
}

fn of(devices: &[Device], node: usize) -> impl Iterator<Item = (usize, &Device)> {
    devices.iter().filter(move |d| d.node == node).enumerate()
}

fn drive(dir: &Path, k: usize) -> PathBuf {
    dir.join(format!("nvme{k}.img"))
}

/// Creates the files of a node's drives unless they exist, because data on a drive survives a power
/// cycle.
///
/// # Errors
/// When a file cannot be created.
pub fn make_drives(devices: &[Device], node: usize, dir: &Path) -> Result<()> {
    for (k, d) in of(devices, node) {
        let Model::Nvme { mib } = d.model else {
            continue;
        };
        let path = drive(dir, k);
        let file = std::fs::File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .and_then(|f| f.set_len(mib << 20));
        file.with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

/// Returns QEMU's arguments for the additional devices of a node with directory `dir`.
pub fn arguments(devices: &[Device], node: usize, dir: &Path) -> Vec<String> {
    let mut args = Vec::new();
    let mut arg = |option: &str, value: String| args.extend([option.to_owned(), value]);
    for (k, d) in of(devices, node) {
        // Each device has its own port, like a card in a slot.
        let slot = SLOT + k;
        let port = format!("pcie-root-port,id=drp{k},bus=pcie.0,chassis={slot},slot={slot}");
        match d.model {
            Model::Nvme { .. } => {
                let file = drive(dir, k);
                let file = file.display();
                arg(
                    "-drive",
                    format!("if=none,id=dev{k},format=raw,file={file}"),
                );
                arg("-device", port);
                // `dbcs=off` disables shadow doorbells, which QEMU would poll in memory. If that
                // memory belongs to an unreachable borrower, each load stops the node for half a
                // second and returns all ones, which looks like a full queue.
                arg(
                    "-device",
                    format!(
                        "nvme,id=nvme{k},bus=drp{k},drive=dev{k},serial=lab-{node}-{k},dbcs=off"
                    ),
                );
            }
            Model::E1000e => {
                arg(
                    "-netdev",
                    format!("user,id=dev{k},restrict=on,ipv6=off,guestfwd=tcp:{ECHO}-cmd:cat"),
                );
                arg("-device", port);
                let mac = format!("52:54:00:00:{:02x}:{:02x}", 0x80 + k, node + 1);
                arg(
                    "-device",
                    format!(
                        "e1000e,id=e1000e{k},bus=drp{k},netdev=dev{k},romfile=,mac={mac},x-max-bounce-buffer-size=1M"
                    ),
                );
            }
            Model::Edu => {
                arg("-device", port);
                arg(
                    "-device",
                    format!("edu,id=edu{k},bus=drp{k},dma_mask=0xffffffffffffffff"),
                );
            }
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Device> {
        text.parse()
    }

    #[test]
    fn devices_are_written_as_node_and_model() {
        let nvme = |node, mib| Device {
            node,
            model: Model::Nvme { mib },
        };
        assert_eq!(parse("1:nvme").unwrap(), nvme(1, USUAL_MIB));
        assert_eq!(parse("node0:nvme,size=2G").unwrap(), nvme(0, 2048));
        assert_eq!(parse("3:nvme,size=8M").unwrap(), nvme(3, 8));
        assert_eq!(parse("0:edu").unwrap().model, Model::Edu);
        assert_eq!(parse("0:e1000e").unwrap().model, Model::E1000e);
        for wrong in [
            "nvme",
            "x:nvme",
            "0:",
            "0:floppy",
            "0:edu,size=1M",
            "0:nvme,size=",
            "0:nvme,size=0",
            "0:nvme,size=9999999G",
            "0:nvme,colour=red",
            "0:nvme,size=1,file=/etc/passwd",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(check(&[nvme(1, 1)], 2).is_ok());
        assert!(check(&[nvme(2, 1)], 2).is_err());
        assert!(check(&[nvme(0, 1); MOST + 1], 2).is_err());
    }

    #[test]
    fn each_node_has_its_own() {
        let all = ["1:nvme,size=1M", "0:edu", "1:e1000e"].map(|t| parse(t).unwrap());
        let dir = std::env::temp_dir().join(format!("lab-devices-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let zero = arguments(&all, 0, &dir).join(" ");
        assert!(zero.contains("edu,id=edu0,bus=drp0") && !zero.contains("nvme"));
        let one = arguments(&all, 1, &dir).join(" ");
        assert!(
            one.contains("nvme,id=nvme0,bus=drp0") && one.contains("e1000e,id=e1000e1,bus=drp1")
        );
        assert!(one.contains("slot=32") && one.contains("slot=33"), "{one}");
        // The network must be isolated from the host.
        assert!(
            one.contains("restrict=on") && !one.contains("hostfwd"),
            "{one}"
        );
        assert!(arguments(&all, 2, &dir).is_empty());
        make_drives(&all, 1, &dir).unwrap();
        let file = dir.join("nvme0.img");
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 1 << 20);
        std::fs::write(&file, b"kept").unwrap();
        make_drives(&all, 1, &dir).unwrap();
        assert_eq!(std::fs::read(&file).unwrap()[..5], *b"kept\0");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
