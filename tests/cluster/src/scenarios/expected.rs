//! What scenarios make the emulator find on purpose, and in which of them nothing is broken at all.

use crate::cluster::findings::OF_INPUT;
use crate::Scenario;

/// What the end of a process, of a port or of a driver leaves behind, and what units refuse to those who try it on purpose. None of it is
/// an access to memory that is not there.
const REFUSED: &[&str] = &[
    // Between the end of an entry and the flush, which the driver waits for.
    "atu_stale_hits",
    "odd_accesses",
    "bad_accesses",
    "drops_incomplete_descriptor",
    "drops_translation",
    "drops_rma_bad_command",
    "drops_wrong_protection",
    "drops_dma",
    "drops_smfu_no_interval",
    "drops_smfu_disabled",
    "drops_pcie_packet",
    "host_msi_lost",
];

/// As [`REFUSED`] where processes are killed, perhaps between a store and its fence (docs/emulator.md, `nic.wc=lines`).
const KILLED: &[&str] = &[
    "atu_stale_hits",
    "odd_accesses",
    "bad_accesses",
    "drops_incomplete_descriptor",
    "drops_translation",
    "drops_rma_bad_command",
    "drops_wrong_protection",
    "drops_dma",
    "host_msi_lost",
    "wc_unfenced",
];

/// A node, or a NIC, that goes in the middle of its work takes its memory along.
const TORN: &[&str] = &[
    "drops_incomplete_descriptor",
    "drops_translation",
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
    "host_msi_lost",
    "atu_stale_hits",
];

/// A NIC that is reset in the middle of its work, with the peer sending on, and a process that reads all pages that it has mapped:
/// requester pages, too, in which there is nothing to read.
const RESET: &[&str] = &[
    "drops_bus_master_off",
    "drops_incomplete_descriptor",
    "drops_translation",
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
    "host_msi_lost",
    "atu_stale_hits",
    "bad_accesses",
    "odd_accesses",
];

/// Memory that is taken back while others use it.
const REVOKED: &[&str] = &["drops_translation", "atu_stale_hits"];

/// An address on the bus at which there is nothing.
const NOTHING_THERE: &[&str] = &[
    "drops_translation",
    "atu_stale_hits",
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
];

/// As [`NOTHING_THERE`], of a device, and a load that its host would have to answer while it waits for it.
const BORROWED: &[&str] = &[
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
    "host_peer_deadlocks",
];

/// As [`BORROWED`], of a device whose registers are out of reach before its driver knows.
const TAKEN: &[&str] = &[
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
    "host_peer_deadlocks",
    "drops_smfu_no_interval",
];

/// As [`BORROWED`], where an end goes in the middle of its work: what the other one stores meanwhile comes to windows that are closed.
const CUT_OFF: &[&str] = &[
    "drops_dma",
    "dma_faults",
    "drops_smfu_no_interval",
    "host_dma_outside_memory",
    "host_msi_lost",
    "host_peer_deadlocks",
];

/// What a driver stores to a device that is taken from it, and what that device, or a malicious one, sends.
const ACCELERATOR: &[&str] = &[
    "drops_smfu_disabled",
    "drops_smfu_no_interval",
    "drops_pcie_packet",
    "host_msi_lost",
];

/// Beginnings of names, and what is found then; the longest one that fits counts. Without an entry: nothing.
const FOUND: &[(&str, &[&str])] = &[
    ("accelerator::", REFUSED),
    // A reader is killed while GETs to its memory are on their way.
    ("af_extl::zero_killed", REVOKED),
    ("churn::", REFUSED),
    ("churn::interface_down_up", &[]),
    ("churn::power_off_in_mid_transfer", TORN),
    ("churn::surprise_removal", TORN),
    (
        "combining::heir",
        &["drops_incomplete_descriptor", "wc_unfenced"],
    ),
    ("combining::missing_fence", &["wc_unfenced"]),
    ("driver::pci_error", RESET),
    ("exlnd::net_del_under_load", REVOKED),
    ("exlnd::nic_unbind_bind", REFUSED),
    ("exlnd::peer_power_cycle", TORN),
    ("exlnd::rmmod_under_load", REVOKED),
    ("exlnd::silent_peer", REVOKED),
    ("exlnd::unbind_in_net_add", REFUSED),
    ("fabric::torus_under_faults", TORN),
    ("faults::", REFUSED),
    ("faults::corrupted_links", &[]),
    ("faults::link_flap", &[]),
    ("faults::memory_pressure", &[]),
    ("faults::receive_queue_full", &[]),
    // A NIC that is given up is cut off in the middle of its work.
    (
        "faults::registers_hang",
        &["drops_bus_master_off", "dma_faults", "drops_dma"],
    ),
    ("faults::retry_and_replay", &[]),
    ("faults::slots_of_64_bytes", &[]),
    ("faults::slow_receiver", &[]),
    ("fuzz::", OF_INPUT),
    ("hostile::", OF_INPUT),
    ("iommu::atu_", REVOKED),
    ("iommu::user_", REVOKED),
    ("libraries::", REFUSED),
    ("raw::", REFUSED),
    ("raw::atu_", REVOKED),
    ("raw::atu_protection", NOTHING_THERE),
    ("raw::bad_commands", OF_INPUT),
    ("raw::handles", &[]),
    ("raw::memory_in_pieces", &[]),
    ("security::", OF_INPUT),
    ("security::all_vpids", &[]),
    ("security::limits", &[]),
    ("security::memory_limits", &[]),
    ("security::memory_of_processes", REVOKED),
    ("security::one_table", &[]),
    ("survival::", OF_INPUT),
    ("uapi::", REFUSED),
    ("uapi::kill", KILLED),
    ("units::", REFUSED),
    ("units::event_mask", &[]),
    ("units::link_events", &[]),
    // Stores to targets that are closed meanwhile.
    ("units::message_storm", NOTHING_THERE),
    ("units::rra_everywhere", &[]),
    ("units::smfu_interval_reuse", &[]),
    ("units::smfu_no_export", NOTHING_THERE),
    ("units::smfu_target_bases", NOTHING_THERE),
    ("units::sysfs_names", &[]),
    ("units::two_nics", &[]),
    ("units::two_nics_programs", REFUSED),
    ("userland::", REFUSED),
    ("userland::perf", &[]),
    ("userland::perf_lost_clients", KILLED),
    ("userland::ping", &["drops_wrong_protection"]),
    ("userland::rma_matrix", &["drops_rma_bad_command"]),
    ("userland::trace", &[]),
    ("vpci::accelerator_hostile", ACCELERATOR),
    ("vpci::accelerator_lost", ACCELERATOR),
    ("vpci::accelerator_peers", ACCELERATOR),
    ("vpci::accelerator_reclaimed", ACCELERATOR),
    (
        "vpci::accelerator_strict",
        &["dma_faults", "drops_dma", "host_dma_outside_memory"],
    ),
    (
        "vpci::crossing_loads",
        &["dma_faults", "host_peer_deadlocks"],
    ),
    ("vpci::device_registers", BORROWED),
    // The last stores of a driver may come after the message that its device is given back (docs/vpci.md, Limits).
    ("vpci::drive", BORROWED),
    // A driver whose device is taken from it looks whether it is there, and a device that is cut off has something to store.
    ("vpci::drive_taken_away", TAKEN),
    ("vpci::commands", BORROWED),
    ("vpci::borrower_dies", CUT_OFF),
    ("vpci::borrower_stops", CUT_OFF),
    ("vpci::cycles", BORROWED),
    // It accesses what is not its memory.
    ("vpci::edu", &["drops_smfu_no_interval"]),
    ("vpci::lender_dies", CUT_OFF),
    ("vpci::link_flap", CUT_OFF),
    ("vpci::network_card", BORROWED),
    ("vpci::several", BORROWED),
];

/// Beginnings of names of scenarios in which nothing is broken, nor a receiver flooded, nor interrupts held back for longer than the driver
/// takes for a loss.
const HEALTHY: &[&str] = &[
    "traffic::dhcp",
    "traffic::interface",
    "traffic::iperf3_tcp",
    "traffic::ping_",
    "traffic::sha256_both_ways",
    "traffic::ssh",
    "traffic::two_processors",
    "ideal::ping_sizes",
    "ideal::iperf3_tcp",
    "iommu::ping_sizes",
    "iommu::iperf3_tcp",
    "iommu::nothing_unmapped",
];

/// All beginnings that are named here.
#[cfg(test)]
pub fn prefixes() -> impl Iterator<Item = &'static str> {
    FOUND.iter().map(|f| f.0).chain(HEALTHY.iter().copied())
}

/// Sets what the lists say of a scenario.
pub fn apply(scenario: &mut Scenario) {
    let fits = |prefix: &str| scenario.name.starts_with(prefix);
    let found = FOUND.iter().filter(|f| fits(f.0));
    scenario.expects = found.max_by_key(|f| f.0.len()).map_or(&[], |f| f.1);
    scenario.healthy = HEALTHY.iter().any(|prefix| fits(prefix));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::findings::FINDINGS;

    #[test]
    fn only_findings_are_expected() {
        for name in FOUND.iter().flat_map(|f| f.1) {
            assert!(FINDINGS.contains(name), "{name} is no finding");
            assert!(OF_INPUT.contains(name), "no input may cause {name}");
        }
    }
}
