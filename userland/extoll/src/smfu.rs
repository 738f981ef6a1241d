// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! SMFU: loads and stores to the memory of other nodes (HW §12).

use crate::backend::{get, smfu as nr, Backend, Device};
use crate::error::{check_range, Error, Result};
use crate::raw::{flush, Mapping, PAGE};
use std::io;
use std::sync::Arc;
use wire::ids::NodeId;

/// The SMFU of a NIC.
pub struct Smfu {
    backend: Arc<dyn Backend>,
    node: NodeId,
    exported: u64,
}

impl Smfu {
    /// Opens the unit.
    pub fn open(device: &Device) -> Result<Self> {
        Self::with_backend(Arc::new(device.open("smfu2")?))
    }

    /// The unit behind an open device node.
    pub fn with_backend(backend: Arc<dyn Backend>) -> Result<Self> {
        let node = NodeId(get(&*backend, nr::GET_NODE_ID, "node ID")? as u16);
        let exported = get(&*backend, nr::GET_LOCAL_SIZE, "size of the exported memory")?;
        Ok(Self {
            backend,
            node,
            exported,
        })
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Bytes of local memory that other nodes can reach.
    pub fn exported(&self) -> u64 {
        self.exported
    }

    /// Maps the first `len` bytes of the window to other nodes' memory; perhaps write-combining: see [`Window::flush`].
    pub fn window(&self, len: usize) -> Result<Window> {
        self.map(0, len, "the window").map_err(|e| match e {
            Error::Os { reason, .. } if is_too_long(&reason, len) => Error::Window(len as u64),
            other => other,
        })
    }

    /// Maps the first `len` bytes of the local memory that other nodes can reach.
    pub fn local(&self, len: usize) -> Result<Window> {
        check_range(0, len as u64, self.exported)?;
        self.map(PAGE as u64, len, "the exported memory")
    }

    fn map(&self, offset: u64, len: usize, what: &str) -> Result<Window> {
        self.backend
            .map(offset, len)
            .map(|map| Window {
                map,
                _backend: self.backend.clone(),
            })
            .map_err(|e| Error::os(format!("cannot map {len} bytes of {what}"), e))
    }
}

/// Bytes that no process has room for: half of an address space of 48 bits.
const ADDRESS_SPACE: usize = 1 << 47;

/// Whether a mapping was refused because of its length. Only the driver knows how long the window is.
fn is_too_long(reason: &io::Error, len: usize) -> bool {
    match reason.raw_os_error() {
        Some(libc::EFAULT | libc::EOVERFLOW) => true,
        // What the driver is not asked about.
        Some(libc::ENOMEM) | None => len >= ADDRESS_SPACE,
        _ => false,
    }
}

/// Memory reached through the SMFU. `Send` and `Sync`. Reads of a node that does not answer give all ones.
pub struct Window {
    map: Mapping,
    _backend: Arc<dyn Backend>,
}

impl Window {
    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// True for a window without bytes (there is none).
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Address of the first byte, for language bindings.
    pub fn address(&self) -> *mut u8 {
        self.map.address(0)
    }

    fn quadword(&self, offset: u64) -> Result<usize> {
        check_range(offset, 8, self.map.len() as u64)?;
        if offset % 8 != 0 {
            return Err(Error::Range {
                offset,
                len: 8,
                size: self.map.len() as u64,
            });
        }
        Ok(offset as usize)
    }

    /// Reads an aligned quadword with one load.
    pub fn load(&self, offset: u64) -> Result<u64> {
        Ok(self.map.load(self.quadword(offset)?))
    }

    /// Writes an aligned quadword with one store; it may stay in the processor until [`Window::flush`].
    pub fn store(&self, offset: u64, value: u64) -> Result<()> {
        self.map.store(self.quadword(offset)?, value);
        Ok(())
    }

    /// Copies out of the window.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.map.read(offset, to)
    }

    /// Copies into the window; see [`Window::store`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.map.write(offset, from)
    }

    /// Sends what the processor still combines.
    pub fn flush(&self) {
        flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_is_too_long_is_no_other_failure() {
        let refused = |code, len| is_too_long(&io::Error::from_raw_os_error(code), len);
        assert!(refused(libc::EFAULT, 4096));
        assert!(refused(libc::ENOMEM, usize::MAX / 2) && !refused(libc::ENOMEM, 4096));
        assert!(!refused(libc::EPERM, usize::MAX));
        // The length does not even reach the system.
        let file = tempfile::tempfile().unwrap();
        let e = Mapping::of(&file, 0, usize::MAX).unwrap_err();
        assert!(is_too_long(&e, usize::MAX), "{e}");
    }
}
