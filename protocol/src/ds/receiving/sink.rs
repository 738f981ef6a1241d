// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sources of the peer, and memory of readers that they go to.

use super::{FetchState, Pending, Receiving};
use crate::ds::Broken;
use wire::{ds::Seq, ids::Nla};

impl Receiving {
    /// Whether sources are taken.
    pub(in crate::ds) fn takes_sources(&self) -> bool {
        self.takes_sources
    }

    /// Bytes of a source that nobody has taken yet.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.pending.map_or(0, |s| s.end.since(self.known))
    }

    /// The next `len` bytes are in a source.
    ///
    /// # Errors
    ///
    /// The stream has ended, or there is no room for the first of them.
    pub(in crate::ds) fn source(&mut self, nla: Nla, len: u32, push: bool) -> Result<(), Broken> {
        self.check_room(1)?;
        self.pending = Some(Pending {
            end: self.known.plus(len),
            nla,
            push,
        });
        self.owed = self.known.plus(len);
        self.extend();
        Ok(())
    }

    /// Has as much of the source fetched to the ring as there is room for. Little is left until there is
    /// more.
    pub(super) fn extend(&mut self) {
        let Some(source) = self.pending else {
            return;
        };
        let left = source.end.since(self.known);
        let most = self.room().min(self.hold.unwrap_or(u32::MAX));
        let len = left.min(most);
        let little = len < left && self.hold.is_none() && len < self.quarter;
        if len == 0 || little || !self.note(len, Some(source.nla), None) {
            return;
        }
        self.hold = self.hold.map(|most| most - len);
        self.took(source, len);
    }

    /// `len` bytes of the source are to be fetched.
    fn took(&mut self, source: Pending, len: u32) {
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

    /// A reader waits who may take a source itself, but for the next `most` bytes, which go to the ring;
    /// or none does any more.
    pub(in crate::ds) fn hold(&mut self, most: Option<u32>) {
        self.hold = most;
        self.extend();
    }

    /// Whether a reader waits who may take a source.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Whether a reader can take some of the source: all before it was read.
    #[must_use]
    pub fn can_sink(&self) -> bool {
        self.pending.is_some() && self.count == 0 && self.known == self.read && self.sink.is_none()
    }

    /// The next bytes go to memory of a reader, which has room for `len`: how many do. None if there is
    /// no source, or something comes before it.
    pub(in crate::ds) fn offer(&mut self, len: u32) -> Option<u32> {
        let source = self.pending.filter(|_| self.can_sink())?;
        let len = len.min(self.pending());
        if len == 0 || !self.note(len, Some(source.nla), Some(0)) {
            return None;
        }
        self.sink = Some((self.known, self.known.plus(len)));
        self.took(source, len);
        Some(len)
    }

    /// Bytes that a reader has in its memory, and whether these are all that were to go there.
    #[must_use]
    pub fn sunk(&self) -> Option<(u32, bool)> {
        let (from, end) = self.sink?;
        let done = self.read.min(end);
        Some((done.since(from), done == end))
    }

    /// Whether something goes to a reader's memory, or is on its way to memory that was taken back.
    pub(in crate::ds) fn is_sinking(&self) -> bool {
        // All of it there is as good as taken back, whenever its owner looks.
        let going = self.sink.is_some_and(|(_, end)| self.read.before(end));
        going || self.fetches().iter().any(|f| f.stray)
    }

    /// The reader's memory is not to be used any more: how many bytes are there. What was on its way is
    /// fetched anew, to the ring.
    pub(in crate::ds) fn withdraw_sink(&mut self) -> u32 {
        let Some((from, end)) = self.sink.take() else {
            return 0;
        };
        for f in self.fetches.iter_mut().take(self.count) {
            if f.sink.take().is_none() {
                continue;
            }
            // None of its GETs has written to the ring.
            f.failed = 0;
            match f.state {
                FetchState::Due => {}
                // The peer's memory is not over while it may be read.
                FetchState::Moving => f.stray = true,
                FetchState::Here => f.state = FetchState::Due,
            }
        }
        self.extend();
        self.read.min(end).since(from)
    }

    /// Whether nothing was posted of the last bytes of a source that are to be fetched, with nothing
    /// behind them.
    fn is_last_unused(&self) -> bool {
        self.fetches().last().is_some_and(|f| {
            let never = f.state == FetchState::Due && f.failed == 0;
            never && f.source.is_some() && f.from.plus(f.len) == self.known
        })
    }

    /// What nothing was posted of is not wanted any more, of the source that begins at `from`. Where a
    /// GET has failed it may still write, and what follows would be at that place: it is fetched.
    fn pop_unused(&mut self, from: Seq) {
        while from.before(self.known) && self.is_last_unused() {
            let last = self.count.checked_sub(1);
            let Some(f) = last.and_then(|i| self.fetches.get_mut(i)) else {
                break;
            };
            // It may begin in another source.
            self.known = f.from.max(from);
            f.len = self.known.since(f.from);
            self.count -= usize::from(f.len == 0);
            self.pushed = self.pushed.min(self.known);
        }
    }

    /// The peer withdraws a source from `from` to `end`, of which the former was announced: how many bytes
    /// of it were left out. None if another one is not taken yet.
    ///
    /// # Errors
    ///
    /// The stream has ended before, or the reader is not past as many as there may be.
    pub(in crate::ds) fn withdraw(&mut self, from: Seq, end: Seq) -> Result<Option<u32>, Broken> {
        if !self.next().before(end) && self.pending.is_none_or(|s| s.end != end) {
            // All of it is to be fetched, or it was withdrawn before. A reader who took all of it, and
            // then his memory back, has left some that there may be no room for in the ring for long.
            let known = self.cut.filter(|(at, _)| *at == end);
            let taken_back = self.next() == end && self.is_last_unused() && !self.finished;
            if known.is_some() || !taken_back {
                return Ok(Some(known.map_or(0, |(_, left)| left)));
            }
        }
        if self.finished {
            return Err(Broken::BehindEnd);
        }
        if self.pending.is_some_and(|s| s.end != end) {
            return Ok(None);
        }
        if self.voids.is_full() {
            return Err(Broken::Voids);
        }
        self.pop_unused(from);
        // Nothing comes that would push what is there.
        self.pushed = self.pushed.max(self.known);
        self.voids.add(self.known, end);
        let left = end.since(self.known);
        self.owed = self.known;
        self.pending = None;
        self.known = end;
        self.cut = Some((end, left));
        self.pass();
        Ok(Some(left))
    }
}
