//! What the emulator found to be wrong with what drivers and programs did.

use crate::Lab;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Counters that no faultless software moves, whatever happens around it (docs/counters.md, *Emulator*). Those that a fault or
/// a peer can move too (closed VPIDs, queues that are off, full or on hold, what a reset discarded; so all diagnostics together) are not
/// among them.
pub const FINDINGS: &[&str] = &[
    "odd_accesses",
    "bad_accesses",
    "bad_setup",
    "wc_unfenced",
    "wc_not_aligned",
    "wc_misplaced",
    "reserved_bits",
    "atu_stale_hits",
    "drops_velo_bad_descriptor",
    "drops_incomplete_descriptor",
    "drops_wrong_protection",
    "drops_queue_bad",
    "drops_rma_bad_command",
    "drops_translation",
    "drops_dma",
    "drops_smfu_no_interval",
    "drops_smfu_disabled",
    "drops_pcie_packet",
    "drops_bus_master_off",
    "drops_wrong_unit",
    "dma_faults",
    "host_msi_lost",
    "host_dma_no_bus_master",
    "host_dma_outside_memory",
    "host_protocol_errors",
    "host_panics",
];

/// The counters of [`FINDINGS`] at one time, of every NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings(Vec<BTreeMap<&'static str, u64>>);

impl Findings {
    /// Takes them out of the fabric's document.
    ///
    /// # Errors
    /// When a counter is missing: a list that names what is not counted finds nothing.
    pub fn of(fabric: &Value) -> Result<Self> {
        let nics = fabric["nics"].as_array().context("no NICs in the status")?;
        let of_nic = |nic: &Value| {
            FINDINGS
                .iter()
                .map(|name| {
                    let value = nic["counters"][name].as_u64();
                    Ok((*name, value.with_context(|| format!("no counter {name}"))?))
                })
                .collect::<Result<_>>()
        };
        nics.iter().map(of_nic).collect::<Result<_>>().map(Self)
    }

    /// What has grown since `before` and is not `announced` (the word `*` announces everything), one line per counter.
    pub fn unannounced(&self, before: &Self, announced: &[&str]) -> Vec<String> {
        let mut lines = Vec::new();
        for (nic, now) in self.0.iter().enumerate() {
            for (name, value) in now {
                let old = before.0.get(nic).map_or(0, |b| b[name]);
                // A NIC that lost its power counts from 0 again.
                let more = value.checked_sub(old).unwrap_or(*value);
                if more > 0 && !announced.contains(&"*") && !announced.contains(name) {
                    lines.push(format!("NIC {nic}: {name} +{more}"));
                }
            }
        }
        lines
    }
}

impl Lab {
    /// What the emulator has found by now.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn findings(&self) -> Result<Findings> {
        Findings::of(&self.status()?["fabric"]).context("the emulator's findings")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, value: u64) -> Findings {
        let mut counters: BTreeMap<&str, u64> = FINDINGS.iter().map(|n| (*n, 5)).collect();
        counters.insert(name, value);
        let fabric = serde_json::json!({"nics": [{"counters": counters}]});
        Findings::of(&fabric).unwrap()
    }

    #[test]
    fn only_unannounced_growth_is_reported() {
        let before = found("odd_accesses", 5);
        assert!(before.unannounced(&before, &[]).is_empty());
        let after = found("odd_accesses", 7);
        assert_eq!(
            after.unannounced(&before, &["dma_faults"]),
            ["NIC 0: odd_accesses +2"]
        );
        assert!(after.unannounced(&before, &["odd_accesses"]).is_empty());
        assert!(after.unannounced(&before, &["*"]).is_empty());
        // Off and on again.
        assert_eq!(
            found("odd_accesses", 3).unannounced(&before, &[]),
            ["NIC 0: odd_accesses +3"]
        );
    }

    #[test]
    fn a_counter_that_is_not_there_is_an_error() {
        assert!(Findings::of(&serde_json::json!({"nics": [{"counters": {}}]})).is_err());
    }
}
