// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Table of foreign MAC addresses, with the node behind which each address is found. Foreign
//! addresses belong to containers (macvlan), virtual machines and other devices behind a bridge of
//! a node.
//!
//! Addresses are learned from the source addresses of received frames, as in a switch. An address
//! moves when another node sends with it, and is forgotten some time after its last frame. Each
//! node has a maximum number of addresses, so that a node with invented addresses cannot displace
//! the addresses of all others.

use crate::{base::slots::Slots, Memory, Time};
use wire::{eth::as_number, ids::NodeId};

/// MAC address.
pub type Mac = [u8; 6];

/// Bounds of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Maximum number of addresses of all nodes.
    pub all: u16,
    /// Maximum number of addresses of one node.
    pub of_node: u16,
    /// Ticks after which an address without frames is forgotten.
    pub age: u64,
}

/// Effect of a received source address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Learned {
    /// The table already contains the address for this node.
    Known,
    /// The address is new, or was on another node.
    New,
    /// The address was not learned, because the node has its maximum number of addresses.
    Refused,
}

struct Location {
    node: NodeId,
    /// Time of the last frame, with a resolution of [`Macs::grain`].
    last_seen: Time,
}

/// Table of foreign MAC addresses and their nodes.
pub struct Macs<M: Memory> {
    bounds: Bounds,
    /// Addresses in the order of `last_seen`.
    locations: Slots<M, Location>,
    /// Number of addresses of each node.
    counts: Slots<M, u16>,
}

impl<M: Memory> Macs<M> {
    /// Creates an empty table.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(bounds: Bounds) -> Result<Self, M::Error> {
        Ok(Self {
            bounds,
            locations: Slots::new(bounds.all)?,
            counts: Slots::new(bounds.all)?,
        })
    }

    /// Returns the number of addresses, including expired addresses that were not removed yet.
    pub fn len(&self) -> usize {
        self.locations.len()
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.locations.is_empty()
    }

    /// Removes all addresses.
    pub fn clear(&mut self) {
        while self.drop_oldest() {}
    }

    /// Returns the minimum time between two updates of an address. Frames within this time do not
    /// change the order, because an update for each frame is too expensive.
    const fn grain(&self) -> u64 {
        self.bounds.age / 16
    }

    /// Records that `node` has sent a frame with the source address `mac`.
    pub fn learn(&mut self, mac: Mac, node: NodeId, now: Time) -> Learned {
        let key = as_number(mac);
        let was = self
            .locations
            .get(key)
            .map(|location| (location.node, location.last_seen));
        if let Some((old, last_seen)) = was {
            if old == node && now.since(last_seen) < self.grain() {
                return Learned::Known;
            }
        }
        while self.is_oldest_past(now) {
            self.drop_oldest();
        }
        // The expired address may be `mac` itself, so this lookup comes after the removal.
        let old = self.locations.get(key).map(|location| location.node);
        if old != Some(node) && self.of_node(node) >= self.bounds.of_node {
            return Learned::Refused;
        }
        self.forget(key);
        if self.locations.is_full() {
            self.drop_oldest();
        }
        // Cannot fail: a slot is free, and the key is not in use.
        if self
            .locations
            .insert(
                key,
                Location {
                    node,
                    last_seen: now,
                },
            )
            .is_ok()
        {
            self.count(node, 1);
        }
        match old {
            Some(old) if old == node => Learned::Known,
            _ => Learned::New,
        }
    }

    /// Returns the node of `mac`, if it is known.
    pub fn node(&self, mac: Mac, now: Time) -> Option<NodeId> {
        let location = self.locations.get(as_number(mac))?;
        (now.since(location.last_seen) < self.bounds.age).then_some(location.node)
    }

    /// Returns the number of addresses of `node`.
    pub fn of_node(&self, node: NodeId) -> u16 {
        self.counts.get(node.0.into()).copied().unwrap_or(0)
    }

    fn is_oldest_past(&self, now: Time) -> bool {
        self.locations
            .oldest()
            .is_some_and(|(_, location)| now.since(location.last_seen) >= self.bounds.age)
    }

    /// Removes the oldest address. Returns false if the table is empty.
    fn drop_oldest(&mut self) -> bool {
        let oldest = self.locations.oldest().map(|(key, _)| key);
        oldest.is_some_and(|key| self.forget(key))
    }

    /// Removes an address. Returns false if it was not known.
    fn forget(&mut self, key: u64) -> bool {
        let known = self.locations.get(key).is_some();
        if let Some(location) = self.locations.remove(key).filter(|_| known) {
            self.count(location.node, -1);
        }
        known
    }

    fn count(&mut self, node: NodeId, change: i16) {
        let key = u64::from(node.0);
        let n = self.of_node(node).saturating_add_signed(change);
        if n == 0 {
            self.counts.remove(key);
        } else if let Some(count) = self.counts.get_mut(key) {
            *count = n;
        } else {
            // The insertion cannot fail, because there are at most as many nodes as addresses.
            let _ = self.counts.insert(key, n);
        }
    }
}
