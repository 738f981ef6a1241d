// SPDX-License-Identifier: GPL-2.0-only

//! Life cycle of an accelerator's lease: opening, supervision and end. Process context, may sleep.

use super::{cleanup::Rest, device, planned, Accelerator};
use crate::{
    conf,
    lease::{Backend, Lease},
    nic::Nic,
    remote::Remote,
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
    time::{delay::fsleep, Delta},
};
use kernel_ext::security;
use protocol::pci::{
    accel::{close, Found, LossReason, Plan, Watch, DMA_BASE, DMA_MAX},
    EndReason,
};
use wire::{
    accel::{LeaseRecord, INTERVALS},
    pci::Grant,
};

/// Interval between checks whether another thread has finished binding a driver.
const STEP: Delta = Delta::from_millis(10);

/// Returns a random subset of `set` with at least `need` numbers, or `set`. Different leases get
/// different numbers, because a device that could not be disconnected may still use numbers of an
/// earlier lease.
fn random_subset(set: u64, need: u32) -> u64 {
    let below = (1u64 << (security::random() % 64)) - 1;
    match set & below {
        some if some.count_ones() >= need => some,
        _ => set,
    }
}

impl Nic {
    /// Opens all intervals of a new lease and returns the lease, marked as busy. On an error
    /// nothing stays open at this node. May sleep.
    pub(super) fn set_up(
        self: &Arc<Self>,
        remote: &Remote,
        record: LeaseRecord,
    ) -> Result<Arc<Lease>> {
        let planned = self.plan(remote, record);
        let (found, plan, used, pages) = planned.inspect_err(|_| {
            if self.set_free(remote, record).is_err() {
                self.add_word_cleanup(remote, record);
            }
        })?;
        let timeout = u64::from(conf::limits().timeout_ms) * 1_000_000;
        let watch = Watch::new(record, self.now(), timeout);
        let made = Accelerator::new(remote, found, plan, watch).and_then(|accelerator| {
            let backend = Backend::Backdoor(accelerator);
            self.leases.lock().reserve(1, GFP_KERNEL)?;
            Lease::new(self, backend, remote.node, device(&found), pages)
        });
        let lease = made.inspect_err(|_| self.add_word_cleanup(remote, record))?;
        let opened = self.open_all(&lease, remote, record, &plan, used);
        opened.inspect_err(|_| {
            // The device loses all access before the other steps are undone.
            let shut = self
                .still(remote, record)
                .and_then(|()| remote.apply(close()));
            let targets = lease.targets();
            lease.close();
            let all = plan.numbers().bar_set();
            let back = shut.and_then(|()| self.release_device(remote, record, all));
            let bars = if back.is_ok() { 0 } else { all };
            let rest = Rest {
                bars,
                targets,
                closed: shut.is_ok(),
                recorded: false,
            };
            self.add_cleanup(remote, record, rest);
        })?;
        self.run_at(self.now());
        Ok(lease)
    }

    /// Examines and resets the device. Returns the device, the intervals to open, the interval
    /// numbers in use by others, and the bytes of bus addresses for pages mapped without copying.
    #[allow(clippy::type_complexity)]
    fn plan(
        &self,
        remote: &Remote,
        record: LeaseRecord,
    ) -> Result<(Found, Plan, u64, Option<u64>)> {
        let (found, used) = self.examine(remote, record)?;
        self.still(remote, record)?;
        remote.reset(&found.reset)?;
        let smfu = self.smfu()?;
        let bars = found.bars.iter().flatten().count() as u32;
        // Interval 0 is reserved for registers, and interval 63 cannot have a target.
        let usable = !(1 | (1 << 63));
        let windows = random_subset(smfu.free_windows() & !used & usable, bars);
        let targets = random_subset(smfu.free_targets() & usable, 2);
        let bytes = conf::dma_bytes();
        let max = DMA_MAX.saturating_sub(bytes);
        let pages = self.map_bytes()?.map(|pages| pages.min(max));
        let dma = bytes + pages.unwrap_or(0);
        let free = (windows, targets);
        let plan = Plan::new(&found.bars, self.own_node()?, free, used, dma).map_err(|e| {
            pr_warn!("node {}: cannot map its device: {:?}\n", remote.node.0, e);
            planned(e)
        })?;
        remote.set_bars(plan.bars())?;
        Ok((found, plan, used, pages))
    }

    fn open_all(
        &self,
        lease: &Arc<Lease>,
        remote: &Remote,
        record: LeaseRecord,
        plan: &Plan,
        used: u64,
    ) -> Result {
        let grant = Grant {
            numbers: *plan.numbers(),
            dma: DMA_BASE,
            interrupts: plan.interrupts(),
            ..Grant::default()
        };
        self.still(remote, record)?;
        remote.set(INTERVALS, used | plan.numbers().bar_set())?;
        lease.open(&grant)?;
        remote.apply(plan.open())?;
        // Another node may have claimed the lease word since and closed the intervals again.
        self.still(remote, record)?;
        Ok(self.leases.lock().push(lease.clone(), GFP_KERNEL)?)
    }

    /// Ends a busy lease, by request or because the device was lost. May sleep for a long time.
    pub(super) fn end_accelerator(&self, lease: &Arc<Lease>) {
        let Backend::Backdoor(accelerator) = &lease.backend else {
            return;
        };
        let loss = *accelerator.loss.lock();
        // Unbinding the driver may last arbitrarily long.
        lease.remove(loss.is_some());
        let _alone = self.accelerating.lock();
        self.end_all_access(lease, accelerator);
        accelerator.lost.store(true, Relaxed);
        let (remote, found) = (&accelerator.remote, &accelerator.found);
        let record = accelerator.watch.lock().record();
        let bars = accelerator.plan.numbers().bar_set();
        // A device that another node has borrowed is not accessed. A device that does not answer is
        // cleaned up later.
        let shut = match loss {
            None | Some(LossReason::Stuck) => self.shut_accelerator(remote, record, Some(found)),
            Some(_) => Err(ENODEV),
        };
        let targets = lease.targets();
        lease.close();
        let back = shut.and_then(|()| self.release_device(remote, record, bars));
        match (loss, back) {
            (Some(why), _) => pr_warn!("node {}: the device is lost: {:?}\n", remote.node.0, why),
            (None, Ok(())) => pr_info!("node {}: device returned\n", remote.node.0),
            (None, Err(e)) => pr_warn!(
                "node {}: could not return the device yet, retrying: {:?}\n",
                remote.node.0,
                e
            ),
        }
        let bars = if back.is_ok() { 0 } else { bars };
        let recorded = matches!(loss, Some(LossReason::Taken(..) | LossReason::Closed));
        let rest = Rest {
            bars,
            targets,
            closed: shut.is_ok(),
            recorded,
        };
        self.add_cleanup(remote, record, rest);
        {
            let mut leases = self.leases.lock();
            let at = leases.iter().position(|l| Arc::ptr_eq(l, lease));
            let gone = at.and_then(|at| leases.remove(at).ok());
            drop(leases);
            drop(gone);
        }
        lease.set_result(match loss {
            None => Ok(EndReason::GivenBack),
            Some(_) => Err(EIO),
        });
    }

    /// Closes all intervals of a device that this node has borrowed, and resets the device. May
    /// sleep.
    pub(super) fn shut_accelerator(
        &self,
        remote: &Remote,
        record: LeaseRecord,
        found: Option<&Found>,
    ) -> Result {
        self.still(remote, record)?;
        // A device that does not answer is disconnected, but not reset.
        let quiet = remote.quiet(found.map(|f| &f.reset));
        self.shut(remote, record)?;
        if let (Some(()), Some(found)) = (quiet, found) {
            self.still(remote, record)?;
            let _ = remote.reset(&found.reset);
        }
        Ok(())
    }

    /// Releases the device. The caller has closed this node's windows. May sleep.
    pub(super) fn release_device(&self, remote: &Remote, record: LeaseRecord, bars: u64) -> Result {
        let used = remote.read(INTERVALS)?;
        self.still(remote, record)?;
        remote.set(INTERVALS, used & !bars)?;
        self.set_free(remote, record)
    }

    /// Returns a device to its node. May sleep for a long time.
    ///
    /// # Errors
    ///
    /// `EBUSY`: the device's driver is being bound, or another thread is returning the device.
    pub(crate) fn return_accelerator(&self, lease: &Arc<Lease>) -> Result {
        if !lease.claim() {
            return Err(EBUSY);
        }
        self.end_accelerator(lease);
        Ok(())
    }

    pub(super) fn accelerators(&self) -> Result<KVec<(Arc<Lease>, Arc<Accelerator>)>> {
        let mut all = KVec::new();
        for lease in self.leases.lock().iter() {
            if let Backend::Backdoor(accelerator) = &lease.backend {
                all.push((lease.clone(), accelerator.clone()), GFP_KERNEL)?;
            }
        }
        Ok(all)
    }

    /// Returns all devices of accelerators when the NIC is removed. May sleep for a long time.
    pub(crate) fn end_accelerators(&self) {
        // Waits for commands in progress, which add their lease to the list.
        drop(self.accelerating.lock());
        loop {
            let Ok(all) = self.accelerators() else {
                // Reached if there is no memory for the list.
                fsleep(STEP);
                continue;
            };
            let Some((lease, _)) = all.first() else {
                return;
            };
            if lease.claim() {
                self.end_accelerator(lease);
            } else {
                fsleep(STEP);
            }
        }
    }

    /// Checks whether this node still owns the lease words of its accelerators. Disconnects a lost
    /// device at once and stops its handlers, which would load from a device that does not answer.
    /// Runs in work item 3. May sleep for a short time.
    pub(crate) fn watch(self: &Arc<Self>) {
        let Ok(all) = self.accelerators() else {
            return self.run_at(self.after(100));
        };
        for (lease, accelerator) in all {
            if accelerator.loss.lock().is_some() {
                continue;
            }
            match accelerator.check(self) {
                Ok(next) => self.run_at(next),
                // The device is being returned: its intervals are closed before it is free.
                Err(_) if accelerator.lost.load(Relaxed) => {}
                Err(why) => {
                    self.counts.lost.add(1, Relaxed);
                    accelerator.lost.store(true, Relaxed);
                    *accelerator.loss.lock() = Some(why);
                    lease.cut();
                    lease.remove_interrupts();
                    // Work item 4 ends the lease.
                    self.wake();
                }
            }
        }
    }

    /// Ends the leases of lost devices. May sleep for a long time.
    pub(super) fn end_lost(&self) {
        for (lease, accelerator) in self.accelerators().unwrap_or_default() {
            if accelerator.loss.lock().is_none() || lease.result().is_some() {
                continue;
            }
            if lease.claim() {
                self.end_accelerator(&lease);
            } else {
                // The driver is still being bound, and will find that the device does not answer.
                self.run_at(self.after(50));
            }
        }
    }
}
