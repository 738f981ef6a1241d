//! Faults of the fabric, and input that nobody should send.

use super::on_pair;
use super::traffic::both_ways;
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Result};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("faults::corrupted_links", corruption),
        on_pair("faults::receive_queue_full", queue_full),
        on_pair("faults::retry_and_replay", retry),
        on_pair("faults::link_flap", flap),
    ]
}

/// Sums every number with this key anywhere in a JSON document.
pub fn sum(value: &Value, key: &str) -> u64 {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| {
                if k == key {
                    v.as_u64().unwrap_or(0)
                } else {
                    sum(v, key)
                }
            })
            .sum(),
        Value::Array(list) => list.iter().map(|v| sum(v, key)).sum(),
        _ => 0,
    }
}

fn corruption(lab: &Lab) -> Result<()> {
    let before = sum(&lab.status()?, "retransmissions");
    lab.fault(&["corrupt", "--rate", "0.02"])?;
    let result = both_ways(lab, 32, Duration::from_secs(200));
    lab.fault(&["corrupt", "--rate", "0"])?;
    result?;
    let after = sum(&lab.status()?, "retransmissions");
    ensure!(after > before, "no link retransmitted anything");
    Ok(())
}

fn queue_full(lab: &Lab) -> Result<()> {
    let before = lab.status()?;
    // The mailbox of node 1 fills and empties while data flow both ways; senders wait in the fabric.
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let toggler = scope.spawn(|| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                lab.fault(&["queue-full", "1", "--vpid", "254"])?;
                std::thread::sleep(Duration::from_millis(50));
                lab.fault(&["queue-full", "1", "--vpid", "254", "--off"])?;
                lab.fault(&["queue-full", "0", "--rma", "--vpid", "254"])?;
                std::thread::sleep(Duration::from_millis(50));
                lab.fault(&["queue-full", "0", "--rma", "--vpid", "254", "--off"])?;
                std::thread::sleep(Duration::from_millis(200));
            }
            Ok(())
        });
        let result = both_ways(lab, 32, Duration::from_secs(300));
        stop.store(true, Ordering::Relaxed);
        let toggled = toggler
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the toggling thread panicked")));
        result.and(toggled)
    });
    lab.fault(&["clear"])?;
    result?;
    let after = lab.status()?;
    for held in ["velo_held", "rma_held"] {
        ensure!(
            sum(&after, held) > sum(&before, held),
            "{held} did not move: nothing had to wait for a full queue"
        );
    }
    Ok(())
}

/// Sum of a counter over the ports of a node, as the driver counts it.
pub fn port_counter(lab: &Lab, node: usize, name: &str) -> Result<u64> {
    let ports = lab.ok(node, "cat /sys/kernel/debug/extoll-*/ports")?;
    let words: Vec<&str> = ports.split_whitespace().collect();
    ensure!(words.contains(&name), "no counter {name} in {ports}");
    Ok(words
        .windows(2)
        .filter(|w| w[0] == name)
        .filter_map(|w| w[1].parse::<u64>().ok())
        .sum())
}

fn retry(lab: &Lab) -> Result<()> {
    let before = (
        sum(&lab.status()?, "velo_retries"),
        port_counter(lab, 0, "replayed")?,
    );
    lab.fault(&["retry", "0", "--every", "50"])?;
    let result = both_ways(lab, 32, Duration::from_secs(300));
    lab.fault(&["retry", "0", "--every", "0"])?;
    result?;
    let after = (
        sum(&lab.status()?, "velo_retries"),
        port_counter(lab, 0, "replayed")?,
    );
    ensure!(after.0 > before.0, "no requester reported retry");
    ensure!(after.1 > before.1, "the driver replayed nothing");
    Ok(())
}

fn flap(lab: &Lab) -> Result<()> {
    lab.fault(&["link-down", "0", "0"])?;
    let out = lab.sh_for(0, "ping -q -c 3 -W 1 node1", PATIENCE)?;
    ensure!(
        out.status != 0,
        "the cable is cut and node1 answers: {}",
        out.stdout
    );
    lab.fault(&["link-up", "0", "0"])?;
    lab.until("node1 answers again", PATIENCE, |l| {
        Ok(l.sh_for(0, "ping -q -c 1 -W 1 node1", PATIENCE)?.status == 0)
    })
}
