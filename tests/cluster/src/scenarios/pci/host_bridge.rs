//! PCI host bridges made by software, as `kernel_ext` lets modules make them, by the module `soft_pci`: a device whose driver looks
//! whether everything is as with any other one. No NIC takes part, but in the last scenario.

use crate::cluster::{pairs, Lab, Spec, PATIENCE};
use crate::scenarios::memory::SETTLE;
use crate::scenarios::node::node;
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Memory that the kernel leaves alone, for the device's BAR.
const SPEC: Spec = Spec::new(1).append(&["memmap=64K$0x10000000"]);
const HOLE: &str = "hole=0x10000000";
/// IDs of the device.
const ID: u64 = 0xe711_1fe5;
/// The file that the module takes commands from.
const CONTROL: &str = "/sys/kernel/debug/soft_pci/control";
/// What the kernel calls the device.
const DEVICE: &str = "dev=$(basename /sys/bus/pci/drivers/soft_pci/*:*)";
/// How long a hundred bridges may take.
const LONG: Duration = Duration::from_secs(240);

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("vpci::host_bridge", SPEC, host_bridge),
        // The debug kernel complains of the driver, as it should.
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

/// What the module has counted.
fn state(lab: &Lab) -> Result<BTreeMap<String, u64>> {
    let text = lab.ok(0, &format!("cat {CONTROL}"))?;
    let mut all = BTreeMap::new();
    for (name, value) in pairs(&text) {
        all.insert(name, value.parse().with_context(|| text.clone())?);
    }
    ensure!(all.contains_key("failed"), "{text}");
    Ok(all)
}

/// Counters that have to have these values, and no check that has failed.
fn expect(lab: &Lab, values: &[(&str, u64)]) -> Result<BTreeMap<String, u64>> {
    let now = state(lab)?;
    for (name, value) in values.iter().chain([("failed", 0)].iter()) {
        ensure!(now.get(*name) == Some(value), "not {name} {value}: {now:?}");
    }
    Ok(now)
}

/// The first 32 bits of the device's configuration space.
fn first_word(lab: &Lab) -> Result<u64> {
    let script = format!("{DEVICE}; od -An -tx4 -N4 /sys/bus/pci/devices/$dev/config");
    let text = lab.ok(0, &script)?;
    u64::from_str_radix(text.trim(), 16).with_context(|| text.clone())
}

/// A device of each kind: what a driver of it sees, and what the system sees.
fn host_bridge(lab: &Lab) -> Result<()> {
    load(lab, HOLE)?;
    command(lab, "errors").context("bridges that there cannot be")?;
    expect(lab, &[("probed", 0)])?;
    for kind in ["msix", "msi"] {
        one(lab, kind).with_context(|| format!("a device with {kind}"))?;
    }
    lab.ok(0, "rmmod soft_pci")?;
    lab.assert_no_leaks()
}

/// The memory that a driver did not give back is not used again.
fn leak(lab: &Lab) -> Result<()> {
    load(lab, HOLE)?;
    command(lab, "leak")?;
    let mark = lab.log_mark(0)?;
    command(lab, "remove")?;
    expect(lab, &[])?;
    let log = lab.log_since(&mark)?;
    ensure!(
        log.contains("the pool is kept"),
        "not a word of the leak: {log}"
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
        "hardly anything was looked at"
    );
    ensure!(first_word(lab)? == ID, "wrong IDs in sysfs");
    // Only what is requested is fired, and nothing else than what is asked for.
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
    // Interrupts that nobody needs do no harm, no matter how many.
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
    // A driver may come and go.
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

/// What the system knows of the device, its memory and its interrupts.
fn interrupts(lab: &Lab, kind: &str) -> Result<()> {
    let seen = lab.ok(0, "cat /proc/interrupts /proc/iomem")?;
    let chip = format!("extoll-PCI-{}", kind.to_uppercase());
    let vectors = seen.lines().filter(|l| l.contains(&chip)).count();
    ensure!(vectors == 8, "{vectors} interrupts of {chip}: {seen}");
    ensure!(seen.contains("PCI of another node"), "no window: {seen}");
    // Any affinity is taken.
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

/// Memory that nobody uses, in KiB.
fn available(lab: &Lab) -> Result<u64> {
    let script = format!("{SETTLE}; awk '/MemAvailable/ {{print $2}}' /proc/meminfo");
    let text = lab.ok(0, &script)?;
    text.trim().parse().with_context(|| text.clone())
}

/// A hundred bridges, of which each has a pool of a MiB.
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

/// Below a NIC, whose BAR somebody has claimed: the window can be claimed nevertheless. Such a bridge ends before the NIC does, even
/// if the NIC is removed by who holds the kernel's lock of removals meanwhile.
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
    // The device may come and go: it is found again with its BAR and its operations. (Not in memory that the firmware's map has as
    // reserved, as in the other scenarios: from that the kernel assigns nothing.)
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
    // Whoever is bound while devices are added can't make a bridge, which takes the same lock (EBUSY): by hand, later.
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
