// SPDX-License-Identifier: GPL-2.0-only

//! Memory of regions: its DMA mapping and its table entries.
//!
//! The functions acquire no locks. Their comments state the contexts.

use super::{tables::TableRange, Access};
use crate::context::Context;
use kernel::{prelude::*, sync::Arc};
use kernel_ext::{
    barrier,
    mem::{PageList, PreallocatedTable, StreamingPages, StreamingPrealloc, PAGE},
};
use protocol::nic::nla::{cut, Placement, SIZE_CODES};
use wire::ids::{BusAddr, Vpid};

/// DMA-mapped memory of a region.
pub(super) enum Memory {
    /// Pages with a scatterlist that was allocated for this mapping.
    Pages(StreamingPages),
    /// Pages in a scatterlist that a reserve allocated in advance.
    Room(StreamingPrealloc),
}

/// Number of hardware pages of each of [`SIZE_CODES`].
pub(super) type HwPages = [u64; SIZE_CODES.len()];

impl Memory {
    /// Maps a list of pages for the NIC. May sleep.
    pub(super) fn map(ctx: &Context, pages: Arc<PageList>, access: Access) -> Result<Self> {
        // Keeps a second reference until the device lock is released, because dropping the last one
        // may sleep.
        let kept = pages.clone();
        let mapped = ctx.with_bound(|dev| StreamingPages::map(dev, pages, access.write));
        drop(kept);
        mapped?.map(Memory::Pages)
    }

    /// Maps a list of pages with the preallocated scatterlist `room`. Any context.
    ///
    /// # Errors
    ///
    /// Returns `room` with the error, unless the device was removed.
    pub(super) fn map_in(
        ctx: &Context,
        room: PreallocatedTable,
        pages: &Arc<PageList>,
        access: Access,
    ) -> Result<Self, (Option<PreallocatedTable>, Error)> {
        let mapped =
            ctx.with_bound_atomic(|dev| StreamingPrealloc::map(dev, room, pages, access.write));
        match mapped {
            Ok(Ok(map)) => Ok(Memory::Room(map)),
            Ok(Err((room, e))) => Err((Some(room), e)),
            Err(e) => Err((None, e)),
        }
    }

    /// Calls `f` with the bus address and the length in bytes of each segment.
    fn segments(&self, mut f: impl FnMut(u64, u64)) {
        match self {
            Memory::Pages(map) => map
                .segments()
                .for_each(|(addr, pages)| f(addr, pages * PAGE as u64)),
            Memory::Room(map) => map
                .segments()
                .for_each(|(addr, pages)| f(addr, pages * PAGE as u64)),
        }
    }

    /// Calls `f` with the bus address and the number of pages of each segment.
    /// [`Memory::placement`] has checked that each segment consists of whole pages.
    fn runs(&self, mut f: impl FnMut(BusAddr, u64)) {
        self.segments(|addr, bytes| f(BusAddr(addr), bytes / PAGE as u64));
    }

    /// Returns the best alignment and the number of pages of a region for this memory. `largest` is
    /// the largest size code of hardware pages. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` unless all segments are whole pages; `EIO` if an address is in the range that
    /// raises interrupts.
    pub(super) fn placement(&self, largest: u8) -> Result<Placement> {
        let mut placement = Placement::new(largest);
        let mut result = Ok(());
        self.segments(|addr, bytes| {
            if addr % PAGE as u64 != 0 || bytes % PAGE as u64 != 0 || bytes == 0 {
                result = Err(EINVAL);
            } else if BusAddr(addr).meets_interrupts(bytes) {
                result = Err(EIO);
            } else {
                placement.add(BusAddr(addr), bytes / PAGE as u64);
            }
        });
        match result {
            Ok(()) if placement.pages() == 0 => Err(EINVAL),
            result => result.map(|()| placement),
        }
    }

    /// Writes the table entries for the memory and calls `between` after each segment. After an
    /// error, the entries written so far remain. Works in any context in which `between` can be
    /// called.
    ///
    /// # Errors
    ///
    /// `EINVAL` if an address or a page number is out of range.
    pub(super) fn write_entries(
        &self,
        table_range: &TableRange,
        vpid: Vpid,
        access: Access,
        largest: u8,
        between: impl Fn(),
    ) -> Result<HwPages> {
        let mut page = table_range.range.first;
        let mut hw_pages = HwPages::default();
        let mut result = Ok(());
        self.runs(|addr, pages| {
            if result.is_ok() {
                let mut all = cut(page, addr, pages, largest);
                result = all.try_for_each(|hw_page| {
                    let entry = hw_page
                        .entry(vpid, access.read, access.write)
                        .ok_or(EINVAL)?;
                    for (n, code) in hw_pages.iter_mut().zip(SIZE_CODES) {
                        *n += u64::from(code == hw_page.code);
                    }
                    (hw_page.first..hw_page.first + (1 << hw_page.code))
                        .try_for_each(|page| table_range.write(page, entry.raw()).ok_or(EINVAL))
                });
            }
            page += pages;
            between();
        });
        // The entries must be visible before the NIC or a peer gets an NLA.
        barrier::wmb();
        result.map(|()| hw_pages)
    }

    /// Returns the pages; `None` for memory of a reserve, which is never user memory.
    pub(super) fn pages(&self) -> Option<&Arc<PageList>> {
        match self {
            Memory::Pages(map) => Some(map.pages()),
            Memory::Room(_) => None,
        }
    }

    /// Unmaps the memory and drops its pages. The NIC must no longer access it. May sleep.
    pub(super) fn release(self, ctx: &Context) {
        if let Memory::Pages(map) = self {
            // Cannot fail: unbinding waits until all regions have ended.
            let pages = ctx.with_bound(|dev| map.unmap(dev));
            // Dropped without the device lock, because unpinning takes long and the pages' owner
            // may need the device.
            drop(pages);
        }
    }

    /// Unmaps memory of a reserve and returns its pages and its scatterlist. Does not sleep or
    /// allocate memory. If dropping the pages requires sleeping, the caller drops them in process
    /// context.
    pub(super) fn unmap(self, ctx: &Context) -> Option<(Arc<PageList>, PreallocatedTable)> {
        match self {
            Memory::Room(map) => ctx
                .with_bound_atomic(|dev| map.unmap(dev).ok())
                .ok()
                .flatten(),
            Memory::Pages(_) => None,
        }
    }
}
