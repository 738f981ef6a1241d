// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Copies of what came with messages that LNet keeps for later ([`Lnd::kept`](super::Lnd::kept)).

use super::tables::Ticket;
use crate::{base::slots::Slots, Memory};
use wire::ids::NodeId;

/// A peer may have so many kept in any case, if there is as much room left.
const LEAST: usize = 32;

impl Ticket {
    /// A number that only this message is called by, until its place has had 2³² others. It is never
    /// `u64::MAX`.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.1.number()
    }
}

/// Copies, by the numbers of messages: a message is called the same before and after it was copied,
/// as LNet may call it by either name.
pub struct Kept<M: Memory, T> {
    copies: Slots<M, (NodeId, T)>,
    /// How many each node has, of those that have any.
    nodes: Slots<M, usize>,
}

impl<M: Memory, T> Kept<M, T> {
    /// For so many, at most 32,768. May sleep where getting memory does.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(size: u16) -> Result<Self, M::Error> {
        Ok(Self {
            copies: Slots::new(size)?,
            nodes: Slots::new(size)?,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Keeps what came with a message of a node.
    ///
    /// # Errors
    ///
    /// The copy: its sender has a quarter of all, or as many as there is room left. Who has much
    /// here leaves as much to others.
    pub fn insert(&mut self, message: u64, node: NodeId, copy: T) -> Result<(), T> {
        let room = self.copies.room();
        let quarter = (self.copies.len() + room) / 4;
        let most = quarter.max(LEAST).min(room);
        let key = node.0.into();
        let here = self.nodes.get(key).copied().unwrap_or(0);
        if here >= most {
            return Err(copy);
        }
        self.copies
            .insert(message, (node, copy))
            .map_err(|(_, copy)| copy)?;
        match self.nodes.get_mut(key) {
            Some(count) => *count += 1,
            // There is room: each node in it has a copy.
            None => drop(self.nodes.insert(key, 1)),
        }
        Ok(())
    }

    /// Takes what came with a message, if it was kept, and was not taken.
    pub fn take(&mut self, message: u64) -> Option<T> {
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
