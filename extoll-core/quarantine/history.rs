// SPDX-License-Identifier: GPL-2.0-only

//! Record of VPIDs of earlier bindings. Mappings do not survive the driver, but late answers may
//! still come. Under a mutex; may sleep.

use super::list::left_ms;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
    time::{Delta, Instant, Monotonic},
};
use kernel_ext::global::Global;
use wire::ids::Vpid;

/// The record of this module. There is only one.
static HISTORY: Global<History> = Global::new();
/// Maximum number of recorded VPIDs. If more are added, the one that expires first is dropped.
const ENTRIES: usize = 2 * Vpid::COUNT as usize;

/// Returns the record, while the module is loaded.
pub(super) fn get() -> Option<Arc<History>> {
    HISTORY.get()
}

/// VPIDs of devices that were unbound while commands with bus addresses might be unanswered.
#[pin_data]
pub(super) struct History {
    #[pin]
    list: Mutex<KVec<(u32, Vpid, Instant<Monotonic>)>>,
}

impl History {
    /// Records that late answers may come for a VPID of a NIC until `until`.
    pub(super) fn note(&self, id: u32, vpid: Vpid, until: Instant<Monotonic>) {
        let mut list = self.list.lock();
        list.retain(|(_, _, until)| left_ms(*until) > 0);
        if let Some(e) = list.iter_mut().find(|e| (e.0, e.1) == (id, vpid)) {
            if until - e.2 > Delta::ZERO {
                e.2 = until;
            }
            return;
        }
        if list.len() >= ENTRIES {
            let first = list.iter().enumerate().min_by_key(|(_, e)| left_ms(e.2));
            if let Some(i) = first.map(|(i, _)| i) {
                let _ = list.remove(i);
            }
        }
        // Cannot fail: the list has capacity for another entry.
        let _ = list.push_within_capacity((id, vpid, until));
    }

    /// Returns the time in milliseconds for which late answers may still come; `None` if there is
    /// none.
    pub(super) fn left_ms(&self, id: u32, vpid: Vpid) -> Option<i64> {
        let list = self.list.lock();
        let until = list.iter().find(|e| (e.0, e.1) == (id, vpid))?.2;
        Some(left_ms(until)).filter(|ms| *ms > 0)
    }

    /// Calls `f` with each VPID of a NIC for which late answers may still come.
    pub(super) fn each(&self, id: u32, mut f: impl FnMut(Vpid)) {
        let list = self.list.lock();
        let waits = list.iter().filter(|e| e.0 == id && left_ms(e.2) > 0);
        waits.for_each(|e| f(e.1));
    }

    fn longest_ms(&self) -> i64 {
        let list = self.list.lock();
        list.iter().map(|e| left_ms(e.2)).max().unwrap_or(0)
    }
}

/// Owner of the record. Made before the first device is bound, and dropped after the last one was
/// unbound.
pub struct HistoryOwner(());

impl HistoryOwner {
    /// Makes the record. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let list = KVec::with_capacity(ENTRIES, GFP_KERNEL)?;
        let history = pin_init!(History { list <- new_mutex!(list, "extoll_quarantine_past") });
        HISTORY.set(Some(Arc::pin_init(history, GFP_KERNEL)?));
        Ok(Self(()))
    }
}

impl Drop for HistoryOwner {
    fn drop(&mut self) {
        let ms = HISTORY.get().map_or(0, |history| history.longest_ms());
        if ms > 0 {
            pr_warn!(
                "late answers of a NIC may still write to memory: do not load the module again \
                 within {ms} ms\n"
            );
        }
        HISTORY.set(None);
    }
}

#[kunit_tests(extoll_quarantine_past)]
mod tests {
    use super::*;
    use crate::quarantine::list::after;

    #[test]
    fn the_past_is_bounded_and_keeps_the_later_end() -> Result {
        let list = KVec::with_capacity(ENTRIES, GFP_KERNEL)?;
        let history = pin_init!(History { list <- new_mutex!(list, "extoll_quarantine_test") });
        let history = KBox::pin_init(history, GFP_KERNEL)?;
        let vpid = Vpid::new(254).ok_or(EINVAL)?;
        history.note(7, vpid, after(100_000));
        history.note(7, vpid, after(50_000));
        assert!(history.left_ms(7, vpid).is_some_and(|ms| ms > 60_000));
        assert!(history.left_ms(8, vpid).is_none());
        history.note(7, Vpid::RRA, after(0));
        for (id, count) in [(7, 1), (8, 0)] {
            let mut seen = 0;
            history.each(id, |_| seen += 1);
            assert_eq!(seen, count);
        }
        for id in 100..100 + ENTRIES as u32 {
            history.note(id, vpid, after(20_000));
        }
        // The entry with the latest expiry stays in the list.
        assert!(history.left_ms(7, vpid).is_some());
        assert!(history.longest_ms() > 60_000);
        assert_eq!(history.list.lock().len(), ENTRIES);
        Ok(())
    }
}
