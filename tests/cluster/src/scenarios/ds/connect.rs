//! Connection setup of AF_EXTL: which peer gets a request for a direct connection, how long the
//! program waits, which NIC carries the data. `guest/extl_connect.py` does the work inside the
//! nodes.

use crate::cluster::{Lab, Running, Spec, PATIENCE};
use crate::scenarios::ds::sockets::{bypassing, configured, PATIENT, REMOVED};
use crate::scenarios::{
    guest,
    node::{node, volume},
    on_pair,
};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeSet;
use std::time::Duration;

/// Maximum duration of one exchange.
const LONG: Duration = Duration::from_secs(200);
/// Cluster of two nodes with two NICs each. NIC k of node n has number 2n + k.
const TWO_NICS: Spec = Spec::new(2).topology("ring:4").nics(2);
/// An unprivileged user.
const NOBODY: u32 = 65534;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    let s = Scenario::new;
    vec![
        on_pair("af_extl::connect_late", |lab| bypassing(lab, late)),
        on_pair("af_extl::connect_others", |lab| bypassing(lab, others)),
        on_pair("af_extl::connect_ports", |lab| bypassing(lab, ports)),
        on_pair("af_extl::connect_neighbour", |lab| {
            bypassing(lab, neighbour)
        }),
        on_pair("af_extl::connect_signal", |lab| bypassing(lab, signal)),
        on_pair("af_extl::connect_user", |lab| bypassing(lab, user)),
        on_pair("af_extl::connect_itself", |lab| bypassing(lab, itself)),
        s("af_extl::connect_two_nics", TWO_NICS, |lab| {
            bypassing(lab, two_nics)
        }),
    ]
}

/// Returns the command line that runs `guest/extl_connect.py`.
fn program(words: &str) -> String {
    format!("{} {words}", guest::program("extl_connect"))
}

/// Starts a server on a node. `before` is put in front of the program.
fn serve(lab: &Lab, number: usize, before: &str, words: &str) -> Result<Running> {
    guest::install(lab, number)?;
    let mark = words.replace([' ', ':', '.', '='], "_");
    let line = format!(
        "exec {before} {} | tee /tmp/{mark}",
        program(&format!("serve {words}"))
    );
    lab.ok(number, &format!("rm -f /tmp/{mark}"))?;
    let server = lab.spawn(number, &line)?;
    node(lab, number).until("it listens", &format!("grep -q ready /tmp/{mark}"))?;
    Ok(server)
}

/// Returns the output of a client on node 0.
fn run(lab: &Lab, words: &str) -> Result<String> {
    guest::install(lab, 0)?;
    let said = lab.ok_for(0, &format!("{} 2>&1", program(words)), LONG)?;
    Ok(said.trim().to_owned())
}

/// Loads the module of node 0 again with only these options.
pub(super) fn with_options(lab: &Lab, options: &str) -> Result<()> {
    let configured = configured(options);
    lab.ok(0, &format!("{configured} && {REMOVED} && modprobe af_extl"))
        .map(drop)
}

/// A server that accepts too late delays a client only once. Later connections use TCP at once,
/// until the client's node sends the next request. A server that waits for data
/// (`TCP_DEFER_ACCEPT`) is recognized by its own node.
fn late(lab: &Lab) -> Result<()> {
    with_options(
        lab,
        "af_extl.ask_ms=20 af_extl.asks=50 af_extl.accept_ms=500 af_extl.late_ms=5000",
    )?;
    let server = serve(lab, 1, "", "alias4 0.0.0.0 7700 slow=2")?;
    let said = run(lab, "ask alias4 10.2.0.2 7700 3")?;
    ensure!(said == "2/13 2/18 2/18", "{said}");
    lab.until("the server is asked again", PATIENCE, |lab| {
        Ok(run(lab, "ask alias4 10.2.0.2 7700 1")? == "3/0")
    })?;
    // Other servers of the same node still receive requests.
    let other = serve(lab, 1, "", "alias4 0.0.0.0 7701 slow=1")?;
    let said = run(lab, "ask alias4 10.2.0.2 7701 1")?;
    ensure!(said == "2/13", "{said}");
    let said = run(lab, "ask alias4 10.2.0.2 7700 1")?;
    ensure!(said == "3/0", "{said}");
    let deferred = serve(lab, 1, "", "alias4 0.0.0.0 7702 deferred")?;
    let said = run(lab, "ask alias4 10.2.0.2 7702 2")?;
    ensure!(said == "2/9 2/9", "{said}");
    let signed = serve(lab, 1, "", "alias4 0.0.0.0 7703 signed")?;
    let said = run(lab, "ask alias4 10.2.0.2 7703 1")?;
    ensure!(
        said == "2/9",
        "a server that requires signed segments: {said}"
    );
    let said = run(lab, "signed alias4 10.2.0.2 7700")?;
    ensure!(
        said == "2/17",
        "a client that requires signed segments: {said}"
    );
    [server, other, deferred, signed]
        .into_iter()
        .for_each(Running::stop);
    with_options(lab, PATIENT)
}

/// A listener that TCP would not choose is ignored: one in another namespace, one with a less
/// specific address, another member of a group that shares a port.
fn others(lab: &Lab) -> Result<()> {
    lab.ok(1, "ip netns add inner && ip -n inner link set lo up")?;
    let checked = (|| {
        let inner = serve(lab, 1, "ip netns exec inner", "alias4 0.0.0.0 7710")?;
        let outer = serve(lab, 1, "", "tcp4 0.0.0.0 7710")?;
        let said = run(lab, "ask alias4 10.2.0.2 7710 2")?;
        ensure!(said == "2/9 2/9", "another namespace: {said}");
        let special = serve(lab, 1, "", "tcp4 10.2.0.2 7711 shared")?;
        let general = serve(lab, 1, "", "alias4 0.0.0.0 7711 shared")?;
        let said = run(lab, "ask alias4 10.2.0.2 7711 2")?;
        ensure!(said == "2/9 2/9", "less specific address: {said}");
        let ours = serve(lab, 1, "", "alias4 0.0.0.0 7712 shared")?;
        let plain = serve(lab, 1, "", "tcp4 0.0.0.0 7712 shared")?;
        let said = run(lab, "ask alias4 10.2.0.2 7712 24")?;
        let count = |what| said.split(' ').filter(|w| *w == what).count();
        ensure!(
            count("3/0") > 0 && count("2/9") > 0 && count("3/0") + count("2/9") == 24,
            "another member of a group: {said}"
        );
        [inner, outer, special, general, ours, plain]
            .into_iter()
            .for_each(Running::stop);
        Ok(())
    })();
    lab.ok(1, "ip netns del inner")?;
    checked
}

/// Returns the first of `count` consecutive ports of node 0 that no socket uses, not even a closed
/// connection.
fn free_ports(lab: &Lab, count: u16) -> Result<u16> {
    let said = lab.ok(0, "ss -Htanp -B; ss -Htan")?;
    let local = |line: &str| -> Option<u16> {
        let mut words = line.split_whitespace();
        words.nth(3)?.rsplit(':').next()?.parse().ok()
    };
    let used: BTreeSet<u16> = said.lines().filter_map(local).collect();
    (40_000..60_000)
        .step_by(2)
        .find(|first| used.range(*first..*first + count).next().is_none())
        .context("no free ports")
}

/// Connections to different peers share local ports, like connections of TCP.
fn ports(lab: &Lab) -> Result<()> {
    let servers =
        [7720, 7721, 7722].map(|port| serve(lab, 1, "", &format!("alias4 0.0.0.0 {port}")));
    let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
    let range = lab.ok(0, "cat /proc/sys/net/ipv4/ip_local_port_range")?;
    let set = |range: &str| {
        lab.ok(
            0,
            &format!("echo '{range}' >/proc/sys/net/ipv4/ip_local_port_range"),
        )
    };
    let first = free_ports(lab, 6)?;
    set(&format!("{first} {}", first + 5))?;
    let said = run(
        lab,
        "many alias4 4 10.2.0.2:7720 10.2.0.2:7721 10.2.0.2:7722",
    );
    let there = lab.ok(0, "ss -tanp");
    set(range.trim())?;
    let said = said.with_context(|| format!("from {first}: {}", there.unwrap_or_default()))?;
    let (count, rest) = said.split_once(" ports: ").context("no ports")?;
    let modes: Vec<&str> = rest.split(' ').collect();
    ensure!(
        count.parse::<u32>()? <= 6 && modes.len() == 12 && modes.iter().all(|w| *w == "3/0"),
        "{said}"
    );
    // Local ports are unpredictable: one port does not reveal the next.
    let said = run(lab, "ports alias4 10.2.0.2 7720 20")?;
    ensure!(said.parse::<u32>()? > 500, "{said}");
    servers.into_iter().for_each(Running::stop);
    Ok(())
}

/// A neighbour that does not answer delays only the first connect. Later connects fail over to TCP
/// without a long wait. A neighbour whose address is not resolved yet is found.
fn neighbour(lab: &Lab) -> Result<()> {
    let said = run(lab, "dead alias4 10.2.0.77 7730 6")?;
    let mut times = vec![];
    for line in said.lines() {
        let (time, why) = line.split_once(' ').context("a line")?;
        ensure!(why == "2/19", "{said}");
        times.push(time.parse::<u32>()?);
    }
    ensure!(times.len() == 6, "{said}");
    // Compares the median of the later connects, because a single connect may have waited for a
    // CPU.
    times[1..].sort_unstable();
    ensure!(times[0] >= 20 && 4 * times[3] < 3 * times[0], "{said}");
    let server = serve(lab, 1, "", "alias4 0.0.0.0 7731")?;
    lab.ok(0, "ip neigh flush dev exn0")?;
    let said = run(lab, "ask alias4 10.2.0.2 7731 1")?;
    ensure!(said == "3/0", "{said}");
    server.stop();
    Ok(())
}

/// A signal that interrupts a request to a peer does not mark the peer as silent.
fn signal(lab: &Lab) -> Result<()> {
    let none = "echo 'install af_extl /bin/false' >/etc/modprobe.d/extl.conf";
    lab.ok(1, &format!("{REMOVED} && {none}"))?;
    let checked = (|| {
        with_options(lab, "af_extl.ask_ms=500 af_extl.asks=4 af_extl.silent_ms=0")?;
        let server = serve(lab, 1, "", "tcp4 0.0.0.0 7740")?;
        let said = run(lab, "signal alias4 10.2.0.2 7740")?;
        // The peer does not answer the second request.
        ensure!(said == "4/0 2/6", "{said}");
        server.stop();
        Ok(())
    })();
    lab.ok(1, "rm -f /etc/modprobe.d/extl.conf; modprobe af_extl")?;
    checked?;
    with_options(
        lab,
        "af_extl.ask_ms=500 af_extl.asks=4 af_extl.accept_ms=2000",
    )?;
    let server = serve(lab, 1, "", "alias4 0.0.0.0 7741")?;
    let said = run(lab, "ask alias4 10.2.0.2 7741 1")?;
    ensure!(said == "3/0", "{said}");
    server.stop();
    with_options(lab, PATIENT)
}

/// Rings are limited per user, so that one user can't take the rings of others.
fn user(lab: &Lab) -> Result<()> {
    with_options(lab, &format!("{PATIENT} user_connections=2"))?;
    let server = serve(lab, 1, "", "alias4 0.0.0.0 7750")?;
    guest::install(lab, 0)?;
    let [held, other] =
        [NOBODY, NOBODY - 1].map(|user| format!("held alias4 10.2.0.2 7750 3 {user}"));
    for _ in 0..volume(2, 10) {
        let line = format!("sleep 1000 | {} 2>&1 | tee /tmp/held", program(&held));
        lab.ok(0, "rm -f /tmp/held")?;
        let holder = lab.spawn(0, &line)?;
        node(lab, 0).until("it has connections", "grep -q . /tmp/held")?;
        let said = lab.ok(0, "cat /tmp/held")?;
        ensure!(said.trim() == "held 3/0 3/0 2/20", "{said}");
        // Each user has a separate limit, and root has no limit.
        let line = format!("</dev/null {} 2>&1", program(&other));
        let said = lab.ok(0, &line)?;
        ensure!(said.trim() == "held 3/0 3/0 2/20", "another user: {said}");
        let said = run(lab, "ask alias4 10.2.0.2 7750 4")?;
        ensure!(said == "3/0 3/0 3/0 3/0", "root, without a limit: {said}");
        lab.ok(0, "pkill -f '[e]xtl_connect.py held'; pkill -x sleep; true")?;
        drop(holder);
        lab.until("all rings are free", PATIENCE, |lab| {
            let nics = lab.ok(0, "cat /sys/kernel/debug/af_extl/nics")?;
            Ok(nics.lines().any(|l| l.starts_with("rings 0 of")))
        })?;
    }
    server.stop();
    with_options(lab, PATIENT)
}

/// A node's connections with its own fabric address bypass TCP. Connections with its other
/// addresses do not.
fn itself(lab: &Lab) -> Result<()> {
    let program = guest::program("extl_direct");
    guest::install(lab, 0)?;
    let server = lab.spawn(0, &format!("exec {program} serve alias4 7760"))?;
    node(lab, 0).until("it listens", "ss -ltn | grep -q :7760")?;
    let sizes = "1 112 2048 65537 1048576";
    let line = format!("{program} echo alias4 10.2.0.1 7760 1 {sizes} 2>&1");
    let said = lab.ok_for(0, &line, LONG)?;
    ensure!(said == "same\n", "{said}");
    server.stop();
    let server = serve(lab, 0, "", "alias4 0.0.0.0 7761")?;
    let said = run(lab, "ask alias4 127.0.0.1 7761 1")?;
    ensure!(said == "2/2", "{said}");
    server.stop();
    Ok(())
}

/// The routes choose the NIC that carries a connection, and both ends must agree on it.
fn two_nics(lab: &Lab) -> Result<()> {
    for n in 0..2 {
        // Both interfaces receive each address request, and only the interface with the address may
        // answer. The address that the lab assigned to exn1 is removed. Requests would have this
        // address as source, and a node whose NIC was bound again has no route back to it.
        let second = format!(
            "cd /proc/sys/net/ipv4/conf/all && echo 1 >arp_ignore && echo 2 >arp_announce && \
             ip -4 addr flush dev exn1 && ip addr replace 10.3.0.{}/24 broadcast + dev exn1 && ip link set exn1 up && \
             echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter && for i in exn0 exn1; do \
             echo 2 >/proc/sys/net/ipv4/conf/$i/rp_filter; done && ip neigh flush all",
            n + 1
        );
        lab.ok(n, &second)?;
    }
    node(lab, 0).until("node 1 answers on exn1", "ping -q -c 1 -W 1 10.3.0.2")?;
    node(lab, 0).until("node 1 answers on exn0", "ping -q -c 1 -W 1 10.2.0.2")?;
    let server = serve(lab, 1, "", "alias4 0.0.0.0 7770")?;
    let asked = |nic: usize| -> Result<u64> {
        let text = lab.ok(1, "cat /sys/kernel/debug/af_extl/nics")?;
        let all: Vec<u64> = text
            .lines()
            .filter_map(|l| l.strip_prefix("asked ")?.parse().ok())
            .collect();
        all.get(nic).copied().with_context(|| text.clone())
    };
    for (nic, host) in [(0, "10.2.0.2"), (1, "10.3.0.2")] {
        let before = [asked(0)?, asked(1)?];
        let said = run(lab, &format!("ask alias4 {host} 7770 3"))?;
        ensure!(said == "3/0 3/0 3/0", "{host}: {said}");
        let after = [asked(0)?, asked(1)?];
        ensure!(
            after[nic] >= before[nic] + 3 && after[1 - nic] == before[1 - nic],
            "{host}: {before:?}, {after:?}"
        );
    }
    // The replies take another path than the requests, so the connection uses TCP. The client does
    // not wait for replies.
    lab.ok(1, "ip route replace 10.2.0.1/32 dev exn1")?;
    let said = run(lab, "ask alias4 10.2.0.2 7770 2")?;
    ensure!(said == "2/11 2/11", "{said}");
    lab.ok(1, "ip route del 10.2.0.1/32 dev exn1")?;
    let said = run(lab, "ask alias4 10.2.0.2 7770 1")?;
    ensure!(said == "3/0", "{said}");
    // Interfaces on top of an Extoll interface do not belong to a NIC.
    for n in 0..2 {
        let upper = format!(
            "ip link add link exn1 name upper type macvlan mode passthru && \
             ip addr add 10.4.0.{}/24 dev upper && ip link set upper up",
            n + 1
        );
        lab.ok(n, &upper)?;
    }
    node(lab, 0).until("node 1 answers on macvlan", "ping -q -c 1 -W 1 10.4.0.2")?;
    let said = run(lab, "ask alias4 10.4.0.2 7770 1")?;
    ensure!(said == "2/2", "{said}");
    server.stop();
    (0..2).try_for_each(|n| lab.ok(n, "ip link del upper").map(drop))
}
