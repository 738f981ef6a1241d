// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Queue of notifications that belong to no transfer, because peers caused them.

use crate::{base::slots::Slots, Memory};
use wire::{ids::NodeId, rma::Notification};

/// Bounded queue with a limit per node. If notifications of a node arrive faster than they are
/// read, only notifications of this node are lost.
pub struct Unclaimed<M: Memory> {
    ring: M::Array<Option<Notification>>,
    first: usize,
    len: usize,
    /// Number of entries by node.
    shares: Slots<M, u32>,
    share: u32,
    busy: bool,
}

impl<M: Memory> Unclaimed<M> {
    /// Returns a queue for `capacity` notifications, limited to 1…32,768. One node may have at most
    /// `share` of them, which is at least 1. May sleep if the allocation does.
    ///
    /// # Errors
    ///
    /// Returns an error if a memory allocation fails.
    pub fn new(capacity: u16, share: u16) -> Result<Self, M::Error> {
        let capacity = capacity.clamp(1, 0x8000);
        Ok(Self {
            ring: M::array(usize::from(capacity), |_| None)?,
            first: 0,
            len: 0,
            shares: Slots::new(capacity)?,
            share: u32::from(share.max(1)),
            busy: false,
        })
    }

    /// Returns the number of queued notifications.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns `i` modulo the capacity. `i` must be less than twice the capacity.
    fn wrap(&self, i: usize) -> usize {
        match i.checked_sub(self.ring.len()) {
            Some(wrapped) => wrapped,
            None => i,
        }
    }

    /// Adds a notification. Returns false if the queue is full, or its node has reached its limit.
    pub fn push(&mut self, n: &Notification) -> bool {
        let key = u64::from(n.node.0);
        let mine = self.shares.get(key).copied().unwrap_or(0);
        let end = self.wrap(self.first + self.len);
        let free = self.len < self.ring.len() && mine < self.share;
        let Some(slot) = self.ring.get_mut(end).filter(|_| free) else {
            return false;
        };
        *slot = Some(*n);
        self.len += 1;
        match self.shares.get_mut(key) {
            Some(share) => *share += 1,
            None => {
                // Cannot fail, because the table has one entry per notification.
                let _ = self.shares.insert(key, 1);
            }
        }
        true
    }

    /// Removes and returns the oldest notification. Returns `None` while an earlier notification is
    /// processed, which preserves the order. The caller reports the end of processing with
    /// [`Unclaimed::processed`].
    pub fn pop(&mut self) -> Option<Notification> {
        if self.busy {
            return None;
        }
        let n = self.ring.get_mut(self.first)?.take()?;
        self.first = self.wrap(self.first + 1);
        self.len -= 1;
        self.release(n.node);
        self.busy = true;
        Some(n)
    }

    /// Records that the last returned notification was processed.
    pub fn processed(&mut self) {
        self.busy = false;
    }

    /// Returns true while a notification is being processed.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Returns true if [`Unclaimed::pop`] would return a notification.
    pub fn is_ready(&self) -> bool {
        self.len != 0 && !self.busy
    }

    fn release(&mut self, node: NodeId) {
        let key = u64::from(node.0);
        if let Some(share) = self.shares.get_mut(key) {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(key);
            }
        }
    }
}
