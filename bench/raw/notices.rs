// SPDX-License-Identifier: GPL-2.0-only

//! Command `messages` for tests, which counts interrupts that other nodes raise.

use crate::{remote::Words, report::Report};
use extoll_core::{nic::Nic, snq::MessageClient};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
    time::{delay::fsleep, Delta},
};

struct Counters {
    calls: Atomic<u64>,
    /// Number of interrupts that are known to be messages.
    sure: Atomic<u64>,
}

impl Counters {
    fn new() -> Result<Arc<Self>> {
        let new = Self {
            calls: Atomic::new(0),
            sure: Atomic::new(0),
        };
        Ok(Arc::new(new, GFP_KERNEL)?)
    }
}

/// Client type, needed because `Arc` cannot implement the trait.
struct Client(Arc<Counters>);

impl MessageClient for Client {
    fn message(&self, sure: bool) {
        self.0.calls.add(1, Relaxed);
        self.0.sure.add(u64::from(sure), Relaxed);
    }
}

/// Interval between checks for a signal in milliseconds.
const LOOK_MS: u64 = 20;

/// Counts interrupts that other nodes raise through an interval of the SMFU. The interval is open
/// until a time limit or a signal.
pub(crate) fn messages(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    let counters = Counters::new()?;
    let client = Arc::new(Client(counters.clone()), GFP_KERNEL)?;
    let subscription = nic.subscribe_messages(client, w.per_second)?;
    let target = nic.smfu().interrupt_target(w.interval.ok_or(EINVAL)?)?;
    for _ in 0..w.ms.div_ceil(LOOK_MS) {
        if kernel::current!().signal_pending() {
            break;
        }
        fsleep(Delta::from_millis(LOOK_MS as i64));
    }
    drop(target);
    drop(subscription);
    report.number("calls", counters.calls.load(Relaxed))?;
    report.number("sure", counters.sure.load(Relaxed))
}
