// SPDX-License-Identifier: GPL-2.0-only

//! DMA addresses of a device behind an IOMMU, to which pages are linked and unlinked.

use super::{BoundDevice, PAGE};
use crate::bindings;
use kernel::{dma::DataDirection, error::to_result, prelude::*};

/// Contiguous DMA addresses of a device, invalid until pages are linked to them.
///
/// A dropped range stays reserved for ever, because pages may still be linked to it.
pub struct IovaRange {
    range: bindings::extoll_iova,
    binding: u64,
}

impl IovaRange {
    /// Reserves addresses for whole pages. Returns `None` if no IOMMU translates, or for lack of
    /// addresses. Any context.
    pub fn new(dev: &BoundDevice, bytes: usize) -> Option<Self> {
        if bytes == 0 || bytes % PAGE != 0 {
            return None;
        }
        let mut range = bindings::extoll_iova { base: 0, size: 0 };
        // SAFETY: the device is bound; `range` is a local variable.
        unsafe { bindings::extoll_iova_alloc(dev.as_raw(), &mut range, bytes) }.then_some(Self {
            range,
            binding: dev.binding(),
        })
    }

    /// Returns the first address, at the beginning of a page.
    pub fn base(&self) -> u64 {
        self.range.base
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.range.size as usize
    }

    /// Returns true if the range belongs to this binding and contains these whole pages.
    fn has(&self, dev: &BoundDevice, at: usize, bytes: usize) -> bool {
        let whole = at % PAGE == 0 && bytes % PAGE == 0 && bytes != 0;
        let end = at.checked_add(bytes);
        self.binding == dev.binding() && whole && end.is_some_and(|end| end <= self.bytes())
    }

    /// Links the addresses at offset `at` to the `bytes` bytes of memory at physical address
    /// `phys`, all whole pages. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the pages are not whole pages of the range, or for another binding. `ENOMEM`.
    ///
    /// # Safety
    ///
    /// The addresses must not be linked. The pages are RAM that the device may access in this
    /// direction until they are unlinked.
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
        // SAFETY: the function's requirements allow the call; the device is bound, and the range
        // belongs to this binding.
        to_result(unsafe {
            bindings::extoll_iova_link(dev.as_raw(), range, at, phys, bytes, direction)
        })
    }

    /// Unlinks pages. The device cannot access the pages any more when this function returns.
    /// Returns false for arguments that [`Self::link`] would reject. Any context.
    ///
    /// # Safety
    ///
    /// The pages are linked, in this direction.
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
        // SAFETY: the reasons given in `link` apply.
        unsafe { bindings::extoll_iova_unlink(dev.as_raw(), range, at, bytes, direction) };
        true
    }

    /// Frees the addresses. Returns false for another binding. Any context.
    ///
    /// # Safety
    ///
    /// No pages may be linked.
    pub unsafe fn free(self, dev: &BoundDevice) -> bool {
        if self.binding != dev.binding() {
            return false;
        }
        // SAFETY: the function's requirements allow the call; the device is bound, and the range
        // belongs to this binding.
        unsafe { bindings::extoll_iova_free(dev.as_raw(), &raw const self.range) };
        true
    }
}
