//! Sets of emulator findings that scenarios provoke ([`crate::Scenario::finds`]).

pub use crate::cluster::findings::OF_INPUT;

/// Findings after the end of a process, a port or a driver, and for deliberate misuse that units
/// reject. They include no access to absent memory.
pub const REFUSED: &[&str] = &[
    // Accesses between the invalidation of a translation and its flush. The driver waits for the
    // flush.
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

/// Findings of processes that may be killed at any time, also between a store and its fence
/// (docs/emulator.md, `nic.wc=lines`).
pub const KILLED: &[&str] = &[
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

/// Findings after the loss of a node or NIC during transfers. The memory of the node is lost too.
pub const TORN: &[&str] = &[
    "drops_incomplete_descriptor",
    "drops_translation",
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
    "host_msi_lost",
    "atu_stale_hits",
];

/// Findings after a reset of a NIC during transfers. The peer keeps sending, and a process reads
/// all mapped pages, including requester pages, which are write-only.
pub const RESET: &[&str] = &[
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

/// Findings for memory that is revoked while it is in use.
pub const REVOKED: &[&str] = &["drops_translation", "atu_stale_hits"];

/// Findings for accesses to unoccupied bus addresses.
pub const NOTHING_THERE: &[&str] = &[
    "drops_translation",
    "atu_stale_hits",
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
];

/// Findings for accesses by a borrowed device to unoccupied bus addresses, and for a load that the
/// host would have to answer while it waits for the device.
pub const BORROWED: &[&str] = &[
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
    "host_peer_deadlocks",
];

/// Findings of [`BORROWED`], and those for a device whose registers become unreachable before its
/// driver is notified.
pub const TAKEN: &[&str] = &[
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
    "host_peer_deadlocks",
    "drops_smfu_no_interval",
];

/// Findings of [`BORROWED`], and those for the loss of one end during transfers. Stores of the
/// other end reach closed windows.
pub const CUT_OFF: &[&str] = &[
    "drops_dma",
    "dma_faults",
    "drops_smfu_no_interval",
    "host_dma_outside_memory",
    "host_msi_lost",
    "host_peer_deadlocks",
];

/// Findings for stores to a device that was removed from its driver, and for packets of that device
/// or of a malicious one.
pub const ACCELERATOR: &[&str] = &[
    "drops_smfu_disabled",
    "drops_smfu_no_interval",
    "drops_pcie_packet",
    "host_msi_lost",
];

#[cfg(test)]
mod tests {
    use super::OF_INPUT;
    use crate::cluster::findings::FINDINGS;

    #[test]
    fn only_findings_are_expected() {
        for scenario in super::super::all() {
            for name in scenario.expects {
                assert!(FINDINGS.contains(name), "{name} is no finding");
                assert!(OF_INPUT.contains(name), "no input may cause {name}");
            }
        }
    }
}
