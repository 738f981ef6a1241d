// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Announced ranges and their GETs.

use super::{Fetch, FetchState, Get, Receiving};
use crate::{
    ds::{Limits, Span, MAX_RANGES},
    Time,
};
use wire::ids::Nla;

impl Receiving {
    /// Adds the next `len` bytes to the ranges to fetch. `source` and `sink` are set if the bytes
    /// are in a source, or go to a reader's memory. Bytes that directly follow the last range are
    /// merged with that range. Returns false if `fetches` is full.
    pub(super) fn add_range(&mut self, len: u32, source: Option<Nla>, sink: Option<u32>) -> bool {
        let from = self.known;
        let follows = |f: &Fetch| {
            let behind = f.source.map(|nla| Nla(nla.0 + u64::from(f.len)));
            let fresh = f.state == FetchState::Due && f.failed == 0;
            fresh
                && f.from.plus(f.len) == from
                && behind == source
                && (f.sink, sink) == (None, None)
        };
        let last = self.count.checked_sub(1);
        match last.and_then(|i| self.fetches.get_mut(i)) {
            Some(f) if follows(f) => f.len += len,
            _ => {
                let Some(slot) = self.fetches.get_mut(self.count) else {
                    return false;
                };
                *slot = Fetch {
                    id: self.ids,
                    from,
                    len,
                    source,
                    sink,
                    ..Fetch::default()
                };
                self.ids = self.ids.wrapping_add(1);
                self.count += 1;
            }
        }
        true
    }

    /// Returns true if a GET can be posted.
    pub(in crate::ds) fn wants_fetch(&self, limits: &Limits) -> bool {
        self.due(limits).is_some()
    }

    /// Returns the number of bytes of the ring that can be written from the first byte of `f` on.
    fn room_at(&self, f: &Fetch) -> u32 {
        let limit = self.read.plus(self.ring);
        if f.from.before(limit) {
            limit.since(f.from)
        } else {
            0
        }
    }

    /// Returns the index of the first range for which a GET can be posted, and the number of bytes
    /// to fetch. While two GETs are in flight, the last range waits until it contains a quarter of
    /// the ring's size, because later announcements may be merged with the range.
    fn due(&self, limits: &Limits) -> Option<(usize, u32)> {
        let in_flight = self.fetches().iter();
        let in_flight = in_flight
            .filter(|f| f.state == FetchState::InFlight)
            .count();
        let waits = |f: &Fetch| {
            let new = f.failed == 0 && !f.is_remainder && f.source.is_none();
            let grows = f.from.plus(f.len) == self.known && self.pending.is_none();
            in_flight >= 2 && new && grows && f.len < self.quarter.min(limits.chunk)
        };
        let all = self.fetches().iter().enumerate();
        let mut due = all.filter(|(_, f)| f.state == FetchState::Due);
        due.find_map(|(i, f)| {
            let room = match f.sink {
                Some(_) => f.len,
                // Only a range whose reader withdrew its memory can be longer than the free bytes
                // of the ring.
                None => self.room_at(f).min(f.len),
            };
            let whole = room == f.len;
            let part = room >= self.quarter && self.count < MAX_RANGES;
            ((whole || part) && !waits(f)).then_some((i, room))
        })
    }

    /// Returns the next GET to post. A range longer than `limits.chunk` is divided if `fetches` has
    /// a free slot for the remainder.
    pub(in crate::ds) fn next_get(&mut self, limits: &Limits) -> Option<Get> {
        let (at, room) = self.due(limits)?;
        let fetch = *self.fetches.get(at)?;
        let chunk = limits.chunk.min(room);
        if fetch.len > chunk && self.count < MAX_RANGES {
            self.fetches.copy_within(at..self.count, at + 1);
            self.count += 1;
            let remainder = self.fetches.get_mut(at + 1)?;
            remainder.id = self.ids;
            remainder.is_remainder = true;
            remainder.from = fetch.from.plus(chunk);
            remainder.len = fetch.len - chunk;
            remainder.source = remainder.source.map(|nla| Nla(nla.0 + u64::from(chunk)));
            remainder.sink = remainder.sink.map(|at| at + chunk);
            self.ids = self.ids.wrapping_add(1);
            self.fetches.get_mut(at)?.len = chunk;
        }
        let fetch = self.fetches.get(at)?;
        Some(Get {
            id: fetch.id,
            from: Span {
                at: fetch.from.since(self.isn) & (self.peer_send - 1),
                len: fetch.len,
            },
            to: Span {
                at: self.ring_offset(fetch.from),
                len: fetch.len,
            },
            source: fetch.source,
            sink: fetch.sink,
            failed: fetch.failed,
        })
    }

    fn find_range(&mut self, id: u16, state: FetchState) -> Option<&mut Fetch> {
        let all = self.fetches.get_mut(..self.count)?;
        all.iter_mut().find(|f| f.id == id && f.state == state)
    }

    /// Records that the GET was posted and counts as failed at `until`.
    pub(in crate::ds) fn posted(&mut self, id: u16, until: Time) {
        if let Some(f) = self.find_range(id, FetchState::Due) {
            f.state = FetchState::InFlight;
            f.until = until;
        }
    }

    /// Returns true if the time-out of a GET in flight has passed.
    pub(in crate::ds) fn is_late(&self, id: u16, now: Time) -> bool {
        let mut all = self.fetches().iter();
        all.any(|f| f.id == id && f.state == FetchState::InFlight && f.until < now)
    }

    /// Records that the GET was successful, and removes arrived ranges from the front.
    pub(in crate::ds) fn fetched(&mut self, id: u16) {
        if let Some(f) = self.find_range(id, FetchState::InFlight) {
            let discard = core::mem::take(&mut f.discard);
            f.state = if discard {
                FetchState::Due
            } else {
                FetchState::Arrived
            };
        }
        let arrived = self
            .fetches()
            .iter()
            .take_while(|f| f.state == FetchState::Arrived);
        let arrived = arrived.count();
        for f in self.fetches.get(..arrived).unwrap_or_default() {
            // Bytes in a reader's memory count as read.
            if f.sink.is_some() {
                self.read = f.from.plus(f.len);
            }
        }
        self.fetches.copy_within(arrived..self.count, 0);
        self.count -= arrived;
        self.pass();
    }

    /// Records that the GET failed and must be repeated. Returns the number of times that a NIC
    /// unit rejected the GET.
    pub(in crate::ds) fn not_fetched(&mut self, id: u16, refused: bool) -> u8 {
        match self.find_range(id, FetchState::InFlight) {
            Some(f) => {
                f.state = FetchState::Due;
                // Do not count a discarded GET, because it wrote to a reader's memory and not to
                // the ring.
                let discard = core::mem::take(&mut f.discard);
                f.failed = f.failed.saturating_add(u8::from(!discard));
                f.refused = f.refused.saturating_add(u8::from(refused));
                f.refused
            }
            None => 0,
        }
    }
}
