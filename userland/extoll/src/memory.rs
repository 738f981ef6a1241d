// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Buffers that can be registered.

use crate::error::{Error, Result};
use crate::raw::{Mapping, PAGE};

/// Zeroed pages of this process, which child processes do not inherit.
///
/// Registration covers whole pages. The pages of a buffer contain no other data.
#[derive(Debug)]
pub struct Buffer {
    map: Mapping,
    len: usize,
}

impl Buffer {
    /// Allocates a buffer of `len` bytes.
    pub fn new(len: usize) -> Result<Self> {
        Self::with(len, None, PAGE)
    }

    /// Allocates `len` bytes in huge pages of 2 MiB. Each huge page needs one translation entry.
    /// The system must have reserved huge pages (`vm.nr_hugepages`).
    pub fn huge(len: usize) -> Result<Self> {
        Self::with(len, Some(21), 1 << 21)
    }

    fn with(len: usize, huge: Option<u8>, unit: usize) -> Result<Self> {
        let mapped = len.max(1).checked_next_multiple_of(unit);
        let mapped = mapped.ok_or(Error::Range {
            offset: 0,
            len: len as u64,
            size: usize::MAX as u64,
        })?;
        let map = Mapping::anonymous(mapped, huge)
            .map_err(|e| Error::os(format!("cannot allocate {mapped} bytes"), e))?;
        Ok(Self { map, len })
    }

    /// Returns the requested size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true for a buffer of 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the mapping of the buffer, which consists of whole pages.
    pub fn mapping(&self) -> &Mapping {
        &self.map
    }

    /// Copies `to.len()` bytes of the buffer, from byte `offset` on, to `to`.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        crate::error::check_range(offset, to.len() as u64, self.len as u64)?;
        self.map.read(offset, to)
    }

    /// Copies `from` to byte `offset` of the buffer.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        crate::error::check_range(offset, from.len() as u64, self.len as u64)?;
        self.map.write(offset, from)
    }
}
