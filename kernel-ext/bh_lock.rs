// SPDX-License-Identifier: GPL-2.0-only

//! A spin lock that process context shares with softirqs.

use crate::bindings;
use kernel::{
    prelude::*,
    sync::lock::{spinlock::SpinLockBackend, Backend, Guard, Lock},
};

/// A spin lock with which bottom halves are off on this CPU while it is held (`spin_lock_bh()`): a
/// softirq that takes it, too, can't come in between and wait for ever. Process context and softirqs,
/// not hard interrupts, nor with interrupts off; nobody who has it may sleep.
///
/// # Examples
///
/// ```
/// use kernel::{prelude::*, sync::Arc};
/// use kernel_ext::{new_bh_lock, BhLock};
///
/// /// Counts what a softirq finds.
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

/// The lock is held, and bottom halves are off, while it lives.
pub type BhGuard<'a, T> = Guard<'a, T, BhBackend>;

/// What makes a [`BhLock`] of a `spinlock_t`.
pub struct BhBackend;

// SAFETY: `spin_lock_bh()` of a `spinlock_t` excludes all others on other CPUs, and softirqs on this
// one, until `spin_unlock_bh()`.
unsafe impl Backend for BhBackend {
    type State = <SpinLockBackend as Backend>::State;
    type GuardState = ();

    /// # Safety
    ///
    /// That of [`Backend::init`].
    unsafe fn init(
        lock: *mut Self::State,
        name: *const kernel::ffi::c_char,
        key: *mut kernel::bindings::lock_class_key,
    ) {
        // SAFETY: the requirements are the same, and so is the memory.
        unsafe { SpinLockBackend::init(lock, name, key) }
    }

    /// # Safety
    ///
    /// That of [`Backend::lock`].
    #[inline]
    unsafe fn lock(lock: *mut Self::State) {
        // SAFETY: by the requirements a lock that was set up.
        unsafe { bindings::extoll_spin_lock_bh(lock) }
    }

    /// # Safety
    ///
    /// That of [`Backend::try_lock`].
    #[inline]
    unsafe fn try_lock(lock: *mut Self::State) -> Option<()> {
        // SAFETY: by the requirements a lock that was set up.
        unsafe { bindings::extoll_spin_trylock_bh(lock) }.then_some(())
    }

    /// # Safety
    ///
    /// That of [`Backend::unlock`].
    #[inline]
    unsafe fn unlock(lock: *mut Self::State, _state: &Self::GuardState) {
        // SAFETY: by the requirements the caller has it, by one of the two above. Guards are not
        // `Send`, so this is the CPU's context whose bottom halves are off.
        unsafe { bindings::extoll_spin_unlock_bh(lock) }
    }

    /// # Safety
    ///
    /// That of [`Backend::assert_is_held`].
    #[inline]
    unsafe fn assert_is_held(lock: *mut Self::State) {
        // SAFETY: the requirements are the same.
        unsafe { SpinLockBackend::assert_is_held(lock) }
    }
}

/// A [`BhLock`] with a class and a name of its own for the lock checker.
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
