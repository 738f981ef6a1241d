// SPDX-License-Identifier: GPL-2.0-only

//! Memory for devices of other nodes where an IOMMU is in front of the NIC.

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

/// Memory as [`PoolWords`](crate::dma::PoolWords), and addresses behind it to which drivers' pages are linked as they are: for a NIC behind an IOMMU.
/// To be dropped before the NIC is unbound; later its memory and addresses stay reserved for ever, which the kernel log tells.
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
    /// `bytes`: of memory; `pages`: of addresses behind it, or 0; both whole pages. `None` without an IOMMU. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `ENOMEM`, `ENODEV`; `EIO` for addresses that mean interrupts to the NIC.
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
                // SAFETY: nothing is linked yet. The memory is kept until it is unlinked, or for ever.
                unsafe {
                    let phys = memory.phys();
                    range.link(dev, 0, phys, bytes, DataDirection::Bidirectional)
                }
            };
            if let Err(e) = linked {
                // SAFETY: nothing is linked.
                unsafe { range.free(dev) };
                return Err(e);
            }
            // INVARIANT: linked above.
            let this = place.write(Self {
                ctx: ctx.clone(),
                range: ManuallyDrop::new(range),
                memory: ManuallyDrop::new(memory),
            });
            Ok(Some(this.into()))
        })?
    }

    /// Whether it was made for this device.
    pub(crate) fn is_of(&self, dev: &device::Device) -> bool {
        core::ptr::eq(self.ctx.device(), dev)
    }

    /// First address for the NIC.
    pub fn address(&self) -> BusAddr {
        BusAddr(self.range.base())
    }

    /// Whether there are addresses behind the memory: without them it is no [`PageMap`] that pools take.
    pub fn has_pages(&self) -> bool {
        self.range.bytes() > self.memory.bytes()
    }

    /// Bytes, of memory and of the addresses behind it.
    pub fn all_bytes(&self) -> usize {
        self.range.bytes()
    }
}

impl Drop for PoolPages {
    fn drop(&mut self) {
        let bytes = self.memory.bytes();
        let ended = self.ctx.with_bound(|dev| {
            // SAFETY: by the type invariant. What drivers had linked was unlinked by the pool, which has the other reference.
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
                "{} bytes stay reserved for devices of other nodes\n",
                bytes
            );
        }
    }
}

// SAFETY: that of `Contiguous`, which is kept as long as the object or for ever.
unsafe impl PoolMemory for PoolPages {
    fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

// SAFETY: the IOMMU leads the NIC, which is how devices of other nodes come here, to the pages that are linked, as it is said,
// and nowhere when they are unlinked. If the NIC is gone, so is its way to memory.
unsafe impl PageMap for PoolPages {
    fn bytes(&self) -> usize {
        self.range.bytes() - self.memory.bytes()
    }

    /// # Safety
    ///
    /// As the trait says.
    unsafe fn link(&self, at: usize, phys: u64, bytes: usize, direction: DataDirection) -> Result {
        let at = at.checked_add(self.memory.bytes()).ok_or(EINVAL)?;
        let range = &self.range;
        self.ctx.with_bound_atomic(|dev| {
            // SAFETY: by the requirements; it is behind the memory.
            unsafe { range.link(dev, at, phys, bytes, direction) }
        })?
    }

    /// # Safety
    ///
    /// As the trait says.
    unsafe fn unlink(&self, at: usize, bytes: usize, direction: DataDirection) {
        let Some(at) = at.checked_add(self.memory.bytes()) else {
            return;
        };
        let range = &self.range;
        let _ = self.ctx.with_bound_atomic(|dev| {
            // SAFETY: by the requirements.
            unsafe { range.unlink(dev, at, bytes, direction) }
        });
    }
}
