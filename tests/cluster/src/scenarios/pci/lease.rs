//! Helpers for scenarios with borrowed devices: clusters, and the steps of a lease.

use crate::cluster::{modules, Device, Lab, Model, Spec, PATIENCE};
use anyhow::{ensure, Context, Result};
use serde_json::Value;
use std::time::Duration;

/// Number of the lender in most scenarios.
pub const LENDER: usize = 1;
/// Size of the first drive in MiB.
pub const DRIVE_MIB: u64 = 64;
/// Maximum duration of a command that involves other nodes or a driver.
pub const LONG: Duration = Duration::from_secs(240);

const fn at(node: usize, model: Model) -> Device {
    Device { node, model }
}

/// Two nodes whose devices are lent. All scenarios with the same timing use this cluster. In a run
/// with IOMMUs, the IOMMUs are set to passthrough, because otherwise a NIC reaches no device.
pub const PAIR: Spec = Spec::pair().append(&["iommu.passthrough=1"]).devices(&[
    at(LENDER, Model::Nvme { mib: DRIVE_MIB }),
    at(LENDER, Model::Nvme { mib: 32 }),
    at(LENDER, Model::Edu),
    at(LENDER, Model::E1000e),
    at(0, Model::Edu),
]);

/// Classes or IDs of the devices, as options of `lspci -d`.
pub const DRIVE: &str = "::0108";
pub const EDU: &str = "1234:11e8";
pub const CARD: &str = "8086:10d3";

/// Runs `extollctl accel`, which must succeed.
pub fn ctl(lab: &Lab, node: usize, words: &str) -> Result<Value> {
    let text = lab.ok_for(node, &format!("extollctl --json accel {words}"), LONG)?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

/// Returns the addresses of the node's own devices of a kind.
pub fn own(lab: &Lab, node: usize, kind: &str) -> Result<Vec<String>> {
    let listed = lab.ok(node, &format!("lspci -Dn -d {kind}"))?;
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    Ok(listed
        .lines()
        .filter_map(first)
        .filter(|address| address.starts_with("0000:"))
        .collect())
}

/// Returns the address of the node's first own device of a kind.
pub fn first(lab: &Lab, node: usize, kind: &str) -> Result<String> {
    let all = own(lab, node, kind)?;
    all.first().cloned().context("no such device")
}

/// Loads the module of a node, unless it is loaded. A module that was just loaded lends nothing for
/// a while, so scenarios leave the module loaded for the next scenarios in their cluster.
pub fn load(lab: &Lab, node: usize, options: &str) -> Result<()> {
    lab.ok(
        node,
        &format!("modprobe -a nvme && {}", modules::modprobe("vpci", options)),
    )
    .map(drop)
}

/// Lets the node offer a device.
pub fn lend(lab: &Lab, node: usize, address: &str) -> Result<()> {
    ctl(lab, node, &format!("lend {address}")).map(drop)
}

/// A borrowed device.
#[derive(Debug, Clone)]
pub struct Lease {
    /// Number of the borrower.
    pub node: usize,
    /// PCI domain of the device at the borrower.
    pub domain: String,
}

impl Lease {
    /// Borrows a device of node `lender`. Retries while the lender does not lend yet and, if
    /// `patient`, while another node has the device.
    pub fn new(
        lab: &Lab,
        node: usize,
        lender: usize,
        address: &str,
        patient: bool,
    ) -> Result<Self> {
        let mut domain = String::new();
        let what = format!("node{node} borrows {address} of node{lender}");
        lab.until(&what, LONG, |lab| {
            let words = format!("extollctl --json accel borrow --node {lender} {address}");
            let out = lab.sh_for(node, &words, LONG)?;
            if out.status != 0 {
                let wait = out.stderr.contains("does not lend yet")
                    || patient && out.stderr.contains("somebody has the device");
                ensure!(wait, "{}", out.stderr);
                return Ok(false);
            }
            let said: Value = serde_json::from_str(&out.stdout)?;
            domain = said["domain"].as_str().context("no domain")?.to_owned();
            Ok(true)
        })?;
        Ok(Self { node, domain })
    }

    /// Returns the device's PCI address at the borrower.
    pub fn address(&self) -> String {
        format!("{}:00:00.0", self.domain.trim_start_matches("0x"))
    }

    /// Returns the device's sysfs directory at the borrower.
    pub fn directory(&self) -> String {
        format!("/sys/bus/pci/devices/{}", self.address())
    }

    /// Waits until the driver has found the drive. Returns its block device.
    ///
    /// An emulated drive reads memory of another node in units of eight bytes, and its node stalls
    /// during that time. Requests are therefore small, because the lease would expire on a busy
    /// host.
    pub fn drive(&self, lab: &Lab) -> Result<String> {
        let name = drive(lab, self.node, &self.address())?;
        let queue = format!("/sys/block/{}/queue", name.trim_start_matches("/dev/"));
        lab.ok(
            self.node,
            &format!("echo 4 >{queue}/max_sectors_kb && echo 4 >{queue}/nr_requests"),
        )?;
        Ok(name)
    }

    /// Returns the module's entry for the lease.
    pub fn line(&self, lab: &Lab) -> Result<Value> {
        let said = ctl(lab, self.node, "list")?;
        let all = said["borrowed"].as_array().context("no list")?;
        let found = all.iter().find(|l| l["domain"] == self.domain.as_str());
        found.cloned().context("not borrowed")
    }

    /// Returns the device and checks that it is removed.
    pub fn end(self, lab: &Lab) -> Result<()> {
        ctl(lab, self.node, &format!("return {}", self.domain))?;
        let left = lab.sh_for(self.node, &format!("[ -e {} ]", self.directory()), PATIENCE)?;
        ensure!(left.status != 0, "{} is left", self.address());
        Ok(())
    }

    /// Returns the device and borrows it again in one command, while the lender still resets it.
    pub fn again(&mut self, lab: &Lab, lender: usize, address: &str) -> Result<()> {
        let line = format!(
            "extollctl accel return {} && extollctl --json accel borrow --node {lender} {address}",
            self.domain
        );
        let said: Value = serde_json::from_str(&lab.ok_for(self.node, &line, LONG)?)?;
        self.domain = said["domain"].as_str().context("no domain")?.to_owned();
        Ok(())
    }

    /// Waits until the kernel has removed the device without a command to return it.
    pub fn gone(&self, lab: &Lab) -> Result<()> {
        lab.until("the device is removed", LONG, |lab| {
            let left = lab.sh_for(self.node, &format!("[ -e {} ]", self.directory()), PATIENCE)?;
            Ok(left.status != 0)
        })
    }

    /// Runs a script, which must succeed, with the device's address as `$dev`.
    pub fn ok(&self, lab: &Lab, script: &str) -> Result<String> {
        lab.ok_for(
            self.node,
            &format!("dev={}; {script}", self.address()),
            LONG,
        )
    }
}

/// Waits until the driver has found a drive. Returns its block device.
pub fn drive(lab: &Lab, node: usize, address: &str) -> Result<String> {
    let mut name = String::new();
    lab.until("the driver has found the drive", PATIENCE, |lab| {
        let look = format!(
            "for d in /sys/bus/pci/devices/{address}/nvme/nvme*/nvme*n1; do [ -b /dev/${{d##*/}} ] && echo /dev/${{d##*/}}; done"
        );
        name = lab.sh_for(node, &look, PATIENCE)?.stdout.trim().to_owned();
        Ok(!name.is_empty())
    })?;
    Ok(name)
}

/// Ends the offer of a device. The device gets its own driver again if that driver is loaded.
pub fn reclaim(lab: &Lab, node: usize, address: &str) -> Result<()> {
    ctl(lab, node, &format!("reclaim {address}")).map(drop)
}

/// Returns the state of a device that the node offers.
pub fn state(lab: &Lab, node: usize, address: &str) -> Result<String> {
    let said = ctl(lab, node, "list")?;
    let all = said["lent"].as_array().context("no list")?;
    let found = all.iter().find(|l| l["at"] == address);
    let state = found.and_then(|l| l["state"].as_str());
    Ok(state.unwrap_or("none").to_owned())
}

/// Returns a counter of the module.
pub fn counter(lab: &Lab, node: usize, name: &str) -> Result<u64> {
    let script = format!(
        "exec 3<>/dev/extoll_pci; echo counters >&3; awk '$1 == \"{name}\" {{print $2}}' <&3"
    );
    let text = lab.ok(node, &script)?;
    text.trim()
        .parse()
        .with_context(|| format!("{name}: {text}"))
}

/// Returns a counter of an emulated NIC.
pub fn model(lab: &Lab, nic: usize, name: &str) -> Result<u64> {
    let status = lab.status()?;
    let value = &status["fabric"]["nics"][nic]["counters"][name];
    value.as_u64().with_context(|| format!("no counter {name}"))
}

/// Returns the growth of a node's counters since `before`.
pub fn more(lab: &Lab, node: usize, names: &[&str], before: &[u64]) -> Result<Vec<u64>> {
    let now = counters(lab, node, names)?;
    Ok(now
        .iter()
        .zip(before)
        .map(|(now, then)| now - then)
        .collect())
}

/// Returns several counters of the module.
pub fn counters(lab: &Lab, node: usize, names: &[&str]) -> Result<Vec<u64>> {
    names.iter().map(|name| counter(lab, node, name)).collect()
}

/// Waits until every interval of the node has been confirmed as closed by the other nodes.
pub fn no_fences(lab: &Lab, node: usize) -> Result<()> {
    let what = format!("node{node} has no fences");
    lab.until(&what, LONG, |lab| Ok(counter(lab, node, "fences")? == 0))
}
