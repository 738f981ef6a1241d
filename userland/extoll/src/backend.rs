// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Device interface: ioctls and mappings of `/dev/extoll/*` (docs/uapi.md).

use crate::error::{Error, Result};
use crate::raw::{self, Mapping, PAGE};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// NIC, identified by the directory with its device nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    dir: PathBuf,
}

impl Default for Device {
    /// Returns the NIC whose nodes are in `/dev/extoll`, or in the directory that the environment
    /// variable `EXTOLL_DEV` names.
    fn default() -> Self {
        Self::at(std::env::var_os("EXTOLL_DEV").map_or_else(|| "/dev/extoll".into(), PathBuf::from))
    }
}

impl Device {
    /// Returns the NIC whose nodes are in this directory.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Returns the directory of the nodes.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens a node for reading and writing.
    pub(crate) fn open(&self, node: &str) -> Result<File> {
        let path = self.dir.join(node);
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|e| Error::open(path, e))
    }
}

/// Argument of the ioctls that register memory: ten words, 80 bytes (kernel-api §A4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionArg([u64; 10]);

impl RegionArg {
    /// Describes the pages that contain `bytes` bytes at `address`. Returns `None` for zero bytes
    /// and for ranges that do not fit into the structure.
    pub fn new(address: u64, bytes: u64) -> Option<Self> {
        let page = PAGE as u64;
        let start = address / page * page;
        let end = address.checked_add(bytes)?.checked_next_multiple_of(page)?;
        let count = u32::try_from((end - start) / page).ok()?;
        if bytes == 0 {
            return None;
        }
        let mut words = [0; 10];
        words[2] = start;
        words[4] = u64::from(count) | ((address - start) << 32);
        words[5] = end;
        words[6] = end - start;
        Some(Self(words))
    }

    /// Returns the words in the driver's layout.
    pub fn words(&mut self) -> &mut [u64; 10] {
        &mut self.0
    }

    /// Returns the NLA of the first page. The driver has set it.
    pub fn nla(&self) -> u64 {
        self.0[3]
    }

    /// Returns the NLA of the first byte of the range.
    pub fn nla_of_start(&self) -> u64 {
        self.nla().wrapping_add(u64::from(self.offset()))
    }

    /// Returns the address of the first page.
    pub fn start(&self) -> u64 {
        self.0[2]
    }

    /// Returns the number of pages.
    pub fn count(&self) -> u32 {
        self.0[4] as u32
    }

    /// Returns the offset of the range in the first page.
    pub fn offset(&self) -> u32 {
        (self.0[4] >> 32) as u32
    }

    /// Returns the size of all pages in bytes.
    pub fn size(&self) -> u64 {
        self.0[6]
    }

    /// Converts a structure that a C program has stored.
    pub fn from_words(words: [u64; 10]) -> Self {
        Self(words)
    }
}

/// Properties of a port (`EXTOLL_IOCTL_INFO`, docs/uapi.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Version of the interface.
    pub version: u32,
    /// True if the device was opened with CAP_SYS_RAWIO, which permits all operations.
    pub privileged: bool,
    /// True if the network is running.
    pub up: bool,
    /// Number of the NIC on this host, 0 for `/dev/extoll`.
    pub nic: u32,
    /// Bit p is set if the program may use requester page p.
    pub pages: u32,
    /// Protection descriptor of the port.
    pub protection: u16,
    /// True if the NIC is an emulator that requires a marking store after each fence.
    pub marks: bool,
}

impl PortInfo {
    /// Decodes the structure from six quadwords with two fields each.
    pub fn from_words(words: &[u64; 6]) -> Self {
        let field = |i: usize| (words[i / 2] >> (32 * (i % 2))) as u32;
        Self {
            version: field(0),
            privileged: field(1) & 1 != 0,
            up: field(1) & 4 != 0,
            nic: field(2),
            pages: field(5),
            protection: field(8) as u16,
            marks: field(1) & 8 != 0,
        }
    }
}

/// Operations of an open device node that a port needs. Programs use [`File`], and tests use a
/// simulation in memory.
pub trait Backend: Send + Sync {
    /// Calls an ioctl that returns a value.
    fn get(&self, number: u32) -> io::Result<u64>;
    /// Calls an ioctl that takes a value.
    fn set(&self, number: u32, value: u64) -> io::Result<()>;
    /// Pins the described pages and sets their NLA.
    fn register(&self, arg: &mut RegionArg) -> io::Result<()>;
    /// Unregisters the pages. After the call, the NIC does not access them.
    fn unregister(&self, arg: &mut RegionArg) -> io::Result<()>;
    /// Frees all slots before `slot` and requests an interrupt with the next entry that has the
    /// interrupt flag. Returns true if `slot` already contains an entry.
    fn arm(&self, slot: u32) -> io::Result<bool>;
    /// Returns the properties of the port; `None` if the driver does not provide them.
    fn info(&self) -> io::Result<Option<PortInfo>>;
    /// Maps `len` bytes of the device file at byte offset `offset`.
    fn map(&self, offset: u64, len: usize) -> io::Result<Mapping>;
    /// Returns the file descriptor for poll(2).
    fn fd(&self) -> BorrowedFd<'_>;
}

impl Backend for File {
    fn get(&self, number: u32) -> io::Result<u64> {
        raw::ioctl_get(self.as_fd(), number)
    }

    fn set(&self, number: u32, value: u64) -> io::Result<()> {
        raw::ioctl_value(self.as_fd(), number, value).map(|_| ())
    }

    fn register(&self, arg: &mut RegionArg) -> io::Result<()> {
        raw::ioctl_words(self.as_fd(), rma::REGISTER_REGION, arg.words())
    }

    fn unregister(&self, arg: &mut RegionArg) -> io::Result<()> {
        raw::ioctl_words(self.as_fd(), rma::UNREGISTER_REGION, arg.words())
    }

    fn arm(&self, slot: u32) -> io::Result<bool> {
        raw::ioctl_value(self.as_fd(), ext::ARM, slot.into()).map(|waiting| waiting != 0)
    }

    fn info(&self) -> io::Result<Option<PortInfo>> {
        let mut words = [0; 6];
        match raw::ioctl_words(self.as_fd(), ext::INFO, &mut words) {
            Ok(()) => Ok(Some(PortInfo::from_words(&words))),
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn map(&self, offset: u64, len: usize) -> io::Result<Mapping> {
        Mapping::of(self, offset, len)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// Reads a value from the driver. `what` is the name of the value in the error text.
pub(crate) fn get(backend: &dyn Backend, number: u32, what: &str) -> Result<u64> {
    backend
        .get(number)
        .map_err(|e| Error::os(format!("cannot read the {what}"), e))
}

/// Sets a value in the driver. `what` is the name of the value in the error text.
pub(crate) fn set(backend: &dyn Backend, number: u32, value: u64, what: &str) -> Result<()> {
    backend
        .set(number, value)
        .map_err(|e| Error::os(format!("cannot set the {what} to {value}"), e))
}

const fn read(magic: u8, number: u32, size: u32) -> u32 {
    0x8000_0000 | (size << 16) | ((magic as u32) << 8) | number
}

const fn write(magic: u8, number: u32, size: u32) -> u32 {
    0x4000_0000 | (size << 16) | ((magic as u32) << 8) | number
}

/// ioctls of `extoll_ioctl.h`, which the vendor's driver does not have.
pub(crate) mod ext {
    use super::{read, write};
    pub const INFO: u32 = read(0xE7, 0, 48);
    pub const ARM: u32 = write(0xE7, 1, 8);
}

/// ioctls of `rma2` (kernel-api §A3).
pub(crate) mod rma {
    use super::{read, write};
    pub const GET_NOTIQ_SIZE: u32 = read(b'k', 0, 4);
    pub const SET_NOTIQ_SIZE: u32 = write(b'k', 1, 4);
    pub const SET_NOTIQ_SEGMENT_SIZE: u32 = write(b'k', 2, 4);
    pub const GET_NOTIQ_SEGMENT_SIZE: u32 = read(b'k', 3, 4);
    pub const SET_NOTIQ_WP: u32 = write(b'k', 4, 4);
    pub const SET_NOTIQ_RP: u32 = write(b'k', 5, 4);
    pub const GET_NOTIQ_WP: u32 = read(b'k', 6, 4);
    pub const GET_NODEID: u32 = read(b'k', 8, 4);
    pub const GET_VPID: u32 = read(b'k', 9, 4);
    pub const REGISTER_REGION: u32 = write(b'k', 10, 8);
    pub const UNREGISTER_REGION: u32 = write(b'k', 11, 8);
    pub const GET_MAXNODEID: u32 = read(b'k', 12, 4);
    pub const GET_MAXVPID: u32 = read(b'k', 13, 4);
    pub const SET_TCS: u32 = write(b'k', 18, 4);
    pub const GET_TCS: u32 = read(b'k', 19, 4);
    pub const SET_PROTDESC: u32 = write(b'k', 20, 4);
    pub const GET_PROTDESC: u32 = read(b'k', 21, 4);
}

/// ioctls of `velo2` (kernel-api §A6).
pub(crate) mod velo {
    use super::{read, write};
    pub const SET_RP: u32 = write(b'k', 1, 4);
    pub const GET_WP: u32 = read(b'k', 2, 4);
    pub const SET_WP: u32 = write(b'k', 3, 4);
    pub const GET_VPID: u32 = read(b'k', 4, 8);
    pub const GET_MBOX_SIZE: u32 = read(b'k', 5, 8);
    pub const SET_MBOX_SIZE: u32 = write(b'k', 6, 8);
    pub const SET_SEGMENT_SIZE: u32 = write(b'k', 8, 8);
    pub const GET_NODEID: u32 = read(b'k', 12, 8);
    pub const GET_RX_PROTDESC: u32 = read(b'k', 16, 8);
    pub const GET_SLOT_SIZE: u32 = read(b'k', 21, 4);
}

/// ioctls of `smfu2` (kernel-api §A7).
pub(crate) mod smfu {
    use super::read;
    pub const GET_LOCAL_SIZE: u32 = read(b'k', 0, 8);
    pub const GET_NODE_ID: u32 = read(b'k', 2, 8);
}

/// ioctls of `pmap` (kernel-api §A8).
pub(crate) mod pmap {
    use super::{read, write};
    pub const SET_TYPE: u32 = write(b'k', 0, 4);
    pub const SET_SIZE: u32 = write(b'k', 4, 4);
    pub const GET_PADDR: u32 = read(b'k', 6, 4);
}

/// ioctls of `extoll_rf_access` (kernel-api §A9).
pub(crate) mod rf {
    use super::{read, write};
    pub const GET_WRITE_METHOD: u32 = read(b'n', 0, 8);
    pub const GET_READ_METHOD: u32 = read(b'n', 1, 8);
    pub const GET_TIMEOUT: u32 = read(b'n', 2, 8);
    pub const SET_WRITE_METHOD: u32 = write(b'n', 3, 8);
    pub const SET_READ_METHOD: u32 = write(b'n', 4, 8);
    pub const SET_TIMEOUT: u32 = write(b'n', 5, 8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_reference() {
        assert_eq!(rma::GET_NOTIQ_SIZE, 0x8004_6B00);
        assert_eq!(rma::GET_NOTIQ_WP, 0x8004_6B06);
        assert_eq!(rma::REGISTER_REGION, 0x4008_6B0A);
        assert_eq!(rma::SET_PROTDESC, 0x4004_6B14);
        assert_eq!(velo::GET_WP, 0x8004_6B02);
        assert_eq!(velo::GET_VPID, 0x8008_6B04);
        assert_eq!(velo::GET_SLOT_SIZE, 0x8004_6B15);
        assert_eq!(smfu::GET_NODE_ID, 0x8008_6B02);
        assert_eq!(pmap::GET_PADDR, 0x8004_6B06);
        assert_eq!(rf::SET_TIMEOUT, 0x4008_6E05);
    }

    #[test]
    fn port_information_is_read() {
        let words = [
            0x5_0000_0001,
            0x3_0000_0002,
            0x000F_0000_0000_0007,
            0,
            0x1234,
            0,
        ];
        let info = PortInfo::from_words(&words);
        assert!(info.privileged && info.up && !info.marks);
        assert!(PortInfo::from_words(&[8 << 32, 0, 0, 0, 0, 0]).marks);
        assert_eq!(
            (info.version, info.nic, info.pages, info.protection),
            (1, 2, 0x000F_0000, 0x1234)
        );
    }

    #[test]
    fn regions_cover_whole_pages() {
        let mut a = RegionArg::new(0x1_0FF8, 16).unwrap();
        assert_eq!(
            (a.start(), a.count(), a.offset(), a.size()),
            (0x1_0000, 2, 0xFF8, 8192)
        );
        a.words()[3] = 0x4000;
        assert_eq!(a.nla_of_start(), 0x4FF8);
        assert_eq!(RegionArg::new(0x1000, 4096).unwrap().count(), 1);
        assert!(RegionArg::new(0x1000, 0).is_none());
        assert!(RegionArg::new(u64::MAX, 2).is_none());
        assert!(RegionArg::new(0, u64::MAX).is_none());
    }
}
