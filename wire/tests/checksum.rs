// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Detection of unfinished checksums in frames.

use proptest::prelude::*;
use wire::eth::checksum::{unfinished, Unfinished};

/// Returns the ones' complement sum of `bytes` (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u64 = 0;
    for pair in bytes.chunks(2) {
        sum += (u64::from(pair[0]) << 8) | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    v6: bool,
    tcp: bool,
    tags: usize,
}

/// Returns a frame with an unfinished checksum, the offset of its layer 4 in the frame, and the
/// offset of the checksum in layer 4.
fn frame(kind: Kind, payload: &[u8], padding: usize) -> (Vec<u8>, usize, usize) {
    let Kind { v6, tcp, tags } = kind;
    let mut frame = vec![0x2e, 0x87, 4, 7, 0, 1, 0x2e, 0x87, 4, 7, 0, 2];
    for tag in 0..tags {
        frame.extend(if tag + 1 == tags {
            [0x81, 0]
        } else {
            [0x88, 0xa8]
        });
        frame.extend([0, tag as u8]);
    }
    let head = if tcp { 20 } else { 8 };
    let len = (head + payload.len()) as u16;
    let protocol = if tcp { 6 } else { 17 };
    let addresses: Vec<u8> = (0..if v6 { 32 } else { 8 }).map(|i| 200 + i).collect();
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 1, 2, 3]);
        frame.extend(len.to_be_bytes());
        frame.extend([protocol, 64]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((len + 20).to_be_bytes());
        frame.extend([7, 7, 0x40, 0, 64, protocol, 0, 0]);
    }
    frame.extend(&addresses);
    let start = frame.len();
    let mut pseudo = addresses;
    pseudo.extend([0, protocol]);
    pseudo.extend(len.to_be_bytes());
    let mut layer4 = vec![0x30, 0x39, 0x7a, 0x69];
    if tcp {
        layer4.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    } else {
        layer4.extend(len.to_be_bytes());
        layer4.extend([0, 0]);
    }
    layer4.extend(payload);
    let offset = if tcp { 16 } else { 6 };
    layer4[offset..offset + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
    frame.extend(layer4);
    frame.extend(vec![0; padding]);
    (frame, start, offset)
}

/// Finishes the checksum in software, as the network stack does for hardware without checksum
/// offload.
fn finish(frame: &mut [u8], start: usize, offset: usize, end: usize) {
    let checksum = !sum(&frame[start..end]);
    frame[start + offset..start + offset + 2].copy_from_slice(&checksum.to_be_bytes());
}

const ALL: [Kind; 12] = {
    let mut all = [Kind {
        v6: false,
        tcp: false,
        tags: 0,
    }; 12];
    let mut i = 0;
    while i < 12 {
        all[i] = Kind {
            v6: i & 1 == 1,
            tcp: i & 2 == 2,
            tags: i / 4,
        };
        i += 1;
    }
    all
};

#[test]
fn unfinished_checksums_are_found() {
    for kind in ALL {
        for len in [0, 1, 2, 90, 1401, 65_000] {
            let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            for padding in [0, 6] {
                let (mut frame, start, offset) = frame(kind, &payload, padding);
                let found = Unfinished {
                    start: start as u16,
                    offset: offset as u16,
                };
                assert_eq!(unfinished(&frame), Some(found), "{kind:?} {len}");
                let end = frame.len() - padding;
                finish(&mut frame, start, offset, end);
                assert_eq!(unfinished(&frame), None, "{kind:?} {len}");
            }
        }
    }
}

/// Checks the stored sum and the finished checksum of a frame between two nodes with default
/// addresses.
#[test]
fn a_known_frame() {
    let frame = [
        0x2e, 0x87, 4, 7, 0, 1, 0x2e, 0x87, 4, 7, 0, 0, 8, 0, 0x45, 0, 0, 30, 0, 0, 0x40, 0, 64,
        17, 0, 0, 10, 2, 0, 1, 10, 2, 0, 2, 0x30, 0x39, 0x7a, 0x69, 0, 10, 0x14, 0x22, 1, 2,
    ];
    // 0x0a02 + 0x0001 + 0x0a02 + 0x0002 + 17 + 10.
    assert_eq!(
        unfinished(&frame),
        Some(Unfinished {
            start: 34,
            offset: 6
        })
    );
}

#[test]
fn other_frames_have_none() {
    let kind = Kind {
        v6: false,
        tcp: false,
        tags: 0,
    };
    let (good, ..) = frame(kind, &[1; 40], 0);
    let changed = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        unfinished(&frame)
    };
    assert!(unfinished(&good).is_some());
    // The function must not report these frames as unfinished: first fragment, later fragment,
    // other IP version, short header, unsupported protocol, wrong UDP length, other EtherType.
    for (at, value) in [
        (20, 0x20),
        (21, 1),
        (14, 0x65),
        (14, 0x44),
        (23, 132),
        (39, 9),
        (12, 9),
    ] {
        assert_eq!(changed(at, value), None, "byte {at}");
    }
    for len in 0..good.len() {
        assert_eq!(unfinished(&good[..len]), None, "{len} bytes");
    }
    // A UDP datagram may have no checksum (0).
    let mut none = good;
    none[40..42].fill(0);
    assert_eq!(unfinished(&none), None);
}

proptest! {
    /// For arbitrary bytes, the reported positions are inside the frame.
    #[test]
    fn any_bytes(mut frame in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..4usize) {
        if frame.len() > 16 && kind > 0 {
            let types = [[8, 0], [0x86, 0xdd], [0x81, 0]];
            frame[12..14].copy_from_slice(&types[kind - 1]);
        }
        if let Some(Unfinished { start, offset }) = unfinished(&frame) {
            prop_assert!(usize::from(start + offset) + 2 <= frame.len());
        }
    }
}

/// About 1 of 65,536 frames with a finished checksum looks unfinished. Finishing the checksum again
/// does not change it.
#[test]
fn finished_twice() {
    for kind in ALL {
        let mut alike = 0;
        for word in 0..=u16::MAX {
            let (mut frame, start, offset) = frame(kind, &word.to_be_bytes(), 0);
            let end = frame.len();
            finish(&mut frame, start, offset, end);
            if unfinished(&frame).is_some() {
                alike += 1;
                let once = frame.clone();
                finish(&mut frame, start, offset, end);
                assert_eq!(once, frame);
            }
        }
        assert!((1..3).contains(&alike), "{kind:?}: {alike}");
    }
}
