// SPDX-License-Identifier: GPL-2.0-only

//! Creation of connections: requests of clients, and accepted connections of servers. Process
//! context, may sleep.

use super::{
    conn::{Conn, Parts},
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
    /// Allocates table slot and rings of a connection. May sleep.
    fn parts(self: &Arc<Self>, peer: NodeId, sock: Endpoint) -> Result<Parts, Fallback> {
        let link = self.link.lock().clone().ok_or(Fallback::NoRoute)?;
        let limit = Fallback::UserLimit;
        let place = self.users_of_places.take().ok_or(limit)?;
        let share = self.users_of_rings.take().ok_or(limit)?;
        let rings = {
            let mut rings = self.rings.lock();
            let (handle, pool) = Option::as_mut(&mut *rings).ok_or(Fallback::NoRoute)?;
            pool.take(handle, share).map_err(|e| match e {
                ENOBUFS => Fallback::NoSlot,
                _ => Fallback::NoMemory,
            })?
        };
        let name = self.table.lock().reserve().ok_or(Fallback::NoSlot)?;
        Ok(Parts {
            nic: self.clone(),
            peer,
            name,
            sock,
            link,
            rings,
            place,
            isn: Seq(security::random() as u32),
        })
    }

    /// Puts a connection into the table and starts it.
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
        // `close` reads the table after it has set `closing`, so one of the two ends this
        // connection.
        if self.closing.load(Relaxed) {
            conn.unmade();
            return Err(Fallback::NoRoute);
        }
        conn.with(|_, _| {});
        Ok(conn)
    }

    /// Requests a direct connection from a node. May sleep.
    ///
    /// # Errors
    ///
    /// The reason for the fallback to TCP.
    pub(crate) fn connect(
        self: &Arc<Self>,
        peer: NodeId,
        tuple: Tuple,
        sock: Endpoint,
    ) -> Result<Arc<Conn>, Fallback> {
        let parts = self.parts(peer, sock)?;
        let name = parts.name;
        let connect = Connect {
            cookie: security::random() as u32,
            client: parts.endpoint(),
            tuple,
        };
        self.begin(parts.client(connect), name)
    }

    /// Accepts the request of a client. May sleep.
    ///
    /// # Errors
    ///
    /// The reason for the fallback to TCP.
    pub(crate) fn accept(
        self: &Arc<Self>,
        peer: NodeId,
        tuple: &Tuple,
        sock: Endpoint,
    ) -> Result<Arc<Conn>, Fallback> {
        let now = self.now();
        let asked = self
            .waiting
            .lock()
            .begin_accept(peer, tuple, &self.opening, now)
            .ok_or(Fallback::NotAsked)?;
        let parts = self
            .parts(peer, sock)
            .inspect_err(|_| serve::refuse(self, &asked))?;
        let name = parts.name;
        let conn = self
            .begin(parts.server(&asked), name)
            .inspect_err(|_| serve::refuse(self, &asked))?;
        self.waiting.lock().end_accept(&asked);
        Ok(conn)
    }
}
