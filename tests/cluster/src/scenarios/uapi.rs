//! The device files for processes: ABI, data, permissions, end of a process or NIC, random misuse.
//! `guest/uapi.py` and `guest/bounds.py` do the work inside the nodes.

use super::expected::{KILLED, OF_INPUT, REFUSED};
use super::guest;
use super::leaks;
use super::node::{extoll, node, volume, Options, Port};
use super::{fuzz, matrix, on_pair};
use crate::cluster::{Lab, Running, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

/// Maximum duration of one command of the program.
const LONG: Duration = Duration::from_secs(240);
/// User ID of the unprivileged user.
pub(super) const USER: u32 = 65534;

/// Two nodes whose units hold all messages for full queues until they are released, and never
/// reject a message because a queue is full. With rejections, the library would give up after five
/// seconds.
const ROOMY: Spec = Spec::pair().emulator(&[
    "--nic-option=hold-buffer-bytes=67108864",
    "--nic-option=hold-timeout-unit-ns=4000000000",
    "--nic-option=faults={}",
]);

/// Returns the scenarios of this file.
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

/// Copies the programs to both nodes.
pub(super) fn install(lab: &Lab) -> Result<()> {
    (0..2).try_for_each(|node| guest::install(lab, node))
}

/// Returns the command line of the program for the unprivileged user.
pub(super) fn line(command: &str) -> String {
    format!("ulimit -l 8192; exec python3 /tmp/guest/uapi.py --user {USER} {command}")
}

/// Checks that no resource of a process is left on the node and that its network works.
pub(super) fn nothing_left(lab: &Lab, number: usize) -> Result<()> {
    node(lab, number).is_vacant()?;
    node(lab, number).pings(2, "-i 0.1")
}

/// Runs one command on node 0 as the unprivileged user.
fn run(lab: &Lab, command: &str) -> Result<()> {
    install(lab)?;
    lab.ok_for(0, &line(command), LONG)?;
    nothing_left(lab, 0)
}

/// Runs one command on node 0 as root.
fn as_root(lab: &Lab, command: &str) -> Result<()> {
    install(lab)?;
    lab.ok_for(
        0,
        &format!("exec python3 /tmp/guest/uapi.py {command}"),
        LONG,
    )?;
    nothing_left(lab, 0)
}

/// With a single address table, registration fails cleanly when it is full.
fn one_table(lab: &Lab) -> Result<()> {
    node(lab, 0).reload(extoll("extoll.atu_gats=1"))?;
    let result = as_root(lab, "one_table");
    // Restores the defaults before the result is checked, because other scenarios need them.
    node(lab, 0).reload(Options::default())?;
    result
}

/// Runs a command of `guest/bounds.py` on node 0 as root. Returns its output.
pub(super) fn bounds(lab: &Lab, command: &str) -> Result<String> {
    let script = format!("exec python3 /tmp/guest/bounds.py --user 0 {command}");
    lab.ok_for(0, &script, Duration::from_secs(120))
}

/// Users with IDs beyond the protection descriptors are rejected, unless `first_user` moves the
/// range.
fn users_without_descriptor(lab: &Lab) -> Result<()> {
    install(lab)?;
    for uid in [65_535, 65_536 + USER, 132_073] {
        bounds(lab, &format!("stranger {uid}"))?;
    }
    node(lab, 0).reload(extoll("first_user=100000"))?;
    install(lab)?;
    let result = bounds(lab, &format!("stranger {USER}"))
        .and_then(|_| lab.ok(0, "exec python3 /tmp/guest/uapi.py --user 132073 loop_back"));
    node(lab, 0).reload(Options::default())?;
    result?;
    nothing_left(lab, 0)
}

/// Under kernel lockdown, root can't reach registers or physical memory by any path, while ports
/// and the interface keep working. Lockdown ends with a reboot.
fn lockdown(lab: &Lab) -> Result<()> {
    install(lab)?;
    node(lab, 0).ok(
        "mountpoint -q /sys/kernel/security || mount -t securityfs none /sys/kernel/security; \
         echo integrity >/sys/kernel/security/lockdown",
    )?;
    let result = as_root(lab, "locked").and_then(|()| as_root(lab, "loop_back"));
    // Other scenarios need a node that can load modules.
    lab.fault(&["power-off", "0"])?;
    lab.fault(&["power-on", "0"])?;
    node(lab, 0).back()?;
    node(lab, 1).back()?;
    result
}

/// `compat_unsafe` lets old binaries run and logs a warning. Without it their accesses are rejected
/// (`denied`).
fn compat_unsafe(lab: &Lab) -> Result<()> {
    const WARNING: &str = "compat_unsafe: every process can read and write all memory";
    let mark = lab.log_mark(0)?;
    node(lab, 0).reload(extoll("compat_unsafe=1"))?;
    let result = run(lab, "compat");
    let warned = lab.log_since(&mark)?.contains(WARNING);
    // Restores the defaults before the result is checked, because other scenarios need them.
    let mark = lab.log_mark(0)?;
    node(lab, 0).reload(Options::default())?;
    result?;
    ensure!(warned, "the log has no warning");
    ensure!(!lab.log_since(&mark)?.contains(WARNING), "warned in vain");
    run(lab, "denied")
}

/// When queues or requesters of processes are full, the sender gets an error and no message is
/// lost.
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

/// A process on node 1 that offers memory, and the text of its offer.
struct Server {
    running: Running,
    offer: String,
}

impl Server {
    fn start(lab: &Lab, uid: u32) -> Result<Self> {
        install(lab)?;
        // Removes an old offer, which must not be mistaken for the new one.
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

    /// Runs a command of `guest/uapi.py` on a node, with the offer as its last argument.
    fn meet(&self, lab: &Lab, node: usize, uid: u32, command: &str) -> Result<()> {
        let script = format!(
            "ulimit -l 8192; exec python3 /tmp/guest/uapi.py --user {uid} {command} '{}'",
            self.offer
        );
        let met = lab.ok_for(node, &script, LONG).map(drop);
        met.with_context(|| format!("{command} on node{node}"))
    }

    /// Checks the server's report on its memory and queues.
    fn sees(&self, lab: &Lab, what: &str) -> Result<()> {
        lab.ok(1, "rm -f /tmp/offer.seen; >/tmp/offer.look")?;
        let mut seen = String::new();
        lab.until("the server has checked its memory", PATIENCE, |lab| {
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

/// A user's processes on both nodes can exchange messages, memory and locks.
fn between(lab: &Lab) -> Result<()> {
    let server = Server::start(lab, USER)?;
    let result = server.meet(lab, 0, USER, "between");
    server.end(lab, result)
}

/// Without the right keys, neither other users' processes nor other processes of the same user can
/// access a process's memory, locks or queues, on the same node or another. Correct commands of the
/// same user succeed.
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

/// Maximum interrupts per second and port in this test. Every host reaches this rate.
const STORM_LIMIT: u64 = 50;

/// A process that interrupts itself without end is throttled. Other processes are not throttled.
fn storm(lab: &Lab) -> Result<()> {
    install(lab)?;
    node(lab, 0).reload(extoll(&format!("extoll.user_interrupts={STORM_LIMIT}")))?;
    let result = storm_limited(lab);
    // Restores the defaults before the result is checked, because other scenarios need them.
    node(lab, 0).reload(Options::default())?;
    result
}

fn storm_limited(lab: &Lab) -> Result<()> {
    lab.ok(0, "rm -f /tmp/ready /tmp/stop")?;
    let mark = lab.log_mark(0)?;
    let start = Instant::now();
    let process = lab.spawn(0, &line("storm /tmp/ready /tmp/stop"))?;
    node(lab, 0).until_file("/tmp/ready")?;
    // At the same time another user sleeps and is woken by interrupts.
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
    // The wait includes the ports of the other user.
    lab.until("both ports of the storm are throttled", PATIENCE, |_| {
        Ok(user()?.len() == 4 && throttled(3)? == 2)
    })?;
    let age = |lab: &Lab| -> Result<f64> {
        let text = lab.ok(0, "echo $(($(date +%s%N) - $(date -r /tmp/ready +%s%N)))")?;
        Ok(text.trim().parse::<f64>()? / 1e9)
    };
    let seen = user()?;
    // A port may use the share of one interval before a pause. One interrupt that was armed earlier
    // and one interrupt at the boundary of an interval may be added.
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
    // The driver logs up to four lines in each interval of ten seconds.
    let most = 4 * (start.elapsed().as_secs() as usize / 10 + 2);
    ensure!(
        (1..=most).contains(&lines),
        "{lines} lines about it, at most {most} expected:\n{log}"
    );
    nothing_left(lab, 0)
}

/// Opening and closing the device files many times leaks no resource.
fn open_close(lab: &Lab) -> Result<()> {
    install(lab)?;
    leaks::watch(node(lab, 0), volume(150, 500), |times| {
        lab.ok_for(0, &line(&format!("churn {times}")), LONG)?;
        nothing_left(lab, 0)
    })
}

/// Killing processes at any point of open, register, transfer, unregister and close leaks no
/// resource.
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
    // VPIDs and the user's limit of locked memory are fully available again.
    run(lab, "loop_back")?;
    run(lab, "limits")
}

/// Processes with open files survive the removal of the NIC, and the NIC works after it is bound
/// again.
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
    // Binds the NIC before the results are checked, because other scenarios need the node.
    node(lab, 0).bind()?;
    node(lab, 0).back()?;
    ensure!(out.status == 0, "the process: {out:?}");
    let after = lab.ok(0, "cat /sys/module/extoll/refcnt")?;
    ensure!(after == before, "module references: {before} -> {after}");
    // Everything works as soon as the network runs.
    node(lab, 0).runs()?;
    run(lab, "velo_loop_back")?;
    run(lab, "loop_back")
}

/// Random calls for `seconds` seconds, in two runs, neither crash nor leak.
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
