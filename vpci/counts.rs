// SPDX-License-Identifier: GPL-2.0-only

//! Counters of a NIC. All operations are possible in any context.

use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};
use kernel_ext::ratelimit::{RateLimit, Suppressed};
use wire::velo::Status;

/// Interval in ms in which up to four rejected messages are logged.
const INTERVAL_MS: u32 = 5_000;

/// Reason why a message is rejected. The numbers are in docs/vpci.md, /dev/extoll_pci.
#[derive(Clone, Copy)]
pub(crate) enum Reject {
    /// The sender is not the port of this module on another node.
    Source = 1,
    /// The message has an invalid form.
    Form = 2,
}

/// Counters of a NIC.
pub(crate) struct Counts {
    pub(crate) received: Atomic<u64>,
    pub(crate) sent: Atomic<u64>,
    pub(crate) not_sent: Atomic<u64>,
    pub(crate) rejected: Atomic<u64>,
    pub(crate) foreign: Atomic<u64>,
    pub(crate) interrupts: Atomic<u64>,
    /// Devices of accelerators that were lost.
    pub(crate) lost: Atomic<u64>,
    /// Devices of accelerators that are not usable PCI functions.
    pub(crate) odd: Atomic<u64>,
    /// Lease words of accelerators that were written again after a competing claim.
    pub(crate) rewritten: Atomic<u64>,
    lines: RateLimit,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            received: Atomic::new(0),
            sent: Atomic::new(0),
            not_sent: Atomic::new(0),
            rejected: Atomic::new(0),
            foreign: Atomic::new(0),
            interrupts: Atomic::new(0),
            lost: Atomic::new(0),
            odd: Atomic::new(0),
            rewritten: Atomic::new(0),
            lines: RateLimit::new(INTERVAL_MS),
        }
    }

    /// Counts a rejected message and logs it, rate-limited. Any context.
    pub(crate) fn reject(&self, why: Reject, status: &Status) {
        let (count, what) = match why {
            Reject::Source => (&self.foreign, "sender is not a vpci port"),
            Reject::Form => (&self.rejected, "invalid form"),
        };
        count.fetch_add(1, Relaxed);
        if let Some(missed) = self.lines.allow() {
            pr_warn!(
                "reason {}: message dropped: {}: from node {}, VPID {}, tag {:#x}, {} bytes{}\n",
                why as u8,
                what,
                status.source.node.0,
                status.source.vpid.get(),
                status.tag,
                status.len,
                Suppressed(missed)
            );
        }
    }
}
