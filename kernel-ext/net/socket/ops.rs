// SPDX-License-Identifier: GPL-2.0-only

//! What the user of the abstraction implements, and what its operations are called with.

use super::tcp::{Addr, GetOption, Incoming, Outgoing, PollTable, SetOption, Splice, Tcp};
use crate::bindings;
use core::{cell::Cell, marker::PhantomData};
use kernel::{
    error::{to_result, VTABLE_DEFAULT_ERROR},
    prelude::*,
};

/// Operations on the sockets of a [`Family`](super::Family) or an [`Alias`](super::Alias). Those
/// left out are TCP's.
///
/// All run in process context, may sleep, and hold a reference to the file, hence not at the same
/// time as `release`; but for `sendmsg`, which the worker of a sockmap calls without one until TCP's
/// part has closed. Several may run on one socket at a time. `poll` must not sleep. Operations of
/// TCP that are not here are always TCP's:
///
/// | Operation | Why |
/// |---|---|
/// | `getname`, but for [`Operations::peer_name`]; `gettstamp` | the connection's addresses and times are TCP's |
/// | `mmap` | belongs to `TCP_ZEROCOPY_RECEIVE` |
/// | `set_rcvlowat`, `set_rcvbuf`, `set_peek_off` | called with the sock locked when the option of that name is set; the values are in the sock, where everybody reads them |
/// | `read_sock`, `read_skb`, `sendmsg_locked`, `peek_len` | called for other parts of the kernel (sockmap, kcm, strparser), which work on TCP's queues |
#[vtable]
pub trait Operations: Sized + 'static {
    /// Data of a socket, shared by all operations.
    type Data: Send + Sync + 'static;

    /// Makes the data of a socket in its first operation, or after it was accepted. Several threads
    /// may be here for one socket; then one result is used, the others are dropped without
    /// [`Operations::release`].
    fn new(tcp: &Tcp) -> impl PinInit<Self::Data, Error>;

    /// The last descriptor was closed; TCP closes after this, and then the data are dropped. A worker
    /// of a sockmap may still be in `sendmsg`. Must not wait without a bound.
    fn release(sock: &Socket<'_, Self>);

    /// Gives the socket a local address.
    fn bind(sock: &Socket<'_, Self>, addr: &Addr<'_>) -> Result {
        let _ = (sock, addr);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Connects; see [`Tcp::connect`].
    fn connect(sock: &Socket<'_, Self>, addr: &Addr<'_>, flags: i32) -> Result {
        let _ = (sock, addr, flags);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Accepts a connection: success only after [`Child::accept`] had it.
    fn accept(sock: &Socket<'_, Self>, child: &Child<'_, Self>) -> Result {
        let _ = (sock, child);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The program asks who its peer is: success if TCP may answer.
    fn peer_name(sock: &Socket<'_, Self>) -> Result {
        let _ = sock;
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// What is ready; see [`Tcp::poll`]. Doesn't sleep.
    fn poll(sock: &Socket<'_, Self>, table: PollTable<'_>) -> u32 {
        let _ = (sock, table);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// An ioctl of a process of the kernel's word size.
    fn ioctl(sock: &Socket<'_, Self>, command: u32, arg: usize) -> Result<usize> {
        let _ = (sock, command, arg);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Begins to accept connections.
    fn listen(sock: &Socket<'_, Self>, backlog: i32) -> Result {
        let _ = (sock, backlog);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Ends one or both directions.
    fn shutdown(sock: &Socket<'_, Self>, how: i32) -> Result {
        let _ = (sock, how);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Sets an option that is not of `SOL_SOCKET`: those the kernel keeps in the sock.
    fn setsockopt(sock: &Socket<'_, Self>, option: &SetOption<'_>) -> Result {
        let _ = (sock, option);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Reads an option that is not of `SOL_SOCKET`.
    fn getsockopt(sock: &Socket<'_, Self>, option: &mut GetOption<'_>) -> Result {
        let _ = (sock, option);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Sends.
    fn sendmsg(sock: &Socket<'_, Self>, msg: &mut Outgoing<'_>, len: usize) -> Result<usize> {
        let _ = (sock, msg, len);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Receives.
    fn recvmsg(
        sock: &Socket<'_, Self>,
        msg: &mut Incoming<'_>,
        len: usize,
        flags: i32,
    ) -> Result<usize> {
        let _ = (sock, msg, len, flags);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Nothing follows what `splice()` or `sendfile()` has sent with `MSG_MORE`, though it was
    /// announced.
    fn splice_eof(sock: &Socket<'_, Self>) {
        let _ = sock;
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Moves received data to a pipe.
    fn splice_read(sock: &Socket<'_, Self>, to: &mut Splice<'_>, len: usize) -> Result<usize> {
        let _ = (sock, to, len);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A socket as its operations see it.
pub struct Socket<'a, T: Operations> {
    tcp: &'a Tcp,
    data: Pin<&'a T::Data>,
}

impl<'a, T: Operations> Socket<'a, T> {
    /// Its data.
    #[inline]
    pub fn data(&self) -> Pin<&'a T::Data> {
        self.data
    }

    /// TCP's operations on it.
    #[inline]
    pub fn tcp(&self) -> &'a Tcp {
        self.tcp
    }

    /// The socket with its data, which are made now if there are none.
    ///
    /// # Safety
    ///
    /// `tcp` must have `T`'s operations, and a reference to its file must be held for `'a`, or
    /// nobody else have the socket.
    pub(super) unsafe fn of(tcp: &'a Tcp) -> Result<Self> {
        // SAFETY: the socket is valid.
        let mut ptr = unsafe { bindings::extoll_sock_data(tcp.as_raw()) };
        if ptr.is_null() {
            let new = KBox::pin_init(T::new(tcp), GFP_KERNEL_ACCOUNT)?;
            // SAFETY: it is not moved: only `release` makes a box of it again, a pinned one.
            let new = KBox::into_raw(unsafe { Pin::into_inner_unchecked(new) });
            // SAFETY: the socket is valid.
            ptr = unsafe { bindings::extoll_sock_set_data(tcp.as_raw(), new.cast()) };
            if ptr.is_null() {
                ptr = new.cast();
            } else {
                // SAFETY: made above and given to nobody; pinned as it was.
                drop(unsafe { Pin::new_unchecked(KBox::from_raw(new)) });
            }
        }
        // SAFETY: what a socket with `T`'s operations keeps is a `T::Data`, set by this function;
        // it lives until `release`, which does not run by the requirements.
        let data = unsafe { Pin::new_unchecked(&*ptr.cast::<T::Data>()) };
        Ok(Self { tcp, data })
    }

    /// The socket with its data, if it has some. Doesn't sleep.
    ///
    /// # Safety
    ///
    /// As [`Socket::of`].
    pub(super) unsafe fn made(tcp: &'a Tcp) -> Option<Self> {
        // SAFETY: the socket is valid; what it keeps is as in `of`.
        let data = unsafe {
            let ptr = bindings::extoll_sock_data(tcp.as_raw()).cast::<T::Data>();
            Pin::new_unchecked(ptr.as_ref()?)
        };
        Some(Self { tcp, data })
    }

    /// Ends the data of a socket, if it has some. It needs no sock any more.
    ///
    /// # Safety
    ///
    /// `sock` must be valid and have had `T`'s operations, and no other operation runs or will run.
    pub(super) unsafe fn end(sock: *mut bindings::socket) {
        // SAFETY: the socket is valid.
        let ptr = unsafe { bindings::extoll_sock_take_data(sock) }.cast::<T::Data>();
        if !ptr.is_null() {
            // SAFETY: made by `of`, taken just now, so nobody else has it; pinned as it was.
            drop(unsafe { Pin::new_unchecked(KBox::from_raw(ptr)) });
        }
    }
}

/// The new socket of a connection that is being accepted.
pub struct Child<'a, T: Operations> {
    listener: &'a Tcp,
    child: *mut bindings::socket,
    arg: *mut bindings::proto_accept_arg,
    accepted: Cell<bool>,
    types: PhantomData<fn() -> T>,
}

impl<'a, T: Operations> Child<'a, T> {
    /// # Safety
    ///
    /// `child` must be a new socket with `T`'s operations, `arg` valid, both for `'a`.
    pub(super) unsafe fn new(
        listener: &'a Tcp,
        child: *mut bindings::socket,
        arg: *mut bindings::proto_accept_arg,
    ) -> Self {
        Self {
            listener,
            child,
            arg,
            accepted: Cell::new(false),
            types: PhantomData,
        }
    }

    /// Lets TCP accept, once; waits unless the socket is non-blocking. The new socket comes with
    /// its data, or without it when there is no memory: then its first operation tries again, and
    /// until then it is TCP's.
    ///
    /// # Errors
    ///
    /// Those of `accept(2)`; `EINVAL`: it has accepted already.
    pub fn accept(&self) -> Result<Option<Socket<'a, T>>> {
        if self.accepted.get() {
            return Err(EINVAL);
        }
        // SAFETY: the listener is valid; child and argument are by the requirements of `new`.
        to_result(unsafe {
            bindings::extoll_tcp_accept(self.listener.as_raw(), self.child, self.arg)
        })?;
        self.accepted.set(true);
        // SAFETY: it has a sock of TCP now, and nobody else knows it yet.
        Ok(unsafe { Socket::of(Tcp::from_raw(self.child)) }.ok())
    }

    /// Whether a part of the kernel accepts it (`kernel_accept()`), and not a program: it may put
    /// its functions into the sock, which know of TCP's queues only.
    pub fn is_for_kernel(&self) -> bool {
        // SAFETY: valid by the requirements of `new`.
        unsafe { bindings::extoll_accept_by_kernel(self.arg) }
    }

    /// Whether TCP has accepted.
    pub(super) fn is_accepted(&self) -> bool {
        self.accepted.get()
    }
}
