// SPDX-License-Identifier: GPL-2.0-only

//! Memory of rings. The memory is allocated and registered in chunks on demand, and freed some time
//! after the last connection has ended. The pool is protected by the mutex `rings` of the NIC.

use super::share::Charge;
use extoll_core::{
    atu::{Access, Buffer, BufferPool},
    nic::Nic,
};
use kernel::prelude::*;
use kernel_ext::mem::PageList;
use protocol::{ds::Span, Time};
use wire::ids::Vpid;

/// Allocation granularity of ring memory in bytes; at least one connection's rings.
const CHUNK: usize = 2 << 20;

/// Rings of a connection. Peers may read the send ring and cannot write to it; only GETs of this
/// node write to the receive ring.
pub(crate) struct Rings {
    pub(crate) send: Buffer,
    pub(crate) receive: Buffer,
    /// Charge of the rings to a user.
    _charge: Charge,
}

/// Registered buffers in pairs: memory for send rings, and memory for receive rings.
pub(super) type Chunks = KVec<(BufferPool, BufferPool)>;

/// Result of a check whether unused rings can be freed.
pub(super) enum Unused {
    /// The NIC has no ring memory.
    Nothing,
    /// The rings must be checked again at this time.
    Until(Time),
    /// The rings in these chunks can be freed. The caller drops the chunks, which may sleep.
    Free(Chunks),
}

/// Size of rings, and the number of connections that may use rings of this size.
pub(crate) struct Size {
    /// Bytes of each of the two rings of a connection, a power of two.
    pub(crate) bytes: usize,
    /// Maximum number of connections that may hold rings of this size.
    pub(crate) most: usize,
}

/// All rings of a NIC.
pub(super) struct RingPool {
    chunks: Chunks,
    vpid: Vpid,
    /// Size classes in the order of preference.
    sizes: [Size; 2],
    /// Number of connections for which rings of each size exist.
    made: [usize; 2],
    /// Time at which the rings were found unused; `None` while some are in use.
    idle: Option<Time>,
}

/// Copies between a message and a span of a ring. Returns the number of bytes, which is less than
/// the span if the caller's memory ends or faults.
pub(crate) fn copy(
    ring: (&PageList, usize, u32),
    span: Span,
    mut copy_chunk: impl FnMut(&PageList, usize, usize) -> Result<usize>,
) -> Result<u32> {
    let (pages, base, bytes) = ring;
    let mut done = 0;
    for (at, len) in span.parts(bytes).into_iter().filter(|(_, len)| *len > 0) {
        match copy_chunk(pages, base + at as usize, len as usize) {
            Ok(n) => done += n as u32,
            Err(e) if done == 0 => return Err(e),
            Err(_) => return Ok(done),
        }
        if done < len {
            break;
        }
    }
    Ok(done)
}

/// Copies a span of a ring to `to`, which is large enough.
pub(crate) fn load(ring: &Buffer, span: Span, to: &mut [u8]) {
    let mut remainder = to;
    for (at, len) in span.parts(ring.bytes() as u32) {
        let Some((part, behind)) =
            core::mem::take(&mut remainder).split_at_mut_checked(len as usize)
        else {
            return;
        };
        ring.load(at as usize, part);
        remainder = behind;
    }
}

/// Copies `from` to a span of a ring.
pub(crate) fn store(ring: &Buffer, span: Span, from: &[u8]) {
    let mut remainder = from;
    for (at, len) in span.parts(ring.bytes() as u32) {
        let Some((part, behind)) = remainder.split_at_checked(len as usize) else {
            return;
        };
        ring.store(at as usize, part);
        remainder = behind;
    }
}

impl RingPool {
    /// Creates a pool without memory. The port must be open.
    pub(super) fn new(vpid: Vpid, sizes: [Size; 2]) -> Self {
        Self {
            chunks: KVec::new(),
            vpid,
            sizes,
            made: [0; 2],
            idle: None,
        }
    }

    fn free(&self) -> Option<(Buffer, Buffer)> {
        self.chunks.iter().find_map(|(send, receive)| {
            // Free memory is checked before an allocation, because a pool counts failed
            // allocations.
            if send.count().1 == 0 || receive.count().1 == 0 {
                return None;
            }
            Some((send.take()?, receive.take()?))
        })
    }

    /// Allocates the rings of one connection, charged to a user by `charge`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOBUFS`: the maximum number of connections has rings. Other errors report that memory or
    /// address tables are short.
    pub(super) fn alloc(&mut self, nic: &Nic, charge: Charge) -> Result<Rings> {
        let (send, receive) = self.pair(nic)?;
        Ok(Rings {
            send,
            receive,
            _charge: charge,
        })
    }

    fn pair(&mut self, nic: &Nic) -> Result<(Buffer, Buffer)> {
        self.idle = None;
        if let Some(pair) = self.free() {
            return Ok(pair);
        }
        let mut why = ENOBUFS;
        for (size, made) in self.sizes.iter().zip(&mut self.made) {
            let count = CHUNK / (2 * size.bytes);
            let count = count.min(size.most.saturating_sub(*made));
            if count == 0 {
                continue;
            }
            let atu = nic.atu();
            let pools = |access| atu.buffers(self.vpid, count, size.bytes, access);
            let both = pools(Access::READ).and_then(|send| Ok((send, pools(Access::WRITE)?)));
            // Rings of the next, smaller size may still fit if these cannot be allocated.
            match both.and_then(|both| Ok(self.chunks.push(both, GFP_KERNEL)?)) {
                Ok(()) => {
                    *made += count;
                    return self.free().ok_or(ENOBUFS);
                }
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    /// Checks whether rings that are all unused now have been unused for `after` nanoseconds.
    pub(super) fn unused(&mut self, now: Time, after: u64) -> Unused {
        if self.chunks.is_empty() {
            return Unused::Nothing;
        }
        let since = *self.idle.get_or_insert(now);
        if now.since(since) < after {
            return Unused::Until(since.after(after));
        }
        self.idle = None;
        self.made = [0; 2];
        // A thread that is still copying holds a reference to its rings, so their memory stays
        // until then.
        Unused::Free(core::mem::replace(&mut self.chunks, KVec::new()))
    }

    /// Returns the number of connections that can get rings without new memory, and the number of
    /// connections for which rings exist.
    pub(super) fn count(&self) -> (usize, usize) {
        let count = self.chunks.iter().map(|(send, _)| send.count());
        count.fold((0, 0), |(free, all), (n, left)| (free + left, all + n))
    }

    /// Ends all access of peers to the rings. May sleep.
    pub(super) fn revoke(self, nic: &Nic) -> Result {
        nic.atu().revoke_all(|| {
            let pairs = self.chunks.iter();
            pairs.flat_map(|(send, receive)| [send.region(), receive.region()])
        })
    }
}
