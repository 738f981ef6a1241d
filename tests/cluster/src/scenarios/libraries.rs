//! The libraries with the real driver: removal of a NIC under a sleeping program, packets that the
//! NIC drops, writes that the bus loses, and windows of the SMFU. `guest/libs.py` and the tools do
//! the work inside the nodes.

use super::expected::REFUSED;
use super::faults::sum;
use super::node::node;
use super::on_pair;
use super::uapi::install;
use super::userland::{c_program, finish, nothing_left, server};
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;
use wire::ids::NodeId;
use wire::regs::smfu::{self, IntervalControl, RRA_WINDOW};

/// Maximum duration of one command of the guest program.
const LONG: Duration = Duration::from_secs(240);
const USER: &str = "setpriv --reuid=1000 --regid=1000 --clear-groups -- ";
/// Number of an interval that the driver does not use.
const INTERVAL: u32 = 61;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("libraries::unbound_while_asleep", unbound).finds(REFUSED),
        on_pair("libraries::signals", signals).finds(REFUSED),
        on_pair("libraries::idle", idle).finds(REFUSED),
        on_pair("libraries::replay", replay).finds(REFUSED),
        on_pair("libraries::lost_writes", lost_writes).finds(REFUSED),
        on_pair("libraries::smfu_in_c", smfu_in_c)
            .gate()
            .finds(REFUSED),
    ]
}

fn line(command: &str) -> String {
    format!("{USER}python3 /tmp/guest/libs.py {command}")
}

/// When the NIC is unbound, a program that sleeps in a blocking call gets the documented error and
/// no signal.
fn unbound(lab: &Lab) -> Result<()> {
    install(lab)?;
    lab.ok(0, "rm -f /tmp/libvelo /tmp/librma /tmp/crate")?;
    let sleepers = [
        ("libvelo", line("unbound libvelo /tmp/libvelo")),
        ("librma", line("unbound librma /tmp/librma")),
        (
            "crate",
            format!("exec {USER}extoll-ping --listen >/tmp/crate"),
        ),
    ];
    // The directory belongs to root; the programs run as another user.
    lab.ok(0, "chmod 1777 /tmp")?;
    let mut running = vec![];
    for (name, command) in &sleepers {
        running.push((*name, lab.spawn(0, command)?));
    }
    for (name, _) in &running {
        let ready = format!("test -e /tmp/{name} && [ {name} != crate -o -s /tmp/{name} ]");
        node(lab, 0).until("it sleeps", &ready)?;
    }
    // The programs fall asleep within this second.
    lab.ok(0, "sleep 1")?;
    node(lab, 0).unbind()?;
    let ended: Vec<_> = running
        .into_iter()
        .map(|(name, process)| (name, process.wait(PATIENCE)))
        .collect();
    // Binds the NIC before the results are checked, because other scenarios need the node.
    node(lab, 0).bind()?;
    for (name, out) in ended {
        let out = out.with_context(|| format!("{name} sleeps on"))?;
        match name {
            "crate" => ensure!(
                out.status < 128 && out.stderr.contains("the NIC is gone"),
                "{name}: {out:?}"
            ),
            _ => ensure!(out.status == 0, "{name}: {out:?}"),
        }
    }
    node(lab, 0).back()?;
    nothing_left(lab)
}

/// A signal interrupts a blocking call once, and the call can be repeated.
fn signals(lab: &Lab) -> Result<()> {
    install(lab)?;
    for unit in ["libvelo", "librma"] {
        lab.ok_for(0, &line(&format!("signals {unit}")), LONG)?;
    }
    nothing_left(lab)
}

/// Idle receivers hardly use the CPU, and still answer.
fn idle(lab: &Lab) -> Result<()> {
    const RECEIVERS: u64 = 32;
    let start = format!(
        "for i in $(seq {RECEIVERS}); do extoll-ping --listen --port $((20000+i)) >/tmp/idle$i 2>&1 </dev/null & done"
    );
    lab.ok(0, &start)?;
    let listening = format!("[ $(cat /tmp/idle* | grep -c listening) = {RECEIVERS} ]");
    let switches = || -> Result<u64> {
        let count = "cat $(printf '/proc/%s/status ' $(pgrep -x extoll-ping)) | awk '/ctxt_switches/ { n += $2 } END { print n }'";
        Ok(lab.ok(0, count)?.trim().parse()?)
    };
    let woken = node(lab, 0).until("they wait", &listening).and_then(|()| {
        // Receivers that have waited longer sleep longer between polls.
        lab.ok(0, "sleep 4")?;
        let before = switches()?;
        lab.ok(0, "sleep 5")?;
        let woken = switches()? - before;
        let id = lab.ok(0, "awk '{ print $NF }' /tmp/idle1")?;
        lab.ok(0, &format!("extoll-ping -c 1 -W 10 {}", id.trim()))?;
        Ok(woken)
    });
    lab.ok(0, "pkill -x extoll-ping; rm -f /tmp/idle*")?;
    let woken = woken?;
    // Each receiver wakes up once per second. A few more wake-ups come from the system.
    ensure!(woken < 20 * RECEIVERS, "{woken} context switches in 5 s");
    nothing_left(lab)
}

/// The NIC of node 0 keeps dropping packets, and every interface of the libraries repeats the
/// dropped packets.
fn replay(lab: &Lab) -> Result<()> {
    install(lab)?;
    c_program(lab, "examples", "rma_exchange", "librma")?;
    c_program(lab, "examples", "velo_echo", "libvelo")?;
    lab.fault(&["retry", "0", "--every", "5"])?;
    let result = replayed(lab);
    lab.fault(&["retry", "0", "--every", "0"])?;
    result?;
    nothing_left(lab)
}

/// Runs a command on node 0 and checks that the NIC dropped packets during it.
fn dropping(lab: &Lab, what: &str, unit: &str, command: &str) -> Result<String> {
    let before = sum(&lab.status()?, unit);
    let said = lab
        .ok_for(0, command, LONG)
        .with_context(|| what.to_string())?;
    let dropped = sum(&lab.status()?, unit) - before;
    ensure!(dropped > 3, "{what}: {dropped} times something was dropped");
    Ok(said)
}

fn replayed(lab: &Lab) -> Result<()> {
    let (running, words) = server(lab, 1, &format!("{USER}extoll-ping --listen"), "listening")?;
    let id = words.last().context("no address")?;
    let (node, vpid) = id.split_once('/').context("address")?;
    let ping = |options: &str| {
        format!("{USER}extoll-ping -q -c 60 -i 0 -W 20 {options} {id} | grep '60 received, 0% lost, 0 wrong'")
    };
    let (velo, rma) = ("velo_retries", "rma_retries");
    dropping(lab, "the crate, asleep", velo, &ping(""))?;
    dropping(lab, "the crate, polling", velo, &ping("--poll"))?;
    let echo = format!("{USER}/tmp/velo_echo {node} {vpid}");
    dropping(lab, "libvelo", velo, &echo)?;
    let events = line(&format!("velo_loop {node} {vpid} 60"));
    dropping(lab, "an event loop with libvelo", velo, &events)?;
    lab.ok(1, "pkill -x extoll-ping")?;
    running.wait(PATIENCE)?;

    let events = line("rma_loop 60");
    dropping(lab, "an event loop with librma", rma, &events)?;
    let serve = format!("{USER}/tmp/rma_exchange serve");
    for round in 0..5 {
        let (running, words) = server(lab, 1, &serve, "ready")?;
        let [_, node, vpid] = &words[..] else {
            anyhow::bail!("{words:?}");
        };
        let said = lab.ok_for(0, &format!("{USER}/tmp/rma_exchange {node} {vpid}"), LONG)?;
        ensure!(said == "ok\n", "round {round}: {said}");
        finish(lab, 1, running)?;
    }
    let (running, _) = server(lab, 1, &format!("{USER}extoll-perf serve"), "serving")?;
    for (what, unit) in [
        ("velo-bw node1 -n 300", velo),
        ("put-bw node1 -n 200 -s 4k -t 16", rma),
        ("get-bw node1 -n 60 -s 4k -t 16", rma),
        ("put-lat node1 -n 40 -w 2 -e", rma),
    ] {
        let command = format!("{USER}extoll-perf run {what} --timeout 60 --json");
        dropping(lab, what, unit, &command)?;
    }
    lab.ok(1, "pkill -x extoll-perf")?;
    running.wait(PATIENCE)?;
    Ok(())
}

/// When a write into a queue of a process is lost, the next wait reports it and continues behind
/// it.
fn lost_writes(lab: &Lab) -> Result<()> {
    install(lab)?;
    for unit in ["velo", "rma"] {
        lab.ok(0, "rm -f /tmp/ready")?;
        let waiting = lab.spawn(0, &line(&format!("lost_{unit} /tmp/ready")))?;
        let mut vpid = String::new();
        lab.until("it has a port", PATIENCE, |lab| {
            vpid = lab.sh_for(0, "cat /tmp/ready", PATIENCE)?.stdout;
            Ok(vpid.ends_with('\n'))
        })?;
        let before = sum(&lab.status()?, "drops_lost_write");
        lab.fault(&["dma-fault", "0", "--ring", unit, "--vpid", vpid.trim()])?;
        lab.ok(0, "echo go >/tmp/ready")?;
        let out = waiting.wait(LONG)?;
        let lost = sum(&lab.status()?, "drops_lost_write") - before;
        lab.fault(&["clear"])?;
        ensure!(out.status == 0, "{unit}: {out:?}");
        ensure!(lost == 1, "{unit}: {lost} writes were lost instead of one");
    }
    nothing_left(lab)
}

/// The functions of libsmfu work: a window to the other node, its memory, error codes.
fn smfu_in_c(lab: &Lab) -> Result<()> {
    install(lab)?;
    lab.ok_for(0, "python3 /tmp/guest/libs.py smfu_errors", LONG)?;
    for (from, to) in [(0usize, 1usize), (1, 0)] {
        let (running, words) = server(lab, to, "python3 /tmp/guest/libs.py smfu_export", "ready")?;
        ensure!(words[1] == to.to_string(), "{words:?}");
        let registers = [
            u64::from(smfu::interval_control(INTERVAL).get()),
            u64::from(smfu::interval_startaddr(INTERVAL).get()),
            u64::from(smfu::interval_endaddr(INTERVAL).get()),
            u64::from(smfu::O_START_ADDR.get()),
            IntervalControl::to_node(NodeId(to as u16)).raw(),
        ];
        let registers = registers.map(|r| r.to_string()).join(" ");
        let command = format!("python3 /tmp/guest/libs.py smfu_use {to} {RRA_WINDOW} {registers}");
        lab.ok_for(from, &command, LONG)?;
        finish(lab, to, running)?;
    }
    Ok(())
}
