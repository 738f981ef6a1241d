//! The device files of processes: ABI, data, rights, death of process and NIC, random abuse. The work inside the nodes is done
//! by `guest/uapi.py`.

use super::{reload, PAIR, SETTLE};
use crate::cluster::{field, Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

/// The program, put into the nodes.
const PROGRAM: &str = include_str!("../../guest/uapi.py");
/// How long one command of the program may take.
const LONG: Duration = Duration::from_secs(240);
/// The unprivileged user.
const USER: u32 = 65534;
/// Seed and seconds of the fuzzer; `FUZZ_SECONDS` changes the latter.
const SEED: u32 = 1;
const FUZZ_SECONDS: u64 = 30;

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    let s = |name, run| Scenario {
        name,
        spec: PAIR,
        run,
    };
    vec![
        s("uapi::abi", |lab| run(lab, "abi")),
        s("uapi::loop_back", |lab| run(lab, "loop_back")),
        s("uapi::velo_loop_back", |lab| run(lab, "velo_loop_back")),
        s("uapi::poll", |lab| run(lab, "events")),
        s("uapi::between_nodes", between),
        s("uapi::superuser", superuser),
        s("uapi::open_close", open_close),
        s("uapi::threads_and_children", |lab| run(lab, "shared")),
        s("uapi::kill", kill),
        s("uapi::unbind_while_mapped", unbind),
        s("security::denied", |lab| run(lab, "denied")),
        s("security::limits", |lab| run(lab, "limits")),
        s("security::other_users", other_users),
        s("security::heir", |lab| run(lab, "heir")),
        s("security::interrupt_storm", storm),
        s("fuzz::unprivileged", fuzz),
    ]
}

fn install(lab: &Lab) -> Result<()> {
    for node in 0..2 {
        lab.ok(
            node,
            &format!("cat >/tmp/uapi.py <<'END_OF_PROGRAM'\n{PROGRAM}\nEND_OF_PROGRAM\n"),
        )?;
    }
    Ok(())
}

/// The line that runs a command of the program as an unprivileged user.
fn line(command: &str) -> String {
    format!("ulimit -l 8192; exec python3 /tmp/uapi.py --user {USER} {command}")
}

/// Open ports that are not the network driver's or the kernel's.
fn ports(lab: &Lab, node: usize) -> Result<Vec<String>> {
    let text = lab.ok(node, "cat /sys/kernel/debug/extoll-*/ports")?;
    let user = |l: &&str| !l.contains(" vpid 254 ") && !l.contains(" vpid 252 ");
    Ok(text.lines().filter(user).map(Into::into).collect())
}

/// Nothing of any process is left on the node.
fn nothing_left(lab: &Lab, node: usize) -> Result<()> {
    lab.until("all ports are closed", PATIENCE, |lab| {
        Ok(ports(lab, node)?.is_empty())
    })?;
    lab.ok(
        node,
        "ping -q -c 2 -i 0.2 -w 30 node$((1 - $(hostname | tr -dc 0-9)))",
    )?;
    Ok(())
}

/// One command on node 0 as an unprivileged user.
fn run(lab: &Lab, command: &str) -> Result<()> {
    install(lab)?;
    lab.ok_for(0, &line(command), LONG)?;
    nothing_left(lab, 0)
}

fn superuser(lab: &Lab) -> Result<()> {
    install(lab)?;
    lab.ok_for(0, "exec python3 /tmp/uapi.py superuser", LONG)?;
    nothing_left(lab, 0)
}

/// Runs `command` on node 0 with what `serve` on node 1 offers.
fn against_server(lab: &Lab, serve: &str, command: &str) -> Result<()> {
    install(lab)?;
    // Before the server starts: an old offer must not pass for its.
    lab.ok(1, "rm -f /tmp/offer")?;
    let server = lab.spawn(1, serve)?;
    let mut offer = String::new();
    lab.until("the server offers", PATIENCE, |lab| {
        offer = lab.sh_for(1, "cat /tmp/offer", PATIENCE)?.stdout;
        Ok(!offer.is_empty())
    })?;
    let result = lab.ok_for(0, &line(&format!("{command} '{offer}'")), LONG);
    lab.ok(1, "pkill -KILL -f '[u]api.py.* serve'")?;
    server.stop();
    result?;
    nothing_left(lab, 0)?;
    nothing_left(lab, 1)
}

fn between(lab: &Lab) -> Result<()> {
    against_server(lab, &line("serve /tmp/offer"), "between")
}

fn other_users(lab: &Lab) -> Result<()> {
    let serve = format!(
        "exec python3 /tmp/uapi.py --user {} serve /tmp/offer",
        USER - 1
    );
    against_server(lab, &serve, "strangers")
}

/// Interrupts per second and port in the storm's node: reached on any machine.
const STORM_LIMIT: u64 = 50;

/// A process that interrupts itself without end is slowed down; nobody else is.
fn storm(lab: &Lab) -> Result<()> {
    install(lab)?;
    reload(lab, 0, &format!("user_interrupts={STORM_LIMIT}"))?;
    let result = storm_limited(lab);
    // Back before anything is judged: the others need the default.
    reload(lab, 0, "")?;
    result
}

/// What a line of the `ports` file tells of a counter.
fn counter(line: &str, name: &str) -> Option<u64> {
    let mut words = line.split(' ').skip_while(|w| *w != name);
    words.nth(1)?.parse().ok()
}

fn storm_limited(lab: &Lab) -> Result<()> {
    lab.ok(0, "rm -f /tmp/ready /tmp/stop")?;
    let mark = lab.log_mark(0)?;
    let start = Instant::now();
    let process = lab.spawn(0, &line("storm /tmp/ready /tmp/stop"))?;
    let ready = |lab: &Lab| Ok(lab.sh_for(0, "test -e /tmp/ready", PATIENCE)?.status == 0);
    lab.until("the storm begins", PATIENCE, ready)?;
    // Another user sleeps and wakes by interrupts meanwhile.
    let other = format!("exec python3 /tmp/uapi.py --user {} events", USER - 1);
    let other = lab.spawn(0, &other)?;
    let mut seen = Vec::new();
    lab.until("both ports of the storm are throttled", PATIENCE, |lab| {
        seen = ports(lab, 0)?;
        Ok(seen
            .iter()
            .filter(|l| counter(l, "throttled") > Some(3))
            .count()
            == 2)
    })?;
    let age = |lab: &Lab| -> Result<f64> {
        let text = lab.ok(0, "echo $(($(date +%s%N) - $(date -r /tmp/ready +%s%N)))")?;
        Ok(text.trim().parse::<f64>()? / 1e9)
    };
    seen = ports(lab, 0)?;
    // A window's share, then a pause; one interrupt that was armed before, and one of a window's boundary.
    let most = (age(lab)? + 1.0) * (STORM_LIMIT as f64 + 20.0);
    for line in &seen {
        let interrupts = counter(line, "interrupts").context("no interrupts")?;
        ensure!((interrupts as f64) < most, "more than {most}: {line}");
    }
    let throttled = seen.iter().filter(|l| counter(l, "throttled") > Some(0));
    ensure!(throttled.count() == 2, "others, too: {seen:#?}");
    let out = other.wait(LONG)?;
    ensure!(out.status == 0, "the other user: {out:?}");
    lab.ok(0, "touch /tmp/stop")?;
    let out = process.wait(LONG)?;
    ensure!(out.status == 0, "the storm: {out:?}");
    let counters = lab.ok(0, "cat /sys/kernel/debug/extoll-*/counters")?;
    let times = counters.lines().find_map(|l| counter(l, "33"));
    ensure!(times > Some(6), "reason 33: {times:?}");
    let log = lab.log_since(&mark)?;
    let lines = log
        .matches("reason 33: interrupts of a port throttled")
        .count();
    // Four in each window of ten seconds.
    let most = 4 * (start.elapsed().as_secs() as usize / 10 + 2);
    ensure!(
        (1..=most).contains(&lines),
        "{lines} lines about it, at most {most} expected:\n{log}"
    );
    nothing_left(lab, 0)
}

/// Memory that the kernel uses for itself, and what is free, in KiB.
fn memory(lab: &Lab) -> Result<(u64, u64)> {
    let text = lab.ok(
        0,
        &format!("{SETTLE}; awk '/^SUnreclaim/ {{print \"slab: \" $2}} /^MemAvailable/ {{print \"free: \" $2}}' /proc/meminfo"),
    )?;
    let slab = field(&text, "slab").context("no SUnreclaim")?;
    Ok((slab, field(&text, "free").context("no MemAvailable")?))
}

fn no_growth(before: (u64, u64), after: (u64, u64)) -> Result<()> {
    // A leak of one page per cycle would be 4 MiB.
    let fine = after.0 < before.0 + 2048 && after.1 + 24 * 1024 > before.1;
    ensure!(fine, "memory (slab, free): {before:?} -> {after:?}");
    Ok(())
}

fn open_close(lab: &Lab) -> Result<()> {
    install(lab)?;
    // Once before measuring: the first rounds fill caches.
    lab.ok_for(0, &line("churn 50"), LONG)?;
    let before = memory(lab)?;
    lab.ok_for(0, &line("churn 1000"), LONG)?;
    nothing_left(lab, 0)?;
    no_growth(before, memory(lab)?)
}

/// Kill −9 at many moments of register, transfer, unregister.
fn kill(lab: &Lab) -> Result<()> {
    install(lab)?;
    let before = memory(lab)?;
    lab.ok_for(0, &line("killed 25"), LONG)?;
    nothing_left(lab, 0)?;
    no_growth(before, memory(lab)?)?;
    // The VPIDs are as good as new.
    run(lab, "loop_back")
}

fn unbind(lab: &Lab) -> Result<()> {
    install(lab)?;
    let before = lab.ok(0, "cat /sys/module/extoll/refcnt")?;
    lab.ok(0, "rm -f /tmp/ready /tmp/go")?;
    let process = lab.spawn(0, "exec python3 /tmp/uapi.py unbound /tmp/ready /tmp/go")?;
    let ready = |lab: &Lab| Ok(lab.sh_for(0, "test -e /tmp/ready", PATIENCE)?.status == 0);
    lab.until("everything is mapped", PATIENCE, ready)?;
    let during = lab.ok(0, "cat /sys/module/extoll/refcnt")?;
    ensure!(during != before, "open files do not hold the module");
    let unbind = "d=$(basename $(readlink -f /sys/bus/pci/drivers/extoll/0*)); echo $d >/tmp/dev; echo $d >/sys/bus/pci/drivers/extoll/unbind && \
                  [ ! -e /dev/extoll/rma2 ]";
    lab.ok(0, unbind)?;
    lab.ok(0, "touch /tmp/go")?;
    let out = process.wait(PATIENCE)?;
    // Back before anything is judged: the others need the node.
    lab.ok(
        0,
        "echo $(cat /tmp/dev) >/sys/bus/pci/drivers/extoll/bind; for i in $(seq 100); do [ -e /sys/class/net/exn0 ] && break; sleep 0.1; done; \
         ip addr replace 10.2.0.1/24 broadcast + dev exn0 && ip link set exn0 up",
    )?;
    ensure!(out.status == 0, "the process: {out:?}");
    let after = lab.ok(0, "cat /sys/module/extoll/refcnt")?;
    ensure!(after == before, "module references: {before} -> {after}");
    lab.until("node 1 answers", PATIENCE, |lab| {
        Ok(lab.sh_for(0, "ping -q -c 1 -W 1 node1", PATIENCE)?.status == 0)
    })?;
    lab.until("the network runs", PATIENCE, |lab| {
        Ok(lab.sh_for(0, &line("velo_loop_back"), PATIENCE)?.status == 0)
    })?;
    run(lab, "loop_back")
}

fn fuzz(lab: &Lab) -> Result<()> {
    install(lab)?;
    let seconds = std::env::var("FUZZ_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(FUZZ_SECONDS);
    let before = memory(lab)?;
    let command = line(&format!("fuzz {SEED} {seconds}"));
    lab.ok_for(0, &command, LONG + 2 * Duration::from_secs(seconds))?;
    nothing_left(lab, 0)?;
    nothing_left(lab, 1)?;
    no_growth(before, memory(lab)?)?;
    run(lab, "loop_back")
}
