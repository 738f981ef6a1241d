// SPDX-License-Identifier: GPL-2.0-only

//! Table of connections by connection ID. Protected by the lock `table` of the NIC.

use super::conn::Conn;
use extoll_core::memory::KernelMemory;
use kernel::{prelude::*, sync::Arc};
use kernel_ext::security;
use protocol::Slots;
use wire::{ds::ConnId, ids::NodeId};

/// Slot of the table. Free slots are reused in FIFO order, so that each slot stays free for a
/// long time.
struct TableSlot {
    conn: Option<Arc<Conn>>,
    /// Number of times the slot was used, starting at a random number. Part of the connection ID.
    uses: u32,
}

/// Connections of a NIC by slot, and the free slots.
pub(super) struct Table {
    slots: KVVec<TableSlot>,
    /// Ring buffer of free slots.
    free: KVVec<u16>,
    /// Index of the first entry of `free`.
    first: usize,
    /// Number of entries of `free`.
    len: usize,
    /// Slots of accepted connections by a hash of the client's request.
    asked: Slots<KernelMemory, u16>,
    /// Secret key of the hash that `asked` uses.
    secret: u64,
}

/// Hashes a client's request. The secret prevents clients from choosing collisions.
fn key(secret: u64, (node, cookie, client): (NodeId, u32, ConnId)) -> u64 {
    let name = u64::from(node.0) << 24 | u64::from(client.raw());
    let mixed = (name ^ secret).wrapping_mul(secret | 1).rotate_left(29);
    (mixed ^ u64::from(cookie)).wrapping_mul(secret | 1)
}

impl Table {
    /// Creates a table with `capacity` slots. May sleep.
    pub(super) fn new(capacity: usize) -> Result<Self> {
        let mut slots = KVVec::with_capacity(capacity, GFP_KERNEL)?;
        let mut free = KVVec::with_capacity(capacity, GFP_KERNEL)?;
        for i in 0..capacity {
            let uses = security::random() as u32;
            slots.push(TableSlot { conn: None, uses }, GFP_KERNEL)?;
            free.push(i as u16, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            free,
            first: 0,
            len: capacity,
            // The number of slots never exceeds the range of `u16`.
            asked: Slots::new(capacity as u16)?,
            secret: security::random(),
        })
    }

    /// Returns the number of slots.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of slots in use.
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.len
    }

    /// Reserves a slot and returns the connection ID for that slot.
    pub(super) fn reserve(&mut self) -> Option<ConnId> {
        if self.len == 0 {
            return None;
        }
        let index = *self.free.get(self.first)?;
        self.first = (self.first + 1) % self.free.len();
        self.len -= 1;
        let slot = self.slots.get_mut(usize::from(index))?;
        slot.uses = slot.uses.wrapping_add(1);
        Some(ConnId::new(index.into(), slot.uses))
    }

    /// Puts a connection into its reserved slot.
    pub(super) fn put(&mut self, conn: Arc<Conn>) {
        let index = conn.name.index();
        if let Some(asked) = conn.asked() {
            // If a client has requested two connections with the same hash, the entry of the older
            // one stays.
            let _ = self.asked.insert(key(self.secret, asked), index as u16);
        }
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.conn = Some(conn);
        }
    }

    /// Frees the slot of a connection. The caller drops the returned connection without the lock.
    pub(super) fn free(&mut self, name: ConnId) -> Option<Arc<Conn>> {
        let index = name.index() as usize;
        let conn = self.slots.get_mut(index)?.conn.take();
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

    /// Returns the connection with this ID.
    pub(super) fn get(&self, name: ConnId) -> Option<&Arc<Conn>> {
        let conn = self.at(name.index() as usize)?;
        (conn.name == name).then_some(conn)
    }

    /// Returns whether a connection was accepted for the request with this node, cookie and
    /// connection ID.
    pub(super) fn is_accepted(&self, client: (NodeId, u32, ConnId)) -> bool {
        let index = self.asked.get(key(self.secret, client));
        let conn = index.and_then(|index| self.at(usize::from(*index)));
        conn.is_some_and(|conn| conn.asked() == Some(client))
    }

    /// Returns the connection in a slot.
    pub(super) fn at(&self, index: usize) -> Option<&Arc<Conn>> {
        self.slots.get(index)?.conn.as_ref()
    }
}
