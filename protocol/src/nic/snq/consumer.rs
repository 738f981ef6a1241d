// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Taking entries out of the notification ring, and recovery when entries or interrupts get lost.
//!
//! Entries come by posted writes and are valid by their flip bit. An entry whose write got lost
//! stays invalid while the hardware's write pointer moves on; all behind it would wait for ever. An
//! interrupt that got lost would be the last one, as only its handler arms the next. [`SnqConsumer`]
//! decides what is taken, skipped and made up for; whoever drives it reads memory and registers,
//! and keeps the time.

use wire::snq::{Header, Ring};

/// Why a handler found no entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Empty {
    /// Nothing was written: the interrupt was somebody else's, or told of entries that a look took.
    Nothing,
    /// The write pointer has passed the next entry. Do not arm the interrupt; call
    /// [`SnqConsumer::recover`] when the entry has had time to arrive.
    Missing,
}

/// What a look at the write pointer, without an interrupt, tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Nothing waits, or what waits is being recovered.
    Idle,
    /// Something waits since this look: its interrupt may be under way.
    Fresh,
    /// Something has been waiting since an earlier look: its interrupt got lost. Take it.
    Overdue,
}

/// What a recovery skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// The first entry that was looked at.
    pub first: u16,
    /// Entries that got lost.
    pub lost: u16,
}

/// A ring with what is known about lost entries and interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnqConsumer {
    ring: Ring,
    entries: u16,
    /// Where the write pointer was when the next entry was found missing.
    missing: Option<u16>,
    /// Entries were seen waiting since the interrupt was armed.
    waiting: bool,
}

impl SnqConsumer {
    /// As [`Ring::new`].
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

    /// The ring, for its registers.
    pub const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Takes the entries that are there, at most `budget`; returns their number. `read` gives what
    /// is in a slot, with its header; `None` ends the intake. `handle` gets what is valid, in
    /// order.
    pub fn take<E>(
        &mut self,
        budget: u32,
        mut read: impl FnMut(u16) -> Option<(Header, E)>,
        mut handle: impl FnMut(E),
    ) -> u32 {
        let mut taken = 0;
        while taken < budget {
            match read(self.ring.next()) {
                Some((header, entry)) if self.ring.is_valid(header) => handle(entry),
                _ => break,
            }
            self.ring.consume();
            taken += 1;
        }
        if taken != 0 {
            self.missing = None;
        }
        taken
    }

    /// No entry was there after the write pointer `wp` had been read, behind which all that
    /// hardware wrote before is visible.
    pub fn found_none(&mut self, wp: u16) -> Empty {
        if self.ring.next() == wp.checked_rem(self.entries).unwrap_or(0) {
            return Empty::Nothing;
        }
        self.missing = Some(wp.checked_rem(self.entries).unwrap_or(0));
        Empty::Missing
    }

    /// The interrupt is armed again.
    pub fn armed(&mut self) {
        self.waiting = false;
    }

    /// Whether a recovery is to come, so that nobody else may arm the interrupt.
    pub const fn is_missing(&self) -> bool {
        self.missing.is_some()
    }

    /// A look from time to time, with the write pointer as read.
    pub fn look(&mut self, wp: u16) -> Look {
        if self.missing.is_some() || self.ring.next() == wp.checked_rem(self.entries).unwrap_or(0) {
            return Look::Idle;
        }
        if core::mem::replace(&mut self.waiting, true) {
            Look::Overdue
        } else {
            Look::Fresh
        }
    }

    /// Skips what is still missing up to where the write pointer was, and handles the rest. `fill`
    /// makes a lost entry one that was handled. `None`: the entry came after all, and was taken.
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
