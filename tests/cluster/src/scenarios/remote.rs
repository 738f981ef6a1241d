//! Functions of the base driver that Device Lending uses: batches of register accesses to other
//! nodes, also with locks held; windows and targets; interrupts raised by other nodes.

use super::expected::{NOTHING_THERE, REFUSED};
use super::node::{extoll, node, value};
use super::units::{bench, refused};
use super::PAIR;
use crate::cluster::{Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

/// Two nodes on which stores to the window take two milliseconds to reach the SMFU. A target base
/// of 0 means address 0 there.
const UNKIND_WINDOW: Spec = Spec::pair().emulator(&[
    "--nic-option=smfu-store-ns=2000000",
    "--nic-option=smfu-zero-base=address",
]);

/// A node with more than 4 GiB of memory.
const HIGH: Spec = Spec::new(1).memory(6144);

/// Numbers of reasons of the base driver (docs/driver.md).
const RRA_TIMEOUT: u32 = 23;
const LINK_DOWN: u32 = 30;
const MESSAGE: u32 = 39;
const STORM: u32 = 40;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    let s = Scenario::new;
    vec![
        s("units::rra_atomic", PAIR, rra_atomic).finds(REFUSED),
        s("units::rra_batch", PAIR, rra_batch).finds(REFUSED),
        s("units::smfu_target", PAIR, smfu_target).finds(REFUSED),
        s("units::message_interrupts", PAIR, message_interrupts).finds(REFUSED),
        s("units::message_storm", PAIR, message_storm).finds(NOTHING_THERE),
        s("units::vendor_events", PAIR, vendor_events).finds(REFUSED),
        s("units::smfu_interval_reuse", UNKIND_WINDOW, interval_reuse),
        s("units::smfu_target_bases", UNKIND_WINDOW, target_bases).finds(NOTHING_THERE),
        s("units::notification_ring", HIGH, notification_ring).finds(REFUSED),
    ]
}

type Answer = BTreeMap<String, String>;

fn number_of(answer: &Answer, key: &str) -> Result<u64> {
    let text = answer.get(key).with_context(|| format!("{answer:?}"))?;
    Ok(text.parse()?)
}

/// A register of another node can be read and written with a spin lock held, and an unanswered
/// access ends in time.
fn rra_atomic(lab: &Lab) -> Result<()> {
    bench(lab)?;
    for n in 0..20 {
        let way = "node=1 offset=0x8060 wait=atomic timeout_us=100000";
        in_time(lab, &format!("rra op=write value={n} {way}"))?;
        let got = number_of(&in_time(lab, &format!("rra {way}"))?, "value")?;
        ensure!(got == n, "{got} instead of {n}");
    }
    let before = node(lab, 0).reason(RRA_TIMEOUT)?;
    let error = refused(
        lab,
        0,
        "rra node=77 offset=0x8008 wait=atomic timeout_us=3000",
    )?;
    ensure!(error.contains("TimedOut"), "{error}");
    ensure!(
        node(lab, 0).reason(RRA_TIMEOUT)? == before + 1,
        "not counted"
    );
    // A longer time-out is shortened, because a CPU must not be blocked for ten seconds.
    let command = "rra node=77 offset=0x8008 wait=atomic timeout_us=10000000";
    let script = format!("exec 3<>/dev/extoll_bench; printf %s '{command}' >&3; cat <&3; true");
    let text = lab.ok_for(0, &script, Duration::from_secs(60))?;
    let us = value(&text, "us").with_context(|| text.clone())?;
    ensure!((100_000..5_000_000).contains(&us), "{us} µs");
    in_time(
        lab,
        "rra node=1 offset=0x8008 wait=atomic timeout_us=100000",
    )
    .map(drop)
}

/// Runs a command up to five times. With a lock held the driver waits up to 100 ms, in which a busy
/// host may not run the other node.
fn in_time(lab: &Lab, command: &str) -> Result<Answer> {
    for _ in 0..4 {
        match lab.raw(0, command) {
            Err(e) if format!("{e:#}").contains("TimedOut") => {}
            done => return done,
        }
    }
    lab.raw(0, command)
}

/// Many registers of two nodes can be accessed at once, in process context and with a lock held.
/// Only requests to a node that does not answer fail.
fn rra_batch(lab: &Lab) -> Result<()> {
    bench(lab)?;
    // The accessed registers are the MSI-X table, which behaves like memory.
    for wait in ["", " wait=atomic"] {
        for count in [1, 2, 8] {
            let command =
                format!("rra op=batch node=1 offset=0x6000 count={count} timeout_us=100000{wait}");
            let got = lab.raw(0, &command)?;
            let (wrong, failed) = (number_of(&got, "wrong")?, number_of(&got, "failed")?);
            ensure!((wrong, failed) == (0, 0), "{command}: {got:?}");
        }
        let command =
            format!("rra op=batch node=1 value=77 offset=0x6000 count=8 timeout_us=50000{wait}");
        let got = lab.raw(0, &command)?;
        ensure!(number_of(&got, "wrong")? == 0, "{got:?}");
        // Writes to an absent node count as sent. Reads from it are not answered.
        ensure!(number_of(&got, "failed")? == 4, "{got:?}");
    }
    Ok(())
}

/// An open target receives stores. An invalid target is rejected. No store arrives after the target
/// was closed.
fn smfu_target(lab: &Lab) -> Result<()> {
    bench(lab)?;
    thread::scope(|scope| -> Result<()> {
        let opened = scope.spawn(|| {
            lab.raw(
                1,
                "smfu op=target interval=9 bytes=0x4000 offset=0x128 ms=4000",
            )
        });
        // The stores begin before the target opens and end after it was closed.
        for n in 1..=60 {
            lab.raw(
                0,
                &format!("smfu op=write node=1 interval=9 bytes=0x4000 offset=0x128 value={n}"),
            )?;
            thread::sleep(Duration::from_millis(100));
        }
        let got = opened.join().expect("no panic")?;
        for refusal in ["taken", "overlaps", "part"] {
            ensure!(number_of(&got, refusal)? == 1, "{refusal}: {got:?}");
        }
        let arrived = number_of(&got, "value")?;
        ensure!((1..=60).contains(&arrived), "{arrived} arrived");
        ensure!(number_of(&got, "after")? == 0, "it was not closed: {got:?}");
        Ok(())
    })?;
    // Opens a window that is aligned to its size, behind a window that is not aligned.
    let park = "smfu op=park node=1 bytes=4096";
    lab.raw(0, park)?;
    let got = lab.raw(0, "smfu op=read node=1 bytes=0x100000 natural=1")?;
    let start = number_of(&got, "start")?;
    ensure!(start % 0x10_0000 == 0, "a BAR of 1 MiB at {start:#x}");
    let error = refused(lab, 0, "smfu op=read node=1 bytes=0x3000 natural=1")?;
    ensure!(error.contains("EINVAL"), "{error}");
    node(lab, 0).unbind()?;
    node(lab, 0).bind()?;
    node(lab, 0).address_back()
}

/// Node 0 stores `count` times to an interval of node 1. Each store raises an interrupt.
fn knock(lab: &Lab, count: u32) -> Result<()> {
    for n in 0..count {
        lab.raw(
            0,
            &format!("smfu op=write node=1 interval=7 probe=0 offset=0 value={n}"),
        )?;
    }
    Ok(())
}

/// Stores of another node that raise interrupts reach the subscriber, up to the limit of its rate,
/// and stop when it unsubscribes.
fn message_interrupts(lab: &Lab) -> Result<()> {
    bench(lab)?;
    let before = node(lab, 1).reason(MESSAGE)?;
    for (limit, least, most) in [(0, 20, 4000), (10, 1, 60)] {
        thread::scope(|scope| -> Result<()> {
            let listener = scope.spawn(move || {
                lab.raw(
                    1,
                    &format!("messages interval=7 ms=5000 per_second={limit}"),
                )
            });
            thread::sleep(Duration::from_millis(1500));
            knock(lab, 20)?;
            let got = listener.join().expect("no panic")?;
            // The counter `calls` may include interrupts of the queue. Only `sure` counts stores.
            let sure = number_of(&got, "sure")?;
            ensure!((least..=most).contains(&sure), "limit {limit}: {got:?}");
            Ok(())
        })?;
    }
    ensure!(node(lab, 1).reason(MESSAGE)? >= before + 20, "not counted");
    // The interval exports memory again and raises no interrupts.
    let (messages, interrupts) = (node(lab, 1).reason(MESSAGE)?, node(lab, 1).reason(1)?);
    knock(lab, 5)?;
    let got = number_of(&lab.raw(1, "smfu op=local offset=0")?, "value")?;
    ensure!(got == 4, "{got} in the exported memory");
    ensure!(node(lab, 1).reason(MESSAGE)? == messages, "still messages");
    let spurious = node(lab, 1).reason(1)? - interrupts;
    ensure!(spurious < 100, "{spurious} interrupts for nothing");
    Ok(())
}

/// When other nodes raise more interrupts than permitted, their targets are closed for a while. The
/// driver keeps working, and later the targets work again.
fn message_storm(lab: &Lab) -> Result<()> {
    node(lab, 1).reload(extoll("extoll.message_interrupts=100"))?;
    bench(lab)?;
    let before = node(lab, 1).reason(STORM)?;
    // Runs until it is stopped, because the duration of the scenario depends on the host.
    let listener = lab.spawn_raw(1, "messages interval=7 ms=60000")?;
    let result = storm(lab, before);
    listener.stop();
    result?;
    node(lab, 1).until(
        "end of the listener",
        "[ $(cat /sys/module/extoll_bench/refcnt) = 0 ]",
    )?;
    node(lab, 1).reload(extoll(""))?;
    bench(lab)
}

fn storm(lab: &Lab, before: u64) -> Result<()> {
    lab.until("node 1 counts messages", PATIENCE, |l| {
        let heard = node(l, 1).reason(MESSAGE)?;
        knock(l, 1)?;
        Ok(node(l, 1).reason(MESSAGE)? > heard)
    })?;
    // Interrupts in quick succession merge, so there are pauses between the stores. The stores are
    // repeated until the driver has counted more interrupts than it permits in a tenth of a second.
    lab.until("the storm was detected", PATIENCE, |l| {
        l.raw(
            0,
            "smfu op=write node=1 interval=7 probe=0 bytes=0x10000 value=1 repeat=300 pause_us=500",
        )?;
        Ok(node(l, 1).reason(STORM)? > before)
    })?;
    node(lab, 1).pings(20, "-i 0.02")?;
    // The targets are open again. There are pauses between the stores, because interrupts in quick
    // succession merge.
    for _ in 0..3 {
        lab.until("messages arrive again", PATIENCE, |l| {
            let heard = node(l, 1).reason(MESSAGE)?;
            knock(l, 1)?;
            Ok(node(l, 1).reason(MESSAGE)? > heard)
        })?;
    }
    Ok(())
}

/// The mask contains only the vendor's events. A link change then raises no event, so the driver
/// polls the links.
fn vendor_events(lab: &Lab) -> Result<()> {
    node(lab, 0).reload(extoll("extoll.vendor_events=1"))?;
    lab.until("the mask is the vendor's", PATIENCE, |lab| {
        let mask = node(lab, 0).debugfs("event_mask")?;
        Ok(mask.trim() == "0x1feddffd")
    })?;
    node(lab, 0).back()?;
    let before = node(lab, 0).reason(LINK_DOWN)?;
    lab.fault(&["link-down", "0", "0"])?;
    lab.until("the driver reports it", PATIENCE, |lab| {
        Ok(node(lab, 0).reason(LINK_DOWN)? > before && !node(lab, 0).has_carrier()?)
    })?;
    lab.fault(&["link-up", "0", "0"])?;
    lab.until("the link is up", PATIENCE, |lab| node(lab, 0).has_carrier())?;
    node(lab, 0).reload(extoll(""))?;
    node(lab, 0).back()
}

/// A store directly before the end of a window arrives at the old target, even if the interval is
/// reused for another target.
fn interval_reuse(lab: &Lab) -> Result<()> {
    bench(lab)?;
    for (n, place) in ["interval=5", "interval=5 map=wc"]
        .iter()
        .cycle()
        .take(12)
        .enumerate()
    {
        let number = 1000 + n as u64;
        lab.raw(
            0,
            &format!("smfu op=reuse node=1 offset=64 value={number} {place}"),
        )?;
        // The same interval leads to another target after the store. That target must not receive
        // the store.
        lab.raw(
            0,
            &format!("smfu op=write node=0 offset=128 value=1 {place}"),
        )?;
        let got = number_of(&lab.raw(1, "smfu op=local offset=64")?, "value")?;
        ensure!(got == number, "{place}: {got} instead of {number}");
        let got = number_of(&lab.raw(0, "smfu op=local offset=64")?, "value")?;
        ensure!(got == 0, "{place}: {got} at node 0");
    }
    Ok(())
}

/// No base register contains 0, because the meaning of 0 is unknown. All base registers contain the
/// address of the exported memory or an unoccupied address.
fn target_bases(lab: &Lab) -> Result<()> {
    bench(lab)?;
    let files = "/sys/bus/pci/drivers/extoll/0000:*/extoll_rf";
    let bases = |lab: &Lab| -> Result<(u64, Vec<u64>)> {
        let text = node(lab, 1).ok(&format!(
            "cd {files} && cat extoll_rf_smfu_rf_tStartAddr_default_raw extoll_rf_smfu_rf_vpid_tStartAddr_raw"
        ))?;
        let all = text.lines().map(|l| u64::from_str_radix(l.trim(), 16));
        let mut all = all.collect::<Result<Vec<_>, _>>()?;
        Ok((all.remove(0), all))
    };
    let exported = number_of(&lab.raw(1, "smfu op=local")?, "address")?;
    let (default, all) = bases(lab)?;
    ensure!(
        default == exported && all.len() == 64,
        "{default:#x}, {all:x?}"
    );
    ensure!(all.iter().all(|b| *b == exported), "{all:x?}");
    // The exported memory is reachable through intervals and by the default base.
    for place in ["interval=3", "interval=62"] {
        lab.raw(
            0,
            &format!("smfu op=write node=1 offset=512 value=77 {place}"),
        )?;
        let got = number_of(
            &lab.raw(0, &format!("smfu node=1 offset=512 {place}"))?,
            "value",
        )?;
        ensure!(got == 77, "{place}: {got}");
        lab.raw(
            0,
            &format!("smfu op=write node=1 offset=512 value=0 {place}"),
        )?;
    }
    node(lab, 1).reload(extoll("extoll.smfu_target_kib=0"))?;
    bench(lab)?;
    let (default, all) = bases(lab)?;
    ensure!(default == 0x5A00_0000_0000, "{default:#x} without memory");
    ensure!(all.iter().all(|b| *b == default), "{all:x?}");
    // The kernel's code is not exported, whatever a base of 0 means.
    for offset in [0, 0x100_0000] {
        let command = format!("smfu node=1 interval=4 bytes=0x2000000 offset={offset}");
        match lab.raw(0, &command) {
            Ok(got) => ensure!(number_of(&got, "value")? == u64::MAX, "{got:?}"),
            Err(e) => ensure!(format!("{e:#}").contains("TimedOut"), "{e:#}"),
        }
    }
    node(lab, 1).reload(extoll(""))?;
    bench(lab)
}

/// The notification ring is below 4 GiB on a node with more memory.
fn notification_ring(lab: &Lab) -> Result<()> {
    let files = "/sys/bus/pci/drivers/extoll/0000:*/extoll_rf";
    let high = node(lab, 0)
        .ok("grep -c 'System RAM' /proc/iomem; awk '/MemTotal/ {print $2}' /proc/meminfo")?;
    let kib: u64 = high.lines().last().unwrap_or("").trim().parse()?;
    ensure!(kib > 4 << 20, "only {kib} KiB of memory");
    let text = node(lab, 0).ok(&format!("cat {files}/extoll_rf_snq_rf_queue_balt_raw"))?;
    let address = u64::from_str_radix(text.trim(), 16)? << 10;
    ensure!(
        address != 0 && address < 1 << 32,
        "the ring is at {address:#x}"
    );
    // Other memory may be above, because the driver has widened its DMA mask again.
    let bits =
        node(lab, 0).ok("cat /sys/bus/pci/drivers/extoll/0000:*/consistent_dma_mask_bits")?;
    ensure!(bits.trim() == "52", "coherent memory has {bits} bits");
    Ok(())
}
