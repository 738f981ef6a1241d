// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of the notification queue: recovery from lost entries, late entries and lost interrupts,
//! and storms and drains of events.

use proptest::prelude::*;
use protocol::nic::snq::{
    DrainStep, Empty, ErrorChange, ErrorReports, EventMask, LimitResult, MessageLimit, Poll,
    SnqConsumer, DRAIN_ROUNDS,
};
use wire::regs::rma;
use wire::snq::{Header, TriggerEvent, TriggerMask};

const N: u16 = 8;
const BUDGET: u32 = 5;

/// Fate of the write of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    /// Delivered after this number of steps, before a recovery would skip it.
    Late(u8),
    Lost,
}

/// NIC that writes entries, and a host with the interrupt handler, poll and recovery of a driver.
struct World {
    consumer: SnqConsumer,
    ring: Vec<(Header, u32)>,
    /// Write pointer of the NIC.
    wp: u16,
    flip: bool,
    rplt: u16,
    armed: bool,
    /// Writes in flight: time of arrival, slot, content.
    late: Vec<(u32, u16, (Header, u32))>,
    now: u32,
    written: u32,
    /// True if the next step handles an interrupt.
    interrupt: bool,
    lose_interrupt: bool,
    recovery_at: Option<u32>,
    seen: Vec<u32>,
    lost: Vec<u32>,
    skipped: u32,
}

impl World {
    fn new(start: u16) -> Self {
        let consumer = SnqConsumer::new(N, start).expect("ring");
        let blank = |i| (consumer.ring().blank(i), u32::MAX);
        Self {
            consumer,
            ring: (0..N).map(blank).collect(),
            wp: start,
            flip: true,
            rplt: consumer.ring().rplt(),
            armed: true,
            late: Vec::new(),
            now: 0,
            written: 0,
            interrupt: false,
            lose_interrupt: false,
            recovery_at: None,
            seen: Vec::new(),
            lost: Vec::new(),
            skipped: 0,
        }
    }

    /// Makes the hardware write an entry, unless the ring is full.
    fn write(&mut self, fate: Fate) {
        if self.wp == self.rplt {
            return;
        }
        let entry = (Header(0).with_flip(self.flip), self.written);
        match fate {
            Fate::Arrives => self.ring[usize::from(self.wp)] = entry,
            Fate::Late(steps) => self
                .late
                .push((self.now + u32::from(steps), self.wp, entry)),
            Fate::Lost => self.lost.push(self.written),
        }
        self.written += 1;
        self.wp = (self.wp + 1) % N;
        if self.wp == 0 {
            self.flip = !self.flip;
        }
        self.evaluate();
    }

    fn evaluate(&mut self) {
        if self.armed && (self.rplt + 1) % N != self.wp {
            self.armed = false;
            self.interrupt = !std::mem::take(&mut self.lose_interrupt);
        }
    }

    /// Reads the register with the write pointer. The answer makes all earlier writes of the NIC
    /// visible.
    fn read_wp(&mut self) -> u16 {
        // Late entries stay in flight, because they model writes that are delayed for other
        // reasons. The driver waits for them by time.
        self.wp
    }

    fn take(&mut self) -> u32 {
        let (ring, seen) = (&self.ring, &mut self.seen);
        let read = |i: u16| Some(ring[usize::from(i)]);
        self.consumer
            .consume(BUDGET, read, |number| seen.push(number))
    }

    fn arm(&mut self) {
        self.consumer.armed();
        self.rplt = self.consumer.ring().rplt();
        self.armed = true;
        self.evaluate();
    }

    fn handle_interrupt(&mut self) {
        if self.take() == 0 {
            let wp = self.read_wp();
            if self.take() == 0 && self.consumer.on_empty(wp) == Empty::Missing {
                self.recovery_at = Some(self.now + 100);
                return;
            }
        }
        self.arm();
    }

    fn poll(&mut self) {
        let wp = self.read_wp();
        if self.consumer.poll(wp) != Poll::Overdue {
            return;
        }
        if self.take() == 0 {
            assert_eq!(self.consumer.on_empty(wp), Empty::Missing);
            self.recovery_at = Some(self.now + 100);
            return;
        }
        self.arm();
    }

    fn recover(&mut self) {
        let (mut filled, mut seen) = (Vec::new(), Vec::new());
        let ring = &self.ring;
        let read = |i: u16| Some(ring[usize::from(i)]);
        let done = self.consumer.recover(
            read,
            |number| seen.push(number),
            |i, header| filled.push((i, header)),
        );
        let Some(skipped) = done else {
            return; // A poll has already handled the late entry and armed the interrupt.
        };
        self.seen.extend(seen);
        assert_eq!(usize::from(skipped.lost), filled.len());
        self.skipped += u32::from(skipped.lost);
        for (i, header) in filled {
            self.ring[usize::from(i)] = (header, u32::MAX);
        }
        self.arm();
    }

    fn step(&mut self, steps: u32) {
        for _ in 0..steps {
            self.now += 1;
            let now = self.now;
            let mut arrived = Vec::new();
            self.late.retain(|(at, i, entry)| {
                let due = *at <= now;
                if due {
                    arrived.push((*i, *entry));
                }
                !due
            });
            for (i, entry) in arrived {
                self.ring[usize::from(i)] = entry;
            }
            if std::mem::take(&mut self.interrupt) {
                self.handle_interrupt();
            }
            if self.recovery_at.is_some_and(|at| at <= now) {
                self.recovery_at = None;
                self.recover();
            }
            if now % 1000 == 0 {
                self.poll();
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Write(Fate),
    Pass(u8),
    LoseInterrupt,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let fate = prop_oneof![
        6 => Just(Fate::Arrives),
        2 => (1u8..90).prop_map(Fate::Late),
        1 => Just(Fate::Lost),
    ];
    let act = prop_oneof![
        8 => fate.prop_map(Act::Write),
        4 => (1u8..200).prop_map(Act::Pass),
        1 => Just(Act::LoseInterrupt),
    ];
    prop::collection::vec(act, 0..200)
}

proptest! {
    /// With any lost or late writes, all other entries are handled once and in order, lost entries
    /// are skipped, and the ring never stalls.
    #[test]
    fn everything_is_handled_once(start in 0..N, acts in acts()) {
        let mut world = World::new(start);
        for act in acts {
            match act {
                Act::Write(fate) => world.write(fate),
                Act::Pass(steps) => world.step(steps.into()),
                Act::LoseInterrupt => world.lose_interrupt = true,
            }
        }
        // Two polls find entries without an interrupt, and each missing entry needs one recovery.
        for _ in 0..4 {
            world.step(2500);
        }
        let due: Vec<u32> = (0..world.written).filter(|n| !world.lost.contains(n)).collect();
        prop_assert_eq!(&world.seen, &due);
        prop_assert_eq!(world.skipped as usize, world.lost.len());
        prop_assert_eq!(world.consumer.ring().next(), world.wp);
        prop_assert!(world.armed && !world.consumer.is_missing());
        // The queue still works afterwards.
        world.lose_interrupt = false;
        let before = world.seen.len();
        for _ in 0..3 * N {
            world.write(Fate::Arrives);
            world.step(1);
        }
        prop_assert_eq!(world.seen.len() - before, usize::from(3 * N));
    }
}

/// A pass ends at its budget, and later entries remain unread.
#[test]
fn a_pass_is_bounded() {
    let mut world = World::new(0);
    world.armed = false;
    for _ in 0..6 {
        world.write(Fate::Arrives);
    }
    assert_eq!(world.take(), BUDGET);
    assert_eq!(world.seen, [0, 1, 2, 3, 4]);
    assert_eq!(world.take(), 1);
    assert_eq!(world.take(), 0);
    // A slot that cannot be read ends the pass too.
    assert_eq!(
        world
            .consumer
            .consume(BUDGET, |_| None::<(Header, ())>, drop),
        0
    );
}

/// An interrupt without an entry belongs to another source if the write pointer shows no entry
/// either.
#[test]
fn spurious_interrupts() {
    let mut consumer = SnqConsumer::new(N, 3).expect("ring");
    assert_eq!(consumer.on_empty(3), Empty::Nothing);
    assert!(!consumer.is_missing());
    assert_eq!(consumer.poll(3), Poll::Idle);
    assert_eq!(consumer.poll(4), Poll::Fresh);
    // The interrupt was armed between the polls, so the pending entries cause another interrupt.
    consumer.armed();
    assert_eq!(consumer.poll(4), Poll::Fresh);
    assert_eq!(consumer.poll(4), Poll::Overdue);
    assert_eq!(consumer.on_empty(4), Empty::Missing);
    assert_eq!(consumer.poll(5), Poll::Idle);
    // A write pointer outside of the ring counts modulo the size of the ring, so that at most one
    // round is skipped.
    assert_eq!(consumer.on_empty(N * 4 + 4), Empty::Missing);
    let mut filled = 0;
    let read = |_| Some((Header(0), ()));
    let skipped = consumer
        .recover(read, drop, |_, _| filled += 1)
        .expect("one");
    assert_eq!((skipped.first, skipped.lost, filled), (3, 1, 1));
    assert_eq!(consumer.recover(read, drop, |_, _| ()), None);
    assert_eq!(SnqConsumer::new(6, 0), None);
}

#[test]
fn a_storm_is_masked_for_its_time() {
    let event = TriggerEvent::LinkMacStatus;
    let mut enabled = EventMask::new(TriggerMask::DEFAULT.with(event));
    let mut storms = 0;
    // 2,000 occurrences per second are no storm.
    for i in 0..2000u64 {
        storms += u32::from(enabled.count(event, 5 + i / 3));
    }
    assert_eq!(storms, 0);
    assert!(enabled.count(event, 900));
    assert!(!enabled.mask().contains(event));
    // A storm is reported once, and other events are not affected.
    assert!(!enabled.count(event, 901));
    assert!(!enabled.count(TriggerEvent::GpioIrq, 901));
    assert!(enabled.mask().contains(TriggerEvent::GpioIrq));
    assert!(enabled.end_storms());
    assert!(!enabled.end_storms());
    assert!(enabled.mask().contains(event));
    // A new second starts a new count.
    assert!(!enabled.count(event, 2100));
    // Events that the NIC masks per VPID do not storm.
    for _ in 0..5000 {
        assert!(!enabled.count(TriggerEvent::RmaNotification, 2100));
    }
}

#[test]
fn a_drain_masks_its_event_and_ends() {
    let mut enabled = EventMask::new(TriggerMask::DEFAULT);
    assert!(enabled.begin_drain());
    assert!(!enabled.begin_drain(), "one at a time");
    assert_eq!(enabled.mask(), TriggerMask::DRAINING);
    assert_eq!(enabled.drained(DRAIN_ROUNDS - 1), DrainStep::Again(10));
    let mut steps = 1;
    let pause = loop {
        steps += 1;
        match enabled.drained(0) {
            DrainStep::Again(10) => {}
            DrainStep::GaveUp(pause) => break pause,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((steps, pause), (100, 10_000));
    assert!(enabled.is_draining(), "it is tried again");
    assert_eq!(enabled.drained(DRAIN_ROUNDS), DrainStep::Done);
    assert_eq!(enabled.mask(), TriggerMask::DEFAULT);
}

#[test]
fn closed_ports_are_no_errors() {
    let mut errors = ErrorReports::new();
    let registers = [
        rma::COMPLETER_ERROR_CNT_2,
        rma::REQUESTER_ERROR_CNT_0,
        rma::COMPLETER_ERROR_CNT_2,
    ];
    let take = |e: &mut ErrorReports, closed, other| e.compare(&registers[..2], &[closed, other]);
    assert_eq!(take(&mut errors, 0, 0), ErrorChange::Nothing);
    assert_eq!(take(&mut errors, 1, 0), ErrorChange::ClosedPort);
    // Counters are cumulative, so equal values are no change.
    assert_eq!(take(&mut errors, 1, 0), ErrorChange::Nothing);
    assert_eq!(take(&mut errors, 2, 1), ErrorChange::Error);
    assert_eq!(take(&mut errors, 2 | (1 << 60), 1), ErrorChange::Error);
    // Other registers do not count as errors.
    assert_eq!(errors.compare(&[rma::CONFIG], &[5]), ErrorChange::Nothing);
}

/// Interrupts above the limit cause one later notification, and none is lost.
#[test]
fn messages_are_limited_and_owed() {
    let mut limit = MessageLimit::new(50);
    let mut told = 0;
    for i in 0..20 {
        match limit.admit(1000 + i) {
            LimitResult::Call => told += 1,
            LimitResult::Exceeded => assert_eq!(i, 5),
            LimitResult::Pending => assert!(i > 5),
        }
    }
    assert_eq!(told, 5);
    assert!(limit.is_pending());
    // The limit stays exceeded in the next window until the notification is sent.
    assert_eq!(limit.admit(1200), LimitResult::Pending);
    assert!(limit.collect());
    assert!(!limit.collect());
    assert_eq!(limit.admit(1201), LimitResult::Call);
    // Without a limit, every interrupt is notified. The smallest limit is one interrupt per window.
    let mut any = MessageLimit::new(0);
    assert!((0..5000).all(|_| any.admit(7) == LimitResult::Call));
    let mut least = MessageLimit::new(1);
    assert_eq!(least.admit(0), LimitResult::Call);
    assert_eq!(least.admit(1), LimitResult::Exceeded);
}
