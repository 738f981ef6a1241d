//! Real programs over exn0 between two healthy nodes.

use super::on_pair;
use crate::cluster::{Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use serde_json::Value;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("traffic::interface", interface),
        on_pair("traffic::ping_1000", ping_1000),
        on_pair("traffic::ping_sizes", ping_sizes),
        on_pair("traffic::ping_ipv6_link_local", ping_ipv6),
        on_pair("traffic::iperf3_tcp", iperf3_tcp),
        on_pair("traffic::iperf3_udp", iperf3_udp),
        on_pair("traffic::dhcp", dhcp),
        on_pair("traffic::ssh", ssh),
        on_pair("traffic::sha256_both_ways", sha256_both_ways),
        on_pair("traffic::deferred_interrupts", deferred_interrupts),
        Scenario {
            name: "traffic::two_processors",
            spec: TWO_PROCESSORS,
            run: two_processors,
        },
    ]
}

/// Sending, both poll functions and housekeeping really run at once.
const TWO_PROCESSORS: Spec = Spec {
    nodes: 2,
    args: &["--topology", "pair", "--cpus", "2"],
};

/// What must not happen to announced frames between two healthy nodes, however their processors meet.
const NEVER: [&str; 7] = [
    "tx_rdv_timeout",
    "rx_rdv_timeout",
    "notify_late",
    "notify_unmatched",
    "notify_bad",
    "tx_notify_error",
    "port_restart",
];

/// Four streams in each direction, then in both, while both processors work: every announced frame is fetched, and its end is noticed.
fn two_processors(lab: &Lab) -> Result<()> {
    let count = |lab: &Lab, name: &str| -> Result<u64> {
        Ok((0..2)
            .map(|n| lab.ethtool(n, name))
            .collect::<Result<Vec<_>>>()?
            .iter()
            .sum())
    };
    let announced = count(lab, "tx_rdv_frames")?;
    let before = NEVER.map(|name| count(lab, name));
    for options in ["-P 4", "-P 4 -R", "-P 4 --bidir"] {
        iperf3(lab, options)?;
    }
    let announced = count(lab, "tx_rdv_frames")? - announced;
    ensure!(announced > 500, "only {announced} frames were announced");
    for (name, before) in NEVER.iter().zip(before) {
        let n = count(lab, name)? - before?;
        ensure!(n == 0, "{name} rose by {n} in {announced} announced frames");
    }
    lab.until("the last frame is fetched", PATIENCE, |lab| {
        Ok(count(lab, "tx_rdv_in_flight")? + count(lab, "rx_rdv_in_flight")? == 0)
    })
}

fn interface(lab: &Lab) -> Result<()> {
    let link = lab.ok(0, "ip -d link show exn0")?;
    ensure!(link.contains("mtu 65536"), "MTU is not 65536: {link}");
    ensure!(
        link.contains("2e:87:04:07:00:00"),
        "MAC does not end in node ID 0: {link}"
    );
    ensure!(link.contains("LOWER_UP"), "no carrier: {link}");
    let info = lab.ok(0, "ethtool -i exn0")?;
    ensure!(info.contains("driver: exn"), "ethtool -i: {info}");
    lab.ok(0, "ethtool -k exn0 && ethtool -g exn0 && ethtool -S exn0")?;
    for mtu in ["68", "1500", "9000", "65536"] {
        lab.ok(0, &format!("ip link set exn0 mtu {mtu}"))?;
    }
    for mtu in ["67", "65537"] {
        let out = lab.sh_for(0, &format!("ip link set exn0 mtu {mtu}"), PATIENCE)?;
        ensure!(out.status != 0, "MTU {mtu} was accepted");
    }
    // Up and down again: addresses and neighbours come back and traffic flows.
    lab.ok(
        0,
        "ip link set exn0 down && ip link set exn0 up && ping -c 3 -i 0.1 -w 20 node1",
    )?;
    Ok(())
}

/// Node 0 pings until `count` answers are in; answers 1 to `count` have to be among them, once each.
/// (What ping itself reports as lost may still be under way: with -w it sends on while an answer is late, without it waits
/// only two round-trip times after the last request.)
pub fn pings(lab: &Lab, count: usize, options: &str) -> Result<()> {
    pings_to(lab, count, &format!("{options} node1"))
}

fn pings_to(lab: &Lab, count: usize, options: &str) -> Result<()> {
    let out = lab.ok(0, &format!("ping -c {count} -w 40 {options}"))?;
    let mut answers = vec![0; count];
    for line in out.lines() {
        let number = line
            .split_once("icmp_seq=")
            .and_then(|(_, rest)| rest.split(' ').next()?.parse::<usize>().ok());
        if let Some(slot) = number.and_then(|n| answers.get_mut(n.checked_sub(1)?)) {
            *slot += 1;
        }
    }
    let wrong = answers.iter().position(|&n| n != 1);
    ensure!(
        wrong.is_none(),
        "ping {options}: answer {} came {} times: {out}",
        wrong.unwrap_or(0) + 1,
        answers[wrong.unwrap_or(0)]
    );
    Ok(())
}

fn ping_1000(lab: &Lab) -> Result<()> {
    pings(lab, 1000, "-i 0.01")
}

/// Pings with packets of many lengths.
pub fn ping_sizes(lab: &Lab) -> Result<()> {
    // Around the eager limit, the fragment sizes of VELO (120) and RMA (496), the page, and the largest packet.
    for size in [
        0, 56, 76, 77, 78, 79, 200, 453, 454, 455, 1472, 4054, 8192, 65000, 65507,
    ] {
        pings(lab, 3, &format!("-i 0.02 -s {size}"))?;
    }
    Ok(())
}

fn ping_ipv6(lab: &Lab) -> Result<()> {
    // Node 1's link-local address follows from its MAC.
    pings_to(lab, 5, "-6 -i 0.1 fe80::2c87:4ff:fe07:1%exn0")
}

fn iperf3(lab: &Lab, options: &str) -> Result<Value> {
    // One server and one port per run: a server that still ends its last test resets the next client's connection.
    static PORT: AtomicU16 = AtomicU16::new(5300);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    lab.ok(
        1,
        &format!(
            "pkill iperf3; iperf3 -s -D -p {port}; for i in $(seq 100); do ss -ltn | grep -q :{port} && exit 0; sleep 0.1; done; exit 1"
        ),
    )?;
    let text = lab.ok_for(
        0,
        &format!("iperf3 -c node1 -p {port} -J -t 3 {options}"),
        Duration::from_secs(60),
    )?;
    serde_json::from_str(&text).with_context(|| format!("iperf3 {options}: {text}"))
}

/// TCP with one and four streams, in all directions.
pub fn iperf3_tcp(lab: &Lab) -> Result<()> {
    for options in ["", "-R", "-P 4", "-P 4 -R", "--bidir", "-P 4 --bidir"] {
        let report = iperf3(lab, options)?;
        let bytes = report["end"]["sum_received"]["bytes"].as_u64().unwrap_or(0);
        ensure!(bytes > 0, "iperf3 {options} received nothing");
        if options.contains("--bidir") {
            let back = report["end"]["sum_received_bidir_reverse"]["bytes"]
                .as_u64()
                .unwrap_or(0);
            ensure!(back > 0, "iperf3 {options} received nothing in reverse");
        }
    }
    Ok(())
}

fn iperf3_udp(lab: &Lab) -> Result<()> {
    for options in [
        "-u -b 20M",
        "-u -b 20M -R",
        "-u -b 5M -l 64",
        "-u -b 20M -l 65000",
    ] {
        let report = iperf3(lab, options)?;
        let packets = report["end"]["sum"]["packets"].as_u64().unwrap_or(0);
        ensure!(packets > 0, "iperf3 {options} received nothing");
    }
    Ok(())
}

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
        lab.ok(1, "ping -q -c 3 -i 0.1 -w 20 10.9.0.1")?;
        Ok(())
    })();
    lab.ok(
        0,
        "kill $(cat /tmp/dnsmasq.pid); ip addr del 10.9.0.1/24 dev exn0",
    )?;
    lab.ok(1, "ip -4 -o addr show exn0 | awk '$4 ~ /^10.9/ {print $4}' | xargs -r -n1 ip addr del dev exn0")?;
    result
}

fn ssh(lab: &Lab) -> Result<()> {
    let out = lab.ok(0, "ssh node1 hostname")?;
    ensure!(out.trim() == "node1", "{out}");
    let sums = lab.ok_for(
        0,
        "head -c 16M /dev/urandom >/tmp/blob && ssh node1 'cat >/tmp/blob' </tmp/blob && sha256sum </tmp/blob && ssh node1 'sha256sum </tmp/blob'",
        Duration::from_secs(180),
    )?;
    let sums: Vec<&str> = sums.lines().collect();
    ensure!(sums.len() == 2 && sums[0] == sums[1], "{sums:?}");
    Ok(())
}

/// 512 MiB in each direction at once, compared by their hashes.
fn sha256_both_ways(lab: &Lab) -> Result<()> {
    both_ways(lab, 512, Duration::from_secs(900))
}

/// `mib` MiB (a multiple of 32) in each direction at once through socat.
///
/// What travels is a random block of 32 MiB again and again, each time with its number in front, so that lost,
/// repeated and exchanged parts all change the hash.
pub fn both_ways(lab: &Lab, mib: u64, patience: Duration) -> Result<()> {
    let stream =
        |blocks: u64| format!("for i in $(seq {blocks}); do echo block $i; cat /tmp/block; done");
    let blocks = mib / 32;
    let mut expected = Vec::new();
    for node in 0..2 {
        lab.ok(node, "pkill socat; head -c 32M /dev/urandom >/tmp/block")?;
        let hash = lab.ok_for(node, &format!("({}) | sha256sum", stream(blocks)), patience)?;
        expected.push(hash.trim().to_string());
    }
    ensure!(expected[0] != expected[1], "both nodes made the same block");
    let receivers = (0..2)
        .map(|n| lab.spawn(n, "socat -u TCP-LISTEN:7000,reuseaddr STDOUT | sha256sum"))
        .collect::<Result<Vec<_>>>()?;
    for node in 0..2 {
        lab.until("socat listens", PATIENCE, |l| {
            Ok(l.ok(node, "ss -ltn")?.contains(":7000"))
        })?;
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
        ensure!(
            got == sent && got.len() > 60,
            "node{n} received {got}, its peer sent {sent}"
        );
    }
    for node in 0..2 {
        lab.ok(node, "rm /tmp/block")?;
    }
    Ok(())
}

/// The driver's interrupts on a node so far.
fn interrupts(lab: &Lab, node: usize) -> Result<u64> {
    let sum = "awk '/extoll/ {for (i = 2; i <= NF && $i ~ /^[0-9]+$/; i++) s += $i} END {print s + 0}' /proc/interrupts";
    Ok(lab.ok(node, sum)?.trim().parse()?)
}

/// `napi_defer_hard_irqs`: the stack polls by a timer while there is traffic, and interrupts come back when that is switched off.
fn deferred_interrupts(lab: &Lab) -> Result<()> {
    let defer = |rounds: u32, ns: u32| -> Result<()> {
        for node in 0..2 {
            lab.ok(
                node,
                &format!("cd /sys/class/net/exn0 && echo {rounds} >napi_defer_hard_irqs && echo {ns} >gro_flush_timeout"),
            )?;
        }
        Ok(())
    };
    // Both ways through announcements: three interrupts a round trip.
    let pings = || -> Result<u64> {
        let before = interrupts(lab, 0)?;
        pings(lab, 200, "-i 0.01 -s 1400")?;
        Ok(interrupts(lab, 0)? - before)
    };
    defer(100, 2_000_000)?;
    let deferred = pings()?;
    ensure!(deferred < 200, "{deferred} interrupts for 200 round trips");
    iperf3(lab, "--bidir")?;
    // A new period, with the setting in force from its start.
    lab.ok(
        0,
        "ip link set exn0 down && ip link set exn0 up && ping -q -c 3 -i 0.1 -w 20 node1",
    )?;
    defer(0, 0)?;
    let usual = pings()?;
    ensure!(usual > 200, "only {usual} interrupts for 200 round trips");
    Ok(())
}
