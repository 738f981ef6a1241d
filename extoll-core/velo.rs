// SPDX-License-Identifier: GPL-2.0-only

//! VELO unit: small two-sided messages of 1…120 bytes (HW §9).
//!
//! [`Velo::open`] returns the two halves of a port: a [`Sender`], which can be cloned and shared,
//! and the [`Mailbox`], which has one owner. All of them can be dropped in any context. The port is
//! closed in the background when the last one is dropped. To wait until the port is closed, call
//! `close` on all of them.
//!
//! Sending and polling work in any context. Sending acquires the port's spinlock, which disables
//! interrupts. Opening and closing may sleep.
//!
//! ```
//! use extoll_core::{
//!     nic::Nic,
//!     velo::{Header, Target, DEFAULT_MAILBOX_BYTES},
//! };
//! use kernel::prelude::*;
//! use wire::ids::{NodeId, Vpid};
//!
//! /// Sends a message to a port of another node and returns the number of received messages.
//! fn greet(nic: &Nic, node: NodeId, vpid: Vpid) -> Result<usize> {
//!     let (sender, mut mailbox) = nic.velo().open(None, DEFAULT_MAILBOX_BYTES)?;
//!     sender.send(Header::new(Target::Node(node), vpid), b"hello")?;
//!     Ok(mailbox.poll(64, |message| pr_info!("{} bytes\n", message.len())))
//! }
//! ```

mod mailbox;
mod sender;

pub use crate::{
    ring_consumer::{PollFlow, Stop},
    tx::SendError,
};
pub use mailbox::{Mailbox, Message};
pub use sender::{Header, Sender, DEFAULT_CLASS};
pub use wire::velo::{Mtt, SlotSize, SourceId, Status, Target, MAX_LEN};

use crate::{
    context::Context,
    hw::Hw,
    port::{KernelPort, PortBase, PortHandle, PortUnit},
    queue::Layout,
    reclaim::Reclaimer,
    tx,
    vpid::Table,
};
use kernel::{prelude::*, sync::Arc};
use wire::{
    ids::{NodeId, Unit, Vpid},
    regs::{
        info, np,
        velo::{self, CompProtDesc, Completer, NodeVpidProtDesc},
        wcbuf,
    },
    velo::{Descriptor, RequesterAddr},
};

/// Maximum number of words of a packet, i.e. descriptor and payload.
const PACKET_WORDS: usize = 16;
/// Number of traffic classes of messages.
const CLASSES: u8 = 4;
/// Default mailbox size in bytes (HW §7).
pub const DEFAULT_MAILBOX_BYTES: u32 = 4 << 20;

/// Open VELO port.
type Port = KernelPort<Velo, PACKET_WORDS>;
/// Handle of an open VELO port.
type Handle = PortHandle<Velo, PACKET_WORDS>;

/// VELO unit of one NIC.
pub struct Velo {
    base: PortBase,
    slot_size: SlotSize,
}

impl PortUnit for Velo {
    const UNIT: Unit = Unit::Velo;

    fn base(&self) -> &PortBase {
        &self.base
    }

    /// Executes the first part of the opening sequence of HW §9.7.
    fn prepare(hw: &Hw, vpid: Vpid, protection: u16) {
        update_source(hw, vpid, |v| v.with_tx_prot_desc(protection));
        stamp(hw, vpid);
        let accept = CompProtDesc(0).with_rx_prot_desc(protection);
        hw.rf.write(velo::comp_prot_desc(vpid), accept.raw());
    }

    /// Enables the VPID. The queue has been installed. The vendor's driver sets the queue's
    /// pointers after enabling the VPID (HW §9.7). A message that arrived in between would occupy a
    /// slot that the NIC considers free.
    fn enable(hw: &Hw, vpid: Vpid) {
        hw.rf.update(velo::comp_prot_desc(vpid), |v| {
            CompProtDesc(v).with_vpid_enable(true).raw()
        });
    }

    fn disable(hw: &Hw, vpid: Vpid) {
        hw.rf.update(velo::comp_prot_desc(vpid), |v| {
            CompProtDesc(v).with_vpid_enable(false).raw()
        });
    }

    fn reset(hw: &Hw, vpid: Vpid) {
        hw.rf.write(velo::comp_prot_desc(vpid), 0);
    }

    /// Clears the identity for outgoing messages. A message that is still pending would be sent
    /// with 0, the identity of the kernel.
    fn forget(hw: &Hw, vpid: Vpid) {
        update_source(hw, vpid, |_| NodeVpidProtDesc(0));
    }

    /// Returns the requester page of traffic class `index`.
    fn page(vpid: Vpid, index: u8) -> Option<u32> {
        (index < CLASSES).then(|| RequesterAddr::page(vpid, index).encode())
    }

    /// Returns a message of maximum length to the port's own mailbox, which is not read any more.
    fn no_op(node: NodeId, vpid: Vpid) -> Result<impl AsRef<[u64]>> {
        let descriptor = Descriptor {
            target: Target::Node(node),
            vpid,
            mtt: Mtt::from_low_bits(0),
            irq: false,
            tag: 0,
            len: MAX_LEN,
        };
        let mut words = [0; PACKET_WORDS];
        words[0] = descriptor.encode().map_err(|_| EINVAL)?;
        Ok(words)
    }
}

/// Sets the identity that the NIC puts into outgoing messages: current node ID and VPID. The
/// protection descriptor is not changed; it is 0 for closed ports and for ports of the kernel.
/// Process context.
pub(crate) fn stamp(hw: &Hw, vpid: Vpid) {
    let node = info::Node(hw.rf.read(info::NODE)).id();
    update_source(hw, vpid, |v| {
        v.with_tx_nodeid(node).with_tx_vpid(vpid.get() as u8)
    });
}

/// Changes the identity and protection descriptor of a VPID's outgoing messages. A lock serializes
/// these changes. Process context.
pub(crate) fn update_source(
    hw: &Hw,
    vpid: Vpid,
    f: impl FnOnce(NodeVpidProtDesc) -> NodeVpidProtDesc,
) {
    let _alone = hw.velo_sources.lock();
    hw.rf.update(velo::node_vpid_prot_desc(vpid), |v| {
        f(NodeVpidProtDesc(v)).raw()
    });
}

impl Velo {
    /// Makes the unit. `table` holds its VPIDs. If `slots_64` is set, mailboxes have slots of 64
    /// instead of 128 bytes. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(
        ctx: Arc<Context>,
        table: Arc<Table>,
        reclaim: Arc<Reclaimer>,
        slots_64: bool,
    ) -> Result<Arc<Self>> {
        let slot_size = if slots_64 {
            SlotSize::B64
        } else {
            SlotSize::B128
        };
        let base = PortBase {
            ctx,
            table,
            reclaim,
        };
        Ok(Arc::new(Self { base, slot_size }, GFP_KERNEL)?)
    }

    /// Returns the slot size of mailboxes. Any context.
    pub fn slot_size(&self) -> SlotSize {
        self.slot_size
    }

    /// Opens a port with the given VPID, or with the user VPID that has been free for longest.
    /// `mailbox_bytes` is a power of two of 512 KiB…64 MiB ([`DEFAULT_MAILBOX_BYTES`]). Interrupts
    /// are armed, but no client is called before [`Sender::attach`]. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the VPID is in use, or messages of its last owner are still pending; `ENOSPC` if
    /// no VPID is free; `EINVAL` for an invalid size; `ENOMEM`; `ENODEV` if the device was removed.
    pub fn open(
        self: &Arc<Self>,
        vpid: Option<Vpid>,
        mailbox_bytes: u32,
    ) -> Result<(Sender, Mailbox)> {
        let layout = Layout::of_kernel(self.slot_size.into(), mailbox_bytes)?;
        let port = Port::open(self, vpid.into(), layout)?;
        let mailbox = Mailbox::new(port.clone(), self.slot_size);
        Ok((Sender::new(port), mailbox))
    }

    /// Sets up the unit as `velo2` does in its probe (HW §3.3). May sleep.
    pub(crate) fn init(&self) -> Result {
        let ctx = &self.base.ctx;
        for vpid in Vpid::all() {
            let hw = ctx.access().ok_or(ENODEV)?;
            let source = velo::node_vpid_prot_desc(vpid);
            hw.rf
                .update(source, |v| NodeVpidProtDesc(v).with_tx_prot_desc(0).raw());
            let node = info::Node(hw.rf.read(info::NODE)).id();
            hw.rf.update(source, |v| {
                NodeVpidProtDesc(v)
                    .with_tx_nodeid(node)
                    .with_tx_vpid(vpid.get() as u8)
                    .raw()
            });
            let accept = velo::comp_prot_desc(vpid);
            hw.rf
                .update(accept, |v| CompProtDesc(v).with_rx_prot_desc(0).raw());
            hw.rf
                .update(accept, |v| CompProtDesc(v).with_htax_reroute(false).raw());
            hw.rf.update(accept, |v| v & 0x1_FFFF);
            tx::reset_state(&hw, Unit::Velo, vpid);
        }
        let hw = ctx.access().ok_or(ENODEV)?;
        hw.rf.write(velo::TIMEOUT, velo::TIMEOUT_INIT);
        hw.rf.write(wcbuf::velo::TIMEOUT, wcbuf::TIMEOUT_INIT);
        hw.rf.update(velo::COMPLETER, |v| {
            Completer(v)
                .with_target_htax_port(velo::TARGET_HTAX_PORT_INIT)
                .raw()
        });
        let large = self.slot_size == SlotSize::B128;
        hw.rf.update(velo::COMPLETER, |v| {
            Completer(v).with_packets_128b(large).raw()
        });
        hw.rf.write(np::general(np::VELO), np::GENERAL_INIT_VELO);
        Ok(())
    }

    /// Disconnects the unit from the network.
    pub(crate) fn stop(&self) {
        if let Some(hw) = self.base.ctx.alive_access() {
            hw.rf.write(np::general(np::VELO), 0);
        }
    }
}
