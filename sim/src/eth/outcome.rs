//! How a run has ended.

use super::MS;
use crate::eth::setup::Full;

/// What is wrong, and when.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Seed of the run.
    pub seed: u64,
    /// When, in ns.
    pub at: u64,
    /// What.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, at, what } = self;
        let ms = *at as f64 / MS as f64;
        write!(f, "seed {seed}, {ms:.3} ms: {what}")
    }
}

/// What a run did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    /// Frames handed over.
    pub frames: u64,
    /// Of these, delivered.
    pub delivered: u64,
    /// Frames that had to arrive.
    pub healthy: u64,
    /// Of these, with an end that had a fault before.
    pub recovered: u64,
    /// Steps of the simulation.
    pub steps: u64,
    /// Faults.
    pub faults: u64,
    /// Fetched frames in which something was missing.
    pub holes: u64,
    /// Tables that were full.
    pub full: Full,
}
