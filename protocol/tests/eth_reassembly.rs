// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of the reassembly of eager frames: complete, lost, duplicated, reordered, and hostile
//! messages.

#![allow(clippy::precedence)] // bit patterns as the reference writes them

use proptest::prelude::*;
use protocol::eth::reassembly::*;
use wire::eth::*;
use wire::ids::NodeId;

const NODE: NodeId = NodeId(7);

/// Message as the receiver sees it, with the numbers of its frame and fragment.
#[derive(Clone, Debug)]
struct Msg {
    from: (usize, usize),
    tag: u8,
    last: bool,
    data: Vec<u8>,
}

/// Returns a frame from `NODE` with recognisable content. `foreign` selects a source address that
/// is not the node's.
fn frame(number: usize, len: u32, foreign: bool) -> Vec<u8> {
    let mut f: Vec<u8> = (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ number as u8)
        .collect();
    let source = if foreign {
        [2, 0, 0, 0, 0, 1]
    } else {
        MacPrefix::DEFAULT.mac(NODE)
    };
    f[6..12].copy_from_slice(&source);
    f
}

fn messages(number: usize, frame: &[u8]) -> Vec<Msg> {
    eager_fragments(frame.len() as u32)
        .unwrap()
        .enumerate()
        .map(|(k, p)| Msg {
            from: (number, k),
            tag: p.tag,
            last: p.last,
            data: p.data(frame).to_vec(),
        })
        .collect()
}

/// Result of a sequence of messages at the receiver.
#[derive(Default)]
struct Received {
    frames: Vec<Vec<u8>>,
    /// Origin (frame, fragment) of each frame's fragments.
    origins: Vec<Vec<(usize, usize)>>,
    rejects: Vec<Reject>,
    discarded: Vec<Reject>,
}

fn receive(machine: &mut Reassembler, messages: &[Msg]) -> Received {
    let mut out = Received::default();
    let mut buffer = Vec::new();
    let mut parts = Vec::new();
    for m in messages {
        let (copy, done, discarded) =
            match machine.push(MacPrefix::DEFAULT, NODE, m.tag, m.last, &m.data) {
                Progress::NeedMore { copy, discarded } => (copy, None, discarded),
                Progress::Complete {
                    copy,
                    len,
                    discarded,
                } => (copy, Some(len), discarded),
                Progress::Reject(r) => {
                    // A fragment that continued the frame would now fail the check for holes.
                    buffer.clear();
                    out.rejects.push(r);
                    continue;
                }
            };
        if copy.offset == 0 {
            buffer.clear();
            parts.clear();
        }
        assert_eq!(
            copy.offset as usize,
            buffer.len(),
            "no holes, no overwriting"
        );
        assert_eq!(usize::from(copy.len), m.data.len());
        buffer.extend_from_slice(&m.data);
        parts.push(m.from);
        assert!(buffer.len() <= MAX_FRAME as usize);
        out.discarded.extend(discarded);
        if let Some(len) = done {
            assert_eq!(len as usize, buffer.len());
            out.frames.push(buffer.clone());
            out.origins.push(parts.clone());
        }
    }
    out
}

fn fresh(messages: &[Msg]) -> Received {
    receive(&mut Reassembler::new(MAX_FRAME), messages)
}

#[test]
fn every_length_arrives() {
    for len in (14..400).chain([30_600, 30_720, 30_721, 30_840, 30_841, 65_000, MAX_EAGER]) {
        let f = frame(1, len, false);
        let r = fresh(&messages(1, &f));
        assert!(
            r.frames == [f] && r.rejects.is_empty() && r.discarded.is_empty(),
            "length {len}"
        );
    }
    // Frames with foreign source addresses (bridged frames) arrive too.
    let f = frame(1, 1000, true);
    assert!(fresh(&messages(1, &f)).frames == [f]);
}

#[test]
fn losing_any_one_fragment_costs_only_that_frame() {
    let frames = [
        frame(0, 500, false),
        frame(1, 700, false),
        frame(2, 60, false),
        frame(3, 500, false),
    ];
    let all: Vec<Msg> = frames
        .iter()
        .enumerate()
        .flat_map(|(i, f)| messages(i, f))
        .collect();
    for lost in 0..all.len() {
        let mut some = all.clone();
        let (hit, fragment) = some.remove(lost).from;
        let r = fresh(&some);
        let mut want: Vec<Vec<(usize, usize)>> = frames
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != hit)
            .map(|(i, f)| messages(i, f).iter().map(|m| m.from).collect())
            .collect();
        match (hit, fragment) {
            // Two cases cannot be distinguished from valid frames: the remainder of a frame without
            // its first fragment, and a frame of one message that arrives instead of a lost last
            // fragment.
            (0 | 1 | 3, 0) => {
                let rest = (1..messages(hit, &frames[hit]).len())
                    .map(|k| (hit, k))
                    .collect();
                want.insert(hit, rest);
            }
            (1, 5) => want[1] = vec![(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0)],
            _ => {}
        }
        assert_eq!(r.origins, want, "lost {hit}/{fragment}");
        for (f, o) in r
            .frames
            .iter()
            .zip(&r.origins)
            .filter(|(_, o)| o[0].0 != hit)
        {
            assert!(*f == frames[o[0].0]);
        }
    }
}

#[test]
fn doubling_any_one_fragment_never_damages_a_frame() {
    let frames = [
        frame(0, 500, false),
        frame(1, 700, false),
        frame(2, 60, false),
    ];
    let all: Vec<Msg> = frames
        .iter()
        .enumerate()
        .flat_map(|(i, f)| messages(i, f))
        .collect();
    for double in 0..all.len() {
        let mut more = all.clone();
        more.insert(double, all[double].clone());
        let hit = all[double].from.0;
        let r = fresh(&more);
        for (i, f) in frames.iter().enumerate().filter(|(i, _)| *i != hit) {
            assert!(
                r.frames.contains(f),
                "frame {i} is missing after doubling {:?}",
                all[double].from
            );
        }
        for (f, origins) in r.frames.iter().zip(&r.origins) {
            // A receiver cannot distinguish a duplicated last fragment from a separate frame.
            let lone_tail =
                origins.len() == 1 && origins[0] == all[double].from && all[double].last;
            assert!(frames.contains(f) || lone_tail, "{origins:?}");
        }
    }
}

#[test]
fn a_restarted_sender_is_heard_at_once() {
    // The sender restarts within a frame and then sends other frames.
    for next in [42, 500, 5000] {
        let old = frame(0, 3000, false);
        let new = frame(1, next, false);
        let mut seq: Vec<Msg> = messages(0, &old);
        seq.truncate(10);
        seq.extend(messages(1, &new));
        let r = fresh(&seq);
        assert!(r.frames == [new], "{next}");
        assert_eq!(r.discarded.len() + r.rejects.len(), 1);
        assert_eq!(r.discarded[0].reason, Reason::TagBreak);
    }
}

#[test]
fn a_broken_foreign_frame_ends_with_its_last_fragment() {
    let frames = [frame(0, 1200, true), frame(1, 600, true)];
    let mut seq: Vec<Msg> = frames
        .iter()
        .enumerate()
        .flat_map(|(i, f)| messages(i, f))
        .collect();
    seq.remove(3);
    let r = fresh(&seq);
    assert!(r.frames == frames[1..]);
    let reasons: Vec<Reason> = r.rejects.iter().map(|r| r.reason).collect();
    assert_eq!(reasons[0], Reason::TagBreak);
    assert!(reasons[1..].iter().all(|r| *r == Reason::Tail));
    assert_eq!(reasons.len(), 6);
    assert_eq!((r.rejects[0].got, r.rejects[0].want), (5, 6));
}

#[test]
fn fragments_without_end_stop_at_the_limit() {
    let mut machine = Reassembler::new(1514);
    let mut tag = 0u8;
    let mut kept = 0;
    for k in 0..100_000 {
        let f = if k == 0 {
            frame(0, 120, false)
        } else {
            vec![0; 120]
        };
        match machine.push(MacPrefix::DEFAULT, NODE, tag, false, &f) {
            Progress::NeedMore { copy, .. } => kept = copy.offset + u32::from(copy.len),
            Progress::Reject(r) => {
                assert!(matches!(r.reason, Reason::FrameTooLong | Reason::Tail));
                if r.reason == Reason::FrameTooLong {
                    assert_eq!((r.got, r.want), (1560, 1514));
                }
            }
            Progress::Complete { .. } => panic!("no last fragment was sent"),
        }
        tag = tag.wrapping_sub(1);
    }
    assert_eq!(kept, 1440);
    // Valid frames arrive again afterwards.
    let f = frame(1, 60, false);
    assert!(receive(&mut machine, &messages(1, &f)).frames == [f]);
    // A limit above the protocol's maximum is reduced.
    let seq: Vec<Msg> = (0..600u32)
        .map(|k| Msg {
            from: (0, 0),
            tag: (599 - k) as u8,
            last: k == 599,
            data: vec![1; 120],
        })
        .collect();
    let r = receive(&mut Reassembler::new(u32::MAX), &seq);
    assert!(r.frames.is_empty());
    assert_eq!(r.rejects[0].reason, Reason::FrameTooLong);
    assert_eq!(r.rejects[0].got, 65_640);
}

#[test]
fn malformed_messages_have_their_own_reasons() {
    let start = || {
        let mut m = Reassembler::new(MAX_FRAME);
        let p = m.push(MacPrefix::DEFAULT, NODE, 5, false, &frame(0, 120, false));
        assert!(matches!(p, Progress::NeedMore { .. }));
        m
    };
    let reason =
        |tag, last, data: &[u8]| match start().push(MacPrefix::DEFAULT, NODE, tag, last, data) {
            Progress::Reject(r) => r.reason,
            other => panic!("{other:?}"),
        };
    assert_eq!(reason(4, false, &[]), Reason::Empty);
    assert_eq!(reason(4, false, &[0; 119]), Reason::FragmentLength);
    assert_eq!(reason(4, false, &[0; 121]), Reason::MessageLength);
    assert_eq!(reason(4, true, &[0; 60]), Reason::LastTag);
    assert_eq!(reason(3, false, &[0; 120]), Reason::TagBreak);
    assert_eq!(reason(0, true, &[0; 60]), Reason::TagBreak);
    let mut idle = Reassembler::new(MAX_FRAME);
    let short = idle.push(MacPrefix::DEFAULT, NODE, 0, true, &[0; 13]);
    assert_eq!(short, Progress::Reject(Reject::new(Reason::Runt, 13, 14)));
    // The frame limit is checked before bytes are stored.
    let mut tiny = Reassembler::new(10);
    let long = tiny.push(MacPrefix::DEFAULT, NODE, 0, true, &[0; 20]);
    assert_eq!(
        long,
        Progress::Reject(Reject::new(Reason::FrameTooLong, 20, 10))
    );
}

#[test]
fn abandoning_drops_the_rest() {
    let f = frame(0, 600, false);
    let seq = messages(0, &f);
    let mut m = Reassembler::new(MAX_FRAME);
    receive(&mut m, &seq[..2]);
    m.abandon();
    let r = receive(&mut m, &seq[2..]);
    assert!(r.frames.is_empty());
    assert!(r.rejects.iter().all(|r| r.reason == Reason::Tail) && r.rejects.len() == 3);
    assert!(receive(&mut m, &seq).frames == [f.clone()]);
    receive(&mut m, &seq[..2]);
    m.reset();
    assert!(receive(&mut m, &seq).frames == [f]);
    m.abandon();
    assert!(core::mem::size_of::<Reassembler>() <= 12);
}

/// Fault of the network for one message.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Keep,
    Lose,
    Double,
    Swap,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        12 => Just(Fate::Keep),
        1 => Just(Fate::Lose),
        1 => Just(Fate::Double),
        1 => Just(Fate::Swap),
    ]
}

proptest! {
    /// With any faults, a delivered frame consists of fragments with consecutive tags that end in a
    /// last fragment. An intact sequence of a frame's fragments after a last fragment arrives.
    #[test]
    fn mistreated_sequences(
        lengths in prop::collection::vec((14u32..2000, any::<bool>()), 1..8),
        fates in prop::collection::vec(fate(), 1..200),
    ) {
        let frames = lengths.iter().enumerate();
        let frames: Vec<_> = frames.map(|(i, (len, f))| frame(i, *len, *f)).collect();
        let mut seq = Vec::new();
        let sent = frames.iter().enumerate().flat_map(|(i, f)| messages(i, f));
        for (m, fate) in sent.zip(fates.iter().cycle()) {
            match fate {
                Fate::Keep => seq.push(m),
                Fate::Lose => {}
                Fate::Double => seq.extend([m.clone(), m]),
                Fate::Swap => {
                    let at = seq.len().saturating_sub(1);
                    seq.insert(at, m);
                }
            }
        }
        let by_origin = |from: (usize, usize)| messages(from.0, &frames[from.0])[from.1].clone();
        let r = fresh(&seq);
        for (f, origins) in r.frames.iter().zip(&r.origins) {
            let parts: Vec<Msg> = origins.iter().map(|o| by_origin(*o)).collect();
            for pair in parts.windows(2) {
                prop_assert_eq!(pair[1].tag, pair[0].tag.wrapping_sub(1));
                prop_assert!(!pair[0].last);
            }
            prop_assert!(parts.last().unwrap().last);
            prop_assert_eq!(f, &parts.concat_data());
        }
        // A complete frame with the node's source address directly after any last fragment arrives.
        let origins: Vec<_> = seq.iter().map(|m| m.from).collect();
        for (i, f) in frames.iter().enumerate() {
            let n = messages(i, f).len();
            let want: Vec<_> = (0..n).map(|k| (i, k)).collect();
            let mut windows = origins.windows(n).enumerate();
            let clean = windows.any(|(at, w)| w == want && (at == 0 || seq[at - 1].last));
            if clean && !lengths[i].1 {
                prop_assert!(r.origins.contains(&want), "frame {} was whole but did not arrive", i);
            }
        }
    }

    /// Arbitrary messages cause no overflow, no gap and no panic. Afterwards valid frames arrive
    /// again, possibly only after one more last fragment.
    #[test]
    fn hostile_messages(
        max in 14u32..70_000,
        msgs in prop::collection::vec((any::<u8>(), any::<bool>(), 0usize..130), 0..300),
    ) {
        let mut m = Reassembler::new(max);
        let seq: Vec<Msg> = msgs
            .into_iter()
            .map(|(tag, last, len)| Msg { from: (0, 0), tag, last, data: vec![tag; len] })
            .collect();
        let r = receive(&mut m, &seq);
        for f in &r.frames {
            prop_assert!((14..=max.min(MAX_FRAME) as usize).contains(&f.len()));
        }
        let f = frame(9, max.clamp(14, 500), false);
        prop_assert_eq!(receive(&mut m, &messages(9, &f)).frames, vec![f]);
    }

    #[test]
    fn pieces_cover_the_frame(len in 1u32..=MAX_EAGER) {
        let n = len.div_ceil(120);
        let mut at = 0;
        for (k, p) in eager_fragments(len).unwrap().enumerate() {
            prop_assert_eq!(p.offset, at);
            prop_assert_eq!(p.tag, (n - 1 - k as u32) as u8);
            prop_assert_eq!(p.last, k as u32 == n - 1);
            prop_assert!(p.last || p.len == 120);
            prop_assert!((1..=120).contains(&p.len));
            at += u32::from(p.len);
        }
        prop_assert_eq!(at, len);
    }
}

trait ConcatData {
    fn concat_data(&self) -> Vec<u8>;
}

impl ConcatData for Vec<Msg> {
    fn concat_data(&self) -> Vec<u8> {
        self.iter().flat_map(|m| m.data.clone()).collect()
    }
}

#[test]
fn the_first_tag_gives_the_length_of_the_buffer() {
    for n in 2..=257u32 {
        let first = eager_fragments(n * 120).unwrap().next().unwrap();
        assert_eq!(first_buffer_len(first.tag), n * 120);
    }
}
