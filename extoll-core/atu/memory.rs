// SPDX-License-Identifier: GPL-2.0-only

//! Memory of regions as the NIC sees it, and the entries that lead there.

use super::{tables::Place, Access};
use crate::context::Context;
use kernel::{prelude::*, sync::Arc};
use kernel_ext::{
    barrier,
    mem::{DmaRoom, PageList, StreamingPages, StreamingRoom, PAGE},
};
use wire::{
    ids::{BusAddr, Vpid},
    nla::{cut, Placement, SIZE_CODES},
};

/// Memory of a region.
pub(super) enum Memory {
    /// Pages, mapped by the unit.
    Pages(StreamingPages),
    /// The same with a scatterlist that was made before.
    Room(StreamingRoom),
}

/// Number of hardware pages of each of [`SIZE_CODES`].
pub(super) type Nlps = [u64; SIZE_CODES.len()];

impl Memory {
    /// Maps a list of pages for the NIC. May sleep.
    pub(super) fn map(ctx: &Context, pages: Arc<PageList>, access: Access) -> Result<Self> {
        // Dropped without the lock, if there is an error.
        let kept = pages.clone();
        let mapped = ctx.with_bound(|dev| StreamingPages::map(dev, pages, access.write));
        drop(kept);
        mapped?.map(Memory::Pages)
    }

    /// Maps a list of pages with `room`. Any context.
    ///
    /// # Errors
    ///
    /// With the room, unless it is lost with the device.
    pub(super) fn map_in(
        ctx: &Context,
        room: DmaRoom,
        pages: &Arc<PageList>,
        access: Access,
    ) -> Result<Self, (Option<DmaRoom>, Error)> {
        let mapped =
            ctx.with_bound_atomic(|dev| StreamingRoom::map(dev, room, pages, access.write));
        match mapped {
            Ok(Ok(map)) => Ok(Memory::Room(map)),
            Ok(Err((room, e))) => Err((Some(room), e)),
            Err(e) => Err((None, e)),
        }
    }

    /// Calls `f` with bus address and bytes of each segment.
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

    /// Calls `f` with bus address and pages of each segment of what [`Memory::placement`] has
    /// checked.
    fn runs(&self, mut f: impl FnMut(BusAddr, u64)) {
        self.segments(|addr, bytes| f(BusAddr(addr), bytes / PAGE as u64));
    }

    /// Where the region should start, with hardware pages of sizes up to that of code `largest`;
    /// how many pages it has. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` unless all segments are made of whole pages, `EIO` if addresses mean interrupts.
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

    /// Writes the entries that lead to the memory; `between` is called after each segment. What was
    /// written before an error is there. Any context in which `between` can be called.
    ///
    /// # Errors
    ///
    /// `EINVAL` if an address or page does not fit.
    pub(super) fn enter(
        &self,
        place: &Place,
        vpid: Vpid,
        access: Access,
        largest: u8,
        between: impl Fn(),
    ) -> Result<Nlps> {
        let mut page = place.range.first;
        let mut nlps = Nlps::default();
        let mut result = Ok(());
        self.runs(|addr, pages| {
            if result.is_ok() {
                let mut all = cut(page, addr, pages, largest);
                result = all.try_for_each(|nlp| {
                    let entry = nlp.entry(vpid, access.read, access.write).ok_or(EINVAL)?;
                    for (n, code) in nlps.iter_mut().zip(SIZE_CODES) {
                        *n += u64::from(code == nlp.code);
                    }
                    (nlp.first..nlp.first + (1 << nlp.code))
                        .try_for_each(|page| place.write(page, entry.raw()).ok_or(EINVAL))
                });
            }
            page += pages;
            between();
        });
        // The entries are there before anybody tells the NIC an NLA.
        barrier::wmb();
        result.map(|()| nlps)
    }

    /// The pages of user memory.
    pub(super) fn pages(&self) -> Option<&Arc<PageList>> {
        match self {
            Memory::Pages(map) => Some(map.pages()),
            Memory::Room(_) => None,
        }
    }

    /// Gives the memory up. The NIC must not access it any more. May sleep.
    pub(super) fn release(self, ctx: &Context) {
        if let Memory::Pages(map) = self {
            // Unbinding waits until all regions are gone, so there is a device.
            let pages = ctx.with_bound(|dev| map.unmap(dev));
            // Without the lock, as unpinning takes long, and their owner may want the device.
            drop(pages);
        }
    }

    /// As [`Memory::release`] for one that was made with a room, which is given back: neither sleeps nor
    /// waits for anybody who needs memory. The pages may have to be dropped where sleeping is allowed.
    pub(super) fn unmap(self, ctx: &Context) -> Option<(Arc<PageList>, DmaRoom)> {
        match self {
            Memory::Room(map) => ctx
                .with_bound_atomic(|dev| map.unmap(dev).ok())
                .ok()
                .flatten(),
            Memory::Pages(_) => None,
        }
    }
}
