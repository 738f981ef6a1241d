//! Leases that end without a return: cut cables, nodes that lose their power, and a node that
//! stalls while its NIC keeps running.

use crate::cluster::{directory, Device, Lab, Model, Running, Spec, PATIENCE};
use crate::scenarios::expected::CUT_OFF;
use crate::scenarios::node::node;
use crate::scenarios::pci::lease::{
    counter, first, lend, load, no_fences, reclaim, state, Lease, DRIVE, LENDER, LONG, PAIR,
};
use crate::Scenario;
use anyhow::{ensure, Result};
use serde_json::json;
use std::thread::sleep;
use std::time::Duration;

/// Numbers of the first borrower and of the next borrower.
const OLD: usize = 0;
const NEXT: usize = 2;
const THREE: Spec = Spec::new(3).topology("full:3").devices(&[Device {
    node: LENDER,
    model: Model::Nvme { mib: 64 },
}]);
const OPTIONS: &str = "vpci.timeout_ms=6000";

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("vpci::link_flap", PAIR, link_flap).finds(CUT_OFF),
        Scenario::new("vpci::lender_dies", THREE, lender_dies).finds(CUT_OFF),
        Scenario::new("vpci::borrower_dies", THREE, borrower_dies).finds(CUT_OFF),
        Scenario::new("vpci::borrower_stops", THREE, borrower_stops).finds(CUT_OFF),
    ]
}

/// Starts reading from a drive until a read fails.
fn reader(lab: &Lab, number: usize, drive: &str) -> Result<Running> {
    let before = counter(lab, number, "interrupts")?;
    let script = format!(
        "while dd if={drive} of=/dev/null bs=4k count=16 iflag=direct 2>/dev/null; do :; done"
    );
    let reader = lab.spawn(number, &script)?;
    lab.until("the node reads", PATIENCE, |lab| {
        Ok(counter(lab, number, "interrupts")? > before + 20)
    })?;
    Ok(reader)
}

/// Writes a block that contains `word`.
fn mark(lab: &Lab, number: usize, drive: &str, word: &str) -> Result<()> {
    lab.ok_for(
        number,
        &format!(
            "yes {word} | head -c 4096 >/tmp/mark && dd if=/tmp/mark of={drive} bs=4k seek=5 oflag=direct 2>/dev/null"
        ),
        LONG,
    )
    .map(drop)
}

/// Returns the last word written by [`mark`].
fn marked(lab: &Lab, number: usize, drive: &str) -> Result<String> {
    let script =
        format!("dd if={drive} bs=4k skip=5 count=1 iflag=direct 2>/dev/null | uniq | head -n 1");
    Ok(lab.ok_for(number, &script, LONG)?.trim().to_owned())
}

/// A cable that is unplugged for less than the time-out goes unnoticed. If the cable stays
/// unplugged for longer, the borrower loses the device. It can borrow the device again after the
/// cable is plugged in.
fn link_flap(lab: &Lab) -> Result<()> {
    for number in 0..2 {
        load(lab, number, "vpci.timeout_ms=10000")?;
    }
    let address = first(lab, LENDER, DRIVE)?;
    lend(lab, LENDER, &address)?;
    let lease = Lease::new(lab, OLD, LENDER, &address, false)?;
    let drive = lease.drive(lab)?;
    mark(lab, OLD, &drive, "before")?;
    let lost = counter(lab, OLD, "borrower.lost")?;
    for _ in 0..2 {
        lab.fault(&["link-down", "0", "0"])?;
        sleep(Duration::from_secs(2));
        lab.fault(&["link-up", "0", "0"])?;
        let read = marked(lab, OLD, &drive)?;
        ensure!(read == "before", "'{read}' after a short time");
    }
    mark(lab, OLD, &drive, "between")?;
    ensure!(counter(lab, OLD, "borrower.lost")? == lost, "lost too soon");

    let reading = reader(lab, OLD, &drive)?;
    lab.fault(&["link-down", "0", "0"])?;
    lease.gone(lab)?;
    reading.wait(LONG)?;
    ensure!(counter(lab, OLD, "borrower.lost")? == lost + 1, "not lost");
    lab.until("the lender has the device again", LONG, |lab| {
        Ok(state(lab, LENDER, &address)? == "Free")
    })?;
    // The borrower has not confirmed that its windows are closed.
    ensure!(counter(lab, LENDER, "fences")? > 0, "its number is free");
    lab.fault(&["link-up", "0", "0"])?;
    for number in 0..2 {
        node(lab, number).back()?;
        no_fences(lab, number)?;
    }
    let lease = Lease::new(lab, OLD, LENDER, &address, false)?;
    let read = marked(lab, OLD, &lease.drive(lab)?)?;
    ensure!(read == "between", "'{read}' in the end");
    lease.end(lab)?;
    reclaim(lab, LENDER, &address)
}

/// Loads the modules, if needed, and lets node 1 offer its drive. Returns its PCI address.
fn offer(lab: &Lab) -> Result<String> {
    for number in 0..3 {
        load(lab, number, OPTIONS)?;
    }
    let address = first(lab, LENDER, DRIVE)?;
    lend(lab, LENDER, &address)?;
    Ok(address)
}

/// The lender loses its power while the drive is in use. The borrower loses the drive without
/// hanging. After the lender's reboot the drive is available.
fn lender_dies(lab: &Lab) -> Result<()> {
    let address = offer(lab)?;
    let lease = Lease::new(lab, OLD, LENDER, &address, false)?;
    let drive = lease.drive(lab)?;
    mark(lab, OLD, &drive, "first")?;
    let lost = counter(lab, OLD, "borrower.lost")?;
    let reading = reader(lab, OLD, &drive)?;
    lab.fault(&["power-off", &LENDER.to_string()])?;
    lease.gone(lab)?;
    reading.wait(LONG)?;
    ensure!(counter(lab, OLD, "borrower.lost")? == lost + 1, "not lost");
    ensure!(
        counter(lab, OLD, "fences")? > 0,
        "its address range is free without a confirmation"
    );
    lab.fault(&["power-on", &LENDER.to_string()])?;
    node(lab, LENDER).back()?;
    let address = offer(lab)?;
    no_fences(lab, OLD)?;
    let lease = Lease::new(lab, OLD, LENDER, &address, false)?;
    let read = marked(lab, OLD, &lease.drive(lab)?)?;
    ensure!(read == "first", "'{read}' is on the drive");
    lease.end(lab)?;
    reclaim(lab, LENDER, &address)
}

/// The borrower loses its power while it uses the drive. A third node borrows the drive. It gets
/// other address ranges until the first node is reachable again.
fn borrower_dies(lab: &Lab) -> Result<()> {
    let address = offer(lab)?;
    let lease = Lease::new(lab, OLD, LENDER, &address, false)?;
    let drive = lease.drive(lab)?;
    mark(lab, OLD, &drive, "first")?;
    let expired = counter(lab, LENDER, "lender.expired")?;
    let _reading = reader(lab, OLD, &drive)?;
    lab.fault(&["power-off", &OLD.to_string()])?;
    let lease = Lease::new(lab, NEXT, LENDER, &address, true)?;
    ensure!(counter(lab, LENDER, "lender.expired")? == expired + 1);
    ensure!(counter(lab, LENDER, "fences")? > 0, "its number is free");
    let drive = lease.drive(lab)?;
    let read = marked(lab, NEXT, &drive)?;
    ensure!(read == "first", "'{read}' is on the drive");
    mark(lab, NEXT, &drive, "second")?;
    lab.fault(&["power-on", &OLD.to_string()])?;
    node(lab, OLD).back()?;
    load(lab, OLD, OPTIONS)?;
    // After its reboot, the first node confirms that it does not use the device.
    no_fences(lab, LENDER)?;
    let read = marked(lab, NEXT, &drive)?;
    ensure!(read == "second", "'{read}' is on the drive");
    lease.end(lab)?;
    reclaim(lab, LENDER, &address)
}

/// Stops or continues a node's CPUs through QEMU. The node's NIC keeps running, and its clock
/// stops.
fn processors(lab: &Lab, number: usize, go: bool) -> Result<()> {
    let dir = directory(lab.name()).join(format!("node{number}"));
    let command = if go { "cont" } else { "stop" };
    lab::qemu::control(&dir, command, json!({})).map(drop)
}

/// The borrower's CPUs stop with all windows open. A third node gets the drive. When the first node
/// continues, its accesses reach neither the drive nor the address ranges that were assigned again.
fn borrower_stops(lab: &Lab) -> Result<()> {
    let address = offer(lab)?;
    let lease = Lease::new(lab, OLD, LENDER, &address, false)?;
    let drive = lease.drive(lab)?;
    mark(lab, OLD, &drive, "first")?;
    let writer = lab.spawn(
        OLD,
        &format!(
            "yes late | head -c 4096 >/tmp/late; while dd if=/tmp/late of={drive} bs=4k seek=9 conv=nocreat oflag=direct 2>/dev/null; do :; done"
        ),
    )?;
    sleep(Duration::from_secs(2));
    processors(lab, OLD, false)?;
    let next = Lease::new(lab, NEXT, LENDER, &address, true)?;
    let fences = counter(lab, LENDER, "fences")?;
    ensure!(fences > 0, "its number is free");
    let other = next.drive(lab)?;
    mark(lab, NEXT, &other, "second")?;
    // Marks the block that the first node writes.
    lab.ok_for(
        NEXT,
        &format!("dd if=/tmp/mark of={other} bs=4k seek=9 oflag=direct 2>/dev/null"),
        LONG,
    )?;
    processors(lab, OLD, true)?;
    lease.gone(lab)?;
    writer.wait(LONG)?;
    no_fences(lab, LENDER)?;
    no_fences(lab, OLD)?;
    // The drive has exactly the blocks that the third node wrote.
    for at in [5, 9] {
        let script = format!(
            "dd if={other} bs=4k skip={at} count=1 iflag=direct 2>/dev/null | cmp - /tmp/mark"
        );
        lab.ok_for(NEXT, &script, LONG)?;
    }
    next.end(lab)?;
    // The first node can borrow the drive again.
    let lease = Lease::new(lab, OLD, LENDER, &address, false)?;
    ensure!(marked(lab, OLD, &lease.drive(lab)?)? == "second");
    lease.end(lab)?;
    reclaim(lab, LENDER, &address)
}
