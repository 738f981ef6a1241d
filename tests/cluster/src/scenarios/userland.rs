//! User programs: libraries, tools and examples, run by root and by an ordinary user.

use super::expected::{KILLED, REFUSED};
use super::faults::sum;
use super::node::node;
use super::on_pair;
use crate::cluster::{Lab, Output, Running, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("userland::exchange_c_and_rust", exchange).finds(REFUSED),
        on_pair("userland::c_calls", c_calls).gate().finds(REFUSED),
        on_pair("userland::ping", ping)
            .gate()
            .finds(&["drops_wrong_protection"]),
        on_pair("userland::found_by_number", found_by_number).finds(REFUSED),
        on_pair("userland::refusals", refusals).finds(REFUSED),
        on_pair("userland::perf", perf).gate(),
        on_pair("userland::perf_lost_clients", perf_lost_clients).finds(KILLED),
        on_pair("userland::extollctl", extollctl)
            .gate()
            .finds(REFUSED),
        on_pair("userland::trace", trace),
    ]
}

/// Command prefixes for root and for an ordinary user.
const USERS: [&str; 2] = ["", "setpriv --reuid=1000 --regid=1000 --clear-groups -- "];

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../userland")
        .join(path)
}

/// Returns the path of a program that was built together with this one.
pub fn built(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap_or_default();
    path.set_file_name(name);
    path
}

/// Compiles a C program and copies it to /tmp of both nodes.
pub fn c_program(lab: &Lab, directory: &str, name: &str, library: &str) -> Result<()> {
    let out = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-I"])
        .arg(source("include"))
        .arg(source(&format!("{directory}/{name}.c")))
        .arg("-o")
        .arg(&out)
        .arg(built(&format!("{library}.so")))
        .output()?;
    ensure!(
        compiled.status.success(),
        "{name}.c: {}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let copied = copy(lab, &out, name);
    std::fs::remove_file(&out)?;
    copied
}

fn copy(lab: &Lab, from: &Path, name: &str) -> Result<()> {
    let from = from.to_str().context("path")?;
    for node in 0..2 {
        lab.run("cp", &[from, &format!("node{node}:/tmp/{name}")], PATIENCE)?;
    }
    Ok(())
}

/// Starts a server in the background and waits for its first line. Returns the words after `ready`.
pub fn server(
    lab: &Lab,
    node: usize,
    command: &str,
    ready: &str,
) -> Result<(Running, Vec<String>)> {
    let log = "/tmp/server.log";
    lab.ok(node, &format!("rm -f {log}"))?;
    let mut running = lab.spawn(node, &format!("exec {command} >{log} 2>&1"))?;
    let mut line = String::new();
    let seen = lab.until("the server is ready", Duration::from_secs(30), |lab| {
        line = lab.ok(node, &format!("head -n 1 {log} 2>/dev/null || true"))?;
        ensure!(
            running.is_running() || line.contains(ready),
            "it ended: {line}"
        );
        Ok(line.contains(ready) && line.ends_with('\n'))
    });
    if let Err(e) = seen {
        running.stop();
        return Err(e.context(lab.ok(node, &format!("cat {log}"))?));
    }
    let words = line.split_whitespace().map(String::from).collect();
    Ok((running, words))
}

pub fn finish(lab: &Lab, node: usize, running: Running) -> Result<()> {
    let out = running.wait(PATIENCE)?;
    let log = lab.ok(node, "cat /tmp/server.log")?;
    ensure!(out.status == 0, "the server failed ({}): {log}", out.status);
    Ok(())
}

/// Waits until all VPIDs and registered memory of user programs are released.
pub fn nothing_left(lab: &Lab) -> Result<()> {
    (0..2).try_for_each(|number| node(lab, number).is_vacant())
}

/// Parses the output of a program.
pub fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| format!("not JSON: {text}"))
}

/// The examples in C and Rust exchange data with each other, for root and for ordinary users.
fn exchange(lab: &Lab) -> Result<()> {
    c_program(lab, "examples", "rma_exchange", "librma")?;
    copy(lab, &built("extoll-exchange"), "extoll-exchange")?;
    let (c, rust) = ("/tmp/rma_exchange", "/tmp/extoll-exchange");
    for user in USERS {
        for (serving, asking) in [(c, c), (rust, rust), (c, rust), (rust, c)] {
            let (running, words) = server(lab, 1, &format!("{user}{serving} serve"), "ready")?;
            let [_, node, vpid] = &words[..] else {
                anyhow::bail!("{words:?}");
            };
            let said = lab.ok(0, &format!("{user}{asking} {node} {vpid}"));
            let said = said.with_context(|| format!("{user}{asking} with {serving}"))?;
            ensure!(said == "ok\n", "{said}");
            finish(lab, 1, running)?;
        }
    }
    // Without a server, the program ends with an error and does not hang.
    let out = lab.sh_for(0, &format!("timeout 50 {rust} 1 77"), PATIENCE)?;
    ensure!(
        out.status == 1 && out.stderr.contains("timed out"),
        "{out:?}"
    );
    nothing_left(lab)
}

/// Functions of rma2.h that the examples do not use work, between nodes and within a node.
fn c_calls(lab: &Lab) -> Result<()> {
    c_program(lab, "librma/tests", "calls", "librma")?;
    c_program(lab, "librma/tests", "compat", "librma")?;
    // If a queue would exceed the limit of locked memory, the C library and the tools report this
    // limit.
    for (program, wanted) in [
        ("/tmp/compat", "open: limit of locked memory reached (ulimit -l)\n"),
        (
            "extoll-ping 1/0",
            "extoll-ping: no memory for the mailbox: Cannot allocate memory (os error 12) (limit of locked memory: ulimit -l)\n",
        ),
    ] {
        let limited = format!("{}sh -c 'ulimit -l 64; exec {program}'", USERS[1]);
        let out = lab.sh_for(0, &limited, PATIENCE)?;
        ensure!(out.status != 0 && out.stderr == wanted, "{out:?}");
    }
    for user in USERS {
        let said = lab.ok(0, &format!("{user}/tmp/compat"))?;
        ensure!(said == "ok\n", "{said}");
        for serving in [1, 0] {
            let (running, words) =
                server(lab, serving, &format!("{user}/tmp/calls serve"), "ready")?;
            let [_, node, vpid, nla] = &words[..] else {
                anyhow::bail!("{words:?}");
            };
            let said = lab.ok_for(
                0,
                &format!("{user}/tmp/calls {node} {vpid} {nla}"),
                PATIENCE,
            );
            let said = match said {
                Ok(said) => said,
                Err(e) => {
                    let server = lab.ok(serving, "cat /tmp/server.log")?;
                    return Err(e.context(format!("{user}node {serving}: {server}")));
                }
            };
            ensure!(said == "ok\n", "{said}");
            finish(lab, serving, running)?;
        }
    }
    nothing_left(lab)
}

/// extoll-ping accepts an address, a name or a node number, and reports errors clearly.
fn ping(lab: &Lab) -> Result<()> {
    c_program(lab, "examples", "velo_echo", "libvelo")?;
    for user in USERS {
        let (running, words) = server(lab, 1, &format!("{user}extoll-ping --listen"), "listening")?;
        let id = words.last().context("no address")?;
        for options in ["", "--poll", "-s 120", "-s 8 -q"] {
            let out = lab.ok(
                0,
                &format!("{user}extoll-ping -c 5 -i 0.05 -W 10 {options} {id}"),
            )?;
            ensure!(
                out.contains("5 sent, 5 received, 0% lost, 0 wrong"),
                "{out}"
            );
            ensure!(out.contains("rtt min/median/avg/max/mdev = "), "{out}");
        }
        // Pings by name or node number first request the listener's VPID.
        for target in ["node1", "10.2.0.2", "1"] {
            let out = lab.ok(0, &format!("{user}extoll-ping -c 1 -W 10 {target}"))?;
            ensure!(out.starts_with(&format!("extoll-ping {id} from")), "{out}");
            ensure!(out.contains("1 sent, 1 received"), "{out}");
        }
        // Packets of another user are not admitted. The listener reports the rejection over TCP. If
        // TCP does not work, ping prints a hint.
        let other = USERS[usize::from(user.is_empty())];
        let silent = format!("-c 1 -W 0.3 {id}");
        for (target, status) in [("node1", 2), (silent.as_str(), 1)] {
            let refused = lab.sh_for(0, &format!("{other}extoll-ping {target}"), PATIENCE)?;
            ensure!(refused.status == status, "{refused:?}");
            let said = refused.stderr.contains("don't reach each other");
            ensure!(
                said && refused.stderr.contains("CAP_SYS_RAWIO"),
                "{refused:?}"
            );
        }
        let (node, vpid) = id.split_once('/').context("address")?;
        let said = lab.ok(0, &format!("{user}/tmp/velo_echo {node} {vpid}"))?;
        ensure!(said == "ok\n", "{said}");
        // Pings a node without a listener, then an absent node.
        let silent = lab.sh_for(
            0,
            &format!("{user}extoll-ping -c 2 -i 0 -W 0.3 {node}/99"),
            PATIENCE,
        )?;
        ensure!(
            silent.status == 1 && silent.stdout.contains("2 sent, 0 received"),
            "{silent:?}"
        );
        // Killing the listener frees its port.
        lab.ok(1, "pkill -x extoll-ping")?;
        running.wait(PATIENCE)?;
    }
    nothing_left(lab)
}

/// A listener is found by the number of its node, whatever the addresses of exn0.
fn found_by_number(lab: &Lab) -> Result<()> {
    let there = node(lab, 1);
    there.ok("sysctl -qw net.ipv6.bindv6only=1")?;
    let started = server(lab, 1, "extoll-ping --listen", "listening");
    there.ok("sysctl -qw net.ipv6.bindv6only=0")?;
    let (running, words) = started?;
    let id = words.last().context("no address")?;
    let answers = |target: &str| -> Result<()> {
        let out = lab.ok(0, &format!("extoll-ping -c 1 -W 10 {target}"))?;
        let found = out.starts_with(&format!("extoll-ping {id} from"));
        ensure!(found && out.contains("1 received"), "{target}: {out}");
        Ok(())
    };
    let again = "ip link set exn0 down; ip link set exn0 up";
    let random = format!("sysctl -qw net.ipv6.conf.exn0.stable_secret=2001:db8::1; {again}");
    let found = answers("10.2.0.2").and_then(|()| {
        there.ok(&random)?;
        node(lab, 0).until("it is found", "extoll-ping -q -c 1 -W 10 1")?;
        answers("1")?;
        for number in 0..2 {
            node(lab, number).ok("sysctl -qw net.ipv6.conf.exn0.disable_ipv6=1")?;
        }
        answers("1")
    });
    for number in 0..2 {
        node(lab, number).ok("sysctl -qw net.ipv6.conf.exn0.disable_ipv6=0")?;
    }
    there.ok(&format!(
        "sysctl -qw net.ipv6.conf.exn0.addr_gen_mode=0; {again}"
    ))?;
    found?;
    // In a network namespace without an interface of the NIC, the error says so.
    let elsewhere =
        "ip netns add e; ip netns exec e extoll-ping -c 1 1; s=$?; ip netns del e; exit $s";
    fails(lab.sh_for(0, elsewhere, PATIENCE)?, 2, "network namespace")?;
    lab.ok(1, "pkill -x extoll-ping")?;
    running.wait(PATIENCE)?;
    nothing_left(lab)
}

/// A rejected user learns which identities were compared.
fn refusals(lab: &Lab) -> Result<()> {
    let (running, _) = server(lab, 1, "extoll-ping --listen", "listening")?;
    let contained =
        "setpriv --bounding-set=-sys_rawio --inh-caps=-sys_rawio extoll-ping -c 1 node1";
    let contained = lab.sh_for(0, contained, PATIENCE)?;
    let stranger = "setpriv --reuid=70000 --regid=70000 --clear-groups extoll-ping -c 1 node1";
    let stranger = lab.sh_for(0, stranger, PATIENCE)?;
    lab.ok(1, "pkill -x extoll-ping")?;
    running.wait(PATIENCE)?;
    fails(contained, 2, "(user 0 without CAP_SYS_RAWIO)")?;
    fails(stranger, 2, "first_user")?;
    nothing_left(lab)
}

/// A measurement: options; iterations, or 0 if the measurement ends by time; sizes; a counter of
/// the NICs; minimum growth of the counter.
type Measurement = (&'static str, u64, &'static [u64], &'static str, u64);

const PERF: &[Measurement] = &[
    ("velo-lat node1 -n 20 -w 2", 20, &[8], "velo_sent", 40),
    (
        "velo-lat node1 -n 20 -w 2 -e -s 120",
        20,
        &[120],
        "velo_sent",
        40,
    ),
    ("velo-bw node1 -n 300", 300, &[120], "velo_sent", 300),
    ("velo-rate node1 -n 300 -b", 300, &[8], "velo_sent", 600),
    ("put-lat node1 -n 10 -w 2", 10, &[8], "rma_put_bytes", 160),
    (
        "put-lat node1 -n 10 -w 2 -e -s 4096",
        10,
        &[4096],
        "rma_put_bytes",
        20 << 12,
    ),
    (
        "get-lat node1 -n 10 -w 2 -a --max-size 16",
        10,
        &[1, 2, 4, 8, 16],
        "rma_get_bytes",
        310,
    ),
    (
        "put-bw node1 -n 40 -s 64k -t 8",
        40,
        &[65536],
        "rma_put_bytes",
        40 << 16,
    ),
    (
        "get-bw node1 -n 40 -s 64k -t 8",
        40,
        &[65536],
        "rma_get_bytes",
        40 << 16,
    ),
    (
        "put-bw node1 -n 20 -s 4k -b",
        20,
        &[4096],
        "rma_put_bytes",
        40 << 12,
    ),
    (
        "get-bw node1 -n 20 -s 4k -b -e",
        20,
        &[4096],
        "rma_get_bytes",
        40 << 12,
    ),
    ("velo-lat node1 -D 0.5", 0, &[8], "velo_sent", 2),
];

/// Checks a line of a report: size, number of iterations, and figures that must be consistent.
fn is_plausible(line: &Value, is_latency: bool, iterations: u64, size: u64) -> Result<()> {
    let number = |value: &Value| value.as_f64().context("not a number");
    ensure!(line["bytes"] == size, "not {size} bytes: {line}");
    let did = line["iterations"].as_u64().context("iterations")?;
    ensure!(
        did == iterations || iterations == 0 && did > 0,
        "{did} instead of {iterations} iterations"
    );
    let (bytes, messages) = (
        number(&line["bytes_per_second"])?,
        number(&line["messages_per_second"])?,
    );
    ensure!(
        messages > 0.0 && (bytes / messages / size as f64 - 1.0).abs() < 0.01,
        "{bytes} bytes and {messages} messages per second"
    );
    if is_latency {
        let of = |name: &str| number(&line["latency_us"][name]);
        let (least, most) = (of("min")?, of("max")?);
        for name in ["median", "mean", "p99"] {
            ensure!(
                least > 0.0 && (least..=most).contains(&of(name)?),
                "{name} is not between {least} and {most}"
            );
        }
    }
    Ok(())
}

/// extoll-perf measures all operations with plausible results.
fn perf(lab: &Lab) -> Result<()> {
    for user in USERS {
        let (running, _) = server(lab, 1, &format!("{user}extoll-perf serve"), "serving")?;
        let run = |what: &str| -> Result<Value> {
            let command = format!("{user}extoll-perf run {what} --timeout 30 --json");
            json(&lab.ok_for(0, &command, Duration::from_secs(120))?)
        };
        for (what, iterations, sizes, counter, least) in PERF {
            let before = sum(&lab.status()?, counter);
            let result = run(what)?;
            let moved = sum(&lab.status()?, counter) - before;
            ensure!(
                moved >= *least,
                "{what}: {counter} moved by {moved} instead of {least}: {result}"
            );
            let results = result["results"].as_array().context("no results")?;
            ensure!(results.len() == sizes.len(), "{what}: {result}");
            for (line, size) in results.iter().zip(*sizes) {
                is_plausible(line, what.contains("-lat"), *iterations, *size)
                    .with_context(|| format!("{what}: {result}"))?;
            }
            ensure!(result["client"] == 0 && result["server"] == 1, "{result}");
        }
        let other = USERS[usize::from(user.is_empty())];
        let refused = format!("{other}extoll-perf run put-lat node1 -n 1");
        let refused = lab.sh_for(0, &refused, PATIENCE)?;
        ensure!(
            refused.status == 2 && refused.stderr.contains("such ports don't reach each other"),
            "{refused:?}"
        );
        let table = lab.ok(
            0,
            &format!("{user}extoll-perf run put-bw node1 -n 10 -s 4k --timeout 30"),
        )?;
        ensure!(
            table.contains("BW[MiB/s]") && table.lines().count() == 2,
            "{table}"
        );
        lab.ok(1, "pkill -x extoll-perf")?;
        running.wait(PATIENCE)?;
        let cost = json(&lab.ok(0, &format!("{user}extoll-perf reg -s 64k -n 5 --json"))?)?;
        ensure!(
            cost["ns_per_page"].as_f64() > Some(0.0) && cost["page_bytes"] == 4096,
            "{cost}"
        );
    }
    let refused = lab.sh_for(0, "extoll-perf run velo-lat node1", PATIENCE)?;
    ensure!(
        refused.status == 2 && refused.stderr.contains("extoll-perf serve"),
        "{refused:?}"
    );
    nothing_left(lab)
}

/// Clients that die, stop or stay silent do not block the server for the next client.
fn perf_lost_clients(lab: &Lab) -> Result<()> {
    let (running, _) = server(lab, 1, "extoll-perf serve", "serving")?;
    let served = |what: &str| -> Result<()> {
        lab.ok_for(
            0,
            "extoll-perf run velo-lat node1 -n 5 -w 1 --timeout 20",
            Duration::from_secs(30),
        )
        .with_context(|| format!("not served after a client that {what}"))
        .map(drop)
    };
    // The test runs in its own session, because a stopped process gets SIGHUP when its session
    // ends.
    let lose = |test: &str, signal: &str| -> Result<()> {
        let sent = |lab: &Lab| -> Result<u64> { Ok(sum(&lab.status()?, "packets_sent")) };
        let before = sent(lab)?;
        let start =
            format!("setsid extoll-perf run {test} >/tmp/lost.log 2>&1 & echo $! >/tmp/lost.pid");
        lab.ok(0, &start)?;
        lab.until("the test is running", PATIENCE, |lab| {
            Ok(sent(lab)? > before + 500)
        })
        .and_then(|()| {
            let end = format!("p=$(cat /tmp/lost.pid); kill -0 $p && kill -{signal} $p");
            lab.ok(0, &end).map(drop)
        })
        .with_context(|| lab.ok(0, "cat /tmp/lost.log").unwrap_or_default())
    };
    for test in ["put-bw", "get-lat", "put-lat", "velo-lat", "velo-bw -b"] {
        lose(&format!("{test} node1 -D 300 --timeout 600"), "KILL")?;
        served(&format!("was killed in {test}"))?;
    }
    lose("put-bw node1 -D 300 --timeout 6", "STOP")?;
    served("stopped")?;
    lab.ok(
        0,
        "(sleep 300 | socat - TCP:node1:18515) >/dev/null 2>&1 & sleep 1",
    )?;
    served("says nothing")?;
    // A test may last longer than the time-out while it makes progress, even if only the client
    // sees the progress.
    for test in ["put-bw", "get-bw -b", "get-lat"] {
        let command = format!("extoll-perf run {test} node1 -D 12 -s 4k --timeout 6");
        lab.ok(0, &command)?;
    }
    let log = lab.ok(1, "cat /tmp/server.log")?;
    ensure!(
        log.matches("gone").count() == 5
            && log.matches("did not finish: timed out").count() == 1
            && log.matches("does not answer: timed out").count() == 1
            && log.lines().count() == 8,
        "{log}"
    );
    lab.ok(0, "pkill -KILL -x extoll-perf; pkill -x socat; true")?;
    lab.ok(1, "pkill -x extoll-perf")?;
    running.wait(PATIENCE)?;
    nothing_left(lab)
}

fn fails(out: Output, status: i32, why: &str) -> Result<()> {
    ensure!(
        out.status == status && out.stderr.contains(why),
        "not refused for '{why}': {out:?}"
    );
    Ok(())
}

/// extollctl shows and changes the state of NICs here and on other nodes.
fn extollctl(lab: &Lab) -> Result<()> {
    let user = USERS[1];
    let list = json(&lab.ok(0, "extollctl --json list")?)?;
    let nic = &list["nics"][0];
    ensure!(
        nic["driver"] == "extoll" && nic["status"]["node"] == "0",
        "{list}"
    );
    ensure!(nic["interfaces"][0] == "exn0", "{list}");
    ensure!(
        list["device_files"].as_array().map(Vec::len) >= Some(5),
        "{list}"
    );
    let text = lab.ok(0, &format!("{user}extollctl list"))?;
    ensure!(
        text.contains("extoll") && text.contains("/dev/extoll/rma2"),
        "{text}"
    );

    let (running, words) = server(lab, 0, &format!("{user}extoll-ping --listen"), "listening")?;
    let vpid = words
        .last()
        .and_then(|id| id.split('/').nth(1))
        .context("address")?;
    let ports = json(&lab.ok(0, "extollctl --json ports")?)?;
    let pid: u64 = lab.ok(0, "pgrep -x extoll-ping")?.trim().parse()?;
    let mine = |p: &Value| {
        p["unit"] == "velo"
            && p["vpid"].as_u64().map(|v| v.to_string()).as_deref() == Some(vpid)
            && (p["pid"].as_u64(), p["user"].as_u64()) == (Some(pid), Some(1000))
    };
    ensure!(
        ports.as_array().is_some_and(|all| all.iter().any(mine)),
        "{ports}"
    );
    // Ports of the kernel have no owner.
    let exn = |p: &Value| p["vpid"] == 254 && p["pid"].is_null() && p["user"].is_null();
    ensure!(
        ports.as_array().is_some_and(|all| all.iter().any(exn)),
        "{ports}"
    );
    lab.ok(0, "pkill -x extoll-ping")?;
    running.wait(PATIENCE)?;

    let link = lab.ok(0, "ethtool exn0")?;
    for line in ["Speed: Unknown!", "Duplex: Full", "Link detected: yes"] {
        ensure!(link.contains(line), "{link}");
    }

    let counters = lab.ok(0, "extollctl counters")?;
    ensure!(counters.contains("interrupts"), "{counters}");
    let all = json(&lab.ok(0, "extollctl --json counters -a")?)?;
    ensure!(all.as_array().map(Vec::len) > Some(10), "{all}");

    // The cable is on link 0 of both ends.
    let links = json(&lab.ok(0, "extollctl --json links")?)?;
    let up = |links: &Value| {
        links
            .as_array()
            .map(|l| l.iter().filter(|l| l["state"] == "up").count())
    };
    ensure!(up(&links) == Some(1), "{links}");
    let remote = json(&lab.ok(0, "extollctl --json links --node 1")?)?;
    ensure!(up(&remote) == Some(1), "{remote}");

    // Reads the register with the node ID on this node and on node 1: bits [39:24] of 0x8008 (HW
    // §4.2).
    for (options, node) in [("", 0), ("--node 1", 1)] {
        let read = json(&lab.ok(0, &format!("extollctl --json reg read 0x8008 {options}"))?)?;
        let value = read["value"].as_u64().context("value")?;
        ensure!((value >> 24) & 0xFFFF == node, "{read}");
        ensure!(
            read["fields"].as_array().is_some_and(|f| !f.is_empty()),
            "{read}"
        );
    }
    let names = lab.ok(0, "extollctl reg list lp0 status")?;
    ensure!(names.contains("nw_lp_top_rf_lp0_status"), "{names}");
    // Writes a scratchpad register of node 1 from node 0 and reads it on node 1.
    let pad = "info_rf_scratchpad_scratchpad --index 7";
    lab.ok(
        0,
        &format!("extollctl reg write {pad} 0xFEED_5EED --node 1"),
    )?;
    let read = json(&lab.ok(1, &format!("extollctl --json reg read {pad}"))?)?;
    ensure!(read["value"] == 0xFEED_5EEDu64, "{read}");

    fails(
        lab.sh_for(0, "extollctl reg read 0x8009", PATIENCE)?,
        2,
        "multiples of 8",
    )?;
    fails(
        lab.sh_for(0, "extollctl reg read lp0_stat", PATIENCE)?,
        2,
        "similar names",
    )?;
    fails(
        lab.sh_for(0, "extollctl reg read rma_rf_requester_history", PATIENCE)?,
        2,
        "--force",
    )?;
    fails(
        lab.sh_for(0, &format!("{user}extollctl reg read 0x8008"), PATIENCE)?,
        2,
        "root",
    )?;
    fails(
        lab.sh_for(0, &format!("{user}extollctl ports"), PATIENCE)?,
        2,
        "root",
    )?;
    fails(
        lab.sh_for(0, "extollctl -N 0000:09:00.0 list", PATIENCE)?,
        2,
        "no Extoll NIC",
    )?;
    fails(
        lab.sh_for(0, "extollctl reg read 0x8008 --node 999", PATIENCE)?,
        2,
        "of node 999",
    )?;
    nothing_left(lab)
}

/// Starts a trace on node 0 and waits until it records.
fn tracing(lab: &Lab, command: &str) -> Result<Running> {
    node(lab, 0).ok(UNTRACED)?;
    let traced = lab.spawn(0, &format!("exec {command}"))?;
    let recording =
        "grep -q '[1X]' /sys/kernel/tracing/instances/extoll-trace-*/events/extoll/enable";
    match node(lab, 0).until("it records", recording) {
        Ok(()) => Ok(traced),
        Err(e) => {
            traced.stop();
            Err(e)
        }
    }
}

/// Succeeds if no trace buffer is left.
const UNTRACED: &str = "[ -z \"$(ls /sys/kernel/tracing/instances)\" ]";

/// extoll-trace prints events of one VPID or kind, and leaves no buffer behind.
fn trace(lab: &Lab) -> Result<()> {
    let node = node(lab, 0);
    let traced = tracing(lab, "extoll-trace -V 254 >/tmp/trace")?;
    node.pings(5, "-i 0.1")?;
    let seen = |word: &str| node.until(word, &format!("grep -qF '{word}' /tmp/trace"));
    let all = [
        "velo 254 send ",
        "velo 254 recv ",
        " bytes to node 1/254",
        " bytes from 1/254",
    ]
    .into_iter()
    .try_for_each(seen);
    lab.ok(0, "pkill -INT -x extoll-trace")?;
    let out = traced.wait(PATIENCE)?;
    all.with_context(|| lab.ok(0, "tail -n 50 /tmp/trace").unwrap_or_default())?;
    // A trace that a signal ends removes its buffer.
    ensure!(out.status == 0, "{out:?}");
    // The trace ends by itself after three events.
    let traced = tracing(lab, "extoll-trace --json -e interrupt -c 3")?;
    node.pings(10, "-i 0.1")?;
    let out = traced.wait(PATIENCE)?;
    let lines: Vec<&str> = out.stdout.lines().collect();
    ensure!(out.status == 0 && lines.len() == 3, "{out:?}");
    for line in lines {
        ensure!(json(line)?["event"] == "extoll_interrupt", "{line}");
    }
    node.ok(UNTRACED)?;
    let denied = lab.sh_for(0, &format!("{}extoll-trace -D 1", USERS[1]), PATIENCE)?;
    ensure!(
        denied.status == 2 && denied.stderr.contains("root"),
        "{denied:?}"
    );
    Ok(())
}
