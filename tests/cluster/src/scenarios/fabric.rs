//! Clusters of more than two nodes: broadcast, and a torus with failures.

use super::expected::TORN;
use super::node::node;
use crate::cluster::{Lab, Spec};
use crate::Scenario;
use anyhow::{ensure, Result};
use std::time::Duration;

/// Four nodes in a ring.
pub const FOUR: Spec = Spec::new(4).topology("ring:4").memory(384);

/// Eight nodes, each with a neighbour in three dimensions.
pub const TORUS: Spec = Spec::new(8).topology("torus:2x2x2").memory(384);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("fabric::broadcast_reaches_all", FOUR, broadcast).gate(),
        Scenario::new(
            "fabric::torus_under_faults",
            TORUS,
            super::torus::under_faults,
        )
        .finds(TORN)
        .seconds(1200),
    ]
}

/// A broadcast reaches all nodes, and all nodes answer it.
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
        node(lab, n).until("socat listens", "ss -lun | grep -q :7100")?;
    }
    lab.ok(
        0,
        "echo hello | socat -u STDIN UDP-DATAGRAM:10.2.0.255:7100,broadcast",
    )?;
    for (n, r) in receivers.into_iter().enumerate() {
        let out = r.wait(Duration::from_secs(40))?;
        ensure!(
            out.stdout.trim() == "hello",
            "node{} did not receive the broadcast",
            n + 1
        );
    }
    // All nodes answer a broadcast ping.
    for n in 0..4 {
        lab.ok(n, "sysctl -q -w net.ipv4.icmp_echo_ignore_broadcasts=0")?;
    }
    // ping ends after a number of answers from any node, including its own. The interval gives the
    // other nodes time to answer.
    let text = lab.ok(0, "ping -b -i 0.5 -c 10 -W 5 10.2.0.255 2>&1; true")?;
    for n in 2..=4 {
        ensure!(
            text.contains(&format!("from 10.2.0.{n}")),
            "10.2.0.{n} did not answer: {text}"
        );
    }
    Ok(())
}
