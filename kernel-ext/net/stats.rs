// SPDX-License-Identifier: GPL-2.0-only

//! Frame counters per CPU, 64-bit statistics for user space, and byte queue limits.

use crate::bindings;
use core::ptr::NonNull;
use kernel::prelude::*;

/// Counts of frames and bytes sent and received. Each CPU has its own 64-bit counters, so exact
/// counts need no lock.
pub(super) struct PerCpuStats(NonNull<bindings::extoll_net_stats>);

// SAFETY: the pointer is a per-CPU allocation, which every CPU may use through the C functions.
unsafe impl Send for PerCpuStats {}
// SAFETY: the C functions change only the counters of the running CPU, by single instructions, and
// read whole words.
unsafe impl Sync for PerCpuStats {}

impl PerCpuStats {
    /// Allocates zeroed counters. May sleep.
    pub(super) fn new() -> Result<Self> {
        // SAFETY: the function has no preconditions.
        let p = unsafe { bindings::extoll_net_stats_alloc() };
        Ok(Self(NonNull::new(p).ok_or(ENOMEM)?))
    }

    #[inline]
    pub(super) fn rx(&self, bytes: u32) {
        // SAFETY: `self.0` came from `extoll_net_stats_alloc()`; only `drop()` frees it.
        unsafe { bindings::extoll_net_stats_rx(self.0.as_ptr(), bytes) }
    }

    #[inline]
    pub(super) fn tx(&self, packets: u32, bytes: u64) {
        // SAFETY: the reasons given in `rx()` apply.
        unsafe { bindings::extoll_net_stats_tx(self.0.as_ptr(), packets, bytes) }
    }

    pub(super) fn sum(&self) -> bindings::extoll_net_stats {
        let mut sum = bindings::extoll_net_stats::default();
        // SAFETY: `self.0` is valid as in `rx()`; `sum` is a local variable.
        unsafe { bindings::extoll_net_stats_sum(self.0.as_ptr(), &mut sum) };
        sum
    }
}

impl Drop for PerCpuStats {
    fn drop(&mut self) {
        // SAFETY: `self.0` came from `extoll_net_stats_alloc()`, and no other reference exists.
        unsafe { bindings::extoll_net_stats_free(self.0.as_ptr()) }
    }
}

/// Statistics that user space reads (`ip -s link`, `ifconfig`).
///
/// Frames and bytes are already filled in. A driver adds its errors, and the stack adds its own
/// drops afterwards.
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
    /// Received frames that the driver dropped without a more specific error (no memory, filtered).
    add_rx_dropped => rx_dropped,
    /// Received frames with an error, including those in the detailed counters below.
    add_rx_errors => rx_errors,
    /// Received frames with an invalid length.
    add_rx_length_errors => rx_length_errors,
    /// Received frames that were damaged, for example with a broken sequence of fragments.
    add_rx_frame_errors => rx_frame_errors,
    /// Announced frames that did not arrive.
    add_rx_missed => rx_missed_errors,
    /// Frames that the driver decided not to send.
    add_tx_dropped => tx_dropped,
    /// Frames that were not sent because of an error, including those in the detailed counters
    /// below.
    add_tx_errors => tx_errors,
    /// Frames whose transmission was aborted after a time-out.
    add_tx_aborted => tx_aborted_errors,
    /// Received multicast frames.
    add_multicast => multicast,
}

impl Stats64 {
    /// Wraps the memory that the stack passes to `ndo_get_stats64`.
    ///
    /// # Safety
    ///
    /// `p` must be valid and not shared during `'a`.
    pub(super) unsafe fn from_raw<'a>(p: *mut bindings::rtnl_link_stats64) -> &'a mut Self {
        // SAFETY: by the function's requirements `p` is valid; `Self` is a transparent wrapper of
        // the C type.
        unsafe { &mut *p.cast() }
    }

    pub(super) fn set_base(&mut self, s: &bindings::extoll_net_stats) {
        self.0.rx_packets = s.rx_packets;
        self.0.rx_bytes = s.rx_bytes;
        self.0.tx_packets = s.tx_packets;
        self.0.tx_bytes = s.tx_bytes;
    }
}

/// Bytes that [`TxQueue::bql_sent`](super::TxQueue::bql_sent) charged to the byte queue limit. The
/// bytes are returned exactly once, through [`BqlDone`]. If a token is dropped instead, its bytes
/// stay charged until the interface goes down.
#[must_use = "the queue stays charged with these bytes"]
#[derive(Debug)]
pub struct BqlToken {
    pub(super) bytes: u32,
    pub(super) generation: u64,
}

/// Sum of [`BqlToken`]s that are returned together.
#[derive(Debug, Default)]
pub struct BqlDone {
    pub(super) packets: u32,
    pub(super) bytes: u32,
    pub(super) generation: u64,
}

impl BqlDone {
    /// Adds one frame. Ignores tokens from before the last restart of the interface, because the
    /// restart reset the charges.
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
            // An overflow would need a million frames of the maximum size; BQL itself counts in 32
            // bits.
            self.bytes = self.bytes.saturating_add(token.bytes);
        }
    }
}
