// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! State machine of a stream connection, which covers both directions and their end.
//!
//! States ([`StreamState`]) and events ([`StreamEvent`]) are those of TCP, without `TIME_WAIT`.
//! `Finish` comes from the program (`shut`, `close`), and `Acknowledged` and `PeerFinished` from
//! messages and GETs of the peer. `Abort` follows a protocol violation, a time-out, a `SHUTDOWN` of
//! the peer or a call of `abort`. Every connection ends in `Closed`, with its reason in [`End`].
//! The driver's duties are in the documentation of [`crate::ds`]; its actions on time-outs, and all
//! sending, are in `pump.rs`.

use super::receiving::Fit;
use super::timing::{KeepAlive, Timing};
use super::{Counters, Geometry, Get, Limits, Receiving, Sending, Span, Violation};
use crate::{
    base::flow::Flow,
    transfer::{Failure, Quiet},
};
use crate::{Time, TransportError};
use wire::ds::{Ack, ConnId, Ended, Head, Message, Seq};

crate::flow! {
    /// States of a connection, named like those of TCP.
    states StreamState {
        /// Both directions are open.
        Established,
        /// This end has ended its direction, and the end is not acknowledged yet.
        FinWait1,
        /// This end has ended its direction, and the peer acknowledged the end.
        FinWait2,
        /// The peer has ended its direction.
        CloseWait,
        /// Both ends have ended their directions, this end first, without an acknowledgement.
        Closing,
        /// Both ends have ended their directions, the peer first. The end of this direction is not
        /// acknowledged.
        LastAck,
        /// The connection has ended regularly or was aborted.
        Closed,
    }
    /// Events of a connection.
    events StreamEvent {
        /// This end ends its direction.
        Finish,
        /// The peer acknowledged the end of this direction.
        Acknowledged,
        /// The peer ended its direction, and all bytes of that direction have arrived.
        PeerFinished,
        /// The connection is aborted.
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

/// Reason of a connection's end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// Both directions have ended regularly.
    Finished,
    /// The peer sent `SHUTDOWN`.
    Peer(Ended),
    /// The peer does not answer.
    TimedOut,
    /// The peer violated the protocol.
    Broken(Violation),
    /// GETs from the peer's memory fail.
    FetchFailed,
    /// This end aborted the connection.
    Aborted,
    /// Data arrived after the program had closed the socket.
    Orphaned,
    /// Data arrived after the program had ended both directions.
    Unwanted,
    /// The peer did not end its direction in time after the program had closed the socket.
    OrphanTimeout,
    /// The NIC has failed.
    Down,
}

impl End {
    /// Returns the reason to send to the peer; `None` if no message must be sent.
    const fn shutdown_kind(self) -> Option<Ended> {
        match self {
            Self::Finished | Self::Peer(_) | Self::Down => None,
            Self::TimedOut => Some(Ended::TimedOut),
            Self::Broken(_) => Some(Ended::Violation),
            _ => Some(Ended::Reset),
        }
    }
}

/// Transport of a stream: VELO messages and RMA GETs.
pub trait Port {
    /// Sends a message to the peer. `data` is the location of the message's data in the send ring.
    ///
    /// # Errors
    ///
    /// Returns `Later` if the port is full; the driver must call [`Stream::pump`] when it can
    /// accept messages again. Returns `Never` if the port has failed.
    fn send(&mut self, message: &Message, data: Span) -> Result<(), TransportError>;

    /// Posts a GET. The port reports the result to [`Stream::get_ended`]. The GET fails if the NIC
    /// did not receive it before `post_by`, or if it has no result at `deadline`.
    ///
    /// # Errors
    ///
    /// Returns `Later` if the stream should try again; `Never` if the peer permits no GETs.
    fn get(&mut self, get: &Get, post_by: Time, deadline: Time) -> Result<(), TransportError>;
}

/// Result of a received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// The message has no new data.
    Nothing,
    /// The driver must copy data to the receive ring before it releases the lock of the stream.
    Data {
        /// Number of the message's data bytes to omit.
        skip: u16,
        /// Destination of the remaining bytes in the receive ring.
        to: Span,
    },
}

/// Operations that are possible on a socket now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// Data or the end of the stream can be read.
    pub readable: bool,
    /// A third of the send ring is free, or a write would fail at once.
    pub writable: bool,
    /// The peer has ended its direction.
    pub peer_finished: bool,
    /// The connection has ended with an error.
    pub failed: bool,
}

/// State of the send ring after the end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingFree {
    /// The connection has not ended.
    No,
    /// The time is unknown until the driver calls [`Stream::committed`].
    Uncommitted,
    /// The ring can be freed at this time.
    At(Time),
    /// The ring can be freed now, because the peer acknowledged all bytes.
    Now,
}

/// Connection with two directions.
#[derive(Debug)]
pub struct Stream {
    /// ID of the connection at the peer.
    pub(super) peer: ConnId,
    /// ID of the connection at this end.
    pub(super) own: ConnId,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) timing: Timing,
    pub(super) ring: u32,
    pub(super) state: StreamState,
    pub(super) end: Option<End>,
    /// Time at which the connection ended.
    pub(super) ended: Time,
    /// Time at which the port had committed all messages that were sent before the end.
    pub(super) committed: Option<Time>,
    /// Reason that must be sent to the peer.
    pub(super) pending_shutdown: Option<Ended>,
    /// True if the peer asked for an answer that was not sent yet.
    pub(super) asked: bool,
    /// Data are missing. `gap_reported`: expected sequence number and time of the last report.
    pub(super) gap: bool,
    pub(super) gap_reported: Option<(u32, Time)>,
    /// Time since which small data are delayed.
    pub(super) corked: Option<Time>,
    /// True if the program has ended receiving.
    pub(super) receive_shut: bool,
    /// Time at which the program closed the socket.
    pub(super) orphan: Option<Time>,
    /// Unsent answer to a withdrawal: end of the source, number of bytes left out.
    pub(super) cut: Option<(Seq, u32)>,
    /// Withdrawal that waits for GETs to a reader's memory: end and length of the source.
    pub(super) late_cut: Option<(Seq, u32)>,
    /// Time until which GETs from sources are delayed for a reader that stopped waiting.
    pub(super) held_until: Option<Time>,
    /// Number of GETs that may still write to memory.
    pub(super) gets_in_flight: u32,
    /// Time of the last failed GET. The next GET is posted after a later sign of life of the peer.
    pub(super) failed_get: Option<Time>,
    /// Time of the first failed GET since the last successful one.
    pub(super) stuck: Option<Time>,
    /// Time of the next attempt after the port refused a GET.
    pub(super) retry: Option<Time>,
    /// Time since which the port refuses GETs, which the time-out of the peer does not include.
    pub(super) refused: Option<Time>,
    /// Time at which data were last sent again because the peer requested it.
    pub(super) rewound: Option<Time>,
    /// True if the port was full when a message was to be sent.
    pub(super) blocked: bool,
    /// True if [`Limits::linger`] has passed since the regular end.
    pub(super) lingered: bool,
    /// True if the port has failed.
    pub(super) dead: bool,
    pub(super) counters: Counters,
}

impl Stream {
    /// Returns an established connection with its IDs at this end (`own`) and at the peer.
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
            pending_shutdown: None,
            asked: false,
            gap: false,
            gap_reported: None,
            corked: None,
            receive_shut: false,
            orphan: None,
            cut: None,
            late_cut: None,
            held_until: None,
            gets_in_flight: 0,
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

    /// Returns the ID of the connection at this end.
    #[must_use]
    pub fn own(&self) -> ConnId {
        self.own
    }

    /// Returns the sequence number with which the peer's next message must begin.
    #[must_use]
    pub fn received_to(&self) -> Seq {
        self.receiving.next()
    }

    /// Returns the number of the next sequence number to send.
    #[must_use]
    pub fn sent_to(&self) -> Seq {
        self.sending.emitted()
    }

    /// Returns the state of the connection.
    #[must_use]
    pub fn state(&self) -> StreamState {
        self.state
    }

    /// Returns the reason of the end; `None` while the connection is open.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Returns the sending direction.
    #[must_use]
    pub fn sending(&self) -> &Sending {
        &self.sending
    }

    /// Returns the receiving direction.
    #[must_use]
    pub fn receiving(&self) -> &Receiving {
        &self.receiving
    }

    /// Returns the statistics.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns true if the program can write bytes.
    #[must_use]
    pub fn can_send(&self) -> bool {
        matches!(
            self.state,
            StreamState::Established | StreamState::CloseWait
        )
    }

    /// Returns the operations that are possible now.
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

    pub(super) fn step(&mut self, event: StreamEvent) {
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
        self.step(StreamEvent::Abort);
        self.end = Some(why);
        self.ended = now;
        self.pending_shutdown = why.shutdown_kind();
    }

    /// Aborts the connection. Unsent data are dropped. Received data can still be read.
    pub fn abort(&mut self, now: Time) {
        self.fail(End::Aborted, now);
    }

    /// Ends the connection because the NIC has failed.
    pub fn down(&mut self, now: Time) {
        self.fail(End::Down, now);
        self.pending_shutdown = None;
        self.asked = false;
        self.dead = true;
    }

    /// Appends `len` bytes, which the driver copied to [`Sending::room`], to the stream. If `more`
    /// is true, small data may wait for further data. Returns false if the stream accepts no more
    /// data and the bytes were dropped.
    pub fn commit(&mut self, len: u32, more: bool, now: Time) -> bool {
        let taken = self.can_send();
        if taken {
            self.sending.commit(len);
            self.corked = more.then(|| self.corked.unwrap_or(now));
        }
        taken
    }

    /// Permits GETs again after the port refused one, because the port may accept GETs now.
    pub fn retry_gets(&mut self) {
        self.retry = None;
    }

    /// Ends the delay of small data.
    pub fn push(&mut self) {
        self.corked = None;
    }

    /// Marks `len` bytes of [`Receiving::readable`] as read. Returns true if the driver must call
    /// [`Stream::pump`], or wake a waiting reader for a source that its memory can receive.
    pub fn consume(&mut self, len: u32, limits: &Limits) -> bool {
        self.receiving.consume(len);
        let receiving = &self.receiving;
        let sinks = receiving.is_held() && receiving.can_sink();
        receiving.ack_is_due() || receiving.wants_fetch(limits) || sinks
    }

    /// Ends this direction after the bytes in the send ring.
    pub fn shut(&mut self) {
        if self.can_send() {
            self.sending.finish();
            self.corked = None;
            self.step(StreamEvent::Finish);
        }
    }

    /// Refuses new data. Received data can still be read. If this end's sending direction has ended
    /// too, new data abort the connection, as in TCP. Otherwise the peer would wait forever for
    /// free bytes in the receive ring.
    pub fn shut_receive(&mut self) {
        self.receive_shut = true;
    }

    /// Closes the connection. Unread data are lost, and the peer gets a reset, as in TCP.
    pub fn close(&mut self, now: Time) {
        if self.receiving.has_unread() {
            self.abort(now);
        } else {
            self.shut();
            self.orphan = Some(now);
        }
    }

    /// Sets keep-alive probes: idle time and interval in ticks, number. `None` disables them.
    pub fn set_keepalive(&mut self, settings: Option<(u64, u64, u32)>) {
        let keepalive = settings.map(|(idle, interval, probes)| KeepAlive {
            idle,
            interval,
            probes,
        });
        self.timing.set_keepalive(keepalive);
    }

    /// Sets the ticks after which a silent peer counts as dead; `None`: [`Limits::give_up`].
    pub fn set_give_up(&mut self, after: Option<u64>) {
        self.timing.set_give_up(after);
    }

    /// Processes the `outcome` of a GET. `quiet` is true when no late packet of the GET can arrive
    /// any more. The driver reports both together or in two calls. A failed GET is posted again. If
    /// its packets arrive late, they are harmless because they contain the same bytes.
    pub fn get_ended(
        &mut self,
        id: u16,
        outcome: Option<Result<(), Failure>>,
        quiet: Option<Quiet>,
        limits: &Limits,
        now: Time,
    ) {
        if quiet.is_some() {
            self.gets_in_flight = self.gets_in_flight.saturating_sub(1);
        }
        // After its deadline, a GET may have read memory that the peer had already reused.
        let late = self.receiving.is_late(id, now);
        let outcome = match outcome {
            Some(Ok(())) if late => Some(Err(Failure::TimedOut)),
            other => other,
        };
        match outcome {
            None => {}
            // After the end, a GET may have read memory that the peer had already reused.
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

    /// Ends the peer's direction if all its bytes have arrived.
    fn see_end(&mut self, now: Time) {
        if self.receiving.is_finished() {
            self.step(StreamEvent::PeerFinished);
            self.finish_if_closed(now);
        }
    }

    /// Processes a message of the peer for this connection. `sent` is a lower bound of the time at
    /// which it was sent (see [`AgeBound`](crate::base::age_bound::AgeBound)).
    pub fn receive(
        &mut self,
        message: &Message,
        sent: Time,
        limits: &Limits,
        now: Time,
    ) -> Received {
        let head = message.head();
        if !self.receiving.is_near(head.seq) {
            self.counters.foreign += 1;
            return Received::Nothing;
        }
        if self.end.is_some() {
            // Answer a peer that did not receive the last message of this end. Do not answer a peer
            // whose connection has ended too, because both ends would answer each other forever.
            let knows = match message {
                Message::RmaAvail { ask, .. } => !ask && self.end == Some(End::Finished),
                Message::Shutdown { how, .. } => *how != Ended::Finished,
                _ => false,
            };
            if !knows {
                self.pending_shutdown = self.end.and_then(End::shutdown_kind);
                self.asked = self.end == Some(End::Finished);
            }
            return Received::Nothing;
        }
        let result = match *message {
            Message::Velo { len, .. } => {
                self.timing.received(now, sent, false);
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
                self.avail_received(head, ask, again.then_some(limits), now);
                Received::Nothing
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
                // Process the answer before the acknowledgement, which includes the left-out bytes.
                self.sending.cut_done(end, left);
                self.acknowledged(ack, sent, now)
                    .map(|()| Received::Nothing)
            }
            Message::Shutdown { how, .. } => {
                // The peer has dropped the connection after it acknowledged all bytes.
                let last = matches!(self.state, StreamState::LastAck | StreamState::Closing);
                let done = how == Ended::Unknown && last && self.sending.all_acknowledged();
                if done {
                    self.step(StreamEvent::Acknowledged);
                    self.finish_if_closed(now);
                } else {
                    self.fail(End::Peer(how), now);
                }
                Ok(Received::Nothing)
            }
        };
        result.unwrap_or_else(|broken| {
            self.fail(End::Broken(broken), now);
            Received::Nothing
        })
    }

    fn acknowledged(&mut self, ack: Ack, sent: Time, now: Time) -> Result<(), Violation> {
        let news = self.sending.acknowledged(ack)?;
        self.timing.received(now, sent, news);
        if news {
            self.rewound = None;
        }
        if self.sending.end_acknowledged() {
            self.step(StreamEvent::Acknowledged);
            self.finish_if_closed(now);
        }
        Ok(())
    }

    /// Aborts the connection if no program can read new data, and returns true in this case.
    pub(super) fn refuse(&mut self, now: Time) -> bool {
        let why = if self.orphan.is_some() {
            End::Orphaned
        } else if self.receive_shut && !self.can_send() {
            End::Unwanted
        } else {
            return false;
        };
        self.fail(why, now);
        true
    }

    fn data(&mut self, head: Head, len: u16, push: bool, now: Time) -> Result<Received, Violation> {
        match self.fit(head, len.into()) {
            Some((skip, len)) if !self.refuse(now) => {
                let to = self.receiving.accept(len, push)?;
                self.counters.velo_received += u64::from(len);
                let skip = skip as u16;
                Ok(Received::Data { skip, to })
            }
            _ => Ok(Received::Nothing),
        }
    }

    fn announced(
        &mut self,
        head: Head,
        len: u32,
        push: bool,
        now: Time,
    ) -> Result<Received, Violation> {
        if let Some((_, len)) = self.fit(head, len) {
            if !self.refuse(now) {
                if self.receiving.announced(len, push)? {
                    self.counters.rma_received += u64::from(len);
                } else {
                    // The peer announces the range again when this end reports the gap.
                    self.counters.gaps += 1;
                }
            }
        }
        Ok(Received::Nothing)
    }

    /// Returns the numbers of known bytes and of new bytes; `None` if no byte is acceptable.
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

    fn avail_received(&mut self, head: Head, ask: bool, again: Option<&Limits>, now: Time) {
        self.asked |= ask;
        if self.receiving.next().before(head.seq) {
            self.counters.gaps += 1;
            self.gap = true;
        }
        let Some(limits) = again else {
            return;
        };
        // Repeated data may be in flight, so repetitions are half of `ask` apart.
        let soon = |at: Time| now.since(at) < limits.ask / 2;
        if !self.rewound.is_some_and(soon) && self.sending.rewind() {
            self.rewound = Some(now);
            self.counters.rewinds += 1;
        }
    }

    fn peer_finished(&mut self, head: Head, now: Time) -> Result<Received, Violation> {
        match self.receiving.fit(head.seq, 1) {
            Fit::Next { skip: 0, .. } if !self.receiving.knows_end() => {
                self.receiving.accept_end();
                self.see_end(now);
            }
            Fit::Next { .. } => return Err(Violation::BehindEnd),
            Fit::Old => self.asked = true,
            Fit::Gap => self.gap = true,
            Fit::Foreign => {}
        }
        Ok(Received::Nothing)
    }

    /// Returns true if this end waits for a message of the peer.
    pub(super) fn needs_answer(&self) -> bool {
        let s = &self.sending;
        self.end.is_none() && (s.has_unacknowledged() || s.wants_room() || s.cutting().is_some())
    }

    /// Returns the time of the next call of [`Stream::pump`], if no other event occurs. After
    /// `pump`, the time is in the future. While the port is full, the question timer is ignored.
    #[must_use]
    pub fn deadline(&self, limits: &Limits) -> Option<Time> {
        if self.end.is_some() {
            let lingers = self.end == Some(End::Finished) && !self.dead && !self.lingered;
            return lingers.then(|| self.ended.after(limits.linger));
        }
        let corked = self.corked.map(|since| since.after(limits.cork));
        let orphan = self.orphan_since().map(|since| since.after(limits.orphan));
        let stuck = self
            .stuck
            .filter(|_| self.refused.is_none())
            .map(|since| since.after(self.timing.get_timeout(limits)));
        let asks = self.timing.deadline(limits).filter(|_| !self.blocked);
        let lent = self.lent_until(limits);
        let own = [self.retry, self.held_until, lent].into_iter();
        own.chain([asks, corked, orphan, stuck]).flatten().min()
    }

    /// Returns the time of the last progress after the program closed the socket.
    pub(super) fn orphan_since(&self) -> Option<Time> {
        let orphan = self.orphan?;
        Some(orphan.max(self.timing.last_progress()))
    }

    /// Returns true if no GET can write to the receive ring any more.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.gets_in_flight == 0
    }

    /// Returns true if the connection can be dropped, because it has ended, no message is due, and
    /// no GET is in flight. After a regular end, the connection is kept for [`Limits::linger`] to
    /// answer a peer that did not receive the last message.
    #[must_use]
    pub fn can_drop(&self, now: Time, limits: &Limits) -> bool {
        let lingers = match self.end {
            None => true,
            Some(End::Finished) if self.dead => false,
            Some(End::Finished) => {
                self.receiving.ack_is_due() || now.since(self.ended) < limits.linger
            }
            Some(_) => self.pending_shutdown.is_some(),
        };
        !lingers && self.is_quiet()
    }

    /// Returns the time at which the send ring can be freed.
    #[must_use]
    pub fn send_ring_free(&self, limits: &Limits) -> RingFree {
        match self.end {
            None => RingFree::No,
            Some(_) if self.sending.end_acknowledged() => RingFree::Now,
            // The last message is in flight for up to `hold` after its commit. The message may then
            // cause a GET within `fresh`. This GET is in flight for up to `hold` too.
            Some(_) => match self.committed {
                None => RingFree::Uncommitted,
                Some(at) => {
                    let each = limits.fresh.saturating_add(limits.hold);
                    RingFree::At(at.after(each.saturating_mul(2)))
                }
            },
        }
    }

    /// Records that the port has committed or dropped all messages from before the end. An
    /// uncommitted message could still cause a GET. Messages from after the end cause no GET,
    /// because an aborted peer fetches no more bytes and a finished peer has fetched all bytes.
    pub fn committed(&mut self, now: Time) {
        if self.end.is_some() && self.committed.is_none() {
            self.committed = Some(self.ended.max(now));
        }
    }

    /// Checks the invariants.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub fn check(&self) -> Result<(), &'static str> {
        if (self.state == StreamState::Closed) != self.end.is_some() {
            return Err("the state and the reason of the end do not match");
        }
        self.sending.check()?;
        self.receiving.check()
    }
}

/// Returns the answer to a message for an unknown connection. The answer to `RMA_AVAIL`, which
/// contains the ID of the sender's connection, is `SHUTDOWN`. Other messages are not answered.
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
