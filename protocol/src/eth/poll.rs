// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sequence of work in a NAPI poll function, which processes messages, fetches announced frames and
//! does housekeeping. One timer serves all of this work.
//!
//! The poll function runs on an interrupt and when the timer expires. Each run sets the timer to
//! the earliest time at which work is due. The timer is never moved to a later time.
//!
//! A run ([`run`]) consists of these steps:
//!
//! 1. Post GETs for waiting announcements.
//! 2. Process messages, limited by the NAPI budget and by the free slots for announcements.
//! 3. If housekeeping is due, process time-outs.
//! 4. Publish that announcements wait, and try again to post GETs.
//! 5. Set the timer.

use crate::{base::age_bound::AgeBound, Clock, Shared, Time};

/// Periods of the poll function, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Periods {
    /// Time between two runs of housekeeping while transfers are pending.
    pub busy: u64,
    /// Time between two runs while no transfer is pending. The period limits the error in the age
    /// of messages.
    pub idle: u64,
    /// Time until the next run if received messages could not be processed.
    pub pause: u64,
}

/// Time at which housekeeping is due, and time at which the timer expires.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Timer {
    due: Option<Time>,
    set: Option<Time>,
}

impl Timer {
    /// Creates a stopped timer without scheduled housekeeping.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            due: None,
            set: None,
        }
    }

    /// Schedules housekeeping at `at`, unless it is due earlier. Returns the new expiry time if the
    /// caller must set the timer.
    #[must_use]
    pub fn schedule_housekeeping(&mut self, at: Time) -> Option<Time> {
        let due = self.due.map_or(at, |due| due.min(at));
        self.due = Some(due);
        self.schedule_run(due)
    }

    /// Schedules a run of the poll function at `at` or earlier. Returns the new expiry time if the
    /// caller must set the timer.
    #[must_use]
    pub fn schedule_run(&mut self, at: Time) -> Option<Time> {
        if self.set.is_some_and(|set| set <= at) {
            return None;
        }
        self.set = Some(at);
        Some(at)
    }

    /// Returns true if housekeeping is due, and marks it as done. The poll function calls this at
    /// its start; `running` is true if the timer has not expired. The timer may have expired
    /// slightly before `clock` reaches its time.
    #[must_use]
    pub fn begin_run(&mut self, now: Time, running: bool) -> bool {
        // An overdue timer is treated as expired. Its interrupt then only causes an additional run.
        self.set = self.set.filter(|set| running && *set > now);
        let due = self.due.is_some_and(|due| due <= now);
        if due {
            self.due = None;
        }
        due
    }
}

/// Tracks the completion of posted operations by the transport's counters.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CompletionBound {
    age_bound: AgeBound,
    completed: u64,
}

impl CompletionBound {
    /// Updates the tracker with the total numbers of posted and completed operations at `now`.
    /// Returns a time such that all operations posted before it have completed.
    pub fn update(&mut self, now: Time, posted: u64, completed: u64) -> Time {
        let new = completed.saturating_sub(self.completed);
        self.completed = completed;
        self.age_bound
            .read(usize::try_from(new).unwrap_or(usize::MAX));
        if !self.age_bound.is_marked() {
            let backlog = posted.saturating_sub(completed);
            self.age_bound
                .mark(now, usize::try_from(backlog).unwrap_or(usize::MAX));
        }
        self.age_bound.since()
    }
}

/// Operations of the driver's poll function.
pub trait Work {
    /// Processes up to `most` messages, where `most` is at least 1. Returns the number of processed
    /// messages.
    fn messages(&mut self, most: usize) -> usize;
    /// Returns the number of messages of any content that can be processed now.
    fn room(&self) -> usize;
    /// Returns the number of received messages that were not read, according to the NIC's write
    /// pointer. The number may be too high. The function may be slow, because it is called rarely.
    fn backlog(&mut self) -> usize;
    /// Returns the age bound of messages.
    fn age_bound(&mut self) -> &mut AgeBound;
    /// Returns the number of waiting announcements.
    fn waiting(&self) -> usize;
    /// Posts GETs for waiting announcements, if possible.
    fn pump(&mut self);
    /// Publishes that announcements wait, for the contexts that free their resources.
    fn publish(&mut self);
    /// Processes time-outs.
    fn housekeeping(&mut self);
    /// Returns true if transfers are pending, which need frequent housekeeping.
    fn is_busy(&self) -> bool;
    /// Returns true if the timer runs.
    fn timer_runs(&self) -> bool;
    /// Sets the timer to a new time, with the lock of the [`Timer`] held.
    fn set_timer(&mut self, at: Time);
}

/// Result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Number of processed messages.
    pub messages: usize,
    /// True if further messages could not be processed for lack of resources. The timer is set for
    /// the next run.
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
    let due = timer.with(|t| t.begin_run(began, work.timer_runs()));
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
        work.age_bound().read(n);
        if n < most {
            break;
        }
    }
    if due || began.since(work.age_bound().counted) >= periods.busy {
        let backlog = work.backlog();
        work.age_bound().count(began, backlog);
    }
    if due {
        work.housekeeping();
    }
    // Publish before the attempt. If another context frees a resource at the same time, either this
    // attempt finds the resource, or that context finds the waiting announcements.
    work.publish();
    if work.waiting() > 0 {
        work.pump();
        work.publish();
    }
    let period = if work.is_busy() {
        periods.busy
    } else {
        periods.idle
    };
    timer.with(|t| {
        let now = clock.now();
        let wanted = t.schedule_housekeeping(now.after(period));
        let pause = now.after(periods.pause);
        let paused = if ran.paused {
            t.schedule_run(pause)
        } else {
            None
        };
        if let Some(at) = paused.or(wanted) {
            work.set_timer(at);
        }
    });
    ran
}
