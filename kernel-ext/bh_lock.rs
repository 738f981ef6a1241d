// SPDX-License-Identifier: GPL-2.0-only

//! Spin lock shared by process context and softirqs.

use crate::bindings;
use kernel::{
    prelude::*,
    sync::lock::{spinlock::SpinLockBackend, Backend, Guard, Lock},
};

/// Spin lock that disables bottom halves on this CPU while it is held (`spin_lock_bh()`). A softirq
/// that takes the same lock cannot interrupt the holder and deadlock. Process context and softirqs;
/// not in hard interrupts, not with interrupts disabled. The holder must not sleep.
///
/// # Examples
///
/// ```
/// use kernel::{prelude::*, sync::Arc};
/// use kernel_ext::{new_bh_lock, BhLock};
///
/// /// Counts events of a softirq.
/// #[pin_data]
/// struct Found {
///     #[pin]
///     count: BhLock<u64>,
/// }
///
/// fn begin() -> Result<Arc<Found>> {
///     let found = pin_init!(Found { count <- new_bh_lock!(0, "found") });
///     Ok(Arc::pin_init(found, GFP_KERNEL)?)
/// }
/// ```
pub type BhLock<T> = Lock<T, BhBackend>;

/// Guard of a [`BhLock`]: the lock is held and bottom halves are disabled while the guard lives.
pub type BhGuard<'a, T> = Guard<'a, T, BhBackend>;

/// Backend that builds a [`BhLock`] from a `spinlock_t`.
pub struct BhBackend;

// SAFETY: from `spin_lock_bh()` to `spin_unlock_bh()` of a `spinlock_t`, other CPUs and softirqs of
// this CPU cannot acquire the lock.
unsafe impl Backend for BhBackend {
    type State = <SpinLockBackend as Backend>::State;
    type GuardState = ();

    /// # Safety
    ///
    /// The requirements of [`Backend::init`] apply.
    unsafe fn init(
        lock: *mut Self::State,
        name: *const kernel::ffi::c_char,
        key: *mut kernel::bindings::lock_class_key,
    ) {
        // SAFETY: `SpinLockBackend::init` has the same requirements, and `State` is the same type.
        unsafe { SpinLockBackend::init(lock, name, key) }
    }

    /// # Safety
    ///
    /// The requirements of [`Backend::lock`] apply.
    #[inline]
    unsafe fn lock(lock: *mut Self::State) {
        // SAFETY: by the function's requirements the lock was initialised.
        unsafe { bindings::extoll_spin_lock_bh(lock) }
    }

    /// # Safety
    ///
    /// The requirements of [`Backend::try_lock`] apply.
    #[inline]
    unsafe fn try_lock(lock: *mut Self::State) -> Option<()> {
        // SAFETY: by the function's requirements the lock was initialised.
        unsafe { bindings::extoll_spin_trylock_bh(lock) }.then_some(())
    }

    /// # Safety
    ///
    /// The requirements of [`Backend::unlock`] apply.
    #[inline]
    unsafe fn unlock(lock: *mut Self::State, _state: &Self::GuardState) {
        // SAFETY: by the function's requirements the caller holds the lock, through `lock` or
        // `try_lock`. Guards are not `Send`, so this runs on the CPU and in the context that
        // disabled bottom halves.
        unsafe { bindings::extoll_spin_unlock_bh(lock) }
    }

    /// # Safety
    ///
    /// The requirements of [`Backend::assert_is_held`] apply.
    #[inline]
    unsafe fn assert_is_held(lock: *mut Self::State) {
        // SAFETY: `SpinLockBackend::assert_is_held` has the same requirements.
        unsafe { SpinLockBackend::assert_is_held(lock) }
    }
}

/// Creates a [`BhLock`] with its own lockdep class and name.
#[macro_export]
macro_rules! new_bh_lock {
    ($value:expr, $name:literal) => {
        $crate::BhLock::new(
            $value,
            ::kernel::optional_name!($name),
            ::kernel::static_lock_class!(),
        )
    };
}

#[kunit_tests(kernel_ext_bh_lock)]
mod tests {
    use super::*;
    use kernel::sync::Arc;

    #[test]
    fn it_is_given_back() -> Result {
        let lock = Arc::pin_init(crate::new_bh_lock!(1, "kernel_ext_bh_lock"), GFP_KERNEL)?;
        let mut guard = lock.lock();
        *guard += 1;
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert_eq!(lock.try_lock().map(|guard| *guard), Some(2));
        assert_eq!(*lock.lock(), 2);
        Ok(())
    }
}
