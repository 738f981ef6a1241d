//! Tests of validity tags: any missing packet leaves a tag unchanged.

use protocol::base::validity::{find_hole, tag_offsets, TAG_BYTES};
use wire::rma::FRAGMENT;

const MARK: [u8; 8] = *b"\x80mark\xff\0\x01";

#[test]
fn each_whole_packet_covers_a_mark() {
    for len in (0..3 * FRAGMENT).chain([60_000]) {
        let all: Vec<u32> = tag_offsets(len).collect();
        assert!(all.iter().all(|m| m + TAG_BYTES <= len));
        for from in 0..=len.saturating_sub(FRAGMENT) {
            let covers = |m: &u32| *m >= from && m + TAG_BYTES <= from + FRAGMENT;
            assert!(len <= FRAGMENT || all.iter().any(covers), "{from} of {len}");
        }
    }
}

/// Returns the memory after a GET of `len` bytes whose packets `lost` did not arrive.
fn get(len: u32, lost: impl Fn(u32) -> bool) -> Vec<u8> {
    let mut memory = vec![0xdb; len as usize];
    for at in tag_offsets(len) {
        memory[at as usize..(at + TAG_BYTES) as usize].copy_from_slice(&MARK);
    }
    for (i, packet) in (0..).zip(memory.chunks_mut(FRAGMENT as usize)) {
        if !lost(i) {
            packet.fill(0x11);
        }
    }
    memory
}

#[test]
fn any_packet_but_the_last_one_is_missed() {
    for len in (1..5 * FRAGMENT).step_by(7).chain([9_000, 65_558]) {
        let last = (len - 1) / FRAGMENT;
        assert_eq!(find_hole(&get(len, |_| false), MARK), None, "{len}");
        for i in 0..last {
            for lost in [i..i + 1, i..last, 0..i + 1] {
                let at = find_hole(&get(len, |k| lost.contains(&k)), MARK);
                let at = at.unwrap_or_else(|| panic!("{lost:?} of {len}"));
                // The first unchanged tag is in the first missing packet.
                let packet = lost.start * FRAGMENT..lost.end * FRAGMENT;
                assert!(packet.contains(&at) && at < (lost.start + 1) * FRAGMENT);
            }
        }
    }
}

#[test]
fn what_looks_like_a_mark_elsewhere_is_none() {
    let mut data = vec![0; 2_000];
    for at in (1..1_900).step_by(488) {
        data[at..at + 8].copy_from_slice(&MARK);
    }
    assert_eq!(find_hole(&data, MARK), None);
    data[976..984].copy_from_slice(&MARK);
    assert_eq!(find_hole(&data, MARK), Some(976));
    assert_eq!(find_hole(&[], MARK), None);
    // A GET of a single packet has no tags, because the completer reports this packet.
    assert_eq!(find_hole(&MARK, MARK), None);
}
