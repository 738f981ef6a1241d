// SPDX-License-Identifier: GPL-2.0-only

//! What all parts of one interface share.

use crate::{
    conf::{self, Conf},
    machine::{boxed, delay, duration, ms, Clock, Fetches, Macs, Suspects},
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
        macs::Heard,
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

/// State of one interface, shared by transmit, the poll function and the control paths.
///
/// Locks: `tx`, `rx` and `macs` are never held together, and nothing is logged under them. They disable
/// interrupts, so that netconsole may transmit from any context.
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
    /// Nodes of MAC addresses that are not those of nodes.
    #[pin]
    pub(crate) macs: SpinLockIrq<Macs>,
    /// Room for what is left when the ports are closed.
    #[pin]
    pub(crate) batch: SpinLockIrq<Option<Batch>>,
    /// The VELO port has interrupted, and has not been armed since; the same of the RMA port.
    pub(crate) velo_fired: AtomicFlag,
    pub(crate) rma_fired: AtomicFlag,
    /// Announcements that wait: gauge.
    pub(crate) waiting: Atomic<u32>,
    /// Partial frames: gauge.
    pub(crate) partials: Atomic<u32>,
    /// Announced frames on their way: gauge, for whoever has no frame of the queue before it.
    pub(crate) moving: Atomic<u32>,
    /// Peers that left transfers unanswered while no notification came at all.
    #[pin]
    suspects: SpinLockIrq<Suspects>,
    /// How many: gauge.
    watched: Atomic<u32>,
    /// Last notification.
    notified: AtomicTime,
    /// 1 if the ports are to be reopened.
    restart: Atomic<i32>,
    /// How often that was, and failed.
    #[pin]
    restarts: SpinLockIrq<Restarts>,
    /// 1 while the RMA port is postponed: open, but its VPID not enabled.
    gated: Atomic<i32>,
    /// What the timer of the poll function is set to. It is set with this lock held, so that nobody
    /// sets it to a later time than another one has just asked for.
    #[pin]
    pub(crate) timer: SpinLockIrq<Timer>,
}

impl Shared {
    /// A new interface on `nic`. May sleep.
    #[inline(never)] // So that what registers the interface has the stack for itself.
    pub(crate) fn new(ndev: Arc<NetDev>, nic: Handle) -> Result<Arc<Self>> {
        let tx = Tx::new()?;
        let rx = boxed(|| Fetches::new(conf::RX_FLIGHT, conf::RX_LOST))?;
        let suspects = Suspects::new(conf::SUSPECTS)?;
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
                moving: Atomic::new(0),
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

    /// Counts one event of normal operation.
    #[inline]
    pub(crate) fn count(&self, c: Counter) {
        self.counters.inc(c);
    }

    /// Counts a reason, and logs it (rate-limited) with the node concerned and a value that shows
    /// it. Any context, no lock of this module held.
    #[cold]
    pub(crate) fn reject(&self, r: Reason, node: Option<NodeId>, detail: u64) {
        self.reject_many(r, 1, node, detail);
    }

    /// As [`Shared::reject`] for `n` events of the same reason, with one line at most.
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

    /// Counts a notification that belongs to nothing in flight: late, if it is for what an earlier
    /// port left.
    #[cold]
    pub(crate) fn unmatched(&self, node: NodeId, key: u64) {
        let reason = match self.nic.quarantine().covers(key) {
            true => Reason::Late,
            false => Reason::Unmatched,
        };
        self.reject(reason, Some(node), key);
    }

    /// Whether the interface has ports that work.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_gated() && self.tx.lock().is_open()
    }

    /// Switches the carrier: on while other nodes can be reached and the interface has ports. Any
    /// context, no lock of this module held.
    pub(crate) fn update_carrier(&self) {
        self.ndev
            .carrier_by(|| self.nic.is_connected() && self.is_usable());
    }

    /// Whether the RMA port waits for its VPID to be enabled: nothing can be fetched here or from
    /// here.
    #[inline]
    pub(crate) fn is_gated(&self) -> bool {
        self.gated.load(Relaxed) != 0
    }

    /// The RMA port has to wait, or no longer. Returns what was before.
    pub(crate) fn set_gated(&self, gated: bool) -> bool {
        self.gated.xchg(i32::from(gated), Relaxed) != 0
    }

    /// Calls `f` with the peers that are watched.
    fn with_suspects<R>(&self, f: impl FnOnce(&mut Suspects) -> R) -> R {
        let mut suspects = self.suspects.lock();
        let result = f(&mut suspects);
        self.watched.store(suspects.len() as u32, Relaxed);
        result
    }

    /// Notifications came: the queue works.
    #[inline]
    pub(crate) fn notified(&self, now: Time) {
        self.notified.store(now);
        if self.watched.load(Relaxed) != 0 {
            self.with_suspects(Suspects::clear);
        }
    }

    /// Transfers with `node` were given up. If no notification at all came meanwhile, either the
    /// peer is dead or our queue is stuck (a lost write of the NIC leaves a hole in it):
    /// [`Shared::heard`] decides.
    pub(crate) fn unanswered(&self, node: NodeId, now: Time) {
        let (notified, proof) = (self.notified.load(), self.proof());
        self.with_suspects(|s| s.unanswered(node, now, notified, &proof));
    }

    /// A message of `node` came. One that is alive while nothing of what it is asked for is answered
    /// shows that our ports are stuck.
    #[inline]
    pub(crate) fn heard(&self, node: NodeId, now: Time) {
        if self.watched.load(Relaxed) != 0 {
            self.judge(node, now);
        }
    }

    #[cold]
    fn judge(&self, node: NodeId, now: Time) {
        let proof = self.proof();
        let stuck = self.with_suspects(|s| {
            let stuck = s.heard(node, now, &proof);
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

    /// Learns where the source address of a received frame lives, unless it is the node's own. No
    /// lock of this module held.
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
        let heard = self.macs.lock().heard(mac, node, Clock.now());
        if heard == Heard::Refused {
            self.reject(Reason::RxMacBound, Some(node), eth::as_number(mac));
        }
    }

    /// Node that frames to `mac`, which is not a node's own, go to.
    pub(crate) fn node_of_foreign(&self, mac: [u8; 6]) -> Option<NodeId> {
        let known = self.macs.lock().node(mac, Clock.now());
        known.or_else(conf::default_node)
    }

    /// Whether the ports are to be reopened; asked once.
    pub(crate) fn take_restart(&self) -> bool {
        self.restart.xchg(0, Relaxed) != 0
    }

    /// Whether the ports could not be reopened so far.
    pub(crate) fn is_reopening(&self) -> bool {
        self.restarts.lock().is_failing()
    }

    /// The ports were reopened, or are not wanted any more.
    pub(crate) fn reopened(&self) {
        self.restarts.lock().settled();
    }

    /// The ports could not be reopened: it is tried again after a while, unless the interface is
    /// set down and up before. The reason is logged the first time. May not be called with a lock
    /// held.
    pub(crate) fn reopen_later(&self, e: Error) {
        let (again, pause) = {
            let mut restarts = self.restarts.lock();
            (restarts.is_failing(), restarts.failed(&pauses()))
        };
        if !again {
            dev_err!(
                self.nic.device(),
                "exn: reopening the ports failed, trying again: {e:?}\n"
            );
        }
        self.counters.reason(Reason::RestartFailed, 1);
        self.restart.store(1, Relaxed);
        self.ndev
            .schedule_work_in(duration(pause).as_millis() as u32);
    }

    /// A new period of the interface begins.
    pub(crate) fn reset(&self) {
        *self.timer.lock() = Timer::new();
        // The first run of the poll function arms both.
        self.velo_fired.store(true, Relaxed);
        self.rma_fired.store(true, Relaxed);
        self.restart.store(0, Relaxed);
        self.reopened();
        self.with_suspects(Suspects::clear);
        self.macs.lock().clear();
        self.notified.store(Clock.now());
    }

    /// Makes sure that housekeeping runs soon; `schedule_in` has the interface polled after a
    /// delay.
    #[inline]
    pub(crate) fn want_tick(&self, schedule_in: impl FnOnce(Delta)) {
        let now = Clock.now();
        let mut timer = self.timer.lock();
        if let Some(at) = timer.want(now.after(ms(conf::TICK_MS))) {
            schedule_in(delay(now, at));
        }
    }

    /// Times of the poll function.
    pub(crate) fn periods(&self) -> Periods {
        Periods {
            busy: ms(conf::TICK_MS),
            idle: ms(conf::IDLE_MS.min(conf::timeout_ms() / 4)),
            pause: ms(conf::PAUSE_MS),
        }
    }

    /// Times and bounds of the rendezvous.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            stall: ms(conf::patient(conf::STALL_MS)),
            lag: ms(conf::patient(conf::LAG_MS)),
            probation: ms(conf::PROBATION_MS),
            timeout: ms(conf::timeout_ms()),
            keep: ms(conf::quarantine_ms()),
            patience: ms(conf::patient(conf::RX_PATIENCE_MS)),
            flight: self.conf.flight() as usize,
            stalled_peer: usize::from(conf::STALLED_PEER_BOUND),
            fetches: usize::from(conf::RX_FLIGHT),
            source: usize::from(conf::RX_PEER_BOUND),
            lossy_source: usize::from(conf::RX_PEER_BOUND / 4),
            waiting: usize::from(conf::RX_WAITING / 2),
            slow_waiting: usize::from(conf::RX_WAITING / 16),
        }
    }

    /// Times of the proof that the ports are stuck.
    pub(crate) fn proof(&self) -> Proof {
        Proof {
            silence: ms(conf::timeout_ms()),
            gap: ms(conf::GAP_MS.max(conf::timeout_ms() / 2)),
        }
    }
}

/// Pauses of restarts, in ticks.
fn pauses() -> Pauses {
    Pauses {
        restart: ms(conf::RESTART_MS),
        longest_restart: ms(conf::RESTART_MAX_MS),
        retry: ms(conf::RETRY_MS),
        longest_retry: ms(conf::RETRY_MAX_MS),
    }
}
