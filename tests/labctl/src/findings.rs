//! Findings of the emulator: counters of errors that drivers and programs make.

use crate::Lab;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

/// Counters that correct software never increments (docs/counters.md, *Emulator*). Counters that a
/// fault or a peer can increment too are not included. Examples: closed VPIDs, queues that are
/// disabled, full or on hold, data discarded by a reset, and the sum of all diagnostics.
pub const FINDINGS: &[&str] = &[
    "odd_accesses",
    "bad_accesses",
    "bad_setup",
    "bad_slots",
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
    "host_peer_refused",
    "host_peer_deadlocks",
    "host_protocol_errors",
    "host_panics",
];

/// Number of counters at the end of [`FINDINGS`] that no input may cause, because they show defects
/// of the emulator, QEMU or their host.
const NEVER: usize = 2;

/// All findings that deliberately wrong input can cause.
pub const OF_INPUT: &[&str] = FINDINGS.split_at(FINDINGS.len() - NEVER).0;

/// Prefix of the counters that a NIC keeps over a loss of power.
const KEPT: &str = "host_";

/// Values of the counters of [`FINDINGS`] for every NIC. Empty before the first reading, when all
/// counters are taken as zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Findings(Vec<BTreeMap<&'static str, u64>>);

impl Findings {
    /// Reads the counters from the fabric's document.
    ///
    /// # Errors
    /// If a counter is missing, because a misspelt name would never find anything.
    fn of(fabric: &Value) -> Result<Self> {
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
}

/// Growth of the findings, by NIC and name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Growth(BTreeMap<(usize, &'static str), u64>);

impl Growth {
    /// Returns one line for each counter that has grown and is not in `announced`.
    pub fn unannounced(&self, announced: &[&str]) -> Vec<String> {
        let not = self.0.iter().filter(|((_, n), _)| !announced.contains(n));
        not.map(|((nic, name), more)| format!("NIC {nic}: {name} +{more}"))
            .collect()
    }

    /// Adds the growth of another period.
    pub fn add(&mut self, other: &Self) {
        for (key, more) in &other.0 {
            *self.0.entry(*key).or_insert(0) += more;
        }
    }

    /// Returns the sums over all NICs, by name.
    pub fn sums(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for ((_, name), more) in &self.0 {
            *sums.entry(*name).or_insert(0) += more;
        }
        sums
    }
}

/// Findings since the last report. The counters of a NIC that lost its power restart from zero.
#[derive(Debug, Default)]
pub(crate) struct Account {
    seen: Findings,
    banked: Growth,
}

impl Account {
    fn look(&mut self, now: Findings) {
        for (nic, counters) in now.0.iter().enumerate() {
            for (name, value) in counters {
                let old = self.seen.0.get(nic).map_or(0, |seen| seen[name]);
                // A value that is smaller than before belongs to a counter that restarted from
                // zero.
                let more = value.checked_sub(old).unwrap_or(*value);
                if more > 0 {
                    *self.banked.0.entry((nic, *name)).or_insert(0) += more;
                }
            }
        }
        self.seen = now;
    }

    /// Records the findings before NICs without power are switched on, because their counters then
    /// start from zero.
    fn before_power_on(&mut self, now: Findings, is_on: &[bool]) {
        self.look(now);
        let off = self.seen.0.iter_mut().zip(is_on).filter(|(_, on)| !**on);
        for (counters, _) in off {
            let lost = counters.iter_mut().filter(|(n, _)| !n.starts_with(KEPT));
            lost.for_each(|(_, value)| *value = 0);
        }
    }
}

impl Lab {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the emulator's findings since the last call, or since the boot.
    ///
    /// # Errors
    /// If the emulator does not answer.
    pub fn new_findings(&self) -> Result<Growth> {
        let now = Findings::of(&self.status()?["fabric"]).context("the emulator's findings")?;
        let mut account = self.account();
        account.look(now);
        Ok(std::mem::take(&mut account.banked))
    }

    pub(crate) fn findings_before_power_on(&self) -> Result<()> {
        let fabric = &self.status()?["fabric"];
        let now = Findings::of(fabric).context("the emulator's findings")?;
        let nics = fabric["nics"].as_array().context("no NICs in the status")?;
        let is_on: Vec<bool> = nics.iter().map(|nic| nic["power"] == "on").collect();
        self.account().before_power_on(now, &is_on);
        Ok(())
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

    fn grown(account: &mut Account) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut account.banked).sums()
    }

    #[test]
    fn what_grew_since_the_last_look_is_found_once() {
        let mut account = Account::default();
        account.look(found("odd_accesses", 5));
        assert_eq!(grown(&mut account).len(), FINDINGS.len(), "since the boot");
        account.look(found("odd_accesses", 7));
        account.look(found("odd_accesses", 8));
        assert_eq!(grown(&mut account), BTreeMap::from([("odd_accesses", 3)]));
        account.look(found("odd_accesses", 8));
        assert!(grown(&mut account).is_empty());
    }

    #[test]
    fn what_grew_before_power_was_lost_is_not() {
        let mut account = Account::default();
        account.look(found("odd_accesses", 5));
        grown(&mut account);
        account.before_power_on(found("odd_accesses", 7), &[false]);
        // The restarted counter has the same value as before. The counters of the host continue.
        account.look(found("odd_accesses", 7));
        let grown = grown(&mut account);
        assert_eq!(grown["odd_accesses"], 2 + 7);
        assert_eq!(grown["dma_faults"], 5);
        assert_eq!(grown.get("host_panics"), None);
        // A NIC that was on keeps its counters.
        account.before_power_on(found("odd_accesses", 8), &[true]);
        account.look(found("odd_accesses", 8));
        assert_eq!(account.banked.sums(), BTreeMap::from([("odd_accesses", 1)]));
    }

    #[test]
    fn only_unannounced_growth_is_reported() {
        let mut account = Account::default();
        account.look(found("odd_accesses", 5));
        grown(&mut account);
        account.look(found("odd_accesses", 7));
        let mut growth = account.banked;
        assert_eq!(
            growth.unannounced(&["dma_faults"]),
            ["NIC 0: odd_accesses +2"]
        );
        assert!(growth.unannounced(&["odd_accesses"]).is_empty());
        growth.add(&growth.clone());
        assert_eq!(growth.sums()["odd_accesses"], 4);
    }

    #[test]
    fn no_input_excuses_a_panic() {
        for name in ["host_panics", "host_protocol_errors"] {
            assert!(FINDINGS.contains(&name) && !OF_INPUT.contains(&name));
        }
        assert_eq!(OF_INPUT.len() + NEVER, FINDINGS.len());
    }

    #[test]
    fn a_counter_that_is_not_there_is_an_error() {
        assert!(Findings::of(&serde_json::json!({"nics": [{"counters": {}}]})).is_err());
    }
}
