// SPDX-License-Identifier: GPL-2.0-only

//! Fragmented memory with unaligned ends, such as the parts of pages in a block request.

use super::{pages::Hold, PageList, PAGE};
use crate::bindings;
use core::{marker::PhantomData, mem::MaybeUninit};
use kernel::{
    page::Page,
    prelude::*,
    sync::{Arc, UniqueArc},
};
use protocol::mem::fragments::{slice, Fragment, Layout};

/// Memory in several ranges, stored as a list of pages and the fragments in it.
///
/// A device sees the list as one range with page i at 4096 · i, so all of it is registered once. If
/// a fragment ends within a page and another one follows, the range has a gap. Without gaps,
/// [`FragmentList::contiguous`] returns the list, whose [`PageList::offset`] and
/// [`PageList::bytes`] describe the bytes. With gaps, one command can only transfer one
/// [`Fragment`], which begins at 4096 · `page` + `offset`.
///
/// The device can access whole pages. The bytes before, between and after the fragments may be any
/// kernel data ([`PageList::shares_pages`]).
pub struct FragmentList {
    pages: Arc<PageList>,
    fragments: KVVec<Fragment>,
    bytes: usize,
}

/// Ranges of pages, as in `struct bio_vec`: page, offset and length. A range may continue in the
/// pages that follow in memory.
///
/// # Invariants
///
/// The requirements of [`BioVecs::from_raw`] hold.
#[derive(Clone, Copy)]
pub struct BioVecs<'a> {
    raw: *const bindings::bio_vec,
    len: usize,
    write: bool,
    _pages: PhantomData<&'a ()>,
}

impl BioVecs<'_> {
    /// Makes an object for the `len` ranges at `raw`, which a device reads, or also writes if
    /// `write`.
    ///
    /// # Safety
    ///
    /// During the lifetime the array is valid and constant, and the pages exist, with permanent
    /// addresses. A device may read all of each page, and write it if `write`, as long as a list
    /// holds a reference to it.
    pub unsafe fn from_raw(raw: *const kernel::bindings::bio_vec, len: usize, write: bool) -> Self {
        // INVARIANT: by the function's requirements.
        Self {
            raw,
            len,
            write,
            _pages: PhantomData,
        }
    }

    fn get(&self) -> &[bindings::bio_vec] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: by the type invariant the array is valid.
        unsafe { core::slice::from_raw_parts(self.raw, self.len) }
    }
}

/// List that is being made.
struct Builder {
    list: PageList,
    fragments: KVVec<Fragment>,
    layout: Layout,
}

impl Builder {
    fn new(hold: Hold) -> Self {
        Self {
            list: PageList::empty(hold),
            fragments: KVVec::new(),
            layout: Layout::new(),
        }
    }

    /// Adds a range. Returns the number of its pages that are already in the list, and the number
    /// of new pages.
    fn add_range(&mut self, offset: usize, len: usize, same: bool) -> Result<(usize, usize)> {
        let added = self.layout.add(offset, len, same).ok_or(EINVAL)?;
        match self.fragments.last_mut() {
            Some(last) if !added.new => *last = added.fragment,
            _ => self.fragments.push(added.fragment, GFP_KERNEL_ACCOUNT)?,
        }
        Ok((added.shared_pages, added.pages))
    }

    /// Adds the pages of a range: `len` bytes at `offset` of `page`, which may continue in the
    /// following pages. Takes a reference to each page if `get`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: an empty range, or a page without a reference count. `ENOMEM`.
    ///
    /// # Safety
    ///
    /// The pages of the range are valid, with permanent addresses, and stay allocated while they
    /// are in the list.
    unsafe fn add(
        &mut self,
        page: *mut bindings::page,
        offset: usize,
        len: usize,
        get: bool,
    ) -> Result {
        // The pages of a range are contiguous, also in the kernel's array of pages.
        let page = page.wrapping_add(offset / PAGE);
        let same = self.list.pages.last() == Some(&page);
        let (known, pages) = self.add_range(offset % PAGE, len, same)?;
        self.list.pages.reserve(pages, GFP_KERNEL_ACCOUNT)?;
        for n in known..known + pages {
            let page = page.wrapping_add(n);
            // SAFETY: the page is valid by the function's requirements.
            if get && !unsafe { bindings::extoll_page_try_get(page) } {
                return Err(EINVAL);
            }
            self.list
                .pages
                .push_within_capacity(page)
                .map_err(|_| ENOMEM)?;
        }
        Ok(())
    }

    /// Allocates memory for the list.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the list is empty. `ENOMEM`.
    fn allocate(&self) -> Result<UniqueArc<MaybeUninit<PageList>>> {
        if self.fragments.is_empty() {
            return Err(EINVAL);
        }
        Ok(UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?)
    }

    /// Completes the list, whose pages `hold` owns.
    fn finish(
        mut self,
        memory: UniqueArc<MaybeUninit<PageList>>,
        hold: Option<Hold>,
    ) -> FragmentList {
        if let (Some(first), Some(last)) = (self.fragments.first(), self.fragments.last()) {
            self.list.offset = first.offset;
            self.list.bytes = last.end() - first.offset;
        }
        if let Some(hold) = hold {
            self.list.hold = hold;
        }
        FragmentList {
            pages: memory.write(self.list).into(),
            bytes: self.layout.bytes(),
            fragments: self.fragments,
        }
    }
}

impl FragmentList {
    /// Takes a reference to each page of ranges of pages. Other users of the pages continue to use
    /// them. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there are no ranges, a range is empty, or a page belongs to the kernel's heap and
    /// has no reference count. `ENOMEM`.
    pub fn share_bvecs(vecs: BioVecs<'_>) -> Result<Self> {
        let mut builder = Builder::new(Hold::References { write: vecs.write });
        for vec in vecs.get() {
            let (offset, len) = (vec.bv_offset as usize, vec.bv_len as usize);
            // SAFETY: by the type invariant of `vecs` the pages are valid; each page gets a
            // reference.
            unsafe { builder.add(vec.bv_page, offset, len, true) }?;
        }
        let memory = builder.allocate()?;
        Ok(builder.finish(memory, None))
    }

    /// Makes a list of pages that no other object uses. Each has a range, given by its offset and
    /// length. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there are no pages, or a range is empty or exceeds its page. `ENOMEM`.
    pub fn from_pages(ranges: KVVec<(Page, usize, usize)>) -> Result<Self> {
        let mut builder = Builder::new(Hold::Nothing);
        let mut pages = KVVec::with_capacity(ranges.len(), GFP_KERNEL)?;
        for (page, offset, len) in ranges {
            if offset.checked_add(len).is_none_or(|end| end > PAGE) {
                return Err(EINVAL);
            }
            // SAFETY: the list will own the page.
            unsafe { builder.add(page.as_ptr(), offset, len, false) }?;
            pages.push(page, GFP_KERNEL)?;
        }
        let memory = builder.allocate()?;
        Ok(builder.finish(memory, Some(Hold::Owned(pages))))
    }

    /// Returns all pages, to be registered or mapped.
    pub fn pages(&self) -> &Arc<PageList> {
        &self.pages
    }

    /// Returns the fragments in their order; at least one.
    pub fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }

    /// Returns the sum of the lengths of all fragments in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the parts of fragments that contain the `len` bytes after the first `skip` bytes,
    /// limited to the existing bytes.
    pub fn slice(&self, skip: usize, len: usize) -> impl Iterator<Item = Fragment> + '_ {
        slice(&self.fragments, skip, len)
    }

    /// Returns the list, if its bytes have no gaps.
    ///
    /// # Errors
    ///
    /// Returns `self` if there are gaps.
    pub fn contiguous(self) -> Result<Arc<PageList>, Self> {
        match self.fragments.len() {
            1 => Ok(self.pages),
            _ => Err(self),
        }
    }
}
