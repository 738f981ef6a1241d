// SPDX-License-Identifier: GPL-2.0-only

//! Lists of pages that stay where they are while the list exists.

use super::PAGE;
use crate::bindings;
use kernel::{
    alloc::allocator::VmallocPageIter,
    error::to_result,
    mm::Mm,
    page::{AsPageIter, Page},
    prelude::*,
    sync::aref::ARef,
};

/// What keeps the pages.
enum Hold {
    /// Long-term pins of user memory, counted in the address space.
    Pins {
        mm: ARef<Mm>,
        start: usize,
        write: bool,
    },
    /// A reference on each.
    References,
    /// Their owner.
    Owner(#[allow(dead_code)] KBox<dyn Send + Sync>),
}

/// Pages in the order in which a device shall see them.
///
/// # Invariants
///
/// Every pointer refers to a page with a permanent kernel address, which is not freed while `hold` exists.
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
    /// reads them or also writes. They count as pinned memory of the process. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not page aligned, nothing, or wraps around. `EFAULT`: not mapped, not with that access, or kernel
    /// thread. `ENOMEM`: none, or `RLIMIT_MEMLOCK` exceeded without `CAP_IPC_LOCK`. `EINTR`: fatal signal. `EOPNOTSUPP`:
    /// memory that cannot be pinned for long.
    pub fn pin(start: usize, bytes: usize, write: bool) -> Result<Self> {
        let end = start.checked_add(bytes).ok_or(EINVAL)?;
        if bytes == 0 || (start | end) % PAGE != 0 {
            return Err(EINVAL);
        }
        let count = bytes / PAGE;
        let mm: ARef<Mm> = {
            let current = kernel::current!();
            let mm: &Mm = current.mm().ok_or(EFAULT)?;
            mm.into()
        };
        // SAFETY: `mm` is referenced.
        to_result(unsafe { bindings::extoll_pinned_add(mm.as_raw(), count as c_ulong) })?;
        // From here on the drop unpins what was pinned; the rest is uncounted below.
        let mut list = Self {
            pages: KVVec::new(),
            hold: Hold::Pins { mm, start, write },
        };
        let result = list.pin_all(start, count, write);
        if result.is_err() {
            let missing = count - list.pages.len();
            if let Hold::Pins { mm, .. } = &list.hold {
                // SAFETY: `mm` is referenced, and these pages were counted above.
                unsafe { bindings::extoll_pinned_sub(mm.as_raw(), missing as c_ulong) };
            }
        }
        result.map(|()| list)
    }

    fn pin_all(&mut self, start: usize, count: usize, write: bool) -> Result {
        self.pages.reserve(count, GFP_KERNEL)?;
        while self.pages.len() < count {
            if fatal_signal() {
                return Err(EINTR);
            }
            let done = self.pages.len();
            let spare = self.pages.spare_capacity_mut();
            // SAFETY: there is room for `count - done` pointers.
            let n = unsafe {
                bindings::extoll_pin_user(
                    start + done * PAGE,
                    count - done,
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
            // SAFETY: the call wrote `n` pointers there.
            unsafe { self.pages.inc_len(n as usize) };
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

    /// Takes a kernel buffer, e.g. a `VVec<u8>`; its last page counts as a whole. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty buffer, `ENOMEM`.
    pub fn from_buffer<B>(buffer: B) -> Result<Self>
    where
        for<'a> B: AsPageIter<Iter<'a> = VmallocPageIter<'a>> + Send + Sync + 'static,
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

    /// For pinned pages: whether the process still maps those of `first…end` (page numbers in the list) at their
    /// addresses. False for a process that has ended. May sleep.
    pub fn still_mapped(&self, first: usize, end: usize) -> bool {
        let Some((mm, start)) = self.user() else {
            return true;
        };
        let Some(pages) = self.pages.get(first..end) else {
            return false;
        };
        let Some(mm) = mm.mmget_not_zero() else {
            return false;
        };
        // SAFETY: `mm` has users while it is borrowed, and the list has as many elements.
        unsafe {
            bindings::extoll_user_maps(
                mm.as_raw(),
                start + first * PAGE,
                pages.len() as c_ulong,
                pages.as_ptr().cast_mut(),
            )
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
