// SPDX-License-Identifier: GPL-2.0-only

//! Creation of client and server connections. Process context, may sleep.

use super::{
    super::{link::Link, rings::Rings, share::Charge, Nic},
    Conn, Decision, Inner, Setup, Tcp,
};
use kernel::{
    new_delayed_work, new_mutex,
    prelude::*,
    sync::{atomic::Atomic, Arc},
};
use kernel_ext::{
    net::socket::{Endpoint, ShutdownDirections},
    new_bh_lock,
};
use protocol::{
    ds::{Client, ConnectRequest, Geometry, Server, Stream},
    Time,
};
use wire::{
    ds::{ConnId, Connect, Endpoint as Far, Seq},
    ids::NodeId,
};

/// Components from which a connection is made. The negotiation state is added later.
pub(in crate::nic) struct Components {
    pub(in crate::nic) nic: Arc<Nic>,
    pub(in crate::nic) peer: NodeId,
    pub(in crate::nic) name: ConnId,
    pub(in crate::nic) sock: Endpoint,
    pub(in crate::nic) link: Arc<Link>,
    pub(in crate::nic) rings: Rings,
    pub(in crate::nic) slot: Charge,
    pub(in crate::nic) isn: Seq,
}

/// Components of a connection that its lock does not protect.
struct Fields {
    nic: Arc<Nic>,
    peer: NodeId,
    name: ConnId,
    sock: Endpoint,
    asked: Option<(u32, ConnId)>,
    slot: Charge,
}

impl Fields {
    // This is a separate function, because moves of `Inner` use much stack.
    #[inline(never)]
    fn make(self, inner: Inner) -> Result<Arc<Conn>> {
        let Self {
            nic,
            peer,
            name,
            sock,
            asked,
            slot: _slot,
        } = self;
        Arc::pin_init(
            pin_init!(Conn {
                nic,
                peer,
                name,
                sock,
                asked,
                _slot,
                inner <- new_bh_lock!(inner, "extl_conn"),
                writer <- new_mutex!((), "extl_writer"),
                reader <- new_mutex!((), "extl_reader"),
                sent: Atomic::new(0),
                received: Atomic::new(0),
                lent: Atomic::new(0),
                sunk: Atomic::new(0),
                sinks: Atomic::new(0),
                shutdown_work <- new_delayed_work!("extl_telling"),
                release_work <- new_delayed_work!("extl_settling"),
            }),
            GFP_KERNEL,
        )
    }
}

/// Allocates memory for the streams.
#[inline(never)]
fn no_stream() -> Result<KBox<Option<Stream>>> {
    Ok(KBox::new(None, GFP_KERNEL)?)
}

/// Initialises the streams in place, because they are large.
#[inline(never)]
fn begin(conn: &Conn, name: ConnId, far: ConnId, geometry: &Geometry, now: Time) {
    conn.peek(|inner| *inner.stream = Some(Stream::new(name, far, geometry, now)));
}

impl Components {
    /// Returns this end of the connection as the peer must know it.
    pub(in crate::nic) fn endpoint(&self) -> Far {
        self.link.endpoint(self.name, &self.rings, self.isn)
    }

    fn make(self, setup: Setup, request: Option<&ConnectRequest>) -> Result<Arc<Conn>> {
        let far = request.map(|request| request.connect.client);
        let now = self.nic.now();
        let bytes = self.rings.send.bytes() as u32;
        let far_ring = |of: fn(&Far) -> u32| far.as_ref().map_or(bytes, of);
        let geometry = Geometry {
            send_isn: self.isn,
            receive_isn: far.map_or(Seq(0), |far| far.isn),
            send_ring: bytes,
            receive_ring: self.rings.receive.bytes() as u32,
            peer_ring: far_ring(|far| 1 << far.receive_log2),
            peer_send: far_ring(|far| far.ring.bytes()),
            // This end always supports sources.
            sources: far.is_some_and(|far| far.sources),
        };
        let inner = Inner {
            setup,
            stream: no_stream()?,
            decision: Decision::Waiting,
            decided_now: false,
            link: Some(self.link),
            rings: Some(Arc::new(self.rings, GFP_KERNEL)?),
            sink: None,
            sinks: false,
            lendings: KVec::new(),
            sources_full: false,
            far,
            geometry,
            open: true,
            syn: false,
            tcp_decides: false,
            end_reported: false,
            stream_error: None,
            error_seen: false,
            tcp: Tcp::Fine,
            shut: ShutdownDirections::default(),
            writable: true,
            readable: 0,
            pushed: false,
            peer_finished_seen: false,
            blocked: false,
            again: false,
            get_budget: 0,
            refused: false,
            posted: None,
            since: now,
            due: None,
            scheduled: None,
        };
        let name = self.name;
        let asked = request.map(|request| (request.connect.cookie, request.connect.client.id));
        let conn = Fields {
            nic: self.nic,
            peer: self.peer,
            name,
            sock: self.sock,
            asked,
            slot: self.slot,
        }
        .make(inner)?;
        if let Some(far) = far {
            begin(&conn, name, far.id, &geometry, now);
        }
        Ok(conn)
    }

    /// Creates a client's connection.
    pub(in crate::nic) fn client(self, connect: Connect) -> Result<Arc<Conn>> {
        let client = Client::new(connect, self.nic.now());
        self.make(Setup::Client(client), None)
    }

    /// Creates the connection for an accepted request.
    pub(in crate::nic) fn server(self, request: &ConnectRequest) -> Result<Arc<Conn>> {
        let (limits, now) = (&self.nic.opening, self.nic.now());
        let server = Server::new(request, self.endpoint(), limits, now);
        self.make(Setup::Server(server), Some(request))
    }
}
