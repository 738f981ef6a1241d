// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of the ring consumer with a NIC whose writes may be lost, under both rules for a full
//! queue.

use proptest::prelude::*;
use protocol::nic::ring_consumer::{initial, may_store_again, LostIrqGuard, RingConsumer};
use protocol::Time;
use std::collections::VecDeque;

const HOLE: u64 = 100;

/// Model of the NIC: slots, writes in flight, write pointer, and its copy of the read pointer.
struct Ring {
    slots: Vec<Option<u32>>,
    /// Slot and contents of the writes in flight, in order.
    flying: VecDeque<(u32, Option<u32>)>,
    lwp: u32,
    lrp: u32,
    full: bool,
    flag_rule: bool,
}

impl Ring {
    fn new(size: usize, flag_rule: bool) -> Self {
        Self {
            slots: vec![None; size],
            flying: VecDeque::new(),
            lwp: 0,
            lrp: initial(size as u32),
            full: false,
            flag_rule,
        }
    }

    fn has_room(&self) -> bool {
        if self.flag_rule {
            !self.full
        } else {
            (self.lwp + 1) % self.slots.len() as u32 != self.lrp
        }
    }

    /// Delivers the first `n` writes in flight.
    fn arrive(&mut self, n: usize) {
        for (slot, item) in self.flying.drain(..n.min(self.flying.len())) {
            let slot = &mut self.slots[slot as usize];
            assert_eq!(*slot, None, "a slot that is in use is overwritten");
            *slot = item;
        }
    }

    /// Writes item `n`, which is then in flight or lost. Returns false if the queue is full.
    fn write(&mut self, n: u32, lose: bool) -> bool {
        if !self.has_room() {
            return false;
        }
        assert_eq!(self.slots[self.lwp as usize], None, "in use");
        assert!(self.flying.iter().all(|(slot, _)| *slot != self.lwp));
        self.flying.push_back((self.lwp, (!lose).then_some(n)));
        self.lwp = (self.lwp + 1) % self.slots.len() as u32;
        self.full = self.lwp == self.lrp;
        true
    }

    fn store_rp(&mut self, lrp: u32) {
        self.lrp = lrp;
        self.full = false;
    }
}

/// Reads all items that are present at `now`, and skips holes. Returns the items.
fn poll(ring: &mut Ring, consumer: &mut RingConsumer, now: Time) -> Vec<u32> {
    let mut got = Vec::new();
    loop {
        let next = consumer.next();
        if let Some(item) = ring.slots[next as usize].take() {
            got.push(item);
            consumer.advance(1);
        } else {
            let overdue = consumer.overdue(now, |i| i.unread(ring.lwp));
            if overdue == 0 {
                break;
            }
            let run = (0..overdue)
                .take_while(|i| ring.slots[consumer.after(next, *i) as usize].is_none())
                .count() as u32;
            consumer.advance(run);
        }
    }
    if consumer.is_commit_due() {
        let lrp = consumer.free();
        ring.store_rp(lrp);
    }
    got
}

proptest! {
    /// Every item that was not lost is read once and in order, and a hole delays the queue for at
    /// most two checks.
    #[test]
    fn all_but_the_lost_is_read(
        flag_rule: bool,
        size in prop::sample::select(vec![8usize, 12, 64, 1024]),
        steps in prop::collection::vec((0u8..20, any::<bool>(), any::<bool>(), 0usize..30), 1..200),
    ) {
        let mut ring = Ring::new(size, flag_rule);
        let mut consumer = RingConsumer::new(size as u32, HOLE);
        let (mut n, mut now, mut got, mut want) = (0, 0, Vec::new(), Vec::new());
        for (count, lose, arm, seen) in steps {
            // The maximum time in flight has passed.
            ring.arrive(usize::MAX);
            for i in 0..count {
                let lost = lose && i % 3 == 0;
                if ring.write(n, lost) {
                    if !lost {
                        want.push(n);
                    }
                    n += 1;
                }
            }
            ring.arrive(seen);
            now += 30;
            got.extend(poll(&mut ring, &mut consumer, Time(now)));
            if arm {
                let armed = consumer.arm(|| Some(ring.lwp));
                if let Some(lrp) = armed {
                    ring.store_rp(lrp);
                }
            }
        }
        ring.arrive(usize::MAX);
        // A hole is skipped at the second check after the check that starts the timer.
        for _ in 0..size {
            now += HOLE;
            got.extend(poll(&mut ring, &mut consumer, Time(now)));
        }
        prop_assert_eq!(got, want);
        prop_assert_eq!(consumer.next(), ring.lwp);
    }

    /// A clock that goes backwards does not create holes.
    #[test]
    fn time_may_go_back(times in prop::collection::vec(0u64..HOLE, 1..50)) {
        let mut consumer = RingConsumer::new(16, HOLE);
        for t in times {
            prop_assert_eq!(consumer.overdue(Time(1000 + t), |_| panic!("looked too early")), 0);
        }
    }
}

/// `free` never stores the pointer that the NIC already has.
#[test]
fn no_pointer_is_stored_twice() {
    for size in [4u32, 8, 4096] {
        let mut consumer = RingConsumer::new(size, HOLE);
        let mut last = initial(size);
        for step in 0..10_000u32 {
            consumer.advance(step % 3);
            if consumer.is_commit_due() {
                let lrp = consumer.free();
                assert_ne!(lrp, last);
                last = lrp;
                let mut copy = consumer;
                assert!(copy.arm(|| panic!("read")).is_some());
            } else if step % 7 == 0 {
                let empty = consumer.next();
                let rp = consumer.arm(|| Some(empty)).unwrap();
                assert!(rp != last || step % 3 == 0);
                last = rp;
            }
        }
    }
}

/// A full queue is not armed again, whether there is a hole or all writes are in flight. Otherwise
/// a NIC that takes the store for free space would overwrite the queue.
#[test]
fn a_full_queue_is_not_armed_again() {
    for (lost, arrived) in [(true, 7), (true, 0), (false, 0)] {
        let mut ring = Ring::new(8, true);
        let mut consumer = RingConsumer::new(8, HOLE);
        assert!((0..7).all(|n| ring.write(n, lost && n == 0)));
        assert!(!ring.write(7, false));
        ring.arrive(arrived);
        assert_eq!(poll(&mut ring, &mut consumer, Time(0)), []);
        assert_eq!(consumer.arm(|| Some(ring.lwp)), None);
        assert!(!ring.write(7, false));
        ring.arrive(7);
        let got = [HOLE, 2 * HOLE].map(|t| poll(&mut ring, &mut consumer, Time(t)).len());
        assert_eq!(got.iter().sum::<usize>(), if lost { 6 } else { 7 });
        assert!(consumer.arm(|| Some(ring.lwp)).is_some());
    }
}

/// An unreachable NIC is not armed again. A NIC with a changed read pointer is armed without
/// reading its write pointer.
#[test]
fn the_pointer_is_read_only_to_arm_again() {
    let mut consumer = RingConsumer::new(8, HOLE);
    assert_eq!(consumer.arm(|| None), None);
    assert_eq!(consumer.arm(|| Some(0)), Some(7));
    consumer.advance(1);
    assert_eq!(consumer.arm(|| panic!("read")), Some(0));
    assert_eq!(consumer.arm(|| Some(1)), Some(0));
}

/// Up to half of the queue may be written between the read of the write pointer and the store that
/// arms. No item of this burst is overwritten, whatever was in the queue or in flight before.
#[test]
fn a_burst_before_the_store_is_not_overwritten() {
    for size in [8usize, 64] {
        for (waits, seen) in (0..size - 1).flat_map(|n| [(n, 0), (n, n / 2), (n, n)]) {
            let mut ring = Ring::new(size, true);
            let mut consumer = RingConsumer::new(size as u32, HOLE);
            for n in 0..waits {
                assert!(ring.write(n as u32, n == 0));
            }
            ring.arrive(seen);
            let armed = consumer.arm(|| Some(ring.lwp));
            // An idle queue is armed.
            assert!(armed.is_some() || waits > 0);
            let mut n = waits as u32;
            for _ in 1..size / 2 {
                n += u32::from(ring.write(n, false));
            }
            if let Some(lrp) = armed {
                ring.store_rp(lrp);
            }
            // The queue is full at some time, and `Ring::write` checks that no slot is overwritten.
            while n <= size as u32 && ring.write(n, false) {
                n += 1;
            }
            assert_eq!(n, size as u32 - 1, "{waits} of {size}");
        }
    }
}

/// The decision depends on the distance of the pointers, also across the end of the queue. A
/// pointer outside of the queue is rejected.
#[test]
fn half_of_the_queue_has_to_be_free() {
    for (rp, wp, may) in [
        (7, 0, true),
        (7, 3, true),
        (7, 4, false),
        (7, 7, false),
        (2, 3, true),
        (2, 6, true),
        (2, 7, false),
        (8, 0, false),
        (0, 8, false),
    ] {
        assert_eq!(may_store_again(8, rp, wp), may, "{rp} {wp}");
    }
}

#[test]
fn care_is_taken_more_often_each_time() {
    let mut guard = LostIrqGuard::default();
    assert!(!guard.must_confirm());
    let mut times = LostIrqGuard::FIRST;
    for _ in 0..4 {
        guard.found();
        assert_eq!(
            (0..).take_while(|_| guard.must_confirm()).count() as u32,
            times
        );
        times *= 4;
    }
    for _ in 0..20 {
        guard.found();
    }
    assert!((0..100_000).all(|_| guard.must_confirm()));
}
