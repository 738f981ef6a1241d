// SPDX-License-Identifier: GPL-2.0-only

//! How a connection gets a chance of bypassing TCP: where it leads, and whether the peer is asked,
//! or has asked.

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

/// A connection as the protocol has it, for those who ask TCP about it.
pub(crate) fn of_tcp(tuple: &Tuple) -> socket::Tuple {
    socket::Tuple {
        client: tuple.client,
        server: tuple.server,
        client_port: tuple.client_port,
        server_port: tuple.server_port,
    }
}

/// The NIC of an interface.
fn nic_of(interface: &Interface) -> Option<Arc<Nic>> {
    all()?.find(|nic| interface.is_of(nic.device()))
}

/// The NIC that a route leads through, and the node behind it. Packets of a node for itself don't
/// leave it; data go through the NIC that the server's address belongs to. A neighbour is waited for,
/// at most `patience` ms.
fn place(
    tcp: &Tcp,
    route: &Route,
    server: IpAddr,
    patience: u32,
) -> Result<(Arc<Nic>, NodeId), Fallback> {
    // What is to be encrypted, or wrapped, does not go past that.
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
    // All interfaces of a fabric have the same prefix.
    let ([a, b, c, d, ..], [w, x, y, z, high, low]) = (here, there);
    match [a, b, c, d] == [w, x, y, z] {
        true => Ok((nic, NodeId(u16::from_be_bytes([high, low])))),
        false => Err(Fallback::NoRoute),
    }
}

/// Asks the peer before TCP's connection is made, which has to get the port that is returned. May
/// sleep, as long as the neighbour's address is looked for, shortly with `nonblock`.
///
/// # Errors
///
/// Why TCP has to do.
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
    let (nic, node) = place(tcp, &route, server, patience)?;
    let mut tuple = Tuple {
        client: bytes(route.local),
        server: bytes(server),
        client_port: 0,
        server_port: to.port(),
    };
    nic.may_ask(node, &tuple)?;
    // The peer has to know the port before TCP asks.
    let port = tcp
        .choose_port(&of_tcp(&tuple), route.interface.index())
        .map_err(|_| Fallback::NoPlace)?;
    tuple.client_port = port.number();
    let sock = tcp.endpoint().map_err(|_| Fallback::NoRoute)?;
    Ok((nic.connect(node, tuple, sock)?, port))
}

/// Leaves a connection that was accepted to TCP, which its client does not know. May sleep.
pub(crate) fn leave(tcp: &Tcp) -> Fallback {
    if let (Ok(sock), Some(all)) = (tcp.endpoint(), all()) {
        all.refuse(tcp, &tuple_of(&sock));
    }
    Fallback::TcpOnly
}

/// An accepted connection as the protocol has it.
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

/// Looks whether the client of a connection that was accepted has asked. May sleep.
///
/// # Errors
///
/// Why TCP has to do; who has asked knows.
pub(crate) fn take(tcp: &Tcp) -> Result<Arc<Conn>, Fallback> {
    let sock = tcp.endpoint().map_err(|_| Fallback::NoRoute)?;
    let tuple = tuple_of(&sock);
    let taken = match Space::of(tcp).is_some_and(|space| space.data_path()) {
        true => take_from(tcp, sock, &tuple),
        false => Err(Fallback::Off),
    };
    if let (Err(_), Some(all)) = (&taken, all()) {
        // It may have come another way than the answers go, or from a node that nobody knows now.
        all.refuse(tcp, &tuple);
    }
    taken
}

fn take_from(tcp: &Tcp, sock: Endpoint, tuple: &Tuple) -> Result<Arc<Conn>, Fallback> {
    let route = tcp.route().map_err(|_| Fallback::NoRoute)?;
    let ends = sock.ends();
    let server = canonical(ends.local.ip());
    let (nic, node) = place(tcp, &route, server, conf::neighbour_ms(false))?;
    let queued = sock.queued();
    // The note goes in any case: it is for this connection, or an older one.
    if ends.state != State::Established || queued.finished || queued.unread > 0 {
        return Err(match nic.withdraw(node, tuple) {
            true => Fallback::TcpData,
            false => Fallback::NotAsked,
        });
    }
    nic.accept(node, tuple, sock)
}
