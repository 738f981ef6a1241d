// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sources of the peer, and GETs from sources to readers' memory.

use super::{FetchState, Pending, Receiving};
use crate::ds::Violation;
use wire::{ds::Seq, ids::Nla};

impl Receiving {
    /// Returns true if sources are accepted.
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
    /// Returns an error if the stream has ended, or if the ring has no free byte for the first byte
    /// of the source.
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

    /// Adds bytes of the pending source to the ranges to fetch, as far as the ring has free bytes.
    /// Adds less than a quarter of the ring's size only at the end of the source, or while sources
    /// are delayed for a reader.
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

    /// Moves `len` bytes of the source from `pending` to the ranges to fetch.
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

    /// Delays GETs from sources for a reader, except GETs of the next `most` bytes, which are
    /// fetched to the ring. `None` ends the delay.
    pub(in crate::ds) fn hold(&mut self, most: Option<u32>) {
        self.hold = most;
        self.extend();
    }

    /// Returns true if GETs from sources are delayed for a reader.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Returns true if a reader's memory can be the destination, because all bytes before the
    /// source were read.
    #[must_use]
    pub fn can_sink(&self) -> bool {
        self.pending.is_some() && self.count == 0 && self.known == self.read && self.sink.is_none()
    }

    /// Makes a reader's memory of `len` bytes the destination of the pending source. Returns the
    /// number of bytes to be fetched to the memory. Returns `None` if no source is pending, or if
    /// bytes before the source are unread.
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

    /// Returns the number of bytes that have arrived in the reader's memory, and true if these are
    /// all bytes of the offer.
    #[must_use]
    pub fn sunk(&self) -> Option<(u32, bool)> {
        let (from, end) = self.sink?;
        let done = self.read.min(end);
        Some((done.since(from), done == end))
    }

    /// Returns true if a GET to a reader's memory is due or in flight, including memory that was
    /// withdrawn.
    pub(in crate::ds) fn is_sinking(&self) -> bool {
        // A destination that is filled does not count, even if its owner has not withdrawn it yet.
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
            // Reset the count, because the failed GETs wrote to the reader's memory and not to the
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

    /// Returns true if the last range belongs to a source and no GET was posted for it yet.
    fn is_last_unused(&self) -> bool {
        self.fetches().last().is_some_and(|f| {
            let never = f.state == FetchState::Due && f.failed == 0;
            never && f.source.is_some() && f.from.plus(f.len) == self.known
        })
    }

    /// Removes ranges of the source that begins at `from` for which no GET was posted, starting
    /// with the last range. A range with a failed GET is still fetched, because that GET may write
    /// late to ring offsets that later bytes would use.
    fn pop_unused(&mut self, from: Seq) {
        while from.before(self.known) && self.is_last_unused() {
            let last = self.count.checked_sub(1);
            let Some(f) = last.and_then(|i| self.fetches.get_mut(i)) else {
                break;
            };
            // A merged range may begin in the previous source.
            self.known = f.from.max(from);
            f.len = self.known.since(f.from);
            self.count -= usize::from(f.len == 0);
            self.pushed = self.pushed.min(self.known);
        }
    }

    /// Processes the withdrawal of the source `from`…`end`, whose first bytes were announced.
    /// Returns the number of bytes that are left out. Returns `None` if another source is still
    /// pending.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream has ended, or if the reader has not passed eight withdrawn
    /// ranges.
    pub(in crate::ds) fn withdraw(
        &mut self,
        from: Seq,
        end: Seq,
    ) -> Result<Option<u32>, Violation> {
        if !self.next().before(end) && self.pending.is_none_or(|s| s.end != end) {
            // All bytes of the source are in the ranges to fetch, or the source was withdrawn
            // before. If a reader withdrew its memory, ranges may not fit into the ring for a long
            // time. These ranges are left out.
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
        // Wake the reader for the present bytes, because no later bytes of the source will wake it.
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
