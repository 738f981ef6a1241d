// SPDX-License-Identifier: GPL-2.0-only

//! What TCP would find for a connection that is not there yet: a local port, a listening socket.

use super::Tcp;
use crate::bindings;
use kernel::{device, error::to_result, prelude::*};

/// Which sock something is about, for comparisons: as long as there is an [`Endpoint`](super::Endpoint)
/// no other sock is the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SockId(usize);

impl SockId {
    #[inline]
    pub(super) fn of(sock: *const bindings::sock) -> Self {
        Self(sock.addr())
    }
}

/// A connection to be. Addresses are those of IPv6, or mapped ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuple {
    /// Address of who connects.
    pub client: [u8; 16],
    /// Address that is connected to.
    pub server: [u8; 16],
    /// Port of who connects.
    pub client_port: u16,
    /// Port that is connected to.
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

/// A socket that listens, as it was when it was looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listener {
    /// Which one. There is no reference to it.
    pub id: SockId,
    /// Whether it waits for data before a connection can be accepted (`TCP_DEFER_ACCEPT`).
    pub deferred: bool,
}

impl Listener {
    /// The one that TCP would give a connection to whose packets come from `node`, through an
    /// interface of a NIC ([`Interface::is_of`](super::Interface::is_of)), in the namespace of that.
    /// The node of the interface itself sends through `lo`. Of a group with `SO_REUSEPORT` it is the
    /// right one, unless a program chooses. `None` also for addresses that are not of this host; what
    /// address translation does is not known here. May sleep.
    pub fn find(nic: &device::Device, node: u16, tuple: &Tuple) -> Option<Self> {
        let (raw, mut found) = (tuple.raw(), bindings::extoll_listener::default());
        let device = core::ptr::from_ref(nic).cast_mut().cast();
        // SAFETY: a valid device, `Device` is transparent; both structures are this function's.
        let is = unsafe { bindings::extoll_listener_find(device, node, &raw, &mut found) };
        is.then_some(Self {
            id: SockId::of(found.sk),
            deferred: found.deferred,
        })
    }
}

/// A local port for a `connect` that follows. While this exists `connect` has no other choice; it says
/// `EADDRNOTAVAIL` if somebody else was faster.
pub struct Port<'a> {
    tcp: &'a Tcp,
    number: u16,
    range: bindings::extoll_port_range,
}

impl Port<'_> {
    /// Its number.
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
    /// The local port of a connection to be, of which `client_port` does not count: the socket's own,
    /// or one that `connect` could choose for this peer: that nobody has bound, and no connection to
    /// the same peer has; connections to others may. Takes the sock's lock, may sleep.
    ///
    /// # Errors
    ///
    /// `EADDRNOTAVAIL`: none was found, among some dozens.
    ///
    /// Which one is random: those of others tell nothing of it.
    pub fn choose_port(&self, tuple: &Tuple, interface: u32) -> Result<Port<'_>> {
        let (raw, mut range) = (tuple.raw(), bindings::extoll_port_range::default());
        // SAFETY: the socket is valid by the invariants; both structures are this function's.
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

    /// Whether an interface of a NIC ([`Interface::is_of`](super::Interface::is_of)) is in the
    /// socket's namespace now. May sleep.
    pub fn shares_namespace(&self, nic: &device::Device) -> bool {
        let device = core::ptr::from_ref(nic).cast_mut().cast();
        // SAFETY: a valid device, `Device` is transparent; the socket is valid by the invariants.
        unsafe { bindings::extoll_nic_is_of(device, self.as_raw()) }
    }
}

/// Who answers for what the calling process takes of something that all users share: its user, or if it
/// is in a user namespace who has made the outermost one; as a number of the initial namespace. `None`
/// for who may exceed limits (`CAP_SYS_RESOURCE` there). Process context.
pub fn accountable_user() -> Option<u32> {
    // SAFETY: process context.
    u32::try_from(unsafe { bindings::extoll_accountable_user() }).ok()
}
