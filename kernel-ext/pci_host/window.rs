// SPDX-License-Identifier: GPL-2.0-only

//! Windows of a bridge.

use crate::bindings;
use kernel::prelude::*;

/// CPU addresses that reach BARs of devices behind a bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// First CPU address. If the parent is a PCI device or below a PCI device, the address is in a
    /// BAR of that device.
    pub cpu: u64,
    /// First address on the bus of the devices, where their BARs are.
    pub bus: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// True for a window that is only for prefetchable BARs. Other windows are for all BARs.
    pub prefetchable: bool,
}

impl Window {
    /// Returns true if the window has addresses, none of which overflow.
    pub(super) fn is_valid(&self) -> bool {
        let fits = |start: u64| self.bytes > 0 && start.checked_add(self.bytes - 1).is_some();
        fits(self.cpu) && fits(self.bus)
    }

    /// Returns true if both windows have common bus addresses.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.bus <= other.bus + (other.bytes - 1) && other.bus <= self.bus + (self.bytes - 1)
    }

    /// Returns the window as a resource of the kernel.
    pub(super) fn resource(&self) -> bindings::resource {
        let end = self.cpu + (self.bytes - 1);
        let mut flags = bindings::IORESOURCE_MEM;
        if self.prefetchable {
            flags |= bindings::IORESOURCE_PREFETCH;
        }
        if end >> 32 != 0 {
            flags |= bindings::IORESOURCE_MEM_64;
        }
        bindings::resource {
            start: self.cpu,
            end,
            flags: flags as c_ulong,
            name: c"PCI of another node".as_char_ptr(),
            ..pin_init::zeroed()
        }
    }
}
