// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Checks that bytes are stored in words and read back unchanged, for any split into slices.

use proptest::prelude::*;
use wire::words::{gather, scatter};

proptest! {
    #[test]
    fn gathered_bytes_are_those_of_the_parts(
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        room in 0usize..40,
    ) {
        let all: Vec<u8> = parts.concat();
        let mut words = vec![u64::MAX; room];
        let count = gather(&mut words, parts.iter().map(Vec::as_slice));
        prop_assert_eq!(count, all.len().div_ceil(8).min(room));
        let bytes: Vec<u8> = words[..count].iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut want = all;
        want.resize(want.len().div_ceil(8) * 8, 0);
        want.truncate(8 * room);
        prop_assert_eq!(bytes, want);
        prop_assert!(words[count..].iter().all(|w| *w == u64::MAX));
    }

    #[test]
    fn scattered_bytes_are_those_from_there_on(
        bytes in prop::collection::vec(any::<u8>(), 128),
        from in 0usize..100,
        len in 0usize..28,
    ) {
        let word = |i: usize| {
            let at: [u8; 8] = bytes[8 * i..8 * i + 8].try_into().unwrap();
            u64::from_le_bytes(at)
        };
        let mut to = vec![0; len];
        scatter(from, &mut to, word);
        prop_assert_eq!(&to[..], &bytes[from..from + len]);
    }
}
