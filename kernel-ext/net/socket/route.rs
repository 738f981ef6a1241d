// SPDX-License-Identifier: GPL-2.0-only

//! Route of a connection: interface and neighbour.

use super::{
    address::{bytes, canonical},
    State, Tcp,
};
use crate::bindings;
use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ptr::NonNull,
};
use kernel::{device, error::to_result, prelude::*, sync::aref::ARef, time::msecs_to_jiffies};

/// Ethernet address.
pub type Mac = [u8; 6];

/// Interface, as it was at the time of the lookup. Holds no reference to the interface itself.
pub struct Interface {
    index: u32,
    name: [u8; 16],
    mac: Option<Mac>,
    up: bool,
    loopback: bool,
    bus: Option<ARef<device::Device>>,
}

impl Interface {
    /// Returns the number of the interface in its namespace.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the name, for messages.
    pub fn name(&self) -> &str {
        let name = self.name.split(|b| *b == 0).next().unwrap_or(&[]);
        core::str::from_utf8(name).unwrap_or("?")
    }

    /// Returns the hardware address, if it has six bytes.
    pub fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Returns true if the interface was up and had a carrier.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Returns true if the interface is `lo`, whose traffic stays on this host.
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// Returns true if the interface belongs to a NIC: the interface's driver is bound to a child
    /// of `nic`, as exn is bound to an auxiliary device. A module that is bound to another
    /// auxiliary device of the NIC passes that device's parent. Interfaces on top of others (VLAN,
    /// bridge, bond …) do not belong to a NIC.
    pub fn is_of(&self, nic: &device::Device) -> bool {
        self.bus
            .as_ref()
            .is_some_and(|bus| core::ptr::eq(&**bus, nic))
    }
}

/// Route of packets to an address.
pub struct Route {
    /// Outgoing interface.
    pub interface: Interface,
    /// Source address.
    pub local: IpAddr,
    /// True if packets leave as TCP makes them. False for IPsec, which another data path would
    /// bypass, and for a tunnel of the route.
    pub plain: bool,
    /// Next hop: the destination itself, or a router. `None` for destinations without a neighbour
    /// entry.
    pub neighbour: Option<Neighbour>,
}

impl Interface {
    fn from_raw(raw: &bindings::extoll_route) -> Self {
        let bus = NonNull::new(raw.bus.cast::<device::Device>()).map(|bus| {
            // SAFETY: `bus` is a valid device, whose reference passes to the result; `Device` is a
            // transparent wrapper.
            unsafe { ARef::from_raw(bus) }
        });
        Self {
            index: raw.index as u32,
            name: raw.name,
            mac: raw.has_mac.then_some(raw.mac),
            up: raw.up,
            loopback: raw.loopback,
            bus,
        }
    }
}

impl Route {
    fn from_raw(raw: bindings::extoll_route) -> Self {
        let [a, b, c, d, ..] = raw.local;
        // INVARIANT: the result owns the reference from now on.
        let neighbour = NonNull::new(raw.neighbour).map(Neighbour);
        Self {
            interface: Interface::from_raw(&raw),
            local: if raw.v6 {
                Ipv6Addr::from(raw.local).into()
            } else {
                Ipv4Addr::new(a, b, c, d).into()
            },
            plain: raw.plain,
            neighbour,
        }
    }
}

impl Tcp {
    /// Returns the route that `connect` would find now for this socket and the address: in the
    /// socket's namespace, by its device, mark, user, type of service, local address and port.
    /// Mapped addresses count as IPv4. TCP may choose a different one of several equally good
    /// routes. Takes the sock's lock, may sleep.
    ///
    /// # Errors
    ///
    /// `ENETUNREACH`, `EHOSTUNREACH` …: there is no route. `EINVAL`: a link-local address without
    /// an interface. `EAFNOSUPPORT`: an IPv6 address on an IPv4 socket. `EOPNOTSUPP`: the socket
    /// has a source route.
    pub fn route_to(&self, to: SocketAddr) -> Result<Route> {
        let (mut address, port) = ([0; 16], to.port());
        let scope = match to {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let v6 = match canonical(to.ip()) {
            IpAddr::V4(v4) => {
                for (to, from) in address.iter_mut().zip(v4.octets()) {
                    *to = from;
                }
                false
            }
            IpAddr::V6(v6) => {
                address = v6.octets();
                true
            }
        };
        let mut raw = bindings::extoll_route::default();
        // SAFETY: the socket is valid, the address has 16 bytes, the function writes `raw`.
        to_result(unsafe {
            bindings::extoll_route_to(self.as_raw(), v6, address.as_ptr(), port, scope, &mut raw)
        })?;
        Ok(Route::from_raw(raw))
    }

    /// Returns the route of a connected socket: the one that TCP uses, or if it has none at
    /// present, the one that it would find. Takes the sock's lock, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`: the socket is not connected. Other errors are those of [`Tcp::route_to`].
    pub fn route(&self) -> Result<Route> {
        let remote = self.endpoint()?.ends().remote;
        if remote.port() == 0 || matches!(self.state(), State::Close | State::Listen) {
            return Err(ENOTCONN);
        }
        let mut raw = bindings::extoll_route::default();
        // SAFETY: the socket is valid, the function writes `raw`.
        match to_result(unsafe { bindings::extoll_route_of(self.as_raw(), &mut raw) }) {
            Ok(()) => Ok(Route::from_raw(raw)),
            Err(_) => self.route_to(remote),
        }
    }

    /// Returns the interface in the socket's namespace that owns a local address. Any context.
    pub fn interface_of(&self, address: IpAddr) -> Option<Interface> {
        let mut raw = bindings::extoll_route::default();
        let address = bytes(address);
        // SAFETY: the socket is valid, the address has 16 bytes, the function writes `raw`.
        to_result(unsafe {
            bindings::extoll_interface_of(self.as_raw(), address.as_ptr(), &mut raw)
        })
        .ok()?;
        Some(Interface::from_raw(&raw))
    }
}

/// Neighbour entry of a host on a link. The interface cannot be unregistered while this object
/// exists, so it must be dropped soon. Any context except hard interrupts.
///
/// # Invariants
///
/// The entry is valid, and this object owns a reference to it.
pub struct Neighbour(NonNull<bindings::neighbour>);

// SAFETY: the functions that are called acquire the entry's lock.
unsafe impl Send for Neighbour {}
// SAFETY: the reason given for `Send` applies.
unsafe impl Sync for Neighbour {}

impl Neighbour {
    /// Starts address resolution, unless the address is known; the stack repeats its requests for
    /// some seconds. Any context except hard interrupts.
    pub fn ask(&self) {
        // SAFETY: by the type invariant the entry is valid.
        unsafe { bindings::extoll_neighbour_ask(self.0.as_ptr()) }
    }

    /// Returns the hardware address, or `None` if it is not known yet. Any context.
    ///
    /// # Errors
    ///
    /// `EHOSTUNREACH`: the host did not answer the last requests.
    pub fn address(&self) -> Result<Option<Mac>> {
        let mut mac = [0; 6];
        // SAFETY: by the type invariant the entry is valid; `mac` has 6 bytes.
        match unsafe { bindings::extoll_neighbour_address(self.0.as_ptr(), mac.as_mut_ptr()) } {
            0 => Ok(None),
            n if n > 0 => Ok(Some(mac)),
            _ => Err(EHOSTUNREACH),
        }
    }

    /// Returns the IP address of the entry; an IPv4 address is in the first four bytes. Any
    /// context.
    pub fn host(&self) -> [u8; 16] {
        let mut host = [0; 16];
        // SAFETY: by the type invariant the entry is valid; `host` has 16 bytes.
        unsafe { bindings::extoll_neighbour_host(self.0.as_ptr(), host.as_mut_ptr()) };
        host
    }

    /// Resolves the hardware address and waits for it up to `ms` milliseconds. Process context.
    ///
    /// # Errors
    ///
    /// `EHOSTUNREACH`: the host does not answer. `ETIMEDOUT`: no answer within this time. `EINTR`:
    /// a signal is pending.
    pub fn resolve(&self, ms: u32) -> Result<Mac> {
        // Restarts a resolution that failed seconds ago.
        self.ask();
        let mut left = msecs_to_jiffies(ms) as c_long;
        let mut step: c_long = 1;
        loop {
            if let Some(mac) = self.address()? {
                return Ok(mac);
            }
            if left == 0 {
                return Err(ETIMEDOUT);
            }
            if kernel::current!().signal_pending() {
                return Err(EINTR);
            }
            let slice = step.min(left);
            // SAFETY: the only precondition is process context.
            unsafe { bindings::schedule_timeout_interruptible(slice) };
            left -= slice;
            step = (step * 2).min(8);
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // SAFETY: by the type invariant this object owns a reference.
        unsafe { bindings::extoll_neighbour_put(self.0.as_ptr()) }
    }
}
