// SPDX-License-Identifier: GPL-2.0-only

//! Memory that the devices behind a bridge reach, in place of that of their drivers.
//!
//! | Operation of the driver | Costs |
//! |---|---|
//! | map | a search for free slots, a copy of what is mapped |
//! | sync | a copy, if the direction is that of the sync |
//! | unmap | a copy, if the device may have written; clearing of the slots |
//! | allocate, free coherent memory | a search; clearing |
//!
//! With a [`PageMap`], which takes an IOMMU, whole pages are mapped as they are; a search and a change of the IOMMU's tables, but
//! no copy. Everything else is copied:
//!
//! A mapping takes slots of 2 KiB that follow each other, at an address with the same offset in its page as the driver's
//! memory has. Whole slots are cleared when they are given back, so that a device finds nothing of earlier mappings, and
//! nothing of other memory, ever.

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
use wire::runs::{words, Align, Runs, Slot};

/// Bytes of a slot.
const SLOT: usize = 2048;
/// Memory is given out to one mapping up to this size …
const LARGEST: usize = 1 << 20;
/// … and to this part of the pool.
const PART: usize = 8;

/// The lock checker compares names by address.
static LOCK_NAME: &CStr = c"extoll_bounce";
static PEERS_NAME: &CStr = c"extoll_peers";

/// What a run of slots is used for.
#[derive(Clone, Copy)]
enum Use {
    /// Coherent memory.
    Coherent,
    /// Memory of the driver, from physical address `phys` on.
    Mapped { phys: u64, bytes: usize },
}

impl Use {
    /// Bytes of the first slot that are in front of it.
    fn skip(&self) -> usize {
        match self {
            Use::Coherent => 0,
            Use::Mapped { phys, .. } => *phys as usize % SLOT,
        }
    }
}

type Slots = Runs<Use, KVVec<Slot<Use>>, KVVec<u64>>;

struct State {
    runs: Slots,
    coherent: usize,
}

/// What happened to a pool, and how full it is.
#[derive(Clone, Copy, Default, Debug)]
pub struct PoolStats {
    /// Slots of 2 KiB.
    pub slots: usize,
    /// Of them in use now.
    pub used: usize,
    /// Most that ever were.
    pub most: usize,
    /// Mappings that there are.
    pub mapped: usize,
    /// Pieces of coherent memory that there are.
    pub coherent: usize,
    /// Mappings that were made.
    pub maps: u64,
    /// Mappings and coherent memory for which there was no room.
    pub full: u64,
    /// Requests that make no sense here: addresses that are not mapped, memory that is no RAM, devices that cannot reach it.
    pub refused: u64,
    /// Bytes that were copied for devices to read.
    pub copied_in: u64,
    /// Bytes that were copied from what devices wrote.
    pub copied_out: u64,
    /// Mappings without a copy that were made; they are not among the others.
    pub direct: u64,
    /// Those for which there was no room, so that they were copied.
    pub direct_full: u64,
    /// Those that there are.
    pub direct_mapped: usize,
}

/// Slots of `slot` bytes that begin where a device's addresses have remainder `remainder`, in slots; the first is at `base`.
pub(super) fn slots_at(base: u64, slot: usize, modulus: usize, remainder: usize) -> Align {
    let base = (base / slot as u64) as usize;
    Align {
        modulus,
        remainder: remainder.wrapping_sub(base) & (modulus - 1),
    }
}

/// See the module's documentation. All functions may be called in any context, unless they say otherwise.
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
    /// A pool of memory that devices reach from `base` on. Clears it. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an address that is no multiple of 4096, or memory that is across a multiple of 4 GiB there, which many devices
    /// cannot bear; `ENOMEM`.
    pub fn new(memory: Arc<dyn PoolMemory>, base: u64) -> Result<Arc<Self>> {
        Self::with_pages(memory, None, base)
    }

    /// As [`Pool::new`], with addresses behind those of the memory to which whole pages are linked as they are.
    ///
    /// # Errors
    ///
    /// As [`Pool::new`], for all of it.
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
            runs: Runs::new(list, bits).ok_or(EINVAL)?,
            coherent: 0,
        };
        let pool = Arc::pin_init(
            pin_init!(Self {
                memory,
                base,
                slots,
                direct,
                state <- SpinLockIrq::new(state, LOCK_NAME, static_lock_class!()),
                peers <- SpinLockIrq::new([None; peers::MOST], PEERS_NAME, static_lock_class!()),
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

    /// Where it begins for devices.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        self.slots * SLOT
    }

    /// Counters.
    pub fn stats(&self) -> PoolStats {
        let direct = self.direct.as_ref().map(|d| d.stats());
        let (direct, direct_full, direct_mapped) = direct.unwrap_or_default();
        let state = self.state.lock();
        PoolStats {
            slots: self.slots,
            used: state.runs.used(),
            most: state.runs.most(),
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

    /// Keeps the memory for ever if somebody may still have a pointer to it, or a process may have it mapped: coherent memory
    /// that was not freed. How many pieces there are of it.
    pub(super) fn keep_leaked(this: &Arc<Self>) -> usize {
        let coherent = this.state.lock().coherent;
        if coherent > 0 {
            core::mem::forget(this.clone());
        }
        coherent
    }

    /// A byte of the memory. There is none for what is beyond it, so callers take positions from runs of slots.
    fn at(&self, position: usize) -> *mut u8 {
        // Stays within the memory, or at its end.
        let position = position.min(self.bytes());
        // SAFETY: by the requirements of `PoolMemory`.
        unsafe { self.memory.start().as_ptr().add(position) }
    }

    fn clear(&self, first: usize, slots: usize) {
        let bytes = (slots * SLOT).min(self.bytes() - (first * SLOT).min(self.bytes()));
        // SAFETY: within the memory, which nobody has a reference to.
        unsafe { core::ptr::write_bytes(self.at(first * SLOT), 0, bytes) };
    }

    /// Copies between RAM and the pool, from a position that has so many bytes.
    fn copy(&self, position: usize, phys: u64, bytes: usize, to_device: bool) {
        // SAFETY: no requirements.
        let ram = unsafe { bindings::extoll_ram(phys, bytes) }.cast::<u8>();
        if ram.is_null() || position + bytes > self.bytes() {
            return self.refuse();
        }
        let pool = self.at(position);
        let (from, to, counter) = match to_device {
            true => (ram, pool, &self.copied_in),
            false => (pool, ram, &self.copied_out),
        };
        // SAFETY: the pool has so many bytes there. RAM is where a driver has its memory, which it gave to the DMA interface
        // for the time of the mapping: the kernel has C code do the same with it. They are not the same memory: what is
        // mapped is checked not to be in the pool (`map`).
        unsafe { core::ptr::copy_nonoverlapping(from, to, bytes) };
        counter.add(bytes as u64, Relaxed);
    }

    pub(super) fn refuse(&self) {
        self.refused.add(1, Relaxed);
    }

    /// Whether a device with this mask reaches all of it.
    pub(super) fn is_reached(&self, mask: u64) -> bool {
        self.last() & !mask == 0
    }

    /// The device's address of the last byte.
    pub(super) fn last(&self) -> u64 {
        let end = self.base + self.bytes() as u64;
        self.direct.as_ref().map_or(end, |d| d.end()) - 1
    }

    /// The largest mapping that should be asked for.
    pub(super) fn largest(&self) -> usize {
        let most = (self.bytes() / PART).min(LARGEST);
        // It need not begin with a page.
        (most & !(PAGE - 1)).saturating_sub(PAGE).max(PAGE)
    }

    /// Slots that begin where addresses of the device have remainder `remainder`, in slots.
    fn align(&self, modulus: usize, remainder: usize) -> Align {
        slots_at(self.base, SLOT, modulus, remainder)
    }

    /// Whether some of the bytes are in the pool.
    fn overlaps(&self, ram: *const u8, bytes: usize) -> bool {
        let (start, ram) = (self.memory.start().addr().get(), ram.addr());
        ram < start + self.bytes() && start < ram.saturating_add(bytes)
    }

    /// Maps memory: the device's address, in which the bits of `keep` are those of `phys`.
    pub(super) fn map(
        &self,
        phys: u64,
        bytes: usize,
        keep: u64,
        mask: u64,
        copy: bool,
        direction: DataDirection,
    ) -> Option<u64> {
        // SAFETY: no requirements.
        let ram = unsafe { bindings::extoll_ram(phys, bytes) }.cast::<u8>();
        // A power of two, at least two slots.
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
        let note = Use::Mapped { phys, bytes };
        let taken = self.state.lock().runs.take(slots, align, note);
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

    /// Where an address of the device is among the pages that are mapped as they are.
    fn in_pages(&self, address: u64) -> Option<(&Direct, usize)> {
        let direct = self.direct.as_deref()?;
        Some((direct, direct.position(address)?))
    }

    /// Position of an address of the device.
    fn position(&self, address: u64) -> Option<usize> {
        let position = address.checked_sub(self.base)?;
        (position < self.bytes() as u64).then_some(position as usize)
    }

    /// Ends a mapping; copies what the device wrote, if that is wanted.
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
            match run.note {
                // What was mapped at once is unmapped at once.
                Use::Mapped { phys, bytes: all }
                    if position == run.first * SLOT + run.note.skip() && bytes == all =>
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

    /// Copies a part of a mapping. Both have the same bytes of what was allocated (`dma_alloc_pages`).
    pub(super) fn sync(&self, address: u64, bytes: usize, to_device: bool) {
        if let Some((direct, position)) = self.in_pages(address) {
            // Processors and devices see the same.
            if !direct.has(position, bytes) {
                self.refuse();
            }
            return;
        }
        let found = self.position(address).and_then(|position| {
            let run = self.state.lock().runs.find(position / SLOT)?;
            let Use::Mapped { phys, bytes: all } = run.note else {
                return Some(None);
            };
            let inside = position.checked_sub(run.first * SLOT + run.note.skip())?;
            let fits = inside.checked_add(bytes).is_some_and(|end| end <= all);
            fits.then_some(Some((position, phys + inside as u64)))
        });
        match found {
            Some(Some((position, phys))) => self.copy(position, phys, bytes, to_device),
            Some(None) => {}
            None => self.refuse(),
        }
    }

    /// Coherent memory, of whole pages and aligned to its size: the processor's address, and the device's.
    pub(super) fn alloc(&self, bytes: usize, mask: u64) -> Option<(*mut u8, u64)> {
        if bytes == 0 || !self.is_reached(mask) {
            self.refuse();
            return None;
        }
        let slots = bytes.checked_next_multiple_of(PAGE)? / SLOT;
        let align = self.align(slots.checked_next_power_of_two()?, 0);
        let taken = {
            let mut state = self.state.lock();
            let taken = state.runs.take(slots, align, Use::Coherent);
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

    /// Gives coherent memory back.
    pub(super) fn free(&self, address: u64, bytes: usize) {
        let closed = self.position(address).and_then(|position| {
            let mut state = self.state.lock();
            let run = state.runs.find(position / SLOT)?;
            let own = matches!(run.note, Use::Coherent)
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
