// SPDX-License-Identifier: GPL-2.0-only

//! What is left of leases that are over: words that say that this node has a device, and numbers of
//! intervals that a device may still come with.
//!
//! Numbers are given back when the registers of the accelerator's NIC lead here no more, which this
//! node looks at itself: the lease word alone does not tell what is open.

use super::LOOK_US;
use crate::{conf, nic::Nic, remote::Remote};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use protocol::{pci::accel::Goal, Time};
use wire::{
    accel::{Mark, State, LEASE},
    regs::smfu::{self, IntervalControl},
};

/// How long the end of the module waits for accelerators, in milliseconds.
const LAST_MS: i64 = 3_000;
const PAUSE: Delta = Delta::from_millis(50);

/// Of one lease.
#[derive(Clone)]
pub(crate) struct Owed {
    remote: Remote,
    mark: Mark,
    /// Numbers that this node had windows for, which the accelerator's NIC keeps a note of.
    bars: u64,
    /// Its NIC was not reset: otherwise others may have these numbers by now.
    noted: bool,
    /// Numbers of targets of this node.
    targets: u64,
    /// The word was seen not to be this node's any more.
    free: bool,
    /// When its NIC is asked, and how long after that again.
    next: Time,
    pause: u64,
    /// Nothing leads here any more, and what was under way is through then.
    through: Option<Time>,
}

impl Owed {
    fn is_over(&self, now: Time) -> bool {
        self.free && self.bars == 0 && self.targets == 0 && self.through.is_none_or(|t| t <= now)
    }
}

impl Nic {
    /// A lease is over. `closed`: no way of the device leads here. `noted`: the accelerator's NIC keeps
    /// its note of `bars`, whoever has it by now. May sleep.
    pub(super) fn owe(
        &self,
        remote: &Remote,
        mark: Mark,
        bars: u64,
        targets: u64,
        closed: bool,
        noted: bool,
    ) {
        let now = self.now();
        let (ask, hold) = (conf::limits().ask, conf::limits().hold);
        let owed = Owed {
            remote: remote.clone(),
            mark,
            bars,
            noted,
            targets,
            free: closed && bars == 0,
            next: now.after(ask),
            pause: ask,
            through: closed.then(|| now.after(hold)),
        };
        if self.owed.lock().push(owed, GFP_KERNEL).is_err() {
            pr_err!("no memory for numbers of intervals, which stay taken\n");
        }
        self.want(self.now());
    }

    /// A word may say that this node has a device that it does not have. May sleep.
    pub(super) fn owe_word(&self, remote: &Remote, mark: Mark) {
        pr_warn!(
            "node {}: its lease word is given back later\n",
            remote.node.0
        );
        self.owe(remote, mark, 0, 0, false, false);
    }

    /// Ends what is lost, and what could not be ended before. May sleep, for long.
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
                    owed.pause = owed.pause.saturating_mul(2).min(conf::limits().ask_most);
                    owed.next = self.now().after(owed.pause);
                    self.want(owed.next);
                }
            }
            self.let_go(&mut owed);
            let mut all = self.owed.lock();
            // Only this work item takes some away.
            if owed.is_over(self.now()) {
                let _ = all.remove(at);
            } else if let Some(place) = all.get_mut(at) {
                *place = owed;
                at += 1;
            }
        }
    }

    /// Numbers of targets are anybody's, once what was under way is through.
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

    /// Asks an accelerator that may still reach this node, or whose word may be this node's.
    fn ask(&self, owed: &mut Owed) {
        // Whoever has it writes registers as well.
        let Some(_alone) = self.accelerating.try_lock() else {
            return;
        };
        let Some([word]) = owed.remote.look([LEASE], LOOK_US) else {
            return;
        };
        let hold = conf::limits().hold;
        let seen = Mark::parse(word);
        let own = seen.filter(|seen| (seen.node, seen.nonce) == (owed.mark.node, owed.mark.nonce));
        match (own, seen) {
            // It was silent meanwhile.
            (Some(own), _) if own.state != State::Free => {
                if self.shut_accelerator(&owed.remote, own, None).is_ok() {
                    owed.through.get_or_insert(self.now().after(hold));
                    if self.give_back(&owed.remote, own, owed.bars).is_ok() {
                        (owed.bars, owed.free) = (0, true);
                    }
                }
            }
            // The NIC was reset: nothing is open, and nothing is noted.
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

    /// Whether intervals of the accelerator's NIC with this lease's numbers still lead to this node;
    /// those that do are closed, whoever has the device: nobody else has ways to here.
    fn leads_here(&self, owed: &Owed) -> Option<bool> {
        let to = IntervalControl::to_node(owed.mark.node).raw();
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

    /// Nobody has the device: the note of this node's windows goes, which are closed.
    fn forget_bars(&self, owed: &mut Owed) {
        let Ok(mark) = self.claim(&owed.remote, Goal::Borrow) else {
            return;
        };
        match self.give_back(&owed.remote, mark, owed.bars) {
            Ok(()) => owed.bars = 0,
            Err(_) => self.owe_word(&owed.remote, mark),
        }
    }

    /// The module ends: what is left is tried for a moment, and then nobody knows of it any more.
    pub(crate) fn settle_last(&self) {
        let begun: Instant<Monotonic> = Instant::now();
        loop {
            for owed in self.owed.lock().iter_mut() {
                owed.next = Time(0);
            }
            self.settle();
            let left = self.owed.lock().is_empty();
            // Or the NIC of this node is gone.
            let gone = self.own_node().is_err();
            if left || gone || begun.elapsed().as_millis() > LAST_MS {
                break;
            }
            fsleep(PAUSE);
        }
        for owed in core::mem::take(&mut *self.owed.lock()) {
            pr_warn!(
                "node {}: its device may come with numbers {:#x}: reclaim it before it is used again\n",
                owed.remote.node.0,
                owed.targets
            );
        }
    }
}
