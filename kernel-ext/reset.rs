// SPDX-License-Identifier: GPL-2.0-only

//! Resets of a PCI function that somebody else commands: an administrator by sysfs (`reset`), user
//! space that had the device before, or the PCI core after an error on the way to it (AER, DPC).
//! Such a device has forgotten all that its driver has set, so the driver begins anew.

use crate::{bindings, pci::raw, work};
use core::mem::ManuallyDrop;
use kernel::{device::Core, pci, prelude::*, sync::Arc, types::Opaque};

/// Who hears of resets.
pub trait ResetClient: Send + Sync {
    /// The device is about to be reset: from when this returns on it must not be touched any more.
    /// If it is not `reachable`, because of an error, it must not be touched even now. It will be
    /// unbound and bound again soon, unless it stays unreachable. Process context, with the
    /// device's lock held; may sleep, and must not drop the [`ResetWatch`].
    fn lost(this: &Arc<Self>, reachable: bool);
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
