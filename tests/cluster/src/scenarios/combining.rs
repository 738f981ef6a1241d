//! A host that combines stores and a NIC that accepts few descriptors, slowly (HW §8). The drivers
//! and libraries must fence their descriptors. `guest/combining.py` does the work inside the nodes.

use super::faults::sum;
use super::guest;
use super::uapi::{install, nothing_left};
use super::userland::server;
use crate::cluster::{Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Two nodes with one cable. docs/emulator.md describes the options.
const COMBINING: Spec = Spec::pair().emulator(&[
    "--nic-option=wc=lines",
    "--nic-option=wc-commit-ns=2000000",
    "--nic-option=wc-depth=3",
]);

const LONG: Duration = Duration::from_secs(240);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("combining::fenced", COMBINING, fenced).gate(),
        Scenario::new("combining::missing_fence", COMBINING, missing_fence).finds(&["wc_unfenced"]),
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

/// The kernel's drivers, the libraries and a program with its own fences fence every descriptor.
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
    // The emulator detects a missing fence within one second.
    lab.ok(0, "sleep 1.5")?;
    let now = unfenced(lab)?;
    ensure!(
        now == before,
        "{} descriptors without a fence",
        now - before
    );
    nothing_left(lab, 0)
}

/// A program without fences loses messages, and the emulator counts each missing fence.
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
