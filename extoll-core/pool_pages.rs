// SPDX-License-Identifier: GPL-2.0-only

//! Memory for devices of other nodes, for a NIC behind an IOMMU. Making and dropping it may sleep.
//! Pages are linked and unlinked in any context.

#![allow(unsafe_code)]

use crate::context::Context;
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    device,
    dma::DataDirection,
    prelude::*,
    sync::{Arc, UniqueArc},
};
use kernel_ext::{
    mem::{self, IovaRange},
    pci::is_translated,
    pci_host::{Contiguous, PageMap, PoolMemory},
};
use wire::ids::BusAddr;

/// Memory like [`PoolWords`](crate::dma::PoolWords), followed by I/O addresses to which pages of
/// drivers are linked without a copy. Used for a NIC behind an IOMMU. Must be dropped before the
/// NIC is unbound. A later drop leaks the memory and the addresses, and logs that.
///
/// # Invariants
///
/// The first [`PoolMemory::bytes`] bytes of the range are linked to the memory.
pub struct PoolPages {
    ctx: Arc<Context>,
    range: ManuallyDrop<IovaRange>,
    memory: ManuallyDrop<Contiguous>,
}

impl PoolPages {
    /// Allocates `bytes` bytes of memory, followed by `pages` bytes of I/O addresses (may be 0).
    /// Both sizes are multiples of the page size. Returns `None` if there is no IOMMU. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `ENOMEM`, `ENODEV`; `EIO` if the bus addresses are in the range that raises
    /// interrupts.
    pub(crate) fn new(ctx: &Arc<Context>, bytes: usize, pages: usize) -> Result<Option<Arc<Self>>> {
        let all = bytes.checked_add(pages).ok_or(EINVAL)?;
        if bytes == 0 || (bytes | pages) % mem::PAGE != 0 {
            return Err(EINVAL);
        }
        ctx.with_bound(|dev| {
            if !is_translated(dev) {
                return Ok(None);
            }
            let memory = Contiguous::new(bytes, dev.numa_node())?;
            let place = UniqueArc::new_uninit(GFP_KERNEL)?;
            let range = IovaRange::new(dev, all).ok_or(ENOMEM)?;
            let linked = if BusAddr(range.base()).meets_interrupts(all as u64) {
                Err(EIO)
            } else {
                // SAFETY: the range is not linked yet. The memory is kept until it is unlinked, or
                // leaked.
                unsafe {
                    let phys = memory.phys();
                    range.link(dev, 0, phys, bytes, DataDirection::Bidirectional)
                }
            };
            if let Err(e) = linked {
                // SAFETY: the range is not linked.
                unsafe { range.free(dev) };
                return Err(e);
            }
            // INVARIANT: the memory was linked above.
            let this = place.write(Self {
                ctx: ctx.clone(),
                range: ManuallyDrop::new(range),
                memory: ManuallyDrop::new(memory),
            });
            Ok(Some(this.into()))
        })?
    }

    /// Returns whether the memory was allocated for this device.
    pub(crate) fn is_of(&self, dev: &device::Device) -> bool {
        core::ptr::eq(self.ctx.device(), dev)
    }

    /// Returns the first bus address.
    pub fn address(&self) -> BusAddr {
        BusAddr(self.range.base())
    }

    /// Returns whether I/O addresses for pages follow the memory. Without them, pools cannot use
    /// this object as a [`PageMap`].
    pub fn has_pages(&self) -> bool {
        self.range.bytes() > self.memory.bytes()
    }

    /// Returns the total size in bytes of the memory and of the I/O addresses.
    pub fn all_bytes(&self) -> usize {
        self.range.bytes()
    }
}

impl Drop for PoolPages {
    fn drop(&mut self) {
        let bytes = self.memory.bytes();
        let ended = self.ctx.with_bound(|dev| {
            // SAFETY: by the type invariant, the memory is linked. The pool has unlinked all pages
            // of drivers before it dropped its reference.
            unsafe {
                if !self
                    .range
                    .unlink(dev, 0, bytes, DataDirection::Bidirectional)
                {
                    return false;
                }
                ManuallyDrop::take(&mut self.range).free(dev);
                ManuallyDrop::drop(&mut self.memory);
            }
            true
        });
        if ended != Ok(true) {
            dev_warn!(
                self.ctx.device(),
                "leaking {} bytes of memory that devices of other nodes may still access\n",
                bytes
            );
        }
    }
}

// SAFETY: guaranteed by `Contiguous`, which is kept as long as the object, or leaked.
unsafe impl PoolMemory for PoolPages {
    fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

// SAFETY: devices of other nodes access memory through the NIC. The IOMMU maps the NIC's accesses
// to the linked pages in the requested direction only, and blocks them after the unlinking. A
// removed NIC cannot access memory.
unsafe impl PageMap for PoolPages {
    fn bytes(&self) -> usize {
        self.range.bytes() - self.memory.bytes()
    }

    /// # Safety
    ///
    /// The safety requirements are those of the trait.
    unsafe fn link(&self, at: usize, phys: u64, bytes: usize, direction: DataDirection) -> Result {
        let at = at.checked_add(self.memory.bytes()).ok_or(EINVAL)?;
        let range = &self.range;
        self.ctx.with_bound_atomic(|dev| {
            // SAFETY: The caller meets the safety requirements of this function. The addresses
            // follow those of the memory.
            unsafe { range.link(dev, at, phys, bytes, direction) }
        })?
    }

    /// # Safety
    ///
    /// The safety requirements are those of the trait.
    unsafe fn unlink(&self, at: usize, bytes: usize, direction: DataDirection) {
        let Some(at) = at.checked_add(self.memory.bytes()) else {
            return;
        };
        let range = &self.range;
        let _ = self.ctx.with_bound_atomic(|dev| {
            // SAFETY: The caller meets the safety requirements of this function.
            unsafe { range.unlink(dev, at, bytes, direction) }
        });
    }
}
