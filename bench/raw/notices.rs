// SPDX-License-Identifier: GPL-2.0-only

//! The command that listens to interrupts by other nodes (`messages`), for tests.

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

struct Heard {
    calls: Atomic<u64>,
    /// Messages that were nothing else for sure.
    sure: Atomic<u64>,
}

impl Heard {
    fn new() -> Result<Arc<Self>> {
        let new = Self {
            calls: Atomic::new(0),
            sure: Atomic::new(0),
        };
        Ok(Arc::new(new, GFP_KERNEL)?)
    }
}

/// The type of the client, as traits are not implemented for `Arc`.
struct Ear(Arc<Heard>);

impl MessageClient for Ear {
    fn message(&self, sure: bool) {
        self.0.calls.add(1, Relaxed);
        self.0.sure.add(u64::from(sure), Relaxed);
    }
}

/// Pause between looks for a signal, in milliseconds.
const LOOK_MS: u64 = 20;

/// Lets others cause interrupts by an interval for a while, or until a signal comes, and counts them.
pub(crate) fn messages(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    let heard = Heard::new()?;
    let client = Arc::new(Ear(heard.clone()), GFP_KERNEL)?;
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
    report.number("calls", heard.calls.load(Relaxed))?;
    report.number("sure", heard.sure.load(Relaxed))
}
