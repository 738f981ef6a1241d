// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Actions of a stream: processing time-outs, sending messages and posting GETs.

use super::sending::Emission;
use super::stream::{End, Port, Stream};
use super::{Limits, Span};
use crate::{Time, TransportError};
use wire::ds::{Ended, Head, Message};

impl Stream {
    fn check_timeouts(&mut self, now: Time, limits: &Limits) {
        let elapsed = |since: Option<Time>, after| since.is_some_and(|t| now.since(t) >= after);
        if elapsed(self.corked, limits.cork) {
            self.corked = None;
        }
        if self.held_until.is_some_and(|at| at <= now) {
            self.release_sources(None);
        }
        if self.timing.is_dead(now, limits) {
            self.fail(End::TimedOut, now);
        }
        if self.refused.is_none() && elapsed(self.stuck, self.timing.get_timeout(limits)) {
            self.fail(End::FetchFailed, now);
        }
        // Each acknowledgement of a closed socket's data restarts the orphan timer, but sources
        // have a fixed time limit.
        let lent = self.lent_until(limits).is_some_and(|at| at <= now);
        if elapsed(self.orphan_since(), limits.orphan) || lent {
            self.fail(End::OrphanTimeout, now);
            // No reset is sent to a peer that has received all data and the end, as in TCP.
            if self.sending.end_acknowledged() {
                self.pending_shutdown = None;
            }
        }
    }

    fn head(&self) -> Head {
        Head {
            conn: self.peer,
            seq: self.sending.emitted(),
            marks: 0,
        }
    }

    fn avail(&self, ask: bool, again: bool) -> Message {
        Message::RmaAvail {
            head: self.head(),
            ack: self.receiving.ack(),
            ask,
            again,
            own: self.own,
        }
    }

    /// Sends messages and posts GETs, up to `budget` of both. Returns true if further actions are
    /// possible now. The driver calls `pump` after each event, when the port can accept messages
    /// again, and at [`Stream::deadline`].
    ///
    /// # Errors
    ///
    /// Returns `Later` if the port is full, and `Never` if the port has failed and the connection
    /// has ended.
    pub fn pump(
        &mut self,
        port: &mut impl Port,
        limits: &Limits,
        now: Time,
        budget: usize,
    ) -> Result<bool, TransportError> {
        match self.end {
            None => self.check_timeouts(now, limits),
            Some(_) => self.lingered |= now.since(self.ended) >= limits.linger,
        }
        if self.dead {
            return Err(TransportError::Never);
        }
        let result = self.act_up_to(port, limits, now, budget);
        self.blocked = result == Err(TransportError::Later);
        if self.end.is_none() {
            let needed = self.needs_answer();
            self.timing.update(now, needed, limits);
        }
        if result == Err(TransportError::Never) {
            self.down(now);
        }
        result
    }

    fn act_up_to(
        &mut self,
        port: &mut impl Port,
        limits: &Limits,
        now: Time,
        budget: usize,
    ) -> Result<bool, TransportError> {
        for _ in 0..budget {
            if !self.act_once(port, limits, now)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns true if the stream has no message to send, no GET to post and no timer to set. The
    /// driver may then skip [`Stream::pump`] after a message, and keep the current deadline. The
    /// function checks the conditions of all actions of `act_once`. The check is worthwhile because
    /// most messages only acknowledge data, so that `pump` has no work after them.
    #[must_use]
    pub fn is_idle(&self, limits: &Limits, now: Time) -> bool {
        let control =
            self.end.is_none() && self.pending_shutdown.is_none() && !self.asked && !self.gap;
        let data = self.corked.is_none() && self.sending.next(limits, false).is_none();
        // No answer to a withdrawal is due, and no source is delayed for a reader.
        let sources = self.cut.is_none() && self.late_cut.is_none() && self.held_until.is_none();
        control
            && data
            && sources
            && !self.blocked
            && self.orphan.is_none()
            && self.stuck.is_none()
            && !self.receiving.wants_fetch(limits)
            && !self.receiving.ack_is_due()
            && !self.needs_answer()
            && !self.timing.is_waiting()
            && !self.timing.is_due(now)
    }

    /// Performs one action. Returns false if no action was due.
    fn act_once(
        &mut self,
        port: &mut impl Port,
        limits: &Limits,
        now: Time,
    ) -> Result<bool, TransportError> {
        if let Some(how) = self.pending_shutdown {
            let (head, ack) = (self.head(), self.receiving.ack());
            port.send(&Message::Shutdown { head, ack, how }, Span::default())?;
            self.pending_shutdown = None;
            return Ok(true);
        }
        if self.end.is_some() {
            // Answer a peer that may not know that this end has received the end of its stream.
            let answer = self.asked || self.receiving.ack_is_due();
            if answer && self.end == Some(End::Finished) {
                self.send_avail(port, false)?;
                return Ok(true);
            }
            return Ok(false);
        }
        if self.fetch(port, limits, now) {
            return Ok(true);
        }
        if let Some(what) = self.sending.next(limits, self.corked.is_some()) {
            self.emit(port, what)?;
            return Ok(true);
        }
        self.control(port, limits, now)
    }

    /// Posts one GET. Returns true if an action was performed.
    fn fetch(&mut self, port: &mut impl Port, limits: &Limits, now: Time) -> bool {
        if !self.receiving.wants_fetch(limits) {
            // The peer has withdrawn the ranges that waited for `retry`.
            self.retry = None;
            return false;
        }
        if self.retry.is_some_and(|at| now < at) {
            return false;
        }
        self.retry = None;
        let alive = self.timing.alive();
        let failed = |at| alive <= at;
        if now.since(alive) > limits.fresh || self.failed_get.is_some_and(failed) {
            if !self.timing.want_answer(now, limits) {
                self.retry = Some(now.after((limits.ask / 4).max(1)));
            }
            return false;
        }
        let Some(get) = self.receiving.next_get(limits) else {
            return false;
        };
        // Each failure doubles the time-out, because the network may be slow.
        let timeout = limits.get.saturating_mul(1 << get.failed.min(16));
        let post_by = alive.after(limits.fresh.saturating_mul(2));
        // After `hold`, a GET may read memory that the peer has already reused.
        let deadline = now.after(timeout).min(post_by.after(limits.hold));
        match port.get(&get, post_by, deadline) {
            Ok(()) => {
                if let Some(since) = self.refused.take() {
                    self.stuck = self.stuck.map(|at| at.after(now.since(since)));
                }
            }
            // The driver calls [`Stream::retry_gets`] when the port can accept GETs again. The
            // retry timer covers other causes of the refusal.
            Err(TransportError::Later) => {
                self.refused = self.refused.or(Some(now));
                self.retry = Some(now.after(limits.ask.max(1)));
                return false;
            }
            Err(TransportError::Never) => {
                self.fail(End::FetchFailed, now);
                return true;
            }
        }
        self.receiving.posted(get.id, deadline);
        self.gets_in_flight += 1;
        self.counters.gets += 1;
        if get.source.is_some() && get.failed == 0 {
            self.counters.source_received += u64::from(get.to.len);
        }
        self.counters.gets_again += u64::from(get.failed > 0);
        true
    }

    fn emit(&mut self, port: &mut impl Port, what: Emission) -> Result<(), TransportError> {
        let (head, ack) = (self.head(), self.receiving.ack());
        let (message, data) = match what {
            Emission::More { seq, len } => (
                Message::Velo { head, len },
                self.sending.span(seq, len.into()),
            ),
            Emission::Last { seq, len } => (
                Message::VeloLast { head, ack, len },
                self.sending.span(seq, len.into()),
            ),
            Emission::Announce { len, push, .. } => (
                Message::RmaInfo {
                    head,
                    ack,
                    len,
                    push,
                },
                Span::default(),
            ),
            Emission::Source { len, nla, push, .. } => (
                Message::RmaSource {
                    head,
                    ack,
                    nla,
                    len,
                    push,
                },
                Span::default(),
            ),
            Emission::Cut { seq, len } => {
                let end = seq.plus(len);
                let message = Message::RmaCut {
                    head,
                    ack,
                    end,
                    len,
                };
                (message, Span::default())
            }
            Emission::Finish { .. } => {
                let how = Ended::Finished;
                (Message::Shutdown { head, ack, how }, Span::default())
            }
        };
        port.send(&message, data)?;
        self.sending.sent(what);
        match what {
            Emission::More { .. } => {}
            _ => self.receiving.ack_sent(ack),
        }
        let c = &mut self.counters;
        match what {
            Emission::More { len, .. } | Emission::Last { len, .. } => {
                c.velo_messages += 1;
                c.velo_bytes += u64::from(len);
            }
            Emission::Announce { len, .. } => {
                c.announcements += 1;
                c.announced_bytes += u64::from(len);
            }
            Emission::Source { len, .. } => {
                c.announcements += 1;
                c.source_bytes += u64::from(len);
            }
            Emission::Cut { .. } => {
                c.cuts += 1;
                c.control += 1;
            }
            Emission::Finish { .. } => c.control += 1,
        }
        Ok(())
    }

    fn send_avail(&mut self, port: &mut impl Port, ask: bool) -> Result<(), TransportError> {
        let ack = self.receiving.ack();
        port.send(&self.avail(ask, self.gap), Span::default())?;
        self.receiving.ack_sent(ack);
        self.asked = false;
        self.counters.control += 1;
        Ok(())
    }

    /// Returns a message that asks how many bytes of the withdrawn source the peer leaves out. The
    /// message replaces `RMA_AVAIL` while a withdrawal is unanswered.
    fn question(&self, ask: bool) -> Option<Message> {
        let source = self.sending.cutting().filter(|_| ask && !self.gap)?;
        Some(Message::RmaCut {
            head: self.head(),
            ack: self.receiving.ack(),
            end: source.end(),
            len: source.end().since(source.from()),
        })
    }

    fn control(
        &mut self,
        port: &mut impl Port,
        limits: &Limits,
        now: Time,
    ) -> Result<bool, TransportError> {
        if let Some((end, left)) = self.cut {
            let (head, ack) = (self.head(), self.receiving.ack());
            let message = Message::RmaCutDone {
                head,
                ack,
                end,
                left,
            };
            port.send(&message, Span::default())?;
            self.receiving.ack_sent(ack);
            self.cut = None;
            self.counters.control += 1;
            return Ok(true);
        }
        // A gap is reported once per half of `ask`. Messages that were in flight at the time of the
        // first report reveal the same gap.
        let expected = self.receiving.next().0;
        if self.gap && !self.asked {
            let recent =
                |(at, when): (u32, Time)| at == expected && now.since(when) < limits.ask / 2;
            if self.gap_reported.is_some_and(recent) {
                self.gap = false;
            }
        }
        let ask = self.timing.is_due(now);
        if !(ask || self.asked || self.gap || self.receiving.ack_is_due()) {
            return Ok(false);
        }
        match self.question(ask) {
            Some(message) => {
                let ack = self.receiving.ack();
                port.send(&message, Span::default())?;
                self.receiving.ack_sent(ack);
                self.asked = false;
                self.counters.control += 1;
            }
            None => self.send_avail(port, ask)?,
        }
        if core::mem::take(&mut self.gap) {
            self.gap_reported = Some((expected, now));
        }
        if ask {
            self.timing.ask(now, limits);
            self.counters.asked += 1;
        }
        Ok(true)
    }
}
