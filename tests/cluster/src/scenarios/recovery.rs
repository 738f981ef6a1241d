//! Faults of the NIC itself: lost writes, packets that it never accepts, and lack of memory.

use super::expected::REFUSED;
use super::faults::sum;
use super::node::{extoll, node, value, volume, Options};
use super::on_pair;
use crate::cluster::{as_slow, Lab, PATIENCE};
use crate::scenarios::eth::traffic::{both_ways, iperf3_tcp, ping_sizes};
use crate::Scenario;
use anyhow::{bail, ensure, Context, Result};
use std::time::{Duration, Instant};

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("faults::lost_writes_under_traffic", lost_under_traffic).finds(REFUSED),
        on_pair("faults::lost_writes_when_idle", lost_when_idle).finds(REFUSED),
        on_pair("faults::lost_interrupt", lost_interrupt).finds(REFUSED),
        on_pair("faults::registers_hang", registers_hang).finds(&[
            "drops_bus_master_off",
            "dma_faults",
            "drops_dma",
        ]),
        on_pair("faults::transmit_watchdog", watchdog).finds(REFUSED),
        on_pair("faults::retry_without_end", retry_without_end).finds(REFUSED),
        on_pair("faults::held_up", held_up).finds(REFUSED),
        on_pair("faults::slots_of_64_bytes", small_slots),
        on_pair("faults::memory_pressure", memory_pressure),
    ]
}

fn pings(lab: &Lab, count: usize, options: &str) -> Result<()> {
    node(lab, 0).pings(count, options)
}

fn reason(lab: &Lab, number: usize, reason: u32) -> Result<u64> {
    node(lab, number).reason(reason)
}

/// Loses the next write into a ring of node 1 and waits until the driver has skipped the hole.
fn lose_one(lab: &Lab, ring: &str, number: u32) -> Result<()> {
    let before = (
        sum(&lab.status()?, "drops_lost_write"),
        reason(lab, 1, number)?,
    );
    lab.fault(&["dma-fault", "1", "--ring", ring])?;
    lab.until("a write is lost and skipped", PATIENCE, |l| {
        Ok(reason(l, 1, number)? > before.1)
    })?;
    let lost = sum(&lab.status()?, "drops_lost_write") - before.0;
    ensure!(lost == 1, "{lost} writes were lost instead of one");
    Ok(())
}

/// Names of the rings, and numbers of the reasons that count their lost writes.
const RINGS: [(&str, u32); 3] = [("velo", 19), ("rma", 20), ("snq", 21)];

/// Single writes into each ring are lost while data flow in both directions. All data arrive, and
/// the rings work afterwards.
fn lost_under_traffic(lab: &Lab) -> Result<()> {
    let before = RINGS
        .iter()
        .map(|(_, number)| reason(lab, 1, *number))
        .collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let data = scope.spawn(|| both_ways(lab, volume(8, 32), Duration::from_secs(200)));
        // This traffic continues after all data have arrived.
        let load = lab.spawn(0, "ping -q -i 0.05 -s 3000 -w 150 node1")?;
        let lose = |(ring, number): &(&str, u32)| lose_one(lab, ring, *number);
        let result = RINGS.iter().chain(&RINGS).try_for_each(lose);
        let data = data
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the thread panicked")));
        load.stop();
        result.and(data)
    })?;
    // Sends enough messages for the system notification queue to wrap. The driver must not mistake
    // the old entry in a hole for a new entry.
    pings(lab, 1000, "-i 0.002 -s 40")?;
    pings(lab, 50, "-i 0.02 -s 3000")?;
    for ((ring, number), before) in RINGS.iter().zip(before) {
        let skipped = reason(lab, 1, *number)? - before;
        ensure!(
            skipped == 2,
            "{ring}: 2 lost writes were counted as {skipped}"
        );
    }
    Ok(())
}

/// A lost write is detected without further traffic. Neighbour entries are permanent, because
/// address requests would wake the driver.
fn lost_when_idle(lab: &Lab) -> Result<()> {
    node(lab, 0).one_ping("-s 3000")?;
    let known = "ip -4 neigh show dev exn0 | while read ip what mac rest; do \
                 [ $what != lladdr ] || ip neigh replace $ip lladdr $mac dev exn0 nud permanent || exit 1; done";
    for n in 0..2 {
        lab.ok(n, known)?;
    }
    let result = lost_in_silence(lab);
    for n in 0..2 {
        lab.ok(n, "ip neigh flush dev exn0 nud permanent")?;
    }
    result
}

fn lost_in_silence(lab: &Lab) -> Result<()> {
    for (ring, size, number) in [("velo", 40, 19), ("rma", 3000, 20)] {
        // Resolves the address first, so that the ping sends exactly one frame and repeats none.
        node(lab, 0).one_ping("-s 3000")?;
        std::thread::sleep(Duration::from_secs(1));
        let before = reason(lab, 1, number)?;
        lab.fault(&["dma-fault", "1", "--ring", ring])?;
        let out = lab.sh_for(0, &format!("ping -q -c 1 -W 1 -s {size} node1"), PATIENCE)?;
        ensure!(out.status != 0, "a lost {ring} write was answered");
        lab.until("the hole is skipped without more traffic", PATIENCE, |l| {
            Ok(reason(l, 1, number)? == before + 1)
        })?;
        pings(lab, 3, &format!("-i 0.2 -s {size}"))?;
    }
    // The message arrived, but its notification is lost.
    std::thread::sleep(Duration::from_secs(1));
    let before = reason(lab, 1, 21)?;
    lab.fault(&["dma-fault", "1", "--ring", "snq"])?;
    node(lab, 0).one_ping("-s 40")?;
    // The driver may have polled the mailbox before the ring.
    lab.until("the lost notification is counted", PATIENCE, |l| {
        Ok(reason(l, 1, 21)? == before + 1)
    })?;
    pings(lab, 10, "-i 0.05 -s 40")
}

/// A lost interrupt does not stop the interrupts, although each handler arms the next one.
fn lost_interrupt(lab: &Lab) -> Result<()> {
    pings(lab, 3, "-i 0.2")?;
    std::thread::sleep(Duration::from_secs(1));
    let before = reason(lab, 1, 35)?;
    lab.fault(&["dma-fault", "1", "--ring", "msi"])?;
    node(lab, 0).one_ping("")?;
    lab.until("the loss is detected", PATIENCE, |l| {
        Ok(reason(l, 1, 35)? > before)
    })?;
    let before = node(lab, 1).interrupts()?;
    pings(lab, 20, "-i 0.2")?;
    let more = node(lab, 1).interrupts()? - before;
    ensure!(more >= 10, "{more} interrupts by 20 messages");
    Ok(())
}

/// Returns true if the configuration space of node 0's NIC permits access to memory.
fn is_master(lab: &Lab) -> Result<bool> {
    let command = lab.ok(
        0,
        "od -An -tu1 -j4 -N1 /sys/bus/pci/drivers/extoll/0000:*/config",
    )?;
    Ok(command.trim().parse::<u8>()? & 4 != 0)
}

/// When registers stop answering while the NIC keeps running, the driver disables its access to
/// memory before it frees anything. The NIC works again after it is bound again.
fn registers_hang(lab: &Lab) -> Result<()> {
    pings(lab, 3, "-i 0.2")?;
    ensure!(is_master(lab)?, "bus mastering is off");
    lab.fault(&["deaf", "0"])?;
    let noticed = lab.until("the NIC is declared dead", PATIENCE, |l| {
        Ok(l.ok(0, "dmesg")?.contains("the device is gone"))
    });
    let cut = noticed.and_then(|()| {
        lab.until("it is no bus master any more", PATIENCE, |l| {
            Ok(!is_master(l)?)
        })
    });
    let unbound = node(lab, 0).unload();
    lab.fault(&["deaf", "0", "--off"])?;
    cut?;
    unbound?;
    node(lab, 0).load(Options::default())?;
    node(lab, 0).back()?;
    pings(lab, 20, "-i 0.05 -s 3000")?;
    lab.assert_clean_log()?;
    lab.ok(0, "dmesg -C").map(drop)
}

/// The kernel's report of a transmit time-out, which the scenario provokes.
const WATCHDOG: &str = "NETDEV WATCHDOG";

/// When the NIC stops accepting messages, the watchdog gives up the frames. The interface works
/// again after the end of the fault.
fn watchdog(lab: &Lab) -> Result<()> {
    node(lab, 0).one_ping("")?;
    let before = (
        node(lab, 0).ethtool("tx_watchdog")?,
        node(lab, 0).port_counter("lost")?,
        reason(lab, 0, 12)?,
    );
    lab.fault(&["stuck", "0"])?;
    // Small frames are sent as messages. The queue stops when 255 of them are not accepted, and the
    // watchdog fires eight seconds later.
    let load = lab.spawn(0, "ping -q -f -s 20 -w 60 node1")?;
    let fired = lab.until("the watchdog fires", PATIENCE, |l| {
        Ok(node(l, 0).ethtool("tx_watchdog")? > before.0)
    });
    lab.fault(&["stuck", "0", "--off"])?;
    fired?;
    let back = node(lab, 0).back();
    load.stop();
    back?;
    ensure!(
        node(lab, 0).port_counter("lost")? > before.1,
        "nothing was given up"
    );
    ensure!(reason(lab, 0, 12)? > before.2, "no stall was reported");
    let log = lab.ok(0, "dmesg")?;
    ensure!(
        log.contains("transmit queue stalled"),
        "exn did not log the time-out"
    );
    lab.assert_clean_log_but(&[WATCHDOG])?;
    lab.ok(0, "dmesg -C")?;
    pings(lab, 50, "-i 0.02 -s 40")?;
    pings(lab, 50, "-i 0.02 -s 9000")?;
    iperf3_tcp(lab)
}

/// When the NIC rejects every packet, including repetitions, the driver gives the packets up and
/// the port continues.
fn retry_without_end(lab: &Lab) -> Result<()> {
    node(lab, 0).one_ping("")?;
    let restarts = || node(lab, 0).ethtool("port_restart");
    let before = (
        reason(lab, 0, 13)?,
        node(lab, 0).port_counter("lost")?,
        restarts()?,
    );
    lab.fault(&["retry", "0", "--every", "1"])?;
    let load = lab.spawn(0, "ping -q -i 0.01 -s 40 -w 60 node1")?;
    let fetch = lab.spawn(1, "ping -q -i 0.01 -s 3000 -w 60 node0")?;
    let given_up = lab.until("packets are given up several times", PATIENCE, |l| {
        Ok(reason(l, 0, 13)? > before.0 + 2)
    });
    lab.fault(&["retry", "0", "--every", "0"])?;
    load.stop();
    fetch.stop();
    given_up?;
    // Ports that were opened again count from zero. exn opens its ports again when the peer sends
    // frames but does not answer.
    let counted = if restarts()? > before.2 { 0 } else { before.1 };
    ensure!(
        node(lab, 0).port_counter("lost")? > counted,
        "no packet was counted as lost"
    );
    node(lab, 0).back()?;
    pings(lab, 50, "-i 0.02 -s 40")?;
    pings(lab, 50, "-i 0.02 -s 9000")
}

/// The NIC accepts nothing for the maximum time for which full queues elsewhere may block the
/// fabric (HW §9.3). The driver must not give up any packet.
fn held_up(lab: &Lab) -> Result<()> {
    const HELD: Duration = Duration::from_millis(2500);
    // Maximum duration of the fault, because the driver gives up after five seconds.
    const AT_MOST: Duration = Duration::from_millis(4500);
    for _ in 0..4 {
        node(lab, 0).one_ping("")?;
        let lost =
            || -> Result<_> { Ok((reason(lab, 0, 13)?, node(lab, 0).port_counter("lost")?)) };
        let before = lost()?;
        let replayed = node(lab, 0).port_counter("replayed")?;
        let began = Instant::now();
        lab.fault(&["retry", "0", "--every", "1"])?;
        let load = lab.spawn(0, "ping -q -i 0.05 -c 20 -W 30 -s 40 node1")?;
        std::thread::sleep(HELD);
        lab.fault(&["retry", "0", "--every", "0"])?;
        let took = began.elapsed();
        let out = load.wait(PATIENCE)?;
        if took > AT_MOST {
            // The host was too slow for this round.
            node(lab, 0).back()?;
            continue;
        }
        ensure!(lost()? == before, "packets were given up after {took:?}");
        ensure!(
            node(lab, 0).port_counter("replayed")? > replayed,
            "nothing was replayed"
        );
        ensure!(out.stdout.contains(" 20 received"), "{out:?}");
        return Ok(());
    }
    bail!("the fault never ended in time")
}

/// Loads the modules of a node again with the given size of VELO slots.
fn reload(lab: &Lab, number: usize, small: bool) -> Result<()> {
    let (option, size) = if small {
        ("extoll.velo_slots_64=1", 64)
    } else {
        ("", 128)
    };
    node(lab, number).reload(extoll(option))?;
    let status = node(lab, number).debugfs("status")?;
    ensure!(value(&status, "velo_slot_bytes") == Some(size), "{status}");
    Ok(())
}

/// With slots of 64 bytes on one node or on both, messages occupy one to three slots. Lost slots
/// are skipped.
fn small_slots(lab: &Lab) -> Result<()> {
    for node in [1, 0] {
        reload(lab, node, true)?;
        ping_sizes(lab)?;
        // Frames consist of many messages.
        for node in 0..2 {
            lab.ok(node, "ethtool --set-tunable exn0 tx-copybreak 9000")?;
        }
        ping_sizes(lab)?;
        iperf3_tcp(lab)?;
        for node in 0..2 {
            lab.ok(node, "ethtool --set-tunable exn0 tx-copybreak 120")?;
        }
    }
    // An echo request of 98 bytes occupies two slots. The first slot, the second slot or both are
    // lost. The next requests must arrive.
    for slot in [&["--slot", "0"][..], &["--slot", "1"], &[]] {
        let before = (reason(lab, 1, 19)?, reason(lab, 1, 7)?);
        let load = lab.spawn(0, "ping -q -i 0.05 -w 60 node1")?;
        let mut fault = vec!["dma-fault", "1", "--ring", "velo", "--vpid", "254"];
        fault.extend(slot);
        lab.fault(&fault)?;
        let skipped = lab.until("lost slots are skipped", PATIENCE, |l| {
            Ok(reason(l, 1, 19)? > before.0)
        });
        load.stop();
        skipped.with_context(|| format!("{slot:?}"))?;
        pings(lab, 50, "-i 0.02")?;
        ensure!(
            reason(lab, 1, 7)? == before.1,
            "{slot:?}: a status word was misread"
        );
    }
    for node in 0..2 {
        reload(lab, node, false)?;
    }
    pings(lab, 5, "-i 0.02")
}

/// Traffic survives a lack of memory. Page cache fills the memory of node 1, and the kernel keeps
/// hardly any memory free. Buffers for long frames need many consecutive pages without waiting, so
/// their allocation often fails.
fn memory_pressure(lab: &Lab) -> Result<()> {
    let counters = [
        "rx_rdv_deferred",
        "rx_rdv_discarded",
        "rx_no_memory",
        "tx_no_memory",
    ];
    let read =
        |lab: &Lab| -> Result<u64> { counters.iter().map(|c| node(lab, 1).ethtool(c)).sum() };
    let saved = lab.ok(
        1,
        "cat /proc/sys/vm/min_free_kbytes /proc/sys/vm/watermark_scale_factor",
    )?;
    let mut saved = saved.split_whitespace();
    let (min_free, scale) = (
        saved.next().context("min_free_kbytes")?,
        saved.next().context("watermark_scale_factor")?,
    );
    let before = read(lab)?;
    // Reserves all but 110 MiB as huge pages.
    lab.ok(
        1,
        "echo 128 >/proc/sys/vm/min_free_kbytes; echo 1 >/proc/sys/vm/watermark_scale_factor; \
         free=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo); echo $(((free - 112640) / 2048)) >/proc/sys/vm/nr_hugepages",
    )?;
    let seconds = as_slow(Duration::from_secs(120)).as_secs();
    let hog = lab.spawn(
        1,
        &format!("end=$(($(date +%s) + {seconds})); while [ $(date +%s) -lt $end ]; do cat /dev/vd? >/dev/null; done"),
    )?;
    let load = lab.spawn(
        0,
        &format!(
            "for i in 1 2 3 4; do ping -q -f -s 60000 -w {seconds} node1 >/dev/null & done; wait"
        ),
    )?;
    let short = lab.until("a buffer allocation fails", Duration::from_secs(100), |l| {
        Ok(read(l)? > before)
    });
    load.stop();
    hog.stop();
    lab.ok(
        1,
        &format!("echo {min_free} >/proc/sys/vm/min_free_kbytes; echo {scale} >/proc/sys/vm/watermark_scale_factor; echo 0 >/proc/sys/vm/nr_hugepages; pkill cat; true"),
    )?;
    lab.ok(0, "pkill ping; true")?;
    short?;
    lab.until("no frame waits for a buffer", PATIENCE, |l| {
        Ok(node(l, 1).ethtool("rx_rdv_waiting")? == 0)
    })?;
    pings(lab, 20, "-s 60000")?;
    both_ways(lab, volume(8, 32), Duration::from_secs(200))
}
