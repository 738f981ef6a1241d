//! Index of intervals.

mod heap;

use heap::Heap;
use proptest::prelude::*;
use protocol::mem::intervals::{Interval, Intervals, CLASSES};
use std::collections::BTreeMap;

const CAPACITY: u16 = 48;

/// Generates intervals from few addresses, so that they overlap, and intervals at the ends of the
/// space.
fn interval() -> impl Strategy<Value = Interval> {
    let place = prop_oneof![
        8 => 0u64..64,
        1 => u64::MAX - 8..=u64::MAX,
    ];
    (0u64..3, place, 1u64..24).prop_map(|(space, first, len)| Interval {
        space: [0, 1, u64::MAX][space as usize],
        first,
        last: first.saturating_add(len - 1),
    })
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, Interval, u8),
    Remove(u16),
    Covering(Interval, u8),
    Meeting(Interval),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..CAPACITY, interval(), 0..CLASSES as u8).prop_map(|(n, i, c)| Op::Insert(n, i, c)),
        2 => (0..CAPACITY + 1).prop_map(Op::Remove),
        3 => (interval(), 0u8..1 << CLASSES).prop_map(|(i, c)| Op::Covering(i, c)),
        2 => interval().prop_map(Op::Meeting),
    ];
    prop::collection::vec(op, 0..400)
}

proptest! {
    /// The index finds the same intervals as a linear search.
    #[test]
    fn it_is_a_map_of_intervals(ops in ops()) {
        let mut index: Intervals<Heap> = Intervals::new(CAPACITY).unwrap();
        let mut all: BTreeMap<u16, (Interval, u8)> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Insert(n, interval, class) => {
                    let is_new = !all.contains_key(&n);
                    prop_assert_eq!(index.insert(n, interval, class), is_new);
                    all.entry(n).or_insert((interval, class));
                }
                Op::Remove(n) => {
                    index.remove(n);
                    all.remove(&n);
                }
                Op::Covering(range, classes) => {
                    let fits = |(i, c): &&(Interval, u8)| {
                        i.covers(&range) && classes & (1 << c) != 0
                    };
                    let farthest = all.values().filter(fits).map(|(i, _)| i.last).max();
                    let found = index.covering(&range, classes);
                    prop_assert_eq!(found.is_some(), farthest.is_some());
                    if let Some(found) = found {
                        prop_assert!(fits(&&all[&found]));
                        prop_assert_eq!(Some(all[&found].0.last), farthest);
                    }
                }
                Op::Meeting(range) => {
                    let meets = |(_, (i, _)): &(&u16, &(Interval, u8))| i.meets(&range);
                    let first = all.iter().filter(meets).min_by_key(|(n, (i, _))| (i.first, **n));
                    prop_assert_eq!(index.meeting(&range), first.map(|(n, _)| *n));
                }
            }
            prop_assert_eq!(index.check(), Ok(all.len()));
            for n in 0..CAPACITY {
                prop_assert_eq!(index.get(n), all.get(&n).map(|(i, _)| *i));
            }
        }
    }
}

#[test]
fn bad_numbers_and_classes_are_refused() {
    let mut index: Intervals<Heap> = Intervals::new(2).unwrap();
    let range = Interval::new(1, 0, 10).unwrap();
    assert!(!index.insert(2, range, 0));
    assert!(!index.insert(u16::MAX, range, 0));
    assert!(!index.insert(0, range, CLASSES as u8));
    assert!(index.insert(1, range, 0));
    assert!(!index.insert(1, range, 1));
    index.remove(0);
    index.remove(u16::MAX);
    assert_eq!(index.check(), Ok(1));
    assert_eq!(index.covering(&range, 0), None);
    assert_eq!(index.covering(&range, 1), Some(1));
}

#[test]
fn intervals_end_where_their_space_does() {
    assert_eq!(Interval::new(0, 0, 0), None);
    assert_eq!(Interval::new(0, u64::MAX, 2), None);
    let last = Interval::new(0, u64::MAX, 1).unwrap();
    assert_eq!((last.len(), last.is_empty()), (1, false));
    assert!(Interval::all(0).covers(&last) && !Interval::all(1).meets(&last));
    assert_eq!(Interval::all(0).len(), u64::MAX);
}

/// Intervals are inserted in ascending, descending and zigzag order of addresses. These orders are
/// the worst cases of a tree that is not balanced.
#[test]
fn its_height_does_not_depend_on_the_order() {
    const N: u16 = 4096;
    let orders: [fn(u16) -> u16; 3] = [
        |n| n,
        |n| N - 1 - n,
        |n| {
            if n % 2 == 0 {
                n / 2
            } else {
                N - 1 - n / 2
            }
        },
    ];
    for order in orders {
        let mut index: Intervals<Heap> = Intervals::new(N).unwrap();
        for n in 0..N {
            let at = Interval::new(5, u64::from(order(n)) * 10, 10).unwrap();
            assert!(index.insert(n, at, 2));
        }
        // `check` also checks the balance of the tree.
        assert_eq!(index.check(), Ok(usize::from(N)));
        for n in 0..N {
            let inside = Interval::new(5, u64::from(order(n)) * 10 + 3, 4).unwrap();
            assert_eq!(index.covering(&inside, 4), Some(n));
        }
        for n in 0..N / 2 {
            index.remove(n);
        }
        assert_eq!(index.check(), Ok(usize::from(N / 2)));
    }
}
