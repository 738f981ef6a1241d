// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! A queue of numbers below a bound, in reserved memory: connections that wait for something, first
//! come, first served.

use crate::Memory;
use wire::ids::NodeId;

/// When there is nothing for so many nodes, there is nothing.
const FULL: usize = 16;

/// Each number is in it once at most, so that it never overflows.
pub struct Line<M: Memory> {
    /// Ring of those that wait.
    order: M::Array<u32>,
    first: usize,
    len: usize,
    /// Whether a number waits.
    waits: M::Array<bool>,
}

impl<M: Memory> Line<M> {
    /// For the numbers 0…`bound` − 1. May sleep where getting memory does.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(bound: usize) -> Result<Self, M::Error> {
        Ok(Self {
            order: M::array(bound, |_| 0)?,
            first: 0,
            len: 0,
            waits: M::array(bound, |_| false)?,
        })
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where in memory the one behind `at` others is: no more of them than there is room for.
    fn place(&self, at: usize) -> usize {
        let place = self.first.saturating_add(at);
        place.checked_sub(self.order.len()).unwrap_or(place)
    }

    /// How many others than `number` wait.
    #[must_use]
    pub fn others(&self, number: u32) -> usize {
        let waits = self.waits.get(number as usize).copied();
        self.len.saturating_sub(usize::from(waits.unwrap_or(false)))
    }

    /// A number waits from now on, behind the others, unless it does already. One that is not below
    /// the bound never does.
    pub fn push(&mut self, number: u32) {
        let Some(waits) = self.waits.get_mut(number as usize) else {
            return;
        };
        if core::mem::replace(waits, true) {
            return;
        }
        let end = self.place(self.len);
        if let Some(place) = self.order.get_mut(end) {
            *place = number;
            self.len += 1;
        }
    }

    /// The one that waits for longest, and does not any more.
    pub fn pop(&mut self) -> Option<u32> {
        self.remove(0)
    }

    /// The one behind `at` others, which still waits.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<u32> {
        if at >= self.len {
            return None;
        }
        self.order.get(self.place(at)).copied()
    }

    /// The one behind `at` others, and does not wait any more. Moves those before it.
    pub fn remove(&mut self, at: usize) -> Option<u32> {
        let number = self.get(at)?;
        for i in (0..at).rev() {
            let before = self.get(i)?;
            let to = self.place(i.saturating_add(1));
            if let Some(place) = self.order.get_mut(to) {
                *place = before;
            }
        }
        self.first = self.place(1);
        self.len = self.len.saturating_sub(1);
        if let Some(waits) = self.waits.get_mut(number as usize) {
            *waits = false;
        }
        Some(number)
    }
}

/// Once through a line of those who wait for something that there is a bounded number of for each node.
/// Who gets nothing, as there is nothing for its node, keeps its place; who gets some and wants more
/// is the last one from then on. So nobody gets any twice before one that waits for the same.
pub struct Round {
    at: usize,
    left: usize,
    full: [Option<NodeId>; FULL],
    count: usize,
}

impl Round {
    /// Through a line of so many.
    #[must_use]
    pub const fn new(len: usize) -> Self {
        Self {
            at: 0,
            left: len,
            full: [None; FULL],
            count: 0,
        }
    }

    /// Where in the line the next one is. It has to be removed, unless it is [kept](Round::keep).
    pub fn next_place(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        Some(self.at)
    }

    /// The one that [`Round::next_place`] gave got nothing, and stays where it is.
    pub fn keep(&mut self) {
        self.at += 1;
    }

    /// Whether there is nothing for a node.
    #[must_use]
    pub fn is_full(&self, node: NodeId) -> bool {
        self.full.iter().flatten().any(|other| *other == node)
    }

    /// There is nothing more for a node. If that is so for many, the round is over.
    pub fn fill(&mut self, node: NodeId) {
        if let Some(place) = self.full.get_mut(self.count) {
            *place = Some(node);
            self.count += 1;
        }
        if self.count == FULL {
            self.left = 0;
        }
    }
}
