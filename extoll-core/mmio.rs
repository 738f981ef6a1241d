// SPDX-License-Identifier: GPL-2.0-only

//! Mapped parts of BAR0: the register file (uncached) and the requester windows (write-combining); and parts of BAR2.
//!
//! `kernel::pci::Bar` maps a whole BAR with one attribute; this NIC needs two attributes in one BAR (HW §1.2),
//! hence own mappings. All accesses are single, aligned, 64 bits wide (HW §0).

#![allow(unsafe_code)]

use core::ptr::NonNull;
use kernel::{bindings, ffi::c_void, prelude::*, sync::Arc};
use kernel_ext::{
    chardev::{Cache, Frame, Source},
    pci::Region,
};
use wire::{ids::RegOffset, wcbuf::MARK};

/// Pages of a BAR to be mapped by processes, which the owner of the BAR has to revoke before it gives the BAR up.
struct Pages {
    phys: u64,
    pages: usize,
    cache: Cache,
}

// SAFETY: device memory of a BAR; `user::Devices` revokes all mappings before the NIC is unbound.
unsafe impl Source for Pages {
    fn frame(&self, index: usize) -> Option<Frame> {
        (index < self.pages).then(|| Frame::device(self.phys + ((index as u64) << 12), self.cache))
    }
}

/// `pages` pages from `offset` in a window of `size` bytes at physical address `phys`, charged to the calling
/// process. May sleep.
///
/// # Errors
///
/// `EINVAL` if they are not in the window, `ENOMEM`.
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
pub(crate) struct Window {
    mapping: Mapping,
    /// Fences are marked, see [`Window::mark_fences`].
    mark: bool,
}

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
        Ok(Self {
            mapping: Mapping::new(base, Self::SIZE)?,
            mark: false,
        })
    }

    /// From now on a store at [`MARK`] follows each fence. Only for an emulator that asked for it: what a chip makes of such a
    /// store is not known.
    pub(crate) fn mark_fences(&mut self) {
        self.mark = true;
    }

    /// Stores a packet from offset 0 of the page at `offset`, ascending, followed by a store fence (HW §9.1, G8). What the
    /// packet refers to in memory was stored before it.
    /// Any context. Pages outside the window and packets longer than a page are ignored.
    #[inline]
    pub(crate) fn push(&self, offset: u32, words: &[u64]) {
        // Write-combining stores are not ordered behind those to memory by the rules of processors, x86
        // included, where `dma_wmb()` is no instruction.
        kernel_ext::barrier::wmb();
        self.store_from(offset, 0, words);
    }

    /// Stores one word of a packet, followed by a store fence. Context and limits as for [`Window::push`].
    pub(crate) fn store(&self, offset: u32, index: usize, word: u64) {
        kernel_ext::barrier::wmb();
        self.store_from(offset, index, &[word]);
    }

    /// A store fence for the VPID of the page at `offset`, of which other processors have had one each
    /// ([`kernel_ext::barrier::wmb_everywhere`]): what was stored to its pages is out of them. Context and limits as for [`Window::push`].
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
            // SAFETY: page and index are within the mapping by the checks above; aligned volatile 64-bit stores
            // are single instructions on all 64-bit targets.
            unsafe { page.add(i).write_volatile(word.to_le()) };
        }
        kernel_ext::barrier::wmb();
        if self.mark {
            // SAFETY: the offset is within a page; the rest as above.
            unsafe { page.add(usize::from(MARK) / 8).write_volatile(0) };
        }
    }
}

/// A part of the SMFU window: memory of another node.
pub struct Remote(Mapping);

/// Sizes of single accesses to remote memory.
pub trait Word: Copy + PartialEq {
    /// All bits set: what a failed load gives.
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
                // SAFETY: mapped and aligned by `at`.
                Some(unsafe { bindings::$read(p) })
            }

            #[inline]
            fn store(self, remote: &Remote, offset: usize) -> Option<()> {
                let p = remote.at(offset, size_of::<Self>())?;
                // SAFETY: mapped and aligned by `at`.
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
    /// Maps `bytes` at physical address `phys`, write-combining or uncached. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if it cannot be mapped.
    pub(crate) fn map(phys: u64, bytes: usize, combine: bool) -> Result<Self> {
        let base = if combine {
            // SAFETY: maps device memory of a BAR that the caller claimed; the result is checked.
            unsafe { bindings::ioremap_wc(phys, bytes) }
        } else {
            // SAFETY: as above.
            unsafe { bindings::ioremap(phys, bytes) }
        };
        Ok(Self(Mapping::new(base, bytes)?))
    }

    /// Address of `bytes` bytes, a power of two, if they are inside and aligned.
    fn at(&self, offset: usize, bytes: usize) -> Option<*mut c_void> {
        if offset & bytes.wrapping_sub(1) != 0 || offset.checked_add(bytes)? > self.0.size {
            return None;
        }
        // SAFETY: within the mapping by the check above.
        Some(unsafe { self.0.base.as_ptr().add(offset) }.cast())
    }
}
