// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Pool of fragment lists, and the read position of a transfer in its lists.

use crate::Memory;

/// Index that marks the end of a list.
const NONE: u32 = u32::MAX;

/// Contiguous memory of bus addresses or NLAs, depending on the transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes, at least 1.
    pub len: u64,
}

impl Fragment {
    /// Returns true if the fragment has bytes and does not exceed the address space.
    fn is_valid(&self) -> bool {
        self.len != 0 && self.address.checked_add(self.len - 1).is_some()
    }

    fn joins(&self, next: &Self) -> bool {
        self.address.checked_add(self.len) == Some(next.address)
    }
}

/// Returns the number of fragments and of bytes in a list; `None` if it is invalid or empty.
/// Adjacent fragments count as one.
pub(super) fn measure(list: impl Iterator<Item = Fragment>) -> Option<(usize, u64)> {
    let (mut number, mut bytes) = (0usize, 0u64);
    let mut last: Option<Fragment> = None;
    for fragment in list {
        if !fragment.is_valid() {
            return None;
        }
        number += usize::from(!last.is_some_and(|l| l.joins(&fragment)));
        bytes = bytes.checked_add(fragment.len)?;
        last = Some(fragment);
    }
    (bytes != 0).then_some((number, bytes))
}

#[derive(Clone, Copy)]
struct Cell {
    fragment: Fragment,
    next: u32,
}

/// Remainder of a list, given by its first cell and the number of processed bytes in this cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    first: u32,
    done: u64,
}

impl Cursor {
    pub(super) const NOTHING: Self = Self {
        first: NONE,
        done: 0,
    };
}

/// Cells of all fragment lists.
pub(super) struct Pool<M: Memory> {
    cells: M::Array<Cell>,
    free: u32,
    room: usize,
}

impl<M: Memory> Pool<M> {
    pub(super) fn new(capacity: usize) -> Result<Self, M::Error> {
        let cells = M::array(capacity, |i| Cell {
            fragment: Fragment { address: 0, len: 0 },
            next: if i + 1 < capacity { i as u32 + 1 } else { NONE },
        })?;
        Ok(Self {
            free: if capacity > 0 { 0 } else { NONE },
            room: capacity,
            cells,
        })
    }

    /// Returns the total number of cells.
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Returns the number of free cells.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    fn cell(&mut self, index: u32) -> Option<&mut Cell> {
        self.cells.get_mut(index as usize)
    }

    /// Stores a list that was measured. The caller has checked that the pool has enough free cells.
    /// Adjacent fragments are merged.
    pub(super) fn store(&mut self, list: impl Iterator<Item = Fragment>) -> Cursor {
        let (mut first, mut last) = (NONE, NONE);
        for fragment in list {
            if let Some(cell) = self.cell(last) {
                if cell.fragment.joins(&fragment) {
                    cell.fragment.len += fragment.len;
                    continue;
                }
            }
            let index = self.free;
            let Some(cell) = self.cell(index) else {
                break;
            };
            let free = core::mem::replace(&mut cell.next, NONE);
            cell.fragment = fragment;
            self.free = free;
            self.room -= 1;
            match self.cell(last) {
                Some(cell) => cell.next = index,
                None => first = index,
            }
            last = index;
        }
        Cursor { first, done: 0 }
    }

    /// Returns the remainder of the current fragment.
    pub(super) fn next(&self, cursor: &Cursor) -> Option<Fragment> {
        let cell = self.cells.get(cursor.first as usize)?;
        Some(Fragment {
            address: cell.fragment.address + cursor.done,
            len: cell.fragment.len - cursor.done,
        })
    }

    /// Removes the next `len` bytes, which belong to one fragment.
    pub(super) fn advance(&mut self, cursor: &mut Cursor, len: u64) {
        cursor.done += len;
        let Some(cell) = self.cells.get(cursor.first as usize) else {
            return;
        };
        if cursor.done >= cell.fragment.len {
            let next = cell.next;
            self.free_one(cursor.first);
            *cursor = Cursor {
                first: next,
                done: 0,
            };
        }
    }

    fn free_one(&mut self, index: u32) {
        let free = self.free;
        if let Some(cell) = self.cell(index) {
            cell.next = free;
            self.free = index;
            self.room += 1;
        }
    }

    /// Frees all remaining cells of a list.
    pub(super) fn free(&mut self, cursor: &mut Cursor) {
        let mut index = core::mem::replace(cursor, Cursor::NOTHING).first;
        while let Some(cell) = self.cells.get(index as usize) {
            let next = cell.next;
            self.free_one(index);
            index = next;
        }
    }
}
