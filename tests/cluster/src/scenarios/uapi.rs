//! The device files of processes: ABI, data, rights, death of process and NIC, random abuse. The work inside the nodes is done
//! by `guest/uapi.py` and `guest/bounds.py`.

use super::expected::{KILLED, OF_INPUT, REFUSED};
use super::guest;
use super::leaks;
use super::node::{extoll, node, volume, Options, Port};
use super::{fuzz, matrix, on_pair};
use crate::cluster::{Lab, Running, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

/// How long one command of the program may take.
const LONG: Duration = Duration::from_secs(240);
/// The unprivileged user.
pub(super) const USER: u32 = 65534;

/// Two nodes whose units hold as many messages for full queues as a scenario sends, for as long as it wants them to, and refuse none
/// for a queue that is behind: the library gives up what is refused for five seconds.
const ROOMY: Spec = Spec::pair().emulator(&[
    "--nic-option=hold-buffer-bytes=67108864",
    "--nic-option=hold-timeout-unit-ns=4000000000",
    "--nic-option=faults={}",
]);

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("uapi::abi", |lab| run(lab, "abi"))
            .gate()
            .finds(REFUSED),
        on_pair("uapi::poll", |lab| run(lab, "events"))
            .gate()
            .finds(REFUSED),
        on_pair("uapi::between_nodes", between)
            .gate()
            .finds(REFUSED),
        on_pair("uapi::superuser", |lab| as_root(lab, "superuser")).finds(REFUSED),
        on_pair("uapi::open_close", open_close).finds(REFUSED),
        on_pair("uapi::threads_and_children", |lab| run(lab, "shared")).finds(REFUSED),
        on_pair("uapi::kill", kill).finds(KILLED),
        on_pair("uapi::unbind_while_mapped", unbind)
            .gate()
            .finds(REFUSED),
        on_pair("security::denied", |lab| run(lab, "denied"))
            .gate()
            .finds(OF_INPUT),
        on_pair("security::limits", |lab| run(lab, "limits")).gate(),
        on_pair("security::all_vpids", |lab| as_root(lab, "all_vpids")),
        on_pair("security::one_table", one_table),
        on_pair(
            "security::users_without_descriptor",
            users_without_descriptor,
        )
        .finds(OF_INPUT),
        Scenario::new("security::full_queues", ROOMY, full_queues).finds(OF_INPUT),
        on_pair("security::other_users", other_users)
            .gate()
            .finds(OF_INPUT),
        on_pair("security::lockdown", lockdown).finds(OF_INPUT),
        on_pair("security::compat_unsafe", compat_unsafe).finds(OF_INPUT),
        on_pair("security::heir", |lab| run(lab, "heir")).finds(OF_INPUT),
        on_pair("security::interrupt_storm", storm).finds(OF_INPUT),
    ]
}

/// Puts the programs into both nodes.
pub(super) fn install(lab: &Lab) -> Result<()> {
    (0..2).try_for_each(|node| guest::install(lab, node))
}

/// The line that runs a command of the program as an unprivileged user.
pub(super) fn line(command: &str) -> String {
    format!("ulimit -l 8192; exec python3 /tmp/guest/uapi.py --user {USER} {command}")
}

/// Nothing of any process is left on the node, and its network works.
pub(super) fn nothing_left(lab: &Lab, number: usize) -> Result<()> {
    node(lab, number).is_vacant()?;
    node(lab, number).pings(2, "-i 0.1")
}

/// One command on node 0 as an unprivileged user.
fn run(lab: &Lab, command: &str) -> Result<()> {
    install(lab)?;
    lab.ok_for(0, &line(command), LONG)?;
    nothing_left(lab, 0)
}

/// The same as root.
fn as_root(lab: &Lab, command: &str) -> Result<()> {
    install(lab)?;
    lab.ok_for(
        0,
        &format!("exec python3 /tmp/guest/uapi.py {command}"),
        LONG,
    )?;
    nothing_left(lab, 0)
}

fn one_table(lab: &Lab) -> Result<()> {
    node(lab, 0).reload(extoll("extoll.atu_gats=1"))?;
    let result = as_root(lab, "one_table");
    // Back before anything is judged: the others need the default.
    node(lab, 0).reload(Options::default())?;
    result
}

/// A command of `guest/bounds.py` on node 0, as root; what it prints.
pub(super) fn bounds(lab: &Lab, command: &str) -> Result<String> {
    let script = format!("exec python3 /tmp/guest/bounds.py --user 0 {command}");
    lab.ok_for(0, &script, Duration::from_secs(120))
}

/// Users whose number is beyond the descriptors are refused, unless the range begins elsewhere.
fn users_without_descriptor(lab: &Lab) -> Result<()> {
    install(lab)?;
    for uid in [65_535, 65_536 + USER, 132_073] {
        bounds(lab, &format!("stranger {uid}"))?;
    }
    node(lab, 0).reload(extoll("extoll.first_user=100000"))?;
    install(lab)?;
    let result = bounds(lab, &format!("stranger {USER}"))
        .and_then(|_| lab.ok(0, "exec python3 /tmp/guest/uapi.py --user 132073 loop_back"));
    node(lab, 0).reload(Options::default())?;
    result?;
    nothing_left(lab, 0)
}

/// Under kernel lockdown root reaches no register and no physical memory, whichever way it tries,
/// while ports and the interface go on to work. Lockdown ends with the boot.
fn lockdown(lab: &Lab) -> Result<()> {
    install(lab)?;
    node(lab, 0).ok(
        "mountpoint -q /sys/kernel/security || mount -t securityfs none /sys/kernel/security; \
         echo integrity >/sys/kernel/security/lockdown",
    )?;
    let result = as_root(lab, "locked").and_then(|()| as_root(lab, "loop_back"));
    // The others need a node whose modules can be loaded.
    lab.fault(&["power-off", "0"])?;
    lab.fault(&["power-on", "0"])?;
    node(lab, 0).back()?;
    node(lab, 1).back()?;
    result
}

/// The switch for old binaries; what it opens is closed without it (`denied`).
fn compat_unsafe(lab: &Lab) -> Result<()> {
    const WARNING: &str = "compat_unsafe: every process can read and write all memory";
    let mark = lab.log_mark(0)?;
    node(lab, 0).reload(extoll("compat_unsafe=1"))?;
    let result = run(lab, "compat");
    let warned = lab.log_since(&mark)?.contains(WARNING);
    // Back before anything is judged: the others need the default.
    let mark = lab.log_mark(0)?;
    node(lab, 0).reload(Options::default())?;
    result?;
    ensure!(warned, "the log has no warning");
    ensure!(!lab.log_since(&mark)?.contains(WARNING), "warned in vain");
    run(lab, "denied")
}

/// Full queues and full requesters of processes: the sender is told, nothing is lost.
fn full_queues(lab: &Lab) -> Result<()> {
    matrix::install(lab, 0)?;
    let program = format!(
        "setpriv --reuid={USER} --regid={USER} --clear-groups -- {}",
        matrix::PROGRAM
    );
    let said = lab.ok_for(0, &format!("exec {program} backlog"), LONG)?;
    println!("        {}", said.trim().replace('\n', ", "));
    nothing_left(lab, 0)?;
    for unit in ["velo", "rma"] {
        let command = format!("exec {program} backlog --stuck {unit} >/tmp/backlog");
        lab.ok(0, "rm -f /tmp/backlog")?;
        lab.fault(&["stuck", "0"])?;
        let running = lab.spawn(0, &command)?;
        let told = lab.until_it_works("the sender is told", PATIENCE, |l| {
            Ok(l.ok(0, "cat /tmp/backlog")?.starts_with("full\n"))
        });
        lab.fault(&["stuck", "0", "--off"])?;
        let out = running.wait(LONG)?;
        told.with_context(|| format!("{unit}: {out:?}"))?;
        ensure!(out.status == 0, "{unit}: {out:?}");
        nothing_left(lab, 0)?;
    }
    Ok(())
}

/// A process on node 1 that offers memory, and what it offers.
struct Server {
    running: Running,
    offer: String,
}

impl Server {
    fn start(lab: &Lab, uid: u32) -> Result<Self> {
        install(lab)?;
        // Before the server starts: an old offer must not pass for its.
        lab.ok(1, "rm -f /tmp/offer /tmp/offer.*")?;
        let serve = format!("exec python3 /tmp/guest/uapi.py --user {uid} serve /tmp/offer");
        let running = lab.spawn(1, &serve)?;
        let mut offer = String::new();
        lab.until("the server offers", PATIENCE, |lab| {
            offer = lab.sh_for(1, "cat /tmp/offer", PATIENCE)?.stdout;
            Ok(!offer.is_empty())
        })?;
        Ok(Self { running, offer })
    }

    /// Runs a command with the offer.
    fn meet(&self, lab: &Lab, node: usize, uid: u32, command: &str) -> Result<()> {
        let script = format!(
            "ulimit -l 8192; exec python3 /tmp/guest/uapi.py --user {uid} {command} '{}'",
            self.offer
        );
        let met = lab.ok_for(node, &script, LONG).map(drop);
        met.with_context(|| format!("{command} on node{node}"))
    }

    /// What the server sees in its memory and queues.
    fn sees(&self, lab: &Lab, what: &str) -> Result<()> {
        lab.ok(1, "rm -f /tmp/offer.seen; >/tmp/offer.look")?;
        let mut seen = String::new();
        lab.until("the server has looked", PATIENCE, |lab| {
            seen = lab.sh_for(1, "cat /tmp/offer.seen", PATIENCE)?.stdout;
            Ok(!seen.is_empty())
        })?;
        lab.ok(1, "rm -f /tmp/offer.look")?;
        ensure!(seen == what, "the server sees '{seen}' instead of '{what}'");
        Ok(())
    }

    fn end(self, lab: &Lab, result: Result<()>) -> Result<()> {
        let killed = lab.sh_for(1, "pkill -KILL -f '[u]api.py.* serve'", PATIENCE)?;
        let out = self.running.wait(PATIENCE)?;
        ensure!(killed.status == 0, "the server ended: {out:?}");
        result?;
        nothing_left(lab, 0)?;
        nothing_left(lab, 1)
    }
}

fn between(lab: &Lab) -> Result<()> {
    let server = Server::start(lab, USER)?;
    let result = server.meet(lab, 0, USER, "between");
    server.end(lab, result)
}

/// Neither another user's processes nor other ones of the same user get at memory, lock or queues by what is not theirs, from
/// the same node or another; the right commands of the right user do.
fn other_users(lab: &Lab) -> Result<()> {
    for node in [0, 1] {
        let server = Server::start(lab, USER - 1)?;
        let untouched = || server.sees(lab, "memory same visitors 0");
        let result = server
            .meet(lab, node, USER, "strangers")
            .and_then(|()| untouched())
            .and_then(|()| server.meet(lab, node, USER - 1, "relatives"))
            .and_then(|()| untouched())
            .and_then(|()| server.meet(lab, node, USER - 1, "friends"))
            .and_then(|()| server.sees(lab, "memory changed visitors 0"));
        server.end(lab, result)?;
    }
    Ok(())
}

/// Interrupts per second and port in the storm's node: reached on any machine.
const STORM_LIMIT: u64 = 50;

/// A process that interrupts itself without end is slowed down; nobody else is.
fn storm(lab: &Lab) -> Result<()> {
    install(lab)?;
    node(lab, 0).reload(extoll(&format!("extoll.user_interrupts={STORM_LIMIT}")))?;
    let result = storm_limited(lab);
    // Back before anything is judged: the others need the default.
    node(lab, 0).reload(Options::default())?;
    result
}

fn storm_limited(lab: &Lab) -> Result<()> {
    lab.ok(0, "rm -f /tmp/ready /tmp/stop")?;
    let mark = lab.log_mark(0)?;
    let start = Instant::now();
    let process = lab.spawn(0, &line("storm /tmp/ready /tmp/stop"))?;
    node(lab, 0).until_file("/tmp/ready")?;
    // Another user sleeps and wakes by interrupts meanwhile.
    let other = format!("exec python3 /tmp/guest/uapi.py --user {} events", USER - 1);
    let other = lab.spawn(0, &other)?;
    let user = || -> Result<Vec<Port>> {
        let mut ports = node(lab, 0).ports()?;
        ports.retain(Port::is_user);
        Ok(ports)
    };
    let throttled = |more: u64| -> Result<usize> {
        let counts = user()?
            .iter()
            .map(|p| p.counter("throttled"))
            .collect::<Result<Vec<_>>>()?;
        Ok(counts.iter().filter(|n| **n > more).count())
    };
    // The other one's are there, too.
    lab.until("both ports of the storm are throttled", PATIENCE, |_| {
        Ok(user()?.len() == 4 && throttled(3)? == 2)
    })?;
    let age = |lab: &Lab| -> Result<f64> {
        let text = lab.ok(0, "echo $(($(date +%s%N) - $(date -r /tmp/ready +%s%N)))")?;
        Ok(text.trim().parse::<f64>()? / 1e9)
    };
    let seen = user()?;
    // A window's share, then a pause; one interrupt that was armed before, and one of a window's boundary.
    let most = (age(lab)? + 1.0) * (STORM_LIMIT as f64 + 20.0);
    for port in &seen {
        let interrupts = port.counter("interrupts")?;
        ensure!((interrupts as f64) < most, "more than {most}: {port:?}");
    }
    ensure!(throttled(0)? == 2, "others, too: {seen:#?}");
    let out = other.wait(LONG)?;
    ensure!(out.status == 0, "the other user: {out:?}");
    lab.ok(0, "touch /tmp/stop")?;
    let out = process.wait(LONG)?;
    ensure!(out.status == 0, "the storm: {out:?}");
    let times = node(lab, 0).reason(33)?;
    ensure!(times > 6, "reason 33 counted {times} times");
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

fn open_close(lab: &Lab) -> Result<()> {
    install(lab)?;
    leaks::watch(node(lab, 0), volume(150, 500), |times| {
        lab.ok_for(0, &line(&format!("churn {times}")), LONG)?;
        nothing_left(lab, 0)
    })
}

/// Kill −9 at many moments of open, register, transfer, unregister, close.
fn kill(lab: &Lab) -> Result<()> {
    install(lab)?;
    let mut seed = fuzz::seed();
    let mut kill = |times: u32| -> Result<()> {
        seed += 1;
        let said = lab.ok_for(0, &line(&format!("killed {times} {seed}")), LONG)?;
        println!("        {}", said.trim());
        nothing_left(lab, 0)
    };
    kill(25)?;
    leaks::watch(node(lab, 0), volume(50, 125), kill)?;
    // The VPIDs, and what the user may lock, are as good as new.
    run(lab, "loop_back")?;
    run(lab, "limits")
}

fn unbind(lab: &Lab) -> Result<()> {
    install(lab)?;
    let before = lab.ok(0, "cat /sys/module/extoll/refcnt")?;
    lab.ok(0, "rm -f /tmp/ready /tmp/go")?;
    let process = lab.spawn(
        0,
        "exec python3 /tmp/guest/uapi.py unbound /tmp/ready /tmp/go",
    )?;
    node(lab, 0).until_file("/tmp/ready")?;
    let during = lab.ok(0, "cat /sys/module/extoll/refcnt")?;
    ensure!(during != before, "open files do not hold the module");
    node(lab, 0).unbind()?;
    lab.ok(0, "touch /tmp/go")?;
    let out = process.wait(PATIENCE)?;
    // Back before anything is judged: the others need the node.
    node(lab, 0).bind()?;
    node(lab, 0).back()?;
    ensure!(out.status == 0, "the process: {out:?}");
    let after = lab.ok(0, "cat /sys/module/extoll/refcnt")?;
    ensure!(after == before, "module references: {before} -> {after}");
    // Once the network runs everything works at once.
    node(lab, 0).runs()?;
    run(lab, "velo_loop_back")?;
    run(lab, "loop_back")
}

/// Random calls for so many seconds, in two parts.
pub(super) fn random_calls(lab: &Lab, seed: u64, seconds: u64) -> Result<()> {
    install(lab)?;
    let seconds = seconds.div_ceil(2);
    let mut seed = seed * 1000;
    let mut part = |_: u32| -> Result<()> {
        seed += 1;
        let command = line(&format!("fuzz {seed} {seconds}"));
        let said = lab.ok_for(0, &command, LONG + 2 * Duration::from_secs(seconds))?;
        println!("        {}", said.trim());
        nothing_left(lab, 0)?;
        nothing_left(lab, 1)
    };
    part(1)?;
    leaks::watch(node(lab, 0), 100, part)?;
    run(lab, "loop_back")
}
