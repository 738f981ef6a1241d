// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Deadlines of many items: a binary heap with removal by item. All memory is allocated when the
//! heap is created.

use crate::{Memory, Time};

/// Index of an item without deadline.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    at: Time,
    item: u32,
}

/// Deadlines of items, each of which has up to one. An item is a number below the capacity.
pub struct Deadlines<M: Memory> {
    /// Binary heap: each element is not later than those at 2i + 1 and 2i + 2.
    heap: M::Array<Entry>,
    len: usize,
    /// Index of each item in the heap.
    places: M::Array<u32>,
}

impl<M: Memory> Deadlines<M> {
    /// Creates a heap for items 0…`capacity` − 1. May sleep if the allocation of memory does.
    ///
    /// # Errors
    ///
    /// The error of [`Memory::array`].
    pub fn new(capacity: usize) -> Result<Self, M::Error> {
        let nothing = Entry {
            at: Time(0),
            item: NONE,
        };
        Ok(Self {
            heap: M::array(capacity, |_| nothing)?,
            len: 0,
            places: M::array(capacity, |_| NONE)?,
        })
    }

    /// Returns the earliest deadline and its item.
    #[inline]
    pub fn first(&self) -> Option<(Time, u32)> {
        let entry = self.heap.first().filter(|_| self.len > 0)?;
        Some((entry.at, entry.item))
    }

    fn place(&self, item: u32) -> Option<usize> {
        let place = *self.places.get(item as usize)?;
        (place != NONE).then_some(place as usize)
    }

    fn at(&self, place: usize) -> Time {
        self.heap.get(place).map_or(Time(u64::MAX), |e| e.at)
    }

    /// Writes an entry to an index of the heap.
    fn put(&mut self, place: usize, entry: Entry) {
        if let Some(e) = self.heap.get_mut(place) {
            *e = entry;
        }
        if let Some(p) = self.places.get_mut(entry.item as usize) {
            *p = place as u32;
        }
    }

    /// Inserts an entry at `place`, and moves it up or down until the heap is in order.
    fn settle(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let above = (place - 1) / 2;
            match self.heap.get(above).copied() {
                Some(e) if e.at > entry.at => self.put(place, e),
                _ => break,
            }
            place = above;
        }
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let below = if right < self.len && self.at(right) < self.at(left) {
                right
            } else {
                left
            };
            match self.heap.get(below).copied() {
                Some(e) if below < self.len && e.at < entry.at => self.put(place, e),
                _ => break,
            }
            place = below;
        }
        self.put(place, entry);
    }

    /// Sets the deadline of an item. Replaces its previous one.
    pub fn set(&mut self, item: u32, at: Time) {
        if item as usize >= self.places.len() {
            return;
        }
        let place = match self.place(item) {
            Some(place) => place,
            None => {
                self.len += 1;
                self.len - 1
            }
        };
        self.settle(place, Entry { at, item });
    }

    /// Removes the deadline of an item.
    pub fn clear(&mut self, item: u32) {
        let Some(place) = self.place(item) else {
            return;
        };
        self.len -= 1;
        if let Some(p) = self.places.get_mut(item as usize) {
            *p = NONE;
        }
        match self.heap.get(self.len).copied() {
            Some(last) if place < self.len => self.settle(place, last),
            _ => {}
        }
    }
}
