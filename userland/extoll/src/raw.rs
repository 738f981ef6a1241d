// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Mapped memory, ioctls, and waiting with signals held: all `unsafe` code of this crate.
//!
//! The NIC reads and writes this memory at any time, so no Rust reference to it is ever made; every access goes through a raw
//! pointer after a bounds check.

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

/// Bytes per page in all offsets and lengths of the device interface.
pub const PAGE: usize = 4096;

/// Memory shared with the NIC: device registers, a queue, or a buffer.
#[derive(Debug)]
pub struct Mapping(MmapRaw);

impl Mapping {
    /// Maps `len` bytes of a device (or file) at byte offset `offset`, readable and writable, shared.
    pub fn of(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        MmapOptions::new()
            .offset(offset)
            .len(len)
            .map_raw(file)
            .map(Self)
    }

    /// Zeroed private memory; `huge` asks for pages of 2^huge bytes.
    pub fn anonymous(len: usize, huge: Option<u8>) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.len(len);
        if let Some(bits) = huge {
            options.huge(Some(bits));
        }
        let map = Self(MmapRaw::from(options.map_anon()?));
        // A child must not get copies of pages that the NIC writes: whichever process wrote first would lose them.
        map.0.advise(memmap2::Advice::DontFork)?;
        Ok(map)
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True for a mapping without bytes (there is none).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of byte `offset`, for bindings and for the driver. Panics outside the mapping.
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

    /// Reads the quadword at `offset`; what the NIC wrote before it is visible afterwards. Panics if there is none.
    pub fn load(&self, offset: usize) -> u64 {
        // SAFETY: word() checked that the eight bytes lie in the mapping and are aligned (mappings start at a page); no
        // reference to them exists.
        let value = unsafe { self.word(offset).read_volatile() };
        fence(Ordering::Acquire);
        value
    }

    /// Writes the quadword at `offset` after everything written before. Panics if there is none.
    pub fn store(&self, offset: usize, value: u64) {
        fence(Ordering::Release);
        // SAFETY: as in load(); the mapping is writable.
        unsafe { self.word(offset).write_volatile(value) }
    }

    /// Copies out of the mapping; fails outside it. Bytes that the NIC writes meanwhile may be old or new.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        check_range(offset, to.len() as u64, self.len() as u64)?;
        fence(Ordering::Acquire);
        // SAFETY: the range was checked; `to` is Rust memory, never part of a mapping, so they do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(self.address(offset as usize), to.as_mut_ptr(), to.len());
        }
        Ok(())
    }

    /// Copies into the mapping; fails outside it.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        check_range(offset, from.len() as u64, self.len() as u64)?;
        // SAFETY: as in read(), the other way round; the mapping is writable.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.address(offset as usize), from.len());
        }
        fence(Ordering::Release);
        Ok(())
    }
}

/// Pushes write-combined stores out to the device (HW §8: a store fence ends every packet).
pub fn flush() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE; the instruction only orders stores.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only orders stores. No fence of the language does, since those reach other processors only.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Orders stores to memory that the device reads before later ones to the device. x86-64 never swaps the two.
pub fn publish() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in flush().
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

/// An ioctl that stores eight bytes (kernel-api §A2: whatever size its number says).
pub fn ioctl_get(fd: BorrowedFd<'_>, number: u32) -> io::Result<u64> {
    // Room to spare, should a driver store more than it says.
    let mut value = [0u64; 16];
    // SAFETY: the descriptor is open; the driver writes at most the buffer that lives across the call.
    check(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::c_ulong::from(number) as _,
            value.as_mut_ptr(),
        )
    })?;
    Ok(value[0])
}

/// An ioctl that takes the value itself instead of a pointer; gives its answer.
pub fn ioctl_value(fd: BorrowedFd<'_>, number: u32, value: u64) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open. The numbers this crate uses take the argument as a plain value; one that took it as a
    // pointer would have the kernel check the address itself.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::c_ulong::from(number) as _, value) };
    check(answer).map(|()| answer)
}

/// An ioctl whose argument points to memory that the driver reads and may write.
pub fn ioctl_words<const N: usize>(
    fd: BorrowedFd<'_>,
    number: u32,
    words: &mut [u64; N],
) -> io::Result<()> {
    let size = (number >> 16) & 0x3FFF;
    // Vendor numbers may say the size of a pointer; the structures of kernel-api §A4 have 80 bytes.
    assert!(
        size as usize <= N * 8,
        "ioctl {number:#x} moves {size} bytes"
    );
    // SAFETY: the descriptor is open; the array lives across the call and is as large as the structure of this number.
    check(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::c_ulong::from(number) as _,
            words.as_mut_ptr(),
        )
    })
}

/// Tells the driver to pin `bytes` bytes at `start` for the NIC.
///
/// # Safety
/// Until the memory is unregistered any peer that knows its NLA may read and write whole pages of it: it must stay
/// allocated, and neither it nor what shares its pages may be accessed through Rust references.
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

/// Signals that the processor raises for an access of the thread itself. If they were held, they would end the process without
/// its handler.
const NEVER_HELD: [libc::c_int; 6] = [
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// Keeps signals from this thread until it is dropped, except while [`HeldSignals::poll`] waits. So a signal that arrives between
/// two of these waits ends the next one.
pub(crate) struct HeldSignals {
    before: libc::sigset_t,
    // The mask is that of the thread.
    _thread: PhantomData<*mut ()>,
}

impl HeldSignals {
    /// Holds the signals of the calling thread.
    pub fn new() -> Self {
        // SAFETY: a set of signals consists of integers, for which all zeros are a value.
        let (mut held, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { zeroed() };
        // SAFETY: both sets live across the calls, and the signal numbers are valid.
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

    /// ppoll(2) with the signal mask that the thread had before: what each descriptor is ready for. `EINTR`: a handler ran.
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
        // The system call itself: the C library's function is a point at which a thread may be cancelled, which Rust code cannot be.
        // SAFETY: the list and the time live across the call, which writes no more than them. It reads the first eight bytes of the mask, of
        // which glibc's has more.
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

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the set lives across the call, and nothing is stored.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, null_mut()) };
    }
}

#[cfg(test)]
pub(crate) mod signals {
    //! A signal with a handler, for tests of waits.

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
        // SAFETY: the handler only counts.
        unsafe { libc::signal(libc::SIGUSR1, handler) };
    }

    /// Sends the signal to the calling thread.
    pub fn raise() {
        handle();
        // SAFETY: this thread exists.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
    }

    /// Sends the signal to another thread.
    pub fn send<T>(thread: &JoinHandle<T>) {
        handle();
        // SAFETY: the thread was not joined, as there is a handle.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
    }

    /// How often the handler ran in this thread.
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
