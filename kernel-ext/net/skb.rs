// SPDX-License-Identifier: GPL-2.0-only

//! Socket buffers and their DMA mappings.

use super::dev::NetDev;
#[cfg(doc)]
use crate::mem::Streaming;
use crate::{
    bindings,
    mem::{BoundDevice, Contiguous, StreamingRange},
};
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{dma::DataDirection, prelude::*};

/// State of the layer-4 checksum of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// The state is unknown, so the stack verifies the checksum.
    Unknown,
    /// The sender left the checksum unfinished. The field, `offset` bytes after `start`, contains
    /// the sum of the pseudo header only. The sum of all bytes from byte `start` of the frame is
    /// still to be added. The stack accepts the frame, and finishes the checksum if it forwards the
    /// frame to another interface.
    Unfinished {
        /// Position of the layer-4 header in bytes, from the Ethernet header.
        start: u16,
        /// Position of the checksum in the layer-4 header in bytes.
        offset: u16,
    },
    /// The checksum is correct, so the stack does not verify it.
    Verified,
}

/// Owned frame from the stack. Dropping it counts as a drop for drop monitors; use
/// [`SkBuff::consume`] after success.
///
/// # Invariants
///
/// The frame is valid, and this object owns a reference to it.
pub struct SkBuff(NonNull<bindings::sk_buff>);

// SAFETY: a frame is not bound to a CPU or thread.
unsafe impl Send for SkBuff {}
// SAFETY: shared references only read fields that do not change during that time.
unsafe impl Sync for SkBuff {}

impl SkBuff {
    /// # Safety
    ///
    /// `skb` must be valid. Ownership passes to the result.
    #[inline]
    pub(crate) unsafe fn from_raw(skb: *mut bindings::sk_buff) -> Self {
        // INVARIANT: the function's requirements establish the invariant. SAFETY: a valid pointer
        // is not null.
        Self(unsafe { NonNull::new_unchecked(skb) })
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    #[inline]
    pub(super) fn into_raw(self) -> *mut bindings::sk_buff {
        ManuallyDrop::new(self).as_raw()
    }

    /// Returns the length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        // SAFETY: the frame is valid by the type invariant.
        unsafe { (*self.as_raw()).len }
    }

    /// Returns true if the frame has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if all bytes are in the linear part.
    #[inline]
    pub fn is_linear(&self) -> bool {
        // SAFETY: the frame is valid by the type invariant.
        unsafe { (*self.as_raw()).data_len == 0 }
    }

    /// Returns the bytes of the linear part, from the Ethernet header. If the frame is linear, the
    /// linear part contains all bytes.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the frame is valid by the type invariant. `data` points to `skb_headlen()`
        // initialised bytes. The bytes do not change while a driver holds a frame for transmission,
        // because owners of clones must copy before they write.
        unsafe {
            core::slice::from_raw_parts(
                (*self.as_raw()).data.cast::<u8>(),
                bindings::extoll_skb_headlen(self.as_raw()) as usize,
            )
        }
    }

    /// Moves all bytes into the linear part. Does not sleep; fails without memory.
    pub fn linearize(&mut self) -> Result {
        // SAFETY: the frame is valid by the type invariant.
        kernel::error::to_result(unsafe { bindings::extoll_skb_linearize(self.as_raw()) })
    }

    /// Returns true if the layer-4 checksum is unfinished (contains the pseudo-header sum only).
    #[inline]
    pub fn checksum_unfinished(&self) -> bool {
        // SAFETY: the frame is valid by the type invariant.
        unsafe { bindings::extoll_skb_csum_partial(self.as_raw()) }
    }

    /// Finishes an unfinished checksum. Does not sleep.
    pub fn finish_checksum(&mut self) -> Result {
        // SAFETY: the frame is valid by the type invariant.
        kernel::error::to_result(unsafe { bindings::skb_checksum_help(self.as_raw()) })
    }

    /// Returns a hash that is equal for all frames of a flow (for example a connection). The hash
    /// is computed from the headers unless the stack knows it already. Fragments of a datagram are
    /// a separate flow. Any context.
    #[inline]
    pub fn flow_hash(&mut self) -> u32 {
        // SAFETY: the frame is valid by the type invariant and owned, so its fields may change.
        unsafe { bindings::extoll_skb_hash(self.as_raw()) }
    }

    /// Records the software transmit time stamp if one was requested. To be called just before the
    /// frame is passed to the hardware.
    #[inline]
    pub fn tx_timestamp(&mut self) {
        // SAFETY: the frame is valid by the type invariant.
        unsafe { bindings::extoll_skb_tx_timestamp(self.as_raw()) }
    }

    /// Frees the frame after success. Any context.
    #[inline]
    pub fn consume(self) {
        // SAFETY: the frame is valid by the type invariant; ownership is given up.
        unsafe { bindings::extoll_skb_consume(self.into_raw()) }
    }
}

impl Drop for SkBuff {
    fn drop(&mut self) {
        // SAFETY: the frame is valid by the type invariant and owned.
        unsafe { bindings::extoll_skb_drop(self.as_raw()) }
    }
}

/// Frame that is being received: linear and not shared.
///
/// # Invariants
///
/// The frame is valid, linear, unshared and not cloned, and this object owns it.
pub struct RxSkb(NonNull<bindings::sk_buff>);

// SAFETY: a frame is not bound to a CPU or thread.
unsafe impl Send for RxSkb {}
// SAFETY: shared references allow only reads.
unsafe impl Sync for RxSkb {}

impl RxSkb {
    /// # Safety
    ///
    /// `skb` must be null or a new frame, whose ownership passes to the result.
    #[inline]
    pub(super) unsafe fn from_raw(skb: *mut bindings::sk_buff) -> Option<Self> {
        // INVARIANT: the function's requirements establish the invariant.
        NonNull::new(skb).map(Self)
    }

    #[inline]
    pub(super) fn into_raw(self) -> *mut bindings::sk_buff {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// Allocates an empty buffer for `len` bytes. Softirq or process context; does not sleep.
    /// Suppresses the kernel's warning about large allocations that fail.
    pub fn alloc(dev: &NetDev, len: u32) -> Option<Self> {
        // SAFETY: the device is valid; the result is a new frame or null.
        unsafe { Self::from_raw(bindings::extoll_skb_alloc(dev.as_raw(), len)) }
    }

    /// Returns the number of bytes in the frame.
    #[inline]
    pub fn len(&self) -> u32 {
        // SAFETY: the frame is valid by the type invariant.
        unsafe { self.0.as_ref().len }
    }

    /// Returns true if the frame has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes that can still be appended.
    #[inline]
    pub fn room(&self) -> u32 {
        // SAFETY: the frame is valid by the type invariant.
        unsafe { bindings::extoll_skb_tailroom(self.0.as_ptr()) }
    }

    /// Returns the bytes in the frame.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: valid and linear by the type invariant; all bytes were written by `append()` or
        // by the device.
        unsafe {
            core::slice::from_raw_parts(self.0.as_ref().data.cast::<u8>(), self.len() as usize)
        }
    }

    /// Appends bytes. Fails with `ENOSPC`, without a change, if the bytes do not fit.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> Result {
        if bytes.len() > self.room() as usize {
            return Err(ENOSPC);
        }
        // SAFETY: the free space was checked, so the call cannot fail. The frame is not shared, so
        // the free space does not overlap `bytes`.
        unsafe {
            let to = bindings::extoll_skb_put(self.0.as_ptr(), bytes.len() as u32);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast::<u8>(), bytes.len());
        }
        Ok(())
    }
}

impl Drop for RxSkb {
    fn drop(&mut self) {
        // SAFETY: the frame is valid by the type invariant and owned.
        unsafe { bindings::extoll_skb_drop(self.0.as_ptr()) }
    }
}

// SAFETY: the bytes of a linear frame are in memory that the frame keeps. The bytes do not change
// while a driver holds the frame for transmission.
unsafe impl Contiguous for SkBuff {
    const WRITABLE: bool = false;

    #[inline]
    fn range(&mut self) -> (NonNull<u8>, usize) {
        let data = self.data();
        (NonNull::from(data).cast(), data.len())
    }
}

/// Frame that is mapped for the device to read. [`TxMapping::unmap`] returns the frame; a dropped
/// mapping is leaked and stays mapped for ever ([`Streaming`]).
pub struct TxMapping {
    map: StreamingRange<SkBuff>,
    /// True if an [`Owner`] exists or existed.
    owner_taken: bool,
}

impl TxMapping {
    /// Maps a linear frame for the device to read. Any context.
    ///
    /// # Errors
    ///
    /// The frame is returned with the error. `EINVAL`: the frame is empty or not linear. `ENOMEM`.
    #[inline]
    pub fn map(dev: &BoundDevice, skb: SkBuff) -> Result<Self, (SkBuff, Error)> {
        if !skb.is_linear() {
            return Err((skb, EINVAL));
        }
        let map = StreamingRange::map(dev, skb, DataDirection::ToDevice)?;
        Ok(Self {
            map,
            owner_taken: false,
        })
    }

    /// Returns the bus address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.map.addr()
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.map.bytes() as u32
    }

    /// Returns false, because empty frames cannot be mapped.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Unmaps the frame and returns it. The device must not access the frame any more. Any context.
    ///
    /// # Errors
    ///
    /// Returns the mapping if it belongs to another device or another binding.
    #[inline]
    pub fn unmap(self, dev: &BoundDevice) -> Result<Unmapped, Self> {
        let Self { map, owner_taken } = self;
        match map.unmap(dev) {
            Ok(skb) => Ok(Unmapped { skb, owner_taken }),
            Err(map) => Err(Self { map, owner_taken }),
        }
    }

    /// Releases the resources that the frame holds besides its bytes. The sender stops waiting for
    /// the frame, and the frame may outlive the interface. Must not be called with interrupts
    /// disabled.
    pub fn orphan(&mut self) {
        let skb = self.map.owner().as_raw();
        // SAFETY: the frame is valid by its type invariant, and owned. If an `Owner` exists, only
        // it releases resources other than the device.
        unsafe {
            if self.owner_taken {
                bindings::extoll_skb_forget_dev(skb);
            } else {
                bindings::extoll_skb_orphan(skb);
            }
        }
    }

    /// Returns the frame's [`Owner`], by which the sender can stop waiting for the frame while the
    /// device may still read it. Returns `None` after the first call. Any context.
    #[inline]
    pub fn owner(&mut self) -> Option<Owner> {
        if core::mem::replace(&mut self.owner_taken, true) {
            return None;
        }
        let skb = self.map.owner();
        // SAFETY: the frame is valid by its type invariant; the reference belongs to the result.
        unsafe { bindings::extoll_skb_get(skb.as_raw()) };
        // INVARIANT: this is the only `Owner`, because `owner_taken` was not set. From now on
        // neither `orphan` nor a method of `Unmapped` changes the frame's owner.
        Some(Owner(skb.0))
    }
}

/// Frame that was unmapped. If its [`Owner`] may still exist, the frame can only be freed. Without
/// an [`Owner`], [`Unmapped::into_frame`] returns the frame.
pub struct Unmapped {
    skb: SkBuff,
    owner_taken: bool,
}

impl Unmapped {
    /// Returns the length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.skb.len()
    }

    /// Returns false, because a mapped frame has at least one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.skb.is_empty()
    }

    /// Frees the frame after success. Any context.
    #[inline]
    pub fn consume(self) {
        self.skb.consume();
    }

    /// Returns the frame, so that it can be sent again.
    ///
    /// # Errors
    ///
    /// Returns `self` if an [`Owner`] exists or existed.
    pub fn into_frame(self) -> Result<SkBuff, Self> {
        if self.owner_taken {
            return Err(self);
        }
        Ok(self.skb)
    }

    #[inline]
    pub(super) fn into_raw(self) -> *mut bindings::sk_buff {
        self.skb.into_raw()
    }
}

/// Claim of the sender (a socket) on a frame in flight. The drop ends the claim: the frame does not
/// count any more against the sender's limit of data in flight, and the sender may send its data
/// again. Must not be dropped with interrupts disabled.
///
/// # Invariants
///
/// Reference to a valid frame. Only this object changes the frame's owner before the last reference
/// is dropped.
pub struct Owner(NonNull<bindings::sk_buff>);

// SAFETY: a frame is not bound to a CPU or thread.
unsafe impl Send for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: by the type invariant the reference is valid; it is given up. Other holders of
        // the frame only read bytes and length, or drop their reference. Reference counts are
        // ordered, so the holder of the last reference sees a frame without an owner.
        unsafe { bindings::extoll_skb_disown(self.0.as_ptr()) }
    }
}

/// Free space of a receive buffer.
///
/// # Invariants
///
/// The frame is empty, and has free space for `len` bytes.
struct Room {
    skb: RxSkb,
    len: u32,
}

// SAFETY: the memory is linearly mapped free space of an unshared frame. The space begins at
// `data`, because the frame is empty. The bytes are not read before they are added to the frame.
unsafe impl Contiguous for Room {
    const WRITABLE: bool = true;

    #[inline]
    fn range(&mut self) -> (NonNull<u8>, usize) {
        // SAFETY: valid by the type invariant of the frame, which has a buffer.
        let data = unsafe { NonNull::new_unchecked(self.skb.0.as_ref().data) };
        (data.cast(), self.len as usize)
    }
}

/// Receive buffer that is mapped for the device to write. [`RxMapping::complete`] and
/// [`RxMapping::discard`] unmap the buffer; a dropped mapping is leaked and stays mapped for ever
/// ([`Streaming`]).
pub struct RxMapping(StreamingRange<Room>);

impl RxMapping {
    /// Allocates a receive buffer of `len` bytes and maps it for the device to write. Softirq or
    /// process context, does not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a length of 0, `ENOMEM`.
    pub fn new(dev: &BoundDevice, ndev: &NetDev, len: u32) -> Result<Self> {
        Self::with_tags(dev, ndev, len, core::iter::empty(), [0; 8])
    }

    /// Makes a mapping like [`RxMapping::new`], with the validity tag `tag` at those
    /// `offsets` that are in the buffer. Tags that the device does not overwrite are still there
    /// afterwards.
    ///
    /// # Errors
    ///
    /// Errors of [`RxMapping::new`].
    pub fn with_tags(
        dev: &BoundDevice,
        ndev: &NetDev,
        len: u32,
        offsets: impl Iterator<Item = u32>,
        tag: [u8; 8],
    ) -> Result<Self> {
        let skb = RxSkb::alloc(ndev, len).ok_or(ENOMEM)?;
        // INVARIANT: a new frame, which was allocated with this size.
        let mut room = Room { skb, len };
        let (data, len) = room.range();
        for at in offsets.map(|at| at as usize) {
            if at.checked_add(tag.len()).is_some_and(|end| end <= len) {
                // SAFETY: the tag is within the `len` free bytes at `data`. The buffer is unshared,
                // and the device cannot access it before the mapping below.
                unsafe { data.add(at).cast::<[u8; 8]>().write_unaligned(tag) };
            }
        }
        match StreamingRange::map(dev, room, DataDirection::FromDevice) {
            Ok(map) => Ok(Self(map)),
            Err((_, e)) => Err(e),
        }
    }

    /// Returns the bus address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.0.addr()
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.0.bytes() as u32
    }

    /// Returns false, because a buffer has at least one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Removes the reference to the interface, which the buffer may outlive.
    pub fn orphan(&mut self) {
        // SAFETY: the frame is valid by its type invariant, and owned.
        unsafe { bindings::extoll_skb_orphan(self.0.owner().skb.0.as_ptr()) }
    }

    /// Unmaps the buffer after the device has written all of it, and returns the frame with all
    /// bytes. Any context.
    ///
    /// # Errors
    ///
    /// Returns the mapping if it belongs to another device or another binding.
    #[inline]
    pub fn complete(self, dev: &BoundDevice) -> Result<RxSkb, Self> {
        let Room { skb, len } = self.0.unmap(dev).map_err(Self)?;
        // SAFETY: the frame is empty and was allocated for `len` bytes. The bytes are initialised
        // memory, whatever the device has written.
        unsafe { bindings::extoll_skb_put(skb.0.as_ptr(), len) };
        Ok(skb)
    }

    /// Unmaps and frees the buffer. The device must not access the buffer any more. Any context.
    ///
    /// # Errors
    ///
    /// Returns the mapping if it belongs to another device or another binding.
    pub fn discard(self, dev: &BoundDevice) -> Result<(), Self> {
        self.0.unmap(dev).map(drop).map_err(Self)
    }
}
