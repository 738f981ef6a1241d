//! A device behind a NIC without a host, borrowed by nodes and used by an ordinary driver
//! (`tests/modules/accel_test`).

use crate::cluster::{modules, Lab, Spec, PATIENCE};
use crate::scenarios::expected::ACCELERATOR;
use crate::scenarios::{guest, pci::lease};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use serde_json::Value;
use std::thread;
use std::time::Duration;
use wire::regs::{htax, smfu};
use wire::smfu::UNMAPPED_BASE;

/// Two nodes and an accelerator, which is node 2.
const PAIR: Spec = Spec::new(2).accelerators(1);
const ACC: usize = 2;
/// Node 0, and five accelerators with broken or malicious devices (nodes 1 to 5).
const HOSTILE: Spec = Spec::new(1)
    .accelerators(5)
    .emulator(&["--accelerator-kinds=astray,storm,garbage,huge,gap"]);
/// Node 0, and an accelerator (node 1) whose device stops answering.
const MUTE: Spec = Spec::new(1)
    .accelerators(1)
    .emulator(&["--accelerator-kinds=mute"]);
/// Node 0 behind an IOMMU, and an accelerator (node 1).
const STRICT: Spec = Spec::new(1).accelerators(1).iommu_in(&[0]);
/// Node 0, and two accelerators (nodes 1 and 2) that reach each other.
const PEERS: Spec = Spec::new(1).accelerators(2);
const LONG: Duration = Duration::from_secs(120);
/// Module options with long time-outs, because lab machines may be slow.
const OPTIONS: &str = "vpci.timeout_ms=4000 vpci.access_ms=1000";
const ID: &str = "1cad:7e57";
const DRIVER: &str = "/sys/bus/pci/drivers/accel_test";
/// PCI address of the device at its NIC.
const PLACE: &str = "0000:01:00.0";

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("vpci::accelerator", PAIR, accelerator).gate(),
        Scenario::new("vpci::accelerator_lost", PAIR, accelerator_lost).finds(ACCELERATOR),
        Scenario::new("vpci::accelerator_reclaimed", PAIR, accelerator_reclaimed)
            .finds(ACCELERATOR),
        Scenario::new("vpci::accelerator_hostile", HOSTILE, accelerator_hostile).finds(ACCELERATOR),
        Scenario::new("vpci::accelerator_mute", MUTE, accelerator_mute).finds(ACCELERATOR),
        Scenario::new("vpci::accelerator_strict", STRICT, accelerator_strict).finds(&[
            "dma_faults",
            "drops_dma",
            "host_dma_outside_memory",
        ]),
        Scenario::new("vpci::accelerator_peers", PEERS, accelerator_peers).finds(ACCELERATOR),
    ]
}

fn ctl(lab: &Lab, node: usize, words: &str) -> Result<Value> {
    let text = lab.ok_for(node, &format!("extollctl --json accel {words}"), LONG)?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

fn refused(lab: &Lab, node: usize, words: &str, why: &str) -> Result<()> {
    let mut said = String::new();
    // A module that was just loaded first answers that it does not lend yet.
    lab.until("the node borrows", LONG, |lab| {
        let out = lab.sh_for(node, &format!("extollctl accel {words}"), LONG)?;
        ensure!(out.status != 0, "'{words}' was done: {}", out.stdout);
        said = out.stderr;
        Ok(!said.contains("does not lend yet"))
    })?;
    ensure!(said.contains(why), "'{words}': {said}");
    Ok(())
}

fn load(lab: &Lab, node: usize) -> Result<()> {
    lab.ok(
        node,
        &format!(
            "{} && modprobe accel_test",
            modules::modprobe("vpci", OPTIONS)
        ),
    )
    .map(drop)
}

/// Unloads the modules, which returns the devices.
fn end(lab: &Lab, nodes: &[usize]) -> Result<()> {
    for &node in nodes {
        lab.ok_for(node, "rmmod vpci && rmmod accel_test", LONG)?;
    }
    Ok(())
}

/// Borrows the device. Retries, because a node can't borrow until some time after its module was
/// loaded.
fn borrow(lab: &Lab, node: usize, acc: usize) -> Result<String> {
    let mut domain = String::new();
    lab.until("the node borrows", LONG, |lab| {
        let words = format!("extollctl --json accel borrow --node {acc}");
        let out = lab.sh_for(node, &words, LONG)?;
        if out.status != 0 {
            ensure!(out.stderr.contains("does not lend yet"), "{}", out.stderr);
            return Ok(false);
        }
        let said: Value = serde_json::from_str(&out.stdout)?;
        domain = said["domain"].as_str().context("no domain")?.to_owned();
        Ok(true)
    })?;
    Ok(domain)
}

/// Returns the state of the device of an accelerator.
pub(super) fn state(lab: &Lab, node: usize, acc: usize) -> Result<String> {
    let said = ctl(lab, node, &format!("list --node {acc}"))?;
    let state = said["offered"][0]["state"].as_str();
    Ok(state.with_context(|| said.to_string())?.to_owned())
}

fn attribute(lab: &Lab, node: usize, name: &str) -> Result<String> {
    lab.ok_for(node, &format!("cat {DRIVER}/*:*/{name}"), LONG)
}

/// Returns the number of a word `name=number` in the output of a successful test.
fn number(text: &str, name: &str) -> Result<u64> {
    let mut words = text.split_whitespace();
    let found = words.find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
    found
        .with_context(|| text.to_owned())?
        .parse()
        .context(name.to_owned())
}

/// Checks registers, memory in both directions and interrupts.
fn works(lab: &Lab, node: usize, vectors: u64) -> Result<()> {
    let said = attribute(lab, node, "selftest")?;
    ensure!(said.starts_with("ok "), "{said}");
    ensure!(number(&said, "vectors")? == vectors, "{said}");
    // Each vector signals four transfers.
    ensure!(number(&said, "interrupts")? >= 4 * vectors, "{said}");
    Ok(())
}

/// Keeps the device busy and runs `end`. The transfers of the device must fail then.
fn pound(lab: &Lab, end: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    let user = lab.spawn(0, &format!("cat {DRIVER}/*:*/pound"))?;
    lab.until("the device works", PATIENCE, |lab| {
        let said = ctl(lab, 0, "list")?;
        let interrupts = lease::counter(lab, 0, "interrupts")?;
        ensure!(
            said["borrowed"].as_array().is_some_and(|a| a.len() == 1),
            "{said}"
        );
        thread::sleep(Duration::from_millis(200));
        Ok(lease::counter(lab, 0, "interrupts")? > interrupts + 2)
    })?;
    end(lab)?;
    let out = user.wait(LONG)?;
    ensure!(number(&out.stdout, "rounds")? > 2, "{out:?}");
    Ok(())
}

/// Waits until all address ranges of ended leases are released.
fn settled(lab: &Lab, node: usize) -> Result<()> {
    lab.until("all address ranges are released", LONG, |lab| {
        Ok(lease::counter(lab, node, "accelerator.owed")? == 0)
    })
}

/// Checks that every path between the accelerator's device and the network is closed.
fn closed(lab: &Lab, node: usize) -> Result<()> {
    guest::install(lab, node)?;
    let program = guest::program("access");
    let read = |offsets: &[u32]| -> Result<Vec<u64>> {
        let words: Vec<String> = offsets.iter().map(|at| format!("r{ACC}:{at:#x}")).collect();
        let said = lab.ok(node, &format!("{program} 0 4096 {}", words.join(" ")))?;
        said.split_whitespace()
            .map(|w| w.parse().context("a number"))
            .collect()
    };
    let controls: Vec<u32> = (0..64).map(|k| smfu::interval_control(k).get()).collect();
    let maps: Vec<u32> = (0..htax::INTERVALS)
        .map(|i| htax::intvl_control(i).get())
        .collect();
    for list in [&controls, &maps] {
        let seen = read(list)?;
        ensure!(
            seen.len() == list.len() && seen.iter().all(|v| *v == 0),
            "open: {seen:x?}"
        );
    }
    let targets: Vec<u32> = (0..64).map(|k| smfu::vpid_t_start_addr(k).get()).collect();
    let seen = read(&targets)?;
    ensure!(
        seen.iter().all(|v| *v == UNMAPPED_BASE.0),
        "open: {seen:x?}"
    );
    Ok(())
}

/// Checks that the device can't reach memory that its driver unmapped.
fn stale(lab: &Lab, node: usize) -> Result<()> {
    let said = attribute(lab, node, "stale")?;
    ensure!(said.trim() == "ok", "{said}");
    Ok(())
}

fn gone(lab: &Lab, node: usize) -> Result<()> {
    lab.until("the device is removed", PATIENCE, |lab| {
        // lspci may fail, because the device may be removed while lspci runs.
        let out = lab.sh_for(node, &format!("lspci -Dn -d {ID}"), PATIENCE)?;
        Ok(out.status == 0 && out.stdout.is_empty())
    })
}

/// Enrols a NIC as an accelerator.
pub(super) fn enrol(lab: &Lab, node: usize, acc: usize) -> Result<()> {
    // The accelerator is unreachable until the management software has configured it.
    lab.until_it_works("the accelerator is enrolled", PATIENCE, |lab| {
        ctl(lab, node, &format!("enrol --node {acc}")).map(|_| true)
    })
}

/// Both nodes can borrow the accelerator one after the other, with MSI-X and MSI, but never at the
/// same time.
fn accelerator(lab: &Lab) -> Result<()> {
    (0..2).try_for_each(|node| load(lab, node))?;
    refused(lab, 0, "enrol --node 1", "has a host")?;
    refused(lab, 0, "enrol --node 0", "Invalid argument")?;
    if lab
        .sh_for(0, &format!("extollctl accel enrol --node {ACC}"), LONG)?
        .status
        != 0
    {
        // Another scenario in this cluster has enrolled it.
        refused(
            lab,
            0,
            &format!("enrol --node {ACC}"),
            "an accelerator already",
        )?;
    }
    refused(
        lab,
        1,
        &format!("enrol --node {ACC}"),
        "an accelerator already",
    )?;
    refused(lab, 1, &format!("reclaim --node {ACC}"), "nobody has")?;
    let said = ctl(lab, 0, &format!("list --node {ACC}"))?;
    let offered = &said["offered"][0];
    let have = (
        &offered["id"],
        &offered["at"],
        &offered["bars"],
        &offered["state"],
    );
    ensure!(
        have == (&ID.into(), &PLACE.into(), &"1048576".into(), &"Free".into()),
        "{said}"
    );
    let domain = borrow(lab, 0, ACC)?;
    works(lab, 0, 4)?;
    stale(lab, 0)?;
    let state_of = |node| state(lab, node, ACC);
    ensure!(state_of(1)?.starts_with("Lent"), "{}", state_of(1)?);
    refused(
        lab,
        1,
        &format!("borrow --node {ACC} {PLACE}"),
        "somebody has the device: node 0",
    )?;
    let own = "somebody has the device: this node";
    refused(lab, 0, &format!("borrow --node {ACC}"), own)?;
    refused(lab, 0, &format!("borrow --node {ACC} 1"), "no such device")?;
    refused(lab, 0, &format!("reclaim --node {ACC}"), own)?;
    // A reset clears the device's registers. The borrower's configuration is restored.
    let reset = attribute(lab, 0, "function_reset")?;
    ensure!(reset.trim() == "0 0x0", "{reset}");
    works(lab, 0, 4)?;
    ctl(lab, 0, &format!("return {domain}"))?;
    gone(lab, 0)?;
    ensure!(state_of(0)? == "Free", "{}", state_of(0)?);

    lab.ok(1, "rmmod accel_test && modprobe accel_test plain_msi=1")?;
    let domain = borrow(lab, 1, ACC)?;
    works(lab, 1, 4)?;
    ctl(lab, 1, &format!("return {domain}"))?;
    gone(lab, 1)?;

    // Both nodes request the device at the same time. Exactly one node gets it.
    for _ in 0..3 {
        let ask = |node| {
            let words = format!("extollctl --json accel borrow --node {ACC}");
            lab.sh_for(node, &words, LONG)
        };
        let (here, there) = thread::scope(|scope| {
            let here = scope.spawn(|| ask(0));
            let there = ask(1);
            (here.join().expect("no panic"), there)
        });
        let (here, there) = (here?, there?);
        ensure!(
            (here.status != 0) != (there.status != 0),
            "not one of them: {} {}{} {}",
            here.stdout,
            there.stdout,
            here.stderr,
            there.stderr
        );
        for (node, out) in [(0, here), (1, there)] {
            if out.status != 0 {
                ensure!(out.stderr.contains("somebody has"), "{}", out.stderr);
                continue;
            }
            works(lab, node, 4)?;
            let said: Value = serde_json::from_str(&out.stdout)?;
            let domain = said["domain"].as_str().context("no domain")?;
            ctl(lab, node, &format!("return {domain}"))?;
        }
    }
    for node in 0..2 {
        let lost = lease::counter(lab, node, "accelerator.lost")?;
        ensure!(
            lost == 0,
            "what was given back counts as lost at node {node}: {lost}"
        );
    }
    // Unloading the module while the device is in use returns the device.
    borrow(lab, 0, ACC)?;
    end(lab, &[0])?;
    ensure!(state_of(1)? == "Free", "{}", state_of(1)?);
    end(lab, &[1])
}

/// When the NIC of the accelerator loses its power or its cable, its device disappears like a
/// pulled card.
fn accelerator_lost(lab: &Lab) -> Result<()> {
    load(lab, 0)?;
    let known = lab.sh_for(0, &format!("extollctl accel enrol --node {ACC}"), LONG)?;
    ensure!(
        known.status == 0 || known.stderr.contains("already"),
        "{}",
        known.stderr
    );
    borrow(lab, 0, ACC)?;
    works(lab, 0, 4)?;
    let lost = || lease::counter(lab, 0, "accelerator.lost");
    let before = lost()?;
    pound(lab, |lab| lab.fault(&["power-off", "acc0"]).map(drop))?;
    gone(lab, 0)?;
    ensure!(lost()? == before + 1);
    // The device's address ranges stay reserved, because no accelerator has confirmed that its
    // paths to this node are closed.
    ensure!(lease::counter(lab, 0, "accelerator.owed")? > 0);
    lab.fault(&["power-on", "acc0"])?;
    // After the power loss the accelerator is not enrolled.
    lab.until("the accelerator is enrolled", PATIENCE, |lab| {
        let out = lab.sh_for(0, &format!("extollctl accel enrol --node {ACC}"), LONG)?;
        Ok(out.status == 0)
    })?;
    ensure!(state(lab, 0, ACC)? == "Free");
    borrow(lab, 0, ACC)?;
    works(lab, 0, 4)?;
    // The accelerator does not answer for longer than the time-out. This node returns the device
    // when the accelerator answers again.
    settled(lab, 0)?;
    pound(lab, |lab| lab.fault(&["link-down", "nic2"]).map(drop))?;
    gone(lab, 0)?;
    ensure!(lost()? == before + 2);
    ensure!(lease::counter(lab, 0, "accelerator.owed")? > 0);
    lab.fault(&["link-up", "nic2"])?;
    lab.until("the device is returned", LONG, |lab| {
        let out = lab.sh_for(
            0,
            &format!("extollctl --json accel list --node {ACC}"),
            LONG,
        )?;
        Ok(out.stdout.contains("\"Free\""))
    })?;
    settled(lab, 0)?;
    let domain = borrow(lab, 0, ACC)?;
    works(lab, 0, 4)?;
    ctl(lab, 0, &format!("return {domain}"))?;
    end(lab, &[0])
}

/// A borrower dies or keeps the device. Another node takes the device over by a command, and the
/// device can't reach the first node afterwards.
fn accelerator_reclaimed(lab: &Lab) -> Result<()> {
    (0..2).try_for_each(|node| load(lab, node))?;
    let known = lab.sh_for(0, &format!("extollctl accel enrol --node {ACC}"), LONG)?;
    ensure!(
        known.status == 0 || known.stderr.contains("already"),
        "{}",
        known.stderr
    );
    // First case: the borrower is alive.
    borrow(lab, 0, ACC)?;
    pound(lab, |lab| {
        ctl(lab, 1, &format!("reclaim --node {ACC}")).map(drop)
    })?;
    closed(lab, 1)?;
    gone(lab, 0)?;
    // Address ranges of both ends can be reused, because the device's paths to this node are
    // removed and the windows are closed.
    settled(lab, 0)?;
    let domain = borrow(lab, 1, ACC)?;
    works(lab, 1, 4)?;
    ctl(lab, 1, &format!("return {domain}"))?;
    // Second case: the borrower is dead.
    borrow(lab, 0, ACC)?;
    lab.fault(&["power-off", "node0"])?;
    let state_of = |node| state(lab, node, ACC);
    ensure!(state_of(1)? == "Lent(NodeId(0))", "{}", state_of(1)?);
    refused(lab, 1, &format!("borrow --node {ACC}"), "somebody has")?;
    ctl(lab, 1, &format!("reclaim --node {ACC} --down"))?;
    closed(lab, 1)?;
    let domain = borrow(lab, 1, ACC)?;
    works(lab, 1, 4)?;
    lab.fault(&["power-on", "node0"])?;
    load(lab, 0)?;
    ensure!(state_of(0)? == "Lent(NodeId(1))", "{}", state_of(0)?);
    works(lab, 1, 4)?;
    ctl(lab, 1, &format!("return {domain}"))?;
    let domain = borrow(lab, 0, ACC)?;
    works(lab, 0, 4)?;
    ctl(lab, 0, &format!("return {domain}"))?;
    end(lab, &[0, 1])
}

/// Broken and malicious devices can't access anything beyond their lease. Unusable devices are
/// rejected with a reason.
fn accelerator_hostile(lab: &Lab) -> Result<()> {
    load(lab, 0)?;
    guest::install(lab, 0)?;
    for acc in 1..=5 {
        enrol(lab, 0, acc)?;
    }
    // Accesses to foreign addresses are discarded, and the device's own work succeeds.
    let domain = borrow(lab, 0, 1)?;
    let before = lease::model(lab, 0, "host_dma_outside_memory")?;
    works(lab, 0, 4)?;
    let outside = lease::model(lab, 0, "host_dma_outside_memory")? - before;
    ensure!(outside == 0, "{outside} accesses outside of memory");
    let program = guest::program("access");
    let at = htax::DISCARDED_COUNTER.get();
    let said = lab.ok(0, &format!("{program} 0 4096 r1:{at:#x}"))?;
    let discarded = htax::DiscardedCounter(said.trim().parse().context("a number")?);
    // The device makes seven accesses for each of sixteen transfers. The counter of 16 bits may
    // have wrapped.
    let seen = (discarded.posted(), discarded.nonposted());
    ensure!(seen.0 >= 112 && seen.1 >= 112, "{seen:?} were discarded");
    ctl(lab, 0, &format!("return {domain}"))?;
    // The device raises an interrupt thousands of times. The host handles few of these interrupts.
    let domain = borrow(lab, 0, 2)?;
    let sent = || lease::model(lab, 0, "interrupts");
    let before = sent()?;
    works(lab, 0, 4)?;
    let more = sent()? - before;
    ensure!(more > 10_000, "{more} interrupts are no storm");
    ctl(lab, 0, &format!("return {domain}"))?;
    // The possible reasons are invalid capabilities and an invalid BAR. The devices stay free.
    for (acc, reasons) in [(3, &["2", "6"][..]), (5, &["3"])] {
        for _ in 0..2 {
            refused(lab, 0, &format!("list --node {acc}"), "does not work")?;
            refused(lab, 0, &format!("borrow --node {acc}"), "does not work")?;
        }
        let log = lab.ok(0, "dmesg")?;
        let said = |r: &&str| log.contains(&format!("node {acc}: unusable device (reason {r})"));
        ensure!(reasons.iter().any(said), "no reason for node {acc}");
    }
    let odd = "exec 3<>/dev/extoll_pci; echo counters >&3; awk '$1 == \"accelerator.odd\" {print $2}' <&3";
    let odd = lab.ok(0, odd)?;
    ensure!(odd.trim() == "8", "{odd} devices were refused");
    // The accelerator's window is too small for the BAR of its device.
    ensure!(state(lab, 0, 4)? == "Free");
    refused(lab, 0, "borrow --node 4", "no room")?;
    ensure!(state(lab, 0, 4)? == "Free");
    end(lab, &[0])
}

/// A device whose NIC answers counts as lost after eight configuration accesses without an answer
/// from the device. Each unanswered access delays register accesses of all devices.
fn accelerator_mute(lab: &Lab) -> Result<()> {
    load(lab, 0)?;
    refused(lab, 0, "list --node 1", "has not been enrolled")?;
    enrol(lab, 0, 1)?;
    let domain = borrow(lab, 0, 1)?;
    let before = lease::counter(lab, 0, "accelerator.lost")?;
    works(lab, 0, 4)?;
    let mark = lab.log_mark(0)?;
    lab.ok_for(
        0,
        &format!(
            "cat /sys/bus/pci/devices/{}:*/config >/dev/null || true",
            domain.trim_start_matches("0x")
        ),
        LONG,
    )?;
    gone(lab, 0)?;
    ensure!(lease::counter(lab, 0, "accelerator.lost")? == before + 1);
    lab.until("the device counts as lost", LONG, |lab| {
        let log = lab.log_since(&mark)?;
        Ok(log.contains("node 1: the device is lost: Stuck"))
    })?;
    // The device is returned, because its NIC answers. The next borrower gets an error.
    settled(lab, 0)?;
    refused(lab, 0, "borrow --node 1", "does not work")?;
    end(lab, &[0])
}

/// With an IOMMU in front of the borrower's NIC, pages are mapped without a copy. An unmapped page
/// is unreachable at once, and the device's access to it is an IOMMU fault.
fn accelerator_strict(lab: &Lab) -> Result<()> {
    load(lab, 0)?;
    enrol(lab, 0, 1)?;
    let domain = borrow(lab, 0, 1)?;
    works(lab, 0, 4)?;
    let faults = || -> Result<u64> { lease::model(lab, 0, "host_dma_outside_memory") };
    let before = faults()?;
    ensure!(before == 0, "{before} accesses of what nobody mapped");
    let mark = lab.log_mark(0)?;
    stale(lab, 0)?;
    // The IOMMU reports the faults.
    let log = lab.log_since(&mark)?;
    for access in ["[DMA Read", "[DMA Write"] {
        ensure!(log.contains(access), "no fault of a {access}]: {log}");
    }
    lab.assert_clean_log_but(&["DMAR: [DMA", "handling fault status"])?;
    let leases = ctl(lab, 0, "list")?;
    let direct = &leases["borrowed"][0]["direct"];
    let maps = direct.as_u64().or_else(|| direct.as_str()?.parse().ok());
    ensure!(maps == Some(1), "mapped as they are: {leases}");
    let more = faults()? - before;
    ensure!(more >= 2, "{more} faults, of a read and of a write");
    works(lab, 0, 4)?;
    ctl(lab, 0, &format!("return {domain}"))?;
    end(lab, &[0])
}

/// A device reads and writes the memory of another accelerator's device if that is permitted,
/// without a CPU in between.
fn accelerator_peers(lab: &Lab) -> Result<()> {
    load(lab, 0)?;
    for acc in [1, 2] {
        enrol(lab, 0, acc)?;
    }
    let one = borrow(lab, 0, 1)?;
    refused(lab, 0, &format!("join {one} {one}"), "Invalid argument")?;
    refused(lab, 0, &format!("join {one} 0x7777"), "no such device")?;
    let two = borrow(lab, 0, 2)?;
    let across = |domain: &str| {
        let domain = domain.trim_start_matches("0x");
        lab.ok_for(0, &format!("cat {DRIVER}/{domain}:*/peer"), LONG)
    };
    // Stores of one device could reach the other through the node's memory. The bytes of such
    // stores are counted.
    let through = || lease::model(lab, 0, "dma_bytes_written");
    let mapped = |from: &str, yes: bool| -> Result<()> {
        let want = if yes { "ok" } else { "failed: not mapped" };
        let before = through()?;
        let said = across(from)?;
        ensure!(said.trim() == want, "{from}: {said}");
        let more = through()? - before;
        ensure!(more < 4096, "{more} bytes went through the node");
        Ok(())
    };
    let both = [&one, &two];
    let peers = || -> Result<[usize; 2]> {
        let said = ctl(lab, 0, "list")?;
        let of = |domain: &str| {
            let all = said["borrowed"].as_array().into_iter().flatten();
            all.filter(|l| l["domain"] == domain && l["reaches"].is_string())
                .count()
        };
        Ok(both.map(|domain| of(domain)))
    };
    both.iter().try_for_each(|from| mapped(from, false))?;
    ensure!(peers()? == [0, 0]);
    ctl(lab, 0, &format!("join {one} {two}"))?;
    refused(lab, 0, &format!("join {one} {two}"), "already")?;
    ensure!(peers()? == [1, 0]);
    mapped(&one, true)?;
    mapped(&two, false)?;
    ctl(lab, 0, &format!("join {two} {one}"))?;
    both.iter().try_for_each(|from| mapped(from, true))?;
    both.iter().try_for_each(|_| works(lab, 0, 4))?;
    // A reset clears the device's registers, but not its paths.
    ctl(lab, 0, &format!("part {two} {one}"))?;
    refused(lab, 0, &format!("part {two} {one}"), "not joined")?;
    mapped(&two, false)?;
    mapped(&one, true)?;
    // A returned device is unreachable, and its next lease starts without paths.
    ctl(lab, 0, &format!("return {two}"))?;
    ensure!(state(lab, 0, 2)? == "Free");
    let said = across(&one)?;
    ensure!(said.trim() == "failed: no other device", "{said}");
    let two = borrow(lab, 0, 2)?;
    mapped(&one, false)?;
    ctl(lab, 0, &format!("join {one} {two}"))?;
    mapped(&one, true)?;
    // One device is lost while the other device uses it.
    lab.fault(&["power-off", "acc1"])?;
    lab.until("the device is lost", LONG, |lab| {
        let said = ctl(lab, 0, "list")?;
        Ok(said["borrowed"].as_array().map_or(0, Vec::len) == 1)
    })?;
    let said = across(&one)?;
    ensure!(said.trim() == "failed: no other device", "{said}");
    lab.fault(&["power-on", "acc1"])?;
    enrol(lab, 0, 2)?;
    let two = borrow(lab, 0, 2)?;
    ctl(lab, 0, &format!("join {two} {one}"))?;
    mapped(&two, true)?;
    // The module is unloaded with both devices in use.
    end(lab, &[0])
}
