// SPDX-License-Identifier: GPL-2.0-only

//! Leases of devices behind NICs without a host ("accelerators"). This node sets up both ends by
//! itself (docs/vpci.md, *Accelerator nodes*).
//!
//! The commands borrow, list, reclaim, enrol and return run in a system call. The commands hold the
//! mutex `accelerating` while they write registers of an accelerator's NIC. The mutex is not held
//! while a driver is bound or unbound, which may last arbitrarily long. Work item 3 checks the
//! lease words and disconnects lost devices at once. Work item 4 ends the leases of lost devices,
//! and finishes clean-ups that failed before.

mod cleanup;
mod life;
mod peer;

pub(crate) use cleanup::Cleanup;

use crate::{
    conf,
    nic::Nic,
    remote::{Remote, DEVICE, RESET_MS},
};
use kernel::{
    new_mutex, new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, Mutex, SpinLockIrq,
    },
    time::{delay::fsleep, Delta},
};
use kernel_ext::security;
use protocol::{
    pci::{
        accel::{
            close, host_check, Access, AccessFilter, CheckResult, Claim, ClaimStep, Found, Goal,
            LossReason, Peer, Plan, PlanError, Slot, Unclaimed, Watch,
        },
        ConfigAccess, Reach,
    },
    Time,
};
use wire::{
    accel::{LeaseRecord, State, INTERVALS, LEASE},
    ids::NodeId,
    pci::{Device, DeviceState, Location, Register},
    regs::info,
    smfu::PAGE,
};

/// Interval between two steps of a claim.
const STEP: Delta = Delta::from_millis(5);
/// Maximum time of a check of registers in microseconds.
const CHECK_US: u32 = 100_000;

/// A borrowed device behind a NIC without a host.
#[pin_data]
pub(crate) struct Accelerator {
    remote: Remote,
    found: Found,
    plan: Plan,
    /// Filter of the kernel's configuration accesses.
    #[pin]
    filter: SpinLockIrq<AccessFilter>,
    /// Supervision of the lease word.
    #[pin]
    watch: SpinLockIrq<Watch>,
    /// Set when the device was lost or is being returned. The device is not accessed any more.
    lost: AtomicFlag,
    /// Reason of the loss; `None` while the device is reachable.
    #[pin]
    loss: SpinLockIrq<Option<LossReason>>,
    /// Set while a thread binds the driver or ends the lease.
    busy: AtomicFlag,
    /// Accelerators' devices whose BARs this device can access. Changed only with `accelerating`
    /// held.
    #[pin]
    peers: Mutex<[Option<Peer>; Slot::ALL.len()]>,
}

impl Accelerator {
    fn new(remote: &Remote, found: Found, plan: Plan, watch: Watch) -> Result<Arc<Self>> {
        let interrupts = Reach::new(plan.interrupts(), PAGE);
        let pause = RESET_MS as u64 * 1_000_000;
        let filter = AccessFilter::new(&found.layout, found.reset, interrupts, pause);
        let init = pin_init!(Self {
            remote: remote.clone(),
            found,
            plan,
            filter <- new_spinlock_irq!(filter, "vpci_front"),
            watch <- new_spinlock_irq!(watch, "vpci_watch"),
            lost: AtomicFlag::new(false),
            loss <- new_spinlock_irq!(None, "vpci_gone"),
            busy: AtomicFlag::new(true),
            peers <- new_mutex!([None; Slot::ALL.len()], "vpci_peers"),
        });
        Arc::pin_init(init, GFP_KERNEL)
    }

    /// Claims the exclusive right to bind the driver or to end the lease. Returns false if another
    /// thread has the right.
    pub(crate) fn claim(&self) -> bool {
        !self.busy.xchg(true, Relaxed)
    }

    /// Releases the right that [`Self::claim`] acquired, after the driver was bound.
    pub(crate) fn release(&self) {
        self.busy.store(false, Relaxed);
    }

    /// Performs a configuration access for the kernel. Returns `None` if the kernel must read all
    /// ones. Any context; takes up to `access_ms`, and several times as long for the first access
    /// after a reset.
    pub(crate) fn access(&self, nic: &Nic, request: ConfigAccess) -> Option<u32> {
        // Two attempts may be necessary, because the first access after a reset only restores the
        // BARs.
        for _ in 0..2 {
            if self.lost.load(Relaxed) {
                return None;
            }
            let access = self.filter.lock().access(nic.now(), request);
            match access {
                Access::Read(register) => return self.cycle(nic, register, None),
                Access::Write(register, write) => {
                    let old = match write.keep {
                        0 => 0,
                        _ => self.cycle(nic, register, None)?,
                    };
                    let done = self.cycle(nic, register, Some(write.merged(old)))?;
                    self.filter.lock().executed(register);
                    return Some(done);
                }
                Access::Reset(by) => {
                    let old = self.cycle(nic, by.register, None)?;
                    let done = self.cycle(nic, by.register, Some(old | by.bit));
                    self.filter.lock().reset(nic.now());
                    return done;
                }
                Access::Restore => {
                    for (i, value) in self.plan.bars() {
                        let register = Register::new(0x10 + 4 * i as u16, 4)?;
                        self.cycle(nic, register, Some(value))?;
                    }
                    self.filter.lock().restored();
                }
                Access::Denied | Access::Resetting => return None,
            }
        }
        None
    }

    /// Makes a configuration cycle. If many cycles were not answered, the device's check is
    /// scheduled at once. Any context.
    fn cycle(&self, nic: &Nic, register: Register, write: Option<u32>) -> Option<u32> {
        let begun = nic.now();
        let done = self.remote.cycle_now(register, write);
        let silent = {
            let mut filter = self.filter.lock();
            filter.answered(begun, done != Ok(None));
            filter.silent_since().is_some()
        };
        if silent {
            nic.run_at(nic.now());
        }
        done.ok().flatten()
    }

    /// Re-reads the lease word if its check is due. Returns the time of the next check. May sleep.
    fn check(&self, nic: &Nic) -> Result<Time, LossReason> {
        let silent = self.filter.lock().silent_since();
        let due = self.watch.lock().next();
        if nic.now() < due && silent.is_none() {
            return Ok(due);
        }
        let [one, two] = self.plan.open_check();
        let sent = nic.now();
        let seen = self
            .remote
            .read_once([LEASE, one.offset, two.offset], CHECK_US);
        let answer = seen.map(|[word, a, b]| (word, one.is_seen(a) && two.is_seen(b)));
        let (result, next, stuck) = {
            let mut watch = self.watch.lock();
            let result = watch.checked(sent, nic.now(), answer);
            let stuck = silent.is_some_and(|since| watch.has_answered(since));
            (result, watch.next(), stuck)
        };
        match result {
            CheckResult::Fine if stuck => return Err(LossReason::Stuck),
            CheckResult::Fine => {}
            CheckResult::Rewrite(word) => {
                nic.counts.rewritten.add(1, Relaxed);
                // A lost write is repeated by the next check.
                let _ = self.remote.write(LEASE, word);
            }
            CheckResult::Lost(why) => return Err(why),
        }
        Ok(next)
    }
}

/// Result of listing an accelerator.
pub(crate) enum Listed {
    /// The device, which is free.
    Device(Device),
    /// The device is in use: the state in its lease word, and the node that the word names.
    InUse(State, NodeId),
}

fn claimed(why: Unclaimed) -> Error {
    match why {
        Unclaimed::Unknown => ENXIO,
        Unclaimed::Known => EEXIST,
        Unclaimed::Free => ENOENT,
        Unclaimed::Taken(..) => EBUSY,
    }
}

fn planned(e: PlanError) -> Error {
    match e {
        PlanError::NoInterval | PlanError::NoRoom(_) => ENOSPC,
        PlanError::Memory => EINVAL,
    }
}

fn device(found: &Found) -> Device {
    Device {
        identity: found.identity,
        location: Location {
            domain: 0,
            bus: DEVICE.0,
            devfn: DEVICE.1,
        },
        bars: found.bars,
        count: 1,
        state: DeviceState::Free,
        ..Device::default()
    }
}

impl Nic {
    /// Returns the node ID of the NIC. May sleep.
    fn own_node(&self) -> Result<NodeId> {
        let raw = self.handle()?.rra().read_local(info::NODE)?;
        Ok(info::Node(raw).node_id())
    }

    /// Returns access to the NIC of another node. May sleep.
    fn remote(&self, node: NodeId) -> Result<Remote> {
        if self.is_closing() {
            return Err(ENODEV);
        }
        if node == self.own_node()? || node.is_reserved() {
            return Err(EINVAL);
        }
        Ok(Remote::new(&self.handle()?, node))
    }

    /// Claims the lease word. May sleep, for some seconds or longer if the network is slow.
    fn claim(&self, remote: &Remote, goal: Goal) -> Result<LeaseRecord> {
        let nonce = (security::random() as u32).max(1);
        let mut claim = Claim::new(goal, self.own_node()?, nonce, conf::claim_times());
        let mut written = false;
        loop {
            let failed = match claim.next() {
                _ if self.is_closing() => Some(ENODEV),
                ClaimStep::Read => {
                    let sent = self.now();
                    match remote.read(LEASE) {
                        Ok(word) => {
                            claim.read(sent, self.now(), word);
                            None
                        }
                        Err(e) => Some(e),
                    }
                }
                ClaimStep::Write(word) => {
                    // The write may have been executed although it returned an error. The next read
                    // shows the outcome.
                    let _ = remote.write(LEASE, word);
                    claim.written();
                    written = true;
                    None
                }
                ClaimStep::Wait(_) => {
                    fsleep(STEP);
                    claim.waited(self.now());
                    None
                }
                ClaimStep::Finished(how) => return how.map_err(claimed),
            };
            if let Some(e) = failed {
                if written {
                    // The word may name this node although this node has no lease.
                    self.add_word_cleanup(remote, claim.record());
                }
                return Err(e);
            }
        }
    }

    /// Verifies that this node owns the lease word, and overwrites a late claim of another node.
    /// Called before each write that only the owner of the word may make. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY`: another node owns the lease word. Other errors are those of register accesses. An
    /// access also fails if its answer took so long that another node may own the word by then.
    fn still(&self, remote: &Remote, record: LeaseRecord) -> Result {
        for _ in 0..2 {
            let sent = self.now();
            let seen = LeaseRecord::parse(remote.read(LEASE)?);
            if self.now().since(sent) > conf::claim_times().window {
                continue;
            }
            match seen {
                Some(seen) if seen == record => return Ok(()),
                Some(seen) if seen.state == State::Claimed && seen.node != record.node => {
                    self.counts.rewritten.add(1, Relaxed);
                    remote.write(LEASE, record.raw())?;
                }
                _ => return Err(EBUSY),
            }
        }
        Err(ETIMEDOUT)
    }

    /// Marks the device as free if this node still owns the lease word. May sleep.
    fn set_free(&self, remote: &Remote, record: LeaseRecord) -> Result {
        self.still(remote, record)?;
        remote.set(LEASE, record.with(State::Free).raw())
    }

    /// Closes all intervals of a NIC without a host. May sleep.
    ///
    /// # Errors
    ///
    /// `EXDEV`: a host uses the NIC. `EBUSY`: this node does not own the lease word any more.
    fn shut(&self, remote: &Remote, record: LeaseRecord) -> Result {
        if remote.read_all(host_check())?.iter().any(|v| *v != 0) {
            return Err(EXDEV);
        }
        self.still(remote, record)?;
        remote.apply(close())
    }

    /// Returns the device behind the NIC of a node; `None` if the node is not an accelerator node.
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Errors of register accesses. `EIO`: the device cannot be borrowed.
    pub(crate) fn list_accelerator(&self, node: NodeId) -> Result<Option<Listed>> {
        let Ok(remote) = self.remote(node) else {
            return Ok(None);
        };
        let Some(record) = remote.read(LEASE).ok().and_then(LeaseRecord::parse) else {
            return Ok(None);
        };
        if record.state != State::Free {
            return Ok(Some(Listed::InUse(record.state, record.node)));
        }
        let _alone = self.accelerating.lock();
        let record = self.claim(&remote, Goal::Borrow)?;
        let found = self.examine(&remote, record).map(|(found, _)| found);
        let free = self.set_free(&remote, record);
        free.inspect_err(|_| self.add_word_cleanup(&remote, record))?;
        Ok(Some(Listed::Device(device(&found?))))
    }

    /// Returns whether the NIC of a node is marked as an accelerator's. May sleep.
    pub(crate) fn is_accelerator(&self, node: NodeId) -> bool {
        let word = self.remote(node).and_then(|r| r.read(LEASE));
        word.is_ok_and(|word| LeaseRecord::parse(word).is_some())
    }

    /// Closes all intervals and examines the device. The second value is the set of interval
    /// numbers that may be in use, as bits. May sleep.
    fn examine(&self, remote: &Remote, record: LeaseRecord) -> Result<(Found, u64)> {
        let used = remote.read(INTERVALS)?;
        self.shut(remote, record)?;
        let found = remote.describe();
        self.counts.odd.add(u64::from(found.is_err()), Relaxed);
        Ok((found?, used))
    }

    /// Borrows the device behind the NIC of a node and binds its driver. Returns its PCI domain.
    /// May sleep for a long time.
    ///
    /// # Errors
    ///
    /// `ENXIO`: the node is not an accelerator node. `EBUSY`: the device is in use. `EAGAIN`: the
    /// quarantine after loading the module has not ended. `EMFILE`: this node has borrowed `leases`
    /// devices. `EIO`: the device or its NIC does not work properly.
    pub(crate) fn borrow_accelerator(self: &Arc<Self>, node: NodeId) -> Result<u32> {
        let lease = {
            let _alone = self.accelerating.lock();
            if !self.release_earlier_targets() {
                // The quarantine of interval numbers that an earlier module instance used has not
                // ended.
                return Err(EAGAIN);
            }
            if self.leases.lock().len() >= usize::from(conf::leases()) {
                return Err(EMFILE);
            }
            let remote = self.remote(node)?;
            let record = self.claim(&remote, Goal::Borrow)?;
            self.set_up(&remote, record).inspect_err(|e| {
                pr_err!("node {}: cannot borrow its device: {:?}\n", node.0, e);
            })?
        };
        // The lease is in the list now, so other threads see that it is busy.
        let built = lease.build();
        if let Err(e) = built {
            pr_err!("node {}: cannot create its host bridge: {:?}\n", node.0, e);
            self.end_accelerator(&lease);
            return Err(e);
        }
        let domain = lease.domain().ok_or(ENODEV);
        lease.release();
        domain
    }

    /// Marks the NIC of a node as an accelerator's. May sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST`: the NIC is marked already. `EXDEV`: a host uses the NIC.
    pub(crate) fn enrol(&self, node: NodeId) -> Result {
        let _alone = self.accelerating.lock();
        let remote = self.remote(node)?;
        if remote.read_all(host_check())?.iter().any(|v| *v != 0) {
            return Err(EXDEV);
        }
        let record = self.claim(&remote, Goal::Enrol)?;
        let done = remote.apply(close());
        let done = done.and_then(|()| remote.set(INTERVALS, 0));
        let done = done.and_then(|()| self.set_free(&remote, record));
        done.inspect_err(|_| self.add_word_cleanup(&remote, record))
    }

    /// Frees a device that another node has borrowed, and closes all intervals from and to the
    /// device. With `down`, the caller asserts that no previous borrower has a window to the device
    /// any more. May sleep.
    ///
    /// # Errors
    ///
    /// `ENXIO`: the node is not an accelerator node. `ENOENT`: the device is free. `EBUSY`: this
    /// node has borrowed the device, or another node is claiming the device.
    pub(crate) fn reclaim_accelerator(&self, node: NodeId, down: bool) -> Result {
        let _alone = self.accelerating.lock();
        let remote = self.remote(node)?;
        if self.accelerators()?.iter().any(|(l, _)| l.lender == node) {
            return Err(EBUSY);
        }
        let record = self.claim(&remote, Goal::Reclaim { free: down })?;
        let done = self.close_and_reset(&remote, record, down);
        let done = done.and_then(|()| self.set_free(&remote, record));
        done.inspect_err(|_| self.add_word_cleanup(&remote, record))
    }

    fn close_and_reset(&self, remote: &Remote, record: LeaseRecord, down: bool) -> Result {
        self.shut(remote, record)?;
        let reset = remote.describe().and_then(|found| {
            self.still(remote, record)?;
            remote.reset(&found.reset)
        });
        if reset.is_err() {
            // The next borrower resets the device, or fails to borrow the device.
            pr_warn!("node {}: its device could not be reset\n", remote.node.0);
        }
        self.still(remote, record)?;
        if down {
            remote.set(INTERVALS, 0)?;
        }
        Ok(())
    }
}
