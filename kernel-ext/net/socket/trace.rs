// SPDX-License-Identifier: GPL-2.0-only

//! Diagnostics of a sock: its queues, and tracepoints of system `extl` (`extl_trace.h`). Any
//! context. A disabled tracepoint costs a call and a patched branch.

use super::Endpoint;
use crate::bindings;

/// Queue lengths as `ss` shows them, in bytes for a connection, and in connections for a listening
/// socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queues {
    /// Bytes that the program has not read, or connections that wait for `accept`.
    pub receive: u32,
    /// Bytes that the peer has not acknowledged, or maximum number of waiting connections.
    pub send: u32,
}

impl Endpoint {
    /// Returns TCP's queue lengths at this moment.
    pub fn queues(&self) -> Queues {
        let mut raw = bindings::extoll_sock_queues::default();
        // SAFETY: the sock is valid by the type invariant; the function writes `raw`.
        unsafe { bindings::extoll_sock_queues(self.as_raw(), &mut raw) };
        Queues {
            receive: raw.receive,
            send: raw.send,
        }
    }

    /// Traces that TCP carries the data, with number and name of the reason.
    pub fn trace_fallback(&self, reason: u8, name: &'static str) {
        let len = name.len() as i32;
        // SAFETY: the sock is valid by the type invariant; the name has `len` bytes, which are
        // copied.
        unsafe {
            bindings::extoll_trace_extl_fallback(self.as_raw(), reason, name.as_ptr().cast(), len)
        }
    }

    /// Traces that a program sent `bytes` bytes; `direct` is false if TCP carries them.
    #[inline]
    pub fn trace_sent(&self, bytes: u64, direct: bool) {
        // SAFETY: the sock is valid by the type invariant.
        unsafe { bindings::extoll_trace_extl_tx(self.as_raw(), bytes, direct) }
    }

    /// Traces that a program received `bytes` bytes; `direct` is false if TCP carried them.
    #[inline]
    pub fn trace_received(&self, bytes: u64, direct: bool) {
        // SAFETY: the sock is valid by the type invariant.
        unsafe { bindings::extoll_trace_extl_rx(self.as_raw(), bytes, direct) }
    }

    /// Traces that a program shuts down directions. `how` is the argument of `shutdown(2)`.
    pub fn trace_shutdown(&self, how: i32, direct: bool) {
        // SAFETY: the sock is valid by the type invariant.
        unsafe { bindings::extoll_trace_extl_shutdown(self.as_raw(), how, direct) }
    }
}
