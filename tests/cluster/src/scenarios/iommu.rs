//! Repeats scenarios with a strict IOMMU. The NIC must not access unmapped memory.

use super::node::node;
use crate::cluster::{Lab, Spec};
use crate::Scenario;
use anyhow::{ensure, Context, Result};

const SPEC: Spec = Spec::pair().iommu();

/// Pairs of new name and scenario to repeat.
const AGAIN: &[(&str, &str)] = &[
    ("iommu::ping_sizes", "traffic::ping_sizes"),
    ("iommu::atu_memory", "raw::atu_memory"),
    ("iommu::atu_revoke", "raw::atu_revoke"),
];

/// Returns the scenarios of this file, made from some of `others`.
pub fn all(others: &[Scenario]) -> Vec<Scenario> {
    let mut all = super::again(others, &SPEC, AGAIN);
    // The user-space interface covers the driver's mappings.
    all.extend(
        super::again(
            others,
            &SPEC,
            &[("iommu::user_between_nodes", "uapi::between_nodes")],
        )
        .into_iter()
        .map(Scenario::gate),
    );
    all.push(Scenario::new("iommu::nothing_unmapped", SPEC, nothing_unmapped).healthy());
    all
}

/// Checks that the emulator counted no access to unmapped memory since the boot of the nodes.
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
