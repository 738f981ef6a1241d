// SPDX-License-Identifier: GPL-2.0-only

//! What every unit of a NIC depends on: registers, the DMA device, whether the hardware may still
//! be touched, and reporting.
//!
//! A [`Context`] may outlive the binding of its device (somebody still holds a reference), but its
//! register mappings do not: [`Context::give_up`] revokes them and waits for all users; later
//! accesses get `None` or `ENODEV`.

use crate::{
    dma::BoundDevice,
    hw::Hw,
    report::Report,
    stats::{Reason, Stats},
};
use kernel::{
    device::{self, Bound},
    new_mutex,
    prelude::*,
    revocable::{Revocable, RevocableGuard},
    sync::{
        atomic::{Atomic, AtomicFlag, Full, Relaxed},
        new_spinlock_irq, rcu, Arc, Mutex, SpinLockIrq,
    },
    time::{delay::fsleep, Delta},
};
use kernel_ext::{mem, pci::stop_dma};
use wire::{
    ids::{NodeId, RegOffset},
    regs::info,
};

pub use wire::regs::info::NetworkState;

/// What the network looks like from this NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Node ID; meaningful while the network runs. May be 0 (G27).
    pub node: NodeId,
    /// Network state.
    pub network: NetworkState,
    /// False once the device is gone or its driver unbound.
    pub alive: bool,
}

impl Status {
    /// True when traffic is possible.
    pub fn is_up(&self) -> bool {
        self.alive && self.network == NetworkState::Running
    }
}

/// Hears that a NIC is gone.
pub(crate) trait Lost: Send + Sync {
    /// The device does not answer any more, or must not be touched any more. Any context, with the
    /// list of listeners locked and interrupts off: schedule work.
    fn lost(&self);
}

/// Time for a write to memory to arrive that a unit had begun when it was told to stop: such writes
/// take another way than the answer to a register read (HW §5), which does not push them; nor does
/// anything say that a notification of the ATU pushes those of other units (HW §11.3).
const WRITE_TIME: Delta = Delta::from_millis(2);

/// Access to the hardware; while it exists the mappings stay. Holds an RCU read lock: must not
/// sleep.
pub(crate) type Access<'a> = RevocableGuard<'a, Hw>;

/// See the module.
#[pin_data]
pub struct Context {
    report: Report,
    #[pin]
    hw: Revocable<Hw>,
    /// `Some` while the device is bound; locked by users that sleep.
    #[pin]
    bound: Mutex<Option<BoundDevice>>,
    /// Cleared once, when the device is found missing or unbound.
    alive: AtomicFlag,
    /// Set once, when the PCI core says that accesses do not get there.
    unreachable: AtomicFlag,
    /// The device was found missing, which is not logged yet.
    unlogged: AtomicFlag,
    /// `Some` while the device is bound and can access memory. Taken last.
    #[pin]
    dma: Mutex<Option<BoundDevice>>,
    node: Atomic<u32>,
    network: Atomic<u64>,
    #[pin]
    listener: SpinLockIrq<Option<Arc<dyn Lost>>>,
}

impl Context {
    /// `id` identifies the NIC on this host, `log_interval_ms` is the time in which a reason gets
    /// few log lines. May sleep.
    pub(crate) fn new(
        dev: &device::Device<Bound>,
        id: u32,
        log_interval_ms: u32,
        hw: Hw,
    ) -> Result<Arc<Self>> {
        let (bound, dma) = (hw.device().share(), hw.device().share());
        Arc::pin_init(
            try_pin_init!(Self {
                report: Report::new(dev, id, log_interval_ms),
                hw <- Revocable::new(hw),
                bound <- new_mutex!(Some(bound), "extoll_bound"),
                alive: AtomicFlag::new(true),
                unreachable: AtomicFlag::new(false),
                unlogged: AtomicFlag::new(false),
                dma <- new_mutex!(Some(dma), "extoll_dma"),
                node: Atomic::new(0),
                network: Atomic::new(0),
                listener <- new_spinlock_irq!(None, "extoll_lost"),
            }),
            GFP_KERNEL,
        )
    }

    /// Number that identifies the NIC on this host: PCI domain, bus, device, function
    /// ([`kernel_ext::pci::unique_id`]).
    pub fn id(&self) -> u32 {
        self.report.id()
    }

    /// The PCI device, for log lines.
    pub fn device(&self) -> &device::Device {
        self.report.device()
    }

    /// Node ID as last read. No register access; any context.
    pub fn node(&self) -> NodeId {
        NodeId(self.node.load(Relaxed) as u16)
    }

    /// Node ID, network state and liveness as last read. No register access; any context.
    pub fn status(&self) -> Status {
        Status {
            node: self.node(),
            network: NetworkState::from_raw(self.network.load(Relaxed)),
            alive: self.is_alive(),
        }
    }

    /// False once the device is gone or unbound. Any context.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        self.report.stats()
    }

    /// Calls `f` with the device while it is certainly bound, e.g. to allocate DMA memory. May
    /// sleep, and so may `f`. Unbinding waits for `f`.
    ///
    /// # Errors
    ///
    /// `ENODEV` after unbinding has begun.
    pub fn with_bound<R>(&self, f: impl FnOnce(&mem::BoundDevice) -> R) -> Result<R> {
        let bound = self.bound.lock();
        Ok(f(bound.as_ref().ok_or(ENODEV)?.get()))
    }

    /// As [`Context::with_bound`] for any context, e.g. to map a buffer: `f` must not sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` after unbinding has begun.
    pub fn with_bound_atomic<R>(&self, f: impl FnOnce(&mem::BoundDevice) -> R) -> Result<R> {
        let hw = self.access().ok_or(ENODEV)?;
        Ok(f(hw.device().get()))
    }

    /// The registers, unless revoked. Hold briefly.
    pub(crate) fn access(&self) -> Option<Access<'_>> {
        self.hw.try_access()
    }

    /// As [`Context::access`], but also refuses a device that was found missing.
    pub(crate) fn alive_access(&self) -> Option<Access<'_>> {
        // In this order: who has declared it dead and then waited for readers of RCU knows that
        // nobody touches it any more.
        let hw = self.hw.try_access()?;
        self.is_alive().then_some(hw)
    }

    /// Counts, traces and (rate-limited) logs an error. Any context.
    pub(crate) fn error(&self, reason: Reason, detail: u64) {
        self.report.error(reason, detail);
    }

    /// Counts and traces an error without a log line. Any context.
    pub(crate) fn note(&self, reason: Reason, detail: u64) {
        self.report.note(reason, detail);
    }

    /// Whether a line about `reason` may be logged now: how many were suppressed since the last
    /// one.
    pub(crate) fn log_allowance(&self, reason: Reason) -> Option<u32> {
        self.report.log_allowance(reason)
    }

    /// Tells whether a value that was read means that the device is gone, and declares it dead
    /// then. Any context.
    pub(crate) fn is_gone(&self, hw: &Hw, value: u64) -> bool {
        if value != u64::MAX {
            return !self.is_alive();
        }
        // All ones could be data; the version register cannot be.
        if hw.rf.read(info::DRIVER) != u64::MAX {
            return false;
        }
        self.declare_dead();
        true
    }

    /// The device does not answer: sends fail from now on, clients hear of it. Once. Any context.
    fn declare_dead(&self) {
        if self.alive.xchg(false, Full) {
            self.note(Reason::DeviceGone, 0);
            // Whoever found out may hold locks, which a slow console would have others wait for.
            self.unlogged.store(true, Relaxed);
            let listener = self.listener.lock();
            match listener.as_ref() {
                Some(listener) => listener.lost(),
                // While the device is probed.
                None => {
                    drop(listener);
                    self.log_loss();
                }
            }
        }
    }

    /// Logs that the device is missing, if that was found and not logged yet. Process context.
    pub(crate) fn log_loss(&self) {
        if self.unlogged.xchg(false, Full) {
            dev_err!(
                self.device(),
                "registers read as all ones, the device is gone\n"
            );
        }
    }

    /// Who hears that the device is gone; `None` ends that, and nobody is called any more when this
    /// returns. Process context.
    pub(crate) fn set_listener(&self, new: Option<Arc<dyn Lost>>) {
        let old = core::mem::replace(&mut *self.listener.lock(), new);
        drop(old);
    }

    /// The device is unbound: nothing declares it dead any more.
    pub(crate) fn retire(&self) {
        self.alive.store(false, Relaxed);
    }

    /// Cuts a dead NIC off from memory, since it can't be told to forget any: its registers may
    /// hang while it goes on to read and write. When this returns, nothing of this host is in its
    /// reach. May sleep.
    pub(crate) fn isolate(&self) {
        if self.is_alive() {
            return;
        }
        let mut dma = self.dma.lock();
        if let Some(dev) = dma.take() {
            // It is a PCI device.
            let _ = stop_dma(dev.get());
        }
    }

    /// Has `f` tell the NIC to forget memory, and makes sure by reading `reg` that it has: when
    /// this returns the memory can be freed. `f` must not sleep and may not be called. May sleep.
    pub(crate) fn withdraw(&self, reg: RegOffset, f: impl FnOnce(&Hw)) {
        let told = self.alive_access().is_some_and(|hw| {
            f(&hw);
            !self.is_gone(&hw, hw.rf.read(reg))
        });
        if told {
            self.let_writes_arrive();
        } else {
            self.isolate();
        }
    }

    /// Waits until what units of the NIC had begun to write is in memory, when they have said that
    /// they write no more there. May sleep.
    pub(crate) fn let_writes_arrive(&self) {
        fsleep(WRITE_TIME);
    }

    /// Notes the network state as read.
    pub(crate) fn set_network(&self, value: u64) {
        self.network.store(value, Relaxed);
    }

    /// Notes the node ID as read; returns the one before.
    pub(crate) fn set_node(&self, node: NodeId) -> NodeId {
        NodeId(self.node.xchg(u32::from(node.0), Full) as u16)
    }

    /// The device will be reset by somebody else: has it do nothing more if it is `reachable`, and
    /// lets nobody touch it, nor processes by what `revoke` takes from them. May sleep.
    pub(crate) fn lose_by_reset(&self, reachable: bool, revoke: impl FnOnce()) {
        if !reachable {
            self.unreachable.store(true, Relaxed);
        }
        if self.alive.xchg(false, Full) {
            let reason = match reachable {
                true => Reason::Reset,
                false => Reason::Unreachable,
            };
            self.error(reason, 0);
        }
        // Whoever has seen it alive is done with it.
        rcu::synchronize_rcu();
        revoke();
        // It still does as it is told.
        self.quiesce();
        self.let_writes_arrive();
    }

    /// Has a device that nobody uses any more do nothing, unless it was unreachable once: an access
    /// might take the host down, and what makes it reachable again is a reset.
    pub(crate) fn quiesce(&self) {
        if self.unreachable.load(Relaxed) {
            return;
        }
        if let Some(hw) = self.access() {
            hw.quiesce();
        }
    }

    /// Gives the device and its registers up, for ever: waits for their users. May sleep.
    pub(crate) fn give_up(&self) {
        *self.dma.lock() = None;
        *self.bound.lock() = None;
        self.hw.revoke();
    }
}
