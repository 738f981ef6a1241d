// SPDX-License-Identifier: GPL-2.0-only

//! Connections by name.

use super::conn::Conn;
use extoll_core::machine::Kernel;
use kernel::{prelude::*, sync::Arc};
use kernel_ext::security;
use protocol::Slots;
use wire::{ds::ConnId, ids::NodeId};

/// A place. It is used again only after all others that are free.
struct Place {
    conn: Option<Arc<Conn>>,
    /// How often it was used, from a random number on.
    uses: u32,
}

/// Connections of a NIC by place, and the places that are free.
pub(super) struct Table {
    places: KVVec<Place>,
    /// Ring of free places.
    free: KVVec<u16>,
    first: usize,
    len: usize,
    /// Places of connections that clients have asked for, by what they said.
    asked: Slots<Kernel, u16>,
    secret: u64,
}

/// A number for a client that has asked; which share one depends on a secret.
fn key(secret: u64, (node, cookie, client): (NodeId, u32, ConnId)) -> u64 {
    let name = u64::from(node.0) << 24 | u64::from(client.raw());
    let mixed = (name ^ secret).wrapping_mul(secret | 1).rotate_left(29);
    (mixed ^ u64::from(cookie)).wrapping_mul(secret | 1)
}

impl Table {
    /// With so many places. May sleep.
    pub(super) fn new(capacity: usize) -> Result<Self> {
        let mut places = KVVec::with_capacity(capacity, GFP_KERNEL)?;
        let mut free = KVVec::with_capacity(capacity, GFP_KERNEL)?;
        for i in 0..capacity {
            let uses = security::random() as u32;
            places.push(Place { conn: None, uses }, GFP_KERNEL)?;
            free.push(i as u16, GFP_KERNEL)?;
        }
        Ok(Self {
            places,
            free,
            first: 0,
            len: capacity,
            // More places than numbers for them there are not.
            asked: Slots::new(capacity as u16)?,
            secret: security::random(),
        })
    }

    /// Places.
    pub(super) fn capacity(&self) -> usize {
        self.places.len()
    }

    /// Places that are not free.
    pub(super) fn used(&self) -> usize {
        self.places.len() - self.len
    }

    /// A name for a new connection.
    pub(super) fn reserve(&mut self) -> Option<ConnId> {
        if self.len == 0 {
            return None;
        }
        let index = *self.free.get(self.first)?;
        self.first = (self.first + 1) % self.free.len();
        self.len -= 1;
        let place = self.places.get_mut(usize::from(index))?;
        place.uses = place.uses.wrapping_add(1);
        Some(ConnId::new(index.into(), place.uses))
    }

    /// Puts a connection in the place that was reserved for it.
    pub(super) fn put(&mut self, conn: Arc<Conn>) {
        let index = conn.name.index();
        if let Some(asked) = conn.asked() {
            // One that has asked for two of them is known by the first.
            let _ = self.asked.insert(key(self.secret, asked), index as u16);
        }
        if let Some(place) = self.places.get_mut(index as usize) {
            place.conn = Some(conn);
        }
    }

    /// Frees a name, whose connection is returned to be dropped without a lock.
    pub(super) fn free(&mut self, name: ConnId) -> Option<Arc<Conn>> {
        let index = name.index() as usize;
        let conn = self.places.get_mut(index)?.conn.take();
        if let Some(asked) = conn.as_ref().and_then(|conn| conn.asked()) {
            let key = key(self.secret, asked);
            if self.asked.get(key) == Some(&(index as u16)) {
                self.asked.remove(key);
            }
        }
        let count = self.free.len();
        if let Some(slot) = self.free.get_mut((self.first + self.len) % count.max(1)) {
            *slot = index as u16;
            self.len += 1;
        }
        conn
    }

    /// The connection of a name.
    pub(super) fn get(&self, name: ConnId) -> Option<&Arc<Conn>> {
        let conn = self.at(name.index() as usize)?;
        (conn.name == name).then_some(conn)
    }

    /// Whether there is one that this client has asked for: its node, cookie and name.
    pub(super) fn is_taken(&self, client: (NodeId, u32, ConnId)) -> bool {
        let index = self.asked.get(key(self.secret, client));
        let conn = index.and_then(|index| self.at(usize::from(*index)));
        conn.is_some_and(|conn| conn.asked() == Some(client))
    }

    /// That at a place.
    pub(super) fn at(&self, index: usize) -> Option<&Arc<Conn>> {
        self.places.get(index)?.conn.as_ref()
    }
}
