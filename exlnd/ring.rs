// SPDX-License-Identifier: GPL-2.0-only

//! FIFO queue of bounded size that allocates its memory when it is created. The owner provides the
//! lock.

use kernel::prelude::*;

/// A FIFO queue of bounded size.
pub(crate) struct Ring<T> {
    slots: KVVec<Option<T>>,
    first: usize,
    len: usize,
}

impl<T> Ring<T> {
    /// Creates a queue for up to `size` entries. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(size: usize) -> Result<Self> {
        let mut slots = KVVec::with_capacity(size.max(1), GFP_KERNEL)?;
        for _ in 0..size.max(1) {
            slots.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            first: 0,
            len: 0,
        })
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends an entry. Returns the entry as an error if the queue is full.
    pub(crate) fn push(&mut self, new: T) -> Result<(), T> {
        let at = (self.first + self.len) % self.slots.len().max(1);
        match self.slots.get_mut(at) {
            Some(slot) if slot.is_none() => {
                *slot = Some(new);
                self.len += 1;
                Ok(())
            }
            _ => Err(new),
        }
    }

    /// Removes the first entry.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let taken = self.slots.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) % self.slots.len().max(1);
        self.len -= 1;
        Some(taken)
    }
}
