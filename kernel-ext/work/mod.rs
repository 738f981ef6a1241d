// SPDX-License-Identifier: GPL-2.0-only

//! Work queues: what `kernel::workqueue` lacks, above all cancelling, without which a module cannot
//! unload.

mod deferred;

pub use deferred::Deferred;

use crate::bindings;
use core::ptr;
use kernel::{
    container_of,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, AtomicFlag, Full, Relaxed, Release},
        rcu, Arc,
    },
    time::{delay::fsleep, Delta, Jiffies},
    workqueue::{HasDelayedWork, HasWork, Queue, RawDelayedWorkItem, RawWorkItem, Work, WorkItem},
};

type RawQueue = Atomic<*mut kernel::bindings::workqueue_struct>;

/// The queue of [`Owner`], null without one; read under RCU.
static QUEUE: RawQueue = Atomic::new(ptr::null_mut());
/// As [`QUEUE`], for items that wait for memory.
static WAITING: RawQueue = Atomic::new(ptr::null_mut());
/// There is an [`Owner`].
static OWNED: AtomicFlag = AtomicFlag::new(false);
/// How many wait for the items of the queue ([`Settled`]): it exists until they don't.
static WAITERS: Atomic<i32> = Atomic::new(0);
/// As [`QUEUE`].
static RESETS: RawQueue = Atomic::new(ptr::null_mut());

#[inline(never)]
fn current(queue: &RawQueue) -> *mut kernel::bindings::workqueue_struct {
    let own = queue.load(Acquire);
    if own.is_null() {
        // SAFETY: set at boot and never changed.
        unsafe { bindings::system_dfl_wq }
    } else {
        own
    }
}

fn with_queue<R>(queue: &RawQueue, f: impl FnOnce(&Queue) -> R) -> R {
    let _alive = rcu::read_lock();
    // SAFETY: the system's queue is never freed. An own one is freed only a grace period after
    // nobody finds it any more, and this is a reader of RCU.
    f(unsafe { Queue::from_raw(current(queue)) })
}

/// Puts an item into the queue of all items of the drivers: unbound, and with a thread of its own
/// for when memory is short. Without an [`Owner`] it is the system's unbound queue. Gives back an
/// item that is in a queue already. Any context.
pub fn enqueue<W, const ID: u64>(item: W) -> W::EnqueueOutput
where
    W: RawWorkItem<ID> + Send + 'static,
{
    with_queue(&QUEUE, |queue| queue.enqueue(item))
}

/// As [`enqueue`], after a delay in jiffies.
pub fn enqueue_delayed<W, const ID: u64>(item: W, delay: Jiffies) -> W::EnqueueOutput
where
    W: RawDelayedWorkItem<ID> + Send + 'static,
{
    with_queue(&QUEUE, |queue| queue.enqueue_delayed(item, delay))
}

/// As [`enqueue_delayed`] for an item that may allocate, or wait for a lock whose holders may: those
/// of an address space above all. The memory may have to wait for items of the other queue, so such
/// an item must not occupy the thread which that one has for when memory is short.
pub fn enqueue_waiting<W, const ID: u64>(item: W, delay: Jiffies) -> W::EnqueueOutput
where
    W: RawDelayedWorkItem<ID> + Send + 'static,
{
    with_queue(&WAITING, |queue| queue.enqueue_delayed(item, delay))
}

/// The queue of items that have a device unbound and bound again: unbinding waits for those of the
/// other one. Without an [`Owner`] the system's unbound queue.
pub(crate) fn reset_queue() -> *mut kernel::bindings::workqueue_struct {
    current(&RESETS)
}

/// Keeps the queues. Its module makes it before anybody can enqueue, and drops it when nobody can
/// any more (delayed items have been cancelled, modules above are gone): the drop waits until the
/// last item has returned, so that no code is unloaded that still runs.
pub struct Owner(());

impl Owner {
    /// Makes the queues. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EBUSY` for a second one.
    pub fn new() -> Result<Self> {
        if OWNED.xchg(true, Full) {
            return Err(EBUSY);
        }
        let make = |name: &CStr, flags| {
            // SAFETY: the name is a string without conversions, so that no more arguments are
            // wanted.
            unsafe { bindings::alloc_workqueue_noprof(name.as_char_ptr(), flags, 0) }
        };
        let unbound = bindings::wq_flags_WQ_UNBOUND;
        let queue = make(c"extoll", unbound | bindings::wq_flags_WQ_MEM_RECLAIM);
        let waiting = make(c"extoll_waiting", unbound);
        let resets = make(c"extoll_reset", unbound);
        QUEUE.store(queue, Release);
        WAITING.store(waiting, Release);
        RESETS.store(resets, Release);
        let made = Self(());
        if queue.is_null() || waiting.is_null() || resets.is_null() {
            return Err(ENOMEM);
        }
        Ok(made)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Items of the first may enqueue some in those after it, and items of the last some in the
        // one before; those are over with this.
        settle();
        for queue in [&RESETS, &WAITING, &QUEUE] {
            let own = queue.load(Relaxed);
            if !own.is_null() {
                // SAFETY: made by `new`. Items may enqueue others meanwhile, which are waited for,
                // too.
                unsafe { bindings::drain_workqueue(own) };
                queue.store(ptr::null_mut(), Release);
                rcu::synchronize_rcu();
                while WAITERS.load(Acquire) != 0 {
                    // All items have returned, so it is not for long.
                    fsleep(Delta::from_millis(1));
                }
                // SAFETY: made by `new`, and nobody finds it any more; it is freed when the last
                // item has returned.
                unsafe { bindings::destroy_workqueue(own) };
            }
        }
        OWNED.store(false, Release);
    }
}

/// For a module above: its drop waits until all items that were enqueued before have returned. They
/// may hold the last reference to something of the module, and run code of it when they drop that.
/// The drop sleeps.
pub struct Settled;

impl Drop for Settled {
    fn drop(&mut self) {
        settle();
    }
}

/// Waits until all items that were enqueued before have returned, and those that these enqueued in
/// the other queue. Sleeps.
fn settle() {
    for queue in [&QUEUE, &WAITING, &QUEUE] {
        flush(queue);
    }
}

fn flush(queue: &RawQueue) {
    let own = {
        let _alive = rcu::read_lock();
        let own = queue.load(Acquire);
        if !own.is_null() {
            // Within the grace period that its end waits for, so it is counted before the queue
            // ends.
            WAITERS.fetch_add(1, Relaxed);
        }
        own
    };
    if !own.is_null() {
        // SAFETY: its owner has the queue exist while somebody is counted.
        unsafe { bindings::__flush_workqueue(own) };
        WAITERS.fetch_sub(1, Release);
    }
}

/// Cancels a work item and waits until it does not run. May sleep; no lock that the item takes may
/// be held.
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
        // SAFETY: it was pending, so the queue owned the reference that `enqueue` made by
        // `Arc::into_raw`, and it will not call the item any more.
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

/// As [`cancel_delayed_sync`] but neither waits for a running item nor sleeps; any context but hard
/// interrupt handlers that interrupted the queue code. Returns whether the item was pending.
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

#[kunit_tests(kernel_ext_work)]
mod tests {
    use super::*;
    use kernel::{impl_has_work, new_work};

    #[pin_data]
    struct Late {
        done: AtomicFlag,
        #[pin]
        work: Work<Late>,
    }

    impl_has_work! {
        impl HasWork<Late> for Late { self.work }
    }

    impl WorkItem for Late {
        type Pointer = Arc<Late>;

        fn run(this: Arc<Late>) {
            fsleep(Delta::from_millis(50));
            this.done.store(true, Release);
        }
    }

    #[test]
    fn a_module_above_waits_for_its_items() -> Result {
        // The module's own queue exists while its tests run.
        assert_eq!(Owner::new().err(), Some(EBUSY));
        let late = Arc::pin_init(
            pin_init!(Late {
                done: AtomicFlag::new(false),
                work <- new_work!("extoll_test"),
            }),
            GFP_KERNEL,
        )?;
        assert!(enqueue(late.clone()).is_ok());
        drop(Settled);
        assert!(late.done.load(Acquire));
        Ok(())
    }
}
