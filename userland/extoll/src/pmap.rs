// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Physically contiguous buffers (`pmap`) for privileged programs that pass bus addresses to the
//! NIC.

use crate::backend::{get, pmap as nr, set, Backend, Device};
use crate::error::{Error, Result};
use crate::raw::{Mapping, PAGE};
use std::sync::Arc;
use wire::ids::BusAddr;

/// Zeroed coherent memory that is contiguous on the bus. The driver frees the memory when the
/// device node is closed after the mapping was removed.
pub struct ContiguousBuffer {
    map: Mapping,
    bus: BusAddr,
    _backend: Arc<dyn Backend>,
}

impl ContiguousBuffer {
    /// Allocates `len` bytes, rounded up to whole pages.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        Self::with_backend(Arc::new(device.open("pmap")?), len)
    }

    /// Allocates `len` bytes through an open device node, which must not have a buffer yet.
    pub fn with_backend(backend: Arc<dyn Backend>, len: usize) -> Result<Self> {
        let too_long = Error::Range {
            offset: 0,
            len: len as u64,
            size: usize::MAX as u64,
        };
        let bytes = len.max(1).checked_next_multiple_of(PAGE).ok_or(too_long)?;
        set(&*backend, nr::SET_TYPE, 0, "buffer type")?;
        set(&*backend, nr::SET_SIZE, bytes as u64, "buffer size")?;
        let map = backend
            .map(0, bytes)
            .map_err(|e| Error::os(format!("cannot allocate {bytes} contiguous bytes"), e))?;
        let bus = BusAddr(get(&*backend, nr::GET_PADDR, "bus address")?);
        Ok(Self {
            map,
            bus,
            _backend: backend,
        })
    }

    /// Returns the bus address of the memory, which is passed to the NIC.
    pub fn bus(&self) -> BusAddr {
        self.bus
    }

    /// Returns the mapping of the memory.
    pub fn mapping(&self) -> &Mapping {
        &self.map
    }
}
