//! Faults of the fabric, and input that nobody should send.

use super::traffic::both_ways;
use super::PAIR;
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Result};
use serde_json::Value;
use std::time::Duration;

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    let s = |name, run| Scenario {
        name,
        spec: PAIR,
        run,
    };
    vec![
        s("faults::corrupted_links", corruption),
        s("faults::receive_queue_full", queue_full),
        s("faults::retry_and_replay", retry),
        s("faults::link_flap", flap),
    ]
}

/// Sums every number with this key anywhere in a JSON document.
fn sum(value: &Value, key: &str) -> u64 {
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
    let before = sum(&lab.status()?, "held");
    // A mailbox of VPID 254 with room for four slots only.
    lab.fault(&["queue-full", "1", "--vpid", "254", "--limit", "4"])?;
    let result = both_ways(lab, 32, Duration::from_secs(200));
    lab.fault(&["queue-full", "1", "--vpid", "254", "--off"])?;
    result?;
    let after = sum(&lab.status()?, "held");
    ensure!(after > before, "no message had to wait for a full queue");
    Ok(())
}

fn retry(lab: &Lab) -> Result<()> {
    let before = lab.ethtool(0, "velo_retries")?;
    lab.fault(&["retry", "0", "--every", "50"])?;
    let result = both_ways(lab, 32, Duration::from_secs(200));
    lab.fault(&["retry", "0", "--every", "0"])?;
    result?;
    let after = lab.ethtool(0, "velo_retries")?;
    ensure!(after > before, "the driver replayed nothing");
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
