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

/// A number.
pub struct Knob {
    /// Name of its file.
    pub name: &'static CStr,
    /// Smallest value.
    pub least: u32,
    /// Largest value.
    pub most: u32,
    /// Value in a namespace that begins.
    pub initial: fn() -> u32,
}

/// The values of a namespace, shared with its files.
#[derive(Clone)]
pub struct Knobs(Arc<Values>);

struct Values(KVec<Atomic<u32>>);

impl Knobs {
    /// The initial ones. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(knobs: &[Knob]) -> Result<Self> {
        let mut values = KVec::with_capacity(knobs.len(), GFP_KERNEL_ACCOUNT)?;
        for knob in knobs {
            values.push(Atomic::new((knob.initial)()), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self(Arc::new(Values(values), GFP_KERNEL_ACCOUNT)?))
    }

    /// The value of the knob with this index; 0 if there is none. Any context.
    #[inline]
    pub fn get(&self, index: usize) -> u32 {
        self.0 .0.get(index).map_or(0, |value| value.load(Relaxed))
    }
}

/// Files of a namespace. The drop removes them, waits for whoever reads or writes one, and may sleep.
///
/// # Invariants
///
/// `raw` is registered, and refers to `knobs` and `values`.
pub(super) struct Table {
    raw: NonNull<bindings::extoll_sysctl>,
    _knobs: KVec<bindings::extoll_knob>,
    _values: Knobs,
}

// SAFETY: files may be removed by any thread.
unsafe impl Send for Table {}
// SAFETY: `&Table` allows nothing.
unsafe impl Sync for Table {}

impl Table {
    /// Makes files in the directory `path` of `/proc/sys`; `None` for no knobs. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    ///
    /// # Safety
    ///
    /// `net` must be valid until the drop; `values` must have been made for these knobs.
    pub(super) unsafe fn new(
        net: *mut bindings::net,
        path: &'static CStr,
        knobs: &[Knob],
        values: &Knobs,
    ) -> Result<Option<Self>> {
        if knobs.is_empty() {
            return Ok(None);
        }
        let mut raw = KVec::with_capacity(knobs.len(), GFP_KERNEL_ACCOUNT)?;
        for knob in knobs {
            let knob = bindings::extoll_knob {
                name: knob.name.as_char_ptr(),
                least: knob.least,
                most: knob.most,
            };
            raw.push(knob, GFP_KERNEL_ACCOUNT)?;
        }
        // The kernel reads and writes them as `u32`, one at a time, as atomics are.
        let memory = values.0 .0.as_ptr().cast_mut().cast();
        // SAFETY: the namespace is valid by the requirements. There are as many knobs and values; the names are static, knobs
        // and values are in vectors that nobody changes the length of, which this object keeps.
        let sysctl = unsafe {
            bindings::extoll_sysctl_register(
                net,
                path.as_char_ptr(),
                raw.as_ptr(),
                memory,
                raw.len(),
            )
        };
        // INVARIANT: registered just now.
        Ok(Some(Self {
            raw: NonNull::new(sysctl).ok_or(ENOMEM)?,
            _knobs: raw,
            _values: values.clone(),
        }))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: registered by the invariants.
        unsafe { bindings::extoll_sysctl_unregister(self.raw.as_ptr()) }
    }
}
