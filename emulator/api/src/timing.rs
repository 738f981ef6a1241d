//! The timing model: options and statistics.

use crate::nic::NicConfig;
use crate::seed::{self, Purpose};
use rand::Rng;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Order and timing of events, within the promises of the reference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TimingModel {
    /// Everything happens immediately and in order.
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

/// DMA writes that become visible before the answer to a register read, or before a read by the
/// chip.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Push {
    /// All writes that the chip has made, wherever they are.
    #[default]
    All,
    /// Writes that have reached the PCIe bridge; for a read by the chip, only those of its own
    /// streams. PCIe promises no more, because writes between the units are not in the bridge's
    /// queue.
    Bridge,
}

/// Options of the timing model. All but `model` apply only to `unkind`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TimingConfig {
    /// Timing model.
    pub model: TimingModel,
    /// Maximum usual time that a packet waits between its unit and the crossbar, ns.
    pub inject_delay_ns: u64,
    /// Maximum usual time until a DMA write becomes visible, ns.
    pub dma_delay_ns: u64,
    /// Maximum usual delay of an interrupt, ns.
    pub msi_delay_ns: u64,
    /// DMA writes that a read pushes ahead of itself.
    pub push: Push,
    /// Time from the arrival of a DMA write at the PCIe bridge until it is visible, ns; used with
    /// [`Push::Bridge`].
    pub bridge_ns: u64,
    /// Average number of delays of which one is `stretch` times as long; 0: none.
    pub stretch_every: u32,
    /// Factor of a stretched delay.
    pub stretch: u32,
    /// Average number of interrupts of which one is preceded by a spurious interrupt; 0: none.
    pub spurious_every: u32,
    /// Minimum and maximum latency of a link without configured latency, ns.
    pub link_latency_ns: [u64; 2],
    /// Maximum additional latency of a packet on a link, ns.
    pub link_jitter_ns: u64,
    /// `wc-commit-ns` of NICs without a configured value.
    pub commit_delay_ns: u64,
    /// `rma-begin-ns` of NICs without a configured value.
    pub read_delay_ns: u64,
    /// `atu-command-ns` of NICs without a configured value.
    pub atu_delay_ns: u64,
    /// `snq-program-ns` of NICs without a configured value.
    pub event_delay_ns: u64,
    /// Minimum and maximum of the random `tx-queue-limit` of NICs without a configured value.
    pub queue_limit: [usize; 2],
}

impl Default for TimingConfig {
    /// G35 has no figures. The usual delays are longer than a memory access and shorter than a
    /// context switch. Stretched delays are longer than an interrupt of an emulated guest (50–170
    /// µs), so that premature conclusions of a guest become visible.
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
    /// A delay would be longer than a second, or a range is reversed.
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
            return Err(
                "timing.queue-limit: the first value must be at least 1 and not above the second"
                    .into(),
            );
        }
        let [low, high] = self.link_latency_ns;
        if low > high {
            return Err(
                "timing.link-latency-ns: the first value must not be above the second".into(),
            );
        }
        if longest.into_iter().chain([high, self.link_jitter_ns]).max() > Some(1_000_000_000) {
            return Err("timing: delays must not exceed one second".into());
        }
        Ok(())
    }
}

impl TimingConfig {
    /// Sets times and sizes of a NIC's units, except those that are given or differ from the
    /// default.
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

/// Statistics of the timing model for one NIC, since the start.
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
    /// Times that a read of the NIC or of its host pushed writes ahead of itself.
    pub pushes: u64,
    /// Interrupts that were merged with another one.
    pub msi_merged: u64,
    /// Spurious interrupts.
    pub msi_spurious: u64,
}
