//! More than two nodes: broadcast and multi-hop routes.

use crate::cluster::{Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Four nodes in a ring.
pub const FOUR: Spec = Spec::new(4).topology("ring:4").memory(384);

/// Eight nodes, each with a neighbour in three directions.
pub const TORUS: Spec = Spec::new(8).topology("torus:2x2x2").memory(384);

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("fabric::broadcast_reaches_all", FOUR, broadcast),
        Scenario::new("fabric::torus_all_pairs", TORUS, torus),
        Scenario::new(
            "fabric::torus_under_faults",
            TORUS,
            super::torus::under_faults,
        ),
    ]
}

fn broadcast(lab: &Lab) -> Result<()> {
    let receivers = (1..4)
        .map(|n| {
            lab.spawn(
                n,
                "timeout 20 socat -u UDP-RECV:7100,reuseaddr STDOUT | head -n 1",
            )
        })
        .collect::<Result<Vec<_>>>()?;
    for n in 1..4 {
        lab.until("socat listens", PATIENCE, |l| {
            Ok(l.ok(n, "ss -lun")?.contains(":7100"))
        })?;
    }
    lab.ok(
        0,
        "echo hello | socat -u STDIN UDP-DATAGRAM:10.2.0.255:7100,broadcast",
    )?;
    for (n, r) in receivers.into_iter().enumerate() {
        let out = r.wait(Duration::from_secs(40))?;
        ensure!(
            out.stdout.trim() == "hello",
            "node{} did not hear the broadcast",
            n + 1
        );
    }
    // The whole cluster answers a broadcast ping.
    for n in 0..4 {
        lab.ok(n, "sysctl -q -w net.ipv4.icmp_echo_ignore_broadcasts=0")?;
    }
    let text = lab.ok(0, "ping -b -c 2 -W 5 10.2.0.255 2>&1; ip neigh show dev exn0; arping -V >/dev/null 2>&1; true")?;
    for n in 2..=4 {
        ensure!(
            text.contains(&format!("from 10.2.0.{n}")),
            "10.2.0.{n} did not answer: {text}"
        );
    }
    Ok(())
}

fn torus(lab: &Lab) -> Result<()> {
    lab.run("trace", &["on"], PATIENCE)?;
    for from in 0..8 {
        let script = (0..8)
            .filter(|to| *to != from)
            .map(|to| format!("ping -q -c 2 -i 0.1 -w 20 node{to} >/dev/null || echo node{to}"))
            .collect::<Vec<_>>()
            .join("; ");
        let lost = lab.ok_for(from, &script, Duration::from_secs(180))?;
        ensure!(
            lost.trim().is_empty(),
            "node{from} does not reach {}",
            lost.trim()
        );
    }
    lab.run("trace", &["off"], PATIENCE)?;
    // A packet shows one line per crossbar it passes. Opposite corners are three cables, hence four crossbars, apart.
    let trace = lab.run("trace", &["print", "--kind", "hop"], PATIENCE)?;
    let mut crossbars = BTreeMap::<String, u32>::new();
    for line in trace.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some(pair) = words.windows(2).find(|w| w[0] == "packet") {
            *crossbars.entry(pair[1].to_string()).or_default() += 1;
        }
    }
    ensure!(!crossbars.is_empty(), "the trace shows no hop");
    // Multicast copies share an id: only paths with exactly four crossbars count.
    let far = crossbars.values().filter(|n| **n == 4).count();
    ensure!(far > 0, "no packet in the trace passed four crossbars");
    Ok(())
}
