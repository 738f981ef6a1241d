// SPDX-License-Identifier: GPL-2.0-only

//! Numbers that an administrator may change, per network namespace: files below `/proc/sys/net`.

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// Number that an administrator reads and changes through a file.
pub struct Sysctl {
    /// Name of the file.
    pub name: &'static CStr,
    /// Smallest value.
    pub min: u32,
    /// Largest value.
    pub max: u32,
    /// Returns the value in a new namespace.
    pub initial: fn() -> u32,
}

/// Values of a namespace, shared with its files.
#[derive(Clone)]
pub struct Sysctls(Arc<Values>);

struct Values(KVec<Atomic<u32>>);

impl Sysctls {
    /// Returns the initial values. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(sysctls: &[Sysctl]) -> Result<Self> {
        let mut values = KVec::with_capacity(sysctls.len(), GFP_KERNEL_ACCOUNT)?;
        for entry in sysctls {
            values.push(Atomic::new((entry.initial)()), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self(Arc::new(Values(values), GFP_KERNEL_ACCOUNT)?))
    }

    /// Returns the value of entry `index` of the list; 0 if there is no such entry. Any context.
    #[inline]
    pub fn get(&self, index: usize) -> u32 {
        self.0 .0.get(index).map_or(0, |value| value.load(Relaxed))
    }
}

/// Files of a namespace. The drop removes the files and waits for readers and writers. The drop may
/// sleep.
///
/// # Invariants
///
/// `raw` is registered, and refers to the memory of `_sysctls` and `_values`.
pub(super) struct Table {
    raw: NonNull<bindings::extoll_sysctl>,
    _sysctls: KVec<bindings::extoll_sysctl_entry>,
    _values: Sysctls,
}

// SAFETY: any thread may remove the files.
unsafe impl Send for Table {}
// SAFETY: `&Table` has no methods.
unsafe impl Sync for Table {}

impl Table {
    /// Makes files in the directory `path` of `/proc/sys`, or returns `None` for no
    /// `sysctls`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    ///
    /// # Safety
    ///
    /// `net` must be valid until the drop. `values` must have been made from the same `sysctls`.
    pub(super) unsafe fn new(
        net: *mut bindings::net,
        path: &'static CStr,
        sysctls: &[Sysctl],
        values: &Sysctls,
    ) -> Result<Option<Self>> {
        if sysctls.is_empty() {
            return Ok(None);
        }
        let mut raw = KVec::with_capacity(sysctls.len(), GFP_KERNEL_ACCOUNT)?;
        for entry in sysctls {
            let entry = bindings::extoll_sysctl_entry {
                name: entry.name.as_char_ptr(),
                min: entry.min,
                max: entry.max,
            };
            raw.push(entry, GFP_KERNEL_ACCOUNT)?;
        }
        // The kernel reads and writes each value as one `u32`, so the accesses are atomic.
        let memory = values.0 .0.as_ptr().cast_mut().cast();
        // SAFETY: the namespace is valid by the function's requirements. Both vectors have the same
        // number of elements. The names are static. This object keeps both vectors, whose
        // lengths do not change.
        let sysctl = unsafe {
            bindings::extoll_sysctl_register(
                net,
                path.as_char_ptr(),
                raw.as_ptr(),
                memory,
                raw.len(),
            )
        };
        // INVARIANT: the files have just been registered.
        Ok(Some(Self {
            raw: NonNull::new(sysctl).ok_or(ENOMEM)?,
            _sysctls: raw,
            _values: values.clone(),
        }))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: by the type invariant `raw` is registered.
        unsafe { bindings::extoll_sysctl_unregister(self.raw.as_ptr()) }
    }
}
