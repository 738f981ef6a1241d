// SPDX-License-Identifier: GPL-2.0-only

//! Registered memory.

use super::mapping::{self, Claim, Eye, Mapping, Memory, Segments};
use crate::{dma::DmaWords, nic::Nic};
use kernel::{
    prelude::*,
    scatterlist::{Owned, SGTable},
    sync::Arc,
};
use kernel_ext::mem::{Maps, PageList, Watch, PAGE};
use wire::{
    atu::GAT_ENTRIES,
    ids::{Nla, Vpid},
    regs::atu::GATS,
};

/// What the NIC may do with registered memory, be it for commands of its owner or of peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The NIC may read it: source of local PUTs and of remote GETs.
    pub read: bool,
    /// The NIC may write it: destination of local GETs and of remote PUTs.
    pub write: bool,
}

impl Access {
    /// Reading only.
    pub const READ: Self = Self {
        read: true,
        write: false,
    };
    /// Writing only.
    pub const WRITE: Self = Self {
        read: false,
        write: true,
    };
    /// Reading and writing.
    pub const READ_WRITE: Self = Self {
        read: true,
        write: true,
    };

    fn check(self) -> Result {
        if self.read || self.write {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }
}

/// Memory that RMA commands reach by NLA, on behalf of one VPID.
///
/// Byte i of the memory has NLA [`Region::nla`] + i. Drop revokes: translations are cleared, flushed, and the NIC's
/// notification awaited; only then the memory is unmapped and given back. Drop may sleep, about a second at most. When the
/// notification does not come in time, memory and NLAs stay reserved (quarantine) until it does, or until the NIC is
/// unbound.
///
/// While a region or such a remainder of one exists, its VPID is not given to anybody else. Keep the port open as long.
///
/// Unbinding the NIC ends all its regions: what is left of them can only be dropped.
pub struct Region {
    mapping: Arc<Mapping>,
}

impl Region {
    /// NLA of the first byte, a multiple of 4096. Any context.
    pub fn nla(&self) -> Nla {
        self.mapping.nla()
    }

    /// Length in bytes, a multiple of 4096. Any context.
    pub fn bytes(&self) -> usize {
        self.mapping.range.pages as usize * PAGE
    }

    /// What the NIC may do. Any context.
    pub fn access(&self) -> Access {
        self.mapping.access
    }

    /// The VPID that commands have to name. Any context.
    pub fn vpid(&self) -> Vpid {
        self.mapping.vpid
    }

    /// The NIC. Any context.
    pub fn nic(&self) -> &Arc<Nic> {
        self.mapping.nic()
    }

    /// False once the memory was unmapped (munmap, mremap, madvise, exit) or the device is gone: commands with its NLAs
    /// fail. Any context.
    pub fn is_alive(&self) -> bool {
        self.mapping.is_live() && self.nic().is_alive()
    }

    /// NLA of byte `offset`, if `len` bytes from there lie in the region and it is alive.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Nla> {
        let inside = offset.checked_add(len)? <= self.bytes();
        (inside && self.is_alive()).then(|| Nla(self.nla().0 + offset as u64))
    }

    /// Revokes as drop does, and tells how that ended. May sleep.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the NIC may still access the memory, which stays reserved until it says that it does not.
    pub fn revoke(mut self) -> Result {
        if self.end() {
            Ok(())
        } else {
            Err(ETIMEDOUT)
        }
    }

    fn end(&mut self) -> bool {
        self.mapping.unwatch();
        self.mapping.revoke();
        self.mapping.finish()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends regions, as their drop does one by one, but waits for the NIC once; drop them afterwards. May sleep, about a second at most.
pub(crate) fn end<'a, I: Iterator<Item = &'a Region>>(nic: &Arc<Nic>, regions: impl Fn() -> I) {
    for region in regions() {
        region.mapping.unwatch();
        region.mapping.revoke();
        region.mapping.wait_zeroed();
    }
    mapping::finish_all(nic, regions().map(|r| &r.mapping));
}

/// Registers memory of the current process: `bytes` bytes from `start`, both multiples of 4096, for `vpid`, which
/// the caller must have open. The pages are pinned and count against `RLIMIT_MEMLOCK` (unless `CAP_IPC_LOCK`). When the
/// process unmaps any of it, moves it or ends, the region dies ([`Region::is_alive`]): for munmap, mremap and exit before
/// these return, for other ways to lose the pages (madvise, truncation) some milliseconds later. Until then the NIC
/// reaches the old pages, which are not reused before. A fork does not matter: the child gets copies of the pages. Memory
/// that is shared (tmpfs, memfd, System V, huge pages) stays, whatever the kernel does to page tables meanwhile; a mapped
/// file on a disk, which can be registered for reading only, may be taken for lost.
///
/// May sleep; process context of the owner.
///
/// # Errors
///
/// `EINVAL`: not page aligned, nothing, wraps around, no access asked for. `EFAULT`: not all of it is mapped, or not with
/// the access asked for. `ENOMEM`: no memory, or `RLIMIT_MEMLOCK` exceeded. `ENOSPC`: no contiguous NLA range, the
/// limit of address tables reached, or more than 512 GiB. `EOPNOTSUPP`: CPU and device do not see each other's writes by themselves. `EIO`: it cannot
/// be mapped for the device, or only as a copy. `EAGAIN`: the memory was unmapped meanwhile. `EINTR`: a fatal signal. `ENODEV`: the device is gone.
/// `ETIMEDOUT`: it does not answer.
pub fn register_user(
    nic: &Arc<Nic>,
    vpid: Vpid,
    start: usize,
    bytes: usize,
    access: Access,
) -> Result<Region> {
    access.check()?;
    // Before much is pinned for nothing.
    if bytes as u64 / PAGE as u64
        > u64::from(nic.params.atu_gats.min(GATS)) * u64::from(GAT_ENTRIES)
    {
        return Err(ENOSPC);
    }
    let pages = Arc::new(PageList::pin(start, bytes, access.write)?, GFP_KERNEL)?;
    let claim = Claim::new(nic, vpid)?;
    let memory = claim.map(pages.clone(), access)?;
    let mapping = Mapping::new(claim, access, start, memory)?;
    // From here on an error revokes by the drop of the region.
    let region = Region {
        mapping: mapping.clone(),
    };
    let (mm, _) = pages.user().ok_or(EFAULT)?;
    let eye = Arc::new(Eye(mapping.clone()), GFP_KERNEL)?;
    let watch = Arc::new(Watch::new(mm, start, bytes, eye)?, GFP_KERNEL)?;
    mapping.watch(watch.clone());
    // What happened before the watch began, or is under way.
    watch.settle();
    match pages.mapped(0, pages.len()) {
        Maps::Same => Ok(region),
        Maps::Other => Err(EAGAIN),
        Maps::Unclear => {
            mapping.doubt(0, pages.len());
            Ok(region)
        }
    }
}

/// Registers pages (referenced ones or a kernel buffer, see [`PageList`]) for `vpid`; page i of the list has NLA
/// `nla` + 4096 i. They are kept until the region is gone. May sleep.
///
/// # Errors
///
/// `EINVAL`: no access asked for. `ENOMEM`, `ENOSPC`, `EOPNOTSUPP`, `EIO`, `ENODEV`, `ETIMEDOUT` as [`register_user`].
pub fn register_pages(
    nic: &Arc<Nic>,
    vpid: Vpid,
    pages: Arc<PageList>,
    access: Access,
) -> Result<Region> {
    access.check()?;
    let claim = Claim::new(nic, vpid)?;
    let memory = claim.map(pages, access)?;
    region(claim, access, memory)
}

/// Registers coherent memory for `vpid`. It is kept until the region is gone. May sleep.
///
/// # Errors
///
/// `EINVAL`: no access asked for, or not a whole number of pages. `ENOMEM`, `ENOSPC`, `ENODEV`, `ETIMEDOUT` as [`register_user`].
pub fn register_coherent(
    nic: &Arc<Nic>,
    vpid: Vpid,
    words: Arc<DmaWords>,
    access: Access,
) -> Result<Region> {
    access.check()?;
    region(Claim::new(nic, vpid)?, access, Memory::Coherent(words))
}

/// Registers a scatterlist that is mapped for the NIC (in a direction that fits `access`) for `vpid`: its entries follow
/// each other in NLA space. It is kept until the region is gone. Of bytes, as whatever the NIC writes has to make sense. May sleep.
///
/// # Errors
///
/// `EINVAL`: no access asked for, or an entry that is not made of whole pages. `ENOMEM`, `ENOSPC`, `ENODEV`, `ETIMEDOUT` as
/// [`register_user`].
pub fn register_table(
    nic: &Arc<Nic>,
    vpid: Vpid,
    table: Pin<KBox<SGTable<Owned<VVec<u8>>>>>,
    access: Access,
) -> Result<Region> {
    access.check()?;
    let table = KBox::new(Table(table), GFP_KERNEL)?;
    region(Claim::new(nic, vpid)?, access, Memory::Other(table))
}

fn region(claim: Claim, access: Access, memory: Memory) -> Result<Region> {
    let mapping = Mapping::new(claim, access, 0, memory)?;
    Ok(Region { mapping })
}

struct Table(Pin<KBox<SGTable<Owned<VVec<u8>>>>>);

impl Segments for Table {
    fn each(&self, f: &mut dyn FnMut(u64, u64)) {
        for entry in self.0.iter() {
            f(entry.dma_address(), entry.dma_len());
        }
    }
}
