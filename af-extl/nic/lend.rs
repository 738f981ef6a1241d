// SPDX-License-Identifier: GPL-2.0-only

//! Memory of processes that the NIC reads or writes for a connection, past its rings.
//!
//! It is pinned and registered for one transfer, and counts as the process's locked memory. Whole
//! pages, as the NIC, and nodes that may use the port, reach all of them.

use super::{
    conn::{Conn, Inner},
    Count, Nic,
};
use extoll_core::atu::{Access, Region, WholePages};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc,
    },
    workqueue::WorkItem,
};
use kernel_ext::{
    mem::{PageList, PAGE},
    net::socket::Zerocopy,
    work,
};
use protocol::ds::{SourceId, Stream};
use wire::ids::{Nla, Vpid};

/// Memory of readers of a connection that is not given back yet.
const SINKS: u32 = 4;

/// Pinned and registered memory of the current process.
struct Memory {
    region: Region,
    pages: Arc<PageList>,
}

impl Nic {
    /// Pins and registers `bytes` bytes from `start`, both multiples of the page size, of the current
    /// process. Counts why it can't. May sleep.
    fn pin(&self, vpid: Vpid, start: usize, bytes: usize, access: Access) -> Result<Memory> {
        let atu = {
            let rings = self.rings.lock();
            let (handle, _) = Option::as_ref(&*rings).ok_or(ENODEV)?;
            handle.atu().clone()
        };
        let pages = PageList::pin(start, bytes, access.write)
            .inspect_err(|_| self.count(Count::NotPinned))?;
        let pages = Arc::new(pages, GFP_KERNEL)?;
        // Whole pages of the process that has asked for the transfer.
        let exposed = WholePages::EXPOSED;
        let region = atu
            .register_lent(vpid, pages.clone(), access, exposed)
            .inspect_err(|_| self.count(Count::NotRegistered))?;
        self.count(Count::Registered);
        Ok(Memory { region, pages })
    }
}

/// Memory that a peer reads from.
pub(crate) struct Source(Memory);

impl Source {
    /// Where it is.
    pub(crate) fn nla(&self) -> Nla {
        self.0.region.nla()
    }

    /// Nothing reads it any more when this returns; if the NIC does not confirm that within about a
    /// second, it stays pinned and reserved until the NIC does. May sleep.
    pub(crate) fn revoke(self) {
        let Memory { region, pages } = self.0;
        // What peers still read then is no part of any stream.
        let _ = region.revoke();
        drop(pages);
    }
}

/// Memory that a peer reads from for a call that has returned.
pub(super) struct Lending {
    id: SourceId,
    source: Source,
    /// Told when nobody reads it any more, unless the program is killed.
    completion: Option<Arc<Zerocopy>>,
}

impl Lending {
    /// Whether the peer has it, or the connection is over.
    pub(super) fn is_over(&self, stream: &Stream) -> bool {
        let over = |id| stream.sending().source(id).is_none_or(|s| s.over);
        stream.end().is_some() || over(self.id)
    }
}

// It waits for the NIC, which the work items that all connections share do not.
impl WorkItem<1> for Conn {
    type Pointer = Arc<Conn>;

    fn run(this: Arc<Conn>) {
        while let Some(lending) = this.with(|inner, _| inner.take_over()) {
            // Before the program hears that it may use its memory for something else.
            lending.source.revoke();
            drop(lending.completion);
        }
    }
}

impl Inner {
    /// Something that was lent, and is over.
    fn take_over(&mut self) -> Option<Lending> {
        let stream = self.stream.as_mut()?;
        let at = self.lendings.iter().position(|l| l.is_over(stream))?;
        let lending = self.lendings.remove(at).ok()?;
        stream.let_source_go(lending.id);
        Some(lending)
    }
}

/// Memory of a reader that GETs write to.
pub(crate) struct Sink {
    region: Region,
    pages: Option<Arc<PageList>>,
    conn: Arc<Conn>,
    /// GETs that may write to it.
    flying: Atomic<u32>,
}

impl Sink {
    /// The registered memory.
    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Its pages.
    pub(super) fn pages(&self) -> Option<&PageList> {
        self.pages.as_deref()
    }

    /// A GET was posted, and may write to it; or won't any more.
    pub(super) fn posted(&self) {
        self.flying.add(1, Relaxed);
    }

    /// See [`Sink::posted`].
    pub(super) fn over(&self) {
        self.flying.fetch_sub(1, Full);
    }

    /// Whether nothing writes to it any more. If the NIC does not confirm that within about a second,
    /// it stays pinned and reserved until the NIC does. May sleep.
    #[must_use]
    pub(crate) fn end(&self) -> bool {
        if self.flying.load(Relaxed) == 0 {
            return true;
        }
        self.conn.nic.count(Count::Torn);
        let only = || core::iter::once(&self.region);
        self.region.atu().revoke_all(only).is_ok()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.conn.sinks.fetch_sub(1, Full);
        // Here nobody may sleep.
        if let Some(pages) = self.pages.take() {
            self.region.keep(pages);
        }
    }
}

impl Conn {
    /// VPID of memory that peers reach, until the NIC goes.
    fn vpid(&self) -> Option<Vpid> {
        self.peek(|inner| inner.link.as_ref().map(|link| link.rma))
    }

    /// So many milliseconds a peer that says nothing is waited for, unless the program has said
    /// something else.
    pub(crate) fn dead_ms(&self) -> u64 {
        self.nic.limits.give_up / 1_000_000
    }

    /// Something was not lent at once.
    pub(crate) fn count_not_lent(&self) {
        self.nic.count(Count::NotLent);
    }

    /// Bytes were sent from lent memory.
    pub(crate) fn count_lent(&self, n: usize) {
        self.lent.fetch_add(n as u64, Relaxed);
        self.nic.count_by(Count::Lent, n as u64);
    }

    /// Bytes were fetched to a reader's memory.
    pub(crate) fn count_sunk(&self, n: usize) {
        self.sunk.fetch_add(n as u64, Relaxed);
        self.nic.count_by(Count::Sunk, n as u64);
    }

    /// Lends `bytes` bytes for a call that returns before the peer has them.
    ///
    /// # Errors
    ///
    /// The memory, of which nobody was told: it has to be copied.
    pub(crate) fn lend_later(
        self: &Arc<Self>,
        source: Source,
        bytes: usize,
        completion: &Arc<Zerocopy>,
    ) -> Result<(), Source> {
        self.with(|inner, _| {
            if inner.lendings.reserve(1, GFP_ATOMIC).is_err() {
                return Err(source);
            }
            let commit = |stream: &mut Stream| stream.commit_source(bytes as u32, source.nla());
            let Some(id) = inner.direct().and_then(commit) else {
                return Err(source);
            };
            let lending = Lending {
                id,
                source,
                completion: Some(completion.clone()),
            };
            // There is room.
            let _ = inner.lendings.push_within_capacity(lending);
            Ok(())
        })
    }

    /// Leaves memory to the connection of which the peer has still to say how much it has: of a process
    /// that is killed.
    ///
    /// # Errors
    ///
    /// The memory, if the connection is over. It is, too, if there is no memory to note this.
    pub(crate) fn settle_later(
        self: &Arc<Self>,
        id: SourceId,
        source: Source,
    ) -> Result<(), Source> {
        self.with(|inner, now| {
            let noted = inner.lendings.reserve(1, GFP_ATOMIC).is_ok();
            match inner.direct() {
                Some(stream) if stream.end().is_none() && noted => {}
                Some(stream) => {
                    stream.abort(now);
                    return Err(source);
                }
                None => return Err(source),
            }
            let lending = Lending {
                id,
                source,
                completion: None,
            };
            // There is room.
            let _ = inner.lendings.push_within_capacity(lending);
            Ok(())
        })
    }

    /// Has what is over given back, by a work item of its own. Any context.
    pub(super) fn settle_soon(self: &Arc<Self>) {
        // Queued already is fine: it looks for all.
        let _ = work::enqueue_waiting::<_, 1>(self.clone(), 0);
    }

    /// Registers memory that the peer may read: whole pages of the current process. May sleep.
    ///
    /// # Errors
    ///
    /// It has to be copied.
    pub(crate) fn source(&self, start: usize, bytes: usize) -> Result<Source> {
        let vpid = self.vpid().ok_or(ENODEV)?;
        self.nic.pin(vpid, start, bytes, Access::READ).map(Source)
    }

    /// Registers memory that is fetched to: whole pages of the current process. May sleep.
    ///
    /// # Errors
    ///
    /// It has to be copied.
    pub(crate) fn sink(self: &Arc<Self>, start: usize, bytes: usize) -> Result<Arc<Sink>> {
        let vpid = self.vpid().ok_or(ENODEV)?;
        // What late GETs keep is bounded.
        if self.sinks.fetch_add(1, Full) >= SINKS {
            self.sinks.fetch_sub(1, Full);
            self.nic.count(Count::Crowded);
            return Err(EBUSY);
        }
        let made = self.nic.pin(vpid, start, bytes, Access::WRITE);
        let Memory { region, pages } = made.inspect_err(|_| {
            self.sinks.fetch_sub(1, Full);
        })?;
        let sink = Sink {
            region,
            pages: Some(pages),
            conn: self.clone(),
            flying: Atomic::new(0),
        };
        // If there is no memory it is dropped, which counts.
        Ok(Arc::new(sink, GFP_KERNEL)?)
    }
}

/// Of the memory that comes next in a message, whole pages: bytes before the first one, and how many
/// bytes these have.
pub(crate) fn whole_pages((start, len): (usize, usize)) -> (usize, usize) {
    let before = start.wrapping_neg() % PAGE;
    let pages = len.saturating_sub(before) / PAGE;
    (before, pages * PAGE)
}
