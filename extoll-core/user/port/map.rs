// SPDX-License-Identifier: GPL-2.0-only

//! Mappings of a process's port: requester pages, state of the write-combining buffer, and queue.
//!
//! Process context with the mmap lock held. Acquires the mutex of the port.

use super::{OpenPort, UserPort, UserQueue};
use crate::{mmio, port::PortUnit};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::chardev::{Cache, Mapping, NewMapping, Part};
use wire::{
    htax::{CpuWindows, UNIT_WINDOW},
    ids::{BusAddr, RegOffset, Unit, Vpid},
    regs::{wcbuf, BqRegs},
};

/// Returns the page of the register file that contains `reg`.
fn registers(windows: &CpuWindows, reg: RegOffset) -> Result<Part> {
    let size = RegOffset::WINDOW.into();
    let source = mmio::pages(windows.rf.0, size, reg.get().into(), 1, Cache::Uncached)?;
    Ok(Part::new(source, 0, 1))
}

impl<U: PortUnit> UserPort<U> {
    /// Returns the page with the state of the write-combining buffer.
    pub(in crate::user) fn state(windows: &CpuWindows, vpid: Vpid) -> Result<Part> {
        registers(windows, wcbuf::state(U::UNIT, vpid))
    }

    /// Returns requester page `index`, or `EINVAL` if there is no such page.
    pub(in crate::user) fn requester(windows: &CpuWindows, vpid: Vpid, index: u8) -> Result<Part> {
        let window = match U::UNIT {
            Unit::Velo => windows.velo,
            Unit::Rma => windows.rma,
        };
        let offset = U::page(vpid, index).ok_or(EINVAL)?;
        let combining = Cache::WriteCombining;
        let source = mmio::pages(window.0, UNIT_WINDOW, offset.into(), 1, combining)?;
        Ok(Part::new(source, 0, 1))
    }

    fn windows(&self) -> Result<CpuWindows> {
        Ok(self.nic().alive_access().ok_or(ENODEV)?.windows.cpu)
    }

    /// Maps the `pages` pages that `f` collects. Returns `EINVAL` if the mapping has another
    /// length.
    pub(in crate::user) fn map(
        &self,
        new: NewMapping<'_>,
        pages: usize,
        f: impl FnOnce(&CpuWindows, Vpid, &mut KVec<Part>) -> Result,
    ) -> Result {
        if new.pages() != pages {
            return Err(EINVAL);
        }
        self.with(|live| {
            let mut parts = KVec::with_capacity(pages, GFP_KERNEL_ACCOUNT)?;
            f(&self.windows()?, live.vpid(), &mut parts)?;
            new.attach(&self.space, parts, |m| live.keep(false, m))
        })
    }

    /// Maps the requester like [`UserPort::map`], and records that the process can send.
    pub(in crate::user) fn map_requester(
        &self,
        new: NewMapping<'_>,
        pages: usize,
        f: impl FnOnce(&CpuWindows, Vpid, &mut KVec<Part>) -> Result,
    ) -> Result {
        self.with(|live| {
            live.requester = true;
            Ok(())
        })?;
        self.map(new, pages, f)
    }

    /// Makes a new queue with the sizes that the process has set. Maps it after the page with its
    /// read pointer. An earlier queue is destroyed first. The VPID is enabled while a queue exists.
    pub(in crate::user) fn map_queue(&self, new: NewMapping<'_>) -> Result {
        self.with(|live| {
            if new.pages() as u64 != live.sizes.bytes / BusAddr::PAGE_SIZE + 1 {
                return Err(EINVAL);
            }
            self.remove_queue(live)?;
            let queue = UserQueue::new(&live.user_vpid, self.slot, live.sizes)?;
            let queue = Arc::new(queue, GFP_KERNEL)?;
            let mut parts = KVec::new();
            let rp = BqRegs(U::UNIT).rp(live.vpid());
            parts.push(registers(&self.windows()?, rp)?, GFP_KERNEL)?;
            for segment in queue.queue.segments() {
                let pages = segment.words() / (BusAddr::PAGE_SIZE as usize / 8);
                parts.push(Part::new(segment.clone(), 0, pages), GFP_KERNEL)?;
            }
            live.queue = Some(queue.clone());
            let start = |arm| live.user_vpid.start(&queue.queue, arm);
            self.watch
                .arming(start)
                .and_then(|()| {
                    self.armed.store(0, Relaxed);
                    let keep = |m: Arc<Mapping>| {
                        live.keep(true, m.clone())?;
                        self.watch.watch(m, queue.clone());
                        Ok(())
                    };
                    new.attach(&self.space, parts, keep)
                })
                // The NIC may already use the queue, so it is removed after any error.
                .or_else(|e| self.remove_queue(live).and(Err(e)))
        })
    }

    /// Destroys the queue, including one whose set-up failed in [`UserPort::map_queue`].
    fn remove_queue(&self, live: &mut OpenPort<U>) -> Result {
        self.watch.forget();
        for (_, mapping) in live.mappings.iter().filter(|(queue, _)| *queue) {
            mapping.revoke();
        }
        live.mappings.retain(|(queue, _)| !*queue);
        if let Some(queue) = live.queue.take() {
            live.user_vpid.stop(Some(&queue.queue), || {});
        }
        self.nic().alive_access().map(drop).ok_or(ENODEV)
    }
}
