// SPDX-License-Identifier: GPL-2.0-only

//! Lists of pages that stay where they are while the list exists.

use super::PAGE;
use crate::{bindings, security::LockedPages};
use kernel::{
    mm::{Mm, MmWithUser},
    page::{AsPageIter, Page},
    prelude::*,
    sync::aref::ARef,
    transmute::{AsBytes, FromBytes},
};

/// What a process has at the addresses where pages of it were pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maps {
    /// These pages.
    Same,
    /// Others or none, in one place at least.
    Other,
    /// Somebody works on the file that they belong to: another look, some milliseconds later, will tell.
    Unclear,
}

/// What keeps the pages.
enum Hold {
    /// Long-term pins of user memory.
    Pins {
        mm: ARef<Mm>,
        start: usize,
        write: bool,
        _charge: LockedPages,
    },
    /// A reference on each.
    References,
    /// Their owner.
    Owner(#[allow(dead_code)] KBox<dyn Send + Sync>),
}

/// Pages of user memory that one list can have: 512 GiB.
pub const MAX_PINNED: usize = 1 << 27;
/// Pointers that are allocated at a time, at least.
const CHUNK: usize = 4096;

/// Pages in the order in which a device shall see them.
///
/// # Invariants
///
/// Every pointer refers to a page with a permanent kernel address, which is not freed while `hold` exists. Pinned ones are
/// counted in their address space.
pub struct PageList {
    pages: KVVec<*mut bindings::page>,
    hold: Hold,
}

// SAFETY: pages may be used and given back by any thread.
unsafe impl Send for PageList {}
// SAFETY: content is accessed by volatile operations only.
unsafe impl Sync for PageList {}

impl PageList {
    /// Pins `bytes` bytes from `start` of the current process, both multiples of the page size, for a device that only
    /// reads them or also writes. They appear as pinned memory of the process, and are charged to its user
    /// ([`LockedPages`]); the list is charged to its memory control group. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not page aligned, nothing, or wraps around. `ENOSPC`: more than [`MAX_PINNED`] pages. `EFAULT`: not
    /// mapped, not with that access, or kernel thread. `ENOMEM`: none, or `RLIMIT_MEMLOCK` exceeded without
    /// `CAP_IPC_LOCK`. `EINTR`: fatal signal. `EOPNOTSUPP`: memory that cannot be pinned for long.
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
        // From here on the drop unpins what was pinned.
        let mut list = Self {
            pages: KVVec::new(),
            hold: Hold::Pins {
                mm: mm.clone(),
                start,
                write,
                _charge,
            },
        };
        list.pin_all(&mm, start, count, write)?;
        Ok(list)
    }

    fn pin_all(&mut self, mm: &Mm, start: usize, count: usize, write: bool) -> Result {
        while self.pages.len() < count {
            if fatal_signal() {
                return Err(EINTR);
            }
            let done = self.pages.len();
            if done == self.pages.capacity() {
                // As many again, so that the list is never much longer than what is there to be pinned.
                let more = done.max(CHUNK).min(count - done);
                self.pages.reserve(more, GFP_KERNEL_ACCOUNT)?;
            }
            let spare = self.pages.spare_capacity_mut();
            // SAFETY: there is room for as many pointers as `spare` has elements.
            let n = unsafe {
                bindings::extoll_pin_user(
                    start + done * PAGE,
                    spare.len().min(count - done),
                    write,
                    spare.as_mut_ptr().cast(),
                )
            };
            if n <= 0 {
                return Err(Error::from_errno(if n == 0 {
                    EFAULT.to_errno()
                } else {
                    n as c_int
                }));
            }
            // SAFETY: the call wrote `n` pointers there; `mm` is referenced.
            unsafe {
                self.pages.inc_len(n as usize);
                bindings::extoll_pinned_add(mm.as_raw(), n as c_ulong);
            }
        }
        Ok(())
    }

    /// Takes a reference on each page. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no pages, `ENOMEM`.
    pub fn share<'a>(pages: impl Iterator<Item = &'a Page>) -> Result<Self> {
        let mut list = Self {
            pages: KVVec::new(),
            hold: Hold::References,
        };
        for page in pages {
            list.pages.push(page.as_ptr(), GFP_KERNEL)?;
            // SAFETY: a `Page` is a valid page of its own, neither slab nor tail, so it has a reference count.
            unsafe { bindings::extoll_page_get(page.as_ptr()) };
        }
        if list.pages.is_empty() {
            return Err(EINVAL);
        }
        Ok(list)
    }

    /// Takes a kernel buffer; its last page counts as a whole. The device and [`PageList::write`] may give its elements any values, hence
    /// the bounds. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty buffer, `ENOMEM`.
    pub fn from_buffer<T>(buffer: VVec<T>) -> Result<Self>
    where
        T: AsBytes + FromBytes + Send + Sync + 'static,
    {
        let mut buffer = KBox::new(buffer, GFP_KERNEL)?;
        let mut pages = KVVec::new();
        for page in buffer.page_iter() {
            pages.push(page.as_ptr(), GFP_KERNEL)?;
        }
        if pages.is_empty() {
            return Err(EINVAL);
        }
        Ok(Self {
            pages,
            hold: Hold::Owner(buffer),
        })
    }

    /// Number of pages, at least 1.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    pub(super) fn raw(&self) -> &[*mut bindings::page] {
        &self.pages
    }

    /// The address space that the pages were pinned in, and where.
    pub fn user(&self) -> Option<(&Mm, usize)> {
        match &self.hold {
            Hold::Pins { mm, start, .. } => Some((mm, *start)),
            _ => None,
        }
    }

    /// For pinned pages: whether the process still has those of `first…end` (page numbers in the list) at their
    /// addresses, be it that the next access enters them again. `Other` for a process that has ended. May sleep.
    pub fn mapped(&self, first: usize, end: usize) -> Maps {
        let Some((mm, start)) = self.user() else {
            return Maps::Same;
        };
        let Some(pages) = self.pages.get(first..end) else {
            return Maps::Other;
        };
        // If the process ends meanwhile, its address space is not taken down here.
        let Some(mm) = mm.mmget_not_zero().map(MmWithUser::into_mmput_async) else {
            return Maps::Other;
        };
        // SAFETY: `mm` has users while it is borrowed, and the list has as many elements.
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

    fn word(&self, index: usize) -> Option<*mut u64> {
        let page = *self.pages.get(index / (PAGE / 8))?;
        // SAFETY: a valid page; 64-bit kernels map all of them.
        let base: *mut u64 = unsafe { bindings::extoll_page_address(page) }.cast();
        // Within the page.
        Some(base.wrapping_add(index % (PAGE / 8)))
    }

    /// Reads a little-endian quadword; 0 outside the list. Any context.
    pub fn read(&self, index: usize) -> u64 {
        match self.word(index) {
            // SAFETY: within a page that stays; volatile, as the device may write it at any time.
            Some(p) => u64::from_le(unsafe { p.read_volatile() }),
            None => 0,
        }
    }

    /// Writes a little-endian quadword; ignored outside the list. Any context.
    pub fn write(&self, index: usize, value: u64) {
        if let Some(p) = self.word(index) {
            // SAFETY: within a page that stays; volatile, as the device may access it at any time.
            unsafe { p.write_volatile(value.to_le()) }
        }
    }
}

fn fatal_signal() -> bool {
    // SAFETY: `current` is valid.
    unsafe { bindings::extoll_fatal_signal() }
}

impl Drop for PageList {
    fn drop(&mut self) {
        let n = self.pages.len() as c_ulong;
        match &self.hold {
            Hold::Pins { mm, write, .. } => {
                // SAFETY: these pages were pinned by this object, nobody accesses them any more, and they were counted
                // in the address space, which is referenced.
                unsafe {
                    bindings::unpin_user_pages_dirty_lock(self.pages.as_mut_ptr(), n, *write);
                    bindings::extoll_pinned_sub(mm.as_raw(), n);
                }
            }
            Hold::References => {
                for page in self.pages.iter() {
                    // SAFETY: `share` took this reference.
                    unsafe { bindings::extoll_page_put(*page) };
                }
            }
            Hold::Owner(_) => {}
        }
    }
}

#[kunit_tests(kernel_ext_pages)]
mod tests {
    use super::*;

    const WORDS: usize = PAGE / 8;

    #[test]
    fn words_of_a_buffer() -> Result {
        let mut buffer = VVec::with_capacity(2 * PAGE + 1, GFP_KERNEL)?;
        buffer.resize(2 * PAGE + 1, 0u8, GFP_KERNEL)?;
        let list = PageList::from_buffer(buffer)?;
        assert_eq!(list.len(), 3);
        assert_eq!(list.bytes(), 3 * PAGE);
        for index in [0, WORDS - 1, WORDS, 2 * WORDS] {
            list.write(index, index as u64 + 1);
        }
        for index in [0, WORDS - 1, WORDS, 2 * WORDS] {
            assert_eq!(list.read(index), index as u64 + 1);
        }
        // Outside: nothing is written, 0 is read.
        list.write(3 * WORDS, 1);
        assert_eq!(list.read(3 * WORDS), 0);
        assert!(list.user().is_none());
        assert_eq!(list.mapped(0, 3), Maps::Same);
        assert_eq!(PageList::from_buffer(VVec::<u8>::new()).err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn shared_pages_stay_after_their_owner() -> Result {
        let page = Page::alloc_page(GFP_KERNEL)?;
        let list = PageList::share(core::iter::once(&page))?;
        drop(page);
        list.write(5, 0x1234);
        assert_eq!(list.read(5), 0x1234);
        assert_eq!(list.len(), 1);
        assert_eq!(PageList::share(core::iter::empty()).err(), Some(EINVAL));
        Ok(())
    }

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
