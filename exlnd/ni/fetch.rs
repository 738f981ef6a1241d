// SPDX-License-Identifier: GPL-2.0-only

//! GETs of payload: the memory that they write, its registration, and its validity tags. The
//! comments of functions say where the caller holds the lock `core`. Functions acquire the lock
//! `sinks` themselves.

use super::{
    count::Count,
    memory::{Side, PAGES},
    Link, Ni, RegionSlots,
};
use crate::{
    fault::{self, Point},
    ffi::lnet::Wanted,
};
use extoll_core::{
    atu::Region,
    rma::transfer::{
        CallIn, Destination, Direction, Lists, Notify, RegionPart, Request, RmaError, Span,
    },
};
use kernel::{alloc::flags::GFP_NOWAIT, page::Page, prelude::*, time::Delta};
use kernel_ext::{
    mem::{FragmentList, TagPositions, PAGE},
    security,
};
use protocol::{
    base::validity::{tag_offsets, ValidityTag, TAG_BYTES, TAG_DISTANCE},
    lnd::{GetFailure, Ticket},
    Time,
};
use wire::{
    ids::NodeId,
    lnd::{Source, TRAFFIC_CLASS},
};

/// State of a registration slot that is the destination of a GET.
struct Use {
    ticket: Ticket,
    memory: FragmentList,
    /// `None` after the revocation was started.
    region: Option<Region>,
    /// Value of the validity tags that were written to the memory.
    tag: ValidityTag,
    /// Set when the message has ended. The slot is freed once no GET may write to it any more.
    finished: bool,
}

/// Destinations of GETs, indexed by the number of their registration slot.
pub(super) struct Sinks(KVVec<Option<Use>>);

impl Sinks {
    /// Creates a table for `size` registration slots. May sleep.
    pub(super) fn new(size: usize) -> Result<Self> {
        let mut all = KVVec::with_capacity(size, GFP_KERNEL)?;
        for _ in 0..size {
            all.push(None, GFP_KERNEL)?;
        }
        Ok(Self(all))
    }

    fn get(&mut self, number: u32) -> Option<&mut Use> {
        self.0.get_mut(number as usize)?.as_mut()
    }

    /// Returns the message that uses a slot.
    pub(super) fn ticket_at(&mut self, number: u32) -> Option<Ticket> {
        Some(self.get(number)?.ticket)
    }

    /// Removes all destinations after their registrations have ended.
    pub(super) fn forget_slots(&mut self) {
        for sink in self.0.iter_mut() {
            *sink = None;
        }
    }

    /// Returns whether LNet uses none of the destinations.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().flatten().all(|sink| sink.finished)
    }
}

/// Iterates over the contiguous ranges in the `len` bytes from offset `at`. An item contains the
/// position in the list of pages and the length in bytes.
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

    /// Returns the positions of the validity tags in `len` bytes; `None` if the memory is not
    /// contiguous.
    fn comb(&self, len: u32) -> Option<TagPositions> {
        let mut all = pieces(&self.memory, 0, len as usize);
        let (at, _) = all.next()?;
        let step = TAG_DISTANCE as usize;
        let count = tag_offsets(len).count();
        all.next()
            .is_none()
            .then_some(TagPositions { at, step, count })
    }

    /// Writes validity tags to the first `len` bytes of the memory.
    fn write_tags(&mut self, len: u32) {
        self.tag = security::random().to_le_bytes();
        if let Some(comb) = self.comb(len) {
            // Cannot fail: the range is inside the list, which is writable.
            let _ = self.memory.pages().write_tags(comb, self.tag);
            return;
        }
        for at in tag_offsets(len) {
            let mut done = 0;
            for (position, n) in pieces(&self.memory, at as usize, TAG_BYTES as usize) {
                if let Some(part) = self.tag.get(done..done + n) {
                    // Cannot fail: the range is inside the list, which is writable.
                    let _ = self.memory.pages().copy_from(position, part);
                }
                done += n;
            }
        }
    }

    /// Returns whether a validity tag was not overwritten, i.e. whether data are missing.
    fn has_hole(&self) -> bool {
        if let Some(comb) = self.comb(self.len()) {
            let found = self.memory.pages().has_tag(comb, self.tag);
            return found.unwrap_or(true);
        }
        tag_offsets(self.len()).any(|at| {
            let mut found = ValidityTag::default();
            let mut done = 0;
            for (position, n) in pieces(&self.memory, at as usize, TAG_BYTES as usize) {
                if let Some(part) = found.get_mut(done..done + n) {
                    let _ = self.memory.pages().copy_to(position, part);
                }
                done += n;
            }
            found == self.tag
        })
    }
}

/// Allocates `len` bytes of kernel pages as an intermediate buffer.
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
    /// Returns memory for the payload of a message, and whether the payload must be copied from
    /// that memory to its destination. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn memory(&self, to: &Wanted) -> Result<(FragmentList, bool)> {
        match to.pages() {
            // A scattered destination may have more pages than a registration slot.
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

    /// Registers memory for the payload of a message. Returns the slot number. The caller holds
    /// `core`.
    ///
    /// # Errors
    ///
    /// Returns the memory if no slot is free or if registration fails.
    pub(super) fn register(
        &self,
        slots: &RegionSlots,
        ticket: Ticket,
        memory: FragmentList,
    ) -> Result<u32, FragmentList> {
        let taken = if fault::hit(Point::Sink) {
            None
        } else {
            slots.claim(Side::Sink)
        };
        let Some((number, slot)) = taken else {
            self.counters.count(Count::NoSlot);
            return Err(memory);
        };
        let Ok(region) = slot.register(memory.pages()) else {
            self.counters.count(Count::NotRegistered);
            slots.free(number);
            return Err(memory);
        };
        let sink = Use {
            ticket,
            memory,
            region: Some(region),
            tag: ValidityTag::default(),
            finished: false,
        };
        if let Some(slot) = self.sinks.lock().0.get_mut(number as usize) {
            *slot = Some(sink);
        }
        Ok(number)
    }

    /// Marks a slot's destination as unused after its message has ended.
    pub(super) fn sink_done(&self, number: u32) {
        if let Some(sink) = self.sinks.lock().get(number) {
            sink.finished = true;
        }
        let slots = self.core.lock().slots.clone();
        if let Some(slots) = slots {
            self.reap_sink(&slots, number);
        }
    }

    /// Frees a slot whose message has ended and to which no GET may write any more.
    pub(super) fn reap_sink(&self, slots: &RegionSlots, number: u32) {
        let quiet = slots.get(number).is_some_and(|p| p.events.is_quiet());
        let mut sinks = self.sinks.lock();
        if !quiet || !sinks.get(number).is_some_and(|sink| sink.finished) {
            return;
        }
        let slot = sinks.0.get_mut(number as usize);
        let sink = slot.and_then(Option::take);
        drop(sinks);
        if let Some(sink) = sink {
            drop(sink);
            slots.free(number);
        }
    }

    /// Starts the revocation of a destination's registration. Returns whether the destination was
    /// registered. The caller holds `core`.
    pub(super) fn revoke_sink(&self, slots: &RegionSlots, number: u32) -> bool {
        let region = self.sinks.lock().get(number).and_then(|s| s.region.take());
        match (region, slots.get(number)) {
            (Some(region), Some(slot)) => {
                slot.revoke(region);
                true
            }
            _ => false,
        }
    }

    /// Posts a GET that writes to the destination in a slot. The caller holds `core`.
    pub(super) fn get(
        &self,
        (link, slots): (&Link, &RegionSlots),
        number: u32,
        (node, source, len): (NodeId, Source, u32),
        (post_by, until, now): (Time, Time, Time),
    ) -> Result<(), GetFailure> {
        let failed = GetFailure::NotPosted;
        let slot = slots.get(number).ok_or(failed)?;
        let mut sinks = self.sinks.lock();
        let sink = sinks.get(number).ok_or(failed)?;
        sink.write_tags(len);
        let region = sink.region.as_ref().ok_or(failed)?;
        // The destination is usually a single range. Allocations must not wait, because `core` is
        // held.
        let mut all = pieces(&sink.memory, 0, len as usize)
            .map(|(offset, n)| RegionPart::new(region, offset, n));
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
        let parts = if several.is_empty() {
            &first[..]
        } else {
            &several[..]
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
                notify: Notify::Nothing,
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
        slot.events.begin();
        let events = slot.events.clone();
        let posted = if fault::hit(Point::Get) {
            Err(RmaError::Busy)
        } else {
            link.gets
                .submit_within(&request, Some(delay(post_by)), events)
        };
        posted.map(drop).map_err(|e| {
            slot.events.unbegin();
            self.counters.count(Count::NotPosted);
            match e {
                RmaError::Fault(_) => GetFailure::Fault,
                _ => failed,
            }
        })
    }

    /// Checks the result of the GET in a slot. Returns the message, and an error if the GET failed
    /// or data are missing.
    pub(super) fn check(
        &self,
        number: u32,
        result: Result<(), GetFailure>,
    ) -> Option<(Ticket, Result<(), GetFailure>)> {
        let mut sinks = self.sinks.lock();
        let sink = sinks.get(number)?;
        let hole = result.is_ok() && (sink.has_hole() || fault::hit(Point::Hole));
        let ticket = sink.ticket;
        if hole {
            self.counters.count(Count::Holes);
            return Some((ticket, Err(GetFailure::Lost)));
        }
        Some((ticket, result))
    }
}
