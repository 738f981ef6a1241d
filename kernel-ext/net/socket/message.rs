// SPDX-License-Identifier: GPL-2.0-only

//! Content of messages: copies to and from memory that a device may access at the same time.

use super::{
    tcp::{Incoming, Outgoing, Splice},
    Tcp,
};
use crate::{bindings, mem::PageList};
use core::ptr::{addr_of_mut, NonNull};
use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc,
    },
};

/// Returns the number of copied bytes. Returns `EFAULT` if no byte could be copied, because the
/// program's memory is not mapped.
fn copied(n: usize, wanted: usize) -> Result<usize> {
    match n {
        0 if wanted > 0 => Err(EFAULT),
        _ => Ok(n),
    }
}

/// Returns address and length of the next contiguous chunk of a message that is in memory of a
/// process; `None` for other memory. Does not sleep.
fn next_piece(iter: *mut bindings::iov_iter) -> Option<(usize, usize)> {
    let mut start = 0;
    // SAFETY: only the caller uses the iterator. A copy may be advanced separately, and does not
    // outlive the iterator.
    let len = unsafe {
        let mut copy = iter.read();
        bindings::extoll_iter_chunk(&mut copy, usize::MAX, &mut start)
    };
    let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
    Some((start, len))
}

impl Outgoing<'_> {
    /// Returns address and length of the next contiguous chunk in memory of the current process.
    /// Returns `None` if no bytes are left, or if the message is not in memory of a process. The
    /// memory may not be mapped; only pinning ([`PageList::pin`]) shows whether it is mapped.
    pub fn next_piece(&self) -> Option<(usize, usize)> {
        // SAFETY: the message is valid while `self` exists, and only this thread uses it.
        next_piece(unsafe { addr_of_mut!((*self.ptr.as_ptr()).msg_iter) })
    }

    /// Removes up to `len` bytes, which were sent by another path, from the message. Returns the
    /// number of removed bytes.
    pub fn skip(&mut self, len: usize) -> usize {
        let n = len.min(self.remaining());
        // SAFETY: the iterator is valid, only this thread uses it, and `n` bytes are left.
        unsafe {
            let iter = addr_of_mut!((*self.ptr.as_ptr()).msg_iter);
            bindings::iov_iter_advance(iter, n);
        }
        n
    }

    /// Returns the number of bytes that remain in the message.
    #[inline]
    pub fn remaining(&self) -> usize {
        // SAFETY: the message is valid while `self` exists, and only this thread uses it.
        unsafe { bindings::extoll_msg_left(self.ptr.as_ptr()) }
    }

    /// Checks the control messages as TCP does. TCP applies control messages to the segments that
    /// it sends (`SO_MARK`, time stamps …); other data paths ignore control messages. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: TCP would reject the control messages.
    pub fn check_control(&self, tcp: &Tcp) -> Result {
        // SAFETY: sock and message are valid; control messages are in kernel memory.
        let ret = unsafe { bindings::extoll_msg_check_control(tcp.sk(), self.ptr.as_ptr()) };
        kernel::error::to_result(ret)
    }

    /// Clears flags of the call, before it is passed to TCP's `sendmsg`.
    pub fn clear_flags(&mut self, flags: u32) {
        // SAFETY: the message is valid while `self` exists, and only this thread uses it.
        unsafe { (*self.ptr.as_ptr()).msg_flags &= !flags };
    }

    /// Calls `f` with the message as if it had no data, for the effects of TCP's `sendmsg` other
    /// than sending. `f` must not remove bytes from the message.
    pub fn without_data<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        // SAFETY: the message is valid and only this thread uses it.
        let left = unsafe { bindings::extoll_msg_hide(self.ptr.as_ptr()) };
        let result = f(self);
        // SAFETY: the message is valid and only this thread uses it. The iterator has not moved,
        // because the message had no bytes.
        unsafe { bindings::extoll_msg_show(self.ptr.as_ptr(), left) };
        result
    }

    /// Makes the completion of a call with `MSG_ZEROCOPY`, if `SO_ZEROCOPY` is set. Like TCP's
    /// completion, this completion reports whether data were copied. The caller makes the
    /// completion before the first byte is read from the message. All users that still read the
    /// memory share the completion. The completion charges no memory; pinning does. Takes the
    /// sock's lock, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOBUFS`: too many completions are pending; TCP's `sendmsg` would also fail. `ENOMEM`.
    pub fn zerocopy(&self, tcp: &Tcp) -> Result<Option<Arc<Zerocopy>>> {
        // SAFETY: sock and message are valid; the caller is in process context and holds no spin
        // lock.
        let raw = unsafe { bindings::extoll_zerocopy_begin(tcp.sk(), self.ptr.as_ptr()) };
        let Some(ptr) = NonNull::new(from_err_ptr(raw)?) else {
            return Ok(None);
        };
        // INVARIANT: `ptr` is a new reference. If the allocation fails, the drop discards the
        // completion.
        let completion = Zerocopy {
            ptr,
            sent: AtomicFlag::new(false),
            copied: AtomicFlag::new(false),
        };
        Ok(Some(Arc::new(completion, GFP_KERNEL)?))
    }

    /// Removes up to `len` bytes from the message, copies them to `to` at byte `at`, and returns
    /// the number of bytes. The number is less than `len` and [`Outgoing::remaining`] if the
    /// program's memory ends earlier. Works for all messages, including those of `splice()` and
    /// `sendfile()` (`MSG_SPLICE_PAGES`), whose pages are copied. A device may access `to` at the
    /// same time. Process context without spin locks; may sleep.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the message's memory could not be read. `EINVAL`: the range exceeds `to`, or `to`
    /// is not writable; no bytes were removed from the message.
    pub fn copy_in(&mut self, to: &PageList, at: usize, len: usize) -> Result<usize> {
        if !to.is_writable() {
            return Err(EINVAL);
        }
        let len = len.min(self.remaining());
        // SAFETY: the message is valid and only this thread uses it.
        let iter = unsafe { addr_of_mut!((*self.ptr.as_ptr()).msg_iter) };
        let n = to.for_each_chunk(at, len, |to, n, _| {
            // SAFETY: `to` has `n` bytes of a page that stays allocated and may be written.
            // References to the page's content do not exist. A device or another CPU may access the
            // page at the same time; C code does the accesses, so the Rust compiler assumes nothing
            // about them. The iterator is for reading, and its memory is valid during the call.
            unsafe { bindings::_copy_from_iter(to.cast(), n, iter) }
        })?;
        copied(n, len)
    }
}

/// Completion of `MSG_ZEROCOPY`. The drop puts the completion into the error queue and wakes
/// waiting tasks. If no bytes were sent, the drop discards the completion. The completion may be
/// dropped after the call. A drop after the socket was closed has no effect. Any context.
///
/// # Invariants
///
/// `ptr` is a reference to a completion, owned by this object. The completion holds a reference to
/// the sock.
pub struct Zerocopy {
    ptr: NonNull<bindings::ubuf_info>,
    sent: AtomicFlag,
    copied: AtomicFlag,
}

// SAFETY: any thread may drop the reference, because the error queue has its own lock, and the
// numbers of completions are atomic.
unsafe impl Send for Zerocopy {}
// SAFETY: all accesses by `&Zerocopy` are atomic.
unsafe impl Sync for Zerocopy {}

impl Zerocopy {
    /// Records that bytes were sent, and whether they were `copied`.
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
        // SAFETY: by the type invariant this object owns the reference, which is given up.
        unsafe { bindings::extoll_zerocopy_end(self.ptr.as_ptr(), sent, copied) }
    }
}

impl Incoming<'_> {
    /// Returns address and length of the next chunk to be filled in memory of the current process,
    /// like [`Outgoing::next_piece`].
    pub fn next_piece(&self) -> Option<(usize, usize)> {
        // SAFETY: the reasons given in [`Outgoing::next_piece`] apply.
        next_piece(unsafe { addr_of_mut!((*self.ptr.as_ptr()).msg_iter) })
    }

    /// Returns the number of bytes that have not been filled yet.
    #[inline]
    pub fn remaining(&self) -> usize {
        // SAFETY: the message is valid while `self` exists, and only this thread uses it.
        unsafe { bindings::extoll_msg_left(self.ptr.as_ptr()) }
    }

    /// Copies up to `len` bytes from byte `at` of `from` to the message, and returns the number of
    /// copied bytes. The number is less than `len` and [`Incoming::remaining`] if the program's
    /// memory ends earlier. A device may access `from` at the same time. Process context without
    /// spin locks; may sleep.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the message's memory could not be written. `EINVAL`: the range exceeds `from`; no
    /// bytes were copied.
    pub fn copy_out(&mut self, from: &PageList, at: usize, len: usize) -> Result<usize> {
        let len = len.min(self.remaining());
        // SAFETY: the message is valid and only this thread uses it.
        let iter = unsafe { addr_of_mut!((*self.ptr.as_ptr()).msg_iter) };
        let n = from.for_each_chunk(at, len, |from, n, _| {
            // SAFETY: `from` has `n` bytes of a page that stays allocated. A device or another CPU
            // may write these bytes at the same time; C code does the accesses, as in `copy_in`.
            // The iterator is for writing, and its memory is valid during the call.
            unsafe { bindings::_copy_to_iter(from.cast_const().cast(), n, iter) }
        })?;
        copied(n, len)
    }

    /// Copies bytes of a slice to the message, like [`Incoming::copy_out`].
    ///
    /// # Errors
    ///
    /// `EFAULT`: same as for [`Incoming::copy_out`].
    pub fn copy_from_slice(&mut self, from: &[u8]) -> Result<usize> {
        let len = from.len().min(self.remaining());
        // SAFETY: the reasons given in `copy_out` apply.
        let n = unsafe {
            let iter = addr_of_mut!((*self.ptr.as_ptr()).msg_iter);
            bindings::_copy_to_iter(from.as_ptr().cast(), len, iter)
        };
        copied(n, len)
    }

    /// Skips up to `len` bytes of the buffer without accessing the memory (`MSG_TRUNC`, with which
    /// a TCP receiver discards data). Returns the number of skipped bytes.
    pub fn skip(&mut self, len: usize) -> usize {
        let n = len.min(self.remaining());
        // SAFETY: the iterator is valid, only this thread uses it, and `n` bytes are left.
        unsafe {
            let iter = addr_of_mut!((*self.ptr.as_ptr()).msg_iter);
            bindings::iov_iter_advance(iter, n);
        }
        n
    }

    /// Returns true if [`Incoming::answer_inq`] has an effect. Does not sleep.
    #[inline]
    pub fn wants_inq(&self, tcp: &Tcp) -> bool {
        // SAFETY: sock and message are valid and only read.
        unsafe { bindings::extoll_msg_wants_inq(tcp.sk(), self.ptr.as_ptr()) }
    }

    /// Reports the number of unread bytes to a receiver that requested that number (`TCP_INQ`, or
    /// io_uring), as TCP does at the end of a successful call. May sleep.
    pub fn answer_inq(&mut self, tcp: &Tcp, left: usize) {
        let left = i32::try_from(left).unwrap_or(i32::MAX);
        // SAFETY: sock and message are valid; only this thread uses the message.
        unsafe { bindings::extoll_msg_answer_inq(tcp.sk(), self.ptr.as_ptr(), left) }
    }
}

impl Splice<'_> {
    /// Returns the flags of the call (`SPLICE_F_NONBLOCK` …). As in TCP, the flags of the file
    /// ([`Tcp::is_nonblocking`]) decide whether the call waits for data, not these flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Fills the pipe by [`Operations::recvmsg`](super::Operations::recvmsg) of the same socket,
    /// which copies to kernel pages. Returns the number of bytes. May sleep.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: the pipe is full. `ENOMEM`. Other errors come from `recvmsg`.
    pub fn by_recvmsg(&mut self, tcp: &Tcp, len: usize) -> Result<usize> {
        // SAFETY: the socket is valid; its file, if it has one, is valid while an operation runs.
        // Position and pipe belong to the caller, which has locked the pipe.
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
