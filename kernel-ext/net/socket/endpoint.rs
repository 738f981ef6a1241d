// SPDX-License-Identifier: GPL-2.0-only

//! Reference to the sock of a socket, which may outlive the socket.

use super::{
    lookup::SockId,
    tcp::{State, Tcp},
};
use crate::bindings;
use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ptr::NonNull,
};

/// Reference to the sock of a socket. The reference keeps the sock's memory allocated, but does not
/// keep the connection. Functions may be called in any context, the drop included.
///
/// # Invariants
///
/// The sock is a TCP sock, and this object owns a reference to it.
pub struct Endpoint(NonNull<bindings::sock>);

// SAFETY: any CPU may drop references to socks and read their fields.
unsafe impl Send for Endpoint {}
// SAFETY: the reason given for `Send` applies.
unsafe impl Sync for Endpoint {}

/// Both ends of a connection, with TCP's addresses and state.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Local address; all zero without a local address.
    pub local: SocketAddr,
    /// Address of the peer; all zero without a peer.
    pub remote: SocketAddr,
    /// State of the TCP connection.
    pub state: State,
    /// User ID of the socket's owner, in the user namespace of the current process.
    pub uid: u32,
    /// Inode of the socket (`/proc/PID/fd`), 0 if it is closed.
    pub inode: u64,
}

impl Endpoint {
    /// Takes a reference to the sock of a socket.
    pub fn new(tcp: &Tcp) -> Option<Self> {
        // SAFETY: by the invariants of `Tcp` the socket is valid and owns a reference to its sock.
        // INVARIANT: the function takes a reference for the result.
        NonNull::new(unsafe { bindings::extoll_sock_hold(tcp.as_raw()) }).map(Self)
    }

    /// Returns the identity of the sock.
    #[inline]
    pub fn id(&self) -> SockId {
        SockId::of(self.0.as_ptr())
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::sock {
        self.0.as_ptr()
    }

    /// Returns addresses and state, possibly from different moments.
    pub fn ends(&self) -> Ends {
        let mut raw = bindings::extoll_sock_ends::default();
        // SAFETY: the sock is valid by the type invariant; the function writes `raw`.
        unsafe { bindings::extoll_sock_ends(self.0.as_ptr(), &mut raw) };
        let ip = |bytes: [u8; 16]| -> IpAddr {
            let [a, b, c, d, ..] = bytes;
            if raw.v6 {
                Ipv6Addr::from(bytes).into()
            } else {
                Ipv4Addr::new(a, b, c, d).into()
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
        // SAFETY: by the type invariant this object owns the reference.
        unsafe { bindings::extoll_sock_put(self.0.as_ptr()) }
    }
}
