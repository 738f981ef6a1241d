//! Sockets with a data path of their own as `kernel_ext` lets modules make them, by the module
//! `loop_family`, whose sockets give back what was written, and `guest/loop.py`.

use super::guest;
use super::on_pair;
use crate::cluster::Lab;
use crate::Scenario;
use anyhow::{ensure, Result};
use std::time::Duration;

/// How long all of it may take.
const LONG: Duration = Duration::from_secs(280);

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![on_pair("loops::everything", everything)]
}

/// Copying, waiting, waking, events, errors, signals, time limits, routes and neighbours; and
/// nothing is left when the module goes.
fn everything(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    lab.ok(0, "modprobe loop_family")?;
    let line = format!("{} 10.2.0.2 2>&1", guest::program("loop"));
    let said = lab.ok_for(0, &line, LONG)?;
    let right = |l: &&str| l.contains(": right");
    ensure!(said.lines().filter(right).count() >= 18, "{said}");
    lab.until("its sockets are gone", LONG, |lab| {
        Ok(lab.ok(0, "cat /sys/module/loop_family/refcnt")?.trim() == "0")
    })?;
    lab.ok(0, "rmmod loop_family").map(drop)
}
