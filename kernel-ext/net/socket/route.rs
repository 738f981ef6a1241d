// SPDX-License-Identifier: GPL-2.0-only

//! Where a connection goes: interface and neighbour.

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

/// An Ethernet address.
pub type Mac = [u8; 6];

/// An interface, as it was when it was asked for. It does not keep it.
pub struct Interface {
    index: u32,
    name: [u8; 16],
    mac: Option<Mac>,
    up: bool,
    loopback: bool,
    bus: Option<ARef<device::Device>>,
}

impl Interface {
    /// Number of the interface in its namespace.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        let name = self.name.split(|b| *b == 0).next().unwrap_or(&[]);
        core::str::from_utf8(name).unwrap_or("?")
    }

    /// Its address, if that has six bytes.
    pub fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Whether it was up, with a carrier.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Whether it is `lo`: what goes there stays on this host.
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// Whether it is an interface of a NIC: made by a driver that is bound to a child of `nic`, as
    /// exn is bound to an auxiliary device. A module that has another auxiliary device of the NIC
    /// gives the parent of that. Interfaces on top of others (VLAN, bridge, bond …) are no NIC's.
    pub fn is_of(&self, nic: &device::Device) -> bool {
        self.bus
            .as_ref()
            .is_some_and(|bus| core::ptr::eq(&**bus, nic))
    }
}

/// Where packets to an address go.
pub struct Route {
    /// Through which interface.
    pub interface: Interface,
    /// From which address.
    pub local: IpAddr,
    /// Whether packets go there as TCP makes them: not by IPsec, which other ways would leave out,
    /// nor through a tunnel of the route.
    pub plain: bool,
    /// To whom there: the destination itself, or a router. `None` for destinations that no
    /// neighbour stands for.
    pub neighbour: Option<Neighbour>,
}

impl Interface {
    fn from_raw(raw: &bindings::extoll_route) -> Self {
        let bus = NonNull::new(raw.bus.cast::<device::Device>()).map(|bus| {
            // SAFETY: a valid device, whose reference is this one's now; `Device` is transparent.
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
        // INVARIANT: the reference is this one's now.
        let neighbour = NonNull::new(raw.neighbour).map(Neighbour);
        Self {
            interface: Interface::from_raw(&raw),
            local: match raw.v6 {
                true => Ipv6Addr::from(raw.local).into(),
                false => Ipv4Addr::new(a, b, c, d).into(),
            },
            plain: raw.plain,
            neighbour,
        }
    }
}

impl Tcp {
    /// The route to an address, as a `connect` of this socket to it would look it up now: in the
    /// socket's namespace, by its device, mark, user, type of service, local address and port.
    /// Mapped addresses are those of IPv4. Of several equally good routes TCP may take another one.
    /// Takes the sock's lock, may sleep.
    ///
    /// # Errors
    ///
    /// `ENETUNREACH`, `EHOSTUNREACH` …: there is none. `EINVAL`: a link-local address without an
    /// interface. `EAFNOSUPPORT`: an IPv6 address on a socket of IPv4. `EOPNOTSUPP`: the socket
    /// gives a source route.
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
        // SAFETY: the socket is valid, the address has 16 bytes, `raw` is written.
        to_result(unsafe {
            bindings::extoll_route_to(self.as_raw(), v6, address.as_ptr(), port, scope, &mut raw)
        })?;
        Ok(Route::from_raw(raw))
    }

    /// The route of a connected socket: the one that TCP uses, or if it has none at the moment the
    /// one that it would find. Takes the sock's lock, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`; those of [`Tcp::route_to`].
    pub fn route(&self) -> Result<Route> {
        let remote = self.endpoint()?.ends().remote;
        if remote.port() == 0 || matches!(self.state(), State::Close | State::Listen) {
            return Err(ENOTCONN);
        }
        let mut raw = bindings::extoll_route::default();
        // SAFETY: the socket is valid, `raw` is written.
        match to_result(unsafe { bindings::extoll_route_of(self.as_raw(), &mut raw) }) {
            Ok(()) => Ok(Route::from_raw(raw)),
            Err(_) => self.route_to(remote),
        }
    }

    /// The interface of the socket's namespace that an address of this host belongs to. Any context.
    pub fn interface_of(&self, address: IpAddr) -> Option<Interface> {
        let mut raw = bindings::extoll_route::default();
        let address = bytes(address);
        // SAFETY: the socket is valid, the address has 16 bytes, `raw` is written.
        to_result(unsafe {
            bindings::extoll_interface_of(self.as_raw(), address.as_ptr(), &mut raw)
        })
        .ok()?;
        Some(Interface::from_raw(&raw))
    }
}

/// A host on a link. It keeps the interface from being unregistered, so it is to be dropped soon;
/// in any context but hard interrupts.
///
/// # Invariants
///
/// Valid, and this object has a reference.
pub struct Neighbour(NonNull<bindings::neighbour>);

// SAFETY: what is done with it has locks of its own.
unsafe impl Send for Neighbour {}
// SAFETY: as above.
unsafe impl Sync for Neighbour {}

impl Neighbour {
    /// Asks for its address, unless that is known; the stack repeats the question for some seconds.
    /// Any context but hard interrupts.
    pub fn ask(&self) {
        // SAFETY: by the invariants.
        unsafe { bindings::extoll_neighbour_ask(self.0.as_ptr()) }
    }

    /// Its address; `None` if it is not known yet. Any context.
    ///
    /// # Errors
    ///
    /// `EHOSTUNREACH`: it did not answer the last questions.
    pub fn address(&self) -> Result<Option<Mac>> {
        let mut mac = [0; 6];
        // SAFETY: by the invariants; `mac` has 6 bytes.
        match unsafe { bindings::extoll_neighbour_address(self.0.as_ptr(), mac.as_mut_ptr()) } {
            0 => Ok(None),
            n if n > 0 => Ok(Some(mac)),
            _ => Err(EHOSTUNREACH),
        }
    }

    /// The address of IP that it stands for, that of IPv4 in the first bytes. Any context.
    pub fn host(&self) -> [u8; 16] {
        let mut host = [0; 16];
        // SAFETY: by the invariants; `host` has 16 bytes.
        unsafe { bindings::extoll_neighbour_host(self.0.as_ptr(), host.as_mut_ptr()) };
        host
    }

    /// Its address, which is asked for and waited for, at most `ms` milliseconds. Process context.
    ///
    /// # Errors
    ///
    /// `EHOSTUNREACH`: it does not answer. `ETIMEDOUT`: it did not in this time. `EINTR`: a signal.
    pub fn resolve(&self, ms: u32) -> Result<Mac> {
        // An answer of seconds ago that there is nobody does not count.
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
            // SAFETY: process context.
            unsafe { bindings::schedule_timeout_interruptible(slice) };
            left -= slice;
            step = (step * 2).min(8);
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // SAFETY: by the invariants.
        unsafe { bindings::extoll_neighbour_put(self.0.as_ptr()) }
    }
}
