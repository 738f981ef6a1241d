// SPDX-License-Identifier: GPL-2.0-only

//! TCP's own operations on a socket, and what is passed to them.

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
    /// Waits for the answer to its SYN.
    SynSent,
    /// Got a SYN.
    SynRecv,
    /// Closed on this side, not yet acknowledged.
    FinWait1,
    /// Closed on this side.
    FinWait2,
    /// Waits for late segments.
    TimeWait,
    /// No connection.
    Close,
    /// Closed by the peer.
    CloseWait,
    /// Closed by the peer, then on this side, not yet acknowledged.
    LastAck,
    /// Listens.
    Listen,
    /// Closed on both sides, not yet acknowledged.
    Closing,
    /// Got a SYN, no sock yet.
    NewSynRecv,
}

impl State {
    /// The kernel's number.
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

    /// By the kernel's number.
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

/// An address from user space: not checked, not even its length.
pub struct Addr<'a> {
    pub(super) ptr: *mut bindings::sockaddr_unsized,
    pub(super) len: c_int,
    pub(super) call: PhantomData<&'a ()>,
}

/// A message to send, with flags and control data, both in memory of the kernel.
pub struct Outgoing<'a> {
    pub(super) ptr: NonNull<bindings::msghdr>,
    pub(super) call: PhantomData<&'a mut ()>,
}

impl Outgoing<'_> {
    /// Flags of the call (`MSG_DONTWAIT` …).
    #[inline]
    pub fn flags(&self) -> u32 {
        // SAFETY: valid while `self` exists, and used by this thread only.
        unsafe { self.ptr.as_ref() }.msg_flags
    }
}

/// Memory for a message to receive, and for control data, which may be the user's: so it is another
/// type than [`Outgoing`].
pub struct Incoming<'a> {
    pub(super) ptr: NonNull<bindings::msghdr>,
    pub(super) call: PhantomData<&'a mut ()>,
}

/// An option that is set: not of `SOL_SOCKET`, which never comes here.
pub struct SetOption<'a> {
    pub(super) level: c_int,
    pub(super) name: c_int,
    pub(super) value: bindings::sockptr_t,
    pub(super) len: c_uint,
    pub(super) call: PhantomData<&'a ()>,
}

impl SetOption<'_> {
    /// Level (`SOL_TCP` …).
    #[inline]
    pub fn level(&self) -> i32 {
        self.level
    }

    /// Number within the level.
    #[inline]
    pub fn name(&self) -> i32 {
        self.name
    }

    /// Fills `value` from the beginning of the option's. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is shorter. `EFAULT`: no memory of the caller.
    pub fn read(&self, value: &mut [u8]) -> Result {
        if value.len() > self.len as usize {
            return Err(EINVAL);
        }
        // SAFETY: the option's value is the caller's, at least as long; `value` is borrowed.
        to_result(unsafe {
            bindings::extoll_option_read(self.value, 0, value.as_mut_ptr().cast(), value.len())
        })
    }
}

/// An option that is asked for: not of `SOL_SOCKET`, which never comes here.
pub struct GetOption<'a> {
    pub(super) level: c_int,
    pub(super) name: c_int,
    pub(super) value: *mut c_char,
    pub(super) len: *mut c_int,
    pub(super) call: PhantomData<&'a ()>,
}

impl GetOption<'_> {
    /// Level (`SOL_TCP` …).
    #[inline]
    pub fn level(&self) -> i32 {
        self.level
    }

    /// Number within the level.
    #[inline]
    pub fn name(&self) -> i32 {
        self.name
    }

    /// Answers with as much of `bytes` as the caller has room for, and how much that is. May sleep.
    ///
    /// # Errors
    ///
    /// `EFAULT`: no memory of the caller. `EINVAL`: its length is negative.
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

/// A pipe that received data go to.
pub struct Splice<'a> {
    pub(super) pos: *mut bindings::loff_t,
    pub(super) pipe: *mut bindings::pipe_inode_info,
    pub(super) flags: c_uint,
    pub(super) call: PhantomData<&'a mut ()>,
}

/// A length or number that C returned, or an error.
fn number(ret: c_int) -> Result<usize> {
    to_result(ret)?;
    Ok(ret as usize)
}

/// TCP's operations on the file's socket. Process context, all may sleep unless they say otherwise;
/// errors are those that the system calls of a TCP socket give.
///
/// # Invariants
///
/// The socket is valid, has a sock of TCP (but for a child that was not accepted, on which no
/// operation runs), and its operations are those of this module.
#[repr(transparent)]
pub struct Tcp(Opaque<bindings::socket>);

// SAFETY: operations on a socket may be called by several threads at a time; TCP has locks for what
// they share.
unsafe impl Sync for Tcp {}

impl Tcp {
    /// # Safety
    ///
    /// `raw` must be as in the invariants of the type for `'a`.
    #[inline]
    pub(super) unsafe fn from_raw<'a>(raw: *mut bindings::socket) -> &'a Self {
        // SAFETY: by the requirements; the type is transparent.
        unsafe { &*raw.cast() }
    }

    #[inline]
    pub(in crate::net) fn as_raw(&self) -> *mut bindings::socket {
        self.0.get()
    }

    /// Its sock.
    #[inline]
    pub(super) fn sk(&self) -> *mut bindings::sock {
        // SAFETY: the socket is valid by the invariants, and its sock does not change.
        unsafe { (*self.as_raw()).sk }
    }

    /// State of the connection, which may change at once. Any context.
    #[inline]
    pub fn state(&self) -> State {
        // SAFETY: the sock is valid by the invariants.
        State::from_raw(unsafe { bindings::extoll_sock_state(self.sk()) } as u32)
    }

    /// Whether the next `connect` may begin a connection: there is none, or the program has heard of
    /// its end. Any context.
    pub fn is_unconnected(&self) -> bool {
        // SAFETY: the socket is valid by the invariants.
        unsafe { bindings::extoll_sock_unconnected(self.as_raw()) }
    }

    /// Of a connection that a `connect` without waiting has begun: the program knows that it is
    /// there, as after a `shutdown` of TCP. Takes the sock's lock, may sleep.
    pub fn mark_connected(&self) {
        // SAFETY: the socket is valid by the invariants.
        unsafe { bindings::extoll_sock_mark_connected(self.as_raw()) }
    }

    /// Ends the connection as a reset of the peer does, to which one is sent; the pending error stays
    /// what it is. Takes the sock's lock, may sleep.
    pub fn end(&self) {
        // SAFETY: the sock is valid by the invariants.
        unsafe { bindings::extoll_tcp_end(self.sk()) }
    }

    /// Gives the socket a local address.
    #[inline]
    pub fn bind(&self, addr: &Addr<'_>) -> Result {
        // SAFETY: by the invariants; the address is the caller's.
        to_result(unsafe { bindings::extoll_tcp_bind(self.as_raw(), addr.ptr, addr.len) })
    }

    /// Connects, or disconnects for an address of `AF_UNSPEC`. Waits unless `flags` has
    /// `O_NONBLOCK`.
    #[inline]
    pub fn connect(&self, addr: &Addr<'_>, flags: i32) -> Result {
        // SAFETY: as in `bind`.
        to_result(unsafe { bindings::extoll_tcp_connect(self.as_raw(), addr.ptr, addr.len, flags) })
    }

    /// What is ready, by the bits of `poll(2)`, after the caller was put on the wait queue. Doesn't
    /// sleep.
    #[inline]
    pub fn poll(&self, table: PollTable<'_>) -> u32 {
        // SAFETY: by the invariants; file and table are valid.
        unsafe { bindings::extoll_tcp_poll(table.file, self.as_raw(), table.ptr) }
    }

    /// Puts the caller of `poll` on the wait queue, for who says himself what is ready: to be
    /// looked at **after** this, which has the barrier that goes with [`Endpoint::wake`]. Doesn't
    /// sleep.
    ///
    /// [`Endpoint::wake`]: super::Endpoint::wake
    #[inline]
    pub fn poll_wait(&self, table: &PollTable<'_>) {
        // SAFETY: by the invariants; file and table are valid, and the queue is the file's, which only
        // its own operation has.
        unsafe { bindings::extoll_sock_poll_wait(table.file, self.as_raw(), table.ptr) }
    }

    /// What is ready for TCP, without putting anybody on the wait queue: to be combined with what a
    /// data path has, after [`Tcp::poll_wait`]. Doesn't sleep.
    #[inline]
    pub fn poll_now(&self, table: &PollTable<'_>) -> u32 {
        // SAFETY: by the invariants; the file is valid, and no table is asked for.
        unsafe { bindings::extoll_tcp_poll(table.file, self.as_raw(), ptr::null_mut()) }
    }

    /// An ioctl.
    #[inline]
    pub fn ioctl(&self, command: u32, arg: usize) -> Result<usize> {
        // SAFETY: by the invariants.
        number(unsafe { bindings::extoll_tcp_ioctl(self.as_raw(), command, arg as ffi::c_ulong) })
    }

    /// Begins to accept connections.
    #[inline]
    pub fn listen(&self, backlog: i32) -> Result {
        // SAFETY: by the invariants.
        to_result(unsafe { bindings::extoll_tcp_listen(self.as_raw(), backlog) })
    }

    /// Ends one or both directions.
    #[inline]
    pub fn shutdown(&self, how: i32) -> Result {
        // SAFETY: by the invariants.
        to_result(unsafe { bindings::extoll_tcp_shutdown(self.as_raw(), how) })
    }

    /// Sets an option.
    ///
    /// # Errors
    ///
    /// Beyond TCP's: `ENOENT` for `TCP_ULP`, `ENOPROTOOPT` for `IPV6_ADDRFORM`, since both replace
    /// the operations.
    #[inline]
    pub fn setsockopt(&self, option: &SetOption<'_>) -> Result {
        let SetOption {
            level, name, len, ..
        } = *option;
        // SAFETY: by the invariants; value and length are the caller's.
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
        // SAFETY: by the invariants; value and length are the caller's.
        to_result(unsafe {
            bindings::extoll_tcp_getsockopt(self.as_raw(), level, name, value.cast(), len.cast())
        })
    }

    /// Sends, as much as it returns.
    #[inline]
    pub fn sendmsg(&self, msg: &mut Outgoing<'_>, len: usize) -> Result<usize> {
        // SAFETY: by the invariants; the message is the caller's.
        number(unsafe { bindings::extoll_tcp_sendmsg(self.as_raw(), msg.ptr.as_ptr(), len) })
    }

    /// Receives, as much as it returns.
    #[inline]
    pub fn recvmsg(&self, msg: &mut Incoming<'_>, len: usize, flags: i32) -> Result<usize> {
        let msg = msg.ptr.as_ptr();
        // SAFETY: by the invariants; the message is the caller's.
        number(unsafe { bindings::extoll_tcp_recvmsg(self.as_raw(), msg, len, flags) })
    }

    /// Moves received data to a pipe, as much as it returns.
    #[inline]
    pub fn splice_read(&self, to: &mut Splice<'_>, len: usize) -> Result<usize> {
        // SAFETY: by the invariants; position and pipe are the caller's.
        let n = unsafe {
            bindings::extoll_tcp_splice_read(self.as_raw(), to.pos, to.pipe, len, to.flags)
        };
        usize::try_from(n).map_err(|_| Error::from_errno(n as c_int))
    }
}

/// What has gone past TCP on a connection.
#[derive(Clone, Copy, Debug)]
pub struct Past {
    /// State of the connection.
    pub state: State,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes of these that the peer has.
    pub acknowledged: u64,
    /// Bytes received, read or not.
    pub received: u64,
    /// Bytes that wait to be sent.
    pub unsent: u32,
    /// Bytes that were sent and not acknowledged.
    pub unacknowledged: u32,
}

impl Tcp {
    /// Answers `TCP_INFO`: with what TCP has counted, to which is added what has gone past it.
    /// Takes the sock's lock, may sleep.
    ///
    /// # Errors
    ///
    /// Those of [`GetOption::answer`].
    pub fn answer_info(&self, option: &mut GetOption<'_>, past: &Past) -> Result {
        let raw = bindings::extoll_tcp_past {
            sent: past.sent,
            acked: past.acknowledged,
            received: past.received,
            unsent: past.unsent,
            unacked: past.unacknowledged,
            state: past.state.raw(),
        };
        // More than it has in any kernel so far.
        let mut info = [0u8; 512];
        // SAFETY: the sock is valid by the invariants; as many bytes are written as there are.
        let len = unsafe {
            bindings::extoll_tcp_info(self.sk(), &raw, info.as_mut_ptr().cast(), info.len())
        };
        option.answer(info.get(..len).ok_or(EINVAL)?)
    }

    /// `splice()` has nothing more for a pipe or file that it sends from.
    pub fn splice_eof(&self) {
        // SAFETY: by the invariants.
        unsafe { bindings::extoll_tcp_splice_eof(self.as_raw()) }
    }
}

/// A caller's table of wait queues, valid or null, and the socket's file.
pub struct PollTable<'a> {
    pub(super) file: *mut bindings::file,
    pub(super) ptr: *mut bindings::poll_table_struct,
    pub(super) call: PhantomData<&'a ()>,
}
