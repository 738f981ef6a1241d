// SPDX-License-Identifier: GPL-2.0-only

//! A queue of bounded size that allocates its memory when it is created. The owner provides the
//! lock.

use kernel::prelude::*;

/// A FIFO queue.
pub(crate) struct Ring<T> {
    places: KVVec<Option<T>>,
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
        let mut places = KVVec::with_capacity(size.max(1), GFP_KERNEL)?;
        for _ in 0..size.max(1) {
            places.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            places,
            first: 0,
            len: 0,
        })
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends an entry; gives it back if the queue is full.
    pub(crate) fn push(&mut self, new: T) -> Result<(), T> {
        let at = (self.first + self.len) % self.places.len().max(1);
        match self.places.get_mut(at) {
            Some(place) if place.is_none() => {
                *place = Some(new);
                self.len += 1;
                Ok(())
            }
            _ => Err(new),
        }
    }

    /// Removes the first entry.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let taken = self.places.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) % self.places.len().max(1);
        self.len -= 1;
        Some(taken)
    }
}
