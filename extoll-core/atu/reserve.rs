// SPDX-License-Identifier: GPL-2.0-only

//! Reserves: registration of memory without allocation, because all resources are allocated in
//! advance.
//!
//! Making and dropping a reserve may sleep. Registering memory with a reserve works in any context,
//! under a spinlock that disables interrupts.

use super::{
    make::Refused,
    registry::{BoundHold, ReserveNode, VpidUse},
    tables::{HoldOff, HoldOffNode},
    translation::Translation,
    Access, Atu, Region, WholePages,
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, new_spinlock_irq, Arc, SpinLockIrq},
};
use kernel_ext::mem::{PageList, PAGE};
use protocol::nic::nla::{NlaRange, Placement};
use wire::ids::Vpid;

/// Maximum number of regions per reserve.
const MAX_REGIONS: usize = 1 << 14;

/// Preallocated resources for a number of regions: NLAs, address tables, scatterlists and objects.
/// Registering memory and ending a region therefore allocate no memory. Reserves are for transfers
/// on which memory reclaim depends.
///
/// An IOMMU driver may still allocate memory for its own entries. It uses `GFP_ATOMIC` and may
/// fail.
///
/// The NLAs of a region that has ended are reused for another region of the same reserve. The range
/// that has been free for longest is reused first. Late answers therefore rarely reach a new
/// region.
///
/// Drop may sleep. Existing regions stay valid, and their resources are freed when they end.
/// Unbinding the NIC closes the reserve.
///
/// ```
/// use extoll_core::{atu::{Access, Region, Reserve, WholePages}, nic::Nic};
/// use kernel::{prelude::*, sync::Arc};
/// use kernel_ext::mem::PageList;
/// use wire::ids::Vpid;
///
/// /// Prepares for up to 64 concurrent requests of up to 1 MiB each.
/// fn prepare(nic: &Nic, vpid: Vpid) -> Result<Reserve> {
///     nic.atu().reserve(vpid, 64, 256, Access::READ_WRITE)
/// }
///
/// /// Registers a request's pages in any context. `EAGAIN` while 64 regions are in use.
/// fn begin(reserve: &Reserve, pages: &Arc<PageList>) -> Result<Region> {
///     reserve.register(pages, WholePages::EXPOSED)
/// }
/// ```
pub struct Reserve(Arc<ReserveInner>);

/// Unused translations, and the number of translations in use.
struct Spares {
    /// Unused translations in the order of their return. The ring has a slot for each translation.
    ring: KVVec<Option<Arc<Translation>>>,
    first: usize,
    free: usize,
    /// Number of translations that are not in the ring.
    used: usize,
    /// True until the reserve is closed.
    open: bool,
    /// Preallocated tree node for the hold-off time of the NLAs. The thread that frees the NLAs
    /// takes it.
    hold_off: Option<HoldOffNode>,
}

/// Reserve with its resources, shared by its handle and its translations.
#[pin_data]
pub(super) struct ReserveInner {
    atu: Arc<Atu>,
    vpid: VpidUse,
    range: NlaRange,
    pages: usize,
    #[pin]
    spares: SpinLockIrq<Spares>,
}

impl Spares {
    fn take(&mut self) -> Option<Arc<Translation>> {
        if !self.open || self.free == 0 {
            return None;
        }
        let translation = self.ring.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) % self.ring.len();
        self.free -= 1;
        self.used += 1;
        Some(translation)
    }

    /// Puts an unused translation into the ring. Returns the translation if the reserve is closed.
    fn put(&mut self, translation: Arc<Translation>) -> Option<Arc<Translation>> {
        self.used = self.used.saturating_sub(1);
        if !self.open {
            return Some(translation);
        }
        let at = (self.first + self.free) % self.ring.len().max(1);
        let Some(slot) = self.ring.get_mut(at) else {
            return Some(translation);
        };
        self.free += 1;
        slot.replace(translation)
    }

    /// Takes the node that is necessary to free the NLAs, if the reserve is closed and all
    /// translations were returned. Only the first call returns the node.
    fn take_node(&mut self) -> Option<HoldOffNode> {
        match (self.open, self.used) {
            (false, 0) => self.hold_off.take(),
            _ => None,
        }
    }
}

impl Atu {
    /// Makes a reserve for `regions` regions of up to `pages` pages each, for `vpid`. The caller
    /// must have opened that VPID. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no region, more than 16,384 regions, no page, more than 8 MiB per region, or no
    /// access requested. `ENOMEM`, `ENOSPC`, `ENODEV`, `ETIMEDOUT` as for [`Atu::register_pages`].
    pub fn reserve(
        self: &Arc<Self>,
        vpid: Vpid,
        regions: usize,
        pages: usize,
        access: Access,
    ) -> Result<Reserve> {
        access.check()?;
        if regions == 0 || regions > MAX_REGIONS || pages == 0 || pages > Reserve::MAX_PAGES {
            return Err(EINVAL);
        }
        let _bound = BoundHold::new(self)?;
        let node = ReserveNode::new(GFP_KERNEL)?;
        let hold_off = HoldOffNode::new(GFP_KERNEL)?;
        let mut ring = KVVec::with_capacity(regions, GFP_KERNEL)?;
        for _ in 0..regions {
            ring.push(None, GFP_KERNEL)?;
        }
        let all = (regions * pages) as u64;
        let alignment = Placement::new(0).alignment();
        let table_range = {
            let mut tables = self.tables.lock();
            tables.allocate(
                &self.ctx,
                &self.commands,
                all,
                alignment,
                (None, HoldOff::Usual),
            )?
        };
        let spares = Spares {
            ring,
            first: 0,
            free: 0,
            used: 0,
            open: true,
            hold_off: Some(hold_off),
        };
        let reserved = Arc::pin_init(
            pin_init!(ReserveInner {
                atu: self.clone(),
                vpid: VpidUse::new(self, vpid),
                range: table_range.range,
                pages,
                spares <- new_spinlock_irq!(spares, "extoll_atu_reserve"),
            }),
            GFP_KERNEL,
        );
        let reserved = match reserved {
            Ok(reserved) => reserved,
            Err(e) => {
                let range = table_range.range;
                drop(table_range);
                self.free(range, None, None);
                return Err(e);
            }
        };
        // After this line, dropping the reserve frees everything.
        let reserve = Reserve(reserved.clone());
        for n in 0..regions {
            let part = table_range.part(NlaRange {
                first: table_range.range.first + (n * pages) as u64,
                pages: pages as u64,
            })?;
            let translation = Translation::spare(self, vpid, access, part)?;
            let mut spares = reserved.spares.lock();
            spares.used += 1;
            drop(spares.put(translation));
        }
        drop(table_range);
        let node = node.into_node(reserved.range.first, reserved);
        let entered = self.registry.lock().enter_reserve(node);
        // The node is dropped after the lock is released.
        entered.map(|()| reserve).map_err(|_| ENODEV)
    }
}

impl Reserve {
    /// Maximum number of pages per region: 8 MiB, the maximum that a command can transfer.
    pub const MAX_PAGES: usize = (8 << 20) / PAGE;

    /// Registers the memory of a list of pages. Whole pages are exposed, as with
    /// [`Atu::register_range`]. Any context.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: all regions are in use or still ending; this is counted. `EINVAL`: more pages than
    /// the reserve has per region. `EACCES`, `EIO`, `EOPNOTSUPP` as for [`Atu::register_pages`].
    /// `ENOMEM`: the IOMMU driver could not allocate memory. `ENODEV`: the device was removed.
    pub fn register(&self, pages: &Arc<PageList>, _: WholePages) -> Result<Region> {
        let this = &self.0;
        if pages.len() > this.pages {
            return Err(EINVAL);
        }
        // The hold on the device precedes the translation, because translations outside of the ring
        // keep address tables in use.
        let bound = BoundHold::new(&this.atu)?;
        let taken = this.spares.lock().take();
        let Some(translation) = taken else {
            this.atu.gauges.reserve_exhausted.add(1, Relaxed);
            return Err(EAGAIN);
        };
        match translation.reactivate(bound, this, pages) {
            Ok(generation) => Ok(Region::new(
                translation,
                generation,
                pages.offset(),
                pages.bytes(),
            )),
            Err(Refused::Unused(e, bound)) => {
                this.put_back(translation);
                drop(bound);
                Err(e)
            }
            Err(Refused::Ending(e)) => Err(e),
        }
    }

    /// Returns the VPID for which regions are registered. Any context.
    pub fn vpid(&self) -> Vpid {
        self.0.vpid.vpid()
    }

    /// Returns the number of regions that can be registered now. Any context.
    pub fn free(&self) -> usize {
        self.0.spares.lock().free
    }

    /// Returns whether all regions of the reserve have ended, so that the NIC does not access their
    /// memory any more. Unbinding also ends them. Any context.
    pub fn is_unused(&self) -> bool {
        self.0.spares.lock().used == 0
    }

    /// Returns the maximum number of pages per region. Any context.
    pub fn pages(&self) -> usize {
        self.0.pages
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // Unbinding closes all reserves itself. `Atu::reserve` keeps the device bound when it drops
        // a reserve that is not in the registry yet. After unbinding has begun, the NLAs are freed
        // together with all tables.
        if let Ok(bound) = BoundHold::new(&self.0.atu) {
            self.0.close();
            drop(bound);
        }
    }
}

impl ReserveInner {
    /// Puts back a translation that was not used. The caller keeps the device bound. Any context.
    fn put_back(&self, translation: Arc<Translation>) {
        let (back, hold_off) = {
            let mut spares = self.spares.lock();
            (spares.put(translation), spares.take_node())
        };
        if let Some(translation) = back {
            // Only unbinding can have closed the reserve, because its owner is using it. The NLAs
            // are freed together with all tables.
            translation.empty();
        }
        if hold_off.is_some() {
            let node = self.atu.registry.lock().remove_reserve(self.range.first);
            drop((node, hold_off));
        }
    }

    /// Puts back a translation that has ended. May sleep only if the reserve is closed.
    pub(super) fn give_back(&self, translation: Arc<Translation>) {
        let back = self.spares.lock().put(translation);
        if let Some(translation) = back {
            translation.empty();
            self.free_range();
        }
    }

    /// Closes the reserve, so that no region can be made, and frees unused translations. The caller
    /// keeps the device bound. May sleep.
    pub(super) fn close(&self) {
        let ring = {
            let mut spares = self.spares.lock();
            spares.open = false;
            spares.free = 0;
            core::mem::replace(&mut spares.ring, KVVec::new())
        };
        for translation in ring.into_iter().flatten() {
            translation.empty();
        }
        self.free_range();
    }

    /// Frees the NLAs if the reserve is closed and unused. The caller keeps the device bound. May
    /// sleep.
    fn free_range(&self) {
        let hold_off = self.spares.lock().take_node();
        if let Some(hold_off) = hold_off {
            let node = self.atu.registry.lock().remove_reserve(self.range.first);
            self.atu
                .free(self.range, Some((hold_off, HoldOff::Usual)), None);
            drop(node);
        }
    }
}
