// SPDX-License-Identifier: GPL-2.0-only

//! Pinned user memory.

use super::{pages::Hold, PageList, PAGE};
use crate::{bindings, security::LockedPages};
use kernel::{
    mm::{Mm, MmWithUser},
    prelude::*,
    sync::aref::ARef,
};

/// Maximum number of pinned pages of one list: 512 GiB.
pub const MAX_PINNED: usize = 1 << 27;
/// Minimum number of pointers that are allocated at a time.
const CHUNK: usize = 4096;

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

/// Pins of all pages of a list.
///
/// # Invariants
///
/// `mm` counts each page in the list as pinned.
pub(super) struct Pins {
    mm: ARef<Mm>,
    /// User address of the first page, a multiple of the page size.
    start: usize,
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
        let count = bytes / PAGE;
        if count > MAX_PINNED {
            return Err(ENOSPC);
        }
        let mm: ARef<Mm> = {
            let current = kernel::current!();
            let mm: &Mm = current.mm().ok_or(EFAULT)?;
            mm.into()
        };
        let _charge = LockedPages::charge(count)?;
        // From now on the drop unpins the pages that were pinned.
        let mut list = Self::empty(Hold::Pins(Pins {
            mm,
            start,
            write,
            _charge,
        }));
        list.pin_pages(start, count, write)?;
        list.bytes = bytes;
        Ok(list)
    }

    /// Pins `count` pages at `start`.
    fn pin_pages(&mut self, start: usize, count: usize, write: bool) -> Result {
        while self.pages.len() < count {
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
                    start + done * PAGE,
                    spare.len().min(count - done),
                    write,
                    spare.as_mut_ptr().cast(),
                )
            };
            if n <= 0 {
                return Err(match n {
                    0 => EFAULT,
                    e => Error::from_errno(e as c_int),
                });
            }
            // SAFETY: the call wrote `n` pointers there; the address space is referenced.
            unsafe {
                self.pages.inc_len(n as usize);
                if let Hold::Pins(pins) = &self.hold {
                    bindings::extoll_pinned_add(pins.mm.as_raw(), n as c_ulong);
                }
            }
        }
        Ok(())
    }

    /// Returns the address space and the start address of pinned pages.
    pub fn user(&self) -> Option<(&Mm, usize)> {
        match &self.hold {
            Hold::Pins(pins) => Some((&pins.mm, pins.start)),
            _ => None,
        }
    }

    /// Checks whether the process still has the pinned pages `first…end` (indices in the list) at
    /// their addresses. A page counts even if it has no page table entry, provided the next access
    /// would find it. `Other` for a process that has ended. `Same` for lists of other pages. May
    /// sleep.
    pub fn mapped(&self, first: usize, end: usize) -> Maps {
        let Some((mm, start)) = self.user() else {
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
        let Some(pages) = self.pages.get(first..end).filter(|p| !p.is_empty()) else {
            return Maps::Same;
        };
        // SAFETY: `mm` has users while it is borrowed, and the list has the number of elements that
        // is passed.
        let found = unsafe {
            bindings::extoll_user_maps(
                mm.as_raw(),
                start + first * PAGE,
                pages.len() as c_ulong,
                pages.as_ptr().cast_mut(),
            )
        };
        match found as u32 {
            bindings::EXTOLL_MAPS_SAME => Maps::Same,
            bindings::EXTOLL_MAPS_UNCLEAR => Maps::Unclear,
            _ => Maps::Other,
        }
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
    }
}
