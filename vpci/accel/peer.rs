// SPDX-License-Identifier: GPL-2.0-only

//! Access between the devices of two accelerators, without this node (docs/vpci.md, *Between
//! accelerators*). Process context, may sleep; all functions of [`Nic`] here hold the mutex
//! `accelerating`.

use super::{planned, Accelerator};
use crate::{
    lease::{Backend, Lease},
    nic::Nic,
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::pci_host::PeerBar;
use protocol::pci::accel::{Peer, Slot};
use wire::{accel::INTERVALS, ids::NodeId};

/// Lease of a device behind a NIC without a host.
struct End {
    lease: Arc<Lease>,
    accelerator: Arc<Accelerator>,
}

impl Accelerator {
    /// Returns this device's access to the device of node `node`, if that access exists. May sleep.
    fn peer(&self, node: NodeId) -> Option<Peer> {
        let peers = self.peers.lock();
        peers.iter().flatten().find(|p| p.node() == node).copied()
    }

    /// Returns the nodes whose devices' BARs this device can access. May sleep.
    pub(crate) fn peers(&self) -> [Option<NodeId>; Slot::ALL.len()] {
        self.peers.lock().map(|p| p.map(|p| p.node()))
    }

    /// Returns the interval numbers with which the device addresses other NICs. May sleep.
    fn interval_numbers(&self) -> u64 {
        let peers = self.peers.lock();
        let numbers = peers.iter().flatten().map(Peer::numbers);
        numbers.fold(self.plan.numbers().dma_set(), |all, set| all | set)
    }

    fn forget(&self, node: NodeId) {
        for slot in self.peers.lock().iter_mut() {
            if slot.is_some_and(|p| p.node() == node) {
                *slot = None;
            }
        }
    }
}

impl Nic {
    fn end(&self, domain: u32) -> Result<End> {
        let leases = self.leases.lock();
        let lease = leases.iter().find(|l| l.domain() == Some(domain));
        let lease = lease.ok_or(ENXIO)?;
        match &lease.backend {
            Backend::Backdoor(accelerator) if lease.result().is_none() => Ok(End {
                lease: lease.clone(),
                accelerator: accelerator.clone(),
            }),
            _ => Err(EOPNOTSUPP),
        }
    }

    /// Allows the device in domain `of` to access the BARs of the device in domain `to`. Both
    /// devices must be devices of accelerators. The driver of the first device can then map these
    /// BARs for DMA by that device. May sleep.
    ///
    /// # Errors
    ///
    /// `ENXIO`: no such domain. `EOPNOTSUPP`: a device is of a node with a host. `EINVAL`: both
    /// devices are the same. `EISCONN`: the access exists already. `ENOSPC`: no interval numbers or
    /// addresses are left, or the device has the maximum of accesses. Other errors are those of
    /// register accesses.
    pub(crate) fn join(&self, of: u32, to: u32) -> Result {
        let _alone = self.accelerating.lock();
        let (of, to) = (self.end(of)?, self.end(to)?);
        let (here, there) = (&of.accelerator, &to.accelerator);
        if Arc::ptr_eq(here, there) {
            return Err(EINVAL);
        }
        if here.peer(there.remote.node).is_some() {
            return Err(EISCONN);
        }
        let slot = {
            let peers = here.peers.lock();
            let taken = |slot: &Slot| peers.iter().flatten().any(|p| p.slot() == *slot);
            Slot::ALL.into_iter().find(|s| !taken(s)).ok_or(ENOSPC)?
        };
        let used = there.remote.read(INTERVALS)?;
        self.has(here)?;
        self.has(there)?;
        let free = !(here.interval_numbers() | used);
        let target_addr = |bar| there.plan.address(bar);
        let peer = Peer::new(
            slot,
            there.remote.node,
            &there.found.bars,
            target_addr,
            free,
        );
        let peer = peer.map_err(planned)?;
        let pool = of.lease.pool().ok_or(ENODEV)?;
        // From now on, the other accelerator's NIC records these interval numbers as used.
        there.remote.set(INTERVALS, used | peer.numbers())?;
        if let Some(entry) = here.peers.lock().iter_mut().find(|p| p.is_none()) {
            *entry = Some(peer);
        }
        let opened = there.remote.apply(peer.open_targets());
        let opened = opened.and_then(|()| here.remote.apply(peer.open_windows()));
        let opened = opened.and_then(|()| {
            (0..there.found.bars.len()).try_for_each(|bar| match bar_of(&peer, &to.lease, bar) {
                Some(bar) => pool.add_peer(bar),
                None => Ok(()),
            })
        });
        opened.inspect_err(|_| self.end_access(&of, &to))
    }

    /// Ends the access of the device in domain `of` to that in domain `to`. May sleep.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Nic::join`], and `ENOTCONN` if there is no access.
    pub(crate) fn part(&self, of: u32, to: u32) -> Result {
        let _alone = self.accelerating.lock();
        let (of, to) = (self.end(of)?, self.end(to)?);
        if of.accelerator.peer(to.accelerator.remote.node).is_none() {
            return Err(ENOTCONN);
        }
        self.end_access(&of, &to);
        Ok(())
    }

    /// Ends all accesses from and to a device whose lease ends or that was lost.
    pub(super) fn end_all_access(&self, lease: &Arc<Lease>, accelerator: &Arc<Accelerator>) {
        let this = End {
            lease: lease.clone(),
            accelerator: accelerator.clone(),
        };
        for (lease, accelerator) in self.accelerators().unwrap_or_default() {
            if !Arc::ptr_eq(&accelerator, &this.accelerator) {
                let other = End { lease, accelerator };
                self.end_access(&this, &other);
                self.end_access(&other, &this);
            }
        }
    }

    /// Verifies that an accelerator's lease word is still this node's.
    fn has(&self, accelerator: &Accelerator) -> Result {
        if accelerator.lost.load(Relaxed) {
            return Err(ENODEV);
        }
        let record = accelerator.watch.lock().record();
        self.still(&accelerator.remote, record)
    }

    /// Ends the access from one device to another, if it exists. A lost NIC is not written to.
    /// Interval numbers that a lost NIC may still use stay reserved until `reclaim` with `down`
    /// frees them.
    fn end_access(&self, of: &End, to: &End) {
        let (here, there) = (&of.accelerator, &to.accelerator);
        let Some(peer) = here.peer(there.remote.node) else {
            return;
        };
        if let Some(pool) = of.lease.pool() {
            for bar in 0..there.found.bars.len() {
                if let Some(bar) = bar_of(&peer, &to.lease, bar) {
                    pool.drop_peer(&bar);
                }
            }
        }
        let closed = self
            .has(here)
            .and_then(|()| here.remote.apply(peer.close_windows()));
        let shut = self
            .has(there)
            .and_then(|()| there.remote.apply(peer.close_targets()));
        let free = || {
            closed.and(shut)?;
            let used = there.remote.read(INTERVALS)?;
            there.remote.set(INTERVALS, used & !peer.numbers())
        };
        if free().is_err() {
            pr_warn!(
                "node {}: intervals {:#x} stay reserved, because node {} may use them\n",
                there.remote.node.0,
                peer.numbers(),
                here.remote.node.0
            );
        }
        here.forget(there.remote.node);
    }
}

/// Describes a BAR by its addresses for this node's CPUs and for the other device.
fn bar_of(peer: &Peer, to: &Lease, bar: usize) -> Option<PeerBar> {
    let peer_bar = peer.bar(bar)?;
    Some(PeerBar {
        cpu: to.window(bar)?,
        bytes: peer_bar.bytes,
        bus: peer_bar.at,
    })
}
