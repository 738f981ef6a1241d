// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Fragment lists: the positions of a non-contiguous transfer's bytes in a list of pages.
//!
//! A device sees a list of pages as one contiguous range in which page i begins at 4096 · i.
//! Scattered memory becomes fragments of that range. A fragment may begin and end at any byte and
//! may span any number of pages. The bytes between two fragments do not belong to the transfer. If
//! there are no gaps, one command transfers the whole list. Otherwise each fragment needs a
//! separate command.

use wire::ids::BusAddr;

/// Page size in bytes.
const PAGE: usize = BusAddr::PAGE_SIZE as usize;

/// Consecutive bytes in a list of pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fragment {
    /// Index of the page in which the fragment begins.
    pub page: usize,
    /// Offset of the first byte in that page, below 4096.
    pub offset: usize,
    /// Number of bytes. The fragment continues in the following pages.
    pub len: usize,
}

impl Fragment {
    /// Returns the offset of the first byte in the range of all pages.
    #[must_use]
    pub const fn start(&self) -> usize {
        self.page * PAGE + self.offset
    }

    /// Returns the offset behind the last byte in the range of all pages.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.start() + self.len
    }

    /// Returns the number of pages that contain bytes of the fragment.
    #[must_use]
    pub const fn pages(&self) -> usize {
        (self.offset + self.len).div_ceil(PAGE)
    }

    /// Returns all but the first `n` bytes; `None` if no bytes remain.
    #[must_use]
    pub const fn skip(&self, n: usize) -> Option<Self> {
        if n >= self.len {
            return None;
        }
        let start = self.start() + n;
        Some(Self {
            page: start / PAGE,
            offset: start % PAGE,
            len: self.len - n,
        })
    }

    /// Returns the first `n` bytes, or all if there are fewer.
    #[must_use]
    pub const fn take(&self, n: usize) -> Self {
        Self {
            len: if n < self.len { n } else { self.len },
            ..*self
        }
    }
}

/// Effect of [`Layout::add`] on the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddResult {
    /// Number of pages of the chunk that the list already contains, 0 or 1. With 1, the chunk
    /// continues in the last page.
    pub shared_pages: usize,
    /// Number of pages to append for the remainder of the chunk.
    pub pages: usize,
    /// Last fragment of the list after the addition.
    pub fragment: Fragment,
    /// True if `fragment` is new, false if the previous fragment was extended.
    pub new: bool,
}

/// Lays out chunks of memory in a list of pages.
#[derive(Clone, Copy, Default, Debug)]
pub struct Layout {
    pages: usize,
    bytes: usize,
    fragments: usize,
    last: Option<Fragment>,
}

impl Layout {
    /// Returns an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            pages: 0,
            bytes: 0,
            fragments: 0,
            last: None,
        }
    }

    /// Returns the current number of pages.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the current number of bytes, without the gaps between fragments.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a chunk of `len` bytes that begins `offset` bytes into its first page. `same` states
    /// that this page is the last page of the list. Returns `None` and changes no state if `len` is
    /// 0, if `offset` is not below the page size, or if an address would overflow.
    pub fn add(&mut self, offset: usize, len: usize, same: bool) -> Option<AddResult> {
        if len == 0 || offset >= PAGE {
            return None;
        }
        let pages = offset.checked_add(len)?.div_ceil(PAGE);
        let bytes = self.bytes.checked_add(len)?;
        self.pages.checked_add(pages)?.checked_mul(PAGE)?;
        let full = self.pages * PAGE;
        // The chunk continues the last fragment, within a page or at a page boundary.
        let (shared_pages, joins) = match self.last {
            Some(last) if same && last.end() < full => {
                let joins = last.end() == full - PAGE + offset;
                (usize::from(joins), joins)
            }
            Some(last) => (0, last.end() == full && offset == 0),
            None => (0, false),
        };
        let fragment = match self.last {
            Some(last) if joins => Fragment {
                len: last.len + len,
                ..last
            },
            _ => Fragment {
                page: self.pages,
                offset,
                len,
            },
        };
        self.pages += pages - shared_pages;
        self.bytes = bytes;
        self.fragments += usize::from(!joins);
        self.last = Some(fragment);
        Some(AddResult {
            shared_pages,
            pages: pages - shared_pages,
            fragment,
            new: !joins,
        })
    }
}

/// Returns the fragments, or parts of them, that contain `len` bytes after the first `skip` bytes.
/// They contain fewer bytes if the list ends.
pub fn slice(
    fragments: &[Fragment],
    skip: usize,
    len: usize,
) -> impl Iterator<Item = Fragment> + '_ {
    let (mut skip, mut left) = (skip, len);
    fragments.iter().filter_map(move |fragment| {
        let rest = match fragment.skip(skip) {
            Some(rest) => rest,
            None => {
                skip -= fragment.len;
                return None;
            }
        };
        skip = 0;
        let part = rest.take(left);
        left -= part.len;
        (part.len != 0).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    fn fragment(page: usize, offset: usize, len: usize) -> Fragment {
        Fragment { page, offset, len }
    }

    /// Adds chunks. Each chunk is given by its offset, its length, and true if it shares the
    /// previous page.
    fn lay(chunks: &[(usize, usize, bool)]) -> (Layout, Vec<Fragment>) {
        let (mut layout, mut all) = (Layout::new(), Vec::new());
        for (offset, len, same) in chunks {
            let before = layout;
            let added = layout.add(*offset, *len, *same).unwrap();
            assert_eq!(layout.pages(), before.pages() + added.pages);
            assert_eq!(
                added.shared_pages + added.pages,
                (offset + len).div_ceil(PAGE)
            );
            if !added.new {
                all.pop();
            }
            all.push(added.fragment);
        }
        assert_eq!(layout.bytes(), all.iter().map(|f| f.len).sum());
        (layout, all)
    }

    #[test]
    fn pieces_that_meet_are_one_fragment() {
        let (layout, all) = lay(&[
            (100, PAGE - 100, false),
            (0, 2 * PAGE, false),
            (0, 7, false),
        ]);
        assert_eq!(all, [fragment(0, 100, 3 * PAGE - 100 + 7)]);
        assert_eq!(layout.pages(), 4);
        assert_eq!((all[0].pages(), all[0].end()), (4, 3 * PAGE + 7));
    }

    #[test]
    fn pieces_that_do_not_meet_are_several() {
        let (layout, all) = lay(&[(100, 200, false), (0, 10, false), (PAGE - 1, 2, false)]);
        assert_eq!(
            all,
            [
                fragment(0, 100, 200),
                fragment(1, 0, 10),
                fragment(2, PAGE - 1, 2)
            ]
        );
        assert_eq!(layout.pages(), 4);
    }

    #[test]
    fn a_piece_may_go_on_in_the_last_page() {
        let (layout, all) = lay(&[
            (10, 20, false),
            (30, PAGE, true),
            (30, 5, true),
            (40, 1, true),
        ]);
        // The page is listed twice because the second chunk leaves a gap.
        assert_eq!(all, [fragment(0, 10, 20 + PAGE + 5), fragment(2, 40, 1)]);
        assert_eq!(layout.pages(), 3);
        // A page that is filled to its end cannot hold the next chunk.
        let (_, all) = lay(&[(0, PAGE, false), (0, 5, true)]);
        assert_eq!(all, [fragment(0, 0, PAGE + 5)]);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut layout = Layout::new();
        assert_eq!(layout.add(0, 0, false), None);
        assert_eq!(layout.add(PAGE, 1, false), None);
        assert_eq!(layout.add(1, usize::MAX, false), None);
        assert_eq!(layout.add(0, usize::MAX, false), None);
        assert!(layout.add(5, 5, false).is_some());
        assert_eq!(layout.add(0, usize::MAX - PAGE, false), None);
        assert_eq!((layout.pages(), layout.bytes()), (1, 5));
    }

    #[test]
    fn slices_are_parts() {
        let all = [
            fragment(0, 100, 50),
            fragment(3, 0, 2 * PAGE),
            fragment(6, 8, 8),
        ];
        let slice = |skip, len| slice(&all, skip, len).collect::<Vec<_>>();
        assert_eq!(slice(0, usize::MAX), all);
        assert_eq!(slice(0, 0), []);
        assert_eq!(slice(10, 20), [fragment(0, 110, 20)]);
        assert_eq!(slice(40, 20), [fragment(0, 140, 10), fragment(3, 0, 10)]);
        assert_eq!(
            slice(50 + PAGE + 1, PAGE + 3),
            [fragment(4, 1, PAGE - 1), fragment(6, 8, 4)]
        );
        assert_eq!(slice(50 + 2 * PAGE + 8, 1), []);
    }
}
