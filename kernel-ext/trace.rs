// SPDX-License-Identifier: GPL-2.0-only

//! Tracepoints of system `extoll` (defined in `trace.h`). Any context. A disabled tracepoint costs
//! a call and a patched branch. `nic` is [`crate::pci::unique_id`].

use crate::bindings;

macro_rules! trace {
    ($($(#[$doc:meta])* $name:ident => $c:ident($($arg:ident: $ty:ty),*);)*) => {$(
        $(#[$doc])*
        #[inline]
        pub fn $name($($arg: $ty),*) {
            // SAFETY: the C function takes integers only and may be called in any context.
            unsafe { bindings::$c($($arg),*) }
        }
    )*};
}

trace! {
    /// A VELO message was written to the requester page; `slot` is its packet number modulo 256.
    velo_post => extoll_trace_velo_post(nic: u32, vpid: u8, slot: u8, descriptor: u64);
    /// A VELO message was read from the mailbox.
    velo_complete => extoll_trace_velo_complete(nic: u32, vpid: u8, slot: u32, status: u64);
    /// An RMA descriptor was written to the requester page.
    rma_post => extoll_trace_rma_post(nic: u32, vpid: u8, word0: u64, word1: u64, word2: u64);
    /// An RMA notification was read from its queue.
    rma_complete => extoll_trace_rma_complete(
        nic: u32, vpid: u8, slot: u32, word0: u64, word1: u64
    );
    /// An interrupt was handled; `entries` system notifications were consumed.
    interrupt => extoll_trace_interrupt(nic: u32, entries: u32, read_pointer: u16);
    /// A system notification arrived. `trigger` is its trigger event, `part` the index of this part
    /// of its report, `word` the first word that is not 0.
    event => extoll_trace_event(nic: u32, trigger: u32, part: u32, word: u64);
    /// An error was counted; `reason` is the number of `extoll_core::stats::Reason`.
    error => extoll_trace_error(nic: u32, reason: u32, detail: u64);
}
