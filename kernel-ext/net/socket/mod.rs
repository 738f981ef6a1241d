// SPDX-License-Identifier: GPL-2.0-only

//! Stream sockets with separate operations on top of TCP's operations.
//!
//! # One socket
//!
//! A socket of such a family **is** a TCP socket: the file's `struct socket` has a `struct sock` of
//! TCP, and only the table of operations is different. There is no second socket whose reference
//! count, state, options, error and wait queue would have to be synchronised. A connection can
//! continue as TCP without switching the file to another socket: an operation calls TCP's operation
//! on the same socket ([`Tcp`]). Everything that the kernel decides or shows by the sock applies as
//! for TCP:
//!
//! - `SOL_SOCKET` options, which the kernel reads from the sock without calling the operations;
//! - filters and hooks of control groups, security modules, owner matches of firewalls;
//! - `SIGIO` and socket diagnostics.
//!
//! There is one wait queue, so `poll`, `epoll`, `select`, io_uring and AIO see all events. A data
//! path must wake the sock's wait queue.
//!
//! A [`Family`] makes sockets by its own family number, an [`Alias`] by a protocol number of
//! `AF_INET` or `AF_INET6`. The user implements any subset of [`Operations`]; TCP's operations
//! replace the others.
//!
//! # Data of a socket
//!
//! The first operation that needs [`Operations::Data`] makes the data by [`Operations::new`],
//! because the kernel may discard a socket without calling any operation. The data belong to the
//! file's socket. The release drops them after TCP's part has been closed, when no operation runs
//! or can begin. Each operation holds a reference to the file. The only exception is `sendmsg` in
//! the worker of a sockmap; TCP's close waits for that worker. Operations run in process context
//! and may sleep. `fork`, `dup` and `SCM_RIGHTS` share the file and therefore the data. Operations
//! run concurrently, on any CPU, without a lock: data that they change need locks or atomics.
//!
//! Softirqs and timers hold no reference to the file and cannot access the data. A softirq or timer
//! needs a separate reference-counted object, and an [`Endpoint`] for access to the sock.
//!
//! # Data paths besides TCP
//!
//! | Purpose | Functions |
//! |---|---|
//! | data of `sendmsg` and `recvmsg` | [`Outgoing::copy_in`], [`Incoming::copy_out`]: to and from pages that a device may access at the same time ([`PageList`](crate::mem::PageList)) |
//! | `splice` from the socket | [`Splice::by_recvmsg`]; for `splice` to the socket, `sendmsg` gets the pages |
//! | waiting | [`Tcp::receiving`], [`Tcp::sending`], [`Waiting::until`] |
//! | waking | [`Endpoint::wake`], [`Endpoint::fail`], in any context, also after the release |
//! | `poll` | [`Tcp::poll_wait`], then the data path's bits; [`Tcp::poll_now`] for TCP's bits; [`Tcp::no_space`] before the data path reports that there is no free space |
//! | TCP's side | [`Endpoint::ends`], [`Endpoint::queued`], [`Tcp::state`] |
//! | destination | [`Tcp::route_to`], [`Tcp::route`], [`Tcp::interface_of`], [`Interface::is_of`], [`Neighbour`] |
//! | TCP's future choice | [`Tcp::choose_port`], [`Listener::find`] |
//! | timers, work | [`crate::timer`], [`crate::work`] |
//!
//! Functions that acquire the sock's lock (`lock_sock`) say so in their comments. The lock is not
//! held when such a function returns, or when an operation is called. A data path has separate
//! locks. A data path may hold only mutexes around calls that acquire the sock's lock.
//!
//! # The module
//!
//! Each socket keeps the module `M` of its registration loaded until it is closed, beginning before
//! `socket()` returns. TCP's part may live longer (`FIN_WAIT`, `TIME_WAIT`), but it does not refer
//! to the module.

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
    Addr, BypassedBytes, GetOption, Incoming, Outgoing, PollTable, SetOption, Splice, State, Tcp,
};
pub use trace::Queues;
pub use wait::Waiting;
pub use wake::{is_exiting, Linger, Queued, ShutdownDirections, Wake};
