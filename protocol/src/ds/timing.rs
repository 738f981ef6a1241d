// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! When the peer is asked, and when it is given up.

use super::Limits;
use crate::Time;

/// A peer is not dead before it was asked so often.
const QUESTIONS: u32 = 2;

/// Probes of an idle connection, as TCP has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeepAlive {
    /// After so long without a message of the peer.
    pub idle: u64,
    /// Between probes.
    pub interval: u64,
    /// So many.
    pub probes: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Timing {
    /// When a message of the peer came last.
    heard: Time,
    /// The peer was alive after this time: its last message was sent then.
    alive: Time,
    /// When one came that acknowledged something.
    progress: Time,
    /// The first question that nothing was heard after.
    asked: Option<Time>,
    /// The last question.
    last: Option<Time>,
    /// When it is asked next.
    next: Option<Time>,
    /// How often it was asked without progress.
    backoff: u8,
    /// How often it was asked since something was heard.
    questions: u32,
    /// Somebody asks at once.
    urgent: bool,
    keepalive: Option<KeepAlive>,
    give_up: Option<u64>,
}

impl Timing {
    pub(super) fn new(now: Time) -> Self {
        Self {
            heard: now,
            alive: now,
            progress: now,
            asked: None,
            last: None,
            next: None,
            backoff: 0,
            questions: 0,
            urgent: false,
            keepalive: None,
            give_up: None,
        }
    }

    pub(super) fn set_keepalive(&mut self, keepalive: Option<KeepAlive>) {
        self.keepalive = keepalive;
    }

    pub(super) fn set_give_up(&mut self, after: Option<u64>) {
        self.give_up = after;
    }

    /// A message of the peer came, which was sent after `sent`; with `progress` it had got something.
    pub(super) fn heard(&mut self, now: Time, sent: Time, progress: bool) {
        self.heard = self.heard.max(now);
        self.alive = self.alive.max(sent);
        self.asked = None;
        self.questions = 0;
        self.urgent = false;
        if progress {
            self.progress = self.heard;
            self.backoff = 0;
            self.next = None;
        }
    }

    /// The peer was alive after this.
    pub(super) fn alive(&self) -> Time {
        self.alive
    }

    pub(super) fn last_progress(&self) -> Time {
        self.progress
    }

    /// An answer is needed at once, unless one is on its way, or came a moment ago: false then.
    pub(super) fn want_answer(&mut self, now: Time, limits: &Limits) -> bool {
        let lately = |at| now.since(at) < limits.ask / 4;
        self.urgent |= self.asked.is_none() && !self.last.is_some_and(lately);
        self.urgent || self.asked.is_some()
    }

    /// Sets the clock, as an answer is needed or not.
    pub(super) fn update(&mut self, now: Time, needed: bool, limits: &Limits) {
        if !needed && self.asked.is_none() {
            self.next = None;
            self.backoff = 0;
        } else if self.next.is_none() {
            self.next = Some(now.after(self.pause(limits)));
        }
    }

    fn pause(&self, limits: &Limits) -> u64 {
        let shift = u32::from(self.backoff.min(16));
        limits.ask.saturating_mul(1 << shift).min(limits.ask_most)
    }

    /// When the next question is due.
    fn next_question(&self) -> Option<Time> {
        let idle = self.keepalive.map(|k| {
            let idle = self.heard.after(k.idle);
            match (self.asked, self.last) {
                (Some(_), Some(last)) => idle.max(last.after(k.interval)),
                _ => idle,
            }
        });
        match (self.next, idle) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// When something is due.
    pub(super) fn deadline(&self, limits: &Limits) -> Option<Time> {
        let dead = self.asked.map(|at| at.after(self.patience(limits)));
        // It was asked too seldom to be dead by then: after the next question.
        let dead = dead.filter(|_| self.questions >= QUESTIONS);
        [self.next_question(), dead].into_iter().flatten().min()
    }

    /// How long a peer that does not answer is waited for.
    pub(super) fn patience(&self, limits: &Limits) -> u64 {
        self.give_up.unwrap_or(limits.give_up)
    }

    /// How long GETs are tried for. A program that wants to know early of a peer that does not answer
    /// says nothing of those that do, but a NIC makes slow.
    pub(super) fn get_patience(&self, limits: &Limits) -> u64 {
        self.patience(limits).max(limits.give_up)
    }

    /// Whether an answer is waited for, or will be.
    pub(super) fn is_waiting(&self) -> bool {
        self.asked.is_some() || self.next.is_some()
    }

    /// Whether a question is due.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.urgent || self.next_question().is_some_and(|at| at <= now)
    }

    /// It was asked.
    pub(super) fn ask(&mut self, now: Time, limits: &Limits) {
        self.urgent = false;
        self.asked = self.asked.or(Some(now));
        self.last = Some(now);
        self.questions = self.questions.saturating_add(1);
        self.backoff = self.backoff.saturating_add(1);
        self.next = Some(now.after(self.pause(limits)));
    }

    /// Whether the peer is dead: it was asked more than once, in case that nobody had the time to look
    /// for its answer.
    pub(super) fn is_dead(&self, now: Time, limits: &Limits) -> bool {
        let Some(asked) = self.asked else {
            return false;
        };
        let silent = now.since(asked);
        let idle = self.keepalive.is_some_and(|k| {
            let interval = now.since(self.last.unwrap_or(asked)) >= k.interval;
            self.questions >= k.probes && interval && now.since(self.heard) >= k.idle
        });
        let dead = silent >= self.patience(limits) && self.questions >= QUESTIONS;
        dead || idle
    }
}
