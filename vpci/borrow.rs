// SPDX-License-Identifier: GPL-2.0-only

//! Borrower: leases from the request for a device to their end, for devices of nodes with a host.
//! Process context, may sleep, except [`Nic::state`].

use crate::{
    conf,
    lease::{Backend, Lease},
    nic::Nic,
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta},
};
use kernel_ext::pci;
use protocol::pci::{
    borrower::{Handle, Work},
    EndReason, LeaseState, OfferState,
};
use wire::{
    ids::NodeId,
    pci::{Borrow, Device, DeviceState, Incarnation, Reason},
};

/// Maximum time in ms that a lender may take to answer a request for the description of a device.
const LIST_MS: u64 = 2_000;
/// Maximum time in ms for the answer to a lease request, and for a driver to release a device.
const BORROW_MS: u64 = 25_000;
/// Interval between two polls for an answer.
const STEP: Delta = Delta::from_millis(2);
/// Maximum time in ms that a lender may take to reset a returned device.
const RESET_MS: u64 = 10_000;
/// Interval between two polls of a device that is being reset.
const RESET_POLL: Delta = Delta::from_millis(10);

impl Nic {
    /// Asks a node for its device number `index`. Returns the device and the node's incarnation, or
    /// `None` if there is no such device. May sleep.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the node does not answer. `EPROTO`: the node uses another version of the
    /// protocol. `EIO`: the node rejects the request for another reason. `ENODEV`: the NIC is being
    /// unbound.
    pub(crate) fn describe(
        self: &Arc<Self>,
        node: NodeId,
        index: u16,
    ) -> Result<Option<(Incarnation, Device)>> {
        let until = self.after(LIST_MS);
        // Only one request may be outstanding at a time.
        let _alone = self.asking.lock();
        let ask = |this: &Self| {
            this.with_machines(|machines, now| machines.borrower.list(now, node, index, until))
        };
        let number = ask(self);
        loop {
            self.pump();
            let answer = self.with_machines(|machines, now| machines.borrower.listed(now, number));
            match answer {
                Some(Ok(found)) => return Ok(Some(found)),
                Some(Err(Some(Reason::Unknown))) => return Ok(None),
                Some(Err(Some(Reason::Version))) => return Err(EPROTO),
                Some(Err(Some(_))) => return Err(EIO),
                Some(Err(None)) => return Err(ETIMEDOUT),
                None if self.is_closing() => return Err(ENODEV),
                None => fsleep(STEP),
            }
        }
    }

    /// Borrows a device and binds its driver. Returns the PCI domain of the device. May sleep for a
    /// long time.
    ///
    /// # Errors
    ///
    /// `ENXIO`: there is no such device. `EBUSY`: another node has borrowed the device. `EAGAIN`:
    /// the quarantine after loading the module has not ended. Other errors stand for the reason
    /// that the lender gave.
    pub(crate) fn borrow_device(self: &Arc<Self>, node: NodeId, index: u16) -> Result<u32> {
        if node == self.handle()?.node() {
            // This node can bind the device's own driver directly.
            return Err(EINVAL);
        }
        let reset = self.after(RESET_MS);
        let (incarnation, device) = loop {
            let found = self.describe(node, index)?.ok_or(ENXIO)?;
            // The lender still resets a device that was just returned.
            if found.1.state != DeviceState::Fencing || self.now() > reset {
                break found;
            }
            fsleep(RESET_POLL);
        };
        let smfu = self.smfu()?;
        if !self.release_earlier_targets() {
            // The quarantine of interval numbers that an earlier module instance used has not
            // ended.
            return Err(EAGAIN);
        }
        let pages = self.map_bytes()?;
        let terms = Borrow {
            handle: device.handle,
            generation: device.generation,
            lender: incarnation,
            windows: smfu.free_windows(),
            targets: smfu.free_targets(),
            dma: conf::dma_bytes() + pages.unwrap_or(0),
        };
        let until = self.after(BORROW_MS);
        let lease = {
            // The lock is held from here on, because the work item may search for the new lease at
            // once.
            let mut leases = self.leases.lock();
            if self.is_closing() {
                return Err(ENODEV);
            }
            leases.reserve(1, GFP_KERNEL)?;
            let borrow = |machines: &mut crate::nic::Machines, now| {
                machines.borrower.borrow(now, node, &terms, until)
            };
            let handle = self.with_machines(borrow).ok_or(EMFILE)?;
            let lease = Lease::new(self, Backend::Messages(handle), node, device, pages);
            let lease = lease.inspect_err(|_| {
                self.with_machines(|machines, now| machines.borrower.give_back(now, handle));
                self.wake();
            })?;
            leases.push(lease.clone(), GFP_KERNEL)?;
            lease
        };
        self.pump();
        self.wake();
        loop {
            if let Some(domain) = lease.domain() {
                return Ok(domain);
            }
            match lease.result() {
                None if self.is_closing() => return Err(ENODEV),
                None => fsleep(STEP),
                Some(Err(e)) => return Err(e),
                Some(Ok(why)) => {
                    return Err(match why {
                        EndReason::Refused(Reason::Lent) => EBUSY,
                        EndReason::Refused(Reason::NotYet) => EAGAIN,
                        EndReason::Refused(Reason::Generation) => ESTALE,
                        EndReason::Refused(Reason::NoInterval | Reason::NoRoom) => ENOSPC,
                        EndReason::Refused(Reason::NotAllowed) => EPERM,
                        EndReason::Refused(Reason::TooMany) => EMFILE,
                        EndReason::NoAnswer => ETIMEDOUT,
                        _ => EIO,
                    })
                }
            }
        }
    }

    /// Returns the bytes of bus addresses for pages that drivers map without copying. Returns
    /// `None` without an IOMMU, which such pages require.
    pub(crate) fn map_bytes(&self) -> Result<Option<u64>> {
        let handle = self.handle()?;
        let translated = handle.with_bound(|dev| pci::is_translated(dev))?;
        Ok(translated.then(conf::map_bytes))
    }

    /// Returns a device to its lender. The device's driver has been unbound when this function
    /// returns. May sleep for a long time.
    ///
    /// # Errors
    ///
    /// `ENXIO`: there is no borrowed device in this PCI domain. `ETIMEDOUT`: its driver was not
    /// unbound in time.
    pub(crate) fn return_device(self: &Arc<Self>, domain: u32) -> Result {
        let lease = {
            let leases = self.leases.lock();
            let found = leases.iter().find(|lease| lease.domain() == Some(domain));
            found.cloned().ok_or(ENXIO)?
        };
        if lease.handle().is_none() {
            return self.return_accelerator(&lease);
        }
        lease.give_up();
        self.wake();
        let until = self.after(BORROW_MS);
        while lease.result().is_none() {
            if self.now() > until {
                return Err(ETIMEDOUT);
            }
            fsleep(STEP);
        }
        Ok(())
    }

    fn lease(&self, handle: Handle) -> Option<Arc<Lease>> {
        let leases = self.leases.lock();
        leases.iter().find(|l| l.handle() == Some(handle)).cloned()
    }

    /// Performs the borrower's pending actions that may sleep. Runs in work item 1.
    pub(crate) fn borrow(self: &Arc<Self>) {
        loop {
            let work = self.with_machines(|machines, _| machines.borrower.work());
            match work {
                Some(work) => self.borrow_step(work),
                None if self.return_unwanted() => {}
                None => break,
            }
            self.pump();
        }
    }

    fn borrow_step(self: &Arc<Self>, work: Work) {
        match work {
            Work::Open(handle, grant) => {
                let lease = self.lease(handle);
                let opened = lease.as_ref().ok_or(ENODEV).and_then(|l| l.open(&grant));
                if let (Err(e), Some(lease)) = (&opened, &lease) {
                    pr_err!(
                        "node {}: cannot open its intervals: {:?}\n",
                        lease.lender.0,
                        e
                    );
                    lease.set_result(Err(*e));
                }
                let done = opened.is_ok();
                self.with_machines(|machines, now| machines.borrower.opened(now, handle, done));
                self.pump();
                if let Some(lease) = lease.filter(|_| done) {
                    if let Err(e) = lease.build() {
                        pr_err!(
                            "node {}: cannot create its host bridge: {:?}\n",
                            lease.lender.0,
                            e
                        );
                        lease.set_result(Err(e));
                        lease.give_up();
                    }
                }
            }
            Work::Recall(handle, _) => {
                if let Some(lease) = self.lease(handle) {
                    lease.remove(false);
                }
                self.with_machines(|machines, now| machines.borrower.give_back(now, handle));
            }
            Work::Close(handle, why) => {
                if let Some(lease) = self.lease(handle) {
                    lease.cut();
                    lease.remove(why != EndReason::GivenBack);
                    lease.close();
                }
                self.with_machines(|machines, now| machines.borrower.closed(now, handle));
            }
            Work::Closed(handle, why) => {
                let lease = {
                    let mut leases = self.leases.lock();
                    let at = leases.iter().position(|l| l.handle() == Some(handle));
                    at.and_then(|at| leases.remove(at).ok())
                };
                if let Some(lease) = lease {
                    if why != EndReason::GivenBack {
                        pr_warn!("node {}: lease ended: {:?}\n", lease.lender.0, why);
                    }
                    lease.set_result(Ok(why));
                }
            }
            Work::Release(set) => {
                let mut closed = self.closed_targets.lock();
                closed.retain(|target| set & 1 << target.interval() == 0);
            }
        }
    }

    /// Returns a device to its lender if its return was requested. The result is false if no return
    /// was requested.
    fn return_unwanted(&self) -> bool {
        let lease = {
            let leases = self.leases.lock();
            leases.iter().find(|l| l.take_unwanted()).cloned()
        };
        let Some((lease, handle)) = lease.and_then(|l| l.handle().map(|h| (l, h))) else {
            return false;
        };
        lease.remove(false);
        self.with_machines(|machines, now| machines.borrower.give_back(now, handle));
        true
    }

    /// Returns the state of a lease. A lease of an accelerator counts as up while it exists. Any
    /// context.
    pub(crate) fn state(&self, lease: &Lease) -> Option<LeaseState> {
        match lease.handle() {
            Some(handle) => self.with_machines(|machines, _| machines.borrower.state(handle)),
            None => Some(LeaseState::Up),
        }
    }

    /// Ends the remaining leases when the NIC is removed. May sleep.
    pub(crate) fn end_leases(&self) {
        let leases = core::mem::take(&mut *self.leases.lock());
        for lease in leases {
            lease.remove(true);
            lease.close();
            lease.set_result(Err(ENODEV));
        }
        let closed = core::mem::take(&mut *self.closed_targets.lock());
        for target in closed {
            target.hold_off(conf::quarantine());
        }
    }

    /// Disconnects the windows of lost devices, and stops DMA of devices whose lease has ended.
    /// These actions have a separate work item (2), because they must not wait for drivers and
    /// resets. May sleep.
    pub(crate) fn cut(&self) {
        let ended = |lease: &&Arc<Lease>| {
            let state = self.state(lease);
            matches!(state, Some(LeaseState::Closing | LeaseState::Closed))
        };
        let leases = self.leases.lock();
        for lease in leases.iter().filter(ended) {
            lease.cut();
            // The handlers would load from the unreachable device while its driver is unbound.
            lease.remove_interrupts();
        }
        drop(leases);
        for (name, device) in self.offered.lock().iter() {
            // DMA is stopped with the lock held, so that the device is not lent again before DMA
            // has stopped.
            self.with_machines(|machines, _| {
                if machines.lender.state(*name) == Some(OfferState::Fencing) {
                    device.stop();
                }
            });
        }
    }
}
