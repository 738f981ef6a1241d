//! With an IOMMU that is used strictly: other scenarios once more, and nothing that the NIC accesses is unmapped.

use super::node::node;
use crate::cluster::{Lab, Spec};
use crate::Scenario;
use anyhow::{ensure, Context, Result};

const SPEC: Spec = Spec::pair().iommu();

/// New name and scenario to run again.
const AGAIN: &[(&str, &str)] = &[
    ("iommu::ping_sizes", "traffic::ping_sizes"),
    ("iommu::iperf3_tcp", "traffic::iperf3_tcp"),
    ("iommu::atu_memory", "raw::atu_memory"),
    ("iommu::atu_revoke", "raw::atu_revoke"),
    ("iommu::atu_reserve", "raw::atu_reserve"),
    ("iommu::memory_in_pieces", "raw::memory_in_pieces"),
    ("iommu::atu_user", "security::memory_of_processes"),
    ("iommu::user_loop_back", "uapi::loop_back"),
    ("iommu::user_between_nodes", "uapi::between_nodes"),
];

/// The scenarios of this file, made from some of `others`.
pub fn all(others: &[Scenario]) -> Vec<Scenario> {
    let mut all = super::again(others, &SPEC, AGAIN);
    all.push(Scenario::new(
        "iommu::nothing_unmapped",
        SPEC,
        nothing_unmapped,
    ));
    all
}

/// The emulator refuses and counts accesses to what is not mapped; its counters run since the nodes were booted.
fn nothing_unmapped(lab: &Lab) -> Result<()> {
    let groups = lab.ok(0, "readlink /sys/bus/pci/drivers/extoll/0*/iommu_group; cat /sys/kernel/iommu_groups/*/type | sort -u")?;
    ensure!(
        groups.contains("iommu_groups") && groups.trim_end().ends_with("DMA"),
        "the NIC is not behind an IOMMU that is used strictly: {groups}"
    );
    node(lab, 0).pings(5, "-i 0.2 -s 20000")?;
    let status = lab.status()?;
    let nics = status["fabric"]["nics"].as_array().context("NICs")?;
    for nic in nics {
        let counter = |name: &str| nic["counters"][name].as_u64().context(name.to_owned());
        for name in ["dma_faults", "host_dma_outside_memory"] {
            ensure!(counter(name)? == 0, "{name}: {nic}");
        }
        ensure!(counter("dma_bytes_written")? > 0, "no DMA at all: {nic}");
    }
    Ok(())
}
