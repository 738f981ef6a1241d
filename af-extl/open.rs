// SPDX-License-Identifier: GPL-2.0-only

//! Preparation of a direct connection: finds NIC and node behind TCP's route, requests the
//! connection from the peer (client), or accepts the peer's request (server).
//!
//! Process context; functions may sleep and take the sock's lock.

use crate::{
    all, conf,
    nic::{Conn, Nic},
    space::Space,
};
use core::net::{IpAddr, SocketAddr};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::net::{
    namespace::PerNet,
    socket::{self, bytes, canonical, Addr, Endpoint, Interface, Port, Route, State, Tcp},
};
use protocol::ds::Fallback;
use wire::{ds::Tuple, ids::NodeId};

/// Converts the protocol's tuple to that of the socket layer.
pub(crate) fn of_tcp(tuple: &Tuple) -> socket::Tuple {
    socket::Tuple {
        client: tuple.client,
        server: tuple.server,
        client_port: tuple.client_port,
        server_port: tuple.server_port,
    }
}

/// Returns the NIC of an interface.
fn nic_of(interface: &Interface) -> Option<Arc<Nic>> {
    all()?.find(|nic| interface.is_of(nic.device()))
}

/// Returns the NIC through which a route leads, and the node at the end of the route. Packets of a
/// node to itself do not leave the node; their data use the NIC to which the server's address
/// belongs. Waits up to `patience` ms for the resolution of a neighbour's address.
fn route_to_node(
    tcp: &Tcp,
    route: &Route,
    server: IpAddr,
    patience: u32,
) -> Result<(Arc<Nic>, NodeId), Fallback> {
    // Data that must be encrypted or encapsulated cannot bypass these transformations.
    if !route.plain {
        return Err(Fallback::NoRoute);
    }
    let (nic, here, there) = if route.interface.is_loopback() {
        let own = tcp.interface_of(server).ok_or(Fallback::NoRoute)?;
        let nic = nic_of(&own).ok_or(Fallback::NoRoute)?;
        let mac = own.mac().ok_or(Fallback::NoRoute)?;
        (nic, mac, mac)
    } else {
        let nic = nic_of(&route.interface).ok_or(Fallback::NoRoute)?;
        let here = route.interface.mac().ok_or(Fallback::NoRoute)?;
        let neighbour = route.neighbour.as_ref().ok_or(Fallback::NoRoute)?;
        let there = nic.resolve(route.interface.index(), neighbour, patience)?;
        (nic, here, there)
    };
    // All interfaces of a fabric share the first four bytes of the MAC address.
    let ([a, b, c, d, ..], [w, x, y, z, high, low]) = (here, there);
    if [a, b, c, d] != [w, x, y, z] {
        return Err(Fallback::NoRoute);
    }
    Ok((nic, NodeId(u16::from_be_bytes([high, low]))))
}

/// Requests a direct connection from the peer. TCP's connection must use the returned port. May
/// sleep until the neighbour's address is resolved, with `nonblock` only briefly.
///
/// # Errors
///
/// Returns the reason for the fallback to TCP.
pub(crate) fn ask<'a>(
    tcp: &'a Tcp,
    addr: &Addr<'_>,
    nonblock: bool,
) -> Result<(Arc<Conn>, Port<'a>), Fallback> {
    if !Space::of(tcp).is_some_and(|space| space.data_path()) {
        return Err(Fallback::Off);
    }
    let to = addr.get().ok_or(Fallback::NoRoute)?;
    let route = tcp.route_to(to).map_err(|_| Fallback::NoRoute)?;
    let server = canonical(to.ip());
    let patience = conf::neighbour_ms(nonblock);
    let (nic, node) = route_to_node(tcp, &route, server, patience)?;
    let mut tuple = Tuple {
        client: bytes(route.local),
        server: bytes(server),
        client_port: 0,
        server_port: to.port(),
    };
    nic.may_ask(node, &tuple)?;
    // The request names the local port, so the port is chosen before TCP connects.
    let port = tcp
        .choose_port(&of_tcp(&tuple), route.interface.index())
        .map_err(|_| Fallback::NoSlot)?;
    tuple.client_port = port.number();
    let sock = tcp.endpoint().map_err(|_| Fallback::NoRoute)?;
    Ok((nic.connect(node, tuple, sock)?, port))
}

/// Leaves an accepted connection to TCP and declines the client's request. May sleep.
pub(crate) fn leave_to_tcp(tcp: &Tcp) -> Fallback {
    if let (Ok(sock), Some(all)) = (tcp.endpoint(), all()) {
        all.decline(tcp, &tuple_of(&sock));
    }
    Fallback::TcpOnly
}

/// Returns the tuple of an accepted connection in the protocol's form.
fn tuple_of(sock: &Endpoint) -> Tuple {
    let ends = sock.ends();
    let end = |at: SocketAddr| (bytes(at.ip()), at.port());
    let ((client, client_port), (server, server_port)) = (end(ends.remote), end(ends.local));
    Tuple {
        client,
        server,
        client_port,
        server_port,
    }
}

/// Accepts the request that the client of an accepted connection sent. May sleep.
///
/// # Errors
///
/// Returns the reason for the fallback to TCP. A client that has sent a request is notified.
pub(crate) fn accept(tcp: &Tcp) -> Result<Arc<Conn>, Fallback> {
    let sock = tcp.endpoint().map_err(|_| Fallback::NoRoute)?;
    let tuple = tuple_of(&sock);
    let accepted = if Space::of(tcp).is_some_and(|space| space.data_path()) {
        accept_from(tcp, sock, &tuple)
    } else {
        Err(Fallback::Off)
    };
    if let (Err(_), Some(all)) = (&accepted, all()) {
        // The request may have arrived over another path than the route, or from a node whose
        // address is unknown, so all NICs are searched.
        all.decline(tcp, &tuple);
    }
    accepted
}

fn accept_from(tcp: &Tcp, sock: Endpoint, tuple: &Tuple) -> Result<Arc<Conn>, Fallback> {
    let route = tcp.route().map_err(|_| Fallback::NoRoute)?;
    let ends = sock.ends();
    let server = canonical(ends.local.ip());
    let (nic, node) = route_to_node(tcp, &route, server, conf::neighbour_ms(false))?;
    let queued = sock.queued();
    // The pending request is removed in both cases, because it belongs to this connection or to an
    // older connection.
    if ends.state != State::Established || queued.finished || queued.unread > 0 {
        return Err(if nic.withdraw(node, tuple) {
            Fallback::TcpData
        } else {
            Fallback::NotAsked
        });
    }
    nic.accept(node, tuple, sock)
}
