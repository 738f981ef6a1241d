// SPDX-License-Identifier: GPL-2.0-only

//! Resets of a PCI function that its driver did not request. A reset may be caused by:
//!
//! - the administrator, through the sysfs file `reset`;
//! - user space that used the device before;
//! - the PCI core, after an error on the link to the device (AER, DPC);
//! - system sleep;
//! - an unknown cause, which the driver detects by the lost registers ([`registers_lost`]).
//!
//! A reset device has lost all settings, so its driver is unbound and bound again.

use crate::{bindings, pci::raw, sysfs, work};
use core::mem::ManuallyDrop;
use kernel::{
    device::{self, Core},
    pci,
    prelude::*,
    sync::Arc,
    types::Opaque,
};

/// Receiver of reset events.
pub trait ResetClient: Send + Sync {
    /// Called when the device is about to be reset, has been reset, or the system is about to
    /// sleep. After the return the driver must not access the device. If `reachable` is false,
    /// because of an error, the driver must not access the device during the call either. The
    /// driver will be unbound and bound again soon, unless the device stays unreachable. Process
    /// context; may sleep; must not drop the [`ResetWatch`].
    fn prepare_reset(this: &Arc<Self>, reachable: bool);
}

/// Reports that the registers of a device do not hold the values that its driver wrote. If the
/// device has a [`ResetWatch`], calls the client; then the driver is unbound and bound again.
/// Process context; may sleep.
pub fn registers_lost(device: &device::Device) {
    // SAFETY: the device is valid; its address is only compared with those in the list.
    unsafe { bindings::extoll_reset_registers_lost(sysfs::raw(device)) }
}

/// Reports resets of a bound device to a client until dropped. The drop may sleep.
///
/// # Invariants
///
/// `raw` is in the list of `reset.c` and points to the object that `client` keeps alive.
#[pin_data(PinnedDrop)]
pub struct ResetWatch<T: ResetClient> {
    #[pin]
    raw: Opaque<bindings::extoll_reset_watch>,
    client: Arc<T>,
}

// SAFETY: all accesses to the C object hold the lock of its list. `T: Send + Sync` lets any thread
// drop the client.
unsafe impl<T: ResetClient> Send for ResetWatch<T> {}
// SAFETY: `&ResetWatch` has no methods.
unsafe impl<T: ResetClient> Sync for ResetWatch<T> {}

impl<T: ResetClient> ResetWatch<T> {
    /// Starts watching. Called while the device is probed; the watch must be dropped before the
    /// driver is unbound. May sleep.
    pub fn new<'a>(dev: &'a pci::Device<Core<'_>>, client: Arc<T>) -> impl PinInit<Self> + 'a
    where
        T: 'a,
    {
        let dev = raw(dev);
        let ptr = Arc::as_ptr(&client);
        pin_init!(Self {
            raw <- Opaque::ffi_init(move |w| {
                // SAFETY: `w` is valid for writes and pinned. The device is being probed by a
                // driver of the kernel crate, whose `pci_driver` is not constant. `client` keeps
                // the client until the watch is removed.
                unsafe {
                    bindings::extoll_reset_watch_add(
                        w,
                        dev,
                        // CAST: opaque type in both sets of bindings.
                        work::reset_queue().cast(),
                        Some(Self::prepare_reset),
                        ptr.cast(),
                    )
                }
            }),
            client,
        })
    }

    /// # Safety
    ///
    /// Only `reset.c` may call this function, while the watch is in its list.
    unsafe extern "C" fn prepare_reset(client: *const c_void, reachable: bool) {
        // SAFETY: by the function's requirement and the type invariant the pointer came from
        // `Arc::as_ptr` of a client that lives during the call. `ManuallyDrop` leaves its reference
        // count unchanged.
        let client = ManuallyDrop::new(unsafe { Arc::from_raw(client.cast::<T>()) });
        T::prepare_reset(&client, reachable);
    }
}

#[pinned_drop]
impl<T: ResetClient> PinnedDrop for ResetWatch<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: by the type invariant the watch is in the list.
        unsafe { bindings::extoll_reset_watch_remove(self.raw.get()) }
    }
}
