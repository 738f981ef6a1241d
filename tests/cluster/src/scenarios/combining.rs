//! A NIC whose host combines stores, which takes its time with descriptors and has room for few (HW §8): what the drivers and libraries
//! may not take for granted. The work inside the nodes is done by `guest/combining.py` and `guest/uapi.py`.

use super::faults::sum;
use super::guest;
use super::node::node;
use super::uapi::{install, line, nothing_left};
use super::userland::server;
use crate::cluster::{Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Two nodes, one cable; see docs/nic-model.md for the options.
const COMBINING: Spec = Spec::pair().emulator(&[
    "--nic-option=wc=lines",
    "--nic-option=wc-commit-ns=2000000",
    "--nic-option=wc-depth=3",
]);
/// The same with a NIC that takes longer than the driver waits when a process ends, and room for all.
const LATE: Spec = Spec::pair().append(&["extoll.slow=1"]).emulator(&[
    "--nic-option=wc=lines",
    "--nic-option=wc-commit-ns=40000000",
    "--nic-option=wc-depth=256",
    "--nic-option=faults={}",
]);
const LONG: Duration = Duration::from_secs(240);

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("combining::fenced", COMBINING, fenced).gate(),
        Scenario::new("combining::missing_fence", COMBINING, missing_fence).finds(&["wc_unfenced"]),
        Scenario::new("combining::full_by_itself", COMBINING, full),
        Scenario::new("combining::heir", COMBINING, heir)
            .finds(&["drops_incomplete_descriptor", "wc_unfenced"]),
        Scenario::new("combining::late_heir", LATE, late_heir),
    ]
}

fn unfenced(lab: &Lab) -> Result<u64> {
    Ok(sum(&lab.status()?, "wc_unfenced"))
}

fn combining(lab: &Lab, command: &str) -> Result<String> {
    install(lab)?;
    lab.ok_for(
        0,
        &format!("exec {} {command}", guest::program("combining")),
        LONG,
    )
}

/// The kernel's drivers, the library and a program that marks its fences itself leave none out.
fn fenced(lab: &Lab) -> Result<()> {
    let before = unfenced(lab)?;
    combining(lab, "fenced")?;
    lab.ok_for(0, "ping -q -i 0.02 -c 200 node1", LONG)?;
    let (running, _) = server(lab, 1, "extoll-perf serve", "serving")?;
    let result = ["velo-lat", "put-lat"].iter().try_for_each(|test| {
        let run = format!("extoll-perf run {test} node1 -n 200");
        lab.ok_for(0, &run, LONG).map(drop)
    });
    running.stop();
    result?;
    // What has no fence is found out a second later at the latest.
    lab.ok(0, "sleep 1.5")?;
    let now = unfenced(lab)?;
    ensure!(
        now == before,
        "{} descriptors without a fence",
        now - before
    );
    nothing_left(lab, 0)
}

/// A program without fences loses messages, and each of them counts.
fn missing_fence(lab: &Lab) -> Result<()> {
    let before = unfenced(lab)?;
    let came = combining(lab, "unfenced")?;
    let came: u64 = came.trim().parse().context("no number of messages")?;
    ensure!(came < 40, "all {came} messages came without a fence");
    lab.until("all of them count", PATIENCE, |lab| {
        Ok(unfenced(lab)? - before >= 39)
    })?;
    nothing_left(lab, 0)
}

/// Bursts find no room by themselves: the drivers repeat what was dropped, and nothing is lost or comes twice.
fn full(lab: &Lab) -> Result<()> {
    let counters = |lab: &Lab| -> Result<(u64, u64, u64)> {
        Ok((
            sum(&lab.status()?, "velo_retries"),
            node(lab, 0).port_counter("replayed")?,
            node(lab, 0).port_counter("lost")?,
        ))
    };
    let before = counters(lab)?;
    lab.ok_for(0, "ping -q -l 20 -i 0.02 -c 400 node1", LONG)?;
    lab.ok_for(0, "ping -q -f -s 8000 -c 400 node1", LONG)?;
    // On a slow machine frames of one message come too far apart for a queue of three; the eleven of a longer frame do not.
    node(lab, 0).ok("ethtool --set-tunable exn0 tx-copybreak 2000")?;
    let long = lab.ok_for(0, "ping -q -i 0.02 -s 1200 -c 100 node1", LONG);
    node(lab, 0).ok("ethtool --set-tunable exn0 tx-copybreak 120")?;
    long?;
    let after = counters(lab)?;
    ensure!(after.0 > before.0, "no requester reported retry");
    ensure!(after.1 > before.1, "the driver replayed nothing");
    ensure!(after.2 == before.2, "packets were given up");
    nothing_left(lab, 0)
}

/// A VPID changes hands while descriptors of its last owner are on their way.
fn heir(lab: &Lab) -> Result<()> {
    install(lab)?;
    lab.ok_for(0, &line("heir"), LONG)?;
    nothing_left(lab, 0)
}

/// A VPID changes hands although descriptors of its last owner take longer than the driver waits: not before they are through.
fn late_heir(lab: &Lab) -> Result<()> {
    let kept = || node(lab, 0).reason(34);
    let before = kept()?;
    install(lab)?;
    lab.ok_for(0, &line("late_heir"), LONG)?;
    nothing_left(lab, 0)?;
    ensure!(kept()? > before, "the driver never had to wait");
    Ok(())
}
