// SPDX-License-Identifier: GPL-2.0-only

//! What all parts of one interface share.

use crate::{
    conf::{self, Conf},
    reason::{Class, Counter, Counters, Reason},
    rx_rma::Fetches,
    tx::Tx,
};
use extoll_core::nic::Nic;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, SpinLockIrq,
    },
    time::{msecs_to_jiffies, Delta},
};
use kernel_ext::{
    net::{self, NetDev},
    ratelimit::RateLimit,
};
use wire::{ext_eth::MacPrefix, ids::NodeId};

/// State of one interface, shared by transmit, both poll functions and the control paths.
///
/// Locks: `tx` and `rx` are never held together, and nothing is logged under them. They disable interrupts, so that netconsole may
/// transmit from any context.
#[pin_data]
pub(crate) struct Shared {
    pub(crate) ndev: Arc<NetDev>,
    pub(crate) nic: Arc<Nic>,
    pub(crate) prefix: MacPrefix,
    pub(crate) conf: Conf,
    pub(crate) counters: Counters,
    limits: [RateLimit; Reason::ALL.len()],
    #[pin]
    pub(crate) tx: SpinLockIrq<Tx>,
    #[pin]
    pub(crate) rx: SpinLockIrq<Fetches>,
    /// Announcements that wait: gauge, and hint for the RMA side to wake the VELO side.
    pub(crate) waiting: Atomic<u32>,
    /// Partial frames: gauge.
    pub(crate) partials: Atomic<u32>,
    /// 1 while the housekeeping timer runs.
    tick_armed: Atomic<i32>,
    /// When housekeeping is due, in jiffies.
    tick_due: Atomic<u64>,
}

impl Shared {
    /// A new interface on `nic`. May sleep.
    pub(crate) fn new(ndev: Arc<NetDev>, nic: Arc<Nic>) -> Result<Arc<Self>> {
        let tx = Tx::new()?;
        let rx = Fetches::new()?;
        Arc::pin_init(
            try_pin_init!(Self {
                ndev,
                nic,
                prefix: MacPrefix(conf::mac_prefix()),
                conf: Conf::new(),
                counters: Counters::new(),
                limits: core::array::from_fn(|_| RateLimit::new()),
                tx <- new_spinlock_irq!(tx, "exn_tx"),
                rx <- new_spinlock_irq!(rx, "exn_rx"),
                waiting: Atomic::new(0),
                partials: Atomic::new(0),
                tick_armed: Atomic::new(0),
                tick_due: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Counts one event of normal operation.
    #[inline]
    pub(crate) fn count(&self, c: Counter) {
        self.counters.inc(c);
    }

    /// Counts a reason, and logs it (rate-limited) with the node concerned and a value that shows it. Any context, no lock of this
    /// module held.
    #[cold]
    pub(crate) fn reject(&self, r: Reason, node: Option<NodeId>, detail: u64) {
        self.reject_many(r, 1, node, detail);
    }

    /// As [`Shared::reject`] for `n` events of the same reason, with one line at most.
    #[cold]
    pub(crate) fn reject_many(&self, r: Reason, n: u64, node: Option<NodeId>, detail: u64) {
        self.counters.reason(r, n);
        if r.class() == Class::Event
            && r != Reason::TxWatchdog
            && r != Reason::Unmatched
            && r != Reason::BadNotify
        {
            return;
        }
        let Some(missed) = self.limits.get(r as usize).and_then(|l| l.allow()) else {
            return;
        };
        let (number, text) = (r as u8, r.text());
        match node {
            Some(node) => dev_warn!(
                self.nic.device(),
                "exn reason {number}: {text} (node {}, {detail:#x}), {missed} suppressed\n",
                node.0
            ),
            None => dev_warn!(
                self.nic.device(),
                "exn reason {number}: {text} ({detail:#x}), {missed} suppressed\n"
            ),
        }
    }

    /// Makes sure that housekeeping runs soon; `schedule_in` has the VELO side polled after a delay.
    #[inline]
    pub(crate) fn arm_tick(&self, schedule_in: impl FnOnce(Delta)) {
        if self.tick_armed.load(Relaxed) == 0 && self.tick_armed.xchg(1, Relaxed) == 0 {
            let ticks = msecs_to_jiffies(conf::TICK_MS) as u64;
            self.tick_due.store(net::jiffies64() + ticks, Relaxed);
            schedule_in(Delta::from_millis(i64::from(conf::TICK_MS)));
        }
    }

    /// Whether housekeeping is due now; if so the timer counts as stopped.
    #[inline]
    pub(crate) fn take_tick(&self, now: u64) -> bool {
        if self.tick_armed.load(Relaxed) != 0 && now >= self.tick_due.load(Relaxed) {
            self.tick_armed.store(0, Relaxed);
            return true;
        }
        false
    }

    /// Whether the timer runs.
    #[inline]
    pub(crate) fn tick_armed(&self) -> bool {
        self.tick_armed.load(Relaxed) != 0
    }

    /// Forgets the timer: it doesn't run, or is needed for something else.
    pub(crate) fn reset_tick(&self) {
        self.tick_armed.store(0, Relaxed);
    }
}

/// Milliseconds as jiffies.
#[inline]
pub(crate) fn ms(ms: u32) -> u64 {
    msecs_to_jiffies(ms) as u64
}
