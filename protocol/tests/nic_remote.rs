// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of the matching of register access answers, and of the allocation of the SMFU window.

use proptest::prelude::*;
use protocol::nic::rra::{Answer, Reads, Slot, Writes, EXPIRY_S};
use protocol::nic::smfu::{TargetError, Targets, WindowAllocator, WindowError};
use wire::ids::{BusAddr, NodeId};
use wire::regs::smfu::RRA_WINDOW;
use wire::smfu::{PAGE, UNMAPPED_BASE, USABLE};

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
    assert_eq!(reads.complete(first, A, 0), Answer::Late);
    assert_eq!(reads.complete(first, A, 0), Answer::Unknown);
    assert_eq!(reads.complete(second, B, 0), Answer::Unknown);
    assert_eq!(reads.take_result(second), None);
    assert_eq!(reads.complete(second, A, 4), Answer::Awaited);
    assert_eq!(reads.complete(second, A, 0), Answer::Unknown, "twice");
    assert_eq!(reads.take_result(second), Some(4));
    assert_eq!(reads.take_result(second), None);
    assert_eq!(reads.complete(7, A, 0), Answer::Unknown);
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
    reads.complete(slot, A, 0);
    assert!(!reads.is_expected(10));
    // An answer that arrived before the request was given up is not expected either, and its slot
    // is free.
    let slot = reads.claim(0, A, 20).unwrap();
    reads.complete(slot, A, 0);
    reads.give_up(slot, 20);
    assert!(!reads.is_expected(20));
    assert_eq!(reads.claim(slot, B, 20), Some(slot));
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

/// Adds a write and gives it up.
fn overdue(writes: &mut Writes, node: NodeId, value: u64, now: u32) -> u32 {
    let id = writes.push(node, value, now).unwrap();
    writes.give_up(id, now);
    id
}

#[test]
fn writes_are_answered_in_order() {
    let mut writes = Writes::default();
    let [a, b, c] = [(A, 5), (B, 5), (A, 5)].map(|(n, v)| writes.push(n, v, 0).unwrap());
    assert_eq!(writes.complete(A, 6, 0), Answer::Unknown);
    // A notification that matches two writes is assigned to the older write.
    assert_eq!(writes.complete(A, 5, 1), Answer::Awaited);
    assert_eq!(
        (writes.take_result(c), writes.take_result(a)),
        (None, Some(1))
    );
    assert_eq!(writes.complete(A, 5, 0), Answer::Awaited);
    assert_eq!(writes.take_result(c), Some(0));
    // The write to node B stays outstanding until its own notification arrives.
    assert_eq!(writes.complete(B, 5, 0), Answer::Awaited);
    assert_eq!(writes.complete(B, 5, 0), Answer::Unknown);
    assert_eq!(
        (writes.take_result(b), writes.take_result(b)),
        (Some(0), None)
    );
    // A write that was given up is removed when a later write is answered.
    overdue(&mut writes, B, 5, 0);
    overdue(&mut writes, A, 5, 0);
    assert_eq!(writes.complete(A, 5, 0), Answer::Late);
    assert_eq!(writes.complete(B, 5, 0), Answer::Unknown);
    for _ in 0..Writes::MAX {
        overdue(&mut writes, A, 0, 0);
    }
    assert_eq!(writes.push(A, 0, EXPIRY_S - 1), None);
    assert!(writes.push(A, 0, EXPIRY_S).is_some());
}

#[test]
fn a_lost_answer_to_a_write_costs_that_write_only() {
    let mut writes = Writes::default();
    overdue(&mut writes, A, 5, 0);
    overdue(&mut writes, A, 6, 0);
    for now in 1..40 {
        let id = writes.push(A, 5, now).unwrap();
        assert_eq!(writes.complete(A, 5, 0), Answer::Awaited);
        assert_eq!(writes.take_result(id), Some(0));
    }
    // The first answer may have been late instead of lost.
    assert_eq!(writes.complete(A, 5, 0), Answer::Late);
    assert_eq!(writes.complete(A, 5, 0), Answer::Unknown);
    assert_eq!(writes.complete(A, 6, 0), Answer::Unknown, "overtaken");
    // Giving up an answered write removes it.
    let id = writes.push(B, 7, 0).unwrap();
    assert_eq!(writes.complete(B, 7, 0), Answer::Awaited);
    writes.give_up(id, 0);
    assert_eq!(writes.take_result(id), None);
    assert_eq!(writes.complete(B, 7, 0), Answer::Unknown);
    let id = writes.push(B, 7, 0).unwrap();
    writes.cancel(id);
    assert_eq!(writes.complete(B, 7, 0), Answer::Unknown);
}

proptest! {
    /// With lost, late and repeated answers, `Awaited` is returned only for a request that waits in
    /// that slot, and each answer is collected once.
    #[test]
    fn reads_match(steps in prop::collection::vec((0u8..5, 0usize..4, 0u16..2), 1..200)) {
        let mut slots = [Slot::FREE; 4];
        let mut reads = Reads(&mut slots);
        let mut waiting = [None; 4];
        let mut done = [false; 4];
        for (now, (what, index, node)) in steps.into_iter().enumerate() {
            let now = now as u32;
            match what {
                0 => if let Some(slot) = reads.claim(index, NodeId(node), now) {
                    prop_assert!(waiting[slot].is_none() && !done[slot]);
                    waiting[slot] = Some(node);
                },
                1 => {
                    reads.give_up(index, now);
                    (waiting[index], done[index]) = (None, false);
                }
                2 => {
                    prop_assert_eq!(reads.take_result(index), done[index].then_some(1));
                    done[index] = false;
                }
                _ => {
                    let answer = reads.complete(index, NodeId(node), 1);
                    let awaited = waiting[index] == Some(node);
                    prop_assert_eq!(answer == Answer::Awaited, awaited);
                    if awaited {
                        (waiting[index], done[index]) = (None, true);
                    }
                }
            }
        }
    }

    /// With many writes, equal values and lost answers, exactly the answered writes complete, each
    /// with its own answer.
    #[test]
    fn writes_match(values in prop::collection::vec((0u16..2, 0u64..3, any::<bool>()), 1..60)) {
        let mut writes = Writes::default();
        let ids: Vec<u32> = values
            .iter()
            .map(|(n, v, _)| writes.push(NodeId(*n), *v, 0).unwrap())
            .collect();
        let mut answered = std::collections::BTreeMap::new();
        for (n, v, lost) in &values {
            if !lost {
                prop_assert_eq!(writes.complete(NodeId(*n), *v, 0), Answer::Awaited);
                *answered.entry((*n, *v)).or_insert(0usize) += 1;
            }
        }
        for (id, (n, v, _)) in ids.into_iter().zip(&values) {
            let left = answered.entry((*n, *v)).or_insert(0);
            let ended = writes.take_result(id).is_some();
            prop_assert_eq!(ended, *left > 0);
            *left -= usize::from(ended);
        }
    }

    /// Ranges never overlap, are inside the window and outside of the range for the remote register
    /// file, and can all be freed.
    #[test]
    fn spans_are_apart(
        steps in prop::collection::vec((any::<bool>(), 1u64..2000, 0u32..66, 12u32..28), 1..300),
    ) {
        let size = RRA_WINDOW + 6000 * PAGE;
        let mut windows = WindowAllocator::new(size);
        let mut held = std::collections::BTreeMap::new();
        for (take, pages, n, align) in steps {
            let align = 1 << align;
            if take {
                let want = (n > 62 || n == 0).then_some(n);
                let number = (n % 2 == 0).then_some(n);
                match windows.reserve(pages * PAGE, align, number) {
                    Ok((number, span)) => {
                        prop_assert!((1..USABLE).contains(&number));
                        prop_assert_eq!(span.bytes(), pages * PAGE);
                        prop_assert!(span.start >= RRA_WINDOW && span.end <= size);
                        prop_assert_eq!(span.start % align, 0);
                        for other in held.values() {
                            let other: &wire::smfu::Span = other;
                            prop_assert!(span.end <= other.start || other.end <= span.start);
                        }
                        prop_assert!(held.insert(number, span).is_none());
                    }
                    Err(WindowError::Invalid) => prop_assert!(n % 2 == 0 && want.is_some()),
                    Err(WindowError::Taken) => prop_assert!(held.contains_key(&n)),
                    Err(WindowError::Full) => prop_assert!(!held.is_empty() || align > PAGE),
                }
            } else {
                windows.free(n);
                held.remove(&n);
            }
        }
        for n in held.into_keys() { windows.free(n) }
        prop_assert!(windows.reserve(6000 * PAGE, PAGE, None).is_ok());
    }
}

#[test]
fn natural_alignment() {
    let mut windows = WindowAllocator::new(0x1000_0000);
    assert_eq!(
        windows.reserve(PAGE, PAGE, None).unwrap().1.start,
        RRA_WINDOW
    );
    // A BAR of 1 MiB is placed at a multiple of its size, behind the first range.
    let (_, bar) = windows.reserve(1 << 20, 1 << 20, None).unwrap();
    assert_eq!(bar.start, RRA_WINDOW + (1 << 20));
    // A smaller range fills the gap.
    let (_, small) = windows.reserve(PAGE, PAGE, None).unwrap();
    assert_eq!(small.start, RRA_WINDOW + PAGE);
    assert_eq!(
        windows.reserve(PAGE, 3 * PAGE, None),
        Err(WindowError::Invalid)
    );
    assert_eq!(windows.reserve(PAGE, 0, None), Err(WindowError::Invalid));
    // Only the second half of the window has enough free space for half of the window.
    let (_, half) = windows.reserve(1 << 27, 1 << 27, None).unwrap();
    assert_eq!(half.start, 1 << 27);
    assert_eq!(
        windows.reserve(1 << 27, 1 << 27, None),
        Err(WindowError::Full)
    );
    assert_eq!(windows.reserve(PAGE, 1 << 63, None), Err(WindowError::Full));
}

#[test]
fn targets_are_checked() {
    let mut targets = Targets::new();
    let base = |n: u64| BusAddr(n);
    assert_eq!(targets.base(5, false), UNMAPPED_BASE);
    assert_eq!(targets.default_base(), UNMAPPED_BASE);
    targets.export(base(0x10_0000), 0x10_0000).unwrap();
    // The base is never 0, because the meaning of 0 is unknown (G18).
    for number in 0..64 {
        assert_eq!(targets.base(number, false), base(0x10_0000));
    }
    for (number, at, bytes, why) in [
        (0, 0x40_0000, PAGE, TargetError::Invalid),
        (63, 0x40_0000, PAGE, TargetError::Invalid),
        (5, 0, PAGE, TargetError::Invalid),
        (5, 0x40_0000, 0, TargetError::Invalid),
        (5, 0x40_0000, 100, TargetError::Invalid),
        (5, 0x40_0800, PAGE, TargetError::Invalid),
        (5, (1 << 48) - PAGE, PAGE, TargetError::TooHigh),
        (5, u64::MAX - PAGE + 1, PAGE, TargetError::TooHigh),
        (5, 0xFD_0000_0000, PAGE, TargetError::Interrupts),
        (5, 0xFC_FFFF_F000, 2 * PAGE, TargetError::Interrupts),
        (5, 0x10_0000, PAGE, TargetError::Overlaps),
        (5, 0xF_F000, 2 * PAGE, TargetError::Overlaps),
    ] {
        assert_eq!(targets.open(number, base(at), bytes), Err(why), "{at:#x}");
    }
    targets.open(5, base(0x40_0000), 4 * PAGE).unwrap();
    assert_eq!(targets.base(5, false), base(0x40_0000));
    let taken = targets.open(5, base(0x80_0000), PAGE);
    assert_eq!(taken, Err(TargetError::Taken));
    let inside = targets.open(6, base(0x40_3000), PAGE);
    assert_eq!(inside, Err(TargetError::Overlaps));
    targets.open(6, base(0x40_4000), PAGE).unwrap();
    // Several intervals may lead to interrupts, and interrupts can be disabled.
    targets.open_interrupts(7).unwrap();
    targets.open_interrupts(8).unwrap();
    assert_eq!(targets.open_interrupts(8), Err(TargetError::Taken));
    assert_eq!(targets.interrupts().collect::<Vec<_>>(), [7, 8]);
    assert_eq!(targets.base(7, false), base(0xFD_0000_0000));
    assert_eq!(targets.base(7, true), UNMAPPED_BASE);
    assert_eq!(targets.base(5, true), base(0x40_0000));
    for number in 5..9 {
        targets.close(number);
        assert_eq!(targets.base(number, false), base(0x10_0000));
    }
    targets.open(6, base(0x40_3000), PAGE).unwrap();
}

#[test]
fn a_target_that_is_shut_keeps_its_number() {
    let mut targets = Targets::new();
    let all = (1u64 << USABLE) - 2;
    assert_eq!(targets.free_numbers(), all);
    targets.open(5, BusAddr(0x10_0000), PAGE).unwrap();
    targets.open_interrupts(6).unwrap();
    assert_eq!(targets.free_numbers(), all & !(1 << 5) & !(1 << 6));
    targets.disable(5);
    targets.disable(6);
    targets.disable(7);
    assert!(!targets.hold(5));
    assert!(targets.hold(9));
    assert_eq!(targets.base(9, false), UNMAPPED_BASE);
    assert!(targets.open(9, BusAddr(0x30_0000), PAGE).is_err());
    targets.close(9);
    for number in [5, 6] {
        assert_eq!(targets.base(number, false), UNMAPPED_BASE);
        let again = targets.open(number, BusAddr(0x20_0000), PAGE);
        assert_eq!(again, Err(TargetError::Taken));
    }
    assert_eq!(targets.interrupts().count(), 0);
    assert_eq!(targets.free_numbers(), all & !(1 << 5) & !(1 << 6));
    // Another interval can open the same memory afterwards.
    targets.open(8, BusAddr(0x10_0000), PAGE).unwrap();
    targets.close(5);
    targets.open(5, BusAddr(0x20_0000), PAGE).unwrap();
}

#[test]
fn a_shut_target_is_not_what_is_exported() {
    let mut targets = Targets::new();
    targets.export(BusAddr(0x10_0000), PAGE).unwrap();
    targets.open(5, BusAddr(0x20_0000), PAGE).unwrap();
    targets.disable(5);
    assert_eq!(targets.base(5, false), UNMAPPED_BASE);
    targets.close(5);
    assert_eq!(targets.base(5, false), BusAddr(0x10_0000));
}

#[test]
fn free_intervals_are_those_that_are_not_reserved() {
    let mut windows = WindowAllocator::new(256 << 20);
    let all = (1u64 << USABLE) - 2;
    assert_eq!(windows.free_numbers(), all);
    windows.reserve(PAGE, PAGE, Some(62)).unwrap();
    windows.reserve(PAGE, PAGE, None).unwrap();
    assert_eq!(windows.free_numbers(), all & !(1 << 62) & !2);
    windows.free(62);
    assert_eq!(windows.free_numbers(), all & !2);
}
