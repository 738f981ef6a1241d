// SPDX-License-Identifier: GPL-2.0-only

//! What all ports have in common, VELO's and RMA's, of the kernel and of processes: a VPID that is claimed,
//! set up with its queue, taken out of use, and given back.
//!
//! A VPID is enabled when its queue is in place and the pointers are set, not before: whatever comes
//! earlier would find no queue, or lie in a slot that the NIC then takes for free. It is disabled when what
//! waited for room in the queue has been let in ([`Queue::drain`]). It changes hands when nothing of the last
//! owner is on the way any more; until then [`Residue`] keeps it from everybody.

use crate::{
    context::Context,
    hw::Hw,
    intake::QueueMonitor,
    queue::{self, Layout, Queue, SegmentMemory},
    residue::{self, Leftover, Residue},
    stats::{Opener, PortStats},
    time::patience,
    tx::{self, Tx},
    vpid::{Client, Table, Want},
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

/// Requester pages of a VPID (HW §10.1).
const MOST_PAGES: usize = 32;
/// How long a kernel port waits for descriptors that are on their way when it is closed, and for its commands.
const CLOSE_MS: u32 = 100;
/// The same for a port of a process, where the one who closes it should not wait for long.
const PROCESS_CLEAR_MS: u32 = 10;
const PROCESS_EXECUTE_MS: u32 = 100;
/// How long descriptors are waited for where nobody waits.
const AGAIN_CLEAR_MS: u32 = 50;

/// What ports of a unit need of the NIC.
pub(crate) struct PortBase {
    /// Registers and reports.
    pub(crate) ctx: Arc<Context>,
    /// VPIDs of the unit.
    pub(crate) table: Arc<Table>,
    /// Where VPIDs go that can't be given back at once.
    pub(crate) residue: Arc<Residue>,
}

/// What differs between the units.
pub(crate) trait PortUnit: Send + Sync + Sized + 'static {
    /// The unit.
    const UNIT: Unit;

    /// What all of its ports need.
    fn base(&self) -> &PortBase;

    /// Nothing of an earlier owner is left that a new one could reach. Any context.
    fn is_clean(&self, _: Vpid) -> bool {
        true
    }

    /// VPIDs, as bits, that late answers to an owner before the driver was bound may come for: processes
    /// don't get them. May sleep.
    fn owed(&self) -> [u64; 4] {
        [0; 4]
    }

    /// Has the VPID of a kernel port that is set up stay disabled for a while, if it has to be: true then.
    /// May sleep.
    fn postpone(&self, _: Vpid) -> bool {
        false
    }

    /// The port is about to be closed: it is not enabled any more by itself. May sleep.
    fn retire(&self, _: Vpid) {}

    /// Sets the identity and protection of the VPID; it stays disabled.
    fn prepare(hw: &Hw, vpid: Vpid, protection: u16);

    /// The queue is in place: something can be received.
    fn enable(hw: &Hw, vpid: Vpid);

    /// Nothing is received any more when the caller has read a register.
    fn disable(hw: &Hw, vpid: Vpid);

    /// Clears what the owner left in the VPID's registers, except for what its commands in flight still
    /// need.
    fn reset(hw: &Hw, vpid: Vpid);

    /// Clears what [`PortUnit::reset`] kept: no command is in flight now.
    fn forget(_: &Hw, _: Vpid) {}

    /// The port is closed: clears what the unit has in memory for its VPID. May sleep.
    fn wipe(&self, _: Vpid) {}

    /// Requester page `index` as an offset in the window of the unit; `None` if there is no such page.
    fn page(vpid: Vpid, index: u8) -> Option<u32>;

    /// The words of a command from the VPID to itself that nobody notices, whatever the words after the
    /// first contain.
    fn nothing(node: NodeId, vpid: Vpid) -> Result<impl AsRef<[u64]>>;

    /// Whether all commands of the VPID are executed, which is closed and without a queue; waits for that,
    /// `patience_ms` at most. May sleep.
    fn is_executed(&self, _: Vpid, _protection: u16, _patience_ms: u32) -> bool {
        true
    }
}

/// Who owns a port.
pub(crate) enum Owner {
    /// A module. Its descriptors are always complete.
    Kernel,
    /// A process, which may store anything to its requester pages.
    Process {
        /// Who opened it.
        opener: Opener,
        /// Protection descriptor (HW §9.3, §10.7).
        protection: u16,
        /// Requester pages that it may map, as bits.
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

/// A VPID that somebody owns, given back by the drop of the last reference. Whoever makes translations for it
/// holds on to it, so that nobody else gets it before they are gone. `G` is dropped with it.
pub(crate) struct PortCore<U: PortUnit, G: Send + Sync + 'static = ()> {
    unit: Arc<U>,
    vpid: Vpid,
    owner: Owner,
    stats: Arc<PortStats>,
    _guard: G,
}

impl<U: PortUnit, G: Send + Sync + 'static> PortCore<U, G> {
    /// Takes a VPID, which is disabled. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is taken, or something of its last owner is left, `ENOSPC` if none is free,
    /// `ENOMEM`, `ENODEV` if the device is gone.
    pub(crate) fn claim(unit: &Arc<U>, want: Want, owner: Owner, guard: G) -> Result<Arc<Self>> {
        let place = UniqueArc::new_uninit(GFP_KERNEL)?;
        let opener = match &owner {
            Owner::Kernel => None,
            Owner::Process { opener, .. } => Some(*opener),
        };
        let stats = Arc::new(PortStats::of(opener), GFP_KERNEL)?;
        let owed = match owner {
            Owner::Kernel => [0; 4],
            Owner::Process { .. } => unit.owed(),
        };
        let is_owed = |vpid: Vpid| {
            let word = owed.get(vpid.index() / 64).copied().unwrap_or(0);
            word >> (vpid.index() % 64) & 1 != 0
        };
        let clean = |vpid| unit.is_clean(vpid) && !is_owed(vpid);
        let PortBase { ctx, table, .. } = unit.base();
        let vpid = table.allocate(want, stats.clone(), clean)?;
        // From here on its drop gives the VPID back.
        let this: Arc<Self> = place
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

    /// The unit.
    #[inline]
    pub(crate) fn unit(&self) -> &Arc<U> {
        &self.unit
    }

    /// The VPID.
    #[inline]
    pub(crate) fn vpid(&self) -> Vpid {
        self.vpid
    }

    /// Counters.
    #[inline]
    pub(crate) fn stats(&self) -> &Arc<PortStats> {
        &self.stats
    }

    /// Registers and reports.
    #[inline]
    pub(crate) fn ctx(&self) -> &Arc<Context> {
        &self.unit.base().ctx
    }

    /// Sets who hears of the port, or nobody; the old one is not called any more when this returns.
    pub(crate) fn set_client(&self, client: Option<Arc<dyn Client>>) {
        self.unit.base().table.set_client(self.vpid, client);
    }

    /// Gives the VPID its queue and enables it; `arm`: interrupts are armed. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is gone, `ERANGE` for a queue that the NIC can't be told of.
    pub(crate) fn start<M: SegmentMemory>(&self, queue: &Queue<M>, arm: bool) -> Result {
        {
            let hw = self.ctx().alive_access().ok_or(ENODEV)?;
            queue.install(&hw, arm)?;
        }
        if matches!(self.owner, Owner::Kernel) && self.unit.postpone(self.vpid) {
            return Ok(());
        }
        let hw = self.ctx().alive_access().ok_or(ENODEV)?;
        U::enable(&hw, self.vpid);
        Ok(())
    }

    /// Takes its queue, which nobody reads any more, from the VPID, which is disabled then. Its memory can be
    /// freed, and the VPID can get another one. `between` is called when nothing is received any more. May
    /// sleep.
    pub(crate) fn stop<M: SegmentMemory>(&self, queue: Option<&Queue<M>>, between: impl FnOnce()) {
        let (ctx, vpid) = (self.ctx(), self.vpid);
        self.unit.retire(vpid);
        if let Some(queue) = queue {
            queue.drain(ctx);
        }
        if let Some(hw) = ctx.alive_access() {
            U::disable(&hw, vpid);
            hw.rf.read(BqRegs(U::UNIT).ub(vpid));
        }
        between();
        // What came in between.
        if let Some(queue) = queue {
            queue.drain(ctx);
        }
        ctx.withdraw(BqRegs(U::UNIT).ub(vpid), |hw| {
            queue::clear(hw, U::UNIT, vpid);
        });
    }

    /// The port is closed: gives the VPID up when nothing is left of it, at once or later. `settled`: nothing
    /// is on the way ([`PortCore::is_settled`]); `used`: something was sent. May sleep.
    pub(crate) fn finish(self: &Arc<Self>, used: bool, settled: bool) {
        let base = self.unit.base();
        if let Some(hw) = base.ctx.alive_access() {
            U::reset(&hw, self.vpid);
        }
        self.unit.wipe(self.vpid);
        if !used || (settled && self.is_executed()) {
            self.forget();
            return;
        }
        self.set_client(None);
        base.residue.keep(U::UNIT, self.vpid, self.clone());
    }

    /// Whether nothing is in the requester any more, or on its way, while nobody sends; waits for that. To be
    /// called while the VPID is enabled, as for a process commands to itself are sent. May sleep.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_clear(patience(match self.owner {
            Owner::Kernel => CLOSE_MS,
            Owner::Process { .. } => PROCESS_CLEAR_MS,
        }))
    }

    fn is_clear(&self, patience_ms: u32) -> bool {
        let pages = match self.owner {
            Owner::Kernel => 0,
            Owner::Process { pages, .. } => pages,
        };
        let (mut list, mut count) = ([0; MOST_PAGES], 0);
        let indices = (0..MOST_PAGES as u8).filter(|i| pages >> i & 1 != 0);
        let offsets = indices.filter_map(|i| U::page(self.vpid, i));
        for (place, page) in list.iter_mut().zip(offsets) {
            *place = page;
            count += 1;
        }
        let list = list.get(..count).unwrap_or(&[]);
        let ctx = self.ctx();
        U::nothing(ctx.node(), self.vpid).is_ok_and(|words| {
            residue::clear(ctx, U::UNIT, self.vpid, list, words.as_ref(), patience_ms)
        })
    }

    /// Whether what was sent is executed where that matters to the next owner; waits for that.
    fn is_executed(&self) -> bool {
        let ms = match self.owner {
            // Nobody but the kernel's ports get it.
            Owner::Kernel if self.vpid >= Vpid::USER_END => return true,
            Owner::Kernel => CLOSE_MS,
            Owner::Process { .. } => PROCESS_EXECUTE_MS,
        };
        let protection = self.owner.protection();
        self.unit.is_executed(self.vpid, protection, patience(ms))
    }

    fn forget(&self) {
        if let Some(hw) = self.ctx().alive_access() {
            U::forget(&hw, self.vpid);
        }
    }
}

impl<U: PortUnit, G: Send + Sync + 'static> Leftover for PortCore<U, G> {
    fn is_gone(&self) -> bool {
        let ms = match self.owner {
            Owner::Kernel => CLOSE_MS,
            Owner::Process { .. } => AGAIN_CLEAR_MS,
        };
        let gone = self.is_clear(ms) && self.is_executed();
        if gone {
            self.forget();
        }
        gone
    }
}

impl<U: PortUnit, G: Send + Sync + 'static> Drop for PortCore<U, G> {
    fn drop(&mut self) {
        // Also where a port could not be opened to its end: nobody's VPID takes packets.
        if let Some(hw) = self.ctx().alive_access() {
            U::reset(&hw, self.vpid);
        }
        self.unit.base().table.release(self.vpid);
    }
}

/// Tells when it is dropped.
struct Closed(Arc<Completion>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.complete_all();
    }
}

/// An open port of the kernel; `N` is the longest packet in words. Drop closes it, and sleeps; users have it
/// by [`PortHandle`].
pub(crate) struct KernelPort<U: PortUnit, const N: usize> {
    core: Arc<PortCore<U>>,
    /// Sending side.
    pub(crate) tx: Arc<Tx<N>>,
    /// Receiving side, and what looks after it.
    pub(crate) queue: Queue,
    pub(crate) monitor: Arc<QueueMonitor>,
    /// Dropped last: nothing is left of the port then.
    closed: Closed,
}

impl<U: PortUnit, const N: usize> KernelPort<U, N> {
    /// Opens a port; interrupts are armed. May sleep.
    ///
    /// # Errors
    ///
    /// As [`PortCore::claim`].
    pub(crate) fn open(unit: &Arc<U>, want: Want, layout: Layout) -> Result<PortHandle<U, N>> {
        let closed = Closed(Arc::pin_init(Completion::new(), GFP_KERNEL)?);
        let core = PortCore::claim(unit, want, Owner::Kernel, ())?;
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

    /// What it is of its unit.
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
        let settled = !used || self.core.is_settled();
        self.core.stop(Some(&self.queue), || {});
        self.core.finish(used, settled);
    }
}

/// A handle of an open port. When the last one is dropped, in any context, a work item closes the port soon.
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
    /// Drops the handle; if it is the last one, waits until the port is closed. May sleep.
    pub(crate) fn close(self) {
        let closed = self.closed.0.clone();
        if let Some(last) = Arc::into_unique_or_drop(self.0) {
            drop(last);
            closed.wait_for_completion();
        }
    }
}
