// SPDX-License-Identifier: GPL-2.0-only

//! Memory that the devices behind a bridge access instead of their drivers' memory (bounce
//! buffers).
//!
//! | Operation of the driver | Cost |
//! |---|---|
//! | map | search for free slots, copy |
//! | sync | copy, if the direction matches |
//! | unmap | copy, if the device may have written; clearing of the slots |
//! | allocate, free coherent memory | search; clearing |
//!
//! With a [`PageMap`], which needs an IOMMU, whole pages are mapped directly. That costs a search
//! and a change of the IOMMU's tables, but no copy. All other memory is copied:
//!
//! A mapping occupies consecutive slots of 2 KiB. The address of the mapping has the same offset
//! within a page as the driver's memory. Freed slots are cleared as a whole, so a device can see
//! neither data of earlier mappings nor other memory.

use super::{direct::Direct, peers, PageMap, PoolMemory};
use crate::{bindings, mem::PAGE};
use kernel::{
    dma::DataDirection,
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, SpinLockIrq,
    },
};
use protocol::mem::runs::{words, Align, Slot, SlotAllocator};

/// Size of a slot in bytes.
const SLOT: usize = 2048;
/// Maximum size of a mapping in bytes.
const LARGEST: usize = 1 << 20;
/// Divisor of the pool's size that gives the maximum size of a mapping that drivers should request.
const PART: usize = 8;

/// Names of lock classes; lockdep compares names by address.
static LOCK_NAME: &CStr = c"extoll_bounce";
static PEERS_NAME: &CStr = c"extoll_peers";

/// Use of a run of slots.
#[derive(Clone, Copy)]
enum Use {
    /// Coherent memory.
    Coherent,
    /// Copy of a driver's memory at physical address `phys`.
    Mapped { phys: u64, bytes: usize },
}

impl Use {
    /// Returns the number of unused bytes at the beginning of the first slot.
    fn skip(&self) -> usize {
        match self {
            Use::Coherent => 0,
            Use::Mapped { phys, .. } => *phys as usize % SLOT,
        }
    }
}

type Slots = SlotAllocator<Use, KVVec<Slot<Use>>, KVVec<u64>>;

struct State {
    runs: Slots,
    coherent: usize,
}

/// Counters and fill level of a pool.
#[derive(Clone, Copy, Default, Debug)]
pub struct PoolStats {
    /// Number of slots of 2 KiB.
    pub slots: usize,
    /// Number of slots in use now.
    pub used: usize,
    /// Maximum of `used` so far.
    pub most: usize,
    /// Number of copied mappings that exist now.
    pub mapped: usize,
    /// Number of chunks of coherent memory that exist now.
    pub coherent: usize,
    /// Number of copied mappings that were made.
    pub maps: u64,
    /// Number of mappings and coherent allocations that failed for lack of space.
    pub full: u64,
    /// Number of invalid requests: address not mapped, memory that is not RAM, a device that cannot
    /// address the pool.
    pub refused: u64,
    /// Bytes that were copied into the pool, for devices to read.
    pub copied_in: u64,
    /// Bytes that were copied out of the pool, written by devices.
    pub copied_out: u64,
    /// Number of direct mappings that were made; not included in the counts above.
    pub direct: u64,
    /// Number of direct mappings that failed for lack of space and were copied instead.
    pub direct_full: u64,
    /// Number of direct mappings that exist now.
    pub direct_mapped: usize,
}

/// Returns the alignment of slots whose device address, in slots of `slot` bytes, is congruent to
/// `remainder` modulo `modulus`. The first slot is at device address `base`.
pub(super) fn slots_at(base: u64, slot: usize, modulus: usize, remainder: usize) -> Align {
    let base = (base / slot as u64) as usize;
    Align {
        modulus,
        remainder: remainder.wrapping_sub(base) & (modulus - 1),
    }
}

/// Pool of memory for devices. See the module's documentation. All functions may be called in any
/// context, unless documented differently.
#[pin_data]
pub struct Pool {
    memory: Arc<dyn PoolMemory>,
    base: u64,
    slots: usize,
    direct: Option<Pin<KBox<Direct>>>,
    #[pin]
    state: SpinLockIrq<State>,
    #[pin]
    pub(super) peers: SpinLockIrq<peers::Bars>,
    maps: Atomic<u64>,
    full: Atomic<u64>,
    refused: Atomic<u64>,
    copied_in: Atomic<u64>,
    copied_out: Atomic<u64>,
}

impl Pool {
    /// Makes a pool of memory that devices access at address `base`, and clears the memory. May
    /// sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `base` is not a multiple of 4096, or if the pool crosses a multiple of 4 GiB,
    /// which many devices do not support; `ENOMEM`.
    pub fn new(memory: Arc<dyn PoolMemory>, base: u64) -> Result<Arc<Self>> {
        Self::with_pages(memory, None, base)
    }

    /// Makes a pool like [`Pool::new`], followed by addresses for direct mappings.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Pool::new`], for both ranges together.
    pub fn with_pages(
        memory: Arc<dyn PoolMemory>,
        pages: Option<Arc<dyn PageMap>>,
        base: u64,
    ) -> Result<Arc<Self>> {
        let bytes = memory.bytes();
        let all = bytes.checked_add(pages.as_ref().map_or(0, |p| p.bytes()));
        let last = base.checked_add(all.ok_or(EINVAL)? as u64 - 1);
        let last = last.ok_or(EINVAL)?;
        if base % PAGE as u64 != 0 || base >> 32 != last >> 32 {
            return Err(EINVAL);
        }
        let pages = pages.map(|pages| Direct::new(pages, base + bytes as u64));
        let direct = pages.transpose()?;
        let slots = bytes / SLOT;
        let list = KVVec::from_elem(Slot::FREE, slots, GFP_KERNEL)?;
        let bits = KVVec::from_elem(0u64, words(slots), GFP_KERNEL)?;
        let state = State {
            runs: SlotAllocator::new(list, bits).ok_or(EINVAL)?,
            coherent: 0,
        };
        let pool = Arc::pin_init(
            pin_init!(Self {
                memory,
                base,
                slots,
                direct,
                state <- SpinLockIrq::new(state, LOCK_NAME, static_lock_class!()),
                peers <- SpinLockIrq::new(
                    [None; peers::MAX_PEERS], PEERS_NAME, static_lock_class!()
                ),
                maps: Atomic::new(0),
                full: Atomic::new(0),
                refused: Atomic::new(0),
                copied_in: Atomic::new(0),
                copied_out: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        pool.clear(0, slots);
        Ok(pool)
    }

    /// Returns the first address for devices.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.slots * SLOT
    }

    /// Returns the counters.
    pub fn stats(&self) -> PoolStats {
        let direct = self.direct.as_ref().map(|d| d.stats());
        let (direct, direct_full, direct_mapped) = direct.unwrap_or_default();
        let state = self.state.lock();
        PoolStats {
            slots: self.slots,
            used: state.runs.used(),
            most: state.runs.max_used(),
            mapped: state.runs.runs() - state.coherent,
            coherent: state.coherent,
            maps: self.maps.load(Relaxed),
            full: self.full.load(Relaxed),
            refused: self.refused.load(Relaxed),
            copied_in: self.copied_in.load(Relaxed),
            copied_out: self.copied_out.load(Relaxed),
            direct,
            direct_full,
            direct_mapped,
        }
    }

    /// Leaks the pool if coherent memory was not freed, because a driver may still have a pointer
    /// to it or a process may have it mapped. Returns the number of chunks that were not freed.
    pub(super) fn keep_leaked(this: &Arc<Self>) -> usize {
        let coherent = this.state.lock().coherent;
        if coherent > 0 {
            core::mem::forget(this.clone());
        }
        coherent
    }

    /// Returns the address of a byte of the memory. Callers pass positions of runs of slots, which
    /// are in the memory.
    fn at(&self, position: usize) -> *mut u8 {
        // Limits the offset to the end of the memory.
        let position = position.min(self.bytes());
        // SAFETY: by the requirements of `PoolMemory` the offset is within the memory or at its
        // end.
        unsafe { self.memory.start().as_ptr().add(position) }
    }

    fn clear(&self, first: usize, slots: usize) {
        let bytes = (slots * SLOT).min(self.bytes() - (first * SLOT).min(self.bytes()));
        // SAFETY: the range is within the memory, to which no references exist.
        unsafe { core::ptr::write_bytes(self.at(first * SLOT), 0, bytes) };
    }

    /// Copies `bytes` bytes between RAM and the pool. The run of slots at `position` contains all
    /// `bytes` bytes.
    fn copy(&self, position: usize, phys: u64, bytes: usize, to_device: bool) {
        // SAFETY: the function has no preconditions.
        let ram = unsafe { bindings::extoll_ram(phys, bytes) }.cast::<u8>();
        if ram.is_null() || position + bytes > self.bytes() {
            return self.refuse();
        }
        let pool = self.at(position);
        let (from, to, counter) = if to_device {
            (ram, pool, &self.copied_in)
        } else {
            (pool, ram, &self.copied_out)
        };
        // SAFETY: the pool contains `bytes` bytes at `position`. The RAM is memory that a driver
        // passed to the DMA interface until the mapping ends; the kernel's own bounce buffers
        // access it in the same way. The ranges do not overlap, because `map` rejects memory that
        // is in the pool.
        unsafe { core::ptr::copy_nonoverlapping(from, to, bytes) };
        counter.add(bytes as u64, Relaxed);
    }

    pub(super) fn refuse(&self) {
        self.refused.add(1, Relaxed);
    }

    /// Returns true if a device with this mask can address the whole pool.
    pub(super) fn is_reached(&self, mask: u64) -> bool {
        self.last() & !mask == 0
    }

    /// Returns the device address of the last byte.
    pub(super) fn last(&self) -> u64 {
        let end = self.base + self.bytes() as u64;
        self.direct.as_ref().map_or(end, |d| d.end()) - 1
    }

    /// Returns the maximum size of a mapping that drivers should request.
    pub(super) fn largest(&self) -> usize {
        let most = (self.bytes() / PART).min(LARGEST);
        // One page is subtracted, because a mapping need not begin at a page boundary.
        (most & !(PAGE - 1)).saturating_sub(PAGE).max(PAGE)
    }

    /// Returns the alignment of slots whose device address, in slots, is congruent to `remainder`
    /// modulo `modulus`.
    fn align(&self, modulus: usize, remainder: usize) -> Align {
        slots_at(self.base, SLOT, modulus, remainder)
    }

    /// Returns true if any of the bytes are in the pool.
    fn overlaps(&self, ram: *const u8, bytes: usize) -> bool {
        let (start, ram) = (self.memory.start().addr().get(), ram.addr());
        ram < start + self.bytes() && start < ram.saturating_add(bytes)
    }

    /// Maps memory. Returns the device address, which is equal to `phys` in the bits of `keep`.
    pub(super) fn map(
        &self,
        phys: u64,
        bytes: usize,
        keep: u64,
        mask: u64,
        copy: bool,
        direction: DataDirection,
    ) -> Option<u64> {
        // SAFETY: the function has no preconditions.
        let ram = unsafe { bindings::extoll_ram(phys, bytes) }.cast::<u8>();
        // `modulus` is a power of two, and at least the two slots of a page.
        let modulus = (keep as usize | (PAGE - 1))
            .checked_add(1)
            .map(|n| n / SLOT);
        let modulus = modulus.filter(|n| n.is_power_of_two());
        let (false, true, Some(modulus)) = (
            ram.is_null() || self.overlaps(ram, bytes),
            self.is_reached(mask),
            modulus,
        ) else {
            self.refuse();
            return None;
        };
        if let Some(direct) = &self.direct {
            let pages = modulus / (PAGE / SLOT);
            if let Some(address) = direct.map(phys, bytes, pages, direction) {
                return Some(address);
            }
        }
        let skip = phys as usize % SLOT;
        let align = self.align(modulus, (phys as usize / SLOT) & (modulus - 1));
        let slots = skip.checked_add(bytes)?.div_ceil(SLOT);
        let owner = Use::Mapped { phys, bytes };
        let taken = self.state.lock().runs.allocate(slots, align, owner);
        let Some(first) = taken else {
            self.full.add(1, Relaxed);
            return None;
        };
        self.maps.add(1, Relaxed);
        let position = first * SLOT + skip;
        if copy {
            self.copy(position, phys, bytes, true);
        }
        Some(self.base + position as u64)
    }

    /// Returns the position of a device address in the range of direct mappings.
    fn in_pages(&self, address: u64) -> Option<(&Direct, usize)> {
        let direct = self.direct.as_deref()?;
        Some((direct, direct.position(address)?))
    }

    /// Returns the position of a device address in the memory.
    fn position(&self, address: u64) -> Option<usize> {
        let position = address.checked_sub(self.base)?;
        (position < self.bytes() as u64).then_some(position as usize)
    }

    /// Removes a mapping. Copies the bytes that the device wrote if `copy` is set.
    pub(super) fn unmap(&self, address: u64, bytes: usize, copy: bool) {
        if let Some((direct, position)) = self.in_pages(address) {
            if !direct.unmap(position, bytes) {
                self.refuse();
            }
            return;
        }
        let closed = self.position(address).and_then(|position| {
            let mut state = self.state.lock();
            let run = state.runs.find(position / SLOT)?;
            match run.owner {
                // A mapping can only be removed as a whole.
                Use::Mapped { phys, bytes: all }
                    if position == run.first * SLOT + run.owner.skip() && bytes == all =>
                {
                    state.runs.close(run.first)?;
                    Some((run, position, phys))
                }
                _ => None,
            }
        });
        let Some((run, position, phys)) = closed else {
            return self.refuse();
        };
        if copy {
            self.copy(position, phys, bytes, false);
        }
        self.clear(run.first, run.slots);
        self.state.lock().runs.free(run.first);
    }

    /// Copies `bytes` bytes of a mapping. Does nothing for memory of `dma_alloc_pages`, which
    /// driver and device share.
    pub(super) fn sync(&self, address: u64, bytes: usize, to_device: bool) {
        if let Some((direct, position)) = self.in_pages(address) {
            // CPUs and devices access the same memory.
            if !direct.has(position, bytes) {
                self.refuse();
            }
            return;
        }
        let found = self.position(address).and_then(|position| {
            let run = self.state.lock().runs.find(position / SLOT)?;
            let Use::Mapped { phys, bytes: all } = run.owner else {
                return Some(None);
            };
            let inside = position.checked_sub(run.first * SLOT + run.owner.skip())?;
            let fits = inside.checked_add(bytes).is_some_and(|end| end <= all);
            fits.then_some(Some((position, phys + inside as u64)))
        });
        match found {
            Some(Some((position, phys))) => self.copy(position, phys, bytes, to_device),
            Some(None) => {}
            None => self.refuse(),
        }
    }

    /// Allocates coherent memory, in whole pages and aligned to its size. Returns its addresses for
    /// CPUs and for the device.
    pub(super) fn alloc(&self, bytes: usize, mask: u64) -> Option<(*mut u8, u64)> {
        if bytes == 0 || !self.is_reached(mask) {
            self.refuse();
            return None;
        }
        let slots = bytes.checked_next_multiple_of(PAGE)? / SLOT;
        let align = self.align(slots.checked_next_power_of_two()?, 0);
        let taken = {
            let mut state = self.state.lock();
            let taken = state.runs.allocate(slots, align, Use::Coherent);
            state.coherent += usize::from(taken.is_some());
            taken
        };
        let Some(first) = taken else {
            self.full.add(1, Relaxed);
            return None;
        };
        let position = first * SLOT;
        Some((self.at(position), self.base + position as u64))
    }

    /// Frees coherent memory.
    pub(super) fn free(&self, address: u64, bytes: usize) {
        let closed = self.position(address).and_then(|position| {
            let mut state = self.state.lock();
            let run = state.runs.find(position / SLOT)?;
            let own = matches!(run.owner, Use::Coherent)
                && position == run.first * SLOT
                && bytes.checked_next_multiple_of(PAGE)? == run.slots * SLOT;
            own.then_some(())?;
            state.runs.close(run.first)
        });
        let Some(run) = closed else {
            return self.refuse();
        };
        self.clear(run.first, run.slots);
        let mut state = self.state.lock();
        state.runs.free(run.first);
        state.coherent -= 1;
    }
}
