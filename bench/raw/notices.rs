// SPDX-License-Identifier: GPL-2.0-only

//! Commands that listen to trigger events (`event`) and to interrupts by other nodes (`messages`),
//! for tests.

use crate::{remote::Words, report::Report};
use extoll_core::{
    events::{EventClient, Report as EventReport},
    nic::Nic,
    snq::MessageClient,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
    time::{delay::fsleep, Delta},
};
use wire::snq::TriggerEvent;

struct Heard {
    calls: Atomic<u64>,
    /// Words of the last report; of messages those that were nothing else for sure.
    words: Atomic<u64>,
    last: Atomic<u64>,
}

impl Heard {
    fn new() -> Result<Arc<Self>> {
        let new = Self {
            calls: Atomic::new(0),
            words: Atomic::new(0),
            last: Atomic::new(0),
        };
        Ok(Arc::new(new, GFP_KERNEL)?)
    }
}

/// The type of both clients, as traits are not implemented for `Arc`.
struct Ear(Arc<Heard>);

impl EventClient for Ear {
    fn event(&self, report: &EventReport<'_>) {
        let words = report.words.len().min(report.registers.len());
        self.0.calls.add(1, Relaxed);
        self.0.words.store(words as u64, Relaxed);
        let last = report.words.last().copied();
        self.0.last.store(last.unwrap_or(0), Relaxed);
    }
}

impl MessageClient for Ear {
    fn message(&self, sure: bool) {
        self.0.calls.add(1, Relaxed);
        self.0.words.add(u64::from(sure), Relaxed);
    }
}

/// Listens to an event for a while.
pub(crate) fn event(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    let event = TriggerEvent::from_number(w.event).ok_or(EINVAL)?;
    let heard = Heard::new()?;
    let client = Arc::new(Ear(heard.clone()), GFP_KERNEL)?;
    let subscription = match nic.subscribe_event(event, client) {
        Ok(subscription) => subscription,
        Err(e) => return report.fail(e, fmt!("{e:?}")),
    };
    fsleep(Delta::from_millis(w.ms as i64));
    drop(subscription);
    // From here on nobody is called.
    let calls = heard.calls.load(Relaxed);
    fsleep(Delta::from_millis(w.ms as i64));
    report.number("calls", calls)?;
    report.number("late", heard.calls.load(Relaxed) - calls)?;
    report.number("words", heard.words.load(Relaxed))?;
    report.number("last", heard.last.load(Relaxed))
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
    report.number("sure", heard.words.load(Relaxed))
}
