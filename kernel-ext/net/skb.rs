// SPDX-License-Identifier: GPL-2.0-only

//! Socket buffers, and their DMA mappings.

use super::dev::NetDev;
use crate::bindings;
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{device, prelude::*, sync::aref::ARef};

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

/// An owned frame from the stack. Dropping it counts as a drop for drop monitors; use [`SkBuff::consume`] after success.
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
    pub(super) unsafe fn from_raw(skb: *mut bindings::sk_buff) -> Self {
        // INVARIANT: By the requirements. SAFETY: A valid pointer is not null.
        Self(unsafe { NonNull::new_unchecked(skb) })
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::sk_buff {
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

    /// The bytes of the linear part: from the Ethernet header on, all of them if the frame is linear.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: Valid by the invariant; `data` points to `skb_headlen()` initialised bytes, which nobody changes while a driver
        // holds the frame on its way out: who shares them (clones) has to copy before writing.
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

    /// Takes the software transmit time stamp, if somebody wants one; to be called just before the frame goes to the hardware.
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

    /// Allocates an empty buffer with room for `len` bytes. Softirq or process context; does not sleep, and does not warn when a large
    /// one isn't to be had.
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
        // SAFETY: Valid and linear by the invariant; all bytes were written by `append()` or by the device.
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
        // SAFETY: The room was checked, so that this can't fail; the frame is unshared, and the room does not overlap `bytes`.
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

/// One buffer mapped for DMA.
///
/// # Invariants
///
/// `addr` is the mapping of `len` bytes made for `dev` in the given direction, and not yet undone.
struct Mapping {
    dev: ARef<device::Device>,
    addr: u64,
    len: usize,
    to_device: bool,
}

impl Mapping {
    /// # Safety
    ///
    /// `p` must point to `len` bytes of linearly mapped kernel memory that stay allocated as long as the result lives.
    unsafe fn new(
        dev: &ARef<device::Device>,
        p: *mut u8,
        len: usize,
        to_device: bool,
    ) -> Result<Self> {
        let mut addr = 0;
        // CAST: `Device` is a transparent wrapper of `struct device`.
        let raw: *mut bindings::device =
            core::ptr::from_ref::<device::Device>(dev).cast_mut().cast();
        // SAFETY: The device is valid, the memory by the requirements, `addr` is a live local.
        kernel::error::to_result(unsafe {
            bindings::extoll_dma_map(raw, p.cast(), len, to_device, &mut addr)
        })?;
        // INVARIANT: Mapped just now.
        Ok(Self {
            dev: dev.clone(),
            addr,
            len,
            to_device,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let raw: *mut bindings::device = core::ptr::from_ref::<device::Device>(&self.dev)
            .cast_mut()
            .cast();
        // SAFETY: By the type invariant.
        unsafe { bindings::extoll_dma_unmap(raw, self.addr, self.len, self.to_device) }
    }
}

/// A frame whose bytes the device may read. Dropping it unmaps and frees: the caller knows that the device is done.
pub struct TxMapping {
    // Dropped first.
    mapping: Mapping,
    skb: SkBuff,
}

impl TxMapping {
    pub(super) fn new(dev: &NetDev, skb: SkBuff) -> Result<Self, (SkBuff, Error)> {
        if !skb.is_linear() || skb.is_empty() {
            return Err((skb, EINVAL));
        }
        let data = skb.data();
        // SAFETY: The linear part of a frame is linearly mapped memory; the frame is owned by the result and dropped after the mapping.
        match unsafe { Mapping::new(dev.dma_device(), data.as_ptr().cast_mut(), data.len(), true) }
        {
            Ok(mapping) => Ok(Self { mapping, skb }),
            Err(e) => Err((skb, e)),
        }
    }

    /// Bus address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.mapping.addr
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.mapping.len as u32
    }

    /// Never true: empty frames can't be mapped.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Unmaps, and gives the frame back.
    #[inline]
    pub fn unmap(self) -> SkBuff {
        self.skb
    }

    /// Gives up what the frame holds besides its bytes: its sender no longer waits for it, and it may outlive the interface.
    /// Not with interrupts disabled.
    pub fn orphan(&mut self) {
        // SAFETY: Valid by the invariant of the frame, which is owned.
        unsafe { bindings::extoll_skb_orphan(self.skb.as_raw()) }
    }

    /// For the sender of the frame no longer to wait for it, while the device may still read it: see [`Owner`]. To be used once.
    #[inline]
    pub fn owner(&self) -> Owner {
        // SAFETY: Valid by the invariant of the frame; the reference belongs to the result.
        unsafe { bindings::extoll_skb_get(self.skb.as_raw()) };
        // INVARIANT: As said.
        Owner(self.skb.0)
    }

    /// As [`SkBuff::tx_timestamp`]. The frame itself is out of reach: whoever exchanged it would free memory that the device reads.
    #[inline]
    pub fn tx_timestamp(&mut self) {
        self.skb.tx_timestamp();
    }
}

/// The claim of its sender (a socket) on a frame that is on its way. When this is dropped the frame no longer counts for what the
/// sender may have under way, and may be sent again. Not to be dropped with interrupts disabled.
///
/// # Invariants
///
/// A reference to a valid frame, whose owner changes by nothing but this until the last reference is gone.
pub struct Owner(NonNull<bindings::sk_buff>);

// SAFETY: A frame is not bound to a CPU or thread.
unsafe impl Send for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: Valid by the invariant, and the reference is given up. Others that hold the frame look at bytes and length, or give up
        // their reference; whoever gives up the last one finds the frame without an owner, as reference counts are ordered.
        unsafe { bindings::extoll_skb_disown(self.0.as_ptr()) }
    }
}

/// A receive buffer that the device may write. Dropping it unmaps and frees: the caller knows that the device is done.
pub struct RxMapping {
    // Dropped first.
    mapping: Mapping,
    skb: RxSkb,
}

impl RxMapping {
    pub(super) fn new(dev: &NetDev, len: u32) -> Result<Self> {
        if len == 0 {
            return Err(EINVAL);
        }
        let skb = RxSkb::alloc(dev, len).ok_or(ENOMEM)?;
        // SAFETY: A fresh frame has `len` bytes of linearly mapped room from `data` on (it holds nothing yet); it is owned by the result
        // and dropped after the mapping.
        let mapping = unsafe {
            Mapping::new(
                dev.dma_device(),
                skb.0.as_ref().data.cast::<u8>(),
                len as usize,
                false,
            )
        }?;
        Ok(Self { mapping, skb })
    }

    /// Bus address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.mapping.addr
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.mapping.len as u32
    }

    /// Never true: a buffer has at least one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Forgets the interface, which the buffer may outlive.
    pub fn orphan(&mut self) {
        // SAFETY: Valid by the invariant of the frame, which is owned.
        unsafe { bindings::extoll_skb_orphan(self.skb.0.as_ptr()) }
    }

    /// The device has written all of it: unmaps, and gives the frame with all bytes in it.
    #[inline]
    pub fn complete(self) -> RxSkb {
        let Self { mapping, skb } = self;
        let len = mapping.len as u32;
        drop(mapping);
        // SAFETY: The frame has room for `len` bytes, for which it was allocated, and holds nothing. Whatever the device has written,
        // they are plain bytes of allocated memory.
        unsafe { bindings::extoll_skb_put(skb.0.as_ptr(), len) };
        skb
    }
}
