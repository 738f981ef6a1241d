// SPDX-License-Identifier: GPL-2.0-only

//! What happened to the messages of a NIC.

use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};
use kernel_ext::ratelimit::{RateLimit, Suppressed};
use wire::velo::Status;

/// The log has four messages that are not taken in so many milliseconds.
const INTERVAL_MS: u32 = 5_000;

/// Why a message is not taken, by number (docs/vpci.md, /dev/extoll_pci).
#[derive(Clone, Copy)]
pub(crate) enum Reject {
    /// Its sender is not the module of a node.
    Source = 1,
    /// It has no such form.
    Form = 2,
}

/// What happened.
pub(crate) struct Counts {
    pub(crate) received: Atomic<u64>,
    pub(crate) sent: Atomic<u64>,
    pub(crate) not_sent: Atomic<u64>,
    pub(crate) rejected: Atomic<u64>,
    pub(crate) foreign: Atomic<u64>,
    pub(crate) interrupts: Atomic<u64>,
    /// Devices of accelerators that were lost; that were not believed; lease words written again.
    pub(crate) lost: Atomic<u64>,
    pub(crate) odd: Atomic<u64>,
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

    /// Counts a message that is not taken, and says so. Any context.
    pub(crate) fn reject(&self, why: Reject, status: &Status) {
        let (count, what) = match why {
            Reject::Source => (&self.foreign, "not from the module of a node"),
            Reject::Form => (&self.rejected, "of no such form"),
        };
        count.fetch_add(1, Relaxed);
        if let Some(missed) = self.lines.allow() {
            pr_warn!(
                "reason {}: message {}: from node {}, VPID {}, tag {:#x}, {} bytes{}\n",
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
