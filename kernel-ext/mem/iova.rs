// SPDX-License-Identifier: GPL-2.0-only

//! Addresses of a device behind an IOMMU, to which pages are linked and from which they are taken.

use super::{BoundDevice, PAGE};
use crate::bindings;
use kernel::{dma::DataDirection, error::to_result, prelude::*};

/// Contiguous addresses of a device, that lead nowhere until pages are linked to them.
///
/// One that is merely dropped stays reserved for ever, as nobody knows then whether pages are linked.
pub struct IovaRange {
    range: bindings::extoll_iova,
    binding: u64,
}

impl IovaRange {
    /// Reserves addresses of whole pages; `None` without an IOMMU that translates, or if there are
    /// not so many left. Any context.
    pub fn new(dev: &BoundDevice, bytes: usize) -> Option<Self> {
        if bytes == 0 || bytes % PAGE != 0 {
            return None;
        }
        let mut range = bindings::extoll_iova { base: 0, size: 0 };
        // SAFETY: the device is bound, the range is ours.
        unsafe { bindings::extoll_iova_alloc(dev.as_raw(), &mut range, bytes) }.then_some(Self {
            range,
            binding: dev.binding(),
        })
    }

    /// The first address, at the beginning of a page.
    pub fn base(&self) -> u64 {
        self.range.base
    }

    /// So many bytes.
    pub fn bytes(&self) -> usize {
        self.range.size as usize
    }

    /// Whether it is of this binding, and has these whole pages.
    fn has(&self, dev: &BoundDevice, at: usize, bytes: usize) -> bool {
        let whole = at % PAGE == 0 && bytes % PAGE == 0 && bytes != 0;
        let end = at.checked_add(bytes);
        self.binding == dev.binding() && whole && end.is_some_and(|end| end <= self.bytes())
    }

    /// Has `bytes` bytes from offset `at` on lead to memory from physical address `phys` on, all
    /// whole pages. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for what is not whole pages of the range, and for another binding. `ENOMEM`.
    ///
    /// # Safety
    ///
    /// Nothing is linked there. The pages are RAM that the device may access in this direction
    /// until they are unlinked.
    pub unsafe fn link(
        &self,
        dev: &BoundDevice,
        at: usize,
        phys: u64,
        bytes: usize,
        direction: DataDirection,
    ) -> Result {
        if !self.has(dev, at, bytes) || phys % PAGE as u64 != 0 {
            return Err(EINVAL);
        }
        let (range, direction) = (&raw const self.range, direction.into());
        // SAFETY: by the requirements; the device is bound, and the range is of this binding.
        to_result(unsafe {
            bindings::extoll_iova_link(dev.as_raw(), range, at, phys, bytes, direction)
        })
    }

    /// Takes pages away: the device does not reach them any more when this returns. False for what
    /// [`Self::link`] would refuse. Any context.
    ///
    /// # Safety
    ///
    /// They are linked, in this direction.
    pub unsafe fn unlink(
        &self,
        dev: &BoundDevice,
        at: usize,
        bytes: usize,
        direction: DataDirection,
    ) -> bool {
        if !self.has(dev, at, bytes) {
            return false;
        }
        let (range, direction) = (&raw const self.range, direction.into());
        // SAFETY: as in `link`.
        unsafe { bindings::extoll_iova_unlink(dev.as_raw(), range, at, bytes, direction) };
        true
    }

    /// Gives the addresses back; false for another binding. Any context.
    ///
    /// # Safety
    ///
    /// No pages are linked.
    pub unsafe fn free(self, dev: &BoundDevice) -> bool {
        if self.binding != dev.binding() {
            return false;
        }
        // SAFETY: by the requirements; the device is bound, and the range is of this binding.
        unsafe { bindings::extoll_iova_free(dev.as_raw(), &raw const self.range) };
        true
    }
}
