// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Allocator of NLA space, and choice of page sizes for a region (HW §11.1, G17).
//!
//! All sizes and positions are in pages of 4 KiB. Page n of the space has NLA 4096 n.

use core::fmt;
use wire::{
    atu::{GatEntry, GAT_ENTRIES},
    ids::{BusAddr, Vpid},
};

/// Page size codes that the hardware supports, largest first: 1 GiB, 2 MiB, 64 KiB, 8 KiB, 4 KiB.
pub const SIZE_CODES: [u8; 5] = [18, 9, 4, 1, 0];

/// Returns the size code of a hardware page of `kib` KiB; `None` if the hardware has no such pages.
pub fn size_code(kib: u64) -> Option<u8> {
    SIZE_CODES.into_iter().find(|code| 4u64 << code == kib)
}

/// Number of pages of the whole space, which 1024 tables describe.
pub const PAGES: u64 = 1024 * GAT_ENTRIES as u64;

/// Range of consecutive pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NlaRange {
    /// First page.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
}

impl NlaRange {
    /// Returns the number of the page after the last page of the range.
    pub const fn end(&self) -> u64 {
        self.first + self.pages
    }
}

/// Storage for a sorted list of ranges.
pub trait Store {
    /// Returns the ranges.
    fn ranges(&self) -> &[NlaRange];
    /// Returns the ranges for modification in place.
    fn ranges_mut(&mut self) -> &mut [NlaRange];
    /// Allocates memory for a total of `total` ranges. Returns false if no memory is available.
    fn reserve(&mut self, total: usize) -> bool;
    /// Inserts a range before position `at`, which is at most the length. The caller has reserved
    /// the memory.
    fn insert(&mut self, at: usize, range: NlaRange);
    /// Removes the range at position `at`.
    fn remove(&mut self, at: usize);
}

/// Reason why an allocation fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SpaceError {
    /// No free range is long enough.
    Full,
    /// No memory is available for the list of free ranges.
    NoMemory,
    /// The number of pages is 0, or the alignment is not a power of two.
    Invalid,
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpaceError::Full => "no contiguous range is free",
            SpaceError::NoMemory => "no memory",
            SpaceError::Invalid => "invalid size or alignment",
        })
    }
}

/// Allocator of a page range. It allocates the lowest free pages first, so that few tables are in
/// use. Freeing a range allocates no memory.
pub struct Space<S> {
    free: S,
    /// Number of allocated ranges.
    allocated: usize,
    bounds: NlaRange,
}

impl<S: Store> Space<S> {
    /// Returns an allocator for the pages in `bounds`, all free. `free` must be empty.
    ///
    /// # Errors
    ///
    /// Returns `NoMemory` if the memory cannot be allocated.
    pub fn new(mut free: S, bounds: NlaRange) -> Result<Self, SpaceError> {
        if !free.reserve(1) {
            return Err(SpaceError::NoMemory);
        }
        if bounds.pages != 0 {
            free.insert(0, bounds);
        }
        Ok(Self {
            free,
            allocated: 0,
            bounds,
        })
    }

    /// Allocates `pages` pages. The first page is congruent to `phase` modulo `align`, a power of
    /// two.
    ///
    /// # Errors
    ///
    /// See [`SpaceError`].
    pub fn allocate(&mut self, pages: u64, align: u64, phase: u64) -> Result<u64, SpaceError> {
        self.allocate_in(self.bounds, pages, align, phase)
    }

    /// Like [`Space::allocate`], but restricted to pages within `window`.
    ///
    /// # Errors
    ///
    /// See [`SpaceError`].
    pub fn allocate_in(
        &mut self,
        window: NlaRange,
        pages: u64,
        align: u64,
        phase: u64,
    ) -> Result<u64, SpaceError> {
        if pages == 0 || !align.is_power_of_two() {
            return Err(SpaceError::Invalid);
        }
        // Reserve one entry for this split, and one entry for each allocated range that will be
        // freed.
        if !self.free.reserve(self.allocated + 2) {
            return Err(SpaceError::NoMemory);
        }
        let list = self.free.ranges();
        for i in list.partition_point(|r| r.end() <= window.first)..list.len() {
            let Some(range) = self.free.ranges().get(i).copied() else {
                break;
            };
            if range.first >= window.end() {
                break;
            }
            let lowest = range.first.max(window.first);
            let highest = range.end().min(window.end());
            let first = lowest + (phase.wrapping_sub(lowest) & (align - 1));
            if first.checked_add(pages).is_none_or(|end| end > highest) {
                continue;
            }
            let skip = first - range.first;
            let behind = NlaRange {
                first: first + pages,
                pages: range.pages - skip - pages,
            };
            match (skip, behind.pages) {
                (0, 0) => self.free.remove(i),
                (0, _) => self.set(i, behind),
                _ => {
                    self.set(
                        i,
                        NlaRange {
                            first: range.first,
                            pages: skip,
                        },
                    );
                    if behind.pages != 0 {
                        self.free.insert(i + 1, behind);
                    }
                }
            }
            self.allocated += 1;
            return Ok(first);
        }
        Err(SpaceError::Full)
    }

    fn set(&mut self, i: usize, range: NlaRange) {
        if let Some(slot) = self.free.ranges_mut().get_mut(i) {
            *slot = range;
        }
    }

    /// Frees a range that was allocated as a whole. Returns false without any effect if a page of
    /// the range is free or outside of the space.
    pub fn free(&mut self, range: NlaRange) -> bool {
        let inside = range.first >= self.bounds.first && range.end() <= self.bounds.end();
        if range.pages == 0 || !inside || self.allocated == 0 {
            return false;
        }
        let list = self.free.ranges();
        let at = list.partition_point(|r| r.first < range.first);
        let before = at.checked_sub(1).and_then(|i| list.get(i)).copied();
        let after = list.get(at).copied();
        if before.is_some_and(|r| r.end() > range.first)
            || after.is_some_and(|r| r.first < range.end())
        {
            return false;
        }
        let joins_before = before.filter(|r| r.end() == range.first);
        let joins_after = after.filter(|r| r.first == range.end());
        match (joins_before, joins_after) {
            (Some(b), Some(a)) => {
                self.set(
                    at - 1,
                    NlaRange {
                        first: b.first,
                        pages: b.pages + range.pages + a.pages,
                    },
                );
                self.free.remove(at);
            }
            (Some(b), None) => self.set(
                at - 1,
                NlaRange {
                    first: b.first,
                    pages: b.pages + range.pages,
                },
            ),
            (None, Some(a)) => self.set(
                at,
                NlaRange {
                    first: range.first,
                    pages: range.pages + a.pages,
                },
            ),
            (None, None) => self.free.insert(at, range),
        }
        self.allocated -= 1;
        true
    }

    /// Returns the number of allocated ranges.
    pub fn allocated(&self) -> usize {
        self.allocated
    }
}

/// Computes the alignment with which a region can use the largest allowed page size. The caller
/// passes the bus-contiguous chunks of the region in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Maximum size code.
    largest: u8,
    /// Number of pages of the chunks added so far.
    at: u64,
    align: u64,
    phase: u64,
}

impl Placement {
    /// Returns a placement without chunks; `largest` is the maximum size code.
    pub const fn new(largest: u8) -> Self {
        Self {
            largest,
            at: 0,
            align: 1,
            phase: 0,
        }
    }

    /// Adds the next chunk, which has `pages` pages at bus address `addr`.
    pub fn add(&mut self, addr: BusAddr, pages: u64) {
        let page = addr.0 / BusAddr::PAGE_SIZE;
        for code in SIZE_CODES.into_iter().filter(|code| *code <= self.largest) {
            let size = 1u64 << code;
            let aligned = page.next_multiple_of(size);
            if aligned + size <= page + pages {
                if size > self.align {
                    self.align = size;
                    self.phase = page.wrapping_sub(self.at) & (size - 1);
                }
                break;
            }
        }
        self.at += pages;
    }

    /// Returns the number of pages of all chunks.
    pub const fn pages(&self) -> u64 {
        self.at
    }

    /// Returns alignment and phase for [`Space::allocate`].
    pub const fn alignment(&self) -> (u64, u64) {
        (self.align, self.phase)
    }
}

/// Hardware page of one of the supported sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HwPage {
    /// Number of the first 4 KiB page in NLA space.
    pub first: u64,
    /// Bus address, aligned to the size.
    pub addr: BusAddr,
    /// Size code: the hardware page has 2^code pages of 4 KiB.
    pub code: u8,
}

impl HwPage {
    /// Returns the table entry to write for each 4 KiB page of the hardware page; `None` if the
    /// address is too large for an entry.
    pub const fn entry(&self, vpid: Vpid, read: bool, write: bool) -> Option<GatEntry> {
        match GatEntry::new(self.addr, vpid, read, write) {
            Some(entry) => Some(entry.with_size(self.code)),
            None => None,
        }
    }
}

/// Divides `pages` pages at bus address `addr`, which begin at page `first` of the space, into the
/// minimum number of hardware pages with size codes up to `largest`.
pub fn cut(
    first: u64,
    addr: BusAddr,
    pages: u64,
    largest: u8,
) -> impl Iterator<Item = HwPage> + Clone {
    let mut done = 0;
    core::iter::from_fn(move || {
        if done >= pages {
            return None;
        }
        let (page, at) = (addr.0 / BusAddr::PAGE_SIZE + done, first + done);
        let fits = |code: u8| {
            code <= largest && (page | at) & ((1 << code) - 1) == 0 && pages - done >= 1 << code
        };
        let code = SIZE_CODES.into_iter().find(|c| fits(*c)).unwrap_or(0);
        done += 1 << code;
        Some(HwPage {
            first: at,
            addr: BusAddr(page * BusAddr::PAGE_SIZE),
            code,
        })
    })
}
