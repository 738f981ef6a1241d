//! Results of a run.

use super::MS;
use crate::eth::setup::Full;

/// A violated invariant.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Seed of the run.
    pub seed: u64,
    /// Simulated time in ns.
    pub at: u64,
    /// Description.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, at, what } = self;
        let ms = *at as f64 / MS as f64;
        write!(f, "seed {seed}, {ms:.3} ms: {what}")
    }
}

/// Statistics of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    /// Frames submitted.
    pub frames: u64,
    /// Frames delivered.
    pub delivered: u64,
    /// Frames that had to arrive.
    pub healthy: u64,
    /// Frames among `healthy` whose sender or receiver had a fault before.
    pub recovered: u64,
    /// Steps of the simulation.
    pub steps: u64,
    /// Faults.
    pub faults: u64,
    /// Fetched frames with holes.
    pub holes: u64,
    /// Tables that were full.
    pub full: Full,
}
