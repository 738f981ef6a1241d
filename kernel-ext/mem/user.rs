// SPDX-License-Identifier: GPL-2.0-only

//! Pins of user memory.

use super::{pages::Hold, PageList, PAGE};
use crate::{bindings, security::LockedPages};
use kernel::{
    iov::{IovIterDest, IovIterSource},
    mm::{Mm, MmWithUser},
    prelude::*,
    sync::aref::ARef,
};

/// Pages of user memory that one list can have: 512 GiB.
pub const MAX_PINNED: usize = 1 << 27;
/// Pointers that are allocated at a time, at least.
const CHUNK: usize = 4096;

/// For how long user memory is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// As long as it is registered, so that pages may be moved before, and memory is refused that
    /// can't stay (`FOLL_LONGTERM`).
    Registration,
    /// For one transfer, which has a deadline.
    Transfer,
}

/// What a process has at the addresses where pages of it were pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maps {
    /// These pages.
    Same,
    /// Others or none, in one place at least.
    Other,
    /// Somebody works on the file that they belong to: another look, some milliseconds later, will
    /// tell.
    Unclear,
}

/// Where pages of a list were pinned: addresses that follow each other, as the pages do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserRange {
    /// First address, a multiple of the page size.
    pub start: usize,
    /// Number of the first page in the list.
    pub page: usize,
    /// Number of pages.
    pub pages: usize,
}

/// Pins of all pages of a list.
///
/// # Invariants
///
/// As many pages are counted as pinned in `mm` as the list has.
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

    /// Gives up what was pinned.
    ///
    /// # Safety
    ///
    /// The pages are those that were pinned for this object, nobody accesses them any more, and
    /// this is called once.
    pub(super) unsafe fn unpin(&mut self, pages: &mut [*mut bindings::page]) {
        let n = pages.len() as c_ulong;
        // SAFETY: by the requirements, and they were counted in the address space, which is
        // referenced.
        unsafe {
            bindings::unpin_user_pages_dirty_lock(pages.as_mut_ptr(), n, self.write);
            bindings::extoll_pinned_sub(self.mm.as_raw(), n);
        }
    }
}

mod sealed {
    pub trait Sealed {
        /// Whether the memory is to be written.
        const WRITE: bool;

        fn raw(&mut self) -> *mut crate::bindings::iov_iter;
    }
}

/// An iterator over user memory: [`IovIterSource`], which a device reads, or [`IovIterDest`], which
/// it also writes.
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

/// A piece of user memory: address and length.
pub(super) type Piece = (usize, usize);

/// The pieces of the first `most` bytes of an iterator, which stays where it is. Those that follow
/// each other are one. May sleep.
pub(super) fn pieces<I: UserIter>(iter: &mut I, most: usize) -> Result<KVVec<Piece>> {
    // SAFETY: the iterator is borrowed, so that nobody changes it; a copy may be advanced on its
    // own, and does not outlive it.
    let mut copy = unsafe { iter.raw().read() };
    let (mut list, mut left) = (KVVec::<Piece>::new(), most);
    while left > 0 {
        let mut start = 0;
        // SAFETY: a valid iterator, a live local.
        let len = unsafe { bindings::extoll_iter_piece(&mut copy, left, &mut start) };
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
    /// Pins `bytes` bytes from `start` of the current process, both multiples of the page size, for
    /// a registration and a device that only reads them or also writes. They appear as pinned
    /// memory of the process, and are charged to its user ([`LockedPages`]); the list is charged to
    /// its memory control group. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not page aligned, nothing, or wraps around. `ENOSPC`: more than [`MAX_PINNED`]
    /// pages. `EFAULT`: not mapped, not with that access, or kernel thread. `ENOMEM`: none, or
    /// `RLIMIT_MEMLOCK` exceeded without `CAP_IPC_LOCK`. `EINTR`: fatal signal. `EOPNOTSUPP`:
    /// memory that cannot be pinned for long.
    pub fn pin(start: usize, bytes: usize, write: bool) -> Result<Self> {
        let end = start.checked_add(bytes).ok_or(EINVAL)?;
        if bytes == 0 || (start | end) % PAGE != 0 {
            return Err(EINVAL);
        }
        Self::pin_pieces(&[(start, bytes)], write, Pin::Registration, false)
    }

    /// Pins the pages of pieces of memory of the current process. The offset of the list is the
    /// first piece's, and its bytes are all up to the end of the last one's. `nofault`: only pages
    /// that are there.
    pub(super) fn pin_pieces(
        pieces: &[Piece],
        write: bool,
        pin: Pin,
        nofault: bool,
    ) -> Result<Self> {
        let mut ranges = KVVec::with_capacity(pieces.len(), GFP_KERNEL_ACCOUNT)?;
        let mut count = 0usize;
        for (start, len) in pieces {
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
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            return Err(EINVAL);
        };
        let mm: ARef<Mm> = {
            let current = kernel::current!();
            let mm: &Mm = current.mm().ok_or(EFAULT)?;
            mm.into()
        };
        let _charge = LockedPages::charge(count)?;
        // From here on the drop unpins what was pinned.
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
        // The last page is full but for what follows the last piece.
        let behind = (PAGE - (last.0 + last.1) % PAGE) % PAGE;
        list.bytes = count * PAGE - list.offset - behind;
        Ok(list)
    }

    /// Pins the pages of a range, of `count` that there will be in the list.
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
                // As many again, so that the list is never much longer than what is there to be
                // pinned.
                let more = done.max(CHUNK).min(count - done);
                self.pages.reserve(more, GFP_KERNEL_ACCOUNT)?;
            }
            let spare = self.pages.spare_capacity_mut();
            // SAFETY: there is room for as many pointers as `spare` has elements.
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

    /// The address space that the pages were pinned in, and where; for pinned pages that were there
    /// in one piece.
    pub fn user(&self) -> Option<(&Mm, usize)> {
        match (self.mm(), self.user_ranges()) {
            (Some(mm), [range]) => Some((mm, range.start)),
            _ => None,
        }
    }

    /// The address space that the pages were pinned in.
    pub fn mm(&self) -> Option<&Mm> {
        match &self.hold {
            Hold::Pins(pins) => Some(&pins.mm),
            _ => None,
        }
    }

    /// Where the pages were pinned, in the order of the list; nothing for pages that were not.
    pub fn user_ranges(&self) -> &[UserRange] {
        match &self.hold {
            Hold::Pins(pins) => &pins.ranges,
            _ => &[],
        }
    }

    /// For pinned pages: whether the process still has those of `first…end` (page numbers in the
    /// list) at their addresses, be it that the next access enters them again. `Other` for a
    /// process that has ended. May sleep.
    pub fn mapped(&self, first: usize, end: usize) -> Maps {
        let Some(mm) = self.mm() else {
            return Maps::Same;
        };
        if end > self.len() || first > end {
            return Maps::Other;
        }
        // If the process ends meanwhile, its address space is not taken down here.
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
            // SAFETY: `mm` has users while it is borrowed, and the list has as many elements.
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
        let pieces = |list: &[Piece]| PageList::pin_pieces(list, false, Pin::Transfer, false).err();
        assert_eq!(pieces(&[]), Some(EINVAL));
        assert_eq!(pieces(&[(PAGE + 1, 1), (7, 9)]), Some(EFAULT));
        assert_eq!(pieces(&[(1, usize::MAX)]), Some(EINVAL));
        let half = (MAX_PINNED - 1) * PAGE;
        assert_eq!(pieces(&[(0, half), (0, half), (0, half)]), Some(ENOSPC));
    }
}
