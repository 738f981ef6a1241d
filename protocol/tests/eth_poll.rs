//! Tests of the sequence of work in a poll function with one timer, compared with a model.

use proptest::prelude::*;
use protocol::base::age_bound::AgeBound;
use protocol::eth::poll::{run, CompletionBound, Periods, Timer, Work};
use protocol::{Shared, Time};
use std::cell::RefCell;

const PERIODS: Periods = Periods {
    busy: 20,
    idle: 1000,
    pause: 1,
};

struct Locked(RefCell<Timer>);

impl Shared<Timer> for Locked {
    fn with<R>(&self, f: impl FnOnce(&mut Timer) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

/// Model of a mailbox, a table of `slots` slots, and a context that frees resources.
#[derive(Default)]
struct Model {
    mailbox: usize,
    slots: usize,
    waiting: usize,
    /// Number of waiting items that may leave the table.
    free: usize,
    published: usize,
    /// Number of waiting items that may leave the table after the first attempt.
    freed_meanwhile: usize,
    pumps: usize,
    cared: usize,
    age_bound: AgeBound,
    stopped: bool,
    set: Option<u64>,
}

impl Work for Model {
    fn messages(&mut self, most: usize) -> usize {
        let n = most.min(self.mailbox);
        self.mailbox -= n;
        self.waiting += n;
        n
    }

    fn room(&self) -> usize {
        self.slots - self.waiting
    }

    fn backlog(&mut self) -> usize {
        self.mailbox
    }

    fn age_bound(&mut self) -> &mut AgeBound {
        &mut self.age_bound
    }

    fn waiting(&self) -> usize {
        self.waiting
    }

    fn pump(&mut self) {
        self.pumps += 1;
        let n = self.waiting.min(self.free);
        self.waiting -= n;
        self.free -= n;
    }

    fn publish(&mut self) {
        self.published = self.waiting;
        // A context that frees a resource sees the number published before.
        self.free += core::mem::take(&mut self.freed_meanwhile);
    }

    fn housekeeping(&mut self) {
        self.cared += 1;
    }

    fn is_busy(&self) -> bool {
        self.waiting > 0
    }

    fn timer_runs(&self) -> bool {
        !self.stopped
    }

    fn set_timer(&mut self, at: Time) {
        self.set = Some(at.0);
    }
}

fn step(m: &mut Model, t: &Locked, now: u64, budget: usize) -> (bool, Option<u64>) {
    m.set = None;
    let ran = run(m, t, &Time(now), budget, &PERIODS);
    assert!(ran.messages <= budget);
    (ran.paused, m.set)
}

#[test]
fn a_full_table_does_not_stop_housekeeping() {
    let t = Locked(RefCell::new(Timer::new()));
    let mut m = Model {
        mailbox: 100,
        slots: 8,
        ..Model::default()
    };
    // Messages arrive all the time, and each of them starts a run.
    let mut timer = 0;
    for now in 0..1000 {
        if now >= timer || now % 7 == 0 {
            let (paused, set) = step(&mut m, &t, now, 16);
            assert!(paused, "{now}");
            if now >= timer || set.is_some() {
                timer = set.expect("a timer that has gone off is set again");
            }
            assert!(timer <= now + 20);
        }
    }
    assert!((45..=50).contains(&m.cared), "{}", m.cared);
}

#[test]
fn what_was_read_is_fetched_in_the_same_run() {
    let t = Locked(RefCell::new(Timer::new()));
    let mut m = Model {
        mailbox: 6,
        slots: 8,
        waiting: 2,
        free: 5,
        ..Model::default()
    };
    assert_eq!(step(&mut m, &t, 0, 64), (false, Some(20)));
    assert_eq!((m.waiting, m.published), (3, 3));
    // Resources that become free between the last attempt and the publication would otherwise wait
    // until the next tick.
    m.freed_meanwhile = 3;
    step(&mut m, &t, 1, 64);
    assert_eq!((m.waiting, m.published), (0, 0));
}

#[test]
fn a_timer_that_goes_off_early_is_set_again() {
    let t = Locked(RefCell::new(Timer::new()));
    let mut m = Model {
        slots: 8,
        waiting: 1,
        ..Model::default()
    };
    assert_eq!(step(&mut m, &t, 100, 64), (false, Some(120)));
    assert_eq!(step(&mut m, &t, 118, 64), (false, None));
    // The timer has expired, but this clock has not reached its time.
    m.stopped = true;
    assert_eq!(step(&mut m, &t, 119, 64), (false, Some(120)));
    m.stopped = false;
    assert_eq!(
        (step(&mut m, &t, 120, 64), m.cared),
        ((false, Some(140)), 1)
    );
    m.waiting = 0;
    assert_eq!(
        (step(&mut m, &t, 141, 64), m.cared),
        ((false, Some(1141)), 2)
    );
    // Other work is due before that time.
    assert_eq!(
        t.with(|t| t.schedule_housekeeping(Time(170))),
        Some(Time(170))
    );
    assert_eq!(t.with(|t| t.schedule_housekeeping(Time(180))), None);
}

#[test]
fn the_age_of_messages_is_known_while_the_mailbox_is_never_empty() {
    let t = Locked(RefCell::new(Timer::new()));
    let mut m = Model {
        slots: 1000,
        ..Model::default()
    };
    for now in 0..5000 {
        m.mailbox += 4;
        m.free = 1000;
        m.mailbox = m.mailbox.max(20);
        step(&mut m, &t, now, 4);
        if now > 60 {
            assert!(now - m.age_bound.since().0 <= 50, "{now} {:?}", m.age_bound);
        }
    }
}

#[test]
fn messages_behind_a_lost_one_are_as_old_as_they_are() {
    let mut h = AgeBound::default();
    h.count(Time(10), 0);
    // The poll function finds no message, because the write of the first message was lost. However,
    // three messages were sent.
    h.count(Time(100), 3);
    h.read(2);
    assert_eq!(h.since(), Time(10));
    // The lost message is never read.
    h.count(Time(120), 1);
    assert_eq!(h.since(), Time(10));
    h.count(Time(140), 0);
    assert_eq!(h.since(), Time(140));
}

#[test]
fn what_was_posted_is_settled_when_it_was_carried_out() {
    let mut s = CompletionBound::default();
    assert_eq!(s.update(Time(10), 5, 2), Time(0));
    // Operations that were posted in the meantime do not count.
    assert_eq!(s.update(Time(20), 50, 4), Time(0));
    assert_eq!(s.update(Time(30), 90, 5), Time(10));
    assert_eq!(s.update(Time(40), 95, 89), Time(10));
    assert_eq!(s.update(Time(50), 99, 90), Time(30));
    assert_eq!(s.update(Time(60), 99, 99), Time(60));
    assert_eq!(s.update(Time(70), 99, 99), Time(70));
}

proptest! {
    /// The timer never expires later than the next due time.
    #[test]
    fn the_timer_covers_what_is_due(
        ops in prop::collection::vec((0u64..30, 0u64..60, 0u8..4), 1..200),
    ) {
        let (mut t, mut now, mut due, mut set) = (Timer::new(), 0, None::<u64>, None::<u64>);
        for (step, delay, what) in ops {
            now += step;
            let at = now + delay;
            match what {
                0 => {
                    due = Some(due.map_or(at, |d| d.min(at)));
                    set = t.schedule_housekeeping(Time(at)).map(|t| t.0).or(set);
                }
                1 => set = t.schedule_run(Time(at)).map(|t| t.0).or(set),
                _ => {
                    let was = due.is_some_and(|d| d <= now);
                    prop_assert_eq!(t.begin_run(Time(now), true), was);
                    set = set.filter(|s| *s > now);
                    if was {
                        due = None;
                    }
                    // Schedule housekeeping, as at the end of each run.
                    due = Some(due.map_or(now + 20, |d| d.min(now + 20)));
                    set = t.schedule_housekeeping(Time(now + 20)).map(|t| t.0).or(set);
                }
            }
            if let Some(due) = due {
                prop_assert!(set.is_some_and(|s| s <= due));
            }
        }
    }
}
