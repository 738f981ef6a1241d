// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The receiving direction of a stream: what is in the ring, what is to be fetched, and what the peer
//! was told of it.

use super::{
    source::{Pending, Voids},
    Broken, Geometry, Span, FETCHES,
};
use crate::Time;
use wire::{
    ds::{Ack, Seq, SOURCE_MAX},
    ids::Nla,
};

mod fetch;
mod sink;

/// What bytes at some place are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// The next ones, behind some that are known already.
    Next {
        /// That are known already.
        skip: u32,
        /// The next ones.
        len: u32,
    },
    /// All are known already.
    Old,
    /// Something before them is missing.
    Gap,
    /// They belong to no place that is near.
    Foreign,
}

/// Life of bytes that are to be fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum FetchState {
    /// A GET has to be posted.
    #[default]
    Due,
    /// One is on its way.
    Moving,
    /// They are there.
    Here,
}

/// Bytes that were announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Fetch {
    id: u16,
    from: Seq,
    len: u32,
    /// Where they are, if that is not the peer's ring.
    source: Option<Nla>,
    /// Where they go in a reader's memory, if that is not the ring.
    sink: Option<u32>,
    /// A reader has taken the memory back that its GET goes to: what that brings is of no use.
    stray: bool,
    /// Remainder of a piece that was divided; it does not wait for more.
    is_rest: bool,
    state: FetchState,
    /// Until when its GET has to be done.
    until: Time,
    /// How often it failed, and how often a unit refused it.
    failed: u8,
    refused: u8,
}

/// A GET to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Get {
    /// Names it until its outcome is known.
    pub id: u16,
    /// Bytes in the send ring of the peer, unless there is a `source`.
    pub from: Span,
    /// Where they go in the own ring, unless there is a `sink`.
    pub to: Span,
    /// Where the bytes are instead.
    pub source: Option<Nla>,
    /// Where they go in the reader's memory instead.
    pub sink: Option<u32>,
    /// How often it failed before.
    pub failed: u8,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Receiving {
    isn: Seq,
    ring: u32,
    peer_send: u32,
    /// How far from here a place may be.
    near: u32,
    /// A quarter of what peer or ring can hold.
    quarter: u32,
    /// All before was received or announced.
    known: Seq,
    /// All before was read.
    read: Seq,
    /// The end was received, at `known` − 1.
    finished: bool,
    /// What the peer was told.
    told: Ack,
    /// All before was the last of what was sent together.
    pushed: Seq,
    /// What is to be fetched, in ascending order, and some that was: the first so many.
    fetches: [Fetch; FETCHES],
    count: usize,
    /// The next name. A ring has fewer pieces than there are names: none is in use twice.
    ids: u16,
    /// Where a source ended that the peer has to be told of when all of it is there.
    owed: Seq,
    /// What follows `known`, and is in a source.
    pending: Option<Pending>,
    voids: Voids,
    /// Numbers that go to a reader's memory.
    sink: Option<(Seq, Seq)>,
    /// A reader waits who may take a source itself: of it no more than so many bytes go to the ring.
    hold: Option<u32>,
    /// The last source that was withdrawn: where it ended, and how many bytes before were left out.
    cut: Option<(Seq, u32)>,
    /// Sources are taken.
    takes_sources: bool,
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
            told: Ack {
                ack: isn,
                edge: isn.plus(g.receive_ring),
            },
            pushed: isn,
            fetches: [Fetch::default(); FETCHES],
            count: 0,
            ids: 0,
            owed: isn,
            pending: None,
            voids: Voids::default(),
            sink: None,
            hold: None,
            cut: None,
            takes_sources: g.sources,
        }
    }

    fn fetches(&self) -> &[Fetch] {
        self.fetches.get(..self.count).unwrap_or_default()
    }

    /// Where the bytes end that were received or announced.
    fn data_end(&self) -> Seq {
        Seq(self.known.0.wrapping_sub(u32::from(self.finished)))
    }

    /// Where the bytes end that are there without a hole.
    fn present(&self) -> Seq {
        self.fetches()
            .first()
            .map_or(self.data_end(), |fetch| fetch.from)
    }

    /// Whether there is something that was not read, be it still to be fetched.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.pending.is_some() || self.voids.bytes(self.read, self.data_end()) > 0
    }

    /// Bytes in the ring that were not read; behind them there may be others, after numbers that have
    /// none.
    #[must_use]
    pub fn readable(&self) -> Span {
        self.readable_behind(0)
    }

    /// The same behind the first `skip` of them.
    #[must_use]
    pub fn readable_behind(&self, skip: u32) -> Span {
        let (at, len) = self.voids.behind(self.read, self.present(), skip);
        Span {
            at: self.place(at),
            len,
        }
    }

    /// All bytes in the ring that were not read.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.voids.bytes(self.read, self.present())
    }

    /// Whether a reader should be woken for them: they are the last of what was sent together, or
    /// many.
    #[must_use]
    pub fn is_pushed(&self) -> bool {
        let all = self.available();
        let pushed = self.read.before(self.pushed) && !self.present().before(self.pushed);
        // Who waits for a source waits for little before it, too.
        all > 0 && (pushed || all >= self.quarter || self.hold.is_some())
    }

    /// Whether the stream ends behind them.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished && self.count == 0 && self.pending.is_none()
    }

    /// Whether the peer has said that nothing follows what it has said.
    pub(super) fn knows_end(&self) -> bool {
        self.finished
    }

    fn place(&self, seq: Seq) -> u32 {
        seq.since(self.isn) & (self.ring - 1)
    }

    /// What is announced next.
    pub(super) fn next(&self) -> Seq {
        self.pending.map_or(self.known, |source| source.end)
    }

    /// Whether a place is near.
    pub(super) fn is_near(&self, seq: Seq) -> bool {
        let next = self.next();
        let far = match seq.before(next) {
            // It may be said once more from where the peer was told to be.
            true => next.since(self.told.ack.min(next)),
            // A source may have got lost.
            false if self.takes_sources => SOURCE_MAX,
            false => 0,
        };
        seq.distance(next).unsigned_abs() <= self.near.saturating_add(far)
    }

    /// What `len` bytes at a place are.
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
            // It comes again when there was room for the rest of the source before it.
            Some(_) if self.pending.is_some() => Fit::Gap,
            Some(len) => Fit::Next { skip, len },
        }
    }

    fn check_room(&self, len: u32) -> Result<(), Broken> {
        if self.finished {
            return Err(Broken::BehindEnd);
        }
        if len > self.room() {
            return Err(Broken::Room);
        }
        Ok(())
    }

    /// Room behind what is known.
    fn room(&self) -> u32 {
        self.ring.saturating_sub(self.known.since(self.read))
    }

    /// Takes the next `len` bytes: where they go.
    ///
    /// # Errors
    ///
    /// There is no room, or the stream has ended.
    pub(super) fn take(&mut self, len: u32, push: bool) -> Result<Span, Broken> {
        self.check_room(len)?;
        let span = Span {
            at: self.place(self.known),
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

    /// The next `len` bytes are to be fetched; false if there is no place to note that.
    ///
    /// # Errors
    ///
    /// As for [`Receiving::take`]; or the peer's ring is not as long as what it has announced and was
    /// not told that it may forget.
    pub(super) fn announced(&mut self, len: u32, push: bool) -> Result<bool, Broken> {
        self.check_room(len)?;
        if self.known.plus(len).since(self.told.ack) > self.peer_send {
            return Err(Broken::Ring);
        }
        let noted = self.note(len, None, None);
        if noted {
            self.advance(len, push);
        }
        Ok(noted)
    }

    /// Takes the end.
    pub(super) fn take_end(&mut self) {
        if !self.finished {
            self.finished = true;
            self.known = self.known.plus(1);
        }
    }

    /// `len` bytes were read, no more than there were.
    pub(super) fn consume(&mut self, len: u32) {
        self.read = self.read.plus(len.min(self.readable().len));
        self.pass();
    }

    /// What comes next was read as far as there are no bytes; there may be room for more of a source.
    fn pass(&mut self) {
        self.read = self.voids.pass(self.read);
        self.pushed = self.pushed.max(self.read);
        self.extend();
    }

    /// What the peer is to be told.
    pub(super) fn ack(&self) -> Ack {
        let ack = match self.count {
            0 => self.known,
            _ => self.present(),
        };
        let edge = self.read.plus(self.ring);
        let ack = match self.finished {
            true => ack,
            // Numbers without bytes may be more than the ring has.
            false => ack.min(edge),
        };
        Ack { ack, edge }
    }

    /// It was told.
    pub(super) fn tell(&mut self, ack: Ack) {
        self.told = ack;
    }

    /// Whether there is enough news to tell them at once.
    pub(super) fn has_news(&self) -> bool {
        let now = self.ack();
        if self.is_finished() {
            return now.ack != self.told.ack;
        }
        let whole = self.told.ack.before(self.owed) && !now.ack.before(self.owed);
        whole
            || now.edge.since(self.told.edge) >= self.quarter
            || now.ack.since(self.told.ack) >= self.quarter
    }

    /// Checks what must always hold.
    ///
    /// # Errors
    ///
    /// What does not.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let bytes = self.voids.bytes(self.read, self.present());
        if self.sink.is_none() && bytes > self.ring {
            return Err("the ring has more than fits");
        }
        let now = self.ack();
        if now.ack.before(self.told.ack) || now.edge.before(self.told.edge) {
            return Err("the peer was told more than there is");
        }
        let mut last = self.read;
        for f in self.fetches() {
            if f.from.before(last) || f.len == 0 || self.data_end().before(f.from.plus(f.len)) {
                return Err("what is to be fetched overlaps, or was never announced");
            }
            last = f.from.plus(f.len);
        }
        match self.fetches().first().map(|f| f.state) {
            Some(FetchState::Here) => Err("what was fetched is not said to be there"),
            _ => Ok(()),
        }
    }
}
