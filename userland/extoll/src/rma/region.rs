// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Registered memory.

use super::{Nla, Shared};
use crate::backend::RegionArg;
use crate::error::{check_range, Error, Result};
use crate::raw::register;
use crate::Buffer;
use std::sync::Arc;

/// A buffer that the NIC may access: peers that know its NLA read and write it while the program runs.
///
/// It keeps its port open. Dropping it ends the registration; if the driver refuses that, the memory is leaked rather than
/// freed under the NIC's hands.
pub struct Region {
    buffer: Option<Buffer>,
    arg: RegionArg,
    port: Arc<Shared>,
}

impl Region {
    pub(super) fn new(port: Arc<Shared>, buffer: Buffer) -> Result<Self> {
        let address = buffer.mapping().address(0) as u64;
        // SAFETY: the buffer is owned by the region from here on and given back only after it was unregistered; it has its
        // pages to itself and no reference to its bytes exists (Buffer lends none).
        let arg = unsafe { register(&*port.backend, address, buffer.mapping().len() as u64)? };
        Ok(Self {
            buffer: Some(buffer),
            arg,
            port,
        })
    }

    /// There until end(), which consumes the region.
    fn buffer(&self) -> Result<&Buffer> {
        self.buffer.as_ref().ok_or(Error::Gone)
    }

    /// Bytes of the buffer.
    pub fn len(&self) -> u64 {
        self.buffer.as_ref().map_or(0, Buffer::len) as u64
    }

    /// True for a buffer of 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// NLA of the first byte: what a peer needs to know.
    pub fn nla(&self) -> Nla {
        Nla(self.arg.nla())
    }

    /// NLA of a byte of the buffer, or of its end.
    pub fn nla_at(&self, offset: u64) -> Result<Nla> {
        check_range(offset, 0, self.len())?;
        Ok(Nla(self.arg.nla().wrapping_add(offset)))
    }

    /// Copies out of the buffer. Bytes that arrive meanwhile may be old or new.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.buffer()?.read(offset, to)
    }

    /// Copies into the buffer.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.buffer()?.write(offset, from)
    }

    /// Reads an aligned quadword in one go: for programs that watch memory instead of notifications. What arrived before it on
    /// the same connection is visible afterwards.
    pub fn load(&self, offset: u64) -> Result<u64> {
        let at = self.quadword(offset)?;
        Ok(self.buffer()?.mapping().load(at))
    }

    /// Writes an aligned quadword in one go.
    pub fn store(&self, offset: u64, value: u64) -> Result<()> {
        let at = self.quadword(offset)?;
        self.buffer()?.mapping().store(at, value);
        Ok(())
    }

    fn quadword(&self, offset: u64) -> Result<usize> {
        check_range(offset, 8, self.len())?;
        if offset % 8 != 0 {
            return Err(Error::Range {
                offset,
                len: 8,
                size: self.len(),
            });
        }
        Ok(offset as usize)
    }

    /// Ends the registration and gives the buffer back; after an error the memory is leaked, as the NIC may still use it.
    pub fn unregister(mut self) -> Result<Buffer> {
        self.end()
    }

    fn end(&mut self) -> Result<Buffer> {
        let buffer = self.buffer.take().ok_or(Error::Gone)?;
        let mut arg = self.arg;
        match self.port.backend.unregister(&mut arg) {
            Ok(()) => Ok(buffer),
            // The driver took everything from a NIC that it gave up.
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(buffer),
            Err(e) => {
                std::mem::forget(buffer);
                Err(Error::os("cannot unregister", e))
            }
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.buffer.is_some() {
            // A refusal leaks the memory; there is nobody left to tell.
            let _ = self.end();
        }
    }
}
