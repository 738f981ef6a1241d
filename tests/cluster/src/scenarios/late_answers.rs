//! Answers that come when the port that asked is closed, open again, or another driver's.

use super::expected::REFUSED;
use super::guest;
use super::node::{node, value, Options};
use crate::cluster::{as_slow, Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        slow("faults::late_answers", late_answers).finds(REFUSED),
        slow("faults::late_answers_bounded", bounded).finds(REFUSED),
        slow("faults::late_answers_without_exn", without_exn).finds(REFUSED),
        slow("faults::late_answers_after_bind", after_bind).finds(REFUSED),
    ]
}

/// Two nodes whose full queues hold messages for as long as a scenario wants them to (docs/nic-model.md, Full queues).
const PATIENT: Spec = Spec::pair().emulator(&["--nic-option=hold-timeout-unit-ns=4000000000"]);

fn slow(name: &'static str, run: fn(&Lab) -> Result<()>) -> Scenario {
    Scenario::new(name, PATIENT, run)
}

/// Seconds for which memory stays in quarantine where things have to happen before that is over: several times as long as they take.
const LONG: u64 = 50;
/// Seconds where it has to be over: as few as the driver allows.
const SHORT: u64 = 8;

/// exn's option for how long memory stays in quarantine.
fn keep(seconds: u64) -> String {
    let time = as_slow(Duration::from_secs(seconds));
    format!("rdv_quarantine_ms={}", time.as_millis())
}

/// Loads the modules of node 0 with these options.
fn load(lab: &Lab, extoll: &str, exn: &str) -> Result<()> {
    node(lab, 0).reload(Options { extoll, exn })?;
    node(lab, 1).back()
}

/// A gauge of the quarantine of node 0.
fn held(lab: &Lab, name: &str) -> Result<u64> {
    node(lab, 0).held(name)
}

/// Both nodes reach each other with the longest frames.
fn works(lab: &Lab) -> Result<()> {
    node(lab, 0).back()?;
    node(lab, 0).pings(5, "-i 0.2 -s 60000")
}

/// Freezes node 1 while node 0 waits for frames of it, and it for frames of node 0.
fn freeze(lab: &Lab) -> Result<()> {
    // What node 1 announces waits until node 1 can't answer any more.
    lab.fault(&["queue-full", "0", "--vpid", "254"])?;
    let ping = "ping -q -c 8 -i 0.05 -W 1 -s 60000 -p ff";
    let unanswered = lab.sh_for(1, &format!("{ping} node0"), PATIENCE)?;
    lab.fault(&["freeze", "1"])?;
    lab.fault(&["queue-full", "0", "--vpid", "254", "--off"])?;
    ensure!(unanswered.status == 1, "ping: {unanswered:?}");
    lab.sh_for(0, &format!("{ping} node1"), PATIENCE)?;
    // In time or not.
    lab.until("both directions are outstanding", PATIENCE, |l| {
        let get = |name| node(l, 0).ethtool(name);
        let sent = get("tx_rdv_in_flight")? + get("tx_rdv_quarantined")?;
        Ok(get("rx_rdv_in_flight")? > 0 && sent > 0)
    })
}

fn thaw(lab: &Lab) -> Result<()> {
    lab.fault(&["clear"]).map(drop)
}

fn empty(lab: &Lab) -> Result<()> {
    lab.until("the quarantine is empty", 2 * PATIENCE, |l| {
        Ok(held(l, "objects")? == 0 && held(l, "bytes")? == 0)
    })
}

/// The port is closed and opened while commands are outstanding; what came too late reaches no memory of others.
fn late_answers(lab: &Lab) -> Result<()> {
    load(lab, "", &keep(LONG))?;
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
    thaw(lab)?;
    let answered = lab.until("late answers come", PATIENCE, |l| {
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
    works(lab)?;
    empty(lab)
}

/// However often the port is opened, no more is held than the limit and what one port may have outstanding.
fn bounded(lab: &Lab) -> Result<()> {
    load(lab, "quarantine_kib=64", &keep(LONG))?;
    freeze(lab)?;
    lab.ok(0, "ip link set exn0 down; ip link set exn0 up")?;
    let (objects, bytes) = (held(lab, "objects")?, held(lab, "bytes")?);
    ensure!(
        objects > 0 && bytes > 64 << 10,
        "{objects} objects, {bytes} bytes"
    );
    ensure!(node(lab, 0).disabled_ms(254)? > 0, "the port is enabled");
    for _ in 0..5 {
        lab.ok(
            0,
            "ping -q -c 1 -W 1 -s 20000 node1; ip link set exn0 down; ip link set exn0 up",
        )?;
        ensure!(!node(lab, 0).has_carrier()?, "there is a carrier");
        ensure!(held(lab, "objects")? <= objects, "the quarantine grew");
    }
    thaw(lab)?;
    empty(lab)?;
    ensure!(held(lab, "total_objects")? == objects, "more was added");
    works(lab)?;
    load(lab, "", "")
}

/// What exn left is freed when it is not loaded any more.
fn without_exn(lab: &Lab) -> Result<()> {
    load(lab, "", &keep(SHORT))?;
    freeze(lab)?;
    // In one go: it is not held for long.
    let text = lab.ok(0, "rmmod exn && cat /sys/kernel/debug/extoll-*/quarantine")?;
    ensure!(
        value(&text, "objects") > Some(0),
        "nothing is in quarantine: {text}"
    );
    empty(lab)?;
    thaw(lab)?;
    lab.ok(0, &format!("modprobe exn {}", keep(SHORT)))?;
    node(lab, 0).back()?;
    // Both modules, with something held: all is freed at once. What was forgotten is over when they are loaded again.
    freeze(lab)?;
    node(lab, 0).unload()?;
    std::thread::sleep(as_slow(Duration::from_secs(SHORT)));
    node(lab, 0).load(Options::default())?;
    thaw(lab)?;
    node(lab, 0).back()?;
    node(lab, 1).back()
}

/// Unbinding frees; the next driver doesn't enable the VPID before late answers can't come any more.
fn after_bind(lab: &Lab) -> Result<()> {
    load(lab, "", &keep(LONG))?;
    freeze(lab)?;
    let refused = |l: &Lab| -> Result<u64> {
        let status = l.status()?;
        let nic = &status["fabric"]["nics"][0]["counters"];
        nic["drops_vpid_disabled"]
            .as_u64()
            .context("drops_vpid_disabled")
    };
    node(lab, 0).unbind()?;
    node(lab, 0).bind()?;
    node(lab, 0).address_back()?;
    ensure!(held(lab, "objects")? == 0, "memory outlived the driver");
    ensure!(node(lab, 0).disabled_ms(254)? > 0, "the port is enabled");
    ensure!(!node(lab, 0).has_carrier()?, "there is a carrier");
    let before = refused(lab)?;
    thaw(lab)?;
    lab.until("late answers are refused", PATIENCE, |l| {
        Ok(refused(l)? > before)
    })?;
    works(lab)?;
    ensure!(
        node(lab, 0).disabled_ms(254)? == 0,
        "the port is not enabled"
    );
    load(lab, "", "")
}
