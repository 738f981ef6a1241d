// SPDX-License-Identifier: GPL-2.0-only

//! Memory of processes that the NIC reads ("source") or writes ("sink") for a connection. The data
//! are not copied to or from the rings.
//!
//! The memory is pinned and registered for one transfer, and counts as locked memory of the
//! process. Only whole pages are registered, because a registration exposes whole pages to the NIC,
//! and to nodes that may use the port. Functions take the connection's lock. The comment of a
//! function says if it may sleep.

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

/// Maximum number of readers' registrations of a connection that are not released.
const SINKS: u32 = 4;

/// Pinned and registered memory of a process.
struct Memory {
    region: Region,
    pages: Arc<PageList>,
}

impl Nic {
    /// Pins and registers `bytes` bytes from address `start` of the current process, both multiples
    /// of the page size. Counts failures. May sleep.
    fn pin(&self, vpid: Vpid, start: usize, bytes: usize, access: Access) -> Result<Memory> {
        let atu = {
            let rings = self.rings.lock();
            let (handle, _) = Option::as_ref(&*rings).ok_or(ENODEV)?;
            handle.atu().clone()
        };
        let pages = PageList::pin(start, bytes, access.write)
            .inspect_err(|_| self.count(Count::NotPinned))?;
        let pages = Arc::new(pages, GFP_KERNEL)?;
        // Only whole pages of the process that requested the transfer are exposed.
        let exposed = WholePages::EXPOSED;
        let region = atu
            .register_leased(vpid, pages.clone(), access, exposed)
            .inspect_err(|_| self.count(Count::NotRegistered))?;
        self.count(Count::Registered);
        Ok(Memory { region, pages })
    }
}

/// Memory that the peer reads.
pub(crate) struct Source(Memory);

impl Source {
    /// Returns the network address of the memory.
    pub(crate) fn nla(&self) -> Nla {
        self.0.region.nla()
    }

    /// Ends all access to the memory. If the NIC does not confirm that within about a second, the
    /// memory stays pinned and reserved until the NIC does. May sleep.
    pub(crate) fn revoke(self) {
        let Memory { region, pages } = self.0;
        // The error is ignored: the connection does not use data any more that peers may still
        // read.
        let _ = region.revoke();
        drop(pages);
    }
}

/// Source of a call that has returned.
pub(super) struct Lending {
    id: SourceId,
    source: Source,
    /// Completion to signal when the peer has finished reading; `None` if the process is being
    /// killed.
    completion: Option<Arc<Zerocopy>>,
}

impl Lending {
    /// Returns whether the peer has finished reading, or the connection has ended.
    pub(super) fn is_finished(&self, stream: &Stream) -> bool {
        let finished = |id| stream.sending().source(id).is_none_or(|s| s.finished);
        stream.end().is_some() || finished(self.id)
    }
}

// The connection has its own work item, because revoking memory waits for the NIC. The NIC's shared
// work items must not wait.
impl WorkItem<1> for Conn {
    type Pointer = Arc<Conn>;

    fn run(this: Arc<Conn>) {
        while let Some(lending) = this.with(|inner, _| inner.pop_finished()) {
            // Revoked before the completion tells the program that it may reuse the memory.
            lending.source.revoke();
            drop(lending.completion);
        }
    }
}

impl Inner {
    /// Removes and returns a source that the peer has finished reading.
    fn pop_finished(&mut self) -> Option<Lending> {
        let stream = self.stream.as_mut()?;
        let at = self.lendings.iter().position(|l| l.is_finished(stream))?;
        let lending = self.lendings.remove(at).ok()?;
        stream.disown_source(lending.id);
        Some(lending)
    }
}

/// Memory of a reader that GETs write to.
pub(crate) struct Sink {
    region: Region,
    pages: Option<Arc<PageList>>,
    conn: Arc<Conn>,
    /// Number of GETs that may still write to the memory.
    in_flight: Atomic<u32>,
}

impl Sink {
    /// Returns the registration.
    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the pages.
    pub(super) fn pages(&self) -> Option<&PageList> {
        self.pages.as_deref()
    }

    /// Counts a GET that was posted.
    pub(super) fn posted(&self) {
        self.in_flight.add(1, Relaxed);
    }

    /// Counts a GET that will not write any more.
    pub(super) fn finished(&self) {
        self.in_flight.fetch_sub(1, Full);
    }

    /// Ends all access to the memory. Returns false if the NIC does not confirm that within about a
    /// second; the memory then stays pinned and reserved until the NIC does. May sleep.
    #[must_use]
    pub(crate) fn end(&self) -> bool {
        if self.in_flight.load(Relaxed) == 0 {
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
        // The drop may run in a context that must not sleep, so the pages are released later.
        if let Some(pages) = self.pages.take() {
            self.region.drop_later(pages);
        }
    }
}

impl Conn {
    /// Returns the VPID of registrations; `None` after the NIC was lost.
    fn vpid(&self) -> Option<Vpid> {
        self.peek(|inner| inner.link.as_ref().map(|link| link.rma))
    }

    /// Returns the time in ms after which a silent peer counts as down, unless the program set
    /// `TCP_USER_TIMEOUT`.
    pub(crate) fn dead_ms(&self) -> u64 {
        self.nic.limits.give_up / 1_000_000
    }

    /// Counts memory that could not be lent.
    pub(crate) fn count_not_lent(&self) {
        self.nic.count(Count::NotLent);
    }

    /// Counts bytes sent without copying.
    pub(crate) fn count_lent(&self, n: usize) {
        self.lent.fetch_add(n as u64, Relaxed);
        self.nic.count_by(Count::Lent, n as u64);
    }

    /// Counts bytes received without copying.
    pub(crate) fn count_sunk(&self, n: usize) {
        self.sunk.fetch_add(n as u64, Relaxed);
        self.nic.count_by(Count::Sunk, n as u64);
    }

    /// Lends `bytes` bytes of memory for a call that returns before the peer has received them.
    ///
    /// # Errors
    ///
    /// Returns the source if it was not announced; the caller must then copy the data.
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
            // The call cannot fail, because capacity was reserved.
            let _ = inner.lendings.push_within_capacity(lending);
            Ok(())
        })
    }

    /// Leaves a killed process's source to the connection until the peer has confirmed its
    /// withdrawal.
    ///
    /// # Errors
    ///
    /// Returns the source if the connection has ended. Aborts the connection and returns the source
    /// if there is no memory for the entry.
    pub(crate) fn defer_release(
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
            // The call cannot fail, because capacity was reserved.
            let _ = inner.lendings.push_within_capacity(lending);
            Ok(())
        })
    }

    /// Queues the work item that releases lent memory.
    pub(super) fn schedule_release(self: &Arc<Self>) {
        // Returns an error if the work item is already queued; that run handles all sources.
        let _ = work::enqueue_waiting::<_, 1>(self.clone(), 0);
    }

    /// Registers memory that the peer reads: whole pages of the current process. May sleep.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory cannot be registered; the caller must then copy the data.
    pub(crate) fn source(&self, start: usize, bytes: usize) -> Result<Source> {
        let vpid = self.vpid().ok_or(ENODEV)?;
        self.nic.pin(vpid, start, bytes, Access::READ).map(Source)
    }

    /// Registers memory that GETs write to: whole pages of the current process. May sleep.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory cannot be registered; the caller must then copy the data.
    pub(crate) fn sink(self: &Arc<Self>, start: usize, bytes: usize) -> Result<Arc<Sink>> {
        let vpid = self.vpid().ok_or(ENODEV)?;
        // Bounds the memory that late GETs keep pinned.
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
            in_flight: Atomic::new(0),
        };
        // If the allocation fails, the drop of `sink` corrects the count.
        Ok(Arc::new(sink, GFP_KERNEL)?)
    }
}

/// Returns the number of bytes before the first whole page of a range of memory, and the number of
/// bytes in whole pages.
pub(crate) fn whole_pages((start, len): (usize, usize)) -> (usize, usize) {
    let before = start.wrapping_neg() % PAGE;
    let pages = len.saturating_sub(before) / PAGE;
    (before, pages * PAGE)
}
