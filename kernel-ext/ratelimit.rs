// SPDX-License-Identifier: GPL-2.0-only

//! Rate limits for log lines.

use core::num::{NonZeroU32, NonZeroU64};
use kernel::{
    fmt,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
    time::{Instant, Monotonic},
};

/// Allows `BURST` events per interval and counts suppressed events. Any context. There is no lock,
/// so two CPUs that race at the start of an interval may let a few more events pass.
pub struct RateLimit {
    start: Instant<Monotonic>,
    interval_ms: NonZeroU64,
    window: Atomic<u64>,
    used: Atomic<u32>,
    missed: Atomic<u32>,
}

const BURST: u32 = 4;

impl RateLimit {
    /// Returns a limit of 4 events per `interval_ms` milliseconds.
    pub fn new(interval_ms: u32) -> Self {
        Self {
            start: Instant::now(),
            interval_ms: NonZeroU64::from(NonZeroU32::new(interval_ms).unwrap_or(NonZeroU32::MIN)),
            window: Atomic::new(0),
            used: Atomic::new(0),
            missed: Atomic::new(0),
        }
    }

    /// Requests permission for one event. `Some(n)` permits the event; n events were suppressed
    /// since the last permission.
    pub fn allow(&self) -> Option<u32> {
        let now = self.start.elapsed().as_millis().max(0) as u64 / self.interval_ms;
        if self.window.load(Relaxed) != now {
            self.window.store(now, Relaxed);
            self.used.store(0, Relaxed);
        }
        if self.used.fetch_add(1, Relaxed) < BURST {
            Some(self.missed.xchg(0, Relaxed))
        } else {
            self.missed.add(1, Relaxed);
            None
        }
    }
}

/// End of a log line: the number of lines that were suppressed before it, empty if that is 0.
pub struct Suppressed(pub u32);

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, ", {n} suppressed"),
        }
    }
}

#[kunit_tests(kernel_ext_ratelimit)]
mod tests {
    use super::*;
    use kernel::str::CString;

    #[test]
    fn suffix_counts_suppressed() -> Result {
        let line = |n| CString::try_from_fmt(fmt!("line{}", Suppressed(n)));
        assert!(line(0)?.to_bytes() == b"line");
        assert!(line(7)?.to_bytes() == b"line, 7 suppressed");
        Ok(())
    }

    #[test]
    fn a_burst_passes_and_the_rest_is_counted() {
        let limit = RateLimit::new(10_000);
        for _ in 0..BURST {
            assert_eq!(limit.allow(), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(limit.allow(), None);
        }
        // Simulate the start of the next interval.
        limit.window.store(1, Relaxed);
        assert_eq!(limit.allow(), Some(3));
        assert_eq!(limit.allow(), Some(0));
    }
}
