//! Accesses of guest memory word by word.
//!
//! A PCIe packet carries byte enables, so that what it has of an aligned 8-byte word arrives in that word at once, whether it
//! is 3, 5, 6 or 7 bytes of it or all. Copies of `memcpy` or of `VolatileSlice` go in units that suit the length and the
//! alignment of both sides, and a guest that polls its memory would see halves. The aligned address on this side is the
//! aligned one of the guest, because files are mapped in pages.

use std::sync::atomic::{AtomicU64, Ordering};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, VolatileMemory};

/// Bytes that are seen all or not at all.
const WORD: usize = 8;

/// Bytes of an access before the first aligned word that is in it as a whole, and bytes of such words.
fn split(at: usize, len: usize) -> (usize, usize) {
    let head = (at.wrapping_neg() % WORD).min(len);
    (head, (len - head) / WORD * WORD)
}

/// Writes at an offset of a mapped file; beyond its end nothing is written.
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

/// Reads at an offset of a mapped file; of what is beyond its end the buffer is left alone.
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

/// Writes a part of an aligned word.
fn store_part(to: &MmapRegion, at: usize, from: &[u8]) {
    let (word, inside) = (at / WORD * WORD, at % WORD);
    // What is narrower and aligned is a store of its own, which leaves its neighbours alone.
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
    // A processor that stores to the bytes beside these at the same time must not lose its store: then once more.
    let _ = cell.fetch_update(Ordering::Release, Ordering::Relaxed, |old| {
        Some(old & mask | value)
    });
}

/// Reads a part of an aligned word.
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

    /// Every length and place: the bytes and nothing beside them, at the end of a file that no word ends with as well.
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

    /// A store within an aligned word is seen whole, in both directions, and takes nothing from a processor that stores to
    /// the bytes beside it.
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
                    // The word as a processor loads it, and the part as the device does.
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

    /// A longer store is one of words, also where it begins and ends amid one.
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
