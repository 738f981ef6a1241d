// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Arena: a fixed number of objects, each of which can be on several linked lists. All operations
//! take constant time. All memory is allocated when the arena is created.

use crate::Memory;

/// Index that means no cell.
const NONE: u32 = u32::MAX;
/// Maximum number of cells.
const MAX: usize = 1 << 20;

/// Index of an object in its arena, valid while the object exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Index(u32);

impl Index {
    /// Returns the index as a number, which is less than the capacity of the arena.
    #[inline]
    pub const fn index(self) -> u32 {
        self.0
    }

    /// Returns the `Index` of this number.
    #[inline]
    pub const fn from_index(index: u32) -> Self {
        Self(index)
    }
}

/// Unique name of an object. A later object at the same index has a different name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    at: u32,
    generation: u32,
}

impl Name {
    /// Returns the name as a unique number; the lower half is the index.
    #[inline]
    pub const fn number(self) -> u64 {
        ((self.generation as u64) << 32) | self.at as u64
    }
}

#[derive(Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
}

const ALONE: Link = Link {
    before: NONE,
    after: NONE,
};

/// Storage of one object.
pub struct Cell<T, const LISTS: usize> {
    value: Option<T>,
    generation: u32,
    links: [Link; LISTS],
    /// Index of the next free cell.
    free: u32,
}

/// Ends of a doubly linked list of objects in an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct List {
    first: u32,
    last: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self::NEW
    }
}

impl List {
    /// An empty list.
    pub const NEW: Self = Self {
        first: NONE,
        last: NONE,
        len: 0,
    };

    /// Returns the first object.
    #[inline]
    pub fn first(&self) -> Option<Index> {
        (self.first != NONE).then_some(Index(self.first))
    }

    /// Returns the number of objects on the list.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if the list is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

/// Fixed number of objects. Each object may be on one list of each of `LISTS` kinds. The arena does
/// not store which list contains an object; the caller must know it.
pub struct Arena<M: Memory, T, const LISTS: usize> {
    cells: M::Array<Cell<T, LISTS>>,
    free: u32,
    used: usize,
}

impl<M: Memory, T, const LISTS: usize> Arena<M, T, LISTS> {
    /// Creates an arena for `capacity` objects (1…1,048,576). May sleep if the allocation of memory
    /// does.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(capacity: usize) -> Result<Self, M::Error> {
        let capacity = capacity.clamp(1, MAX);
        let cells = M::array(capacity, |i| Cell {
            value: None,
            generation: 0,
            links: [ALONE; LISTS],
            free: if i + 1 < capacity { i as u32 + 1 } else { NONE },
        })?;
        Ok(Self {
            cells,
            free: 0,
            used: 0,
        })
    }

    /// Returns the number of objects.
    #[inline]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Returns true if the arena has no objects.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the maximum number of objects.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Returns the number of objects that can be added.
    #[inline]
    pub fn room(&self) -> usize {
        self.cells.len() - self.used
    }

    #[inline]
    fn cell(&mut self, index: u32) -> Option<&mut Cell<T, LISTS>> {
        self.cells.get_mut(index as usize)
    }

    /// Adds an object, which is on no list. Returns its index and its name.
    ///
    /// # Errors
    ///
    /// Returns the object if the arena is full.
    pub fn insert(&mut self, value: T) -> Result<(Index, Name), T> {
        let index = self.free;
        let Some(cell) = self.cell(index) else {
            return Err(value);
        };
        let next = cell.free;
        cell.value = Some(value);
        cell.links = [ALONE; LISTS];
        let name = Name {
            at: index,
            generation: cell.generation,
        };
        self.free = next;
        self.used += 1;
        Ok((Index(index), name))
    }

    /// Removes an object, which must not be on a list.
    pub fn remove(&mut self, at: Index) -> Option<T> {
        let free = self.free;
        let cell = self.cell(at.0)?;
        let value = cell.value.take()?;
        cell.generation = cell.generation.wrapping_add(1);
        cell.free = free;
        self.free = at.0;
        self.used -= 1;
        Some(value)
    }

    /// Returns the object at an index.
    #[inline]
    pub fn get(&self, at: Index) -> Option<&T> {
        self.cells.get(at.0 as usize)?.value.as_ref()
    }

    /// Returns the object at an index.
    #[inline]
    pub fn get_mut(&mut self, at: Index) -> Option<&mut T> {
        self.cell(at.0)?.value.as_mut()
    }

    /// Returns the name of the object at an index.
    pub fn name(&self, at: Index) -> Option<Name> {
        let cell = self.cells.get(at.0 as usize)?;
        cell.value.as_ref()?;
        Some(Name {
            at: at.0,
            generation: cell.generation,
        })
    }

    /// Returns the index of the object with this name, if the object still exists.
    pub fn find(&self, name: Name) -> Option<Index> {
        (self.name(Index(name.at)) == Some(name)).then_some(Index(name.at))
    }

    #[inline]
    fn link<const KIND: usize>(&mut self, index: u32) -> Option<&mut Link> {
        self.cell(index)?.links.get_mut(KIND)
    }

    /// Appends an object to a list. It must not be on another list of this kind.
    pub fn push<const KIND: usize>(&mut self, list: &mut List, at: Index) {
        let last = list.last;
        let Some(link) = self.link::<KIND>(at.0) else {
            return;
        };
        *link = Link {
            before: last,
            after: NONE,
        };
        match self.link::<KIND>(last) {
            Some(link) => link.after = at.0,
            None => list.first = at.0,
        }
        list.last = at.0;
        list.len += 1;
    }

    /// Removes an object from its list.
    pub fn unlink<const KIND: usize>(&mut self, list: &mut List, at: Index) {
        let Some(link) = self.link::<KIND>(at.0) else {
            return;
        };
        let Link { before, after } = core::mem::replace(link, ALONE);
        match self.link::<KIND>(before) {
            Some(link) => link.after = after,
            None => list.first = after,
        }
        match self.link::<KIND>(after) {
            Some(link) => link.before = before,
            None => list.last = before,
        }
        list.len = list.len.saturating_sub(1);
    }

    /// Removes the first object from a list.
    pub fn pop<const KIND: usize>(&mut self, list: &mut List) -> Option<Index> {
        let first = list.first()?;
        self.unlink::<KIND>(list, first);
        Some(first)
    }

    /// Appends all objects of `from` to `to`, in constant time.
    pub fn append<const KIND: usize>(&mut self, to: &mut List, from: &mut List) {
        let moved = core::mem::take(from);
        if moved.is_empty() {
            return;
        }
        if let Some(link) = self.link::<KIND>(moved.first) {
            link.before = to.last;
        }
        match self.link::<KIND>(to.last) {
            Some(link) => link.after = moved.first,
            None => to.first = moved.first,
        }
        to.last = moved.last;
        to.len += moved.len;
    }

    /// Returns the next object on the list of this kind.
    #[inline]
    pub fn after<const KIND: usize>(&self, at: Index) -> Option<Index> {
        let link = self.cells.get(at.0 as usize)?.links.get(KIND)?;
        (link.after != NONE).then_some(Index(link.after))
    }
}

/// Hash table of 64-bit hashes, whose buckets are lists of objects in an arena.
pub struct Buckets<M: Memory> {
    heads: M::Array<List>,
}

impl<M: Memory> Buckets<M> {
    /// Creates a table for about `objects` objects. May sleep if the allocation of memory does.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(objects: usize) -> Result<Self, M::Error> {
        let len = objects.clamp(1, MAX).next_power_of_two();
        Ok(Self {
            heads: M::array(len, |_| List::NEW)?,
        })
    }

    /// Returns the list that contains all objects of this hash. The list may contain objects of
    /// other hashes too.
    #[inline]
    pub fn of(&mut self, hash: u64) -> Option<&mut List> {
        // Fibonacci hashing; the number of lists is a power of two.
        let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let index = mixed as usize & (self.heads.len() - 1);
        self.heads.get_mut(index)
    }

    /// Returns the first object of the list for this hash.
    #[inline]
    pub fn first(&mut self, hash: u64) -> Option<Index> {
        self.of(hash)?.first()
    }
}
