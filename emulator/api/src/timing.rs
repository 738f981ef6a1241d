//! Options and statistics of the timing model.

use crate::nic::NicConfig;
use crate::seed::{self, Purpose};
use rand::Rng;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Order and timing of events, within the guarantees of the hardware reference.
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

/// DMA writes that must become visible before the answer to a register read, or before a read by
/// the chip.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Push {
    /// All writes that the chip has made, whether or not they have reached the PCIe bridge.
    #[default]
    All,
    /// Writes that have reached the PCIe bridge. For a read by the chip, only the writes of the
    /// stream that reads. PCIe guarantees no more, because writes between a unit and the bridge are
    /// not in the bridge's queue.
    Bridge,
}

/// Options of the timing model. All except `model` apply only to `unkind`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TimingConfig {
    /// Timing model.
    pub model: TimingModel,
    /// Maximum time in ns that a packet usually waits between its unit and the crossbar.
    pub inject_delay_ns: u64,
    /// Maximum time in ns until a DMA write usually becomes visible.
    pub dma_delay_ns: u64,
    /// Maximum delay in ns that an interrupt usually has.
    pub msi_delay_ns: u64,
    /// DMA writes that a read makes visible first.
    pub push: Push,
    /// Time in ns from the arrival of a DMA write at the PCIe bridge until the write is visible.
    /// Used with [`Push::Bridge`].
    pub bridge_ns: u64,
    /// Average number of delays of which one is stretched; 0 for no stretched delays.
    pub stretch_every: u32,
    /// Factor by which a stretched delay is multiplied.
    pub stretch: u32,
    /// Average number of interrupts of which one is preceded by a spurious interrupt; 0 for no
    /// spurious interrupts.
    pub spurious_every: u32,
    /// Minimum and maximum latency in ns of a link without a configured latency.
    pub link_latency_ns: [u64; 2],
    /// Maximum additional latency in ns of a packet on a link.
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
    /// G35 gives no figures. The usual delays are longer than a memory access and shorter than a
    /// context switch. Stretched delays are longer than an interrupt of an emulated guest (50–170
    /// µs), so that guests that rely on an order fail visibly.
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
    /// When a delay is longer than a second, or a minimum exceeds its maximum.
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
    /// Sets times and sizes of a NIC's units from this model. Options that `given` names, or that
    /// differ from the default, stay unchanged.
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

/// Statistics of the timing model for one NIC since the emulator started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimingStats {
    /// Packets that entered the network with a delay.
    pub packets_delayed: u64,
    /// Packets that entered the network before a packet that the NIC had sent earlier.
    pub packets_overtook: u64,
    /// DMA writes that became visible with a delay.
    pub writes_delayed: u64,
    /// DMA writes that became visible before a write that had been made earlier.
    pub writes_overtook: u64,
    /// Reads by the NIC or its host that made pending DMA writes visible first.
    pub pushes: u64,
    /// Interrupts that were merged with another interrupt.
    pub msi_merged: u64,
    /// Spurious interrupts that the model added.
    pub msi_spurious: u64,
}
