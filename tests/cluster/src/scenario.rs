//! Description of a scenario.

use crate::cluster::{Lab, Spec};
use anyhow::Result;
use std::time::Duration;

/// Maximum duration of a scenario unless it sets another, excluding the boot of its cluster.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// Kernels that a scenario runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// Debian's kernel and the debug kernel.
    All,
    /// Debian's kernel only.
    Stock,
    /// The debug kernel only.
    Debug,
}

/// One test in a cluster.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Name in the form `group::name`.
    pub name: &'static str,
    /// Cluster that the scenario requires.
    pub spec: Spec,
    /// Test function.
    pub run: fn(&Lab) -> Result<()>,
    /// Maximum duration.
    pub deadline: Duration,
    /// Findings of the emulator (`labctl::findings`) that the scenario provokes.
    pub expects: &'static [&'static str],
    /// True if the scenario breaks nothing, so that the drivers must not count errors.
    pub healthy: bool,
    /// True if the scenario belongs to the gate (`make check`).
    pub gate: bool,
    /// Kernels that the scenario runs on.
    pub kernels: Kernels,
}

impl Scenario {
    /// Returns a scenario for both kernels with the limit [`DEADLINE`], without expected findings,
    /// outside of the gate.
    pub const fn new(name: &'static str, spec: Spec, run: fn(&Lab) -> Result<()>) -> Self {
        Self {
            name,
            spec,
            run,
            deadline: DEADLINE,
            expects: &[],
            healthy: false,
            gate: false,
            kernels: Kernels::All,
        }
    }

    /// Returns a copy under another name for another cluster, outside of the gate.
    pub fn again(&self, name: &'static str, spec: Spec) -> Self {
        Self {
            name,
            spec,
            gate: false,
            ..self.clone()
        }
    }

    /// Adds the scenario to the gate.
    pub const fn gate(mut self) -> Self {
        self.gate = true;
        self
    }

    /// Sets the maximum duration in seconds.
    pub const fn seconds(mut self, seconds: u64) -> Self {
        self.deadline = Duration::from_secs(seconds);
        self
    }

    /// Sets the emulator's findings that the scenario may cause (see [`crate::scenarios::expected`]
    /// for the usual sets).
    pub const fn finds(mut self, counters: &'static [&'static str]) -> Self {
        self.expects = counters;
        self
    }

    /// Declares that the drivers must not count errors: the scenario breaks nothing, floods no
    /// receiver and delays no interrupt.
    pub const fn healthy(mut self) -> Self {
        self.healthy = true;
        self
    }

    /// Excludes the debug kernel, which is too slow for the volume or lacks a feature (pages of 1
    /// GiB, BPF).
    pub const fn stock_only(mut self) -> Self {
        self.kernels = Kernels::Stock;
        self
    }

    /// Restricts the scenario to the debug kernel, because it tests something that only this kernel
    /// has.
    pub const fn debug_only(mut self) -> Self {
        self.kernels = Kernels::Debug;
        self
    }
}
