// SPDX-License-Identifier: GPL-2.0-only

//! A queue of fixed size.

use kernel::prelude::*;

/// First in, first out; all memory is allocated when it is made.
pub(crate) struct Ring<T> {
    items: KVVec<Option<T>>,
    first: usize,
    len: usize,
}

impl<T> Ring<T> {
    /// A queue for `capacity` items, at least 1. May sleep.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        if capacity == 0 {
            return Err(EINVAL);
        }
        let mut items = KVVec::with_capacity(capacity, GFP_KERNEL)?;
        for _ in 0..capacity {
            items.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            items,
            first: 0,
            len: 0,
        })
    }

    /// Items in it.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Items that still fit.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.items.len() - self.len
    }

    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an item, or gives it back if there is no room.
    pub(crate) fn push(&mut self, item: T) -> Result<(), T> {
        if self.room() == 0 {
            return Err(item);
        }
        let at = (self.first + self.len) % self.items.len();
        match self.items.get_mut(at) {
            Some(place) => {
                *place = Some(item);
                self.len += 1;
                Ok(())
            }
            None => Err(item),
        }
    }

    /// The first item.
    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        if self.len == 0 {
            return None;
        }
        self.items.get(self.first)?.as_ref()
    }

    /// Takes the first item out.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let item = self.items.get_mut(self.first)?.take();
        self.first = (self.first + 1) % self.items.len();
        self.len -= 1;
        item
    }
}

#[kunit_tests(exn_ring)]
mod tests {
    use super::*;

    #[test]
    fn ring_keeps_order_across_its_end() -> Result {
        let mut r = Ring::new(3)?;
        for round in 0..10u32 {
            assert!(r.push(round).is_ok());
            assert!(r.push(round + 100).is_ok());
            assert_eq!(r.front(), Some(&round));
            assert_eq!(r.pop(), Some(round));
            assert_eq!(r.pop(), Some(round + 100));
            assert_eq!(r.pop(), None);
        }
        for i in 0..3u32 {
            assert!(r.push(i).is_ok());
        }
        assert_eq!(r.push(9), Err(9));
        assert_eq!((r.len(), r.room()), (3, 0));
        Ok(())
    }
}
