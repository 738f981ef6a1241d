//! Sockets of AF_EXTL. `guest/extl*.py` compare them with sockets of TCP inside the nodes.
//! Unmodified programs use them too.

use crate::cluster::{full, modules, seed, Lab, PATIENCE};
use crate::scenarios::ds::direct::host;
use crate::scenarios::{
    guest,
    node::{node, same, value, volume},
    on_pair,
};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Maximum duration of a comparison.
const LONG: Duration = Duration::from_secs(500);
/// Kinds of sockets as named by `guest/extl.py`.
const NAMES: [&str; 3] = ["tcp", "extl", "alias"];
/// Number of echoed bytes.
const BYTES: u32 = 200_000;
/// Prevents the kernel from loading the module again by itself.
const NO_MODULE: &str = "echo 'install af_extl /bin/false' >/etc/modprobe.d/extl.conf";
const MODULE: &str = "rm -f /etc/modprobe.d/extl.conf";

/// Removes the module, if loaded, once its use count is zero. That is shortly after the last socket
/// has left the list.
pub(super) const REMOVED: &str =
    "timeout 20 sh -c 'while grep -q ^af_extl /proc/modules && ! rmmod af_extl 2>/dev/null; do sleep 0.1; done'";

/// Options of the module with long time-outs, so that no connection uses TCP because of a busy
/// machine. Calls of 128 KiB and more are not copied.
pub(super) const PATIENT: &str =
    "af_extl.ask_ms=20 af_extl.asks=50 af_extl.accept_ms=2000 af_extl.zero_copy_kib=128";

/// Runs `f` with modules loaded with [`PATIENT`].
pub(super) fn bypassing(lab: &Lab, f: fn(&Lab) -> Result<()>) -> Result<()> {
    let done = (0..2)
        .try_for_each(|n| bypass(lab, n))
        .and_then(|()| known(lab))
        .and_then(|()| f(lab))
        .and_then(|()| rules_kept(lab));
    for n in 0..2 {
        let line = format!("rm -f /etc/modprobe.d/tuned.conf; {REMOVED} && modprobe af_extl");
        lab.ok(n, &line)?;
    }
    done
}

/// Checks that no peer has violated the protocol and that TCP carried no data of a direct
/// connection.
pub(super) fn rules_kept(lab: &Lab) -> Result<()> {
    for n in 0..2 {
        let files = "/sys/kernel/debug/af_extl/nics /proc/net/extl_stat";
        let text = lab.ok(n, &format!("[ ! -e /sys/module/af_extl ] || cat {files}"))?;
        for name in ["violations", "tcp-data-astray"] {
            let all: u64 = text.lines().filter_map(|line| value(line, name)).sum();
            ensure!(all == 0, "node {n}: {name} {all}");
        }
    }
    Ok(())
}

/// Resolves the neighbour's address, because on a slow host that may take longer than a client
/// waits.
pub(super) fn known(lab: &Lab) -> Result<()> {
    lab.ok(0, "ping -q -c 1 -W 5 10.2.0.2").map(drop)
}

/// Returns the command that gives the module these options whenever it is loaded.
pub(super) fn configured(options: &str) -> String {
    let lines = modules::configuration("af_extl", options);
    format!("printf '{lines}' >/etc/modprobe.d/tuned.conf")
}

/// Loads the module of a node with [`PATIENT`] now and whenever it is loaded later.
pub(super) fn bypass(lab: &Lab, number: usize) -> Result<()> {
    lab.ok(
        number,
        &format!("{} && {REMOVED} && modprobe af_extl", configured(PATIENT)),
    )?;
    Ok(())
}

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("af_extl::echo", |lab| bypassing(lab, echo)).gate(),
        on_pair("af_extl::same_as_tcp", |lab| bypassing(lab, same_as_tcp)),
        on_pair("af_extl::options", |lab| bypassing(lab, options)),
        on_pair("af_extl::random_calls", |lab| bypassing(lab, random_calls)).seconds(1800),
        on_pair("af_extl::random_direct", |lab| {
            bypassing(lab, random_direct)
        })
        .seconds(1800),
        on_pair("af_extl::storm", |lab| bypassing(lab, storm)),
        on_pair("af_extl::redis", |lab| bypassing(lab, redis)).gate(),
        on_pair("af_extl::iperf3", |lab| bypassing(lab, iperf3)),
        on_pair("af_extl::ssh", |lab| bypassing(lab, ssh)),
        on_pair("af_extl::without_module", |lab| {
            bypassing(lab, without_module)
        })
        .gate(),
        on_pair("af_extl::module_in_use", |lab| {
            bypassing(lab, module_in_use)
        }),
        on_pair("af_extl::reload", |lab| bypassing(lab, reload)),
        on_pair("af_extl::other_numbers", |lab| {
            bypassing(lab, other_numbers)
        }),
        on_pair("af_extl::killed", |lab| bypassing(lab, killed)),
        on_pair("af_extl::namespaces", |lab| bypassing(lab, namespaces)),
    ]
}

/// Runs a program of the guest directory.
fn run(lab: &Lab, number: usize, name: &str, words: &str, patience: Duration) -> Result<String> {
    guest::install(lab, number)?;
    let line = format!("{} {words} 2>&1", guest::program(name));
    lab.ok_for(number, &line, patience)
}

/// Returns a counter of `/proc/net/extl_stat`.
fn counter(lab: &Lab, number: usize, name: &str) -> Result<u64> {
    let text = lab.ok(number, "cat /proc/net/extl_stat")?;
    value(&text, name).with_context(|| format!("no {name} in {text}"))
}

/// Waits until no AF_EXTL socket is left on a node.
fn none_left(lab: &Lab, number: usize) -> Result<()> {
    lab.until("all sockets are released", PATIENCE, |lab| {
        Ok(counter(lab, number, "sockets")? == 0
            && lab.ok(number, "cat /proc/net/extl")?.lines().count() == 1)
    })
}

/// Data arrive unchanged between all kinds of clients and servers, and both ends report correctly
/// which path carries them.
fn echo(lab: &Lab) -> Result<()> {
    for n in 0..2 {
        guest::install(lab, n)?;
    }
    let serve = |name: &str, version: u32, port: u32| {
        let line = format!(
            "exec {} serve {name}{version} {port}",
            guest::program("extl")
        );
        lab.spawn(1, &line)
    };
    let mut servers = vec![];
    for version in [4, 6] {
        let host = host(lab, 1, version)?;
        for (n, name) in (0..).zip(NAMES) {
            let port = 7400 + 10 * version + n;
            servers.push(serve(name, version, port)?);
            node(lab, 1).until("it listens", &format!("ss -ltn | grep -q :{port}"))?;
            for client in NAMES {
                let words = format!("echo {client}{version} {host} {port} {BYTES}");
                let said = run(lab, 0, "extl", &words, LONG)?;
                // Streams carry the data between two sockets of the module.
                let expected = match (client, name) {
                    ("tcp", _) => "same\n",
                    (_, "tcp") => "same 2 9\n",
                    _ => "same 3 0\n",
                };
                ensure!(said == expected, "{client}{version} to {name}: {said}");
            }
        }
    }
    // Only four listeners remain. Clients of other kinds count as connections too.
    lab.until("connections are released", PATIENCE, |lab| {
        Ok(counter(lab, 1, "sockets")? == 4)
    })?;
    let shown = lab.ok(1, "cat /proc/net/extl")?;
    for line in [
        "0.0.0.0:7441 0.0.0.0:0 Listen Listening - 0 0 0 ",
        "[::]:7462 [::]:0 Listen Listening - 0 0 0 ",
    ] {
        ensure!(shown.lines().any(|l| l.starts_with(line)), "{shown}");
    }
    ensure!(counter(lab, 1, "Idle+Accept")? >= 12, "too few accepted");
    ensure!(
        counter(lab, 1, "fallback-not-asked")? >= 4 && counter(lab, 1, "Waiting+UseStreams")? >= 8,
        "not all counted"
    );
    servers.into_iter().for_each(|server| server.stop());
    none_left(lab, 1)?;
    none_left(lab, 0)
}

/// A program sees the same properties of a socket as with TCP.
fn same_as_tcp(lab: &Lab) -> Result<()> {
    let said = run(lab, 0, "extl_same", "", LONG)?;
    ensure!(said.lines().count() > 30, "{said}");
    for once in said.lines().filter(|l| l.starts_with("once ")) {
        println!("        {once}");
    }
    none_left(lab, 0)
}

/// All socket options behave like TCP's.
fn options(lab: &Lab) -> Result<()> {
    let said = run(lab, 0, "extl_options", volume("", "all"), LONG)?;
    let looked: u32 = said
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .with_context(|| said.clone())?;
    ensure!(looked > 1000, "{said}");
    none_left(lab, 0)
}

/// Random sequences of calls on sockets of AF_EXTL behave like those on TCP sockets while TCP
/// carries the data.
fn random_calls(lab: &Lab) -> Result<()> {
    random(lab, "")?;
    none_left(lab, 0)
}

/// Random sequences of calls behave like TCP's with addresses of `exn`, where the data bypass TCP.
fn random_direct(lab: &Lab) -> Result<()> {
    let [four, six] = [host(lab, 0, 4)?, host(lab, 0, 6)?];
    let direct = random(lab, &format!("{four} {six}"))?;
    ensure!(
        direct > volume(20, 700),
        "{direct} ends past TCP: most by TCP"
    );
    none_left(lab, 0)
}

/// Compares random sequences with TCP. Returns the number of connection ends whose data bypassed
/// TCP.
fn random(lab: &Lab, addresses: &str) -> Result<u64> {
    let first = seed().unwrap_or(0) % 1_000_000;
    let words = format!("{first} {} {addresses}", volume(30, 1000));
    let said = run(lab, 0, "extl_random", &words, 3 * LONG)?;
    let last = said.lines().last().unwrap_or_default();
    ensure!(
        last.contains(" same, ") && last.contains(" 0 other"),
        "{said}"
    );
    println!("        {last}");
    last.split_whitespace()
        .rev()
        .nth(3)
        .and_then(|n| n.parse().ok())
        .with_context(|| said.clone())
}

/// Processes and threads can use the same sockets at the same time.
fn storm(lab: &Lab) -> Result<()> {
    let seconds = volume(4, 60);
    for kind in ["extl4", "alias6"] {
        let said = run(lab, 0, "extl", &format!("storm {kind} {seconds}"), LONG)?;
        let done: u32 = said.trim().parse().with_context(|| said.clone())?;
        ensure!(done > 100, "{done}");
    }
    none_left(lab, 0)?;
    lab.assert_no_leaks()
}

/// Returns true if the list of a node has a socket with these words.
fn is_listed(lab: &Lab, number: usize, words: &[&str]) -> Result<bool> {
    let list = lab.ok(number, "cat /proc/net/extl")?;
    Ok(list.lines().any(|l| words.iter().all(|w| l.contains(w))))
}

/// Unmodified redis-server and redis-benchmark work.
fn redis(lab: &Lab) -> Result<()> {
    let server = lab.spawn(
        1,
        "exec extl-run redis-server --port 7500 --bind 0.0.0.0 --save '' --protected-mode no >/dev/null",
    )?;
    node(lab, 1).until("it listens", "ss -ltn | grep -q :7500")?;
    ensure!(
        is_listed(lab, 1, &["0.0.0.0:7500", "Listening"])?,
        "the server has a socket of TCP"
    );
    let before = counter(lab, 0, "Idle+Connect")?;
    let direct = counter(lab, 0, "Waiting+UseStreams")?;
    let cli = "extl-run redis-cli -h node1 -p 7500";
    lab.ok(
        0,
        &format!("{cli} set name value && [ $({cli} get name) = value ]"),
    )?;
    let script = format!(
        "extl-run redis-benchmark -h node1 -p 7500 -t set,get,lrange -n {} -c 20 -d 1000 -q",
        volume(500, 5000)
    );
    let said = lab.ok_for(0, &script, LONG)?;
    ensure!(said.matches("requests per second").count() >= 3, "{said}");
    ensure!(
        counter(lab, 0, "Idle+Connect")? >= before + 22,
        "the clients have sockets of TCP"
    );
    ensure!(
        counter(lab, 0, "Waiting+UseStreams")? >= direct + 22,
        "TCP carries data"
    );
    server.stop();
    none_left(lab, 0)?;
    none_left(lab, 1)
}

/// Unmodified iperf3 works in both directions and with several streams.
fn iperf3(lab: &Lab) -> Result<()> {
    let server = lab.spawn(1, "exec extl-run iperf3 -s -p 7501 >/dev/null")?;
    node(lab, 1).until("it listens", "ss -ltn | grep -q :7501")?;
    let by_tcp = counter(lab, 0, "Waiting+FallBack")?;
    for (options, streams) in [
        ("-n 8M", 1),
        ("-R -n 8M", 1),
        ("--bidir -t 2", 2),
        ("-P 4 -t 2 -Z", 4),
    ] {
        let made = [
            counter(lab, 0, "Idle+Connect")?,
            counter(lab, 1, "Idle+Accept")?,
        ];
        let line = format!("extl-run iperf3 -c node1 -p 7501 {options} --json");
        let said = lab.ok_for(0, &line, LONG)?;
        ensure!(!said.contains("\"error\""), "{options}: {said}");
        // One more connection is the control connection.
        let now = [
            counter(lab, 0, "Idle+Connect")?,
            counter(lab, 1, "Idle+Accept")?,
        ];
        let most = made.map(|n| n + streams + 1);
        ensure!(now == most, "{options}: {made:?}, then {now:?}");
    }
    ensure!(
        counter(lab, 0, "Waiting+FallBack")? == by_tcp,
        "TCP carries data"
    );
    server.stop();
    none_left(lab, 0)?;
    none_left(lab, 1)
}

/// Unmodified ssh works. Its server drops its privileges and has the connection as standard input
/// and output.
fn ssh(lab: &Lab) -> Result<()> {
    let server = lab.spawn(1, "exec extl-run /usr/sbin/sshd -D -p 7502")?;
    node(lab, 1).until("it listens", "ss -ltn | grep -q :7502")?;
    ensure!(
        is_listed(lab, 1, &["0.0.0.0:7502", "Listening"])?,
        "the server has a socket of TCP"
    );
    let before = counter(lab, 0, "Idle+Connect")?;
    let ssh = "extl-run ssh -p 7502 node1";
    let name = lab.ok(0, &format!("{ssh} hostname"))?;
    ensure!(name.trim() == "node1", "{name}");
    let size = volume(2, 16);
    let sums = lab.ok_for(
        0,
        &format!(
            "head -c {size}M /dev/urandom >/tmp/blob; {ssh} 'cat >/tmp/blob' </tmp/blob && sha256sum </tmp/blob && \
             {ssh} 'sha256sum </tmp/blob; rm /tmp/blob'; rm /tmp/blob"
        ),
        LONG,
    )?;
    let sums: Vec<&str> = sums.lines().collect();
    ensure!(sums.len() == 2, "{sums:?}");
    same(sums[0], sums[1])?;
    ensure!(
        counter(lab, 0, "Idle+Connect")? == before + 3,
        "the clients have sockets of TCP"
    );
    server.stop();
    none_left(lab, 0)?;
    none_left(lab, 1)
}

/// Without the module, programs get sockets of TCP. Programs that ask for AF_EXTL explicitly get an
/// error.
fn without_module(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    lab.ok(0, &format!("{NO_MODULE} && rmmod af_extl"))?;
    let checked = (|| {
        let program = "import socket, os; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); \
             c.send(b'x'); print(s.accept()[0].recv(9), os.environ['LD_PRELOAD'])";
        let said = lab.ok(0, &format!("extl-run python3 -c \"{program}\""))?;
        ensure!(said == "b'x' libextl.so.1\n", "{said}");
        for (kind, number) in [("extl4", 97), ("alias4", 93), ("alias6", 93)] {
            let said = lab.sh_for(
                0,
                &format!("{} flood {kind} 1", guest::program("extl")),
                PATIENCE,
            )?;
            let error = format!("[Errno {number}]");
            ensure!(
                said.status != 0 && said.stderr.contains(&error),
                "{kind}: {said:?}"
            );
        }
        Ok(())
    })();
    lab.ok(0, MODULE)?;
    checked?;
    // The kernel loads the module when a program asks for its sockets.
    for kind in ["extl4", "alias4", "alias6"] {
        lab.ok(0, "[ ! -e /sys/module/af_extl ]")?;
        run(lab, 0, "extl", &format!("flood {kind} 0.1"), PATIENCE)?;
        lab.ok(0, "rmmod af_extl")?;
    }
    lab.ok(0, "modprobe af_extl").map(drop)
}

/// The module can't be removed while it has sockets, whatever their state. Once they are closed it
/// can be removed, even if TCP keeps their connections in TIME-WAIT.
fn module_in_use(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    for kind in ["extl4", "extl6", "alias4", "alias6"] {
        let line = format!("exec {} hold {kind} 3 >/tmp/held", guest::program("extl"));
        lab.ok(0, "rm -f /tmp/held")?;
        let holder = lab.spawn(0, &line)?;
        node(lab, 0).until("it has connections", "grep -q ready /tmp/held")?;
        let said = lab.sh_for(0, "rmmod af_extl", PATIENCE)?;
        ensure!(
            said.status != 0 && said.stderr.contains("in use"),
            "{said:?}"
        );
        ensure!(counter(lab, 0, "sockets")? == 6, "other sockets: {kind}");
        holder.stop();
        none_left(lab, 0)?;
        lab.ok(0, "rmmod af_extl && modprobe af_extl")?;
    }
    // Leaves connections in TIME-WAIT.
    run(lab, 0, "extl", "flood alias4 0.5", PATIENCE)?;
    let waiting = lab.ok(0, "ss -tan state time-wait | wc -l")?;
    ensure!(waiting.trim() != "1", "nothing in TIME-WAIT");
    lab.ok(0, "rmmod af_extl && modprobe af_extl").map(drop)
}

/// The module can be removed and loaded while programs create sockets all the time.
fn reload(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    lab.ok(0, "rm -f /tmp/stop /tmp/made")?;
    let floods: Vec<_> = ["extl4", "alias4", "alias6"]
        .iter()
        .map(|kind| {
            // The pauses allow the removal of the module now and then, even on a slow host.
            let flood = format!("{} flood {kind} 2 3", guest::program("extl"));
            // A program that finds no module ends and is started again.
            let line = format!("until [ -e /tmp/stop ]; do {flood} >>/tmp/made 2>/dev/null; done");
            lab.spawn(0, &line)
        })
        .collect::<Result<_>>()?;
    // Number of rounds if the time suffices, and minimum number.
    let (rounds, least): (u64, u64) = (volume(30, 200), volume(2, 50));
    let words = format!("unload {rounds} {} {least} 150", volume(60, 300));
    let looped = run(
        lab,
        0,
        "extl",
        &words,
        PATIENCE + Duration::from_secs(volume(160, 400)),
    );
    // Collects the stacks of blocked tasks before they end.
    let stacks = "for p in $(pgrep 'python3|modprobe|rmmod|kworker'); do s=$(cat /proc/$p/stack | grep -v '<0>.*\\(worker_thread\\|kthread\\|ret_from\\)'); \
        [ -z \"$s\" ] || echo \"$(cat /proc/$p/comm): $s\"; done; grep af_extl /proc/modules";
    let who = lab.sh_for(0, stacks, PATIENCE);
    lab.ok(0, "touch /tmp/stop")?;
    let said = looped.with_context(|| format!("{who:?}"))?;
    let done = said.split(' ').next().unwrap_or_default();
    let done: u64 = done.parse().with_context(|| said.clone())?;
    ensure!(done >= least, "unloaded {said}: {who:?}");
    for flood in floods {
        flood.wait(PATIENCE)?;
    }
    let made = lab.ok(0, "cat /tmp/made; rm /tmp/stop /tmp/made; modprobe af_extl")?;
    let words = made.lines().filter_map(|l| l.split(' ').next());
    let made: u64 = words.filter_map(|n| n.parse::<u64>().ok()).sum();
    ensure!(made > 4 * done, "{made} sockets in {done} rounds");
    println!("        {made} sockets, unloaded {}", said.trim());
    none_left(lab, 0)
}

/// The numbers of the family and the protocol can be changed by module parameters.
fn other_numbers(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    lab.ok(
        0,
        "rmmod af_extl && modprobe af_extl family=25 protocol=260",
    )?;
    let checked = (|| {
        lab.ok(
            0,
            &format!("TEST_AF_EXTL=25 {} flood extl4 0.1", guest::program("extl")),
        )?;
        let words = "import socket; s = socket.socket(); s.bind(('', 7503)); s.listen(); print(open('/proc/net/extl').read())";
        let said = lab.ok(
            0,
            &format!("extl-run --protocol 260 python3 -c \"{words}\""),
        )?;
        ensure!(said.contains("0.0.0.0:7503"), "{said}");
        let said = lab.ok(0, &format!("extl-run --not python3 python3 -c \"{words}\""))?;
        ensure!(!said.contains("0.0.0.0:7503"), "{said}");
        Ok(())
    })();
    lab.ok(0, "rmmod af_extl && modprobe af_extl")?;
    checked
}

/// Killed processes leave neither sockets nor memory behind.
fn killed(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    for _ in 0..volume(3, 20) {
        for kind in ["extl4", "alias6"] {
            let line = format!("exec {} hold {kind} 100 >/tmp/held", guest::program("extl"));
            lab.ok(0, "rm -f /tmp/held")?;
            let holder = lab.spawn(0, &line)?;
            node(lab, 0).until("it has connections", "grep -q ready /tmp/held")?;
            ensure!(counter(lab, 0, "sockets")? == 200, "not all are listed");
            let list = lab.ok(0, "cat /proc/net/extl")?;
            ensure!(list.lines().count() == 201, "not all are shown: {list}");
            lab.ok(0, "pkill -9 -f '[e]xtl.py hold'")?;
            ensure!(holder.wait(PATIENCE)?.status != 0, "it was not killed");
            none_left(lab, 0)?;
        }
    }
    lab.assert_no_leaks()
}

/// Each network namespace has its own list and counters, and ends with its last socket.
fn namespaces(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    let before = counter(lab, 0, "Idle+Connect")?;
    for _ in 0..volume(3, 20) {
        lab.ok(
            0,
            "ip netns add inner && ip -n inner link set lo up && rm -f /tmp/held",
        )?;
        let line = format!(
            "exec ip netns exec inner {} hold alias4 5 >/tmp/held",
            guest::program("extl")
        );
        let holder = lab.spawn(0, &line)?;
        node(lab, 0).until("it has connections", "grep -q ready /tmp/held")?;
        let inside = lab.ok(
            0,
            "ip netns exec inner cat /proc/net/extl /proc/net/extl_stat",
        )?;
        ensure!(
            inside.matches("Established Tcp no-route").count() == 10
                && value(&inside, "sockets") == Some(10)
                && value(&inside, "Idle+Connect") == Some(5),
            "{inside}"
        );
        none_left(lab, 0)?;
        // The namespace loses its name, but lives until its sockets are closed.
        lab.ok(0, "ip netns del inner")?;
        holder.stop();
    }
    ensure!(
        counter(lab, 0, "Idle+Connect")? == before,
        "counted in another namespace"
    );
    // The remains of the namespaces do not hold the module.
    node(lab, 0).until(
        "the sockets are released",
        "[ $(cat /sys/module/af_extl/refcnt) = 0 ]",
    )?;
    lab.ok(0, "rmmod af_extl && modprobe af_extl")?;
    if full() {
        lab.assert_no_leaks()?;
    }
    Ok(())
}
