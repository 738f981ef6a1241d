//! Seeds of random number generators, all derived from the seed of a run.
//!
//! Each generator has its own seed. The numbers of one generator therefore do not depend on other
//! generators, and no two NICs of a fabric get the same numbers.

use rand::rngs::SmallRng;
use rand::SeedableRng;

/// Purpose of a generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Damage and jitter on links.
    Network,
    /// First inports of the arbiters of a crossbar.
    Arbiters,
    /// Latencies of links.
    Links,
    /// Sizes of buffers.
    Limits,
    /// Seed of a chip, from which the seeds of its units are derived.
    Chip,
    /// Packets on their way into the network.
    Injection,
    /// DMA writes and interrupts on their way to the host.
    Posted,
    /// Order of RMA transfers.
    Transfers,
    /// Pauses of RMA transfers.
    Pauses,
    /// Times of descriptors in the requesters.
    Requesters,
    /// Combining of stores by the host's CPUs.
    Combining,
    /// Times of ATU commands.
    Translation,
    /// Times of SNQ programs.
    Events,
}

/// One round of SplitMix64, which maps neighbouring numbers to unrelated ones.
fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns the seed for a purpose of the NIC with this index; the index is 0 for purposes outside
/// NICs.
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
