// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Deadlines of many items, in a binary heap from which any item can be removed. All memory is
//! allocated when the heap is created.

use crate::{Memory, Time};

/// Index of an item without deadline.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    at: Time,
    item: u32,
}

/// Deadlines of items. Each item has at most one deadline. An item is a number below the capacity.
pub struct Deadlines<M: Memory> {
    /// Binary heap: no element i is later than the elements 2i + 1 and 2i + 2.
    heap: M::Array<Entry>,
    len: usize,
    /// Index of each item in the heap.
    positions: M::Array<u32>,
}

impl<M: Memory> Deadlines<M> {
    /// Creates a heap for items 0…`capacity` − 1. May sleep if the allocation of memory does.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(capacity: usize) -> Result<Self, M::Error> {
        let nothing = Entry {
            at: Time(0),
            item: NONE,
        };
        Ok(Self {
            heap: M::array(capacity, |_| nothing)?,
            len: 0,
            positions: M::array(capacity, |_| NONE)?,
        })
    }

    /// Returns the earliest deadline and its item.
    #[inline]
    pub fn first(&self) -> Option<(Time, u32)> {
        let entry = self.heap.first().filter(|_| self.len > 0)?;
        Some((entry.at, entry.item))
    }

    fn position(&self, item: u32) -> Option<usize> {
        let position = *self.positions.get(item as usize)?;
        (position != NONE).then_some(position as usize)
    }

    fn at(&self, position: usize) -> Time {
        self.heap.get(position).map_or(Time(u64::MAX), |e| e.at)
    }

    /// Writes an entry to an index of the heap.
    fn put(&mut self, position: usize, entry: Entry) {
        if let Some(e) = self.heap.get_mut(position) {
            *e = entry;
        }
        if let Some(p) = self.positions.get_mut(entry.item as usize) {
            *p = position as u32;
        }
    }

    /// Inserts an entry at `position`, and moves it up or down until the heap is in order.
    fn sift(&mut self, mut position: usize, entry: Entry) {
        while position > 0 {
            let above = (position - 1) / 2;
            match self.heap.get(above).copied() {
                Some(e) if e.at > entry.at => self.put(position, e),
                _ => break,
            }
            position = above;
        }
        loop {
            let (left, right) = (2 * position + 1, 2 * position + 2);
            let below = if right < self.len && self.at(right) < self.at(left) {
                right
            } else {
                left
            };
            match self.heap.get(below).copied() {
                Some(e) if below < self.len && e.at < entry.at => self.put(position, e),
                _ => break,
            }
            position = below;
        }
        self.put(position, entry);
    }

    /// Sets the deadline of an item, and replaces its previous deadline.
    pub fn set(&mut self, item: u32, at: Time) {
        if item as usize >= self.positions.len() {
            return;
        }
        let position = match self.position(item) {
            Some(position) => position,
            None => {
                self.len += 1;
                self.len - 1
            }
        };
        self.sift(position, Entry { at, item });
    }

    /// Removes the deadline of an item.
    pub fn clear(&mut self, item: u32) {
        let Some(position) = self.position(item) else {
            return;
        };
        self.len -= 1;
        if let Some(p) = self.positions.get_mut(item as usize) {
            *p = NONE;
        }
        match self.heap.get(self.len).copied() {
            Some(last) if position < self.len => self.sift(position, last),
            _ => {}
        }
    }
}
