// SPDX-License-Identifier: GPL-2.0-only

//! Quarantine: memory that the NIC may still access after its owner has finished.
//!
//! A command with bus addresses outlives the port that posted it. The command cannot be cancelled,
//! and its answer is written to the address in the command. When the answer arrives, the NIC checks
//! only whether the VPID is enabled (G15). Closing a port therefore stops late answers only until
//! its VPID is opened again. Memory that an unanswered command or a peer can name must not be freed
//! with the port.
//!
//! The code that closes such a port puts the memory into a [`Batch`] and holds it. The memory is
//! freed after its quarantine time, or when the NIC loses bus mastering at unbinding. In the second
//! case [`history`] records the VPIDs, because mappings do not survive the driver. The driver's
//! next binding keeps these VPIDs disabled until the time has passed.
//!
//! Memory is never freed early. Instead, a newly opened VPID stays disabled while the quarantine
//! holds more memory than the NIC's limit. The total is therefore bounded by the limit plus the
//! outstanding memory of open ports.
//!
//! Processes that may use bus addresses allocate memory for them by `/dev/extoll/pmap`. That memory
//! also enters the quarantine, but is counted separately. While it exceeds the limit, these
//! processes cannot allocate more.
//!
//! Locks: the spinlock `list`, which disables interrupts, and the mutex `enabling`. Functions
//! document their contexts.

mod history;
mod list;

pub use history::HistoryOwner;

use crate::{context::Context, dma::DmaWords, stats::Reason, tx, vpid::Table};
use kernel::{
    fmt, impl_has_delayed_work, new_delayed_work, new_mutex,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed},
        new_spinlock_irq, Arc, Mutex, SpinLockIrq,
    },
    time::msecs_to_jiffies,
    workqueue::{DelayedWork, WorkItem},
};
#[cfg(doc)]
use kernel_ext::mem::Streaming;
use kernel_ext::{
    mem::BoundDevice,
    net::{RxMapping, TxMapping},
    work,
};
use list::{after, free, left_ms, Entry, List, Source};
use wire::{
    ids::{Unit, Vpid},
    regs::rma,
};

/// Maximum pause between two runs of the work item, in milliseconds.
const MAX_PAUSE_MS: i64 = 60_000;
/// Bytes that are charged for each object in addition to its size.
const OVERHEAD: u64 = 4096;

/// Memory mapped for the NIC. It may outlive the module that made it, so only code of this module
/// frees it. Merely dropping a mapping never unmaps it ([`Streaming`]).
pub enum Quarantined {
    /// Frame that the NIC may still read.
    Tx(TxMapping),
    /// Buffer that the NIC may still write.
    Rx(RxMapping),
    /// Coherent memory that the NIC may still access.
    Words(Arc<DmaWords>),
}

impl Quarantined {
    /// Returns the first bus address and the length in bytes.
    fn range(&self) -> (u64, u64) {
        match self {
            Self::Tx(m) => (m.addr(), m.len().into()),
            Self::Rx(m) => (m.addr(), m.len().into()),
            Self::Words(m) => (m.address().0, m.words() as u64 * 8),
        }
    }

    /// Unmaps and frees the memory. The NIC must not access it any more. Objects of an earlier
    /// binding stay mapped.
    fn free(self, dev: &BoundDevice) {
        match self {
            Self::Tx(m) => drop(m.unmap(dev)),
            Self::Rx(m) => drop(m.discard(dev)),
            Self::Words(m) => drop(m),
        }
    }
}

/// Preallocated entry for a port's memory, so that adding memory to the quarantine cannot fail.
pub struct Batch {
    quarantine: Arc<Quarantine>,
    entry: KBox<Entry>,
}

impl Batch {
    /// Adds an object. If the batch is full, the object is leaked and counted (reason 37).
    pub fn push(&mut self, held: Quarantined) {
        let bytes = held.range().1 + OVERHEAD;
        match self.entry.items.push_within_capacity(held) {
            Ok(()) => self.entry.bytes += bytes,
            Err(refused) => {
                core::mem::forget(refused);
                self.quarantine.ctx.error(Reason::Leaked, bytes);
            }
        }
    }

    /// Adds the objects to the quarantine. They are freed after `keep_ms` milliseconds, or when the
    /// NIC is unbound. May sleep.
    pub fn hold(self, keep_ms: u32) {
        let Self {
            quarantine,
            mut entry,
        } = self;
        if entry.items.is_empty() && matches!(entry.source, Source::Kernel(_)) {
            return;
        }
        entry.bytes += entry.overhead();
        entry.until = after(keep_ms);
        let (left, ended) = {
            let mut list = quarantine.list.lock();
            let left = list.push(entry);
            quarantine.poll_soon(&list);
            (left, list.ended)
        };
        if ended {
            // The NIC has been unbound, so its DMA has ended until the next binding.
            quarantine.remember(&left);
        }
        free(&quarantine.ctx, left);
    }
}

/// Quarantine of a NIC.
#[pin_data]
pub struct Quarantine {
    ctx: Arc<Context>,
    /// VPIDs of the RMA unit, whose enabling may have to wait.
    table: Arc<Table>,
    /// Limit of held bytes. While it is exceeded, new ports are not enabled.
    limit: u64,
    #[pin]
    list: SpinLockIrq<List>,
    /// Held while a waiting port is enabled or closed.
    #[pin]
    enabling: Mutex<()>,
    /// Bitmap of the VPIDs of open ports that are not enabled yet.
    disabled: [Atomic<u64>; 4],
    #[pin]
    work: DelayedWork<Quarantine>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Quarantine> for Quarantine { self.work }
}

impl WorkItem for Quarantine {
    type Pointer = Arc<Quarantine>;

    fn run(this: Arc<Quarantine>) {
        if let Some(again) = this.poll() {
            this.schedule(again);
        }
    }
}

impl Quarantine {
    /// Makes an empty quarantine. `table` holds the VPIDs of the RMA unit. New ports wait while
    /// more than `limit_kib` KiB of memory are held. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(ctx: Arc<Context>, table: Arc<Table>, limit_kib: u32) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                table,
                limit: u64::from(limit_kib) << 10,
                list <- new_spinlock_irq!(List::EMPTY, "extoll_quarantine"),
                enabling <- new_mutex!((), "extoll_quarantine_enabling"),
                disabled: [const { Atomic::new(0) }; 4],
                work <- new_delayed_work!("extoll_quarantine"),
            }),
            GFP_KERNEL,
        )
    }

    /// Allocates a batch for `capacity` objects of the RMA port `vpid`. May sleep.
    ///
    /// ```
    /// use extoll_core::{dma::DmaWords, nic::Nic, quarantine::Quarantined, rma::Requester};
    /// use kernel::{prelude::*, sync::Arc};
    ///
    /// /// Closes a port by its last handle while a command that names `memory` is unanswered.
    /// fn give_up(nic: &Nic, port: Requester, memory: Arc<DmaWords>) -> Result {
    ///     let mut batch = nic.quarantine().batch(port.vpid(), 1)?;
    ///     port.close();
    ///     batch.push(Quarantined::Words(memory));
    ///     batch.hold(60_000);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn batch(self: &Arc<Self>, vpid: Vpid, capacity: usize) -> Result<Batch> {
        self.batch_of(Source::Kernel(vpid), capacity)
    }

    /// Allocates a batch for `capacity` objects of processes. If `vpid` is given, the batch also
    /// records that late answers may come for that VPID. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn batch_of_process(
        self: &Arc<Self>,
        vpid: Option<Vpid>,
        capacity: usize,
    ) -> Result<Batch> {
        self.batch_of(Source::Process(vpid), capacity)
    }

    fn batch_of(self: &Arc<Self>, source: Source, capacity: usize) -> Result<Batch> {
        Ok(Batch {
            quarantine: self.clone(),
            entry: Entry::new(source, capacity)?,
        })
    }

    /// Returns whether processes may allocate more memory for bus addresses. Any context.
    ///
    /// # Errors
    ///
    /// `EAGAIN` while the held memory of processes exceeds the limit.
    pub(crate) fn admit_process(&self) -> Result {
        if self.list.lock().process.bytes > self.limit {
            Err(EAGAIN)
        } else {
            Ok(())
        }
    }

    fn bit(&self, vpid: Vpid) -> Option<(&Atomic<u64>, u64)> {
        let word = self.disabled.get(vpid.index() / 64)?;
        Some((word, 1 << (vpid.index() % 64)))
    }

    /// Returns whether an open port is not enabled yet. Any context.
    #[inline]
    pub(crate) fn is_disabled(&self, vpid: Vpid) -> bool {
        self.bit(vpid)
            .is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
    }

    fn set_disabled(&self, vpid: Vpid, on: bool) {
        let Some((word, bit)) = self.bit(vpid) else {
            return;
        };
        let mut old = word.load(Relaxed);
        loop {
            let new = if on { old | bit } else { old & !bit };
            match word.cmpxchg(old, new, Full) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Returns whether a bus address belongs to held memory. A write to such an address is a late
    /// answer. Any context.
    pub fn covers(&self, address: u64) -> bool {
        let list = self.list.lock();
        let found = list.iter().any(|entry| {
            entry.items.iter().any(|held| {
                let (start, len) = held.range();
                address.wrapping_sub(start) < len
            })
        });
        found
    }

    /// Returns a bitmap of the VPIDs for which late answers to commands of an earlier binding may
    /// come. Processes do not get these VPIDs. May sleep.
    pub(crate) fn late_vpids(&self) -> [u64; 4] {
        let mut late = [0; 4];
        if let Some(history) = history::get() {
            history.each(self.ctx.id(), |vpid| {
                if let Some(word) = late.get_mut(vpid.index() / 64) {
                    *word |= 1 << (vpid.index() % 64);
                }
            });
        }
        late
    }

    /// Returns the minimum time in milliseconds for which a newly opened VPID must stay disabled;
    /// `None` if it can be enabled now. May sleep.
    pub(crate) fn wait_ms(&self, vpid: Vpid) -> Option<i64> {
        let history = history::get().and_then(|history| history.left_ms(self.ctx.id(), vpid));
        let full = {
            let list = self.list.lock();
            let first = list.first_ms(|e| matches!(e.source, Source::Kernel(_)));
            first.filter(|_| list.kernel.bytes > self.limit)
        };
        history.max(full).map(|ms| ms.max(1))
    }

    /// Marks a port as open, with its VPID disabled for at least `ms` milliseconds. May sleep.
    pub(crate) fn defer_enable(self: &Arc<Self>, vpid: Vpid, ms: i64) {
        self.set_disabled(vpid, true);
        let ms = u64::try_from(ms).unwrap_or(0);
        self.ctx
            .error(Reason::Postponed, u64::from(vpid.get()) | ms << 32);
        self.poll_soon(&self.list.lock());
    }

    /// Prevents that a port is enabled that is about to be closed. May sleep.
    pub(crate) fn forget(&self, vpid: Vpid) {
        let _enabling = self.enabling.lock();
        self.set_disabled(vpid, false);
    }

    /// Records that late answers may come for `vpid` for another `ms` milliseconds, even after the
    /// NIC is unbound. May sleep.
    pub(crate) fn note_late_answers(&self, vpid: Vpid, ms: u32) {
        if let Some(history) = history::get() {
            history.note(self.ctx.id(), vpid, after(ms));
        }
    }

    fn schedule(self: &Arc<Self>, delay_ms: u32) {
        let _ = work::enqueue_waiting(self.clone(), msecs_to_jiffies(delay_ms));
    }

    /// Queues the work item unless the quarantine has ended. The caller has locked the list.
    fn poll_soon(self: &Arc<Self>, list: &List) {
        if !list.ended {
            let _ = work::cancel_delayed(self);
            self.schedule(1);
        }
    }

    /// Frees expired memory and enables ports that waited. Returns the delay in milliseconds before
    /// the next run.
    fn poll(&self) -> Option<u32> {
        let expired = self.list.lock().take(|e| left_ms(e.until) <= 0);
        free(&self.ctx, expired);
        let mut again = self.list.lock().first_ms(|_| true);
        for vpid in Vpid::all().filter(|v| self.is_disabled(*v)) {
            match self.wait_ms(vpid) {
                Some(ms) => again = Some(again.map_or(ms, |a| a.min(ms))),
                None => self.enable(vpid),
            }
        }
        again.map(|ms| ms.clamp(1, MAX_PAUSE_MS) as u32 + 1)
    }

    fn enable(&self, vpid: Vpid) {
        {
            let _enabling = self.enabling.lock();
            if !self.is_disabled(vpid) {
                return;
            }
            let Some(hw) = self.ctx.alive_access() else {
                return;
            };
            hw.rf.write(rma::vpid_table(vpid), rma::VPID_ENABLED);
            tx::reset_state(&hw, Unit::Rma, vpid);
            drop(hw);
            self.set_disabled(vpid, false);
        }
        dev_info!(
            self.ctx.device(),
            "RMA VPID {} is enabled now\n",
            vpid.get()
        );
        self.table.writable(vpid);
    }

    /// Frees all memory after the NIC has lost bus mastering, and records for the next binding
    /// which VPIDs may get late answers. May sleep.
    pub(crate) fn end(self: &Arc<Self>) {
        let all = {
            let mut list = self.list.lock();
            list.ended = true;
            list.take(|_| true)
        };
        work::cancel_delayed_sync(self);
        self.remember(&all);
        free(&self.ctx, all);
    }

    /// Records for the next binding which VPIDs may get late answers. May sleep.
    fn remember(&self, list: &Option<KBox<Entry>>) {
        let Some(history) = history::get() else {
            return;
        };
        for entry in core::iter::successors(list.as_deref(), |e| e.next.as_deref()) {
            if let Some(vpid) = entry.source.vpid() {
                history.note(self.ctx.id(), vpid, entry.until);
            }
        }
    }

    /// Writes the statistics to debugfs.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kernel, process) = {
            let list = self.list.lock();
            (list.kernel, list.process)
        };
        writeln!(f, "objects {}", kernel.objects)?;
        writeln!(f, "bytes {}", kernel.bytes)?;
        writeln!(f, "limit_bytes {}", self.limit)?;
        writeln!(f, "total_objects {}", kernel.total)?;
        writeln!(f, "process_objects {}", process.objects)?;
        writeln!(f, "process_bytes {}", process.bytes)?;
        writeln!(f, "process_total_objects {}", process.total)?;
        for vpid in Vpid::all().filter(|v| self.is_disabled(*v)) {
            let ms = self.wait_ms(vpid).unwrap_or(0);
            writeln!(f, "disabled_vpid_{} {ms}", vpid.get())?;
        }
        Ok(())
    }
}
