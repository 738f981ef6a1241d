// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Allocator of runs of consecutive slots of equal size; each run has a value that its owner has
//! chosen.
//!
//! A run is *closed* before it is freed. A closed run is not found any more, but its slots are not
//! reused yet, so its owner can clear them without a lock. A run is allocated at the lowest free
//! slots that the caller's alignment allows, so that the slots in use remain in the CPU's caches.
//! The caller provides all memory: a bit and a [`Slot`] per slot.

use core::{marker::PhantomData, ops::DerefMut};

/// Maximum number of slots.
pub const MAX: usize = 1 << 24;
/// Value of [`Slot::first`] for a slot that is not in a run.
const NONE: u32 = u32::MAX;
/// Number of slots per word of the bit map.
const BITS: usize = 64;

/// State of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot<T> {
    /// Index of the first slot of its run.
    first: u32,
    /// In a first slot: the number of slots of the run.
    slots: u32,
    /// In a first slot: the owner's value, until the run is closed.
    owner: Option<T>,
}

impl<T> Slot<T> {
    /// Free slot.
    pub const FREE: Self = Self {
        first: NONE,
        slots: 0,
        owner: None,
    };
}

/// Run of consecutive slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run<T> {
    /// Index of the first slot.
    pub first: usize,
    /// Number of slots, at least 1.
    pub slots: usize,
    /// Value that the owner has chosen.
    pub owner: T,
}

/// Alignment of the first slot of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Align {
    /// Modulus, a power of two.
    pub modulus: usize,
    /// Remainder of the index of the first slot.
    pub remainder: usize,
}

impl Align {
    /// Alignment that allows every slot.
    pub const ANY: Self = Self {
        modulus: 1,
        remainder: 0,
    };

    /// Returns the first allowed slot at or after `at`; `None` on overflow.
    fn next(self, at: usize) -> Option<usize> {
        let step = self.remainder.wrapping_sub(at) & (self.modulus - 1);
        at.checked_add(step)
    }
}

/// Allocator of runs; see the module's documentation. `S` and `W` hold the slots and the words of
/// bits.
#[derive(Debug)]
pub struct SlotAllocator<T, S, W> {
    slots: S,
    /// Bit map: one bit per slot, set while the slot is used. Bits beyond the last slot are set.
    words: W,
    /// Lower bound of the first free slot.
    low: usize,
    used: usize,
    max_used: usize,
    runs: usize,
    _notes: PhantomData<T>,
}

/// Returns the number of words of bits for `slots` slots.
pub const fn words(slots: usize) -> usize {
    slots.div_ceil(BITS)
}

impl<T: Copy, S: DerefMut<Target = [Slot<T>]>, W: DerefMut<Target = [u64]>> SlotAllocator<T, S, W> {
    /// Returns an allocator with all slots free. Returns `None` unless there are 1 to [`MAX`] slots
    /// and [`words()`] words.
    pub fn new(mut slots: S, mut bits: W) -> Option<Self> {
        let len = slots.len();
        if len == 0 || len > MAX || bits.len() != words(len) {
            return None;
        }
        slots.fill(Slot::FREE);
        bits.fill(0);
        if let (Some(last), 1..) = (bits.last_mut(), len % BITS) {
            *last = u64::MAX << (len % BITS);
        }
        Some(Self {
            slots,
            words: bits,
            low: 0,
            used: 0,
            max_used: 0,
            runs: 0,
            _notes: PhantomData,
        })
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns false, because there is at least one slot.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of slots in use, including those of closed runs.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns the maximum of [`Self::used()`] so far.
    pub fn max_used(&self) -> usize {
        self.max_used
    }

    /// Returns the number of runs, including closed runs.
    pub fn runs(&self) -> usize {
        self.runs
    }

    /// Returns the bits of word `word` for the slots `from..to`. At least one of these slots must
    /// be in the word.
    fn mask(word: usize, from: usize, to: usize) -> u64 {
        let begin = word * BITS;
        let below = from.saturating_sub(begin).min(BITS);
        let above = to.saturating_sub(begin).min(BITS);
        let up_to = |n: usize| match n {
            BITS.. => u64::MAX,
            n => (1u64 << n) - 1,
        };
        up_to(above) & !up_to(below)
    }

    /// Returns the last used slot in `from..to`.
    fn last_used(&self, from: usize, to: usize) -> Option<usize> {
        (from / BITS..words(to)).rev().find_map(|word| {
            let used = self.words.get(word)? & Self::mask(word, from, to);
            (used != 0).then(|| word * BITS + BITS - 1 - used.leading_zeros() as usize)
        })
    }

    /// Returns the first free slot at or after `from`.
    fn first_free(&self, from: usize) -> Option<usize> {
        let len = self.len();
        (from / BITS..words(len)).find_map(|word| {
            let free = !self.words.get(word)? & Self::mask(word, from, len);
            (free != 0).then(|| word * BITS + free.trailing_zeros() as usize)
        })
    }

    fn mark(&mut self, from: usize, to: usize, used: bool) {
        for word in from / BITS..words(to) {
            let mask = Self::mask(word, from, to);
            if let Some(w) = self.words.get_mut(word) {
                *w = if used { *w | mask } else { *w & !mask };
            }
        }
    }

    /// Allocates `slots` slots that begin where `align` allows. Returns the first of them, or
    /// `None` if there is no such run or the alignment is invalid.
    pub fn allocate(&mut self, slots: usize, align: Align, owner: T) -> Option<usize> {
        if slots == 0 || !align.modulus.is_power_of_two() {
            return None;
        }
        self.low = self.first_free(self.low)?;
        let mut at = align.next(self.low)?;
        let end = loop {
            let end = at.checked_add(slots).filter(|end| *end <= self.len())?;
            match self.last_used(at, end) {
                None => break end,
                Some(used) => at = align.next(self.first_free(used + 1)?)?,
            }
        };
        let run = self.slots.get_mut(at..end)?;
        for slot in run.iter_mut() {
            slot.first = at as u32;
        }
        if let Some(first) = run.first_mut() {
            first.slots = slots as u32;
            first.owner = Some(owner);
        }
        self.mark(at, end, true);
        self.used += slots;
        self.max_used = self.max_used.max(self.used);
        self.runs += 1;
        Some(at)
    }

    /// Returns the run that contains `slot`, unless the slot is free or its run is closed.
    pub fn find(&self, slot: usize) -> Option<Run<T>> {
        let first = self.slots.get(slot)?.first as usize;
        let head = self.slots.get(first)?;
        Some(Run {
            first,
            slots: head.slots as usize,
            owner: head.owner?,
        })
    }

    /// Closes the run that contains `slot`, so that it is not found any more. Returns `None` if the
    /// slot is free or its run is closed already.
    pub fn close(&mut self, slot: usize) -> Option<Run<T>> {
        let run = self.find(slot)?;
        self.slots.get_mut(run.first)?.owner = None;
        Some(run)
    }

    /// Frees the slots of a closed run that begins at slot `first`. Returns false if there is no
    /// such run.
    pub fn free(&mut self, first: usize) -> bool {
        let count = match self.slots.get(first) {
            Some(head) if head.first as usize == first && head.owner.is_none() => {
                head.slots as usize
            }
            _ => return false,
        };
        let Some(run) = self.slots.get_mut(first..first + count) else {
            return false;
        };
        run.fill(Slot::FREE);
        self.mark(first, first + count, false);
        self.low = self.low.min(first);
        self.used -= count;
        self.runs -= 1;
        true
    }
}
