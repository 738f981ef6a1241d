// SPDX-License-Identifier: GPL-2.0-only

//! The sock as data paths use it: who waits is woken, the error that is pending, options.

use super::{Endpoint, Tcp};
use crate::bindings;
use kernel::{prelude::*, time::Jiffies};

/// What has happened to a socket, for those who wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// There is something to read: data, or the end of them.
    Readable,
    /// There is room to write. `SIGIO` only if somebody was told that there was none
    /// ([`Tcp::no_space`]).
    Writable,
    /// An error is pending.
    Error,
    /// It is connected.
    Connected,
    /// The peer has finished.
    Finished,
    /// Both directions have ended.
    HungUp,
}

/// Directions of a connection that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ended {
    /// Nothing more is received.
    pub receiving: bool,
    /// Nothing more is sent.
    pub sending: bool,
}

impl Ended {
    /// Whether one has.
    pub fn any(self) -> bool {
        self.receiving || self.sending
    }

    /// As the sock has them.
    fn bits(self) -> u32 {
        u32::from(self.receiving) | u32::from(self.sending) << 1
    }
}

/// `SO_LINGER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linger {
    /// Not set: a close returns at once, and what was written is still sent.
    Background,
    /// Time 0: a close aborts the connection.
    Abort,
    /// A close waits for so long until all was acknowledged.
    Wait(Jiffies),
}

/// What TCP has received that nobody has read, and whether its peer has finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queued {
    /// Bytes.
    pub unread: u32,
    /// A FIN came.
    pub finished: bool,
}

/// All of this is allowed in any context but that of a non-maskable interrupt, hard interrupts and
/// under spin locks included, unless it says otherwise; and also after the socket was released,
/// when nobody is woken and the rest is of no consequence. Locks of the caller may be held: what wakes
/// calls nothing of the socket's, neither [`Operations::poll`](super::Operations::poll) nor a condition
/// of [`Waiting`](super::Waiting).
impl Endpoint {
    /// Wakes who waits: in calls, `poll`, `epoll`, io_uring, and by `SIGIO`. After the change that
    /// it tells of is visible to others: it has the barrier that makes those who begin to wait now
    /// see it.
    ///
    /// Functions that other parts of the kernel may have put into the sock (`sk_data_ready` …) are
    /// not called: they want a softirq, and look for data in TCP's queues, where there are none.
    pub fn wake(&self, what: Wake) {
        let what = match what {
            Wake::Readable => bindings::EXTOLL_WAKE_READABLE,
            Wake::Writable => bindings::EXTOLL_WAKE_WRITABLE,
            Wake::Error => bindings::EXTOLL_WAKE_ERROR,
            Wake::Connected => bindings::EXTOLL_WAKE_CONNECTED,
            Wake::Finished => bindings::EXTOLL_WAKE_FINISHED,
            Wake::HungUp => bindings::EXTOLL_WAKE_HUNG_UP,
        };
        // SAFETY: valid by the invariants. The wait queue belongs to the socket, which is freed a
        // grace period after it was taken from the sock; the function reads it under RCU, and does
        // nothing if it is gone.
        unsafe { bindings::extoll_sock_wake(self.as_raw(), what) }
    }

    /// Sets the pending error (`SO_ERROR`) unless there is one, and wakes. The next call that asks
    /// has it: [`Tcp::take_error`], an operation of TCP, `getsockopt`.
    pub fn fail(&self, error: Error) {
        // SAFETY: valid by the invariants; an atomic access, as all others who take it.
        unsafe { bindings::extoll_sock_set_error(self.as_raw(), -error.to_errno()) };
        self.wake(Wake::Error);
    }

    /// The pending error, which stays.
    pub fn error(&self) -> Option<Error> {
        // SAFETY: valid by the invariants.
        match unsafe { bindings::extoll_sock_error(self.as_raw()) } {
            0 => None,
            error => Some(Error::from_errno(-error)),
        }
    }

    /// The pending error, once.
    ///
    /// # Errors
    ///
    /// That error.
    pub fn take_error(&self) -> Result {
        // SAFETY: valid by the invariants.
        kernel::error::to_result(unsafe { bindings::extoll_sock_take_error(self.as_raw()) })
    }

    /// Whether an error is pending, or something is in the error queue.
    pub fn has_error(&self) -> bool {
        // SAFETY: valid by the invariants.
        unsafe { bindings::extoll_sock_has_error(self.as_raw()) }
    }

    /// What `shutdown()` does to a connection of TCP, also when the socket is in no operation;
    /// nothing, without a connection. False, and nothing happens, while an operation has the sock's
    /// lock, which may be for ever. Process context, may sleep for memory.
    pub fn try_shutdown(&self, ended: Ended) -> bool {
        // SAFETY: valid by the invariants; process context.
        unsafe { bindings::extoll_sock_try_shutdown(self.as_raw(), ended.bits()) }
    }

    /// `TCP_USER_TIMEOUT` in ms, if it is set.
    pub fn user_timeout(&self) -> Option<u32> {
        // SAFETY: valid by the invariants.
        match unsafe { bindings::extoll_sock_user_timeout(self.as_raw()) } {
            0 => None,
            ms => Some(ms),
        }
    }

    /// What TCP has received: of a moment; more may come at once, and a FIN may count as a byte until
    /// it is one. TCP wakes those who wait at the
    /// socket when it does.
    pub fn queued(&self) -> Queued {
        let mut raw = bindings::extoll_sock_inq::default();
        // SAFETY: valid by the invariants; `raw` is written.
        unsafe { bindings::extoll_sock_inq(self.as_raw(), &mut raw) };
        Queued {
            unread: raw.unread,
            finished: raw.finished,
        }
    }

    /// What TCP has received, if it holds: TCP does nothing with the socket at this time, so that no
    /// FIN counts as a byte. `None` if somebody has the sock's lock: to be asked again, then. Process
    /// context, not with the sock's lock.
    pub fn queued_settled(&self) -> Option<Queued> {
        let mut raw = bindings::extoll_sock_inq::default();
        // SAFETY: valid by the invariants; `raw` is written.
        let settled = unsafe { bindings::extoll_sock_inq_settled(self.as_raw(), &mut raw) };
        settled.then_some(Queued {
            unread: raw.unread,
            finished: raw.finished,
        })
    }

    /// Directions that have ended for TCP: by a FIN or RST of the peer, `shutdown()` or
    /// [`Tcp::mark_ended`].
    pub fn ended(&self) -> Ended {
        // SAFETY: valid by the invariants.
        let bits = unsafe { bindings::extoll_sock_ended(self.as_raw()) };
        Ended {
            receiving: bits & 1 != 0,
            sending: bits & 2 != 0,
        }
    }
}

/// These need a running operation, as all of [`Tcp`].
impl Tcp {
    /// A reference to the sock that may be kept, and used to wake, as long as one likes. Any
    /// context.
    pub fn endpoint(&self) -> Result<Endpoint> {
        Endpoint::new(self).ok_or(ENOTCONN)
    }

    /// The pending error, once. Any context.
    ///
    /// # Errors
    ///
    /// That error.
    pub fn take_error(&self) -> Result {
        // SAFETY: the sock is valid by the invariants.
        kernel::error::to_result(unsafe { bindings::extoll_sock_take_error(self.sk()) })
    }

    /// Notes that directions have ended, in the sock only: TCP sends nothing, and its state stays,
    /// by which it decides about a FIN. Its `recvmsg` returns 0 then, its `sendmsg` `EPIPE`, and
    /// its `poll` says so; `ss` shows it. There is no way back but the end of the connection, so it
    /// is not for connections that may still fall back. Takes the sock's lock, may sleep.
    ///
    /// A data path that ends a direction in a softirq can't do this there, and keeps what has ended
    /// in its own state in any case.
    pub fn mark_ended(&self, ended: Ended) {
        // SAFETY: the sock is valid by the invariants; process context.
        unsafe { bindings::extoll_sock_mark_ended(self.sk(), ended.bits()) }
    }

    /// How many bytes there have to be before a call for `len` of them returns: `SO_RCVLOWAT`, at
    /// most `len`, with `all` (`MSG_WAITALL`) `len`; at least 1. Any context.
    pub fn rcvlowat(&self, all: bool, len: usize) -> usize {
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        // SAFETY: the sock is valid by the invariants.
        let n = unsafe { bindings::extoll_sock_rcvlowat(self.sk(), all, len) };
        usize::try_from(n).unwrap_or(1)
    }

    /// `SO_LINGER`. Any context. A process that exits does not wait, whatever this says: see
    /// [`is_exiting`].
    pub fn linger(&self) -> Linger {
        // SAFETY: the sock is valid by the invariants.
        match unsafe { bindings::extoll_sock_linger(self.sk()) } {
            0 => Linger::Abort,
            n if n > 0 => Linger::Wait(n as Jiffies),
            _ => Linger::Background,
        }
    }

    /// So many jiffies are left of [`Linger::Wait`] for TCP, which waits when its part is closed. For
    /// the last operation on the socket.
    pub fn lingered(&self, left: Jiffies) {
        let left = c_long::try_from(left).unwrap_or(c_long::MAX);
        // SAFETY: the sock is valid by the invariants.
        unsafe { bindings::extoll_sock_lingered(self.sk(), left) }
    }

    /// Where a receiver that peeks (`MSG_PEEK`) begins, in bytes behind what was read; `None` if
    /// `SO_PEEK_OFF` is not set, when it begins at 0 each time. Any context.
    pub fn peek_offset(&self) -> Option<usize> {
        // SAFETY: the sock is valid by the invariants.
        usize::try_from(unsafe { bindings::extoll_sock_peek_offset(self.sk()) }).ok()
    }

    /// Moves that place, after so many bytes were peeked, or read. Any context.
    pub fn peeked(&self, bytes: usize, peek: bool) {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the sock is valid by the invariants.
        unsafe { bindings::extoll_sock_peeked(self.sk(), bytes, peek) }
    }

    /// What a call that sends returns for an error: for `EPIPE` the pending error, if there is one,
    /// else also a `SIGPIPE`, unless `flags` have `MSG_NOSIGNAL`. Process context.
    pub fn sending_failed(&self, flags: u32, error: Error) -> Error {
        // SAFETY: the sock is valid by the invariants.
        let e = unsafe { bindings::sk_stream_error(self.sk(), flags as c_int, error.to_errno()) };
        Error::from_errno(e)
    }

    /// Whether `TCP_CORK` is set: what is sent waits for more. Any context.
    pub fn is_corked(&self) -> bool {
        // SAFETY: the sock is valid by the invariants.
        unsafe { bindings::extoll_sock_corked(self.sk()) }
    }

    /// Whether the file is non-blocking (`O_NONBLOCK`); `recvmsg` and `sendmsg` have that in their
    /// flags, too. Any context.
    pub fn is_nonblocking(&self) -> bool {
        // SAFETY: the socket is valid by the invariants, and its file while an operation runs.
        unsafe { bindings::extoll_sock_nonblocking(self.as_raw()) }
    }

    /// To be called when `poll` or a sender is about to say that there is no room, which has to be
    /// looked at **once more after this**: makes [`Wake::Writable`] send a `SIGIO`. A full barrier.
    /// Any context.
    pub fn no_space(&self) {
        // SAFETY: the sock is valid by the invariants, and has its wait queue while an operation
        // runs.
        unsafe { bindings::extoll_sock_no_space(self.sk()) }
    }
}

/// Whether the calling process exits: its sockets are closed without lingering.
pub fn is_exiting() -> bool {
    // SAFETY: process context.
    unsafe { bindings::extoll_exiting() }
}
