// SPDX-License-Identifier: GPL-2.0-only

//! Memory that the NIC may still reach although its user is done with it.
//!
//! A command with bus addresses is not bound to the port that posted it: nothing takes it back, its answer is written to
//! the address that it carries, and all that the NIC compares is whether the VPID is enabled then (G15). So closing a
//! port stops late answers only until its VPID is opened again, and memory that an unanswered command names, or that a
//! peer was told of, must not be freed with the port.
//!
//! Who closes such a port puts the memory into a [`Batch`] and has that held. It is freed when the time has
//! passed, or when the NIC has lost bus mastering at unbind. What was held then is noted by [`past`]: mappings
//! don't survive the driver, so the next one keeps the VPIDs concerned disabled until the time has passed.
//!
//! Memory is never freed early. Instead, while more is held than the limit of the NIC, the VPID of a port that
//! is opened stays disabled and nothing can be posted: so no more than the limit and what is outstanding at
//! open ports is held.
//!
//! Processes with the right to bus addresses get memory for them (`/dev/extoll/pmap`), which ends here, too. It
//! has an account of its own: while more than the limit is held they get no more.

mod list;
mod past;

pub use past::PastOwner;

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

/// Longest pause between looks in ms.
const LOOK_MS: i64 = 60_000;
/// What an object is charged for besides its bytes.
const OVERHEAD: u64 = 4096;

/// Memory mapped for the NIC. Its destructors are this module's code: it may outlive the module that made it.
///
/// What is merely dropped stays mapped for ever ([`Streaming`]).
pub enum Held {
    /// A frame that the NIC may read.
    Tx(TxMapping),
    /// A buffer that the NIC may write.
    Rx(RxMapping),
    /// Coherent memory.
    Words(Arc<DmaWords>),
}

impl Held {
    /// First bus address and length.
    fn range(&self) -> (u64, u64) {
        match self {
            Self::Tx(m) => (m.addr(), m.len().into()),
            Self::Rx(m) => (m.addr(), m.len().into()),
            Self::Words(m) => (m.address().0, m.words() as u64 * 8),
        }
    }

    /// Gives the memory up, which the NIC must not access any more. What is of an earlier binding stays as it is.
    fn free(self, dev: &BoundDevice) {
        match self {
            Self::Tx(m) => drop(m.unmap(dev)),
            Self::Rx(m) => drop(m.discard(dev)),
            Self::Words(m) => drop(m),
        }
    }
}

/// Room for what a port may leave, made in time: handing memory over can't fail for lack of memory.
pub struct Batch {
    quarantine: Arc<Quarantine>,
    entry: KBox<Entry>,
}

impl Batch {
    /// Adds an object. One for which there is no room is never freed, which is counted (reason 37).
    pub fn push(&mut self, held: Held) {
        let bytes = held.range().1 + OVERHEAD;
        match self.entry.items.push_within_capacity(held) {
            Ok(()) => self.entry.bytes += bytes,
            Err(refused) => {
                core::mem::forget(refused);
                self.quarantine.ctx.error(Reason::Leaked, bytes);
            }
        }
    }

    /// Hands the objects over: they are freed after `keep_ms`, or when the NIC is unbound. May sleep.
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
            quarantine.look_soon(&list);
            (left, list.ended)
        };
        if ended {
            // There is no DMA any more, until the next binding.
            quarantine.remember(&left);
        }
        free(&quarantine.ctx, left);
    }
}

/// What a NIC holds.
#[pin_data]
pub struct Quarantine {
    ctx: Arc<Context>,
    /// The VPIDs whose ports wait.
    table: Arc<Table>,
    /// Bytes above which ports wait.
    limit: u64,
    #[pin]
    list: SpinLockIrq<List>,
    /// Held while a port that waits is enabled or closed.
    #[pin]
    enabling: Mutex<()>,
    /// VPIDs of open ports that are postponed: not enabled yet. As bits.
    waiting: [Atomic<u64>; 4],
    #[pin]
    work: DelayedWork<Quarantine>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Quarantine> for Quarantine { self.work }
}

impl WorkItem for Quarantine {
    type Pointer = Arc<Quarantine>;

    fn run(this: Arc<Quarantine>) {
        if let Some(again) = this.look() {
            this.schedule(again);
        }
    }
}

impl Quarantine {
    /// Nothing is held; `table` has the VPIDs of the RMA unit, `limit_kib` is the memory above which its
    /// ports wait. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(ctx: Arc<Context>, table: Arc<Table>, limit_kib: u32) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                table,
                limit: u64::from(limit_kib) << 10,
                list <- new_spinlock_irq!(List::EMPTY, "extoll_quarantine"),
                enabling <- new_mutex!((), "extoll_quarantine_enabling"),
                waiting: [const { Atomic::new(0) }; 4],
                work <- new_delayed_work!("extoll_quarantine"),
            }),
            GFP_KERNEL,
        )
    }

    /// Room for `capacity` objects of the RMA port `vpid`. May sleep.
    ///
    /// ```
    /// use extoll_core::{dma::DmaWords, nic::Nic, quarantine::Held, rma::Requester};
    /// use kernel::{prelude::*, sync::Arc};
    ///
    /// /// Closes a port by its last handle. Its command, which names this memory, was not
    /// /// answered.
    /// fn give_up(nic: &Nic, port: Requester, memory: Arc<DmaWords>) -> Result {
    ///     let mut batch = nic.quarantine().batch(port.vpid(), 1)?;
    ///     port.close();
    ///     batch.push(Held::Words(memory));
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

    /// Room for `capacity` objects of processes, and for the knowledge that late answers to them may come for
    /// `vpid`, if that is known. May sleep.
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

    /// Whether processes may have more memory for bus addresses: not while too much is held. Any context.
    ///
    /// # Errors
    ///
    /// `EAGAIN`.
    pub(crate) fn admit_process(&self) -> Result {
        if self.list.lock().process.bytes > self.limit {
            Err(EAGAIN)
        } else {
            Ok(())
        }
    }

    fn bit(&self, vpid: Vpid) -> Option<(&Atomic<u64>, u64)> {
        let word = self.waiting.get(vpid.index() / 64)?;
        Some((word, 1 << (vpid.index() % 64)))
    }

    /// Whether the open port is postponed: not enabled yet. Any context.
    #[inline]
    pub(crate) fn is_waiting(&self, vpid: Vpid) -> bool {
        self.bit(vpid)
            .is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
    }

    fn set_waiting(&self, vpid: Vpid, on: bool) {
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

    /// Whether a bus address belongs to something that is held: what came for it is a late answer. Any
    /// context.
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

    /// VPIDs, as bits, that late answers to commands of an earlier binding may come for: processes don't
    /// get them. May sleep.
    pub(crate) fn owed(&self) -> [u64; 4] {
        let mut owed = [0; 4];
        if let Some(past) = past::get() {
            past.each(self.ctx.id(), |vpid| {
                if let Some(word) = owed.get_mut(vpid.index() / 64) {
                    *word |= 1 << (vpid.index() % 64);
                }
            });
        }
        owed
    }

    /// Milliseconds for which the VPID of a port that is opened has to stay disabled, at least; `None` to
    /// enable it now. May sleep.
    pub(crate) fn wait_ms(&self, vpid: Vpid) -> Option<i64> {
        let past = past::get().and_then(|past| past.left_ms(self.ctx.id(), vpid));
        let full = {
            let list = self.list.lock();
            let first = list.first_ms(|e| matches!(e.source, Source::Kernel(_)));
            first.filter(|_| list.kernel.bytes > self.limit)
        };
        past.max(full).map(|ms| ms.max(1))
    }

    /// The port of `vpid` is open but for its VPID, which is enabled after `ms` or later. May sleep.
    pub(crate) fn postpone(self: &Arc<Self>, vpid: Vpid, ms: i64) {
        self.set_waiting(vpid, true);
        let ms = u64::try_from(ms).unwrap_or(0);
        self.ctx
            .error(Reason::Postponed, u64::from(vpid.get()) | ms << 32);
        self.look_soon(&self.list.lock());
    }

    /// The port is about to be closed, and is not enabled after this. May sleep.
    pub(crate) fn forget(&self, vpid: Vpid) {
        let _enabling = self.enabling.lock();
        self.set_waiting(vpid, false);
    }

    /// Notes that late answers may come for `vpid` for another `ms` although the NIC is unbound. May sleep.
    pub(crate) fn outlives(&self, vpid: Vpid, ms: u32) {
        if let Some(past) = past::get() {
            past.note(self.ctx.id(), vpid, after(ms));
        }
    }

    fn schedule(self: &Arc<Self>, delay_ms: u32) {
        let _ = work::enqueue_waiting(self.clone(), msecs_to_jiffies(delay_ms));
    }

    /// Not after the end, which needs the list locked, too.
    fn look_soon(self: &Arc<Self>, list: &List) {
        if !list.ended {
            let _ = work::cancel_delayed(self);
            self.schedule(1);
        }
    }

    /// Frees what was held long enough, and enables ports that waited. Returns in how many ms to look again.
    fn look(&self) -> Option<u32> {
        let expired = self.list.lock().take(|e| left_ms(e.until) <= 0);
        free(&self.ctx, expired);
        let mut again = self.list.lock().first_ms(|_| true);
        for vpid in Vpid::all().filter(|v| self.is_waiting(*v)) {
            match self.wait_ms(vpid) {
                Some(ms) => again = Some(again.map_or(ms, |a| a.min(ms))),
                None => self.enable(vpid),
            }
        }
        again.map(|ms| ms.clamp(1, LOOK_MS) as u32 + 1)
    }

    fn enable(&self, vpid: Vpid) {
        {
            let _enabling = self.enabling.lock();
            if !self.is_waiting(vpid) {
                return;
            }
            let Some(hw) = self.ctx.alive_access() else {
                return;
            };
            hw.rf.write(rma::vpid_table(vpid), rma::VPID_ENABLED);
            tx::reset_state(&hw, Unit::Rma, vpid);
            drop(hw);
            self.set_waiting(vpid, false);
        }
        dev_info!(
            self.ctx.device(),
            "RMA VPID {} is enabled now\n",
            vpid.get()
        );
        self.table.writable(vpid);
    }

    /// The NIC has lost bus mastering: frees everything, and notes for the next binding what may still be
    /// answered. May sleep.
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

    /// Notes for the next binding what may still be answered. May sleep.
    fn remember(&self, list: &Option<KBox<Entry>>) {
        let Some(past) = past::get() else { return };
        for entry in core::iter::successors(list.as_deref(), |e| e.next.as_deref()) {
            if let Some(vpid) = entry.source.vpid() {
                past.note(self.ctx.id(), vpid, entry.until);
            }
        }
    }

    /// debugfs file.
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
        for vpid in Vpid::all().filter(|v| self.is_waiting(*v)) {
            let ms = self.wait_ms(vpid).unwrap_or(0);
            writeln!(f, "disabled_vpid_{} {ms}", vpid.get())?;
        }
        Ok(())
    }
}
