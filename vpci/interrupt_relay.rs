// SPDX-License-Identifier: GPL-2.0-only

//! Interrupts of borrowed devices.
//!
//! The NIC does not report which device sent an interrupt (G26), so the handlers of all borrowed
//! devices are called. A load from a device that does not answer ends after the NIC's timeout. The
//! event of that timeout may be indistinguishable from another device interrupt. Therefore a device
//! whose handlers run long is held off for some time, which slows down only the driver of that
//! device.
//!
//! Handlers run in the context of the NIC's interrupt, or in a work item after a hold-off. The lock
//! `interrupts` of [`Nic`] protects the list and is not held while handlers run.

use crate::{conf, nic::Nic};
use extoll_core::snq::MessageClient;
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
    time::{delay::fsleep, Delta},
};
use kernel_ext::pci_host::Interrupts;
use protocol::Time;

/// Duration of handlers in nanoseconds above which their device counts as not answering.
const SLOW: u64 = 20_000_000;
/// Ratio of the hold-off time to the duration of the device's handlers.
const HOLD_OFF: u64 = 8;
/// Maximum hold-off time in nanoseconds.
const LONGEST: u64 = 4_000_000_000;
/// Interval between checks whether handlers have returned.
const STEP: Delta = Delta::from_millis(1);

/// Relay of device interrupts from the NIC to the handlers of borrowed devices.
pub(crate) struct InterruptRelay(pub(crate) Arc<Nic>);

impl MessageClient for InterruptRelay {
    fn message(&self, _sure: bool) {
        self.0.counts.interrupts.fetch_add(1, Relaxed);
        self.0.call_handlers();
    }
}

/// Entry of a borrowed device.
pub(crate) struct BorrowedInterrupts {
    interrupts: Arc<Interrupts>,
    /// End of the hold-off time.
    until: Time,
    /// Set if the handlers must be called, or called again.
    pending: bool,
    /// Set while a context calls the handlers. That context checks `pending` afterwards.
    calling: bool,
    /// First vector of the next call. The last call ended early, after the handlers of all lower
    /// vectors.
    from: u32,
}

impl Nic {
    /// Calls the handlers of all borrowed devices; those in hold-off are called later. Any context.
    fn call_handlers(&self) {
        let mut next = 0;
        loop {
            let begun = self.now();
            let (interrupts, from) = {
                let mut list = self.interrupts.lock();
                let Some(entry) = list.get_mut(next) else {
                    return;
                };
                next += 1;
                if entry.calling || begun < entry.until {
                    entry.pending = true;
                    let late = (!entry.calling).then_some(entry.until);
                    drop(list);
                    if let Some(until) = late {
                        self.run_at(until);
                    }
                    continue;
                }
                entry.pending = false;
                entry.calling = true;
                (entry.interrupts.clone(), entry.from)
            };
            let left = interrupts.fire_while(from, || self.now().since(begun) <= SLOW);
            let this = Arc::as_ptr(&interrupts);
            // This reference is never the last one, because the entry stays in the list while
            // handlers run.
            drop(interrupts);
            self.handlers_done(this, begun, left);
        }
    }

    /// Updates the entry of a device after its handlers were called. `left` is the first vector
    /// whose handler was not called; `None` if all handlers were called.
    fn handlers_done(&self, this: *const Interrupts, begun: Time, left: Option<u32>) {
        let now = self.now();
        let took = now.since(begun);
        let again = {
            let mut list = self.interrupts.lock();
            let mut list = list.iter_mut();
            let Some(entry) = list.find(|h| core::ptr::eq(Arc::as_ptr(&h.interrupts), this)) else {
                return;
            };
            entry.calling = false;
            entry.pending |= left.is_some();
            entry.from = left.unwrap_or(0);
            if took > SLOW {
                entry.until = now.after(took.saturating_mul(HOLD_OFF).min(LONGEST));
            }
            entry.pending.then_some(entry.until.max(now))
        };
        if let Some(again) = again {
            self.run_at(again);
        }
    }

    /// Calls handlers whose hold-off has ended. Process context.
    pub(crate) fn call_held_off(&self) {
        let now = self.now();
        let pending = |entry: &&BorrowedInterrupts| entry.pending && !entry.calling;
        let first = {
            let list = self.interrupts.lock();
            list.iter().filter(pending).map(|h| h.until).min()
        };
        match first {
            Some(until) if now < until => self.run_at(until),
            Some(_) => self.call_handlers(),
            None => {}
        }
    }

    /// Adds the interrupts of a borrowed device. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add_interrupts(&self, new: &Arc<Interrupts>) -> Result {
        // Devices of accelerators do not count against `leases`.
        let max = 2 * usize::from(conf::leases()) + 64;
        let mut new_list = KVec::with_capacity(max, GFP_KERNEL)?;
        let mut list = self.interrupts.lock();
        if list.capacity() < max {
            while let Some(entry) = list.pop() {
                new_list.push_within_capacity(entry).map_err(|_| ENOMEM)?;
            }
            core::mem::swap(&mut *list, &mut new_list);
        }
        let entry = BorrowedInterrupts {
            interrupts: new.clone(),
            until: Time(0),
            pending: false,
            calling: false,
            from: 0,
        };
        let pushed = list.push_within_capacity(entry);
        drop(list);
        drop(new_list);
        pushed.map_err(|_| ENOMEM)
    }

    /// Removes the interrupts of a device and waits until its handlers have returned. May sleep.
    pub(crate) fn remove_interrupts(&self, gone: &Arc<Interrupts>) {
        loop {
            let old = {
                let mut list = self.interrupts.lock();
                let at = list.iter().position(|h| Arc::ptr_eq(&h.interrupts, gone));
                match at {
                    Some(at) if list.get(at).is_some_and(|h| h.calling) => None,
                    Some(at) => {
                        let old = list.remove(at).ok();
                        // A context that is walking the list may skip an entry, so the handlers of
                        // all entries are called again.
                        for entry in list.iter_mut() {
                            entry.pending = true;
                        }
                        Some(old)
                    }
                    None => Some(None),
                }
            };
            if let Some(old) = old {
                drop(old);
                return self.run_at(self.now());
            }
            fsleep(STEP);
        }
    }
}
