// SPDX-License-Identifier: GPL-2.0-only

//! Creation of connections: requests of clients, and accepted connections of servers. Process
//! context, may sleep.

use super::{
    conn::{Components, Conn},
    serve, Nic,
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::{net::socket::Endpoint, security};
use protocol::ds::Fallback;
use wire::{
    ds::{ConnId, Connect, Seq, Tuple},
    ids::NodeId,
};

impl Nic {
    /// Allocates the table slot and the rings of a connection. May sleep.
    fn components(self: &Arc<Self>, peer: NodeId, sock: Endpoint) -> Result<Components, Fallback> {
        let link = self.link.lock().clone().ok_or(Fallback::NoRoute)?;
        let limit = Fallback::UserLimit;
        let slot = self.users_of_slots.charge().ok_or(limit)?;
        let charge = self.users_of_rings.charge().ok_or(limit)?;
        let rings = {
            let mut rings = self.rings.lock();
            let (handle, pool) = Option::as_mut(&mut *rings).ok_or(Fallback::NoRoute)?;
            pool.alloc(handle, charge).map_err(|e| match e {
                ENOBUFS => Fallback::NoSlot,
                _ => Fallback::NoMemory,
            })?
        };
        let name = self.table.lock().reserve().ok_or(Fallback::NoSlot)?;
        Ok(Components {
            nic: self.clone(),
            peer,
            name,
            sock,
            link,
            rings,
            slot,
            isn: Seq(security::random() as u32),
        })
    }

    /// Puts a connection into the table and starts the negotiation.
    fn begin(
        self: &Arc<Self>,
        made: Result<Arc<Conn>>,
        name: ConnId,
    ) -> Result<Arc<Conn>, Fallback> {
        let conn = match made {
            Ok(conn) => conn,
            Err(_) => {
                self.table.lock().free(name);
                return Err(Fallback::NoMemory);
            }
        };
        self.table.lock().put(conn.clone());
        // `close` reads the table after it has set `closing`. So `close` or the following check
        // ends this connection.
        if self.closing.load(Relaxed) {
            conn.abandon();
            return Err(Fallback::NoRoute);
        }
        conn.with(|_, _| {});
        Ok(conn)
    }

    /// Requests a direct connection from a node. May sleep.
    ///
    /// # Errors
    ///
    /// Returns the reason for the fallback to TCP.
    pub(crate) fn connect(
        self: &Arc<Self>,
        peer: NodeId,
        tuple: Tuple,
        sock: Endpoint,
    ) -> Result<Arc<Conn>, Fallback> {
        let components = self.components(peer, sock)?;
        let name = components.name;
        let connect = Connect {
            cookie: security::random() as u32,
            client: components.endpoint(),
            tuple,
        };
        self.begin(components.client(connect), name)
    }

    /// Accepts the request of a client. May sleep.
    ///
    /// # Errors
    ///
    /// Returns the reason for the fallback to TCP.
    pub(crate) fn accept(
        self: &Arc<Self>,
        peer: NodeId,
        tuple: &Tuple,
        sock: Endpoint,
    ) -> Result<Arc<Conn>, Fallback> {
        let now = self.now();
        let request = self
            .waiting
            .lock()
            .begin_accept(peer, tuple, &self.opening, now)
            .ok_or(Fallback::NotAsked)?;
        let components = self
            .components(peer, sock)
            .inspect_err(|_| serve::decline_for_resources(self, &request))?;
        let name = components.name;
        let conn = self
            .begin(components.server(&request), name)
            .inspect_err(|_| serve::decline_for_resources(self, &request))?;
        self.waiting.lock().end_accept(&request);
        Ok(conn)
    }
}
