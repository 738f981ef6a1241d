// SPDX-License-Identifier: GPL-2.0-only

//! Memory that the NIC may still reach although its user is done with it.
//!
//! A command with bus addresses is not bound to the port that posted it: nothing takes it back, its
//! answer is written to the address that it carries, and all that the NIC compares is whether the
//! VPID is enabled then (G15). So closing a port stops late answers only until its VPID is opened
//! again, and memory that an unanswered command names, or that a peer was told of, must not be
//! freed with the port.
//!
//! Who closes such a port puts the memory into a [`Batch`] and has that held. It is freed when the
//! time has passed, or when the NIC has lost bus mastering at unbind. What was held then is noted
//! by [`Past`]: mappings don't survive the driver, so the next one keeps the VPIDs concerned
//! disabled until the time has passed.
//!
//! Memory is never freed early. Instead, while more is held than the limit of the NIC, the VPID of
//! a port that is opened stays disabled and nothing can be posted: so no more than the limit and
//! what is outstanding at open ports is held.

use crate::{dma::DmaWords, nic::Nic, stats::Reason, tx};
use core::mem::size_of;
use kernel::{
    fmt, new_mutex, new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed},
        Arc, Mutex, SpinLockIrq,
    },
    time::{Delta, Instant, Monotonic},
};
#[cfg(doc)]
use kernel_ext::mem::Streaming;
use kernel_ext::{
    global::Global,
    mem::BoundDevice,
    net::{RxMapping, TxMapping},
    work,
};
use wire::{
    ids::{Unit, Vpid},
    regs::rma,
};

/// What is known of earlier bindings of devices.
static PAST: Global<Past> = Global::new();
/// VPIDs of earlier bindings that are noted at once; of more the ones that end first are forgotten.
const PAST_ENTRIES: usize = 64;
/// Longest pause between looks in ms.
const LOOK_MS: i64 = 60_000;
/// What an object is charged for besides its bytes.
const OVERHEAD: u64 = 4096;

/// Memory mapped for the NIC. Its destructors are this module's code: it may outlive the module
/// that made it.
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

    /// Gives the memory up, which the NIC must not access any more. What is of an earlier binding
    /// stays as it is.
    fn free(self, dev: &BoundDevice) {
        match self {
            Self::Tx(m) => drop(m.unmap(dev)),
            Self::Rx(m) => drop(m.discard(dev)),
            Self::Words(m) => drop(m),
        }
    }
}

struct Entry {
    vpid: Vpid,
    until: Instant<Monotonic>,
    items: KVVec<Held>,
    bytes: u64,
    next: Option<KBox<Entry>>,
}

/// Room for what a port may leave, made in time: handing memory over can't fail for lack of memory.
pub struct Batch {
    nic: Arc<Nic>,
    entry: KBox<Entry>,
}

impl Batch {
    /// Room for `capacity` objects of the RMA port `vpid`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(nic: &Arc<Nic>, vpid: Vpid, capacity: usize) -> Result<Self> {
        let entry = Entry {
            vpid,
            until: Instant::now(),
            items: KVVec::with_capacity(capacity, GFP_KERNEL)?,
            bytes: 0,
            next: None,
        };
        Ok(Self {
            nic: nic.clone(),
            entry: KBox::new(entry, GFP_KERNEL)?,
        })
    }

    /// Adds an object. One for which there is no room is never freed, which is counted (reason 37).
    pub fn push(&mut self, held: Held) {
        let bytes = held.range().1 + OVERHEAD;
        match self.entry.items.push_within_capacity(held) {
            Ok(()) => self.entry.bytes += bytes,
            Err(refused) => {
                core::mem::forget(refused);
                self.nic.error(Reason::Leaked, bytes);
            }
        }
    }

    /// Hands the objects over: they are freed after `keep_ms`, or when the NIC is unbound. May
    /// sleep.
    pub fn hold(self, keep_ms: u32) {
        let Self { nic, mut entry } = self;
        if entry.items.is_empty() {
            return;
        }
        entry.bytes += (entry.items.capacity() * size_of::<Held>()) as u64;
        entry.until = after(keep_ms);
        let left = nic.quarantine.list.lock().push(entry);
        // Only after the end: there is no DMA any more, until the next binding.
        remember(&nic, &left);
        free(&nic, left);
        look_soon(&nic);
    }
}

fn after(ms: u32) -> Instant<Monotonic> {
    Instant::<Monotonic>::now() + Delta::from_millis(ms.into())
}

fn left_ms(until: Instant<Monotonic>) -> i64 {
    (until - Instant::now()).as_millis()
}

struct List {
    head: Option<KBox<Entry>>,
    bytes: u64,
    objects: u64,
    /// Objects ever held.
    total: u64,
    /// The NIC lost bus mastering.
    ended: bool,
}

impl List {
    fn push(&mut self, mut entry: KBox<Entry>) -> Option<KBox<Entry>> {
        if self.ended {
            return Some(entry);
        }
        self.bytes += entry.bytes;
        self.objects += entry.items.len() as u64;
        self.total += entry.items.len() as u64;
        entry.next = self.head.take();
        self.head = Some(entry);
        None
    }

    /// Takes out what `f` says.
    fn take(&mut self, f: impl Fn(&Entry) -> bool) -> Option<KBox<Entry>> {
        let (mut kept, mut taken) = (None, None);
        let mut rest = self.head.take();
        while let Some(mut entry) = rest {
            rest = entry.next.take();
            let to = if f(&entry) {
                self.bytes = self.bytes.saturating_sub(entry.bytes);
                self.objects = self.objects.saturating_sub(entry.items.len() as u64);
                &mut taken
            } else {
                &mut kept
            };
            entry.next = to.take();
            *to = Some(entry);
        }
        self.head = kept;
        taken
    }

    fn iter(&self) -> impl Iterator<Item = &Entry> {
        core::iter::successors(self.head.as_deref(), |e| e.next.as_deref())
    }
}

/// Frees a list without recursion. Before the device is unbound; may sleep.
fn free(nic: &Nic, mut list: Option<KBox<Entry>>) {
    while let Some(mut entry) = list {
        list = entry.next.take();
        // One lock for all of an entry. Without a device its mappings stay.
        let _ = nic.with_bound(|dev| {
            for held in core::mem::replace(&mut entry.items, KVVec::new()) {
                held.free(dev);
            }
        });
    }
}

/// What a NIC holds.
#[pin_data]
pub(crate) struct Quarantine {
    #[pin]
    list: SpinLockIrq<List>,
    /// Held while a port that waits is enabled or closed.
    #[pin]
    doors: Mutex<()>,
    /// VPIDs of open ports that are not enabled yet, as bits.
    waiting: [Atomic<u64>; 4],
}

impl Quarantine {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_spinlock_irq!(
                List { head: None, bytes: 0, objects: 0, total: 0, ended: false },
                "extoll_quarantine"
            ),
            doors <- new_mutex!((), "extoll_quarantine_doors"),
            waiting: [const { Atomic::new(0) }; 4],
        })
    }

    fn bit(&self, vpid: Vpid) -> Option<(&Atomic<u64>, u64)> {
        let word = self.waiting.get(vpid.index() / 64)?;
        Some((word, 1 << (vpid.index() % 64)))
    }

    /// Whether the open port is not enabled yet. Any context.
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

    /// Whether the address belongs to something that is held. Any context.
    pub(crate) fn covers(&self, address: u64) -> bool {
        let list = self.list.lock();
        let found = list.iter().any(|entry| {
            entry.items.iter().any(|held| {
                let (start, len) = held.range();
                address.wrapping_sub(start) < len
            })
        });
        found
    }
}

fn limit(nic: &Nic) -> u64 {
    u64::from(nic.params.quarantine_kib) << 10
}

/// VPIDs, as bits, that late answers to commands of an earlier binding may come for: processes
/// don't get them. May sleep.
pub(crate) fn owed(nic: &Nic) -> [u64; 4] {
    let mut owed = [0; 4];
    if let Some(past) = PAST.get() {
        past.each(nic.id(), |vpid| {
            if let Some(word) = owed.get_mut(vpid.index() / 64) {
                *word |= 1 << (vpid.index() % 64);
            }
        });
    }
    owed
}

/// Milliseconds for which the VPID of a port that is opened has to stay disabled, at least; `None`
/// to enable it now.
pub(crate) fn wait_ms(nic: &Nic, vpid: Vpid) -> Option<i64> {
    let past = PAST.get().and_then(|past| past.left_ms(nic.id(), vpid));
    let full = {
        let list = nic.quarantine.list.lock();
        let first = list.iter().map(|e| left_ms(e.until)).min();
        first.filter(|_| list.bytes > limit(nic))
    };
    past.max(full).map(|ms| ms.max(1))
}

/// The port of `vpid` is open but for its VPID, which is enabled after `ms` or later. May sleep.
pub(crate) fn postpone(nic: &Arc<Nic>, vpid: Vpid, ms: i64) {
    nic.quarantine.set_waiting(vpid, true);
    let ms = u64::try_from(ms).unwrap_or(0);
    nic.error(Reason::Postponed, u64::from(vpid.get()) | ms << 32);
    look_soon(nic);
}

/// The port is about to be closed, and is not enabled after this. May sleep.
pub(crate) fn forget(nic: &Nic, vpid: Vpid) {
    let _doors = nic.quarantine.doors.lock();
    nic.quarantine.set_waiting(vpid, false);
}

/// Notes that late answers may come for `vpid` for another `ms` although the NIC is unbound. May
/// sleep.
pub(crate) fn outlives(nic: &Nic, vpid: Vpid, ms: u32) {
    if let Some(past) = PAST.get() {
        past.note(nic.id(), vpid, after(ms));
    }
}

fn look_soon(nic: &Arc<Nic>) {
    let _ = work::cancel_delayed::<Nic, 6>(nic);
    nic.schedule_quarantine(1);
}

/// Frees what was held long enough, and enables ports that waited. Returns in how many ms to look
/// again.
pub(crate) fn look(nic: &Arc<Nic>) -> Option<u32> {
    let q = &nic.quarantine;
    let expired = q.list.lock().take(|e| left_ms(e.until) <= 0);
    free(nic, expired);
    let mut again = q.list.lock().iter().map(|e| left_ms(e.until)).min();
    for vpid in Vpid::all().filter(|v| q.is_waiting(*v)) {
        match wait_ms(nic, vpid) {
            Some(ms) => again = Some(again.map_or(ms, |a| a.min(ms))),
            None => enable(nic, vpid),
        }
    }
    again.map(|ms| ms.clamp(1, LOOK_MS) as u32 + 1)
}

fn enable(nic: &Arc<Nic>, vpid: Vpid) {
    {
        let _doors = nic.quarantine.doors.lock();
        if !nic.quarantine.is_waiting(vpid) {
            return;
        }
        let Some(hw) = nic.alive_access() else {
            return;
        };
        hw.rf.write(rma::vpid_table(vpid), rma::VPID_ENABLED);
        tx::reset_state(&hw, Unit::Rma, vpid);
        drop(hw);
        nic.quarantine.set_waiting(vpid, false);
    }
    dev_info!(nic.device(), "RMA VPID {} is enabled now\n", vpid.get());
    nic.rma.writable(vpid);
}

/// The NIC has lost bus mastering: frees everything, and notes for the next binding what may still
/// be answered. The work item doesn't run any more. May sleep.
pub(crate) fn end(nic: &Nic) {
    let all = {
        let mut list = nic.quarantine.list.lock();
        list.ended = true;
        list.take(|_| true)
    };
    remember(nic, &all);
    free(nic, all);
}

/// Notes for the next binding what may still be answered. May sleep.
fn remember(nic: &Nic, list: &Option<KBox<Entry>>) {
    let Some(past) = PAST.get() else { return };
    for entry in core::iter::successors(list.as_deref(), |e| e.next.as_deref()) {
        past.note(nic.id(), entry.vpid, entry.until);
    }
}

/// debugfs file.
pub(crate) fn show(nic: &Nic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (objects, bytes, total) = {
        let list = nic.quarantine.list.lock();
        (list.objects, list.bytes, list.total)
    };
    writeln!(f, "objects {objects}")?;
    writeln!(f, "bytes {bytes}")?;
    writeln!(f, "limit_bytes {}", limit(nic))?;
    writeln!(f, "total_objects {total}")?;
    for vpid in Vpid::all().filter(|v| nic.quarantine.is_waiting(*v)) {
        let ms = wait_ms(nic, vpid).unwrap_or(0);
        writeln!(f, "disabled_vpid_{} {ms}", vpid.get())?;
    }
    Ok(())
}

/// VPIDs of devices that were unbound while commands with bus addresses may have been unanswered.
#[pin_data]
struct Past {
    #[pin]
    list: Mutex<KVec<(u32, Vpid, Instant<Monotonic>)>>,
}

impl Past {
    fn note(&self, id: u32, vpid: Vpid, until: Instant<Monotonic>) {
        let mut list = self.list.lock();
        list.retain(|(_, _, until)| left_ms(*until) > 0);
        if let Some(e) = list.iter_mut().find(|e| (e.0, e.1) == (id, vpid)) {
            if until - e.2 > Delta::ZERO {
                e.2 = until;
            }
            return;
        }
        if list.len() >= PAST_ENTRIES {
            let first = list.iter().enumerate().min_by_key(|(_, e)| left_ms(e.2));
            if let Some(i) = first.map(|(i, _)| i) {
                let _ = list.remove(i);
            }
        }
        // Has the capacity.
        let _ = list.push_within_capacity((id, vpid, until));
    }

    fn left_ms(&self, id: u32, vpid: Vpid) -> Option<i64> {
        let list = self.list.lock();
        let until = list.iter().find(|e| (e.0, e.1) == (id, vpid))?.2;
        Some(left_ms(until)).filter(|ms| *ms > 0)
    }

    /// Calls `f` with the VPIDs of a NIC whose time is not over.
    fn each(&self, id: u32, mut f: impl FnMut(Vpid)) {
        let list = self.list.lock();
        let waits = list.iter().filter(|e| e.0 == id && left_ms(e.2) > 0);
        waits.for_each(|e| f(e.1));
    }

    fn longest_ms(&self) -> i64 {
        let list = self.list.lock();
        list.iter().map(|e| left_ms(e.2)).max().unwrap_or(0)
    }
}

/// What the module remembers of devices that were unbound; made before the first is bound and
/// dropped after the last.
pub struct Memory(());

impl Memory {
    /// Makes it. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let list = KVec::with_capacity(PAST_ENTRIES, GFP_KERNEL)?;
        let past = pin_init!(Past { list <- new_mutex!(list, "extoll_quarantine_past") });
        PAST.set(Some(Arc::pin_init(past, GFP_KERNEL)?));
        Ok(Self(()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let ms = PAST.get().map_or(0, |past| past.longest_ms());
        if ms > 0 {
            pr_warn!("late answers may come for {ms} ms: do not load the module again before\n");
        }
        PAST.set(None);
    }
}

#[kunit_tests(extoll_quarantine)]
mod tests {
    use super::*;

    fn entry(vpid: u16, bytes: u64, ms: u32) -> Result<KBox<Entry>> {
        let entry = Entry {
            vpid: Vpid::new(vpid).ok_or(EINVAL)?,
            until: after(ms),
            items: KVVec::new(),
            bytes,
            next: None,
        };
        Ok(KBox::new(entry, GFP_KERNEL)?)
    }

    #[test]
    fn what_is_over_is_taken_out() -> Result {
        let mut list = List {
            head: None,
            bytes: 0,
            objects: 0,
            total: 0,
            ended: false,
        };
        for (vpid, ms) in [(1, 0), (2, 100_000), (3, 0), (4, 200_000)] {
            assert!(list.push(entry(vpid, 10, ms)?).is_none());
        }
        let over = list.take(|e| left_ms(e.until) <= 0);
        let taken = core::iter::successors(over.as_deref(), |e| e.next.as_deref());
        assert_eq!(taken.map(|e| e.vpid.get()).sum::<u16>(), 1 + 3);
        assert_eq!(list.iter().map(|e| e.vpid.get()).sum::<u16>(), 2 + 4);
        assert_eq!(list.bytes, 20);
        drop((over, list.take(|_| true)));
        assert_eq!(list.bytes, 0);
        // After the end nothing is kept.
        list.ended = true;
        assert!(list.push(entry(1, 10, 1000)?).is_some());
        Ok(())
    }

    #[test]
    fn the_past_is_bounded_and_keeps_the_later_end() -> Result {
        let list = KVec::with_capacity(PAST_ENTRIES, GFP_KERNEL)?;
        let past = pin_init!(Past { list <- new_mutex!(list, "extoll_quarantine_test") });
        let past = KBox::pin_init(past, GFP_KERNEL)?;
        let vpid = Vpid::new(254).ok_or(EINVAL)?;
        past.note(7, vpid, after(100_000));
        past.note(7, vpid, after(50_000));
        assert!(past.left_ms(7, vpid).is_some_and(|ms| ms > 60_000));
        assert!(past.left_ms(8, vpid).is_none());
        past.note(7, Vpid::RRA, after(0));
        for (id, count) in [(7, 1), (8, 0)] {
            let mut seen = 0;
            past.each(id, |_| seen += 1);
            assert_eq!(seen, count);
        }
        for id in 100..100 + PAST_ENTRIES as u32 {
            past.note(id, vpid, after(20_000));
        }
        // The longest stays.
        assert!(past.left_ms(7, vpid).is_some());
        assert!(past.longest_ms() > 60_000);
        assert_eq!(past.list.lock().len(), PAST_ENTRIES);
        Ok(())
    }
}
