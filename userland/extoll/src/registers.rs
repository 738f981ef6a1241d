// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Access to registers of all nodes (`extoll_rf_access`) for privileged programs.

use crate::backend::{get, rf as nr, Device};
use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wire::ids::{NodeId, RegOffset};

/// Path on which the driver accesses registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMethod {
    /// By RMA commands, which reach any node.
    Rma,
    /// Through the SMFU window.
    Smfu,
    /// To the local NIC. The driver ignores the given node.
    Local,
}

/// Access to registers of all nodes. The type is `Send` and `Sync`. Accesses are serialized.
pub struct RegisterFile {
    file: Mutex<File>,
}

fn method_of(value: u64) -> Result<AccessMethod> {
    match value {
        0 => Ok(AccessMethod::Rma),
        1 => Ok(AccessMethod::Smfu),
        2 => Ok(AccessMethod::Local),
        other => Err(Error::Driver(format!("register access method {other}"))),
    }
}

impl RegisterFile {
    /// Opens the device node of a NIC.
    pub fn open(device: &Device) -> Result<Self> {
        Ok(Self {
            file: Mutex::new(device.open("extoll_rf_access")?),
        })
    }

    fn at<T>(
        &self,
        node: NodeId,
        register: RegOffset,
        access: impl FnOnce(&mut File) -> io::Result<T>,
    ) -> Result<T> {
        let size = u64::from(RegOffset::WINDOW);
        if !register.is_valid() {
            return Err(Error::Range {
                offset: register.get().into(),
                len: 8,
                size,
            });
        }
        let position = (u64::from(node.0) << 32) | u64::from(register.get());
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(position))
            .and_then(|_| access(&mut file))
            .map_err(|e| Error::os(format!("{register} of node {node}"), e))
    }

    /// Reads a register.
    pub fn read(&self, node: NodeId, register: RegOffset) -> Result<u64> {
        let mut bytes = [0; 8];
        self.at(node, register, |file| file.read_exact(&mut bytes))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes a register.
    pub fn write(&self, node: NodeId, register: RegOffset, value: u64) -> Result<()> {
        self.at(node, register, |file| file.write_all(&value.to_le_bytes()))
    }

    /// Returns the paths of reads and writes.
    pub fn methods(&self) -> Result<(AccessMethod, AccessMethod)> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((
            method_of(get(&*file, nr::GET_READ_METHOD, "read method")?)?,
            method_of(get(&*file, nr::GET_WRITE_METHOD, "write method")?)?,
        ))
    }

    /// Sets the paths of reads and writes.
    pub fn set_methods(&self, read: AccessMethod, write: AccessMethod) -> Result<()> {
        self.set(nr::SET_READ_METHOD, read as u64, "read method")?;
        self.set(nr::SET_WRITE_METHOD, write as u64, "write method")
    }

    /// Returns the timeout of accesses by RMA.
    pub fn timeout(&self) -> Result<Duration> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        get(&*file, nr::GET_TIMEOUT, "time-out").map(Duration::from_micros)
    }

    /// Sets the timeout of accesses by RMA to `time`, at least one microsecond.
    pub fn set_timeout(&self, time: Duration) -> Result<()> {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        self.set(nr::SET_TIMEOUT, us, "time-out")
    }

    /// Sets a value in the driver. The SET ioctls of this device take a pointer (kernel-api §A2).
    fn set(&self, number: u32, value: u64, what: &str) -> Result<()> {
        use std::os::fd::AsFd;
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        crate::raw::ioctl_words(file.as_fd(), number, &mut [value])
            .map_err(|e| Error::os(format!("cannot set the {what} to {value}"), e))
    }
}
