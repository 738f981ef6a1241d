// SPDX-License-Identifier: GPL-2.0-only

//! Trait of socket operations, and the arguments of its functions.

use super::tcp::{Addr, GetOption, Incoming, Outgoing, PollTable, SetOption, Splice, Tcp};
use crate::bindings;
use core::{cell::Cell, marker::PhantomData};
use kernel::{
    error::{to_result, VTABLE_DEFAULT_ERROR},
    prelude::*,
};

/// Operations on the sockets of a [`Family`](super::Family) or an [`Alias`](super::Alias). TCP's
/// operations replace those that are not implemented.
///
/// All operations run in process context, may sleep, and hold a reference to the file, so they do
/// not run concurrently with `release`. The exception is `sendmsg`: the worker of a sockmap calls
/// it without a reference until TCP's part has been closed. Several operations may run on one
/// socket at a time. `poll` must not sleep. Operations that are not in this trait are always TCP's:
///
/// | Operation | Reason |
/// |---|---|
/// | `getname`, except for [`Operations::peer_name`]; `gettstamp` | addresses and times of the connection are TCP's |
/// | `mmap` | belongs to `TCP_ZEROCOPY_RECEIVE` |
/// | `set_rcvlowat`, `set_rcvbuf`, `set_peek_off` | called with the sock locked when the option of that name is set; the values are in the sock, from which all users read them |
/// | `read_sock`, `read_skb`, `sendmsg_locked`, `peek_len` | called for other parts of the kernel (sockmap, kcm, strparser), which use TCP's queues |
#[vtable]
pub trait Operations: Sized + 'static {
    /// Data of a socket, shared by all operations.
    type Data: Send + Sync + 'static;

    /// Initialises the data of a socket, in its first operation or after it was accepted. Several
    /// threads may initialise the data of one socket at the same time. Then one result is used, and
    /// the others are dropped without [`Operations::release`].
    fn new(tcp: &Tcp) -> impl PinInit<Self::Data, Error>;

    /// Called after the last descriptor was closed. Afterwards TCP closes, and then the data are
    /// dropped. A worker of a sockmap may still be in `sendmsg`. Must not wait for an unbounded
    /// time.
    fn release(sock: &Socket<'_, Self>);

    /// Binds the socket to a local address.
    fn bind(sock: &Socket<'_, Self>, addr: &Addr<'_>) -> Result {
        let _ = (sock, addr);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Connects; see [`Tcp::connect`].
    fn connect(sock: &Socket<'_, Self>, addr: &Addr<'_>, flags: i32) -> Result {
        let _ = (sock, addr, flags);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Accepts a connection. May return success only after [`Child::accept`] has succeeded.
    fn accept(sock: &Socket<'_, Self>, child: &Child<'_, Self>) -> Result {
        let _ = (sock, child);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Decides about a request for the peer's address (`getpeername`). On success TCP answers the
    /// request.
    fn peer_name(sock: &Socket<'_, Self>) -> Result {
        let _ = sock;
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Returns the events that are ready; see [`Tcp::poll`]. Does not sleep.
    fn poll(sock: &Socket<'_, Self>, table: PollTable<'_>) -> u32 {
        let _ = (sock, table);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Handles an ioctl of a process with the kernel's word size.
    fn ioctl(sock: &Socket<'_, Self>, command: u32, arg: usize) -> Result<usize> {
        let _ = (sock, command, arg);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Starts listening for connections.
    fn listen(sock: &Socket<'_, Self>, backlog: i32) -> Result {
        let _ = (sock, backlog);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Shuts down one or both directions.
    fn shutdown(sock: &Socket<'_, Self>, how: i32) -> Result {
        let _ = (sock, how);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Sets an option of a level other than `SOL_SOCKET`, whose options the kernel handles by
    /// itself.
    fn setsockopt(sock: &Socket<'_, Self>, option: &SetOption<'_>) -> Result {
        let _ = (sock, option);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Reads an option of a level other than `SOL_SOCKET`.
    fn getsockopt(sock: &Socket<'_, Self>, option: &mut GetOption<'_>) -> Result {
        let _ = (sock, option);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Sends a message. Returns the number of bytes.
    fn sendmsg(sock: &Socket<'_, Self>, msg: &mut Outgoing<'_>, len: usize) -> Result<usize> {
        let _ = (sock, msg, len);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Receives a message. Returns the number of bytes.
    fn recvmsg(
        sock: &Socket<'_, Self>,
        msg: &mut Incoming<'_>,
        len: usize,
        flags: i32,
    ) -> Result<usize> {
        let _ = (sock, msg, len, flags);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Called if no more data follow a transmission of `splice()` or `sendfile()` that announced
    /// more (`MSG_MORE`).
    fn splice_eof(sock: &Socket<'_, Self>) {
        let _ = sock;
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Moves received data to a pipe. Returns the number of bytes.
    fn splice_read(sock: &Socket<'_, Self>, to: &mut Splice<'_>, len: usize) -> Result<usize> {
        let _ = (sock, to, len);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// Socket of an operation.
pub struct Socket<'a, T: Operations> {
    tcp: &'a Tcp,
    data: Pin<&'a T::Data>,
}

impl<'a, T: Operations> Socket<'a, T> {
    /// Returns the data of the socket.
    #[inline]
    pub fn data(&self) -> Pin<&'a T::Data> {
        self.data
    }

    /// Returns TCP's operations on the socket.
    #[inline]
    pub fn tcp(&self) -> &'a Tcp {
        self.tcp
    }

    /// Returns the socket with its data. Makes the data if there are none.
    ///
    /// # Safety
    ///
    /// `tcp` must have `T`'s operations. During `'a` a reference to its file must be held, or the
    /// socket must not be visible to other threads.
    pub(super) unsafe fn of(tcp: &'a Tcp) -> Result<Self> {
        // SAFETY: the socket is valid.
        let mut ptr = unsafe { bindings::extoll_sock_data(tcp.as_raw()) };
        if ptr.is_null() {
            let new = KBox::pin_init(T::new(tcp), GFP_KERNEL_ACCOUNT)?;
            // SAFETY: the data are not moved: only this function and `end` make a box of the
            // pointer again, a pinned one.
            let new = KBox::into_raw(unsafe { Pin::into_inner_unchecked(new) });
            // SAFETY: the socket is valid.
            ptr = unsafe { bindings::extoll_sock_set_data(tcp.as_raw(), new.cast()) };
            if ptr.is_null() {
                ptr = new.cast();
            } else {
                // SAFETY: the data were made above and are not shared. The data stay pinned.
                drop(unsafe { Pin::new_unchecked(KBox::from_raw(new)) });
            }
        }
        // SAFETY: this function sets the data of a socket with `T`'s operations to a `T::Data`. The
        // data live until the release, which by the function's requirements does not run.
        let data = unsafe { Pin::new_unchecked(&*ptr.cast::<T::Data>()) };
        Ok(Self { tcp, data })
    }

    /// Returns the socket with its data, if they exist. Does not sleep.
    ///
    /// # Safety
    ///
    /// The requirements of [`Socket::of`] apply.
    pub(super) unsafe fn made(tcp: &'a Tcp) -> Option<Self> {
        // SAFETY: the socket is valid; its data are a `T::Data`, as in `of`.
        let data = unsafe {
            let ptr = bindings::extoll_sock_data(tcp.as_raw()).cast::<T::Data>();
            Pin::new_unchecked(ptr.as_ref()?)
        };
        Some(Self { tcp, data })
    }

    /// Drops the data of a socket, if they exist. The socket may have no sock any more.
    ///
    /// # Safety
    ///
    /// `sock` must be valid and must have had `T`'s operations. No other operation may run, now or
    /// later.
    pub(super) unsafe fn end(sock: *mut bindings::socket) {
        // SAFETY: the socket is valid.
        let ptr = unsafe { bindings::extoll_sock_take_data(sock) }.cast::<T::Data>();
        if !ptr.is_null() {
            // SAFETY: `of` made the data, and this call has removed them from the socket, so no
            // other pointer is in use. The data stay pinned.
            drop(unsafe { Pin::new_unchecked(KBox::from_raw(ptr)) });
        }
    }
}

/// New socket of a connection that is being accepted.
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
    /// `child` must be a new socket with `T`'s operations, `arg` must be valid, both during `'a`.
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

    /// Accepts a connection by TCP's operation. May be called once. Waits unless the socket is
    /// non-blocking. The new socket is returned with its data. Without memory for the data the
    /// result is `None`; then TCP handles the socket until its first operation makes the data.
    ///
    /// # Errors
    ///
    /// Errors of `accept(2)`. `EINVAL`: this function was already called.
    pub fn accept(&self) -> Result<Option<Socket<'a, T>>> {
        if self.accepted.get() {
            return Err(EINVAL);
        }
        // SAFETY: the listener is valid; by the requirements of `new` so are child and argument.
        to_result(unsafe {
            bindings::extoll_tcp_accept(self.listener.as_raw(), self.child, self.arg)
        })?;
        self.accepted.set(true);
        // SAFETY: the child has a TCP sock now, and it is not visible to other threads.
        Ok(unsafe { Socket::of(Tcp::from_raw(self.child)) }.ok())
    }

    /// Returns true if a part of the kernel accepts the connection (`kernel_accept()`), not a
    /// program. That part may set callbacks in the sock that only use TCP's queues.
    pub fn is_for_kernel(&self) -> bool {
        // SAFETY: `arg` is valid by the requirements of `new`.
        unsafe { bindings::extoll_accept_by_kernel(self.arg) }
    }

    /// Returns true if TCP has accepted.
    pub(super) fn is_accepted(&self) -> bool {
        self.accepted.get()
    }
}
