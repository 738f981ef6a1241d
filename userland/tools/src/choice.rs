// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Selection of a NIC on machines with several NICs.

use anyhow::{bail, Result};
use extoll::{Device, Nic};
use std::fs;
use std::path::{Path, PathBuf};

/// Device classes of the driver in sysfs.
const CLASSES: [&str; 2] = ["extoll", "extoll_priv"];

/// Options that select a NIC.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Choice {
    /// PCI address of the NIC, as shown by "extollctl list".
    #[arg(short = 'N', long, global = true, conflicts_with = "device")]
    pub nic: Option<String>,
    /// Directory of the NIC's device files. The default is the value of the environment variable
    /// EXTOLL_DEV or, if it is not set, /dev/extoll, which belongs to the first NIC.
    #[arg(short, long, global = true)]
    pub device: Option<PathBuf>,
    /// Directory that replaces / in tests.
    #[arg(long, global = true, hide = true, default_value = "/")]
    pub root: PathBuf,
}

/// Returns the directory of a NIC's device files (/dev/extoll, /dev/extoll1 …). Returns `None` if
/// the NIC has no driver.
pub fn directory(nic: &Nic, root: &Path) -> Option<PathBuf> {
    let below = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
    let event = CLASSES
        .iter()
        .flat_map(|class| below(nic.sysfs.join(class)))
        .find_map(|file| fs::read_to_string(file.path().join("uevent")).ok())?;
    let name = event.lines().find_map(|l| l.strip_prefix("DEVNAME="))?;
    // Older versions of devtmpfs report the path including /dev.
    let (dir, _) = name.trim_start_matches("/dev/").split_once('/')?;
    Some(root.join("dev").join(dir))
}

/// Returns whether `word` is the PCI address of a NIC. The domain 0000 may be omitted.
pub fn is_at(address: &str, word: &str) -> bool {
    address == word || address.strip_prefix("0000:") == Some(word)
}

impl Choice {
    fn is_made(&self) -> bool {
        self.nic.is_some() || self.device.is_some()
    }

    /// Fails if the options select a NIC. Used for operations that do not depend on the NIC.
    pub fn refuse(&self, what: &str) -> Result<()> {
        if self.is_made() {
            bail!("{what} is the same for all NICs: omit --nic and --device");
        }
        Ok(())
    }

    /// Returns the selected NIC. Without a selection, returns all NICs.
    pub fn nics(&self) -> Result<Vec<Nic>> {
        let mut chosen = extoll::nics(&self.root);
        let what = match (&self.nic, &self.device) {
            // clap does not detect conflicts between global options of different subcommand levels.
            (Some(_), Some(_)) => bail!("--nic and --device exclude each other"),
            (None, None) => return Ok(chosen),
            (Some(pci), None) => {
                chosen.retain(|n| is_at(&n.pci, pci));
                format!("no Extoll NIC at {pci}")
            }
            (None, Some(dir)) => {
                let is_it = |n: &Nic| directory(n, &self.root).is_some_and(|d| same(&d, dir));
                chosen.retain(is_it);
                format!("no Extoll NIC has its device files in {}", dir.display())
            }
        };
        if chosen.is_empty() {
            bail!(what);
        }
        Ok(chosen)
    }

    /// Returns the selected NIC. Without a selection, returns all NICs with a driver.
    pub fn driven(&self) -> Result<Vec<Nic>> {
        let mut all = self.nics()?;
        if !self.is_made() {
            all.retain(|n| directory(n, &self.root).is_some());
        }
        Ok(all)
    }

    /// Returns the device files of the selected NIC. Without a selection, returns those of the
    /// first NIC.
    pub fn device(&self) -> Result<Device> {
        if self.nic.is_none() {
            return Ok(self.device.clone().map_or_else(Device::default, Device::at));
        }
        let nics = self.nics()?;
        let [nic] = &nics[..] else {
            bail!("--nic must name exactly one NIC");
        };
        match directory(nic, &self.root) {
            Some(dir) => Ok(Device::at(dir)),
            None => bail!(
                "{} has no device files (is extoll.ko bound to it?)",
                nic.pci
            ),
        }
    }

    /// Returns the device files of the selected NIC. Fails if no NIC is selected but several exist.
    /// `named_by_environment` means that EXTOLL_DEV is set.
    pub fn the_device(&self, named_by_environment: bool) -> Result<Device> {
        if !self.is_made() && !named_by_environment {
            let nics = extoll::nics(&self.root);
            let usable: Vec<&str> = nics
                .iter()
                .filter(|n| directory(n, &self.root).is_some())
                .map(|n| n.pci.as_str())
                .collect();
            if usable.len() > 1 {
                bail!(
                    "there are several NICs: select one with --nic ({})",
                    usable.join(", ")
                );
            }
        }
        self.device()
    }
}

/// Returns whether two paths lead to the same directory.
fn same(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates a machine with NICs at these PCI addresses. The first NIC has /dev/extoll, the
    /// second NIC has /dev/extoll1, and so on. The last NIC has no driver.
    pub fn machine(addresses: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |path: String, content: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        for (i, pci) in addresses.iter().enumerate() {
            let dir = format!("sys/bus/pci/devices/{pci}");
            put(format!("{dir}/vendor"), "0x1cad\n");
            put(format!("{dir}/device"), "0x0010\n");
            put(format!("{dir}/revision"), "0x01\n");
            if i + 1 == addresses.len() {
                continue;
            }
            let (dot, number) = match i {
                0 => (String::new(), String::new()),
                i => (format!(".{i}"), i.to_string()),
            };
            for (class, file) in [
                ("extoll", "rma2"),
                ("extoll", "velo2"),
                ("extoll_priv", "extoll_rf_access"),
            ] {
                put(
                    format!("{dir}/{class}/{file}{dot}/uevent"),
                    &format!("MAJOR=240\nMINOR={i}\nDEVNAME=extoll{number}/{file}\n"),
                );
                put(format!("dev/extoll{number}/{file}"), "");
            }
            put(
                format!("sys/kernel/debug/extoll-{pci}/counters"),
                &format!("interrupts {}\n", 10 + i),
            );
            put(
                format!("sys/kernel/debug/extoll-{pci}/ports"),
                &format!("Velo vpid {i} attached true\n"),
            );
        }
        root
    }

    pub const ADDRESSES: [&str; 3] = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"];

    #[test]
    fn an_address_leads_to_the_device_files_of_its_nic() {
        let root = machine(&ADDRESSES);
        let choice = |nic: Option<&str>, device: Option<PathBuf>| Choice {
            nic: nic.map(String::from),
            device,
            root: root.path().into(),
        };
        let dev = |name: &str| root.path().join("dev").join(name);
        for (address, want) in [
            ("0000:01:00.0", "extoll"),
            ("0000:02:00.0", "extoll1"),
            ("02:00.0", "extoll1"),
        ] {
            let choice = choice(Some(address), None);
            assert_eq!(choice.device().unwrap().dir(), dev(want), "{address}");
            assert_eq!(choice.nics().unwrap().len(), 1);
        }
        for (address, why) in [
            ("0000:03:00.0", "no device files"),
            ("0000:04:00.0", "no Extoll NIC at"),
        ] {
            let error = choice(Some(address), None).device().unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        // A directory of device files also selects the NIC.
        let by_dir = choice(None, Some(dev("extoll1")));
        assert_eq!(by_dir.nics().unwrap()[0].pci, "0000:02:00.0");
        assert_eq!(by_dir.device().unwrap().dir(), dev("extoll1"));
        assert!(choice(None, Some(dev("extoll7"))).nics().is_err());
        assert!(choice(Some("02:00.0"), Some(dev("extoll1")))
            .nics()
            .is_err());
        // No NIC is selected.
        assert_eq!(choice(None, None).nics().unwrap().len(), 3);
        let error = choice(None, None).the_device(false).unwrap_err();
        assert!(error.to_string().contains("0000:02:00.0"), "{error}");
        assert!(choice(None, None).the_device(true).is_ok());
        assert!(choice(None, None).refuse("x").is_ok());
        assert!(by_dir.refuse("x").is_err());
        // A machine with only one usable NIC needs no selection.
        let root = machine(&ADDRESSES[1..]);
        let one = Choice {
            root: root.path().into(),
            ..Choice::default()
        };
        assert!(one.the_device(false).is_ok());
    }
}
