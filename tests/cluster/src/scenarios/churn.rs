//! Modules, devices and nodes that go away and come back, under traffic.

use super::PAIR;
use crate::cluster::{field, Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    let s = |name, run| Scenario {
        name,
        spec: PAIR,
        run,
    };
    vec![
        s("churn::reload_under_traffic", reload),
        s("churn::unbind_bind", unbind),
        s("churn::interface_down_up", down_up),
        s("churn::power_off_in_mid_transfer", power_off),
    ]
}

/// What must not grow: kernel memory that the driver could leak, in objects or KiB.
#[derive(Debug)]
struct Usage {
    skbs: u64,
    available_kib: u64,
    /// Open VELO and RMA ports, each of which holds a VPID.
    ports: u64,
}

fn usage(lab: &Lab, node: usize) -> Result<Usage> {
    let text = lab.ok(
        node,
        "sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; awk '/^skbuff_head_cache/ {print \"skbs: \" $2}' /proc/slabinfo; \
         awk '/^MemAvailable/ {print \"available: \" $2}' /proc/meminfo; \
         echo ports: $(cat /sys/kernel/debug/extoll-*/ports | grep -c vpid)",
    )?;
    Ok(Usage {
        skbs: field(&text, "skbs").context("no skbuff_head_cache in slabinfo")?,
        available_kib: field(&text, "available").context("no MemAvailable")?,
        ports: field(&text, "ports").context("no count of ports")?,
    })
}

fn no_growth(before: &Usage, after: &Usage) -> Result<()> {
    // Caches keep some objects per CPU; a leak per cycle or frame is far above these limits.
    ensure!(
        after.skbs < before.skbs + 1000,
        "sk_buffs grew: {before:?} -> {after:?}"
    );
    ensure!(
        after.ports == before.ports,
        "VPIDs are left: {before:?} -> {after:?}"
    );
    ensure!(
        after.available_kib + 24 * 1024 > before.available_kib,
        "memory shrank: {before:?} -> {after:?}"
    );
    Ok(())
}

/// Loads the modules on `node` and waits until it reaches its peer.
fn back(lab: &Lab, node: usize) -> Result<()> {
    lab.until("exn0 has a carrier", PATIENCE, |l| {
        let out = l.sh_for(
            node,
            &format!(
                "ip addr replace 10.2.0.{}/24 dev exn0; ip link set exn0 up; ip link show exn0",
                node + 1
            ),
            PATIENCE,
        )?;
        Ok(out.stdout.contains("LOWER_UP"))
    })?;
    let peer = 1 - node;
    lab.until("the peer answers", PATIENCE, |l| {
        Ok(
            l.sh_for(node, &format!("ping -q -c 1 -W 1 node{peer}"), PATIENCE)?
                .status
                == 0,
        )
    })
}

fn reload(lab: &Lab) -> Result<()> {
    lab.ok(1, "pkill iperf3; iperf3 -s -D")?;
    lab.ok(0, "pkill iperf3; iperf3 -s -D")?;
    // Once before measuring: the first load fills caches.
    lab.ok(0, "rmmod exn extoll && modprobe exn")?;
    back(lab, 0)?;
    let before = usage(lab, 0)?;
    // Traffic from the peer all the time, UDP so that it does not pause while the node is away.
    let mut load = lab.spawn(
        1,
        "ip neigh replace 10.2.0.1 lladdr 2e:87:04:07:00:00 dev exn0; end=$(($(date +%s) + 900)); \
         while [ $(date +%s) -lt $end ]; do ping -q -f -s 3000 -w 2 node0 >/dev/null 2>&1; timeout 10 iperf3 -c node0 -t 2 >/dev/null 2>&1; done",
    )?;
    let mut run = || -> Result<()> {
        for round in 0..50 {
            lab.ok(0, "rmmod exn extoll && modprobe exn")
                .with_context(|| format!("round {round}"))?;
            let up = lab.sh_for(
                0,
                "ip addr replace 10.2.0.1/24 dev exn0; ip link set exn0 up; sleep 0.3",
                PATIENCE,
            )?;
            ensure!(up.status == 0, "round {round}: {}", up.stderr);
        }
        ensure!(load.is_running(), "the load from the peer has ended early");
        Ok(())
    };
    let result = run();
    load.stop();
    lab.sh_for(
        1,
        "ip neigh del 10.2.0.1 dev exn0; pkill ping; true",
        PATIENCE,
    )?;
    result?;
    back(lab, 0)?;
    back(lab, 1)?;
    lab.ok(0, "pkill iperf3; true")?;
    no_growth(&before, &usage(lab, 0)?)
}

fn unbind(lab: &Lab) -> Result<()> {
    let before = usage(lab, 0)?;
    for _ in 0..10 {
        let load = lab.spawn(1, "ping -q -f -s 8000 -w 5 node0")?;
        lab.ok(
            0,
            "dev=$(lspci -Dn -d 1cad: | awk '{print $1; exit}'); echo $dev >/sys/bus/pci/drivers/extoll/unbind && ! ip link show exn0 2>/dev/null && \
             echo $dev >/sys/bus/pci/drivers/extoll/bind",
        )?;
        back(lab, 0)?;
        load.stop();
    }
    back(lab, 1)?;
    no_growth(&before, &usage(lab, 0)?)
}

fn down_up(lab: &Lab) -> Result<()> {
    let before = usage(lab, 0)?;
    let load = lab.spawn(1, "ping -q -f -s 20000 -w 30 node0")?;
    for _ in 0..20 {
        lab.ok(0, "ip link set exn0 down; ip link set exn0 up")?;
    }
    load.stop();
    back(lab, 0)?;
    back(lab, 1)?;
    no_growth(&before, &usage(lab, 0)?)
}

fn power_off(lab: &Lab) -> Result<()> {
    lab.ok(1, "pkill iperf3; iperf3 -s -D")?;
    let load = lab.spawn(0, "iperf3 -c node1 -t 60")?;
    std::thread::sleep(Duration::from_secs(3));
    lab.fault(&["power-off", "1"])?;
    // The survivor stays usable: it answers, its counters show the drops, its log is clean.
    let gone = lab.sh_for(0, "ping -q -c 3 -W 1 node1", PATIENCE)?;
    ensure!(
        gone.status != 0,
        "a node without power answers: {}",
        gone.stdout
    );
    lab.sh_for(0, "ping -q -c 20 -i 0.2 -s 9000 -W 1 node1", PATIENCE)?;
    lab.until("ifconfig counts drops", Duration::from_secs(60), |l| {
        let text = l.ok(0, "ifconfig exn0")?;
        let counted = |key: &str| {
            text.lines()
                .filter(|l| l.trim_start().starts_with("TX errors"))
                .any(|l| {
                    l.split_whitespace()
                        .collect::<Vec<_>>()
                        .windows(2)
                        .any(|w| w[0] == key && w[1].parse::<u64>().unwrap_or(0) > 0)
                })
        };
        Ok(counted("dropped") || counted("errors"))
    })?;
    load.stop();
    lab.fault(&["power-on", "1"])?;
    lab.until("the node is back", Duration::from_secs(120), |l| {
        Ok(l.sh_for(0, "ping -q -c 1 -W 1 node1", PATIENCE)?.status == 0)
    })?;
    lab.ok(1, "pkill iperf3; iperf3 -s -D -p 5290; for i in $(seq 100); do ss -ltn | grep -q :5290 && exit 0; sleep 0.1; done; exit 1")?;
    lab.ok(0, "iperf3 -c node1 -p 5290 -t 2")?;
    Ok(())
}
