// SPDX-License-Identifier: GPL-2.0-only

//! The life of such a lease: what is opened, how it is looked after, how it ends.

use super::{device, planned, Accelerator};
use crate::{
    conf,
    lease::{Lease, Way},
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
    accel::{close, Found, Gone, Plan, Watch, DMA_BASE, DMA_MOST},
    Why,
};
use wire::{
    accel::{Mark, NUMBERS},
    pci::Grant,
};

/// How often somebody looks whether a driver has been bound.
const STEP: Delta = Delta::from_millis(10);

/// At least `need` of a set of numbers, and not always the same ones first: a device that could not be
/// told that a lease is over may still come with numbers that it had.
fn some_of(set: u64, need: u32) -> u64 {
    let below = (1u64 << (security::random() % 64)) - 1;
    match set & below {
        some if some.count_ones() >= need => some,
        _ => set,
    }
}

impl Nic {
    /// Opens everything, for a lease that is busy; on an error nothing of it is open here. May sleep.
    pub(super) fn set_up(self: &Arc<Self>, remote: &Remote, mark: Mark) -> Result<Arc<Lease>> {
        let planned = self.plan(remote, mark);
        let (found, plan, used, pages) = planned.inspect_err(|_| {
            if self.set_free(remote, mark).is_err() {
                self.owe_word(remote, mark);
            }
        })?;
        let timeout = u64::from(conf::limits().timeout_ms) * 1_000_000;
        let watch = Watch::new(mark, self.now(), timeout);
        let made = Accelerator::new(remote, found, plan, watch).and_then(|accelerator| {
            let way = Way::Backdoor(accelerator);
            self.leases.lock().reserve(1, GFP_KERNEL)?;
            Lease::new(self, way, remote.node, device(&found), pages)
        });
        let lease = made.inspect_err(|_| self.owe_word(remote, mark))?;
        let opened = self.open_all(&lease, remote, mark, &plan, used);
        opened.inspect_err(|_| {
            // The device reaches nothing before anything else of it is undone.
            let shut = self
                .still(remote, mark)
                .and_then(|()| remote.apply(close()));
            let targets = lease.targets();
            lease.close();
            let all = plan.numbers().bar_set();
            let back = shut.and_then(|()| self.give_back(remote, mark, all));
            let bars = if back.is_ok() { 0 } else { all };
            self.owe(remote, mark, bars, targets, shut.is_ok(), false);
        })?;
        self.want(self.now());
        Ok(lease)
    }

    /// Looks what the device is, and resets it: the device, what is to be opened, numbers that others
    /// have, bytes of addresses for pages.
    #[allow(clippy::type_complexity)]
    fn plan(&self, remote: &Remote, mark: Mark) -> Result<(Found, Plan, u64, Option<u64>)> {
        let (found, used) = self.examine(remote, mark)?;
        self.still(remote, mark)?;
        remote.reset(&found.reset)?;
        let smfu = self.smfu()?;
        let bars = found.bars.iter().flatten().count() as u32;
        // What leads to registers, and to nobody, is in no set.
        let usable = !(1 | (1 << 63));
        let windows = some_of(smfu.free_windows() & !used & usable, bars);
        let targets = some_of(smfu.free_targets() & usable, 2);
        let bytes = conf::dma_bytes();
        let most = DMA_MOST.saturating_sub(bytes);
        let pages = self.map_bytes()?.map(|pages| pages.min(most));
        let dma = bytes + pages.unwrap_or(0);
        let free = (windows, targets);
        let plan = Plan::new(&found.bars, self.own_node()?, free, used, dma).map_err(|e| {
            pr_warn!("node {}: {:?}\n", remote.node.0, e);
            planned(e)
        })?;
        remote.set_bars(plan.bars())?;
        Ok((found, plan, used, pages))
    }

    fn open_all(
        &self,
        lease: &Arc<Lease>,
        remote: &Remote,
        mark: Mark,
        plan: &Plan,
        used: u64,
    ) -> Result {
        let grant = Grant {
            numbers: *plan.numbers(),
            dma: DMA_BASE,
            interrupts: plan.interrupts(),
            ..Grant::default()
        };
        self.still(remote, mark)?;
        remote.set(NUMBERS, used | plan.numbers().bar_set())?;
        lease.open(&grant)?;
        remote.apply(plan.open())?;
        // Who took the word meanwhile may have closed everything before.
        self.still(remote, mark)?;
        Ok(self.leases.lock().push(lease.clone(), GFP_KERNEL)?)
    }

    /// Ends a lease that is busy: in order, or because the device is out of reach. May sleep, for long.
    pub(super) fn end_accelerator(&self, lease: &Arc<Lease>) {
        let Way::Backdoor(accelerator) = &lease.way else {
            return;
        };
        let gone = *accelerator.gone.lock();
        // Its driver takes as long as it likes.
        lease.remove(gone.is_some());
        let _alone = self.accelerating.lock();
        self.leave_all(lease, accelerator);
        accelerator.lost.store(true, Relaxed);
        let (remote, found) = (&accelerator.remote, &accelerator.found);
        let mark = accelerator.watch.lock().mark();
        let bars = accelerator.plan.numbers().bar_set();
        // What is another one's is not touched; one that is silent is tried later.
        let shut = match gone {
            None | Some(Gone::Stuck) => self.shut_accelerator(remote, mark, Some(found)),
            Some(_) => Err(ENODEV),
        };
        let targets = lease.targets();
        lease.close();
        let back = shut.and_then(|()| self.give_back(remote, mark, bars));
        match (gone, back) {
            (Some(why), _) => pr_warn!("node {}: the device is lost: {:?}\n", remote.node.0, why),
            (None, Ok(())) => pr_info!("node {}: given back\n", remote.node.0),
            (None, Err(e)) => pr_warn!("node {}: not given back yet: {:?}\n", remote.node.0, e),
        }
        let bars = if back.is_ok() { 0 } else { bars };
        let noted = matches!(gone, Some(Gone::Taken(..) | Gone::Closed));
        self.owe(remote, mark, bars, targets, shut.is_ok(), noted);
        {
            let mut leases = self.leases.lock();
            let at = leases.iter().position(|l| Arc::ptr_eq(l, lease));
            let gone = at.and_then(|at| leases.remove(at).ok());
            drop(leases);
            drop(gone);
        }
        lease.set_over(match gone {
            None => Ok(Why::GivenBack),
            Some(_) => Err(EIO),
        });
    }

    /// Closes all ways of a device that is this node's, and resets it. May sleep.
    pub(super) fn shut_accelerator(
        &self,
        remote: &Remote,
        mark: Mark,
        found: Option<&Found>,
    ) -> Result {
        self.still(remote, mark)?;
        // A device that does not answer is cut off all the same.
        let quiet = remote.quiet(found.map(|f| &f.reset));
        self.shut(remote, mark)?;
        if let (Some(()), Some(found)) = (quiet, found) {
            self.still(remote, mark)?;
            let _ = remote.reset(&found.reset);
        }
        Ok(())
    }

    /// The device is anybody's; this node's windows are closed. May sleep.
    pub(super) fn give_back(&self, remote: &Remote, mark: Mark, bars: u64) -> Result {
        let used = remote.read(NUMBERS)?;
        self.still(remote, mark)?;
        remote.set(NUMBERS, used & !bars)?;
        self.set_free(remote, mark)
    }

    /// Gives a device back. May sleep, for long.
    ///
    /// # Errors
    ///
    /// `EBUSY`: its driver is just bound, or somebody else gives it back.
    pub(crate) fn return_accelerator(&self, lease: &Arc<Lease>) -> Result {
        if !lease.take() {
            return Err(EBUSY);
        }
        self.end_accelerator(lease);
        Ok(())
    }

    pub(super) fn accelerators(&self) -> Result<KVec<(Arc<Lease>, Arc<Accelerator>)>> {
        let mut all = KVec::new();
        for lease in self.leases.lock().iter() {
            if let Way::Backdoor(accelerator) = &lease.way {
                all.push((lease.clone(), accelerator.clone()), GFP_KERNEL)?;
            }
        }
        Ok(all)
    }

    /// The NIC goes: all are given back. May sleep, for long.
    pub(crate) fn end_accelerators(&self) {
        // Who has begun to borrow one has put it into the list when this is had.
        drop(self.accelerating.lock());
        loop {
            let Ok(all) = self.accelerators() else {
                // No memory for the list.
                fsleep(STEP);
                continue;
            };
            let Some((lease, _)) = all.first() else {
                return;
            };
            if lease.take() {
                self.end_accelerator(lease);
            } else {
                fsleep(STEP);
            }
        }
    }

    /// Looks whether devices still are this node's; what is lost is out of reach at once, and its
    /// handlers, which would ask a device that does not answer, are not called any more. May sleep, not
    /// for long.
    pub(crate) fn watch(self: &Arc<Self>) {
        let Ok(all) = self.accelerators() else {
            return self.want(self.after(100));
        };
        for (lease, accelerator) in all {
            if accelerator.gone.lock().is_some() {
                continue;
            }
            match accelerator.look(self) {
                Ok(next) => self.want(next),
                // It is just given back: its ways are closed before it is free.
                Err(_) if accelerator.lost.load(Relaxed) => {}
                Err(why) => {
                    self.counts.lost.add(1, Relaxed);
                    accelerator.lost.store(true, Relaxed);
                    *accelerator.gone.lock() = Some(why);
                    lease.cut();
                    lease.mute();
                    // Another work item ends it.
                    self.wake();
                }
            }
        }
    }

    /// Ends leases whose devices are lost. May sleep, for long.
    pub(super) fn end_lost(&self) {
        for (lease, accelerator) in self.accelerators().unwrap_or_default() {
            if accelerator.gone.lock().is_none() || lease.over().is_some() {
                continue;
            }
            match lease.take() {
                true => self.end_accelerator(&lease),
                // Its driver is just bound, and finds that nobody answers.
                false => self.want(self.after(50)),
            }
        }
    }
}
