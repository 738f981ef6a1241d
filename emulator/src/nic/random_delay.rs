//! Random delays of a unit. All of them are MODEL decisions, because the sources give no times
//! (G35).

use super::NicConfig;
use crate::seed::{self, Purpose};
use rand::rngs::SmallRng;
use rand::Rng;

/// Generator of the delays of one unit.
pub(super) struct RandomDelay {
    rng: SmallRng,
    purpose: Purpose,
    /// Maximum delay in ns; 0 for no delays.
    longest: u64,
}

impl RandomDelay {
    pub(super) fn new(cfg: &NicConfig, purpose: Purpose, longest: u64) -> Self {
        Self {
            rng: cfg.draws(purpose),
            purpose,
            longest,
        }
    }

    /// Returns true if the unit has no delays.
    #[inline]
    pub(super) fn is_off(&self) -> bool {
        self.longest == 0
    }

    /// Returns a random delay in ns. One in eight delays is in the whole range, the others are in
    /// the first sixteenth of the range.
    pub(super) fn draw(&mut self) -> u64 {
        if self.is_off() {
            return 0;
        }
        let most = match self.rng.random_ratio(1, 8) {
            true => self.longest,
            false => self.longest / 16,
        };
        self.rng.random_range(0..=most)
    }

    /// Returns a delay like [`RandomDelay::draw`] in one of `every` calls on average, and 0 in the
    /// others.
    pub(super) fn draw_one_in(&mut self, every: u32) -> u64 {
        if self.is_off() || !self.rng.random_ratio(1, every.max(1)) {
            return 0;
        }
        self.draw()
    }

    pub(super) fn reseed(&mut self, seed: u64) {
        self.rng = seed::rng(seed, 0, self.purpose);
    }
}
