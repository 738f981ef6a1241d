// SPDX-License-Identifier: GPL-2.0-only

//! Reports what goes wrong with a NIC: counters, the tracepoint `extoll_error`, and log lines at a
//! limited rate.

use crate::stats::{Reason, Stats};
use kernel::{
    device::{self, Bound},
    prelude::*,
    sync::aref::ARef,
};
use kernel_ext::{
    ratelimit::{RateLimit, Suppressed},
    trace,
};

/// Where a NIC's errors go.
pub(crate) struct Report {
    dev: ARef<device::Device>,
    id: u32,
    stats: Stats,
    limits: [RateLimit; Reason::ALL.len()],
}

impl Report {
    /// `id` identifies the NIC on this host, `log_interval_ms` is the time in which a reason gets
    /// few log lines.
    pub(crate) fn new(dev: &device::Device<Bound>, id: u32, log_interval_ms: u32) -> Self {
        Self {
            dev: dev.into(),
            id,
            stats: Stats::new(),
            limits: core::array::from_fn(|_| RateLimit::new(log_interval_ms)),
        }
    }

    /// Number that identifies the NIC on this host.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The device, for log lines.
    pub(crate) fn device(&self) -> &device::Device {
        &self.dev
    }

    /// Counters.
    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Counts, traces and (rate-limited) logs an error. Any context.
    pub(crate) fn error(&self, reason: Reason, detail: u64) {
        self.note(reason, detail);
        if let Some(missed) = self.log_allowance(reason) {
            let (n, text) = (reason as u32, reason.text());
            dev_warn!(
                self.dev,
                "reason {n}: {text} ({detail:#x}){}\n",
                Suppressed(missed)
            );
        }
    }

    /// Counts and traces an error without a log line. Any context.
    pub(crate) fn note(&self, reason: Reason, detail: u64) {
        self.stats.count(reason);
        trace::error(self.id, reason as u32, detail);
    }

    /// Whether a line about `reason` may be logged now: how many were suppressed since the last
    /// one.
    pub(crate) fn log_allowance(&self, reason: Reason) -> Option<u32> {
        self.limits.get(reason as usize)?.allow()
    }
}
