// SPDX-License-Identifier: GPL-2.0-only

//! Windows of a bridge.

use crate::bindings;
use kernel::prelude::*;

/// Addresses of the processor that lead to BARs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The first, for the processor: in a BAR of the parent, if that is a PCI device or below one.
    pub cpu: u64,
    /// The same on the devices' bus: what their BARs are to hold.
    pub bus: u64,
    /// Bytes.
    pub bytes: u64,
    /// For prefetchable BARs, and only for those. Others are for both.
    pub prefetchable: bool,
}

impl Window {
    /// Whether there are such addresses.
    pub(super) fn is_possible(&self) -> bool {
        let fits = |start: u64| self.bytes > 0 && start.checked_add(self.bytes - 1).is_some();
        fits(self.cpu) && fits(self.bus)
    }

    /// Whether both have addresses of the bus.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.bus <= other.bus + (other.bytes - 1) && other.bus <= self.bus + (self.bytes - 1)
    }

    /// As the kernel has it.
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
