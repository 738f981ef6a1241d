//! The base driver by itself.

use super::PAIR;
use crate::cluster::{Lab, PATIENCE};
use crate::{probe_order, Scenario};
use anyhow::{ensure, Result};

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![Scenario {
        name: "driver::probe_in_reference_order",
        spec: PAIR,
        run: probe,
    }]
}

/// Reloads the modules of node 0 and compares every register access of the probe with HW §3.
fn probe(lab: &Lab) -> Result<()> {
    // A frame from there meets ports that are not open yet: an event, whose interrupt would be between the accesses.
    lab.ok(1, "ip link set exn0 down")?;
    lab.ok(0, "rmmod exn extoll")?;
    lab.run("trace", &["on"], PATIENCE)?;
    let loaded = lab.ok(0, "modprobe exn; modprobe extoll");
    lab.run("trace", &["off"], PATIENCE)?;
    lab.ok(1, "ip link set exn0 up")?;
    loaded?;
    let options = "print --host-only --nic 0 --kind reg-write --kind reg-read";
    let options: Vec<&str> = options.split(' ').collect();
    let text = lab.run("trace", &options, PATIENCE)?;
    let accesses = probe_order::parse(&text);
    let n = probe_order::check(&accesses)?;
    ensure!(n == 8712, "the probe has {n} accesses instead of 8712");
    lab.ok(
        0,
        "ip addr replace 10.2.0.1/24 dev exn0; ip link set exn0 up",
    )?;
    lab.until("node 1 answers again", PATIENCE, |l| {
        Ok(l.sh_for(0, "ping -q -c 1 -W 1 node1", PATIENCE)?.status == 0)
    })
}
