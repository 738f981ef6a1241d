// SPDX-License-Identifier: GPL-2.0-only

//! A table of bounded size with O(1) lookup by a 64-bit key and iteration by age.
//!
//! Used for transfers in flight, keyed by the address that their notification will carry, and for peers, keyed by node ID. All memory
//! is allocated when the table is made.

use kernel::prelude::*;

/// No entry.
const NONE: u16 = u16::MAX;

struct Entry<T> {
    key: u64,
    /// Next in the hash chain or in the free list.
    chain: u16,
    /// Neighbours by age.
    older: u16,
    younger: u16,
    value: Option<T>,
}

/// See the module's documentation.
pub(crate) struct Slots<T> {
    entries: KVVec<Entry<T>>,
    heads: KVVec<u16>,
    free: u16,
    oldest: u16,
    youngest: u16,
    used: u16,
}

impl<T> Slots<T> {
    /// A table for `capacity` entries, at most 32,768. May sleep.
    pub(crate) fn new(capacity: u16) -> Result<Self> {
        if capacity == 0 || capacity > 0x8000 {
            return Err(EINVAL);
        }
        let mut entries = KVVec::with_capacity(usize::from(capacity), GFP_KERNEL)?;
        for i in 0..capacity {
            let chain = if i + 1 < capacity { i + 1 } else { NONE };
            let entry = Entry {
                key: 0,
                chain,
                older: NONE,
                younger: NONE,
                value: None,
            };
            entries.push(entry, GFP_KERNEL)?;
        }
        let buckets = usize::from(capacity).next_power_of_two();
        let mut heads = KVVec::with_capacity(buckets, GFP_KERNEL)?;
        for _ in 0..buckets {
            heads.push(NONE, GFP_KERNEL)?;
        }
        Ok(Self {
            entries,
            heads,
            free: 0,
            oldest: NONE,
            youngest: NONE,
            used: 0,
        })
    }

    /// Entries in it.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.used)
    }

    /// Whether no further entry fits.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
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

    /// Adds an entry as the youngest. Gives the value back if the table is full or the key is in use.
    pub(crate) fn insert(&mut self, key: u64, value: T) -> Result<(), T> {
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

    /// The value with this key.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        self.entry(self.find(key)?)?.value.as_ref()
    }

    /// The value with this key.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let index = self.find(key)?;
        self.entry_mut(index)?.value.as_mut()
    }

    /// Removes the entry with this key.
    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
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

    /// Key and value of the oldest entry.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<(u64, &T)> {
        let e = self.entry(self.oldest)?;
        Some((e.key, e.value.as_ref()?))
    }

    /// Removes the oldest entry.
    pub(crate) fn pop_oldest(&mut self) -> Option<(u64, T)> {
        let key = self.entry(self.oldest)?.key;
        Some((key, self.remove(key)?))
    }

    /// Calls `f` with key and value from the oldest to the youngest until it returns false.
    pub(crate) fn for_each_mut(&mut self, mut f: impl FnMut(u64, &mut T) -> bool) {
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

#[kunit_tests(exn_slots)]
mod tests {
    use super::*;

    #[test]
    fn slots_find_what_was_inserted() -> Result {
        let mut s = Slots::new(5)?;
        for k in 0..5u64 {
            // Same low bits, to have chains.
            assert!(s.insert(k << 40, k).is_ok());
        }
        assert!(s.is_full());
        assert_eq!(s.insert(77, 9), Err(9));
        for k in 0..5u64 {
            assert_eq!(s.get(k << 40), Some(&k));
        }
        assert_eq!(s.get(1), None);
        assert_eq!(s.remove(2 << 40), Some(2));
        assert_eq!(s.remove(2 << 40), None);
        assert_eq!(s.get(2 << 40), None);
        // A key in use is refused.
        assert_eq!(s.insert(3 << 40, 8), Err(8));
        assert!(s.insert(99, 10).is_ok());
        assert_eq!(s.get(99), Some(&10));
        Ok(())
    }

    #[test]
    fn slots_keep_the_order_of_age() -> Result {
        let mut s = Slots::new(4)?;
        for k in [5u64, 3, 9, 1] {
            assert!(s.insert(k, k).is_ok());
        }
        assert_eq!(s.remove(3), Some(3));
        assert_eq!(s.remove(5), Some(5));
        assert!(s.insert(4, 4).is_ok());
        let mut seen = 0u64;
        s.for_each_mut(|_, v| {
            seen = seen * 10 + *v;
            true
        });
        assert_eq!(seen, 914);
        assert_eq!(s.oldest().map(|(k, _)| k), Some(9));
        assert_eq!(s.pop_oldest(), Some((9, 9)));
        assert_eq!(s.pop_oldest(), Some((1, 1)));
        assert_eq!(s.pop_oldest(), Some((4, 4)));
        assert_eq!(s.pop_oldest(), None);
        assert_eq!(s.len(), 0);
        Ok(())
    }

    #[test]
    fn slots_survive_many_rounds() -> Result {
        let mut s = Slots::new(64)?;
        let mut rng = 1u64;
        let mut live = 0usize;
        for _ in 0..10_000 {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (rng >> 33) % 96;
            if s.get(key).is_some() {
                assert_eq!(s.remove(key), Some(key));
                live -= 1;
            } else if s.insert(key, key).is_ok() {
                live += 1;
            } else {
                assert_eq!(live, 64);
            }
            assert_eq!(s.len(), live);
        }
        Ok(())
    }
}
