// SPDX-License-Identifier: GPL-2.0-only

//! Memory shared with the NIC, and the proof that the device is bound. Allocation may sleep;
//! accesses work in any context and acquire no locks.

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

/// Coherent memory as little-endian quadwords. The device and CPUs may change it at any time.
pub struct DmaWords {
    memory: Coherent<[u64]>,
    words: usize,
    dev: ARef<device::Device>,
}

impl DmaWords {
    /// Allocates zeroed memory that is contiguous for the device and at least page-aligned. May
    /// sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for 0 words; `ENOMEM`; `EIO` if the bus addresses are in the range that raises
    /// interrupts.
    pub fn new(dev: &device::Device<Bound>, words: usize) -> Result<Self> {
        Self::with_flags(dev, words, GFP_KERNEL)
    }

    /// Allocates memory like [`DmaWords::new`], charged to the memory control group of the calling
    /// process.
    ///
    /// # Errors
    ///
    /// The errors of [`DmaWords::new`].
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

    /// Returns whether the memory was allocated for this device.
    pub(crate) fn is_of(&self, dev: &device::Device) -> bool {
        core::ptr::eq(&*self.dev, dev)
    }

    /// Returns the bus address of the first word.
    pub fn address(&self) -> BusAddr {
        BusAddr(self.memory.dma_address())
    }

    /// Returns the size in quadwords.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Reads a word; returns 0 outside of the memory. Any context.
    #[inline]
    pub fn read(&self, index: usize) -> u64 {
        if index >= self.words {
            return 0;
        }
        let base: *const u64 = self.memory.as_ptr().cast();
        // SAFETY: the index is within the allocation by the check above. The read is volatile,
        // because the device may write the word at any time.
        u64::from_le(unsafe { base.add(index).read_volatile() })
    }

    /// Writes a word; does nothing outside of the memory. Any context.
    #[inline]
    pub fn write(&self, index: usize, value: u64) {
        if index >= self.words {
            return;
        }
        let base: *mut u64 = self.memory.as_mut_ptr().cast();
        // SAFETY: the index is within the allocation by the check above. The write is volatile,
        // because the device may access the word at any time.
        unsafe { base.add(index).write_volatile(value.to_le()) };
    }

    /// Writes half a word without changing the other half. `index` counts half words of four bytes.
    /// Does nothing outside of the memory. Any context.
    #[inline]
    pub fn write_half(&self, index: usize, value: u32) {
        if index / 2 >= self.words {
            return;
        }
        let base: *mut u32 = self.memory.as_mut_ptr().cast();
        // SAFETY: the index is within the allocation by the check above. The write is volatile,
        // because the device may access the word at any time.
        unsafe { base.add(index).write_volatile(value.to_le()) };
    }
}

// SAFETY: the frames are whole pages of an allocation that lives as long as `self`. Its quadwords
// may change at any time, and are accessed by volatile accesses only.
unsafe impl Source for DmaWords {
    fn frame(&self, index: usize) -> Option<Frame> {
        const WORDS: usize = BusAddr::PAGE_SIZE as usize / 8;
        let first = index.checked_mul(WORDS)?;
        if first.checked_add(WORDS)? > self.words {
            return None;
        }
        let base: *const u64 = self.memory.as_ptr().cast();
        // SAFETY: the page is within the allocation by the check above, and the allocation is
        // coherent memory.
        Some(unsafe { Frame::coherent(base.add(first).cast()) })
    }
}

/// Coherent memory as a pool for devices of other nodes, which access it through a target of the
/// SMFU. It is contiguous for the NIC and for the CPU.
pub struct PoolWords(Arc<DmaWords>);

impl PoolWords {
    /// Makes a pool from coherent memory of whole pages.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the memory does not consist of whole pages; `EOPNOTSUPP` if an IOMMU made it
    /// contiguous only for the NIC.
    pub fn new(words: Arc<DmaWords>) -> Result<Self> {
        if words.words() * 8 % BusAddr::PAGE_SIZE as usize != 0 {
            return Err(EINVAL);
        }
        if !is_linear(words.memory.as_ptr().cast()) {
            return Err(EOPNOTSUPP);
        }
        Ok(Self(words))
    }
}

// SAFETY: `new` has checked that the memory is whole pages of the linear map. It lives as long as
// the object, and is accessed by volatile accesses only, without references.
unsafe impl PoolMemory for PoolWords {
    fn start(&self) -> NonNull<u8> {
        let start: *mut u8 = self.0.memory.as_mut_ptr().cast();
        // SAFETY: the address of an allocation is not null.
        unsafe { NonNull::new_unchecked(start) }
    }

    fn bytes(&self) -> usize {
        self.0.words() * 8
    }
}

/// Proof that the device is bound while this object is reachable. DMA mappings are made and removed
/// with it.
///
/// # Invariants
///
/// The shutdown of [`crate::nic::Nic`] drops this object before the device is unbound, after all
/// users have finished.
pub(crate) struct BoundDevice(mem::BoundDevice);

impl BoundDevice {
    /// Makes the first proof for a binding.
    pub(crate) fn new(dev: &device::Device<Bound>) -> Self {
        // SAFETY: By the type invariant, the device is bound while the object is reachable.
        Self(unsafe { mem::BoundDevice::new(dev) })
    }

    /// Returns another proof for the same binding.
    pub(crate) fn share(&self) -> Self {
        // SAFETY: By the type invariant, the device is bound while the object is reachable.
        Self(unsafe { self.0.share() })
    }

    pub(crate) fn get(&self) -> &mem::BoundDevice {
        &self.0
    }
}
