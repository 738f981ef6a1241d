// SPDX-License-Identifier: GPL-2.0-only

//! Buffers for transfers: functions that fill them with the test pattern and check them.

use crate::protocol::pattern;
use extoll_core::{dma::DmaWords, nic::Nic};
use kernel::prelude::*;
use kernel_ext::sched::cond_resched;

/// Number of words between two voluntary preemption points.
const STRIDE: usize = 4096;

/// Allocates `bytes` bytes of zeroed memory; `bytes` is a multiple of 8. May sleep.
pub(crate) fn allocate(nic: &Nic, bytes: usize) -> Result<DmaWords> {
    nic.with_bound(|dev| DmaWords::new(dev, bytes / 8))?
}

/// Writes the pattern into the first `words` words, beginning with pattern word `first`. May sleep.
pub(crate) fn fill(memory: &DmaWords, words: usize, seed: u64, first: u64) {
    for i in 0..words {
        memory.write(i, pattern(seed, first + i as u64));
        if i % STRIDE == 0 {
            cond_resched();
        }
    }
}

/// Compares the first `words` words with the pattern. Returns the index and the value of the first
/// word that differs. May sleep.
pub(crate) fn mismatch(
    memory: &DmaWords,
    words: usize,
    seed: u64,
    first: u64,
) -> Option<(usize, u64)> {
    for i in 0..words {
        let word = memory.read(i);
        if word != pattern(seed, first + i as u64) {
            return Some((i, word));
        }
        if i % STRIDE == 0 {
            cond_resched();
        }
    }
    None
}
