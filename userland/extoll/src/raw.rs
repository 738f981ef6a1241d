// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! All `unsafe` code of this crate: mapped memory, ioctls, and polling with blocked signals.
//!
//! The NIC reads and writes mapped memory at any time. The crate therefore never creates a Rust
//! reference to this memory. All accesses use raw pointers after a bounds check.

use crate::error::{check_range, Error, Result};
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

/// Size of a page in bytes. All offsets and lengths in the device interface are multiples of it.
pub const PAGE: usize = 4096;

/// Memory shared with the NIC: device registers, a queue, or a buffer.
#[derive(Debug)]
pub struct Mapping(MmapRaw);

impl Mapping {
    /// Maps `len` bytes of a device or file at byte offset `offset`. The mapping is readable,
    /// writable and shared.
    pub fn of(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        MmapOptions::new()
            .offset(offset)
            .len(len)
            .map_raw(file)
            .map(Self)
    }

    /// Allocates zeroed private memory. `huge` selects pages of 2^huge bytes.
    pub fn anonymous(len: usize, huge: Option<u8>) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.len(len);
        if let Some(bits) = huge {
            options.huge(Some(bits));
        }
        let map = Self(MmapRaw::from(options.map_anon()?));
        // A child process must not share pages that the NIC writes. After copy-on-write, one of the
        // processes would no longer see the NIC's writes.
        map.0.advise(memmap2::Advice::DontFork)?;
        Ok(map)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns false, because a mapping of length 0 does not exist.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of byte `offset`, for language bindings and for the driver. Panics if
    /// the mapping does not contain this byte.
    pub fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len(), "offset outside the mapping");
        self.0.as_mut_ptr().wrapping_add(offset)
    }

    fn word(&self, offset: usize) -> *mut u64 {
        assert!(
            offset % 8 == 0 && offset < self.len() && self.len() - offset >= 8,
            "no quadword at offset {offset} of a mapping of {} bytes",
            self.len()
        );
        self.0.as_mut_ptr().wrapping_add(offset).cast()
    }

    /// Reads the quadword at `offset`. Data that the NIC wrote before this quadword is visible
    /// afterwards. Panics unless the mapping contains an aligned quadword at `offset`.
    pub fn load(&self, offset: usize) -> u64 {
        // SAFETY: word() checked that the mapping contains the eight bytes and that they are
        // aligned; mappings begin at a page. No reference to them exists.
        let value = unsafe { self.word(offset).read_volatile() };
        fence(Ordering::Acquire);
        value
    }

    /// Writes the quadword at `offset` after all previous writes. Panics unless the mapping
    /// contains an aligned quadword at `offset`.
    pub fn store(&self, offset: usize, value: u64) {
        fence(Ordering::Release);
        // SAFETY: word() checked that the mapping contains the eight aligned bytes, and the mapping
        // is writable.
        unsafe { self.word(offset).write_volatile(value) }
    }

    /// Copies bytes from the mapping. Fails if the range exceeds the mapping. Bytes that the NIC
    /// writes during the call may have their old or new values.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        check_range(offset, to.len() as u64, self.len() as u64)?;
        fence(Ordering::Acquire);
        // SAFETY: the mapping contains the range. `to` is Rust memory, which is never part of a
        // mapping, so that the two do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(self.address(offset as usize), to.as_mut_ptr(), to.len());
        }
        Ok(())
    }

    /// Copies bytes into the mapping. Fails if the range exceeds the mapping.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        check_range(offset, from.len() as u64, self.len() as u64)?;
        // SAFETY: the mapping contains the range and is writable. `from` is Rust memory, which is
        // never part of a mapping, so that the two do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.address(offset as usize), from.len());
        }
        fence(Ordering::Release);
        Ok(())
    }
}

/// Flushes write-combined stores to the device. A store fence marks the end of a packet (HW §8).
pub fn flush() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all x86-64 CPUs have SSE. The instruction only orders stores.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only orders stores. Fences of the language are not sufficient,
    // because they affect only other CPUs.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Orders stores to memory that the device reads before later stores to the device. x86-64 does not
/// need an instruction for this, because it never reorders these stores.
pub fn publish() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only orders stores.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    fence(Ordering::Release);
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Calls an ioctl that stores eight bytes, even if its number encodes another size (kernel-api
/// §A2).
pub fn ioctl_get(fd: BorrowedFd<'_>, number: u32) -> io::Result<u64> {
    // The array has space for drivers that store more than they declare.
    let mut value = [0u64; 16];
    // SAFETY: the descriptor is open. The driver writes within the buffer, which is valid during
    // the call.
    check(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::c_ulong::from(number) as _,
            value.as_mut_ptr(),
        )
    })?;
    Ok(value[0])
}

/// Calls an ioctl whose argument is the value itself instead of a pointer. Returns the result.
pub fn ioctl_value(fd: BorrowedFd<'_>, number: u32, value: u64) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open. The ioctls for which this crate calls the function take a
    // plain value. The kernel would check an argument that it uses as an address.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::c_ulong::from(number) as _, value) };
    check(answer).map(|()| answer)
}

/// Calls an ioctl whose argument points to memory that the driver reads and may write.
pub fn ioctl_words<const N: usize>(
    fd: BorrowedFd<'_>,
    number: u32,
    words: &mut [u64; N],
) -> io::Result<()> {
    let size = (number >> 16) & 0x3FFF;
    // The vendor's ioctl numbers may encode the size of a pointer. The structures of kernel-api §A4
    // have 80 bytes.
    assert!(
        size as usize <= N * 8,
        "ioctl {number:#x} moves {size} bytes"
    );
    // SAFETY: the descriptor is open. The array is valid during the call and has the size of this
    // ioctl's structure.
    check(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::c_ulong::from(number) as _,
            words.as_mut_ptr(),
        )
    })
}

/// Lets the driver pin the pages of `bytes` bytes at `start` for the NIC.
///
/// # Safety
/// Until the memory is unregistered, peers that know its NLA may read and write its pages. The
/// memory must stay allocated. Rust references to it or to other data in its pages must not be
/// used.
pub unsafe fn register(
    backend: &dyn crate::Backend,
    start: u64,
    bytes: u64,
) -> Result<crate::RegionArg> {
    let mut arg = crate::RegionArg::new(start, bytes).ok_or(Error::Range {
        offset: start,
        len: bytes,
        size: u64::MAX,
    })?;
    backend
        .register(&mut arg)
        .map_err(|e| Error::register(arg.size(), e))?;
    Ok(arg)
}

/// Signals that the CPU raises for an instruction of the thread. They must not be blocked, because
/// a blocked signal ends the process without a call of its handler.
const NEVER_HELD: [libc::c_int; 6] = [
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// Blocks the signals of this thread, except during [`BlockedSignals::poll`], until the value is
/// dropped. A signal that arrives between two calls of `poll` therefore ends the second call.
pub(crate) struct BlockedSignals {
    before: libc::sigset_t,
    // This field makes the type `!Send`, because the signal mask belongs to the thread.
    _thread: PhantomData<*mut ()>,
}

impl BlockedSignals {
    /// Blocks the signals of the calling thread until the value is dropped.
    pub fn new() -> Self {
        // SAFETY: a signal set consists of integers, for which zero is valid.
        let (mut held, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { zeroed() };
        // SAFETY: both sets are valid during the calls, and the signal numbers are valid.
        unsafe {
            libc::sigfillset(&mut held);
            for signal in NEVER_HELD {
                libc::sigdelset(&mut held, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &held, &mut before);
        }
        Self {
            before,
            _thread: PhantomData,
        }
    }

    /// Calls ppoll(2) with the thread's previous signal mask. Returns the events of each
    /// descriptor. Fails with `EINTR` if a signal handler ran.
    pub fn poll<const N: usize>(
        &self,
        fds: [(BorrowedFd<'_>, libc::c_short); N],
        time: Duration,
    ) -> io::Result<[libc::c_short; N]> {
        let mut list = fds.map(|(fd, events)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events,
            revents: 0,
        });
        let mut time = libc::timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let before: *const libc::sigset_t = &self.before;
        // The C library's ppoll() is a cancellation point, but Rust code must not be cancelled.
        // SAFETY: the list and the time are
        // valid during the call, which writes only to them. The call reads the first eight bytes of
        // the mask, and glibc's type is longer.
        let ready = unsafe {
            libc::syscall(
                libc::SYS_ppoll,
                list.as_mut_ptr(),
                N,
                &mut time as *mut libc::timespec,
                before,
                8usize,
            )
        };
        match ready {
            0.. => Ok(list.map(|entry| entry.revents)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is valid during the call, and the null pointer is permitted.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, null_mut()) };
    }
}

#[cfg(test)]
pub(crate) mod signals {
    //! Signal with a handler for tests of waiting calls.

    use std::cell::Cell;
    use std::os::unix::thread::JoinHandleExt;
    use std::thread::JoinHandle;

    thread_local! {
        static HANDLED: Cell<u32> = const { Cell::new(0) };
    }

    extern "C" fn handler(_: libc::c_int) {
        HANDLED.set(HANDLED.get() + 1);
    }

    fn handle() {
        let handler = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler only increments a thread-local counter.
        unsafe { libc::signal(libc::SIGUSR1, handler) };
    }

    /// Sends the test signal to the calling thread.
    pub fn raise() {
        handle();
        // SAFETY: the calling thread exists.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
    }

    /// Sends the test signal to another thread.
    pub fn send<T>(thread: &JoinHandle<T>) {
        handle();
        // SAFETY: the thread was not joined, because its handle exists.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
    }

    /// Returns the number of times that the handler ran in this thread.
    pub fn handled() -> u32 {
        HANDLED.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_stay_inside() {
        let m = Mapping::anonymous(PAGE, None).unwrap();
        m.store(PAGE - 8, 7);
        assert_eq!(m.load(PAGE - 8), 7);
        let mut b = [0; 8];
        m.read(PAGE as u64 - 8, &mut b).unwrap();
        assert_eq!(u64::from_le_bytes(b), 7);
        assert!(m.read(PAGE as u64 - 7, &mut b).is_err());
        assert!(m.write(u64::MAX, &b).is_err());
        assert!(std::panic::catch_unwind(|| m.load(PAGE)).is_err());
        assert!(std::panic::catch_unwind(|| m.load(4)).is_err());
    }
}
