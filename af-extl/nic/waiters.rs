// SPDX-License-Identifier: GPL-2.0-only

//! Queues of connections that wait for a resource of the ports, in FIFO order.

use super::KernelMemory;
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};
use kernel_ext::{new_bh_lock, BhLock};
use protocol::ds::WaitQueue;

/// Queue of connections by their slots in the table. A slot may be empty or reused by another
/// connection when it is removed from the queue.
#[pin_data]
pub(super) struct Waiters {
    #[pin]
    queue: BhLock<WaitQueue<KernelMemory>>,
    /// Number of notifications.
    notifications: Atomic<u64>,
}

impl Waiters {
    /// Creates a queue for `slots` slots. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(slots: usize) -> Result<impl PinInit<Self>> {
        let queue = WaitQueue::new(slots)?;
        Ok(pin_init!(Self {
            queue <- new_bh_lock!(queue, "extl_line"),
            notifications: Atomic::new(0),
        }))
    }

    /// Returns the number of notifications. The caller reads this number before an attempt that may
    /// lead to [`Waiters::wait`]. Any context.
    pub(super) fn seen(&self) -> u64 {
        self.notifications.load(Relaxed)
    }

    /// Queues a connection that got no resource. Returns whether a notification arrived since
    /// `seen`, which may have found no waiter. Process context or softirq.
    pub(super) fn wait(&self, slot: u32, seen: u64) -> bool {
        let mut queue = self.queue.lock();
        queue.push(slot);
        // `notifications` is read with the lock held. The notifier changes `notifications` before
        // [`Waiters::next`] acquires the lock. So the waiter sees the notification, or the notifier
        // sees the waiter.
        self.notifications.load(Relaxed) != seen
    }

    /// Notifies that the resource is available. The caller runs the waiters afterwards. Any
    /// context.
    pub(super) fn notify(&self) {
        self.notifications.fetch_add(1, Relaxed);
    }

    /// Removes and returns the first waiter. Process context.
    pub(super) fn next(&self) -> Option<u32> {
        self.queue.lock().pop()
    }

    /// Returns the waiter at position `at`. Process context; no other thread may remove waiters.
    pub(super) fn get(&self, at: usize) -> Option<u32> {
        self.queue.lock().get(at)
    }

    /// Removes the waiter at position `at`. Process context, as for [`Waiters::get`].
    pub(super) fn remove(&self, at: usize) {
        self.queue.lock().remove(at);
    }

    /// Returns the number of waiters other than `slot`. Process context or softirq.
    pub(super) fn others(&self, slot: u32) -> usize {
        self.queue.lock().others(slot)
    }

    /// Returns the number of waiters. Process context or softirq.
    pub(super) fn len(&self) -> usize {
        self.queue.lock().len()
    }
}
