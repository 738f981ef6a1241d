// SPDX-License-Identifier: GPL-2.0-only

//! Memory for pools.

use crate::{bindings, mem::PAGE};
use core::ptr::NonNull;
use kernel::{dma::DataDirection, prelude::*};

/// Memory from which a [`super::Pool`] can be made.
///
/// # Safety
///
/// At [`PoolMemory::start`] there are [`PoolMemory::bytes`] bytes: whole pages, contiguous in the
/// kernel's linear map, valid as long as the object lives. References to these bytes must not
/// exist. All accesses must tolerate concurrent accesses.
pub unsafe trait PoolMemory: Send + Sync + 'static {
    /// Returns the first byte, which is at the beginning of a page.
    fn start(&self) -> NonNull<u8>;

    /// Returns the size in bytes, a positive multiple of 4096.
    fn bytes(&self) -> usize;
}

/// Device addresses that follow those of a [`PoolMemory`], to which drivers' own pages are linked
/// while they are mapped.
///
/// # Safety
///
/// Devices can access only the memory that was passed to [`PageMap::link`], only in that direction,
/// and not after [`PageMap::unlink`] has returned.
pub unsafe trait PageMap: Send + Sync + 'static {
    /// Returns the size in bytes, a positive multiple of 4096.
    fn bytes(&self) -> usize;

    /// Links whole pages at offset `at` to the memory at physical address `phys`. Any context.
    ///
    /// # Errors
    ///
    /// An error means that memory is short, or that the NIC was removed.
    ///
    /// # Safety
    ///
    /// The pages are in the range, and none of them is linked. The memory is RAM that devices may
    /// access in this direction until it is unlinked.
    unsafe fn link(&self, at: usize, phys: u64, bytes: usize, direction: DataDirection) -> Result;

    /// Unlinks pages. Any context.
    ///
    /// # Safety
    ///
    /// Exactly these pages were linked by one call of [`PageMap::link`], in the same direction.
    unsafe fn unlink(&self, at: usize, bytes: usize, direction: DataDirection);
}

/// Returns true if an address is in the kernel's linear map, where contiguous addresses are
/// contiguous memory. Any context.
pub fn is_linear(address: *const u8) -> bool {
    // SAFETY: the function only compares the address.
    unsafe { bindings::extoll_is_linear(address.cast()) }
}

/// Contiguous pages of this host, zeroed when allocated and freed by drop.
///
/// # Invariants
///
/// `start` is the first of `pages` contiguous pages in the linear map, which this object owns.
pub struct Contiguous {
    start: NonNull<u8>,
    pages: usize,
}

// SAFETY: the pages are not tied to a thread, and they are accessed through raw pointers only.
unsafe impl Send for Contiguous {}
// SAFETY: all accesses tolerate concurrent accesses, and may be torn like accesses of a device.
unsafe impl Sync for Contiguous {}

impl Contiguous {
    /// Allocates pages, on NUMA node `node` if it has free memory (-1: any node). Sleeps. Large
    /// sizes need much time, because other pages have to be moved.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a size that is not whole pages; `ENOMEM`.
    pub fn new(bytes: usize, node: i32) -> Result<Self> {
        if bytes == 0 || bytes % PAGE != 0 {
            return Err(EINVAL);
        }
        let pages = bytes / PAGE;
        // SAFETY: the function has no preconditions.
        let start = unsafe { bindings::extoll_contiguous_alloc(pages, node) };
        // INVARIANT: the pages have just been allocated.
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(ENOMEM)?,
            pages,
        })
    }

    /// Returns the physical address of the first byte.
    pub fn phys(&self) -> u64 {
        // SAFETY: by the type invariant `start` is in the linear map.
        unsafe { bindings::extoll_linear_phys(self.start.as_ptr().cast()) }
    }

    /// Returns the address of the `len` bytes at `at`; `EINVAL` if they are outside.
    fn part(&self, at: usize, len: usize) -> Result<*mut u8> {
        match at.checked_add(len) {
            // SAFETY: the offset is within the pages.
            Some(end) if end <= self.bytes() => Ok(unsafe { self.start.as_ptr().add(at) }),
            _ => Err(EINVAL),
        }
    }

    /// Copies bytes from the memory, like a device that reads. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range exceeds the memory.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result {
        let from = self.part(at, to.len())?;
        // SAFETY: both ranges are valid for `to.len()` bytes. The ranges do not overlap, because no
        // reference to this memory exists.
        unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes to the memory, like a device that writes. Any context.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Contiguous::read`].
    pub fn write(&self, at: usize, from: &[u8]) -> Result {
        let to = self.part(at, from.len())?;
        // SAFETY: the reasons given in `read` apply.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }
}

impl Drop for Contiguous {
    fn drop(&mut self) {
        // SAFETY: by the type invariant this object owns the pages; they are not used any more.
        unsafe { bindings::extoll_contiguous_free(self.start.as_ptr().cast(), self.pages) };
    }
}

// SAFETY: by the type invariant the pages are contiguous and live with the object; all accesses are
// through raw pointers.
unsafe impl PoolMemory for Contiguous {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn bytes(&self) -> usize {
        self.pages * PAGE
    }
}
