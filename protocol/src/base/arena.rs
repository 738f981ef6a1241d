// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Objects of a bounded number, each of which is on lists: everything takes the same time however
//! many there are. All memory is obtained when the arena is made.

use crate::Memory;

/// No cell.
const NONE: u32 = u32::MAX;
/// Most cells.
const MAX: usize = 1 << 20;

/// Place of an object, as long as it is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct At(u32);

impl At {
    /// As an index, below the capacity of the arena.
    #[inline]
    pub const fn index(self) -> u32 {
        self.0
    }

    /// The place with this index.
    #[inline]
    pub const fn from_index(index: u32) -> Self {
        Self(index)
    }
}

/// Names an object for ever: a later one in the same place has another name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    at: u32,
    generation: u32,
}

impl Name {
    /// As a number, which no other name has; the place is its lower half.
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

/// One cell.
pub struct Cell<T, const LISTS: usize> {
    value: Option<T>,
    generation: u32,
    links: [Link; LISTS],
    /// Next cell without an object.
    free: u32,
}

/// Objects of an arena in an order, the first and the last of them.
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

    /// The first object.
    #[inline]
    pub fn first(&self) -> Option<At> {
        (self.first != NONE).then_some(At(self.first))
    }

    /// Objects on it.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing is on it.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

/// See the module's documentation. Each object may be on one list of each of `LISTS` kinds; of
/// which list of a kind is the user's business.
pub struct Arena<M: Memory, T, const LISTS: usize> {
    cells: M::Array<Cell<T, LISTS>>,
    free: u32,
    used: usize,
}

impl<M: Memory, T, const LISTS: usize> Arena<M, T, LISTS> {
    /// For `capacity` objects, at least one and at most 1,048,576. May sleep where getting memory
    /// does.
    ///
    /// # Errors
    ///
    /// There is no memory.
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

    /// Objects in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Objects that fit.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Objects that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.cells.len() - self.used
    }

    #[inline]
    fn cell(&mut self, index: u32) -> Option<&mut Cell<T, LISTS>> {
        self.cells.get_mut(index as usize)
    }

    /// Adds an object, which is on no list; gives its place and its name.
    ///
    /// # Errors
    ///
    /// The object, if there is no room.
    pub fn insert(&mut self, value: T) -> Result<(At, Name), T> {
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
        Ok((At(index), name))
    }

    /// Takes an object out, which must be on no list any more.
    pub fn remove(&mut self, at: At) -> Option<T> {
        let free = self.free;
        let cell = self.cell(at.0)?;
        let value = cell.value.take()?;
        cell.generation = cell.generation.wrapping_add(1);
        cell.free = free;
        self.free = at.0;
        self.used -= 1;
        Some(value)
    }

    /// The object at a place.
    #[inline]
    pub fn get(&self, at: At) -> Option<&T> {
        self.cells.get(at.0 as usize)?.value.as_ref()
    }

    /// The object at a place.
    #[inline]
    pub fn get_mut(&mut self, at: At) -> Option<&mut T> {
        self.cell(at.0)?.value.as_mut()
    }

    /// The name of the object at a place.
    pub fn name(&self, at: At) -> Option<Name> {
        let cell = self.cells.get(at.0 as usize)?;
        cell.value.as_ref()?;
        Some(Name {
            at: at.0,
            generation: cell.generation,
        })
    }

    /// Where the object of this name is, if it is still there.
    pub fn find(&self, name: Name) -> Option<At> {
        (self.name(At(name.at)) == Some(name)).then_some(At(name.at))
    }

    #[inline]
    fn link<const KIND: usize>(&mut self, index: u32) -> Option<&mut Link> {
        self.cell(index)?.links.get_mut(KIND)
    }

    /// Puts an object, which is on no list of this kind, at the end of one.
    pub fn push<const KIND: usize>(&mut self, list: &mut List, at: At) {
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

    /// Takes an object from the list that it is on.
    pub fn unlink<const KIND: usize>(&mut self, list: &mut List, at: At) {
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

    /// Takes the first object from a list.
    pub fn pop<const KIND: usize>(&mut self, list: &mut List) -> Option<At> {
        let first = list.first()?;
        self.unlink::<KIND>(list, first);
        Some(first)
    }

    /// Puts all of `from` at the end of `to`, in one step.
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

    /// The object behind one on the same list of this kind.
    #[inline]
    pub fn after<const KIND: usize>(&self, at: At) -> Option<At> {
        let link = self.cells.get(at.0 as usize)?.links.get(KIND)?;
        (link.after != NONE).then_some(At(link.after))
    }
}

/// Lists by a hash of 64 bits, to find objects of an arena.
pub struct Buckets<M: Memory> {
    heads: M::Array<List>,
}

impl<M: Memory> Buckets<M> {
    /// For about `objects` objects. May sleep where getting memory does.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(objects: usize) -> Result<Self, M::Error> {
        let len = objects.clamp(1, MAX).next_power_of_two();
        Ok(Self {
            heads: M::array(len, |_| List::NEW)?,
        })
    }

    /// The list of what has this hash, and of others.
    #[inline]
    pub fn of(&mut self, hash: u64) -> Option<&mut List> {
        // Fibonacci hashing; the number of lists is a power of two.
        let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let index = mixed as usize & (self.heads.len() - 1);
        self.heads.get_mut(index)
    }

    /// The first object of that list.
    #[inline]
    pub fn first(&mut self, hash: u64) -> Option<At> {
        self.of(hash)?.first()
    }
}
