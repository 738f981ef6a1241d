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

mod sealed {
    pub trait Sealed {}
}

/// How memory is mapped: a [`Range`] or [`Pages`].
pub trait Kind: sealed::Sealed {
    /// Whose memory it is, given back when it is unmapped.
    type Owner;

    /// Length in bytes.
    #[doc(hidden)]
    fn bytes(&self) -> usize;

    /// Unmaps.
    ///
    /// # Safety
    ///
    /// It is mapped in this direction for this device, in the same binding.
    #[doc(hidden)]
    unsafe fn unmap(self, dev: &BoundDevice, direction: DataDirection) -> Self::Owner;
}

/// Memory that is mapped for a device, together with its owner.
///
/// It is undone by [`Streaming::unmap`], with the proof that the device is still bound as it was
/// when the memory was mapped, and by whoever knows that the device does not access it any more.
/// One that is merely dropped stays mapped, and its memory reserved, for ever: nothing else is
/// safe, as neither of the two is known then. The kernel log tells of it, since it is a defect of
/// the driver.
///
/// Memory that a device may access longer than its user lives is handed over to a quarantine as it
/// is (`extoll_core::quarantine`): a mapping refers neither to its device nor to code of the module
/// that made it, unless the owner does.
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
///     // … and when the device says that it is done:
///     let bytes = map.unmap(dev).map_err(|_| ENODEV)?;
///     drop(bytes);
///     Ok(())
/// }
/// ```
///
/// # Invariants
///
/// `kind` is mapped in `direction` for the device of the binding with this number.
pub struct Streaming<K: Kind> {
    kind: ManuallyDrop<K>,
    binding: u64,
    direction: DataDirection,
}

impl<K: Kind> Streaming<K> {
    /// Length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.kind.bytes()
    }

    /// What the device does with it.
    #[inline]
    pub fn direction(&self) -> DataDirection {
        self.direction
    }

    /// Unmaps, and gives the owner back. The device must not access the memory any more. Any
    /// context, if the mapping could be made there.
    ///
    /// # Errors
    ///
    /// The mapping, unchanged: `dev` is another device, or another binding of it.
    #[inline]
    pub fn unmap(self, dev: &BoundDevice) -> Result<K::Owner, Self> {
        if self.binding != dev.binding() {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: not used again, as `this` is not dropped.
        let kind = unsafe { ManuallyDrop::take(&mut this.kind) };
        // SAFETY: by the type invariant, and the binding is the same, so the device is, too.
        Ok(unsafe { kind.unmap(dev, this.direction) })
    }
}

impl<K: Kind> Drop for Streaming<K> {
    #[cold]
    fn drop(&mut self) {
        pr_warn!(
            "{} bytes are mapped for a device and stay so: nobody has unmapped them\n",
            self.kind.bytes()
        );
    }
}

/// What owns a contiguous piece of memory.
///
/// # Safety
///
/// `range` gives as many bytes of linearly mapped kernel memory that stay allocated, and where they
/// are, while the owner exists, wherever that is moved. A device may read them, and write what it
/// likes if `WRITABLE`; so no reference to them exists but those that borrow the owner.
pub unsafe trait Contiguous {
    /// Whether a device may write it.
    const WRITABLE: bool;

    /// Begin and length.
    fn range(&mut self) -> (NonNull<u8>, usize);
}

/// Bytes of the kernel's heap. All of them are initialised, and a device may write them.
pub struct Bytes(KVec<u8>);

impl Bytes {
    /// Takes at least one byte.
    ///
    /// # Errors
    ///
    /// `EINVAL` for none.
    pub fn new(bytes: KVec<u8>) -> Result<Self> {
        match bytes.is_empty() {
            true => Err(EINVAL),
            false => Ok(Self(bytes)),
        }
    }

    /// What is in it.
    pub fn into_inner(self) -> KVec<u8> {
        self.0
    }
}

// SAFETY: memory of `kmalloc`, which is linearly mapped; the vector is neither accessed nor grown
// while it is in here. Bytes may have any value.
unsafe impl Contiguous for Bytes {
    const WRITABLE: bool = true;

    fn range(&mut self) -> (NonNull<u8>, usize) {
        let len = self.0.len();
        (NonNull::from(&mut *self.0).cast(), len)
    }
}

/// One contiguous range ([`StreamingRange`]).
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
    /// As the trait says.
    #[inline]
    unsafe fn unmap(self, dev: &BoundDevice, direction: DataDirection) -> O {
        // SAFETY: by the requirements.
        unsafe {
            bindings::extoll_dma_unmap(dev.as_raw(), self.addr, self.bytes, direction.into())
        };
        self.owner
    }
}

/// One contiguous range that is mapped for a device. Copies are made where the device does not
/// reach the memory (swiotlb); so what the device writes is there when the range is unmapped, not
/// before.
pub type StreamingRange<O> = Streaming<Range<O>>;

impl<O: Contiguous> Streaming<Range<O>> {
    /// Maps the memory of `owner`. Any context; does not sleep.
    ///
    /// # Errors
    ///
    /// With the owner: `EINVAL` for no bytes, for no direction, and for a device that would write
    /// what is not writable; `ENOMEM`.
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
        // SAFETY: the device is bound; the memory is as the trait promises; `addr` may be written.
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
        // SAFETY: written on success.
        let addr = unsafe { addr.assume_init() };
        // INVARIANT: mapped just now.
        Ok(Self {
            kind: ManuallyDrop::new(Range { addr, bytes, owner }),
            binding: dev.binding(),
            direction,
        })
    }
}

impl<O> Streaming<Range<O>> {
    /// Bus address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.kind.addr
    }

    /// The owner, whose memory the device may be accessing.
    #[inline]
    pub(crate) fn owner(&self) -> &O {
        &self.kind.owner
    }
}

/// `GFP_KERNEL_ACCOUNT` as C knows it: tables are made on behalf of processes, and take 32 bytes
/// for each page that is not contiguous with the one before.
const GFP_BITS: bindings::gfp_t = kernel::bindings::GFP_KERNEL_ACCOUNT;

/// CPU and device access the memory at the same time, through any number of mappings: neither
/// copies nor cache maintenance would do.
const ATTRIBUTES: c_ulong = kernel::bindings::DMA_ATTR_REQUIRE_COHERENT as c_ulong;

/// A list of pages ([`StreamingPages`]).
///
/// # Invariants
///
/// `table` is initialised, and lists all of `pages`, which is mapped for all of its life.
pub struct Pages {
    table: KBox<Opaque<bindings::sg_table>>,
    pages: Arc<PageList>,
}

// SAFETY: may be used and unmapped by any thread.
unsafe impl Send for Pages {}
// SAFETY: shared access only reads what does not change.
unsafe impl Sync for Pages {}

impl sealed::Sealed for Pages {}

impl Kind for Pages {
    type Owner = Arc<PageList>;

    fn bytes(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// # Safety
    ///
    /// As the trait says.
    unsafe fn unmap(self, dev: &BoundDevice, direction: DataDirection) -> Arc<PageList> {
        // SAFETY: by the requirements, and nobody else refers to the table, which is mapped by the
        // invariants.
        unsafe {
            let direction = direction.into();
            bindings::dma_unmap_sgtable(dev.as_raw(), self.table.get(), direction, ATTRIBUTES);
            bindings::sg_free_table(self.table.get());
        }
        self.pages
    }
}

/// A list of pages that is mapped for a device, contiguous pages as one segment; an IOMMU may make
/// more of them contiguous. CPU and device see each other's writes at once.
///
/// Unmapping may sleep.
pub type StreamingPages = Streaming<Pages>;

impl Streaming<Pages> {
    /// Maps all pages of the list, whatever bytes of them it is about, for a device that only reads
    /// them or also writes. May sleep.
    ///
    /// # Errors
    ///
    /// `EACCES`: the device is to write, and the pages were not obtained for that. `ENOMEM`; `EIO`
    /// if the host cannot map them, or only as a copy; `EOPNOTSUPP` if CPU and device do not see
    /// each other's writes by themselves.
    pub fn map(dev: &BoundDevice, pages: Arc<PageList>, write: bool) -> Result<Self> {
        if write && !pages.is_writable() {
            return Err(EACCES);
        }
        let list = pages.raw();
        let table = KBox::new(Opaque::<bindings::sg_table>::zeroed(), GFP_KERNEL)?;
        // SAFETY: the device is bound.
        let segment = unsafe { bindings::dma_max_mapping_size(dev.as_raw()) };
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
        let direction = match write {
            true => DataDirection::Bidirectional,
            false => DataDirection::ToDevice,
        };
        // SAFETY: bound device, initialised table.
        let mapped = to_result(unsafe {
            bindings::dma_map_sgtable(dev.as_raw(), table.get(), direction.into(), ATTRIBUTES)
        });
        if let Err(e) = mapped {
            // SAFETY: initialised above, not mapped.
            unsafe { bindings::sg_free_table(table.get()) };
            return Err(e);
        }
        // INVARIANT: just done.
        Ok(Self {
            kind: ManuallyDrop::new(Pages { table, pages }),
            binding: dev.binding(),
            direction,
        })
    }

    /// The segments: bus address and pages. Addresses and lengths are multiples of the page size.
    pub fn segments(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        // SAFETY: a mapped table by the invariants, for as long as it is borrowed.
        let table: &SGTable = unsafe { SGTable::from_raw(self.kind.table.get()) };
        table
            .iter()
            .map(|e| (e.dma_address(), e.dma_len() / PAGE as u64))
    }

    /// The pages.
    pub fn pages(&self) -> &Arc<PageList> {
        &self.kind.pages
    }
}
