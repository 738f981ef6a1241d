// SPDX-License-Identifier: GPL-2.0-only

//! What the PCI core's objects refer to, and those objects.

use super::{behind::Behind, config, Pool};
use crate::bindings;
use kernel::{
    container_of,
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta},
    types::Opaque,
};

/// BARs of a function.
const BARS: usize = 6;
/// How often, and with what pause, references to devices that are gone are waited for: 2 s.
const PATIENCE: u32 = 200;
const PAUSE: Delta = Delta::from_millis(10);

/// What the PCI core's objects refer to: lives as long as they do.
#[pin_data]
pub(super) struct Shared {
    #[pin]
    pub(super) host: Opaque<bindings::extoll_pci_host>,
    pub(super) behind: Arc<Behind>,
    pub(super) pool: Arc<Pool>,
    /// The bus's number, then the windows. Their places in memory don't change.
    pub(super) resources: KVec<Opaque<bindings::resource>>,
}

impl Shared {
    /// That of a bus.
    ///
    /// # Safety
    ///
    /// `bus` is one of our bridges', and is not freed while the result is used.
    pub(super) unsafe fn of_bus<'a>(bus: *mut bindings::pci_bus) -> &'a Self {
        // SAFETY: by the requirements; `Bridge::attach` has set it to the field of a `Shared`, which is kept as long as the bus.
        unsafe {
            let sysdata: *mut bindings::pci_sysdata = (*bus).sysdata.cast();
            let host = container_of!(sysdata, bindings::extoll_pci_host, sysdata);
            let host: *mut Opaque<bindings::extoll_pci_host> = host.cast();
            &*container_of!(host, Self, host)
        }
    }
}

/// A device appears, behind one of our bridges or not. The notifier of each bridge does the same to the devices of all.
pub(super) fn added(pdev: *mut bindings::pci_dev) {
    // SAFETY: the device is alive; the table is that of our bridges.
    let host = unsafe { bindings::extoll_pci_host_of(pdev, config::operations().cast()) };
    if !host.is_null() {
        // SAFETY: no driver is bound to it, as it is being added. Its bus has the sysdata that the operations need.
        unsafe { bindings::extoll_pci_dma_set(pdev) };
    }
}

/// Looks at a device that was found; `found`: a `Result<u32>`, how many are good.
///
/// # Safety
///
/// To be called by `pci_walk_bus` in [`Bridge::scan`].
pub(super) unsafe extern "C" fn inspect(pdev: *mut bindings::pci_dev, found: *mut c_void) -> c_int {
    // SAFETY: by the requirements.
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

/// Whether nobody else has a reference to a bridge or a device behind it, at last. Sleeps.
pub(super) fn alone(bridge: *mut bindings::pci_host_bridge) -> bool {
    // SAFETY: the caller has a reference.
    let references = || unsafe { bindings::extoll_pci_bridge_references(bridge) };
    for _ in 0..PATIENCE {
        if references() == 1 {
            return true;
        }
        fsleep(PAUSE);
    }
    references() == 1
}
