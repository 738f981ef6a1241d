// SPDX-License-Identifier: GPL-2.0-only

//! Memory of pools.

use crate::{bindings, mem::PAGE};
use core::ptr::NonNull;
use kernel::{dma::DataDirection, prelude::*};

/// Memory that a [`super::Pool`] can be made of.
///
/// # Safety
///
/// From [`PoolMemory::start`] on there are [`PoolMemory::bytes`] bytes of whole pages, contiguous in the kernel's linear map,
/// for as long as the object lives. There are no references to them, only accesses that bear others at the same time.
pub unsafe trait PoolMemory: Send + Sync + 'static {
    /// The first byte, at the beginning of a page.
    fn start(&self) -> NonNull<u8>;

    /// Bytes, a multiple of 4096 that is not 0.
    fn bytes(&self) -> usize;
}

/// Addresses that follow those of a [`PoolMemory`] for the devices, and lead to drivers' own pages while these are mapped.
///
/// # Safety
///
/// Devices reach what [`PageMap::link`] was told of, and no more of the driver's memory, in no other way than it says, and
/// nothing of it once [`PageMap::unlink`] has returned.
pub unsafe trait PageMap: Send + Sync + 'static {
    /// Bytes, a multiple of 4096 that is not 0.
    fn bytes(&self) -> usize;

    /// Has whole pages from offset `at` on lead to memory from physical address `phys` on. Any context.
    ///
    /// # Errors
    ///
    /// No memory, or the NIC is gone.
    ///
    /// # Safety
    ///
    /// They are in the range, nothing is linked there. The memory is RAM that devices may access so until it is unlinked.
    unsafe fn link(&self, at: usize, phys: u64, bytes: usize, direction: DataDirection) -> Result;

    /// Takes pages away again. Any context.
    ///
    /// # Safety
    ///
    /// They were linked, at once and in this direction.
    unsafe fn unlink(&self, at: usize, bytes: usize, direction: DataDirection);
}

/// Whether an address is in the kernel's linear map, in which what is contiguous is so in memory, too. Any context.
pub fn is_linear(address: *const u8) -> bool {
    // SAFETY: only the address is looked at.
    unsafe { bindings::extoll_is_linear(address.cast()) }
}

/// Contiguous pages of this host, zeroed when they are taken and given back by drop.
///
/// # Invariants
///
/// `start` is the beginning of so many pages of the linear map, which this object owns.
pub struct Contiguous {
    start: NonNull<u8>,
    pages: usize,
}

// SAFETY: the pages are not tied to a thread, and accessed through raw pointers only.
unsafe impl Send for Contiguous {}
// SAFETY: as above: reads and writes at the same time may be torn, as those of a device.
unsafe impl Sync for Contiguous {}

impl Contiguous {
    /// Takes pages, of NUMA node `node` if that has some (-1: no matter which). Sleeps; takes long for much memory, as what
    /// is in the way is moved.
    ///
    /// # Errors
    ///
    /// `EINVAL` for what is not whole pages; `ENOMEM`.
    pub fn new(bytes: usize, node: i32) -> Result<Self> {
        if bytes == 0 || bytes % PAGE != 0 {
            return Err(EINVAL);
        }
        let pages = bytes / PAGE;
        // SAFETY: no requirements.
        let start = unsafe { bindings::extoll_contiguous_alloc(pages, node) };
        // INVARIANT: taken just now.
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(ENOMEM)?,
            pages,
        })
    }

    /// Physical address of the first byte.
    pub fn phys(&self) -> u64 {
        // SAFETY: an address of the linear map.
        unsafe { bindings::extoll_linear_phys(self.start.as_ptr().cast()) }
    }

    /// Where `len` bytes from `at` on are; `EINVAL` if that is outside.
    fn part(&self, at: usize, len: usize) -> Result<*mut u8> {
        match at.checked_add(len) {
            // SAFETY: within the pages.
            Some(end) if end <= self.bytes() => Ok(unsafe { self.start.as_ptr().add(at) }),
            _ => Err(EINVAL),
        }
    }

    /// Copies bytes out, as a device would read them. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they are not all in the memory.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result {
        let from = self.part(at, to.len())?;
        // SAFETY: both are valid for so many bytes, and `to` is not in the memory, to which there are no references.
        unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes in, as a device would write them. Any context.
    ///
    /// # Errors
    ///
    /// As [`Contiguous::read`].
    pub fn write(&self, at: usize, from: &[u8]) -> Result {
        let to = self.part(at, from.len())?;
        // SAFETY: as in `read`.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }
}

impl Drop for Contiguous {
    fn drop(&mut self) {
        // SAFETY: by the invariant, and nobody uses them any more.
        unsafe { bindings::extoll_contiguous_free(self.start.as_ptr().cast(), self.pages) };
    }
}

// SAFETY: by the invariant, and by what the accesses above do.
unsafe impl PoolMemory for Contiguous {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn bytes(&self) -> usize {
        self.pages * PAGE
    }
}
