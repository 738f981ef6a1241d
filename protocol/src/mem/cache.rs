// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Bounded cache of registrations: finds registered memory, and selects registrations to be evicted
//! for new memory.
//!
//! Registration (pinning, translation entries) costs far more than the use of registered memory,
//! and programs use the same buffers again and again. A registration therefore remains after its
//! use, until it is invalidated because the process has unmapped the memory, or evicted to register
//! other memory. The cache stores ranges, users and limits. Registrations are values of the caller.
//! The caller revokes the registrations that the cache returns:
//!
//! 1. [`Cache::find`] begins the use of a registration that covers the range with the required
//!    access.
//! 2. If there is none, [`Cache::prepare`] frees an entry. It returns one idle registration after
//!    the other for revocation, in the order of their last use, until there is a [`Pending`] entry.
//!    A registration in use is never returned. The caller registers the memory without the cache's
//!    lock, and reports the result by [`Cache::complete`] or [`Cache::abandon`].
//! 3. [`Cache::release`] ends a use. The registration is idle afterwards, or is returned for
//!    revocation if it was invalidated in the meantime.
//! 4. [`Cache::invalidate`] returns idle registrations in a range for revocation. Registrations in
//!    use are returned by reference, and are not found again. A pending entry loses its range too,
//!    because its registration may refer to memory that does not exist any more;
//!    [`Cache::complete`] then refuses it.
//!
//! An entry ([`EntryState`]) is first `Pending`, then alternately `Busy` and `Idle`. An invalidated
//! entry is `Overtaken` while pending, or `Doomed` while in use. An `Ended` entry is free.
//!
//! Ranges may overlap in any way. A search returns the registration with the highest last address,
//! so registrations within it become idle and are evicted first. Limits apply to entries and bytes
//! of all spaces, and of each space (a process). A space at its limit evicts its own registrations.
//! An entry counts in these limits until its registration was returned to the caller. Each
//! registration is returned to only one caller, which revokes it.
//!
//! No call allocates, sleeps, or takes longer than logarithmic time. All calls may be made with a
//! spinlock held, for example in an MMU notifier.
//!
//! ```
//! use protocol::mem::cache::{Access, Cache, Limits, Prepared, Range};
//! # struct Heap;
//! # impl protocol::Memory for Heap {
//! #     type Array<T> = Vec<T>;
//! #     type Error = core::convert::Infallible;
//! #     fn array<T>(
//! #         len: usize,
//! #         make: impl FnMut(usize) -> T,
//! #     ) -> Result<Vec<T>, Self::Error> {
//! #         Ok((0..len).map(make).collect())
//! #     }
//! # }
//! # fn register(_: Range, _: Access) -> Option<u32> { Some(1) }
//! # fn revoke(_: u32) {}
//! let limits = Limits { bytes: 1 << 30, space_bytes: 1 << 28, space_entries: 64 };
//! let mut cache: Cache<Heap, u32> = Cache::new(256, limits).unwrap();
//! let range = Range::new(7, 0x1000, 0x2000).unwrap();
//! let hold = loop {
//!     if let Some(hold) = cache.find(&range, Access::READ) {
//!         break Some(hold);
//!     }
//!     match cache.prepare(&range, Access::READ) {
//!         Prepared::Evict(old) => revoke(old),
//!         // Without the lock of the cache.
//!         Prepared::Ready(pending) => match register(range, Access::READ) {
//!             Some(new) => match cache.complete(pending, new) {
//!                 Ok(hold) => break Some(hold),
//!                 Err(new) => revoke(new),
//!             },
//!             None => {
//!                 cache.abandon(pending);
//!                 break None;
//!             }
//!         },
//!         // Registered for this use only, without the cache.
//!         Prepared::Refused(_) => break None,
//!     }
//! }
//! .unwrap();
//! assert_eq!(cache.get(&hold), Some(&1));
//! // The process unmaps it.
//! while let Some(gone) = cache.invalidate(&Range::new(7, 0x2000, 0x1000).unwrap()) {
//!     gone.into_idle().map(revoke);
//! }
//! // It was in use, so it is revoked now.
//! assert_eq!(cache.release(hold), Some(1));
//! ```

mod entry;
mod types;

pub use entry::{EntryEvent, EntryState};
pub use types::{Access, Hold, Invalid, Limits, Pending, Prepared, Refused};

use crate::{
    base::flow::Counts,
    mem::intervals::{Interval, Intervals},
    Memory, Slots,
};
use entry::{Entry, List, Short, Space, Tally, ALL, NONE, OWN};
use types::PENDING;

/// Range of memory: space (such as a process), first address, length.
pub type Range = Interval;

/// Maximum number of entries.
pub const MOST: u16 = 0x8000;

/// Cache of registrations of type `V`.
pub struct Cache<M: Memory, V> {
    entries: M::Array<Entry<V>>,
    /// Ranges of entries that may be found or invalidated.
    index: Intervals<M>,
    spaces: Slots<M, Space>,
    tally: Tally,
    idle: List,
    free: u16,
    limits: Limits,
    counts: Counts<EntryState>,
    missed: u64,
    refused: u64,
}

impl<M: Memory, V> Cache<M, V> {
    /// Creates a cache of `capacity` entries, limited to 1…[`MOST`]. May sleep if the allocation of
    /// memory does.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(capacity: u16, limits: Limits) -> Result<Self, M::Error> {
        let capacity = capacity.clamp(1, MOST);
        let entry = |i: usize| match i as u16 + 1 {
            next if next < capacity => Entry::new(next),
            _ => Entry::new(NONE),
        };
        Ok(Self {
            entries: M::array(usize::from(capacity), entry)?,
            index: Intervals::new(capacity)?,
            spaces: Slots::new(capacity)?,
            tally: Tally::default(),
            idle: List::EMPTY,
            free: 0,
            limits,
            counts: Counts::default(),
            missed: 0,
            refused: 0,
        })
    }

    /// Returns the number of entries, including pending entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tally.entries
    }

    /// Returns true if the cache has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tally.entries == 0
    }

    /// Returns the size of all entries in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tally.bytes
    }

    /// Returns the number of idle entries.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.tally.idle_entries
    }

    /// Returns the number of times that each transition was made.
    #[must_use]
    pub fn counts(&self) -> &Counts<EntryState> {
        &self.counts
    }

    /// Returns the numbers of failed calls of [`Cache::find`] and of [`Cache::prepare`].
    #[must_use]
    pub fn failures(&self) -> (u64, u64) {
        (self.missed, self.refused)
    }

    fn entry(&self, at: u16) -> Option<&Entry<V>> {
        self.entries.get(usize::from(at))
    }

    fn entry_mut(&mut self, at: u16) -> Option<&mut Entry<V>> {
        self.entries.get_mut(usize::from(at))
    }

    /// Returns the entry of a hold, unless the hold belongs to another cache.
    fn held(&self, hold: &Hold) -> Option<&Entry<V>> {
        let entry = self.entry(hold.entry)?;
        (entry.generation == hold.generation && entry.state != EntryState::Ended).then_some(entry)
    }

    /// Changes the state of an entry. Returns false if the event is impossible in its state.
    fn step(&mut self, at: u16, event: EntryEvent) -> bool {
        let Some(entry) = self.entries.get_mut(usize::from(at)) else {
            return false;
        };
        self.counts.step(&mut entry.state, event)
    }

    /// Adds an entry to the lists of idle entries, or removes it from them.
    fn set_idle(&mut self, at: u16, idle: bool) {
        let Some(range) = self.entry(at).map(|e| e.range) else {
            return;
        };
        let change = |list: &mut List, entries: &mut [Entry<V>], which| {
            if idle {
                list.push(entries, at, which);
            } else {
                list.remove(entries, at, which);
            }
        };
        self.tally.set_idle(range.len(), idle);
        change(&mut self.idle, &mut self.entries, ALL);
        if let Some(space) = self.spaces.get_mut(range.space) {
            space.tally.set_idle(range.len(), idle);
            change(&mut space.idle, &mut self.entries, OWN);
        }
    }

    /// Frees an entry that has ended. Returns its value.
    fn end(&mut self, at: u16) -> Option<V> {
        self.index.remove(at);
        let free = self.free;
        let entry = self.entry_mut(at)?;
        let range = entry.range;
        entry.generation = entry.generation.wrapping_add(1);
        entry.free = free;
        entry.uses = 0;
        let value = entry.value.take();
        self.free = at;
        self.tally.remove(range.len());
        if let Some(space) = self.spaces.get_mut(range.space) {
            space.tally.remove(range.len());
            if space.tally.entries == 0 {
                self.spaces.remove(range.space);
            }
        }
        value
    }

    /// Begins the use of a registration that covers `range` with at least this access. Returns
    /// `None` if there is no such registration. The caller then calls [`Cache::prepare`].
    pub fn find(&mut self, range: &Range, access: Access) -> Option<Hold> {
        let found = self.index.covering(range, access.classes());
        let usable = |at: &u16| self.entry(*at).is_some_and(|e| e.uses < u32::MAX);
        let Some(at) = found.filter(usable) else {
            self.missed = self.missed.wrapping_add(1);
            return None;
        };
        if self.entry(at)?.state == EntryState::Idle {
            self.set_idle(at, false);
        }
        if !self.step(at, EntryEvent::Use) {
            return None;
        }
        let entry = self.entry_mut(at)?;
        entry.uses += 1;
        Some(Hold {
            entry: at,
            generation: entry.generation,
        })
    }

    /// Returns the registration of a hold, which other users may access at the same time.
    #[must_use]
    pub fn get(&self, hold: &Hold) -> Option<&V> {
        self.held(hold)?.value.as_ref()
    }

    /// Returns the range of the registration in use, which may be larger than the range of the
    /// search.
    #[must_use]
    pub fn range(&self, hold: &Hold) -> Option<Range> {
        Some(self.held(hold)?.range)
    }

    /// Reserves an entry for memory to be registered. The caller repeats the call while it returns
    /// registrations to be revoked. A returned registration does not count in the limits any more.
    pub fn prepare(&mut self, range: &Range, access: Access) -> Prepared<V> {
        let Limits {
            bytes,
            space_bytes,
            space_entries,
        } = self.limits;
        let (len, capacity) = (range.len(), self.entries.len());
        let space = self.spaces.get(range.space);
        let (own, own_idle) = space.map_or((Tally::default(), List::EMPTY), |s| (s.tally, s.idle));
        let refused = match (
            own.can_take(len, space_bytes, space_entries),
            self.tally.can_take(len, bytes, capacity),
        ) {
            (Err(Short::Entries), _) => Some(Refused::SpaceEntries),
            (Err(Short::Bytes), _) => Some(Refused::SpaceBytes),
            (_, Err(Short::Entries)) => Some(Refused::Entries),
            (_, Err(Short::Bytes)) => Some(Refused::Bytes),
            _ => None,
        };
        if let Some(why) = refused {
            self.refused = self.refused.wrapping_add(1);
            return Prepared::Refused(why);
        }
        let victim = match () {
            () if !own.has_room(len, space_bytes, space_entries) => own_idle.oldest,
            () if !self.tally.has_room(len, bytes, capacity) => self.idle.oldest,
            () => return self.begin(range, access),
        };
        match self.evict(victim) {
            Some(value) => Prepared::Evict(value),
            // Unreachable: the checks above have found enough idle entries.
            None => Prepared::Refused(Refused::Entries),
        }
    }

    fn begin(&mut self, range: &Range, access: Access) -> Prepared<V> {
        let at = self.free;
        let Some(entry) = self.entries.get_mut(usize::from(at)) else {
            return Prepared::Refused(Refused::Entries);
        };
        self.free = entry.free;
        entry.range = *range;
        entry.class = access.class();
        entry.state = EntryState::Pending;
        let generation = entry.generation;
        // Invalidations must find the range.
        self.index.insert(at, *range, PENDING);
        self.tally.add(range.len());
        if self.spaces.get(range.space).is_none() {
            let space = Space {
                tally: Tally::default(),
                idle: List::EMPTY,
            };
            // The insertion cannot fail, because there are at most as many spaces as entries.
            let _ = self.spaces.insert(range.space, space);
        }
        if let Some(space) = self.spaces.get_mut(range.space) {
            space.tally.add(range.len());
        }
        Prepared::Ready(Pending(Hold {
            entry: at,
            generation,
        }))
    }

    fn evict(&mut self, at: u16) -> Option<V> {
        if self.entry(at)?.state != EntryState::Idle {
            return None;
        }
        self.set_idle(at, false);
        self.step(at, EntryEvent::Evict);
        self.end(at)
    }

    /// Reports that the memory is registered, and begins its first use.
    ///
    /// # Errors
    ///
    /// Returns the registration if its memory was invalidated in the meantime. The caller must
    /// revoke the registration.
    pub fn complete(&mut self, pending: Pending, value: V) -> Result<Hold, V> {
        let hold = pending.0;
        if self.held(&hold).is_none() || !self.step(hold.entry, EntryEvent::Complete) {
            return Err(value);
        }
        match self.entries.get_mut(usize::from(hold.entry)) {
            Some(entry) if entry.state == EntryState::Busy => {
                entry.value = Some(value);
                entry.uses = 1;
                self.index.remove(hold.entry);
                self.index.insert(hold.entry, entry.range, entry.class);
                Ok(hold)
            }
            _ => {
                self.end(hold.entry);
                Err(value)
            }
        }
    }

    /// Reports that the memory could not be registered.
    pub fn abandon(&mut self, pending: Pending) {
        if self.held(&pending.0).is_some() && self.step(pending.0.entry, EntryEvent::Abandon) {
            self.end(pending.0.entry);
        }
    }

    /// Ends a use. Returns the registration for revocation if it was invalidated and this was its
    /// last use.
    #[must_use]
    pub fn release(&mut self, hold: Hold) -> Option<V> {
        self.held(&hold)?;
        let entry = self.entry_mut(hold.entry)?;
        entry.uses = entry.uses.saturating_sub(1);
        if entry.uses != 0 || !self.step(hold.entry, EntryEvent::Rest) {
            return None;
        }
        match self.entry(hold.entry)?.state {
            EntryState::Idle => {
                self.set_idle(hold.entry, true);
                None
            }
            _ => self.end(hold.entry),
        }
    }

    /// Invalidates the next registration in `range`, because its memory was replaced or removed or
    /// because the space ends ([`Range::all`]). The caller repeats the call until it returns
    /// `None`.
    pub fn invalidate(&mut self, range: &Range) -> Option<Invalid<'_, V>> {
        let at = self.index.meeting(range)?;
        self.invalidate_entry(at)
    }

    /// Invalidates a registration in use for a reason of the caller. The registration is not found
    /// again, and its last user receives it for revocation.
    pub fn invalidate_held(&mut self, hold: &Hold) {
        if self.held(hold).is_some_and(|e| e.state == EntryState::Busy) {
            let _ = self.invalidate_entry(hold.entry);
        }
    }

    fn invalidate_entry(&mut self, at: u16) -> Option<Invalid<'_, V>> {
        if self.entry(at)?.state == EntryState::Idle {
            self.set_idle(at, false);
        }
        self.index.remove(at);
        self.step(at, EntryEvent::Invalidate);
        match self.entry(at)?.state {
            EntryState::Ended => self.end(at).map(Invalid::Idle),
            EntryState::Doomed => self.entry(at)?.value.as_ref().map(Invalid::Busy),
            _ => Some(Invalid::Pending),
        }
    }

    /// Evicts the registration that has been idle for the longest time, if any. The caller uses
    /// this function when memory is short, and before it destroys the cache.
    #[must_use]
    pub fn shrink(&mut self) -> Option<V> {
        self.evict(self.idle.oldest)
    }

    /// Checks the invariants, for tests. Takes a long time.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub fn check(&mut self) -> Result<(), &'static str> {
        let found = self.index.check()?;
        let (mut all, mut indexed, mut spaces) = (Tally::default(), 0, Tally::default());
        for (at, e) in self.entries.iter().enumerate() {
            use EntryState as S;
            if e.state == S::Ended {
                continue;
            }
            all.entries += 1;
            all.bytes = all.bytes.saturating_add(e.range.len());
            if e.state == S::Idle {
                all.idle_entries += 1;
                all.idle_bytes = all.idle_bytes.saturating_add(e.range.len());
            }
            let known = self.index.get(at as u16) == Some(e.range);
            indexed += usize::from(known);
            if known != matches!(e.state, S::Pending | S::Busy | S::Idle) {
                return Err("the index does not match the state of an entry");
            }
            if (e.uses == 0) != matches!(e.state, S::Pending | S::Overtaken | S::Idle)
                || e.value.is_none() != matches!(e.state, S::Pending | S::Overtaken)
            {
                return Err("the uses or the value of an entry do not match its state");
            }
        }
        let (mut idle, mut at) = (0, self.idle.oldest);
        while let Some(e) = self.entry(at).filter(|_| idle <= all.entries) {
            idle += 1;
            at = e.links.get(ALL).map_or(NONE, |l| l.younger);
        }
        self.spaces.for_each_mut(|_, space| {
            spaces.entries += space.tally.entries;
            spaces.bytes = spaces.bytes.saturating_add(space.tally.bytes);
            spaces.idle_entries += space.tally.idle_entries;
            spaces.idle_bytes = spaces.idle_bytes.saturating_add(space.tally.idle_bytes);
            true
        });
        let free = core::iter::successors(Some(self.free), |at| Some(self.entry(*at)?.free));
        let free = free.take(self.entries.len() + 1).filter(|at| *at != NONE);
        match () {
            () if self.counts.impossible() != 0 => Err("an impossible transition"),
            () if indexed != found => Err("the index contains an interval without an entry"),
            () if all != self.tally || all != spaces => Err("the totals do not match the entries"),
            () if idle != all.idle_entries => Err("the list of idle entries is incomplete"),
            () if free.count() + all.entries != self.entries.len() => Err("an entry has leaked"),
            () if self.tally.bytes > self.limits.bytes => Err("too many bytes"),
            () => Ok(()),
        }
    }
}
