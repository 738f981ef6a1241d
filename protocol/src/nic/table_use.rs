// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Limit of the address tables that hold one user's memory (HW §11.1).
//!
//! A table occupies 2 MiB of host memory and exists while at least one page of its 1 GiB of NLA
//! space is registered. A user could register much memory and then keep only one page in each GiB.
//! The host would then need 512 pages of tables for each of these pages. The number of a user's
//! tables is therefore limited according to the amount of the user's registered memory, plus a
//! fixed number of spare tables.

use crate::nic::nla::NlaRange;
use core::ops::DerefMut;
use wire::atu::GAT_ENTRIES;

/// Number of pages of one table.
pub const SPAN: u64 = GAT_ENTRIES as u64;

/// Returns the numbers of the tables that contain pages of `range`.
pub fn tables_of(range: NlaRange) -> impl DoubleEndedIterator<Item = u64> {
    let end = range.end().div_ceil(SPAN).max(range.first / SPAN);
    range.first / SPAN..end
}

/// Returns the number of pages of `range` in table `index`, which must contain at least one.
pub const fn pages_in_table(range: NlaRange, index: u64) -> u64 {
    let (first, end) = (index * SPAN, (index + 1) * SPAN);
    let first = if range.first > first {
        range.first
    } else {
        first
    };
    let end = if range.end() < end { range.end() } else { end };
    end - first
}

/// Number of one user's pages in each table. `A` stores one count per table.
pub struct TableUse<A> {
    pages: A,
    tables: u64,
    total: u64,
}

impl<A: DerefMut<Target = [u32]>> TableUse<A> {
    /// Returns the state of a user without memory. All elements of `pages` must be zero.
    pub const fn new(pages: A) -> Self {
        Self {
            pages,
            tables: 0,
            total: 0,
        }
    }

    fn of(&self, index: u64) -> u32 {
        self.pages.get(index as usize).copied().unwrap_or(0)
    }

    /// Returns true if the user may register `range`. A user may have pages in `spare` tables, plus
    /// two tables for each GiB of registered memory.
    pub fn may_add(&self, range: NlaRange, spare: u32) -> bool {
        let new = tables_of(range).filter(|i| self.of(*i) == 0).count() as u64;
        let filled = (self.total + range.pages) / SPAN;
        self.tables + new <= u64::from(spare) + 2 * filled
    }

    /// Records that the user has registered `range`.
    pub fn add(&mut self, range: NlaRange) {
        for index in tables_of(range) {
            if let Some(pages) = self.pages.get_mut(index as usize) {
                self.tables += u64::from(*pages == 0);
                *pages += pages_in_table(range, index) as u32;
            }
        }
        self.total += range.pages;
    }

    /// Records that the user has unregistered `range`, which must be registered.
    pub fn remove(&mut self, range: NlaRange) {
        for index in tables_of(range) {
            if let Some(pages) = self.pages.get_mut(index as usize) {
                *pages = pages.saturating_sub(pages_in_table(range, index) as u32);
                self.tables -= u64::from(*pages == 0);
            }
        }
        self.total = self.total.saturating_sub(range.pages);
    }

    /// Returns the NLA ranges of the user's tables in ascending order.
    pub fn windows(&self) -> impl Iterator<Item = NlaRange> + '_ {
        let all = self.pages.iter().enumerate();
        all.filter(|(_, pages)| **pages != 0)
            .map(|(index, _)| NlaRange {
                first: index as u64 * SPAN,
                pages: SPAN,
            })
    }

    /// Returns the number of tables that contain pages of the user.
    pub const fn tables(&self) -> u64 {
        self.tables
    }

    /// Returns the number of the user's pages.
    pub const fn pages(&self) -> u64 {
        self.total
    }
}
