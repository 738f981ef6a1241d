//! Comparison of the queue of numbers with a simple model.

mod heap;

use heap::Heap;
use protocol::ds::{Round, WaitQueue};
use std::collections::VecDeque;
use wire::ids::NodeId;

#[test]
fn first_come_first_served_and_each_once() {
    const BOUND: usize = 5;
    let mut queue: WaitQueue<Heap> = WaitQueue::new(BOUND).unwrap();
    let mut model = VecDeque::new();
    let (mut random, mut full) = (1_u64, false);
    for _ in 0..10_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // The highest number in this test is not below the bound.
        let number = (random >> 40) as u32 % (BOUND as u32 + 1);
        let at = (random >> 50) as usize % BOUND;
        assert_eq!(queue.get(at), model.get(at).copied());
        if random >> 61 == 1 {
            assert_eq!(queue.remove(at), model.remove(at));
        } else if random >> 62 == 0 {
            assert_eq!(queue.pop(), model.pop_front());
        } else {
            queue.push(number);
            if (number as usize) < BOUND && !model.contains(&number) {
                model.push_back(number);
            }
        }
        assert_eq!(queue.len(), model.len());
        assert_eq!(queue.is_empty(), model.is_empty());
        full |= queue.len() == BOUND;
    }
    assert!(full);
}

/// Connections of two nodes wait for a limited number of units per node. Units are returned one at
/// a time, or several together. Each connection needs more units than it gets.
#[test]
fn nobody_gets_any_twice_before_one_that_waits() {
    const ALL: usize = 6;
    let node = |number: u32| NodeId(number as u16 % 2);
    let mut queue: WaitQueue<Heap> = WaitQueue::new(ALL).unwrap();
    for number in 0..ALL as u32 {
        queue.push(number);
    }
    let mut got = [0_u32; ALL];
    for turn in 0..600_u64 {
        let mut free = [turn % 3, turn % 2].map(|n| n as u32);
        let mut round = Round::new(queue.len());
        while let Some(at) = round.next_position() {
            let number = queue.get(at).unwrap();
            let free = &mut free[usize::from(node(number).0)];
            if round.is_full(node(number)) || *free == 0 {
                round.set_full(node(number));
                round.keep();
                continue;
            }
            *free = 0;
            got[number as usize] += 1;
            round.set_full(node(number));
            queue.remove(at);
            queue.push(number);
        }
    }
    for of in 0..2 {
        let mine: Vec<u32> = (of..ALL).step_by(2).map(|i| got[i]).collect();
        let [least, most] = [mine.iter().min(), mine.iter().max()].map(|n| *n.unwrap());
        assert!(least > 30 && most - least <= 1, "{got:?}");
    }
}

#[test]
fn without_places_nobody_waits() {
    let mut queue: WaitQueue<Heap> = WaitQueue::new(0).unwrap();
    queue.push(0);
    assert_eq!(queue.pop(), None);
}
