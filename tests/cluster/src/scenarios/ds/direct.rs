//! Connections of AF_EXTL between nodes whose data bypass TCP. `guest/extl_direct.py` does the work
//! inside the nodes.

use crate::cluster::{seed, Lab, Running, PATIENCE};
use crate::scenarios::ds::connect::with_options;
use crate::scenarios::ds::sockets::{bypassing, configured, PATIENT, REMOVED};
use crate::scenarios::{
    guest,
    node::{node, value, volume},
    on_pair,
};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Maximum duration of one exchange.
const LONG: Duration = Duration::from_secs(200);
/// Sizes of the messages that are sent in both directions, in bytes.
const SIZES: &str = "1 2 111 112 113 2047 2048 2049 65535 65536 65537 1048576";

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("af_extl::direct_echo", |lab| bypassing(lab, direct_echo)).gate(),
        on_pair("af_extl::direct_threads", |lab| {
            bypassing(lab, direct_threads)
        }),
        on_pair("af_extl::direct_calls", |lab| bypassing(lab, direct_calls)),
        on_pair("af_extl::direct_cases", |lab| bypassing(lab, direct_cases)).gate(),
        on_pair("af_extl::direct_calls_same", |lab| {
            bypassing(lab, direct_calls_same)
        }),
        on_pair("af_extl::direct_killed", |lab| {
            bypassing(lab, direct_killed)
        }),
        on_pair("af_extl::direct_fallback", |lab| {
            bypassing(lab, direct_fallback)
        }),
        on_pair("af_extl::direct_unbind", |lab| {
            bypassing(lab, direct_unbind)
        }),
        on_pair("af_extl::direct_churn", |lab| bypassing(lab, direct_churn)),
        on_pair("af_extl::direct_busy_poll", |lab| {
            bypassing(lab, direct_busy_poll)
        }),
        on_pair("af_extl::direct_power_off", |lab| {
            bypassing(lab, direct_power_off)
        }),
    ]
}

/// Returns a counter of `/proc/net/extl_stat`.
fn counter(lab: &Lab, number: usize, name: &str) -> Result<u64> {
    let text = lab.ok(number, "cat /proc/net/extl_stat")?;
    value(&text, name).with_context(|| format!("no {name} in {text}"))
}

/// Returns the state of a node's sockets and data path, for error messages.
pub(super) fn story(lab: &Lab, number: usize) -> String {
    let script = "cat /proc/net/extl /proc/net/extl_stat /sys/kernel/debug/af_extl/nics /sys/kernel/debug/af_extl/connections";
    lab.ok(number, script).unwrap_or_default()
}

/// Returns the address of a node on the fabric.
pub(super) fn host(lab: &Lab, number: usize, version: u32) -> Result<String> {
    if version == 4 {
        return Ok(format!("10.2.0.{}", number + 1));
    }
    let script =
        "ip -6 -o addr show dev exn0 scope link | awk '{sub(\"/.*\", \"\", $4); print $4}'";
    Ok(lab.ok(number, script)?.trim().to_owned() + "%exn0")
}

/// Waits until no AF_EXTL socket is left on a node.
pub(super) fn none_left(lab: &Lab, number: usize) -> Result<()> {
    lab.until("all sockets are released", PATIENCE, |lab| {
        Ok(counter(lab, number, "sockets")? == 0)
    })
}

/// Starts a server of `guest/extl_direct.py` on node 1.
fn serve(lab: &Lab, kind: &str, port: u32) -> Result<Running> {
    guest::install(lab, 1)?;
    let program = guest::program("extl_direct");
    let server = lab.spawn(1, &format!("exec {program} serve {kind} {port}"))?;
    node(lab, 1).until("it listens", &format!("ss -ltn | grep -q :{port}"))?;
    Ok(server)
}

fn run(lab: &Lab, words: &str) -> Result<String> {
    guest::install(lab, 0)?;
    let line = format!("{} {words} 2>&1", guest::program("extl_direct"));
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

/// Data of all sizes arrive unchanged in both directions at the same time, with blocking calls and
/// with epoll. TCP carries none of the data.
fn direct_echo(lab: &Lab) -> Result<()> {
    let first = seed().unwrap_or(1) % 1_000_000;
    for (n, kind) in (0..).zip(["extl4", "alias4", "extl6", "alias6"]) {
        let port = 7600 + n;
        let server = serve(lab, kind, port)?;
        let to = host(lab, 1, if kind.ends_with('4') { 4 } else { 6 })?;
        for _ in 0..volume(1, 10) {
            let said = run(lab, &format!("echo {kind} {to} {port} {first} {SIZES}"))?;
            ensure!(said == "same\n", "{kind}: {said}");
        }
        server.stop();
        none_left(lab, 1)?;
        none_left(lab, 0)?;
    }
    for n in 0..2 {
        ensure!(
            counter(lab, n, "Waiting+UseStreams")? >= 8,
            "{}",
            story(lab, n)
        );
    }
    Ok(())
}

/// Many threads can exchange data of random sizes on their connections at the same time.
fn direct_threads(lab: &Lab) -> Result<()> {
    // A slow machine takes seconds to accept all connections, because it also creates rings for
    // each. The time-out is longer, so that TCP carries none of the data.
    with_options(
        lab,
        "af_extl.ask_ms=20 af_extl.asks=50 af_extl.accept_ms=30000 af_extl.zero_copy_kib=128",
    )?;
    let first = seed().unwrap_or(1) % 1_000_000;
    let (port, to) = (7604, host(lab, 1, 4)?);
    let server = serve(lab, "alias4", port)?;
    let words = format!("threads extl4 {to} {port} {first} 16 {}", volume(3, 40));
    let said = run(lab, &words)?;
    ensure!(said == "same\n", "{said}");
    server.stop();
    none_left(lab, 0)?;
    none_left(lab, 1)
}

/// Call flags and all ways to end a connection work as with TCP.
fn direct_calls(lab: &Lab) -> Result<()> {
    for (port, kind) in [(7610, "extl4"), (7611, "alias6")] {
        let server = serve(lab, kind, port)?;
        let to = host(lab, 1, if kind.ends_with('4') { 4 } else { 6 })?;
        let said = run(lab, &format!("calls {kind} {to} {port}"))?;
        ensure!(said == "same\n", "{kind}: {said}");
        server.stop();
    }
    none_left(lab, 0)?;
    none_left(lab, 1)
}

/// With `SO_BUSY_POLL` a program polls the rings and does not sleep.
fn direct_busy_poll(lab: &Lab) -> Result<()> {
    const COUNT: u64 = 100;
    let polls = || -> Result<u64> {
        let text = lab.ok(0, "cat /sys/kernel/debug/af_extl/nics")?;
        value(&text, "busy-polls").with_context(|| text.clone())
    };
    let server = serve(lab, "alias4", 7680)?;
    let before = polls()?;
    let said = run(lab, &format!("busy alias4 10.2.0.2 7680 {COUNT}"))?;
    let more = polls()? - before;
    server.stop();
    let slept = said.split_whitespace().map(str::parse::<u64>);
    let slept: Vec<_> = slept.collect::<Result<_, _>>().context(said)?;
    println!("        slept {slept:?}, {more} busy polls");
    // A busy poll ends early when another program needs the CPU.
    ensure!(
        slept.len() == 2 && slept[0] >= COUNT && 2 * slept[1] <= slept[0] && more >= COUNT,
        "slept {slept:?}, {more} busy polls"
    );
    none_left(lab, 0)?;
    none_left(lab, 1)
}

/// The same calls give the same results on direct connections and on connections of TCP.
fn direct_calls_same(lab: &Lab) -> Result<()> {
    // The debug kernel has no system calls for 32-bit programs.
    let expected = match lab.ok(0, "ls /proc/sys/abi; uname -r")? {
        said if said.contains("vsyscall32") => "same",
        said => {
            ensure!(said.contains("debug"), "{said}");
            "same without 32 bits"
        }
    };
    played(
        lab,
        |program| format!("{program} play 10.2.0.2 7670"),
        expected,
    )
}

/// The cases of the kernel's vsock_test pass.
fn direct_cases(lab: &Lab) -> Result<()> {
    let cases = guest::program("extl_cases");
    played(lab, |_| format!("{cases} 10.2.0.2 7670"), "26 same")
}

/// Runs a program on node 0 against `guest/extl_plays.py` on node 1.
fn played(lab: &Lab, line: impl Fn(&str) -> String, expected: &str) -> Result<()> {
    for n in 0..2 {
        guest::install(lab, n)?;
    }
    let program = guest::program("extl_plays");
    let server = lab.spawn(1, &format!("exec {program} serve 7670"))?;
    node(lab, 1).until("it listens", "ss -ltn | grep -q :7672")?;
    let said = lab.sh_for(0, &format!("{} 2>&1", line(&program)), LONG)?;
    ensure!(
        said.stdout.trim() == expected,
        "{}{}",
        said.stdout,
        story(lab, 0)
    );
    server.stop();
    none_left(lab, 0)?;
    none_left(lab, 1)?;
    places_are_free(lab)
}

/// A client on node 0 that sends to a peer that never reads, and prints the error that ends the
/// connection.
struct Holder(Running);

impl Holder {
    fn new(lab: &Lab, port: u32) -> Result<Self> {
        Self::with(lab, port, "send")
    }

    fn with(lab: &Lab, port: u32, way: &str) -> Result<Self> {
        guest::install(lab, 0)?;
        let program = guest::program("extl_direct");
        // Removes the file first, because `until` would find the output of an earlier client.
        lab.ok(0, &format!("rm -f /tmp/held.{way}"))?;
        let line =
            format!("exec {program} hold alias4 10.2.0.2 {port} {way} 2>&1 | tee /tmp/held.{way}");
        let running = lab.spawn(0, &line)?;
        let ready = format!("grep -q ready /tmp/held.{way}");
        let connected = node(lab, 0).until("it has a connection", &ready);
        if connected.is_err() {
            let said = lab.ok(0, &format!("cat /tmp/held.{way}"))?;
            connected.context(said)?;
        }
        Ok(Self(running))
    }

    /// Returns the error that ended the connection.
    fn error(self) -> Result<String> {
        Ok(self.error_at()?.0)
    }

    /// Returns the error and its time in seconds of the node's clock.
    fn error_at(self) -> Result<(String, f64)> {
        let said = self.0.wait(LONG)?.stdout;
        let last = said.lines().last().unwrap_or_default();
        let (error, seconds) = last.split_once(' ').with_context(|| said.clone())?;
        Ok((error.to_owned(), seconds.parse()?))
    }
}

/// When the process at one end is killed, the other end gets an error.
fn direct_killed(lab: &Lab) -> Result<()> {
    for port in [7620, 7621] {
        let server = serve(lab, "alias4", port)?;
        let holder = Holder::new(lab, port)?;
        if port == 7620 {
            lab.ok(1, "pkill -9 -f '[e]xtl_direct.py serve'")?;
            let error = holder.error()?;
            ensure!(error == "ECONNRESET", "{error}");
        } else {
            lab.ok(0, "pkill -9 -f '[e]xtl_direct.py hold'")?;
            none_left(lab, 0)?;
        }
        drop(server);
        lab.ok(1, "pkill -9 -f '[e]xtl_direct.py serve'; true")?;
        none_left(lab, 0)?;
        none_left(lab, 1)?;
    }
    places_are_free(lab)
}

/// Waits until all slots and rings of connections are free.
pub(super) fn places_are_free(lab: &Lab) -> Result<()> {
    lab.until("places and rings are free", PATIENCE, |lab| {
        for n in 0..2 {
            let nics = lab.ok(n, "cat /sys/kernel/debug/af_extl/nics")?;
            let free = |name: &str| nics.lines().any(|l| l.starts_with(&format!("{name} 0 of")));
            if !free("places") || !free("rings") {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// If either side lacks the data path, the connection uses TCP and reports the reason.
fn direct_fallback(lab: &Lab) -> Result<()> {
    let echo = |server: &str, port: u32, expected: &[&str]| -> Result<()> {
        guest::install(lab, 0)?;
        guest::install(lab, 1)?;
        let program = guest::program("extl");
        let serving = lab.spawn(1, &format!("exec {program} serve {server} {port}"))?;
        node(lab, 1).until("it listens", &format!("ss -ltn | grep -q :{port}"))?;
        for expected in expected {
            let words = format!("{program} echo alias4 10.2.0.2 {port} 100000");
            let said = lab.ok_for(0, &words, LONG)?;
            ensure!(said.trim() == *expected, "{server}: {said}, not {expected}");
        }
        serving.stop();
        // The module may be missing on node 1, because `tcp4` does not need it.
        if server != "tcp4" {
            none_left(lab, 1)?;
        }
        none_left(lab, 0)
    };
    echo("alias4", 7630, &["same 3 0"])?;
    echo("tcp4", 7631, &["same 2 9"])?;
    let load = |n: usize, on: u32| {
        let options = configured(&format!("{PATIENT} af_extl.data_path={on}"));
        lab.ok(n, &format!("{REMOVED}; {options} && modprobe af_extl"))
    };
    let checked = (|| {
        load(1, 0)?;
        echo("alias4", 7632, &["same 2 12"])?;
        let none = "echo 'install af_extl /bin/false' >/etc/modprobe.d/extl.conf";
        lab.ok(1, &format!("{REMOVED} && {none}"))?;
        // The peer does not answer. The client's node sends one request, and no further request for
        // some time.
        echo("tcp4", 7633, &["same 2 6", "same 2 7"])?;
        lab.ok(1, "rm /etc/modprobe.d/extl.conf")?;
        load(1, 1)?;
        load(0, 0)?;
        echo("alias4", 7634, &["same 2 3"])
    })();
    lab.ok(1, "rm -f /etc/modprobe.d/extl.conf")?;
    load(1, 1)?;
    load(0, 1)?;
    checked?;
    echo("alias4", 7635, &["same 3 0"])
}

/// The data path of a NIC can be unbound while connections use it. These connections end with an
/// error. After the data path is bound again, new connections use it.
fn direct_unbind(lab: &Lab) -> Result<()> {
    const DEVICE: &str = "cd /sys/bus/auxiliary/drivers/af_extl.af_extl* && \
        dev=$(ls -d extoll.af_extl.*) && echo $dev";
    for port in [7640, 7641] {
        let server = serve(lab, "alias4", port)?;
        let holder = Holder::new(lab, port)?;
        // Unbinds the data path of the client's node first, then that of the server's node.
        let n = (port - 7640) as usize;
        let device = lab.ok(n, &format!("{DEVICE} && echo $dev >unbind"))?;
        let error = holder.error()?;
        let expected = ["ENETDOWN", "ECONNRESET"];
        ensure!(error == expected[n], "{error}");
        let directory = "/sys/bus/auxiliary/drivers/af_extl.af_extl*";
        lab.ok(
            n,
            &format!("echo {} >$(echo {directory}/bind)", device.trim()),
        )?;
        // The client's node sends the next request to a silent node only after some time.
        lab.until("data bypass TCP again", LONG, |lab| {
            let said = run(lab, &format!("echo alias4 10.2.0.2 {port} 1 5000"));
            // Waiting does not help with other errors.
            match said {
                Err(e) if e.to_string().contains("mode and reason") => Ok(false),
                other => other.map(|_| true),
            }
        })?;
        server.stop();
        none_left(lab, 0)?;
        none_left(lab, 1)?;
    }
    places_are_free(lab)?;
    // Unbinds and binds the whole NIC, including the interface that TCP uses.
    let server = serve(lab, "alias4", 7642)?;
    let holder = Holder::new(lab, 7642)?;
    node(lab, 0).unbind()?;
    let error = holder.error()?;
    node(lab, 0).bind()?;
    node(lab, 0).address_back()?;
    node(lab, 0).back()?;
    ensure!(error == "ENETDOWN", "{error}");
    let said = run(lab, "echo alias4 10.2.0.2 7642 1 5000")?;
    ensure!(said == "same\n", "{said}");
    server.stop();
    none_left(lab, 0)?;
    none_left(lab, 1)
}

/// While the data path of a node is unbound and bound, each of many new connections carries its
/// data or ends with an error.
fn direct_churn(lab: &Lab) -> Result<()> {
    // The options make the client's node soon send the next request to a node that was silent.
    let load = |options: &str| {
        let configured = configured(options);
        lab.ok(0, &format!("{REMOVED} && {configured} && modprobe af_extl"))
    };
    load(&format!("{PATIENT} af_extl.silent_ms=100"))?;
    churn(lab)?;
    load(PATIENT)?;
    places_are_free(lab)
}

fn churn(lab: &Lab) -> Result<()> {
    let server = serve(lab, "alias4", 7660)?;
    guest::install(lab, 0)?;
    let seconds = volume(15, 120);
    let program = guest::program("extl_direct");
    let line = format!("{program} churn alias4 10.2.0.2 7660 {seconds} 2>&1");
    let clients: Vec<_> = (0..2).map(|_| lab.spawn(0, &line)).collect::<Result<_>>()?;
    let script = format!(
        "cd /sys/bus/auxiliary/drivers/af_extl.af_extl* && dev=$(ls -d extoll.af_extl.*) && \
         end=$(($(date +%s) + {seconds})); while [ $(date +%s) -lt $end ]; do \
         sleep 1; echo $dev >unbind; sleep 0.3; echo $dev >bind; done"
    );
    lab.ok_for(1, &script, LONG)?;
    for client in clients {
        let said = client.wait(LONG)?.stdout;
        let done: Vec<u32> = said.split_whitespace().flat_map(str::parse).collect();
        ensure!(done.len() == 3 && done[0] > 5, "{said}{}", story(lab, 1));
    }
    server.stop();
    none_left(lab, 0)?;
    none_left(lab, 1)
}

/// When a node loses its power, connections to it end in bounded time.
fn direct_power_off(lab: &Lab) -> Result<()> {
    // The server ends when its node loses power.
    drop(serve(lab, "alias4", 7650)?);
    let program = guest::program("extl_direct");
    lab.ok(
        1,
        &format!("{program} serve alias4 7651 >/dev/null 2>&1 </dev/null & true"),
    )?;
    node(lab, 1).until("it listens", "ss -ltn | grep -q :7651")?;
    let holder = Holder::new(lab, 7651)?;
    let impatient = Holder::with(lab, 7651, "timeout")?;
    let idle = Holder::with(lab, 7651, "idle")?;
    lab.fault(&["power-off", "1"])?;
    let (error, later) = holder.error_at()?;
    let (sooner, at) = impatient.error_at()?;
    let asked = idle.error()?;
    lab.fault(&["power-on", "1"])?;
    node(lab, 0).back()?;
    node(lab, 1).back()?;
    ensure!(error == "ETIMEDOUT", "{error}");
    // The program's own time-out of two seconds applies, not the default of ten.
    ensure!(sooner == "ETIMEDOUT", "{sooner}");
    ensure!(at + 3. < later, "{at} and {later}");
    // The other connection ends with TCP's own error, because TCP's neighbour does not answer
    // either.
    let of_tcp = ["ETIMEDOUT", "EHOSTUNREACH"].contains(&asked.as_str());
    ensure!(of_tcp, "{asked}");
    none_left(lab, 0)
}
