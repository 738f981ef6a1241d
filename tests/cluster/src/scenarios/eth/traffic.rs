//! Unmodified programs over exn0 between two healthy nodes.

use crate::cluster::{Lab, Spec, PATIENCE};
use crate::scenarios::node::{node, same, volume, Node};
use crate::scenarios::on_pair;
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("traffic::interface", interface).gate().healthy(),
        on_pair("traffic::ping_1000", ping_1000).healthy(),
        on_pair("traffic::ping_sizes", ping_sizes).gate().healthy(),
        on_pair("traffic::ping_ipv6_link_local", ping_ipv6).healthy(),
        on_pair("traffic::iperf3_tcp", iperf3_tcp).gate().healthy(),
        on_pair("traffic::iperf3_udp", iperf3_udp),
        on_pair("traffic::dhcp", dhcp).gate().healthy(),
        on_pair("traffic::ssh", ssh).gate().healthy().stock_only(),
        on_pair("traffic::sha256_both_ways", sha256_both_ways)
            .gate()
            .healthy()
            .stock_only(),
        on_pair("traffic::deferred_interrupts", deferred_interrupts),
        Scenario::new("traffic::two_processors", TWO_PROCESSORS, two_processors)
            .gate()
            .healthy(),
    ]
}

/// Two CPUs per node, so that sending, both poll functions and housekeeping run at the same time.
const TWO_PROCESSORS: Spec = Spec::pair().cpus(2);

/// Reasons whose counters grow without an error: some fabrics return a sender's own group frames.
const HARMLESS: &[&str] = &["rx_own_multicast"];

/// Returns the sum over both nodes of each reason of exn.
fn reasons(lab: &Lab) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for n in 0..2 {
        let text = lab.ok(n, "cat /sys/kernel/debug/exn-*/reasons")?;
        for line in text.lines() {
            let mut words = line.split_whitespace().skip(1);
            let (count, name) = words.next().zip(words.next()).context(line.to_string())?;
            *all.entry(name.trim_end_matches(':').to_owned())
                .or_insert(0) += count.parse::<u64>()?;
        }
    }
    ensure!(all.contains_key("notify_late"), "{all:?}");
    Ok(all)
}

/// Streams in each direction and in both keep two CPUs busy. Every announced frame is fetched and
/// completed, and no reason is counted.
fn two_processors(lab: &Lab) -> Result<()> {
    let count = |lab: &Lab, name: &str| -> Result<u64> {
        Ok((0..2)
            .map(|n| lab.ethtool(n, name))
            .collect::<Result<Vec<_>>>()?
            .iter()
            .sum())
    };
    let announced = count(lab, "tx_rdv_frames")?;
    let before = reasons(lab)?;
    let minute = format!("-P 4 --bidir -t {}", volume(15, 60));
    for options in ["-P 4 -t 5", "-P 4 -R -t 5", &minute] {
        iperf3(lab, options)?;
    }
    let announced = count(lab, "tx_rdv_frames")? - announced;
    ensure!(announced > 500, "only {announced} frames were announced");
    for (name, n) in reasons(lab)? {
        let more = n - before.get(&name).copied().unwrap_or(0);
        ensure!(
            more == 0 || HARMLESS.contains(&name.as_str()),
            "{name} rose by {more} in {announced} announced frames"
        );
    }
    lab.until("the last frame is fetched", PATIENCE, |lab| {
        Ok(count(lab, "tx_rdv_in_flight")? + count(lab, "rx_rdv_in_flight")? == 0)
    })
}

/// The interface has the documented MTU, MAC address and limits, and works after it was set down
/// and up.
fn interface(lab: &Lab) -> Result<()> {
    let link = lab.ok(0, "ip -d link show exn0")?;
    ensure!(link.contains("mtu 65520"), "MTU is not 65520: {link}");
    ensure!(
        link.contains("2e:87:04:07:00:00"),
        "MAC does not end in node ID 0: {link}"
    );
    ensure!(link.contains("LOWER_UP"), "no carrier: {link}");
    let info = lab.ok(0, "ethtool -i exn0")?;
    ensure!(info.contains("driver: exn"), "ethtool -i: {info}");
    lab.ok(0, "ethtool -k exn0 && ethtool -g exn0 && ethtool -S exn0")?;
    for mtu in ["68", "1500", "9000", "65520"] {
        lab.ok(0, &format!("ip link set exn0 mtu {mtu}"))?;
    }
    for mtu in ["67", "65521"] {
        let out = lab.sh_for(0, &format!("ip link set exn0 mtu {mtu}"), PATIENCE)?;
        ensure!(out.status != 0, "MTU {mtu} was accepted");
    }
    // After the interface was down, addresses and neighbours are restored and traffic flows.
    lab.ok(0, "ip link set exn0 down && ip link set exn0 up")?;
    node(lab, 0).back()?;
    node(lab, 0).pings(3, "-i 0.1")?;
    counters_agree(lab)
}

/// Frames and bytes counted as sent by one node are counted as received by its peer.
fn counters_agree(lab: &Lab) -> Result<()> {
    let (from, to) = (node(lab, 0), node(lab, 1));
    let counts = || -> Result<[u64; 4]> {
        Ok([
            from.net("tx_packets")?,
            to.net("rx_packets")?,
            from.net("tx_bytes")?,
            to.net("rx_bytes")?,
        ])
    };
    // Bytes of 20 packets, including the headers of ICMP, IPv4 and Ethernet.
    let least = 20 * (1000 + 8 + 20 + 14);
    // The comparison is repeated, because frames that the network stack sends between the two reads
    // are counted at one end only.
    lab.until("both ends count the same", PATIENCE, |_| {
        let before = counts()?;
        from.pings(20, "-i 0.02 -s 1000")?;
        let now = counts()?;
        let new: Vec<u64> = now.iter().zip(before).map(|(n, b)| n - b).collect();
        Ok(new[0] == new[1] && new[2] == new[3] && new[2] >= least)
    })
}

/// A thousand pings are all answered.
fn ping_1000(lab: &Lab) -> Result<()> {
    node(lab, 0).pings(1000, "-i 0.004")
}

/// Packets of all lengths arrive, including those around the driver's limits.
pub fn ping_sizes(lab: &Lab) -> Result<()> {
    // Sizes around the eager limit, the fragment sizes of VELO (120) and RMA (496), the page size
    // and the maximum packet. The last packet needs two IP fragments.
    for size in [
        0, 56, 76, 77, 78, 79, 200, 453, 454, 455, 1472, 4054, 8192, 65000, 65492, 65507,
    ] {
        node(lab, 0).pings(3, &format!("-i 0.02 -s {size}"))?;
    }
    Ok(())
}

/// IPv6 works with link-local addresses.
fn ping_ipv6(lab: &Lab) -> Result<()> {
    // Node 1's link-local address follows from its MAC address.
    node(lab, 0).pings_to("fe80::2c87:4ff:fe07:1%exn0", 5, "-6 -i 0.1")
}

/// Runs iperf3 from node 0 to node 1. Returns its report.
fn iperf3(lab: &Lab, options: &str) -> Result<Value> {
    // Each run gets a new server and port, because a server that is still ending its last test
    // resets the next client's connection.
    static PORT: AtomicU16 = AtomicU16::new(5300);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    lab.ok(1, &format!("pkill iperf3; iperf3 -s -D -p {port}"))?;
    node(lab, 1).until("iperf3 listens", &format!("ss -ltn | grep -q :{port}"))?;
    let text = lab.ok_for(
        0,
        &format!("iperf3 -c node1 -p {port} -J {options}"),
        Duration::from_secs(150),
    )?;
    serde_json::from_str(&text).with_context(|| format!("iperf3 {options}: {text}"))
}

/// Frames received and lost by the interface of a node.
#[derive(Clone, Copy)]
struct Received {
    bytes: u64,
    /// Frames lost for any reason.
    lost: u64,
}

/// Returns the counters of both nodes.
fn received(lab: &Lab) -> Result<[Received; 2]> {
    let of = |n: Node<'_>| -> Result<Received> {
        let mut lost = 0;
        for counter in [
            "rx_dropped",
            "rx_errors",
            "rx_missed_errors",
            "tx_dropped",
            "tx_errors",
        ] {
            lost += n.net(counter)?;
        }
        Ok(Received {
            bytes: n.net("rx_bytes")?,
            lost,
        })
    };
    Ok([of(node(lab, 0))?, of(node(lab, 1))?])
}

/// Returns the fields of a report that contain sums of received data, each with the node that
/// received the data.
fn sums(options: &str) -> Vec<(&'static str, usize)> {
    let reverse = options.contains("-R");
    let mut sums = vec![("sum_received", usize::from(!reverse))];
    if options.contains("--bidir") {
        sums.push(("sum_received_bidir_reverse", 0));
    }
    sums
}

/// Maximum number of bytes that the sockets of one stream hold with buffers of 512 KiB. The kernel
/// doubles the size of each buffer, and both ends have one.
const IN_SOCKETS: u64 = 2 << 20;

/// Returns true if all `expected` streams of a report received data.
fn all_got(report: &Value, expected: usize) -> Result<bool> {
    let streams = report["end"]["streams"].as_array().context("no streams")?;
    ensure!(streams.len() == expected, "iperf3: {}", report["end"]);
    let got = |stream: &Value| stream["receiver"]["bytes"].as_u64() > Some(0);
    Ok(streams.iter().all(got))
}

/// TCP works with one and four streams in all directions: the data arrive over the interface on all
/// streams, and no frame is lost.
pub fn iperf3_tcp(lab: &Lab) -> Result<()> {
    let bytes: u64 = volume(8, 64) << 20;
    for options in ["", "-R", "-P 4", "-P 4 -R", "--bidir", "-P 4 --bidir"] {
        let both = options.contains("--bidir");
        let many = if options.contains("-P 4") { 4 } else { 1 };
        // With several streams the test is limited by time. With a limit by volume, one stream
        // could end before another starts. On a busy host a thread of the receiver may not run for
        // a second. The receiver does not count data that is left in sockets when the sender has
        // written all.
        let (end, least) = if both || many > 1 {
            ("-t 3".into(), 1)
        } else {
            (format!("-n {bytes} -w 512K"), bytes - IN_SOCKETS)
        };
        let mut before = received(lab)?;
        let mut report = iperf3(lab, &format!("{options} {end}"))?;
        let expected = if both { 2 * many } else { many };
        if !all_got(&report, expected)? {
            // Eight threads share one CPU of a busy host, so three seconds may be too short for one
            // of them.
            println!("iperf3 {options}: a stream got nothing in 3 s; once more, for 20 s");
            before = received(lab)?;
            report = iperf3(lab, &format!("{options} -t 20"))?;
            ensure!(
                all_got(&report, expected)?,
                "iperf3 {options}: a stream got nothing: {}",
                report["end"]
            );
        }
        let after = received(lab)?;
        for (sum, receiver) in sums(options) {
            let got = report["end"][sum]["bytes"].as_u64().context(sum)?;
            ensure!(
                got >= least,
                "iperf3 {options}: {got} bytes instead of {least}"
            );
            let over = after[receiver].bytes - before[receiver].bytes;
            ensure!(
                over >= got,
                "iperf3 {options}: {got} bytes received, {over} of them over exn0 of node{receiver}"
            );
        }
        for (n, (before, after)) in before.iter().zip(after).enumerate() {
            let lost = after.lost - before.lost;
            ensure!(lost == 0, "iperf3 {options}: node{n} lost {lost} frames");
        }
    }
    Ok(())
}

/// UDP works with packets of all lengths. At least half of them arrive. Each lost packet is
/// counted, either by the receiver's full socket or by an interface.
fn iperf3_udp(lab: &Lab) -> Result<()> {
    for options in [
        "-u -b 20M",
        "-u -b 20M -R",
        "-u -b 5M -l 64",
        "-u -b 20M -l 65000",
    ] {
        let receiver = usize::from(!options.contains("-R"));
        let before = (received(lab)?, node(lab, receiver).snmp("Udp", "InErrors")?);
        let report = iperf3(lab, &format!("{options} -t 2"))?;
        let after = (received(lab)?, node(lab, receiver).snmp("Udp", "InErrors")?);
        let get = |sum: &str, what: &str| {
            let number = report["end"][sum][what].as_u64();
            number.with_context(|| format!("no {sum}.{what}: {report}"))
        };
        let sent = get("sum_sent", "packets")?;
        let (seen, lost) = (
            get("sum_received", "packets")?,
            get("sum_received", "lost_packets")?,
        );
        let arrived = seen.saturating_sub(lost);
        ensure!(
            sent > 10 && arrived >= sent / 2,
            "iperf3 {options}: {sent} packets sent, {arrived} received"
        );
        let bytes = after.0[receiver].bytes - before.0[receiver].bytes;
        let length = report["start"]["test_start"]["blksize"].as_u64();
        ensure!(
            bytes >= arrived * length.context("no blksize")?,
            "iperf3 {options}: {arrived} packets, but {bytes} bytes over exn0 of node{receiver}"
        );
        let dropped: u64 = (0..2).map(|n| after.0[n].lost - before.0[n].lost).sum();
        let known = dropped + after.1 - before.1;
        ensure!(
            lost <= known,
            "iperf3 {options}: {lost} packets lost, {known} accounted for"
        );
    }
    Ok(())
}

/// A node gets its address by DHCP.
fn dhcp(lab: &Lab) -> Result<()> {
    lab.ok(
        0,
        "pkill dnsmasq; ip addr add 10.9.0.1/24 dev exn0 && dnsmasq --port=0 --interface=exn0 --bind-interfaces \
         --dhcp-range=10.9.0.50,10.9.0.60,1h --dhcp-authoritative --dhcp-leasefile=/tmp/leases --pid-file=/tmp/dnsmasq.pid",
    )?;
    let result = (|| {
        lab.ok(
            1,
            "printf '#!/bin/sh\\n[ \"$1\" = bound ] && ip addr add $ip/24 dev $interface\\nexit 0\\n' >/tmp/bound && chmod +x /tmp/bound",
        )?;
        lab.ok(1, "busybox udhcpc -i exn0 -n -q -f -t 8 -T 2 -s /tmp/bound")?;
        let address = lab.ok(1, "ip -4 addr show exn0")?;
        ensure!(
            address.contains("10.9.0.5") || address.contains("10.9.0.60"),
            "{address}"
        );
        node(lab, 1).pings_to("10.9.0.1", 3, "-i 0.1")
    })();
    lab.ok(
        0,
        "kill $(cat /tmp/dnsmasq.pid); ip addr del 10.9.0.1/24 dev exn0",
    )?;
    lab.ok(1, "ip -4 -o addr show exn0 | awk '$4 ~ /^10.9/ {print $4}' | xargs -r -n1 ip addr del dev exn0")?;
    result
}

/// ssh works.
fn ssh(lab: &Lab) -> Result<()> {
    let out = lab.ok(0, "ssh node1 hostname")?;
    ensure!(out.trim() == "node1", "{out}");
    let sums = lab.ok_for(
        0,
        &format!("head -c {}M /dev/urandom >/tmp/blob && ssh node1 'cat >/tmp/blob' </tmp/blob && sha256sum </tmp/blob && ssh node1 'sha256sum </tmp/blob; rm /tmp/blob'; rm /tmp/blob", volume(4, 16)),
        Duration::from_secs(180),
    )?;
    let sums: Vec<&str> = sums.lines().collect();
    ensure!(sums.len() == 2, "{sums:?}");
    same(sums[0], sums[1])?;
    Ok(())
}

/// Large amounts of data arrive unchanged in both directions at the same time.
fn sha256_both_ways(lab: &Lab) -> Result<()> {
    both_ways(lab, volume(64, 512), Duration::from_secs(900))
}

/// Size of the random block in MiB.
const BLOCK: u64 = 8;

/// Sends `mib` MiB (a multiple of 8) in each direction at once through socat and compares hashes.
///
/// The data are a random block of 8 MiB, repeated, each time preceded by its number. Lost, repeated
/// and exchanged data thus change the hash. Each node generates its block once.
pub fn both_ways(lab: &Lab, mib: u64, patience: Duration) -> Result<()> {
    let stream =
        |blocks: u64| format!("for i in $(seq {blocks}); do echo block $i; cat /tmp/block; done");
    let blocks = mib / BLOCK;
    let mut expected = Vec::new();
    for node in 0..2 {
        lab.ok(
            node,
            &format!("pkill socat; [ -e /tmp/block ] || head -c {BLOCK}M /dev/urandom >/tmp/block"),
        )?;
        let hash = lab.ok_for(node, &format!("({}) | sha256sum", stream(blocks)), patience)?;
        expected.push(hash.trim().to_string());
    }
    ensure!(expected[0] != expected[1], "both nodes made the same block");
    let receivers = (0..2)
        .map(|n| lab.spawn(n, "socat -u TCP-LISTEN:7000,reuseaddr STDOUT | sha256sum"))
        .collect::<Result<Vec<_>>>()?;
    for n in 0..2 {
        node(lab, n).until("socat listens", "ss -ltn | grep -q :7000")?;
    }
    let senders = (0..2)
        .map(|n| {
            let peer = 1 - n;
            lab.spawn(
                n,
                &format!("({}) | socat -u STDIN TCP:node{peer}:7000", stream(blocks)),
            )
        })
        .collect::<Result<Vec<_>>>()?;
    for sender in senders {
        let out = sender.wait(patience)?;
        ensure!(out.status == 0, "socat: {}{}", out.stdout, out.stderr);
    }
    for (n, receiver) in receivers.into_iter().enumerate() {
        let got = receiver.wait(patience)?;
        let (got, sent) = (got.stdout.trim(), &expected[1 - n]);
        ensure!(got.len() > 60, "node{n}: no hash: {got}");
        same(sent, got)?;
    }
    Ok(())
}

/// `napi_defer_hard_irqs` works: the network stack polls by a timer while there is traffic, and
/// interrupts resume after it is disabled.
fn deferred_interrupts(lab: &Lab) -> Result<()> {
    const PINGS: u64 = 200;
    let defer = |rounds: u32, ns: u32| -> Result<()> {
        for node in 0..2 {
            lab.ok(
                node,
                &format!("cd /sys/class/net/exn0 && echo {rounds} >napi_defer_hard_irqs && echo {ns} >gro_flush_timeout"),
            )?;
        }
        Ok(())
    };
    // Packets of this size are announced (RTS) and fetched in both directions. Each ping waits for
    // the previous answer, so that no two answers share an interrupt.
    let pings = || -> Result<u64> {
        let before = node(lab, 0).interrupts()?;
        node(lab, 0).pings(PINGS as usize, "-A -s 1400")?;
        Ok(node(lab, 0).interrupts()? - before)
    };
    // 20,000 rounds of 5 ms are longer than any host pauses.
    defer(20_000, 5_000_000)?;
    node(lab, 0).pings(3, "-i 0.1 -s 1400")?;
    let deferred = pings()?;
    ensure!(
        deferred < PINGS / 10,
        "{deferred} interrupts for {PINGS} round trips"
    );
    let report = iperf3(lab, "--bidir -t 1")?;
    for (sum, _) in sums("--bidir") {
        ensure!(
            report["end"][sum]["bytes"].as_u64() > Some(0),
            "{sum}: {report}"
        );
    }
    // Setting the interface down and up starts a new polling period, which uses the setting from
    // its start.
    lab.ok(0, "ip link set exn0 down && ip link set exn0 up")?;
    node(lab, 0).back()?;
    defer(0, 0)?;
    let usual = pings()?;
    ensure!(
        usual >= PINGS,
        "only {usual} interrupts for {PINGS} round trips"
    );
    Ok(())
}
