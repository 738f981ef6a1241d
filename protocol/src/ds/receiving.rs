// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Receiving direction of a stream: contents of the receive ring, ranges to fetch,
//! acknowledgements.
//!
//! An announced range is a `Fetch`. Its states are in `FetchState`: `Due` → `InFlight` (GET
//! posted) → `Arrived`, or back to `Due` if the GET failed. A range in state `Arrived` is removed
//! when all ranges before it are removed.

use super::{
    source::{Pending, Voids},
    Geometry, Span, Violation, MAX_RANGES,
};
use crate::Time;
use wire::{
    ds::{Ack, Seq, SOURCE_MAX},
    ids::Nla,
};

mod fetch;
mod sink;

/// Relation of received bytes to the expected sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// The bytes are new, except `skip` known bytes at their beginning.
    Next {
        /// Number of known bytes.
        skip: u32,
        /// Number of new bytes.
        len: u32,
    },
    /// All bytes are known already.
    Old,
    /// Earlier bytes are missing.
    Gap,
    /// The sequence number is too far from the expected one.
    Foreign,
}

/// State of an announced range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum FetchState {
    /// A GET must be posted.
    #[default]
    Due,
    /// A GET is in flight.
    InFlight,
    /// The bytes of the range have arrived.
    Arrived,
}

/// Announced range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Fetch {
    id: u16,
    from: Seq,
    len: u32,
    /// NLA of the bytes in a source; `None` if they are in the peer's send ring.
    source: Option<Nla>,
    /// Offset of the destination in a reader's memory; `None` if it is the receive ring.
    sink: Option<u32>,
    /// True if the reader withdrew its memory while the GET was in flight. The result of the GET is
    /// then discarded.
    discard: bool,
    /// True for the second half of a divided range, which is fetched without waiting for further
    /// bytes.
    is_remainder: bool,
    state: FetchState,
    /// Time at which the GET in flight fails.
    until: Time,
    /// Number of failures (`failed`), and number of rejections by a NIC unit (`refused`).
    failed: u8,
    refused: u8,
}

/// GET to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Get {
    /// ID of the GET until its result is reported.
    pub id: u16,
    /// Bytes in the peer's send ring; ignored if `source` is set.
    pub from: Span,
    /// Destination in the receive ring; ignored if `sink` is set.
    pub to: Span,
    /// NLA of the bytes in a source; `None` if they are in the peer's send ring.
    pub source: Option<Nla>,
    /// Offset of the destination in the reader's memory; `None` if the destination is the receive
    /// ring.
    pub sink: Option<u32>,
    /// Number of earlier failures of this range.
    pub failed: u8,
}

/// Receiving direction of a stream.
#[derive(Debug)]
pub struct Receiving {
    isn: Seq,
    ring: u32,
    peer_send: u32,
    /// Maximum distance of an accepted sequence number from the expected one, in bytes. Sources
    /// increase the distance.
    near: u32,
    /// A quarter of the size of the receive ring or of the peer's send ring in bytes, whichever is
    /// smaller.
    quarter: u32,
    /// All bytes before this sequence number were received, or added to `fetches`.
    known: Seq,
    /// All bytes before this sequence number were read by the program.
    read: Seq,
    /// True if the end of the stream was received. Its sequence number is `known` − 1.
    finished: bool,
    /// Last acknowledgement sent to the peer.
    sent_ack: Ack,
    /// End of the peer's last complete send operation.
    pushed: Seq,
    /// Announced ranges in ascending order, of which the first `count` are valid. The list contains
    /// ranges that are due or in flight, and arrived ranges between them.
    fetches: [Fetch; MAX_RANGES],
    count: usize,
    /// ID of the next range. IDs of existing ranges are unique, because a ring has fewer ranges
    /// than IDs exist.
    ids: u16,
    /// End of the last source. The end is acknowledged as soon as all earlier bytes have arrived.
    source_end: Seq,
    /// Announced bytes of a source that follow `known` and are not in `fetches`.
    pending: Option<Pending>,
    voids: Voids,
    /// First sequence number of the bytes that are fetched to a reader's memory, and the sequence
    /// number after the last byte.
    sink: Option<(Seq, Seq)>,
    /// Number of bytes of sources that may still be fetched to the ring while a reader may provide
    /// a buffer; `None` if no such reader waits.
    hold: Option<u32>,
    /// End of the last withdrawn source, and number of bytes before the end that are left out.
    cut: Option<(Seq, u32)>,
    /// True if sources are accepted.
    accepts_sources: bool,
}

impl Receiving {
    pub(super) fn new(g: &Geometry) -> Self {
        let isn = g.receive_isn;
        Self {
            isn,
            ring: g.receive_ring,
            peer_send: g.peer_send,
            near: g.receive_ring.max(g.peer_send).saturating_mul(2),
            quarter: (g.receive_ring.min(g.peer_send) / 4).max(1),
            known: isn,
            read: isn,
            finished: false,
            sent_ack: Ack {
                ack: isn,
                edge: isn.plus(g.receive_ring),
            },
            pushed: isn,
            fetches: [Fetch::default(); MAX_RANGES],
            count: 0,
            ids: 0,
            source_end: isn,
            pending: None,
            voids: Voids::default(),
            sink: None,
            hold: None,
            cut: None,
            accepts_sources: g.sources,
        }
    }

    fn fetches(&self) -> &[Fetch] {
        self.fetches.get(..self.count).unwrap_or_default()
    }

    /// Returns the end of the bytes that were received or announced.
    fn data_end(&self) -> Seq {
        Seq(self.known.0.wrapping_sub(u32::from(self.finished)))
    }

    /// Returns the end of the bytes that have arrived without a gap.
    fn present(&self) -> Seq {
        self.fetches()
            .first()
            .map_or(self.data_end(), |fetch| fetch.from)
    }

    /// Returns true if unread bytes exist, including bytes that are still to be fetched.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.pending.is_some() || self.voids.bytes(self.read, self.data_end()) > 0
    }

    /// Returns consecutive unread bytes of the ring. More bytes may follow after a withdrawn range.
    #[must_use]
    pub fn readable(&self) -> Span {
        self.readable_behind(0)
    }

    /// Returns consecutive unread bytes of the ring after the first `skip` unread bytes.
    #[must_use]
    pub fn readable_behind(&self, skip: u32) -> Span {
        let (at, len) = self.voids.behind(self.read, self.present(), skip);
        Span {
            at: self.ring_offset(at),
            len,
        }
    }

    /// Returns the number of all unread bytes in the ring.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.voids.bytes(self.read, self.present())
    }

    /// Returns true if a reader should be woken, because a complete send operation or a quarter of
    /// the ring has arrived.
    #[must_use]
    pub fn is_pushed(&self) -> bool {
        let all = self.available();
        let pushed = self.read.before(self.pushed) && !self.present().before(self.pushed);
        // Wake a reader that waits for a source even for a few bytes before the source.
        all > 0 && (pushed || all >= self.quarter || self.hold.is_some())
    }

    /// Returns true if the end of the stream was received, with all bytes before it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished && self.count == 0 && self.pending.is_none()
    }

    /// Returns true if the peer announced the end of its stream.
    pub(super) fn knows_end(&self) -> bool {
        self.finished
    }

    fn ring_offset(&self, seq: Seq) -> u32 {
        seq.since(self.isn) & (self.ring - 1)
    }

    /// Returns the sequence number with which the next message of the peer must begin.
    pub(super) fn next(&self) -> Seq {
        self.pending.map_or(self.known, |source| source.end)
    }

    /// Returns true if a sequence number is close enough to the expected one to belong to this
    /// stream.
    pub(super) fn is_near(&self, seq: Seq) -> bool {
        let next = self.next();
        let far = if seq.before(next) {
            // The peer may repeat all bytes after the last acknowledgement that it was sent.
            next.since(self.sent_ack.ack.min(next))
        } else if self.accepts_sources {
            // An announcement of a source may be lost, so that the sequence number skips a whole
            // source.
            SOURCE_MAX
        } else {
            0
        };
        seq.distance(next).unsigned_abs() <= self.near.saturating_add(far)
    }

    /// Returns the relation of `len` bytes that begin at `seq` to the expected sequence number.
    pub(super) fn fit(&self, seq: Seq, len: u32) -> Fit {
        if !self.is_near(seq) {
            return Fit::Foreign;
        }
        let ahead = seq.distance(self.next());
        if ahead > 0 {
            return Fit::Gap;
        }
        let skip = ahead.unsigned_abs();
        match len.checked_sub(skip) {
            None | Some(0) => Fit::Old,
            // Bytes after a pending source are treated as a gap. The peer repeats them when the
            // remainder of the source has been accepted.
            Some(_) if self.pending.is_some() => Fit::Gap,
            Some(len) => Fit::Next { skip, len },
        }
    }

    fn check_room(&self, len: u32) -> Result<(), Violation> {
        if self.finished {
            return Err(Violation::BehindEnd);
        }
        if len > self.room() {
            return Err(Violation::Room);
        }
        Ok(())
    }

    /// Returns the number of free bytes of the ring after `known`.
    fn room(&self) -> u32 {
        self.ring.saturating_sub(self.known.since(self.read))
    }

    /// Accepts the next `len` bytes. Returns their destination in the ring.
    ///
    /// # Errors
    ///
    /// Returns an error if the ring has too few free bytes, or if the stream has ended.
    pub(super) fn accept(&mut self, len: u32, push: bool) -> Result<Span, Violation> {
        self.check_room(len)?;
        let span = Span {
            at: self.ring_offset(self.known),
            len,
        };
        self.advance(len, push);
        Ok(span)
    }

    fn advance(&mut self, len: u32, push: bool) {
        self.known = self.known.plus(len);
        if push {
            self.pushed = self.known;
        }
    }

    /// Adds the next `len` bytes to the ranges to fetch. Returns false if `fetches` is full.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Receiving::accept`], or [`Violation::Ring`] if the peer's send ring
    /// cannot hold all bytes since the last acknowledgement sent to the peer.
    pub(super) fn announced(&mut self, len: u32, push: bool) -> Result<bool, Violation> {
        self.check_room(len)?;
        if self.known.plus(len).since(self.sent_ack.ack) > self.peer_send {
            return Err(Violation::Ring);
        }
        let noted = self.add_range(len, None, None);
        if noted {
            self.advance(len, push);
        }
        Ok(noted)
    }

    /// Accepts the end of the stream.
    pub(super) fn accept_end(&mut self) {
        if !self.finished {
            self.finished = true;
            self.known = self.known.plus(1);
        }
    }

    /// Marks up to `len` readable bytes as read.
    pub(super) fn consume(&mut self, len: u32) {
        self.read = self.read.plus(len.min(self.readable().len));
        self.pass();
    }

    /// Skips withdrawn ranges at the read position. The ring may then have free bytes for the next
    /// bytes of a source.
    fn pass(&mut self) {
        self.read = self.voids.pass(self.read);
        self.pushed = self.pushed.max(self.read);
        self.extend();
    }

    /// Returns the acknowledgement to send.
    pub(super) fn ack(&self) -> Ack {
        let ack = match self.count {
            0 => self.known,
            _ => self.present(),
        };
        let edge = self.read.plus(self.ring);
        let ack = if self.finished {
            ack
        } else {
            // Withdrawn ranges may reach beyond the end of the ring.
            ack.min(edge)
        };
        Ack { ack, edge }
    }

    /// Records that `ack` was sent.
    pub(super) fn ack_sent(&mut self, ack: Ack) {
        self.sent_ack = ack;
    }

    /// Returns true if `ack` has advanced so far that it must be sent at once.
    pub(super) fn ack_is_due(&self) -> bool {
        let now = self.ack();
        if self.is_finished() {
            return now.ack != self.sent_ack.ack;
        }
        let whole = self.sent_ack.ack.before(self.source_end) && !now.ack.before(self.source_end);
        whole
            || now.edge.since(self.sent_ack.edge) >= self.quarter
            || now.ack.since(self.sent_ack.ack) >= self.quarter
    }

    /// Checks the invariants.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let bytes = self.voids.bytes(self.read, self.present());
        if self.sink.is_none() && bytes > self.ring {
            return Err("the receive ring has more bytes than its size");
        }
        let now = self.ack();
        if now.ack.before(self.sent_ack.ack) || now.edge.before(self.sent_ack.edge) {
            return Err("the last acknowledgement sent exceeds the bytes that have arrived");
        }
        let mut last = self.read;
        for f in self.fetches() {
            if f.from.before(last) || f.len == 0 || self.data_end().before(f.from.plus(f.len)) {
                return Err("ranges to fetch overlap, or were never announced");
            }
            last = f.from.plus(f.len);
        }
        match self.fetches().first().map(|f| f.state) {
            Some(FetchState::Arrived) => Err("the first range has arrived and was not removed"),
            _ => Ok(()),
        }
    }
}
