// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Questions to a silent peer, and the time at which it counts as dead.
//!
//! The stream calls `received` for each message of the peer, and `update` after each run of `pump`.
//! A question is due `ask` ticks after an answer is first needed, and the time to the next question
//! doubles with each question. Keep-alive probes are questions of an idle connection.

use super::Limits;
use crate::Time;

/// Minimum number of questions before a peer counts as dead.
const QUESTIONS: u32 = 2;

/// Settings of TCP's keep-alive probes for an idle connection, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeepAlive {
    /// Time without a message of the peer before the first probe.
    pub idle: u64,
    /// Time between two probes.
    pub interval: u64,
    /// Number of unanswered probes after which the peer counts as dead.
    pub probes: u32,
}

/// Timer of questions to the peer.
#[derive(Debug)]
pub(super) struct Timing {
    /// Arrival time of the peer's last message.
    received: Time,
    /// Lower bound of the time at which the peer sent its last message.
    alive: Time,
    /// Arrival time of the last acknowledgement that acknowledged new bytes.
    progress: Time,
    /// Time of the first question since the last message of the peer.
    asked: Option<Time>,
    /// Time of the last question.
    last: Option<Time>,
    /// Time of the next question.
    next: Option<Time>,
    /// Number of questions without progress, which determines the time between questions.
    backoff: u8,
    /// Number of questions since the last message of the peer.
    questions: u32,
    /// True if a question must be sent at once.
    urgent: bool,
    keepalive: Option<KeepAlive>,
    give_up: Option<u64>,
}

impl Timing {
    pub(super) fn new(now: Time) -> Self {
        Self {
            received: now,
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

    /// Records a message that the peer sent after `sent`. `progress` is true if the message
    /// acknowledged new bytes.
    pub(super) fn received(&mut self, now: Time, sent: Time, progress: bool) {
        self.received = self.received.max(now);
        self.alive = self.alive.max(sent);
        self.asked = None;
        self.questions = 0;
        self.urgent = false;
        if progress {
            self.progress = self.received;
            self.backoff = 0;
            self.next = None;
        }
    }

    /// Returns a lower bound of the time of the peer's last sign of life.
    pub(super) fn alive(&self) -> Time {
        self.alive
    }

    pub(super) fn last_progress(&self) -> Time {
        self.progress
    }

    /// Requests a question at once, unless a question is unanswered or was sent a short time ago.
    /// Returns true if an answer can be expected. Returns false a short time after an answered
    /// question.
    pub(super) fn want_answer(&mut self, now: Time, limits: &Limits) -> bool {
        let recently = |at| now.since(at) < limits.ask / 4;
        self.urgent |= self.asked.is_none() && !self.last.is_some_and(recently);
        self.urgent || self.asked.is_some()
    }

    /// Starts the timer if an answer is needed. Stops the timer if no answer is needed and no
    /// question is unanswered.
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

    /// Returns the time of the next question.
    fn next_question(&self) -> Option<Time> {
        let idle = self.keepalive.map(|k| {
            let idle = self.received.after(k.idle);
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

    /// Returns the time of the next action.
    pub(super) fn deadline(&self, limits: &Limits) -> Option<Time> {
        let dead = self.asked.map(|at| at.after(self.peer_timeout(limits)));
        // Before [`QUESTIONS`] questions were sent, the peer does not count as dead.
        let dead = dead.filter(|_| self.questions >= QUESTIONS);
        [self.next_question(), dead].into_iter().flatten().min()
    }

    /// Returns the time after which a silent peer counts as dead.
    pub(super) fn peer_timeout(&self, limits: &Limits) -> u64 {
        self.give_up.unwrap_or(limits.give_up)
    }

    /// Returns the maximum time without a successful GET. A program's shorter time limit applies to
    /// silent peers only, not to slow NICs.
    pub(super) fn get_timeout(&self, limits: &Limits) -> u64 {
        self.peer_timeout(limits).max(limits.give_up)
    }

    /// Returns true if the timer runs or a question is unanswered.
    pub(super) fn is_waiting(&self) -> bool {
        self.asked.is_some() || self.next.is_some()
    }

    /// Returns true if a question must be sent now.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.urgent || self.next_question().is_some_and(|at| at <= now)
    }

    /// Records that a question was sent.
    pub(super) fn ask(&mut self, now: Time, limits: &Limits) {
        self.urgent = false;
        self.asked = self.asked.or(Some(now));
        self.last = Some(now);
        self.questions = self.questions.saturating_add(1);
        self.backoff = self.backoff.saturating_add(1);
        self.next = Some(now.after(self.pause(limits)));
    }

    /// Returns true if the peer is dead. More than one question is required, because the driver may
    /// have had no CPU time to read the first answer.
    pub(super) fn is_dead(&self, now: Time, limits: &Limits) -> bool {
        let Some(asked) = self.asked else {
            return false;
        };
        let silent = now.since(asked);
        let idle = self.keepalive.is_some_and(|k| {
            let interval = now.since(self.last.unwrap_or(asked)) >= k.interval;
            self.questions >= k.probes && interval && now.since(self.received) >= k.idle
        });
        let dead = silent >= self.peer_timeout(limits) && self.questions >= QUESTIONS;
        dead || idle
    }
}
