// SPDX-License-Identifier: GPL-2.0-only

//! NLA space and global address tables, which come and go with the regions in them.

use super::{commands::Commands, TableAccount};
use crate::{context::Context, dma::DmaWords};
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::Arc,
    time::msecs_to_jiffies,
};
use kernel_ext::net::jiffies64;
use protocol::tickets::Ticket;
use wire::{
    atu::{GatBase, GAT_BYTES},
    ids::BusAddr,
    nla::{Range, Space, SpaceError, Store},
    regs::atu,
    table_use::{share, tables_of, SPAN},
};

/// How long NLAs that were given back are not given out again, unless nothing else is free, in
/// milliseconds: the answer to a GET may come late, and nothing tells the NIC that it is for
/// somebody else.
const REST_MS: u32 = 10_000;

/// A range at rest.
#[derive(Clone, Copy)]
pub(super) struct Resting {
    range: Range,
    /// In jiffies.
    since: u64,
    rest: Rest,
}

/// How long NLAs rest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// As long as there are others.
    Usual,
    /// The full time: those who may still use them can't be told. Of these there are at most so many
    /// that the half of all NLAs is left to others.
    Full,
}

/// Room for a range at rest, by its number among those given back.
pub(super) type RestNode = RBTreeNodeReservation<u64, Resting>;

/// Free ranges in kernel memory.
pub(super) struct Ranges(KVVec<Range>);

impl Store for Ranges {
    fn ranges(&self) -> &[Range] {
        &self.0
    }

    fn ranges_mut(&mut self) -> &mut [Range] {
        &mut self.0
    }

    fn reserve(&mut self, total: usize) -> bool {
        let more = total.saturating_sub(self.0.len());
        self.0.reserve(more, GFP_KERNEL).is_ok()
    }

    fn insert(&mut self, at: usize, range: Range) {
        // There is room, by the contract.
        let _ = self.0.insert_within_capacity(at, range);
    }

    fn remove(&mut self, at: usize) {
        let _ = self.0.remove(at);
    }
}

/// A table in use.
pub(super) struct Gat {
    memory: DmaWords,
    /// Word of `memory` that is the first entry.
    first: usize,
}

impl Gat {
    /// An empty table. May sleep.
    fn new(ctx: &Context) -> Result<Self> {
        const WORDS: usize = GAT_BYTES as usize / 8;
        let allocate = |words| ctx.with_bound(|dev| DmaWords::accounted(dev, words))?;
        let mut memory = allocate(WORDS)?;
        // As a rule memory is aligned to its size, but what the kernel takes from its contiguous
        // memory area (`cma=`) is so up to 1 MiB only.
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

    /// Writes the entry of page `page` of the space, which lies in this table.
    fn write(&self, page: u64, entry: u64) {
        self.memory
            .write(self.first + (page % SPAN) as usize, entry);
    }
}

struct Slot {
    gat: Arc<Gat>,
    /// Pages of it that are given out.
    used: u64,
    /// The NIC may remember translations of an earlier table in its place.
    stale: Option<Stale>,
}

/// What was asked of the NIC, which did not answer in time.
#[derive(Clone, Copy)]
struct Stale(Option<Ticket>);

/// NLA space and tables.
pub(super) struct Tables {
    space: Option<Space<Ranges>>,
    /// By index; `None` as long as nothing is there.
    slots: KVVec<Option<Slot>>,
    /// Tables that the NIC may still read, as it did not answer.
    parked: KVec<Arc<Gat>>,
    /// Ranges in the order in which they were given back.
    resting: RBTree<u64, Resting>,
    /// Pages of those that rest the full time.
    held: u64,
    /// Ranges given back so far.
    returned: u64,
    /// Tables made so far.
    made: u64,
}

/// A range that was given out, with the tables for it.
pub(super) struct Place {
    pub(super) range: Range,
    gats: KVec<Arc<Gat>>,
}

impl Place {
    /// Writes the entry of page `page` of the range; `None` outside of it. Any context.
    pub(super) fn write(&self, page: u64, entry: u64) -> Option<()> {
        let index = (page / SPAN).checked_sub(self.range.first / SPAN)?;
        self.gats.get(index as usize)?.write(page, entry);
        Some(())
    }

    /// Zeroes all entries. Any context; takes long for many.
    pub(super) fn zero(&self) {
        for page in self.range.first..self.range.end() {
            self.write(page, 0);
        }
    }

    /// The part `range` of it. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EINVAL` for no part of it.
    pub(super) fn part(&self, range: Range) -> Result<Place> {
        let mut gats = KVec::new();
        for index in tables_of(range) {
            let index = index.checked_sub(self.range.first / SPAN).ok_or(EINVAL)?;
            let gat = self.gats.get(index as usize).ok_or(EINVAL)?;
            gats.push(gat.clone(), GFP_KERNEL)?;
        }
        Ok(Place { range, gats })
    }
}

impl Tables {
    /// Before a NIC is set up, or after it was given up.
    pub(super) fn closed() -> Self {
        Self {
            space: None,
            slots: KVVec::new(),
            parked: KVec::new(),
            resting: RBTree::new(),
            held: 0,
            returned: 0,
            made: 0,
        }
    }

    /// A space of `limit` tables. Page 0 is never given out, so that NLA 0 is an error.
    pub(super) fn open(&mut self, limit: u32) -> Result {
        let mut slots = KVVec::with_capacity(limit as usize, GFP_KERNEL)?;
        for _ in 0..limit {
            slots.push(None, GFP_KERNEL)?;
        }
        let bounds = Range {
            first: 1,
            pages: (u64::from(limit) * SPAN).saturating_sub(1),
        };
        self.space = Some(Space::new(Ranges(KVVec::new()), bounds).map_err(|_| ENOMEM)?);
        self.slots = slots;
        Ok(())
    }

    /// No places any more.
    pub(super) fn refuse(&mut self) {
        self.space = None;
    }

    /// Frees everything.
    pub(super) fn close(&mut self) {
        *self = Self::closed();
    }

    /// Takes a range, aligned if that is possible, and makes tables for it. With an account it is
    /// charged there. It will rest as `rest` says. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` when closed, `ENOSPC`, `ENOMEM`, `EDQUOT` if the account does not allow another
    /// table, `ETIMEDOUT` if the NIC does not take a new table.
    pub(super) fn allocate(
        &mut self,
        ctx: &Context,
        commands: &Commands,
        pages: u64,
        wish: (u64, u64),
        (account, rest): (Option<&TableAccount>, Rest),
    ) -> Result<Place> {
        // A range of any alignment touches at most one table more.
        let gats = KVec::with_capacity((pages / SPAN) as usize + 2, GFP_KERNEL)?;
        self.wake_rested();
        let half = self.slots.len() as u64 * SPAN / 2;
        if rest == Rest::Full && self.held + pages > half {
            return Err(ENOSPC);
        }
        let range = self.find(pages, wish, account)?;
        let mut place = Place { range, gats };
        for index in tables_of(range) {
            let table = self.table(ctx, commands, index, share(range, index));
            match table.and_then(|gat| Ok(place.gats.push(gat, GFP_KERNEL)?)) {
                Ok(()) => {}
                Err(e) => {
                    // Tables that were made for it stay until the next region in them goes.
                    let first = range.first;
                    let done = Range {
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
        Ok(place)
    }

    fn find(
        &mut self,
        pages: u64,
        (align, phase): (u64, u64),
        account: Option<&TableAccount>,
    ) -> Result<Range> {
        let first = match self.take(pages, align, phase)? {
            Err(SpaceError::Full) if align > 1 => self.take(pages, 1, 0)?,
            other => other,
        }
        .map_err(|e| match e {
            SpaceError::Full => ENOSPC,
            SpaceError::NoMemory => ENOMEM,
            SpaceError::Invalid => EINVAL,
        })?;
        let range = Range { first, pages };
        let (Some(account), Some(space)) = (account, &mut self.space) else {
            return Ok(range);
        };
        if account.may_add(range) {
            return Ok(range);
        }
        space.free(range);
        // Others may have filled the lower ones, which is not his fault: he may use up his own.
        account
            .find(|window| space.allocate_in(window, pages, 1, 0).ok())
            .map(|first| Range { first, pages })
            .ok_or(EDQUOT)
    }

    /// Takes pages of the space; if need be, those that have not rested long. `ENODEV` when closed.
    fn take(&mut self, pages: u64, align: u64, phase: u64) -> Result<Result<u64, SpaceError>> {
        loop {
            let space = self.space.as_mut().ok_or(ENODEV)?;
            match space.allocate(pages, align, phase) {
                Err(SpaceError::Full) if self.wake(u64::MAX, Some(Rest::Usual)) => {}
                other => return Ok(other),
            }
        }
    }

    /// Frees what has rested long enough.
    fn wake_rested(&mut self) {
        let rest = msecs_to_jiffies(REST_MS) as u64;
        let until = jiffies64().saturating_sub(rest);
        while self.wake(until, None) {}
    }

    /// Frees the range that has rested longest, of those that rest so, if that is since `until` or
    /// before.
    fn wake(&mut self, until: u64, only: Option<Rest>) -> bool {
        let mut all = self.resting.iter();
        let oldest = all.find(|(_, r)| only.is_none_or(|rest| r.rest == rest));
        let oldest = oldest.filter(|(_, r)| r.since <= until);
        let oldest = oldest.map(|(number, resting)| (*number, *resting));
        let (Some((number, resting)), Some(space)) = (oldest, &mut self.space) else {
            return false;
        };
        self.resting.remove(&number);
        if resting.rest == Rest::Full {
            self.held = self.held.saturating_sub(resting.range.pages);
        }
        space.free(resting.range);
        true
    }

    /// The table `index`, `pages` more pages of which are used.
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
                // No waiting this time: others wait for the lock.
                if let Some(Stale(ticket)) = slot.stale {
                    let ticket = ticket.or_else(|| commands.ask(ctx));
                    let answered = commands.seen(ctx).answers(ticket);
                    slot.stale = (!answered).then_some(Stale(ticket));
                    if !answered {
                        // The answer to the first one may be lost; that to a later one will do.
                        commands.ask(ctx);
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

    /// Puts a new table in its place. Until the NIC has forgotten what was there, it is stale. May
    /// sleep.
    fn make(&mut self, ctx: &Context, commands: &Commands, index: u64) -> Result {
        let gat = Gat::new(ctx)?;
        let base = GatBase::new(gat.address()).ok_or(ENOMEM)?;
        let gat = Arc::new(gat, GFP_KERNEL)?;
        {
            let hw = ctx.alive_access().ok_or(ENODEV)?;
            hw.rf.write(atu::gat(index as u32), base.raw());
        }
        // The NIC may remember translations of an earlier driver's life, since only a flush makes
        // it forget (G17).
        let whole = Range {
            first: index * SPAN,
            pages: SPAN,
        };
        commands.flush(ctx, whole);
        let stale = commands.wait(ctx).result.err().map(Stale);
        if let Some(place) = self.slots.get_mut(index as usize) {
            let used = 0;
            *place = Some(Slot { gat, used, stale });
        }
        self.made += 1;
        Ok(())
    }

    fn unuse(&mut self, range: Range) {
        if range.pages == 0 {
            return;
        }
        for index in tables_of(range) {
            if let Some(Some(slot)) = self.slots.get_mut(index as usize) {
                slot.used -= share(range, index).min(slot.used);
            }
        }
    }

    /// Gives a range back, to rest in its node if it was in use. Tables that are not needed any
    /// more are taken off the NIC and returned; free them when the NIC has answered
    /// ([`Commands::wait`]), else [`Tables::park`] them. Of those that are empty the one that
    /// became so last is kept: the next region most likely gets its place there, since what was
    /// given back before rests. May sleep.
    pub(super) fn free(
        &mut self,
        ctx: &Context,
        commands: &Commands,
        range: Range,
        rest: Option<(RestNode, Rest)>,
    ) -> KVec<Arc<Gat>> {
        self.unuse(range);
        let mut idle = KVec::new();
        let Some(space) = &mut self.space else {
            // All tables go together, soon.
            return idle;
        };
        match rest {
            Some((node, rest)) => {
                self.returned += 1;
                if rest == Rest::Full {
                    self.held += range.pages;
                }
                let since = jiffies64();
                let resting = Resting { range, since, rest };
                self.resting.insert(node.into_node(self.returned, resting));
            }
            None => drop(space.free(range)),
        }
        let is_empty = |place: &Option<Slot>| place.as_ref().is_some_and(|s| s.used == 0);
        let slots = &self.slots;
        let kept = tables_of(range).rfind(|i| slots.get(*i as usize).is_some_and(is_empty));
        let Some(kept) = kept else {
            return idle;
        };
        for (index, place) in self.slots.iter_mut().enumerate() {
            if index as u64 == kept || !is_empty(place) {
                continue;
            }
            // Without memory for the list the table simply stays.
            if idle.reserve(1, GFP_KERNEL).is_err() {
                break;
            }
            if let Some(slot) = place.take() {
                if let Some(hw) = ctx.alive_access() {
                    hw.rf.write(atu::gat(index as u32), 0);
                }
                // Translations of its pages are forgotten already; this comes behind a look at the
                // table that is under way.
                let first = index as u64 * SPAN;
                commands.flush(ctx, Range { first, pages: 1 });
                let _ = idle.push_within_capacity(slot.gat);
            }
        }
        idle
    }

    /// Keeps tables that the NIC may still read.
    pub(super) fn park(&mut self, gats: impl IntoIterator<Item = Arc<Gat>>) {
        for gat in gats {
            if self.parked.reserve(1, GFP_KERNEL).is_err() {
                // Better lost than read by the NIC after somebody else got it.
                pr_warn!("no memory: a translation table is lost\n");
                core::mem::forget(gat);
            } else {
                let _ = self.parked.push_within_capacity(gat);
            }
        }
    }

    /// Tables in use, made so far, most possible, ranges at rest.
    pub(super) fn show(&self) -> (usize, u64, usize, usize) {
        let tables = self.slots.iter().filter(|s| s.is_some()).count();
        let resting = self.resting.values().count();
        (tables, self.made, self.slots.len(), resting)
    }
}
