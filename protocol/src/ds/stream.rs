// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! A stream connection: both directions, its end, and what is said to the peer.

use super::receiving::Fit;
use super::timing::{KeepAlive, Timing};
use super::{Broken, Counters, Geometry, Get, Limits, Receiving, Sending, Span};
use crate::{
    base::flow::Flow,
    transfer::{Failure, Quiet},
};
use crate::{Refused, Time};
use wire::ds::{Ack, ConnId, Ended, Head, Message, Seq};

crate::flow! {
    /// States of a connection, with the names that TCP has for them.
    states StreamState {
        /// Both directions are open.
        Established,
        /// The own direction has ended, which the peer does not know yet.
        FinWait1,
        /// The own direction has ended.
        FinWait2,
        /// The peer's direction has ended.
        CloseWait,
        /// Both have ended, which the peer does not know yet.
        Closing,
        /// As `Closing`, but the peer's ended first.
        LastAck,
        /// It is over.
        Closed,
    }
    /// What happens to it.
    events Step {
        /// The own direction ends.
        Finish,
        /// The peer knows that.
        Acknowledged,
        /// The peer's direction ends.
        PeerFinished,
        /// It is aborted.
        Abort,
    }
    transitions {
        Established + Finish => FinWait1;
        Established + PeerFinished => CloseWait;
        Established + Abort => Closed;
        FinWait1 + Acknowledged => FinWait2;
        FinWait1 + PeerFinished => Closing;
        FinWait1 + Abort => Closed;
        FinWait2 + PeerFinished => Closed;
        FinWait2 + Abort => Closed;
        CloseWait + Finish => LastAck;
        CloseWait + Abort => Closed;
        Closing + Acknowledged => Closed;
        Closing + Abort => Closed;
        LastAck + Acknowledged => Closed;
        LastAck + Abort => Closed;
    }
}

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// Both directions have ended.
    Finished,
    /// The peer says so.
    Peer(Ended),
    /// The peer does not answer.
    TimedOut,
    /// The peer broke the rules.
    Broken(Broken),
    /// GETs from the peer's ring fail.
    FetchFailed,
    /// It was aborted here.
    Aborted,
    /// Data came after it was closed.
    Orphaned,
    /// Data came after the program had ended both directions.
    Unwanted,
    /// The peer did not finish after it was closed.
    OrphanTimeout,
    /// The NIC does not work any more.
    Down,
}

impl End {
    /// What the peer is told.
    const fn told(self) -> Option<Ended> {
        match self {
            Self::Finished | Self::Peer(_) | Self::Down => None,
            Self::TimedOut => Some(Ended::TimedOut),
            Self::Broken(_) => Some(Ended::Violation),
            _ => Some(Ended::Reset),
        }
    }
}

/// Takes messages and GETs.
pub trait Port {
    /// Sends a message to the peer; `data` is the place of its bytes in the send ring.
    ///
    /// # Errors
    ///
    /// `Later`: there is no room; [`Stream::pump`] has to be called when there is. `Never`: the port
    /// is dead.
    fn send(&mut self, message: &Message, data: Span) -> Result<(), Refused>;

    /// Posts a GET. What becomes of it is told to [`Stream::get_ended`]. It may not be posted after
    /// `post_by`, and has failed then, and at `deadline` if it is not done.
    ///
    /// # Errors
    ///
    /// `Later`: not now; it is tried again after a while, or once [`Stream::retry_gets`] says so.
    /// `Never`: it can't be, for this peer.
    fn get(&mut self, get: &Get, post_by: Time, deadline: Time) -> Result<(), Refused>;
}

/// What a message brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// No data.
    Nothing,
    /// Data, which has to be copied to the receive ring, with the lock held that the stream is
    /// behind.
    Data {
        /// Bytes of the message's data to leave out.
        skip: u16,
        /// Where the others go.
        to: Span,
    },
}

/// What the user of a socket can do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// There is something to read, or the end of the stream.
    pub readable: bool,
    /// There is room for a third of the send ring, or writing fails.
    pub writable: bool,
    /// The peer has finished.
    pub peer_finished: bool,
    /// It is over with an error.
    pub failed: bool,
}

/// Whether the send ring can be used for something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingFree {
    /// Not yet.
    No,
    /// Some time after the port has committed what was sent last, which [`Stream::committed`] has to
    /// be told.
    Uncommitted,
    /// At this time.
    At(Time),
    /// Yes: the peer has all that was in it.
    Now,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Stream {
    /// Its name at the peer.
    pub(super) peer: ConnId,
    /// Its name here.
    pub(super) own: ConnId,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) timing: Timing,
    pub(super) ring: u32,
    pub(super) state: StreamState,
    pub(super) end: Option<End>,
    /// When that was.
    pub(super) ended: Time,
    /// When the port had committed the last message of before that.
    pub(super) committed: Option<Time>,
    /// What the peer has to be told of that.
    pub(super) farewell: Option<Ended>,
    /// The peer has asked.
    pub(super) asked: bool,
    /// Something is missing, which it has to be told; and when it was told last, for which place.
    pub(super) gap: bool,
    pub(super) told_gap: Option<(u32, Time)>,
    /// Small data waits for company since then.
    pub(super) corked: Option<Time>,
    /// The program receives no more.
    pub(super) deaf: bool,
    /// Nobody has it open, since then.
    pub(super) orphan: Option<Time>,
    /// Of a source that was withdrawn the peer has to be told how much was taken: where it ended.
    pub(super) cut: Option<(Seq, u32)>,
    /// One was withdrawn while a reader had lent its memory: its end, and bytes.
    pub(super) late_cut: Option<(Seq, u32)>,
    /// Until then a reader is waited for who may take a source.
    pub(super) held_until: Option<Time>,
    /// GETs of which something may be on its way.
    pub(super) moving: u32,
    /// When a GET failed last: none is posted before the peer is known to have been alive after that.
    pub(super) failed_get: Option<Time>,
    /// Since when none succeeded, although some were tried.
    pub(super) stuck: Option<Time>,
    /// A GET was refused, and is tried again then.
    pub(super) retry: Option<Time>,
    /// Since when the port refuses them, which is not the peer's fault.
    pub(super) refused: Option<Time>,
    /// When data was sent once more because the peer said so.
    pub(super) rewound: Option<Time>,
    /// The port had no room.
    pub(super) blocked: bool,
    /// It has ended in order long enough ago.
    pub(super) lingered: bool,
    /// There is no port any more.
    pub(super) dead: bool,
    pub(super) counters: Counters,
}

impl Stream {
    /// A connection that both ends have agreed on. `own` is its name here, `peer` that at the peer.
    #[must_use]
    pub fn new(own: ConnId, peer: ConnId, geometry: &Geometry, now: Time) -> Self {
        Self {
            peer,
            own,
            sending: Sending::new(geometry),
            receiving: Receiving::new(geometry),
            timing: Timing::new(now),
            ring: geometry.send_ring,
            state: StreamState::Established,
            end: None,
            ended: now,
            committed: None,
            farewell: None,
            asked: false,
            gap: false,
            told_gap: None,
            corked: None,
            deaf: false,
            orphan: None,
            cut: None,
            late_cut: None,
            held_until: None,
            moving: 0,
            failed_get: None,
            stuck: None,
            retry: None,
            refused: None,
            rewound: None,
            blocked: false,
            dead: false,
            lingered: false,
            counters: Counters::default(),
        }
    }

    /// Its name here.
    #[must_use]
    pub fn own(&self) -> ConnId {
        self.own
    }

    /// Number of the byte that is expected next.
    #[must_use]
    pub fn next_number(&self) -> Seq {
        self.receiving.next()
    }

    /// Number of what is said next.
    #[must_use]
    pub fn own_number(&self) -> Seq {
        self.sending.emitted()
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> StreamState {
        self.state
    }

    /// Why it is over.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The sending direction.
    #[must_use]
    pub fn sending(&self) -> &Sending {
        &self.sending
    }

    /// The receiving direction.
    #[must_use]
    pub fn receiving(&self) -> &Receiving {
        &self.receiving
    }

    /// What happened.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether bytes can be written.
    #[must_use]
    pub fn can_send(&self) -> bool {
        matches!(
            self.state,
            StreamState::Established | StreamState::CloseWait
        )
    }

    /// What can be done now.
    #[must_use]
    pub fn ready(&self) -> Ready {
        let r = &self.receiving;
        Ready {
            readable: r.readable().len > 0 || r.is_finished() || self.end.is_some(),
            writable: !self.can_send() || self.sending.room().len >= self.ring / 3,
            peer_finished: r.is_finished() || self.end.is_some(),
            failed: self.end.is_some_and(|e| e != End::Finished),
        }
    }

    pub(super) fn step(&mut self, event: Step) {
        if let Some(next) = self.state.next(event) {
            self.state = next;
        }
    }

    fn finish_if_closed(&mut self, now: Time) {
        if self.state == StreamState::Closed && self.end.is_none() {
            self.end = Some(End::Finished);
            self.ended = now;
        }
    }

    pub(super) fn fail(&mut self, why: End, now: Time) {
        if self.end.is_some() {
            return;
        }
        self.step(Step::Abort);
        self.end = Some(why);
        self.ended = now;
        self.farewell = why.told();
    }

    /// Ends the connection at once. What was not sent is not sent; what was not read can be read.
    pub fn abort(&mut self, now: Time) {
        self.fail(End::Aborted, now);
    }

    /// The NIC does not work any more.
    pub fn down(&mut self, now: Time) {
        self.fail(End::Down, now);
        self.farewell = None;
        self.asked = false;
        self.dead = true;
    }

    /// `len` bytes more are in the send ring, where [`Sending::room`] said. With `more` little of
    /// it may wait for more. False if nothing can be sent any more: then they are not part of the
    /// stream.
    pub fn commit(&mut self, len: u32, more: bool, now: Time) -> bool {
        let taken = self.can_send();
        if taken {
            self.sending.commit(len);
            self.corked = more.then(|| self.corked.unwrap_or(now));
        }
        taken
    }

    /// There may be room for GETs again, of which the port has refused one.
    pub fn retry_gets(&mut self) {
        self.retry = None;
    }

    /// What waits for more goes.
    pub fn push(&mut self) {
        self.corked = None;
    }

    /// `len` bytes of [`Receiving::readable`] were read. Whether the peer has to be told now, there is
    /// room for more of a source, or somebody can take one to memory of their own: if not,
    /// [`Stream::pump`] has nothing to do on that account, and nobody has to be woken.
    pub fn consume(&mut self, len: u32, limits: &Limits) -> bool {
        self.receiving.consume(len);
        let receiving = &self.receiving;
        let sinks = receiving.is_held() && receiving.can_sink();
        receiving.has_news() || receiving.wants_fetch(limits) || sinks
    }

    /// Ends the own direction, behind what is in the send ring.
    pub fn shut(&mut self) {
        if self.can_send() {
            self.sending.finish();
            self.corked = None;
            self.step(Step::Finish);
        }
    }

    /// Refuses new data; what was received can still be read. If the own direction has ended, too, new
    /// data reset the connection, as with TCP, because the peer would otherwise wait for room for ever.
    pub fn deafen(&mut self) {
        self.deaf = true;
    }

    /// Nobody has it open any more. What was not read is lost, which the peer is told as TCP does:
    /// by a reset.
    pub fn close(&mut self, now: Time) {
        if self.receiving.has_unread() {
            self.abort(now);
        } else {
            self.shut();
            self.orphan = Some(now);
        }
    }

    /// Probes of an idle connection: after `idle`, `probes` times, `interval` apart. `None`: none.
    pub fn set_keepalive(&mut self, settings: Option<(u64, u64, u32)>) {
        let keepalive = settings.map(|(idle, interval, probes)| KeepAlive {
            idle,
            interval,
            probes,
        });
        self.timing.set_keepalive(keepalive);
    }

    /// After how long a peer that does not answer is given up, instead of [`Limits::give_up`].
    pub fn set_give_up(&mut self, after: Option<u64>) {
        self.timing.set_give_up(after);
    }

    /// What became of a GET: its outcome, and whether nothing of it can be on its way any more
    /// (`quiet`), at the same time or later. One that failed is made anew; the bytes are the same, so
    /// that it does not matter if those of the first one come late.
    pub fn get_ended(
        &mut self,
        id: u16,
        outcome: Option<Result<(), Failure>>,
        quiet: Option<Quiet>,
        limits: &Limits,
        now: Time,
    ) {
        if quiet.is_some() {
            self.moving = self.moving.saturating_sub(1);
        }
        // What took so long may be of a peer that has used its memory for something else.
        let late = self.receiving.is_late(id, now);
        let outcome = match outcome {
            Some(Ok(())) if late => Some(Err(Failure::TimedOut)),
            other => other,
        };
        match outcome {
            None => {}
            // What comes after the end may be of somebody else, who has the peer's memory now.
            Some(Ok(())) if self.end.is_some() => {}
            Some(Ok(())) => {
                self.stuck = None;
                self.receiving.fetched(id);
                self.cut_now();
                self.see_end(now);
            }
            Some(Err(why)) => {
                self.failed_get = Some(now);
                self.stuck = self.stuck.or(Some(now));
                let refused = matches!(why, Failure::Fault(_));
                let times = self.receiving.not_fetched(id, refused);
                self.cut_now();
                if why == Failure::Down {
                    self.fail(End::Down, now);
                } else if times >= limits.tries {
                    self.fail(End::FetchFailed, now);
                }
            }
        }
    }

    /// The peer's direction has ended when all of it is there.
    fn see_end(&mut self, now: Time) {
        if self.receiving.is_finished() {
            self.step(Step::PeerFinished);
            self.finish_if_closed(now);
        }
    }

    /// Takes a message of the peer for this connection, which was sent after `sent` (see
    /// [`age::Horizon`](crate::base::age::Horizon)).
    pub fn receive(&mut self, message: &Message, sent: Time, limits: &Limits, now: Time) -> Heard {
        let head = message.head();
        if !self.receiving.is_near(head.seq) {
            self.counters.foreign += 1;
            return Heard::Nothing;
        }
        if self.end.is_some() {
            // It has missed the farewell, or the last acknowledgement. Two that both know of the end
            // don't go on telling each other.
            let knows = match message {
                Message::RmaAvail { ask, .. } => !ask && self.end == Some(End::Finished),
                Message::Shutdown { how, .. } => *how != Ended::Finished,
                _ => false,
            };
            if !knows {
                self.farewell = self.end.and_then(End::told);
                self.asked = self.end == Some(End::Finished);
            }
            return Heard::Nothing;
        }
        let result = match *message {
            Message::Velo { len, .. } => {
                self.timing.heard(now, sent, false);
                self.data(head, len, false, now)
            }
            Message::VeloLast { ack, len, .. } => self
                .acknowledged(ack, sent, now)
                .and_then(|()| self.data(head, len, true, now)),
            Message::RmaInfo { ack, len, push, .. } => self
                .acknowledged(ack, sent, now)
                .and_then(|()| self.announced(head, len, push, now)),
            Message::RmaAvail {
                ack, ask, again, ..
            } => self.acknowledged(ack, sent, now).map(|()| {
                self.told(head, ask, again.then_some(limits), now);
                Heard::Nothing
            }),
            Message::Shutdown {
                ack,
                how: Ended::Finished,
                ..
            } => self
                .acknowledged(ack, sent, now)
                .and_then(|()| self.peer_finished(head, now)),
            Message::RmaSource {
                ack,
                nla,
                len,
                push,
                ..
            } => self
                .acknowledged(ack, sent, now)
                .and_then(|()| self.source(head, (nla, len), push, now)),
            Message::RmaCut { ack, end, len, .. } => self
                .acknowledged(ack, sent, now)
                .and_then(|()| self.withdrawn(end, len)),
            Message::RmaCutDone { ack, end, left, .. } => {
                // First, as what was left out is acknowledged, too.
                self.sending.cut_done(end, left);
                self.acknowledged(ack, sent, now).map(|()| Heard::Nothing)
            }
            Message::Shutdown { how, .. } => {
                // It has forgotten us since it has acknowledged the last we said.
                let last = matches!(self.state, StreamState::LastAck | StreamState::Closing);
                let done = how == Ended::Unknown && last && self.sending.all_acknowledged();
                if done {
                    self.step(Step::Acknowledged);
                    self.finish_if_closed(now);
                } else {
                    self.fail(End::Peer(how), now);
                }
                Ok(Heard::Nothing)
            }
        };
        result.unwrap_or_else(|broken| {
            self.fail(End::Broken(broken), now);
            Heard::Nothing
        })
    }

    fn acknowledged(&mut self, ack: Ack, sent: Time, now: Time) -> Result<(), Broken> {
        let news = self.sending.acknowledged(ack)?;
        self.timing.heard(now, sent, news);
        if news {
            self.rewound = None;
        }
        if self.sending.end_acknowledged() {
            self.step(Step::Acknowledged);
            self.finish_if_closed(now);
        }
        Ok(())
    }

    /// Ends the connection if new data cannot be read by any program; returns whether it did.
    pub(super) fn refuse(&mut self, now: Time) -> bool {
        let why = if self.orphan.is_some() {
            End::Orphaned
        } else if self.deaf && !self.can_send() {
            End::Unwanted
        } else {
            return false;
        };
        self.fail(why, now);
        true
    }

    fn data(&mut self, head: Head, len: u16, push: bool, now: Time) -> Result<Heard, Broken> {
        match self.fit(head, len.into()) {
            Some((skip, len)) if !self.refuse(now) => {
                let to = self.receiving.take(len, push)?;
                self.counters.velo_received += u64::from(len);
                let skip = skip as u16;
                Ok(Heard::Data { skip, to })
            }
            _ => Ok(Heard::Nothing),
        }
    }

    fn announced(&mut self, head: Head, len: u32, push: bool, now: Time) -> Result<Heard, Broken> {
        if let Some((_, len)) = self.fit(head, len) {
            if !self.refuse(now) {
                match self.receiving.announced(len, push)? {
                    true => self.counters.rma_received += u64::from(len),
                    // It is asked for again when it is missed.
                    false => self.counters.gaps += 1,
                }
            }
        }
        Ok(Heard::Nothing)
    }

    /// What of some bytes is to be taken: how many to leave out, and how many follow.
    pub(super) fn fit(&mut self, head: Head, len: u32) -> Option<(u32, u32)> {
        match self.receiving.fit(head.seq, len) {
            Fit::Next { skip, len } => return Some((skip, len)),
            Fit::Old => {
                self.counters.old += 1;
                self.asked = true;
            }
            Fit::Gap => {
                self.counters.gaps += 1;
                self.gap = true;
            }
            Fit::Foreign => self.counters.foreign += 1,
        }
        None
    }

    fn told(&mut self, head: Head, ask: bool, again: Option<&Limits>, now: Time) {
        self.asked |= ask;
        if self.receiving.next().before(head.seq) {
            self.counters.gaps += 1;
            self.gap = true;
        }
        let Some(limits) = again else {
            return;
        };
        // Once in a while, unless it has got something since: what was sent once more is on its way.
        let soon = |at: Time| now.since(at) < limits.ask / 2;
        if !self.rewound.is_some_and(soon) && self.sending.rewind() {
            self.rewound = Some(now);
            self.counters.rewinds += 1;
        }
    }

    fn peer_finished(&mut self, head: Head, now: Time) -> Result<Heard, Broken> {
        match self.receiving.fit(head.seq, 1) {
            Fit::Next { skip: 0, .. } if !self.receiving.knows_end() => {
                self.receiving.take_end();
                self.see_end(now);
            }
            Fit::Next { .. } => return Err(Broken::BehindEnd),
            Fit::Old => self.asked = true,
            Fit::Gap => self.gap = true,
            Fit::Foreign => {}
        }
        Ok(Heard::Nothing)
    }

    /// Whether the peer owes something.
    pub(super) fn needs_answer(&self) -> bool {
        let s = &self.sending;
        self.end.is_none() && (s.owes_ack() || s.wants_room() || s.cutting().is_some())
    }

    /// When [`Stream::pump`] has to be called, if nothing else happens: never in the past after it
    /// was. While the port has no room there is nothing to do but to wait for that.
    #[must_use]
    pub fn deadline(&self, limits: &Limits) -> Option<Time> {
        if self.end.is_some() {
            let lingers = self.end == Some(End::Finished) && !self.dead && !self.lingered;
            return lingers.then(|| self.ended.after(limits.linger));
        }
        let corked = self.corked.map(|since| since.after(limits.cork));
        let orphan = self.patience().map(|since| since.after(limits.orphan));
        let stuck = self
            .stuck
            .filter(|_| self.refused.is_none())
            .map(|since| since.after(self.timing.get_patience(limits)));
        let asks = match self.blocked {
            true => None,
            false => self.timing.deadline(limits),
        };
        let lent = self.lent_until(limits);
        let own = [self.retry, self.held_until, lent].into_iter();
        own.chain([asks, corked, orphan, stuck]).flatten().min()
    }

    /// Since when a peer is waited for that nobody but this connection waits for.
    pub(super) fn patience(&self) -> Option<Time> {
        let orphan = self.orphan?;
        Some(orphan.max(self.timing.last_progress()))
    }

    /// Whether nothing of it writes to the receive ring any more.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.moving == 0
    }

    /// Whether it can be forgotten: it is over, there is nothing to say and nothing on its way. One
    /// that has ended in order answers for [`Limits::linger`] a peer who has missed that.
    #[must_use]
    pub fn is_over(&self, now: Time, limits: &Limits) -> bool {
        let lingers = match self.end {
            None => true,
            Some(End::Finished) if self.dead => false,
            Some(End::Finished) => {
                self.receiving.has_news() || now.since(self.ended) < limits.linger
            }
            Some(_) => self.farewell.is_some(),
        };
        !lingers && self.is_quiet()
    }

    /// When the send ring can be used for something else.
    #[must_use]
    pub fn send_ring_free(&self, limits: &Limits) -> RingFree {
        match self.end {
            None => RingFree::No,
            Some(_) if self.sending.end_acknowledged() => RingFree::Now,
            // From when it was committed the last message of ours may be on its way for some time, and
            // may be answered by a GET within its time, which may be on its way for as long.
            Some(_) => match self.committed {
                None => RingFree::Uncommitted,
                Some(at) => {
                    let each = limits.fresh.saturating_add(limits.hold);
                    RingFree::At(at.after(each.saturating_mul(2)))
                }
            },
        }
    }

    /// The port has committed all messages of the connection that it took before its end, or has
    /// given up those that it has not. One that it took before and sends later would have a GET
    /// posted as late as that. What is said after the end has none posted: a peer that hears of an
    /// abort fetches nothing more, and one that has finished has nothing left to fetch.
    pub fn committed(&mut self, now: Time) {
        if self.end.is_some() && self.committed.is_none() {
            self.committed = Some(self.ended.max(now));
        }
    }

    /// Checks what must always hold.
    ///
    /// # Errors
    ///
    /// What does not.
    pub fn check(&self) -> Result<(), &'static str> {
        if (self.state == StreamState::Closed) != self.end.is_some() {
            return Err("it is closed without a reason, or has a reason and is not closed");
        }
        self.sending.check()?;
        self.receiving.check()
    }
}

/// What somebody is told who asks after a connection that is not there, or tells it something.
#[must_use]
pub fn unknown(message: &Message) -> Option<Message> {
    match *message {
        Message::RmaAvail { head, ack, own, .. } => Some(Message::Shutdown {
            head: Head {
                conn: own,
                seq: ack.ack,
                marks: 0,
            },
            ack: Ack {
                ack: head.seq,
                edge: head.seq,
            },
            how: Ended::Unknown,
        }),
        _ => None,
    }
}
