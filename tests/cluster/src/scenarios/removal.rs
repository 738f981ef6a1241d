//! Surprise removal of a NIC from a running node, and resets under the driver.

use super::expected::{REFUSED, RESET, TORN};
use super::faults::sum;
use super::leaks;
use super::node::{node, volume, Node, Options};
use super::torus::{finish, prepare, survivors, work, Flow, Kind, DEADLINE, SLACK};
use super::{on_pair, uapi};
use crate::cluster::{rounds, Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("churn::surprise_removal", surprise_removal).finds(TORN),
        on_pair("churn::function_reset", function_reset).finds(REFUSED),
        on_pair("driver::pci_error", pci_error).finds(RESET),
        on_pair("driver::lost_registers", lost_registers).finds(RESET),
        on_pair("driver::sleep", sleep).finds(RESET),
    ]
}

/// Number of the node that loses its NIC.
const VICTIM: usize = 1;
/// Time that flows need to detect the removal and to end.
const SOON: Duration = Duration::from_millis(2 * (DEADLINE + SLACK));

/// Sets `dev` to the NIC's PCI address. The address comes from a file, because the kernel removes
/// the device.
const DEV: &str = "dev=$(cat /tmp/nic); ";

fn flows(lab: &Lab) -> Result<Vec<Flow>> {
    [
        (Kind::User, 1, 0),
        (Kind::Kernel, 1, 0),
        (Kind::Tcp, 1, 0),
        (Kind::User, 0, 1),
        (Kind::Tcp, 0, 1),
    ]
    .into_iter()
    .map(|what| Flow::start_as(lab, what, ""))
    .collect()
}

/// A NIC can be removed under all kinds of traffic and put back. Every operation ends in time, and
/// the node works afterwards.
fn surprise_removal(lab: &Lab) -> Result<()> {
    uapi::install(lab)?;
    let dev = node(lab, VICTIM).pci()?;
    lab.ok(VICTIM, &format!("echo {dev} >/tmp/nic"))?;
    once(lab).context("under all kinds of traffic")?;
    leaks::watch(node(lab, VICTIM), rounds(volume(2, 5)), |cycles| {
        (0..cycles).try_for_each(|n| under_flood(lab).with_context(|| format!("time {n}")))
    })
}

/// The NIC is removed and put back under floods in both directions.
fn under_flood(lab: &Lab) -> Result<()> {
    let before = node(lab, VICTIM).net("rx_packets")?;
    let floods = (0..2)
        .map(|n| {
            let other = 1 - n;
            lab.spawn(n, &format!("ping -q -f -s 3000 -w 300 node{other}"))
        })
        .collect::<Result<Vec<_>>>()?;
    lab.until("frames arrive", PATIENCE, |_| {
        Ok(node(lab, VICTIM).net("rx_packets")? > before + 200)
    })?;
    let result = remove(lab).and_then(|()| put_back(lab));
    for flood in floods {
        flood.stop();
    }
    result
}

/// Removes the NIC and waits until the driver has noticed.
fn remove(lab: &Lab) -> Result<()> {
    lab.fault(&["nic-off", &VICTIM.to_string()])?;
    node(lab, VICTIM).until(
        "the driver has detected it",
        "grep -qx 'alive false' /sys/kernel/debug/extoll-*/status",
    )
}

/// Unbinds the removed NIC, unloads the modules and puts the NIC back.
fn put_back(lab: &Lab) -> Result<()> {
    let victim = node(lab, VICTIM);
    lab.ok(
        VICTIM,
        &format!(
            "{DEV}echo $dev >/sys/bus/pci/drivers/extoll/unbind && [ ! -e /dev/extoll/rma2 ] && \
             if [ -e /sys/module/extoll_bench ]; then rmmod extoll_bench; fi"
        ),
    )?;
    victim.unload()?;
    lab.ok(
        VICTIM,
        &format!("{DEV}echo 1 >/sys/bus/pci/devices/$dev/remove"),
    )?;
    lab.fault(&["nic-on", &VICTIM.to_string()])?;
    lab.ok(
        VICTIM,
        &format!("{DEV}echo 1 >/sys/bus/pci/rescan && [ -e /sys/bus/pci/devices/$dev ]"),
    )?;
    victim.load(Options::default())?;
    victim.back()?;
    node(lab, 0).back()
}

fn once(lab: &Lab) -> Result<()> {
    for node in 0..2 {
        prepare(lab, node)?;
    }
    // The process starts before the load, under which an interpreter may need a minute to start.
    lab.ok(VICTIM, "rm -f /tmp/ready")?;
    let sleeper = lab.spawn(VICTIM, &uapi::line("asleep /tmp/ready"))?;
    node(lab, VICTIM).until_file("/tmp/ready")?;
    let mut running = flows(lab)?;
    let flood = lab.spawn(VICTIM, "ping -q -f -s 3000 -w 200 node0")?;
    work(lab, &running, 1, |_| true).context("before the removal")?;

    remove(lab)?;
    let out = sleeper.wait(SOON)?;
    ensure!(out.status == 0, "the process that slept: {out:?}");
    // The server sleeps for an hour unless it is woken.
    lab.until("the server of the node has ended", SOON, |l| {
        let running = l.sh_for(VICTIM, "pgrep -f '[t]raffic serve'", PATIENCE)?;
        Ok(running.status != 0)
    })?;
    lab.until("no flow succeeds any more", SOON, |l| {
        let done = |f: &Flow| f.counts(l).map(|c| c.get("done").copied());
        let before = running.iter().map(done).collect::<Result<Vec<_>>>()?;
        std::thread::sleep(Duration::from_secs(1));
        Ok(before == running.iter().map(done).collect::<Result<Vec<_>>>()?)
    })?;
    for node in 0..2 {
        lab.ok(node, "touch /tmp/stop-flows")?;
    }
    for flow in &mut running {
        let out = flow.running.take().context("ended before")?.wait(SOON)?;
        // A user program whose own NIC was removed may end with the error of a removed NIC. Wrong
        // data and missed deadlines are failures.
        let told = flow.kind == Kind::User && out.stderr.contains("the NIC is gone");
        ensure!(out.status == 0 || told, "{}: {out:?}", flow.log());
    }
    flood.stop();
    survivors(lab, |node| node != VICTIM)?;
    lab.until("no process is left or stuck", PATIENCE, |l| {
        let left = "pgrep -l 'extoll-conform|ping'; ps -eo state,comm | grep ^D; true";
        Ok(l.ok(VICTIM, left)?.is_empty())
    })?;

    put_back(lab)?;
    for node in 0..2 {
        prepare(lab, node)?;
    }
    let mut running = flows(lab)?;
    work(lab, &running, 1, |_| true).context("with the NIC back")?;
    finish(lab, &mut running)?;
    survivors(lab, |_| true)?;
    for node in 0..2 {
        lab.ok(node, "rmmod extoll_bench")?;
    }
    Ok(())
}

/// Number of resets of the NIC in the scenario.
const RESETS: u32 = 2;

/// When an administrator resets the NIC in use, its users get an error, the driver starts again,
/// and everything works.
fn function_reset(lab: &Lab) -> Result<()> {
    uapi::install(lab)?;
    let victim = node(lab, VICTIM);
    // Transfers in quarantine delay the opening of the ports after the reset. The quarantine is
    // therefore short.
    victim.reload_exn("exn.rdv_quarantine_ms=8000")?;
    let result = (0..volume(RESETS, 5 * RESETS))
        .try_for_each(|n| reset_once(lab).with_context(|| format!("time {n}")));
    result?;
    victim.reload_exn("")?;
    node(lab, 0).back()
}

fn reset_once(lab: &Lab) -> Result<()> {
    let victim = node(lab, VICTIM);
    let dev = victim.pci()?;
    lab.ok(VICTIM, "rm -f /tmp/ready")?;
    let sleeper = lab.spawn(VICTIM, &uapi::line("asleep /tmp/ready returns"))?;
    victim.until_file("/tmp/ready")?;
    let before = victim.net("rx_packets")?;
    let floods = (0..2)
        .map(|n| lab.spawn(n, &format!("ping -q -f -s 3000 -w 300 node{}", 1 - n)))
        .collect::<Result<Vec<_>>>()?;
    lab.until("frames arrive", PATIENCE, |_| {
        Ok(victim.net("rx_packets")? > before + 200)
    })?;
    let resets = sum(&lab.status()?, "host_function_resets");
    let mark = lab.log_mark(VICTIM)?;
    let place = format!("/sys/bus/pci/devices/{dev}");
    victim.ok(&format!(
        "grep -qw flr {place}/reset_method && echo flr >{place}/reset_method && ls -di /sys/class/net/exn0/ >/tmp/old && echo 1 >{place}/reset"
    ))?;
    let out = sleeper.wait(SOON)?;
    ensure!(out.status == 0, "the process that slept: {out:?}");
    victim.until(
        "the driver has started again",
        "[ -e /sys/class/net/exn0 ] && [ \"$(ls -di /sys/class/net/exn0/)\" != \"$(cat /tmp/old)\" ]",
    )?;
    for flood in floods {
        flood.stop();
    }
    ensure!(
        sum(&lab.status()?, "host_function_resets") > resets,
        "the NIC was not reset"
    );
    let log = lab.log_since(&mark)?;
    ensure!(log.contains("reason 38: device reset"), "{log}");
    victim.back()?;
    // The peer may still wait for the GET of frames whose announcements the NIC has lost. It
    // announces few other frames until it gives these frames up.
    lab.until("announced frames are fetched", PATIENCE, |_| {
        victim.is_so("ping -q -c 5 -i 0.02 -W 1 -s 3000 node0 | grep -q ' 5 received'")
    })?;
    victim.pings(20, "-i 0.02 -s 3000")?;
    node(lab, 0).pings(20, "-i 0.02 -s 9000")
}

/// The PCI core detects an error on the path to the NIC and resets it. The driver starts again. If
/// the NIC stays unreachable, its users are notified, processes lose its pages, and it can be bound
/// later. The module `pci_error` simulates the core.
fn pci_error(lab: &Lab) -> Result<()> {
    uapi::install(lab)?;
    let victim = node(lab, VICTIM);
    let dev = victim.pci()?;
    let bus = dev.split(':').nth(1).context("no bus in the address")?;
    for n in 0..2 {
        let mark = lab.log_mark(VICTIM)?;
        let resets = sum(&lab.status()?, "host_function_resets");
        run_until_rebound(
            victim,
            &format!("modprobe pci_error bus=$((0x{bus})) && rmmod pci_error"),
        )?;
        let log = lab.log_since(&mark)?;
        let line = "reason 43: device unreachable by a PCI error";
        ensure!(log.contains(line), "{log}");
        ensure!(
            sum(&lab.status()?, "host_function_resets") > resets,
            "the NIC was not reset"
        );
        victim.back().with_context(|| format!("time {n}"))?;
        victim.pings(20, "-i 0.02 -s 3000")?;
    }
    lab.ok(VICTIM, "rm -f /tmp/ready /tmp/go")?;
    // The process runs as root, because only root may open all files.
    let mapped = lab.spawn(
        VICTIM,
        "exec python3 /tmp/guest/uapi.py unreachable /tmp/ready /tmp/go",
    )?;
    victim.until_file("/tmp/ready")?;
    victim.ok(&format!(
        "modprobe pci_error bus=$((0x{bus})) permanent=1 && rmmod pci_error && touch /tmp/go"
    ))?;
    let out = mapped.wait(SOON)?;
    ensure!(out.status == 0, "the process with mappings: {out:?}");
    let status = victim.debugfs("status")?;
    ensure!(status.contains("alive false"), "{status}");
    ensure!(!victim.has_carrier()?, "a carrier without a NIC");
    victim.unbind()?;
    victim.bind()?;
    victim.address_back()?;
    victim.back()?;
    node(lab, 0).pings(20, "-i 0.02 -s 9000")
}

/// Runs a command and waits until the driver was bound again, which creates a new interface.
fn run_until_rebound(victim: Node<'_>, command: &str) -> Result<()> {
    victim.ok(&format!(
        "ls -di /sys/class/net/exn0/ >/tmp/old && {command}"
    ))?;
    victim.until(
        "the driver was bound again",
        "[ -e /sys/class/net/exn0 ] && [ \"$(ls -di /sys/class/net/exn0/)\" != \"$(cat /tmp/old)\" ]",
    )
}

/// Runs a command on the node. Its driver must be bound again for this reason without help, and
/// traffic must flow.
fn begins_anew(lab: &Lab, command: &str, reason: &str) -> Result<()> {
    let victim = node(lab, VICTIM);
    let mark = lab.log_mark(VICTIM)?;
    run_until_rebound(victim, command)?;
    let log = lab.log_since(&mark)?;
    ensure!(log.contains(reason), "{log}");
    victim.address_back()?;
    victim.back()?;
    victim.pings(20, "-i 0.02 -s 3000")?;
    node(lab, 0).pings(20, "-i 0.02 -s 9000")
}

/// Registers are overwritten with their reset values, as a reset without a callback to the driver
/// would do. The driver recovers.
fn lost_registers(lab: &Lab) -> Result<()> {
    let dev = node(lab, VICTIM).pci()?;
    // The system notification queue is stopped first, because it would write to address 0.
    let command = format!(
        "cd /sys/bus/pci/devices/{dev}/extoll_rf && echo 0 >extoll_rf_snq_rf_execute_raw && echo 0 >extoll_rf_snq_rf_queue_balt_raw"
    );
    begins_anew(lab, &command, "reason 44: the NIC forgot its registers")
}

/// System sleep stops the NIC, and the driver starts again on wake-up. The kernel's test mode only
/// freezes programs, because the lab would lose its connection to the node.
fn sleep(lab: &Lab) -> Result<()> {
    let command = "echo freezer >/sys/power/pm_test && echo freeze >/sys/power/state; \
                   woken=$?; echo none >/sys/power/pm_test; [ $woken = 0 ]";
    begins_anew(lab, command, "reason 38: device reset")
}
