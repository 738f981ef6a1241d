// SPDX-License-Identifier: GPL-2.0-only

//! Operands of RMA commands: the peer, and the memory on both sides. Any context. The only lock is
//! the spinlock of a region.

use super::Requester;
use crate::atu::Region;
use wire::{
    ids::{BusAddr, Nla, NodeId, Vpid},
    rma::{Modifiers, NotifySpec, PageOptions},
};

/// Peer of a command, with the notifications and options of the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Node that the command addresses.
    pub node: NodeId,
    /// VPID that the command addresses.
    pub vpid: Vpid,
    /// Notifications that the command requests.
    pub notify: NotifySpec,
    /// Options of the requester page: traffic class, remote registers, interrupts. [`Address`]
    /// determines the option for translation.
    pub page: PageOptions,
    /// Modifiers: one notification per fragment (NTR), multicast. The NIC may reject some of them
    /// (G14).
    pub modifiers: Modifiers,
    /// Use quadword GETs and PUTs instead of byte commands. Lengths and addresses must then be
    /// multiples of 8.
    pub quadwords: bool,
}

impl Peer {
    /// Makes a peer for byte commands on traffic class 0, without notifications and modifiers.
    pub const fn new(node: NodeId, vpid: Vpid) -> Self {
        Self {
            node,
            vpid,
            notify: NotifySpec::NONE,
            page: PageOptions::from_index(0),
            modifiers: Modifiers::NONE,
            quadwords: false,
        }
    }
}

/// Memory on both sides of a command. The NIC translates the addresses of both sides, or of none
/// (HW §10.1).
#[derive(Clone, Copy)]
pub enum Address<'a> {
    /// Memory named by bus addresses. If a command does not complete, its memory must go to
    /// [`crate::quarantine`] instead of being freed.
    Bus {
        /// Address in memory of this node.
        local: BusAddr,
        /// Address in memory of the peer's node.
        remote: BusAddr,
    },
    /// Registered memory, named by NLAs.
    Region {
        /// Local region. It must be alive, belong to the port's NIC and VPID, and permit the
        /// access.
        region: &'a Region,
        /// Offset of the first byte in the region.
        offset: usize,
        /// NLA in a region of the peer's VPID.
        remote: Nla,
    },
}

/// Numeric addresses of both sides, for a descriptor.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) translate: bool,
    pub(super) local: u64,
    pub(super) remote: u64,
}

impl Address<'_> {
    /// Checks the local memory and returns both addresses; `None` if the memory is not permitted.
    /// `write` says whether `port` writes `len` bytes to it (GET) or reads them (PUT).
    pub(super) fn ends(&self, port: &Requester, write: bool, len: u64) -> Option<Ends> {
        match *self {
            Address::Bus { local, remote } => Some(Ends {
                translate: false,
                local: local.0,
                remote: remote.0,
            }),
            Address::Region {
                region,
                offset,
                remote,
            } => {
                let bytes = (offset, usize::try_from(len).ok()?);
                let local = region.for_command(port.context(), port.vpid(), write, bytes)?;
                Some(Ends {
                    translate: true,
                    local: local.0,
                    remote: remote.0,
                })
            }
        }
    }
}
