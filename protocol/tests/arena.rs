//! Arenas, deadlines, and the queue of unclaimed notifications, compared with simple models.

mod heap;
mod rma;

use heap::Heap;
use proptest::prelude::*;
use protocol::base::arena::{Arena, Buckets, Index, List};
use protocol::base::deadlines::Deadlines;
use protocol::transfer::Unclaimed;
use protocol::Time;
use std::collections::{BTreeMap, VecDeque};

proptest! {
    #[test]
    fn an_arena_keeps_its_lists(ops in prop::collection::vec((0u8..8, any::<usize>()), 0..300)) {
        let mut arena: Arena<Heap, u64, 2> = Arena::new(20).unwrap();
        let mut lists = [List::NEW; 3];
        let mut plain: [VecDeque<Index>; 3] = Default::default();
        let mut all: BTreeMap<u32, (Index, protocol::base::arena::Name)> = BTreeMap::new();
        let mut gone = Vec::new();
        for (n, (op, r)) in (0u64..).zip(ops) {
            let list = r % 3;
            match op {
                0..=2 => match arena.insert(n) {
                    Ok((at, name)) => {
                        prop_assert!(all.insert(at.index(), (at, name)).is_none());
                        arena.push::<0>(&mut lists[list], at);
                        plain[list].push_back(at);
                    }
                    Err(back) => {
                        prop_assert_eq!(back, n);
                        prop_assert_eq!(all.len(), 20);
                    }
                },
                3 => {
                    let popped = arena.pop::<0>(&mut lists[list]);
                    prop_assert_eq!(popped, plain[list].pop_front());
                    if let Some(at) = popped {
                        prop_assert!(arena.remove(at).is_some() && arena.remove(at).is_none());
                        gone.extend(all.remove(&at.index()).map(|(_, name)| name));
                    }
                }
                4..=5 if !plain[list].is_empty() => {
                    let i = r / 3 % plain[list].len();
                    let at = plain[list].remove(i).unwrap();
                    arena.unlink::<0>(&mut lists[list], at);
                    let to = (list + 1) % 3;
                    arena.push::<0>(&mut lists[to], at);
                    plain[to].push_back(at);
                }
                6 => {
                    let to = (list + 1) % 3;
                    let mut from = std::mem::take(&mut lists[list]);
                    arena.append::<0>(&mut lists[to], &mut from);
                    prop_assert!(from.is_empty());
                    let moved = std::mem::take(&mut plain[list]);
                    plain[to].extend(moved);
                }
                _ => {}
            }
            for (list, plain) in lists.iter().zip(&plain) {
                let mut next = list.first();
                for at in plain {
                    prop_assert_eq!(next, Some(*at));
                    next = arena.after::<0>(*at);
                }
                prop_assert_eq!((next, list.len()), (None, plain.len()));
            }
            prop_assert_eq!((arena.len(), arena.room()), (all.len(), 20 - all.len()));
            for (at, name) in all.values() {
                prop_assert_eq!(arena.find(*name), Some(*at));
            }
            for name in &gone {
                prop_assert_eq!(arena.find(*name), None);
            }
        }
    }

    #[test]
    fn deadlines_are_a_sorted_map(ops in prop::collection::vec((0u32..16, 0u64..40), 0..300)) {
        let mut d: Deadlines<Heap> = Deadlines::new(15).unwrap();
        let mut plain: BTreeMap<u32, u64> = BTreeMap::new();
        for (item, at) in ops {
            if at < 10 {
                d.clear(item);
                plain.remove(&item);
            } else {
                d.set(item, Time(at));
                if item < 15 {
                    plain.insert(item, at);
                }
            }
            let first = plain.values().min().copied();
            prop_assert_eq!(d.first().map(|(at, _)| at.0), first);
            if let Some((at, item)) = d.first() {
                prop_assert_eq!(plain.get(&item), Some(&at.0));
            }
        }
    }

    #[test]
    fn each_node_has_its_part(ops in prop::collection::vec((0u16..4, 0u8..3), 0..200)) {
        let mut u: Unclaimed<Heap> = Unclaimed::new(12, 5).unwrap();
        let mut plain: VecDeque<(u16, u64)> = VecDeque::new();
        for (n, (node, op)) in (0u64..).zip(ops) {
            if op < 2 {
                let sent = rma::Sent {
                    number: 0,
                    page: Default::default(),
                    descriptor: wire::rma::Descriptor {
                        node: wire::ids::NodeId(node),
                        vpid: rma::vpid(1),
                        notify: Default::default(),
                        modifiers: Default::default(),
                        op: wire::rma::Operation::Get { qw: false, len: 1, remote: 0, local: n },
                    },
                };
                let mine = plain.iter().filter(|e| e.0 == node).count();
                let fits = mine < 5 && plain.len() < 12;
                prop_assert_eq!(u.push(&rma::answer(&sent, 0).unwrap()), fits);
                if fits {
                    plain.push_back((node, n));
                }
            } else if let Some(n) = u.pop() {
                prop_assert!(u.pop().is_none() && !u.is_ready() && u.is_busy());
                u.processed();
                prop_assert!(!u.is_busy());
                prop_assert_eq!(plain.pop_front(), Some((n.node.0, n.word0)));
            } else {
                prop_assert!(plain.is_empty());
            }
            prop_assert_eq!(u.len(), plain.len());
        }
    }
}

#[test]
fn buckets_separate_what_differs_in_high_bits() {
    let mut b: Buckets<Heap> = Buckets::new(1000).unwrap();
    let mut arena: Arena<Heap, u64, 1> = Arena::new(1000).unwrap();
    for n in 0..1000u64 {
        let (at, _) = arena.insert(n).unwrap();
        let list = b.of(n << 12).unwrap();
        arena.push::<0>(list, at);
    }
    let longest = (0..1000u64).map(|n| b.of(n << 12).unwrap().len()).max();
    assert!(longest < Some(8), "{longest:?}");
}
