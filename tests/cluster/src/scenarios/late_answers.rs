//! Answers that arrive after the requesting port was closed and opened again.

use super::expected::REFUSED;
use super::guest;
use super::node::{node, Options};
use crate::cluster::{as_slow, Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Result};
use std::time::Duration;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![Scenario::new("faults::late_answers", PATIENT, late_answers).finds(REFUSED)]
}

/// Two nodes with a NIC option that keeps messages for a full queue until the scenario ends
/// (docs/emulator.md, Full queues).
const PATIENT: Spec = Spec::pair().emulator(&["--nic-option=hold-timeout-unit-ns=4000000000"]);

/// Time for which exn keeps memory in quarantine in this scenario. It is several times longer than
/// the steps of the scenario.
const KEPT: Duration = Duration::from_secs(50);

/// Returns a gauge of node 0's quarantine.
fn held(lab: &Lab, name: &str) -> Result<u64> {
    node(lab, 0).held(name)
}

/// Freezes node 1 while frames are outstanding in both directions.
fn freeze(lab: &Lab) -> Result<()> {
    // Node 0 receives the RTS messages of node 1 only after node 1 is frozen and can't answer.
    lab.fault(&["queue-full", "0", "--vpid", "254"])?;
    let ping = "ping -q -c 8 -i 0.05 -W 1 -s 60000 -p ff";
    let unanswered = lab.sh_for(1, &format!("{ping} node0"), PATIENCE)?;
    lab.fault(&["freeze", "1"])?;
    lab.fault(&["queue-full", "0", "--vpid", "254", "--off"])?;
    ensure!(unanswered.status == 1, "ping: {unanswered:?}");
    lab.sh_for(0, &format!("{ping} node1"), PATIENCE)?;
    // The ping may succeed or time out.
    lab.until("both directions are outstanding", PATIENCE, |l| {
        let get = |name| node(l, 0).ethtool(name);
        let sent = get("tx_rdv_in_flight")? + get("tx_rdv_quarantined")?;
        Ok(get("rx_rdv_in_flight")? > 0 && sent > 0)
    })
}

/// The port is closed and opened while commands are outstanding. Late answers must not reach the
/// memory after others use it.
fn late_answers(lab: &Lab) -> Result<()> {
    let kept = as_slow(KEPT).as_millis();
    node(lab, 0).reload(Options {
        exn: &format!("exn.rdv_quarantine_ms={kept}"),
        ..Options::default()
    })?;
    node(lab, 1).back()?;
    freeze(lab)?;
    let late = node(lab, 0).ethtool("notify_late")?;
    lab.ok(0, "ip link set exn0 down; ip link set exn0 up")?;
    ensure!(held(lab, "objects")? > 0, "nothing is in quarantine");
    ensure!(held(lab, "bytes")? > 60_000, "no buffer is in quarantine");
    ensure!(node(lab, 0).has_carrier()?, "the port is not enabled");
    guest::install(lab, 0)?;
    lab.ok(0, "rm -f /tmp/filled /tmp/go")?;
    let fill = lab.spawn(
        0,
        &format!(
            "sync; echo 3 >/proc/sys/vm/drop_caches; exec {}",
            guest::program("fill")
        ),
    )?;
    node(lab, 0).until_file("/tmp/filled")?;
    let filled: u64 = lab.ok(0, "cat /tmp/filled")?.trim().parse()?;
    ensure!(filled > 64, "only {filled} MiB were free");
    ensure!(held(lab, "objects")? > 0, "the quarantine ended too early");
    lab.fault(&["clear"])?;
    let answered = lab.until("late answers arrive", PATIENCE, |l| {
        Ok(node(l, 0).ethtool("notify_late")? > late)
    });
    std::thread::sleep(Duration::from_secs(1));
    lab.ok(0, "touch /tmp/go")?;
    let out = fill.wait(PATIENCE)?;
    ensure!(
        out.status == 0,
        "late answers reached memory of others: {out:?}"
    );
    answered?;
    node(lab, 0).back()?;
    node(lab, 0).pings(5, "-i 0.2 -s 60000")?;
    lab.until("the quarantine is empty", 2 * PATIENCE, |l| {
        Ok(held(l, "objects")? == 0 && held(l, "bytes")? == 0)
    })
}
