// SPDX-License-Identifier: GPL-2.0-only

//! TCP's own operations on a socket, and their arguments.

use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
};
use kernel::{
    error::to_result,
    ffi,
    prelude::*,
    types::Opaque,
    uaccess::{UserPtr, UserSlice},
};

/// State of a TCP connection, as in `ss`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Connected.
    Established,
    /// A SYN was sent.
    SynSent,
    /// A SYN was received.
    SynRecv,
    /// Closed on this side; the FIN is not acknowledged yet.
    FinWait1,
    /// Closed on this side.
    FinWait2,
    /// Waiting for late segments.
    TimeWait,
    /// No connection.
    Close,
    /// Closed by the peer.
    CloseWait,
    /// Closed by the peer, then on this side; the FIN is not acknowledged yet.
    LastAck,
    /// Listening.
    Listen,
    /// Closed on both sides; the FIN is not acknowledged yet.
    Closing,
    /// A SYN was received; there is no sock yet.
    NewSynRecv,
}

impl State {
    /// Returns the kernel's number.
    fn raw(self) -> u8 {
        match self {
            Self::Established => 1,
            Self::SynSent => 2,
            Self::SynRecv => 3,
            Self::FinWait1 => 4,
            Self::FinWait2 => 5,
            Self::TimeWait => 6,
            Self::Close => 7,
            Self::CloseWait => 8,
            Self::LastAck => 9,
            Self::Listen => 10,
            Self::Closing => 11,
            Self::NewSynRecv => 12,
        }
    }

    /// Returns the state with the kernel's number `raw`.
    pub(super) fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::Established,
            2 => Self::SynSent,
            3 => Self::SynRecv,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            12 => Self::NewSynRecv,
            _ => Self::Close,
        }
    }
}

/// Address from user space, with unchecked content and length.
pub struct Addr<'a> {
    pub(super) ptr: *mut bindings::sockaddr_unsized,
    pub(super) len: c_int,
    pub(super) call: PhantomData<&'a ()>,
}

/// Message to send, with flags and control data, both in kernel memory.
pub struct Outgoing<'a> {
    pub(super) ptr: NonNull<bindings::msghdr>,
    pub(super) call: PhantomData<&'a mut ()>,
}

impl Outgoing<'_> {
    /// Returns the flags of the call (`MSG_DONTWAIT` …).
    #[inline]
    pub fn flags(&self) -> u32 {
        // SAFETY: the message is valid while `self` exists, and used by this thread only.
        unsafe { self.ptr.as_ref() }.msg_flags
    }
}

/// Buffer for a message to receive and its control data. Message and control data may be in user
/// memory, so the type is different from [`Outgoing`].
pub struct Incoming<'a> {
    pub(super) ptr: NonNull<bindings::msghdr>,
    pub(super) call: PhantomData<&'a mut ()>,
}

/// Option to be set, of a level other than `SOL_SOCKET`.
pub struct SetOption<'a> {
    pub(super) level: c_int,
    pub(super) name: c_int,
    pub(super) value: bindings::sockptr_t,
    pub(super) len: c_uint,
    pub(super) call: PhantomData<&'a ()>,
}

impl SetOption<'_> {
    /// Returns the level (`SOL_TCP` …).
    #[inline]
    pub fn level(&self) -> i32 {
        self.level
    }

    /// Returns the number within the level.
    #[inline]
    pub fn name(&self) -> i32 {
        self.name
    }

    /// Copies the beginning of the option's value to `value`. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the option's value is shorter. `EFAULT`: the caller's memory is not accessible.
    pub fn read(&self, value: &mut [u8]) -> Result {
        if value.len() > self.len as usize {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes the option's value, which has at least this length; `value` is
        // borrowed.
        to_result(unsafe {
            bindings::extoll_option_read(self.value, 0, value.as_mut_ptr().cast(), value.len())
        })
    }
}

/// Option to be read, of a level other than `SOL_SOCKET`.
pub struct GetOption<'a> {
    pub(super) level: c_int,
    pub(super) name: c_int,
    pub(super) value: *mut c_char,
    pub(super) len: *mut c_int,
    pub(super) call: PhantomData<&'a ()>,
}

impl GetOption<'_> {
    /// Returns the level (`SOL_TCP` …).
    #[inline]
    pub fn level(&self) -> i32 {
        self.level
    }

    /// Returns the number within the level.
    #[inline]
    pub fn name(&self) -> i32 {
        self.name
    }

    /// Copies `bytes`, truncated to the caller's buffer, and the number of copied bytes to the
    /// caller. May sleep.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the caller's memory is not accessible. `EINVAL`: the caller's length is negative.
    pub fn answer(&mut self, bytes: &[u8]) -> Result {
        let at = UserPtr::from_addr(self.len.addr());
        let mut length = [0; 4];
        UserSlice::new(at, 4).reader().read_slice(&mut length)?;
        let room = usize::try_from(i32::from_ne_bytes(length)).map_err(|_| EINVAL)?;
        let bytes = bytes.get(..room.min(bytes.len())).ok_or(EINVAL)?;
        let to = UserPtr::from_addr(self.value.addr());
        UserSlice::new(to, bytes.len())
            .writer()
            .write_slice(bytes)?;
        let length = (bytes.len() as i32).to_ne_bytes();
        UserSlice::new(at, 4).writer().write_slice(&length)
    }
}

/// Pipe to which received data are moved.
pub struct Splice<'a> {
    pub(super) pos: *mut bindings::loff_t,
    pub(super) pipe: *mut bindings::pipe_inode_info,
    pub(super) flags: c_uint,
    pub(super) call: PhantomData<&'a mut ()>,
}

/// Converts a length that C returned, or an error.
fn number(ret: c_int) -> Result<usize> {
    to_result(ret)?;
    Ok(ret as usize)
}

/// TCP's operations on the file's socket. Process context; may sleep unless documented differently.
/// Errors are those of the system calls on a TCP socket.
///
/// # Invariants
///
/// The socket is valid and has the operations of this module. The socket has a TCP sock, except for
/// a child that has not been accepted. No operation runs on such a child.
#[repr(transparent)]
pub struct Tcp(Opaque<bindings::socket>);

// SAFETY: several threads may call operations on a socket concurrently; TCP locks the data that
// they share.
unsafe impl Sync for Tcp {}

impl Tcp {
    /// # Safety
    ///
    /// `raw` must fulfil the type invariants during `'a`.
    #[inline]
    pub(super) unsafe fn from_raw<'a>(raw: *mut bindings::socket) -> &'a Self {
        // SAFETY: by the function's requirements the socket is valid; the type is transparent.
        unsafe { &*raw.cast() }
    }

    #[inline]
    pub(in crate::net) fn as_raw(&self) -> *mut bindings::socket {
        self.0.get()
    }

    /// Returns the sock.
    #[inline]
    pub(super) fn sk(&self) -> *mut bindings::sock {
        // SAFETY: the socket is valid by the type invariant, and its sock does not change.
        unsafe { (*self.as_raw()).sk }
    }

    /// Returns the state of the connection, which may change at any time. Any context.
    #[inline]
    pub fn state(&self) -> State {
        // SAFETY: the sock is valid by the type invariant.
        State::from_raw(unsafe { bindings::extoll_sock_state(self.sk()) } as u32)
    }

    /// Returns true if the next `connect` may start a connection: there is none, or its end was
    /// reported to the program. Any context.
    pub fn is_unconnected(&self) -> bool {
        // SAFETY: the socket is valid by the type invariant.
        unsafe { bindings::extoll_sock_unconnected(self.as_raw()) }
    }

    /// Marks a connection that a non-blocking `connect` started as reported to the program, as
    /// TCP's `shutdown` does. Takes the sock's lock, may sleep.
    pub fn mark_connected(&self) {
        // SAFETY: the socket is valid by the type invariant.
        unsafe { bindings::extoll_sock_mark_connected(self.as_raw()) }
    }

    /// Ends the connection like a reset by the peer, and sends a reset to the peer. The pending
    /// error does not change. Takes the sock's lock, may sleep.
    pub fn abort(&self) {
        // SAFETY: the sock is valid by the type invariant.
        unsafe { bindings::extoll_tcp_abort(self.sk()) }
    }

    /// Binds the socket to a local address.
    #[inline]
    pub fn bind(&self, addr: &Addr<'_>) -> Result {
        // SAFETY: the socket is valid by the type invariant; the caller of the operation passed the
        // address.
        to_result(unsafe { bindings::extoll_tcp_bind(self.as_raw(), addr.ptr, addr.len) })
    }

    /// Connects, or disconnects for an address of `AF_UNSPEC`. Waits unless `flags` has
    /// `O_NONBLOCK`.
    #[inline]
    pub fn connect(&self, addr: &Addr<'_>, flags: i32) -> Result {
        // SAFETY: the reasons given in `bind` apply.
        to_result(unsafe { bindings::extoll_tcp_connect(self.as_raw(), addr.ptr, addr.len, flags) })
    }

    /// Adds the caller to the wait queue, and returns the bits of `poll(2)` that are ready. Does
    /// not sleep.
    #[inline]
    pub fn poll(&self, table: PollTable<'_>) -> u32 {
        // SAFETY: the socket is valid by the type invariant; file and table are valid.
        unsafe { bindings::extoll_tcp_poll(table.file, self.as_raw(), table.ptr) }
    }

    /// Adds the caller of `poll` to the wait queue, for a data path that determines the ready bits
    /// itself. The data path must determine them **after** this call, which contains the barrier
    /// that pairs with [`Endpoint::wake`]. Does not sleep.
    ///
    /// [`Endpoint::wake`]: super::Endpoint::wake
    #[inline]
    pub fn poll_wait(&self, table: &PollTable<'_>) {
        // SAFETY: the socket is valid by the type invariant; file and table are valid. The file
        // belongs to the socket, because tables are only passed to the operation of that socket.
        unsafe { bindings::extoll_sock_poll_wait(table.file, self.as_raw(), table.ptr) }
    }

    /// Returns TCP's bits that are ready, without adding the caller to the wait queue. A data path
    /// combines TCP's bits with its own bits after [`Tcp::poll_wait`]. Does not sleep.
    #[inline]
    pub fn poll_now(&self, table: &PollTable<'_>) -> u32 {
        // SAFETY: the socket is valid by the type invariant; the file is valid, and no table is
        // passed.
        unsafe { bindings::extoll_tcp_poll(table.file, self.as_raw(), ptr::null_mut()) }
    }

    /// Handles an ioctl.
    #[inline]
    pub fn ioctl(&self, command: u32, arg: usize) -> Result<usize> {
        // SAFETY: the socket is valid by the type invariant.
        number(unsafe { bindings::extoll_tcp_ioctl(self.as_raw(), command, arg as ffi::c_ulong) })
    }

    /// Starts listening for connections.
    #[inline]
    pub fn listen(&self, backlog: i32) -> Result {
        // SAFETY: the socket is valid by the type invariant.
        to_result(unsafe { bindings::extoll_tcp_listen(self.as_raw(), backlog) })
    }

    /// Shuts down one or both directions.
    #[inline]
    pub fn shutdown(&self, how: i32) -> Result {
        // SAFETY: the socket is valid by the type invariant.
        to_result(unsafe { bindings::extoll_tcp_shutdown(self.as_raw(), how) })
    }

    /// Sets an option.
    ///
    /// # Errors
    ///
    /// Errors of TCP's operation. In addition `ENOENT` for `TCP_ULP` and `ENOPROTOOPT` for
    /// `IPV6_ADDRFORM`, because both options replace the operations.
    #[inline]
    pub fn setsockopt(&self, option: &SetOption<'_>) -> Result {
        let SetOption {
            level, name, len, ..
        } = *option;
        // SAFETY: the socket is valid by the type invariant; the caller of the operation passed
        // value and length.
        to_result(unsafe {
            bindings::extoll_tcp_setsockopt(self.as_raw(), level, name, option.value, len)
        })
    }

    /// Reads an option.
    #[inline]
    pub fn getsockopt(&self, option: &mut GetOption<'_>) -> Result {
        let GetOption {
            level,
            name,
            value,
            len,
            ..
        } = *option;
        // SAFETY: the socket is valid by the type invariant; the caller of the operation passed
        // value and length.
        to_result(unsafe {
            bindings::extoll_tcp_getsockopt(self.as_raw(), level, name, value.cast(), len.cast())
        })
    }

    /// Sends a message. Returns the number of bytes.
    #[inline]
    pub fn sendmsg(&self, msg: &mut Outgoing<'_>, len: usize) -> Result<usize> {
        // SAFETY: the socket is valid by the type invariant; the caller of the operation passed the
        // message.
        number(unsafe { bindings::extoll_tcp_sendmsg(self.as_raw(), msg.ptr.as_ptr(), len) })
    }

    /// Receives a message. Returns the number of bytes.
    #[inline]
    pub fn recvmsg(&self, msg: &mut Incoming<'_>, len: usize, flags: i32) -> Result<usize> {
        let msg = msg.ptr.as_ptr();
        // SAFETY: the socket is valid by the type invariant; the caller of the operation passed the
        // message.
        number(unsafe { bindings::extoll_tcp_recvmsg(self.as_raw(), msg, len, flags) })
    }

    /// Moves received data to a pipe. Returns the number of bytes.
    #[inline]
    pub fn splice_read(&self, to: &mut Splice<'_>, len: usize) -> Result<usize> {
        // SAFETY: the socket is valid by the type invariant; the caller of the operation passed
        // position and pipe.
        let n = unsafe {
            bindings::extoll_tcp_splice_read(self.as_raw(), to.pos, to.pipe, len, to.flags)
        };
        usize::try_from(n).map_err(|_| Error::from_errno(n as c_int))
    }
}

/// Bytes of a connection that bypassed TCP.
#[derive(Clone, Copy, Debug)]
pub struct BypassedBytes {
    /// State of the connection.
    pub state: State,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes sent that the peer has acknowledged.
    pub acknowledged: u64,
    /// Bytes received, whether or not the program has read them.
    pub received: u64,
    /// Bytes that wait for transmission.
    pub unsent: u32,
    /// Bytes that were sent but not acknowledged.
    pub unacknowledged: u32,
}

impl Tcp {
    /// Answers `TCP_INFO` with TCP's counts plus the bytes that bypassed TCP. Takes the sock's
    /// lock, may sleep.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`GetOption::answer`].
    pub fn answer_info(&self, option: &mut GetOption<'_>, bypassed: &BypassedBytes) -> Result {
        let raw = bindings::extoll_tcp_bypassed {
            sent: bypassed.sent,
            acked: bypassed.acknowledged,
            received: bypassed.received,
            unsent: bypassed.unsent,
            unacked: bypassed.unacknowledged,
            state: bypassed.state.raw(),
        };
        // The buffer is larger than `struct tcp_info` of any supported kernel.
        let mut info = [0u8; 512];
        // SAFETY: the sock is valid by the type invariant; the function writes up to `info.len()`
        // bytes.
        let len = unsafe {
            bindings::extoll_tcp_info(self.sk(), &raw, info.as_mut_ptr().cast(), info.len())
        };
        option.answer(info.get(..len).ok_or(EINVAL)?)
    }

    /// Reports that `splice()` has no more data from its pipe or file.
    pub fn splice_eof(&self) {
        // SAFETY: the socket is valid by the type invariant.
        unsafe { bindings::extoll_tcp_splice_eof(self.as_raw()) }
    }
}

/// Table of wait queues of a `poll` call, valid or null, and the socket's file.
pub struct PollTable<'a> {
    pub(super) file: *mut bindings::file,
    pub(super) ptr: *mut bindings::poll_table_struct,
    pub(super) call: PhantomData<&'a ()>,
}
