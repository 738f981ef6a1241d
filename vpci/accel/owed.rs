// SPDX-License-Identifier: GPL-2.0-only

//! Clean-up after ended leases of accelerators: lease words that still name this node, and interval
//! numbers that a device may still use.
//!
//! Interval numbers are released when the registers of the accelerator's NIC do not lead to this
//! node any more. This node reads these registers itself, because the lease word does not show
//! which intervals are open. Process context, may sleep; the list `owed` has its own mutex.

use super::LOOK_US;
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

/// Maximum time in ms that unbinding waits for accelerators.
const LAST_MS: i64 = 3_000;
/// Interval between two attempts during that time.
const PAUSE: Delta = Delta::from_millis(50);

/// Outstanding clean-up of one lease.
#[derive(Clone)]
pub(crate) struct Owed {
    remote: Remote,
    record: LeaseRecord,
    /// Numbers of this node's windows, which the accelerator's NIC has recorded as used.
    bars: u64,
    /// Set if that record still exists, because the NIC was not reset. Otherwise other nodes may
    /// use these numbers by now.
    noted: bool,
    /// Numbers of this node's targets.
    targets: u64,
    /// Set when the lease word does not name this node any more.
    free: bool,
    /// Time of the next attempt.
    next: Time,
    /// Pause after that attempt in nanoseconds.
    pause: u64,
    /// Time at which accesses in flight have ended; `None` while intervals may still lead here.
    through: Option<Time>,
}

impl Owed {
    fn is_over(&self, now: Time) -> bool {
        self.free && self.bars == 0 && self.targets == 0 && self.through.is_none_or(|t| t <= now)
    }
}

impl Nic {
    /// Adds the clean-up of an ended lease. `closed`: no interval of the device leads here.
    /// `noted`: the accelerator's NIC keeps its record of `bars`, even if another node has the
    /// device by now. May sleep.
    pub(super) fn owe(
        &self,
        remote: &Remote,
        record: LeaseRecord,
        bars: u64,
        targets: u64,
        closed: bool,
        noted: bool,
    ) {
        let now = self.now();
        let (ask, hold) = (conf::limits().retry, conf::limits().in_flight_max);
        let owed = Owed {
            remote: remote.clone(),
            record,
            bars,
            noted,
            targets,
            free: closed && bars == 0,
            next: now.after(ask),
            pause: ask,
            through: closed.then(|| now.after(hold)),
        };
        if self.owed.lock().push(owed, GFP_KERNEL).is_err() {
            pr_err!("no memory: interval numbers of an ended lease stay reserved\n");
        }
        self.want(self.now());
    }

    /// Adds the clean-up of a lease word that may name this node although it has no lease. May
    /// sleep.
    pub(super) fn owe_word(&self, remote: &Remote, record: LeaseRecord) {
        pr_warn!(
            "node {}: release of its lease word postponed\n",
            remote.node.0
        );
        self.owe(remote, record, 0, 0, false, false);
    }

    /// Ends leases of lost devices and continues outstanding clean-ups. Runs in work item 4. May
    /// sleep, for long.
    pub(crate) fn settle(&self) {
        self.end_lost();
        let mut at = 0;
        loop {
            let owed = {
                let all = self.owed.lock();
                all.get(at).cloned()
            };
            let Some(mut owed) = owed else {
                break;
            };
            let now = self.now();
            if !owed.is_over(now) && (!owed.free || owed.bars != 0 || owed.through.is_none()) {
                if now < owed.next {
                    self.want(owed.next);
                } else {
                    self.ask(&mut owed);
                    owed.pause = owed.pause.saturating_mul(2).min(conf::limits().retry_max);
                    owed.next = self.now().after(owed.pause);
                    self.want(owed.next);
                }
            }
            self.let_go(&mut owed);
            let mut all = self.owed.lock();
            // Only this work item removes entries.
            if owed.is_over(self.now()) {
                let _ = all.remove(at);
            } else if let Some(place) = all.get_mut(at) {
                *place = owed;
                at += 1;
            }
        }
    }

    /// Releases target numbers after accesses in flight have ended.
    fn let_go(&self, owed: &mut Owed) {
        match owed.through {
            Some(through) if through <= self.now() => {
                let set = core::mem::take(&mut owed.targets);
                let mut shut = self.shut.lock();
                shut.retain(|target| set & 1 << target.interval() == 0);
            }
            Some(through) => self.want(through),
            None => {}
        }
    }

    /// Continues the clean-up at an accelerator that may still access this node, or whose lease
    /// word may name it.
    fn ask(&self, owed: &mut Owed) {
        // The owner of the mutex writes the same registers.
        let Some(_alone) = self.accelerating.try_lock() else {
            return;
        };
        let Some([word]) = owed.remote.look([LEASE], LOOK_US) else {
            return;
        };
        let hold = conf::limits().in_flight_max;
        let seen = LeaseRecord::parse(word);
        let own =
            seen.filter(|seen| (seen.node, seen.nonce) == (owed.record.node, owed.record.nonce));
        match (own, seen) {
            // The accelerator was unreachable when the lease ended.
            (Some(own), _) if own.state != State::Free => {
                if self.shut_accelerator(&owed.remote, own, None).is_ok() {
                    owed.through.get_or_insert(self.now().after(hold));
                    if self.give_back(&owed.remote, own, owed.bars).is_ok() {
                        (owed.bars, owed.free) = (0, true);
                    }
                }
            }
            // The NIC was reset: no interval is open, and no number is recorded.
            (_, None) => {
                owed.through.get_or_insert(self.now().after(hold));
                (owed.bars, owed.free) = (0, true);
            }
            (_, Some(seen)) => {
                owed.free = true;
                if !owed.noted {
                    owed.bars = 0;
                }
                if owed.through.is_none() && self.leads_here(owed) == Some(false) {
                    owed.through = Some(self.now().after(hold));
                }
                if owed.bars != 0 && seen.state == State::Free {
                    self.forget_bars(owed);
                }
            }
        }
    }

    /// Returns whether intervals of the accelerator's NIC with the lease's numbers still lead to
    /// this node. Closes intervals that do, even if another node has the device, because only this
    /// node opens intervals to itself.
    fn leads_here(&self, owed: &Owed) -> Option<bool> {
        let to = IntervalControl::to_node(owed.record.node).raw();
        let mut left = owed.targets;
        let mut leads = false;
        while left != 0 {
            let number = left.trailing_zeros();
            left &= left - 1;
            let control = smfu::interval_control(number);
            let [value] = owed.remote.look([control], LOOK_US)?;
            if value == to {
                leads = owed.remote.set(control, 0).is_err();
                if leads {
                    return Some(true);
                }
            }
        }
        Some(leads)
    }

    /// Removes the record of this node's windows, which are closed, from the NIC of a free device.
    fn forget_bars(&self, owed: &mut Owed) {
        let Ok(record) = self.claim(&owed.remote, Goal::Borrow) else {
            return;
        };
        match self.give_back(&owed.remote, record, owed.bars) {
            Ok(()) => owed.bars = 0,
            Err(_) => self.owe_word(&owed.remote, record),
        }
    }

    /// Makes last attempts when the NIC is unbound. The remaining clean-ups are dropped.
    pub(crate) fn settle_last(&self) {
        let begun: Instant<Monotonic> = Instant::now();
        loop {
            for owed in self.owed.lock().iter_mut() {
                owed.next = Time(0);
            }
            self.settle();
            let left = self.owed.lock().is_empty();
            // The NIC of this node may be lost.
            let gone = self.own_node().is_err();
            if left || gone || begun.elapsed().as_millis() > LAST_MS {
                break;
            }
            fsleep(PAUSE);
        }
        for owed in core::mem::take(&mut *self.owed.lock()) {
            pr_warn!(
                "node {}: device may still access intervals {:#x}; run `extollctl accel reclaim`\n",
                owed.remote.node.0,
                owed.targets
            );
        }
    }
}
