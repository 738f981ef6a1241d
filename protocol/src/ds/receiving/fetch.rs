// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Announced ranges and their GETs.

use super::{Fetch, FetchState, Get, Receiving};
use crate::{
    ds::{Limits, Span, FETCHES},
    Time,
};
use wire::ids::Nla;

impl Receiving {
    /// Notes the next `len` bytes for fetching, from a source or to a reader's memory. Bytes that
    /// follow the last range are merged with it. Returns false if `fetches` is full.
    pub(super) fn note(&mut self, len: u32, source: Option<Nla>, sink: Option<u32>) -> bool {
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
                let Some(place) = self.fetches.get_mut(self.count) else {
                    return false;
                };
                *place = Fetch {
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

    /// Returns whether a GET can be posted.
    pub(in crate::ds) fn wants_fetch(&self, limits: &Limits) -> bool {
        self.due(limits).is_some()
    }

    /// Returns the room of the ring from the first byte of `f` on.
    fn room_at(&self, f: &Fetch) -> u32 {
        let limit = self.read.plus(self.ring);
        match f.from.before(limit) {
            true => limit.since(f.from),
            false => 0,
        }
    }

    /// Returns the index of the first range for which a GET can be posted, and the number of bytes
    /// to fetch. While two GETs are in flight, the last range waits until it is a quarter of the
    /// ring, because later announcements may be merged with it.
    fn due(&self, limits: &Limits) -> Option<(usize, u32)> {
        let moving = self.fetches().iter();
        let moving = moving.filter(|f| f.state == FetchState::Moving).count();
        let waits = |f: &Fetch| {
            let new = f.failed == 0 && !f.is_rest && f.source.is_none();
            let grows = f.from.plus(f.len) == self.known && self.pending.is_none();
            moving >= 2 && new && grows && f.len < self.quarter.min(limits.chunk)
        };
        let all = self.fetches().iter().enumerate();
        let mut due = all.filter(|(_, f)| f.state == FetchState::Due);
        due.find_map(|(i, f)| {
            let room = match f.sink {
                Some(_) => f.len,
                // Only a range that a reader did not complete can lack room in the ring.
                None => self.room_at(f).min(f.len),
            };
            let whole = room == f.len;
            let part = room >= self.quarter && self.count < FETCHES;
            ((whole || part) && !waits(f)).then_some((i, room))
        })
    }

    /// Returns the next GET to post. A range longer than `limits.chunk` is divided if `fetches` has
    /// room for the remainder.
    pub(in crate::ds) fn next_get(&mut self, limits: &Limits) -> Option<Get> {
        let (at, room) = self.due(limits)?;
        let fetch = *self.fetches.get(at)?;
        let chunk = limits.chunk.min(room);
        if fetch.len > chunk && self.count < FETCHES {
            self.fetches.copy_within(at..self.count, at + 1);
            self.count += 1;
            let rest = self.fetches.get_mut(at + 1)?;
            rest.id = self.ids;
            rest.is_rest = true;
            rest.from = fetch.from.plus(chunk);
            rest.len = fetch.len - chunk;
            rest.source = rest.source.map(|nla| Nla(nla.0 + u64::from(chunk)));
            rest.sink = rest.sink.map(|at| at + chunk);
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
                at: self.place(fetch.from),
                len: fetch.len,
            },
            source: fetch.source,
            sink: fetch.sink,
            failed: fetch.failed,
        })
    }

    fn moving(&mut self, id: u16, state: FetchState) -> Option<&mut Fetch> {
        let all = self.fetches.get_mut(..self.count)?;
        all.iter_mut().find(|f| f.id == id && f.state == state)
    }

    /// Records that the GET was posted, and fails at `until`.
    pub(in crate::ds) fn posted(&mut self, id: u16, until: Time) {
        if let Some(f) = self.moving(id, FetchState::Due) {
            f.state = FetchState::Moving;
            f.until = until;
        }
    }

    /// Returns whether a GET in flight has exceeded its time.
    pub(in crate::ds) fn is_late(&self, id: u16, now: Time) -> bool {
        let mut all = self.fetches().iter();
        all.any(|f| f.id == id && f.state == FetchState::Moving && f.until < now)
    }

    /// Records that the GET was successful, and removes arrived ranges from the front.
    pub(in crate::ds) fn fetched(&mut self, id: u16) {
        if let Some(f) = self.moving(id, FetchState::Moving) {
            let stray = core::mem::take(&mut f.stray);
            f.state = match stray {
                true => FetchState::Due,
                false => FetchState::Here,
            };
        }
        let here = self
            .fetches()
            .iter()
            .take_while(|f| f.state == FetchState::Here);
        let here = here.count();
        for f in self.fetches.get(..here).unwrap_or_default() {
            // The owner of a reader's memory has already read these bytes.
            if f.sink.is_some() {
                self.read = f.from.plus(f.len);
            }
        }
        self.fetches.copy_within(here..self.count, 0);
        self.count -= here;
        self.pass();
    }

    /// Records that the GET failed and must be repeated. Returns how often a NIC unit refused it.
    pub(in crate::ds) fn not_fetched(&mut self, id: u16, refused: bool) -> u8 {
        match self.moving(id, FetchState::Moving) {
            Some(f) => {
                f.state = FetchState::Due;
                // The failed GET had a reader's memory as destination, so no GET wrote to the ring.
                let stray = core::mem::take(&mut f.stray);
                f.failed = f.failed.saturating_add(u8::from(!stray));
                f.refused = f.refused.saturating_add(u8::from(refused));
                f.refused
            }
            None => 0,
        }
    }
}
