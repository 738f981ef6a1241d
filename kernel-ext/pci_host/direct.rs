// SPDX-License-Identifier: GPL-2.0-only

//! Direct mappings: devices access drivers' pages without a copy.
//!
//! Only whole pages are mapped directly, so that a device cannot access memory that was not mapped
//! for it.

use super::{pool::slots_at, PageMap};
use crate::mem::PAGE;
use kernel::{
    dma::DataDirection,
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, SpinLockIrq,
    },
};
use protocol::mem::runs::{words, Slot, SlotAllocator};

/// Name of the lock class; lockdep compares names by address.
static LOCK_NAME: &CStr = c"extoll_direct";

#[derive(Clone, Copy)]
struct Mapped {
    bytes: usize,
    direction: DataDirection,
}

type Pages = SlotAllocator<Mapped, KVVec<Slot<Mapped>>, KVVec<u64>>;

/// Addresses for direct mappings. See the module's documentation. All functions may be called in
/// any context, unless documented differently.
#[pin_data(PinnedDrop)]
pub(super) struct Direct {
    map: Arc<dyn PageMap>,
    /// First device address of the range.
    base: u64,
    bytes: usize,
    #[pin]
    state: SpinLockIrq<Pages>,
    maps: Atomic<u64>,
    full: Atomic<u64>,
}

impl Direct {
    /// Returns an object without mappings. `base` is the device address of the first page. May
    /// sleep.
    pub(super) fn new(map: Arc<dyn PageMap>, base: u64) -> Result<Pin<KBox<Self>>> {
        let bytes = map.bytes();
        let pages = bytes / PAGE;
        let list = KVVec::from_elem(Slot::FREE, pages, GFP_KERNEL)?;
        let bits = KVVec::from_elem(0u64, words(pages), GFP_KERNEL)?;
        let state = SlotAllocator::new(list, bits).ok_or(EINVAL)?;
        KBox::pin_init(
            pin_init!(Self {
                map,
                base,
                bytes,
                state <- SpinLockIrq::new(state, LOCK_NAME, static_lock_class!()),
                maps: Atomic::new(0),
                full: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the device address after the last byte.
    pub(super) fn end(&self) -> u64 {
        self.base + self.bytes as u64
    }

    /// Returns the number of mappings made, the number that failed for lack of space, and the
    /// number that exist now.
    pub(super) fn stats(&self) -> (u64, u64, usize) {
        let runs = self.state.lock().runs();
        (self.maps.load(Relaxed), self.full.load(Relaxed), runs)
    }

    /// Maps whole pages of a driver's RAM and returns the device address. That address and `phys`
    /// are congruent modulo `modulus` pages (a power of two). Returns `None` if the range is not
    /// whole pages, or for lack of space.
    pub(super) fn map(
        &self,
        phys: u64,
        bytes: usize,
        modulus: usize,
        direction: DataDirection,
    ) -> Option<u64> {
        if phys % PAGE as u64 != 0 || bytes % PAGE != 0 || bytes == 0 {
            return None;
        }
        let remainder = (phys as usize / PAGE) & (modulus - 1);
        let align = slots_at(self.base, PAGE, modulus, remainder);
        let owner = Mapped { bytes, direction };
        let taken = self.state.lock().allocate(bytes / PAGE, align, owner);
        let Some(first) = taken else {
            self.full.add(1, Relaxed);
            return None;
        };
        let at = first * PAGE;
        // SAFETY: the run is in the range and belongs to this call only. The driver passed the
        // memory to the DMA interface until the mapping ends; the caller has checked that it is
        // RAM.
        if unsafe { self.map.link(at, phys, bytes, direction) }.is_err() {
            let mut pages = self.state.lock();
            pages.close(first);
            pages.free(first);
            drop(pages);
            self.full.add(1, Relaxed);
            return None;
        }
        self.maps.add(1, Relaxed);
        Some(self.base + at as u64)
    }

    /// Returns the position of a device address, if it is in this range.
    pub(super) fn position(&self, address: u64) -> Option<usize> {
        let position = address.checked_sub(self.base)?;
        (position < self.bytes as u64).then_some(position as usize)
    }

    /// Removes the mapping at a position. Returns false if no such mapping exists.
    pub(super) fn unmap(&self, position: usize, bytes: usize) -> bool {
        let run = {
            let mut pages = self.state.lock();
            let run = pages.find(position / PAGE);
            let run = run.filter(|run| run.first * PAGE == position && run.owner.bytes == bytes);
            run.and_then(|run| pages.close(run.first))
        };
        let Some(run) = run else {
            return false;
        };
        // SAFETY: `map` linked the run with one call. Only one caller can close a run.
        unsafe { self.map.unlink(position, bytes, run.owner.direction) };
        self.state.lock().free(run.first);
        true
    }

    /// Returns true if these bytes are within one mapping.
    pub(super) fn has(&self, position: usize, bytes: usize) -> bool {
        let run = self.state.lock().find(position / PAGE);
        let end = position.checked_add(bytes);
        run.zip(end)
            .is_some_and(|(run, end)| end <= run.first * PAGE + run.owner.bytes)
    }
}

#[pinned_drop]
impl PinnedDrop for Direct {
    fn drop(self: Pin<&mut Self>) {
        let mut pages = self.state.lock();
        // Removes mappings that drivers did not remove; their devices have been removed.
        let mut at = 0;
        while at < self.bytes / PAGE {
            let Some(run) = pages.find(at) else {
                at += 1;
                continue;
            };
            pages.close(run.first);
            // SAFETY: `map` linked the run with one call. No other thread can close runs during the
            // drop.
            unsafe {
                self.map
                    .unlink(run.first * PAGE, run.owner.bytes, run.owner.direction)
            };
            at = run.first + run.slots.max(1);
        }
    }
}
