// SPDX-License-Identifier: GPL-2.0-only

//! The sock of a socket, for those who may see it after the socket.

use super::{
    lookup::SockId,
    tcp::{State, Tcp},
};
use crate::bindings;
use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ptr::NonNull,
};

/// A reference to the sock of a socket. It keeps the memory, not the connection. Any context, drop
/// included.
///
/// # Invariants
///
/// The sock is one of TCP, and a reference to it is owned by this object.
pub struct Endpoint(NonNull<bindings::sock>);

// SAFETY: references to socks may be dropped, and their fields read, on any CPU.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

/// What both ends of a connection are, as far as TCP knows.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Address of this side, all zero if it has none.
    pub local: SocketAddr,
    /// Address of the peer, all zero if there is none.
    pub remote: SocketAddr,
    /// State of TCP.
    pub state: State,
    /// User that the socket belongs to, as the current process sees it.
    pub uid: u32,
    /// Inode of the socket (`/proc/PID/fd`), 0 if it is closed.
    pub inode: u64,
}

impl Endpoint {
    /// Of a socket.
    pub fn new(tcp: &Tcp) -> Option<Self> {
        // SAFETY: the socket is valid and has a sock by the invariants of `Tcp`, whose reference
        // the socket owns. INVARIANT: the reference was taken just now.
        NonNull::new(unsafe { bindings::extoll_sock_hold(tcp.as_raw()) }).map(Self)
    }

    /// Which sock it is.
    #[inline]
    pub fn id(&self) -> SockId {
        SockId::of(self.0.as_ptr())
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::sock {
        self.0.as_ptr()
    }

    /// Addresses and state; not all of the same moment.
    pub fn ends(&self) -> Ends {
        let mut raw = bindings::extoll_sock_ends::default();
        // SAFETY: valid by the invariants; `raw` is written.
        unsafe { bindings::extoll_sock_ends(self.0.as_ptr(), &mut raw) };
        let ip = |bytes: [u8; 16]| -> IpAddr {
            let [a, b, c, d, ..] = bytes;
            match raw.v6 {
                true => Ipv6Addr::from(bytes).into(),
                false => Ipv4Addr::new(a, b, c, d).into(),
            }
        };
        Ends {
            local: SocketAddr::new(ip(raw.local), raw.local_port),
            remote: SocketAddr::new(ip(raw.remote), raw.remote_port),
            state: State::from_raw(u32::from(raw.state)),
            uid: raw.uid,
            inode: raw.inode,
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: by the invariants.
        unsafe { bindings::extoll_sock_put(self.0.as_ptr()) }
    }
}
