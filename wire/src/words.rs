// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Conversion between bytes and little-endian quadwords, which the NIC reads and writes.

/// Converts a chunk of fewer than eight bytes.
fn short(chunk: &[u8]) -> u64 {
    let add = |word, byte: &u8| (word << 8) | u64::from(*byte);
    chunk.iter().rev().fold(0, add)
}

/// Concatenates the bytes of several slices into `words` and pads the last used word with zeros.
/// Ignores bytes that do not fit. Returns the number of used words.
pub fn gather<'a>(words: &mut [u64], parts: impl IntoIterator<Item = &'a [u8]>) -> usize {
    let mut places = words.iter_mut();
    let mut count = 0;
    // Bytes that do not fill a word yet, and the number of their bits.
    let (mut rest, mut bits) = (0u64, 0u32);
    for part in parts {
        let mut part = part;
        if bits == 0 {
            while let Some((bytes, behind)) = part.split_first_chunk::<8>() {
                let Some(place) = places.next() else {
                    return count;
                };
                *place = u64::from_le_bytes(*bytes);
                count += 1;
                part = behind;
            }
        }
        for chunk in part.chunks(8) {
            let value = match chunk.first_chunk::<8>() {
                Some(bytes) => u64::from_le_bytes(*bytes),
                None => short(chunk),
            };
            rest |= value << bits;
            bits += 8 * chunk.len() as u32;
            if bits < 64 {
                continue;
            }
            let Some(place) = places.next() else {
                return count;
            };
            *place = rest;
            count += 1;
            bits -= 64;
            // Number of bits of the chunk that were stored in the word.
            let used = 8 * chunk.len() as u32 - bits;
            rest = value.checked_shr(used).unwrap_or(0);
        }
    }
    if bits != 0 {
        if let Some(place) = places.next() {
            *place = rest;
            count += 1;
        }
    }
    count
}

/// Copies bytes from the words that `word` returns into `to`, starting at byte `from` of the words.
pub fn scatter(from: usize, to: &mut [u8], mut word: impl FnMut(usize) -> u64) {
    let (mut index, skip) = (from / 8, from % 8);
    let (head, tail) = to.split_at_mut(((8 - skip) % 8).min(to.len()));
    if !head.is_empty() {
        let bytes = word(index).to_le_bytes();
        for (to, from) in head.iter_mut().zip(bytes.iter().skip(skip)) {
            *to = *from;
        }
        index += 1;
    }
    for chunk in tail.chunks_mut(8) {
        let bytes = word(index).to_le_bytes();
        match chunk.first_chunk_mut::<8>() {
            Some(whole) => *whole = bytes,
            None => {
                for (to, from) in chunk.iter_mut().zip(bytes) {
                    *to = from;
                }
            }
        }
        index += 1;
    }
}
