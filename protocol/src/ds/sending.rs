// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sending direction of a stream: contents of the send ring, and the progress of sending them.

use super::{
    source::{Source, Sources, Withdrawn},
    Geometry, Limits, SourceId, SourceState, Span, Violation,
};
use wire::{
    ds::{Ack, Seq, LAST_DATA, MORE_DATA, SOURCE_MAX},
    ids::Nla,
};

/// Maximum number of data bytes in a message with an acknowledgement.
const LAST: u32 = LAST_DATA as u32;

/// Next message of the sending direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Emission {
    /// Message with data, which is directly followed by further data.
    More { seq: Seq, len: u16 },
    /// Message with data and an acknowledgement.
    Last { seq: Seq, len: u16 },
    /// Announcement of data in the send ring.
    Announce { seq: Seq, len: u32, push: bool },
    /// Announcement of data in a source.
    Source {
        seq: Seq,
        len: u32,
        nla: Nla,
        push: bool,
    },
    /// Withdrawal of a source.
    Cut { seq: Seq, len: u32 },
    /// End of the stream.
    Finish { seq: Seq },
}

/// Sending direction of a stream. The sequence numbers are in the order `una` ≤ `emit` ≤ `high` ≤
/// `end`, and `high` is not after `edge`. Two exceptions exist: the end of the stream may be at
/// `edge`, and a source may reach beyond `edge` if its first byte is before `edge`.
#[derive(Debug)]
pub struct Sending {
    isn: Seq,
    ring: u32,
    peer_ring: u32,
    /// All bytes before this sequence number are acknowledged.
    una: Seq,
    /// All bytes before this sequence number were sent since the last rewind.
    emit: Seq,
    /// All bytes before this sequence number were sent at least once.
    high: Seq,
    /// All bytes before this sequence number are in the send ring or in a source.
    end: Seq,
    /// The peer's receive ring can accept all bytes before this sequence number.
    edge: Seq,
    /// True if the program has ended this direction, so that `end` is final.
    finished: bool,
    /// True if the peer accepts sources.
    accepts_sources: bool,
    sources: Sources,
}

impl Sending {
    /// Returns a sending direction without data, whose peer has an empty receive ring.
    #[must_use]
    pub(super) fn new(g: &Geometry) -> Self {
        let isn = g.send_isn;
        Self {
            isn,
            ring: g.send_ring,
            peer_ring: g.peer_ring,
            una: isn,
            emit: isn,
            high: isn,
            end: isn,
            edge: isn.plus(g.peer_ring),
            finished: false,
            accepts_sources: g.sources,
            sources: Sources::default(),
        }
    }

    /// Returns the number of unacknowledged bytes.
    #[must_use]
    pub fn unacknowledged(&self) -> u32 {
        self.end.since(self.una.min(self.end))
    }

    /// Returns the number of bytes that were never sent.
    #[must_use]
    pub fn unsent(&self) -> u32 {
        self.end.since(self.high.min(self.end))
    }

    /// Returns the free bytes of the send ring. The next byte of the stream belongs to the first of
    /// them.
    #[must_use]
    pub fn room(&self) -> Span {
        Span {
            at: self.ring_offset(self.end),
            // Bytes of sources count too, because sequence numbers determine the offsets in the
            // ring.
            len: self.ring.saturating_sub(self.unacknowledged()),
        }
    }

    /// Returns the maximum size of the next source in bytes; 0 if no source is possible now.
    #[must_use]
    pub fn source_room(&self) -> u32 {
        if self.accepts_sources && !self.finished && self.sources.has_room(self.peer_read()) {
            SOURCE_MAX
        } else {
            0
        }
    }

    /// Returns true if the maximum number of sources is in use. The program need only wait, because
    /// sources finish without its action.
    #[must_use]
    pub fn sources_full(&self) -> bool {
        self.sources.is_full()
    }

    /// Returns true if any source exists.
    pub(super) fn has_sources(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Returns the state of a source; `None` after
    /// [`Stream::disown_source`](super::Stream::disown_source), or after a withdrawal before the
    /// announcement.
    #[must_use]
    pub fn source(&self, id: SourceId) -> Option<SourceState> {
        self.sources.state(id, self.una)
    }

    /// Appends a source of `len` bytes at `nla`. Returns `None` if no source is possible now.
    pub(super) fn commit_source(&mut self, len: u32, nla: Nla) -> Option<SourceId> {
        if len == 0 || len > self.source_room() {
            return None;
        }
        let id = self.sources.add(self.end, len, nla)?;
        self.end = self.end.plus(len);
        Some(id)
    }

    /// Withdraws a source. Returns false if the caller must retry later.
    pub(super) fn withdraw(&mut self, id: SourceId, alone: bool) -> bool {
        let end = alone.then_some(self.end);
        match self.sources.cut(id, self.una, self.high, end) {
            Withdrawn::Notify(from) => self.emit = self.emit.min(from.max(self.una)),
            Withdrawn::Removed(end) => self.end = end,
            Withdrawn::Retry => return false,
            Withdrawn::Done | Withdrawn::Unknown => {}
        }
        true
    }

    /// Returns true if a source that has an owner is finished.
    #[must_use]
    pub fn any_source_finished(&self) -> bool {
        self.sources.any_source_finished(self.una)
    }

    /// Records that the owner will not ask for the state of a source again.
    pub(super) fn disown(&mut self, id: SourceId) {
        self.sources.disown(id, self.una, self.peer_read());
    }

    /// Processes the peer's answer to a withdrawal: the last `left` bytes of the source that ends
    /// at `end` are not fetched.
    pub(super) fn cut_done(&mut self, end: Seq, left: u32) {
        self.sources.cut_done(end, left);
        self.sources.tidy(self.una, self.peer_read());
    }

    /// Returns the source whose withdrawal the peer has not answered.
    pub(super) fn cutting(&self) -> Option<&Source> {
        self.sources.cutting()
    }

    /// Returns a lower bound of the peer's read position.
    fn peer_read(&self) -> Seq {
        Seq(self.edge.0.wrapping_sub(self.peer_ring))
    }

    fn ring_offset(&self, seq: Seq) -> u32 {
        seq.since(self.isn) & (self.ring - 1)
    }

    /// Returns the location in the send ring of `len` bytes that begin at `seq`.
    pub(super) fn span(&self, seq: Seq, len: u32) -> Span {
        Span {
            at: self.ring_offset(seq),
            len,
        }
    }

    /// Appends `len` bytes of the send ring to the stream, but not more than [`Self::room`].
    pub(super) fn commit(&mut self, len: u32) {
        if !self.finished {
            self.end = self.end.plus(len.min(self.room().len));
        }
    }

    /// Ends this direction after the bytes in the send ring.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// Returns the next sequence number to send.
    pub(super) fn emitted(&self) -> Seq {
        self.emit
    }

    /// Returns true if sent bytes, or the sent end of the stream, are unacknowledged.
    pub(super) fn has_unacknowledged(&self) -> bool {
        self.una != self.high
    }

    /// Returns true if all bytes of an ended direction are acknowledged. The end itself may be
    /// unacknowledged.
    #[must_use]
    pub fn all_acknowledged(&self) -> bool {
        self.finished && !self.una.before(self.end)
    }

    /// Returns true if the peer acknowledged all bytes and the end of this direction.
    #[must_use]
    pub fn end_acknowledged(&self) -> bool {
        self.finished && self.una == self.end.plus(1)
    }

    /// Returns the number of bytes from `emit` on that can be sent together now. The bytes belong
    /// to one source, or to the send ring up to the next source.
    fn open(&self) -> u32 {
        if let Some(source) = self.sources.at(self.emit) {
            // Wait for the answer to an earlier withdrawal, because the peer stores only its last
            // answer.
            let before = |s: &Source| s.from().before(source.from());
            let asked = source.is_cut() && self.sources.cutting().is_some_and(before);
            // A withdrawn source that was announced before needs no free bytes at the peer.
            let again = source.is_cut() && self.emit.before(self.high);
            let open = !asked && (again || self.emit.before(self.edge));
            return if open {
                source.end().since(self.emit)
            } else {
                0
            };
        }
        let end = self.sources.next_from(self.emit, self.end);
        let limit = end.min(self.edge);
        if self.emit.before(limit) {
            limit.since(self.emit)
        } else {
            0
        }
    }

    /// Returns true if unsent bytes wait for free bytes in the peer's receive ring.
    pub(super) fn wants_room(&self) -> bool {
        self.open() == 0 && self.emit.before(self.end)
    }

    /// Returns the next message. While `corked`, less than `limits.threshold` new bytes are not
    /// sent.
    pub(super) fn next(&self, limits: &Limits, corked: bool) -> Option<Emission> {
        let (seq, left) = (self.emit, self.open());
        if let (Some(source), true) = (self.sources.at(seq), left > 0) {
            return Some(if source.is_cut() {
                Emission::Cut { seq, len: left }
            } else {
                Emission::Source {
                    seq,
                    len: left,
                    nla: source.nla_at(seq),
                    push: source.end() == self.end,
                }
            });
        }
        if left >= limits.threshold {
            let push = seq.plus(left) == self.end;
            return Some(Emission::Announce {
                seq,
                len: left,
                push,
            });
        }
        // Repeated bytes are not delayed.
        let last = self.sources.next_from(seq, self.end) == self.end;
        if corked && last && !self.finished && !seq.before(self.high) {
            return None;
        }
        match left {
            // Send the end only if the peer can accept all bytes before it. A peer with a pending
            // source would treat the end as a gap.
            0 if self.finished && seq == self.end && !self.edge.before(self.end) => {
                Some(Emission::Finish { seq })
            }
            0 => None,
            1..=LAST => Some(Emission::Last {
                seq,
                len: left as u16,
            }),
            _ => {
                // Leave at least one byte for the last message, which contains the acknowledgement.
                let len = (left - 1).min(MORE_DATA.into()) as u16;
                Some(Emission::More { seq, len })
            }
        }
    }

    /// Records that the message was sent.
    pub(super) fn sent(&mut self, what: Emission) {
        self.emit = match what {
            Emission::More { seq, len } | Emission::Last { seq, len } => seq.plus(len.into()),
            Emission::Announce { seq, len, .. }
            | Emission::Source { seq, len, .. }
            | Emission::Cut { seq, len } => seq.plus(len),
            Emission::Finish { seq } => seq.plus(1),
        };
        self.high = self.high.max(self.emit);
    }

    /// Processes an acknowledgement. Returns true if the acknowledged sequence number advanced.
    ///
    /// # Errors
    ///
    /// Returns an error if the peer acknowledged unsent bytes, or offered more free bytes than the
    /// size of its ring.
    pub(super) fn acknowledged(&mut self, ack: Ack) -> Result<bool, Violation> {
        if ack.ack.before(self.una) {
            return Ok(false);
        }
        if self.high.before(ack.ack) {
            return Err(Violation::Ack);
        }
        // The end of the stream has a sequence number, but needs no byte in the ring.
        let room = ack.edge.distance(ack.ack.min(self.end));
        if room < 0 || room as u32 > self.peer_ring {
            return Err(Violation::Edge);
        }
        let news = self.una != ack.ack || self.edge.before(ack.edge);
        self.una = ack.ack;
        self.emit = self.emit.max(self.una);
        self.edge = self.edge.max(ack.edge);
        self.sources.tidy(self.una, self.peer_read());
        Ok(news)
    }

    /// Marks all unacknowledged bytes as unsent. Returns true if there were any.
    pub(super) fn rewind(&mut self) -> bool {
        let back = self.una != self.emit;
        self.emit = self.una;
        back
    }

    /// Checks the invariants.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let end = self.end.plus(u32::from(self.finished));
        let order = [self.una, self.emit, self.high, end];
        if order.windows(2).any(|w| w[1].before(w[0])) {
            return Err("sequence numbers of the sender are out of order");
        }
        let plain = self.sources.is_empty();
        if plain && self.edge.before(self.high.min(self.end)) {
            return Err("more bytes were sent than the peer can accept");
        }
        if plain && self.unacknowledged() > self.ring {
            return Err("the send ring has more bytes than its size");
        }
        Ok(())
    }
}
