// SPDX-License-Identifier: GPL-2.0-only

//! C tables made from [`Operations`].

use super::{
    ops::{Child, Operations, Socket},
    tcp::{Addr, GetOption, Incoming, Outgoing, PollTable, SetOption, Splice, Tcp},
};
use crate::bindings;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{error::from_result, module::this_module, prelude::*, ModuleMetadata};

/// Returns the socket of a call with its data.
///
/// # Safety
///
/// Only operations may call this function, for their socket. These requirements apply to all
/// functions below. The socket layer calls the operations with a reference to the file. Only the
/// worker of a sockmap calls `sendmsg` without a reference, and TCP's release waits for that
/// worker.
unsafe fn socket<'a, T: Operations>(sock: *mut bindings::socket) -> Result<Socket<'a, T>> {
    // SAFETY: by the function's requirements the socket stays valid; with these operations it has a
    // TCP sock.
    unsafe { Socket::of(Tcp::from_raw(sock)) }
}

/// # Safety
///
/// The requirements of [`socket`] apply; called once, after all operations that hold the file.
unsafe extern "C" fn release<T: Operations>(sock: *mut bindings::socket) -> c_int {
    // SAFETY: by the function's requirements no other operation holds the file. TCP's release waits
    // for workers that may still use the data, before `end` drops the data.
    unsafe {
        if let Some(socket) = Socket::<T>::made(Tcp::from_raw(sock)) {
            T::release(&socket);
        }
        let closed = bindings::extoll_tcp_release(sock);
        Socket::<T>::end(sock);
        closed
    }
}

/// # Safety
///
/// The requirements of [`socket`] apply.
unsafe extern "C" fn bind<T: Operations>(
    sock: *mut bindings::socket,
    addr: *mut bindings::sockaddr_unsized,
    len: c_int,
) -> c_int {
    let addr = Addr {
        ptr: addr,
        len,
        call: PhantomData,
    };
    // SAFETY: by the function's requirements this is an operation on the socket.
    from_result(|| T::bind(&unsafe { socket(sock) }?, &addr).map(|()| 0))
}

/// # Safety
///
/// The requirements of [`socket`] apply.
unsafe extern "C" fn connect<T: Operations>(
    sock: *mut bindings::socket,
    addr: *mut bindings::sockaddr_unsized,
    len: c_int,
    flags: c_int,
) -> c_int {
    let addr = Addr {
        ptr: addr,
        len,
        call: PhantomData,
    };
    // SAFETY: by the function's requirements this is an operation on the socket.
    from_result(|| T::connect(&unsafe { socket(sock) }?, &addr, flags).map(|()| 0))
}

/// # Safety
///
/// The requirements of [`socket`] apply; `new` is a new socket with the same operations.
unsafe extern "C" fn accept<T: Operations>(
    sock: *mut bindings::socket,
    new: *mut bindings::socket,
    arg: *mut bindings::proto_accept_arg,
) -> c_int {
    from_result(|| {
        // SAFETY: by the function's requirements this is an operation on the listener, and `new` is
        // a new socket.
        let (listener, child) = unsafe {
            let listener = socket::<T>(sock)?;
            let child = Child::new(listener.tcp(), new, arg);
            (listener, child)
        };
        let accepted = T::accept(&listener, &child);
        if accepted.is_err() && child.is_accepted() {
            // The child is closed here, because callers release a child through its operations,
            // which some of them have not set yet. SAFETY: the child is not visible to other
            // threads. The child has a TCP sock, and no operation runs on the child.
            unsafe {
                bindings::extoll_tcp_release(new);
                Socket::<T>::end(new);
            }
        }
        accepted?;
        // Callers expect the new socket of a successful call to have a sock.
        if !child.is_accepted() {
            return Err(ECONNABORTED);
        }
        Ok(0)
    })
}

/// # Safety
///
/// The requirements of [`socket`] apply; file and table are valid, or the table is null.
unsafe extern "C" fn poll<T: Operations>(
    file: *mut bindings::file,
    sock: *mut bindings::socket,
    table: *mut bindings::poll_table_struct,
) -> bindings::__poll_t {
    // SAFETY: by the function's requirements this is an operation on the socket.
    match unsafe { Socket::<T>::made(Tcp::from_raw(sock)) } {
        Some(socket) => {
            let table = PollTable {
                file,
                ptr: table,
                call: PhantomData,
            };
            T::poll(&socket, table)
        }
        // SAFETY: by the function's requirements file, socket and table are valid.
        None => unsafe { bindings::extoll_tcp_poll(file, sock, table) },
    }
}

/// # Safety
///
/// The requirements of [`socket`] apply.
unsafe extern "C" fn ioctl<T: Operations>(
    sock: *mut bindings::socket,
    command: c_uint,
    arg: c_ulong,
) -> c_int {
    // SAFETY: by the function's requirements this is an operation on the socket.
    from_result(|| T::ioctl(&unsafe { socket(sock) }?, command, arg).map(|n| n as c_int))
}

/// # Safety
///
/// The requirements of [`socket`] apply; `addr` is valid for writes.
unsafe extern "C" fn getname<T: Operations>(
    sock: *mut bindings::socket,
    addr: *mut bindings::sockaddr,
    peer: c_int,
) -> c_int {
    // The value 2 requests the peer of a connection that is being accepted, even if it is closed
    // already.
    if peer == 1 {
        // SAFETY: by the function's requirements this is an operation on the socket.
        if let Some(socket) = unsafe { Socket::<T>::made(Tcp::from_raw(sock)) } {
            if let Err(e) = T::peer_name(&socket) {
                return e.to_errno();
            }
        }
    }
    // SAFETY: by the function's requirements socket and address are valid.
    unsafe { bindings::extoll_tcp_getname(sock, addr, peer) }
}

/// # Safety
///
/// The requirements of [`socket`] apply.
unsafe extern "C" fn listen<T: Operations>(sock: *mut bindings::socket, backlog: c_int) -> c_int {
    // SAFETY: by the function's requirements this is an operation on the socket.
    from_result(|| T::listen(&unsafe { socket(sock) }?, backlog).map(|()| 0))
}

/// # Safety
///
/// The requirements of [`socket`] apply.
unsafe extern "C" fn shutdown<T: Operations>(sock: *mut bindings::socket, how: c_int) -> c_int {
    // SAFETY: by the function's requirements this is an operation on the socket.
    from_result(|| T::shutdown(&unsafe { socket(sock) }?, how).map(|()| 0))
}

/// # Safety
///
/// The requirements of [`socket`] apply; the caller passes the value.
unsafe extern "C" fn setsockopt<T: Operations>(
    sock: *mut bindings::socket,
    level: c_int,
    name: c_int,
    value: bindings::sockptr_t,
    len: c_uint,
) -> c_int {
    let option = SetOption {
        level,
        name,
        value,
        len,
        call: PhantomData,
    };
    // SAFETY: by the function's requirements this is an operation on the socket.
    from_result(|| T::setsockopt(&unsafe { socket(sock) }?, &option).map(|()| 0))
}

/// # Safety
///
/// The requirements of [`socket`] apply; the caller passes value and length.
unsafe extern "C" fn getsockopt<T: Operations>(
    sock: *mut bindings::socket,
    level: c_int,
    name: c_int,
    value: *mut c_char,
    len: *mut c_int,
) -> c_int {
    let mut option = GetOption {
        level,
        name,
        value,
        len,
        call: PhantomData,
    };
    // SAFETY: by the function's requirements this is an operation on the socket.
    from_result(|| T::getsockopt(&unsafe { socket(sock) }?, &mut option).map(|()| 0))
}

/// # Safety
///
/// The requirements of [`socket`] apply; the message is valid during the call and not shared.
unsafe extern "C" fn sendmsg<T: Operations>(
    sock: *mut bindings::socket,
    msg: *mut bindings::msghdr,
    len: usize,
) -> c_int {
    from_result(|| {
        let mut msg = Outgoing {
            ptr: NonNull::new(msg).ok_or(EFAULT)?,
            call: PhantomData,
        };
        // SAFETY: by the function's requirements this is an operation on the socket.
        T::sendmsg(&unsafe { socket(sock) }?, &mut msg, len).map(|n| n as c_int)
    })
}

/// # Safety
///
/// The requirements of [`socket`] apply; the message is valid during the call and not shared.
unsafe extern "C" fn recvmsg<T: Operations>(
    sock: *mut bindings::socket,
    msg: *mut bindings::msghdr,
    len: usize,
    flags: c_int,
) -> c_int {
    from_result(|| {
        let mut msg = Incoming {
            ptr: NonNull::new(msg).ok_or(EFAULT)?,
            call: PhantomData,
        };
        // SAFETY: by the function's requirements this is an operation on the socket.
        T::recvmsg(&unsafe { socket(sock) }?, &mut msg, len, flags).map(|n| n as c_int)
    })
}

/// # Safety
///
/// The requirements of [`socket`] apply; the caller passes position and pipe.
unsafe extern "C" fn splice_read<T: Operations>(
    sock: *mut bindings::socket,
    pos: *mut bindings::loff_t,
    pipe: *mut bindings::pipe_inode_info,
    len: usize,
    flags: c_uint,
) -> isize {
    let mut to = Splice {
        pos,
        pipe,
        flags,
        call: PhantomData,
    };
    // SAFETY: by the function's requirements this is an operation on the socket.
    from_result(|| T::splice_read(&unsafe { socket(sock) }?, &mut to, len).map(|n| n as isize))
}

/// # Safety
///
/// The requirements of [`socket`] apply.
unsafe extern "C" fn splice_eof<T: Operations>(sock: *mut bindings::socket) {
    // SAFETY: by the function's requirements this is an operation on the socket.
    match unsafe { Socket::<T>::made(Tcp::from_raw(sock)) } {
        Some(socket) => T::splice_eof(&socket),
        // SAFETY: by the function's requirements the socket is valid.
        None => unsafe { bindings::extoll_tcp_splice_eof(sock) },
    }
}

/// Tables of the operations of `T`, in static memory of module `M`. Sockets refer to the tables as
/// long as they live, and keep `M` loaded.
pub(super) struct Table<T, M>(PhantomData<(T, M)>);

/// Expands to `$of` if `T` implements the operation, otherwise to TCP's function.
macro_rules! op {
    ($has:expr, $of:expr, $tcp:path) => {
        if $has {
            Some($of)
        } else {
            Some($tcp)
        }
    };
}

impl<T: Operations, M: ModuleMetadata + 'static> Table<T, M> {
    /// Table for IPv4 sockets.
    pub(super) const V4: &'static bindings::proto_ops = &Self::table(bindings::PF_INET as c_int);
    /// Table for IPv6 sockets.
    pub(super) const V6: &'static bindings::proto_ops = &Self::table(bindings::PF_INET6 as c_int);

    const fn table(family: c_int) -> bindings::proto_ops {
        bindings::proto_ops {
            family,
            owner: this_module::<M>().as_ptr(),
            release: Some(release::<T>),
            bind: op!(T::HAS_BIND, bind::<T>, bindings::extoll_tcp_bind),
            connect: op!(T::HAS_CONNECT, connect::<T>, bindings::extoll_tcp_connect),
            socketpair: Some(bindings::extoll_tcp_socketpair),
            accept: op!(T::HAS_ACCEPT, accept::<T>, bindings::extoll_tcp_accept),
            getname: op!(T::HAS_PEER_NAME, getname::<T>, bindings::extoll_tcp_getname),
            poll: op!(T::HAS_POLL, poll::<T>, bindings::extoll_tcp_poll),
            ioctl: op!(T::HAS_IOCTL, ioctl::<T>, bindings::extoll_tcp_ioctl),
            #[cfg(CONFIG_COMPAT)]
            compat_ioctl: Some(bindings::extoll_tcp_compat_ioctl),
            gettstamp: Some(bindings::extoll_tcp_gettstamp),
            listen: op!(T::HAS_LISTEN, listen::<T>, bindings::extoll_tcp_listen),
            shutdown: op!(
                T::HAS_SHUTDOWN,
                shutdown::<T>,
                bindings::extoll_tcp_shutdown
            ),
            setsockopt: op!(
                T::HAS_SETSOCKOPT,
                setsockopt::<T>,
                bindings::extoll_tcp_setsockopt
            ),
            getsockopt: op!(
                T::HAS_GETSOCKOPT,
                getsockopt::<T>,
                bindings::extoll_tcp_getsockopt
            ),
            sendmsg: op!(T::HAS_SENDMSG, sendmsg::<T>, bindings::extoll_tcp_sendmsg),
            recvmsg: op!(T::HAS_RECVMSG, recvmsg::<T>, bindings::extoll_tcp_recvmsg),
            mmap: Some(bindings::extoll_tcp_mmap),
            splice_read: op!(
                T::HAS_SPLICE_READ,
                splice_read::<T>,
                bindings::extoll_tcp_splice_read
            ),
            splice_eof: op!(
                T::HAS_SPLICE_EOF,
                splice_eof::<T>,
                bindings::extoll_tcp_splice_eof
            ),
            set_peek_off: Some(bindings::extoll_tcp_set_peek_off),
            peek_len: Some(bindings::extoll_tcp_peek_len),
            read_sock: Some(bindings::extoll_tcp_read_sock),
            read_skb: Some(bindings::extoll_tcp_read_skb),
            sendmsg_locked: Some(bindings::extoll_tcp_sendmsg_locked),
            set_rcvlowat: Some(bindings::extoll_tcp_set_rcvlowat),
            set_rcvbuf: Some(bindings::extoll_tcp_set_rcvbuf),
            ..pin_init::zeroed()
        }
    }
}
