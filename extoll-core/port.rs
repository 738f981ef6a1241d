// SPDX-License-Identifier: GPL-2.0-only

//! Common part of all ports: those of VELO and RMA, of the kernel and of processes. A port is a
//! VPID that is claimed, set up with its queue, stopped and released.
//!
//! A VPID is enabled only after its queue and pointers are set. Otherwise packets would find no
//! queue, or occupy a slot that the NIC then considers free. A VPID is disabled after packets that
//! waited for free slots of the queue have entered it ([`Queue::drain`]). It is released when no
//! command of its owner is pending; until then [`Reclaimer`] keeps it.
//!
//! Opening and closing run in process context and may sleep. Changing a client acquires the
//! spinlock of the VPID table.

use crate::{
    context::Context,
    hw::Hw,
    queue::{self, Layout, Queue, SegmentMemory},
    reclaim::{self, PendingPort, Reclaimer},
    ring_consumer::QueueMonitor,
    stats::{Opener, PortStats},
    time::patience,
    tx::{self, Tx},
    vpid::{Client, Table, VpidRequest},
};
use core::ops::Deref;
use kernel::{
    prelude::*,
    sync::{Arc, Completion, UniqueArc},
};
use kernel_ext::work::Deferred;
use wire::{
    ids::{NodeId, Unit, Vpid},
    regs::BqRegs,
};

/// Maximum number of requester pages per VPID (HW §10.1).
const MAX_PAGES: usize = 32;
/// Maximum wait in milliseconds for pending descriptors and commands when a kernel port is closed.
const CLOSE_MS: u32 = 100;
/// Maximum wait in milliseconds for pending descriptors when a port of a process is closed. It is
/// shorter, so that the process's close does not take long.
const PROCESS_CLEAR_MS: u32 = 10;
const PROCESS_EXECUTE_MS: u32 = 100;
/// Maximum wait in milliseconds for pending descriptors when the work item of [`Reclaimer`]
/// retries.
const AGAIN_CLEAR_MS: u32 = 50;

/// Objects of the NIC that ports of a unit use.
pub(crate) struct PortBase {
    /// Context for register accesses and reports.
    pub(crate) ctx: Arc<Context>,
    /// VPIDs of the unit.
    pub(crate) table: Arc<Table>,
    /// List of VPIDs that cannot be released at once.
    pub(crate) reclaim: Arc<Reclaimer>,
}

/// Properties that differ between VELO and RMA.
pub(crate) trait PortUnit: Send + Sync + Sized + 'static {
    /// Unit that the ports belong to.
    const UNIT: Unit;

    /// Returns the objects of the NIC that ports of this unit use.
    fn base(&self) -> &PortBase;

    /// Returns whether a new owner of the VPID cannot access memory of an earlier owner. Any
    /// context.
    fn is_clean(&self, _: Vpid) -> bool {
        true
    }

    /// Returns a bitmap of the VPIDs for which late answers to an earlier binding of the driver may
    /// come. Processes do not get these VPIDs. May sleep.
    fn late_vpids(&self) -> [u64; 4] {
        [0; 4]
    }

    /// Returns whether the VPID of a new kernel port must stay disabled for a while, and schedules
    /// its enabling in that case. May sleep.
    fn defer_enable(&self, _: Vpid) -> bool {
        false
    }

    /// Prevents that the unit enables the VPID later, because the port is about to be closed. May
    /// sleep.
    fn cancel_enable(&self, _: Vpid) {}

    /// Sets the identity and protection of the VPID, which stays disabled.
    fn prepare(hw: &Hw, vpid: Vpid, protection: u16);

    /// Enables reception. The queue has been installed.
    fn enable(hw: &Hw, vpid: Vpid);

    /// Disables reception. It has ended after the caller has read a register.
    fn disable(hw: &Hw, vpid: Vpid);

    /// Clears the VPID's registers except those that commands in flight still need.
    fn reset(hw: &Hw, vpid: Vpid);

    /// Clears the registers that [`PortUnit::reset`] has kept. No command is in flight any more.
    fn forget(_: &Hw, _: Vpid) {}

    /// Clears the unit's memory for the VPID of a closed port. May sleep.
    fn clear_memory(&self, _: Vpid) {}

    /// Returns the offset of requester page `index` in the unit's window; `None` if there is no
    /// such page.
    fn page(vpid: Vpid, index: u8) -> Option<u32>;

    /// Returns the words of a command without effect from the VPID to itself. It must have no
    /// effect whatever the words after the first contain.
    fn no_op(node: NodeId, vpid: Vpid) -> Result<impl AsRef<[u64]>>;

    /// Waits up to `patience_ms` milliseconds until all commands of a closed VPID without a queue
    /// are executed. Returns false after a time-out. May sleep.
    fn wait_executed(&self, _: Vpid, _protection: u16, _patience_ms: u32) -> bool {
        true
    }
}

/// Owner of a port.
pub(crate) enum Owner {
    /// A kernel module, whose descriptors are always complete.
    Kernel,
    /// A process, which may store arbitrary words to its requester pages.
    Process {
        /// Process and user that opened the port.
        opener: Opener,
        /// Protection descriptor of the port (HW §9.3, §10.7).
        protection: u16,
        /// Bitmap of the requester pages that the process may map.
        pages: u32,
    },
}

impl Owner {
    fn protection(&self) -> u16 {
        match self {
            Owner::Kernel => 0,
            Owner::Process { protection, .. } => *protection,
        }
    }
}

/// Claimed VPID. Dropping the last reference releases the VPID and drops `G`. Code that makes
/// translations for the VPID holds a reference, so that the VPID is not reused before they have
/// ended.
pub(crate) struct PortCore<U: PortUnit, G: Send + Sync + 'static = ()> {
    unit: Arc<U>,
    vpid: Vpid,
    owner: Owner,
    stats: Arc<PortStats>,
    _guard: G,
}

impl<U: PortUnit, G: Send + Sync + 'static> PortCore<U, G> {
    /// Claims a VPID, which is disabled at first. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the VPID is in use, or commands or memory of its last owner are still pending;
    /// `ENOSPC` if no VPID is free; `ENOMEM`; `ENODEV` if the device was removed.
    pub(crate) fn claim(
        unit: &Arc<U>,
        request: VpidRequest,
        owner: Owner,
        guard: G,
    ) -> Result<Arc<Self>> {
        let slot = UniqueArc::new_uninit(GFP_KERNEL)?;
        let opener = match &owner {
            Owner::Kernel => None,
            Owner::Process { opener, .. } => Some(*opener),
        };
        let stats = Arc::new(PortStats::of(opener), GFP_KERNEL)?;
        let late = match owner {
            Owner::Kernel => [0; 4],
            Owner::Process { .. } => unit.late_vpids(),
        };
        let is_late = |vpid: Vpid| {
            let word = late.get(vpid.index() / 64).copied().unwrap_or(0);
            word >> (vpid.index() % 64) & 1 != 0
        };
        let clean = |vpid| unit.is_clean(vpid) && !is_late(vpid);
        let PortBase { ctx, table, .. } = unit.base();
        let vpid = table.allocate(request, stats.clone(), clean)?;
        // After this line, drop releases the VPID.
        let this: Arc<Self> = slot
            .write(Self {
                unit: unit.clone(),
                vpid,
                owner,
                stats,
                _guard: guard,
            })
            .into();
        let hw = ctx.alive_access().ok_or(ENODEV)?;
        U::prepare(&hw, vpid, this.owner.protection());
        tx::reset_state(&hw, U::UNIT, vpid);
        drop(hw);
        Ok(this)
    }

    /// Returns the unit.
    #[inline]
    pub(crate) fn unit(&self) -> &Arc<U> {
        &self.unit
    }

    /// Returns the VPID.
    #[inline]
    pub(crate) fn vpid(&self) -> Vpid {
        self.vpid
    }

    /// Returns the port's counters.
    #[inline]
    pub(crate) fn stats(&self) -> &Arc<PortStats> {
        &self.stats
    }

    /// Returns the NIC's context, for registers and reporting.
    #[inline]
    pub(crate) fn ctx(&self) -> &Arc<Context> {
        &self.unit.base().ctx
    }

    /// Sets or removes the client. The old client is not called after this returns.
    pub(crate) fn set_client(&self, client: Option<Arc<dyn Client>>) {
        self.unit.base().table.set_client(self.vpid, client);
    }

    /// Installs the VPID's queue and enables the VPID. Arms its interrupt if `arm` is set. May
    /// sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device was removed; `ERANGE` for a queue that the registers cannot describe.
    pub(crate) fn start<M: SegmentMemory>(&self, queue: &Queue<M>, arm: bool) -> Result {
        {
            let hw = self.ctx().alive_access().ok_or(ENODEV)?;
            queue.install(&hw, arm)?;
        }
        if matches!(self.owner, Owner::Kernel) && self.unit.defer_enable(self.vpid) {
            return Ok(());
        }
        let hw = self.ctx().alive_access().ok_or(ENODEV)?;
        U::enable(&hw, self.vpid);
        Ok(())
    }

    /// Disables the VPID and removes its queue, whose consumer was dropped. Calls `between` when
    /// reception has ended. Afterwards the queue can be freed and another one installed. May sleep.
    pub(crate) fn stop<M: SegmentMemory>(&self, queue: Option<&Queue<M>>, between: impl FnOnce()) {
        let (ctx, vpid) = (self.ctx(), self.vpid);
        self.unit.cancel_enable(vpid);
        if let Some(queue) = queue {
            queue.drain(ctx);
        }
        if let Some(hw) = ctx.alive_access() {
            U::disable(&hw, vpid);
            hw.rf.read(BqRegs(U::UNIT).ub(vpid));
        }
        between();
        // Drain packets that arrived after the first draining and before the VPID was disabled.
        if let Some(queue) = queue {
            queue.drain(ctx);
        }
        ctx.revoke_confirmed(BqRegs(U::UNIT).ub(vpid), |hw| {
            queue::clear(hw, U::UNIT, vpid);
        });
    }

    /// Releases the VPID of a closed port, at once or later by the work item of [`Reclaimer`].
    /// `settled` says that no command is in flight ([`PortCore::wait_settled`]), `used` that
    /// commands were sent. May sleep.
    pub(crate) fn finish(self: &Arc<Self>, used: bool, settled: bool) {
        let base = self.unit.base();
        if let Some(hw) = base.ctx.alive_access() {
            U::reset(&hw, self.vpid);
        }
        self.unit.clear_memory(self.vpid);
        if !used || (settled && self.wait_executed()) {
            self.forget();
            return;
        }
        self.set_client(None);
        base.reclaim.defer(U::UNIT, self.vpid, self.clone());
    }

    /// Waits until the requester is empty and no command is in flight. Returns false after a
    /// time-out. The owner must not send. The VPID must be enabled, because this function may send
    /// commands from the port to itself. May sleep.
    pub(crate) fn wait_settled(&self) -> bool {
        self.wait_clear(patience(match self.owner {
            Owner::Kernel => CLOSE_MS,
            Owner::Process { .. } => PROCESS_CLEAR_MS,
        }))
    }

    fn wait_clear(&self, patience_ms: u32) -> bool {
        let pages = match self.owner {
            Owner::Kernel => 0,
            Owner::Process { pages, .. } => pages,
        };
        let (mut list, mut count) = ([0; MAX_PAGES], 0);
        let indices = (0..MAX_PAGES as u8).filter(|i| pages >> i & 1 != 0);
        let offsets = indices.filter_map(|i| U::page(self.vpid, i));
        for (slot, page) in list.iter_mut().zip(offsets) {
            *slot = page;
            count += 1;
        }
        let list = list.get(..count).unwrap_or(&[]);
        let ctx = self.ctx();
        U::no_op(ctx.node(), self.vpid).is_ok_and(|words| {
            reclaim::clear(ctx, U::UNIT, self.vpid, list, words.as_ref(), patience_ms)
        })
    }

    /// Waits until all commands are executed, unless they cannot affect the next owner. Returns
    /// false after a time-out.
    fn wait_executed(&self) -> bool {
        let ms = match self.owner {
            // Only kernel ports use these VPIDs, and the kernel need not be protected from its own
            // commands.
            Owner::Kernel if self.vpid >= Vpid::USER_END => return true,
            Owner::Kernel => CLOSE_MS,
            Owner::Process { .. } => PROCESS_EXECUTE_MS,
        };
        let protection = self.owner.protection();
        self.unit.wait_executed(self.vpid, protection, patience(ms))
    }

    fn forget(&self) {
        if let Some(hw) = self.ctx().alive_access() {
            U::forget(&hw, self.vpid);
        }
    }
}

impl<U: PortUnit, G: Send + Sync + 'static> PendingPort for PortCore<U, G> {
    fn is_clear(&self) -> bool {
        let ms = match self.owner {
            Owner::Kernel => CLOSE_MS,
            Owner::Process { .. } => AGAIN_CLEAR_MS,
        };
        let gone = self.wait_clear(ms) && self.wait_executed();
        if gone {
            self.forget();
        }
        gone
    }
}

impl<U: PortUnit, G: Send + Sync + 'static> Drop for PortCore<U, G> {
    fn drop(&mut self) {
        // Disables the VPID even if opening the port failed, because a VPID without owner must not
        // accept packets.
        if let Some(hw) = self.ctx().alive_access() {
            U::reset(&hw, self.vpid);
        }
        self.unit.base().table.release(self.vpid);
    }
}

/// Completes the completion when it is dropped.
struct NotifyClosed(Arc<Completion>);

impl Drop for NotifyClosed {
    fn drop(&mut self) {
        self.0.complete_all();
    }
}

/// Open port of the kernel. `N` is the maximum packet length in words. Drop closes the port and
/// sleeps. Users hold a [`PortHandle`].
pub(crate) struct KernelPort<U: PortUnit, const N: usize> {
    core: Arc<PortCore<U>>,
    /// Sending side.
    pub(crate) tx: Arc<Tx<N>>,
    /// Receiving side. `monitor` watches the queue.
    pub(crate) queue: Queue,
    pub(crate) monitor: Arc<QueueMonitor>,
    /// Dropped last, when the port is completely closed.
    closed: NotifyClosed,
}

impl<U: PortUnit, const N: usize> KernelPort<U, N> {
    /// Opens a port with armed interrupts. May sleep.
    ///
    /// # Errors
    ///
    /// The errors of [`PortCore::claim`].
    pub(crate) fn open(
        unit: &Arc<U>,
        request: VpidRequest,
        layout: Layout,
    ) -> Result<PortHandle<U, N>> {
        let closed = NotifyClosed(Arc::pin_init(Completion::new(), GFP_KERNEL)?);
        let core = PortCore::claim(unit, request, Owner::Kernel, ())?;
        let vpid = core.vpid();
        let PortBase { ctx, table, .. } = unit.base();
        let tx = Tx::new(ctx, table, vpid, core.stats().clone())?;
        let queue = ctx.with_bound(|dev| Queue::new(dev, U::UNIT, vpid, layout))??;
        let monitor = QueueMonitor::new(ctx, table, vpid)?;
        table.set_tx(vpid, tx.clone());
        let this = Self {
            core,
            tx,
            queue,
            monitor,
            closed,
        };
        this.core.start(&this.queue, true)?;
        let port = Deferred::new(this, GFP_KERNEL)?;
        Ok(PortHandle(Arc::new(port, GFP_KERNEL)?))
    }

    /// Returns the claimed VPID.
    #[inline]
    pub(crate) fn core(&self) -> &Arc<PortCore<U>> {
        &self.core
    }
}

impl<U: PortUnit, const N: usize> Drop for KernelPort<U, N> {
    fn drop(&mut self) {
        self.tx.close();
        self.monitor.stop();
        let used = self.tx.is_used();
        let settled = !used || self.core.wait_settled();
        self.core.stop(Some(&self.queue), || {});
        self.core.finish(used, settled);
    }
}

/// Handle of an open port. Dropping the last handle, in any context, makes a work item close the
/// port.
pub(crate) struct PortHandle<U: PortUnit, const N: usize>(Arc<Deferred<KernelPort<U, N>>>);

impl<U: PortUnit, const N: usize> Clone for PortHandle<U, N> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<U: PortUnit, const N: usize> Deref for PortHandle<U, N> {
    type Target = KernelPort<U, N>;

    #[inline]
    fn deref(&self) -> &KernelPort<U, N> {
        &self.0
    }
}

impl<U: PortUnit, const N: usize> PortHandle<U, N> {
    /// Drops the handle. If it is the last one, waits until the port is closed. May sleep.
    pub(crate) fn close(self) {
        let closed = self.closed.0.clone();
        if let Some(last) = Arc::into_unique_or_drop(self.0) {
            drop(last);
            closed.wait_for_completion();
        }
    }
}
