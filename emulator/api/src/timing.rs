//! The timing model: options and statistics.

use crate::nic::NicConfig;
use crate::seed::{self, Purpose};
use rand::Rng;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How much order there is beyond what is promised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TimingModel {
    /// Everything happens at once and in order.
    #[default]
    Ideal,
    /// Random delays and orders, wherever the reference allows them.
    Unkind,
}

impl fmt::Display for TimingModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimingModel::Ideal => "ideal",
            TimingModel::Unkind => "unkind",
        })
    }
}

impl FromStr for TimingModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        clap::ValueEnum::from_str(text, false)
    }
}

/// Which DMA writes become visible before the answer to a register read, or before a read of the chip.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Push {
    /// All that the chip has made, wherever they are.
    #[default]
    All,
    /// Those that have reached the PCIe bridge, and of a read of the chip those of its own streams. PCIe promises no more: what is
    /// still on its way between units is not in the bridge's queue.
    Bridge,
}

/// Options of the timing model. All but `model` matter for `unkind` only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TimingConfig {
    /// Which model.
    pub model: TimingModel,
    /// Longest usual time that a packet waits between its unit and the crossbar, ns.
    pub inject_delay_ns: u64,
    /// Longest usual time until a DMA write becomes visible, ns.
    pub dma_delay_ns: u64,
    /// Longest usual time that an interrupt takes, ns.
    pub msi_delay_ns: u64,
    /// Which DMA writes a read pushes before it.
    pub push: Push,
    /// From when a DMA write has reached the PCIe bridge until it is visible, ns; matters for [`Push::Bridge`].
    pub bridge_ns: u64,
    /// One in so many delays is `stretch` times as long; 0: none.
    pub stretch_every: u32,
    /// By how much.
    pub stretch: u32,
    /// One in so many interrupts is preceded by one for nothing; 0: none.
    pub spurious_every: u32,
    /// Shortest and longest latency of a link whose latency is not given, ns.
    pub link_latency_ns: [u64; 2],
    /// What a packet may take longer than that on a link, ns.
    pub link_jitter_ns: u64,
    /// `wc-commit-ns` of NICs that are not given one.
    pub commit_delay_ns: u64,
    /// `rma-begin-ns` of NICs that are not given one.
    pub read_delay_ns: u64,
    /// `atu-command-ns` of NICs that are not given one.
    pub atu_delay_ns: u64,
    /// `snq-program-ns` of NICs that are not given one.
    pub event_delay_ns: u64,
    /// Least and greatest `tx-queue-limit` of NICs that are not given one, drawn for each.
    pub queue_limit: [usize; 2],
}

impl Default for TimingConfig {
    /// G35 knows no figures. The usual delays are long against a memory access and short against a context switch; the stretched ones
    /// outlast an interrupt of an emulated guest (50–170 µs), so that what a guest concludes too early it concludes visibly too early.
    fn default() -> Self {
        Self {
            model: TimingModel::default(),
            inject_delay_ns: 20_000,
            dma_delay_ns: 20_000,
            msi_delay_ns: 30_000,
            push: Push::default(),
            bridge_ns: 2_000,
            stretch_every: 48,
            stretch: 24,
            spurious_every: 16,
            link_latency_ns: [5_000, 50_000],
            link_jitter_ns: 10_000,
            commit_delay_ns: 50_000,
            read_delay_ns: 100_000,
            atu_delay_ns: 50_000,
            event_delay_ns: 50_000,
            queue_limit: [64, 4096],
        }
    }
}

impl TimingConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    ///
    /// Something would take longer than a second.
    pub fn validate(&self) -> Result<(), String> {
        let stretch = u64::from(self.stretch).max(1);
        let delays = [
            self.inject_delay_ns,
            self.dma_delay_ns,
            self.msi_delay_ns,
            self.bridge_ns,
        ];
        let longest = delays.iter().map(|d| d.saturating_mul(stretch)).max();
        let units = [
            self.commit_delay_ns,
            self.read_delay_ns,
            self.atu_delay_ns,
            self.event_delay_ns,
        ];
        let longest = longest.into_iter().chain(units).max();
        let [least, most] = self.queue_limit;
        if least == 0 || least > most {
            return Err("timing.queue-limit: the first is the smallest, at least 1".into());
        }
        let [low, high] = self.link_latency_ns;
        if low > high {
            return Err("timing.link-latency-ns: the first is the shortest".into());
        }
        if longest.into_iter().chain([high, self.link_jitter_ns]).max() > Some(1_000_000_000) {
            return Err("timing: no delay may be longer than a second".into());
        }
        Ok(())
    }
}

impl TimingConfig {
    /// Times and sizes of the units of a NIC, where nothing but the default is said of them.
    pub fn apply(
        &self,
        nic: &mut NicConfig,
        given: impl Fn(&str) -> bool,
        seed: u64,
        index: usize,
    ) {
        if self.model != TimingModel::Unkind {
            return;
        }
        let default = NicConfig::default();
        let mut time = |key, at: fn(&mut NicConfig) -> &mut u64, ns| {
            if !given(key) && *at(nic) == *at(&mut default.clone()) {
                *at(nic) = ns;
            }
        };
        time(
            "wc-commit-ns",
            |n| &mut n.wc_commit_ns,
            self.commit_delay_ns,
        );
        time("rma-begin-ns", |n| &mut n.rma_begin_ns, self.read_delay_ns);
        time(
            "atu-command-ns",
            |n| &mut n.atu_command_ns,
            self.atu_delay_ns,
        );
        time(
            "snq-program-ns",
            |n| &mut n.snq_program_ns,
            self.event_delay_ns,
        );
        if !given("tx-queue-limit") && nic.tx_queue_limit == default.tx_queue_limit {
            let [least, most] = self.queue_limit;
            nic.tx_queue_limit = seed::rng(seed, index, Purpose::Limits).random_range(least..=most);
        }
    }
}

/// What the timing model did to one NIC. Counters run up from the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimingStats {
    /// Packets that entered the network late.
    pub packets_delayed: u64,
    /// Packets that entered before one that the NIC had sent earlier.
    pub packets_overtook: u64,
    /// DMA writes that became visible late.
    pub writes_delayed: u64,
    /// DMA writes that became visible before one that had been made earlier.
    pub writes_overtook: u64,
    /// Times that a read of the NIC or of its host pushed writes before it.
    pub pushes: u64,
    /// Interrupts that became one with another.
    pub msi_merged: u64,
    /// Interrupts for nothing.
    pub msi_spurious: u64,
}
