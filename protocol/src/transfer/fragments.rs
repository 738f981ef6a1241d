// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Fragment lists in a reserved pool, and where a transfer is in them.

use crate::Memory;

/// No cell.
const NONE: u32 = u32::MAX;

/// Contiguous memory: bus addresses or NLAs, as the transfer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Of the first byte.
    pub address: u64,
    /// Bytes, at least one.
    pub len: u64,
}

impl Fragment {
    /// Whether it has bytes, none of them above the highest address.
    fn is_valid(&self) -> bool {
        self.len != 0 && self.address.checked_add(self.len - 1).is_some()
    }

    fn joins(&self, next: &Self) -> bool {
        self.address.checked_add(self.len) == Some(next.address)
    }
}

/// Length of a list, if it is valid: the number of its fragments, those that continue the one
/// before not counted, and of its bytes.
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

/// What is left of a list: cells of the pool, of the first of which some bytes may be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    first: u32,
    done: u64,
}

impl Rest {
    pub(super) const NOTHING: Self = Self {
        first: NONE,
        done: 0,
    };
}

/// Cells of all lists.
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

    /// Fragments that still fit.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    fn cell(&mut self, index: u32) -> Option<&mut Cell> {
        self.cells.get_mut(index as usize)
    }

    /// Stores a list that was measured; there is room. Fragments that continue each other become
    /// one.
    pub(super) fn store(&mut self, list: impl Iterator<Item = Fragment>) -> Rest {
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
        Rest { first, done: 0 }
    }

    /// What comes next, up to the end of a fragment.
    pub(super) fn next(&self, rest: &Rest) -> Option<Fragment> {
        let cell = self.cells.get(rest.first as usize)?;
        Some(Fragment {
            address: cell.fragment.address + rest.done,
            len: cell.fragment.len - rest.done,
        })
    }

    /// The next `len` bytes, which are of one fragment, are done with.
    pub(super) fn advance(&mut self, rest: &mut Rest, len: u64) {
        rest.done += len;
        let Some(cell) = self.cells.get(rest.first as usize) else {
            return;
        };
        if rest.done >= cell.fragment.len {
            let next = cell.next;
            self.free_one(rest.first);
            *rest = Rest {
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

    /// Gives all that is left back.
    pub(super) fn free(&mut self, rest: &mut Rest) {
        let mut index = core::mem::replace(rest, Rest::NOTHING).first;
        while let Some(cell) = self.cells.get(index as usize) {
            let next = cell.next;
            self.free_one(index);
            index = next;
        }
    }
}
