// SPDX-License-Identifier: GPL-2.0-only

//! Memory shared with the NIC, and the proof that the device is bound.

#![allow(unsafe_code)]

use core::ptr::NonNull;
use kernel::{
    alloc::{flags::GFP_KERNEL_ACCOUNT, Flags},
    device::{self, Bound},
    dma::Coherent,
    prelude::*,
    sync::{aref::ARef, Arc},
};
use kernel_ext::{
    chardev::{Frame, Source},
    mem,
    pci_host::{is_linear, PoolMemory},
};
use wire::ids::BusAddr;

/// Coherent memory as little-endian quadwords that device and CPU may change at any time.
pub struct DmaWords {
    memory: Coherent<[u64]>,
    words: usize,
    dev: ARef<device::Device>,
}

impl DmaWords {
    /// Allocates zeroed memory, contiguous for the device and aligned to at least a page. May
    /// sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for 0 words, `ENOMEM`, `EIO` for memory whose addresses mean interrupts to the NIC.
    pub fn new(dev: &device::Device<Bound>, words: usize) -> Result<Self> {
        Self::with_flags(dev, words, GFP_KERNEL)
    }

    /// As [`DmaWords::new`], charged to the memory control group of the calling process.
    ///
    /// # Errors
    ///
    /// As [`DmaWords::new`].
    pub(crate) fn accounted(dev: &device::Device<Bound>, words: usize) -> Result<Self> {
        Self::with_flags(dev, words, GFP_KERNEL_ACCOUNT)
    }

    fn with_flags(dev: &device::Device<Bound>, words: usize, flags: Flags) -> Result<Self> {
        let memory = Coherent::zeroed_slice(dev, words, flags | __GFP_NOWARN)?;
        let this = Self {
            memory,
            words,
            dev: dev.into(),
        };
        if this.address().meets_interrupts(words as u64 * 8) {
            return Err(EIO);
        }
        Ok(this)
    }

    /// Whether it was made for this device.
    pub(crate) fn is_of(&self, dev: &device::Device) -> bool {
        core::ptr::eq(&*self.dev, dev)
    }

    /// Address for the device.
    pub fn address(&self) -> BusAddr {
        BusAddr(self.memory.dma_address())
    }

    /// Size in quadwords.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Reads a word; 0 outside the memory. Any context.
    #[inline]
    pub fn read(&self, index: usize) -> u64 {
        if index >= self.words {
            return 0;
        }
        let base: *const u64 = self.memory.as_ptr().cast();
        // SAFETY: within the allocation; volatile, as the device may write it at any time.
        u64::from_le(unsafe { base.add(index).read_volatile() })
    }

    /// Writes a word; ignored outside the memory. Any context.
    #[inline]
    pub fn write(&self, index: usize, value: u64) {
        if index >= self.words {
            return;
        }
        let base: *mut u64 = self.memory.as_mut_ptr().cast();
        // SAFETY: within the allocation; volatile, as the device may access it at any time.
        unsafe { base.add(index).write_volatile(value.to_le()) };
    }

    /// Writes half a word, number `index` in units of four bytes, and leaves the other half alone;
    /// ignored outside the memory. Any context.
    #[inline]
    pub fn write_half(&self, index: usize, value: u32) {
        if index / 2 >= self.words {
            return;
        }
        let base: *mut u32 = self.memory.as_mut_ptr().cast();
        // SAFETY: within the allocation; volatile, as the device may access it at any time.
        unsafe { base.add(index).write_volatile(value.to_le()) };
    }
}

// SAFETY: whole pages of an allocation that lives as long as `self`. It holds quadwords that
// anybody may change at any time.
unsafe impl Source for DmaWords {
    fn frame(&self, index: usize) -> Option<Frame> {
        const WORDS: usize = BusAddr::PAGE_SIZE as usize / 8;
        let first = index.checked_mul(WORDS)?;
        if first.checked_add(WORDS)? > self.words {
            return None;
        }
        let base: *const u64 = self.memory.as_ptr().cast();
        // SAFETY: within the allocation by the check above, which is coherent memory.
        Some(unsafe { Frame::coherent(base.add(first).cast()) })
    }
}

/// Coherent memory as that of a pool for devices of other nodes, which they reach by a target of the SMFU: contiguous for the
/// NIC and for the processor.
pub struct PoolWords(Arc<DmaWords>);

impl PoolWords {
    /// Takes memory of whole pages.
    ///
    /// # Errors
    ///
    /// `EINVAL` for what is not whole pages; `EOPNOTSUPP` if an IOMMU made it contiguous for the NIC only.
    pub fn new(words: Arc<DmaWords>) -> Result<Self> {
        if words.words() * 8 % BusAddr::PAGE_SIZE as usize != 0 {
            return Err(EINVAL);
        }
        match is_linear(words.memory.as_ptr().cast()) {
            true => Ok(Self(words)),
            false => Err(EOPNOTSUPP),
        }
    }
}

// SAFETY: whole pages of the linear map, as `new` has made sure, which live as long as the object. All accesses to the words are
// volatile, without references.
unsafe impl PoolMemory for PoolWords {
    fn start(&self) -> NonNull<u8> {
        let start: *mut u8 = self.0.memory.as_mut_ptr().cast();
        // SAFETY: the address of an allocation.
        unsafe { NonNull::new_unchecked(start) }
    }

    fn bytes(&self) -> usize {
        self.0.words() * 8
    }
}

/// The device, known to be bound for as long as this object is reachable: what mappings are made
/// and undone with.
///
/// # Invariants
///
/// Dropped (by [`crate::nic::Nic`]'s shutdown, which waits for all users) before the device is
/// unbound.
pub(crate) struct BoundDevice(mem::BoundDevice);

impl BoundDevice {
    /// Begins a binding.
    pub(crate) fn new(dev: &device::Device<Bound>) -> Self {
        // SAFETY: by the type invariant.
        Self(unsafe { mem::BoundDevice::new(dev) })
    }

    /// Another one for the same binding.
    pub(crate) fn share(&self) -> Self {
        // SAFETY: by the type invariant.
        Self(unsafe { self.0.share() })
    }

    pub(crate) fn get(&self) -> &mem::BoundDevice {
        &self.0
    }
}
