//! Two NUMA nodes, with the NIC on the second node. The NIC's memory is on that node, whichever
//! process requests it.

use super::userland::{json, server};
use crate::cluster::{Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{bail, ensure, Context, Result};

/// Two CPUs per node: CPU 0 is on the first NUMA node, CPU 1 and the NIC are on the second NUMA
/// node.
const SPEC: Spec = Spec::pair().numa().cpus(2).memory(1024);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![Scenario::new("numa::memory_is_at_the_nic", SPEC, memory)]
}

/// Address map of the second NUMA node's memory.
struct Map {
    /// Start and end addresses of the zones.
    far: Vec<(u64, u64)>,
}

impl Map {
    fn read(lab: &Lab) -> Result<Self> {
        let text = lab.ok(
            0,
            "awk '/^Node/ {node = $2 + 0} $1 == \"spanned\" {pages = $2} $1 == \"start_pfn:\" && pages {print node, $2, pages}' /proc/zoneinfo",
        )?;
        let mut far = Vec::new();
        for line in text.lines() {
            let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
            let [node, start, pages] = numbers[..] else {
                bail!("{text}");
            };
            if node == 1 {
                far.push((start << 12, (start + pages) << 12));
            }
        }
        ensure!(!far.is_empty() && !far.iter().any(|z| z.0 == 0), "{text}");
        Ok(Self { far })
    }

    fn is_far(&self, address: u64) -> bool {
        self.far.iter().any(|z| (z.0..z.1).contains(&address))
    }
}

fn register(lab: &Lab, name: &str, index: u64) -> Result<u64> {
    let read = json(&lab.ok(
        0,
        &format!("extollctl --json reg read {name} --index {index}"),
    )?)?;
    read["value"].as_u64().context("value")
}

/// Returns the free KiB of both NUMA nodes.
fn free(lab: &Lab) -> Result<[i64; 2]> {
    let text = lab.ok(
        0,
        "sed -n 's/.*MemFree: *\\([0-9]*\\) kB/\\1/p' /sys/devices/system/node/node[01]/meminfo",
    )?;
    let numbers: Vec<i64> = text.lines().map(str::parse).collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|_| anyhow::anyhow!("{text}"))
}

/// Interrupts and queues of the NIC are on its NUMA node.
fn memory(lab: &Lab) -> Result<()> {
    let nodes = lab.ok(0, "cat /sys/bus/pci/drivers/extoll/0*/numa_node")?;
    ensure!(nodes.trim() == "1", "the NIC is at NUMA node {nodes}");
    let list = json(&lab.ok(0, "extollctl --json list")?)?;
    ensure!(list["nics"][0]["numa_node"] == 1, "{list}");
    let map = Map::read(lab)?;

    // Interrupts go to the CPU of the NIC's NUMA node.
    let cpus = lab.ok(
        0,
        "for i in $(sed -n 's/^ *\\([0-9]*\\):.*extoll.*/\\1/p' /proc/interrupts); do cat /proc/irq/$i/effective_affinity_list; done",
    )?;
    ensure!(
        !cpus.trim().is_empty() && cpus.lines().all(|c| c == "1"),
        "interrupts go to {cpus}"
    );

    // A process on the other NUMA node binds the driver again.
    lab.ok(
        0,
        "cd /sys/bus/pci/drivers/extoll; set -- 0000:*; taskset -c 0 sh -c \"echo $1 >unbind; echo $1 >bind\"",
    )?;
    lab.until("the NIC is back", PATIENCE, |lab| {
        Ok(lab.sh_for(0, "extollctl reg read 0x8008", PATIENCE)?.status == 0)
    })?;
    // The register holds the address divided by 1024 (HW §6.1).
    let address =
        |value: u64, low: u32, bits: u32, unit: u64| ((value >> low) & ((1 << bits) - 1)) * unit;
    let snq = address(register(lab, "snq_rf_queue_balt", 0)?, 0, 54, 1024);
    ensure!(
        map.is_far(snq),
        "the system notification queue is at {snq:#x}"
    );

    // A process on the first node opens ports.
    let before = free(lab)?;
    let (running, words) = server(lab, 0, "taskset -c 0 extoll-ping --listen", "listening")?;
    let id = words.last().context("address")?;
    let vpid: u64 = id.split('/').nth(1).context("VPID")?.parse()?;
    // Bits [55:16] are the number of the page that holds the addresses of the queue's segments (HW
    // §7).
    let dcq = register(lab, "buffer_queue_rf_velo_dcq_base_dcq_ub", vpid)?;
    let dcq = address(dcq, 16, 40, 4096);
    ensure!(
        dcq != 0 && map.is_far(dcq),
        "the mailbox's table is at {dcq:#x}"
    );
    // Many mailboxes use memory of the NIC's node.
    lab.ok(
        0,
        "for i in $(seq 40); do taskset -c 0 extoll-ping --listen >/dev/null & done",
    )?;
    lab.until("all ports are open", PATIENCE, |lab| {
        let ports = json(&lab.ok(0, "extollctl --json ports")?)?;
        let ports = ports.as_array().context("ports")?;
        let is_user = |p: &&serde_json::Value| p["vpid"].as_u64() < Some(251);
        Ok(ports.iter().filter(is_user).count() >= 41)
    })?;
    let after = free(lab)?;
    let used: Vec<i64> = before.iter().zip(after).map(|(b, a)| b - a).collect();
    lab.ok(0, "pkill -x extoll-ping")?;
    running.wait(PATIENCE)?;
    // Each mailbox uses 256 KiB. The other NUMA node holds the processes' own memory.
    ensure!(
        used[1] >= 40 * 200,
        "{used:?} KiB less are free at the two nodes"
    );
    Ok(())
}
