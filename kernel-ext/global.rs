// SPDX-License-Identifier: GPL-2.0-only

//! A static variable that holds a reference-counted object while a module is loaded: what C code reaches by a file-scope
//! pointer, and `kernel::sync::SetOnce` cannot give back.

use core::mem::ManuallyDrop;
use kernel::sync::{
    atomic::{Acquire, Atomic, Full},
    rcu, Arc,
};

/// Holds an `Arc<T>` or nothing.
///
/// # Invariants
///
/// The pointer is null or came from `Arc::into_raw`, and that reference is owned by this object. It is dropped only a
/// grace period after the pointer was replaced.
pub struct Global<T>(Atomic<*mut T>);

// SAFETY: hands out clones of an `Arc<T>` to any thread, which `T: Send + Sync` allows.
unsafe impl<T: Send + Sync> Sync for Global<T> {}

impl<T: Send + Sync> Global<T> {
    /// Nothing.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(Atomic::new(core::ptr::null_mut()))
    }

    /// The object. Any context.
    pub fn get(&self) -> Option<Arc<T>> {
        let _grace = rcu::read_lock();
        let ptr = self.0.load(Acquire);
        if ptr.is_null() {
            return None;
        }
        // SAFETY: by the invariants it came from `into_raw` and its reference lives at least until the read lock is
        // dropped; `ManuallyDrop`, as it stays with `self`.
        let arc = ManuallyDrop::new(unsafe { Arc::from_raw(ptr) });
        Some((*arc).clone())
    }

    /// Replaces the object. May sleep.
    pub fn set(&self, new: Option<Arc<T>>) {
        let new = new.map_or(core::ptr::null_mut(), |arc| Arc::into_raw(arc).cast_mut());
        let old = self.0.xchg(new, Full);
        if !old.is_null() {
            rcu::synchronize_rcu();
            // SAFETY: the reference was this object's and no reader sees the pointer any more.
            drop(unsafe { Arc::from_raw(old) });
        }
    }
}
