// SPDX-License-Identifier: GPL-2.0-only

//! Work queues: functions that `kernel::workqueue` lacks, in particular cancelling, which a module
//! needs before it is unloaded.

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

/// Queue of [`Owner`]; null without an owner. Read under RCU.
static QUEUE: RawQueue = Atomic::new(ptr::null_mut());
/// Queue for work items that may wait for memory, under the rules of [`QUEUE`].
static WAITING: RawQueue = Atomic::new(ptr::null_mut());
/// True while an [`Owner`] exists.
static OWNED: AtomicFlag = AtomicFlag::new(false);
/// Number of threads that wait for work items of a queue ([`FlushOnDrop`]). A queue is not
/// destroyed while this number is above 0.
static WAITERS: Atomic<i32> = Atomic::new(0);
/// Queue for work items that rebind a device, under the rules of [`QUEUE`].
static RESETS: RawQueue = Atomic::new(ptr::null_mut());

#[inline(never)]
fn current(queue: &RawQueue) -> *mut kernel::bindings::workqueue_struct {
    let own = queue.load(Acquire);
    if own.is_null() {
        // SAFETY: the variable is set at boot and never changed.
        unsafe { bindings::system_dfl_wq }
    } else {
        own
    }
}

fn with_queue<R>(queue: &RawQueue, f: impl FnOnce(&Queue) -> R) -> R {
    let _alive = rcu::read_lock();
    // SAFETY: the system's queue is never freed. A queue of an [`Owner`] is freed only a grace
    // period after its pointer was cleared, and this is an RCU read-side critical section.
    f(unsafe { Queue::from_raw(current(queue)) })
}

/// Queues a work item on the queue of all work items of the drivers. That queue is unbound and has
/// a rescuer thread for memory shortage. Without an [`Owner`] the system's unbound queue is used.
/// Returns the item if it is already queued. Any context.
pub fn enqueue<W, const ID: u64>(item: W) -> W::EnqueueOutput
where
    W: RawWorkItem<ID> + Send + 'static,
{
    with_queue(&QUEUE, |queue| queue.enqueue(item))
}

/// Queues a work item like [`enqueue`], after a delay in jiffies.
pub fn enqueue_delayed<W, const ID: u64>(item: W, delay: Jiffies) -> W::EnqueueOutput
where
    W: RawDelayedWorkItem<ID> + Send + 'static,
{
    with_queue(&QUEUE, |queue| queue.enqueue_delayed(item, delay))
}

/// Queues a delayed work item that may allocate, or that may wait for a lock whose holders
/// allocate, in particular locks of an address space. Memory reclaim may depend on items of the
/// other queue, so such an item must not occupy that queue's rescuer thread.
pub fn enqueue_waiting<W, const ID: u64>(item: W, delay: Jiffies) -> W::EnqueueOutput
where
    W: RawDelayedWorkItem<ID> + Send + 'static,
{
    with_queue(&WAITING, |queue| queue.enqueue_delayed(item, delay))
}

/// Returns the queue for work items that unbind a device and bind it again. A separate queue is
/// needed, because unbinding waits for items of the other queues. Without an [`Owner`] the function
/// returns the system's unbound queue.
pub(crate) fn reset_queue() -> *mut kernel::bindings::workqueue_struct {
    current(&RESETS)
}

/// Owner of the queues. The owner's module makes this object before the first item is queued. The
/// module drops it after delayed items have been cancelled and all dependent modules have been
/// unloaded, so that no further items can be queued. The drop waits until the last item has
/// returned, so that code of a running item is not unloaded.
pub struct Owner(());

impl Owner {
    /// Makes the queues. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EBUSY` if an owner exists.
    pub fn new() -> Result<Self> {
        if OWNED.xchg(true, Full) {
            return Err(EBUSY);
        }
        let make = |name: &CStr, flags| {
            // SAFETY: the name is a C string without conversions, so no further arguments are read.
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
        // An item may queue another item on a later queue of this list, or on the queue before its
        // own. `flush_all` completes items on an earlier queue.
        flush_all();
        for queue in [&RESETS, &WAITING, &QUEUE] {
            let own = queue.load(Relaxed);
            if !own.is_null() {
                // SAFETY: `new` made the queue. Items that are queued during the call are also
                // drained.
                unsafe { bindings::drain_workqueue(own) };
                queue.store(ptr::null_mut(), Release);
                rcu::synchronize_rcu();
                while WAITERS.load(Acquire) != 0 {
                    // All items have returned, so the waiting threads continue soon.
                    fsleep(Delta::from_millis(1));
                }
                // SAFETY: `new` made the queue. The grace period has elapsed since the pointer was
                // cleared, so other threads cannot find the queue any more. No thread flushes the
                // queue.
                unsafe { bindings::destroy_workqueue(own) };
            }
        }
        OWNED.store(false, Release);
    }
}

/// Guard for a module other than the one of the [`Owner`]. The drop waits until all work items that
/// were queued earlier have returned. Such an item may hold the last reference to an object of the
/// module, and run the module's code when it drops that reference. The drop sleeps.
pub struct FlushOnDrop;

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        flush_all();
    }
}

/// Waits until all items that were queued earlier have returned, and also the items that they
/// queued on the other queue. Sleeps.
fn flush_all() {
    for queue in [&QUEUE, &WAITING, &QUEUE] {
        flush(queue);
    }
}

fn flush(queue: &RawQueue) {
    let own = {
        let _alive = rcu::read_lock();
        let own = queue.load(Acquire);
        if !own.is_null() {
            // The thread is counted in the critical section, and therefore before the end of the
            // grace period for which the queue's owner waits.
            WAITERS.fetch_add(1, Relaxed);
        }
        own
    };
    if !own.is_null() {
        // SAFETY: the owner does not destroy the queue while `WAITERS` is above 0.
        unsafe { bindings::__flush_workqueue(own) };
        WAITERS.fetch_sub(1, Release);
    }
}

/// Cancels a work item and waits until it does not run. May sleep. The caller must not hold a lock
/// that the item takes.
///
/// If the item has to stay idle afterwards, it must not be queued concurrently.
pub fn cancel_sync<T, const ID: u64>(item: &Arc<T>)
where
    T: HasWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let ptr = Arc::as_ptr(item);
    // SAFETY: `ptr` points to a valid `T`, and `HasWork` returns a pointer to its work field.
    let work = unsafe { Work::raw_get(T::raw_get_work(ptr.cast_mut())) };
    // SAFETY: `Work::new` initialised `work`, which is alive.
    if unsafe { bindings::cancel_work_sync(work) } {
        // SAFETY: the item was pending, so the queue owned the reference that `enqueue` made by
        // `Arc::into_raw`. The queue will not call the item any more.
        drop(unsafe { Arc::from_raw(ptr) });
    }
}

/// Cancels a delayed work item like [`cancel_sync`], and stops its timer.
pub fn cancel_delayed_sync<T, const ID: u64>(item: &Arc<T>)
where
    T: HasDelayedWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let ptr = Arc::as_ptr(item);
    // SAFETY: `ptr` points to a valid `T`, and `HasWork` returns a pointer to its work field.
    // `HasDelayedWork` guarantees that this field is part of a `delayed_work`.
    let work = unsafe {
        let work = Work::raw_get(T::raw_get_work(ptr.cast_mut()));
        container_of!(work, bindings::delayed_work, work)
    };
    // SAFETY: `DelayedWork::new` initialised `work`, which is alive.
    if unsafe { bindings::cancel_delayed_work_sync(work) } {
        // SAFETY: the reasons given in `cancel_sync` apply.
        drop(unsafe { Arc::from_raw(ptr) });
    }
}

/// Cancels a delayed work item without sleeping, and does not wait for a running item. Returns true
/// if the item was pending. Any context, except hard interrupt handlers that interrupted the
/// workqueue code.
pub fn cancel_delayed<T, const ID: u64>(item: &Arc<T>) -> bool
where
    T: HasDelayedWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let ptr = Arc::as_ptr(item);
    // SAFETY: the reasons given in `cancel_delayed_sync` apply.
    let work = unsafe {
        let work = Work::raw_get(T::raw_get_work(ptr.cast_mut()));
        container_of!(work, bindings::delayed_work, work)
    };
    // SAFETY: `DelayedWork::new` initialised `work`, which is alive.
    let pending = unsafe { bindings::cancel_delayed_work(work) };
    if pending {
        // SAFETY: the reasons given in `cancel_sync` apply.
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
        // The module's own owner exists while its tests run.
        assert_eq!(Owner::new().err(), Some(EBUSY));
        let late = Arc::pin_init(
            pin_init!(Late {
                done: AtomicFlag::new(false),
                work <- new_work!("extoll_test"),
            }),
            GFP_KERNEL,
        )?;
        assert!(enqueue(late.clone()).is_ok());
        drop(FlushOnDrop);
        assert!(late.done.load(Acquire));
        Ok(())
    }
}
