// SPDX-License-Identifier: GPL-2.0-only

//! Buffers that are registered once and used many times.

use super::{Access, Atu, Region};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, new_spinlock_irq, Arc, SpinLockIrq},
};
use kernel_ext::mem::{Comb, PageList, PAGE};
use wire::ids::{Nla, Vpid};

/// Most memory of a pool in bytes.
const MOST_BYTES: usize = 1 << 30;
/// Most buffers of a pool.
const MOST: usize = 1 << 16;

/// A fixed number of buffers of one size in one region. They are taken and given back in any
/// context, without registering anything: the one that has been free for longest is taken first, so
/// that what comes late for one that was given back meets it as rarely as possible.
///
/// Drop in any context. Buffers that are in use stay, and so does the memory of all until they are
/// dropped; the NIC, and peers that know their NLAs, reach it as long.
///
/// ```
/// use extoll_core::{atu::{Access, Buffer, BufferPool}, nic::Nic};
/// use kernel::prelude::*;
/// use wire::ids::Vpid;
///
/// /// Replies that peers write, 512 bytes each.
/// fn replies(nic: &Nic, vpid: Vpid) -> Result<BufferPool> {
///     nic.atu().buffers(vpid, 256, 512, Access::WRITE)
/// }
///
/// /// In any context: where the next reply goes, which its sender has to be told.
/// fn expect(pool: &BufferPool) -> Option<Buffer> {
///     let buffer = pool.take()?;
///     buffer.write(0, 0);
///     Some(buffer)
/// }
/// ```
pub struct BufferPool(Arc<Buffers>);

/// Numbers of buffers that are free, in the order in which they were given back.
struct Free {
    /// From the heap, so that it can be freed in any context.
    ring: KVec<u32>,
    first: usize,
    len: usize,
}

impl Free {
    fn take(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let number = *self.ring.get(self.first)?;
        self.first = (self.first + 1) % self.ring.len();
        self.len -= 1;
        Some(number)
    }

    fn put(&mut self, number: u32) {
        let at = (self.first + self.len) % self.ring.len().max(1);
        if let Some(place) = self.ring.get_mut(at) {
            *place = number;
            self.len += 1;
        }
    }
}

/// Memory that the processor sees, too.
struct Backing {
    /// Before the region, which has another reference that is dropped where sleeping is allowed.
    pages: Arc<PageList>,
    region: Region,
}

impl Drop for Backing {
    fn drop(&mut self) {
        self.region.keep(self.pages.clone());
    }
}

#[pin_data]
struct Buffers {
    backing: Backing,
    bytes: usize,
    count: usize,
    #[pin]
    free: SpinLockIrq<Free>,
}

impl Atu {
    /// Makes a pool of `count` buffers of `bytes` bytes each, a multiple of 8, for `vpid`, which
    /// the caller must have open. They are zero at first. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no buffer, more than 65,536 or 1 GiB in all, another size, or no access asked for.
    /// `ENOMEM`, `ENOSPC`, `EOPNOTSUPP`, `EIO`, `ENODEV`, `ETIMEDOUT` as [`Atu::register_pages`].
    pub fn buffers(
        self: &Arc<Self>,
        vpid: Vpid,
        count: usize,
        bytes: usize,
        access: Access,
    ) -> Result<BufferPool> {
        let all = count.checked_mul(bytes).ok_or(EINVAL)?;
        if all == 0 || count > MOST || all > MOST_BYTES || bytes % 8 != 0 {
            return Err(EINVAL);
        }
        let mut ring = KVec::with_capacity(count, GFP_KERNEL)?;
        for number in 0..count as u32 {
            ring.push(number, GFP_KERNEL)?;
        }
        let memory = VVec::from_elem(0u8, all.next_multiple_of(PAGE), GFP_KERNEL)?;
        let pages = Arc::new(PageList::from_buffer(memory)?, GFP_KERNEL)?;
        let region = self.register_pages(vpid, pages.clone(), access)?;
        let free = Free {
            ring,
            first: 0,
            len: count,
        };
        let buffers = Arc::pin_init(
            pin_init!(Buffers {
                backing: Backing { pages, region },
                bytes,
                count,
                free <- new_spinlock_irq!(free, "extoll_atu_buffers"),
            }),
            GFP_KERNEL,
        )?;
        Ok(BufferPool(buffers))
    }
}

impl BufferPool {
    /// Takes a buffer, with whatever was in it last. `None`, which is counted, if all are in use,
    /// or the device is gone. Any context.
    pub fn take(&self) -> Option<Buffer> {
        let this = &self.0;
        if !this.backing.region.is_alive() {
            return None;
        }
        let number = this.free.lock().take();
        let Some(number) = number else {
            let gauges = &this.backing.region.atu().gauges;
            gauges.pool_exhausted.add(1, Relaxed);
            return None;
        };
        Some(Buffer {
            buffers: this.clone(),
            number,
        })
    }

    /// Buffers, and how many of them are free. Any context.
    pub fn count(&self) -> (usize, usize) {
        (self.0.count, self.0.free.lock().len)
    }

    /// The region that they are in. Any context.
    pub fn region(&self) -> &Region {
        &self.0.backing.region
    }
}

/// A buffer of a pool, given back by drop, in any context. Whoever drops it knows that nobody
/// writes to it any more on his account.
pub struct Buffer {
    buffers: Arc<Buffers>,
    number: u32,
}

impl Buffer {
    /// Length in bytes. Any context.
    pub fn bytes(&self) -> usize {
        self.buffers.bytes
    }

    /// Its number, less than the number of buffers. Any context.
    pub fn number(&self) -> usize {
        self.number as usize
    }

    /// Where it begins in [`Buffer::region`], for commands of this node. Any context.
    pub fn offset(&self) -> usize {
        self.number as usize * self.buffers.bytes
    }

    /// The region that it is in. Any context.
    pub fn region(&self) -> &Region {
        &self.buffers.backing.region
    }

    /// NLA of its first byte, for peers. Any context.
    pub fn nla(&self) -> Nla {
        Nla(self.region().nla().0 + self.offset() as u64)
    }

    /// The memory of the pool, in which this begins at [`Buffer::offset`]: for what copies bytes.
    /// Other buffers are in it, too. Any context.
    pub fn memory(&self) -> &PageList {
        &self.buffers.backing.pages
    }

    fn index(&self, index: usize) -> Option<usize> {
        (index < self.bytes() / 8).then(|| self.offset() / 8 + index)
    }

    /// Reads little-endian quadword `index` of it; 0 outside. Any context.
    pub fn read(&self, index: usize) -> u64 {
        let pages = &self.buffers.backing.pages;
        self.index(index).map_or(0, |i| pages.read(i))
    }

    /// Writes little-endian quadword `index` of it; ignored outside. Any context.
    pub fn write(&self, index: usize, value: u64) {
        if let Some(i) = self.index(index) {
            self.buffers.backing.pages.write(i, value);
        }
    }

    fn range(&self, at: usize, len: usize) -> Option<usize> {
        let end = at.checked_add(len)?;
        (end <= self.bytes()).then(|| self.offset() + at)
    }

    /// Copies the bytes from `at` on to `to`; nothing if they are not all in it. What the NIC writes
    /// at the same time may be there or not, byte by byte. Any context.
    pub fn load(&self, at: usize, to: &mut [u8]) {
        if let Some(at) = self.range(at, to.len()) {
            // All of it is in the list.
            let _ = self.buffers.backing.pages.copy_to(at, to);
        }
    }

    /// Copies `from` to the bytes from `at` on; nothing if they are not all in it. Any context.
    pub fn store(&self, at: usize, from: &[u8]) {
        if let Some(at) = self.range(at, from.len()) {
            let _ = self.buffers.backing.pages.copy_from(at, from);
        }
    }
}

impl Buffer {
    /// A comb of it as one of its pool, if its marks of eight bytes are all in it.
    fn comb(&self, comb: Comb) -> Option<Comb> {
        let last = comb.count.checked_sub(1)?;
        let end = last.checked_mul(comb.step)?.checked_add(8)?;
        let at = self.range(comb.at, end)?;
        Some(Comb { at, ..comb })
    }

    /// Writes a mark to all places of a comb; to none if they are not all in it. Any context.
    pub fn mark(&self, comb: Comb, mark: [u8; 8]) {
        if let Some(comb) = self.comb(comb) {
            let _ = self.buffers.backing.pages.mark(comb, mark);
        }
    }

    /// Whether a mark is in one of the places of a comb; not if they are not all in it. Any context.
    pub fn has_mark(&self, comb: Comb, mark: [u8; 8]) -> bool {
        let pages = &self.buffers.backing.pages;
        let comb = self.comb(comb);
        comb.is_some_and(|comb| pages.has_mark(comb, mark) == Ok(true))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.buffers.free.lock().put(self.number);
    }
}
