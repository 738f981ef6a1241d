// SPDX-License-Identifier: GPL-2.0-only

//! Registration when there is no memory: all that it takes is made before.

use super::{
    make::Refused,
    registry::{BoundHold, ReserveNode, VpidUse},
    tables::{Rest, RestNode},
    translation::Translation,
    Access, Atu, Region, WholePages,
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, new_spinlock_irq, Arc, SpinLockIrq},
};
use kernel_ext::mem::{PageList, PAGE};
use wire::{
    ids::Vpid,
    nla::{Placement, Range},
};

/// Most regions of a reserve.
const MOST_REGIONS: usize = 1 << 14;

/// What a number of regions takes, made before they are: NLAs, address tables, scatterlists and
/// objects. So registering needs no memory of the kernel's, and waits for nobody who does; nor does
/// the end of a region. For what has to be sent to get memory back.
///
/// An IOMMU that makes an entry for the memory may need some. It takes that from what the kernel
/// keeps for contexts that can't wait, and may find none.
///
/// NLAs of a region that has ended are used again by another of the same reserve: by the one that
/// has been free for longest, so that late answers meet nothing as long as possible.
///
/// Drop may sleep. Regions stay; what they take is given back when they end. Unbinding the NIC
/// takes the reserve away.
///
/// ```
/// use extoll_core::{atu::{Access, Region, Reserve, WholePages}, nic::Nic};
/// use kernel::{prelude::*, sync::Arc};
/// use kernel_ext::mem::PageList;
/// use wire::ids::Vpid;
///
/// /// For up to 64 requests of up to 1 MiB at a time.
/// fn prepare(nic: &Nic, vpid: Vpid) -> Result<Reserve> {
///     nic.atu().reserve(vpid, 64, 256, Access::READ_WRITE)
/// }
///
/// /// In any context; `EAGAIN` while 64 are in use.
/// fn begin(reserve: &Reserve, pages: &Arc<PageList>) -> Result<Region> {
///     reserve.register(pages, WholePages::EXPOSED)
/// }
/// ```
pub struct Reserve(Arc<Reserved>);

/// Translations that are not in use, and who are.
struct Spares {
    /// In the order in which they were given back; as long as there are translations.
    ring: KVVec<Option<Arc<Translation>>>,
    first: usize,
    free: usize,
    /// Of these not in the ring.
    used: usize,
    /// Whether the reserve can be used.
    open: bool,
    /// Where the NLAs go when nothing is in use any more.
    rest: Option<RestNode>,
}

/// A reserve as its translations know it.
#[pin_data]
pub(super) struct Reserved {
    atu: Arc<Atu>,
    vpid: VpidUse,
    range: Range,
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

    /// Takes one back; gives it back if the reserve is closed.
    fn put(&mut self, translation: Arc<Translation>) -> Option<Arc<Translation>> {
        self.used = self.used.saturating_sub(1);
        if !self.open {
            return Some(translation);
        }
        let at = (self.first + self.free) % self.ring.len().max(1);
        let Some(place) = self.ring.get_mut(at) else {
            return Some(translation);
        };
        self.free += 1;
        place.replace(translation)
    }

    /// Where the NLAs go, if nothing is in use any more: once.
    fn take_rest(&mut self) -> Option<RestNode> {
        match (self.open, self.used) {
            (false, 0) => self.rest.take(),
            _ => None,
        }
    }
}

impl Atu {
    /// Makes a reserve for `regions` regions of up to `pages` pages each, for `vpid`, which the
    /// caller must have open. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no region, more than 16,384, no page, more than 8 MiB each, or no access asked
    /// for. `ENOMEM`, `ENOSPC`, `ENODEV`, `ETIMEDOUT` as [`Atu::register_pages`].
    pub fn reserve(
        self: &Arc<Self>,
        vpid: Vpid,
        regions: usize,
        pages: usize,
        access: Access,
    ) -> Result<Reserve> {
        access.check()?;
        if regions == 0 || regions > MOST_REGIONS || pages == 0 || pages > Reserve::MOST_PAGES {
            return Err(EINVAL);
        }
        let _bound = BoundHold::new(self)?;
        let node = ReserveNode::new(GFP_KERNEL)?;
        let rest = RestNode::new(GFP_KERNEL)?;
        let mut ring = KVVec::with_capacity(regions, GFP_KERNEL)?;
        for _ in 0..regions {
            ring.push(None, GFP_KERNEL)?;
        }
        let all = (regions * pages) as u64;
        let wish = Placement::new(0).wish();
        let place = {
            let mut tables = self.tables.lock();
            tables.allocate(&self.ctx, &self.commands, all, wish, (None, Rest::Usual))?
        };
        let spares = Spares {
            ring,
            first: 0,
            free: 0,
            used: 0,
            open: true,
            rest: Some(rest),
        };
        let reserved = Arc::pin_init(
            pin_init!(Reserved {
                atu: self.clone(),
                vpid: VpidUse::new(self, vpid),
                range: place.range,
                pages,
                spares <- new_spinlock_irq!(spares, "extoll_atu_reserve"),
            }),
            GFP_KERNEL,
        );
        let reserved = match reserved {
            Ok(reserved) => reserved,
            Err(e) => {
                let range = place.range;
                drop(place);
                self.free(range, None, None);
                return Err(e);
            }
        };
        // From here on an error gives everything back by the drop of the reserve.
        let reserve = Reserve(reserved.clone());
        for n in 0..regions {
            let part = place.part(Range {
                first: place.range.first + (n * pages) as u64,
                pages: pages as u64,
            })?;
            let translation = Translation::spare(self, vpid, access, part)?;
            let mut spares = reserved.spares.lock();
            spares.used += 1;
            drop(spares.put(translation));
        }
        drop(place);
        let node = node.into_node(reserved.range.first, reserved);
        let entered = self.registry.lock().enter_reserve(node);
        // The node is dropped without the lock.
        entered.map(|()| reserve).map_err(|_| ENODEV)
    }
}

impl Reserve {
    /// Most pages of a region of a reserve: 8 MiB, as much as a command can move.
    pub const MOST_PAGES: usize = (8 << 20) / PAGE;

    /// Registers the bytes that a list is about, in pages that are exposed as a whole, as
    /// [`Atu::register_range`] does. Any context.
    ///
    /// # Errors
    ///
    /// `EAGAIN`, which is counted: all regions are in use, or have not ended yet. `EINVAL`: more pages
    /// than the reserve has for one. `EACCES`, `EIO`, `EOPNOTSUPP` as [`Atu::register_pages`]. `ENOMEM`:
    /// the IOMMU found none. `ENODEV`: the device is gone.
    pub fn register(&self, pages: &Arc<PageList>, _: WholePages) -> Result<Region> {
        let this = &self.0;
        if pages.len() > this.pages {
            return Err(EINVAL);
        }
        // Before one is taken: what is not in the ring keeps address tables in use.
        let bound = BoundHold::new(&this.atu)?;
        let taken = this.spares.lock().take();
        let Some(translation) = taken else {
            this.atu.gauges.reserve_exhausted.add(1, Relaxed);
            return Err(EAGAIN);
        };
        match translation.occupy_again(bound, this, pages) {
            Ok(turn) => Ok(Region::new(
                translation,
                turn,
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

    /// The VPID that regions are registered for. Any context.
    pub fn vpid(&self) -> Vpid {
        self.0.vpid.vpid()
    }

    /// Regions that can be made now. Any context.
    pub fn free(&self) -> usize {
        self.0.spares.lock().free
    }

    /// Whether nothing reaches the memory of any of its regions any more: all have ended, be it that
    /// the NIC was unbound. Any context.
    pub fn is_unused(&self) -> bool {
        self.0.spares.lock().used == 0
    }

    /// Most pages of each. Any context.
    pub fn pages(&self) -> usize {
        self.0.pages
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // Once unbinding has begun it closes all reserves. One that was not entered is dropped by its
        // maker, who keeps the device bound, and its NLAs go with the tables.
        if let Ok(bound) = BoundHold::new(&self.0.atu) {
            self.0.close();
            drop(bound);
        }
    }
}

impl Reserved {
    /// Takes a translation back that was not used, by whoever keeps the device bound. Any context.
    fn put_back(&self, translation: Arc<Translation>) {
        let (back, rest) = {
            let mut spares = self.spares.lock();
            (spares.put(translation), spares.take_rest())
        };
        if let Some(translation) = back {
            // Unbinding has closed the reserve, as its owner is using it: all NLAs go with the
            // tables.
            translation.empty();
        }
        if rest.is_some() {
            let node = self.atu.registry.lock().take_reserve(self.range.first);
            drop((node, rest));
        }
    }

    /// Takes a translation back that has ended. May sleep only if the reserve is closed.
    pub(super) fn give_back(&self, translation: Arc<Translation>) {
        let back = self.spares.lock().put(translation);
        if let Some(translation) = back {
            translation.empty();
            self.free_range();
        }
    }

    /// No further region is made of it; what is not in use is given back. The device must be kept
    /// bound. May sleep.
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

    /// As [`Reserved::close`].
    fn free_range(&self) {
        let rest = self.spares.lock().take_rest();
        if let Some(rest) = rest {
            let node = self.atu.registry.lock().take_reserve(self.range.first);
            self.atu.free(self.range, Some((rest, Rest::Usual)), None);
            drop(node);
        }
    }
}
