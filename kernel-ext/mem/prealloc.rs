// SPDX-License-Identifier: GPL-2.0-only

//! Streaming mappings of page lists with a scatterlist that was allocated in advance.

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

/// Scatterlist for a page list, allocated in advance, so that mapping needs no memory
/// ([`StreamingPrealloc`]).
///
/// # Invariants
///
/// `table` is initialised and has `pages` entries. `table` is not mapped, unless this object is
/// part of a [`PreallocatedPages`].
pub struct PreallocatedTable {
    table: KBox<Opaque<bindings::sg_table>>,
    pages: u32,
}

// SAFETY: any thread may use and free the table.
unsafe impl Send for PreallocatedTable {}
// SAFETY: shared references only give access to the size.
unsafe impl Sync for PreallocatedTable {}

impl PreallocatedTable {
    /// Allocates a scatterlist for lists of up to `pages` pages, 32 bytes per page. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for 0 pages, `ENOMEM`.
    pub fn new(pages: usize) -> Result<Self> {
        let pages = u32::try_from(pages).map_err(|_| ENOMEM)?;
        if pages == 0 {
            return Err(EINVAL);
        }
        let table = KBox::new(Opaque::<bindings::sg_table>::zeroed(), GFP_KERNEL)?;
        // SAFETY: `table` is zeroed memory, which this call initialises as a table.
        to_result(unsafe {
            bindings::sg_alloc_table(table.get(), pages, kernel::bindings::GFP_KERNEL)
        })?;
        // INVARIANT: the table has just been allocated.
        Ok(Self { table, pages })
    }

    /// Returns the maximum length of a list in pages. Any context.
    pub fn pages(&self) -> usize {
        self.pages as usize
    }

    /// Stores all pages of a list in the table, and returns the number of pages. Returns `ENOSPC`
    /// if the table is too small.
    fn fill(&mut self, list: &PageList) -> Result<u32> {
        let raw = list.raw();
        let entries = match u32::try_from(raw.len()) {
            Ok(n) if n <= self.pages => n,
            _ => return Err(ENOSPC),
        };
        // SAFETY: the table has at least `entries` entries. The list has at least one element; all
        // are valid pages, and it is not written.
        unsafe {
            bindings::extoll_sg_fill(self.table.get(), raw.as_ptr().cast_mut(), entries);
        }
        Ok(entries)
    }

    /// Undoes [`PreallocatedTable::fill`], which returned `entries`.
    fn clear(&mut self, entries: u32) {
        // SAFETY: the table is not mapped, and contains `entries` pages, because callers pass the
        // result of `fill`.
        unsafe { bindings::extoll_sg_clear(self.table.get(), entries, self.pages) };
    }
}

/// Frees the memory. Any context.
impl Drop for PreallocatedTable {
    fn drop(&mut self) {
        // SAFETY: by the type invariant the table is initialised and not mapped.
        unsafe { bindings::sg_free_table(self.table.get()) };
    }
}

/// List of pages with a scatterlist in a [`PreallocatedTable`].
///
/// # Invariants
///
/// The table of `prealloc` contains all of `pages` in `entries` entries. The table is mapped as
/// long as this object exists.
pub struct PreallocatedPages {
    prealloc: PreallocatedTable,
    entries: u32,
    pages: Arc<PageList>,
}

impl sealed::Sealed for PreallocatedPages {}

impl Kind for PreallocatedPages {
    type Owner = (Arc<PageList>, PreallocatedTable);

    fn bytes(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// # Safety
    ///
    /// The requirements of the trait apply: the pages are mapped for the device in this direction,
    /// and it does not access them any more.
    unsafe fn unmap(mut self, dev: &BoundDevice, direction: DataDirection) -> Self::Owner {
        let (table, direction) = (self.prealloc.table.get(), direction.into());
        // SAFETY: by the function's requirements and the type invariant the table is mapped in this
        // direction.
        unsafe { bindings::dma_unmap_sgtable(dev.as_raw(), table, direction, ATTRIBUTES) };
        self.prealloc.clear(self.entries);
        (self.pages, self.prealloc)
    }
}

/// Mapping like [`super::StreamingPages`], but made and undone in any context, because the
/// scatterlist was allocated before. An IOMMU driver may still need memory, which it gets from the
/// kernel's atomic reserves.
///
/// # Examples
///
/// ```
/// # use kernel::{prelude::*, sync::Arc};
/// # use kernel_ext::mem::{BoundDevice, PageList, PreallocatedTable, StreamingPrealloc};
/// /// In any context; `prealloc` was allocated before.
/// fn send(
///     dev: &BoundDevice,
///     prealloc: PreallocatedTable,
///     pages: &Arc<PageList>,
/// ) -> Result<StreamingPrealloc> {
///     StreamingPrealloc::map(dev, prealloc, pages, false).map_err(|(_prealloc, e)| e)
/// }
/// ```
pub type StreamingPrealloc = Streaming<PreallocatedPages>;

impl Streaming<PreallocatedPages> {
    /// Maps all pages of the list for a device that may read the pages, and may also write them if
    /// `write` is set. Each page is a segment, unless an IOMMU makes several pages contiguous. Any
    /// context.
    ///
    /// # Errors
    ///
    /// The table is returned with the error. `ENOSPC` if the list does not fit. `EACCES`, `ENOMEM`,
    /// `EIO`, `EOPNOTSUPP` for the same reasons as in [`super::StreamingPages::map`].
    pub fn map(
        dev: &BoundDevice,
        mut prealloc: PreallocatedTable,
        pages: &Arc<PageList>,
        write: bool,
    ) -> Result<Self, (PreallocatedTable, Error)> {
        if write && !pages.is_writable() {
            return Err((prealloc, EACCES));
        }
        let entries = match prealloc.fill(pages) {
            Ok(entries) => entries,
            Err(e) => return Err((prealloc, e)),
        };
        let direction = if write {
            DataDirection::Bidirectional
        } else {
            DataDirection::ToDevice
        };
        let table = prealloc.table.get();
        // SAFETY: the device is bound, and the table is initialised.
        let mapped = to_result(unsafe {
            bindings::dma_map_sgtable(dev.as_raw(), table, direction.into(), ATTRIBUTES)
        });
        if let Err(e) = mapped {
            prealloc.clear(entries);
            return Err((prealloc, e));
        }
        let kind = PreallocatedPages {
            prealloc,
            entries,
            pages: pages.clone(),
        };
        // INVARIANT: the table has just been mapped.
        Ok(Self {
            kind: ManuallyDrop::new(kind),
            binding: dev.binding(),
            direction,
        })
    }

    /// Returns the segments: bus address and number of pages. Addresses are multiples of the page
    /// size.
    pub fn segments(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        // SAFETY: by the type invariant the table is mapped while `self` is borrowed.
        let table: &SGTable = unsafe { SGTable::from_raw(self.kind.prealloc.table.get()) };
        table
            .iter()
            .map(|e| (e.dma_address(), e.dma_len() / PAGE as u64))
    }
}

#[kunit_tests(kernel_ext_prealloc)]
mod tests {
    use super::*;

    #[test]
    fn table_is_used_again() -> Result {
        assert_eq!(PreallocatedTable::new(0).err(), Some(EINVAL));
        // The length exceeds one chunk of a scatterlist, so that chunks are chained.
        let mut prealloc = PreallocatedTable::new(300)?;
        for pages in [1, 127, 128, 129, 256, 299, 300, 2] {
            let list = PageList::from_buffer(VVec::from_elem(0u8, pages * PAGE, GFP_KERNEL)?)?;
            let entries = prealloc.fill(&list)?;
            assert_eq!(entries as usize, pages);
            // SAFETY: the table is initialised and does not change while it is borrowed.
            let table = unsafe { SGTable::from_raw(prealloc.table.get()) };
            assert_eq!(table.iter().count(), pages);
            prealloc.clear(entries);
        }
        let list = PageList::from_buffer(VVec::from_elem(0u8, 301 * PAGE, GFP_KERNEL)?)?;
        assert_eq!(prealloc.fill(&list).err(), Some(ENOSPC));
        assert_eq!(prealloc.pages(), 300);
        Ok(())
    }
}
