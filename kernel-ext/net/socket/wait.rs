// SPDX-License-Identifier: GPL-2.0-only

//! Waiting at a socket, as TCP's operations do.

use super::Tcp;
use crate::bindings;
use kernel::{
    prelude::*,
    task::{MAX_SCHEDULE_TIMEOUT, TASK_INTERRUPTIBLE},
    time::Jiffies,
    types::Opaque,
};

/// For how long an operation waits in all: it may wait several times. Made by [`Tcp::receiving`],
/// [`Tcp::sending`] and [`Tcp::at_most`].
///
/// Whoever waits has a place in the wait queue of the socket's file: everything that wakes that one
/// ([`Endpoint::wake`](super::Endpoint::wake), and TCP with what happens to its connection) has the
/// condition looked at again. Signals end it at once, fatal ones included, as all waits of TCP.
///
/// Neither waiting nor waking takes the sock's lock (`lock_sock`), and **none may be held**: it
/// would keep TCP from doing anything meanwhile. What the condition reads is behind locks or
/// atomics of the data path; whoever changes it wakes afterwards.
pub struct Waiting<'a> {
    tcp: &'a Tcp,
    /// In jiffies, never negative.
    left: c_long,
}

/// A place in the wait queue.
///
/// # Invariants
///
/// The entry is in the queue of the socket, and stays where it is.
struct Queued<'a> {
    tcp: &'a Tcp,
    entry: &'a Opaque<bindings::wait_queue_entry>,
}

impl<'a> Queued<'a> {
    /// # Safety
    ///
    /// The result is dropped before the entry goes, by the thread that calls this.
    unsafe fn new(tcp: &'a Tcp, entry: &'a Opaque<bindings::wait_queue_entry>) -> Self {
        // SAFETY: the socket is valid while an operation runs, and so is its queue. INVARIANT: put
        // there now.
        unsafe { bindings::extoll_sock_wait_begin(tcp.as_raw(), entry.get()) };
        Self { tcp, entry }
    }

    /// Sleeps until it is woken, or has been since the last call: what is left of `most`.
    fn sleep(&self, most: c_long) -> c_long {
        // SAFETY: by the invariants; of this thread.
        unsafe { bindings::wait_woken(self.entry.get(), TASK_INTERRUPTIBLE as c_uint, most) }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        // SAFETY: by the invariants.
        unsafe { bindings::extoll_sock_wait_end(self.tcp.as_raw(), self.entry.get()) }
    }
}

impl Tcp {
    /// How long an operation that receives waits: not at all with `nonblock` (`MSG_DONTWAIT`), else
    /// as `SO_RCVTIMEO` says.
    pub fn receiving(&self, nonblock: bool) -> Waiting<'_> {
        self.waiting(false, nonblock)
    }

    /// How long an operation that sends or connects waits: not at all with `nonblock`, else as
    /// `SO_SNDTIMEO` says.
    pub fn sending(&self, nonblock: bool) -> Waiting<'_> {
        self.waiting(true, nonblock)
    }

    /// How long who waits for data looks for it himself before he sleeps, in microseconds: by
    /// `SO_BUSY_POLL`, or `net.core.busy_read` when the socket was made.
    pub fn busy_poll(&self) -> u32 {
        // SAFETY: the sock is valid by the invariants.
        unsafe { bindings::extoll_sock_busy_poll(self.sk()) }
    }

    /// At most so many jiffies, whatever the options say ([`Linger::Wait`](super::Linger::Wait)).
    pub fn at_most(&self, jiffies: Jiffies) -> Waiting<'_> {
        Waiting {
            tcp: self,
            left: c_long::try_from(jiffies).unwrap_or(MAX_SCHEDULE_TIMEOUT),
        }
    }

    fn waiting(&self, send: bool, nonblock: bool) -> Waiting<'_> {
        // SAFETY: the sock is valid by the invariants.
        let left = unsafe { bindings::extoll_sock_timeout(self.sk(), send, nonblock) };
        Waiting {
            tcp: self,
            left: left.max(0),
        }
    }
}

impl Waiting<'_> {
    /// Jiffies that are left.
    pub fn left(&self) -> Jiffies {
        Jiffies::try_from(self.left).unwrap_or(0)
    }

    /// Whether there is no time to wait (any more).
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Waits until `ready` has something. It is called at once, and then whenever the socket is
    /// woken, in process context, without locks, and may sleep. Must not be called with the sock's
    /// lock or a spin lock held.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: the time is over, or there was none. `ERESTARTSYS`, or `EINTR` if there is a
    /// time-out: a signal, as TCP says it.
    pub fn until<R>(&mut self, ready: impl FnMut() -> Option<R>) -> Result<R> {
        self.wait(false, ready)
    }

    /// As [`Waiting::until`] for a caller who has just looked in vain: it waits in the queue when
    /// `ready` is called first, unless there is no time to wait.
    ///
    /// # Errors
    ///
    /// Those of [`Waiting::until`].
    pub fn until_news<R>(&mut self, ready: impl FnMut() -> Option<R>) -> Result<R> {
        self.wait(true, ready)
    }

    fn wait<R>(&mut self, looked: bool, mut ready: impl FnMut() -> Option<R>) -> Result<R> {
        if !looked || self.left == 0 {
            if let Some(found) = ready() {
                return Ok(found);
            }
        }
        let entry = Opaque::uninit();
        // SAFETY: a local that is dropped before the entry, which was declared before it.
        let queued = unsafe { Queued::new(self.tcp, &entry) };
        loop {
            if let Some(found) = ready() {
                return Ok(found);
            }
            if self.left == 0 {
                return Err(EAGAIN);
            }
            if kernel::current!().signal_pending() {
                return Err(self.interrupted());
            }
            let slept = self.left - queued.sleep(self.left).clamp(0, self.left);
            if self.left != MAX_SCHEDULE_TIMEOUT {
                self.left -= slept;
            }
        }
    }

    /// What a signal makes of the call (`sock_intr_errno()`).
    fn interrupted(&self) -> Error {
        match self.left {
            left if left == MAX_SCHEDULE_TIMEOUT => ERESTARTSYS,
            _ => EINTR,
        }
    }
}
