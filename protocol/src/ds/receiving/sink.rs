// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sources of the peer, and readers' memory as destination for them.

use super::{FetchState, Pending, Receiving};
use crate::ds::Violation;
use wire::{ds::Seq, ids::Nla};

impl Receiving {
    /// Returns whether sources are accepted.
    pub(in crate::ds) fn accepts_sources(&self) -> bool {
        self.accepts_sources
    }

    /// Returns the number of bytes of the pending source that have no destination yet.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.pending.map_or(0, |s| s.end.since(self.known))
    }

    /// Accepts a source with the next `len` bytes.
    ///
    /// # Errors
    ///
    /// The stream has ended, or the ring has no room for the first byte of the source.
    pub(in crate::ds) fn source(
        &mut self,
        nla: Nla,
        len: u32,
        push: bool,
    ) -> Result<(), Violation> {
        self.check_room(1)?;
        self.pending = Some(Pending {
            end: self.known.plus(len),
            nla,
            push,
        });
        self.source_end = self.known.plus(len);
        self.extend();
        Ok(())
    }

    /// Notes as many bytes of the pending source as the ring has room for. Less than a quarter of
    /// the ring is noted only at the end of the source, or while sources are kept for a reader.
    pub(super) fn extend(&mut self) {
        let Some(source) = self.pending else {
            return;
        };
        let left = source.end.since(self.known);
        let most = self.room().min(self.hold.unwrap_or(u32::MAX));
        let len = left.min(most);
        let little = len < left && self.hold.is_none() && len < self.quarter;
        if len == 0 || little || !self.add_range(len, Some(source.nla), None) {
            return;
        }
        self.hold = self.hold.map(|most| most - len);
        self.noted(source, len);
    }

    /// Moves `len` bytes of the source from `pending` to the noted bytes.
    fn noted(&mut self, source: Pending, len: u32) {
        self.advance(len, false);
        let whole = self.known == source.end;
        if whole && source.push {
            self.pushed = self.known;
        }
        self.pending = (!whole).then_some(Pending {
            nla: Nla(source.nla.0 + u64::from(len)),
            ..source
        });
    }

    /// Keeps sources for a reader, except the next `most` bytes, which are fetched to the ring.
    /// `None` ends this state.
    pub(in crate::ds) fn hold(&mut self, most: Option<u32>) {
        self.hold = most;
        self.extend();
    }

    /// Returns whether sources are kept for a reader.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Returns whether a reader's memory can be the destination: everything before the source was
    /// read.
    #[must_use]
    pub fn can_sink(&self) -> bool {
        self.pending.is_some() && self.count == 0 && self.known == self.read && self.sink.is_none()
    }

    /// Makes a reader's memory of `len` bytes the destination of the pending source. Returns the
    /// number of bytes to be fetched to it. Returns `None` if no source is pending, or bytes before
    /// it are unread.
    pub(in crate::ds) fn offer(&mut self, len: u32) -> Option<u32> {
        let source = self.pending.filter(|_| self.can_sink())?;
        let len = len.min(self.pending());
        if len == 0 || !self.add_range(len, Some(source.nla), Some(0)) {
            return None;
        }
        self.sink = Some((self.known, self.known.plus(len)));
        self.noted(source, len);
        Some(len)
    }

    /// Returns the number of bytes that have arrived in the reader's memory, and whether these are
    /// all.
    #[must_use]
    pub fn sunk(&self) -> Option<(u32, bool)> {
        let (from, end) = self.sink?;
        let done = self.read.min(end);
        Some((done.since(from), done == end))
    }

    /// Returns whether a GET to a reader's memory is due or in flight, including memory that was
    /// taken back.
    pub(in crate::ds) fn is_sinking(&self) -> bool {
        // A completed destination no longer counts, even if its owner has not noticed.
        let going = self.sink.is_some_and(|(_, end)| self.read.before(end));
        going || self.fetches().iter().any(|f| f.discard)
    }

    /// Ends the use of the reader's memory. Returns the number of bytes that have arrived in it.
    /// Ranges in flight are fetched again, to the ring.
    pub(in crate::ds) fn withdraw_sink(&mut self) -> u32 {
        let Some((from, end)) = self.sink.take() else {
            return 0;
        };
        for f in self.fetches.iter_mut().take(self.count) {
            if f.sink.take().is_none() {
                continue;
            }
            // The failed GETs had the reader's memory as destination, so none of them wrote to the
            // ring.
            f.failed = 0;
            match f.state {
                FetchState::Due => {}
                // The range stays until the GET has ended, because the GET still reads the peer's
                // memory.
                FetchState::InFlight => f.discard = true,
                FetchState::Arrived => f.state = FetchState::Due,
            }
        }
        self.extend();
        self.read.min(end).since(from)
    }

    /// Returns whether the last range is part of a source and had no GET yet.
    fn is_last_unused(&self) -> bool {
        self.fetches().last().is_some_and(|f| {
            let never = f.state == FetchState::Due && f.failed == 0;
            never && f.source.is_some() && f.from.plus(f.len) == self.known
        })
    }

    /// Removes ranges without GET of the source that begins at `from`, from the last one backwards.
    /// A range with a failed GET is still fetched, because that GET may write late to the offset of
    /// later bytes.
    fn pop_unused(&mut self, from: Seq) {
        while from.before(self.known) && self.is_last_unused() {
            let last = self.count.checked_sub(1);
            let Some(f) = last.and_then(|i| self.fetches.get_mut(i)) else {
                break;
            };
            // A merged range may begin in the source before.
            self.known = f.from.max(from);
            f.len = self.known.since(f.from);
            self.count -= usize::from(f.len == 0);
            self.pushed = self.pushed.min(self.known);
        }
    }

    /// Processes the withdrawal of the source `from`…`end`, whose begin was announced. Returns the
    /// number of bytes left out; `None` if another source is still pending.
    ///
    /// # Errors
    ///
    /// The stream has ended, or the reader has not passed eight withdrawn ranges.
    pub(in crate::ds) fn withdraw(
        &mut self,
        from: Seq,
        end: Seq,
    ) -> Result<Option<u32>, Violation> {
        if !self.next().before(end) && self.pending.is_none_or(|s| s.end != end) {
            // The source was noted completely, or withdrawn before. However, if a reader took its
            // memory back, its ranges may find no room in the ring for a long time. These are left
            // out.
            let known = self.cut.filter(|(at, _)| *at == end);
            let taken_back = self.next() == end && self.is_last_unused() && !self.finished;
            if known.is_some() || !taken_back {
                return Ok(Some(known.map_or(0, |(_, left)| left)));
            }
        }
        if self.finished {
            return Err(Violation::BehindEnd);
        }
        if self.pending.is_some_and(|s| s.end != end) {
            return Ok(None);
        }
        if self.voids.is_full() {
            return Err(Violation::TooManyWithdrawn);
        }
        self.pop_unused(from);
        // No later bytes of the source would wake the reader for the bytes present.
        self.pushed = self.pushed.max(self.known);
        self.voids.add(self.known, end);
        let left = end.since(self.known);
        self.source_end = self.known;
        self.pending = None;
        self.known = end;
        self.cut = Some((end, left));
        self.pass();
        Ok(Some(left))
    }
}
