// SPDX-License-Identifier: GPL-2.0-only

//! Access to bytes of page lists that a device may read and write at the same time.

use super::{PageList, PAGE};
use crate::bindings;
use kernel::prelude::*;

impl PageList {
    /// Returns the address of byte `at`, counted from [`PageList::offset`], and the number of
    /// contiguous bytes there, up to `len`. Returns `None` outside of [`PageList::bytes`], and for
    /// 0 bytes.
    pub(crate) fn piece(&self, at: usize, len: usize) -> Option<(*mut u8, usize)> {
        let left = self.bytes().checked_sub(at)?;
        let place = self.offset() + at;
        let n = len.min(left).min(PAGE - place % PAGE);
        if n == 0 {
            return None;
        }
        // The result is within the page.
        Some((self.address(place / PAGE)?.wrapping_add(place % PAGE), n))
    }

    /// Runs `f` for each contiguous chunk of the `len` bytes at `at`, with its address, its length
    /// and the number of bytes before it. Stops when `f` returns less than the chunk's length.
    /// Returns the sum of the results.
    pub(crate) fn pieces(
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
        while let Some((ptr, n)) = self.piece(at + done, len - done) {
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
        self.pieces(at, bytes.len(), |to, n, done| {
            let from = bytes.as_ptr().wrapping_add(done);
            // SAFETY: `n` bytes of a page that stays allocated and may be written, and `n` bytes of
            // `bytes`, because `done + n` does not exceed its length. References to the page's
            // content do not exist. C code does the accesses, so the Rust compiler assumes nothing
            // about them.
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
        self.pieces(at, len, |from, n, done| {
            let to = base.wrapping_add(done);
            // SAFETY: same as in `copy_from`, in the other direction; `bytes` is borrowed mutably.
            unsafe { bindings::extoll_copy_bytes(to.cast(), from.cast(), n) };
            n
        })
        .map(drop)
    }
}

/// Positions of validity tags: `count` positions at a distance of `step` bytes.
#[derive(Clone, Copy)]
pub struct Comb {
    /// Position of the first tag in bytes.
    pub at: usize,
    /// Distance from one tag to the next in bytes, at least 8.
    pub step: usize,
    /// Number of tags.
    pub count: usize,
}

/// Validity tag.
type Tooth = [u8; 8];

impl PageList {
    /// Visits the tags of a comb in ascending order. Calls `f` with the address of a tag within one
    /// page, and `across` with the position of a tag that crosses a page boundary. Stops when one
    /// of them returns true, and returns whether that happened.
    fn teeth(
        &self,
        comb: Comb,
        mut f: impl FnMut(*mut Tooth) -> bool,
        mut across: impl FnMut(&Self, usize) -> bool,
    ) -> Result<bool> {
        let Comb { at, step, count } = comb;
        let Some(last) = count.checked_sub(1) else {
            return Ok(false);
        };
        let size = size_of::<Tooth>();
        let end = last.checked_mul(step).and_then(|n| n.checked_add(size));
        let end = end.and_then(|n| n.checked_add(at)).ok_or(EINVAL)?;
        if end > self.bytes() || step < size {
            return Err(EINVAL);
        }
        let (mut left, mut place) = (count, self.offset() + at);
        while left > 0 {
            let (page, mut within) = (place / PAGE, place % PAGE);
            let base = self.address(page).ok_or(EINVAL)?;
            while left > 0 && within + size <= PAGE {
                if f(base.wrapping_add(within).cast()) {
                    return Ok(true);
                }
                left -= 1;
                if left == 0 {
                    // The step of a comb with one tag has not been checked, so it must not be
                    // added.
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
            place = page * PAGE + within;
        }
        Ok(false)
    }

    /// Writes a validity tag to all positions of a comb. Any context; see [`PageList::copy_from`].
    ///
    /// # Errors
    ///
    /// `EINVAL`: the comb exceeds the list, or the list is not writable. No bytes were written.
    pub fn mark(&self, comb: Comb, mark: Tooth) -> Result {
        if !self.is_writable() {
            return Err(EINVAL);
        }
        let write = |to: *mut Tooth| {
            // SAFETY: by `teeth` the tag is within a page of the list; the type has no alignment
            // requirement. References to the page's content do not exist, and a volatile access may
            // race with others.
            unsafe { to.write_volatile(mark) };
            false
        };
        let across = |list: &Self, at| list.copy_from(at, &mark).is_err();
        self.teeth(comb, write, across).map(drop)
    }

    /// Returns true if at least one position of a comb contains the validity tag. Any context; see
    /// [`PageList::copy_from`].
    ///
    /// # Errors
    ///
    /// `EINVAL`: the comb exceeds the list.
    pub fn has_mark(&self, comb: Comb, mark: Tooth) -> Result<bool> {
        let is = |from: *mut Tooth| {
            // SAFETY: same as in `mark`.
            let found = unsafe { from.read_volatile() };
            u64::from_ne_bytes(found) == u64::from_ne_bytes(mark)
        };
        let across = |list: &Self, at| {
            let mut found = Tooth::default();
            list.copy_to(at, &mut found).is_ok() && found == mark
        };
        self.teeth(comb, is, across)
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
        // The last bytes of a page, read as words: the copy changes neither the bytes before nor
        // those after.
        list.copy_from(0, &KVVec::from_elem(0u8, 3 * PAGE, GFP_KERNEL)?)?;
        list.copy_from(PAGE - 3, &[1, 2, 3, 4, 5])?;
        let words = PAGE / 8;
        assert_eq!(list.read(words - 1), 0x0302_0100_0000_0000);
        assert_eq!(list.read(words), 0x0504);
        Ok(())
    }

    #[test]
    fn marks_are_found_where_they_are() -> Result {
        let list = list(3)?;
        let mark = *b"a mark!!";
        // Some of the tags cross page boundaries.
        for at in [0, 3, 16, PAGE - 7] {
            let comb = Comb {
                at,
                step: 488,
                count: (2 * PAGE - 8) / 488,
            };
            list.copy_from(0, &KVVec::from_elem(0u8, 3 * PAGE, GFP_KERNEL)?)?;
            assert!(!list.has_mark(comb, mark)?);
            list.mark(comb, mark)?;
            for i in 0..comb.count {
                let mut found = [0; 8];
                list.copy_to(at + i * comb.step, &mut found)?;
                assert!(found == mark);
                list.copy_from(at + i * comb.step, &[0; 8])?;
                // Only later tags are left.
                let rest = comb.count - i - 1;
                assert_eq!(list.has_mark(comb, mark)?, rest > 0);
            }
            let mut bytes = KVVec::from_elem(1u8, 3 * PAGE, GFP_KERNEL)?;
            list.copy_to(0, &mut bytes)?;
            assert!(bytes.iter().all(|b| *b == 0));
        }
        let long = Comb {
            at: 0,
            step: PAGE,
            count: 4,
        };
        assert_eq!(list.mark(long, mark).err(), Some(EINVAL));
        assert_eq!(list.has_mark(long, mark).err(), Some(EINVAL));
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
