// SPDX-License-Identifier: GPL-2.0-only

//! Leases of a NIC, from the wish for a device to their end.

use crate::{
    conf,
    lease::{Lease, Way},
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
    DeviceLife, LeaseState, Why,
};
use wire::{
    ids::NodeId,
    pci::{Borrow, Device, DeviceState, Incarnation, Reason},
};

/// How long a lender may take to tell of a device, and to lend one, in milliseconds.
const LIST_MS: u64 = 2_000;
const BORROW_MS: u64 = 25_000;
const STEP: Delta = Delta::from_millis(2);
/// Maximum time that a lender may take to reset a returned device, and the interval between two polls.
const RESET_MS: u64 = 10_000;
const LOOK: Delta = Delta::from_millis(10);

impl Nic {
    /// A device of a node, and how many it has; `None`: there is no such one. May sleep.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the node does not answer. `EPROTO`: it has another version of the protocol.
    /// `ENODEV`.
    pub(crate) fn describe(
        self: &Arc<Self>,
        node: NodeId,
        index: u16,
    ) -> Result<Option<(Incarnation, Device)>> {
        let until = self.after(LIST_MS);
        // One question at a time.
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

    /// Borrows a device, whose driver has been looked for when this returns: its PCI domain. May
    /// sleep, for long.
    ///
    /// # Errors
    ///
    /// `ENXIO`: there is no such device. `EBUSY`: somebody has it. Others say why not.
    pub(crate) fn borrow_device(self: &Arc<Self>, node: NodeId, index: u16) -> Result<u32> {
        if node == self.handle()?.node() {
            // Its own driver would do.
            return Err(EINVAL);
        }
        let reset = self.after(RESET_MS);
        let (incarnation, device) = loop {
            let found = self.describe(node, index)?.ok_or(ENXIO)?;
            // The lender still resets a device that was just returned.
            if found.1.state != DeviceState::Fencing || self.now() > reset {
                break found;
            }
            fsleep(LOOK);
        };
        let smfu = self.smfu()?;
        if !self.end_early() {
            // Numbers of an earlier life may not be offered yet.
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
            // Before the work item looks for it.
            let mut leases = self.leases.lock();
            if self.is_closing() {
                return Err(ENODEV);
            }
            leases.reserve(1, GFP_KERNEL)?;
            let borrow = |machines: &mut crate::nic::Machines, now| {
                machines.borrower.borrow(now, node, &terms, until)
            };
            let handle = self.with_machines(borrow).ok_or(EMFILE)?;
            let lease = Lease::new(self, Way::Messages(handle), node, device, pages);
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
            match lease.over() {
                None if self.is_closing() => return Err(ENODEV),
                None => fsleep(STEP),
                Some(Err(e)) => return Err(e),
                Some(Ok(why)) => {
                    return Err(match why {
                        Why::Refused(Reason::Lent) => EBUSY,
                        Why::Refused(Reason::NotYet) => EAGAIN,
                        Why::Refused(Reason::Generation) => ESTALE,
                        Why::Refused(Reason::NoInterval | Reason::NoRoom) => ENOSPC,
                        Why::Refused(Reason::NotAllowed) => EPERM,
                        Why::Refused(Reason::TooMany) => EMFILE,
                        Why::NoAnswer => ETIMEDOUT,
                        _ => EIO,
                    })
                }
            }
        }
    }

    /// Bytes of addresses for pages that drivers map: only an IOMMU can lead to them, without which there is `None`.
    pub(crate) fn map_bytes(&self) -> Result<Option<u64>> {
        let handle = self.handle()?;
        let translated = handle.with_bound(|dev| pci::is_translated(dev))?;
        Ok(translated.then(conf::map_bytes))
    }

    /// Gives a device back: when this returns, it has no driver here any more. May sleep, for long.
    ///
    /// # Errors
    ///
    /// `ENXIO`: there is none in this PCI domain. `ETIMEDOUT`.
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
        while lease.over().is_none() {
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

    /// What may sleep and is to be done for devices that are borrowed.
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
                    pr_err!("node {}: not opened: {:?}\n", lease.lender.0, e);
                    lease.set_over(Err(*e));
                }
                let done = opened.is_ok();
                self.with_machines(|machines, now| machines.borrower.opened(now, handle, done));
                self.pump();
                if let Some(lease) = lease.filter(|_| done) {
                    if let Err(e) = lease.build() {
                        pr_err!("node {}: no bridge: {:?}\n", lease.lender.0, e);
                        lease.set_over(Err(e));
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
                    lease.remove(why != Why::GivenBack);
                    lease.close();
                }
                self.with_machines(|machines, now| machines.borrower.closed(now, handle));
            }
            Work::Over(handle, why) => {
                let lease = {
                    let mut leases = self.leases.lock();
                    let at = leases.iter().position(|l| l.handle() == Some(handle));
                    at.and_then(|at| leases.remove(at).ok())
                };
                if let Some(lease) = lease {
                    if why != Why::GivenBack {
                        pr_warn!("node {}: the lease is over: {:?}\n", lease.lender.0, why);
                    }
                    lease.set_over(Ok(why));
                }
            }
            Work::Release(set) => {
                let mut shut = self.shut.lock();
                shut.retain(|target| set & 1 << target.interval() == 0);
            }
        }
    }

    /// Gives one device back that nobody wants any more; whether there was one.
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

    /// State of a lease; one that needs no answers of others is up as long as there is one.
    pub(crate) fn state(&self, lease: &Lease) -> Option<LeaseState> {
        match lease.handle() {
            Some(handle) => self.with_machines(|machines, _| machines.borrower.state(handle)),
            None => Some(LeaseState::Up),
        }
    }

    /// Ends what is left, as the NIC goes. May sleep.
    pub(crate) fn end_leases(&self) {
        let leases = core::mem::take(&mut *self.leases.lock());
        for lease in leases {
            lease.remove(true);
            lease.close();
            lease.set_over(Err(ENODEV));
        }
        let shut = core::mem::take(&mut *self.shut.lock());
        for target in shut {
            target.rest(conf::quarantine());
        }
    }

    /// What is to be soon, whatever drivers and resets take: devices that are lost are out of reach, and those that were lent access
    /// memory no more. May sleep.
    pub(crate) fn cut(&self) {
        let over = |lease: &&Arc<Lease>| {
            let state = self.state(lease);
            matches!(state, Some(LeaseState::Closing | LeaseState::Over))
        };
        let leases = self.leases.lock();
        for lease in leases.iter().filter(over) {
            lease.cut();
            // They would ask what is out of reach, while their driver frees them.
            lease.mute();
        }
        drop(leases);
        for (name, device) in self.offered.lock().iter() {
            // With the lock, so that it is nobody else's meanwhile.
            self.with_machines(|machines, _| {
                if machines.lender.life(*name) == Some(DeviceLife::Fencing) {
                    device.stop();
                }
            });
        }
    }
}
