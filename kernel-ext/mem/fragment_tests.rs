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
        // SAFETY: the address is a valid address of the heap.
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

    /// Returns a frame with a head, and pages of data that begin at `offset` of the first page.
    fn frame(head: usize, data: usize, offset: usize) -> Result<SkBuff> {
        // SAFETY: the function has no preconditions.
        let skb = unsafe { bindings::extoll_skb_sample(head, data, offset) };
        if skb.is_null() {
            return Err(ENOMEM);
        }
        // SAFETY: `skb` is a new frame.
        Ok(unsafe { SkBuff::from_raw(skb) })
    }

    #[test]
    fn frames() -> Result {
        let list = FragmentList::take_frame(frame(100, 2 * PAGE + 50, 16)?).map_err(|(_, e)| e)?;
        let [head, data] = list.fragments() else {
            return Err(EINVAL);
        };
        assert_eq!((head.len, data.len), (100, 2 * PAGE + 50 - 16));
        assert_eq!(data.offset, 16);
        assert_eq!(list.bytes(), 100 + 2 * PAGE + 50 - 16);
        assert!(!list.pages().is_writable() && list.pages().shares_pages());
        // Byte i of the sample frame has the value i modulo 256.
        let word = list.pages().read(data.start() / 8);
        assert_eq!(word.to_le_bytes()[0], 100);
        match PageList::take_frame(frame(100, 50, 0)?) {
            Ok(_) => return Err(EEXIST),
            Err((skb, e)) => {
                assert_eq!((skb.len(), e), (150, EINVAL));
            }
        }
        let list = PageList::take_frame(frame(0, PAGE + 50, 7)?).map_err(|(_, e)| e)?;
        assert_eq!((list.len(), list.offset(), list.bytes()), (2, 7, PAGE + 43));
        match FragmentList::take_frame(frame(0, 0, 0)?) {
            Ok(_) => return Err(EEXIST),
            Err((_, e)) => assert_eq!(e, EINVAL),
        }
        Ok(())
    }

    #[test]
    fn memory_of_the_kernel_is_nobodys_to_pin() -> Result {
        let mut iter = bindings::iov_iter::default();
        let vec = bindings::kvec::default();
        // SAFETY: the call initialises the iterator, which refers to kernel memory that outlives
        // it.
        unsafe { bindings::iov_iter_kvec(&mut iter, bindings::ITER_SOURCE, &vec, 0, 0) };
        // SAFETY: made above as a source, and only used through this reference.
        let source = unsafe { IovIterSource::from_raw(&mut iter) };
        let result = FragmentList::pin_iter(source, 100, Pin::Transfer);
        assert_eq!(result.err(), Some(EOPNOTSUPP));
        Ok(())
    }
}
