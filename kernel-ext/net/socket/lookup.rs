// SPDX-License-Identifier: GPL-2.0-only

//! Lookups that TCP will do for a future connection: its local port, its listening socket.

use super::Tcp;
use crate::bindings;
use kernel::{device, error::to_result, prelude::*};

/// Identity of a sock, for comparisons. The identity is unique while an
/// [`Endpoint`](super::Endpoint) of the sock exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SockId(usize);

impl SockId {
    #[inline]
    pub(super) fn of(sock: *const bindings::sock) -> Self {
        Self(sock.addr())
    }
}

/// Future connection. Addresses are IPv6 or IPv4-mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuple {
    /// Address of the connecting side.
    pub client: [u8; 16],
    /// Address of the listening side.
    pub server: [u8; 16],
    /// Port of the connecting side.
    pub client_port: u16,
    /// Port of the listening side.
    pub server_port: u16,
}

impl Tuple {
    fn raw(&self) -> bindings::extoll_tuple {
        bindings::extoll_tuple {
            client: self.client,
            server: self.server,
            client_port: self.client_port,
            server_port: self.server_port,
        }
    }
}

/// Listening socket, as it was at the time of the lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listener {
    /// Identity of its sock, without a reference.
    pub id: SockId,
    /// True if a connection cannot be accepted before it has data (`TCP_DEFER_ACCEPT`).
    pub deferred: bool,
}

impl Listener {
    /// Finds the socket to which TCP would give a connection from `node`, whose packets arrive
    /// through an interface of a NIC ([`Interface::is_of`](super::Interface::is_of)), in the
    /// namespace of that interface. Packets of the interface's own node arrive through `lo`. In a
    /// group with `SO_REUSEPORT` the result is correct unless a BPF program selects the socket.
    /// Returns `None` also for addresses that do not belong to this host. Address translation is
    /// not considered. May sleep.
    pub fn find(nic: &device::Device, node: u16, tuple: &Tuple) -> Option<Self> {
        let (raw, mut found) = (tuple.raw(), bindings::extoll_listener::default());
        let device = core::ptr::from_ref(nic).cast_mut().cast();
        // SAFETY: the device is valid, and `Device` is a transparent wrapper; both structures are
        // local variables.
        let is = unsafe { bindings::extoll_listener_find(device, node, &raw, &mut found) };
        is.then_some(Self {
            id: SockId::of(found.sk),
            deferred: found.deferred,
        })
    }
}

/// Local port for a later `connect`. While this object exists `connect` can use only this port.
/// `connect` fails with `EADDRNOTAVAIL` if another socket uses the port by then.
pub struct Port<'a> {
    tcp: &'a Tcp,
    number: u16,
    range: bindings::extoll_port_range,
}

impl Port<'_> {
    /// Returns the port number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for Port<'_> {
    fn drop(&mut self) {
        // SAFETY: the socket is valid by the invariants of `Tcp`.
        unsafe { bindings::extoll_port_release(self.tcp.as_raw(), &self.range) }
    }
}

impl Tcp {
    /// Returns the local port of a future connection, whose `client_port` is ignored: the socket's
    /// own port, or a port that `connect` could choose for this peer. Such a port is not bound, and
    /// no connection to the same peer uses it; connections to other peers may use it. Takes the
    /// sock's lock, may sleep.
    ///
    /// # Errors
    ///
    /// `EADDRNOTAVAIL`: some dozens of ports were tried, and no port was free.
    ///
    /// The choice is random, so that ports of other connections do not reveal the next port.
    pub fn choose_port(&self, tuple: &Tuple, interface: u32) -> Result<Port<'_>> {
        let (raw, mut range) = (tuple.raw(), bindings::extoll_port_range::default());
        // SAFETY: the socket is valid by the type invariant; both structures are local variables.
        let port = unsafe {
            bindings::extoll_port_choose(self.as_raw(), &raw, interface as c_int, &mut range)
        };
        to_result(port.min(0))?;
        Ok(Port {
            tcp: self,
            number: port as u16,
            range,
        })
    }

    /// Returns true if an interface of a NIC ([`Interface::is_of`](super::Interface::is_of)) is in
    /// the socket's namespace now. May sleep.
    pub fn shares_namespace(&self, nic: &device::Device) -> bool {
        let device = core::ptr::from_ref(nic).cast_mut().cast();
        // SAFETY: the device is valid, and `Device` is a transparent wrapper; the socket is valid
        // by the type invariant.
        unsafe { bindings::extoll_nic_is_of(device, self.as_raw()) }
    }
}

/// Returns the user to whom shared resources of the calling process are charged, by its ID in the
/// initial user namespace. That is the user of the process, or the owner of the outermost user
/// namespace that contains the process. Returns `None` if the process may exceed limits
/// (`CAP_SYS_RESOURCE` in the initial namespace). Process context.
pub fn accountable_user() -> Option<u32> {
    // SAFETY: the only precondition is process context.
    u32::try_from(unsafe { bindings::extoll_accountable_user() }).ok()
}
