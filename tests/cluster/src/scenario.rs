//! What a scenario is.

use crate::cluster::{Lab, Spec};
use anyhow::Result;
use std::time::Duration;

/// How long a scenario may take unless it says otherwise, without the boot of its cluster.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// Kernels on which a scenario makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// Debian's and the debug kernel.
    All,
    /// Only Debian's.
    Stock,
    /// Only the debug kernel.
    Debug,
}

/// One test.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Name, `group::what`.
    pub name: &'static str,
    /// The cluster it wants.
    pub spec: Spec,
    /// The test itself.
    pub run: fn(&Lab) -> Result<()>,
    /// How long it may take.
    pub deadline: Duration,
    /// Counters of the emulator's findings (`labctl::findings`) that it moves on purpose.
    pub expects: &'static [&'static str],
    /// Nothing is broken in it, so the drivers may count no errors.
    pub healthy: bool,
    /// Part of the gate (`make check`).
    pub gate: bool,
    /// Where it runs.
    pub kernels: Kernels,
}

impl Scenario {
    /// A scenario for both kernels that ends within [`DEADLINE`], makes the emulator find nothing and is not part of the gate.
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

    /// The same under another name in another cluster, outside of the gate.
    pub fn again(&self, name: &'static str, spec: Spec) -> Self {
        Self {
            name,
            spec,
            gate: false,
            ..self.clone()
        }
    }

    /// Part of the gate.
    pub const fn gate(mut self) -> Self {
        self.gate = true;
        self
    }

    /// May take this many seconds instead of [`DEADLINE`].
    pub const fn seconds(mut self, seconds: u64) -> Self {
        self.deadline = Duration::from_secs(seconds);
        self
    }

    /// The emulator's counters that the scenario may move (see [`crate::scenarios::expected`] for the usual sets).
    pub const fn finds(mut self, counters: &'static [&'static str]) -> Self {
        self.expects = counters;
        self
    }

    /// Nothing is broken, no receiver is flooded and no interrupt is held back, so the drivers may count no errors.
    pub const fn healthy(mut self) -> Self {
        self.healthy = true;
        self
    }

    /// Not on the debug kernel: the volume is out of reach there, or something is missing (pages of 1 GiB, BPF).
    pub const fn stock_only(mut self) -> Self {
        self.kernels = Kernels::Stock;
        self
    }

    /// About something that only the debug kernel has.
    pub const fn debug_only(mut self) -> Self {
        self.kernels = Kernels::Debug;
        self
    }
}
