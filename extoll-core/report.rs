// SPDX-License-Identifier: GPL-2.0-only

//! Reporting of a NIC's errors: counters, the tracepoint `extoll_error`, and rate-limited log
//! lines. The only locks are those of the rate limits; any context.

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

/// Error reporting of one NIC.
pub(crate) struct Report {
    dev: ARef<device::Device>,
    id: u32,
    stats: Stats,
    limits: [RateLimit; Reason::ALL.len()],
}

impl Report {
    /// Makes the reporting. `id` identifies the NIC on this host. `log_interval_ms` is the interval
    /// in ms for which the log lines of each reason are limited.
    pub(crate) fn new(dev: &device::Device<Bound>, id: u32, log_interval_ms: u32) -> Self {
        Self {
            dev: dev.into(),
            id,
            stats: Stats::new(),
            limits: core::array::from_fn(|_| RateLimit::new(log_interval_ms)),
        }
    }

    /// Returns the number that identifies the NIC on this host.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns the device, for log lines.
    pub(crate) fn device(&self) -> &device::Device {
        &self.dev
    }

    /// Returns the counters.
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

    /// Returns the number of suppressed lines since the last line about `reason`; `None` if no line
    /// may be logged now.
    pub(crate) fn log_allowance(&self, reason: Reason) -> Option<u32> {
        self.limits.get(reason as usize)?.allow()
    }
}
