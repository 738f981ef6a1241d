//! Seeds of random draws: one for a run, and from it one for every generator.
//!
//! Each generator has a seed of its own, so that what one of them draws depends neither on how often others drew nor on which
//! of them exist, and no two NICs of a fabric draw alike.

use rand::rngs::SmallRng;
use rand::SeedableRng;

/// What a generator draws for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Damage and jitter on links.
    Network,
    /// Where the arbiters of a crossbar begin.
    Arbiters,
    /// Latencies of links.
    Links,
    /// Sizes of buffers.
    Limits,
    /// The seed of a chip, from which those of its units come.
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
    /// What the host's processors combine.
    Combining,
    /// Times of ATU commands.
    Translation,
    /// Times of SNQ programs.
    Events,
}

/// One round of SplitMix64: neighbouring numbers give unrelated ones.
fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Seed for a purpose of the NIC with this index; of things that belong to no NIC the index is 0.
pub fn derive(seed: u64, nic: usize, purpose: Purpose) -> u64 {
    scramble(scramble(scramble(seed) ^ nic as u64) ^ purpose as u64)
}

/// Generator with the seed of [`derive`].
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
