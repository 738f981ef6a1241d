// SPDX-License-Identifier: GPL-2.0-only

//! Per-CPU frame counters, the 64-bit statistics handed to user space, and byte queue limits.

use crate::bindings;
use core::ptr::NonNull;
use kernel::prelude::*;

/// Frames and bytes sent and received, one set of 64-bit counters per CPU, so that no lock is needed and no count is lost.
pub(super) struct PerCpuStats(NonNull<bindings::extoll_net_stats>);

// SAFETY: The pointer is a per-CPU allocation that every CPU may use through the C accessors.
unsafe impl Send for PerCpuStats {}
// SAFETY: The C accessors change only the counters of the running CPU, by single instructions, and read whole words.
unsafe impl Sync for PerCpuStats {}

impl PerCpuStats {
    /// Allocates zeroed counters. May sleep.
    pub(super) fn new() -> Result<Self> {
        // SAFETY: No preconditions.
        let p = unsafe { bindings::extoll_net_stats_alloc() };
        Ok(Self(NonNull::new(p).ok_or(ENOMEM)?))
    }

    #[inline]
    pub(super) fn rx(&self, bytes: u32) {
        // SAFETY: `self.0` came from `extoll_net_stats_alloc()` and is freed in `drop()` only.
        unsafe { bindings::extoll_net_stats_rx(self.0.as_ptr(), bytes) }
    }

    #[inline]
    pub(super) fn tx(&self, packets: u32, bytes: u64) {
        // SAFETY: As in `rx()`.
        unsafe { bindings::extoll_net_stats_tx(self.0.as_ptr(), packets, bytes) }
    }

    pub(super) fn sum(&self) -> bindings::extoll_net_stats {
        let mut sum = bindings::extoll_net_stats::default();
        // SAFETY: `self.0` is valid as in `rx()`, `sum` is a live local.
        unsafe { bindings::extoll_net_stats_sum(self.0.as_ptr(), &mut sum) };
        sum
    }
}

impl Drop for PerCpuStats {
    fn drop(&mut self) {
        // SAFETY: `self.0` came from `extoll_net_stats_alloc()`; nobody else refers to it.
        unsafe { bindings::extoll_net_stats_free(self.0.as_ptr()) }
    }
}

/// The statistics that user space reads (`ip -s link`, `ifconfig`).
///
/// Frames and bytes are already filled in, and the stack's own drops are added afterwards; a driver adds its errors.
#[repr(transparent)]
pub struct Stats64(bindings::rtnl_link_stats64);

macro_rules! stats_adders {
    ($($(#[$doc:meta])* $name:ident => $field:ident),* $(,)?) => {
        impl Stats64 {
            $($(#[$doc])*
            #[inline]
            pub fn $name(&mut self, n: u64) -> &mut Self {
                self.0.$field = self.0.$field.wrapping_add(n);
                self
            })*
        }
    };
}

stats_adders! {
    /// Frames received and thrown away by the driver without an error of their own (no memory, filtered).
    add_rx_dropped => rx_dropped,
    /// Frames received with an error; the detailed counters below are part of it.
    add_rx_errors => rx_errors,
    /// Received frames of impossible length.
    add_rx_length_errors => rx_length_errors,
    /// Received frames that were damaged: broken fragment sequence and the like.
    add_rx_frame_errors => rx_frame_errors,
    /// Frames announced but lost on the way.
    add_rx_missed => rx_missed_errors,
    /// Frames not sent by decision of the driver.
    add_tx_dropped => tx_dropped,
    /// Frames not sent because of an error; the detailed counters below are part of it.
    add_tx_errors => tx_errors,
    /// Frames given up after a time-out.
    add_tx_aborted => tx_aborted_errors,
    /// Multicast frames received.
    add_multicast => multicast,
}

impl Stats64 {
    /// Wraps the storage that the stack passes to `ndo_get_stats64`.
    ///
    /// # Safety
    ///
    /// `p` must be valid and unshared for `'a`.
    pub(super) unsafe fn from_raw<'a>(p: *mut bindings::rtnl_link_stats64) -> &'a mut Self {
        // SAFETY: By the requirements; `Self` is transparent over the C type.
        unsafe { &mut *p.cast() }
    }

    pub(super) fn set_base(&mut self, s: &bindings::extoll_net_stats) {
        self.0.rx_packets = s.rx_packets;
        self.0.rx_bytes = s.rx_bytes;
        self.0.tx_packets = s.tx_packets;
        self.0.tx_bytes = s.tx_bytes;
    }
}

/// Bytes that [`TxQueue::bql_sent`](super::TxQueue::bql_sent) charged to the byte queue limit: to be given back exactly once through
/// [`BqlDone`]. Dropping one without giving it back leaves the limit charged until the interface goes down.
#[must_use = "the queue stays charged with these bytes"]
#[derive(Debug)]
pub struct BqlToken {
    pub(super) bytes: u32,
    pub(super) generation: u64,
}

/// Sum of [`BqlToken`]s that are given back together.
#[derive(Debug, Default)]
pub struct BqlDone {
    pub(super) packets: u32,
    pub(super) bytes: u32,
    pub(super) generation: u64,
}

impl BqlDone {
    /// Adds one frame. Tokens from before the last restart of the interface no longer count and are ignored.
    pub fn add(&mut self, token: BqlToken) {
        if token.generation > self.generation {
            *self = Self {
                packets: 0,
                bytes: 0,
                generation: token.generation,
            };
        }
        if token.generation == self.generation {
            self.packets += 1;
            // A sum of this size would be a million largest frames; BQL itself counts in 32 bits.
            self.bytes = self.bytes.saturating_add(token.bytes);
        }
    }
}
