// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Which node a MAC address lives on that is not a node's own: containers (macvlan), virtual
//! machines and everything else behind a bridge.
//!
//! Addresses are learned from the source addresses of received frames, as a switch does. An address
//! moves when another node sends with it, and is forgotten when no frame has come from it for a
//! while. Each node has a part of the table only, so that a node that makes up addresses cannot
//! displace those of all others.

use crate::{base::slots::Slots, Memory, Time};
use wire::{eth::as_number, ids::NodeId};

/// A MAC address.
pub type Mac = [u8; 6];

/// Bounds of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Addresses of all nodes.
    pub all: u16,
    /// Addresses of one node.
    pub of_node: u16,
    /// An address from which no frame has come for so many ticks is forgotten.
    pub age: u64,
}

/// What a source address told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Heard {
    /// The address was known to be on that node.
    Known,
    /// It is new, or was on another node before.
    Learned,
    /// The node has its part of the table already: not learned.
    Refused,
}

struct Place {
    node: NodeId,
    /// Last frame, to within [`Macs::grain`].
    heard: Time,
}

/// See the module.
pub struct Macs<M: Memory> {
    bounds: Bounds,
    /// By address, in the order of `heard`.
    places: Slots<M, Place>,
    /// Addresses of each node that has any.
    held: Slots<M, u16>,
}

impl<M: Memory> Macs<M> {
    /// Makes an empty table.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(bounds: Bounds) -> Result<Self, M::Error> {
        Ok(Self {
            bounds,
            places: Slots::new(bounds.all)?,
            held: Slots::new(bounds.all)?,
        })
    }

    /// Number of addresses, forgotten ones that still have their place included.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Forgets all addresses.
    pub fn clear(&mut self) {
        while self.drop_oldest() {}
    }

    /// Frames that come within this time after one another do not change the order of addresses,
    /// which would cost too much for each.
    const fn grain(&self) -> u64 {
        self.bounds.age / 16
    }

    /// Learns from a frame of `node` with the source address `mac`.
    pub fn heard(&mut self, mac: Mac, node: NodeId, now: Time) -> Heard {
        let key = as_number(mac);
        let was = self.places.get(key).map(|place| (place.node, place.heard));
        if let Some((old, heard)) = was {
            if old == node && now.since(heard) < self.grain() {
                return Heard::Known;
            }
        }
        while self.is_oldest_past(now) {
            self.drop_oldest();
        }
        // It may have been forgotten just now.
        let old = self.places.get(key).map(|place| place.node);
        if old != Some(node) && self.of_node(node) >= self.bounds.of_node {
            return Heard::Refused;
        }
        self.forget(key);
        if self.places.is_full() {
            self.drop_oldest();
        }
        // There is a place, and the key is not in use.
        if self.places.insert(key, Place { node, heard: now }).is_ok() {
            self.count(node, 1);
        }
        match old {
            Some(old) if old == node => Heard::Known,
            _ => Heard::Learned,
        }
    }

    /// Node that `mac` lives on, if that is known.
    pub fn node(&self, mac: Mac, now: Time) -> Option<NodeId> {
        let place = self.places.get(as_number(mac))?;
        (now.since(place.heard) < self.bounds.age).then_some(place.node)
    }

    /// Number of addresses of `node`.
    pub fn of_node(&self, node: NodeId) -> u16 {
        self.held.get(node.0.into()).copied().unwrap_or(0)
    }

    fn is_oldest_past(&self, now: Time) -> bool {
        self.places
            .oldest()
            .is_some_and(|(_, place)| now.since(place.heard) >= self.bounds.age)
    }

    /// Returns whether there was one.
    fn drop_oldest(&mut self) -> bool {
        let oldest = self.places.oldest().map(|(key, _)| key);
        oldest.is_some_and(|key| self.forget(key))
    }

    /// Returns whether the address was known.
    fn forget(&mut self, key: u64) -> bool {
        let known = self.places.get(key).is_some();
        if let Some(place) = self.places.remove(key).filter(|_| known) {
            self.count(place.node, -1);
        }
        known
    }

    fn count(&mut self, node: NodeId, change: i16) {
        let key = u64::from(node.0);
        let n = self.of_node(node).saturating_add_signed(change);
        if n == 0 {
            self.held.remove(key);
        } else if let Some(held) = self.held.get_mut(key) {
            *held = n;
        } else {
            // No more nodes than addresses.
            let _ = self.held.insert(key, n);
        }
    }
}
