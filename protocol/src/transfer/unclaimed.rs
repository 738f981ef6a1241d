// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Notifications that no transfer waits for, on their way to whoever wants them: those that peers
//! cause.

use crate::{base::slots::Slots, Memory};
use wire::{ids::NodeId, rma::Notification};

/// A queue of bounded size, of which each node may fill a part: one that notifies faster than the
/// reader takes loses its own, not those of others.
pub struct Unclaimed<M: Memory> {
    ring: M::Array<Option<Notification>>,
    first: usize,
    len: usize,
    /// Entries by node.
    shares: Slots<M, u32>,
    share: u32,
    busy: bool,
}

impl<M: Memory> Unclaimed<M> {
    /// For `capacity` notifications, at most 32,768, of which `share` may be of one node; both at
    /// least one. May sleep where getting memory does.
    ///
    /// # Errors
    ///
    /// There is no memory.
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

    /// Notifications that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Index of a place, of which `i` is less than a whole round too far.
    fn wrap(&self, i: usize) -> usize {
        match i.checked_sub(self.ring.len()) {
            Some(rest) => rest,
            None => i,
        }
    }

    /// Adds one; false if its node or the queue has no room.
    pub fn push(&mut self, n: &Notification) -> bool {
        let key = u64::from(n.node.0);
        let mine = self.shares.get(key).copied().unwrap_or(0);
        let end = self.wrap(self.first + self.len);
        let free = self.len < self.ring.len() && mine < self.share;
        let Some(place) = self.ring.get_mut(end).filter(|_| free) else {
            return false;
        };
        *place = Some(*n);
        self.len += 1;
        match self.shares.get_mut(key) {
            Some(share) => *share += 1,
            None => {
                // There is room: no more nodes than entries.
                let _ = self.shares.insert(key, 1);
            }
        }
        true
    }

    /// Takes the oldest one out, unless somebody is at work with one: they keep their order. Say
    /// when that is done ([`Unclaimed::taken`]).
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

    /// The one taken out was handled.
    pub fn taken(&mut self) {
        self.busy = false;
    }

    /// Whether somebody is at work with one.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether one can be taken out.
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
