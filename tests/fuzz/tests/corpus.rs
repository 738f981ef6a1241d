// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Runs every fuzz target with its seeds, with mutations of the seeds and with random bytes. The
//! random number generator is seeded, so that failures repeat. `WIRE_FUZZ_ITERATIONS` sets the
//! number of inputs per target.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::panic::catch_unwind;
use wire_fuzz::{Target, TARGETS};

struct Random(SmallRng);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.random()
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n.max(1))
    }
}

/// Applies one structural change.
fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    const INTERESTING: [u64; 8] = [0, 1, 0x7F, 0xFF, 120, u32::MAX as u64, 1 << 63, u64::MAX];
    let at = random.below(input.len() + 1);
    match random.below(9) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.next() as u8,
        2 if at < input.len() => input[at] = INTERESTING[random.below(8)] as u8,
        3 => {
            let word = INTERESTING[random.below(8)].to_le_bytes();
            for (to, from) in input.iter_mut().skip(at & !7).zip(word) {
                *to = from;
            }
        }
        4 => input.truncate(at),
        5 => input.insert(at, random.next() as u8),
        6 => {
            let to = (at + random.below(64)).min(input.len());
            let part = input[at..to].to_vec();
            let into = random.below(input.len() + 1);
            input.splice(into..into, part);
        }
        7 => {
            let from = random.below(other.len() + 1);
            input.splice(at.., other[from..].iter().copied());
        }
        _ => {
            let to = (at + random.below(16)).min(input.len());
            input.drain(at..to);
        }
    }
    input.truncate(8192);
}

fn run(target: &Target, input: &[u8]) {
    if catch_unwind(|| (target.run)(input)).is_err() {
        panic!("fuzz target {} fails on {input:02x?}", target.name);
    }
}

#[test]
fn fuzzed_input_breaks_no_decoder() {
    let iterations: usize =
        std::env::var("WIRE_FUZZ_ITERATIONS").map_or(4_000, |v| v.parse().expect("a number"));
    for (index, target) in TARGETS.iter().enumerate() {
        let mut random = Random(SmallRng::seed_from_u64(0x1CAD_0011 + index as u64));
        let mut corpus = (target.seeds)();
        assert!(!corpus.is_empty());
        run(target, &[]);
        for seed in &corpus {
            run(target, seed);
        }
        for _ in 0..iterations {
            let mut input = if random.below(8) == 0 {
                (0..random.below(600))
                    .map(|_| random.next() as u8)
                    .collect()
            } else {
                corpus[random.below(corpus.len())].clone()
            };
            let other = corpus[random.below(corpus.len())].clone();
            for _ in 0..1 + random.below(6) {
                mutate(&mut input, &other, &mut random);
            }
            run(target, &input);
            // Keeps some mutants, so that changes accumulate.
            if random.below(16) == 0 {
                if corpus.len() < 64 {
                    corpus.push(input);
                } else {
                    let at = (target.seeds)().len() + random.below(32);
                    corpus[at] = input;
                }
            }
        }
    }
}

#[test]
fn every_target_has_a_libfuzzer_harness() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz_targets");
    let manifest = std::fs::read_to_string(format!("{dir}/Cargo.toml")).unwrap();
    for target in TARGETS {
        let source = std::fs::read_to_string(format!("{dir}/{}.rs", target.name)).unwrap();
        assert!(
            source.contains(&format!("wire_fuzz::fuzz_{}", target.name)),
            "{}",
            target.name
        );
        assert!(
            manifest.contains(&format!("path = \"{}.rs\"", target.name)),
            "{}",
            target.name
        );
    }
}
