//! Tests of the delivery order of a source's frames.

mod heap;

use heap::Heap;
use proptest::prelude::*;
use protocol::eth::order::{Order, Ticket};
use protocol::Time;
use std::collections::{BTreeMap, HashMap};
use wire::ids::NodeId;

const CAPACITY: u16 = 32;
const PART: u16 = 6;
/// Maximum time that frames wait for an announcement.
const LIMIT: u64 = 20;

type Frames = Order<Heap, (u16, u64)>;

fn order() -> Frames {
    match Order::new(CAPACITY, PART) {
        Ok(order) => order,
        Err(never) => match never {},
    }
}

fn all(order: &mut Frames) -> Vec<(u16, u64)> {
    let frames = std::iter::from_fn(|| order.pop()).collect();
    order.check().unwrap();
    frames
}

#[test]
fn a_frame_waits_for_what_its_source_announced_before() {
    let mut o = order();
    let now = Time(0);
    assert_eq!(o.complete(now, NodeId(1), (1, 0)), Err((1, 0)));
    let ticket = o.announced(now, NodeId(1)).unwrap();
    assert_eq!(o.complete(now, NodeId(1), (1, 2)), Ok(()));
    let other = o.announced(now, NodeId(1)).unwrap();
    assert_eq!(o.complete(now, NodeId(1), (1, 4)), Ok(()));
    // Frames of other sources do not wait.
    assert_eq!(o.complete(now, NodeId(2), (2, 0)), Err((2, 0)));
    assert_eq!(o.arrived(other, (1, 3)), Ok(()));
    assert_eq!(all(&mut o), []);
    assert_eq!(o.arrived(ticket, (1, 1)), Ok(()));
    assert_eq!(all(&mut o), [(1, 1), (1, 2), (1, 3), (1, 4)]);
    assert!(o.is_empty());
    assert_eq!(o.complete(now, NodeId(1), (1, 5)), Err((1, 5)));
    assert_eq!(o.given_up(), 0);
}

#[test]
fn what_does_not_come_is_not_waited_for() {
    let mut o = order();
    let first = o.announced(Time(0), NodeId(1)).unwrap();
    assert_eq!(o.complete(Time(0), NodeId(1), (1, 1)), Ok(()));
    let second = o.announced(Time(5), NodeId(1)).unwrap();
    assert_eq!(o.complete(Time(5), NodeId(1), (1, 3)), Ok(()));
    o.ended(first);
    assert_eq!(all(&mut o), [(1, 1)]);
    o.expire(Time(5 + LIMIT - 1), LIMIT);
    assert_eq!(all(&mut o), []);
    o.expire(Time(5 + LIMIT), LIMIT);
    assert_eq!(all(&mut o), [(1, 3)]);
    assert_eq!(o.given_up(), 1);
    // The frames arrive after their position was given up.
    assert_eq!(o.arrived(second, (1, 2)), Err((1, 2)));
    assert_eq!(o.arrived(first, (1, 0)), Err((1, 0)));
    assert!(o.is_empty());
}

#[test]
fn a_source_has_its_part_and_no_more() {
    let mut o = order();
    let ticket = o.announced(Time(0), NodeId(1)).unwrap();
    let other = o.announced(Time(0), NodeId(2)).unwrap();
    for n in 0..u64::from(PART) {
        assert_eq!(o.complete(Time(0), NodeId(1), (1, n)), Ok(()));
        assert_eq!(all(&mut o), []);
    }
    assert_eq!(o.complete(Time(0), NodeId(1), (1, PART.into())), Ok(()));
    let frames = all(&mut o);
    assert_eq!(frames.len(), usize::from(PART) + 1);
    assert!(frames.is_sorted());
    assert_eq!(o.arrived(ticket, (1, 99)), Err((1, 99)));
    // Other sources are not affected.
    assert_eq!(o.complete(Time(0), NodeId(2), (2, 1)), Ok(()));
    assert_eq!(o.arrived(other, (2, 0)), Ok(()));
    assert_eq!(all(&mut o), [(2, 0), (2, 1)]);
}

#[test]
fn a_full_table_delivers_at_once() {
    let mut o = order();
    for n in 0..CAPACITY {
        assert!(o.announced(Time(0), NodeId(n % 3)).is_some());
    }
    assert_eq!(o.announced(Time(0), NodeId(9)), None);
    assert_eq!(o.complete(Time(0), NodeId(9), (9, 0)), Err((9, 0)));
    // The announcements of this source have lost their positions, so its frames do not wait.
    assert_eq!(o.complete(Time(0), NodeId(1), (1, 0)), Err((1, 0)));
    assert_eq!(all(&mut o), []);
    let mut dropped = 0;
    o.flush(|_| dropped += 1);
    o.check().unwrap();
    assert!(o.is_empty() && dropped == 0);
}

/// Random operation.
#[derive(Clone, Debug)]
enum Op {
    Announce(u16),
    Complete(u16),
    /// The frame of an open announcement arrives (true) or will not arrive (false).
    End(usize, bool),
    Deliver(usize),
    Pass(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        (0u16..4).prop_map(Op::Announce),
        (0u16..4).prop_map(Op::Complete),
        (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(i, came)| Op::End(i, came)),
        (0usize..4).prop_map(Op::Deliver),
        (0u64..8).prop_map(Op::Pass),
    ];
    prop::collection::vec(op, 0..300)
}

proptest! {
    /// Each frame is delivered once. Frames of a source are in order, unless a position was given
    /// up. No frame waits forever.
    #[test]
    fn frames_come_once_and_in_order(ops in ops()) {
        let mut o = order();
        let (mut now, mut number) = (Time(0), 0u64);
        let mut open: Vec<(Option<Ticket>, u16, u64)> = Vec::new();
        let mut expected: BTreeMap<u64, u16> = BTreeMap::new();
        let mut last: HashMap<u16, u64> = HashMap::new();
        let mut got = Vec::new();
        for op in ops.into_iter().chain([Op::Pass(LIMIT), Op::Deliver(usize::MAX)]) {
            let given_up = o.given_up();
            let mut now_delivered = Vec::new();
            match op {
                Op::Announce(node) => {
                    let ticket = o.announced(now, NodeId(node));
                    open.push((ticket, node, number));
                    number += 1;
                }
                Op::Complete(node) => {
                    expected.insert(number, node);
                    if let Err(frame) = o.complete(now, NodeId(node), (node, number)) {
                        now_delivered.push(frame);
                    }
                    number += 1;
                }
                Op::End(i, came) if !open.is_empty() => {
                    let (ticket, node, n) = open.remove(i % open.len());
                    match (ticket, came) {
                        (Some(ticket), false) => o.ended(ticket),
                        (Some(ticket), true) => {
                            expected.insert(n, node);
                            if let Err(frame) = o.arrived(ticket, (node, n)) {
                                // The frame is too late for its position.
                                got.push(frame);
                            }
                        }
                        (None, came) => {
                            if came {
                                expected.insert(n, node);
                                got.push((node, n));
                            }
                        }
                    }
                }
                Op::End(..) => {}
                Op::Deliver(most) => {
                    now_delivered.extend(std::iter::from_fn(|| o.pop()).take(most));
                }
                Op::Pass(ticks) => {
                    now.0 += ticks;
                    o.expire(now, LIMIT);
                }
            }
            o.check().unwrap();
            for (node, n) in now_delivered {
                // The numbers of a source's frames ascend, because all frames behind a given-up
                // position are delivered before its late frame arrives.
                let before = last.insert(node, n);
                let ascends = before.is_none_or(|before| before < n);
                prop_assert!(ascends || given_up > 0, "{n} after {before:?}");
                got.push((node, n));
            }
        }
        prop_assert!(o.oldest().is_none(), "a frame waits forever");
        let mut all: Vec<(u64, u16)> = got.into_iter().map(|(node, n)| (n, node)).collect();
        all.sort_unstable();
        prop_assert_eq!(all, expected.into_iter().collect::<Vec<_>>());
    }
}
