// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Entries of the cache: their life, the lists of those that rest, and tallies.

use super::Range;

/// No entry.
pub(super) const NONE: u16 = u16::MAX;

crate::flow! {
    /// Life of an entry.
    states EntryState {
        /// Its memory is being registered.
        Pending,
        /// As before, but the memory was invalidated meanwhile.
        Overtaken,
        /// Somebody uses it.
        Busy,
        /// Nobody does.
        Idle,
        /// Somebody uses it, but nobody else will.
        Doomed,
        /// Given back.
        Ended,
    }
    /// What happens to it.
    events EntryEvent {
        /// It is registered.
        Complete,
        /// It could not be registered.
        Abandon,
        /// Somebody begins to use it.
        Use,
        /// The last one has ended that.
        Rest,
        /// Its space has lost the memory.
        Invalidate,
        /// Somebody else needs the place.
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

/// Ends of a list of entries.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub(super) oldest: u16,
    pub(super) youngest: u16,
}

/// Neighbours in such a list.
#[derive(Clone, Copy)]
pub(super) struct Link {
    older: u16,
    pub(super) younger: u16,
}

/// Which list: of all that rest, or of those of a space.
pub(super) const ALL: usize = 0;
pub(super) const OWN: usize = 1;

pub(super) struct Entry<V> {
    pub(super) range: Range,
    pub(super) state: EntryState,
    pub(super) class: u8,
    pub(super) uses: u32,
    /// Tells uses of the place apart.
    pub(super) generation: u32,
    pub(super) links: [Link; 2],
    /// Next free entry.
    pub(super) free: u16,
    pub(super) value: Option<V>,
}

impl<V> Entry<V> {
    /// One that is free, as the next one is.
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
    /// Nothing.
    pub(super) const EMPTY: Self = Self {
        oldest: NONE,
        youngest: NONE,
    };

    fn link<V>(entries: &mut [Entry<V>], at: u16, list: usize) -> Option<&mut Link> {
        entries.get_mut(usize::from(at))?.links.get_mut(list)
    }

    /// Adds an entry at the young end.
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

    /// Takes an entry out that is in it.
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

/// Why something does not fit.
pub(super) enum Short {
    Entries,
    Bytes,
}

/// What there is of something.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Tally {
    pub(super) entries: usize,
    pub(super) bytes: u64,
    pub(super) idle_entries: usize,
    pub(super) idle_bytes: u64,
}

impl Tally {
    /// One more.
    pub(super) fn add(&mut self, bytes: u64) {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// One less.
    pub(super) fn remove(&mut self, bytes: u64) {
        self.entries = self.entries.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// One of them begins to rest, or does so no more.
    pub(super) fn set_idle(&mut self, bytes: u64, idle: bool) {
        if idle {
            self.idle_entries += 1;
            self.idle_bytes = self.idle_bytes.saturating_add(bytes);
        } else {
            self.idle_entries = self.idle_entries.saturating_sub(1);
            self.idle_bytes = self.idle_bytes.saturating_sub(bytes);
        }
    }

    /// Whether `bytes` more will fit when all that rests is gone.
    ///
    /// # Errors
    ///
    /// They won't.
    pub(super) fn can_take(&self, bytes: u64, limit: u64, entries: usize) -> Result<(), Short> {
        let busy = self.bytes.saturating_sub(self.idle_bytes);
        match () {
            () if self.entries.saturating_sub(self.idle_entries) >= entries => Err(Short::Entries),
            () if busy.saturating_add(bytes) > limit => Err(Short::Bytes),
            () => Ok(()),
        }
    }

    /// Whether `bytes` more fit now.
    pub(super) fn has_room(&self, bytes: u64, limit: u64, entries: usize) -> bool {
        self.entries < entries && self.bytes.saturating_add(bytes) <= limit
    }
}

/// What there is of a space.
#[derive(Clone, Copy)]
pub(super) struct Space {
    pub(super) tally: Tally,
    pub(super) idle: List,
}
