// SPDX-License-Identifier: GPL-2.0-only

//! Registration of user and kernel memory.
//!
//! All functions may sleep. They acquire the device lock to map memory, and the mutex of the
//! tables.

use super::{
    memory::Memory, registry::BoundHold, tables::HoldOff, translation::Translation,
    watch::MemoryWatch, Access, Atu, Region, TableAccount,
};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::mem::{Maps, PageList, Watch, PAGE};
use protocol::nic::translation::Pages;
use wire::{atu::GAT_ENTRIES, ids::Vpid};

use super::make::Request;

/// Confirmation of the caller that whole pages may be exposed. The NIC protects whole pages, so
/// peers that may use the VPID can also access the bytes before and after a range, with the
/// region's [`Access`]. Use this value only if those bytes are unused, or if the same peers may
/// access them anyway. Never use it for pages that the kernel shares, such as those of packets and
/// of the slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WholePages {
    _said: (),
}

impl WholePages {
    /// Permits access to the whole pages.
    pub const EXPOSED: Self = Self { _said: () };
}

/// Pages that a range of bytes occupies.
struct Span {
    pages: usize,
    first_offset: usize,
    bytes: usize,
}

impl Span {
    /// Returns the pages of `bytes` bytes from `start`. Returns `EINVAL` if the range is empty or
    /// wraps around.
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
    /// Registers memory of the current process for `vpid`: `bytes` bytes from `start`, both
    /// multiples of
    /// 4096. The caller must have opened that VPID. The pages are pinned and charged to
    ///       `RLIMIT_MEMLOCK` (unless the process has `CAP_IPC_LOCK`).
    ///
    /// The region ends ([`Region::is_alive`] returns false) when the process unmaps or moves any of
    /// the memory, or exits. It ends before munmap, mremap and exit return, and some milliseconds
    /// after other losses of pages (madvise, truncation). Until then the NIC accesses the old
    /// pages, which are not reused before the region has ended. A fork does not affect the region,
    /// because the child gets copies of the pages. Shared memory (tmpfs, memfd, System V, huge
    /// pages) stays registered even if the kernel changes its page tables. A region on a mapped
    /// disk file can be registered for reading only. It may end although no page was lost.
    ///
    /// May sleep. Must be called in process context of the owner.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not page-aligned, empty, wraps around, or no access requested. `EFAULT`: not all
    /// of the range is mapped with that access. `ENOMEM`: no memory, or `RLIMIT_MEMLOCK` exceeded.
    /// `ENOSPC`: no contiguous NLA range is free, the limit of address tables is reached, or the
    /// range exceeds 512 GiB. `EOPNOTSUPP`: CPU and device are not cache-coherent. `EIO`: the
    /// memory cannot be mapped for the device, or only through a bounce buffer. `EAGAIN`: the
    /// memory was unmapped during the call. `EINTR`: a fatal signal is pending. `ENODEV`: the
    /// device was removed. `ETIMEDOUT`: the NIC does not answer. `EDQUOT`: the user's limit of
    /// tables is reached.
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
        // The size is checked before pages are pinned.
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
            hold_off: HoldOff::Usual,
        };
        let translation = Translation::new(bound, request, memory)?;
        let generation = translation.generation();
        // After this line, an error ends the region by dropping it.
        let region = Region::new(
            translation.clone(),
            generation,
            span.first_offset,
            span.bytes,
        );
        let (mm, _) = pages.user().ok_or(EFAULT)?;
        let watcher = Arc::new(MemoryWatch(translation.clone()), GFP_KERNEL)?;
        let watch = Arc::new(Watch::new(mm, start, bytes, watcher)?, GFP_KERNEL)?;
        if translation.watch(watch.clone()).is_some() {
            // Unbinding has already ended the region.
            return Err(ENODEV);
        }
        // Waits for changes of the memory that began before the watch.
        watch.wait_idle();
        let all = Pages {
            first: 0,
            end: pages.len(),
        };
        match pages.mapped(all.first, all.end) {
            Maps::Same => Ok(region),
            Maps::Other => Err(EAGAIN),
            Maps::Unclear => {
                translation.recheck(all);
                Ok(region)
            }
        }
    }

    /// Registers whole pages of kernel memory (see [`PageList`]) for `vpid`. Page i of the list has
    /// NLA `nla` + 4096 i. The list is kept until the region has ended. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no access requested, or the list does not consist of whole pages, or shares pages
    /// with other memory (use [`Atu::register_range`] for such lists). `EACCES`: write access to
    /// read-only pages. `ENOMEM`, `ENOSPC`, `EOPNOTSUPP`, `EIO`, `ENODEV`, `ETIMEDOUT` as for
    /// `Atu::register_user_for`.
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

    /// Registers `bytes` bytes from byte `first_offset` of the list's first page on, otherwise like
    /// [`Atu::register_pages`]. Whole pages are exposed. For a list with unaligned ends, such as a
    /// list of packet fragments, pass its [`PageList::offset`] and [`PageList::bytes`]. Memory of
    /// processes is not watched for changes, so use this function only for single transfers.
    ///
    /// ```
    /// use extoll_core::{atu::{Access, Region, WholePages}, nic::Nic};
    /// use kernel::{prelude::*, sync::Arc};
    /// use kernel_ext::mem::PageList;
    /// use wire::ids::Vpid;
    ///
    /// /// Registers a record of 1,000 bytes after a header of 60 bytes, in a page of its own.
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
    /// The errors of [`Atu::register_pages`]. `EINVAL` also for an empty range, a `first_offset`
    /// beyond the first page, and a range that exceeds the list or does not reach its last page.
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
        self.register_list(vpid, pages, span, access, HoldOff::Usual)
    }

    /// Registers all pages of a list like [`Atu::register_range`], and applies **the full hold-off
    /// time** to the NLAs after the end. Use this if late accesses cannot be prevented, i.e. by
    /// peers that are not notified of the end, or by GETs of this node that timed out. Without the
    /// hold-off such accesses would reach other memory of the same VPID. May sleep.
    ///
    /// # Errors
    ///
    /// The errors of [`Atu::register_range`]. `ENOSPC` also if half of all NLAs are held off for
    /// the full time.
    pub fn register_leased(
        self: &Arc<Self>,
        vpid: Vpid,
        pages: Arc<PageList>,
        access: Access,
        _: WholePages,
    ) -> Result<Region> {
        let span = Span::new(0, pages.len() * PAGE)?;
        self.register_list(vpid, pages, span, access, HoldOff::Full)
    }

    fn register_list(
        self: &Arc<Self>,
        vpid: Vpid,
        pages: Arc<PageList>,
        span: Span,
        access: Access,
        hold_off: HoldOff,
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
            hold_off,
        };
        let translation = Translation::new(bound, request, memory)?;
        let generation = translation.generation();
        Ok(Region::new(
            translation,
            generation,
            span.first_offset,
            span.bytes,
        ))
    }
}
