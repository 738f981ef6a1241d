// SPDX-License-Identifier: GPL-2.0-only

//! Pinned user memory.

use super::{pages::Hold, PageList, PAGE};
use crate::{bindings, security::LockedPages};
use kernel::{
    iov::{IovIterDest, IovIterSource},
    mm::{Mm, MmWithUser},
    prelude::*,
    sync::aref::ARef,
};

/// Maximum number of pinned pages of one list: 512 GiB.
pub const MAX_PINNED: usize = 1 << 27;
/// Minimum number of pointers that are allocated at a time.
const CHUNK: usize = 4096;

/// Lifetime of pins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// Until the registration ends. Pinning may first move pages. Memory that cannot stay pinned is
    /// rejected (`FOLL_LONGTERM`).
    Registration,
    /// Until the end of one transfer, which has a deadline.
    Transfer,
}

/// State of the addresses at which pages of a process were pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maps {
    /// The same pages are mapped.
    Same,
    /// At least one address has another page or none.
    Other,
    /// Unknown, because another thread holds the lock of the pages' file. The caller has to ask
    /// again some milliseconds later.
    Unclear,
}

/// Contiguous user addresses at which consecutive pages of a list were pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserRange {
    /// First address, a multiple of the page size.
    pub start: usize,
    /// Index of the first page in the list.
    pub page: usize,
    /// Number of pages.
    pub pages: usize,
}

/// Pins of all pages of a list.
///
/// # Invariants
///
/// `mm` counts each page in the list as pinned.
pub(super) struct Pins {
    mm: ARef<Mm>,
    ranges: KVVec<UserRange>,
    write: bool,
    _charge: LockedPages,
}

impl Pins {
    pub(super) fn write(&self) -> bool {
        self.write
    }

    /// Unpins the pages.
    ///
    /// # Safety
    ///
    /// `pages` must be those that were pinned for this object, and must not be accessed any more.
    /// This must be called only once.
    pub(super) unsafe fn unpin(&mut self, pages: &mut [*mut bindings::page]) {
        let n = pages.len() as c_ulong;
        // SAFETY: by the function's requirements. The pages were counted in the address space,
        // which is referenced.
        unsafe {
            bindings::unpin_user_pages_dirty_lock(pages.as_mut_ptr(), n, self.write);
            bindings::extoll_pinned_sub(self.mm.as_raw(), n);
        }
    }
}

mod sealed {
    pub trait Sealed {
        /// True if a device writes the memory.
        const WRITE: bool;

        fn raw(&mut self) -> *mut crate::bindings::iov_iter;
    }
}

/// Iterator over user memory: [`IovIterSource`], which a device reads, or [`IovIterDest`], which it
/// also writes.
pub trait UserIter: sealed::Sealed {}

impl sealed::Sealed for IovIterSource<'_> {
    const WRITE: bool = false;

    fn raw(&mut self) -> *mut bindings::iov_iter {
        self.as_raw()
    }
}

impl UserIter for IovIterSource<'_> {}

impl sealed::Sealed for IovIterDest<'_> {
    const WRITE: bool = true;

    fn raw(&mut self) -> *mut bindings::iov_iter {
        self.as_raw()
    }
}

impl UserIter for IovIterDest<'_> {}

/// Contiguous range of user memory: address and length.
pub(super) type UserBytes = (usize, usize);

/// Returns the ranges of the first `max` bytes of an iterator, which is not advanced. Adjacent
/// ranges are merged. May sleep.
pub(super) fn ranges<I: UserIter>(iter: &mut I, max: usize) -> Result<KVVec<UserBytes>> {
    // SAFETY: the iterator is borrowed, so it does not change. A copy of it may be advanced
    // separately, and does not outlive it.
    let mut copy = unsafe { iter.raw().read() };
    let (mut list, mut left) = (KVVec::<UserBytes>::new(), max);
    while left > 0 {
        let mut start = 0;
        // SAFETY: `copy` is a valid iterator, and `start` a local variable.
        let len = unsafe { bindings::extoll_iter_chunk(&mut copy, left, &mut start) };
        let len = usize::try_from(len).map_err(|_| Error::from_errno(len as c_int))?;
        if len == 0 {
            break;
        }
        left -= len;
        start.checked_add(len).ok_or(EINVAL)?;
        match list.last_mut() {
            Some(last) if last.0 + last.1 == start => last.1 += len,
            _ => list.push((start, len), GFP_KERNEL)?,
        }
    }
    Ok(list)
}

impl PageList {
    /// Pins the `bytes` bytes at `start` of the current process, both multiples of the page size,
    /// for a registration. The device only reads them, or also writes them if `write`. The pages
    /// count as pinned memory of the process, and are charged to its user ([`LockedPages`]). The
    /// list is charged to the memory control group. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: not page aligned, empty, or wraps around.
    /// - `ENOSPC`: more than [`MAX_PINNED`] pages.
    /// - `EFAULT`: not mapped, not mapped with that access, or called by a kernel thread.
    /// - `ENOMEM`: no memory, or `RLIMIT_MEMLOCK` exceeded without `CAP_IPC_LOCK`.
    /// - `EINTR`: a fatal signal is pending.
    /// - `EOPNOTSUPP`: the memory cannot be pinned for a long time.
    pub fn pin(start: usize, bytes: usize, write: bool) -> Result<Self> {
        let end = start.checked_add(bytes).ok_or(EINVAL)?;
        if bytes == 0 || (start | end) % PAGE != 0 {
            return Err(EINVAL);
        }
        Self::pin_ranges(&[(start, bytes)], write, Pin::Registration, false)
    }

    /// Pins the pages of ranges of the current process. The list begins at the first byte of the
    /// first range, and ends at the last byte of the last range. `nofault`: fails for pages that
    /// are not present.
    pub(super) fn pin_ranges(
        chunks: &[UserBytes],
        write: bool,
        pin: Pin,
        nofault: bool,
    ) -> Result<Self> {
        let mut ranges = KVVec::with_capacity(chunks.len(), GFP_KERNEL_ACCOUNT)?;
        let mut count = 0usize;
        for (start, len) in chunks {
            let offset = start % PAGE;
            let pages = offset.checked_add(*len).ok_or(EINVAL)?.div_ceil(PAGE);
            let range = UserRange {
                start: start - offset,
                page: count,
                pages,
            };
            ranges.push(range, GFP_KERNEL_ACCOUNT)?;
            count = count.checked_add(pages).ok_or(ENOSPC)?;
        }
        if count > MAX_PINNED {
            return Err(ENOSPC);
        }
        let (Some(first), Some(last)) = (chunks.first(), chunks.last()) else {
            return Err(EINVAL);
        };
        let mm: ARef<Mm> = {
            let current = kernel::current!();
            let mm: &Mm = current.mm().ok_or(EFAULT)?;
            mm.into()
        };
        let _charge = LockedPages::charge(count)?;
        // From now on the drop unpins the pages that were pinned.
        let mut list = Self::empty(Hold::Pins(Pins {
            mm: mm.clone(),
            ranges: KVVec::new(),
            write,
            _charge,
        }));
        for range in ranges.iter() {
            list.pin_range(&mm, range, count, write, pin, nofault)?;
        }
        if let Hold::Pins(pins) = &mut list.hold {
            pins.ranges = ranges;
        }
        list.offset = first.0 % PAGE;
        // Subtracts the unused bytes of the last page, after the last range.
        let behind = (PAGE - (last.0 + last.1) % PAGE) % PAGE;
        list.bytes = count * PAGE - list.offset - behind;
        Ok(list)
    }

    /// Pins the pages of a range. The list will have `count` pages in total.
    fn pin_range(
        &mut self,
        mm: &Mm,
        range: &UserRange,
        count: usize,
        write: bool,
        pin: Pin,
        nofault: bool,
    ) -> Result {
        let end = range.page + range.pages;
        while self.pages.len() < end {
            if crate::sched::is_killed() {
                return Err(EINTR);
            }
            let done = self.pages.len();
            if done == self.pages.capacity() {
                // Doubles the list, so that the list is never much longer than the memory that
                // could be pinned.
                let more = done.max(CHUNK).min(count - done);
                self.pages.reserve(more, GFP_KERNEL_ACCOUNT)?;
            }
            let spare = self.pages.spare_capacity_mut();
            // SAFETY: `spare` has room for at least the number of pointers that is passed.
            let n = unsafe {
                bindings::extoll_pin_user(
                    range.start + (done - range.page) * PAGE,
                    spare.len().min(end - done),
                    write,
                    pin == Pin::Registration,
                    nofault,
                    spare.as_mut_ptr().cast(),
                )
            };
            if n <= 0 {
                return Err(match n {
                    0 => EFAULT,
                    e => Error::from_errno(e as c_int),
                });
            }
            // SAFETY: the call wrote `n` pointers there; `mm` is referenced.
            unsafe {
                self.pages.inc_len(n as usize);
                bindings::extoll_pinned_add(mm.as_raw(), n as c_ulong);
            }
        }
        Ok(())
    }

    /// Returns address space and start address of pinned pages, if they were contiguous there.
    pub fn user(&self) -> Option<(&Mm, usize)> {
        match (self.mm(), self.user_ranges()) {
            (Some(mm), [range]) => Some((mm, range.start)),
            _ => None,
        }
    }

    /// Returns the address space of pinned pages.
    pub fn mm(&self) -> Option<&Mm> {
        match &self.hold {
            Hold::Pins(pins) => Some(&pins.mm),
            _ => None,
        }
    }

    /// Returns the addresses of pinned pages, in the order of the list; empty for other pages.
    pub fn user_ranges(&self) -> &[UserRange] {
        match &self.hold {
            Hold::Pins(pins) => &pins.ranges,
            _ => &[],
        }
    }

    /// Checks whether the process still has the pinned pages `first…end` (indices in the list) at
    /// their addresses. A page counts even if it has no page table entry, provided the next access
    /// would find it. `Other` for a process that has ended. `Same` for lists of other pages. May
    /// sleep.
    pub fn mapped(&self, first: usize, end: usize) -> Maps {
        let Some(mm) = self.mm() else {
            return Maps::Same;
        };
        if end > self.len() || first > end {
            return Maps::Other;
        }
        // `mmput_async`, because the last reference would free the address space in this thread if
        // the process ended during this call.
        let Some(mm) = mm.mmget_not_zero().map(MmWithUser::into_mmput_async) else {
            return Maps::Other;
        };
        let mut result = Maps::Same;
        for range in self.user_ranges() {
            let (from, to) = (first.max(range.page), end.min(range.page + range.pages));
            let pages = self.pages.get(from..to).unwrap_or(&[]);
            if pages.is_empty() {
                continue;
            }
            // SAFETY: `mm` has users while it is borrowed, and the list has the number of elements
            // that is passed.
            let found = unsafe {
                bindings::extoll_user_maps(
                    mm.as_raw(),
                    range.start + (from - range.page) * PAGE,
                    pages.len() as c_ulong,
                    pages.as_ptr().cast_mut(),
                )
            };
            match found as u32 {
                bindings::EXTOLL_MAPS_SAME => {}
                bindings::EXTOLL_MAPS_UNCLEAR => result = Maps::Unclear,
                _ => return Maps::Other,
            }
        }
        result
    }
}

#[kunit_tests(kernel_ext_user)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_thread_has_no_memory_to_pin() {
        let pin = |start, bytes| PageList::pin(start, bytes, true).err();
        assert_eq!(pin(PAGE, PAGE), Some(EFAULT));
        assert_eq!(pin(PAGE + 1, PAGE), Some(EINVAL));
        assert_eq!(pin(PAGE, PAGE - 1), Some(EINVAL));
        assert_eq!(pin(PAGE, 0), Some(EINVAL));
        assert_eq!(pin(PAGE, (MAX_PINNED + 1) * PAGE), Some(ENOSPC));
        assert_eq!(pin(usize::MAX - PAGE + 1, 2 * PAGE), Some(EINVAL));
        let pin =
            |list: &[UserBytes]| PageList::pin_ranges(list, false, Pin::Transfer, false).err();
        assert_eq!(pin(&[]), Some(EINVAL));
        assert_eq!(pin(&[(PAGE + 1, 1), (7, 9)]), Some(EFAULT));
        assert_eq!(pin(&[(1, usize::MAX)]), Some(EINVAL));
        let half = (MAX_PINNED - 1) * PAGE;
        assert_eq!(pin(&[(0, half), (0, half), (0, half)]), Some(ENOSPC));
    }
}
