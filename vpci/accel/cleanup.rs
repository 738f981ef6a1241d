// SPDX-License-Identifier: GPL-2.0-only

//! Clean-up after ended leases of accelerators: lease words that still name this node, and interval
//! numbers that a device may still use.
//!
//! Interval numbers are released when the registers of the accelerator's NIC do not lead to this
//! node any more. This node reads these registers itself, because the lease word does not show
//! which intervals are open. Process context, may sleep; the list `cleanups` has its own mutex.

use super::CHECK_US;
use crate::{conf, nic::Nic, remote::Remote};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use protocol::{pci::accel::Goal, Time};
use wire::{
    accel::{LeaseRecord, State, LEASE},
    regs::smfu::{self, IntervalControl},
};

/// Maximum time in ms that unbinding the NIC waits for outstanding clean-ups.
const LAST_MS: i64 = 3_000;
/// Interval between two clean-up attempts while the NIC is being unbound.
const PAUSE: Delta = Delta::from_millis(50);

/// Intervals that an ended lease still uses, and the state of the device.
#[derive(Default)]
pub(super) struct Rest {
    /// Numbers of this node's windows that the accelerator's NIC has recorded as used, as a bit
    /// set.
    pub(super) bars: u64,
    /// Numbers of this node's targets that the lease used, as a bit set.
    pub(super) targets: u64,
    /// Set if no interval of the accelerator's NIC leads to this node.
    pub(super) closed: bool,
    /// Set if the accelerator's NIC keeps its record of `bars`, even if another node has borrowed
    /// the device since.
    pub(super) recorded: bool,
}

/// Outstanding clean-up of one lease.
#[derive(Clone)]
pub(crate) struct Cleanup {
    remote: Remote,
    record: LeaseRecord,
    /// Numbers of this node's windows that the accelerator's NIC has recorded as used, as a bit
    /// set.
    bars: u64,
    /// Set if the accelerator's NIC still has its record of `bars`, because the NIC was not reset.
    /// If not set, other nodes may be using these numbers.
    recorded: bool,
    /// Numbers of this node's targets that the lease used, as a bit set.
    targets: u64,
    /// Set when the lease word does not name this node any more.
    free: bool,
    /// Time of the next attempt to clean up.
    next: Time,
    /// Pause in nanoseconds that follows the next attempt.
    pause: u64,
    /// Time by which accesses in flight have ended; `None` while intervals may still lead to this
    /// node.
    drained: Option<Time>,
}

impl Cleanup {
    fn is_done(&self, now: Time) -> bool {
        self.free && self.bars == 0 && self.targets == 0 && self.drained.is_none_or(|t| t <= now)
    }
}

impl Nic {
    /// Adds the clean-up of an ended lease. May sleep.
    pub(super) fn add_cleanup(&self, remote: &Remote, record: LeaseRecord, rest: Rest) {
        let now = self.now();
        let (retry, in_flight) = (conf::limits().retry, conf::limits().in_flight_max);
        let cleanup = Cleanup {
            remote: remote.clone(),
            record,
            bars: rest.bars,
            recorded: rest.recorded,
            targets: rest.targets,
            free: rest.closed && rest.bars == 0,
            next: now.after(retry),
            pause: retry,
            drained: rest.closed.then(|| now.after(in_flight)),
        };
        if self.cleanups.lock().push(cleanup, GFP_KERNEL).is_err() {
            pr_err!("no memory: interval numbers of an ended lease stay reserved\n");
        }
        self.run_at(self.now());
    }

    /// Adds the clean-up of a lease word that may name this node although this node has no lease.
    /// May sleep.
    pub(super) fn add_word_cleanup(&self, remote: &Remote, record: LeaseRecord) {
        pr_warn!(
            "node {}: release of its lease word postponed\n",
            remote.node.0
        );
        self.add_cleanup(remote, record, Rest::default());
    }

    /// Ends leases of lost devices and continues outstanding clean-ups. Runs in work item 4. May
    /// sleep for a long time.
    pub(crate) fn clean_up(&self) {
        self.end_lost();
        let mut at = 0;
        loop {
            let cleanup = {
                let all = self.cleanups.lock();
                all.get(at).cloned()
            };
            let Some(mut cleanup) = cleanup else {
                break;
            };
            let now = self.now();
            if !cleanup.is_done(now)
                && (!cleanup.free || cleanup.bars != 0 || cleanup.drained.is_none())
            {
                if now < cleanup.next {
                    self.run_at(cleanup.next);
                } else {
                    self.retry(&mut cleanup);
                    cleanup.pause = cleanup
                        .pause
                        .saturating_mul(2)
                        .min(conf::limits().retry_max);
                    cleanup.next = self.now().after(cleanup.pause);
                    self.run_at(cleanup.next);
                }
            }
            self.release_targets(&mut cleanup);
            let mut all = self.cleanups.lock();
            // Only this work item removes entries.
            if cleanup.is_done(self.now()) {
                let _ = all.remove(at);
            } else if let Some(slot) = all.get_mut(at) {
                *slot = cleanup;
                at += 1;
            }
        }
    }

    /// Releases target numbers after accesses in flight have ended.
    fn release_targets(&self, cleanup: &mut Cleanup) {
        match cleanup.drained {
            Some(drained) if drained <= self.now() => {
                let set = core::mem::take(&mut cleanup.targets);
                let mut closed = self.closed_targets.lock();
                closed.retain(|target| set & 1 << target.interval() == 0);
            }
            Some(drained) => self.run_at(drained),
            None => {}
        }
    }

    /// Continues the clean-up at an accelerator that may still access this node, or whose lease
    /// word may name this node.
    fn retry(&self, cleanup: &mut Cleanup) {
        // Another thread that holds the mutex may write the same registers. A later attempt repeats
        // this step.
        let Some(_alone) = self.accelerating.try_lock() else {
            return;
        };
        let Some([word]) = cleanup.remote.read_once([LEASE], CHECK_US) else {
            return;
        };
        let in_flight = conf::limits().in_flight_max;
        let seen = LeaseRecord::parse(word);
        let own = seen
            .filter(|seen| (seen.node, seen.nonce) == (cleanup.record.node, cleanup.record.nonce));
        match (own, seen) {
            // The accelerator was unreachable when the lease ended.
            (Some(own), _) if own.state != State::Free => {
                if self.shut_accelerator(&cleanup.remote, own, None).is_ok() {
                    cleanup.drained.get_or_insert(self.now().after(in_flight));
                    if self
                        .release_device(&cleanup.remote, own, cleanup.bars)
                        .is_ok()
                    {
                        (cleanup.bars, cleanup.free) = (0, true);
                    }
                }
            }
            // The NIC was reset: no interval is open, and no number is recorded.
            (_, None) => {
                cleanup.drained.get_or_insert(self.now().after(in_flight));
                (cleanup.bars, cleanup.free) = (0, true);
            }
            (_, Some(seen)) => {
                cleanup.free = true;
                if !cleanup.recorded {
                    cleanup.bars = 0;
                }
                if cleanup.drained.is_none() && self.leads_here(cleanup) == Some(false) {
                    cleanup.drained = Some(self.now().after(in_flight));
                }
                if cleanup.bars != 0 && seen.state == State::Free {
                    self.forget_bars(cleanup);
                }
            }
        }
    }

    /// Returns whether intervals of the accelerator's NIC with the lease's numbers still lead to
    /// this node. Closes such intervals even if another node has borrowed the device, because only
    /// this node opens intervals to itself.
    fn leads_here(&self, cleanup: &Cleanup) -> Option<bool> {
        let to = IntervalControl::to_node(cleanup.record.node).raw();
        let mut left = cleanup.targets;
        let mut leads = false;
        while left != 0 {
            let number = left.trailing_zeros();
            left &= left - 1;
            let control = smfu::interval_control(number);
            let [value] = cleanup.remote.read_once([control], CHECK_US)?;
            if value == to {
                leads = cleanup.remote.set(control, 0).is_err();
                if leads {
                    return Some(true);
                }
            }
        }
        Some(leads)
    }

    /// Removes the record of this node's windows, which are closed, from the NIC of a free device.
    fn forget_bars(&self, cleanup: &mut Cleanup) {
        let Ok(record) = self.claim(&cleanup.remote, Goal::Borrow) else {
            return;
        };
        match self.release_device(&cleanup.remote, record, cleanup.bars) {
            Ok(()) => cleanup.bars = 0,
            Err(_) => self.add_word_cleanup(&cleanup.remote, record),
        }
    }

    /// Attempts the outstanding clean-ups a last time when the NIC is unbound. Drops clean-ups that
    /// fail.
    pub(crate) fn last_cleanup(&self) {
        let begun: Instant<Monotonic> = Instant::now();
        loop {
            for cleanup in self.cleanups.lock().iter_mut() {
                cleanup.next = Time(0);
            }
            self.clean_up();
            let left = self.cleanups.lock().is_empty();
            // The NIC of this node may be lost.
            let gone = self.own_node().is_err();
            if left || gone || begun.elapsed().as_millis() > LAST_MS {
                break;
            }
            fsleep(PAUSE);
        }
        for cleanup in core::mem::take(&mut *self.cleanups.lock()) {
            pr_warn!(
                "node {}: device may still access intervals {:#x}; run `extollctl accel reclaim`\n",
                cleanup.remote.node.0,
                cleanup.targets
            );
        }
    }
}
