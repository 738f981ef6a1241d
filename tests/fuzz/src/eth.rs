// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Ethernet protocol.

use crate::{bytes, Input};
use protocol::eth::reassembly::{Progress, Reassembler};
use wire::eth::*;
use wire::ids::NodeId;
use wire::velo::{self, Target};

/// Input: status word and payload of a message, which is parsed.
pub fn fuzz_eth_message(data: &[u8]) {
    let mut input = Input(data);
    let Ok(Some(status)) = velo::Status::decode(input.u64()) else {
        return;
    };
    let payload = input.0;
    match Message::parse(&status, payload) {
        Ok(Message::Eager { data, .. }) => {
            assert_eq!(data, payload);
            assert!((1..=120).contains(&data.len()));
        }
        Ok(Message::Announcement(a)) => {
            assert_eq!(payload, a.encode());
            if let Ok(len) = a.frame_len(MAX_FRAME) {
                let get = get_descriptor(status.source.node, &a, len, 0x1000);
                assert_eq!(
                    wire::rma::Descriptor::decode(get.encode().expect("legal get")),
                    Ok(get)
                );
                let key = match_key(a.address, len);
                assert!(key.wrapping_sub(a.address) < u64::from(len));
            }
        }
        Ok(Message::Dropped { address }) => assert_eq!(payload, address.to_le_bytes()),
        Err(reject) => {
            assert!(reject.reason.number() < Reason::COUNT);
            assert!(!reject.to_string().is_empty());
        }
    }
}

pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    let announcement = Announcement {
        address: 0x1_0000,
        len: 1514,
    }
    .encode();
    let mut seeds = vec![[bytes(&[0x0010_0001_00FE_0001]), announcement.to_vec()].concat()];
    for (status, n) in [
        (0x0078_0200_00FE_0001, 120),
        (0x003C_0003_00FE_0001, 60),
        (0x0008_0002_00FE_0001, 8),
    ] {
        seeds.push([bytes(&[status]), vec![0x55; n]].concat());
    }
    seeds
}

/// Input: frame limit, then messages (tag, flags, length, content). Tests reassembly.
///
/// Compares each frame with a byte-exact buffer. Frames are complete and within the limit. A
/// rejected message leaves no data behind. A valid frame is accepted at the end.
pub fn fuzz_eth_reassembly(data: &[u8]) {
    let mut input = Input(data);
    let max = (input.u64() % 70_000) as u32;
    let node = NodeId(input.u8().into());
    let prefix = MacPrefix::DEFAULT;
    let mut machine = Reassembler::new(max);
    let limit = max.min(MAX_FRAME) as usize;
    let mut buffer: Vec<u8> = Vec::new();
    while !input.is_empty() {
        let (tag, flags, n) = (input.u8(), input.u8(), input.u8());
        let mut content = input.bytes(4).to_vec();
        // Most fragments are full. A flag selects the node's own address, because the address
        // decides what happens after a broken sequence.
        content.resize(if flags & 2 != 0 { n as usize } else { 120 }, n);
        if flags & 4 != 0 && content.len() >= 12 {
            content[6..12].copy_from_slice(&prefix.mac(node));
        }
        if flags & 8 != 0 {
            machine.abandon();
            buffer.clear();
        }
        let partial = !buffer.is_empty();
        let (copy, done, discarded) =
            match machine.push(prefix, node, tag, flags & 1 != 0, &content) {
                Progress::NeedMore { copy, discarded } => (copy, None, discarded),
                Progress::Complete {
                    copy,
                    len,
                    discarded,
                } => (copy, Some(len), discarded),
                Progress::Reject(reject) => {
                    assert!(!reject.to_string().is_empty());
                    buffer.clear();
                    continue;
                }
            };
        assert_eq!(discarded.is_some(), copy.offset == 0 && partial);
        if copy.offset == 0 {
            buffer.clear();
        }
        assert_eq!(copy.offset as usize, buffer.len());
        assert_eq!(usize::from(copy.len), content.len());
        buffer.extend_from_slice(&content);
        assert!(buffer.len() <= limit);
        if let Some(len) = done {
            assert_eq!(len as usize, buffer.len());
            assert!(len >= HEADER_LEN);
            buffer.clear();
        }
    }
    // A frame of several fragments with the node's address. It has the maximum permitted length.
    let len = max.min(600);
    if len < HEADER_LEN {
        return;
    }
    let mut frame = vec![1u8; len as usize];
    frame[6..12].copy_from_slice(&prefix.mac(node));
    let mut got = Vec::new();
    let mut complete = false;
    // The first frame may complete the tag sequence of an unfinished frame. The second frame must
    // then arrive.
    for _ in 0..2 {
        for fragment in eager_fragments(len).expect("short frame") {
            assert!(fragment.descriptor(Target::Node(node)).encode().is_ok());
            let part = fragment.data(&frame);
            match machine.push(prefix, node, fragment.tag, fragment.last, part) {
                Progress::NeedMore { copy, .. } | Progress::Complete { copy, .. } => {
                    got.truncate(copy.offset as usize);
                    got.extend_from_slice(part);
                }
                Progress::Reject(_) => got.clear(),
            }
            complete = fragment.last && got == frame;
        }
        if complete {
            return;
        }
    }
    assert!(complete, "the machine does not recover");
}

pub(crate) fn reassembly_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (max, n) in [(65_550u64, 5u8), (1514, 20), (14, 1)] {
        let mut s = bytes(&[max]);
        s.push(7);
        for k in 0..n {
            let last = k + 1 == n;
            let start = if k == 0 { 4 } else { 0 };
            s.extend([n - 1 - k, u8::from(last) | start, 120, 1, 2, 3, 4]);
        }
        seeds.push(s);
    }
    seeds
}
