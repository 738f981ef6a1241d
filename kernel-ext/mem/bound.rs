// SPDX-License-Identifier: GPL-2.0-only

//! The proof that a device is bound, and to which binding of it something belongs.

use crate::bindings;
use core::ops::Deref;
use kernel::{
    device::{Bound, Device},
    sync::{
        aref::ARef,
        atomic::{Atomic, Relaxed},
    },
};

/// Numbers of bindings; 0 is none.
static BINDINGS: Atomic<u64> = Atomic::new(1);

/// A device, known to be bound to its driver for as long as this can be reached, and the number of
/// that binding.
///
/// Streaming mappings ([`super::Streaming`]) are made and undone with it. They remember the number,
/// not the device: so they need no reference to it, and what was mapped in one binding is never
/// undone in a later one, when the IOMMU may know other addresses.
///
/// # Invariants
///
/// Dropped before the device is unbound, or not reachable from then on. All that have the same
/// number are of the same binding.
pub struct BoundDevice {
    dev: ARef<Device>,
    binding: u64,
}

impl BoundDevice {
    /// Begins a binding: mappings made with what this returns are undone with it or with what
    /// [`BoundDevice::share`] makes of it. Any context.
    ///
    /// # Safety
    ///
    /// The result, and all that is made of it, must be dropped before the device is unbound, or not
    /// be reachable from then on.
    pub unsafe fn new(dev: &Device<Bound>) -> Self {
        // INVARIANT: by the requirements; the number is new.
        Self {
            dev: dev.into(),
            binding: BINDINGS.fetch_add(1, Relaxed),
        }
    }

    /// Another one for the same binding. Any context.
    ///
    /// # Safety
    ///
    /// As [`BoundDevice::new`].
    #[must_use]
    pub unsafe fn share(&self) -> Self {
        // INVARIANT: by the requirements; the device is bound while `self` is borrowed, in this
        // binding.
        Self {
            dev: self.dev.clone(),
            binding: self.binding,
        }
    }

    /// Number of the binding, never 0.
    #[inline]
    pub(crate) fn binding(&self) -> u64 {
        self.binding
    }

    /// NUMA node that the device is at, -1 if that is unknown. Any context.
    pub fn numa_node(&self) -> i32 {
        // SAFETY: the device is bound, by the type invariant.
        unsafe { bindings::extoll_device_node(self.as_raw()) }
    }

    /// The C object.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::device {
        // CAST: `Device` is a transparent wrapper of `struct device`.
        core::ptr::from_ref::<Device>(&self.dev).cast_mut().cast()
    }
}

impl Deref for BoundDevice {
    type Target = Device<Bound>;

    #[inline]
    fn deref(&self) -> &Device<Bound> {
        // SAFETY: by the type invariant it is bound while `self` can be reached.
        unsafe { self.dev.as_bound() }
    }
}
