// SPDX-License-Identifier: GPL-2.0-only

//! Proof that a device is bound, with the number of the binding.

use crate::bindings;
use core::ops::Deref;
use kernel::{
    device::{Bound, Device},
    sync::{
        aref::ARef,
        atomic::{Atomic, Relaxed},
    },
};

/// Number of the next binding; 0 means none.
static BINDINGS: Atomic<u64> = Atomic::new(1);

/// Device that is bound to its driver while this object is reachable, and the number of that
/// binding.
///
/// Streaming mappings ([`super::Streaming`]) are made and undone with this object. A mapping stores
/// the number rather than the device, so it needs no reference to the device. A mapping of one
/// binding is never undone in a later binding, when the IOMMU may use other addresses.
///
/// # Invariants
///
/// The object is dropped before the device is unbound, or not reachable afterwards. All objects
/// with the same number belong to the same binding.
pub struct BoundDevice {
    dev: ARef<Device>,
    binding: u64,
}

impl BoundDevice {
    /// Starts a binding. Mappings that are made with the result are undone with the result, or with
    /// an object that [`BoundDevice::share`] makes from it. Any context.
    ///
    /// # Safety
    ///
    /// The result and all objects made from it must be dropped before the device is unbound, or
    /// must not be reachable afterwards.
    pub unsafe fn new(dev: &Device<Bound>) -> Self {
        // INVARIANT: the function's requirements establish the invariant; the number is new.
        Self {
            dev: dev.into(),
            binding: BINDINGS.fetch_add(1, Relaxed),
        }
    }

    /// Returns another object for the same binding. Any context.
    ///
    /// # Safety
    ///
    /// The requirements of [`BoundDevice::new`] apply.
    #[must_use]
    pub unsafe fn share(&self) -> Self {
        // INVARIANT: the function's requirements establish the invariant. The device is bound while
        // `self` is borrowed, and it is the same binding.
        Self {
            dev: self.dev.clone(),
            binding: self.binding,
        }
    }

    /// Returns the number of the binding, never 0.
    #[inline]
    pub(crate) fn binding(&self) -> u64 {
        self.binding
    }

    /// Returns the NUMA node of the device, -1 if it is unknown. Any context.
    pub fn numa_node(&self) -> i32 {
        // SAFETY: the device is bound by the type invariant.
        unsafe { bindings::extoll_device_node(self.as_raw()) }
    }

    /// Returns the C object.
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
        // SAFETY: by the type invariant the device is bound while `self` is reachable.
        unsafe { self.dev.as_bound() }
    }
}
