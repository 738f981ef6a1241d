// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Matching of register access answers, and the layout of the SMFU window.

use proptest::prelude::*;
use wire::ids::NodeId;
use wire::regs::smfu::RRA_WINDOW;
use wire::rra::{Answer, Reads, Slot, Writes, EXPIRY_S};
use wire::smfu::{Layout, MaskMode, Refused, PAGE, USABLE};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

#[test]
fn late_answers_are_never_taken_for_later_requests() {
    let mut slots = [Slot::FREE; 3];
    let mut reads = Reads(&mut slots);
    let first = reads.claim(0, A, 0).unwrap();
    reads.give_up(first, 0);
    let second = reads.claim(first, A, 0).unwrap();
    assert_ne!(first, second);
    assert_eq!(reads.settle(first, A), Answer::Late);
    assert_eq!(reads.settle(first, A), Answer::Unknown);
    assert_eq!(reads.settle(second, B), Answer::Unknown);
    assert_eq!(reads.settle(second, A), Answer::Awaited);
    assert_eq!(reads.settle(7, A), Answer::Unknown);
}

#[test]
fn answers_are_expected_until_they_came_or_expired() {
    let mut slots = [Slot::FREE; 2];
    let mut reads = Reads(&mut slots);
    assert!(!reads.is_expected(0));
    let slot = reads.claim(0, A, 5).unwrap();
    assert!(reads.is_expected(1000), "somebody waits for it");
    reads.give_up(slot, 10);
    assert!(reads.is_expected(10 + EXPIRY_S - 1));
    assert!(!reads.is_expected(10 + EXPIRY_S));
    reads.settle(slot, A);
    assert!(!reads.is_expected(10));
}

#[test]
fn overdue_slots_are_used_again_when_they_expired_and_nothing_else_is_left() {
    let mut slots = [Slot::FREE; 2];
    let mut reads = Reads(&mut slots);
    for now in [10, 20] {
        let slot = reads.claim(0, A, now).unwrap();
        reads.give_up(slot, now);
    }
    assert_eq!(reads.claim(0, A, 10 + EXPIRY_S - 1), None);
    assert_eq!(reads.claim(0, A, 20 + EXPIRY_S), Some(0));
    assert_eq!(reads.claim(0, A, 20 + EXPIRY_S), Some(1));
    assert_eq!(
        reads.claim(0, A, 1000),
        None,
        "a slot that is waited for is never taken"
    );
    reads.cancel(1);
    assert_eq!(reads.claim(0, A, 1000), Some(1));
}

#[test]
fn writes_are_answered_in_order() {
    let mut writes = Writes::default();
    let [a, b, c] = [(A, 5), (B, 5), (A, 5)].map(|(n, v)| writes.push(n, v, 0).unwrap());
    assert_eq!(writes.settle(A, 6, None), None);
    // The notification that fits two writes belongs to the older.
    assert_eq!(writes.settle(A, 5, None), Some(a));
    assert_eq!(writes.settle(A, 5, None), Some(c));
    assert_eq!(
        writes.settle(B, 5, None),
        None,
        "{b}: what was overtaken is forgotten"
    );
    for _ in 0..Writes::MAX {
        assert!(writes.push(A, 0, 0).is_some());
    }
    assert_eq!(writes.push(A, 0, EXPIRY_S - 1), None);
    assert!(writes.push(A, 0, EXPIRY_S).is_some());
}

#[test]
fn a_lost_answer_to_a_write_costs_that_write_only() {
    let mut writes = Writes::default();
    let lost = writes.push(A, 5, 0).unwrap();
    let other = writes.push(A, 6, 0).unwrap();
    for now in 1..40 {
        let id = writes.push(A, 5, now).unwrap();
        assert_eq!(writes.settle(A, 5, Some(id)), Some(id));
    }
    // It may have been late instead.
    assert_eq!(writes.settle(A, 5, None), Some(lost));
    assert_eq!(writes.settle(A, 5, None), None);
    assert_eq!(writes.settle(A, 6, None), None, "{other} was overtaken");
    let [first, second] = [5, 6].map(|v| writes.push(B, v, 0).unwrap());
    assert_eq!(writes.settle(B, 5, Some(second)), Some(first));
    assert_eq!(writes.settle(B, 6, Some(second)), Some(second));
}

proptest! {
    /// Whatever is lost, late or repeated: an answer is `Awaited` only for the request that waits in that slot.
    #[test]
    fn reads_match(steps in prop::collection::vec((0u8..4, 0usize..4, 0u16..2), 1..200)) {
        let mut slots = [Slot::FREE; 4];
        let mut reads = Reads(&mut slots);
        let mut waiting: Option<(usize, NodeId)> = None;
        for (now, (what, index, node)) in steps.into_iter().enumerate() {
            let now = now as u32;
            match what {
                0 if waiting.is_none() => waiting = reads.claim(index, NodeId(node), now).map(|s| (s, NodeId(node))),
                1 => if let Some((s, _)) = waiting.take() { reads.give_up(s, now) },
                _ => {
                    let answer = reads.settle(index, NodeId(node));
                    prop_assert_eq!(answer == Answer::Awaited, waiting == Some((index, NodeId(node))));
                    if answer == Answer::Awaited { waiting = None }
                }
            }
        }
    }

    /// Spans never meet, stay inside the window and off the remote register files' part, and all come back.
    #[test]
    fn spans_are_apart(steps in prop::collection::vec((any::<bool>(), 1u64..2000, 0u32..66), 1..300)) {
        let size = RRA_WINDOW + 6000 * PAGE;
        let mut layout = Layout::new(size);
        let mut held = std::collections::BTreeMap::new();
        for (take, pages, n) in steps {
            if take {
                let want = (n > 62 || n == 0).then_some(n);
                match layout.reserve(pages * PAGE, if n % 2 == 0 { Some(n) } else { None }) {
                    Ok((number, span)) => {
                        prop_assert!((1..USABLE).contains(&number));
                        prop_assert_eq!(span.bytes(), pages * PAGE);
                        prop_assert!(span.start >= RRA_WINDOW && span.end <= size);
                        for other in held.values() {
                            let other: &wire::smfu::Span = other;
                            prop_assert!(span.end <= other.start || other.end <= span.start);
                        }
                        prop_assert!(held.insert(number, span).is_none());
                    }
                    Err(Refused::Invalid) => prop_assert!(n % 2 == 0 && want.is_some()),
                    Err(Refused::Taken) => prop_assert!(held.contains_key(&n)),
                    Err(Refused::Full) => prop_assert!(!held.is_empty()),
                }
            } else {
                layout.free(n);
                held.remove(&n);
            }
        }
        for n in held.into_keys() { layout.free(n) }
        prop_assert!(layout.reserve(6000 * PAGE, None).is_ok());
    }
}

#[test]
fn mask_mode() {
    let mode = MaskMode::new(0x400_0000, 4).unwrap();
    assert_eq!((mode.mask(), mode.shift()), (0xC00_0000, 26));
    assert_eq!(
        mode.slice(NodeId(0)),
        None,
        "it meets the remote register files' part"
    );
    assert_eq!(
        mode.slice(NodeId(3)).map(|s| (s.start, s.end)),
        Some((0xC00_0000, 0x1000_0000))
    );
    assert_eq!(mode.slice(NodeId(4)), None);
    for (slice, nodes) in [
        (3, 4),
        (64, 3),
        (32, 4),
        (64, 1),
        (64, 1 << 17),
        (1 << 32, 2),
    ] {
        assert_eq!(MaskMode::new(slice, nodes), None, "{slice} {nodes}");
    }
    let mut layout = Layout::new(0x1000_0000);
    assert_eq!(
        layout.set_mask(0x400_0000, 8),
        Err(Refused::Invalid),
        "larger than the window"
    );
    assert!(layout.set_mask(0x200_0000, 4).is_ok());
    assert_eq!(layout.set_mask(0x200_0000, 4), Err(Refused::Taken));
    assert_eq!(
        layout.reserve(PAGE, None).map(|(n, s)| (n, s.start)),
        Ok((1, 0x800_0000))
    );
    layout.clear_mask();
    assert_eq!(
        layout.reserve(PAGE, None).map(|(n, s)| (n, s.start)),
        Ok((2, RRA_WINDOW))
    );
    assert_eq!(
        layout.set_mask(0x200_0000, 4),
        Err(Refused::Taken),
        "an interval is in the way"
    );
}
