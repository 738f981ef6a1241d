// SPDX-License-Identifier: GPL-2.0-only

//! Socket buffers, and their DMA mappings.

use super::dev::NetDev;
#[cfg(doc)]
use crate::mem::Streaming;
use crate::{
    bindings,
    mem::{BoundDevice, Contiguous, StreamingRange},
};
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{dma::DataDirection, prelude::*};

/// What is known about the layer-4 checksum of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// Nothing; the stack verifies it.
    Unknown,
    /// Its sender has left it to be finished: the field, `offset` bytes behind `start`, has the sum
    /// of the pseudo header only, and what follows from byte `start` of the frame on is to be
    /// added. The stack takes the frame, and finishes the checksum should it go on to another
    /// interface.
    Unfinished {
        /// Where the layer-4 header begins, from the Ethernet header on, in bytes.
        start: u16,
        /// Where the checksum is in that header, in bytes.
        offset: u16,
    },
    /// The stack need not verify it.
    Verified,
}

/// An owned frame from the stack. Dropping it counts as a drop for drop monitors; use
/// [`SkBuff::consume`] after success.
///
/// # Invariants
///
/// A valid frame that nobody else frees.
pub struct SkBuff(NonNull<bindings::sk_buff>);

// SAFETY: A frame is not bound to a CPU or thread.
unsafe impl Send for SkBuff {}
// SAFETY: Shared references only read fields that don't change under them.
unsafe impl Sync for SkBuff {}

impl SkBuff {
    /// # Safety
    ///
    /// `skb` must be valid, and ownership passes to the result.
    #[inline]
    pub(crate) unsafe fn from_raw(skb: *mut bindings::sk_buff) -> Self {
        // INVARIANT: By the requirements. SAFETY: A valid pointer is not null.
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

    /// Length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        // SAFETY: Valid by the invariant.
        unsafe { (*self.as_raw()).len }
    }

    /// Whether it holds nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all bytes are in the linear part.
    #[inline]
    pub fn is_linear(&self) -> bool {
        // SAFETY: Valid by the invariant.
        unsafe { (*self.as_raw()).data_len == 0 }
    }

    /// The bytes of the linear part: from the Ethernet header on, all of them if the frame is
    /// linear.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: Valid by the invariant; `data` points to `skb_headlen()` initialised bytes, which
        // nobody changes while a driver holds the frame on its way out: who shares them (clones)
        // has to copy before writing.
        unsafe {
            core::slice::from_raw_parts(
                (*self.as_raw()).data.cast::<u8>(),
                bindings::extoll_skb_headlen(self.as_raw()) as usize,
            )
        }
    }

    /// Moves all bytes into the linear part. Does not sleep; fails without memory.
    pub fn linearize(&mut self) -> Result {
        // SAFETY: Valid by the invariant.
        kernel::error::to_result(unsafe { bindings::extoll_skb_linearize(self.as_raw()) })
    }

    /// Whether the layer-4 checksum is unfinished (holds the pseudo-header sum only).
    #[inline]
    pub fn checksum_unfinished(&self) -> bool {
        // SAFETY: Valid by the invariant.
        unsafe { bindings::extoll_skb_csum_partial(self.as_raw()) }
    }

    /// Finishes the checksum of such a frame. Does not sleep.
    pub fn finish_checksum(&mut self) -> Result {
        // SAFETY: Valid by the invariant.
        kernel::error::to_result(unsafe { bindings::skb_checksum_help(self.as_raw()) })
    }

    /// A number that all frames of a flow share (a connection, or what else the stack tells apart),
    /// computed from the headers unless the stack knows it. Fragments of a datagram are a flow of
    /// their own. Any context.
    #[inline]
    pub fn flow_hash(&mut self) -> u32 {
        // SAFETY: Valid by the invariant; the frame is ours, so its fields may change.
        unsafe { bindings::extoll_skb_hash(self.as_raw()) }
    }

    /// Takes the software transmit time stamp, if somebody wants one; to be called just before the
    /// frame goes to the hardware.
    #[inline]
    pub fn tx_timestamp(&mut self) {
        // SAFETY: Valid by the invariant.
        unsafe { bindings::extoll_skb_tx_timestamp(self.as_raw()) }
    }

    /// Frees the frame after success. Any context.
    #[inline]
    pub fn consume(self) {
        // SAFETY: Valid by the invariant, ownership is given up.
        unsafe { bindings::extoll_skb_consume(self.into_raw()) }
    }
}

impl Drop for SkBuff {
    fn drop(&mut self) {
        // SAFETY: Valid by the invariant and owned.
        unsafe { bindings::extoll_skb_drop(self.as_raw()) }
    }
}

/// A frame that is being received: linear, and shared with nobody.
///
/// # Invariants
///
/// A valid, linear, unshared and uncloned frame that nobody else frees.
pub struct RxSkb(NonNull<bindings::sk_buff>);

// SAFETY: A frame is not bound to a CPU or thread.
unsafe impl Send for RxSkb {}
// SAFETY: Shared references only read.
unsafe impl Sync for RxSkb {}

impl RxSkb {
    /// # Safety
    ///
    /// `skb` must be null or a fresh frame, of which ownership passes to the result.
    #[inline]
    pub(super) unsafe fn from_raw(skb: *mut bindings::sk_buff) -> Option<Self> {
        // INVARIANT: By the requirements.
        NonNull::new(skb).map(Self)
    }

    #[inline]
    pub(super) fn into_raw(self) -> *mut bindings::sk_buff {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// Allocates an empty buffer with room for `len` bytes. Softirq or process context; does not
    /// sleep, and does not warn when a large one isn't to be had.
    pub fn alloc(dev: &NetDev, len: u32) -> Option<Self> {
        // SAFETY: The device is valid; the result is a fresh frame or null.
        unsafe { Self::from_raw(bindings::extoll_skb_alloc(dev.as_raw(), len)) }
    }

    /// Bytes in it.
    #[inline]
    pub fn len(&self) -> u32 {
        // SAFETY: Valid by the invariant.
        unsafe { self.0.as_ref().len }
    }

    /// Whether it holds nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that still fit.
    #[inline]
    pub fn room(&self) -> u32 {
        // SAFETY: Valid by the invariant.
        unsafe { bindings::extoll_skb_tailroom(self.0.as_ptr()) }
    }

    /// The bytes in it.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: Valid and linear by the invariant; all bytes were written by `append()` or by the
        // device.
        unsafe {
            core::slice::from_raw_parts(self.0.as_ref().data.cast::<u8>(), self.len() as usize)
        }
    }

    /// Appends bytes; fails with `ENOSPC` (and no change) if they don't fit.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> Result {
        if bytes.len() > self.room() as usize {
            return Err(ENOSPC);
        }
        // SAFETY: The room was checked, so that this can't fail; the frame is unshared, and the
        // room does not overlap `bytes`.
        unsafe {
            let to = bindings::extoll_skb_put(self.0.as_ptr(), bytes.len() as u32);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast::<u8>(), bytes.len());
        }
        Ok(())
    }
}

impl Drop for RxSkb {
    fn drop(&mut self) {
        // SAFETY: Valid by the invariant and owned.
        unsafe { bindings::extoll_skb_drop(self.0.as_ptr()) }
    }
}

// SAFETY: the bytes of a linear frame, in memory that it keeps; nobody writes them while a driver
// has the frame on its way out.
unsafe impl Contiguous for SkBuff {
    const WRITABLE: bool = false;

    #[inline]
    fn range(&mut self) -> (NonNull<u8>, usize) {
        let data = self.data();
        (NonNull::from(data).cast(), data.len())
    }
}

/// A frame whose bytes the device may read. It is given back by [`TxMapping::unmap`]; dropped, it
/// stays mapped for ever ([`Streaming`]).
pub struct TxMapping {
    map: StreamingRange<SkBuff>,
    /// There is or was an [`Owner`].
    lent: bool,
}

impl TxMapping {
    /// Maps a linear frame for the device to read. Any context.
    ///
    /// # Errors
    ///
    /// With the frame: `EINVAL` if it is not linear, or empty. `ENOMEM`.
    #[inline]
    pub fn map(dev: &BoundDevice, skb: SkBuff) -> Result<Self, (SkBuff, Error)> {
        if !skb.is_linear() {
            return Err((skb, EINVAL));
        }
        let map = StreamingRange::map(dev, skb, DataDirection::ToDevice)?;
        Ok(Self { map, lent: false })
    }

    /// Bus address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.map.addr()
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.map.bytes() as u32
    }

    /// Never true: empty frames can't be mapped.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Unmaps, and gives the frame back. The device must not access it any more. Any context.
    ///
    /// # Errors
    ///
    /// The mapping: it is of another device, or of another binding.
    #[inline]
    pub fn unmap(self, dev: &BoundDevice) -> Result<Unmapped, Self> {
        let Self { map, lent } = self;
        match map.unmap(dev) {
            Ok(skb) => Ok(Unmapped { skb, lent }),
            Err(map) => Err(Self { map, lent }),
        }
    }

    /// Gives up what the frame holds besides its bytes: its sender no longer waits for it, and it
    /// may outlive the interface. Not with interrupts disabled.
    pub fn orphan(&mut self) {
        let skb = self.map.owner().as_raw();
        // SAFETY: Valid by the invariant of the frame, which is owned. If there is an `Owner`, the
        // rest is its business.
        unsafe {
            match self.lent {
                false => bindings::extoll_skb_orphan(skb),
                true => bindings::extoll_skb_forget_dev(skb),
            }
        }
    }

    /// For the sender of the frame no longer to wait for it, while the device may still read it:
    /// see [`Owner`]. Once; `None` after that. Any context.
    #[inline]
    pub fn owner(&mut self) -> Option<Owner> {
        if core::mem::replace(&mut self.lent, true) {
            return None;
        }
        let skb = self.map.owner();
        // SAFETY: Valid by the invariant of the frame; the reference belongs to the result.
        unsafe { bindings::extoll_skb_get(skb.as_raw()) };
        // INVARIANT: The only one, as `lent` was not set. From now on nobody else gives up the
        // frame's owner: not `orphan`, nor anything that can be done with an `Unmapped`.
        Some(Owner(skb.0))
    }
}

/// A frame that was mapped. Somebody may still hold its [`Owner`], so that all that can be done
/// with it is to free it, unless [`Unmapped::into_frame`] finds that nobody does.
pub struct Unmapped {
    skb: SkBuff,
    lent: bool,
}

impl Unmapped {
    /// Length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.skb.len()
    }

    /// Never true.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.skb.is_empty()
    }

    /// Frees the frame after success. Any context.
    #[inline]
    pub fn consume(self) {
        self.skb.consume();
    }

    /// The frame, to be sent again.
    ///
    /// # Errors
    ///
    /// There is or was an [`Owner`] of it.
    pub fn into_frame(self) -> Result<SkBuff, Self> {
        match self.lent {
            false => Ok(self.skb),
            true => Err(self),
        }
    }

    #[inline]
    pub(super) fn into_raw(self) -> *mut bindings::sk_buff {
        self.skb.into_raw()
    }
}

/// The claim of its sender (a socket) on a frame that is on its way. When this is dropped the frame
/// no longer counts for what the sender may have under way, and may be sent again. Not to be
/// dropped with interrupts disabled.
///
/// # Invariants
///
/// A reference to a valid frame, whose owner changes by nothing but this until the last reference
/// is gone.
pub struct Owner(NonNull<bindings::sk_buff>);

// SAFETY: A frame is not bound to a CPU or thread.
unsafe impl Send for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: Valid by the invariant, and the reference is given up. Others that hold the frame
        // look at bytes and length, or give up their reference; whoever gives up the last one finds
        // the frame without an owner, as reference counts are ordered.
        unsafe { bindings::extoll_skb_disown(self.0.as_ptr()) }
    }
}

/// The room of a receive buffer.
///
/// # Invariants
///
/// The frame holds nothing, and has room for `len` bytes.
struct Room {
    skb: RxSkb,
    len: u32,
}

// SAFETY: linearly mapped room of a frame that nobody else has, from `data` on as it holds nothing.
// Plain bytes, which nobody reads before they count as the frame's.
unsafe impl Contiguous for Room {
    const WRITABLE: bool = true;

    #[inline]
    fn range(&mut self) -> (NonNull<u8>, usize) {
        // SAFETY: valid by the invariant of the frame, which has a buffer.
        let data = unsafe { NonNull::new_unchecked(self.skb.0.as_ref().data) };
        (data.cast(), self.len as usize)
    }
}

/// A receive buffer that the device may write. It is given back by [`RxMapping::complete`] or
/// [`RxMapping::discard`]; dropped, it stays mapped for ever ([`Streaming`]).
pub struct RxMapping(StreamingRange<Room>);

impl RxMapping {
    /// Allocates a receive buffer of `len` bytes and maps it for the device to write. Softirq or
    /// process context, does not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no bytes, `ENOMEM`.
    pub fn new(dev: &BoundDevice, ndev: &NetDev, len: u32) -> Result<Self> {
        Self::marked(dev, ndev, len, core::iter::empty(), [0; 8])
    }

    /// As [`RxMapping::new`], with `mark` written at the offsets `places`, as far as they are in the
    /// buffer: what the device does not overwrite is still there afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`RxMapping::new`].
    pub fn marked(
        dev: &BoundDevice,
        ndev: &NetDev,
        len: u32,
        places: impl Iterator<Item = u32>,
        mark: [u8; 8],
    ) -> Result<Self> {
        let skb = RxSkb::alloc(ndev, len).ok_or(ENOMEM)?;
        // INVARIANT: a fresh frame, which was allocated with so much room.
        let mut room = Room { skb, len };
        let (data, len) = room.range();
        for at in places.map(|at| at as usize) {
            if at.checked_add(mark.len()).is_some_and(|end| end <= len) {
                // SAFETY: inside the room, of `len` bytes from `data` on, which nobody else has and
                // no device knows of yet.
                unsafe { data.add(at).cast::<[u8; 8]>().write_unaligned(mark) };
            }
        }
        match StreamingRange::map(dev, room, DataDirection::FromDevice) {
            Ok(map) => Ok(Self(map)),
            Err((_, e)) => Err(e),
        }
    }

    /// Bus address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.0.addr()
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.0.bytes() as u32
    }

    /// Never true: a buffer has at least one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Forgets the interface, which the buffer may outlive.
    pub fn orphan(&mut self) {
        // SAFETY: Valid by the invariant of the frame, which is owned.
        unsafe { bindings::extoll_skb_orphan(self.0.owner().skb.0.as_ptr()) }
    }

    /// The device has written all of it: unmaps, and gives the frame with all bytes in it. Any
    /// context.
    ///
    /// # Errors
    ///
    /// The mapping: it is of another device, or of another binding.
    #[inline]
    pub fn complete(self, dev: &BoundDevice) -> Result<RxSkb, Self> {
        let Room { skb, len } = self.0.unmap(dev).map_err(Self)?;
        // SAFETY: The frame has room for `len` bytes, for which it was allocated, and holds
        // nothing. Whatever the device has written, they are plain bytes of allocated memory.
        unsafe { bindings::extoll_skb_put(skb.0.as_ptr(), len) };
        Ok(skb)
    }

    /// Unmaps, and frees the buffer; the device must not access it any more. Any context.
    ///
    /// # Errors
    ///
    /// The mapping: it is of another device, or of another binding.
    pub fn discard(self, dev: &BoundDevice) -> Result<(), Self> {
        self.0.unmap(dev).map(drop).map_err(Self)
    }
}
