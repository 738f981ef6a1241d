// SPDX-License-Identifier: GPL-2.0-only

//! Tests of fragment lists.

use kernel::prelude::*;

#[kunit_tests(kernel_ext_fragments)]
mod tests {
    use crate::{
        bindings,
        mem::{BioVecs, Fragment, FragmentList, PAGE},
    };
    use kernel::{page::Page, prelude::*};

    fn fragment(page: usize, offset: usize, len: usize) -> Fragment {
        Fragment { page, offset, len }
    }

    fn page() -> Result<Page> {
        Ok(Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?)
    }

    fn vec(page: &Page, offset: usize, len: usize) -> bindings::bio_vec {
        bindings::bio_vec {
            bv_page: page.as_ptr(),
            bv_offset: offset as c_uint,
            bv_len: len as c_uint,
        }
    }

    fn share(vecs: &[bindings::bio_vec], write: bool) -> Result<FragmentList> {
        // SAFETY: the pages belong to the test, and other threads do not access them.
        let vecs = unsafe { BioVecs::from_raw(vecs.as_ptr(), vecs.len(), write) };
        FragmentList::share_bvecs(vecs)
    }

    #[test]
    fn pieces_of_pages_with_ends_that_are_not_aligned() -> Result {
        let pages = [page()?, page()?, page()?];
        let vecs = [
            vec(&pages[0], 4000, 96),
            vec(&pages[1], 0, PAGE),
            vec(&pages[2], 0, 5),
        ];
        let fragments = share(&vecs, true)?;
        let list = fragments.pages().clone();
        drop(pages);
        assert_eq!((list.len(), list.offset()), (3, 4000));
        assert_eq!(list.bytes(), 96 + PAGE + 5);
        assert!(list.is_writable() && list.shares_pages());
        assert!(fragments.fragments() == [fragment(0, 4000, 96 + PAGE + 5)]);
        // The pages stay allocated after their owner has dropped them.
        list.write(512, 7);
        assert_eq!(fragments.pages().read(512), 7);
        assert!(fragments.contiguous().is_ok());
        Ok(())
    }

    #[test]
    fn gaps_are_reported() -> Result {
        let pages = [page()?, page()?];
        let vecs = [vec(&pages[0], 8, 16), vec(&pages[1], 100, 200)];
        let fragments = share(&vecs, false)?;
        assert!(fragments.fragments() == [fragment(0, 8, 16), fragment(1, 100, 200)]);
        assert_eq!(fragments.bytes(), 216);
        let mut parts = fragments.slice(10, 50);
        assert_eq!(parts.next(), Some(fragment(0, 18, 6)));
        assert_eq!(parts.next(), Some(fragment(1, 100, 44)));
        assert_eq!(parts.next(), None);
        drop(parts);
        // A list that is not writable ignores writes.
        fragments.pages().write(0, 1);
        assert_eq!(fragments.pages().read(0), 0);
        assert!(fragments.contiguous().is_err());
        Ok(())
    }

    #[test]
    fn bad_pieces_are_refused() -> Result {
        let page = page()?;
        let refused = |vecs: &[bindings::bio_vec]| share(vecs, false).err();
        assert_eq!(refused(&[]), Some(EINVAL));
        assert_eq!(refused(&[vec(&page, 0, 8), vec(&page, 0, 0)]), Some(EINVAL));
        let heap = KBox::new(0u64, GFP_KERNEL)?;
        let address: *const u64 = &*heap;
        // SAFETY: a valid address of the heap.
        let bv_page = unsafe { bindings::extoll_page_of(address.cast()) };
        let vec = bindings::bio_vec {
            bv_page,
            bv_offset: 0,
            bv_len: 8,
        };
        assert_eq!(refused(&[vec]), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn pieces_in_the_same_page_are_one() -> Result {
        let page = page()?;
        let vecs = [vec(&page, 8, 16), vec(&page, 24, 100)];
        let list = share(&vecs, false)?.contiguous().map_err(|_| EINVAL)?;
        assert_eq!((list.len(), list.offset(), list.bytes()), (1, 8, 116));
        Ok(())
    }

    #[test]
    fn pages_of_ones_own() -> Result {
        let mut ranges = KVVec::new();
        for (offset, len) in [(10, PAGE - 10), (0, 20), (30, 40)] {
            ranges.push((page()?, offset, len), GFP_KERNEL)?;
        }
        let list = FragmentList::from_pages(ranges)?;
        assert!(list.fragments() == [fragment(0, 10, PAGE + 10), fragment(2, 30, 40)]);
        assert!(list.pages().is_writable() && !list.pages().shares_pages());
        let mut ranges = KVVec::new();
        ranges.push((page()?, 1, PAGE), GFP_KERNEL)?;
        assert_eq!(FragmentList::from_pages(ranges).err(), Some(EINVAL));
        assert_eq!(FragmentList::from_pages(KVVec::new()).err(), Some(EINVAL));
        Ok(())
    }
}
