//! Large calls on connections of AF_EXTL, whose data are not copied. `guest/extl_zero.py` does the
//! work inside the nodes.

use crate::cluster::{seed, Lab, Running, PATIENCE};
use crate::scenarios::ds::direct::{none_left, places_are_free, story};
use crate::scenarios::ds::sockets::bypassing;
use crate::scenarios::expected::REVOKED;
use crate::scenarios::{
    guest,
    node::{node, value, volume},
    on_pair,
};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Maximum duration of a program.
const LONG: Duration = Duration::from_secs(200);
const MIB: u64 = 1 << 20;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("af_extl::zero_move", |lab| bypassing(lab, zero_move)),
        on_pair("af_extl::zero_aligned", |lab| bypassing(lab, zero_aligned)),
        on_pair("af_extl::zero_interrupted", |lab| {
            bypassing(lab, zero_interrupted)
        }),
        on_pair("af_extl::zero_memory", |lab| bypassing(lab, zero_memory)),
        on_pair("af_extl::zero_files", |lab| bypassing(lab, zero_files)).gate(),
        on_pair("af_extl::zero_later", |lab| bypassing(lab, zero_later)),
        on_pair("af_extl::zero_off", |lab| bypassing(lab, zero_off)),
        on_pair("af_extl::zero_polled", |lab| bypassing(lab, zero_polled)),
        on_pair("af_extl::zero_shared", |lab| bypassing(lab, zero_shared)),
        on_pair("af_extl::zero_killed", |lab| bypassing(lab, zero_killed)).finds(REVOKED),
        on_pair("af_extl::zero_power_off", |lab| {
            bypassing(lab, zero_power_off)
        }),
    ]
}

/// Starts a server of `guest/extl_zero.py` on node 1.
fn serve(lab: &Lab, port: u32) -> Result<Running> {
    guest::install(lab, 1)?;
    let program = guest::program("extl_zero");
    let server = lab.spawn(1, &format!("exec {program} serve {port}"))?;
    node(lab, 1).until("it listens", &format!("ss -ltn | grep -q :{port}"))?;
    Ok(server)
}

fn run(lab: &Lab, words: &str) -> Result<String> {
    guest::install(lab, 0)?;
    let line = format!("{} {words} 2>&1", guest::program("extl_zero"));
    let said = lab.sh_for(0, &line, LONG)?;
    ensure!(
        said.status == 0,
        "{words}: {}\nnode0: {}\nnode1: {}",
        said.stdout,
        story(lab, 0),
        story(lab, 1)
    );
    Ok(said.stdout)
}

/// Returns a counter of the data path of a node.
fn counter(lab: &Lab, number: usize, name: &str) -> Result<u64> {
    let text = lab.ok(number, "cat /sys/kernel/debug/af_extl/nics")?;
    value(&text, name).with_context(|| format!("no {name} in {text}"))
}

/// Waits until all sockets are closed, all slots are free and no page is pinned.
fn all_is_given_back(lab: &Lab) -> Result<()> {
    for n in 0..2 {
        none_left(lab, n)?;
    }
    places_are_free(lab)?;
    lab.until("nothing is pinned any more", PATIENCE, |lab| {
        for n in 0..2 {
            let text = lab.ok(n, "grep nr_foll_pin /proc/vmstat")?;
            let of = |name: &str| value(&text, name).with_context(|| text.clone());
            if of("nr_foll_pin_acquired")? != of("nr_foll_pin_released")? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Data arrive unchanged in both directions by calls of many sizes, from and to memory at many
/// offsets.
fn zero_move(lab: &Lab) -> Result<()> {
    let server = serve(lab, 7900)?;
    let first = seed().unwrap_or(1) % 1_000_000;
    for n in 0..volume(1, 10) {
        let said = run(lab, &format!("move 10.2.0.2 7900 {}", first + 1_000 * n))?;
        ensure!(said == "same\n", "{said}");
    }
    for n in 0..2 {
        for name in ["lent", "sunk", "registered"] {
            ensure!(counter(lab, n, name)? > 0, "{name}: {}", story(lab, n));
        }
        for name in ["not-pinned", "not-registered", "crowded"] {
            ensure!(counter(lab, n, name)? == 0, "{name}: {}", story(lab, n));
        }
    }
    server.stop();
    all_is_given_back(lab)
}

/// Page-aligned calls of 1 MiB are not copied: the sender copies nothing, the receiver only data
/// that arrived before its reader.
fn zero_aligned(lab: &Lab) -> Result<()> {
    let server = serve(lab, 7901)?;
    let times = volume(10, 100);
    let said = run(lab, &format!("aligned 10.2.0.2 7901 {times}"))?;
    let counts: Vec<u64> = said.split_whitespace().flat_map(str::parse).collect();
    let all = times * MIB;
    ensure!(counts.len() == 2 && counts[0] == all, "{said}");
    // A ring may fill up before the reader's call.
    let most = all - times * 65_536;
    ensure!(counts[1] >= most, "{said}: {}", story(lab, 0));
    ensure!(counter(lab, 1, "lent")? == all, "{}", story(lab, 1));
    ensure!(counter(lab, 1, "sunk")? >= most, "{}", story(lab, 1));
    server.stop();
    all_is_given_back(lab)
}

/// Calls that end early have sent exactly as much as they return.
fn zero_interrupted(lab: &Lab) -> Result<()> {
    let server = serve(lab, 7902)?;
    let said = run(lab, "interrupted 10.2.0.2 7902")?;
    ensure!(said.ends_with("same\n"), "{said}");
    server.stop();
    all_is_given_back(lab)
}

/// Data stay right when a process forks, unmaps memory that is being sent, or may not lock memory.
fn zero_memory(lab: &Lab) -> Result<()> {
    let server = serve(lab, 7903)?;
    let said = run(lab, "memory 10.2.0.2 7903")?;
    ensure!(said.ends_with("same\n"), "{said}");
    ensure!(counter(lab, 0, "not-pinned")? > 0, "{}", story(lab, 0));
    server.stop();
    all_is_given_back(lab)
}

/// Mapped files work: memory that can't be pinned is copied, and a missing page is an error.
fn zero_files(lab: &Lab) -> Result<()> {
    let server = serve(lab, 7907)?;
    let said = run(lab, "files 10.2.0.2 7907")?;
    ensure!(said == "same\n", "{said}");
    server.stop();
    all_is_given_back(lab)
}

/// With `MSG_ZEROCOPY`, calls return before the peer has the data. The completion comes after the
/// last access to the memory, which is not copied.
fn zero_later(lab: &Lab) -> Result<()> {
    let server = serve(lab, 7908)?;
    let times = volume(12, 60);
    let said = run(lab, &format!("later 10.2.0.2 7908 {times}"))?;
    ensure!(said == format!("0 {}\n", times * MIB), "{said}");
    server.stop();
    all_is_given_back(lab)
}

/// A namespace whose administrator disables zero copy leases no memory to peers.
fn zero_off(lab: &Lab) -> Result<()> {
    let server = serve(lab, 7909)?;
    let set = |value: &str| lab.ok(0, &format!("sysctl -q net.extl.zero_copy_kib={value}"));
    let usual = lab.ok(0, "sysctl -n net.extl.zero_copy_kib")?;
    set("0")?;
    let said = run(lab, "aligned 10.2.0.2 7909 2");
    set(usual.trim())?;
    ensure!(said? == "0 0\n", "something was not copied");
    let said = run(lab, "aligned 10.2.0.2 7909 2")?;
    ensure!(said.starts_with(&format!("{} ", 2 * MIB)), "{said}");
    server.stop();
    all_is_given_back(lab)
}

/// A non-blocking program is notified when it can send, also after the limit of leased memory was
/// reached.
fn zero_polled(lab: &Lab) -> Result<()> {
    let server = serve(lab, 7910)?;
    let set = |value: &str| lab.ok(0, &format!("sysctl -q net.extl.zero_copy_kib={value}"));
    let usual = lab.ok(0, "sysctl -n net.extl.zero_copy_kib")?;
    set("4")?;
    let said = run(lab, "polled 10.2.0.2 7910");
    set(usual.trim())?;
    let lent: u64 = said?.trim().parse()?;
    ensure!(lent > 0, "all was copied");
    ensure!(counter(lab, 0, "not-lent")? > 0, "{}", story(lab, 0));
    server.stop();
    all_is_given_back(lab)
}

/// A child is killed during a call while the peer's node does not answer. The connection that it
/// shares survives, and the stream has no lost or repeated byte.
fn zero_shared(lab: &Lab) -> Result<()> {
    let server = serve(lab, 7911)?;
    guest::install(lab, 0)?;
    let program = guest::program("extl_zero");
    lab.ok(
        0,
        "rm -f /tmp/shared.zero /tmp/shared.go; mkfifo /tmp/shared.go",
    )?;
    let line =
        format!("exec {program} shared 10.2.0.2 7911 2>&1 </tmp/shared.go | tee /tmp/shared.zero");
    let client = lab.spawn(0, &line)?;
    // The writer keeps the FIFO open.
    let go = lab.spawn(
        0,
        "exec 3>/tmp/shared.go; until [ -e /tmp/shared.now ]; do sleep 0.1; done; echo >&3",
    )?;
    node(lab, 0).until("it sends", "grep -q ready /tmp/shared.zero")?;
    lab.fault(&["link-down", "0", "0"])?;
    lab.ok(0, "touch /tmp/shared.now; sleep 5")?;
    lab.fault(&["link-up", "0", "0"])?;
    let said = client.wait(LONG)?.stdout;
    drop(go);
    ensure!(said.starts_with("ready\n"), "{said}: {}", story(lab, 0));
    server.stop();
    all_is_given_back(lab)
}

/// Starts a client that sends to a peer that never reads.
fn holder(lab: &Lab, port: u32) -> Result<Running> {
    guest::install(lab, 0)?;
    let program = guest::program("extl_zero");
    lab.ok(0, "rm -f /tmp/held.zero")?;
    let line = format!("exec {program} hold 10.2.0.2 {port} 2>&1 | tee /tmp/held.zero");
    let running = lab.spawn(0, &line)?;
    node(lab, 0).until("it sends", "grep -q ready /tmp/held.zero")?;
    Ok(running)
}

/// When the process at one end is killed during a call, the other end gets an error and all memory
/// is released.
fn zero_killed(lab: &Lab) -> Result<()> {
    for port in [7904, 7905] {
        let server = serve(lab, port)?;
        let client = holder(lab, port)?;
        let (n, who) = match port {
            7904 => (1, "serve"),
            _ => (0, "hold"),
        };
        lab.ok(n, &format!("pkill -9 -f '[e]xtl_zero.py {who}'"))?;
        if n == 1 {
            let said = client.wait(LONG)?.stdout;
            ensure!(said.trim().ends_with("ECONNRESET"), "{said}");
        }
        drop(server);
        lab.ok(1, "pkill -9 -f '[e]xtl_zero.py serve'; true")?;
        all_is_given_back(lab)?;
    }
    Ok(())
}

/// When the reader's node loses its power during a call, the call ends with an error and all memory
/// is released.
fn zero_power_off(lab: &Lab) -> Result<()> {
    guest::install(lab, 1)?;
    let program = guest::program("extl_zero");
    // The server ends when its node loses power.
    lab.ok(
        1,
        &format!("{program} serve 7906 >/dev/null 2>&1 </dev/null & true"),
    )?;
    node(lab, 1).until("it listens", "ss -ltn | grep -q :7906")?;
    let client = holder(lab, 7906)?;
    lab.fault(&["power-off", "1"])?;
    let said = client.wait(LONG)?.stdout;
    lab.fault(&["power-on", "1"])?;
    node(lab, 0).back()?;
    node(lab, 1).back()?;
    ensure!(said.trim().ends_with("ETIMEDOUT"), "{said}");
    all_is_given_back(lab)
}
