//! Sockets with their own data path, which `kernel_ext` lets modules provide. Sockets of the module
//! `loop_family` return the data that was written to them. `guest/loop.py` does the work.

use super::guest;
use super::on_pair;
use crate::cluster::Lab;
use crate::Scenario;
use anyhow::{ensure, Result};
use std::time::Duration;

/// Maximum duration of the scenario.
const LONG: Duration = Duration::from_secs(280);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![on_pair("loops::everything", everything)]
}

/// Sockets with their own data path support copying, waiting, waking, events, errors, signals, time
/// limits, routes and neighbours. All resources are released when the module is unloaded.
fn everything(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    lab.ok(0, "modprobe loop_family")?;
    let line = format!("{} 10.2.0.2 2>&1", guest::program("loop"));
    let said = lab.ok_for(0, &line, LONG)?;
    let right = |l: &&str| l.contains(": right");
    ensure!(said.lines().filter(right).count() >= 18, "{said}");
    lab.until("its sockets are released", LONG, |lab| {
        Ok(lab.ok(0, "cat /sys/module/loop_family/refcnt")?.trim() == "0")
    })?;
    lab.ok(0, "rmmod loop_family").map(drop)
}
