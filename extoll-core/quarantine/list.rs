// SPDX-License-Identifier: GPL-2.0-only

//! List of held objects with their expiry times. The caller holds the lock of the list.

use super::Quarantined;
use crate::context::Context;
use core::mem::size_of;
use kernel::{
    prelude::*,
    time::{Delta, Instant, Monotonic},
};
use wire::ids::Vpid;

/// Sender of the commands whose late answers may come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// The kernel port with this VPID.
    Kernel(Vpid),
    /// A process with this VPID; `None` if the VPID is unknown.
    Process(Option<Vpid>),
}

impl Source {
    /// Returns the VPID, if it is known.
    pub(super) fn vpid(self) -> Option<Vpid> {
        match self {
            Source::Kernel(vpid) => Some(vpid),
            Source::Process(vpid) => vpid,
        }
    }
}

/// Batch of objects that are freed together.
pub(super) struct Entry {
    pub(super) source: Source,
    pub(super) until: Instant<Monotonic>,
    pub(super) items: KVVec<Quarantined>,
    pub(super) bytes: u64,
    pub(super) next: Option<KBox<Entry>>,
}

impl Entry {
    /// Allocates an entry with capacity for `capacity` objects. May sleep.
    pub(super) fn new(source: Source, capacity: usize) -> Result<KBox<Self>> {
        let entry = Self {
            source,
            until: Instant::now(),
            items: KVVec::with_capacity(capacity, GFP_KERNEL)?,
            bytes: 0,
            next: None,
        };
        Ok(KBox::new(entry, GFP_KERNEL)?)
    }

    /// Returns the size of the entry's own memory in bytes.
    pub(super) fn overhead(&self) -> u64 {
        (self.items.capacity() * size_of::<Quarantined>()) as u64
    }
}

pub(super) fn after(ms: u32) -> Instant<Monotonic> {
    Instant::<Monotonic>::now() + Delta::from_millis(ms.into())
}

pub(super) fn left_ms(until: Instant<Monotonic>) -> i64 {
    (until - Instant::now()).as_millis()
}

/// Sums over the held objects.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub(super) objects: u64,
    pub(super) bytes: u64,
    /// Number of objects that were held since the NIC was bound.
    pub(super) total: u64,
}

/// Entries that have not expired.
pub(super) struct List {
    head: Option<KBox<Entry>>,
    /// Sums over the objects of kernel ports and of processes.
    pub(super) kernel: Sums,
    pub(super) process: Sums,
    /// Set after the NIC has lost bus mastering.
    pub(super) ended: bool,
}

impl List {
    pub(super) const EMPTY: Self = Self {
        head: None,
        kernel: Sums {
            objects: 0,
            bytes: 0,
            total: 0,
        },
        process: Sums {
            objects: 0,
            bytes: 0,
            total: 0,
        },
        ended: false,
    };

    fn sums_of(&mut self, source: Source) -> &mut Sums {
        match source {
            Source::Kernel(_) => &mut self.kernel,
            Source::Process(_) => &mut self.process,
        }
    }

    /// Adds an entry. Returns an entry that the caller must free after releasing the lock. After
    /// the end, the entry itself is returned. An entry without objects replaces an earlier one of
    /// the same source, which is returned.
    pub(super) fn push(&mut self, mut entry: KBox<Entry>) -> Option<KBox<Entry>> {
        if self.ended {
            return Some(entry);
        }
        let mut old = None;
        if entry.items.is_empty() {
            let source = entry.source;
            old = self.take(|e| e.items.is_empty() && e.source == source);
        }
        let objects = entry.items.len() as u64;
        let sums = self.sums_of(entry.source);
        sums.bytes += entry.bytes;
        sums.objects += objects;
        sums.total += objects;
        entry.next = self.head.take();
        self.head = Some(entry);
        old
    }

    /// Removes and returns the entries that `f` selects.
    pub(super) fn take(&mut self, f: impl Fn(&Entry) -> bool) -> Option<KBox<Entry>> {
        let (mut kept, mut taken) = (None, None);
        let mut rest = self.head.take();
        while let Some(mut entry) = rest {
            rest = entry.next.take();
            let to = if f(&entry) {
                let objects = entry.items.len() as u64;
                let sums = self.sums_of(entry.source);
                sums.bytes = sums.bytes.saturating_sub(entry.bytes);
                sums.objects = sums.objects.saturating_sub(objects);
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

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        core::iter::successors(self.head.as_deref(), |e| e.next.as_deref())
    }

    /// Returns the time in milliseconds until the first entry that `f` selects expires.
    pub(super) fn first_ms(&self, f: impl Fn(&Entry) -> bool) -> Option<i64> {
        let some = self.iter().filter(|e| f(e));
        some.map(|e| left_ms(e.until)).min()
    }
}

/// Frees the entries of a list, without recursion. Must be called before the device is unbound. May
/// sleep.
pub(super) fn free(ctx: &Context, mut list: Option<KBox<Entry>>) {
    while let Some(mut entry) = list {
        list = entry.next.take();
        // The device is locked once per entry. If it is not bound, the mappings stay.
        let _ = ctx.with_bound(|dev| {
            for held in core::mem::replace(&mut entry.items, KVVec::new()) {
                held.free(dev);
            }
        });
    }
}

#[kunit_tests(extoll_quarantine)]
mod tests {
    use super::*;

    fn entry(source: Source, bytes: u64, ms: u32) -> Result<KBox<Entry>> {
        let mut entry = Entry::new(source, 0)?;
        entry.bytes = bytes;
        entry.until = after(ms);
        Ok(entry)
    }

    #[test]
    fn what_is_over_is_taken_out() -> Result {
        let vpid = |n| Vpid::new(n).ok_or(EINVAL);
        let kernel = |n| vpid(n).map(Source::Kernel);
        let number = |e: &Entry| e.source.vpid().map_or(0, Vpid::get);
        let mut list = List::EMPTY;
        for (n, ms) in [(1, 0), (2, 100_000), (3, 0), (4, 200_000)] {
            assert!(list.push(entry(kernel(n)?, 10, ms)?).is_none());
        }
        let process = Source::Process(Some(vpid(5)?));
        assert!(list.push(entry(process, 7, 50_000)?).is_none());
        let over = list.take(|e| left_ms(e.until) <= 0);
        let taken = core::iter::successors(over.as_deref(), |e| e.next.as_deref());
        assert_eq!(taken.map(number).sum::<u16>(), 1 + 3);
        assert_eq!(list.iter().map(number).sum::<u16>(), 2 + 4 + 5);
        assert_eq!((list.kernel.bytes, list.process.bytes), (20, 7));
        // Entries of processes do not delay ports of the kernel.
        let ours = |e: &Entry| matches!(e.source, Source::Kernel(_));
        assert!(list.first_ms(ours).is_some_and(|ms| ms > 60_000));
        assert!(list.first_ms(|_| true).is_some_and(|ms| ms <= 50_000));
        drop((over, list.take(|_| true)));
        assert_eq!((list.kernel.bytes, list.process.bytes), (0, 0));
        // A source has only one entry without objects.
        for (ms, others) in [(1000, false), (2000, true)] {
            assert_eq!(list.push(entry(process, 0, ms)?).is_some(), others);
        }
        assert_eq!(list.iter().count(), 1);
        assert!(list.first_ms(|_| true).is_some_and(|ms| ms > 1000));
        // After the end, every entry is returned.
        list.ended = true;
        assert!(list.push(entry(process, 10, 1000)?).is_some());
        Ok(())
    }
}
