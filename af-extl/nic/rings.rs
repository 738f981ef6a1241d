// SPDX-License-Identifier: GPL-2.0-only

//! Memory of rings: registered in portions, when it is needed, and given back when there are no
//! connections any more.

use super::share::Share;
use extoll_core::{
    atu::{Access, Buffer, BufferPool},
    nic::Nic,
};
use kernel::prelude::*;
use kernel_ext::mem::PageList;
use protocol::{ds::Span, Time};
use wire::ids::Vpid;

/// Bytes of rings that are made together: of one connection at least.
const PORTION: usize = 2 << 20;

/// The rings of a connection. Peers may read the first and not write to it; into the second only
/// GETs of this node write.
pub(crate) struct Rings {
    pub(crate) send: Buffer,
    pub(crate) receive: Buffer,
    /// Whose they are.
    _share: Share,
}

/// Send and receive rings that are made together.
pub(super) type Portions = KVec<(BufferPool, BufferPool)>;

/// What is to be done with rings that nobody uses.
pub(super) enum Rest {
    /// There are none.
    Nothing,
    /// Look again then.
    Until(Time),
    /// These are to be given back, which may sleep.
    Over(Portions),
}

/// Rings of one size.
pub(crate) struct Size {
    /// Bytes of each of the two of a connection.
    pub(crate) bytes: usize,
    /// So many connections may have some.
    pub(crate) most: usize,
}

/// All rings of a NIC, free ones and others.
pub(super) struct RingPool {
    portions: Portions,
    vpid: Vpid,
    /// In the order in which they are used.
    sizes: [Size; 2],
    /// Connections for which there are rings of either size.
    made: [usize; 2],
    /// Since when nobody uses any.
    idle: Option<Time>,
}

/// Copies between a message and a span of a ring: how much, which is less than the span if the
/// caller's memory ends.
pub(crate) fn copy(
    ring: (&PageList, usize, u32),
    span: Span,
    mut piece: impl FnMut(&PageList, usize, usize) -> Result<usize>,
) -> Result<u32> {
    let (pages, base, bytes) = ring;
    let mut done = 0;
    for (at, len) in span.parts(bytes).into_iter().filter(|(_, len)| *len > 0) {
        match piece(pages, base + at as usize, len as usize) {
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

/// Copies bytes of a ring to `to`, which has room for them.
pub(crate) fn load(ring: &Buffer, span: Span, to: &mut [u8]) {
    let mut rest = to;
    for (at, len) in span.parts(ring.bytes() as u32) {
        let Some((part, behind)) = core::mem::take(&mut rest).split_at_mut_checked(len as usize)
        else {
            return;
        };
        ring.load(at as usize, part);
        rest = behind;
    }
}

/// Copies `from` to bytes of a ring.
pub(crate) fn store(ring: &Buffer, span: Span, from: &[u8]) {
    let mut rest = from;
    for (at, len) in span.parts(ring.bytes() as u32) {
        let Some((part, behind)) = rest.split_at_checked(len as usize) else {
            return;
        };
        ring.store(at as usize, part);
        rest = behind;
    }
}

impl RingPool {
    /// Without memory as yet. The port must be open.
    pub(super) fn new(vpid: Vpid, sizes: [Size; 2]) -> Self {
        Self {
            portions: KVec::new(),
            vpid,
            sizes,
            made: [0; 2],
            idle: None,
        }
    }

    fn free(&self) -> Option<(Buffer, Buffer)> {
        self.portions.iter().find_map(|(send, receive)| {
            // A pool counts those who ask in vain.
            if send.count().1 == 0 || receive.count().1 == 0 {
                return None;
            }
            Some((send.take()?, receive.take()?))
        })
    }

    /// Rings for one connection, of which `share` is some user's. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOBUFS`: so many have some. `ENOMEM` and others: there are no more.
    pub(super) fn take(&mut self, nic: &Nic, share: Share) -> Result<Rings> {
        let (send, receive) = self.pair(nic)?;
        Ok(Rings {
            send,
            receive,
            _share: share,
        })
    }

    fn pair(&mut self, nic: &Nic) -> Result<(Buffer, Buffer)> {
        self.idle = None;
        if let Some(pair) = self.free() {
            return Ok(pair);
        }
        let mut why = ENOBUFS;
        for (size, made) in self.sizes.iter().zip(&mut self.made) {
            let count = PORTION / (2 * size.bytes);
            let count = count.min(size.most.saturating_sub(*made));
            if count == 0 {
                continue;
            }
            let atu = nic.atu();
            let pools = |access| atu.buffers(self.vpid, count, size.bytes, access);
            let both = pools(Access::READ).and_then(|send| Ok((send, pools(Access::WRITE)?)));
            // Where there is no room for large ones there may be for others.
            match both.and_then(|both| Ok(self.portions.push(both, GFP_KERNEL)?)) {
                Ok(()) => {
                    *made += count;
                    return self.free().ok_or(ENOBUFS);
                }
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    /// Nobody uses any: they are to be given back if that is so for `after`.
    pub(super) fn rest(&mut self, now: Time, after: u64) -> Rest {
        if self.portions.is_empty() {
            return Rest::Nothing;
        }
        let since = *self.idle.get_or_insert(now);
        if now.since(since) < after {
            return Rest::Until(since.after(after));
        }
        self.idle = None;
        self.made = [0; 2];
        // What is in use by somebody who copies stays until he has done so.
        Rest::Over(core::mem::replace(&mut self.portions, KVec::new()))
    }

    /// Connections that may have rings without more memory, and all that have or may.
    pub(super) fn count(&self) -> (usize, usize) {
        let count = self.portions.iter().map(|(send, _)| send.count());
        count.fold((0, 0), |(free, all), (n, left)| (free + left, all + n))
    }

    /// Nothing reaches the rings any more when this returns. May sleep.
    pub(super) fn revoke(self, nic: &Nic) -> Result {
        nic.atu().revoke_all(|| {
            let pairs = self.portions.iter();
            pairs.flat_map(|(send, receive)| [send.region(), receive.region()])
        })
    }
}
