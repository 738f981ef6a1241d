// SPDX-License-Identifier: GPL-2.0-only

//! Streaming mappings of lists of pages whose scatterlist was made before.

use super::{
    streaming::{sealed, Kind, ATTRIBUTES},
    BoundDevice, PageList, Streaming, PAGE,
};
use crate::bindings;
use core::mem::ManuallyDrop;
use kernel::{
    dma::DataDirection, error::to_result, prelude::*, scatterlist::SGTable, sync::Arc,
    types::Opaque,
};

/// Room for the scatterlist of a page list, made in advance, so that mapping needs no memory
/// ([`StreamingRoom`]).
///
/// # Invariants
///
/// `table` is an initialised table with `pages` entries that is not mapped, unless it is part of a
/// [`RoomPages`].
pub struct DmaRoom {
    table: KBox<Opaque<bindings::sg_table>>,
    pages: u32,
}

// SAFETY: may be used and freed by any thread.
unsafe impl Send for DmaRoom {}
// SAFETY: shared access only tells the size.
unsafe impl Sync for DmaRoom {}

impl DmaRoom {
    /// Room for lists of up to `pages` pages, 32 bytes for each. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no pages, `ENOMEM`.
    pub fn new(pages: usize) -> Result<Self> {
        let pages = u32::try_from(pages).map_err(|_| ENOMEM)?;
        if pages == 0 {
            return Err(EINVAL);
        }
        let table = KBox::new(Opaque::<bindings::sg_table>::zeroed(), GFP_KERNEL)?;
        // SAFETY: zeroed memory, which becomes an initialised table.
        to_result(unsafe {
            bindings::sg_alloc_table(table.get(), pages, kernel::bindings::GFP_KERNEL)
        })?;
        // INVARIANT: just made.
        Ok(Self { table, pages })
    }

    /// Longest list in pages. Any context.
    pub fn pages(&self) -> usize {
        self.pages as usize
    }

    /// Puts all pages of a list into the table, and returns their number. `ENOSPC` if they don't fit.
    fn fill(&mut self, list: &PageList) -> Result<u32> {
        let raw = list.raw();
        let entries = match u32::try_from(raw.len()) {
            Ok(n) if n <= self.pages => n,
            _ => return Err(ENOSPC),
        };
        // SAFETY: the table has as many entries or more, and the list has at least one element, each a
        // valid page; it is not written.
        unsafe {
            bindings::extoll_sg_fill(self.table.get(), raw.as_ptr().cast_mut(), entries);
        }
        Ok(entries)
    }

    /// Makes it as it was before [`DmaRoom::fill`], which returned this.
    fn clear(&mut self, entries: u32) {
        // SAFETY: not mapped, and filled with so many, as this module keeps to what `fill` returns.
        unsafe { bindings::extoll_sg_clear(self.table.get(), entries, self.pages) };
    }
}

/// Frees as many pages of the kernel's memory as it takes. Any context.
impl Drop for DmaRoom {
    fn drop(&mut self) {
        // SAFETY: by the invariants.
        unsafe { bindings::sg_free_table(self.table.get()) };
    }
}

/// A list of pages whose scatterlist is in a [`DmaRoom`].
///
/// # Invariants
///
/// The room is filled with all of `pages`, `entries` of them, and mapped for all of its life.
pub struct RoomPages {
    room: DmaRoom,
    entries: u32,
    pages: Arc<PageList>,
}

impl sealed::Sealed for RoomPages {}

impl Kind for RoomPages {
    type Owner = (Arc<PageList>, DmaRoom);

    fn bytes(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// # Safety
    ///
    /// As the trait's: the device no longer accesses the pages, which it was mapped for in this direction.
    unsafe fn unmap(mut self, dev: &BoundDevice, direction: DataDirection) -> Self::Owner {
        let (table, direction) = (self.room.table.get(), direction.into());
        // SAFETY: by the requirements and the invariants.
        unsafe { bindings::dma_unmap_sgtable(dev.as_raw(), table, direction, ATTRIBUTES) };
        self.room.clear(self.entries);
        (self.pages, self.room)
    }
}

/// As [`super::StreamingPages`], but made and undone in any context, and without memory of the kernel's
/// own. An IOMMU may need some; it takes that from what is kept for contexts that can't wait.
///
/// # Examples
///
/// ```
/// # use kernel::{prelude::*, sync::Arc};
/// # use kernel_ext::mem::{BoundDevice, DmaRoom, PageList, StreamingRoom};
/// /// In any context; the room was made before.
/// fn send(dev: &BoundDevice, room: DmaRoom, pages: &Arc<PageList>) -> Result<StreamingRoom> {
///     StreamingRoom::map(dev, room, pages, false).map_err(|(_room, e)| e)
/// }
/// ```
pub type StreamingRoom = Streaming<RoomPages>;

impl Streaming<RoomPages> {
    /// Maps all pages of the list, each as a segment unless an IOMMU makes them contiguous, for a device
    /// that only reads them or also writes. Any context.
    ///
    /// # Errors
    ///
    /// With the room: `ENOSPC` if the list does not fit. `EACCES`, `ENOMEM`, `EIO`, `EOPNOTSUPP` as
    /// [`super::StreamingPages::map`].
    pub fn map(
        dev: &BoundDevice,
        mut room: DmaRoom,
        pages: &Arc<PageList>,
        write: bool,
    ) -> Result<Self, (DmaRoom, Error)> {
        if write && !pages.is_writable() {
            return Err((room, EACCES));
        }
        let entries = match room.fill(pages) {
            Ok(entries) => entries,
            Err(e) => return Err((room, e)),
        };
        let direction = match write {
            true => DataDirection::Bidirectional,
            false => DataDirection::ToDevice,
        };
        let table = room.table.get();
        // SAFETY: bound device, initialised table.
        let mapped = to_result(unsafe {
            bindings::dma_map_sgtable(dev.as_raw(), table, direction.into(), ATTRIBUTES)
        });
        if let Err(e) = mapped {
            room.clear(entries);
            return Err((room, e));
        }
        let kind = RoomPages {
            room,
            entries,
            pages: pages.clone(),
        };
        // INVARIANT: mapped just now.
        Ok(Self {
            kind: ManuallyDrop::new(kind),
            binding: dev.binding(),
            direction,
        })
    }

    /// The segments: bus address and pages. Addresses and lengths are multiples of the page size.
    pub fn segments(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        // SAFETY: a mapped table by the invariants, for as long as it is borrowed.
        let table: &SGTable = unsafe { SGTable::from_raw(self.kind.room.table.get()) };
        table
            .iter()
            .map(|e| (e.dma_address(), e.dma_len() / PAGE as u64))
    }
}

#[kunit_tests(kernel_ext_room)]
mod tests {
    use super::*;

    #[test]
    fn room_is_used_again() -> Result {
        assert_eq!(DmaRoom::new(0).err(), Some(EINVAL));
        // More than one chunk of a scatterlist, so that entries are chained.
        let mut room = DmaRoom::new(300)?;
        for pages in [1, 127, 128, 129, 256, 299, 300, 2] {
            let list = PageList::from_buffer(VVec::from_elem(0u8, pages * PAGE, GFP_KERNEL)?)?;
            let entries = room.fill(&list)?;
            assert_eq!(entries as usize, pages);
            // SAFETY: initialised, and not changed while it is borrowed.
            let table = unsafe { SGTable::from_raw(room.table.get()) };
            assert_eq!(table.iter().count(), pages);
            room.clear(entries);
        }
        let list = PageList::from_buffer(VVec::from_elem(0u8, 301 * PAGE, GFP_KERNEL)?)?;
        assert_eq!(room.fill(&list).err(), Some(ENOSPC));
        assert_eq!(room.pages(), 300);
        Ok(())
    }
}
