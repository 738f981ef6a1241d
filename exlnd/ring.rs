// SPDX-License-Identifier: GPL-2.0-only

//! A queue of bounded size, which gets its memory when it is made.

use kernel::prelude::*;

/// First in, first out.
pub(crate) struct Ring<T> {
    places: KVVec<Option<T>>,
    first: usize,
    len: usize,
}

impl<T> Ring<T> {
    /// For up to `size` things. May sleep.
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

    /// Things in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts something behind the others; back if there is no place.
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

    /// Takes the first one.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let taken = self.places.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) % self.places.len().max(1);
        self.len -= 1;
        Some(taken)
    }
}
