// SPDX-License-Identifier: GPL-2.0-only

//! Access to bytes of page lists that a device may read and write at the same time.

use super::{PageList, PAGE};
use crate::bindings;
use kernel::prelude::*;

impl PageList {
    /// Returns the address of byte `at`, counted from [`PageList::offset`], and the number of
    /// contiguous bytes there, up to `len`. Returns `None` outside of [`PageList::bytes`], and for
    /// 0 bytes.
    pub(crate) fn chunk(&self, at: usize, len: usize) -> Option<(*mut u8, usize)> {
        let left = self.bytes().checked_sub(at)?;
        let position = self.offset() + at;
        let n = len.min(left).min(PAGE - position % PAGE);
        if n == 0 {
            return None;
        }
        // The result is within the page.
        Some((
            self.address(position / PAGE)?.wrapping_add(position % PAGE),
            n,
        ))
    }

    /// Runs `f` for each contiguous chunk of the `len` bytes at `at`, with its address, its length
    /// and the number of bytes before it. Stops when `f` returns less than the chunk's length.
    /// Returns the sum of the results.
    pub(crate) fn for_each_chunk(
        &self,
        at: usize,
        len: usize,
        mut f: impl FnMut(*mut u8, usize, usize) -> usize,
    ) -> Result<usize> {
        let end = at.checked_add(len).ok_or(EINVAL)?;
        if end > self.bytes() {
            return Err(EINVAL);
        }
        let mut done = 0;
        while let Some((ptr, n)) = self.chunk(at + done, len - done) {
            let took = f(ptr, n, done).min(n);
            done += took;
            if took < n {
                break;
            }
        }
        Ok(done)
    }

    /// Copies `bytes` to the list at byte `at`. Any context.
    ///
    /// A device and other users of these methods may read and write the same bytes concurrently,
    /// and may see a mixture of old and new bytes. The accesses are not ordered. A caller that
    /// announces the bytes must do so with a release or a barrier.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range exceeds the list, or the list is not writable. No bytes were copied.
    pub fn copy_from(&self, at: usize, bytes: &[u8]) -> Result {
        if !self.is_writable() {
            return Err(EINVAL);
        }
        self.for_each_chunk(at, bytes.len(), |to, n, done| {
            let from = bytes.as_ptr().wrapping_add(done);
            // SAFETY: `to` has `n` bytes of a page that stays allocated and may be written. `from`
            // has `n` bytes, because `done + n` does not exceed the length of `bytes`. References
            // to the page's content do not exist. C code does the accesses, so the Rust compiler
            // assumes nothing about them.
            unsafe { bindings::extoll_copy_bytes(to.cast(), from.cast(), n) };
            n
        })
        .map(drop)
    }

    /// Copies bytes of the list, beginning at byte `at`, to `bytes`. Any context; see
    /// [`PageList::copy_from`].
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range exceeds the list. No bytes were copied.
    pub fn copy_to(&self, at: usize, bytes: &mut [u8]) -> Result {
        let (base, len) = (bytes.as_mut_ptr(), bytes.len());
        self.for_each_chunk(at, len, |from, n, done| {
            let to = base.wrapping_add(done);
            // SAFETY: the reasons given in `copy_from` apply, in the other direction; `bytes` is
            // borrowed mutably.
            unsafe { bindings::extoll_copy_bytes(to.cast(), from.cast(), n) };
            n
        })
        .map(drop)
    }
}

/// Positions of validity tags: `count` positions at a distance of `step` bytes.
#[derive(Clone, Copy)]
pub struct TagPositions {
    /// Position of the first tag in bytes.
    pub at: usize,
    /// Distance from one tag to the next in bytes, at least 8.
    pub step: usize,
    /// Number of tags.
    pub count: usize,
}

/// Validity tag.
type Tag = [u8; 8];

impl PageList {
    /// Visits the tags in ascending order. Calls `f` with the address of a tag within one page, and
    /// `across` with the position of a tag that crosses a page boundary. Stops when `f` or `across`
    /// returns true, and returns whether one of them did.
    fn visit_tags(
        &self,
        tags: TagPositions,
        mut f: impl FnMut(*mut Tag) -> bool,
        mut across: impl FnMut(&Self, usize) -> bool,
    ) -> Result<bool> {
        let TagPositions { at, step, count } = tags;
        let Some(last) = count.checked_sub(1) else {
            return Ok(false);
        };
        let size = size_of::<Tag>();
        let end = last.checked_mul(step).and_then(|n| n.checked_add(size));
        let end = end.and_then(|n| n.checked_add(at)).ok_or(EINVAL)?;
        if end > self.bytes() || step < size {
            return Err(EINVAL);
        }
        let (mut left, mut position) = (count, self.offset() + at);
        while left > 0 {
            let (page, mut within) = (position / PAGE, position % PAGE);
            let base = self.address(page).ok_or(EINVAL)?;
            while left > 0 && within + size <= PAGE {
                if f(base.wrapping_add(within).cast()) {
                    return Ok(true);
                }
                left -= 1;
                if left == 0 {
                    // The step of a single tag has not been checked and might overflow, so it is
                    // not added.
                    return Ok(false);
                }
                within += step;
            }
            if left > 0 && within < PAGE {
                if across(self, page * PAGE + within - self.offset()) {
                    return Ok(true);
                }
                left -= 1;
                if left == 0 {
                    return Ok(false);
                }
                within += step;
            }
            position = page * PAGE + within;
        }
        Ok(false)
    }

    /// Writes a validity tag at all positions. Any context; see [`PageList::copy_from`].
    ///
    /// # Errors
    ///
    /// `EINVAL`: a tag exceeds the list, or the list is not writable. No bytes were written.
    pub fn write_tags(&self, tags: TagPositions, tag: Tag) -> Result {
        if !self.is_writable() {
            return Err(EINVAL);
        }
        let write = |to: *mut Tag| {
            // SAFETY: by `visit_tags` the tag is within a page of the list; the type has no
            // alignment requirement. References to the page's content do not exist, and a volatile
            // access may race with others.
            unsafe { to.write_volatile(tag) };
            false
        };
        let across = |list: &Self, at| list.copy_from(at, &tag).is_err();
        self.visit_tags(tags, write, across).map(drop)
    }

    /// Returns true if at least one position contains the validity tag. Any context; see
    /// [`PageList::copy_from`].
    ///
    /// # Errors
    ///
    /// `EINVAL`: a tag exceeds the list.
    pub fn has_tag(&self, tags: TagPositions, tag: Tag) -> Result<bool> {
        let is = |from: *mut Tag| {
            // SAFETY: the reasons given in `write_tags` apply.
            let found = unsafe { from.read_volatile() };
            u64::from_ne_bytes(found) == u64::from_ne_bytes(tag)
        };
        let across = |list: &Self, at| {
            let mut found = Tag::default();
            list.copy_to(at, &mut found).is_ok() && found == tag
        };
        self.visit_tags(tags, is, across)
    }
}

#[kunit_tests(kernel_ext_copy)]
mod tests {
    use super::*;

    fn list(pages: usize) -> Result<PageList> {
        PageList::from_buffer(VVec::from_elem(0u8, pages * PAGE, GFP_KERNEL)?)
    }

    #[test]
    fn bytes_across_pages() -> Result {
        let list = list(3)?;
        let mut bytes = KVVec::new();
        for i in 0..PAGE + 100 {
            bytes.push(i as u8 ^ (i >> 8) as u8, GFP_KERNEL)?;
        }
        for at in [0, 1, PAGE - 50, PAGE - 1, PAGE, 2 * PAGE - 100] {
            list.copy_from(at, &bytes)?;
            let mut back = KVVec::from_elem(0u8, bytes.len(), GFP_KERNEL)?;
            list.copy_to(at, &mut back)?;
            assert!(back[..] == bytes[..]);
        }
        // Copying to the last bytes of a page changes neither the bytes before nor the bytes after
        // them.
        list.copy_from(0, &KVVec::from_elem(0u8, 3 * PAGE, GFP_KERNEL)?)?;
        list.copy_from(PAGE - 3, &[1, 2, 3, 4, 5])?;
        let words = PAGE / 8;
        assert_eq!(list.read(words - 1), 0x0302_0100_0000_0000);
        assert_eq!(list.read(words), 0x0504);
        Ok(())
    }

    #[test]
    fn tags_are_found_where_they_are() -> Result {
        let list = list(3)?;
        let tag = *b"a tag!!!";
        // Some of the tags cross page boundaries.
        for at in [0, 3, 16, PAGE - 7] {
            let tags = TagPositions {
                at,
                step: 488,
                count: (2 * PAGE - 8) / 488,
            };
            list.copy_from(0, &KVVec::from_elem(0u8, 3 * PAGE, GFP_KERNEL)?)?;
            assert!(!list.has_tag(tags, tag)?);
            list.write_tags(tags, tag)?;
            for i in 0..tags.count {
                let mut found = [0; 8];
                list.copy_to(at + i * tags.step, &mut found)?;
                assert!(found == tag);
                list.copy_from(at + i * tags.step, &[0; 8])?;
                // The tags up to number i were overwritten above.
                let rest = tags.count - i - 1;
                assert_eq!(list.has_tag(tags, tag)?, rest > 0);
            }
            let mut bytes = KVVec::from_elem(1u8, 3 * PAGE, GFP_KERNEL)?;
            list.copy_to(0, &mut bytes)?;
            assert!(bytes.iter().all(|b| *b == 0));
        }
        let long = TagPositions {
            at: 0,
            step: PAGE,
            count: 4,
        };
        assert_eq!(list.write_tags(long, tag).err(), Some(EINVAL));
        assert_eq!(list.has_tag(long, tag).err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn nothing_outside() -> Result {
        let list = list(1)?;
        list.copy_from(PAGE - 2, &[7, 7])?;
        assert_eq!(list.copy_from(PAGE - 1, &[9, 9]).err(), Some(EINVAL));
        assert_eq!(list.copy_from(usize::MAX, &[9]).err(), Some(EINVAL));
        assert_eq!(list.copy_to(PAGE, &mut [0]).err(), Some(EINVAL));
        assert_eq!(list.read(PAGE / 8 - 1), 0x0707 << 48);
        list.copy_from(PAGE, &[])?;
        Ok(())
    }
}
