// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What users of the cache give and get.

#[cfg(doc)]
use super::{Cache, Range};

/// Class of what nobody may find yet.
pub(super) const PENDING: u8 = 3;

/// What a device may do with memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// It may read it.
    READ,
    /// It may write it.
    WRITE,
    /// Both.
    BOTH,
}

impl Access {
    /// Its class in the index.
    pub(super) const fn class(self) -> u8 {
        self as u8
    }

    /// The classes that will do, a bit each.
    pub(super) const fn classes(self) -> u8 {
        (1 << self.class()) | (1 << Self::BOTH.class())
    }

    /// Whether this is enough for who wants `other`.
    #[must_use]
    pub const fn includes(self, other: Self) -> bool {
        other.classes() & (1 << self.class()) != 0
    }
}

/// Bounds of a cache besides the number of its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of all entries together.
    pub bytes: u64,
    /// Bytes of the entries of one space.
    pub space_bytes: u64,
    /// Entries of one space.
    pub space_entries: usize,
}

/// A use of an entry, to be ended by [`Cache::release`].
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub struct Hold {
    pub(super) entry: u16,
    pub(super) generation: u32,
}

/// A place for memory that is being registered: for [`Cache::complete`] or [`Cache::abandon`].
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub struct Pending(pub(super) Hold);

/// Why memory can't be registered in the cache. What there is is in use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// All entries.
    Entries,
    /// Too many bytes.
    Bytes,
    /// Too many entries of the space.
    SpaceEntries,
    /// Too many bytes of the space.
    SpaceBytes,
}

/// What [`Cache::prepare`] has found.
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub enum Prepared<V> {
    /// A place.
    Ready(Pending),
    /// A registration to be revoked first; then ask again.
    Evict(V),
    /// There is no place, nor will there be one before somebody ends a use.
    Refused(Refused),
}

/// What [`Cache::invalidate`] has found.
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub enum Invalid<'a, V> {
    /// Nobody uses it: to be revoked.
    Idle(V),
    /// It is in use: given back with the last [`Cache::release`], be it revoked before that or not.
    Busy(&'a V),
    /// It is being registered, which will be refused.
    Pending,
}

impl<V> Invalid<'_, V> {
    /// What is to be revoked by whoever has found it.
    pub fn into_idle(self) -> Option<V> {
        match self {
            Self::Idle(value) => Some(value),
            Self::Busy(_) | Self::Pending => None,
        }
    }
}
