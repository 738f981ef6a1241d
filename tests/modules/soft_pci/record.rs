// SPDX-License-Identifier: GPL-2.0-only

//! Counters that the debugfs file shows.

use crate::device::VECTORS;
use kernel::{
    fmt,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

pub(crate) struct Record {
    /// Number of probes.
    pub(crate) probed: Atomic<u32>,
    /// Number of failed checks. The log describes each of them.
    pub(crate) failed: Atomic<u32>,
    /// Number of checks.
    pub(crate) checked: Atomic<u32>,
    /// Number of notifications that a device was lost.
    pub(crate) notified: Atomic<u32>,
    /// IDs read on removal of the driver.
    pub(crate) id_at_end: Atomic<u32>,
    /// Interrupts of each vector.
    pub(crate) handled: [Atomic<u32>; VECTORS as usize],
}

pub(crate) static RECORD: Record = Record {
    probed: Atomic::new(0),
    failed: Atomic::new(0),
    checked: Atomic::new(0),
    notified: Atomic::new(0),
    id_at_end: Atomic::new(0),
    handled: [const { Atomic::new(0) }; VECTORS as usize],
};

/// Records the result of a check.
pub(crate) fn note(right: bool, what: &str) {
    RECORD.checked.add(1, Relaxed);
    if !right {
        RECORD.failed.add(1, Relaxed);
        pr_err!("check failed: {}\n", what);
    }
}

/// Checks a condition; `what` describes the error.
macro_rules! check {
    ($right:expr, $what:expr) => {
        $crate::record::note($right, $what)
    };
}
pub(crate) use check;

impl Record {
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in [
            ("probed", &self.probed),
            ("failed", &self.failed),
            ("checked", &self.checked),
            ("told", &self.notified),
            ("id_at_end", &self.id_at_end),
        ] {
            writeln!(f, "{} {}", name, value.load(Relaxed))?;
        }
        for (n, count) in self.handled.iter().enumerate() {
            writeln!(f, "handled_{} {}", n, count.load(Relaxed))?;
        }
        Ok(())
    }
}
