// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Entries of the cache: states, lists of idle entries, totals.

use super::Range;

/// Index that means no entry.
pub(super) const NONE: u16 = u16::MAX;

crate::flow! {
    /// States of an entry.
    states EntryState {
        /// The memory is being registered.
        Pending,
        /// The memory is being registered, and was invalidated in the meantime.
        Overtaken,
        /// The registration is in use.
        Busy,
        /// The memory is registered, but not in use.
        Idle,
        /// The entry is in use and was invalidated, so that no further use can begin.
        Doomed,
        /// The entry is free.
        Ended,
    }
    /// Events of an entry.
    events EntryEvent {
        /// The memory is registered.
        Complete,
        /// The memory could not be registered.
        Abandon,
        /// A use begins.
        Use,
        /// The last use ends.
        Rest,
        /// The memory was unmapped or replaced in its space.
        Invalidate,
        /// The entry is needed for other memory.
        Evict,
    }
    transitions {
        Pending + Complete => Busy;
        Pending + Abandon => Ended;
        Pending + Invalidate => Overtaken;
        Overtaken + Complete => Ended;
        Overtaken + Abandon => Ended;
        Busy + Use => Busy;
        Busy + Rest => Idle;
        Busy + Invalidate => Doomed;
        Idle + Use => Busy;
        Idle + Evict => Ended;
        Idle + Invalidate => Ended;
        Doomed + Rest => Ended;
    }
}

/// Indices of the first and last entry of a list.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub(super) oldest: u16,
    pub(super) youngest: u16,
}

/// Neighbours of an entry in a list.
#[derive(Clone, Copy)]
pub(super) struct Link {
    older: u16,
    pub(super) younger: u16,
}

/// Index of the list of all idle entries.
pub(super) const ALL: usize = 0;
/// Index of the list of a space's idle entries.
pub(super) const OWN: usize = 1;

pub(super) struct Entry<V> {
    pub(super) range: Range,
    pub(super) state: EntryState,
    pub(super) class: u8,
    pub(super) uses: u32,
    /// Generation of the entry, increased at each end.
    pub(super) generation: u32,
    pub(super) links: [Link; 2],
    /// Index of the next free entry.
    pub(super) free: u16,
    pub(super) value: Option<V>,
}

impl<V> Entry<V> {
    /// Creates a free entry. `free` is the index of the next free entry.
    pub(super) fn new(free: u16) -> Self {
        let link = Link {
            older: NONE,
            younger: NONE,
        };
        Self {
            range: Range::all(0),
            state: EntryState::Ended,
            class: 0,
            uses: 0,
            generation: 0,
            links: [link; 2],
            free,
            value: None,
        }
    }
}

impl List {
    /// Empty list.
    pub(super) const EMPTY: Self = Self {
        oldest: NONE,
        youngest: NONE,
    };

    fn link<V>(entries: &mut [Entry<V>], at: u16, list: usize) -> Option<&mut Link> {
        entries.get_mut(usize::from(at))?.links.get_mut(list)
    }

    /// Adds an entry as the youngest entry of the list.
    pub(super) fn push<V>(&mut self, entries: &mut [Entry<V>], at: u16, list: usize) {
        let older = self.youngest;
        if let Some(link) = Self::link(entries, at, list) {
            *link = Link {
                older,
                younger: NONE,
            };
        }
        match Self::link(entries, older, list) {
            Some(link) => link.younger = at,
            None => self.oldest = at,
        }
        self.youngest = at;
    }

    /// Removes an entry from its list.
    pub(super) fn remove<V>(&mut self, entries: &mut [Entry<V>], at: u16, list: usize) {
        let Some(&mut Link { older, younger }) = Self::link(entries, at, list) else {
            return;
        };
        match Self::link(entries, older, list) {
            Some(link) => link.younger = younger,
            None => self.oldest = younger,
        }
        match Self::link(entries, younger, list) {
            Some(link) => link.older = older,
            None => self.youngest = older,
        }
    }
}

/// Limit that is exceeded.
pub(super) enum Short {
    Entries,
    Bytes,
}

/// Totals of entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Tally {
    pub(super) entries: usize,
    pub(super) bytes: u64,
    pub(super) idle_entries: usize,
    pub(super) idle_bytes: u64,
}

impl Tally {
    /// Adds an entry.
    pub(super) fn add(&mut self, bytes: u64) {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, bytes: u64) {
        self.entries = self.entries.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Counts an entry as idle, or as not idle.
    pub(super) fn set_idle(&mut self, bytes: u64, idle: bool) {
        if idle {
            self.idle_entries += 1;
            self.idle_bytes = self.idle_bytes.saturating_add(bytes);
        } else {
            self.idle_entries = self.idle_entries.saturating_sub(1);
            self.idle_bytes = self.idle_bytes.saturating_sub(bytes);
        }
    }

    /// Checks that an entry of `bytes` bytes fits after all idle entries are evicted.
    ///
    /// # Errors
    ///
    /// Returns the limit that is exceeded.
    pub(super) fn can_take(&self, bytes: u64, limit: u64, entries: usize) -> Result<(), Short> {
        let busy = self.bytes.saturating_sub(self.idle_bytes);
        match () {
            () if self.entries.saturating_sub(self.idle_entries) >= entries => Err(Short::Entries),
            () if busy.saturating_add(bytes) > limit => Err(Short::Bytes),
            () => Ok(()),
        }
    }

    /// Returns true if an entry of `bytes` bytes fits without eviction.
    pub(super) fn has_room(&self, bytes: u64, limit: u64, entries: usize) -> bool {
        self.entries < entries && self.bytes.saturating_add(bytes) <= limit
    }
}

/// Totals and idle entries of a space.
#[derive(Clone, Copy)]
pub(super) struct Space {
    pub(super) tally: Tally,
    pub(super) idle: List,
}
