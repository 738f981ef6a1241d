// SPDX-License-Identifier: GPL-2.0-only

//! Registration of memory of all kinds.

use super::{
    memory::Memory, registry::BoundHold, tables::Rest, translation::Translation,
    watch::MemoryWatch, Access, Atu, Region, TableAccount,
};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::mem::{Maps, PageList, Watch, PAGE};
use protocol::translation::Pages;
use wire::{atu::GAT_ENTRIES, ids::Vpid};

use super::make::Request;

/// Said by who registers a range of bytes that is not made of whole pages: the NIC protects pages,
/// so the rest of the first and of the last one is exposed as well. Peers that may use the VPID
/// read and write it as the [`Access`] says, with NLAs before and behind those of the region. To be
/// said only where that rest is nobody's, or of those who may reach the region anyway: not of
/// memory that the kernel shares between others, as the pages of frames and of the slab are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WholePages {
    _said: (),
}

impl WholePages {
    /// "The whole pages are exposed, and may be."
    pub const EXPOSED: Self = Self { _said: () };
}

/// Pages that bytes lie in, and where.
struct Span {
    pages: usize,
    first_offset: usize,
    bytes: usize,
}

impl Span {
    /// `bytes` bytes from `start`; `EINVAL` for nothing, and for what wraps around.
    fn new(start: usize, bytes: usize) -> Result<Self> {
        let first_offset = start % PAGE;
        let end = start.checked_add(bytes).ok_or(EINVAL)?;
        if bytes == 0 || end > usize::MAX - PAGE {
            return Err(EINVAL);
        }
        Ok(Self {
            pages: (first_offset + bytes).div_ceil(PAGE),
            first_offset,
            bytes,
        })
    }
}

impl Atu {
    /// Registers memory of the current process: `bytes` bytes from `start`, both multiples of 4096,
    /// for `vpid`, which the caller must have open. The pages are pinned and count against
    /// `RLIMIT_MEMLOCK` (unless `CAP_IPC_LOCK`). When the process unmaps any of it, moves it or
    /// ends, the region dies ([`Region::is_alive`]): for munmap, mremap and exit before these
    /// return, for other ways to lose the pages (madvise, truncation) some milliseconds later.
    /// Until then the NIC reaches the old pages, which are not reused before. A fork does not
    /// matter: the child gets copies of the pages. Memory that is shared (tmpfs, memfd, System V,
    /// huge pages) stays, whatever the kernel does to page tables meanwhile; a mapped file on a
    /// disk, which can be registered for reading only, may be taken for lost.
    ///
    /// May sleep; process context of the owner.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not page aligned, nothing, wraps around, no access asked for. `EFAULT`: not all of
    /// it is mapped, or not with the access asked for. `ENOMEM`: no memory, or `RLIMIT_MEMLOCK`
    /// exceeded. `ENOSPC`: no contiguous NLA range, the limit of address tables reached, or more
    /// than 512 GiB. `EOPNOTSUPP`: CPU and device do not see each other's writes by themselves.
    /// `EIO`: it cannot be mapped for the device, or only as a copy. `EAGAIN`: the memory was
    /// unmapped meanwhile. `EINTR`: a fatal signal. `ENODEV`: the device is gone. `ETIMEDOUT`: it
    /// does not answer. `EDQUOT`: the user has the maximum number of tables.
    pub(crate) fn register_user_for(
        self: &Arc<Self>,
        account: Option<Arc<TableAccount>>,
        vpid: Vpid,
        start: usize,
        bytes: usize,
        access: Access,
    ) -> Result<Region> {
        if (start | bytes) % PAGE != 0 {
            return Err(EINVAL);
        }
        self.pin(account, vpid, Span::new(start, bytes)?, start, access)
    }

    fn pin(
        self: &Arc<Self>,
        account: Option<Arc<TableAccount>>,
        vpid: Vpid,
        span: Span,
        start: usize,
        access: Access,
    ) -> Result<Region> {
        access.check()?;
        // Before much is pinned for nothing.
        let most = u64::from(self.settings.gats) * u64::from(GAT_ENTRIES);
        if span.pages as u64 > most {
            return Err(ENOSPC);
        }
        let (start, bytes) = (start - span.first_offset, span.pages * PAGE);
        let pages = Arc::new(PageList::pin(start, bytes, access.write)?, GFP_KERNEL)?;
        let bound = BoundHold::new(self)?;
        let memory = Memory::map(&self.ctx, pages.clone(), access)?;
        let request = Request {
            vpid,
            access,
            start,
            account,
            rest: Rest::Usual,
        };
        let translation = Translation::new(bound, request, memory)?;
        let turn = translation.turn();
        // From here on an error revokes by the drop of the region.
        let region = Region::new(translation.clone(), turn, span.first_offset, span.bytes);
        let (mm, _) = pages.user().ok_or(EFAULT)?;
        let watcher = Arc::new(MemoryWatch(translation.clone()), GFP_KERNEL)?;
        let watch = Arc::new(Watch::new(mm, start, bytes, watcher)?, GFP_KERNEL)?;
        if translation.watch(watch.clone()).is_some() {
            // Unbinding has ended it already.
            return Err(ENODEV);
        }
        // What happened before the watch began, or is under way.
        watch.settle();
        let all = Pages {
            first: 0,
            end: pages.len(),
        };
        match pages.mapped(all.first, all.end) {
            Maps::Same => Ok(region),
            Maps::Other => Err(EAGAIN),
            Maps::Unclear => {
                translation.doubt(all);
                Ok(region)
            }
        }
    }

    /// Registers whole pages of the kernel (see [`PageList`]) for `vpid`; page i of the list has NLA
    /// `nla` + 4096 i. They are kept until the region is gone. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no access asked for, or a list that is not about whole pages, or shares them with
    /// others: that is for [`Atu::register_range`]. `EACCES`: the NIC is to write what it may not.
    /// `ENOMEM`, `ENOSPC`, `EOPNOTSUPP`, `EIO`, `ENODEV`, `ETIMEDOUT` as
    /// `Atu::register_user_for`.
    pub fn register_pages(
        self: &Arc<Self>,
        vpid: Vpid,
        pages: Arc<PageList>,
        access: Access,
    ) -> Result<Region> {
        let bytes = pages.len() * PAGE;
        if pages.offset() != 0 || pages.bytes() != bytes || pages.shares_pages() {
            return Err(EINVAL);
        }
        self.register_range(vpid, pages, 0, bytes, access, WholePages::EXPOSED)
    }

    /// As [`Atu::register_pages`] for `bytes` bytes from byte `first_offset` of the first page on, in
    /// pages that are exposed as a whole. Those of a list whose ends are not aligned, e.g. of one of
    /// fragments, are [`PageList::offset`] and [`PageList::bytes`]. Memory of processes is not
    /// watched: this is for one transfer.
    ///
    /// ```
    /// use extoll_core::{atu::{Access, Region, WholePages}, nic::Nic};
    /// use kernel::{prelude::*, sync::Arc};
    /// use kernel_ext::mem::PageList;
    /// use wire::ids::Vpid;
    ///
    /// /// A record of 1,000 bytes behind a header of 60, in a page of its own.
    /// fn record(nic: &Nic, vpid: Vpid, page: Arc<PageList>) -> Result<Region> {
    ///     let access = Access::READ;
    ///     let region =
    ///         nic.atu().register_range(vpid, page, 60, 1000, access, WholePages::EXPOSED)?;
    ///     assert_eq!(region.nla().0 % 4096, 60);
    ///     Ok(region)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Atu::register_pages`]; `EINVAL` also for no bytes, a `first_offset` beyond the first
    /// page, and a range that does not lie in the list or does not reach its last page.
    pub fn register_range(
        self: &Arc<Self>,
        vpid: Vpid,
        pages: Arc<PageList>,
        first_offset: usize,
        bytes: usize,
        access: Access,
        _: WholePages,
    ) -> Result<Region> {
        let span = Span::new(first_offset, bytes)?;
        if span.first_offset != first_offset {
            return Err(EINVAL);
        }
        self.list(vpid, pages, span, access, Rest::Usual)
    }

    /// As [`Atu::register_range`], for all pages of a list, whose NLAs **rest for the full time**, as
    /// accesses may still come that nobody can stop: of peers that have not heard of the end, and of
    /// own GETs that were given up. They would find other memory of the same VPID in their place. May
    /// sleep.
    ///
    /// # Errors
    ///
    /// As [`Atu::register_range`]. `ENOSPC` also when half of all NLAs rest so.
    pub fn register_lent(
        self: &Arc<Self>,
        vpid: Vpid,
        pages: Arc<PageList>,
        access: Access,
        _: WholePages,
    ) -> Result<Region> {
        let span = Span::new(0, pages.len() * PAGE)?;
        self.list(vpid, pages, span, access, Rest::Full)
    }

    fn list(
        self: &Arc<Self>,
        vpid: Vpid,
        pages: Arc<PageList>,
        span: Span,
        access: Access,
        rest: Rest,
    ) -> Result<Region> {
        if span.pages != pages.len() {
            return Err(EINVAL);
        }
        access.check()?;
        let bound = BoundHold::new(self)?;
        let memory = Memory::map(&self.ctx, pages, access)?;
        let request = Request {
            vpid,
            access,
            start: 0,
            account: None,
            rest,
        };
        let translation = Translation::new(bound, request, memory)?;
        let turn = translation.turn();
        Ok(Region::new(
            translation,
            turn,
            span.first_offset,
            span.bytes,
        ))
    }
}
