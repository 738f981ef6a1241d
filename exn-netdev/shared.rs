// SPDX-License-Identifier: GPL-2.0-only

//! State of one interface that the transmit path, the NAPI poll function and the control paths
//! share. Counts and logs drops, and supervises the peers and this node's ports.
//!
//! Functions run in any context unless their comment says otherwise. [`Shared`] documents the
//! locks.

use crate::{
    conf::{self, Conf},
    env::{boxed, delay, duration, ms, Clock, Fetches, Macs, Suspects},
    outgoing::Tx,
    reason::{Counter, Counters, Reason},
};
use extoll_core::{child::Handle, quarantine::Batch, time::AtomicTime};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{Atomic, AtomicFlag, Relaxed},
        Arc, SpinLockIrq,
    },
    time::Delta,
};
use kernel_ext::{
    net::NetDev,
    ratelimit::{RateLimit, Suppressed},
};
use protocol::{
    eth::{
        macs::Learned,
        poll::{Periods, Timer},
        rendezvous::Limits,
        restart::{Pauses, Restarts},
        stuck::Proof,
    },
    Clock as _, Time,
};
use wire::{
    eth::{self, MacPrefix},
    ids::NodeId,
};

/// State of one interface, shared by the transmit path, the poll function and the control paths.
///
/// Locks: `tx`, `rx` and `macs` are never held together, and no log line is printed while one of
/// them is held. They disable interrupts, because netconsole may transmit from any context.
#[pin_data]
pub(crate) struct Shared {
    pub(crate) ndev: Arc<NetDev>,
    pub(crate) nic: Handle,
    pub(crate) prefix: MacPrefix,
    pub(crate) conf: Conf,
    pub(crate) counters: Counters,
    limits: [RateLimit; Reason::ALL.len()],
    #[pin]
    pub(crate) tx: SpinLockIrq<Tx>,
    #[pin]
    pub(crate) rx: SpinLockIrq<KBox<Fetches>>,
    /// Nodes of foreign MAC addresses, i.e. addresses that do not encode a node ID (containers,
    /// VMs).
    #[pin]
    pub(crate) macs: SpinLockIrq<Macs>,
    /// Quarantine entries reserved for the memory that the NIC may still use when the ports are
    /// closed; `None` while the interface is down.
    #[pin]
    pub(crate) batch: SpinLockIrq<Option<Batch>>,
    /// Set by the interrupt of the VELO port; cleared before the interrupt is armed.
    pub(crate) velo_fired: AtomicFlag,
    /// Set by the interrupt of the RMA port; cleared before the interrupt is armed.
    pub(crate) rma_fired: AtomicFlag,
    /// Gauge: number of announcements that wait to be fetched.
    pub(crate) waiting: Atomic<u32>,
    /// Gauge: number of sources with an incomplete frame.
    pub(crate) partials: Atomic<u32>,
    /// Gauge: number of announced frames in flight. While it is 0, the transmit path need not
    /// compute the flow hash of short frames.
    pub(crate) in_flight: Atomic<u32>,
    /// Peers that left transfers unanswered while no notification arrived from any peer.
    #[pin]
    suspects: SpinLockIrq<Suspects>,
    /// Gauge: number of entries in `suspects`.
    watched: Atomic<u32>,
    /// Time of the last RMA notification.
    notified: AtomicTime,
    /// 1 if the ports must be reopened.
    restart: Atomic<i32>,
    /// State of the restarts: time of the last one, and number of failed attempts since.
    #[pin]
    restarts: SpinLockIrq<Restarts>,
    /// 1 while the NIC's quarantine keeps the VPID of the open RMA port disabled.
    gated: Atomic<i32>,
    /// Deadline of housekeeping, and expiry of the poll function's timer. The timer is set with
    /// this lock held. Otherwise concurrent callers could replace an earlier expiry by a later one.
    #[pin]
    pub(crate) timer: SpinLockIrq<Timer>,
}

impl Shared {
    /// Creates the state of an interface on `nic`. May sleep.
    #[inline(never)] // Keeps the stack frame of the registering caller small.
    pub(crate) fn new(ndev: Arc<NetDev>, nic: Handle) -> Result<Arc<Self>> {
        let tx = Tx::new()?;
        let rx = boxed(|| Fetches::new(conf::RX_FLIGHT, conf::RX_LOST))?;
        let suspects = Suspects::new(conf::WATCHED_PEERS)?;
        let macs = Macs::new(conf::foreign_macs())?;
        Arc::pin_init(
            try_pin_init!(Self {
                ndev,
                nic,
                prefix: MacPrefix(conf::mac_prefix()),
                conf: Conf::new(),
                counters: Counters::new(),
                limits: core::array::from_fn(|_| RateLimit::new(conf::log_interval_ms())),
                tx <- new_spinlock_irq!(tx, "exn_tx"),
                rx <- new_spinlock_irq!(rx, "exn_rx"),
                macs <- new_spinlock_irq!(macs, "exn_macs"),
                batch <- new_spinlock_irq!(None, "exn_batch"),
                velo_fired: AtomicFlag::new(true),
                rma_fired: AtomicFlag::new(true),
                waiting: Atomic::new(0),
                partials: Atomic::new(0),
                in_flight: Atomic::new(0),
                suspects <- new_spinlock_irq!(suspects, "exn_suspects"),
                watched: Atomic::new(0),
                notified: AtomicTime::new(Time::default()),
                restart: Atomic::new(0),
                restarts <- new_spinlock_irq!(Restarts::new(), "exn_restarts"),
                gated: Atomic::new(0),
                timer <- new_spinlock_irq!(Timer::new(), "exn_timer"),
            }),
            GFP_KERNEL,
        )
    }

    /// Counts one event of normal operation. Any context.
    #[inline]
    pub(crate) fn count(&self, c: Counter) {
        self.counters.inc(c);
    }

    /// Counts a drop reason and logs it with a rate limit. The line contains the node and a value
    /// that depends on the reason. Any context. The caller must hold no lock of this module.
    #[cold]
    pub(crate) fn reject(&self, r: Reason, node: Option<NodeId>, detail: u64) {
        self.reject_many(r, 1, node, detail);
    }

    /// Counts `n` events of a reason and logs up to one line. Otherwise like [`Shared::reject`].
    #[cold]
    pub(crate) fn reject_many(&self, r: Reason, n: u64, node: Option<NodeId>, detail: u64) {
        self.counters.reason(r, n);
        if !r.is_logged() {
            return;
        }
        let Some(missed) = self.limits.get(r as usize).and_then(|l| l.allow()) else {
            return;
        };
        let (number, text) = (r as u8, r.text());
        match node {
            Some(node) => dev_warn!(
                self.nic.device(),
                "exn reason {number}: {text} (node {}, {detail:#x}){}\n",
                node.0,
                Suppressed(missed)
            ),
            None => dev_warn!(
                self.nic.device(),
                "exn reason {number}: {text} ({detail:#x}){}\n",
                Suppressed(missed)
            ),
        }
    }

    /// Counts a notification that matches no transfer in flight. The reason is [`Reason::Late`] if
    /// its memory is in the NIC's quarantine, i.e. belongs to a port that was closed.
    #[cold]
    pub(crate) fn unmatched(&self, node: NodeId, key: u64) {
        let reason = if self.nic.quarantine().covers(key) {
            Reason::Late
        } else {
            Reason::Unmatched
        };
        self.reject(reason, Some(node), key);
    }

    /// Returns whether the ports are open and their VPIDs enabled.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_gated() && self.tx.lock().is_open()
    }

    /// Switches the carrier on if other nodes are reachable and the ports are usable, otherwise
    /// off. Any context. The caller must hold no lock of this module.
    pub(crate) fn update_carrier(&self) {
        self.ndev
            .carrier_by(|| self.nic.is_connected() && self.is_usable());
    }

    /// Returns whether the RMA VPID is still disabled. Until it is enabled, no frame can be
    /// fetched.
    #[inline]
    pub(crate) fn is_gated(&self) -> bool {
        self.gated.load(Relaxed) != 0
    }

    /// Records whether the RMA VPID is disabled. Returns the previous value.
    pub(crate) fn set_gated(&self, gated: bool) -> bool {
        self.gated.xchg(i32::from(gated), Relaxed) != 0
    }

    /// Calls `f` with the watched peers and updates their gauge.
    fn with_suspects<R>(&self, f: impl FnOnce(&mut Suspects) -> R) -> R {
        let mut suspects = self.suspects.lock();
        let result = f(&mut suspects);
        self.watched.store(suspects.len() as u32, Relaxed);
        result
    }

    /// Records the arrival of notifications and stops watching all peers, because the notification
    /// queue works.
    #[inline]
    pub(crate) fn notified(&self, now: Time) {
        self.notified.store(now);
        if self.watched.load(Relaxed) != 0 {
            self.with_suspects(Suspects::clear);
        }
    }

    /// Records that transfers with `node` timed out. Watches the node if no notification arrived
    /// since the transfers began. Either the peer is dead, or this node's notification queue is
    /// stuck because the NIC lost a write to it. [`Shared::message_from`] decides which.
    pub(crate) fn unanswered(&self, node: NodeId, now: Time) {
        let (notified, proof) = (self.notified.load(), self.proof());
        self.with_suspects(|s| s.unanswered(node, now, notified, &proof));
    }

    /// Records a message from `node`. If a watched peer sends messages but answers none of the
    /// transfers, this node's ports are stuck and must be reopened.
    #[inline]
    pub(crate) fn message_from(&self, node: NodeId, now: Time) {
        if self.watched.load(Relaxed) != 0 {
            self.check_stuck(node, now);
        }
    }

    #[cold]
    fn check_stuck(&self, node: NodeId, now: Time) {
        let proof = self.proof();
        let stuck = self.with_suspects(|s| {
            let stuck = s.message(node, now, &proof);
            if stuck {
                s.clear();
            }
            stuck
        });
        if stuck && self.restarts.lock().begin(now, &pauses()) {
            self.restart.store(1, Relaxed);
            self.reject(Reason::Restart, Some(node), 0);
            self.ndev.schedule_work();
        }
    }

    /// Learns which node sends frames from a frame's source address, unless the address encodes a
    /// node ID. The caller must hold no lock of this module.
    #[inline]
    pub(crate) fn learn(&self, frame: &[u8], node: NodeId) {
        let Some(mac) = eth::source(frame) else {
            return;
        };
        if self.prefix.node(mac).is_none() {
            self.learn_foreign(mac, node);
        }
    }

    fn learn_foreign(&self, mac: [u8; 6], node: NodeId) {
        if eth::is_group_mac(mac) || mac == [0; 6] || node == self.nic.node() {
            return;
        }
        let learned = self.macs.lock().learn(mac, node, Clock.now());
        if learned == Learned::Refused {
            self.reject(Reason::RxMacBound, Some(node), eth::as_number(mac));
        }
    }

    /// Returns the node for frames to `mac`, a foreign address: the learned node, otherwise
    /// `default_nodeid`.
    pub(crate) fn node_of_foreign(&self, mac: [u8; 6]) -> Option<NodeId> {
        let known = self.macs.lock().node(mac, Clock.now());
        known.or_else(conf::default_node)
    }

    /// Returns whether the ports must be reopened, and clears the request.
    pub(crate) fn claim_restart(&self) -> bool {
        self.restart.xchg(0, Relaxed) != 0
    }

    /// Returns whether the last attempt to reopen the ports failed.
    pub(crate) fn is_reopening(&self) -> bool {
        self.restarts.lock().is_failing()
    }

    /// Resets the retry state, because the ports were reopened or are not needed any more.
    pub(crate) fn reopened(&self) {
        self.restarts.lock().succeeded();
    }

    /// Schedules another attempt to reopen the ports. Logs the first failure of a series. Setting
    /// the interface down and up also tries to reopen them. The caller must hold no lock.
    pub(crate) fn reopen_later(&self, e: Error) {
        let (again, pause) = {
            let mut restarts = self.restarts.lock();
            (restarts.is_failing(), restarts.failed(&pauses()))
        };
        if !again {
            dev_err!(
                self.nic.device(),
                "exn: could not reopen the ports, retrying until it succeeds: {e:?}\n"
            );
        }
        self.counters.reason(Reason::RestartFailed, 1);
        self.restart.store(1, Relaxed);
        self.ndev
            .schedule_work_in(duration(pause).as_millis() as u32);
    }

    /// Resets all state that must not survive `down`. `open` calls it before the ports are used.
    pub(crate) fn reset(&self) {
        *self.timer.lock() = Timer::new();
        // Makes the first run of the poll function arm both ports.
        self.velo_fired.store(true, Relaxed);
        self.rma_fired.store(true, Relaxed);
        self.restart.store(0, Relaxed);
        self.reopened();
        self.with_suspects(Suspects::clear);
        self.macs.lock().clear();
        self.notified.store(Clock.now());
    }

    /// Ensures that housekeeping runs within [`conf::TICK_MS`]. `schedule_in` must schedule a run
    /// of the poll function after the given delay.
    #[inline]
    pub(crate) fn want_tick(&self, schedule_in: impl FnOnce(Delta)) {
        let now = Clock.now();
        let mut timer = self.timer.lock();
        if let Some(at) = timer.schedule_housekeeping(now.after(ms(conf::TICK_MS))) {
            schedule_in(delay(now, at));
        }
    }

    /// Returns the periods of housekeeping in ticks.
    pub(crate) fn periods(&self) -> Periods {
        Periods {
            busy: ms(conf::TICK_MS),
            idle: ms(conf::IDLE_MS.min(conf::timeout_ms() / 4)),
            pause: ms(conf::PAUSE_MS),
        }
    }

    /// Returns the times and limits of the rendezvous protocol.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            stall: ms(conf::scaled(conf::STALL_MS)),
            lag: ms(conf::scaled(conf::LAG_MS)),
            lag_hold: ms(conf::LAG_HOLD_MS),
            timeout: ms(conf::timeout_ms()),
            quarantine: ms(conf::quarantine_ms()),
            patience: ms(conf::scaled(conf::RX_WAIT_MS)),
            flight: self.conf.flight() as usize,
            stalled_peer: usize::from(conf::STALLED_PEER_BOUND),
            fetches: usize::from(conf::RX_FLIGHT),
            source: usize::from(conf::RX_PEER_BOUND),
            lossy_source: usize::from(conf::RX_PEER_BOUND / 4),
            waiting: usize::from(conf::RX_WAITING / 2),
            slow_waiting: usize::from(conf::RX_WAITING / 16),
        }
    }

    /// Returns the times that decide whether this node's ports are stuck.
    pub(crate) fn proof(&self) -> Proof {
        Proof {
            silence: ms(conf::timeout_ms()),
            gap: ms(conf::ABSENT_MS.max(conf::timeout_ms() / 2)),
        }
    }
}

/// Returns the pauses between restarts of the ports, in ticks.
fn pauses() -> Pauses {
    Pauses {
        restart: ms(conf::RESTART_MS),
        longest_restart: ms(conf::RESTART_MAX_MS),
        retry: ms(conf::RETRY_MS),
        longest_retry: ms(conf::RETRY_MAX_MS),
    }
}
