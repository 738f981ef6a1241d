//! PCI host bridges in software, which `kernel_ext` lets modules create. The driver of the module
//! `soft_pci` checks that its device behaves like any PCI device. Only the last scenario uses a
//! NIC.

use crate::cluster::{pairs, Lab, Spec, PATIENCE};
use crate::scenarios::memory::SETTLE;
use crate::scenarios::node::node;
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// A node that reserves memory for the device's BAR. The kernel does not use this memory.
const SPEC: Spec = Spec::new(1).append(&["memmap=64K$0x10000000"]);
const HOLE: &str = "hole=0x10000000";
/// Vendor and device ID of the device.
const ID: u64 = 0xe711_1fe5;
/// File through which the module receives commands.
const CONTROL: &str = "/sys/kernel/debug/soft_pci/control";
/// Sets `dev` of a shell script to the PCI address of the device.
const DEVICE: &str = "dev=$(basename /sys/bus/pci/drivers/soft_pci/*:*)";
/// Maximum duration of creating and removing a hundred bridges.
const LONG: Duration = Duration::from_secs(240);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("vpci::host_bridge", SPEC, host_bridge),
        // The debug kernel rightly warns of the leaking driver.
        Scenario::new("vpci::host_bridge_leak", SPEC, leak).stock_only(),
        Scenario::new("vpci::host_bridge_cycles", SPEC, cycles),
        Scenario::new("vpci::host_bridge_below_nic", SPEC, below_nic),
    ]
}

fn load(lab: &Lab, arguments: &str) -> Result<()> {
    lab.ok(0, &format!("modprobe soft_pci {arguments}"))
        .map(drop)
}

fn command(lab: &Lab, words: &str) -> Result<()> {
    lab.ok_for(0, &format!("echo {words} >{CONTROL}"), LONG)
        .map(drop)
}

/// Returns the counters of the module.
fn state(lab: &Lab) -> Result<BTreeMap<String, u64>> {
    let text = lab.ok(0, &format!("cat {CONTROL}"))?;
    let mut all = BTreeMap::new();
    for (name, value) in pairs(&text) {
        all.insert(name, value.parse().with_context(|| text.clone())?);
    }
    ensure!(all.contains_key("failed"), "{text}");
    Ok(all)
}

/// Checks that the counters have these values and that no check of the module failed.
fn expect(lab: &Lab, values: &[(&str, u64)]) -> Result<BTreeMap<String, u64>> {
    let now = state(lab)?;
    for (name, value) in values.iter().chain([("failed", 0)].iter()) {
        ensure!(now.get(*name) == Some(value), "not {name} {value}: {now:?}");
    }
    Ok(now)
}

/// Returns the first 32 bits of the device's configuration space.
fn first_word(lab: &Lab) -> Result<u64> {
    let script = format!("{DEVICE}; od -An -tx4 -N4 /sys/bus/pci/devices/$dev/config");
    let text = lab.ok(0, &script)?;
    u64::from_str_radix(text.trim(), 16).with_context(|| text.clone())
}

/// A device with each kind of interrupt looks right to its driver and to the system.
fn host_bridge(lab: &Lab) -> Result<()> {
    load(lab, HOLE)?;
    command(lab, "errors").context("invalid bridges")?;
    expect(lab, &[("probed", 0)])?;
    for kind in ["msix", "msi"] {
        one(lab, kind).with_context(|| format!("a device with {kind}"))?;
    }
    lab.ok(0, "rmmod soft_pci")?;
    lab.assert_no_leaks()
}

/// Memory that a driver leaked is not assigned again.
fn leak(lab: &Lab) -> Result<()> {
    load(lab, HOLE)?;
    command(lab, "leak")?;
    let mark = lab.log_mark(0)?;
    command(lab, "remove")?;
    expect(lab, &[])?;
    let log = lab.log_since(&mark)?;
    ensure!(
        log.contains("the pool is kept"),
        "the log does not mention the leak: {log}"
    );
    lab.ok(0, "rmmod soft_pci").map(drop)
}

fn one(lab: &Lab, kind: &str) -> Result<()> {
    let before = state(lab)?;
    let count = |name: &str| before.get(name).copied().unwrap_or(0);
    command(lab, kind)?;
    let probed = count("probed") + 1;
    let now = expect(lab, &[("probed", probed), ("requested", 8), ("mapped", 1)])?;
    ensure!(now.get("domain") >= Some(&0x1_0000), "{now:?}");
    ensure!(
        now["checked"] > count("checked") + 100,
        "hardly anything was checked"
    );
    ensure!(first_word(lab)? == ID, "wrong IDs in sysfs");
    // Only requested and allocated interrupts are raised.
    command(lab, "fire 3")?;
    command(lab, "fire 8")?;
    command(lab, "fire 4000000000")?;
    let handled = |n: u64| count(&format!("handled_{n}"));
    expect(
        lab,
        &[
            ("handled_3", handled(3) + 1),
            ("handled_2", handled(2)),
            ("fired", 1),
        ],
    )?;
    // Unnecessary interrupts are harmless in any number.
    lab.ok(
        0,
        &format!("for i in $(seq 300); do echo fire_all >{CONTROL}; done"),
    )?;
    expect(
        lab,
        &[
            ("handled_3", handled(3) + 301),
            ("handled_7", handled(7) + 300),
        ],
    )?;
    interrupts(lab, kind)?;
    // The driver can be unbound and bound again.
    lab.ok(
        0,
        &format!("{DEVICE}; cd /sys/bus/pci/drivers/soft_pci; echo $dev >unbind; echo $dev >bind"),
    )?;
    expect(lab, &[("probed", probed + 1), ("id_at_end", ID)])?;
    command(lab, "silent 1")?;
    ensure!(
        first_word(lab)? == 0xffff_ffff,
        "a device that is silent answers"
    );
    let now = state(lab)?;
    ensure!(now["failed_accesses"] > 0, "{now:?}");
    command(lab, "silent 0")?;
    ensure!(
        first_word(lab)? == ID,
        "the device does not answer any more"
    );
    let told = count("told");
    command(lab, "remove")?;
    expect(lab, &[("told", told), ("id_at_end", ID)])?;
    command(lab, kind)?;
    command(lab, "lost")?;
    expect(lab, &[("told", told + 1), ("id_at_end", 0xffff_ffff)])?;
    let left = lab.ok(
        0,
        "ls /sys/bus/pci/devices /sys/class/pci_bus; cat /proc/iomem /proc/interrupts",
    )?;
    for trace in ["10000:", "PCI of another node", "extoll-PCI-MSI"] {
        ensure!(!left.contains(trace), "{trace} is left: {left}");
    }
    Ok(())
}

/// Checks the system's view of the device, its memory and its interrupts.
fn interrupts(lab: &Lab, kind: &str) -> Result<()> {
    let seen = lab.ok(0, "cat /proc/interrupts /proc/iomem")?;
    let chip = format!("extoll-PCI-{}", kind.to_uppercase());
    let vectors = seen.lines().filter(|l| l.contains(&chip)).count();
    ensure!(vectors == 8, "{vectors} interrupts of {chip}: {seen}");
    ensure!(seen.contains("PCI of another node"), "no window: {seen}");
    // Every interrupt affinity can be set.
    lab.ok(
        0,
        &format!(
            "irq=$(grep -m1 {chip} /proc/interrupts | cut -d: -f1 | tr -d ' '); \
             echo 1 >/proc/irq/$irq/smp_affinity; test \"$(cat /proc/irq/$irq/effective_affinity)\" -eq 1; \
             {DEVICE}; test -e /sys/bus/pci/devices/$dev/../nic"
        ),
    )?;
    Ok(())
}

/// Returns the available memory in KiB.
fn available(lab: &Lab) -> Result<u64> {
    let script = format!("{SETTLE}; awk '/MemAvailable/ {{print $2}}' /proc/meminfo");
    let text = lab.ok(0, &script)?;
    text.trim().parse().with_context(|| text.clone())
}

/// A hundred bridges, each with a pool of 1 MiB, leak no memory.
fn cycles(lab: &Lab) -> Result<()> {
    load(lab, HOLE)?;
    command(lab, "cycles 10")?;
    let before = available(lab)?;
    command(lab, "cycles 100")?;
    let now = expect(lab, &[("probed", 110)])?;
    let lost = now["told"];
    ensure!(lost == 4 + 34, "{lost} devices were lost");
    let after = available(lab)?;
    ensure!(after + 8192 > before, "{} KiB are gone", before - after);
    lab.ok(0, "rmmod soft_pci")?;
    lab.assert_no_leaks()
}

/// Below a NIC whose BAR is claimed, the window can be claimed too. Such a bridge is removed before
/// the NIC, even if the caller that removes the NIC holds the kernel's lock of rescans and
/// removals.
fn below_nic(lab: &Lab) -> Result<()> {
    let dev = node(lab, 0).pci()?;
    let claimed = || -> Result<usize> {
        let iomem = lab.ok(0, "cat /proc/iomem")?;
        Ok(iomem
            .lines()
            .filter(|l| l.contains("PCI of another node"))
            .count())
    };
    load(lab, "nic=1")?;
    let bound = expect(lab, &[("probed", 1)])?;
    ensure!(bound["checked"] > 100 && claimed()? == 1, "{bound:?}");
    // The device can be removed and rescanned, and gets its BAR and operations again. In the other
    // scenarios the firmware marks the BAR's memory as reserved, and the kernel assigns no
    // addresses from such memory.
    lab.ok(
        0,
        &format!("{DEVICE}; echo 1 >/sys/bus/pci/devices/$dev/remove; echo 1 >/sys/bus/pci/rescan"),
    )?;
    expect(lab, &[("probed", 2)])?;
    lab.ok_for(
        0,
        &format!("echo 1 >/sys/bus/pci/devices/{dev}/remove"),
        PATIENCE,
    )?;
    expect(lab, &[("probed", 2), ("id_at_end", ID)])?;
    ensure!(claimed()? == 0, "the window is left");
    lab.ok(0, "echo 1 >/sys/bus/pci/rescan")?;
    // A driver that is bound while devices are added can't create a bridge, because that takes the
    // same lock (EBUSY). The scenario binds the driver later.
    let bind = "cd /sys/bus/auxiliary && for d in devices/extoll.vpci.*; do \
                [ -e $d/driver ] || echo ${d##*/} >drivers/soft_pci.soft_pci/bind; done";
    lab.until("the NIC is back", PATIENCE, |lab| {
        lab.sh_for(0, bind, PATIENCE)?;
        Ok(state(lab)?["probed"] == 3)
    })?;
    lab.ok(
        0,
        &format!("echo {dev} >/sys/bus/pci/drivers/extoll/unbind"),
    )?;
    expect(lab, &[("probed", 3)])?;
    ensure!(claimed()? == 0, "the window is left");
    lab.ok(0, &format!("echo {dev} >/sys/bus/pci/drivers/extoll/bind"))?;
    lab.until("the NIC is bound", PATIENCE, |lab| {
        Ok(state(lab)?["probed"] == 4)
    })?;
    lab.ok(0, "rmmod soft_pci")?;
    ensure!(claimed()? == 0, "the window is left");
    Ok(())
}
