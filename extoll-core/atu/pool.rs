// SPDX-License-Identifier: GPL-2.0-only

//! Pools of buffers that are registered once and used many times.
//!
//! Making a pool may sleep. Buffers are taken and returned in any context, under a spinlock that
//! disables interrupts.

use super::{Access, Atu, Region};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, new_spinlock_irq, Arc, SpinLockIrq},
};
use kernel_ext::mem::{PageList, TagPositions, PAGE};
use wire::ids::{Nla, Vpid};

/// Maximum size of a pool in bytes.
const MAX_BYTES: usize = 1 << 30;
/// Maximum number of buffers per pool.
const MAX_BUFFERS: usize = 1 << 16;

/// Fixed number of buffers of equal size in one region. Taking and returning a buffer works in any
/// context and registers no memory. The buffer that has been free for longest is reused first. Late
/// writes to a returned buffer therefore rarely corrupt a new use.
///
/// Can be dropped in any context. Buffers in use stay valid. The memory of all buffers is freed
/// when the last buffer is returned. Until then the NIC, and peers that know the NLAs, can access
/// it.
///
/// ```
/// use extoll_core::{atu::{Access, Buffer, BufferPool}, nic::Nic};
/// use kernel::prelude::*;
/// use wire::ids::Vpid;
///
/// /// Buffers for replies that peers write, 512 bytes each.
/// fn replies(nic: &Nic, vpid: Vpid) -> Result<BufferPool> {
///     nic.atu().buffers(vpid, 256, 512, Access::WRITE)
/// }
///
/// /// Takes the buffer for the next reply, in any context. Its NLA is sent to the replying peer.
/// fn expect(pool: &BufferPool) -> Option<Buffer> {
///     let buffer = pool.take()?;
///     buffer.write(0, 0);
///     Some(buffer)
/// }
/// ```
pub struct BufferPool(Arc<Buffers>);

/// Queue of the numbers of free buffers, in the order of their return.
struct Free {
    /// Allocated with `kmalloc`, so that it can be freed in any context.
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
        if let Some(slot) = self.ring.get_mut(at) {
            *slot = number;
            self.len += 1;
        }
    }
}

/// Memory that both the CPU and the NIC access.
struct Backing {
    /// Declared before `region`. The region drops its own reference last, in a context that may
    /// sleep.
    pages: Arc<PageList>,
    region: Region,
}

impl Drop for Backing {
    fn drop(&mut self) {
        self.region.drop_later(self.pages.clone());
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
    /// Allocates a pool of `count` zeroed buffers of `bytes` bytes for `vpid`. `bytes` is a
    /// multiple of 8. The caller must have opened that VPID. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no buffer, more than 65,536 buffers, more than 1 GiB in total, a size that is not
    /// a multiple of 8, or no access requested. `ENOMEM`, `ENOSPC`, `EOPNOTSUPP`, `EIO`, `ENODEV`,
    /// `ETIMEDOUT` as for [`Atu::register_pages`].
    pub fn buffers(
        self: &Arc<Self>,
        vpid: Vpid,
        count: usize,
        bytes: usize,
        access: Access,
    ) -> Result<BufferPool> {
        let all = count.checked_mul(bytes).ok_or(EINVAL)?;
        if all == 0 || count > MAX_BUFFERS || all > MAX_BYTES || bytes % 8 != 0 {
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
    /// Takes a buffer, which still contains its old data. Returns `None` if the device was removed
    /// or if all buffers are in use; the second case is counted. Any context.
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

    /// Returns the total number of buffers and the number of free buffers. Any context.
    pub fn count(&self) -> (usize, usize) {
        (self.0.count, self.0.free.lock().len)
    }

    /// Returns the region of the pool. Any context.
    pub fn region(&self) -> &Region {
        &self.0.backing.region
    }
}

/// Buffer of a pool. Drop returns the buffer to its pool, in any context. The owner must not drop
/// the buffer while a peer may still write to it on the owner's request.
pub struct Buffer {
    buffers: Arc<Buffers>,
    number: u32,
}

impl Buffer {
    /// Returns the length in bytes. Any context.
    pub fn bytes(&self) -> usize {
        self.buffers.bytes
    }

    /// Returns the number of the buffer in its pool, from 0. Any context.
    pub fn number(&self) -> usize {
        self.number as usize
    }

    /// Returns the offset in bytes of the buffer in [`Buffer::region`], for commands of this node.
    /// Any context.
    pub fn offset(&self) -> usize {
        self.number as usize * self.buffers.bytes
    }

    /// Returns the region of the pool. Any context.
    pub fn region(&self) -> &Region {
        &self.buffers.backing.region
    }

    /// Returns the NLA of the first byte, which can be sent to peers. Any context.
    pub fn nla(&self) -> Nla {
        Nla(self.region().nla().0 + self.offset() as u64)
    }

    /// Returns the memory of the whole pool, including the other buffers. This buffer begins at
    /// [`Buffer::offset`]. Any context.
    pub fn memory(&self) -> &PageList {
        &self.buffers.backing.pages
    }

    fn index(&self, index: usize) -> Option<usize> {
        (index < self.bytes() / 8).then(|| self.offset() / 8 + index)
    }

    /// Reads little-endian quadword `index`. Returns 0 if the index is outside of the buffer. Any
    /// context.
    pub fn read(&self, index: usize) -> u64 {
        let pages = &self.buffers.backing.pages;
        self.index(index).map_or(0, |i| pages.read(i))
    }

    /// Writes little-endian quadword `index`. Does nothing if the index is outside of the buffer.
    /// Any context.
    pub fn write(&self, index: usize, value: u64) {
        if let Some(i) = self.index(index) {
            self.buffers.backing.pages.write(i, value);
        }
    }

    fn range(&self, at: usize, len: usize) -> Option<usize> {
        let end = at.checked_add(len)?;
        (end <= self.bytes()).then(|| self.offset() + at)
    }

    /// Copies bytes from offset `at` on to `to`. Does nothing if the range exceeds the buffer.
    /// Bytes that the NIC writes during the call may be old or new. Any context.
    pub fn load(&self, at: usize, to: &mut [u8]) {
        if let Some(at) = self.range(at, to.len()) {
            // Cannot fail, because the range was checked.
            let _ = self.buffers.backing.pages.copy_to(at, to);
        }
    }

    /// Copies `from` to the bytes from offset `at` on. Does nothing if the range exceeds the
    /// buffer. Any context.
    pub fn store(&self, at: usize, from: &[u8]) {
        if let Some(at) = self.range(at, from.len()) {
            let _ = self.buffers.backing.pages.copy_from(at, from);
        }
    }
}

impl Buffer {
    /// Converts the positions of validity tags in this buffer to positions in the pool. Returns
    /// `None` if they exceed the buffer.
    fn comb(&self, comb: TagPositions) -> Option<TagPositions> {
        let last = comb.count.checked_sub(1)?;
        let end = last.checked_mul(comb.step)?.checked_add(8)?;
        let at = self.range(comb.at, end)?;
        Some(TagPositions { at, ..comb })
    }

    /// Writes the validity tag `tag` to all positions of `comb`. Does nothing if a position exceeds
    /// the buffer. Any context.
    pub fn write_tag(&self, comb: TagPositions, tag: [u8; 8]) {
        if let Some(comb) = self.comb(comb) {
            let _ = self.buffers.backing.pages.write_tags(comb, tag);
        }
    }

    /// Returns whether one of the positions of `comb` still contains the validity tag `tag`.
    /// Returns false if a position exceeds the buffer. Any context.
    pub fn has_tag(&self, comb: TagPositions, tag: [u8; 8]) -> bool {
        let pages = &self.buffers.backing.pages;
        let comb = self.comb(comb);
        comb.is_some_and(|comb| pages.has_tag(comb, tag) == Ok(true))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.buffers.free.lock().put(self.number);
    }
}
