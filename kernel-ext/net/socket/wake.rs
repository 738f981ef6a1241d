// SPDX-License-Identifier: GPL-2.0-only

//! Functions of the sock for data paths: waking waiting tasks, the pending error, options.

use super::{Endpoint, Tcp};
use crate::bindings;
use kernel::{prelude::*, time::Jiffies};

/// Event of a socket, for waiting tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Data, or their end, can be read.
    Readable,
    /// Data can be written. Sends `SIGIO` only if a writer found no free space before
    /// ([`Tcp::no_space`]).
    Writable,
    /// An error is pending.
    Error,
    /// The connection is established.
    Connected,
    /// The peer has finished sending.
    Finished,
    /// Sending and receiving are shut down.
    HungUp,
}

/// Directions of a connection that are shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShutdownDirections {
    /// No more data are received.
    pub receiving: bool,
    /// No more data are sent.
    pub sending: bool,
}

impl ShutdownDirections {
    /// Returns true if at least one direction is shut down.
    pub fn any(self) -> bool {
        self.receiving || self.sending
    }

    /// Returns the kernel's bits (`RCV_SHUTDOWN`, `SEND_SHUTDOWN`).
    fn bits(self) -> u32 {
        u32::from(self.receiving) | u32::from(self.sending) << 1
    }
}

/// `SO_LINGER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linger {
    /// `SO_LINGER` is not set: a close returns at once, and written data are still sent.
    Background,
    /// The time is 0: a close aborts the connection.
    Abort,
    /// A close waits up to this time until all data are acknowledged.
    Wait(Jiffies),
}

/// Data that TCP has received and the program has not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queued {
    /// Number of unread bytes.
    pub unread: u32,
    /// True if a FIN has arrived.
    pub finished: bool,
}

/// Unless documented differently, functions may be called in any context except a non-maskable
/// interrupt, also in hard interrupts and with spin locks held. The functions may also be called
/// after the socket was released; then no task is woken and other effects are irrelevant. The
/// caller may hold locks, because waking calls neither
/// [`Operations::poll`](super::Operations::poll) nor a condition of [`Waiting`](super::Waiting).
impl Endpoint {
    /// Wakes waiting tasks: in calls, `poll`, `epoll`, io_uring, and by `SIGIO`. Must be called
    /// after the change that it reports. The barrier in this function ensures that tasks that begin
    /// to wait now see the change.
    ///
    /// Callbacks that other parts of the kernel may have set in the sock (`sk_data_ready` …) are
    /// not called, because they need a softirq and check only TCP's queues for data.
    pub fn wake(&self, what: Wake) {
        let what = match what {
            Wake::Readable => bindings::EXTOLL_WAKE_READABLE,
            Wake::Writable => bindings::EXTOLL_WAKE_WRITABLE,
            Wake::Error => bindings::EXTOLL_WAKE_ERROR,
            Wake::Connected => bindings::EXTOLL_WAKE_CONNECTED,
            Wake::Finished => bindings::EXTOLL_WAKE_FINISHED,
            Wake::HungUp => bindings::EXTOLL_WAKE_HUNG_UP,
        };
        // SAFETY: the sock is valid by the type invariant. The wait queue belongs to the socket,
        // which is freed a grace period after it was detached from the sock. The function reads the
        // pointer under RCU, and does nothing if it is null.
        unsafe { bindings::extoll_sock_wake(self.as_raw(), what) }
    }

    /// Sets the pending error (`SO_ERROR`) unless an error is pending, and wakes waiting tasks. The
    /// next caller of [`Tcp::take_error`], of an operation of TCP, or of `getsockopt` gets the
    /// error.
    pub fn fail(&self, error: Error) {
        // SAFETY: the sock is valid by the type invariant. All accesses to this field are atomic.
        unsafe { bindings::extoll_sock_set_error(self.as_raw(), -error.to_errno()) };
        self.wake(Wake::Error);
    }

    /// Returns the pending error without clearing it.
    pub fn error(&self) -> Option<Error> {
        // SAFETY: the sock is valid by the type invariant.
        match unsafe { bindings::extoll_sock_error(self.as_raw()) } {
            0 => None,
            error => Some(Error::from_errno(-error)),
        }
    }

    /// Returns and clears the pending error.
    ///
    /// # Errors
    ///
    /// Returns the pending error.
    pub fn take_error(&self) -> Result {
        // SAFETY: the sock is valid by the type invariant.
        kernel::error::to_result(unsafe { bindings::extoll_sock_take_error(self.as_raw()) })
    }

    /// Returns true if an error is pending, or if the error queue is not empty.
    pub fn has_error(&self) -> bool {
        // SAFETY: the sock is valid by the type invariant.
        unsafe { bindings::extoll_sock_has_error(self.as_raw()) }
    }

    /// Does what `shutdown()` does to a TCP connection, even if the socket has been released. A
    /// sock without a connection is ignored. Returns false without an effect if an operation holds
    /// the sock's lock, possibly for ever. Process context, may sleep for memory.
    pub fn try_shutdown(&self, ended: ShutdownDirections) -> bool {
        // SAFETY: the sock is valid by the type invariant; the caller is in process context.
        unsafe { bindings::extoll_sock_try_shutdown(self.as_raw(), ended.bits()) }
    }

    /// Returns `TCP_USER_TIMEOUT` in ms, if it is set.
    pub fn user_timeout(&self) -> Option<u32> {
        // SAFETY: the sock is valid by the type invariant.
        match unsafe { bindings::extoll_sock_user_timeout(self.as_raw()) } {
            0 => None,
            ms => Some(ms),
        }
    }

    /// Returns the data that TCP has received at this moment. More may arrive at any time. A FIN
    /// may be counted as a byte until TCP has processed it completely; then TCP wakes waiting
    /// tasks.
    pub fn queued(&self) -> Queued {
        let mut raw = bindings::extoll_sock_inq::default();
        // SAFETY: the sock is valid by the type invariant; the function writes `raw`.
        unsafe { bindings::extoll_sock_inq(self.as_raw(), &mut raw) };
        Queued {
            unread: raw.unread,
            finished: raw.finished,
        }
    }

    /// Returns the data that TCP has received, at a moment when TCP does not process the sock, so a
    /// FIN is not counted as a byte. Returns `None` if the sock's lock is held; then the caller
    /// must call again. Process context, without the sock's lock.
    pub fn queued_settled(&self) -> Option<Queued> {
        let mut raw = bindings::extoll_sock_inq::default();
        // SAFETY: the sock is valid by the type invariant; the function writes `raw`.
        let settled = unsafe { bindings::extoll_sock_inq_settled(self.as_raw(), &mut raw) };
        settled.then_some(Queued {
            unread: raw.unread,
            finished: raw.finished,
        })
    }
}

/// Functions that only a running operation may call, like all functions of [`Tcp`].
impl Tcp {
    /// Returns a reference to the sock, which wakes waiting tasks and may be kept without a time
    /// limit. Any context.
    pub fn endpoint(&self) -> Result<Endpoint> {
        Endpoint::new(self).ok_or(ENOTCONN)
    }

    /// Returns and clears the pending error. Any context.
    ///
    /// # Errors
    ///
    /// Returns the pending error.
    pub fn take_error(&self) -> Result {
        // SAFETY: the sock is valid by the type invariant.
        kernel::error::to_result(unsafe { bindings::extoll_sock_take_error(self.sk()) })
    }

    /// Returns the number of bytes that must be available before a call for `len` bytes returns:
    /// `SO_RCVLOWAT` limited to `len`, or `len` with `all` (`MSG_WAITALL`); at least 1. Any
    /// context.
    pub fn rcvlowat(&self, all: bool, len: usize) -> usize {
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        // SAFETY: the sock is valid by the type invariant.
        let n = unsafe { bindings::extoll_sock_rcvlowat(self.sk(), all, len) };
        usize::try_from(n).unwrap_or(1)
    }

    /// Returns `SO_LINGER`. Any context. A process that exits does not linger: see [`is_exiting`].
    pub fn linger(&self) -> Linger {
        // SAFETY: the sock is valid by the type invariant.
        match unsafe { bindings::extoll_sock_linger(self.sk()) } {
            0 => Linger::Abort,
            n if n > 0 => Linger::Wait(n as Jiffies),
            _ => Linger::Background,
        }
    }

    /// Sets the remaining time of [`Linger::Wait`], in jiffies. TCP waits for that time when TCP's
    /// connection is closed. Only the last operation on the socket may call this function.
    pub fn lingered(&self, left: Jiffies) {
        let left = c_long::try_from(left).unwrap_or(c_long::MAX);
        // SAFETY: the sock is valid by the type invariant.
        unsafe { bindings::extoll_sock_lingered(self.sk(), left) }
    }

    /// Returns the offset in bytes from the read position at which `MSG_PEEK` begins. Returns
    /// `None` if `SO_PEEK_OFF` is not set; then each peek begins at 0. Any context.
    pub fn peek_offset(&self) -> Option<usize> {
        // SAFETY: the sock is valid by the type invariant.
        usize::try_from(unsafe { bindings::extoll_sock_peek_offset(self.sk()) }).ok()
    }

    /// Moves the peek offset after `bytes` bytes were peeked (`peek`) or read. Any context.
    pub fn peeked(&self, bytes: usize, peek: bool) {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the sock is valid by the type invariant.
        unsafe { bindings::extoll_sock_peeked(self.sk(), bytes, peek) }
    }

    /// Converts the error of a send call as TCP does. Replaces `EPIPE` by the pending error.
    /// Without a pending error, `EPIPE` also sends `SIGPIPE`, unless `flags` contain
    /// `MSG_NOSIGNAL`. Process context.
    pub fn sending_failed(&self, flags: u32, error: Error) -> Error {
        // SAFETY: the sock is valid by the type invariant.
        let e = unsafe { bindings::sk_stream_error(self.sk(), flags as c_int, error.to_errno()) };
        Error::from_errno(e)
    }

    /// Returns true if `TCP_CORK` is set, so that small data wait for more data. Any context.
    pub fn is_corked(&self) -> bool {
        // SAFETY: the sock is valid by the type invariant.
        unsafe { bindings::extoll_sock_corked(self.sk()) }
    }

    /// Returns true if the file is non-blocking (`O_NONBLOCK`); the flags of `recvmsg` and
    /// `sendmsg` also contain this property. Any context.
    pub fn is_nonblocking(&self) -> bool {
        // SAFETY: the socket is valid by the type invariant, and so is its file while an operation
        // runs.
        unsafe { bindings::extoll_sock_nonblocking(self.as_raw()) }
    }

    /// Requests a `SIGIO` from [`Wake::Writable`]. Called before `poll` or a sender reports that
    /// there is no free space. The caller must check for free space again **after this call**,
    /// which contains a full barrier. Any context.
    pub fn no_space(&self) {
        // SAFETY: the sock is valid by the type invariant, and has its wait queue while an
        // operation runs.
        unsafe { bindings::extoll_sock_no_space(self.sk()) }
    }
}

/// Returns true if the calling process exits. The sockets of such a process are closed without
/// lingering.
pub fn is_exiting() -> bool {
    // SAFETY: the only precondition is process context.
    unsafe { bindings::extoll_exiting() }
}
