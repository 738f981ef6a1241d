// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Table of fixed size with constant-time lookup by a 64-bit key, and iteration by age.
//!
//! It stores transfers by the address that their notification contains, and peers by node ID. All
//! memory is allocated when the table is created.

use crate::Memory;

/// Index that means no entry.
const NONE: u16 = u16::MAX;
/// Maximum number of entries.
const MAX: u16 = 0x8000;

/// Storage of one entry.
pub struct Entry<T> {
    key: u64,
    /// Index of the next entry in the hash chain, or in the free list.
    chain: u16,
    /// Index of the next older entry.
    older: u16,
    /// Index of the next younger entry.
    younger: u16,
    value: Option<T>,
}

/// Table of entries by key.
pub struct Slots<M: Memory, T> {
    entries: M::Array<Entry<T>>,
    heads: M::Array<u16>,
    free: u16,
    oldest: u16,
    youngest: u16,
    used: u16,
}

impl<M: Memory, T> Slots<M, T> {
    /// Creates a table for `capacity` entries, limited to 1…32,768. May sleep if the allocation of
    /// memory does.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(capacity: u16) -> Result<Self, M::Error> {
        let capacity = capacity.clamp(1, MAX);
        let entries = M::array(usize::from(capacity), |i| Entry {
            key: 0,
            chain: match i as u16 + 1 {
                next if next < capacity => next,
                _ => NONE,
            },
            older: NONE,
            younger: NONE,
            value: None,
        })?;
        Ok(Self {
            entries,
            heads: M::array(usize::from(capacity).next_power_of_two(), |_| NONE)?,
            free: 0,
            oldest: NONE,
            youngest: NONE,
            used: 0,
        })
    }

    /// Returns the number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.used)
    }

    /// Returns true if the table is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the number of entries that can be added.
    #[inline]
    pub fn room(&self) -> usize {
        self.entries.len() - self.len()
    }

    /// Returns true if no further entry can be added.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free == NONE
    }

    #[inline]
    fn bucket(&self, key: u64) -> usize {
        // Fibonacci hashing; the table size is a power of two.
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        hash as usize & (self.heads.len() - 1)
    }

    #[inline]
    fn entry(&self, index: u16) -> Option<&Entry<T>> {
        self.entries.get(usize::from(index))
    }

    #[inline]
    fn entry_mut(&mut self, index: u16) -> Option<&mut Entry<T>> {
        self.entries.get_mut(usize::from(index))
    }

    fn find(&self, key: u64) -> Option<u16> {
        let mut index = *self.heads.get(self.bucket(key))?;
        while let Some(e) = self.entry(index) {
            if e.key == key {
                return Some(index);
            }
            index = e.chain;
        }
        None
    }

    /// Adds an entry as the youngest.
    ///
    /// # Errors
    ///
    /// Returns the value if the table is full or the key is in use.
    pub fn insert(&mut self, key: u64, value: T) -> Result<(), T> {
        let index = self.free;
        if index == NONE || self.find(key).is_some() {
            return Err(value);
        }
        let bucket = self.bucket(key);
        let (Some(head), older) = (self.heads.get(bucket).copied(), self.youngest) else {
            return Err(value);
        };
        let Some(e) = self.entries.get_mut(usize::from(index)) else {
            return Err(value);
        };
        let next_free = e.chain;
        *e = Entry {
            key,
            chain: head,
            older,
            younger: NONE,
            value: Some(value),
        };
        self.free = next_free;
        if let Some(h) = self.heads.get_mut(bucket) {
            *h = index;
        }
        match self.entry_mut(older) {
            Some(o) => o.younger = index,
            None => self.oldest = index,
        }
        self.youngest = index;
        self.used += 1;
        Ok(())
    }

    /// Returns the value of this key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&T> {
        self.entry(self.find(key)?)?.value.as_ref()
    }

    /// Returns the value of this key.
    #[inline]
    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let index = self.find(key)?;
        self.entry_mut(index)?.value.as_mut()
    }

    /// Removes the entry with this key. Returns its value.
    pub fn remove(&mut self, key: u64) -> Option<T> {
        let bucket = self.bucket(key);
        let mut before = NONE;
        let mut index = *self.heads.get(bucket)?;
        loop {
            let e = self.entry(index)?;
            if e.key == key {
                break;
            }
            before = index;
            index = e.chain;
        }
        let free = self.free;
        let e = self.entry_mut(index)?;
        let (chain, older, younger) = (e.chain, e.older, e.younger);
        let value = e.value.take();
        e.chain = free;
        self.free = index;
        match self.entry_mut(before) {
            Some(b) => b.chain = chain,
            None => {
                if let Some(h) = self.heads.get_mut(bucket) {
                    *h = chain;
                }
            }
        }
        match self.entry_mut(older) {
            Some(o) => o.younger = younger,
            None => self.oldest = younger,
        }
        match self.entry_mut(younger) {
            Some(y) => y.older = older,
            None => self.youngest = older,
        }
        self.used -= 1;
        value
    }

    /// Returns key and value of the oldest entry.
    #[inline]
    pub fn oldest(&self) -> Option<(u64, &T)> {
        let e = self.entry(self.oldest)?;
        Some((e.key, e.value.as_ref()?))
    }

    /// Removes the oldest entry.
    pub fn pop_oldest(&mut self) -> Option<(u64, T)> {
        let key = self.entry(self.oldest)?.key;
        Some((key, self.remove(key)?))
    }

    /// Returns the key of the next younger entry after the entry with this key.
    #[inline]
    pub fn younger(&self, key: u64) -> Option<u64> {
        let e = self.entry(self.find(key)?)?;
        Some(self.entry(e.younger)?.key)
    }

    /// Calls `f` with key and value from the oldest to the youngest until it returns false.
    pub fn for_each_mut(&mut self, mut f: impl FnMut(u64, &mut T) -> bool) {
        let mut index = self.oldest;
        while let Some(e) = self.entry_mut(index) {
            index = e.younger;
            let key = e.key;
            if let Some(v) = e.value.as_mut() {
                if !f(key, v) {
                    return;
                }
            }
        }
    }
}
