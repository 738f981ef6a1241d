// SPDX-License-Identifier: GPL-2.0-only

//! Values with a sleeping destructor that may be dropped in atomic context.

use super::enqueue;
use core::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    ptr,
};
use kernel::{
    impl_has_work,
    prelude::*,
    static_lock_class,
    workqueue::{Work, WorkItem},
};

/// Name of the lock class. The name is one static object, because lockdep compares names by address
/// and generic code may contain several copies of a literal.
static LOCK_NAME: &CStr = c"extoll_deferred";

/// Value with the work item that drops the value.
#[pin_data]
struct Slot<T: Send + 'static> {
    value: T,
    #[pin]
    work: Work<Slot<T>>,
}

impl_has_work! {
    impl{T: Send + 'static} HasWork<Slot<T>> for Slot<T> { self.work }
}

impl<T: Send + 'static> WorkItem for Slot<T> {
    type Pointer = Pin<KBox<Self>>;

    fn run(this: Pin<KBox<Self>>) {
        drop(this);
    }
}

/// Value that may be dropped in any context, although its destructor sleeps or takes locks that the
/// dropping context holds. The drop queues a work item, which drops the value soon in process
/// context. The work item is allocated together with the value, so the drop allocates nothing.
///
/// Intended for handles that softirqs, RCU callbacks or sockets drop: a port, a region, or an `Arc`
/// of an object that is removed with its last reference.
///
/// The work item is on the queue of all work items of the drivers ([`super::enqueue`]). The
/// destructors are code of the module that drops the values. Such a module keeps a
/// [`super::FlushOnDrop`] and drops that object last; this drop waits for the destructors. In
/// `extoll.ko`, [`super::Owner`] drains the queue itself.
///
/// # Examples
///
/// ```
/// # use kernel::{prelude::*, sync::{Arc, SpinLockIrq}};
/// # use kernel_ext::work::Deferred;
/// # struct Region;
/// # impl Drop for Region { fn drop(&mut self) { /* sleeps */ } }
/// struct Socket {
///     region: Deferred<Region>,
/// }
///
/// /// Called in a softirq.
/// fn closed(sockets: &SpinLockIrq<KVec<Arc<Socket>>>) {
///     // Perhaps the last reference; then the region is dropped later.
///     drop(sockets.lock().pop());
/// }
///
/// fn open(region: Region) -> Result<Arc<Socket>> {
///     let region = Deferred::new(region, GFP_KERNEL)?;
///     Ok(Arc::new(Socket { region }, GFP_KERNEL)?)
/// }
/// ```
pub struct Deferred<T: Send + 'static>(ManuallyDrop<Pin<KBox<Slot<T>>>>);

impl<T: Send + 'static> Deferred<T> {
    /// Stores a value together with its work item. The permitted contexts depend on `flags`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: the value is dropped before the return.
    pub fn new(value: T, flags: kernel::alloc::Flags) -> Result<Self> {
        let slot = pin_init!(Slot {
            value,
            work <- Work::new(LOCK_NAME, static_lock_class!()),
        });
        Ok(Self(ManuallyDrop::new(KBox::pin_init(slot, flags)?)))
    }

    /// Returns the value, for example to drop it at once. Any context.
    pub fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the field is not used again, because `this` is not dropped.
        let slot = unsafe { ManuallyDrop::take(&mut this.0) };
        // SAFETY: only a queued work item needs a fixed address, and this one is not queued.
        let slot = KBox::into_raw(unsafe { Pin::into_inner_unchecked(slot) });
        // SAFETY: the slot contains a valid value, which is read once. The slot is then freed as
        // memory, without dropping the value.
        unsafe {
            let value = ptr::read(&(*slot).value);
            drop(KBox::from_raw(slot.cast::<ManuallyDrop<Slot<T>>>()));
            value
        }
    }
}

impl<T: Send + 'static> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Send + 'static> DerefMut for Deferred<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: only the work item is pinned, and it is not moved.
        unsafe { &mut self.0.as_mut().get_unchecked_mut().value }
    }
}

impl<T: Send + 'static> Drop for Deferred<T> {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        let slot = unsafe { ManuallyDrop::take(&mut self.0) };
        enqueue(slot);
    }
}

#[kunit_tests(kernel_ext_deferred)]
mod tests {
    use super::*;
    use crate::work::FlushOnDrop;
    use kernel::{
        new_spinlock_irq,
        sync::{
            atomic::{Atomic, Relaxed},
            Arc,
        },
        time::{delay::fsleep, Delta},
    };

    /// Sleeps in its destructor.
    struct Sleeper(Arc<Atomic<i32>>);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            fsleep(Delta::from_millis(20));
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn sleeper() -> Result<(Deferred<Sleeper>, Arc<Atomic<i32>>)> {
        let count = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let value = Deferred::new(Sleeper(count.clone()), GFP_KERNEL)?;
        Ok((value, count))
    }

    #[test]
    fn what_sleeps_is_dropped_with_interrupts_off() -> Result {
        let (value, count) = sleeper()?;
        let other = Arc::new(sleeper()?.0, GFP_KERNEL)?;
        let lock = KBox::pin_init(new_spinlock_irq!((), "extoll_test"), GFP_KERNEL)?;
        {
            let _atomic = lock.lock();
            drop(value);
            drop(other);
        }
        drop(FlushOnDrop);
        assert_eq!(count.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn a_value_can_be_used_and_had_back() -> Result {
        let (mut value, count) = sleeper()?;
        let other = Arc::new(Atomic::new(5), GFP_KERNEL)?;
        // The assignment drops the old value, in process context.
        *value = Sleeper(other.clone());
        assert_eq!(count.load(Relaxed), 1);
        assert_eq!((*value).0.load(Relaxed), 5);
        let inner = value.into_inner();
        drop(FlushOnDrop);
        assert_eq!(other.load(Relaxed), 5);
        drop(inner);
        assert_eq!(other.load(Relaxed), 6);
        Ok(())
    }
}
