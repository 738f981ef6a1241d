//! Functions of ports that sockets need, tested by `extoll_bench`: messages in parts, handles
//! dropped in any context, and closing a port with a full queue.

use super::expected::REFUSED;
use super::node::node;
use super::{on_pair, raw::number};
use crate::cluster::{as_slow, Lab, Spec};
use crate::Scenario;
use anyhow::{ensure, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("raw::messages_in_pieces", pieces).finds(REFUSED),
        on_pair("raw::handles_dropped_anywhere", dropped),
        Scenario::new("raw::full_mailbox_closed", STUCK, full).finds(REFUSED),
    ]
}

/// NICs that block all traffic behind a message for a closed queue for longer than a scenario
/// takes.
const STUCK: Spec = Spec::pair().emulator(&[
    "--nic-option=hold-scope=unit",
    "--nic-option=hold-closed=keep",
    "--nic-option=hold-timeout-unit-ns=4000000000",
    "--nic-option=full-rule=keep-one-free",
]);

/// Runs a command of `extoll_bench` on node 0 and unloads the module afterwards.
fn bench(lab: &Lab, command: &str) -> Result<BTreeMap<String, String>> {
    lab.ok(0, "modprobe extoll_bench")?;
    let result = lab.raw(0, &format!("ports {command}"));
    lab.ok(0, "rmmod extoll_bench")?;
    node(lab, 0).is_vacant()?;
    result
}

fn all_are(result: &BTreeMap<String, String>, want: &[(&str, u64)]) -> Result<()> {
    for (key, value) in want {
        ensure!(number(result, key)? == *value, "{key}: {result:?}");
    }
    Ok(())
}

/// Messages can be sent and received in parts. Traffic classes keep their order. A poll ends when
/// its closure requests it.
fn pieces(lab: &Lab) -> Result<()> {
    let result = bench(lab, "op=messages")?;
    let want = [
        ("pieces", 120),
        ("classes", 800),
        ("stops", 5),
        ("refused", 1),
    ];
    all_are(&result, &want)?;
    let result = bench(lab, "op=commands")?;
    all_are(&result, &[("stops", 3)])
}

/// The last handles of a port can be dropped with interrupts disabled.
fn dropped(lab: &Lab) -> Result<()> {
    for _ in 0..5 {
        bench(lab, "op=drop")?;
    }
    Ok(())
}

/// A full mailbox can be closed while more messages wait for it. Messages to other ports are not
/// delayed, although the NIC admits no message to a disabled VPID.
fn full(lab: &Lab) -> Result<()> {
    let result = bench(lab, "op=full messages=100 ms=500")?;
    // One slot of the 4096 stays unused.
    ensure!(number(&result, "waiting")? >= 4094, "{result:?}");
    let through = Duration::from_micros(number(&result, "through_us")?);
    ensure!(through < as_slow(Duration::from_secs(2)), "{result:?}");
    node(lab, 0).pings(3, "-i 0.2")
}
