// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Simulated device in memory. A test plays the NIC through the same file.
// Each test uses only a part of this module.
#![allow(dead_code)]

use extoll::{Backend, Mapping, PortInfo, RegionArg};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};

const PAGE: u64 = 4096;

/// State of the simulated driver.
#[derive(Default)]
pub struct Driver {
    /// Values by ioctl number: results of GET calls, and arguments of SET calls.
    pub values: BTreeMap<u32, u64>,
    /// Registered regions: address by NLA.
    pub regions: BTreeMap<u64, u64>,
    /// Error of the next call that registers or unregisters memory.
    pub refuse: Option<i32>,
    /// Requester pages that the program may use. `None` simulates a driver without this
    /// information.
    pub pages: Option<u32>,
    /// Number of mappings that will fail.
    pub refuse_maps: u32,
    /// Simulates the vendor's driver, which has no ioctl that requests an interrupt.
    pub no_arm: bool,
    /// Slots in the requests for an interrupt.
    pub armed: Vec<u32>,
    /// Unbinds the NIC during the next request for an interrupt.
    pub unbind_in_arm: bool,
    gone: bool,
    next_nla: u64,
    /// Other end of the connection whose readability is that of the device.
    bell: Option<UnixStream>,
}

/// Simulated device. Each offset in the file is a different mapping.
pub struct Fake {
    file: File,
    driver: Mutex<Driver>,
    fd: UnixStream,
    /// File offset of the queue's mapping, and size of a slot in bytes. ARM reads the status word
    /// of a slot.
    queue: (u64, u64),
}

fn error<T>(code: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(code))
}

impl Fake {
    /// Creates a device. `queue` is the file offset of the queue's mapping and the size of a slot
    /// in bytes.
    pub fn new(queue: (u64, u64), values: &[(u32, u64)]) -> Arc<Self> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 20).unwrap();
        let (fd, bell) = UnixStream::pair().unwrap();
        fd.set_nonblocking(true).unwrap();
        bell.set_nonblocking(true).unwrap();
        Arc::new(Self {
            file,
            driver: Mutex::new(Driver {
                values: values.iter().copied().collect(),
                next_nla: 0x10_0000,
                bell: Some(bell),
                ..Driver::default()
            }),
            fd,
            queue,
        })
    }

    /// Returns the state of the driver.
    pub fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap()
    }

    /// Returns the memory that the program maps at file offset `offset`. The NIC accesses it
    /// through this mapping.
    pub fn view(&self, offset: u64, len: usize) -> Mapping {
        Mapping::of(&self.file, offset, len).unwrap()
    }

    /// Makes the descriptor readable until the next request for an interrupt.
    pub fn interrupt(&self) {
        if let Some(mut bell) = self.driver().bell.as_ref() {
            // A write to a full buffer fails, but the descriptor is then readable anyway.
            let _ = bell.write(&[0]);
        }
    }

    /// Hangs up the descriptor without any other change.
    pub fn hang_up(&self) {
        self.driver().bell = None;
    }

    /// Unbinds the NIC. Afterwards, calls fail, the descriptor is hung up, and an access to a
    /// mapping raises SIGBUS.
    pub fn unbind(&self) {
        self.take_away(&mut self.driver());
    }

    fn take_away(&self, driver: &mut Driver) {
        driver.gone = true;
        driver.bell = None;
        self.file.set_len(0).unwrap();
    }

    fn alive(&self) -> io::Result<MutexGuard<'_, Driver>> {
        let driver = self.driver();
        match driver.gone {
            true => error(libc::ENODEV),
            false => Ok(driver),
        }
    }
}

impl Backend for Fake {
    fn get(&self, number: u32) -> io::Result<u64> {
        // The keys of `values` are the numbers of GET calls. The SET call of the same value has
        // another number, so that tests list only the values that GET returns.
        let value = self.alive()?.values.get(&number).copied();
        value.map_or_else(|| error(libc::ENOTTY), Ok)
    }

    fn set(&self, number: u32, value: u64) -> io::Result<()> {
        // Sizes are multiples of a page. The initial read pointer is the last slot.
        if value % PAGE != 0 && !(value + 1).is_power_of_two() {
            return error(libc::EFAULT);
        }
        self.alive()?.values.insert(number, value);
        Ok(())
    }

    fn register(&self, arg: &mut RegionArg) -> io::Result<()> {
        let mut driver = self.alive()?;
        if let Some(code) = driver.refuse.take() {
            return error(code);
        }
        let nla = driver.next_nla;
        driver.next_nla += arg.size() + PAGE;
        driver.regions.insert(nla, arg.start());
        arg.words()[3] = nla;
        Ok(())
    }

    fn unregister(&self, arg: &mut RegionArg) -> io::Result<()> {
        let mut driver = self.alive()?;
        if let Some(code) = driver.refuse.take() {
            return error(code);
        }
        match driver.regions.remove(&arg.nla()) {
            Some(_) => Ok(()),
            None => error(libc::EFAULT),
        }
    }

    fn arm(&self, slot: u32) -> io::Result<bool> {
        let mut driver = self.alive()?;
        if driver.unbind_in_arm {
            self.take_away(&mut driver);
            return error(libc::ENODEV);
        }
        if driver.no_arm {
            return error(libc::ENOTTY);
        }
        driver.armed.push(slot);
        drop(driver);
        // The descriptor is cleared before the status is read, so that no later interrupt is lost.
        while (&self.fd).read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
        let (offset, bytes) = self.queue;
        // The page of the read pointer precedes the slots.
        let status = (PAGE + (u64::from(slot) + 1) * bytes) as usize - 8;
        Ok(self.view(offset, status + 8).load(status) != 0)
    }

    fn info(&self) -> io::Result<Option<PortInfo>> {
        Ok(self.alive()?.pages.map(|pages| PortInfo {
            version: 1,
            privileged: false,
            up: true,
            nic: 0,
            pages,
            protection: 0,
            marks: false,
        }))
    }

    fn map(&self, offset: u64, len: usize) -> io::Result<Mapping> {
        let mut driver = self.alive()?;
        if driver.refuse_maps > 0 {
            driver.refuse_maps -= 1;
            return error(libc::ENOMEM);
        }
        drop(driver);
        Mapping::of(&self.file, offset, len)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
