// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Memory in slots of one size, of which runs of consecutive ones are given out: which are used, by what, and which is the next.
//!
//! A run that ends is *closed* first: nobody finds it any more, but its slots are not given out yet, so that its owner can
//! clear them without a lock. Runs begin at slots that the caller's alignment allows, lowest first, which keeps what is used
//! in the caches. All memory is the caller's: a bit and a [`Slot`] per slot.

use core::{marker::PhantomData, ops::DerefMut};

/// Most slots.
pub const MAX: usize = 1 << 24;
/// Not in a run.
const NONE: u32 = u32::MAX;
/// Slots per word.
const BITS: usize = 64;

/// What is known of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot<T> {
    /// First slot of its run.
    first: u32,
    /// Of a first slot: how many there are.
    slots: u32,
    /// Of a first slot, until the run is closed.
    note: Option<T>,
}

impl<T> Slot<T> {
    /// A slot that is free.
    pub const FREE: Self = Self {
        first: NONE,
        slots: 0,
        note: None,
    };
}

/// Consecutive slots that belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run<T> {
    /// The first.
    pub first: usize,
    /// So many, at least 1.
    pub slots: usize,
    /// What the owner wrote down.
    pub note: T,
}

/// Where a run may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Align {
    /// A power of two.
    pub modulus: usize,
    /// First slots have this remainder.
    pub remainder: usize,
}

impl Align {
    /// Anywhere.
    pub const ANY: Self = Self {
        modulus: 1,
        remainder: 0,
    };

    /// The first such slot that is not before `at`; `None` beyond all numbers.
    fn next(self, at: usize) -> Option<usize> {
        let step = self.remainder.wrapping_sub(at) & (self.modulus - 1);
        at.checked_add(step)
    }
}

/// See the module's documentation. `S` and `W` are memory for slots and words of bits.
#[derive(Debug)]
pub struct Runs<T, S, W> {
    slots: S,
    /// A bit per slot, set while it is used. Those beyond the last slot are set.
    words: W,
    /// No slot below it is free.
    low: usize,
    used: usize,
    most: usize,
    runs: usize,
    _notes: PhantomData<T>,
}

/// Words of bits for so many slots.
pub const fn words(slots: usize) -> usize {
    slots.div_ceil(BITS)
}

impl<T: Copy, S: DerefMut<Target = [Slot<T>]>, W: DerefMut<Target = [u64]>> Runs<T, S, W> {
    /// All slots are free. `None` unless there are 1 to [`MAX`] slots, and [`words()`] of them.
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
            most: 0,
            runs: 0,
            _notes: PhantomData,
        })
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Never: there is at least one slot.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Slots that are not free.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Most of them that ever were.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Runs that are not free, closed ones among them.
    pub fn runs(&self) -> usize {
        self.runs
    }

    /// The bits of a word that stand for `from..to`, slots of which at least one is in it.
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

    /// The last slot in `from..to` that is used.
    fn last_used(&self, from: usize, to: usize) -> Option<usize> {
        (from / BITS..words(to)).rev().find_map(|word| {
            let used = self.words.get(word)? & Self::mask(word, from, to);
            (used != 0).then(|| word * BITS + BITS - 1 - used.leading_zeros() as usize)
        })
    }

    /// The first slot from `from` on that is free.
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

    /// Takes `slots` slots that begin where `align` allows; the first of them, or `None` if there are none, or the alignment
    /// makes no sense.
    pub fn take(&mut self, slots: usize, align: Align, note: T) -> Option<usize> {
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
            first.note = Some(note);
        }
        self.mark(at, end, true);
        self.used += slots;
        self.most = self.most.max(self.used);
        self.runs += 1;
        Some(at)
    }

    /// The run that a slot is in, unless it is free or closed.
    pub fn find(&self, slot: usize) -> Option<Run<T>> {
        let first = self.slots.get(slot)?.first as usize;
        let head = self.slots.get(first)?;
        Some(Run {
            first,
            slots: head.slots as usize,
            note: head.note?,
        })
    }

    /// Ends the run that a slot is in: nobody finds it any more. `None` if it is free, or closed already.
    pub fn close(&mut self, slot: usize) -> Option<Run<T>> {
        let run = self.find(slot)?;
        self.slots.get_mut(run.first)?.note = None;
        Some(run)
    }

    /// Frees the slots of a closed run, which is named by its first; false if there is none.
    pub fn free(&mut self, first: usize) -> bool {
        let count = match self.slots.get(first) {
            Some(head) if head.first as usize == first && head.note.is_none() => {
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
