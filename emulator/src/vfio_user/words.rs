//! Word-wise access to guest memory.
//!
//! A PCIe packet has byte enables, so all bytes that it writes in an aligned 8-byte word become
//! visible at once, even if they are 3, 5, 6 or 7 bytes. `memcpy` and `VolatileSlice` copy in units
//! that depend on length and alignment, so a polling guest would see partial updates. An address
//! that is aligned here is aligned in the guest, too, because files are mapped in pages.

use std::sync::atomic::{AtomicU64, Ordering};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, VolatileMemory};

/// Size of a word in bytes. Bytes in an aligned word become visible together.
const WORD: usize = 8;

/// Splits an access. Returns the number of bytes before the first complete aligned word, and the
/// number of bytes in complete words.
fn split(at: usize, len: usize) -> (usize, usize) {
    let head = (at.wrapping_neg() % WORD).min(len);
    (head, (len - head) / WORD * WORD)
}

/// Writes at offset `at` of a mapped file. Bytes beyond the end of the file are not written.
pub(super) fn store(to: &MmapRegion, at: usize, from: &[u8]) {
    let (head, body) = split(at, from.len());
    let (first, rest) = from.split_at(head);
    let (words, last) = rest.split_at(body);
    if !first.is_empty() {
        store_part(to, at, first);
    }
    if let Ok(slice) = to.get_slice(at + head, body) {
        for (k, word) in words.chunks_exact(WORD).enumerate() {
            let value = word.try_into().map(u64::from_ne_bytes).unwrap_or_default();
            let _ = slice.store(value, k * WORD, Ordering::Release);
        }
    }
    if !last.is_empty() {
        store_part(to, at + head + body, last);
    }
}

/// Reads at offset `at` of a mapped file. Buffer bytes for addresses beyond the end of the file
/// stay unchanged.
pub(super) fn load(from: &MmapRegion, at: usize, to: &mut [u8]) {
    let (head, body) = split(at, to.len());
    let (first, rest) = to.split_at_mut(head);
    let (words, last) = rest.split_at_mut(body);
    if !first.is_empty() {
        load_part(from, at, first);
    }
    if let Ok(slice) = from.get_slice(at + head, body) {
        for (k, word) in words.chunks_exact_mut(WORD).enumerate() {
            if let Ok(value) = slice.load::<u64>(k * WORD, Ordering::Acquire) {
                word.copy_from_slice(&value.to_ne_bytes());
            }
        }
    }
    if !last.is_empty() {
        load_part(from, at + head + body, last);
    }
}

/// Writes some of the bytes of an aligned word.
fn store_part(to: &MmapRegion, at: usize, from: &[u8]) {
    let (word, inside) = (at / WORD * WORD, at % WORD);
    // An aligned value of 1, 2 or 4 bytes is written by a single store, which does not change the
    // neighbouring bytes.
    macro_rules! whole {
        ($t:ty) => {
            if let Ok(bytes) = from.try_into() {
                let value = <$t>::from_ne_bytes(bytes);
                if to
                    .as_volatile_slice()
                    .store(value, at, Ordering::Release)
                    .is_ok()
                {
                    return;
                }
            }
        };
    }
    match from.len() {
        4 => whole!(u32),
        2 => whole!(u16),
        1 => whole!(u8),
        _ => {}
    }
    let Ok(cell) = to.get_atomic_ref::<AtomicU64>(word) else {
        // The file ends within the word.
        let _ = to.as_volatile_slice().write(from, at);
        return;
    };
    let (mut value, mut mask) = ([0; WORD], [0xFF; WORD]);
    value[inside..inside + from.len()].copy_from_slice(from);
    mask[inside..inside + from.len()].fill(0);
    let (value, mask) = (u64::from_ne_bytes(value), u64::from_ne_bytes(mask));
    // If a CPU stores to the other bytes of the word at the same time, the update is repeated, so
    // that the CPU's store is not lost.
    let _ = cell.fetch_update(Ordering::Release, Ordering::Relaxed, |old| {
        Some(old & mask | value)
    });
}

/// Reads some of the bytes of an aligned word.
fn load_part(from: &MmapRegion, at: usize, to: &mut [u8]) {
    let (word, inside) = (at / WORD * WORD, at % WORD);
    match from.get_atomic_ref::<AtomicU64>(word) {
        Ok(cell) => {
            let bytes = cell.load(Ordering::Acquire).to_ne_bytes();
            to.copy_from_slice(&bytes[inside..inside + to.len()]);
        }
        // The file ends within the word.
        Err(_) => {
            let _ = from.as_volatile_slice().read(to, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mem::tests::{memfd, req};
    use super::super::GuestMemory;
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn memory(size: u64) -> GuestMemory {
        let mut m = GuestMemory::default();
        m.map(req(0, size), Some(memfd(size))).unwrap();
        m
    }

    /// Writes of every length and offset change exactly their bytes, even at the end of a file that
    /// ends within a word.
    #[test]
    fn exactly_the_bytes() {
        let m = memory(61);
        for len in 0..=40usize {
            for at in 0..=61 - len {
                assert!(m.write(0, &[0xEE; 61]));
                let data: Vec<u8> = (1..=len as u8).collect();
                assert!(m.write(at as u64, &data));
                let mut all = [0; 61];
                assert!(m.read(0, &mut all));
                let mut want = [0xEE; 61];
                want[at..at + len].copy_from_slice(&data);
                assert_eq!(all, want, "{len} bytes at {at}");
                let mut back = vec![0; len];
                assert!(m.read(at as u64, &mut back));
                assert_eq!(back, data);
            }
        }
    }

    /// A store to some bytes of an aligned word is never visible in part, neither to the device nor
    /// to a CPU. It does not undo stores of a CPU to the other bytes.
    #[test]
    fn part_of_a_word_is_never_seen_in_part() {
        for (inside, len) in [
            (0, 3),
            (1, 2),
            (2, 4),
            (3, 5),
            (1, 6),
            (1, 7),
            (0, 7),
            (2, 3),
        ] {
            let m = memory(0x1000);
            let at = 0x40u64;
            let beside: Vec<u64> = (0..8)
                .filter(|k| !(inside..inside + len).contains(k))
                .map(|k| at + k as u64)
                .collect();
            let done = AtomicBool::new(false);
            std::thread::scope(|s| {
                s.spawn(|| {
                    for i in 0..60_000u32 {
                        let data = [0u8.wrapping_sub((i & 1) as u8); 8];
                        assert!(m.write(at + inside as u64, &data[..len]));
                    }
                    done.store(true, Ordering::Relaxed);
                });
                s.spawn(|| {
                    let mut n = 0u8;
                    while !done.load(Ordering::Relaxed) {
                        n = n.wrapping_add(1);
                        for byte in &beside {
                            let mut seen = [0];
                            assert!(m.write(*byte, &[n]) && m.read(*byte, &mut seen));
                            assert_eq!(seen, [n], "the store was lost");
                        }
                    }
                });
                let mut seen = [0; 8];
                while !done.load(Ordering::Relaxed) {
                    // The whole word is loaded as a CPU does, and the bytes as the device does.
                    assert!(m.read(at, &mut seen));
                    let part = &seen[inside..inside + len];
                    assert!(part.iter().all(|b| *b == part[0]), "{seen:x?}");
                    let part = &mut seen[..len];
                    assert!(m.read(at + inside as u64, part));
                    assert!(part.iter().all(|b| *b == part[0]), "{part:x?}");
                }
            });
        }
    }

    /// A longer store writes whole words, even if it begins and ends within a word.
    #[test]
    fn words_of_long_stores_are_whole() {
        let m = memory(0x1000);
        let (at, len) = (0x43u64, 500usize);
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 0..20_000u32 {
                    assert!(m.write(at, &[0u8.wrapping_sub((i & 1) as u8); 500][..len]));
                }
                done.store(true, Ordering::Relaxed);
            });
            let (first, end) = (at as usize, at as usize + len);
            let mut seen = [0; 8];
            while !done.load(Ordering::Relaxed) {
                for word in (first / WORD * WORD..end).step_by(WORD) {
                    assert!(m.read(word as u64, &mut seen));
                    let part = &seen[first.saturating_sub(word).min(8)..(end - word).min(8)];
                    assert!(part.iter().all(|b| *b == part[0]), "{word:#x}: {seen:x?}");
                }
            }
        });
    }
}
