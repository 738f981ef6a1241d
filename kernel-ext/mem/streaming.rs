// SPDX-License-Identifier: GPL-2.0-only

//! Streaming DMA mappings, of one contiguous range and of a list of pages.

use super::{BoundDevice, PageList, PAGE};
use crate::bindings;
use core::{
    mem::{ManuallyDrop, MaybeUninit},
    ptr::NonNull,
};
use kernel::{
    dma::DataDirection, error::to_result, prelude::*, scatterlist::SGTable, sync::Arc,
    types::Opaque,
};

pub(super) mod sealed {
    pub trait Sealed {}
}

/// Kind of mapping: a [`Range`] or [`Pages`].
pub trait Kind: sealed::Sealed {
    /// Owner of the memory, returned when the memory is unmapped.
    type Owner;

    /// Returns the length in bytes.
    #[doc(hidden)]
    fn bytes(&self) -> usize;

    /// Unmaps the memory and returns its owner.
    ///
    /// # Safety
    ///
    /// The memory must be mapped in this direction for this device, in the same binding. The device
    /// must not access the memory any more.
    #[doc(hidden)]
    unsafe fn unmap(self, dev: &BoundDevice, direction: DataDirection) -> Self::Owner;
}

/// Memory that is mapped for a device, with its owner.
///
/// [`Streaming::unmap`] undoes the mapping. The caller of `unmap` proves that the device is still
/// bound in the same binding, and knows that the device does not access the memory any more. A
/// dropped mapping is leaked: its memory stays mapped and reserved for ever, because neither
/// condition is known then. The kernel log reports this, because it is a defect of the driver.
///
/// Memory that a device may access after its user has ended is handed over to a quarantine
/// (`extoll_core::quarantine`). The quarantine may keep a mapping for any time, because the mapping
/// refers neither to its device nor to code of the module that made it. Only the owner of the
/// memory may contain references to the module or the device.
///
/// # Examples
///
/// Mapping a buffer for a device that reads it:
///
/// ```
/// # use kernel::{dma::DataDirection, prelude::*};
/// # use kernel_ext::mem::{BoundDevice, Bytes, StreamingRange};
/// # fn send(_: u64, _: usize) {}
/// fn transmit(dev: &BoundDevice, bytes: KVec<u8>) -> Result {
///     let map = StreamingRange::map(dev, Bytes::new(bytes)?, DataDirection::ToDevice)
///         .map_err(|(_, e)| e)?;
///     send(map.addr(), map.bytes());
///     // … and when the device has finished:
///     let bytes = map.unmap(dev).map_err(|_| ENODEV)?;
///     drop(bytes);
///     Ok(())
/// }
/// ```
///
/// # Invariants
///
/// `kind` is mapped in `direction` for the device of binding number `binding`.
pub struct Streaming<K: Kind> {
    pub(super) kind: ManuallyDrop<K>,
    pub(super) binding: u64,
    pub(super) direction: DataDirection,
}

impl<K: Kind> Streaming<K> {
    /// Returns the length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.kind.bytes()
    }

    /// Returns the direction of the device's accesses.
    #[inline]
    pub fn direction(&self) -> DataDirection {
        self.direction
    }

    /// Unmaps the memory and returns its owner. The device must not access the memory any more. May
    /// be called in the contexts in which the mapping could be made.
    ///
    /// # Errors
    ///
    /// Returns the unchanged mapping if `dev` is another device, or another binding of the device.
    #[inline]
    pub fn unmap(self, dev: &BoundDevice) -> Result<K::Owner, Self> {
        if self.binding != dev.binding() {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the field is not used again, because `this` is not dropped.
        let kind = unsafe { ManuallyDrop::take(&mut this.kind) };
        // SAFETY: by the type invariant the memory is mapped; the binding is the same, and so is
        // the device.
        Ok(unsafe { kind.unmap(dev, this.direction) })
    }
}

impl<K: Kind> Drop for Streaming<K> {
    #[cold]
    fn drop(&mut self) {
        pr_warn!(
            "{} bytes stay mapped for a device, because a driver dropped the mapping \
             (defect of the driver)\n",
            self.kind.bytes()
        );
    }
}

/// Owner of a contiguous range of memory.
///
/// # Safety
///
/// `range` must return linearly mapped kernel memory of that length. That memory must stay
/// allocated at the same address while the owner exists, even if the owner is moved. A device may
/// read the memory, and may write any values if `WRITABLE` is set. Consequently only references
/// that borrow the owner may exist.
pub unsafe trait Contiguous {
    /// True if a device may write the memory.
    const WRITABLE: bool;

    /// Returns address and length.
    fn range(&mut self) -> (NonNull<u8>, usize);
}

/// Bytes of the kernel's heap. All bytes are initialised, and a device may write them.
pub struct Bytes(KVec<u8>);

impl Bytes {
    /// Wraps a vector with at least one byte.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the vector is empty.
    pub fn new(bytes: KVec<u8>) -> Result<Self> {
        if bytes.is_empty() {
            return Err(EINVAL);
        }
        Ok(Self(bytes))
    }

    /// Returns the vector.
    pub fn into_inner(self) -> KVec<u8> {
        self.0
    }
}

// SAFETY: memory of `kmalloc` is linearly mapped. The vector is neither accessed nor grown while it
// is in this object. Bytes may have any value.
unsafe impl Contiguous for Bytes {
    const WRITABLE: bool = true;

    fn range(&mut self) -> (NonNull<u8>, usize) {
        let len = self.0.len();
        (NonNull::from(&mut *self.0).cast(), len)
    }
}

/// Contiguous range ([`StreamingRange`]).
pub struct Range<O> {
    addr: u64,
    bytes: usize,
    owner: O,
}

impl<O> sealed::Sealed for Range<O> {}

impl<O> Kind for Range<O> {
    type Owner = O;

    #[inline]
    fn bytes(&self) -> usize {
        self.bytes
    }

    /// # Safety
    ///
    /// The requirements of the trait apply: the range is mapped for the device in this direction,
    /// and it does not access the range any more.
    #[inline]
    unsafe fn unmap(self, dev: &BoundDevice, direction: DataDirection) -> O {
        // SAFETY: by the function's requirements the range is mapped in this direction.
        unsafe {
            bindings::extoll_dma_unmap(dev.as_raw(), self.addr, self.bytes, direction.into())
        };
        self.owner
    }
}

/// Contiguous range that is mapped for a device. If the device cannot reach the memory, the kernel
/// copies it (swiotlb). Therefore data that the device writes are visible only after unmapping.
pub type StreamingRange<O> = Streaming<Range<O>>;

impl<O: Contiguous> Streaming<Range<O>> {
    /// Maps the memory of `owner`. Any context; does not sleep.
    ///
    /// # Errors
    ///
    /// The owner is returned with the error. `EINVAL`: the range is empty, `direction` is none, or
    /// the device would write to memory that is not writable. `ENOMEM`.
    #[inline]
    pub fn map(
        dev: &BoundDevice,
        mut owner: O,
        direction: DataDirection,
    ) -> Result<Self, (O, Error)> {
        let (start, bytes) = owner.range();
        let allowed = match direction {
            DataDirection::ToDevice => true,
            DataDirection::FromDevice | DataDirection::Bidirectional => O::WRITABLE,
            DataDirection::None => false,
        };
        if bytes == 0 || !allowed {
            return Err((owner, EINVAL));
        }
        let mut addr = MaybeUninit::uninit();
        // SAFETY: the device is bound; the trait guarantees the memory; `addr` may be written.
        let mapped = unsafe {
            bindings::extoll_dma_map(
                dev.as_raw(),
                start.as_ptr().cast(),
                bytes,
                direction.into(),
                addr.as_mut_ptr(),
            )
        };
        if let Err(e) = to_result(mapped) {
            return Err((owner, e));
        }
        // SAFETY: the call writes `addr` on success.
        let addr = unsafe { addr.assume_init() };
        // INVARIANT: the memory has just been mapped.
        Ok(Self {
            kind: ManuallyDrop::new(Range { addr, bytes, owner }),
            binding: dev.binding(),
            direction,
        })
    }
}

impl<O> Streaming<Range<O>> {
    /// Returns the bus address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.kind.addr
    }

    /// Returns the owner, whose memory the device may be accessing.
    #[inline]
    pub(crate) fn owner(&self) -> &O {
        &self.kind.owner
    }
}

/// `GFP_KERNEL_ACCOUNT` as a C type. Tables are allocated on behalf of processes, and use 32 bytes
/// for each page that is not contiguous with the previous one.
const GFP_BITS: bindings::gfp_t = kernel::bindings::GFP_KERNEL_ACCOUNT;

/// CPU and device access the memory at the same time, through any number of mappings, so copies and
/// cache maintenance are not acceptable.
pub(super) const ATTRIBUTES: c_ulong = kernel::bindings::DMA_ATTR_REQUIRE_COHERENT as c_ulong;

/// Page list with its scatterlist ([`StreamingPages`]).
///
/// # Invariants
///
/// `table` is initialised and lists all of `pages`. The table is mapped as long as this object
/// exists.
pub struct Pages {
    table: KBox<Opaque<bindings::sg_table>>,
    pages: Arc<PageList>,
}

// SAFETY: any thread may use and unmap the table.
unsafe impl Send for Pages {}
// SAFETY: shared references only read constant data.
unsafe impl Sync for Pages {}

impl sealed::Sealed for Pages {}

impl Kind for Pages {
    type Owner = Arc<PageList>;

    fn bytes(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// # Safety
    ///
    /// The requirements of the trait apply: the pages are mapped for the device in this direction,
    /// and it does not access them any more.
    unsafe fn unmap(self, dev: &BoundDevice, direction: DataDirection) -> Arc<PageList> {
        // SAFETY: by the function's requirements and the type invariant the table is mapped in this
        // direction. No other reference to the table exists.
        unsafe {
            let direction = direction.into();
            bindings::dma_unmap_sgtable(dev.as_raw(), self.table.get(), direction, ATTRIBUTES);
            bindings::sg_free_table(self.table.get());
        }
        self.pages
    }
}

/// Page list that is mapped for a device. Contiguous pages form one segment; an IOMMU may make
/// further pages contiguous. CPU and device see each other's writes at once.
///
/// Unmapping may sleep.
pub type StreamingPages = Streaming<Pages>;

impl Streaming<Pages> {
    /// Maps all pages of the list, including bytes outside of its range. The device may read the
    /// pages, and may also write them if `write` is set. May sleep.
    ///
    /// # Errors
    ///
    /// - `EACCES`: write access, but the pages are not writable.
    /// - `EIO`: the host cannot map the pages, or could only map a copy.
    /// - `EOPNOTSUPP`: coherent accesses by CPU and device would need cache maintenance.
    /// - `ENOMEM`.
    pub fn map(dev: &BoundDevice, pages: Arc<PageList>, write: bool) -> Result<Self> {
        if write && !pages.is_writable() {
            return Err(EACCES);
        }
        let list = pages.raw();
        let table = KBox::new(Opaque::<bindings::sg_table>::zeroed(), GFP_KERNEL)?;
        // SAFETY: the device is bound.
        let segment = unsafe { bindings::dma_max_mapping_size(dev.as_raw()) };
        let segment = u32::try_from(segment).unwrap_or(u32::MAX) & !(PAGE as u32 - 1);
        // SAFETY: the table is zeroed memory. The list has at least one element; all are valid
        // pages, and it is not written.
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
        // SAFETY: the device is bound, and the table is initialised.
        let mapped = to_result(unsafe {
            bindings::dma_map_sgtable(dev.as_raw(), table.get(), direction.into(), ATTRIBUTES)
        });
        if let Err(e) = mapped {
            // SAFETY: initialised above and not mapped.
            unsafe { bindings::sg_free_table(table.get()) };
            return Err(e);
        }
        // INVARIANT: the table has just been mapped.
        Ok(Self {
            kind: ManuallyDrop::new(Pages { table, pages }),
            binding: dev.binding(),
            direction,
        })
    }

    /// Returns the segments: bus address and number of pages. Addresses are multiples of the page
    /// size.
    pub fn segments(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        // SAFETY: by the type invariant the table is mapped while `self` is borrowed.
        let table: &SGTable = unsafe { SGTable::from_raw(self.kind.table.get()) };
        table
            .iter()
            .map(|e| (e.dma_address(), e.dma_len() / PAGE as u64))
    }

    /// Returns the pages.
    pub fn pages(&self) -> &Arc<PageList> {
        &self.kind.pages
    }
}
