// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The sending direction of a stream: what is in the send ring, and what of it was said.

use super::{
    source::{Source, Sources, Withdrawn},
    Broken, Geometry, Limits, SourceId, SourceState, Span,
};
use wire::{
    ds::{Ack, Seq, LAST_DATA, MORE_DATA, SOURCE_MAX},
    ids::Nla,
};

/// Bytes in a message that tells what was received.
const LAST: u32 = LAST_DATA as u32;

/// What is to be said next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Emission {
    /// Bytes, in a message; more follow at once.
    More { seq: Seq, len: u16 },
    /// Bytes, in a message.
    Last { seq: Seq, len: u16 },
    /// Bytes that the peer may fetch.
    Announce { seq: Seq, len: u32, push: bool },
    /// Bytes that the peer may fetch from elsewhere.
    Source {
        seq: Seq,
        len: u32,
        nla: Nla,
        push: bool,
    },
    /// Bytes that the peer shall not fetch any more.
    Cut { seq: Seq, len: u32 },
    /// The end.
    Finish { seq: Seq },
}

/// See the module's documentation. `una` ≤ `emit` ≤ `high` ≤ `end`, and all of them before `edge`
/// except that the end of the stream needs no room, and a source only where it begins.
#[derive(Debug)]
pub struct Sending {
    isn: Seq,
    ring: u32,
    peer_ring: u32,
    /// The peer has all before.
    una: Seq,
    /// All before was said to the peer, since it was last told to go back.
    emit: Seq,
    /// All before was said to the peer at some time.
    high: Seq,
    /// All before is in the send ring, or in a source.
    end: Seq,
    /// The peer has room for all before.
    edge: Seq,
    /// Nothing follows.
    finished: bool,
    /// The peer takes sources.
    takes_sources: bool,
    sources: Sources,
}

impl Sending {
    /// An empty send ring; the peer's ring is empty as well.
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
            takes_sources: g.sources,
            sources: Sources::default(),
        }
    }

    /// Bytes that the peer has not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> u32 {
        self.end.since(self.una.min(self.end))
    }

    /// Bytes that were not sent yet.
    #[must_use]
    pub fn unsent(&self) -> u32 {
        self.end.since(self.high.min(self.end))
    }

    /// Where the next bytes go in the send ring, as many as fit.
    #[must_use]
    pub fn room(&self) -> Span {
        Span {
            at: self.place(self.end),
            // So that each byte has its place: those of sources have numbers, too.
            len: self.ring.saturating_sub(self.unacknowledged()),
        }
    }

    /// Bytes that a source may have now; 0 if there can be none.
    #[must_use]
    pub fn source_room(&self) -> u32 {
        match self.takes_sources && !self.finished && self.sources.has_place(self.peer_read()) {
            true => SOURCE_MAX,
            false => 0,
        }
    }

    /// Whether there are as many sources as there may be, which will be over by themselves.
    #[must_use]
    pub fn is_lent_out(&self) -> bool {
        self.sources.is_full()
    }

    /// Whether there are sources that are not forgotten.
    pub(super) fn is_lending(&self) -> bool {
        !self.sources.is_empty()
    }

    /// What became of a source; nothing is known of one that was let go, or withdrawn before the peer
    /// was told of it.
    #[must_use]
    pub fn source(&self, id: SourceId) -> Option<SourceState> {
        self.sources.state(id, self.una)
    }

    /// `len` bytes more are at `nla`.
    pub(super) fn commit_source(&mut self, len: u32, nla: Nla) -> Option<SourceId> {
        if len == 0 || len > self.source_room() {
            return None;
        }
        let id = self.sources.add(self.end, len, nla)?;
        self.end = self.end.plus(len);
        Some(id)
    }

    /// Withdraws a source; false if that has to be tried again.
    pub(super) fn withdraw(&mut self, id: SourceId, alone: bool) -> bool {
        let end = alone.then_some(self.end);
        match self.sources.cut(id, self.una, self.high, end) {
            Withdrawn::Ask(from) => self.emit = self.emit.min(from.max(self.una)),
            Withdrawn::Unmade(end) => self.end = end,
            Withdrawn::Later => return false,
            Withdrawn::Quietly | Withdrawn::Gone => {}
        }
        true
    }

    /// Whether somebody who waits for a source can go on.
    #[must_use]
    pub fn is_any_over(&self) -> bool {
        self.sources.is_any_over(self.una)
    }

    /// Nobody asks after a source any more.
    pub(super) fn let_go(&mut self, id: SourceId) {
        self.sources.let_go(id, self.una, self.peer_read());
    }

    /// Of the source that ended at `end` the last bytes are not fetched.
    pub(super) fn cut_done(&mut self, end: Seq, left: u32) {
        self.sources.cut_done(end, left);
        self.sources.tidy(self.una, self.peer_read());
    }

    /// The source of which the peer has to say how much it takes.
    pub(super) fn cutting(&self) -> Option<&Source> {
        self.sources.cutting()
    }

    /// The peer's reader is here at least.
    fn peer_read(&self) -> Seq {
        Seq(self.edge.0.wrapping_sub(self.peer_ring))
    }

    fn place(&self, seq: Seq) -> u32 {
        seq.since(self.isn) & (self.ring - 1)
    }

    /// The bytes `seq`… in the send ring.
    pub(super) fn span(&self, seq: Seq, len: u32) -> Span {
        Span {
            at: self.place(seq),
            len,
        }
    }

    /// `len` bytes more are in the send ring, no more than there was room for.
    pub(super) fn commit(&mut self, len: u32) {
        if !self.finished {
            self.end = self.end.plus(len.min(self.room().len));
        }
    }

    /// Nothing follows.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// Where the peer is told to be.
    pub(super) fn emitted(&self) -> Seq {
        self.emit
    }

    /// Something was said that the peer has not acknowledged.
    pub(super) fn owes_ack(&self) -> bool {
        self.una != self.high
    }

    /// All bytes were acknowledged, and nothing follows; the end itself perhaps not.
    #[must_use]
    pub fn all_acknowledged(&self) -> bool {
        self.finished && !self.una.before(self.end)
    }

    /// The peer has all that was sent, and knows that nothing follows.
    #[must_use]
    pub fn end_acknowledged(&self) -> bool {
        self.finished && self.una == self.end.plus(1)
    }

    /// What could go now.
    fn open(&self) -> u32 {
        if let Some(source) = self.sources.at(self.emit) {
            // The peer knows how much it has left out of the last one only.
            let before = |s: &Source| s.from().before(source.from());
            let asked = source.is_cut() && self.sources.cutting().is_some_and(before);
            // What was withdrawn takes no room if it was said before.
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

    /// There is something to say that there is no room for.
    pub(super) fn wants_room(&self) -> bool {
        self.open() == 0 && self.emit.before(self.end)
    }

    /// What is to be said next. Less than `limits.threshold` waits while `corked`.
    pub(super) fn next(&self, limits: &Limits, corked: bool) -> Option<Emission> {
        let (seq, left) = (self.emit, self.open());
        if let (Some(source), true) = (self.sources.at(seq), left > 0) {
            return Some(match source.is_cut() {
                true => Emission::Cut { seq, len: left },
                false => Emission::Source {
                    seq,
                    len: left,
                    nla: source.place(seq),
                    push: source.end() == self.end,
                },
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
        // What was said once is said once more.
        let last = self.sources.next_from(seq, self.end) == self.end;
        if corked && last && !self.finished && !seq.before(self.high) {
            return None;
        }
        match left {
            // Behind a source that the peer has no room for yet it would count as lost.
            0 if self.finished && seq == self.end && !self.edge.before(self.end) => {
                Some(Emission::Finish { seq })
            }
            0 => None,
            1..=LAST => Some(Emission::Last {
                seq,
                len: left as u16,
            }),
            _ => {
                // The last message of a burst has something as well.
                let len = (left - 1).min(MORE_DATA.into()) as u16;
                Some(Emission::More { seq, len })
            }
        }
    }

    /// It was said.
    pub(super) fn said(&mut self, what: Emission) {
        self.emit = match what {
            Emission::More { seq, len } | Emission::Last { seq, len } => seq.plus(len.into()),
            Emission::Announce { seq, len, .. }
            | Emission::Source { seq, len, .. }
            | Emission::Cut { seq, len } => seq.plus(len),
            Emission::Finish { seq } => seq.plus(1),
        };
        self.high = self.high.max(self.emit);
    }

    /// Takes what the peer says it has; whether that is news.
    ///
    /// # Errors
    ///
    /// It can't be.
    pub(super) fn acknowledged(&mut self, ack: Ack) -> Result<bool, Broken> {
        if ack.ack.before(self.una) {
            return Ok(false);
        }
        if self.high.before(ack.ack) {
            return Err(Broken::Ack);
        }
        // The end takes a number, but no room.
        let room = ack.edge.distance(ack.ack.min(self.end));
        if room < 0 || room as u32 > self.peer_ring {
            return Err(Broken::Edge);
        }
        let news = self.una != ack.ack || self.edge.before(ack.edge);
        self.una = ack.ack;
        self.emit = self.emit.max(self.una);
        self.edge = self.edge.max(ack.edge);
        self.sources.tidy(self.una, self.peer_read());
        Ok(news)
    }

    /// What is not acknowledged is said once more; whether there is something.
    pub(super) fn rewind(&mut self) -> bool {
        let back = self.una != self.emit;
        self.emit = self.una;
        back
    }

    /// Checks what must always hold.
    ///
    /// # Errors
    ///
    /// What does not.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let end = self.end.plus(u32::from(self.finished));
        let order = [self.una, self.emit, self.high, end];
        if order.windows(2).any(|w| w[1].before(w[0])) {
            return Err("numbers of the sender are out of order");
        }
        let plain = self.sources.is_empty();
        if plain && self.edge.before(self.high.min(self.end)) {
            return Err("more was said than there is room for");
        }
        if plain && self.unacknowledged() > self.ring {
            return Err("the send ring has more than fits");
        }
        Ok(())
    }
}
