// SPDX-License-Identifier: GPL-2.0-only

//! Static variable that holds a reference-counted object while a module is loaded. C code would use
//! a file-scope pointer; `kernel::sync::SetOnce` cannot be emptied again.

use core::mem::ManuallyDrop;
use kernel::sync::{
    atomic::{Acquire, Atomic, Full},
    rcu, Arc,
};

/// Holds an `Arc<T>` or is empty.
///
/// # Invariants
///
/// The pointer is null or came from `Arc::into_raw`, and this object owns that reference. The
/// reference is dropped only after an RCU grace period that begins when the pointer was replaced.
pub struct Global<T>(Atomic<*mut T>);

// SAFETY: `&Global<T>` gives clones of an `Arc<T>` to any thread, which `T: Send + Sync` allows.
unsafe impl<T: Send + Sync> Sync for Global<T> {}

impl<T: Send + Sync> Global<T> {
    /// Returns an empty variable.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(Atomic::new(core::ptr::null_mut()))
    }

    /// Returns the object. Any context.
    pub fn get(&self) -> Option<Arc<T>> {
        let _grace = rcu::read_lock();
        let ptr = self.0.load(Acquire);
        if ptr.is_null() {
            return None;
        }
        // SAFETY: by the type invariant the pointer came from `into_raw`, and its reference lives
        // at least until the RCU read lock is dropped. `ManuallyDrop` leaves that reference to
        // `self`.
        let arc = ManuallyDrop::new(unsafe { Arc::from_raw(ptr) });
        Some((*arc).clone())
    }

    /// Replaces the object and drops the old reference after an RCU grace period. May sleep.
    pub fn set(&self, new: Option<Arc<T>>) {
        let new = new.map_or(core::ptr::null_mut(), |arc| Arc::into_raw(arc).cast_mut());
        let old = self.0.xchg(new, Full);
        if !old.is_null() {
            rcu::synchronize_rcu();
            // SAFETY: by the type invariant this object owned the reference. After the grace period
            // no reader uses the pointer.
            drop(unsafe { Arc::from_raw(old) });
        }
    }
}
