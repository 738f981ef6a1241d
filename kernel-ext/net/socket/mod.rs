// SPDX-License-Identifier: GPL-2.0-only

//! Stream sockets with operations of their own on top of TCP's.
//!
//! # One socket
//!
//! A socket of such a family **is** a TCP socket: the file's `struct socket` has TCP's `struct
//! sock`, and only the table of operations is another. There is no second socket with a reference
//! count, state, options, error and wait queue of its own that would have to be kept in step, and
//! none that the file has to be switched to when a connection goes on as TCP: an operation passes
//! on to TCP's by calling it on the same socket ([`Tcp`]). What the kernel decides or shows by the
//! sock holds as for TCP: `SOL_SOCKET` options (which the kernel reads from the sock without asking
//! the operations), filters and hooks of control groups, security modules, owner matches of
//! firewalls, `SIGIO`, socket diagnostics. There is one wait queue, so `poll`, `epoll`, `select`,
//! io_uring and AIO see everything; who wakes has to wake that of the sock.
//!
//! A [`Family`] makes sockets by a number of its own, an [`Alias`] by a protocol number of
//! `AF_INET` or `AF_INET6`. The user implements [`Operations`], any of them; for those it leaves
//! out, TCP's run.
//!
//! # Data of a socket
//!
//! [`Operations::Data`] is made by [`Operations::new`] in the first operation that needs it (the
//! kernel may give a socket up between its creation and the first operation without telling its
//! operations), and belongs to the file's socket. It is dropped in the release, when TCP's part has
//! closed: then no operation runs and none can begin. Each holds a reference to the file, except
//! `sendmsg` for a sockmap, whose worker TCP's close waits for. Process context may sleep. `fork`, `dup` and `SCM_RIGHTS` share the file and so the data. Operations run
//! concurrently, on any CPU, without a lock: what they change needs locks or atomics of its own.
//!
//! Softirqs and timers have no reference to the file and never see the data. What they need is an
//! object with a reference count of its own, and an [`Endpoint`] if it is about the sock.
//!
//! # Data paths of one's own
//!
//! | For | |
//! |---|---|
//! | data of `sendmsg` and `recvmsg` | [`Outgoing::copy_in`], [`Incoming::copy_out`]: to and from pages that a device may access at the same time ([`PageList`](crate::mem::PageList)) |
//! | `splice` from the socket | [`Splice::by_recvmsg`]; to it: `sendmsg` gets the pages |
//! | waiting | [`Tcp::receiving`], [`Tcp::sending`], [`Waiting::until`] |
//! | waking | [`Endpoint::wake`], [`Endpoint::fail`], from any context, also after the release |
//! | `poll` | [`Tcp::poll_wait`], then one's own bits; [`Tcp::poll_now`] for TCP's; [`Tcp::no_space`] before saying that there is no room |
//! | TCP's side | [`Endpoint::ends`], [`Endpoint::queued`], [`Endpoint::ended`], [`Tcp::state`] |
//! | where it leads to | [`Tcp::route_to`], [`Tcp::route`], [`Tcp::interface_of`], [`Interface::is_of`], [`Neighbour`] |
//! | what TCP will do | [`Tcp::choose_port`], [`Listener::find`] |
//! | timers, work | [`crate::timer`], [`crate::work`] |
//!
//! Calls that take the sock's lock (`lock_sock`) say so; it is never held when they return, nor when
//! operations are called. A data path has locks of its own, and takes none of them around calls that
//! take the sock's, except mutexes.
//!
//! # The module
//!
//! Each socket keeps the module `M` of its registration loaded until it is closed, from before
//! `socket()` returns. TCP's part may live on (`FIN_WAIT`, `TIME_WAIT`), but it knows nothing of
//! the module.

mod address;
mod endpoint;
mod family;
mod lookup;
mod message;
mod ops;
mod route;
mod table;
mod tcp;
mod trace;
mod wait;
mod wake;

pub use address::{bytes, canonical};
pub use endpoint::{Endpoint, Ends};
pub use family::{Alias, Family, Version};
pub use lookup::{accountable_user, Listener, Port, SockId, Tuple};
pub use message::Zerocopy;
pub use ops::{Child, Operations, Socket};
pub use route::{Interface, Mac, Neighbour, Route};
pub use tcp::{
    Addr, GetOption, Incoming, Outgoing, Past, PollTable, SetOption, Splice, State, Tcp,
};
pub use trace::Queues;
pub use wait::Waiting;
pub use wake::{is_exiting, Ended, Linger, Queued, Wake};
