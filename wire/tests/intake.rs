// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The reading side of a queue against a NIC whose writes get lost, under both rules for a full queue.

use proptest::prelude::*;
use wire::intake::{Care, Intake};
use wire::time::Time;

const HOLE: u64 = 100;

/// The NIC's side: slots, write pointer, what it knows of the read pointer.
struct Ring {
    slots: Vec<Option<u32>>,
    lwp: u32,
    lrp: u32,
    full: bool,
    flag_rule: bool,
}

impl Ring {
    fn new(size: usize, flag_rule: bool) -> Self {
        Self {
            slots: vec![None; size],
            lwp: 0,
            lrp: 0,
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

    /// Writes item `n`, or loses it. False if there is no room.
    fn write(&mut self, n: u32, lose: bool) -> bool {
        if !self.has_room() {
            return false;
        }
        let slot = &mut self.slots[self.lwp as usize];
        assert_eq!(*slot, None, "a slot that is in use is overwritten");
        if !lose {
            *slot = Some(n);
        }
        self.lwp = (self.lwp + 1) % self.slots.len() as u32;
        self.full = self.lwp == self.lrp;
        true
    }

    fn store_rp(&mut self, lrp: u32) {
        self.lrp = lrp;
        self.full = false;
    }
}

/// Takes what is there at `now`; returns the items, skips holes.
fn poll(ring: &mut Ring, intake: &mut Intake, now: Time) -> Vec<u32> {
    let mut got = Vec::new();
    loop {
        let next = intake.next();
        if let Some(item) = ring.slots[next as usize].take() {
            got.push(item);
            intake.advance(1);
        } else {
            let overdue = intake.overdue(now, |i| {
                i.ahead(ring.lwp, |s| ring.slots[s as usize].is_some())
            });
            if overdue == 0 {
                break;
            }
            let run = (0..overdue)
                .take_while(|i| ring.slots[intake.after(next, *i) as usize].is_none())
                .count() as u32;
            intake.advance(run);
        }
    }
    if intake.is_commit_due() {
        let lrp = intake.free();
        ring.store_rp(lrp);
    }
    got
}

proptest! {
    /// Everything that was not lost is read, once and in order, and a hole holds nothing up for longer than
    /// two looks.
    #[test]
    fn all_but_the_lost_is_read(
        flag_rule: bool,
        size in prop::sample::select(vec![8usize, 12, 64, 1024]),
        steps in prop::collection::vec((0u8..20, any::<bool>(), any::<bool>()), 1..200),
    ) {
        let mut ring = Ring::new(size, flag_rule);
        let mut intake = Intake::new(size as u32, HOLE);
        let (mut n, mut now, mut got, mut want) = (0, 0, Vec::new(), Vec::new());
        for (count, lose, arm) in steps {
            for i in 0..count {
                // A full queue is told by its last slot (see `Intake::arm`).
                let last = intake.after(ring.lwp, 1) == intake.next();
                let lost = lose && i % 3 == 0 && !last;
                if ring.write(n, lost) {
                    if !lost {
                        want.push(n);
                    }
                    n += 1;
                }
            }
            now += 30;
            got.extend(poll(&mut ring, &mut intake, Time(now)));
            if arm {
                let armed = intake.arm(|slot| ring.slots[slot as usize].is_some());
                if let Some(lrp) = armed {
                    ring.store_rp(lrp);
                }
            }
        }
        // A hole is skipped at the second look after it was found: three of them, with one to begin.
        for _ in 0..size {
            now += HOLE;
            got.extend(poll(&mut ring, &mut intake, Time(now)));
        }
        prop_assert_eq!(got, want);
        prop_assert_eq!(intake.next(), ring.lwp);
    }

    /// A clock that goes back makes no hole.
    #[test]
    fn time_may_go_back(times in prop::collection::vec(0u64..HOLE, 1..50)) {
        let mut intake = Intake::new(16, HOLE);
        for t in times {
            prop_assert_eq!(intake.overdue(Time(1000 + t), |_| panic!("looked too early")), 0);
        }
    }
}

/// What only frees never stores the pointer that the NIC has already.
#[test]
fn no_pointer_is_stored_twice() {
    for size in [8u32, 4096] {
        let mut intake = Intake::new(size, HOLE);
        let mut last = intake.arm(|_| false).unwrap();
        for step in 0..10_000u32 {
            intake.advance(step % 3);
            if intake.is_commit_due() {
                let lrp = intake.free();
                assert_ne!(lrp, last);
                last = lrp;
            } else if step % 7 == 0 {
                last = intake.arm(|_| false).unwrap();
            }
        }
    }
}

/// A full queue whose first slot got lost, and perhaps the last, is not armed: a NIC that takes the store for room
/// would overwrite it.
#[test]
fn a_full_queue_with_a_hole_is_not_armed() {
    for (last, got) in [(false, 7), (true, 6)] {
        let mut ring = Ring::new(8, true);
        let mut intake = Intake::new(8, HOLE);
        assert!((0..8).all(|n| ring.write(n, n == 0 || last && n == 7)));
        assert_eq!(poll(&mut ring, &mut intake, Time(0)), []);
        assert_eq!(intake.arm(|s| ring.slots[s as usize].is_some()), None);
        assert!(!ring.write(8, false));
        assert_eq!(poll(&mut ring, &mut intake, Time(HOLE)), []);
        assert_eq!(poll(&mut ring, &mut intake, Time(2 * HOLE)).len(), got);
        assert!(intake.arm(|s| ring.slots[s as usize].is_some()).is_some());
    }
}

/// What the NIC delivers between the look at the queue and the store that arms is kept, whatever was there already:
/// up to half of the queue if there is a hole, else up to all but one slot.
#[test]
fn a_burst_before_the_store_is_not_overwritten() {
    for size in [8usize, 64] {
        for (waits, hole) in (0..size).flat_map(|n| [(n, false), (n, true)]) {
            let mut ring = Ring::new(size, true);
            let mut intake = Intake::new(size as u32, HOLE);
            assert_eq!(intake.arm(|_| false), Some(0));
            for n in 0..waits {
                ring.write(n as u32, hole && n == 0);
            }
            let armed = intake.arm(|s| ring.slots[s as usize].is_some());
            let mut n = waits as u32;
            let burst = if hole { size / 2 } else { size };
            for _ in 1..burst {
                n += u32::from(ring.write(n, false));
            }
            if let Some(lrp) = armed {
                ring.store_rp(lrp);
            }
            // It is full at some time, and nothing is overwritten (`Ring::write` would see that).
            while n <= size as u32 && ring.write(n, false) {
                n += 1;
            }
            assert_eq!(n, size as u32, "{waits} of {size}");
        }
    }
}

#[test]
fn care_is_taken_more_often_each_time() {
    let mut care = Care::default();
    assert!(!care.take());
    let mut times = Care::FIRST;
    for _ in 0..4 {
        care.found();
        assert_eq!((0..).take_while(|_| care.take()).count() as u32, times);
        times *= 4;
    }
    for _ in 0..20 {
        care.found();
    }
    assert!((0..100_000).all(|_| care.take()));
}
