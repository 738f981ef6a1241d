// SPDX-License-Identifier: GPL-2.0-only

//! Streaming DMA mapping of page lists.

use super::{PageList, PAGE};
use crate::bindings;
use kernel::{
    device::{Bound, Device, DeviceContext, Normal},
    dma::DataDirection,
    error::to_result,
    prelude::*,
    scatterlist::SGTable,
    sync::{aref::ARef, Arc},
    types::Opaque,
};

/// `GFP_KERNEL_ACCOUNT` as C knows it: tables are made on behalf of processes, and take 32 bytes
/// for each page that is not contiguous with the one before.
const GFP_BITS: bindings::gfp_t = kernel::bindings::GFP_KERNEL_ACCOUNT;

/// CPU and device access the memory at the same time, through any number of mappings: neither
/// copies nor cache maintenance would do.
const ATTRIBUTES: c_ulong = kernel::bindings::DMA_ATTR_REQUIRE_COHERENT as c_ulong;

/// The C object behind a device.
fn raw<Ctx: DeviceContext>(dev: &Device<Ctx>) -> *mut bindings::device {
    // `Device` is a transparent wrapper of `Opaque<device>`, so the addresses agree.
    core::ptr::from_ref(dev).cast_mut().cast()
}

/// Room for the scatterlist of a page list, made in advance, so that mapping needs no memory.
///
/// # Invariants
///
/// `table` is an initialised table with `pages` entries that is not mapped.
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

    /// Longest list in pages.
    pub fn pages(&self) -> usize {
        self.pages as usize
    }
}

/// Frees memory that is at most some pages in size. Any context.
impl Drop for DmaRoom {
    fn drop(&mut self) {
        // SAFETY: by the invariants.
        unsafe { bindings::sg_free_table(self.table.get()) };
    }
}

/// The table of a mapping.
enum Table {
    /// Made for it.
    Own(KBox<Opaque<bindings::sg_table>>),
    /// Made in advance, with so many entries in use.
    Room(DmaRoom, u32),
}

impl Table {
    fn get(&self) -> *mut bindings::sg_table {
        match self {
            Table::Own(table) => table.get(),
            Table::Room(room, _) => room.table.get(),
        }
    }
}

/// A page list mapped for a device, contiguous pages as one segment; an IOMMU may make more of them
/// contiguous.
///
/// Give it up with [`DmaTable::unmap`] while the device is bound. A table that is merely dropped
/// stays mapped, and its pages stay reserved, for ever.
///
/// # Invariants
///
/// While `table` is `Some` it is an initialised, mapped table of `pages`.
pub struct DmaTable {
    table: Option<Table>,
    pages: Option<Arc<PageList>>,
    dev: ARef<Device>,
    direction: DataDirection,
}

// SAFETY: may be used and unmapped by any thread.
unsafe impl Send for DmaTable {}
// SAFETY: shared access only reads what does not change.
unsafe impl Sync for DmaTable {}

impl DmaTable {
    /// Maps the pages, for a device that only reads them or also writes. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EIO` if the host cannot map them, or only as a copy; `EOPNOTSUPP` if CPU and
    /// device do not see each other's writes by themselves.
    pub fn map(dev: &Device<Bound>, pages: Arc<PageList>, write: bool) -> Result<Self> {
        let list = pages.raw();
        let table = KBox::new(Opaque::<bindings::sg_table>::zeroed(), GFP_KERNEL)?;
        // SAFETY: the device is bound.
        let segment = unsafe { bindings::dma_max_mapping_size(raw(dev)) };
        let segment = u32::try_from(segment).unwrap_or(u32::MAX) & !(PAGE as u32 - 1);
        // SAFETY: the table is zeroed memory, the list has at least one element, each a valid page;
        // it is not written.
        to_result(unsafe {
            bindings::sg_alloc_table_from_pages_segment(
                table.get(),
                list.as_ptr().cast_mut(),
                list.len().try_into()?,
                0,
                list.len() * PAGE,
                segment.max(PAGE as u32),
                GFP_BITS,
            )
        })?;
        let direction = if write {
            DataDirection::Bidirectional
        } else {
            DataDirection::ToDevice
        };
        // SAFETY: bound device, initialised table.
        let mapped = to_result(unsafe {
            bindings::dma_map_sgtable(raw(dev), table.get(), direction.into(), ATTRIBUTES)
        });
        if let Err(e) = mapped {
            // SAFETY: initialised above, not mapped.
            unsafe { bindings::sg_free_table(table.get()) };
            return Err(e);
        }
        // INVARIANT: just done.
        Ok(Self {
            table: Some(Table::Own(table)),
            pages: Some(pages),
            dev: dev.into(),
            direction,
        })
    }

    /// As [`DmaTable::map`], each page as a segment unless an IOMMU makes them contiguous, with the
    /// memory of `room`. An IOMMU may need memory all the same, which is taken from what the kernel
    /// keeps for such contexts. Any context.
    ///
    /// # Errors
    ///
    /// The room, and why: `ENOSPC` if the list is longer than that, `ENOMEM`, `EIO`, `EOPNOTSUPP`
    /// as [`DmaTable::map`].
    pub fn map_in(
        room: DmaRoom,
        dev: &Device<Bound>,
        pages: Arc<PageList>,
        write: bool,
    ) -> Result<Self, (Error, DmaRoom)> {
        let list = pages.raw();
        let entries = match u32::try_from(list.len()) {
            Ok(n) if n <= room.pages => n,
            _ => return Err((ENOSPC, room)),
        };
        let table = room.table.get();
        // SAFETY: the table has as many entries or more, and the list has at least one element,
        // each a valid page; it is not written.
        unsafe { bindings::extoll_sg_fill(table, list.as_ptr().cast_mut(), entries) };
        let direction = if write {
            DataDirection::Bidirectional
        } else {
            DataDirection::ToDevice
        };
        // SAFETY: bound device, initialised table.
        let mapped = to_result(unsafe {
            bindings::dma_map_sgtable(raw(dev), table, direction.into(), ATTRIBUTES)
        });
        if let Err(e) = mapped {
            // SAFETY: filled with so many just now, not mapped.
            unsafe { bindings::extoll_sg_clear(table, entries, room.pages) };
            return Err((e, room));
        }
        // INVARIANT: just done.
        Ok(Self {
            table: Some(Table::Room(room, entries)),
            pages: Some(pages),
            dev: dev.into(),
            direction,
        })
    }

    /// The segments: bus address and pages. Addresses and lengths are multiples of the page size.
    pub fn segments(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.table.iter().flat_map(|table| {
            // SAFETY: a mapped table by the invariants, for as long as it is borrowed.
            let table: &SGTable = unsafe { SGTable::from_raw(table.get()) };
            table
                .iter()
                .map(|e| (e.dma_address(), e.dma_len() / PAGE as u64))
        })
    }

    /// The pages, unless unmapped.
    pub fn pages(&self) -> Option<&Arc<PageList>> {
        self.pages.as_ref()
    }

    /// Unmaps, unless that is done or `dev` is another device. The device must not access the pages
    /// any more. Gives the room back that the table was made in, and the pages; what of it the
    /// caller drops may sleep then, the rest is for any context.
    pub fn unmap(&mut self, dev: &Device<Bound>) -> Unmapped {
        let mut unmapped = Unmapped::default();
        if raw(dev) != raw::<Normal>(&self.dev) {
            return unmapped;
        }
        if let Some(table) = self.table.take() {
            let direction = self.direction.into();
            // SAFETY: mapped by this object for this device, which is bound.
            unsafe { bindings::dma_unmap_sgtable(raw(dev), table.get(), direction, ATTRIBUTES) };
            unmapped.room = match table {
                Table::Own(table) => {
                    // SAFETY: initialised, not mapped; nobody else refers to it.
                    unsafe { bindings::sg_free_table(table.get()) };
                    None
                }
                Table::Room(room, entries) => {
                    // SAFETY: filled with so many, not mapped any more.
                    unsafe { bindings::extoll_sg_clear(room.table.get(), entries, room.pages) };
                    Some(room)
                }
            };
        }
        unmapped.pages = self.pages.take();
        unmapped
    }
}

/// What [`DmaTable::unmap`] gives back.
#[derive(Default)]
pub struct Unmapped {
    /// The pages; `None` if they were given back before.
    pub pages: Option<Arc<PageList>>,
    /// The room that the table was made in.
    pub room: Option<DmaRoom>,
}

impl Drop for DmaTable {
    fn drop(&mut self) {
        if let Some(table) = self.table.take() {
            pr_warn!("pages were not unmapped and stay reserved\n");
            core::mem::forget((table, self.pages.take()));
        }
    }
}

#[kunit_tests(kernel_ext_dma)]
mod tests {
    use super::*;

    #[test]
    fn room_is_used_again() -> Result {
        assert_eq!(DmaRoom::new(0).err(), Some(EINVAL));
        // More than one chunk of a scatterlist, so that entries are chained.
        let room = DmaRoom::new(300)?;
        let table = room.table.get();
        for pages in [1, 127, 128, 129, 256, 299, 300, 2] {
            let list = PageList::from_buffer(VVec::from_elem(0u8, pages * PAGE, GFP_KERNEL)?)?;
            // SAFETY: room for at least as many, which are valid.
            unsafe {
                let raw = list.raw().as_ptr().cast_mut();
                bindings::extoll_sg_fill(table, raw, pages as u32);
            }
            // SAFETY: initialised, and not changed while it is borrowed; lengths are those before
            // mapping.
            let entries = unsafe { SGTable::from_raw(table) }.iter().count();
            assert_eq!(entries, pages);
            // SAFETY: filled with so many just now.
            unsafe { bindings::extoll_sg_clear(table, pages as u32, 300) };
        }
        assert_eq!(room.pages(), 300);
        Ok(())
    }
}
