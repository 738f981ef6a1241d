// SPDX-License-Identifier: GPL-2.0-only

//! Memory that payload is fetched to, and the GETs that do so.

use super::{
    count::Count,
    memory::{Side, PAGES},
    Link, Ni, Places,
};
use crate::{
    fault::{self, Point},
    ffi::lnet::Wanted,
};
use extoll_core::{
    atu::Region,
    rma::transfer::{CallIn, Destination, Direction, Lists, Part, Request, RmaError, Span, Tell},
};
use kernel::{alloc::flags::GFP_NOWAIT, page::Page, prelude::*, time::Delta};
use kernel_ext::{
    mem::{Comb, FragmentList, PAGE},
    security,
};
use protocol::{
    base::marks::{marks, Mark, MARK_BYTES, MARK_DISTANCE},
    lnd::{GetFailure, Ticket},
    Time,
};
use wire::{
    ids::NodeId,
    lnd::{Source, TRAFFIC_CLASS},
};

/// Memory in a place.
struct Use {
    ticket: Ticket,
    memory: FragmentList,
    /// Until it is revoked.
    region: Option<Region>,
    mark: Mark,
    /// Nobody needs it any more, once nothing comes for it.
    over: bool,
}

/// All of it, by the numbers of places.
pub(super) struct Sinks(KVVec<Option<Use>>);

impl Sinks {
    /// For places with numbers below `size`. May sleep.
    pub(super) fn new(size: usize) -> Result<Self> {
        let mut all = KVVec::with_capacity(size, GFP_KERNEL)?;
        for _ in 0..size {
            all.push(None, GFP_KERNEL)?;
        }
        Ok(Self(all))
    }

    fn get(&mut self, place: u32) -> Option<&mut Use> {
        self.0.get_mut(place as usize)?.as_mut()
    }

    /// The message that is fetched to a place.
    pub(super) fn ticket_at(&mut self, place: u32) -> Option<Ticket> {
        Some(self.get(place)?.ticket)
    }

    /// All places are gone, and nothing is registered.
    pub(super) fn forget_places(&mut self) {
        for sink in self.0.iter_mut() {
            *sink = None;
        }
    }

    /// Whether there is none that LNet waits for.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().flatten().all(|sink| sink.over)
    }
}

/// Copies between bytes and `len` bytes of memory after the first `at`.
fn pieces(
    memory: &FragmentList,
    at: usize,
    len: usize,
) -> impl Iterator<Item = (usize, usize)> + '_ {
    let base = memory.pages().offset();
    let piece = move |f: kernel_ext::mem::Fragment| (f.page * PAGE + f.offset - base, f.len);
    memory.slice(at, len).map(piece)
}

impl Use {
    fn len(&self) -> u32 {
        self.memory.bytes() as u32
    }

    /// Where the marks of `len` bytes are, if the memory is one piece.
    fn comb(&self, len: u32) -> Option<Comb> {
        let mut all = pieces(&self.memory, 0, len as usize);
        let (at, _) = all.next()?;
        let step = MARK_DISTANCE as usize;
        let count = marks(len).count();
        all.next().is_none().then_some(Comb { at, step, count })
    }

    /// Puts marks into the memory.
    fn write_marks(&mut self, len: u32) {
        self.mark = security::random().to_le_bytes();
        if let Some(comb) = self.comb(len) {
            // All of it is in the list, which may be written.
            let _ = self.memory.pages().mark(comb, self.mark);
            return;
        }
        for at in marks(len) {
            let mut done = 0;
            for (place, n) in pieces(&self.memory, at as usize, MARK_BYTES as usize) {
                if let Some(part) = self.mark.get(done..done + n) {
                    // All of it is in the list, which may be written.
                    let _ = self.memory.pages().copy_from(place, part);
                }
                done += n;
            }
        }
    }

    /// Whether one is left.
    fn has_hole(&self) -> bool {
        if let Some(comb) = self.comb(self.len()) {
            let found = self.memory.pages().has_mark(comb, self.mark);
            return found.unwrap_or(true);
        }
        marks(self.len()).any(|at| {
            let mut found = Mark::default();
            let mut done = 0;
            for (place, n) in pieces(&self.memory, at as usize, MARK_BYTES as usize) {
                if let Some(part) = found.get_mut(done..done + n) {
                    let _ = self.memory.pages().copy_to(place, part);
                }
                done += n;
            }
            found == self.mark
        })
    }
}

/// Pages of this module's for so many bytes.
fn own_pages(len: usize) -> Result<FragmentList> {
    let mut pages = KVVec::with_capacity(len.div_ceil(PAGE), GFP_KERNEL)?;
    let mut left = len;
    while left > 0 {
        let n = left.min(PAGE);
        pages.push((Page::alloc_page(GFP_KERNEL)?, 0, n), GFP_KERNEL)?;
        left -= n;
    }
    FragmentList::from_pages(pages)
}

impl Ni {
    /// Memory for the payload of a message, and whether it is not where the payload belongs. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn memory(&self, to: &Wanted) -> Result<(FragmentList, bool)> {
        match to.pages() {
            // Pieces may be spread over more pages than a place has.
            Ok(list) if list.pages().len() <= PAGES && !fault::hit(Point::SinkGaps) => {
                self.counters.count(match list.fragments().len() {
                    1 => Count::Sinks,
                    _ => Count::SinkPieces,
                });
                Ok((list, false))
            }
            _ => {
                self.counters.count(Count::SinkCopies);
                Ok((own_pages(to.len())?, true))
            }
        }
    }

    /// Registers memory for the payload of a message; gives its place. With the lock of the machine.
    ///
    /// # Errors
    ///
    /// The memory: all places are in use, or it can't be registered now.
    pub(super) fn register(
        &self,
        places: &Places,
        ticket: Ticket,
        memory: FragmentList,
    ) -> Result<u32, FragmentList> {
        let taken = match fault::hit(Point::Sink) {
            true => None,
            false => places.take(Side::Sink),
        };
        let Some((number, place)) = taken else {
            self.counters.count(Count::NoPlace);
            return Err(memory);
        };
        let Ok(region) = place.register(memory.pages()) else {
            self.counters.count(Count::NotRegistered);
            places.put(number);
            return Err(memory);
        };
        let sink = Use {
            ticket,
            memory,
            region: Some(region),
            mark: Mark::default(),
            over: false,
        };
        if let Some(slot) = self.sinks.lock().0.get_mut(number as usize) {
            *slot = Some(sink);
        }
        Ok(number)
    }

    /// LNet has what was fetched to a place, or will not have it.
    pub(super) fn sink_done(&self, place: u32) {
        if let Some(sink) = self.sinks.lock().get(place) {
            sink.over = true;
        }
        let places = self.core.lock().places.clone();
        if let Some(places) = places {
            self.reap_sink(&places, place);
        }
    }

    /// Frees a place that nobody needs and that nothing comes for.
    pub(super) fn reap_sink(&self, places: &Places, place: u32) {
        let quiet = places.get(place).is_some_and(|p| p.told.is_quiet());
        let mut sinks = self.sinks.lock();
        if !quiet || !sinks.get(place).is_some_and(|sink| sink.over) {
            return;
        }
        let slot = sinks.0.get_mut(place as usize);
        let sink = slot.and_then(Option::take);
        drop(sinks);
        if let Some(sink) = sink {
            drop(sink);
            places.put(place);
        }
    }

    /// Has the registration of a place end; whether there is one. With the lock of the machine.
    pub(super) fn revoke_sink(&self, places: &Places, number: u32) -> bool {
        let region = self.sinks.lock().get(number).and_then(|s| s.region.take());
        match (region, places.get(number)) {
            (Some(region), Some(place)) => {
                place.revoke(region);
                true
            }
            _ => false,
        }
    }

    /// Begins a GET to a place. With the lock of the machine.
    pub(super) fn get(
        &self,
        (link, places): (&Link, &Places),
        number: u32,
        (node, source, len): (NodeId, Source, u32),
        (post_by, until, now): (Time, Time, Time),
    ) -> Result<(), GetFailure> {
        let failed = GetFailure::NotPosted;
        let place = places.get(number).ok_or(failed)?;
        let mut sinks = self.sinks.lock();
        let sink = sinks.get(number).ok_or(failed)?;
        sink.write_marks(len);
        let region = sink.region.as_ref().ok_or(failed)?;
        // One piece, as a rule. With the lock of the machine memory is not waited for.
        let mut all =
            pieces(&sink.memory, 0, len as usize).map(|(offset, n)| Part::new(region, offset, n));
        let first = [all.next().ok_or(failed)?];
        let mut several = KVVec::new();
        for part in all {
            if several.is_empty() {
                several
                    .extend_from_slice(&first, GFP_NOWAIT)
                    .map_err(|_| failed)?;
            }
            several.push(part, GFP_NOWAIT).map_err(|_| failed)?;
        }
        let parts = match several.is_empty() {
            true => &first[..],
            false => &several[..],
        };
        let remote = [Span {
            address: source.nla,
            len: len.into(),
        }];
        let delay = |at: Time| Delta::from_nanos(at.since(now) as i64);
        let request = Request {
            to: Destination {
                node,
                vpid: source.vpid,
                traffic_class: TRAFFIC_CLASS,
                tell: Tell::Nothing,
            },
            direction: Direction::Get,
            lists: Lists::Regions {
                local: parts,
                remote: &remote,
            },
            confirm: false,
            timeout: delay(until),
            context: CallIn::Poll,
        };
        place.told.begin();
        let told = place.told.clone();
        let posted = match fault::hit(Point::Get) {
            true => Err(RmaError::Busy),
            false => link
                .gets
                .submit_within(&request, Some(delay(post_by)), told),
        };
        posted.map(drop).map_err(|e| {
            place.told.unbegin();
            self.counters.count(Count::NotPosted);
            match e {
                RmaError::Fault(_) => GetFailure::Fault,
                _ => failed,
            }
        })
    }

    /// What a GET has brought.
    pub(super) fn check(
        &self,
        place: u32,
        result: Result<(), GetFailure>,
    ) -> Option<(Ticket, Result<(), GetFailure>)> {
        let mut sinks = self.sinks.lock();
        let sink = sinks.get(place)?;
        let hole = result.is_ok() && (sink.has_hole() || fault::hit(Point::Hole));
        let ticket = sink.ticket;
        if hole {
            self.counters.count(Count::Holes);
            return Some((ticket, Err(GetFailure::Lost)));
        }
        Some((ticket, result))
    }
}
