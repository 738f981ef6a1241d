//! What scenarios make the emulator find on purpose ([`crate::Scenario::finds`]).

pub use crate::cluster::findings::OF_INPUT;

/// What the end of a process, of a port or of a driver leaves behind, and what units refuse to those who try it on purpose. None of it is
/// an access to memory that is not there.
pub const REFUSED: &[&str] = &[
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

/// A node, or a NIC, that goes in the middle of its work takes its memory along.
pub const TORN: &[&str] = &[
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

/// Memory that is taken back while others use it.
pub const REVOKED: &[&str] = &["drops_translation", "atu_stale_hits"];

/// An address on the bus at which there is nothing.
pub const NOTHING_THERE: &[&str] = &[
    "drops_translation",
    "atu_stale_hits",
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
];

/// As [`NOTHING_THERE`], of a device, and a load that its host would have to answer while it waits for it.
pub const BORROWED: &[&str] = &[
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
    "host_peer_deadlocks",
];

/// As [`BORROWED`], of a device whose registers are out of reach before its driver knows.
pub const TAKEN: &[&str] = &[
    "drops_dma",
    "dma_faults",
    "host_dma_outside_memory",
    "host_peer_deadlocks",
    "drops_smfu_no_interval",
];

/// As [`BORROWED`], where an end goes in the middle of its work: what the other one stores meanwhile comes to windows that are closed.
pub const CUT_OFF: &[&str] = &[
    "drops_dma",
    "dma_faults",
    "drops_smfu_no_interval",
    "host_dma_outside_memory",
    "host_msi_lost",
    "host_peer_deadlocks",
];

/// What a driver stores to a device that is taken from it, and what that device, or a malicious one, sends.
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
