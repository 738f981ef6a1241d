// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Memory that can be registered.

use crate::error::{Error, Result};
use crate::raw::{Mapping, PAGE};

/// Zeroed pages of this process, not inherited by children.
///
/// Registration covers whole pages, so a buffer always has its pages to itself.
#[derive(Debug)]
pub struct Buffer {
    map: Mapping,
    len: usize,
}

impl Buffer {
    /// `len` bytes.
    pub fn new(len: usize) -> Result<Self> {
        Self::with(len, None, PAGE)
    }

    /// `len` bytes in huge pages of 2 MiB, of which the system must have some reserved (`vm.nr_hugepages`): one
    /// translation entry each.
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

    /// Bytes asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a buffer of 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pages.
    pub fn mapping(&self) -> &Mapping {
        &self.map
    }

    /// Copies `to.len()` bytes from `offset`.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        crate::error::check_range(offset, to.len() as u64, self.len as u64)?;
        self.map.read(offset, to)
    }

    /// Copies `from` to `offset`.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        crate::error::check_range(offset, from.len() as u64, self.len as u64)?;
        self.map.write(offset, from)
    }
}
