// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! FIFO queue of numbers below a bound, in preallocated memory. The numbers identify connections
//! that wait for a resource.

use crate::Memory;
use wire::ids::NodeId;

/// Number of nodes without a free resource after which a [`Round`] ends.
const FULL: usize = 16;

/// FIFO queue of numbers. Each number is queued once, so the queue cannot overflow.
pub struct WaitQueue<M: Memory> {
    /// Ring buffer of the queued numbers.
    order: M::Array<u32>,
    first: usize,
    len: usize,
    /// For each number, true if the number is queued.
    waits: M::Array<bool>,
}

impl<M: Memory> WaitQueue<M> {
    /// Returns a queue for the numbers 0…`bound` − 1. May sleep if the allocation does.
    ///
    /// # Errors
    ///
    /// Returns an error if a memory allocation fails.
    pub fn new(bound: usize) -> Result<Self, M::Error> {
        Ok(Self {
            order: M::array(bound, |_| 0)?,
            first: 0,
            len: 0,
            waits: M::array(bound, |_| false)?,
        })
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the index in `order` of the entry at position `at`, which is less than the bound.
    fn index_of(&self, at: usize) -> usize {
        let index = self.first.saturating_add(at);
        index.checked_sub(self.order.len()).unwrap_or(index)
    }

    /// Returns the number of entries other than `number`.
    #[must_use]
    pub fn others(&self, number: u32) -> usize {
        let waits = self.waits.get(number as usize).copied();
        self.len.saturating_sub(usize::from(waits.unwrap_or(false)))
    }

    /// Appends a number, unless it is queued already or not below the bound.
    pub fn push(&mut self, number: u32) {
        let Some(waits) = self.waits.get_mut(number as usize) else {
            return;
        };
        if core::mem::replace(waits, true) {
            return;
        }
        let end = self.index_of(self.len);
        if let Some(slot) = self.order.get_mut(end) {
            *slot = number;
            self.len += 1;
        }
    }

    /// Removes and returns the first entry.
    pub fn pop(&mut self) -> Option<u32> {
        self.remove(0)
    }

    /// Returns the entry at position `at`.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<u32> {
        if at >= self.len {
            return None;
        }
        self.order.get(self.index_of(at)).copied()
    }

    /// Removes and returns the entry at position `at`. Moves all entries before it.
    pub fn remove(&mut self, at: usize) -> Option<u32> {
        let number = self.get(at)?;
        for i in (0..at).rev() {
            let before = self.get(i)?;
            let to = self.index_of(i.saturating_add(1));
            if let Some(slot) = self.order.get_mut(to) {
                *slot = before;
            }
        }
        self.first = self.index_of(1);
        self.len = self.len.saturating_sub(1);
        if let Some(waits) = self.waits.get_mut(number as usize) {
            *waits = false;
        }
        Some(number)
    }
}

/// One pass over a queue of connections that wait for a resource with a limit per node. A
/// connection whose node has no free resource keeps its position. A served connection that needs
/// more is queued again at the end. Therefore no connection is served twice before another
/// connection that waits for the same resource.
pub struct Round {
    at: usize,
    left: usize,
    full: [Option<NodeId>; FULL],
    count: usize,
}

impl Round {
    /// Returns a pass over a queue of `len` entries.
    #[must_use]
    pub const fn new(len: usize) -> Self {
        Self {
            at: 0,
            left: len,
            full: [None; FULL],
            count: 0,
        }
    }

    /// Returns the position of the next entry. The caller must remove that entry or
    /// [keep](Round::keep) it.
    pub fn next_position(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        Some(self.at)
    }

    /// Keeps the entry of the last [`Round::next_position`] at its position.
    pub fn keep(&mut self) {
        self.at += 1;
    }

    /// Returns true if the node has no free resource.
    #[must_use]
    pub fn is_full(&self, node: NodeId) -> bool {
        self.full.iter().flatten().any(|other| *other == node)
    }

    /// Records that the node has no free resource. Ends the pass when this is true for 16 nodes.
    pub fn set_full(&mut self, node: NodeId) {
        if let Some(slot) = self.full.get_mut(self.count) {
            *slot = Some(node);
            self.count += 1;
        }
        if self.count == FULL {
            self.left = 0;
        }
    }
}
