// SPDX-License-Identifier: GPL-2.0-only

//! Work queues: what `kernel::workqueue` lacks, above all cancelling, without which a module cannot unload.

use crate::bindings;
use kernel::{
    container_of,
    sync::Arc,
    workqueue::{HasDelayedWork, HasWork, Queue, Work, WorkItem},
};

/// The system's unbound queue under its current name (`system_dfl_wq`); using one of the queues that
/// `kernel::workqueue` names makes the kernel warn. Any context.
pub fn queue() -> &'static Queue {
    // SAFETY: the queue is created at boot and never freed.
    unsafe { Queue::from_raw(bindings::system_dfl_wq) }
}

/// Cancels a work item and waits until it does not run. May sleep; no lock that the item takes may be held.
///
/// Others must not enqueue it concurrently if it has to stay idle afterwards.
pub fn cancel_sync<T, const ID: u64>(item: &Arc<T>)
where
    T: HasWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let ptr = Arc::as_ptr(item);
    // SAFETY: `ptr` points to a live `T`, and `HasWork` returns a pointer to its work field.
    let work = unsafe { Work::raw_get(T::raw_get_work(ptr.cast_mut())) };
    // SAFETY: `work` was initialised by `Work::new` and is alive.
    if unsafe { bindings::cancel_work_sync(work) } {
        // SAFETY: it was pending, so the queue owned the reference that `enqueue` made by `Arc::into_raw`,
        // and it will not call the item any more.
        drop(unsafe { Arc::from_raw(ptr) });
    }
}

/// As [`cancel_sync`] for a delayed item: also stops its timer.
pub fn cancel_delayed_sync<T, const ID: u64>(item: &Arc<T>)
where
    T: HasDelayedWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let ptr = Arc::as_ptr(item);
    // SAFETY: `ptr` points to a live `T`, and `HasWork` returns a pointer to its work field, which
    // `HasDelayedWork` guarantees to lie in a `delayed_work`.
    let work = unsafe {
        let work = Work::raw_get(T::raw_get_work(ptr.cast_mut()));
        container_of!(work, bindings::delayed_work, work)
    };
    // SAFETY: initialised by `DelayedWork::new` and alive.
    if unsafe { bindings::cancel_delayed_work_sync(work) } {
        // SAFETY: see `cancel_sync`.
        drop(unsafe { Arc::from_raw(ptr) });
    }
}

/// As [`cancel_delayed_sync`] but neither waits for a running item nor sleeps; any context but hard interrupt
/// handlers that interrupted the queue code. Returns whether the item was pending.
pub fn cancel_delayed<T, const ID: u64>(item: &Arc<T>) -> bool
where
    T: HasDelayedWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let ptr = Arc::as_ptr(item);
    // SAFETY: as in `cancel_delayed_sync`.
    let work = unsafe {
        let work = Work::raw_get(T::raw_get_work(ptr.cast_mut()));
        container_of!(work, bindings::delayed_work, work)
    };
    // SAFETY: initialised by `DelayedWork::new` and alive.
    let pending = unsafe { bindings::cancel_delayed_work(work) };
    if pending {
        // SAFETY: see `cancel_sync`.
        drop(unsafe { Arc::from_raw(ptr) });
    }
    pending
}
