//! Faults of the fabric and of its links.

use super::node::{node, volume};
use super::on_pair;
use crate::cluster::{Lab, PATIENCE};
use crate::scenarios::eth::traffic::both_ways;
use crate::Scenario;
use anyhow::{ensure, Result};
use serde_json::Value;
use std::time::Duration;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("faults::corrupted_links", corruption).gate(),
        on_pair("faults::retry_and_replay", retry).gate(),
        on_pair("faults::link_flap", flap),
    ]
}

/// Numbers of reasons of the base driver (docs/driver.md).
const LINK_UP: u32 = 29;
const LINK_DOWN: u32 = 30;

/// Returns the sum of all numbers with this key in a JSON document.
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

/// Corruption on the links causes retransmissions only; no data are lost.
fn corruption(lab: &Lab) -> Result<()> {
    let before = sum(&lab.status()?, "retransmissions");
    lab.fault(&["corrupt", "--rate", "0.02"])?;
    let result = both_ways(lab, volume(16, 32), Duration::from_secs(200));
    lab.fault(&["corrupt", "--rate", "0"])?;
    result?;
    let after = sum(&lab.status()?, "retransmissions");
    ensure!(after > before, "no link retransmitted anything");
    Ok(())
}

/// The driver repeats commands for which a requester reports "retry", and no data are lost.
fn retry(lab: &Lab) -> Result<()> {
    let before = (
        sum(&lab.status()?, "velo_retries"),
        node(lab, 0).port_counter("replayed")?,
    );
    lab.fault(&["retry", "0", "--every", "50"])?;
    let result = both_ways(lab, volume(16, 32), Duration::from_secs(300));
    lab.fault(&["retry", "0", "--every", "0"])?;
    result?;
    let after = (
        sum(&lab.status()?, "velo_retries"),
        node(lab, 0).port_counter("replayed")?,
    );
    ensure!(after.0 > before.0, "no requester reported retry");
    ensure!(after.1 > before.1, "the driver replayed nothing");
    Ok(())
}

/// Waits until the carrier of the interface has this state.
fn carrier(lab: &Lab, number: usize, is_on: bool) -> Result<()> {
    let what = format!("carrier of node{number}: {is_on}");
    lab.until(&what, PATIENCE, |_| {
        Ok(node(lab, number).has_carrier()? == is_on)
    })
}

/// A plugged cable is detected even while link events are masked, because the driver polls links
/// that are down.
fn unnoticed_plug(lab: &Lab) -> Result<()> {
    const MASK: &str = "/sys/kernel/debug/extoll-*/event_mask";
    let mask = node(lab, 0).ok(&format!("cat {MASK}"))?;
    lab.fault(&["link-down", "0", "0"])?;
    carrier(lab, 0, false)?;
    let set = |mask: &str| node(lab, 0).ok(&format!("echo {mask} >$(ls {MASK})"));
    // Masks the four link events, 17 to 20.
    let of_links = 0xf << 17;
    let all = u32::from_str_radix(mask.trim().trim_start_matches("0x"), 16)?;
    set(&format!("{:#x}", all & !of_links))?;
    lab.fault(&["link-up", "0", "0"])?;
    let noticed = carrier(lab, 0, true);
    set(mask.trim())?;
    noticed?;
    node(lab, 0).back()
}

/// Number of times that the cable is pulled.
const FLAPS: u64 = 2;

/// A cable is pulled and plugged in again. Both ends count it, and pings are answered only while
/// the cable is plugged in. Then the link flaps during a transfer, which must survive.
fn flap(lab: &Lab) -> Result<()> {
    let reasons = |n: usize| -> Result<(u64, u64)> {
        Ok((
            node(lab, n).reason(LINK_UP)?,
            node(lab, n).reason(LINK_DOWN)?,
        ))
    };
    let is = |n: usize, state: &str| {
        let what = format!("link 0 is {state}");
        let has = format!("grep -q '^link 0 {state} ' /sys/kernel/debug/extoll-*/links");
        node(lab, n).until(&what, &has)
    };
    let before = [reasons(0)?, reasons(1)?];
    for n in 1..=FLAPS {
        lab.fault(&["link-down", "0", "0"])?;
        for end in 0..2 {
            is(end, "down")?;
            carrier(lab, end, false)?;
            let other = 1 - end;
            let out = lab.sh_for(
                end,
                &format!("ping -q -c 3 -i 0.2 -W 1 node{other}"),
                PATIENCE,
            )?;
            ensure!(
                out.status == 1 && out.stdout.contains(" 0 received"),
                "the cable is cut and node{other} answers: {out:?}"
            );
        }
        lab.fault(&["link-up", "0", "0"])?;
        for end in 0..2 {
            is(end, "up")?;
            node(lab, end).reaches(node(lab, 1 - end))?;
            node(lab, end).pings(10, "-i 0.02")?;
            node(lab, end).pings(10, "-i 0.02 -s 9000")?;
            let (up, down) = reasons(end)?;
            ensure!(
                (up, down) == (before[end].0 + n, before[end].1 + n),
                "flap {n}: node{end} counted {before:?} -> {:?}",
                (up, down)
            );
        }
    }
    unnoticed_plug(lab)?;
    let before = [reasons(0)?, reasons(1)?];
    let dropped = sum(&lab.status()?, "dropped_down");
    std::thread::scope(|scope| -> Result<()> {
        let data = scope.spawn(|| both_ways(lab, 16, Duration::from_secs(300)));
        let flapping = lab.fault(&[
            "flap",
            "0",
            "0",
            "--down-ms",
            "150",
            "--up-ms",
            "300",
            "--count",
            "40",
            "--drop",
        ]);
        let data = data
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the thread panicked")));
        flapping.map(drop).and(data)
    })?;
    // Flapping may continue for a while after the transfer.
    let most = before[0].0 + 1;
    lab.until("the link flapped", PATIENCE, |_| Ok(reasons(0)?.0 >= most))?;
    lab.fault(&["link-up", "0", "0"])?;
    ensure!(
        sum(&lab.status()?, "dropped_down") > dropped,
        "no packet met the missing cable"
    );
    node(lab, 0).back()?;
    node(lab, 0).pings(20, "-i 0.02 -s 9000")
}
