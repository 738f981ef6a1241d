// SPDX-License-Identifier: GPL-2.0-only

//! RMA unit: PUT, GET, lock operations and notifications (HW §10).
//!
//! [`Rma::open`] returns the two halves of a port: a [`Requester`], which can be cloned and shared,
//! and its queue of [`Notifications`], which has one owner. All of them can be dropped in any
//! context. The port is closed in the background when the last one is dropped. To wait until the
//! port is closed, call `close` on all of them. [`transfer::Engine`] owns both halves and offers
//! transfers of any length, each with a completion and a deadline.
//!
//! A command names memory by [`Address`], in one of two ways. No hardware checks bus addresses.
//! Memory at a bus address must stay mapped for the device until a notification reports that the
//! command is done. If the notification does not arrive, closing the port is not enough; see
//! [`crate::quarantine`]. The ATUs check a local [`Region`](crate::atu::Region) and an NLA of the
//! peer.
//!
//! Posting a command works in any context and acquires the port's spinlock, which disables
//! interrupts. Polling notifications works in any context without a lock. Opening and closing may
//! sleep.
//!
//! ```
//! use extoll_core::{
//!     nic::Nic,
//!     rma::{Peer, DEFAULT_QUEUE_BYTES},
//! };
//! use kernel::prelude::*;
//! use wire::ids::{NodeId, Vpid};
//!
//! /// Sends a value to a port of another node.
//! fn tell(nic: &Nic, node: NodeId, vpid: Vpid, value: u64) -> Result {
//!     let (requester, _notifications) = nic.rma().open(None, DEFAULT_QUEUE_BYTES)?;
//!     requester.notify(Peer::new(node, vpid), 0, value)?;
//!     Ok(())
//! }
//! ```

mod address;
mod locks;
mod notifications;
mod pending;
mod requester;
pub mod transfer;

pub use crate::{
    ring_consumer::{PollFlow, Stop},
    tx::SendError,
};
pub use address::{Address, Peer};
pub use notifications::Notifications;
pub use requester::Requester;
pub use wire::rma::{
    last_fragment_start, Command, Descriptor, Fault, FaultCause, FaultUnit, LockResult, LockTarget,
    Modifiers, Notification, NotificationType, NotifySpec, Operation, PageOptions, MAX_IMMEDIATE,
    MAX_LEN,
};

use crate::{
    atu::Atu,
    context::Context,
    dma::DmaWords,
    hw::Hw,
    port::{KernelPort, PortBase, PortHandle, PortUnit},
    quarantine::Quarantine,
    queue::Layout,
    reclaim::Reclaimer,
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

/// Number of words of a descriptor.
const PACKET_WORDS: usize = 3;
/// Number of requester pages of a VPID (HW §10.1).
const PAGES: u8 = 32;
/// Default size of the notification queue in bytes (HW §7).
pub const DEFAULT_QUEUE_BYTES: u32 = 2 << 20;

/// Open RMA port.
type Port = KernelPort<Rma, PACKET_WORDS>;
/// Handle of an open RMA port.
type Handle = PortHandle<Rma, PACKET_WORDS>;

/// RMA unit of one NIC.
pub struct Rma {
    base: PortBase,
    quarantine: Arc<Quarantine>,
    atu: Arc<Atu>,
    locks: Pin<KBox<Locks>>,
}

/// Changes a VPID's entry in the VPID table (HW §10.7).
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

    fn late_vpids(&self) -> [u64; 4] {
        self.quarantine.late_vpids()
    }

    fn defer_enable(&self, vpid: Vpid) -> bool {
        match self.quarantine.wait_ms(vpid) {
            None => false,
            Some(ms) => {
                self.quarantine.defer_enable(vpid, ms);
                true
            }
        }
    }

    fn cancel_enable(&self, vpid: Vpid) {
        self.quarantine.forget(vpid);
    }

    fn prepare(hw: &Hw, vpid: Vpid, protection: u16) {
        let entry = VpidTable(rma::VPID_DISABLED).with_prot_desc(protection);
        hw.rf.write(rma::vpid_table(vpid), entry.raw());
    }

    /// Enables the VPID. The vendor's driver also does so before it installs a queue (HW §10.9).
    fn enable(hw: &Hw, vpid: Vpid) {
        update_entry(hw, vpid, |v| v.with_vpid_enable(true));
    }

    fn disable(hw: &Hw, vpid: Vpid) {
        update_entry(hw, vpid, |v| v.with_vpid_enable(false));
    }

    fn reset(hw: &Hw, vpid: Vpid) {
        hw.rf.write(rma::vpid_table(vpid), rma::VPID_DISABLED);
    }

    /// Zeroes the VPID's locks, so that the next owner cannot read values of this owner (HW §10.9).
    fn clear_memory(&self, vpid: Vpid) {
        self.locks.clear(vpid);
    }

    fn page(vpid: Vpid, index: u8) -> Option<u32> {
        let options = PageOptions::from_index(index);
        (index < PAGES).then(|| RequesterAddr::page(vpid, options).encode())
    }

    /// Returns a notification PUT that requests no notification.
    fn no_op(node: NodeId, vpid: Vpid) -> Result<impl AsRef<[u64]>> {
        let descriptor = Descriptor {
            node,
            vpid,
            notify: NotifySpec::NONE,
            modifiers: Modifiers::NONE,
            op: Operation::NotificationPut { class: 0, value: 0 },
        };
        descriptor.encode().map_err(|_| EINVAL)
    }

    fn wait_executed(&self, vpid: Vpid, protection: u16, patience_ms: u32) -> bool {
        pending::wait_executed(&self.base.ctx, vpid, protection, patience_ms.into())
    }
}

impl Rma {
    /// Makes the unit. `table` holds its VPIDs. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(
        ctx: Arc<Context>,
        table: Arc<Table>,
        reclaim: Arc<Reclaimer>,
        quarantine: Arc<Quarantine>,
        atu: Arc<Atu>,
    ) -> Result<Arc<Self>> {
        let base = PortBase {
            ctx,
            table,
            reclaim,
        };
        let this = Self {
            base,
            quarantine,
            atu,
            locks: KBox::pin_init(Locks::new(), GFP_KERNEL)?,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Frees the memory of the locks. The caller has removed its address from the NIC. May sleep.
    pub(crate) fn free_locks(&self) {
        self.locks.free();
    }

    /// Opens a port with the given VPID, or with the user VPID that has been free for longest.
    /// `queue_bytes` is the size of its notification queue in bytes, a power of two of 512 KiB…64
    /// MiB (see [`DEFAULT_QUEUE_BYTES`]). A notification occupies 16 bytes. Interrupts are armed,
    /// but no client is called before [`Requester::attach`]. The VPID may stay disabled for a while
    /// ([`Requester::is_enabled`]). May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the VPID is in use, or commands or memory of its last owner are still pending.
    /// `ENOSPC` if no VPID is free. `EINVAL` for an invalid size. `ENOMEM`. `ENODEV` if the device
    /// was removed.
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

    /// Sets up the unit as `rma2` does in its probe (HW §3.5). `mps` and `mrrs` are the PCIe
    /// maximum payload and read request sizes in bytes. May sleep.
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
        self.locks.set_memory(locks);
        Ok(())
    }

    /// Disconnects the unit from the network and removes the address of the lock memory from it.
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
