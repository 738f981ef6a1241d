// SPDX-License-Identifier: GPL-2.0-only

//! What RMA commands name: the peer, and memory on both sides.

use super::Requester;
use crate::atu::Region;
use wire::{
    ids::{BusAddr, Nla, NodeId, Vpid},
    rma::{Modifiers, NotifySpec, PageOptions},
};

/// Where a command goes, how, and what is reported about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Remote node.
    pub node: NodeId,
    /// Remote VPID.
    pub vpid: Vpid,
    /// Notifications asked for.
    pub notify: NotifySpec,
    /// Requester page: traffic class, remote registers, interrupts. Translation follows from the [`Address`].
    pub page: PageOptions,
    /// Modifiers: one notification per fragment (NTR), multicast. The NIC may refuse some (G14).
    pub modifiers: Modifiers,
    /// Quadword instead of byte GETs and PUTs: lengths and addresses are multiples of 8.
    pub quadwords: bool,
}

impl Peer {
    /// Byte commands on traffic class 0 without notifications and modifiers.
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

/// Memory on both sides of a command. The NIC translates both or none (HW §10.1), so they come together.
#[derive(Clone, Copy)]
pub enum Address<'a> {
    /// Bus addresses. Memory of a command that is not done goes to [`crate::quarantine`] instead of being freed.
    Bus {
        /// Here.
        local: BusAddr,
        /// At the peer.
        remote: BusAddr,
    },
    /// Registered memory.
    Region {
        /// Local region; has to be alive, of the port's NIC and VPID, and allow the access.
        region: &'a Region,
        /// Byte offset in it.
        offset: usize,
        /// NLA in a region of the peer's VPID.
        remote: Nla,
    },
}

/// Both sides as numbers.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) translate: bool,
    pub(super) local: u64,
    pub(super) remote: u64,
}

impl Address<'_> {
    /// Checks the local side for a port that reads (or, for a GET, writes) `len` bytes there.
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
