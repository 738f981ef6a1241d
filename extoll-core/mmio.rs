// SPDX-License-Identifier: GPL-2.0-only

//! Mapped parts of BAR0: the register file (uncached) and the requester windows (write-combining).
//!
//! `kernel::pci::Bar` maps a whole BAR with one attribute; this NIC needs two attributes in one BAR (HW §1.2),
//! hence own mappings. All accesses are single, aligned, 64 bits wide (HW §0).

#![allow(unsafe_code)]

use core::ptr::NonNull;
use kernel::{bindings, ffi::c_void, prelude::*};
use kernel_ext::pci::Region;
use wire::ids::RegOffset;

/// A mapped physical range, unmapped by drop.
struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is valid in every context and on every CPU.
unsafe impl Send for Mapping {}
// SAFETY: see `Send`; device accesses need no exclusion for memory safety.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(ptr: *mut c_void, size: usize) -> Result<Self> {
        Ok(Self {
            base: NonNull::new(ptr.cast()).ok_or(ENOMEM)?,
            size,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by ioremap or ioremap_wc, and nothing refers to it any more.
        unsafe { bindings::iounmap(self.base.as_ptr().cast()) };
    }
}

/// The register file, mapped uncached.
pub(crate) struct RegisterFile(Mapping);

impl RegisterFile {
    /// Maps the register file at physical address `phys` in `bar`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if it cannot be mapped, `EINVAL` if it is not in the BAR.
    pub(crate) fn map(bar: &Region<'_>, phys: u64) -> Result<Self> {
        let size = RegOffset::WINDOW as usize;
        if !bar.contains(phys, size as u64) {
            return Err(EINVAL);
        }
        // SAFETY: device memory by the check, in a BAR that `bar` has claimed; `Mapping::new` checks the result.
        let base = unsafe { bindings::ioremap(phys, size) };
        Ok(Self(Mapping::new(base, size)?))
    }

    fn address(&self, reg: RegOffset) -> Option<*mut c_void> {
        if !reg.is_valid() || reg.get() as usize + 8 > self.0.size {
            return None;
        }
        // SAFETY: within the mapping by the check above.
        Some(unsafe { self.0.base.as_ptr().add(reg.get() as usize) }.cast())
    }

    /// Reads a register. Any context. An offset outside the register file reads as 0. A removed device reads as
    /// all ones.
    #[inline]
    pub(crate) fn read(&self, reg: RegOffset) -> u64 {
        match self.address(reg) {
            // SAFETY: valid and aligned by `address`.
            Some(p) => unsafe { bindings::readq(p) },
            None => 0,
        }
    }

    /// Writes a register. Any context. An offset outside the register file is ignored.
    #[inline]
    pub(crate) fn write(&self, reg: RegOffset, value: u64) {
        if let Some(p) = self.address(reg) {
            // SAFETY: valid and aligned by `address`.
            unsafe { bindings::writeq(value, p) }
        }
    }

    /// Reads, changes and writes back a register; not atomic.
    pub(crate) fn update(&self, reg: RegOffset, f: impl FnOnce(u64) -> u64) {
        self.write(reg, f(self.read(reg)));
    }
}

/// A window of requester pages, mapped write-combining.
pub(crate) struct Window(Mapping);

impl Window {
    /// Size in bytes of the VELO and of the RMA window (HW §1.2).
    pub(crate) const SIZE: usize = 0x0200_0000;

    /// Maps the window at physical address `phys` in `bar`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if it cannot be mapped, `EINVAL` if it is not in the BAR.
    pub(crate) fn map(bar: &Region<'_>, phys: u64) -> Result<Self> {
        if !bar.contains(phys, Self::SIZE as u64) {
            return Err(EINVAL);
        }
        // SAFETY: device memory by the check, in a BAR that `bar` has claimed; `Mapping::new` checks the result.
        let base = unsafe { bindings::ioremap_wc(phys, Self::SIZE) };
        Ok(Self(Mapping::new(base, Self::SIZE)?))
    }

    /// Stores a packet from offset 0 of the page at `offset`, ascending, followed by a store fence (HW §9.1, G8).
    /// Any context. Pages outside the window and packets longer than a page are ignored.
    #[inline]
    pub(crate) fn push(&self, offset: u32, words: &[u64]) {
        let offset = offset as usize;
        if offset % 4096 != 0 || offset >= self.0.size || words.len() > 4096 / 8 {
            return;
        }
        let page = self.0.base.as_ptr().wrapping_add(offset).cast::<u64>();
        for (i, word) in words.iter().enumerate() {
            // SAFETY: page and index are within the mapping by the checks above; aligned volatile 64-bit stores
            // are single instructions on all 64-bit targets.
            unsafe { page.add(i).write_volatile(word.to_le()) };
        }
        kernel_ext::barrier::wmb();
    }
}
