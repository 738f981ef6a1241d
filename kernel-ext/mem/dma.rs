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

/// `GFP_KERNEL_ACCOUNT` as C knows it: tables are made on behalf of processes, and take 32 bytes for each
/// page that is not contiguous with the one before.
const GFP_BITS: bindings::gfp_t = kernel::bindings::GFP_KERNEL_ACCOUNT;

/// CPU and device access the memory at the same time, through any number of mappings: neither copies nor cache maintenance
/// would do.
const ATTRIBUTES: c_ulong = kernel::bindings::DMA_ATTR_REQUIRE_COHERENT as c_ulong;

/// The C object behind a device.
fn raw<Ctx: DeviceContext>(dev: &Device<Ctx>) -> *mut bindings::device {
    // `Device` is a transparent wrapper of `Opaque<device>`, so the addresses agree.
    core::ptr::from_ref(dev).cast_mut().cast()
}

/// A page list mapped for a device, contiguous pages as one segment; an IOMMU may make more of them contiguous.
///
/// Give it up with [`DmaTable::unmap`] while the device is bound. A table that is merely dropped stays mapped, and its
/// pages stay reserved, for ever.
///
/// # Invariants
///
/// While `table` is `Some` it is an initialised, mapped table of `pages`.
pub struct DmaTable {
    table: Option<KBox<Opaque<bindings::sg_table>>>,
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
    /// `ENOMEM`; `EIO` if the host cannot map them, or only as a copy; `EOPNOTSUPP` if CPU and device do not see each
    /// other's writes by themselves.
    pub fn map(dev: &Device<Bound>, pages: Arc<PageList>, write: bool) -> Result<Self> {
        let list = pages.raw();
        let table = KBox::new(Opaque::<bindings::sg_table>::zeroed(), GFP_KERNEL)?;
        // SAFETY: the device is bound.
        let segment = unsafe { bindings::dma_max_mapping_size(raw(dev)) };
        let segment = u32::try_from(segment).unwrap_or(u32::MAX) & !(PAGE as u32 - 1);
        // SAFETY: the table is zeroed memory, the list has at least one element, each a valid page; it is not written.
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
            table: Some(table),
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

    /// Unmaps and gives the pages up, unless that is done or `dev` is another device. The device must not access them
    /// any more. May sleep.
    pub fn unmap(&mut self, dev: &Device<Bound>) {
        if raw(dev) != raw::<Normal>(&self.dev) {
            return;
        }
        if let Some(table) = self.table.take() {
            // SAFETY: mapped by this object for this device, which is bound; nobody else refers to the table.
            unsafe {
                let direction = self.direction.into();
                bindings::dma_unmap_sgtable(raw(dev), table.get(), direction, ATTRIBUTES);
                bindings::sg_free_table(table.get());
            }
        }
        self.pages = None;
    }
}

impl Drop for DmaTable {
    fn drop(&mut self) {
        if let Some(table) = self.table.take() {
            pr_warn!("pages were not unmapped and stay reserved\n");
            core::mem::forget((table, self.pages.take()));
        }
    }
}
