// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Registered memory.

use super::{Nla, Shared};
use crate::backend::RegionArg;
use crate::error::{check_range, Error, Result};
use crate::raw::register;
use crate::Buffer;
use std::sync::Arc;

/// Buffer that the NIC may access. Peers that know its NLA read and write it while the program
/// runs.
///
/// A region keeps its port open. Dropping the region ends the registration. If the driver fails to
/// end the registration, the memory is leaked, because the NIC may still access it.
pub struct Region {
    buffer: Option<Buffer>,
    arg: RegionArg,
    port: Arc<Shared>,
}

impl Region {
    pub(super) fn new(port: Arc<Shared>, buffer: Buffer) -> Result<Self> {
        let address = buffer.mapping().address(0) as u64;
        // SAFETY: the region owns the buffer, and returns it only after it was unregistered. The
        // buffer shares its pages with no other data, and no reference to its bytes exists, because
        // Buffer returns none.
        let arg = unsafe { register(&*port.backend, address, buffer.mapping().len() as u64)? };
        Ok(Self {
            buffer: Some(buffer),
            arg,
            port,
        })
    }

    /// Returns the buffer, which exists until end() is called.
    fn buffer(&self) -> Result<&Buffer> {
        self.buffer.as_ref().ok_or(Error::Gone)
    }

    /// Returns the size of the buffer in bytes.
    pub fn len(&self) -> u64 {
        self.buffer.as_ref().map_or(0, Buffer::len) as u64
    }

    /// Returns true for a buffer of 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the NLA of the first byte, which peers use in commands.
    pub fn nla(&self) -> Nla {
        Nla(self.arg.nla())
    }

    /// Returns the NLA of a byte of the buffer, or of its end.
    pub fn nla_at(&self, offset: u64) -> Result<Nla> {
        check_range(offset, 0, self.len())?;
        Ok(Nla(self.arg.nla().wrapping_add(offset)))
    }

    /// Copies bytes from the buffer. Bytes that arrive during the call may have their old or new
    /// values.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.buffer()?.read(offset, to)
    }

    /// Copies into the buffer.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.buffer()?.write(offset, from)
    }

    /// Reads an aligned quadword with one load, for programs that poll memory instead of
    /// notifications. Data that arrived before the quadword on the same connection is visible
    /// afterwards.
    pub fn load(&self, offset: u64) -> Result<u64> {
        let at = self.quadword(offset)?;
        Ok(self.buffer()?.mapping().load(at))
    }

    /// Writes an aligned quadword with one store.
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

    /// Ends the registration and returns the buffer. After an error, the memory is leaked, because
    /// the NIC may still access it.
    pub fn unregister(mut self) -> Result<Buffer> {
        self.end()
    }

    fn end(&mut self) -> Result<Buffer> {
        let buffer = self.buffer.take().ok_or(Error::Gone)?;
        let mut arg = self.arg;
        match self.port.backend.unregister(&mut arg) {
            Ok(()) => Ok(buffer),
            // The driver has ended all registrations of a removed NIC.
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
            // After an error, the memory is leaked. The error cannot be reported.
            let _ = self.end();
        }
    }
}
