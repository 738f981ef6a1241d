// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Loads and stores to the memory of other nodes through the SMFU (HW §12).

use crate::backend::{get, smfu as nr, Backend, Device};
use crate::error::{check_range, Error, Result};
use crate::raw::{flush, Mapping, PAGE};
use std::io;
use std::sync::Arc;
use wire::ids::NodeId;

/// SMFU of a NIC, opened by this process.
pub struct Smfu {
    backend: Arc<dyn Backend>,
    node: NodeId,
    exported: u64,
}

impl Smfu {
    /// Opens the SMFU of a NIC.
    pub fn open(device: &Device) -> Result<Self> {
        Self::with_backend(Arc::new(device.open("smfu2")?))
    }

    /// Creates the object for an open device node.
    pub fn with_backend(backend: Arc<dyn Backend>) -> Result<Self> {
        let node = NodeId(get(&*backend, nr::GET_NODE_ID, "node ID")? as u16);
        let exported = get(&*backend, nr::GET_LOCAL_SIZE, "size of the exported memory")?;
        Ok(Self {
            backend,
            node,
            exported,
        })
    }

    /// Returns the ID of this node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the size in bytes of the local memory that other nodes can access.
    pub fn exported(&self) -> u64 {
        self.exported
    }

    /// Maps the first `len` bytes of the window to the memory of other nodes. The window may be
    /// write-combining, see [`Window::flush`].
    pub fn window(&self, len: usize) -> Result<Window> {
        self.map(0, len, "the window").map_err(|e| match e {
            Error::Os { reason, .. } if is_too_long(&reason, len) => Error::Window(len as u64),
            other => other,
        })
    }

    /// Maps the first `len` bytes of the local memory that other nodes can access.
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

/// Half of a 48-bit address space in bytes, which exceeds the memory that a process can map.
const ADDRESS_SPACE: usize = 1 << 47;

/// Returns whether a mapping failed because of its length. Only the driver knows the length of the
/// window.
fn is_too_long(reason: &io::Error, len: usize) -> bool {
    match reason.raw_os_error() {
        Some(libc::EFAULT | libc::EOVERFLOW) => true,
        // The kernel returns these errors before it calls the driver.
        Some(libc::ENOMEM) | None => len >= ADDRESS_SPACE,
        _ => false,
    }
}

/// Memory that is accessed through the SMFU. The type is `Send` and `Sync`. Reads from a node that
/// does not answer return all ones.
pub struct Window {
    map: Mapping,
    _backend: Arc<dyn Backend>,
}

impl Window {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns false, because a window of length 0 does not exist.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the address of the first byte, for language bindings.
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

    /// Writes an aligned quadword with one store. The CPU may delay the store until
    /// [`Window::flush`].
    pub fn store(&self, offset: u64, value: u64) -> Result<()> {
        self.map.store(self.quadword(offset)?, value);
        Ok(())
    }

    /// Copies `to.len()` bytes of the window, from byte `offset` on, to `to`.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.map.read(offset, to)
    }

    /// Copies `from` to byte `offset` of the window. The CPU may delay the stores, see
    /// [`Window::store`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.map.write(offset, from)
    }

    /// Sends the stores that are still in the CPU's write-combining buffers.
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
        // A mapping of this length must fail before the system call.
        let file = tempfile::tempfile().unwrap();
        let e = Mapping::of(&file, 0, usize::MAX).unwrap_err();
        assert!(is_too_long(&e, usize::MAX), "{e}");
    }
}
