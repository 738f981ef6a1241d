// SPDX-License-Identifier: GPL-2.0-only

//! NLA space and global address tables (GATs). Tables are made on demand, and freed when no region
//! needs them.
//!
//! The mutex `tables` of the unit protects all objects in this file, and the functions may sleep.
//! Only writing entries of a [`TableRange`] needs no lock and works in any context.

use super::{commands::Commands, TableAccount};
use crate::{context::Context, dma::DmaWords, quirks};
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::Arc,
    time::msecs_to_jiffies,
};
use kernel_ext::net::jiffies64;
use protocol::nic::{
    nla::{NlaRange, Space, SpaceError, Store},
    table_use::{pages_in_table, tables_of, SPAN},
    tickets::Ticket,
};
use wire::{
    atu::{GatBase, GAT_BYTES},
    ids::BusAddr,
    regs::atu,
};

/// Range of NLAs that was freed and is in its hold-off time.
#[derive(Clone, Copy)]
pub(super) struct HeldOff {
    range: NlaRange,
    /// Time at which the range was freed, in jiffies.
    since: u64,
    hold_off: HoldOff,
}

/// Policy for the hold-off time of freed NLAs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldOff {
    /// The range is held off only while other NLAs are free.
    Usual,
    /// The range is always held off for the full time, because late users cannot be notified.
    /// Ranges with this policy may occupy up to half of all NLAs.
    Full,
}

/// Preallocated tree node for a freed range. The key numbers all freed ranges.
pub(super) type HoldOffNode = RBTreeNodeReservation<u64, HeldOff>;

/// Free ranges of NLAs, stored in kernel memory.
pub(super) struct Ranges(KVVec<NlaRange>);

impl Store for Ranges {
    fn ranges(&self) -> &[NlaRange] {
        &self.0
    }

    fn ranges_mut(&mut self) -> &mut [NlaRange] {
        &mut self.0
    }

    fn reserve(&mut self, total: usize) -> bool {
        let more = total.saturating_sub(self.0.len());
        self.0.reserve(more, GFP_KERNEL).is_ok()
    }

    fn insert(&mut self, at: usize, range: NlaRange) {
        // Cannot fail: the caller has reserved capacity (contract of [`Store`]).
        let _ = self.0.insert_within_capacity(at, range);
    }

    fn remove(&mut self, at: usize) {
        let _ = self.0.remove(at);
    }
}

/// Global address table and its memory.
pub(super) struct Gat {
    memory: DmaWords,
    /// Index of the word of `memory` that holds the first entry.
    first: usize,
}

impl Gat {
    /// Allocates an empty table. May sleep.
    fn new(ctx: &Context) -> Result<Self> {
        const WORDS: usize = GAT_BYTES as usize / 8;
        let allocate = |words| ctx.with_bound(|dev| DmaWords::accounted(dev, words))?;
        let mut memory = allocate(WORDS)?;
        // Coherent memory is normally aligned to its size. From the contiguous area (`cma=`),
        // however, the kernel returns memory that is aligned to only 1 MiB.
        if memory.address().0 % GAT_BYTES != 0 {
            memory = allocate(2 * WORDS)?;
        }
        let start = memory.address().0;
        let first = (start.next_multiple_of(GAT_BYTES) - start) as usize / 8;
        Ok(Self { memory, first })
    }

    fn address(&self) -> BusAddr {
        BusAddr(self.memory.address().0 + self.first as u64 * 8)
    }

    /// Writes the entry of page `page` of the NLA space. The page must belong to this table.
    fn write(&self, page: u64, entry: u64) {
        self.memory
            .write(self.first + (page % SPAN) as usize, entry);
    }
}

struct Slot {
    gat: Arc<Gat>,
    /// Number of allocated pages in this table.
    used: u64,
    /// Set if the NIC may still cache translations of an earlier table at this index.
    stale: Option<Stale>,
}

/// Ticket of a flush that the NIC did not answer in time; `None` if no answer could be requested.
#[derive(Clone, Copy)]
struct Stale(Option<Ticket>);

/// NLA space and its tables.
pub(super) struct Tables {
    space: Option<Space<Ranges>>,
    /// Tables by index; `None` if no table exists there.
    slots: KVVec<Option<Slot>>,
    /// Unused tables that the NIC may still read, because it did not answer.
    pending: KVec<Arc<Gat>>,
    /// Ranges in their hold-off time, in the order in which they were freed.
    held_off: RBTree<u64, HeldOff>,
    /// Number of pages in ranges that are held off with [`HoldOff::Full`].
    held: u64,
    /// Number of ranges freed so far.
    returned: u64,
    /// Number of tables made so far.
    made: u64,
}

/// Allocated range of NLAs and its tables.
pub(super) struct TableRange {
    pub(super) range: NlaRange,
    gats: KVec<Arc<Gat>>,
}

impl TableRange {
    /// Writes the entry of page `page`. Returns `None` if the page is outside of the range. Any
    /// context.
    pub(super) fn write(&self, page: u64, entry: u64) -> Option<()> {
        let index = (page / SPAN).checked_sub(self.range.first / SPAN)?;
        self.gats.get(index as usize)?.write(page, entry);
        Some(())
    }

    /// Zeroes all entries. Any context. The duration is proportional to the number of pages.
    pub(super) fn zero(&self) {
        for page in self.range.first..self.range.end() {
            self.write(page, 0);
        }
    }

    /// Returns the subrange `range` with its tables. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` if `range` exceeds this range.
    pub(super) fn part(&self, range: NlaRange) -> Result<TableRange> {
        let mut gats = KVec::new();
        for index in tables_of(range) {
            let index = index.checked_sub(self.range.first / SPAN).ok_or(EINVAL)?;
            let gat = self.gats.get(index as usize).ok_or(EINVAL)?;
            gats.push(gat.clone(), GFP_KERNEL)?;
        }
        Ok(TableRange { range, gats })
    }
}

impl Tables {
    /// Makes the space of a NIC that is not set up or was shut down.
    pub(super) fn closed() -> Self {
        Self {
            space: None,
            slots: KVVec::new(),
            pending: KVec::new(),
            held_off: RBTree::new(),
            held: 0,
            returned: 0,
            made: 0,
        }
    }

    /// Makes a space for `limit` tables. Page 0 is never allocated, so that NLA 0 is always
    /// invalid.
    pub(super) fn open(&mut self, limit: u32) -> Result {
        let mut slots = KVVec::with_capacity(limit as usize, GFP_KERNEL)?;
        for _ in 0..limit {
            slots.push(None, GFP_KERNEL)?;
        }
        let bounds = NlaRange {
            first: 1,
            pages: (u64::from(limit) * SPAN).saturating_sub(1),
        };
        self.space = Some(Space::new(Ranges(KVVec::new()), bounds).map_err(|_| ENOMEM)?);
        self.slots = slots;
        Ok(())
    }

    /// Forbids further allocations.
    pub(super) fn refuse(&mut self) {
        self.space = None;
    }

    /// Frees all tables.
    pub(super) fn close(&mut self) {
        *self = Self::closed();
    }

    /// Allocates a range, with the requested alignment if possible, and makes tables for it.
    /// Charges `account`, if given. `hold_off` is the hold-off policy of the range. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the space is closed; `ENOSPC`; `ENOMEM`; `EDQUOT` if the account does not permit
    /// another table; `ETIMEDOUT` if the NIC does not confirm a new table.
    pub(super) fn allocate(
        &mut self,
        ctx: &Context,
        commands: &Commands,
        pages: u64,
        alignment: (u64, u64),
        (account, hold_off): (Option<&TableAccount>, HoldOff),
    ) -> Result<TableRange> {
        // A range that does not begin at a table boundary may need one table more.
        let gats = KVec::with_capacity((pages / SPAN) as usize + 2, GFP_KERNEL)?;
        self.end_expired();
        let half = self.slots.len() as u64 * SPAN / 2;
        if hold_off == HoldOff::Full && self.held + pages > half {
            return Err(ENOSPC);
        }
        let range = self.find(pages, alignment, account)?;
        let mut table_range = TableRange { range, gats };
        for index in tables_of(range) {
            let table = self.table(ctx, commands, index, pages_in_table(range, index));
            match table.and_then(|gat| Ok(table_range.gats.push(gat, GFP_KERNEL)?)) {
                Ok(()) => {}
                Err(e) => {
                    // Tables that were made for this range stay until a later region in them is
                    // freed.
                    let first = range.first;
                    let done = NlaRange {
                        first,
                        pages: (index * SPAN).saturating_sub(first),
                    };
                    self.unuse(done);
                    if let Some(space) = &mut self.space {
                        space.free(range);
                    }
                    return Err(e);
                }
            }
        }
        if let Some(account) = account {
            account.add(range);
        }
        Ok(table_range)
    }

    fn find(
        &mut self,
        pages: u64,
        (align, phase): (u64, u64),
        account: Option<&TableAccount>,
    ) -> Result<NlaRange> {
        let first = match self.find_free(pages, align, phase)? {
            Err(SpaceError::Full) if align > 1 => self.find_free(pages, 1, 0)?,
            other => other,
        }
        .map_err(|e| match e {
            SpaceError::Full => ENOSPC,
            SpaceError::NoMemory => ENOMEM,
            SpaceError::Invalid => EINVAL,
        })?;
        let range = NlaRange { first, pages };
        let (Some(account), Some(space)) = (account, &mut self.space) else {
            return Ok(range);
        };
        if account.may_add(range) {
            return Ok(range);
        }
        space.free(range);
        // Memory of other users may have filled the lower tables, so the tables that this user
        // already occupies are searched.
        account
            .find(|window| space.allocate_in(window, pages, 1, 0).ok())
            .map(|first| NlaRange { first, pages })
            .ok_or(EDQUOT)
    }

    /// Allocates pages of the space, and ends hold-off times early if necessary. Returns `ENODEV`
    /// if the space is closed.
    fn find_free(&mut self, pages: u64, align: u64, phase: u64) -> Result<Result<u64, SpaceError>> {
        loop {
            let space = self.space.as_mut().ok_or(ENODEV)?;
            match space.allocate(pages, align, phase) {
                Err(SpaceError::Full) if self.end_hold_off(u64::MAX, Some(HoldOff::Usual)) => {}
                other => return Ok(other),
            }
        }
    }

    /// Frees ranges whose hold-off time has passed.
    fn end_expired(&mut self) {
        let hold_off = msecs_to_jiffies(quirks::NLA_HOLD_OFF_MS) as u64;
        let until = jiffies64().saturating_sub(hold_off);
        while self.end_hold_off(until, None) {}
    }

    /// Frees the range with policy `only` that was freed first, or the first range of any policy
    /// for `None`. Returns false if no such range was freed at or before `until`.
    fn end_hold_off(&mut self, until: u64, only: Option<HoldOff>) -> bool {
        let mut all = self.held_off.iter();
        let oldest = all.find(|(_, r)| only.is_none_or(|hold_off| r.hold_off == hold_off));
        let oldest = oldest.filter(|(_, r)| r.since <= until);
        let oldest = oldest.map(|(number, held_off)| (*number, *held_off));
        let (Some((number, held_off)), Some(space)) = (oldest, &mut self.space) else {
            return false;
        };
        self.held_off.remove(&number);
        if held_off.hold_off == HoldOff::Full {
            self.held = self.held.saturating_sub(held_off.range.pages);
        }
        space.free(held_off.range);
        true
    }

    /// Returns table `index`, which is made if necessary, and adds `pages` to its number of used
    /// pages.
    fn table(
        &mut self,
        ctx: &Context,
        commands: &Commands,
        index: u64,
        pages: u64,
    ) -> Result<Arc<Gat>> {
        match self.slots.get_mut(index as usize) {
            None => return Err(ENOSPC),
            Some(None) => self.make(ctx, commands, index)?,
            Some(Some(slot)) => {
                // This function only polls, because other callers wait for the mutex.
                if let Some(Stale(ticket)) = slot.stale {
                    let ticket = ticket.or_else(|| commands.request(ctx));
                    let answered = commands.answered(ctx).answers(ticket);
                    slot.stale = (!answered).then_some(Stale(ticket));
                    if !answered {
                        // The first answer may be lost, so an answer to a later request is accepted
                        // as well.
                        commands.request(ctx);
                    }
                }
            }
        }
        match self.slots.get_mut(index as usize) {
            Some(Some(slot)) if slot.stale.is_none() => {
                slot.used += pages;
                Ok(slot.gat.clone())
            }
            _ => Err(ETIMEDOUT),
        }
    }

    /// Makes table `index`. It is stale until the NIC has confirmed that it flushed the
    /// translations of an earlier table. May sleep.
    fn make(&mut self, ctx: &Context, commands: &Commands, index: u64) -> Result {
        let gat = Gat::new(ctx)?;
        let base = GatBase::new(gat.address()).ok_or(ENOMEM)?;
        let gat = Arc::new(gat, GFP_KERNEL)?;
        {
            let hw = ctx.alive_access().ok_or(ENODEV)?;
            hw.rf.write(atu::gat(index as u32), base.raw());
        }
        // The NIC may cache translations of an earlier driver. Only a flush drops them (G17).
        let whole = NlaRange {
            first: index * SPAN,
            pages: SPAN,
        };
        commands.flush(ctx, whole);
        let stale = commands.wait(ctx).result.err().map(Stale);
        if let Some(slot) = self.slots.get_mut(index as usize) {
            let used = 0;
            *slot = Some(Slot { gat, used, stale });
        }
        self.made += 1;
        Ok(())
    }

    fn unuse(&mut self, range: NlaRange) {
        if range.pages == 0 {
            return;
        }
        for index in tables_of(range) {
            if let Some(Some(slot)) = self.slots.get_mut(index as usize) {
                slot.used -= pages_in_table(range, index).min(slot.used);
            }
        }
    }

    /// Frees a range. If `hold_off` is given, the range was in use and is held off first. Clears
    /// the base registers of tables that are not needed and returns these tables. The caller frees
    /// them after the NIC has answered ([`Commands::wait`]). If the NIC does not answer, the caller
    /// passes them to [`Tables::keep_pending`]. The table that became empty last is kept, because
    /// the next region probably needs it while other NLAs are held off. May sleep.
    pub(super) fn free(
        &mut self,
        ctx: &Context,
        commands: &Commands,
        range: NlaRange,
        hold_off: Option<(HoldOffNode, HoldOff)>,
    ) -> KVec<Arc<Gat>> {
        self.unuse(range);
        let mut idle = KVec::new();
        let Some(space) = &mut self.space else {
            // Unbinding has begun and soon frees all tables.
            return idle;
        };
        match hold_off {
            Some((node, hold_off)) => {
                self.returned += 1;
                if hold_off == HoldOff::Full {
                    self.held += range.pages;
                }
                let since = jiffies64();
                let held_off = HeldOff {
                    range,
                    since,
                    hold_off,
                };
                self.held_off
                    .insert(node.into_node(self.returned, held_off));
            }
            None => drop(space.free(range)),
        }
        let is_empty = |slot: &Option<Slot>| slot.as_ref().is_some_and(|s| s.used == 0);
        let slots = &self.slots;
        let kept = tables_of(range).rfind(|i| slots.get(*i as usize).is_some_and(is_empty));
        let Some(kept) = kept else {
            return idle;
        };
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if index as u64 == kept || !is_empty(slot) {
                continue;
            }
            // If memory for the list is short, the table stays in use.
            if idle.reserve(1, GFP_KERNEL).is_err() {
                break;
            }
            if let Some(slot) = slot.take() {
                if let Some(hw) = ctx.alive_access() {
                    hw.rf.write(atu::gat(index as u32), 0);
                }
                // The translations of this table were flushed before. This flush ensures that the
                // NIC answers after a table lookup that is in progress.
                let first = index as u64 * SPAN;
                commands.flush(ctx, NlaRange { first, pages: 1 });
                let _ = idle.push_within_capacity(slot.gat);
            }
        }
        idle
    }

    /// Keeps tables that the NIC may still read until the NIC is unbound.
    pub(super) fn keep_pending(&mut self, gats: impl IntoIterator<Item = Arc<Gat>>) {
        for gat in gats {
            if self.pending.reserve(1, GFP_KERNEL).is_err() {
                // Leaking the table is better than letting the NIC read memory that has a new
                // owner.
                pr_warn!("out of memory: leaking an address table that the NIC may still read\n");
                core::mem::forget(gat);
            } else {
                let _ = self.pending.push_within_capacity(gat);
            }
        }
    }

    /// Returns the numbers of tables in use, of tables made so far, of permitted tables, and of
    /// ranges that are held off.
    pub(super) fn show(&self) -> (usize, u64, usize, usize) {
        let tables = self.slots.iter().filter(|s| s.is_some()).count();
        let held_off = self.held_off.values().count();
        (tables, self.made, self.slots.len(), held_off)
    }
}
