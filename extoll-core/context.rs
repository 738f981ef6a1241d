// SPDX-License-Identifier: GPL-2.0-only

//! Context that all units of a NIC use: registers, the DMA device, liveness, and reporting.
//!
//! A [`Context`] may outlive the binding of its device, but its register mappings do not.
//! [`Context::release`] revokes them and waits for all users. Later accesses return `None` or
//! `ENODEV`.
//!
//! Register access is under RCU and works in any context. Users that may sleep lock the mutexes
//! `bound` and `dma` instead.

use crate::{
    dma::BoundDevice,
    hw::Hw,
    quirks,
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
    time::delay::fsleep,
};
use kernel_ext::{mem, pci::stop_dma};
use wire::{
    ids::{NodeId, RegOffset},
    regs::info,
};

pub use wire::regs::info::NetworkState;

/// Status of the NIC and the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Node ID, valid while the network runs. May be 0 (G27).
    pub node: NodeId,
    /// Network state.
    pub network: NetworkState,
    /// False after the device was removed or its driver was unbound.
    pub alive: bool,
}

impl Status {
    /// Returns whether traffic is possible.
    pub fn is_up(&self) -> bool {
        self.alive && self.network == NetworkState::Running
    }
}

/// Listener for the loss of a NIC.
pub(crate) trait LossListener: Send + Sync {
    /// Reports that the device does not answer, or that accesses to it are forbidden. Any context.
    /// The list of listeners is locked and interrupts are disabled, so implementations only queue a
    /// work item.
    fn device_lost(&self);
}

/// Access to the hardware. The mappings stay valid while the value exists. It holds an RCU read
/// lock, so the holder must not sleep.
pub(crate) type Access<'a> = RevocableGuard<'a, Hw>;

/// Context of one NIC; see the documentation of the module.
#[pin_data]
pub struct Context {
    report: Report,
    #[pin]
    hw: Revocable<Hw>,
    /// `Some` while the device is bound. Only contexts that may sleep lock this mutex.
    #[pin]
    bound: Mutex<Option<BoundDevice>>,
    /// Cleared when the device is unbound or found to be removed. It is never set again.
    alive: AtomicFlag,
    /// Set when the PCI core reports that accesses do not reach the device. It is never cleared.
    unreachable: AtomicFlag,
    /// Set after the removal of the device was detected and until it is logged.
    unlogged: AtomicFlag,
    /// `Some` while the device is bound and can access memory. The last lock in the lock order.
    #[pin]
    dma: Mutex<Option<BoundDevice>>,
    node: Atomic<u32>,
    network: Atomic<u64>,
    #[pin]
    listener: SpinLockIrq<Option<Arc<dyn LossListener>>>,
}

impl Context {
    /// Makes the context. `id` identifies the NIC on this host. `log_interval_ms` is the interval
    /// in ms for which the log lines of each reason are limited. May sleep.
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

    /// Returns the number that identifies the NIC on this host: PCI domain, bus, device, function
    /// ([`kernel_ext::pci::unique_id`]).
    pub fn id(&self) -> u32 {
        self.report.id()
    }

    /// Returns the PCI device, for log lines.
    pub fn device(&self) -> &device::Device {
        self.report.device()
    }

    /// Returns the node ID that was read last. No register access; any context.
    pub fn node(&self) -> NodeId {
        NodeId(self.node.load(Relaxed) as u16)
    }

    /// Returns the node ID, network state and liveness that were read last. No register access; any
    /// context.
    pub fn status(&self) -> Status {
        Status {
            node: self.node(),
            network: NetworkState::from_raw(self.network.load(Relaxed)),
            alive: self.is_alive(),
        }
    }

    /// Returns false after the device was removed or unbound. Any context.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Stats {
        self.report.stats()
    }

    /// Calls `f` with the bound device, for example to allocate DMA memory. May sleep, and so may
    /// `f`. Unbinding waits for `f`.
    ///
    /// # Errors
    ///
    /// `ENODEV` after unbinding has begun.
    pub fn with_bound<R>(&self, f: impl FnOnce(&mem::BoundDevice) -> R) -> Result<R> {
        let bound = self.bound.lock();
        Ok(f(bound.as_ref().ok_or(ENODEV)?.get()))
    }

    /// Calls `f` with the bound device, for example to map a buffer. `f` must not sleep. Any
    /// context.
    ///
    /// # Errors
    ///
    /// `ENODEV` after unbinding has begun.
    pub fn with_bound_atomic<R>(&self, f: impl FnOnce(&mem::BoundDevice) -> R) -> Result<R> {
        let hw = self.access().ok_or(ENODEV)?;
        Ok(f(hw.device().get()))
    }

    /// Returns access to the registers, unless they were revoked. The caller must drop it soon.
    pub(crate) fn access(&self) -> Option<Access<'_>> {
        self.hw.try_access()
    }

    /// Returns access to the registers, unless they were revoked or the device was removed.
    pub(crate) fn alive_access(&self) -> Option<Access<'_>> {
        // The order matters: after the device was declared dead and an RCU grace period has passed,
        // no CPU accesses its registers.
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

    /// Returns the number of suppressed lines since the last line about `reason`; `None` if no line
    /// may be logged now.
    pub(crate) fn log_allowance(&self, reason: Reason) -> Option<u32> {
        self.report.log_allowance(reason)
    }

    /// Returns whether the device was removed, if a register was read as `value`. Declares the
    /// device dead in that case. Any context.
    pub(crate) fn check_removed(&self, hw: &Hw, value: u64) -> bool {
        if value != u64::MAX {
            return !self.is_alive();
        }
        // Data may be all ones, but the version register never reads as all ones.
        if hw.rf.read(info::DRIVER) != u64::MAX {
            return false;
        }
        self.mark_removed();
        true
    }

    /// Declares the device dead. Sends fail from now on, and the listener is called. Further calls
    /// have no effect. Any context.
    fn mark_removed(&self) {
        if self.alive.xchg(false, Full) {
            self.note(Reason::DeviceGone, 0);
            // The loss is not logged here, because the caller may hold locks and a console may be
            // slow.
            self.unlogged.store(true, Relaxed);
            let listener = self.listener.lock();
            match listener.as_ref() {
                Some(listener) => listener.device_lost(),
                // No listener exists during probe.
                None => {
                    drop(listener);
                    self.log_loss();
                }
            }
        }
    }

    /// Logs the removal of the device if it was detected and not logged before. Process context.
    pub(crate) fn log_loss(&self) {
        if self.unlogged.xchg(false, Full) {
            dev_err!(
                self.device(),
                "registers read as all ones: the device was removed or does not respond\n"
            );
        }
    }

    /// Sets the listener for the loss of the device. The old listener is not called after this
    /// function returns. Process context.
    pub(crate) fn set_listener(&self, new: Option<Arc<dyn LossListener>>) {
        let old = core::mem::replace(&mut *self.listener.lock(), new);
        drop(old);
    }

    /// Marks the device as unbound. Afterwards, failed register accesses do not declare it dead.
    pub(crate) fn retire(&self) {
        self.alive.store(false, Relaxed);
    }

    /// Disables DMA of a dead NIC. Such a NIC cannot be stopped by registers, because it may
    /// continue to read and write memory while register accesses hang. When this function returns,
    /// the NIC cannot access memory of this host. May sleep.
    pub(crate) fn isolate(&self) {
        if self.is_alive() {
            return;
        }
        let mut dma = self.dma.lock();
        if let Some(dev) = dma.take() {
            // Cannot fail for a PCI device.
            let _ = stop_dma(dev.get());
        }
    }

    /// Calls `f` to make the NIC release memory, and confirms this by reading `reg`. When this
    /// function returns, the memory can be freed. `f` must not sleep. For a dead device, DMA is
    /// disabled instead of calling `f`. May sleep.
    pub(crate) fn revoke_confirmed(&self, reg: RegOffset, f: impl FnOnce(&Hw)) {
        let confirmed = self.alive_access().is_some_and(|hw| {
            f(&hw);
            !self.check_removed(&hw, hw.rf.read(reg))
        });
        if confirmed {
            self.wait_for_writes();
        } else {
            self.isolate();
        }
    }

    /// Waits until earlier writes of units have reached memory. The units have confirmed that they
    /// write no more. May sleep.
    pub(crate) fn wait_for_writes(&self) {
        fsleep(quirks::WRITE_DRAIN_TIME);
    }

    /// Stores the network state that was read from the NIC.
    pub(crate) fn set_network(&self, value: u64) {
        self.network.store(value, Relaxed);
    }

    /// Stores the node ID that was read from the NIC. Returns the previous node ID.
    pub(crate) fn set_node(&self, node: NodeId) -> NodeId {
        NodeId(self.node.xchg(u32::from(node.0), Full) as u16)
    }

    /// Prepares for a reset by another driver or the PCI core. Stops the device if it is
    /// `reachable`, and prevents further accesses. `revoke` must unmap the device from processes.
    /// May sleep.
    pub(crate) fn lose_by_reset(&self, reachable: bool, revoke: impl FnOnce()) {
        if !reachable {
            self.unreachable.store(true, Relaxed);
        }
        if self.alive.xchg(false, Full) {
            let reason = if reachable {
                Reason::Reset
            } else {
                Reason::Unreachable
            };
            self.error(reason, 0);
        }
        // Wait for CPUs that found the device alive.
        rcu::synchronize_rcu();
        revoke();
        // A device that was declared dead may still execute register writes.
        self.quiesce();
        self.wait_for_writes();
    }

    /// Stops an unused device, unless it was ever unreachable. Accessing an unreachable device
    /// might crash the host, and only a reset makes it reachable again.
    pub(crate) fn quiesce(&self) {
        if self.unreachable.load(Relaxed) {
            return;
        }
        if let Some(hw) = self.access() {
            hw.quiesce();
        }
    }

    /// Releases the device and its registers permanently, and waits for their users. May sleep.
    pub(crate) fn release(&self) {
        *self.dma.lock() = None;
        *self.bound.lock() = None;
        self.hw.revoke();
    }
}
