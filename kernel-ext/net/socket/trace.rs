// SPDX-License-Identifier: GPL-2.0-only

//! What can be seen of a sock from outside: its queues, and tracepoints of system `extl` (`extl_trace.h`). Any context; a disabled
//! tracepoint costs a call and a patched branch.

use super::Endpoint;
use crate::bindings;

/// Bytes in the queues of TCP: not read, and not acknowledged. Of a socket that listens: connections that wait, and how many may.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queues {
    /// Not read.
    pub receive: u32,
    /// Not acknowledged.
    pub send: u32,
}

impl Endpoint {
    /// TCP's queues, of a moment.
    pub fn queues(&self) -> Queues {
        let mut raw = bindings::extoll_sock_queues::default();
        // SAFETY: valid by the invariants; `raw` is written.
        unsafe { bindings::extoll_sock_queues(self.as_raw(), &mut raw) };
        Queues {
            receive: raw.receive,
            send: raw.send,
        }
    }

    /// TCP carries the data, for a reason with this number and name.
    pub fn trace_fallback(&self, reason: u8, name: &'static str) {
        let len = name.len() as i32;
        // SAFETY: the sock is valid by the invariants; the name has `len` bytes, which are copied.
        unsafe {
            bindings::extoll_trace_extl_fallback(self.as_raw(), reason, name.as_ptr().cast(), len)
        }
    }

    /// So many bytes were taken from a program that sends; `direct` unless TCP has them.
    #[inline]
    pub fn trace_sent(&self, bytes: u64, direct: bool) {
        // SAFETY: the sock is valid by the invariants.
        unsafe { bindings::extoll_trace_extl_tx(self.as_raw(), bytes, direct) }
    }

    /// So many bytes were given to a program that receives.
    #[inline]
    pub fn trace_received(&self, bytes: u64, direct: bool) {
        // SAFETY: the sock is valid by the invariants.
        unsafe { bindings::extoll_trace_extl_rx(self.as_raw(), bytes, direct) }
    }

    /// A program ends directions, by the numbers of `shutdown(2)`.
    pub fn trace_shutdown(&self, how: i32, direct: bool) {
        // SAFETY: the sock is valid by the invariants.
        unsafe { bindings::extoll_trace_extl_shutdown(self.as_raw(), how, direct) }
    }
}
