// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Consumer of the notification ring, with recovery from lost entries and lost interrupts.
//!
//! The NIC writes entries by posted writes, and their flip bit shows that they are valid. If the
//! write of an entry is lost, the entry stays invalid although the NIC's write pointer has passed
//! it. The entry would block all later entries. After a lost interrupt, no further interrupt would
//! occur, because only the interrupt handler arms the next interrupt. [`SnqConsumer`] decides which
//! entries are handled and which are skipped. The caller reads memory and registers and measures
//! the time.

use wire::snq::{Header, Ring};

/// Reason why the interrupt handler found no entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Empty {
    /// No entry was written. The interrupt belongs to another source, or its entries were handled
    /// by an earlier poll.
    Nothing,
    /// The write pointer has passed the next entry. Do not arm the interrupt; call
    /// [`SnqConsumer::recover`] when the entry has had time to arrive.
    Missing,
}

/// Result of a poll of the write pointer without an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// No entry is pending, or a recovery is in progress.
    Idle,
    /// Entries are pending that no earlier poll has found. Their interrupt may be in flight.
    Fresh,
    /// Entries have been pending since an earlier poll, so their interrupt was lost. The caller
    /// must handle the entries.
    Overdue,
}

/// Result of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// First entry that was checked.
    pub first: u16,
    /// Number of lost entries.
    pub lost: u16,
}

/// Ring consumer that recovers from lost entries and interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnqConsumer {
    ring: Ring,
    entries: u16,
    /// Position of the write pointer when the next entry was found missing.
    missing: Option<u16>,
    /// True if a poll has found pending entries since the interrupt was armed.
    waiting: bool,
}

impl SnqConsumer {
    /// Returns a consumer for the ring of [`Ring::new`] with the same arguments.
    pub const fn new(entries: u16, wp: u16) -> Option<Self> {
        match Ring::new(entries, wp) {
            Some(ring) => Some(Self {
                ring,
                entries,
                missing: None,
                waiting: false,
            }),
            None => None,
        }
    }

    /// Returns the ring, from which the caller computes register values.
    pub const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Consumes up to `budget` valid entries and returns their number. `read` returns the contents
    /// of a slot with its header; `None` ends the pass. `handle` receives valid entries in order.
    pub fn consume<E>(
        &mut self,
        budget: u32,
        mut read: impl FnMut(u16) -> Option<(Header, E)>,
        mut handle: impl FnMut(E),
    ) -> u32 {
        let mut consumed = 0;
        while consumed < budget {
            match read(self.ring.next()) {
                Some((header, entry)) if self.ring.is_valid(header) => handle(entry),
                _ => break,
            }
            self.ring.consume();
            consumed += 1;
        }
        if consumed != 0 {
            self.missing = None;
        }
        consumed
    }

    /// Records that no entry was valid, although the write pointer `wp` had been read before. The
    /// read makes all earlier writes of the NIC visible.
    pub fn on_empty(&mut self, wp: u16) -> Empty {
        if self.ring.next() == wp.checked_rem(self.entries).unwrap_or(0) {
            return Empty::Nothing;
        }
        self.missing = Some(wp.checked_rem(self.entries).unwrap_or(0));
        Empty::Missing
    }

    /// Records that the interrupt is armed again.
    pub fn armed(&mut self) {
        self.waiting = false;
    }

    /// Returns true if a recovery is due. Other code must not arm the interrupt before the
    /// recovery.
    pub const fn is_missing(&self) -> bool {
        self.missing.is_some()
    }

    /// Performs a periodic poll with the current write pointer.
    pub fn poll(&mut self, wp: u16) -> Poll {
        if self.missing.is_some() || self.ring.next() == wp.checked_rem(self.entries).unwrap_or(0) {
            return Poll::Idle;
        }
        if core::mem::replace(&mut self.waiting, true) {
            Poll::Overdue
        } else {
            Poll::Fresh
        }
    }

    /// Handles valid entries up to the recorded write pointer, and skips missing entries. `fill`
    /// marks a lost entry as handled. Returns `None` if the missing entry arrived and was handled
    /// before this call.
    pub fn recover<E>(
        &mut self,
        mut read: impl FnMut(u16) -> Option<(Header, E)>,
        mut handle: impl FnMut(E),
        mut fill: impl FnMut(u16, Header),
    ) -> Option<Skipped> {
        let written = self.missing.take()?;
        let first = self.ring.next();
        let mut lost = 0;
        for _ in 0..self.entries {
            let next = self.ring.next();
            if next == written {
                break;
            }
            match read(next) {
                Some((header, entry)) if self.ring.is_valid(header) => handle(entry),
                _ => {
                    fill(next, self.ring.filler());
                    lost += 1;
                }
            }
            self.ring.consume();
        }
        Some(Skipped { first, lost })
    }
}
