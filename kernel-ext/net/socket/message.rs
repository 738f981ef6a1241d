// SPDX-License-Identifier: GPL-2.0-only

//! What messages carry: copied to and from memory that a device may access at the same time.

use super::{
    tcp::{Incoming, Outgoing, Splice},
    Tcp,
};
use crate::{bindings, mem::PageList};
use core::ptr::{addr_of, addr_of_mut, NonNull};
use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc,
    },
};

/// What was copied: all or part of it, or nothing because the memory of the caller is not there.
fn copied(n: usize, wanted: usize) -> Result<usize> {
    match n {
        0 if wanted > 0 => Err(EFAULT),
        _ => Ok(n),
    }
}

/// Memory of the process that comes next in a message: where it begins, and how many bytes follow each
/// other; `None` if it is not a process's. May sleep nowhere.
fn next_piece(iter: *mut bindings::iov_iter) -> Option<(usize, usize)> {
    let mut start = 0;
    // SAFETY: the iterator is the caller's, and nobody else's; a copy may be advanced on its own, and
    // does not outlive it.
    let len = unsafe {
        let mut copy = iter.read();
        bindings::extoll_iter_piece(&mut copy, usize::MAX, &mut start)
    };
    let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
    Some((start, len))
}

impl Outgoing<'_> {
    /// Memory of the current process that comes next: its address, and how many bytes follow each
    /// other; `None` for no bytes, and for messages that are not in a process's memory. Nothing says
    /// that it is there: who pins it ([`PageList::pin`]) finds out.
    pub fn next_piece(&self) -> Option<(usize, usize)> {
        // SAFETY: valid while `self` exists, and used by this thread only.
        next_piece(unsafe { addr_of_mut!((*self.ptr.as_ptr()).msg_iter) })
    }

    /// Takes at most `len` bytes off the message that were sent in another way: how many.
    pub fn skip(&mut self, len: usize) -> usize {
        let n = len.min(self.remaining());
        // SAFETY: valid, nobody else's, and so much is left.
        unsafe {
            let iter = addr_of_mut!((*self.ptr.as_ptr()).msg_iter);
            bindings::iov_iter_advance(iter, n);
        }
        n
    }

    /// Bytes that were not taken yet.
    #[inline]
    pub fn remaining(&self) -> usize {
        // SAFETY: valid while `self` exists, and used by this thread only.
        unsafe { bindings::extoll_msg_left(self.ptr.as_ptr()) }
    }

    /// Looks at the control messages as TCP does, which heeds them for the segments that it sends
    /// (`SO_MARK`, time stamps …): whoever sends in another way ignores them. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: TCP would refuse them.
    pub fn check_control(&self, tcp: &Tcp) -> Result {
        // SAFETY: both valid; control messages are in memory of the kernel.
        let ret = unsafe { bindings::extoll_msg_check_control(tcp.sk(), self.ptr.as_ptr()) };
        kernel::error::to_result(ret)
    }

    /// Takes flags of the call away, for TCP's `sendmsg`.
    pub fn clear_flags(&mut self, flags: u32) {
        // SAFETY: valid while `self` exists, and used by this thread only.
        unsafe { (*self.ptr.as_ptr()).msg_flags &= !flags };
    }

    /// Calls `f` with the message as if it had no data: for what TCP's `sendmsg` does besides
    /// sending. `f` must take nothing off it.
    pub fn without_data<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        // SAFETY: valid, and nobody else's.
        let left = unsafe { bindings::extoll_msg_hide(self.ptr.as_ptr()) };
        let result = f(self);
        // SAFETY: as above. The iterator is where it was, as it had nothing that could be taken.
        unsafe { bindings::extoll_msg_show(self.ptr.as_ptr(), left) };
        result
    }

    /// The completion that a call with `MSG_ZEROCOPY` gets, if `SO_ZEROCOPY` is set: it says whether
    /// data were copied, as that of TCP does where it has to copy. To be made before the first byte
    /// is taken. It is shared by all who still read the memory, and charges for none: who pins it does.
    /// Takes the sock's lock, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOBUFS`: too many of them; TCP would not send either. `ENOMEM`.
    pub fn zerocopy(&self, tcp: &Tcp) -> Result<Option<Arc<Zerocopy>>> {
        // SAFETY: both valid; process context, and no spin lock is held.
        let raw = unsafe { bindings::extoll_zerocopy_begin(tcp.sk(), self.ptr.as_ptr()) };
        let Some(ptr) = NonNull::new(from_err_ptr(raw)?) else {
            return Ok(None);
        };
        // INVARIANT: a new one. Without memory it is dropped, which takes it back.
        let completion = Zerocopy {
            ptr,
            sent: AtomicFlag::new(false),
            copied: AtomicFlag::new(false),
        };
        Ok(Some(Arc::new(completion, GFP_KERNEL)?))
    }

    /// Takes at most `len` bytes off the message and copies them to byte `at` of `to` and what
    /// follows: how many. Fewer than `len` and [`Outgoing::remaining`] if the memory of the caller
    /// ends there. Works for all messages, those from `splice()` and `sendfile()` included
    /// (`MSG_SPLICE_PAGES`), whose pages are copied. A device may access `to` at the same time.
    /// Process context, may sleep: no spin locks.
    ///
    /// # Errors
    ///
    /// `EFAULT`: there was nothing to read where the message is said to be. `EINVAL`: not all
    /// within `to`, or that is not writable; nothing was taken.
    pub fn copy_in(&mut self, to: &PageList, at: usize, len: usize) -> Result<usize> {
        if !to.is_writable() {
            return Err(EINVAL);
        }
        let len = len.min(self.remaining());
        // SAFETY: valid, and nobody else's.
        let iter = unsafe { addr_of_mut!((*self.ptr.as_ptr()).msg_iter) };
        let n = to.pieces(at, len, |to, n, _| {
            // SAFETY: `n` bytes of a page that stays and may be written. Nobody has references to
            // its content; a device or another processor may access it at the same time, and the
            // accesses are C's, of which this compiler assumes nothing. The iterator is one to read
            // from, and what it refers to is there for the call.
            unsafe { bindings::_copy_from_iter(to.cast(), n, iter) }
        })?;
        copied(n, len)
    }
}

/// A completion of `MSG_ZEROCOPY`: its drop puts it into the error queue, and wakes, or takes it
/// back if nothing was sent. It may be later than the call, and than the socket, of which nobody hears
/// then. Any context.
///
/// # Invariants
///
/// `ptr` is a reference to one, owned by this object; it has a reference to the sock.
pub struct Zerocopy {
    ptr: NonNull<bindings::ubuf_info>,
    sent: AtomicFlag,
    copied: AtomicFlag,
}

// SAFETY: the reference may be given up by any thread: the error queue has a lock of its own, and the
// numbers of completions are atomic.
unsafe impl Send for Zerocopy {}
// SAFETY: what `&Zerocopy` allows is atomic.
unsafe impl Sync for Zerocopy {}

impl Zerocopy {
    /// Something was sent; whether it was `copied`.
    pub fn sent(&self, copied: bool) {
        self.sent.store(true, Relaxed);
        if copied {
            self.copied.store(true, Relaxed);
        }
    }
}

impl Drop for Zerocopy {
    fn drop(&mut self) {
        let (sent, copied) = (self.sent.load(Relaxed), self.copied.load(Relaxed));
        // SAFETY: by the invariants; the reference is given up.
        unsafe { bindings::extoll_zerocopy_end(self.ptr.as_ptr(), sent, copied) }
    }
}

impl Incoming<'_> {
    /// Memory of the current process that is filled next, as [`Outgoing::next_piece`].
    pub fn next_piece(&self) -> Option<(usize, usize)> {
        // SAFETY: as there.
        next_piece(unsafe { addr_of_mut!((*self.ptr.as_ptr()).msg_iter) })
    }

    /// Room that was not filled yet.
    #[inline]
    pub fn remaining(&self) -> usize {
        // SAFETY: valid while `self` exists, and used by this thread only.
        unsafe { bindings::extoll_msg_left(self.ptr.as_ptr()) }
    }

    /// Copies at most `len` bytes from byte `at` of `from` on to where the message goes: how many.
    /// Fewer than `len` and [`Incoming::remaining`] if the memory of the caller ends there. A
    /// device may access `from` at the same time. Process context, may sleep: no spin locks.
    ///
    /// # Errors
    ///
    /// `EFAULT`: nothing could be written where the message is to go. `EINVAL`: not all within
    /// `from`; nothing was copied.
    pub fn copy_out(&mut self, from: &PageList, at: usize, len: usize) -> Result<usize> {
        let len = len.min(self.remaining());
        // SAFETY: valid, and nobody else's.
        let iter = unsafe { addr_of_mut!((*self.ptr.as_ptr()).msg_iter) };
        let n = from.pieces(at, len, |from, n, _| {
            // SAFETY: `n` bytes of a page that stays. A device or another processor may write them
            // at the same time; the accesses are C's, as in `copy_in`. The iterator is one to write
            // to, and what it refers to is there for the call.
            unsafe { bindings::_copy_to_iter(from.cast_const().cast(), n, iter) }
        })?;
        copied(n, len)
    }

    /// As [`Incoming::copy_out`] from a slice.
    ///
    /// # Errors
    ///
    /// `EFAULT` as above.
    pub fn copy_from_slice(&mut self, from: &[u8]) -> Result<usize> {
        let len = from.len().min(self.remaining());
        // SAFETY: as above.
        let n = unsafe {
            let iter = addr_of_mut!((*self.ptr.as_ptr()).msg_iter);
            bindings::_copy_to_iter(from.as_ptr().cast(), len, iter)
        };
        copied(n, len)
    }

    /// Passes over at most `len` bytes of room without touching the memory (`MSG_TRUNC`, by which a
    /// receiver of TCP throws data away): how many.
    pub fn skip(&mut self, len: usize) -> usize {
        let n = len.min(self.remaining());
        // SAFETY: valid, nobody else's, and so much is left.
        unsafe {
            let iter = addr_of_mut!((*self.ptr.as_ptr()).msg_iter);
            bindings::iov_iter_advance(iter, n);
        }
        n
    }

    /// Flags that the receiver is told (`MSG_TRUNC` …), as they are so far.
    #[inline]
    pub fn told(&self) -> u32 {
        // SAFETY: as in `remaining`.
        unsafe { addr_of!((*self.ptr.as_ptr()).msg_flags).read() }
    }

    /// Whether [`Incoming::answer_inq`] would tell somebody. Doesn't sleep.
    #[inline]
    pub fn wants_inq(&self, tcp: &Tcp) -> bool {
        // SAFETY: both valid, and only read.
        unsafe { bindings::extoll_msg_wants_inq(tcp.sk(), self.ptr.as_ptr()) }
    }

    /// Tells a receiver that has asked for it (`TCP_INQ`, or io_uring) how many bytes are left to
    /// read, as TCP does at the end of a successful call. May sleep.
    pub fn answer_inq(&mut self, tcp: &Tcp, left: usize) {
        let left = i32::try_from(left).unwrap_or(i32::MAX);
        // SAFETY: both valid; the message is nobody else's.
        unsafe { bindings::extoll_msg_answer_inq(tcp.sk(), self.ptr.as_ptr(), left) }
    }
}

impl Splice<'_> {
    /// Flags of the call (`SPLICE_F_NONBLOCK` …). Whether to wait for data is said by the file
    /// ([`Tcp::is_nonblocking`]), as with TCP.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Fills the pipe by [`Operations::recvmsg`](super::Operations::recvmsg) of the same socket,
    /// which gets pages of the kernel to copy to: how much. May sleep.
    ///
    /// # Errors
    ///
    /// Those of `recvmsg`; `EAGAIN`: the pipe is full, `ENOMEM`.
    pub fn by_recvmsg(&mut self, tcp: &Tcp, len: usize) -> Result<usize> {
        // SAFETY: the socket is valid, and its file, if it has one, while an operation runs;
        // position and pipe are the caller's, who has locked the pipe.
        let n = unsafe {
            bindings::extoll_sock_splice_by_recvmsg(
                tcp.as_raw(),
                self.pos,
                self.pipe,
                len,
                self.flags,
            )
        };
        usize::try_from(n).map_err(|_| Error::from_errno(n as c_int))
    }
}
