// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Lists of fragments: where in a list of pages the bytes of something are that is not contiguous.
//!
//! A device sees a list of pages as one range, page i at 4096 · i, whatever pages they are. Bytes
//! that lie anywhere in memory so become fragments of that range: a fragment begins and ends where
//! it likes and reaches over any number of pages; between two fragments there are bytes that belong
//! to something else. If there are none, one command moves everything; else each fragment takes one
//! of its own.

use wire::ids::BusAddr;

/// Bytes of a page.
const PAGE: usize = BusAddr::PAGE_SIZE as usize;

/// Bytes that follow each other in a list of pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fragment {
    /// Number of the page in the list in which they begin.
    pub page: usize,
    /// Where they begin in it, below 4096.
    pub offset: usize,
    /// How many there are; they go on in the following pages.
    pub len: usize,
}

impl Fragment {
    /// Where they begin in the range of all pages.
    #[must_use]
    pub const fn start(&self) -> usize {
        self.page * PAGE + self.offset
    }

    /// Where they end in it.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.start() + self.len
    }

    /// Pages that they lie in.
    #[must_use]
    pub const fn pages(&self) -> usize {
        (self.offset + self.len).div_ceil(PAGE)
    }

    /// All but the first `n` bytes; `None` if nothing is left.
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

    /// The first `n` bytes at most.
    #[must_use]
    pub const fn take(&self, n: usize) -> Self {
        Self {
            len: if n < self.len { n } else { self.len },
            ..*self
        }
    }
}

/// What a piece of memory adds to a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Added {
    /// Pages of the piece that the list has already: the piece goes on in its last page. 0 or 1.
    pub known: usize,
    /// Pages to be appended after those.
    pub pages: usize,
    /// The last fragment of the list from now on.
    pub fragment: Fragment,
    /// It is a new one, and not the one before with more bytes.
    pub new: bool,
}

/// Lays pieces of memory out in a list of pages.
#[derive(Clone, Copy, Default, Debug)]
pub struct Layout {
    pages: usize,
    bytes: usize,
    fragments: usize,
    last: Option<Fragment>,
}

impl Layout {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            pages: 0,
            bytes: 0,
            fragments: 0,
            last: None,
        }
    }

    /// Number of pages so far.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages
    }

    /// Number of bytes so far, without those between fragments.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether all bytes follow each other.
    #[must_use]
    pub const fn is_contiguous(&self) -> bool {
        self.fragments <= 1
    }

    /// Adds a piece of `len` bytes that begins `offset` bytes into its first page. `same`: that is
    /// the last page of the list. `None`, without a change, for no bytes, for an offset that is not
    /// in the first page, and beyond what addresses can tell.
    pub fn add(&mut self, offset: usize, len: usize, same: bool) -> Option<Added> {
        if len == 0 || offset >= PAGE {
            return None;
        }
        let pages = offset.checked_add(len)?.div_ceil(PAGE);
        let bytes = self.bytes.checked_add(len)?;
        self.pages.checked_add(pages)?.checked_mul(PAGE)?;
        let full = self.pages * PAGE;
        // The piece goes on where the last one ends, in a page or at the end of one.
        let (known, joins) = match self.last {
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
        self.pages += pages - known;
        self.bytes = bytes;
        self.fragments += usize::from(!joins);
        self.last = Some(fragment);
        Some(Added {
            known,
            pages: pages - known,
            fragment,
            new: !joins,
        })
    }
}

/// The parts of fragments that make up `len` bytes after the first `skip`, as far as there are so
/// many.
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

    /// Adds pieces: offset, length, same page.
    fn lay(pieces: &[(usize, usize, bool)]) -> (Layout, Vec<Fragment>) {
        let (mut layout, mut all) = (Layout::new(), Vec::new());
        for (offset, len, same) in pieces {
            let before = layout;
            let added = layout.add(*offset, *len, *same).unwrap();
            assert_eq!(layout.pages(), before.pages() + added.pages);
            assert_eq!(added.known + added.pages, (offset + len).div_ceil(PAGE));
            if !added.new {
                all.pop();
            }
            all.push(added.fragment);
        }
        assert_eq!(layout.is_contiguous(), all.len() <= 1);
        assert_eq!(layout.bytes(), all.iter().map(|f| f.len).sum());
        (layout, all)
    }

    #[test]
    fn pieces_that_meet_are_one_fragment() {
        // Unaligned ends, whole pages between.
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
        // The page is listed again for what does not follow.
        assert_eq!(all, [fragment(0, 10, 20 + PAGE + 5), fragment(2, 40, 1)]);
        assert_eq!(layout.pages(), 3);
        // At the end of a page the next piece can't be in the same one.
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
