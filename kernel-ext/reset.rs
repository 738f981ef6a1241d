// SPDX-License-Identifier: GPL-2.0-only

//! Resets of a PCI function that its driver did not command: by an administrator through sysfs
//! (`reset`), by user space that had the device before, by the PCI core after an error on the way to
//! it (AER, DPC), by sleep of the system, or by something that only the lost registers tell of
//! ([`forgotten`]). Such a device has forgotten all that its driver has set, so the driver begins
//! anew.

use crate::{bindings, pci::raw, sysfs, work};
use core::mem::ManuallyDrop;
use kernel::{
    device::{self, Core},
    pci,
    prelude::*,
    sync::Arc,
    types::Opaque,
};

/// Who hears of resets.
pub trait ResetClient: Send + Sync {
    /// The device is about to be reset, or was, or the system is about to sleep: from when this
    /// returns on it must not be touched any more. If it is not `reachable`, because of an error, it
    /// must not be touched even now. It will be unbound and bound again soon, unless it stays
    /// unreachable. Process context; may sleep, and must not drop the [`ResetWatch`].
    fn lost(this: &Arc<Self>, reachable: bool);
}

/// Reports that the registers of a device are not what its driver has written: if it has a
/// [`ResetWatch`], the client is called, then the driver is unbound and bound again. Process
/// context; may sleep.
pub fn forgotten(device: &device::Device) {
    // SAFETY: the device is valid; it is only compared with those in the list.
    unsafe { bindings::extoll_reset_forgotten(sysfs::raw(device)) }
}

/// Has a client hear of resets of a bound device, until it is dropped; the drop may sleep.
///
/// # Invariants
///
/// `raw` is in the list of `reset.c` and refers to the client, which `client` keeps.
#[pin_data(PinnedDrop)]
pub struct ResetWatch<T: ResetClient> {
    #[pin]
    raw: Opaque<bindings::extoll_reset_watch>,
    client: Arc<T>,
}

// SAFETY: the C object is used under the lock of its list; any thread may drop the client.
unsafe impl<T: ResetClient> Send for ResetWatch<T> {}
// SAFETY: `&ResetWatch` allows nothing.
unsafe impl<T: ResetClient> Sync for ResetWatch<T> {}

impl<T: ResetClient> ResetWatch<T> {
    /// Begins. While the device is probed, and to be dropped before it is unbound. May sleep.
    pub fn new<'a>(dev: &'a pci::Device<Core<'_>>, client: Arc<T>) -> impl PinInit<Self> + 'a
    where
        T: 'a,
    {
        let dev = raw(dev);
        let ptr = Arc::as_ptr(&client);
        pin_init!(Self {
            raw <- Opaque::ffi_init(move |w| {
                // SAFETY: `w` is valid for writes and pinned; the device is being probed by a
                // driver of the kernel crate, whose `pci_driver` is not constant; the client is
                // kept until the watch is removed.
                unsafe {
                    bindings::extoll_reset_watch_add(
                        w,
                        dev,
                        // CAST: an opaque type to both sets of bindings.
                        work::reset_queue().cast(),
                        Some(Self::lost),
                        ptr.cast(),
                    )
                }
            }),
            client,
        })
    }

    /// # Safety
    ///
    /// To be called by `reset.c` only, while the watch is in its list.
    unsafe extern "C" fn lost(client: *const c_void, reachable: bool) {
        // SAFETY: by the requirement and the type invariant it came from `Arc::as_ptr` of a client
        // that is kept meanwhile; its reference is not dropped here.
        let client = ManuallyDrop::new(unsafe { Arc::from_raw(client.cast::<T>()) });
        T::lost(&client, reachable);
    }
}

#[pinned_drop]
impl<T: ResetClient> PinnedDrop for ResetWatch<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: it is in the list by the type invariant.
        unsafe { bindings::extoll_reset_watch_remove(self.raw.get()) }
    }
}
