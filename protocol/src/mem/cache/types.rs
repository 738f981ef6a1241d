// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Parameters and results of the cache.

#[cfg(doc)]
use super::{Cache, Range};

/// Class of pending entries, which searches do not find.
pub(super) const PENDING: u8 = 3;

/// Access of a device to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Read.
    READ,
    /// Write.
    WRITE,
    /// Read and write.
    BOTH,
}

impl Access {
    /// Returns the class in the index.
    pub(super) const fn class(self) -> u8 {
        self as u8
    }

    /// Returns the classes with sufficient access, as a bit set.
    pub(super) const fn classes(self) -> u8 {
        (1 << self.class()) | (1 << Self::BOTH.class())
    }

    /// Returns true if this access includes `other`.
    #[must_use]
    pub const fn includes(self, other: Self) -> bool {
        other.classes() & (1 << self.class()) != 0
    }
}

/// Limits of a cache in addition to its capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum size of all entries in bytes.
    pub bytes: u64,
    /// Maximum size of the entries of one space in bytes.
    pub space_bytes: u64,
    /// Maximum number of entries of one space.
    pub space_entries: usize,
}

/// Token for the use of an entry. [`Cache::release`] ends the use.
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub struct Hold {
    pub(super) entry: u16,
    pub(super) generation: u32,
}

/// Entry for memory that is being registered, for [`Cache::complete`] or [`Cache::abandon`].
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub struct Pending(pub(super) Hold);

/// Limit that prevents the registration of memory, because the entries in use exhaust the limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// Maximum number of entries.
    Entries,
    /// Maximum number of bytes.
    Bytes,
    /// Maximum number of entries of the space.
    SpaceEntries,
    /// Maximum number of bytes of the space.
    SpaceBytes,
}

/// Result of [`Cache::prepare`].
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub enum Prepared<V> {
    /// An entry is reserved for the new registration.
    Ready(Pending),
    /// A registration to be revoked before the call is repeated.
    Evict(V),
    /// No entry is available until a use ends.
    Refused(Refused),
}

/// Result of [`Cache::invalidate`].
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub enum Invalid<'a, V> {
    /// The registration is not in use, and must be revoked.
    Idle(V),
    /// The registration is in use. The last [`Cache::release`] returns it, even if the caller
    /// revokes it now.
    Busy(&'a V),
    /// The memory is still being registered. [`Cache::complete`] will refuse the registration.
    Pending,
}

impl<V> Invalid<'_, V> {
    /// Returns the registration if the caller must revoke it.
    pub fn into_idle(self) -> Option<V> {
        match self {
            Self::Idle(value) => Some(value),
            Self::Busy(_) | Self::Pending => None,
        }
    }
}
