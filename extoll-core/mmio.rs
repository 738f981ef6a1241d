// SPDX-License-Identifier: GPL-2.0-only

//! Mappings of BAR 0, i.e. the register file (uncached) and the requester windows
//! (write-combining), and mappings of parts of BAR 2.
//!
//! `kernel::pci::Bar` maps a whole BAR with one attribute, but this NIC needs two attributes in BAR
//! 0 (HW §1.2). All accesses are single, aligned and 64 bits wide (HW §0). Accesses work in any
//! context and without locks. Mapping may sleep.

#![allow(unsafe_code)]

use core::ptr::NonNull;
use kernel::{bindings, ffi::c_void, prelude::*, sync::Arc};
use kernel_ext::{
    chardev::{Cache, Frame, Source},
    pci::Region,
};
use wire::{ids::RegOffset, wcbuf::MARK};

/// Pages of a BAR that processes can map. The owner of the BAR must revoke the mappings before it
/// releases the BAR.
struct Pages {
    phys: u64,
    pages: usize,
    cache: Cache,
}

// SAFETY: the frames are device memory of a BAR, and `user::Devices` revokes all mappings before
// the NIC is unbound.
unsafe impl Source for Pages {
    fn frame(&self, index: usize) -> Option<Frame> {
        (index < self.pages).then(|| Frame::device(self.phys + ((index as u64) << 12), self.cache))
    }
}

/// Returns `pages` pages from byte `offset` of a window on. The window has `size` bytes and begins
/// at physical address `phys`. The object is charged to the calling process. May sleep.
///
/// # Errors
///
/// `EINVAL` if the pages are outside of the window; `ENOMEM`.
pub(crate) fn pages(
    phys: u64,
    size: u64,
    offset: u64,
    pages: usize,
    cache: Cache,
) -> Result<Arc<dyn Source>> {
    let end = offset + ((pages as u64) << 12);
    if offset % 4096 != 0 || end > size {
        return Err(EINVAL);
    }
    let phys = phys + offset;
    Ok(Arc::new(Pages { phys, pages, cache }, GFP_KERNEL_ACCOUNT)?)
}

/// Mapped physical address range. Drop unmaps it.
struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: an ioremap mapping is valid in every context and on every CPU.
unsafe impl Send for Mapping {}
// SAFETY: An ioremap mapping is valid on every CPU, and concurrent device accesses do not affect
// memory safety.
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
        // SAFETY: `base` was returned by ioremap or ioremap_wc, and `self` is the last reference to
        // the mapping.
        unsafe { bindings::iounmap(self.base.as_ptr().cast()) };
    }
}

/// Register file, mapped uncached.
pub(crate) struct RegisterFile(Mapping);

impl RegisterFile {
    /// Maps the register file at physical address `phys` in `bar`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if it cannot be mapped, `EINVAL` if it is outside of the BAR.
    pub(crate) fn map(bar: &Region<'_>, phys: u64) -> Result<Self> {
        let size = RegOffset::WINDOW as usize;
        if !bar.contains(phys, size as u64) {
            return Err(EINVAL);
        }
        // SAFETY: the range is device memory of a BAR that `bar` has claimed, by the check above;
        // `Mapping::new` checks the result.
        let base = unsafe { bindings::ioremap(phys, size) };
        Ok(Self(Mapping::new(base, size)?))
    }

    fn address(&self, reg: RegOffset) -> Option<*mut c_void> {
        if !reg.is_valid() || reg.get() as usize + 8 > self.0.size {
            return None;
        }
        // SAFETY: the offset is within the mapping by the check above.
        Some(unsafe { self.0.base.as_ptr().add(reg.get() as usize) }.cast())
    }

    /// Reads a register. Returns 0 for an offset outside of the register file, and all ones if the
    /// device was removed. Any context.
    #[inline]
    pub(crate) fn read(&self, reg: RegOffset) -> u64 {
        match self.address(reg) {
            // SAFETY: `address` returns valid and aligned addresses only.
            Some(p) => unsafe { bindings::readq(p) },
            None => 0,
        }
    }

    /// Writes a register. Does nothing for an offset outside of the register file. Any context.
    #[inline]
    pub(crate) fn write(&self, reg: RegOffset, value: u64) {
        if let Some(p) = self.address(reg) {
            // SAFETY: `address` returns valid and aligned addresses only.
            unsafe { bindings::writeq(value, p) }
        }
    }

    /// Reads a register and writes the value that `f` returns. Not atomic.
    pub(crate) fn update(&self, reg: RegOffset, f: impl FnOnce(u64) -> u64) {
        self.write(reg, f(self.read(reg)));
    }
}

/// Window of requester pages, mapped write-combining.
pub(crate) struct Window {
    mapping: Mapping,
    /// Set if a marker store follows each fence; see [`Window::mark_fences`].
    mark: bool,
}

impl Window {
    /// Size in bytes of the VELO and of the RMA window (HW §1.2).
    pub(crate) const SIZE: usize = 0x0200_0000;

    /// Maps the window at physical address `phys` in `bar`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if it cannot be mapped, `EINVAL` if it is outside of the BAR.
    pub(crate) fn map(bar: &Region<'_>, phys: u64) -> Result<Self> {
        if !bar.contains(phys, Self::SIZE as u64) {
            return Err(EINVAL);
        }
        // SAFETY: the range is device memory of a BAR that `bar` has claimed, by the check above;
        // `Mapping::new` checks the result.
        let base = unsafe { bindings::ioremap_wc(phys, Self::SIZE) };
        Ok(Self {
            mapping: Mapping::new(base, Self::SIZE)?,
            mark: false,
        })
    }

    /// Makes a store at [`MARK`] follow each fence. Used only for an emulator that requests it,
    /// because the effect of such a store on a chip is unknown.
    pub(crate) fn mark_fences(&mut self) {
        self.mark = true;
    }

    /// Stores the words of a packet in ascending order to the page at `offset`, followed by a store
    /// fence (HW §9.1, G8). Earlier stores to memory, to which the packet refers, become visible
    /// first. Does nothing for a page outside of the window or a packet longer than a page. Any
    /// context.
    #[inline]
    pub(crate) fn push(&self, offset: u32, words: &[u64]) {
        // CPUs may reorder write-combining stores with earlier stores to memory. This includes x86
        // CPUs, for which `dma_wmb()` emits no instruction.
        kernel_ext::barrier::wmb();
        self.store_from(offset, 0, words);
    }

    /// Stores one word of a packet, followed by a store fence. Context and limits as for
    /// [`Window::push`].
    pub(crate) fn store(&self, offset: u32, index: usize, word: u64) {
        kernel_ext::barrier::wmb();
        self.store_from(offset, index, &[word]);
    }

    /// Fences the stores to the page at `offset`. After [`kernel_ext::barrier::wmb_everywhere`],
    /// all stores of other CPUs to the page have left the CPUs as well. Context and limits as for
    /// [`Window::push`].
    pub(crate) fn fence(&self, offset: u32) {
        self.store_from(offset, 0, &[]);
    }

    #[inline]
    fn store_from(&self, offset: u32, first: usize, words: &[u64]) {
        let offset = offset as usize;
        let end = first.saturating_add(words.len());
        if offset % 4096 != 0 || offset >= self.mapping.size || end > 4096 / 8 {
            return;
        }
        let page = self
            .mapping
            .base
            .as_ptr()
            .wrapping_add(offset)
            .cast::<u64>();
        for (i, word) in (first..).zip(words) {
            // SAFETY: page and index are within the mapping by the checks above. Aligned volatile
            // 64-bit stores are single instructions on all 64-bit targets.
            unsafe { page.add(i).write_volatile(word.to_le()) };
        }
        kernel_ext::barrier::wmb();
        if self.mark {
            // SAFETY: `MARK` is an offset within a page, and the page is within the mapping by the
            // checks above.
            unsafe { page.add(usize::from(MARK) / 8).write_volatile(0) };
        }
    }
}

/// Mapped part of the SMFU window: memory of another node.
pub struct Remote(Mapping);

/// Types with which remote memory can be accessed in a single access.
pub trait Word: Copy + PartialEq {
    /// All bits set: the result of a failed load.
    const ONES: Self;

    #[doc(hidden)]
    fn load(remote: &Remote, offset: usize) -> Option<Self>;

    #[doc(hidden)]
    fn store(self, remote: &Remote, offset: usize) -> Option<()>;
}

macro_rules! word {
    ($($ty:ty, $read:ident, $write:ident;)*) => {$(
        impl Word for $ty {
            const ONES: Self = Self::MAX;

            #[inline]
            fn load(remote: &Remote, offset: usize) -> Option<Self> {
                let p = remote.at(offset, size_of::<Self>())?;
                // SAFETY: `at` returns mapped and aligned addresses only.
                Some(unsafe { bindings::$read(p) })
            }

            #[inline]
            fn store(self, remote: &Remote, offset: usize) -> Option<()> {
                let p = remote.at(offset, size_of::<Self>())?;
                // SAFETY: `at` returns mapped and aligned addresses only.
                unsafe { bindings::$write(self, p) };
                Some(())
            }
        }
    )*};
}

word! {
    u8, readb, writeb;
    u16, readw, writew;
    u32, readl, writel;
    u64, readq, writeq;
}

impl Remote {
    /// Maps `bytes` bytes at physical address `phys`, write-combining if `combine` is set,
    /// otherwise uncached. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if it cannot be mapped.
    pub(crate) fn map(phys: u64, bytes: usize, combine: bool) -> Result<Self> {
        let base = if combine {
            // SAFETY: the caller has claimed the BAR that holds this device memory; `Mapping::new`
            // checks the result.
            unsafe { bindings::ioremap_wc(phys, bytes) }
        } else {
            // SAFETY: The caller has claimed the BAR that holds this device memory; `Mapping::new`
            // checks the result.
            unsafe { bindings::ioremap(phys, bytes) }
        };
        Ok(Self(Mapping::new(base, bytes)?))
    }

    /// Returns the address of `bytes` bytes at `offset`, if they are mapped and aligned. `bytes` is
    /// a power of two.
    fn at(&self, offset: usize, bytes: usize) -> Option<*mut c_void> {
        if offset & bytes.wrapping_sub(1) != 0 || offset.checked_add(bytes)? > self.0.size {
            return None;
        }
        // SAFETY: the offset is within the mapping by the check above.
        Some(unsafe { self.0.base.as_ptr().add(offset) }.cast())
    }
}
