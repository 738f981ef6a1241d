// SPDX-License-Identifier: GPL-2.0-only

//! RMA: put, get, locks, notifications (HW §10).
//!
//! [`Rma::open`] gives the two halves of a port: a [`Requester`], which may be shared and cloned, and its queue
//! of [`Notifications`], which has one owner. The port is closed when all of them are dropped, which may be done
//! in any context, and takes a moment then; who wants it to be closed calls `close` on all of them.
//! [`transfer::Engine`] takes both and offers transfers of any length with one completion and a deadline each.
//!
//! Commands name memory by [`Address`]: bus addresses on both sides, which nobody checks (it must stay mapped
//! for the device until the notification says that they are done; without one, closing the port is not enough,
//! see [`crate::quarantine`]), or a local [`Region`](crate::atu::Region) and an NLA of the peer, which the ATUs
//! check.
//!
//! ```
//! use extoll_core::{
//!     nic::Nic,
//!     rma::{Peer, DEFAULT_QUEUE_BYTES},
//! };
//! use kernel::prelude::*;
//! use wire::ids::{NodeId, Vpid};
//!
//! /// Tells a port of another node a value.
//! fn tell(nic: &Nic, node: NodeId, vpid: Vpid, value: u64) -> Result {
//!     let (requester, _notifications) = nic.rma().open(None, DEFAULT_QUEUE_BYTES)?;
//!     requester.notify(Peer::new(node, vpid), 0, value)?;
//!     Ok(())
//! }
//! ```

mod address;
mod backlog;
mod locks;
mod notifications;
mod requester;
pub mod transfer;

pub use crate::{
    intake::{PollFlow, Stop},
    tx::SendError,
};
pub use address::{Address, Peer};
pub use notifications::Notifications;
pub use requester::Requester;
pub use wire::rma::{
    last_fragment_start, Command, Descriptor, LockResult, LockTarget, Modifiers, Notification,
    NotificationType, NotifySpec, Operation, PageOptions, MAX_IMMEDIATE, MAX_LEN,
};
pub use wire::transfer::{Fault, FaultCause, FaultUnit};

use crate::{
    atu::Atu,
    context::Context,
    dma::DmaWords,
    hw::Hw,
    port::{KernelPort, PortBase, PortHandle, PortUnit},
    quarantine::Quarantine,
    queue::Layout,
    residue::Residue,
    tx,
    vpid::Table,
};
use kernel::{prelude::*, sync::Arc};
use locks::Locks;
use wire::{
    bq::SlotCode,
    ids::{NodeId, Unit, Vpid},
    regs::{
        info, np,
        rma::{self, VpidTable},
        wcbuf,
    },
    rma::RequesterAddr,
};

/// Words of a descriptor.
const PACKET_WORDS: usize = 3;
/// Requester pages of a VPID (HW §10.1).
const PAGES: u8 = 32;
/// Default size of the notification queue in bytes (HW §7).
pub const DEFAULT_QUEUE_BYTES: u32 = 2 << 20;

/// An open port.
type Port = KernelPort<Rma, PACKET_WORDS>;
/// A handle of it.
type Handle = PortHandle<Rma, PACKET_WORDS>;

/// The unit of a NIC.
pub struct Rma {
    base: PortBase,
    quarantine: Arc<Quarantine>,
    atu: Arc<Atu>,
    locks: Pin<KBox<Locks>>,
}

/// Changes the entry of the VPID table (HW §10.7).
pub(crate) fn update_entry(hw: &Hw, vpid: Vpid, f: impl FnOnce(VpidTable) -> VpidTable) {
    hw.rf
        .update(rma::vpid_table(vpid), |v| f(VpidTable(v)).raw());
}

impl PortUnit for Rma {
    const UNIT: Unit = Unit::Rma;

    fn base(&self) -> &PortBase {
        &self.base
    }

    fn is_clean(&self, vpid: Vpid) -> bool {
        self.atu.is_clean(vpid)
    }

    fn owed(&self) -> [u64; 4] {
        self.quarantine.owed()
    }

    fn postpone(&self, vpid: Vpid) -> bool {
        match self.quarantine.wait_ms(vpid) {
            None => false,
            Some(ms) => {
                self.quarantine.postpone(vpid, ms);
                true
            }
        }
    }

    fn retire(&self, vpid: Vpid) {
        self.quarantine.forget(vpid);
    }

    fn prepare(hw: &Hw, vpid: Vpid, protection: u16) {
        let entry = VpidTable(rma::VPID_DISABLED).with_prot_desc(protection);
        hw.rf.write(rma::vpid_table(vpid), entry.raw());
    }

    /// The vendor's driver does this before there is a queue (HW §10.9).
    fn enable(hw: &Hw, vpid: Vpid) {
        update_entry(hw, vpid, |v| v.with_vpid_enable(true));
    }

    fn disable(hw: &Hw, vpid: Vpid) {
        update_entry(hw, vpid, |v| v.with_vpid_enable(false));
    }

    fn reset(hw: &Hw, vpid: Vpid) {
        hw.rf.write(rma::vpid_table(vpid), rma::VPID_DISABLED);
    }

    /// The next owner starts with locks of zero, and learns nothing of this one's (HW §10.9).
    fn wipe(&self, vpid: Vpid) {
        self.locks.clear(vpid);
    }

    fn page(vpid: Vpid, index: u8) -> Option<u32> {
        let options = PageOptions::from_index(index);
        (index < PAGES).then(|| RequesterAddr::page(vpid, options).encode())
    }

    /// A notification PUT that asks for no notification.
    fn nothing(node: NodeId, vpid: Vpid) -> Result<impl AsRef<[u64]>> {
        let descriptor = Descriptor {
            node,
            vpid,
            notify: NotifySpec::NONE,
            modifiers: Modifiers::NONE,
            op: Operation::NotificationPut { class: 0, value: 0 },
        };
        descriptor.encode().map_err(|_| EINVAL)
    }

    fn is_executed(&self, vpid: Vpid, protection: u16, patience_ms: u32) -> bool {
        backlog::is_done(&self.base.ctx, vpid, protection, patience_ms.into())
    }
}

impl Rma {
    /// The unit with the VPIDs of `table`. May sleep.
    #[inline(never)] // Its stack is not that of what comes after it.
    pub(crate) fn new(
        ctx: Arc<Context>,
        table: Arc<Table>,
        residue: Arc<Residue>,
        quarantine: Arc<Quarantine>,
        atu: Arc<Atu>,
    ) -> Result<Arc<Self>> {
        let base = PortBase {
            ctx,
            table,
            residue,
        };
        let this = Self {
            base,
            quarantine,
            atu,
            locks: KBox::pin_init(Locks::new(), GFP_KERNEL)?,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Frees the memory of the locks, of which the NIC does not know any more. May sleep.
    pub(crate) fn free_locks(&self) {
        self.locks.free();
    }

    /// Opens a port with the given VPID, or the user VPID that has been free for longest, and a queue of
    /// `queue_bytes`, a power of two of 512 KiB…64 MiB ([`DEFAULT_QUEUE_BYTES`], 16 bytes per notification).
    /// Interrupts are armed, but nobody hears them before [`Requester::attach`]. The VPID may stay disabled
    /// for a while ([`Requester::is_enabled`]). May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the VPID is taken, or something of its last owner is left, `ENOSPC` if none is
    /// free, `EINVAL` for the size, `ENOMEM`, `ENODEV` if the device is gone.
    pub fn open(
        self: &Arc<Self>,
        vpid: Option<Vpid>,
        queue_bytes: u32,
    ) -> Result<(Requester, Notifications)> {
        let layout = Layout::of_kernel(SlotCode::B16, queue_bytes)?;
        let port = Port::open(self, vpid.into(), layout)?;
        let notifications = Notifications::new(port.clone());
        Ok((Requester::new(port), notifications))
    }

    /// `rma2` part of the probe (HW §3.5). `mps` and `mrrs`: PCIe maximum payload and read request sizes in bytes.
    pub(crate) fn init(&self, mps: u32, mrrs: u32) -> Result {
        let ctx = &self.base.ctx;
        let locks = ctx.with_bound(|dev| DmaWords::new(dev, rma::LOCK_MEMORY as usize / 8))??;
        let hw = ctx.access().ok_or(ENODEV)?;
        ctx.set_node(info::Node(hw.rf.read(info::NODE)).node_id());
        drop(hw);
        for vpid in Vpid::all() {
            let hw = ctx.access().ok_or(ENODEV)?;
            hw.rf.write(rma::vpid_table(vpid), rma::VPID_DISABLED);
            tx::reset_state(&hw, Unit::Rma, vpid);
        }
        let hw = ctx.access().ok_or(ENODEV)?;
        hw.rf
            .write(rma::CONFIG, rma::Config::for_pcie(mps, mrrs).raw());
        hw.rf.write(rma::LOCK_BASE, locks.address().0);
        hw.rf.write(rma::LOCK_CFG, rma::LOCK_CFG_INIT);
        for reg in [
            rma::REQUESTER_ERROR_CTRL,
            rma::RESPONDER_ERROR_CTRL,
            rma::COMPLETER_ERROR_CTRL,
        ] {
            hw.rf.update(reg, |v| v & rma::ERROR_CTRL_INIT_MASK);
        }
        hw.rf.update(rma::BQ_TIMEOUT, |v| {
            (v & !0xFFFF_FFFF) | (rma::BQ_TIMEOUT_INIT & 0xFFFF_FFFF)
        });
        hw.rf.update(rma::BQ_TIMEOUT, |v| {
            v | (rma::BQ_TIMEOUT_INIT & !0xFFFF_FFFF)
        });
        hw.rf.update(wcbuf::rma::TIMEOUT, |v| {
            (v & 0xFFFF_FFFF) | (wcbuf::TIMEOUT_INIT & !0xFFFF_FFFF)
        });
        hw.rf
            .update(wcbuf::rma::TIMEOUT, |v| v | (wcbuf::TIMEOUT_INIT & 1));
        hw.rf
            .write(np::general(np::RMA_COMPLETER), np::GENERAL_INIT);
        hw.rf
            .write(np::general(np::RMA_RESPONDER), np::GENERAL_INIT);
        drop(hw);
        self.locks.keep(locks);
        Ok(())
    }

    /// Disconnects the unit from the network and forgets the lock memory.
    pub(crate) fn stop(&self) {
        let Some(hw) = self.base.ctx.alive_access() else {
            return;
        };
        hw.rf.write(np::general(np::RMA_COMPLETER), 0);
        hw.rf.write(np::general(np::RMA_RESPONDER), 0);
        hw.rf.write(rma::LOCK_CFG, 0);
        hw.rf.write(rma::LOCK_BASE, 0);
    }
}
