// SPDX-License-Identifier: GPL-2.0-only

//! Lists of pages that stay allocated while the list exists.

use super::{user::Pins, PAGE};
use crate::bindings;
use kernel::{
    page::{AsPageIter, Page},
    prelude::*,
    transmute::{AsBytes, FromBytes},
};

/// Ownership of the pages.
pub(super) enum Hold {
    /// The list is under construction and owns no pages.
    Nothing,
    /// Pins of user memory.
    Pins(Pins),
    /// A reference to each page. `write` is set if a device may write the pages.
    References { write: bool },
    /// The pages themselves.
    Owned(#[allow(dead_code)] KVVec<Page>),
    /// The owner of the pages, whose memory may have any values.
    Owner(#[allow(dead_code)] KBox<dyn Send + Sync>),
}

/// List of pages, in the order of their device addresses. The content of the list is the
/// [`PageList::bytes`] bytes from [`PageList::offset`] on. The device can nevertheless access whole
/// pages.
///
/// # Examples
///
/// Whole kernel pages that device and CPU share:
///
/// ```
/// # use kernel::{page::Page, prelude::*};
/// # use kernel_ext::mem::PageList;
/// fn shared(n: usize) -> Result<PageList> {
///     let mut pages = KVVec::new();
///     for _ in 0..n {
///         pages.push(Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?, GFP_KERNEL)?;
///     }
///     let list = PageList::from_pages(pages)?;
///     list.write(0, 0x1234);
///     assert_eq!(list.read(0), 0x1234);
///     Ok(list)
/// }
/// ```
///
/// # Invariants
///
/// Each pointer refers to a page with a permanent kernel address, which is not freed while `hold`
/// exists. `Pins` and `References` own one pin or reference for each page in the list. A device may
/// read all pages, and may also write them if [`PageList::is_writable`] returns true. `offset` is
/// less than a page, and `offset + bytes` does not exceed the size of all pages.
pub struct PageList {
    pub(super) pages: KVVec<*mut bindings::page>,
    pub(super) hold: Hold,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

// SAFETY: any thread may use and free the pages.
unsafe impl Send for PageList {}
// SAFETY: content is accessed by volatile operations only.
unsafe impl Sync for PageList {}

impl PageList {
    /// Returns an empty list, to be filled.
    pub(super) fn empty(hold: Hold) -> Self {
        Self {
            pages: KVVec::new(),
            hold,
            offset: 0,
            bytes: 0,
        }
    }

    /// Makes a list of pages that no other object uses. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty vector, `ENOMEM`.
    pub fn from_pages(pages: KVVec<Page>) -> Result<Self> {
        if pages.is_empty() {
            return Err(EINVAL);
        }
        let mut list = Self::empty(Hold::Nothing);
        for page in pages.iter() {
            list.pages.push(page.as_ptr(), GFP_KERNEL)?;
        }
        list.bytes = pages.len() * PAGE;
        // INVARIANT: the list owns the pages. The pages are separate, and only their owner can have
        // references to their content.
        list.hold = Hold::Owned(pages);
        Ok(list)
    }

    /// Makes a list of the pages of a kernel buffer, including all of the last page. The memory
    /// after the buffer's elements is zeroed, because the device can access it. The device and
    /// [`PageList::write`] may give the elements any values, hence the bounds on `T`. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty buffer, `ENOMEM`.
    pub fn from_buffer<T>(buffer: VVec<T>) -> Result<Self>
    where
        T: AsBytes + FromBytes + Send + Sync + 'static,
    {
        let used = core::mem::size_of_val::<[T]>(&buffer);
        let mut buffer = KBox::new(buffer, GFP_KERNEL)?;
        let mut list = Self::empty(Hold::Nothing);
        for page in buffer.page_iter() {
            list.pages.push(page.as_ptr(), GFP_KERNEL)?;
        }
        if list.pages.is_empty() {
            return Err(EINVAL);
        }
        list.bytes = list.pages.len() * PAGE;
        let mut at = used;
        while at < list.bytes {
            let rest = PAGE - at % PAGE;
            if let Some(base) = list.address(at / PAGE) {
                // SAFETY: the range is the remainder of a page of the vector's allocation, after
                // its elements. Other code does not use that memory.
                unsafe { core::ptr::write_bytes(base.add(at % PAGE), 0, rest) };
            }
            at += rest;
        }
        // INVARIANT: the list owns the buffer, so no references to its elements exist; they may
        // have any values.
        list.hold = Hold::Owner(buffer);
        Ok(list)
    }

    /// Returns the number of pages, at least 1.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns false, because a list has at least one page.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns the offset of the first byte in the first page; less than a page.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of bytes from [`PageList::offset`]; for several fragments
    /// ([`super::FragmentList`]) including the gaps.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if a device may write the pages.
    pub fn is_writable(&self) -> bool {
        match &self.hold {
            Hold::Pins(pins) => pins.write(),
            Hold::References { write } => *write,
            Hold::Owned(_) | Hold::Owner(_) => true,
            Hold::Nothing => false,
        }
    }

    /// Returns true if the pages contain other kernel data besides the bytes of the list, as pages
    /// of block requests do. For example, a peer that knows the pages' addresses can
    /// make the device access these data.
    pub fn shares_pages(&self) -> bool {
        match &self.hold {
            Hold::References { .. } => true,
            Hold::Pins(_) | Hold::Owned(_) | Hold::Owner(_) | Hold::Nothing => false,
        }
    }

    pub(super) fn raw(&self) -> &[*mut bindings::page] {
        &self.pages
    }

    /// Returns the kernel address of a page.
    pub(super) fn address(&self, page: usize) -> Option<*mut u8> {
        let page = *self.pages.get(page)?;
        // SAFETY: the page is valid; 64-bit kernels map all pages.
        Some(unsafe { bindings::extoll_page_address(page) }.cast())
    }

    fn word(&self, index: usize) -> Option<*mut u64> {
        let base: *mut u64 = self.address(index / (PAGE / 8))?.cast();
        // The result is within the page.
        Some(base.wrapping_add(index % (PAGE / 8)))
    }

    /// Returns a little-endian quadword of the pages; 0 outside the list. Any context.
    pub fn read(&self, index: usize) -> u64 {
        match self.word(index) {
            // SAFETY: `p` is within a page that stays allocated. The access is volatile, because
            // the device may write the page at any time.
            Some(p) => u64::from_le(unsafe { p.read_volatile() }),
            None => 0,
        }
    }

    /// Writes a little-endian quadword of the pages. A write outside the list, or to pages that are
    /// not writable, is ignored. Any context.
    pub fn write(&self, index: usize, value: u64) {
        if !self.is_writable() {
            return;
        }
        if let Some(p) = self.word(index) {
            // SAFETY: `p` is within a page that stays allocated and may be written. The access is
            // volatile, because the device may access the page at any time.
            unsafe { p.write_volatile(value.to_le()) }
        }
    }
}

impl Drop for PageList {
    fn drop(&mut self) {
        match &mut self.hold {
            // SAFETY: the pages were pinned for this list, and are not accessed any more.
            Hold::Pins(pins) => unsafe { pins.unpin(&mut self.pages) },
            Hold::References { .. } => {
                for page in self.pages.iter() {
                    // SAFETY: by the type invariant the list owns a reference to each page.
                    unsafe { bindings::extoll_page_put(*page) };
                }
            }
            Hold::Nothing | Hold::Owned(_) | Hold::Owner(_) => {}
        }
    }
}

#[kunit_tests(kernel_ext_pages)]
mod tests {
    use super::*;
    use crate::mem::Maps;

    const WORDS: usize = PAGE / 8;

    #[test]
    fn words_of_a_buffer() -> Result {
        let mut buffer = VVec::with_capacity(2 * PAGE + 1, GFP_KERNEL)?;
        buffer.resize(2 * PAGE + 1, 0u8, GFP_KERNEL)?;
        let list = PageList::from_buffer(buffer)?;
        assert_eq!(list.len(), 3);
        assert_eq!((list.offset(), list.bytes()), (0, 3 * PAGE));
        for index in [0, WORDS - 1, WORDS, 2 * WORDS] {
            list.write(index, index as u64 + 1);
        }
        for index in [0, WORDS - 1, WORDS, 2 * WORDS] {
            assert_eq!(list.read(index), index as u64 + 1);
        }
        // Outside of the list writes have no effect and reads return 0.
        list.write(3 * WORDS, 1);
        assert_eq!(list.read(3 * WORDS), 0);
        assert!(list.user().is_none());
        assert!(list.is_writable() && !list.shares_pages());
        assert_eq!(list.mapped(0, 3), Maps::Same);
        assert_eq!(PageList::from_buffer(VVec::<u8>::new()).err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn nothing_is_left_behind_a_buffer() -> Result {
        let mut buffer = VVec::with_capacity(3 * PAGE, GFP_KERNEL)?;
        buffer.resize(3 * PAGE, 0xffu8, GFP_KERNEL)?;
        buffer.truncate(PAGE + 16);
        let list = PageList::from_buffer(buffer)?;
        assert_eq!(list.len(), 3);
        for index in [0, WORDS, WORDS + 1] {
            assert_eq!(list.read(index), u64::MAX);
        }
        for index in [WORDS + 2, 2 * WORDS - 1, 2 * WORDS, 3 * WORDS - 1] {
            assert_eq!(list.read(index), 0);
        }
        Ok(())
    }

    #[test]
    fn pages_live_in_their_list() -> Result {
        let mut pages = KVVec::new();
        pages.push(Page::alloc_page(GFP_KERNEL)?, GFP_KERNEL)?;
        let list = PageList::from_pages(pages)?;
        list.write(5, 0x1234);
        assert_eq!(list.read(5), 0x1234);
        assert_eq!((list.len(), list.bytes()), (1, PAGE));
        assert_eq!(PageList::from_pages(KVVec::new()).err(), Some(EINVAL));
        Ok(())
    }
}
