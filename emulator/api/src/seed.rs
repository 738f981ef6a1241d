//! Seeds of random number generators. All seeds are derived from the seed of a run.
//!
//! Each generator has its own seed, so its numbers do not depend on other generators. No two NICs
//! of a fabric get the same numbers.

use rand::rngs::SmallRng;
use rand::SeedableRng;

/// Purpose of a generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Damage and jitter on links.
    Network,
    /// Inport from which each arbiter of a crossbar starts.
    Arbiters,
    /// Latencies of links.
    Links,
    /// Sizes of buffers.
    Limits,
    /// Seed of a chip, from which the seeds of its units are derived.
    Chip,
    /// Delays of packets between the units and the network.
    Injection,
    /// Delays of DMA writes and interrupts on their way to the host.
    Posted,
    /// Order of RMA transfers.
    Transfers,
    /// Pauses of RMA transfers.
    Pauses,
    /// Delays of descriptors in the requesters.
    Requesters,
    /// Combining of stores by the host's CPUs.
    Combining,
    /// Delays of ATU commands.
    Translation,
    /// Delays of SNQ programs.
    Events,
}

/// One round of SplitMix64, which maps neighbouring numbers to unrelated numbers.
fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns the seed for a purpose of the NIC with index `nic`. The index is 0 for purposes that
/// belong to no NIC.
pub fn derive(seed: u64, nic: usize, purpose: Purpose) -> u64 {
    scramble(scramble(scramble(seed) ^ nic as u64) ^ purpose as u64)
}

/// Returns a generator with the seed of [`derive`].
pub fn rng(seed: u64, nic: usize, purpose: Purpose) -> SmallRng {
    SmallRng::seed_from_u64(derive(seed, nic, purpose))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_generators_begin_alike() {
        let purposes = [Purpose::Network, Purpose::Injection, Purpose::Posted];
        let mut all = BTreeSet::new();
        for seed in 0..16 {
            for nic in 0..16 {
                all.extend(purposes.map(|p| derive(seed, nic, p)));
            }
        }
        assert_eq!(all.len(), 16 * 16 * 3);
    }
}
