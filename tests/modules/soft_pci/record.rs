// SPDX-License-Identifier: GPL-2.0-only

//! What happened, for whoever reads the file.

use crate::device::VECTORS;
use kernel::{
    fmt,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

pub(crate) struct Record {
    /// Devices that a driver was asked to take.
    pub(crate) probed: Atomic<u32>,
    /// Checks that failed; the log has which.
    pub(crate) failed: Atomic<u32>,
    /// Checks that were made.
    pub(crate) checked: Atomic<u32>,
    /// Drivers that were told of the loss of their device.
    pub(crate) told: Atomic<u32>,
    /// What was read as IDs when the driver let go of its device.
    pub(crate) id_at_end: Atomic<u32>,
    /// Interrupts of each vector.
    pub(crate) handled: [Atomic<u32>; VECTORS as usize],
}

pub(crate) static RECORD: Record = Record {
    probed: Atomic::new(0),
    failed: Atomic::new(0),
    checked: Atomic::new(0),
    told: Atomic::new(0),
    id_at_end: Atomic::new(0),
    handled: [const { Atomic::new(0) }; VECTORS as usize],
};

/// Notes a check.
pub(crate) fn note(right: bool, what: &str) {
    RECORD.checked.add(1, Relaxed);
    if !right {
        RECORD.failed.add(1, Relaxed);
        pr_err!("check failed: {}\n", what);
    }
}

/// A check: what holds, and what is wrong otherwise.
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
            ("told", &self.told),
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
