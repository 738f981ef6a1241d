// SPDX-License-Identifier: GPL-2.0-only

//! Waiting at a socket with the semantics of TCP's operations.

use super::Tcp;
use crate::bindings;
use kernel::{
    prelude::*,
    task::{MAX_SCHEDULE_TIMEOUT, TASK_INTERRUPTIBLE},
    time::Jiffies,
    types::Opaque,
};

/// Total time that an operation may wait, in one or several waits. Made by [`Tcp::receiving`],
/// [`Tcp::sending`] and [`Tcp::timeout`].
///
/// A waiting task is in the wait queue of the socket's file.
/// [`Endpoint::wake`](super::Endpoint::wake), and TCP's events of the connection, wake that queue;
/// then the condition is checked again. A signal, also a fatal one, ends the wait at once, as in
/// all waits of TCP.
///
/// Waiting and waking do not acquire the sock's lock (`lock_sock`). The lock **must not be held**,
/// because TCP could not process the connection during the wait. Locks or atomics of the data path
/// protect the data that the condition reads. After each change of these data, the data path wakes
/// the queue.
pub struct Waiting<'a> {
    tcp: &'a Tcp,
    /// Remaining time in jiffies, at least 0.
    left: c_long,
}

/// Entry in the wait queue.
///
/// # Invariants
///
/// The entry is in the queue of the socket, and does not move.
struct Queued<'a> {
    tcp: &'a Tcp,
    entry: &'a Opaque<bindings::wait_queue_entry>,
}

impl<'a> Queued<'a> {
    /// # Safety
    ///
    /// The calling thread must drop the result before the entry.
    unsafe fn new(tcp: &'a Tcp, entry: &'a Opaque<bindings::wait_queue_entry>) -> Self {
        // SAFETY: the socket, and so its queue, is valid while an operation runs. INVARIANT: the
        // call puts the entry into the queue.
        unsafe { bindings::extoll_sock_wait_begin(tcp.as_raw(), entry.get()) };
        Self { tcp, entry }
    }

    /// Sleeps for up to `max` jiffies until the entry is woken, or returns at once if it was woken
    /// since the last call. Returns the remaining time.
    fn sleep(&self, max: c_long) -> c_long {
        // SAFETY: by the type invariant the entry is in the queue; it belongs to this thread.
        unsafe { bindings::wait_woken(self.entry.get(), TASK_INTERRUPTIBLE as c_uint, max) }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        // SAFETY: by the type invariant the entry is in the queue.
        unsafe { bindings::extoll_sock_wait_end(self.tcp.as_raw(), self.entry.get()) }
    }
}

impl Tcp {
    /// Returns the waiting time of an operation that receives: 0 with `nonblock` (`MSG_DONTWAIT`),
    /// otherwise `SO_RCVTIMEO`.
    pub fn receiving(&self, nonblock: bool) -> Waiting<'_> {
        self.waiting(false, nonblock)
    }

    /// Returns the waiting time of an operation that sends or connects: 0 with `nonblock`,
    /// otherwise `SO_SNDTIMEO`.
    pub fn sending(&self, nonblock: bool) -> Waiting<'_> {
        self.waiting(true, nonblock)
    }

    /// Returns the time in microseconds for which a receiver polls for data before it sleeps:
    /// `SO_BUSY_POLL`, or `net.core.busy_read` at the time when the socket was made.
    pub fn busy_poll(&self) -> u32 {
        // SAFETY: the sock is valid by the type invariant.
        unsafe { bindings::extoll_sock_busy_poll(self.sk()) }
    }

    /// Returns a waiting time of `jiffies`, independent of socket options
    /// ([`Linger::Wait`](super::Linger::Wait)).
    pub fn timeout(&self, jiffies: Jiffies) -> Waiting<'_> {
        Waiting {
            tcp: self,
            left: c_long::try_from(jiffies).unwrap_or(MAX_SCHEDULE_TIMEOUT),
        }
    }

    fn waiting(&self, send: bool, nonblock: bool) -> Waiting<'_> {
        // SAFETY: the sock is valid by the type invariant.
        let left = unsafe { bindings::extoll_sock_timeout(self.sk(), send, nonblock) };
        Waiting {
            tcp: self,
            left: left.max(0),
        }
    }
}

impl Waiting<'_> {
    /// Returns the remaining jiffies.
    pub fn left(&self) -> Jiffies {
        Jiffies::try_from(self.left).unwrap_or(0)
    }

    /// Returns true if no time to wait remains.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Waits until `ready` returns a value. `ready` is called at once, and then after each wake-up
    /// of the socket, in process context without locks; it may sleep. Must not be called with the
    /// sock's lock or a spin lock held.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: the time has elapsed, or was 0. `ERESTARTSYS`: a signal is pending. As in TCP, a
    /// wait with a timeout returns `EINTR` instead.
    pub fn until<R>(&mut self, ready: impl FnMut() -> Option<R>) -> Result<R> {
        self.wait(false, ready)
    }

    /// Waits like [`Waiting::until`], for a caller that has just checked the condition: the task is
    /// in the wait queue before the first call of `ready`, unless the time is 0.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Waiting::until`].
    pub fn until_next<R>(&mut self, ready: impl FnMut() -> Option<R>) -> Result<R> {
        self.wait(true, ready)
    }

    fn wait<R>(&mut self, checked: bool, mut ready: impl FnMut() -> Option<R>) -> Result<R> {
        if !checked || self.left == 0 {
            if let Some(found) = ready() {
                return Ok(found);
            }
        }
        let entry = Opaque::uninit();
        // SAFETY: `queued` is a local variable that is dropped before the entry, which was declared
        // earlier.
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

    /// Returns the error of a call that a signal interrupts (`sock_intr_errno()`).
    fn interrupted(&self) -> Error {
        match self.left {
            left if left == MAX_SCHEDULE_TIMEOUT => ERESTARTSYS,
            _ => EINTR,
        }
    }
}
