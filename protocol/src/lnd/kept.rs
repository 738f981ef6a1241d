// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Copies of messages that LNet keeps for later ([`Lnd::kept`](super::Lnd::kept)).

use super::tables::Ticket;
use crate::{base::slots::Slots, Memory};
use wire::ids::NodeId;

/// Number of copies that each peer may have regardless of the other limits, if at least as many
/// entries are free.
const LEAST: usize = 32;

impl Ticket {
    /// Returns the ID of the message as a number. The number is unique until the message's entry
    /// was reused 2³² times, and never `u64::MAX`.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.1.number()
    }
}

/// Copies of messages by ID. A copy has the ID of its message, because LNet may use the ID before
/// and after the copy is made.
pub struct EagerCopies<M: Memory, T> {
    copies: Slots<M, (NodeId, T)>,
    /// Number of copies of each node that has copies.
    nodes: Slots<M, usize>,
}

impl<M: Memory, T> EagerCopies<M, T> {
    /// Returns a table for `size` copies, up to 32,768. May sleep if the allocation does.
    ///
    /// # Errors
    ///
    /// Returns an error if a memory allocation fails.
    pub fn new(size: u16) -> Result<Self, M::Error> {
        Ok(Self {
            copies: Slots::new(size)?,
            nodes: Slots::new(size)?,
        })
    }

    /// Returns the number of copies.
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Adds the copy of a node's message.
    ///
    /// # Errors
    ///
    /// Returns the copy if its sender has a quarter of the table, or as many copies as there are
    /// free entries. The second limit leaves free entries for other senders.
    pub fn insert(&mut self, message: u64, node: NodeId, copy: T) -> Result<(), T> {
        let room = self.copies.room();
        let quarter = (self.copies.len() + room) / 4;
        let most = quarter.max(LEAST).min(room);
        let key = node.0.into();
        let own = self.nodes.get(key).copied().unwrap_or(0);
        if own >= most {
            return Err(copy);
        }
        self.copies
            .insert(message, (node, copy))
            .map_err(|(_, copy)| copy)?;
        match self.nodes.get_mut(key) {
            Some(count) => *count += 1,
            // Cannot fail, because each node in this table has at least one copy.
            None => drop(self.nodes.insert(key, 1)),
        }
        Ok(())
    }

    /// Removes and returns the copy of a message.
    pub fn remove(&mut self, message: u64) -> Option<T> {
        let (node, copy) = self.copies.remove(message)?;
        let key = node.0.into();
        let left = self.nodes.get_mut(key).map(|count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == Some(0) {
            self.nodes.remove(key);
        }
        Some(copy)
    }
}
