// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Order of work in a poll function that takes messages, fetches what they announce, and looks
//! after what is overdue, all by one timer.
//!
//! The poll function runs when something came, and when the timer says so. There is one timer for
//! everything, which each run sets to the next thing that is due, and never to a later time than it
//! has.

use crate::{base::age::Horizon, Clock, Shared, Time};

/// Times in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Periods {
    /// Between two runs of housekeeping while something is pending.
    pub busy: u64,
    /// While nothing is. It bounds what is known of the age of messages.
    pub idle: u64,
    /// Until messages are looked for again that there was no room for.
    pub pause: u64,
}

/// When housekeeping is due, and what the timer is set to.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Timer {
    due: Option<Time>,
    set: Option<Time>,
}

impl Timer {
    /// Nothing is due, and the timer doesn't run.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            due: None,
            set: None,
        }
    }

    /// Housekeeping is wanted at `at`, or earlier if it was. Returns what the timer has to be set
    /// to, if it has to be.
    #[must_use]
    pub fn want(&mut self, at: Time) -> Option<Time> {
        let due = self.due.map_or(at, |due| due.min(at));
        self.due = Some(due);
        self.wake(due)
    }

    /// The poll function is to run at `at` at the latest. Returns what the timer has to be set to,
    /// if it has to be.
    #[must_use]
    pub fn wake(&mut self, at: Time) -> Option<Time> {
        if self.set.is_some_and(|set| set <= at) {
            return None;
        }
        self.set = Some(at);
        Some(at)
    }

    /// The poll function runs, and the timer does or has gone off, perhaps before this clock has
    /// moved: whether housekeeping is due, which counts as done then.
    #[must_use]
    pub fn take(&mut self, now: Time, running: bool) -> bool {
        // One that is overdue goes off at once, without harm.
        self.set = self.set.filter(|set| running && *set > now);
        let due = self.due.is_some_and(|due| due <= now);
        if due {
            self.due = None;
        }
        due
    }
}

/// Until when all that was posted has been carried out by the transport, which counts it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Settled {
    horizon: Horizon,
    carried_out: u64,
}

impl Settled {
    /// At this time so many things were posted and carried out, all in all. Returns the time before
    /// which all that was posted has been carried out.
    pub fn update(&mut self, now: Time, posted: u64, carried_out: u64) -> Time {
        let new = carried_out.saturating_sub(self.carried_out);
        self.carried_out = carried_out;
        self.horizon
            .took(usize::try_from(new).unwrap_or(usize::MAX));
        if !self.horizon.is_marked() {
            let backlog = posted.saturating_sub(carried_out);
            self.horizon
                .mark(now, usize::try_from(backlog).unwrap_or(usize::MAX));
        }
        self.horizon.since()
    }
}

/// What the poll function works on.
pub trait Work {
    /// Handles up to `most` messages, at least 1; returns how many there were.
    fn messages(&mut self, most: usize) -> usize;
    /// Messages that there is room for, whatever they bring.
    fn room(&self) -> usize;
    /// Messages that have come and were not read, by the pointers of whoever writes them; not too
    /// few. Asked rarely.
    fn backlog(&mut self) -> usize;
    /// What is known of their age.
    fn horizon(&mut self) -> &mut Horizon;
    /// Number of things that wait.
    fn waiting(&self) -> usize;
    /// Tries again what waits.
    fn pump(&mut self);
    /// Tells whoever frees what is waited for that something waits.
    fn publish(&mut self);
    /// Looks after what is overdue.
    fn housekeeping(&mut self);
    /// Whether something is pending that needs housekeeping.
    fn is_busy(&self) -> bool;
    /// Whether the timer runs.
    fn timer_runs(&self) -> bool;
    /// Sets the timer; replaces what it was set to. With the lock of the [`Timer`] held.
    fn set_timer(&mut self, at: Time);
}

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Messages handled.
    pub messages: usize,
    /// There was no room for more. The timer is set for the next try.
    pub paused: bool,
}

/// Runs the poll function once, for up to `budget` messages.
pub fn run(
    work: &mut impl Work,
    timer: &impl Shared<Timer>,
    clock: &impl Clock,
    budget: usize,
    periods: &Periods,
) -> Ran {
    let began = clock.now();
    let due = timer.with(|t| t.take(began, work.timer_runs()));
    work.pump();
    let mut ran = Ran {
        messages: 0,
        paused: false,
    };
    while ran.messages < budget {
        if work.room() == 0 {
            work.pump();
        }
        let most = (budget - ran.messages).min(work.room());
        if most == 0 {
            ran.paused = true;
            break;
        }
        let n = work.messages(most);
        ran.messages += n;
        work.horizon().took(n);
        if n < most {
            break;
        }
    }
    if due || began.since(work.horizon().counted) >= periods.busy {
        let backlog = work.backlog();
        work.horizon().count(began, backlog);
    }
    if due {
        work.housekeeping();
    }
    // First told, then tried: what becomes free between the two is seen by one side or the other.
    work.publish();
    if work.waiting() > 0 {
        work.pump();
        work.publish();
    }
    let period = match work.is_busy() {
        true => periods.busy,
        false => periods.idle,
    };
    timer.with(|t| {
        let now = clock.now();
        let wanted = t.want(now.after(period));
        let pause = now.after(periods.pause);
        let paused = if ran.paused { t.wake(pause) } else { None };
        if let Some(at) = paused.or(wanted) {
            work.set_timer(at);
        }
    });
    ran
}
