// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! A device made of memory: the test plays the NIC on the other side of the same file.

use extoll::{Backend, Mapping, PortInfo, RegionArg};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

const PAGE: u64 = 4096;

/// What the driver side keeps.
#[derive(Default)]
pub struct Driver {
    /// Values by ioctl number: what GET calls answer and SET calls left.
    pub values: BTreeMap<u32, u64>,
    /// Registered regions by NLA.
    pub regions: BTreeMap<u64, u64>,
    /// Answer of the next register or unregister call.
    pub refuse: Option<i32>,
    /// Requester pages that may be used; `None`: the driver does not say.
    pub pages: Option<u32>,
    next_nla: u64,
}

/// The device: one file, of which each mapping offset is a different part.
pub struct Fake {
    file: File,
    pub driver: Mutex<Driver>,
    ours: UnixStream,
    theirs: UnixStream,
}

impl Fake {
    pub fn new(values: &[(u32, u64)]) -> Arc<Self> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 20).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        Arc::new(Self {
            file,
            driver: Mutex::new(Driver {
                values: values.iter().copied().collect(),
                next_nla: 0x10_0000,
                ..Driver::default()
            }),
            ours,
            theirs,
        })
    }

    /// The NIC's view of what the program maps at `offset`.
    pub fn view(&self, offset: u64, len: usize) -> Mapping {
        Mapping::of(&self.file, offset, len).unwrap()
    }

    /// Makes the descriptor readable, as an interrupt does.
    pub fn interrupt(&self) {
        use std::io::Write;
        (&self.theirs).write_all(&[0]).unwrap();
    }
}

impl Backend for Fake {
    fn get(&self, number: u32) -> io::Result<u64> {
        // The SET number of a value has the other direction and may have the neighbouring number; tests list what they need.
        let driver = self.driver.lock().unwrap();
        driver
            .values
            .get(&number)
            .copied()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTTY))
    }

    fn set(&self, number: u32, value: u64) -> io::Result<()> {
        if value % PAGE != 0 {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        self.driver.lock().unwrap().values.insert(number, value);
        Ok(())
    }

    fn register(&self, arg: &mut RegionArg) -> io::Result<()> {
        let mut driver = self.driver.lock().unwrap();
        if let Some(code) = driver.refuse.take() {
            return Err(io::Error::from_raw_os_error(code));
        }
        let nla = driver.next_nla;
        driver.next_nla += arg.size() + PAGE;
        driver.regions.insert(nla, arg.start());
        arg.words()[3] = nla;
        Ok(())
    }

    fn unregister(&self, arg: &mut RegionArg) -> io::Result<()> {
        let mut driver = self.driver.lock().unwrap();
        if let Some(code) = driver.refuse.take() {
            return Err(io::Error::from_raw_os_error(code));
        }
        match driver.regions.remove(&arg.nla()) {
            Some(_) => Ok(()),
            None => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    fn arm(&self, _slot: u32) -> io::Result<bool> {
        // As the vendor's driver: the caller has to use the register.
        Err(io::Error::from_raw_os_error(libc::ENOTTY))
    }

    fn info(&self) -> io::Result<Option<PortInfo>> {
        Ok(self.driver.lock().unwrap().pages.map(|pages| PortInfo {
            version: 1,
            privileged: false,
            up: true,
            nic: 0,
            pages,
            protection: 0,
        }))
    }

    fn map(&self, offset: u64, len: usize) -> io::Result<Mapping> {
        Mapping::of(&self.file, offset, len)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }
}
