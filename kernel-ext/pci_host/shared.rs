// SPDX-License-Identifier: GPL-2.0-only

//! State to which objects of the PCI core refer, and functions on these objects.

use super::{config, gate::FunctionsGate, Pool};
use crate::bindings;
use kernel::{
    container_of,
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta},
    types::Opaque,
};

/// Number of BARs of a function.
const BARS: usize = 6;
/// Number of checks for remaining references to removed devices; with a pause of `PAUSE` after each
/// check, 2 s in all.
const PATIENCE: u32 = 200;
const PAUSE: Delta = Delta::from_millis(10);

/// State to which objects of the PCI core refer. The state lives as long as these objects.
#[pin_data]
pub(super) struct Shared {
    #[pin]
    pub(super) host: Opaque<bindings::extoll_pci_host>,
    pub(super) gate: Arc<FunctionsGate>,
    pub(super) pool: Arc<Pool>,
    /// Resources of the bridge: the bus number, then the windows. Elements do not move in memory.
    pub(super) resources: KVec<Opaque<bindings::resource>>,
}

impl Shared {
    /// Returns the state of the bridge above a bus.
    ///
    /// # Safety
    ///
    /// `bus` belongs to a bridge of this module, and is not freed while the result is used.
    pub(super) unsafe fn of_bus<'a>(bus: *mut bindings::pci_bus) -> &'a Self {
        // SAFETY: by the function's requirements the bus is alive. `Bridge::attach` has set
        // `sysdata` to a field of a `Shared`, which lives as long as the bus.
        unsafe {
            let sysdata: *mut bindings::pci_sysdata = (*bus).sysdata.cast();
            let host = container_of!(sysdata, bindings::extoll_pci_host, sysdata);
            let host: *mut Opaque<bindings::extoll_pci_host> = host.cast();
            &*container_of!(host, Self, host)
        }
    }
}

/// Sets the DMA operations of a new device if it is behind a bridge of this module. The notifier of
/// each bridge calls this function for the devices of all bridges.
pub(super) fn added(pdev: *mut bindings::pci_dev) {
    // SAFETY: the device is alive. The table identifies the bridges of this module.
    let host = unsafe { bindings::extoll_pci_host_of(pdev, config::operations().cast()) };
    if !host.is_null() {
        // SAFETY: the device is being added, so no driver is bound. The device's bus has the
        // `sysdata` that the operations need.
        unsafe { bindings::extoll_pci_dma_set(pdev) };
    }
}

/// Checks a device that was found. `found` is a `Result<u32>` with the number of accepted devices.
///
/// # Safety
///
/// Only `pci_walk_bus` may call this function, in [`Bridge::scan`].
pub(super) unsafe extern "C" fn inspect(pdev: *mut bindings::pci_dev, found: *mut c_void) -> c_int {
    // SAFETY: by the function's requirements `found` points to a `Result<u32>` that only this call
    // uses.
    let found = unsafe { &mut *found.cast::<Result<u32>>() };
    // SAFETY: the device is alive.
    let (taken, bars) = unsafe {
        (
            bindings::extoll_pci_dma_taken(pdev),
            (*pdev).resource.iter().take(BARS),
        )
    };
    let kinds = (bindings::IORESOURCE_IO | bindings::IORESOURCE_MEM) as c_ulong;
    let outside = |r: &&bindings::resource| r.flags & kinds != 0 && r.parent.is_null();
    let bad = bars.clone().filter(outside).count();
    if let (Ok(n), false, 0) = (&mut *found, taken, bad) {
        *n += 1;
        return 0;
    }
    *found = Err(if taken { EOPNOTSUPP } else { ERANGE });
    1
}

/// Waits up to 2 s until the caller has the last reference to a bridge and its devices. Returns
/// false if other references remain. Sleeps.
pub(super) fn wait_unreferenced(bridge: *mut bindings::pci_host_bridge) -> bool {
    // SAFETY: the caller holds a reference.
    let references = || unsafe { bindings::extoll_pci_bridge_references(bridge) };
    for _ in 0..PATIENCE {
        if references() == 1 {
            return true;
        }
        fsleep(PAUSE);
    }
    references() == 1
}
