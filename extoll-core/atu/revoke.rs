// SPDX-License-Identifier: GPL-2.0-only

//! Ending of regions: in batches with one wait for the NIC, asynchronously by a work item, and
//! after quarantine.
//!
//! The spinlock `revoke_lists`, which disables interrupts, protects the lists. Adding a translation
//! to a list needs no memory and works in any context. The work items `reaper` and `retry` may
//! sleep.

use super::{translation::Translation, Atu, Region};
use kernel::{
    list::{List, ListArc},
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies,
};
use kernel_ext::work;
use protocol::nic::translation::{Next, Why};

/// Pause between two requests to the NIC about regions in quarantine, in milliseconds.
const RETRY_MS: u32 = 2000;

/// Callback for the end of a region ([`Region::revoke_async`]). A work item may run and drop the
/// client, so a module with its own client drops a [`kernel_ext::work::FlushOnDrop`] last.
pub trait RevokeClient: Send + Sync {
    /// Reports that the memory was freed. `ETIMEDOUT`: the NIC did not answer in time, and memory
    /// and NLAs stay reserved until the NIC answers. Called once, in any context, possibly before
    /// [`Region::revoke_async`] returns. Must not sleep.
    fn revoked(&self, result: Result);
}

/// Translations that the unit's work items end.
pub(super) struct RevokeLists {
    /// Translations that were revoked or that the reaper must revoke.
    revoked: List<Translation>,
    /// Translations in quarantine, about which the NIC has not answered.
    quarantined: List<Translation>,
}

impl RevokeLists {
    pub(super) fn new() -> Self {
        Self {
            revoked: List::new(),
            quarantined: List::new(),
        }
    }
}

impl Atu {
    /// Maximum number of pages whose entries are zeroed in the context that drops a region: 128
    /// MiB, which takes a fraction of a millisecond. A work item zeroes the entries of larger
    /// regions.
    pub(super) const MAX_INLINE_PAGES: u64 = 1 << 15;

    /// Ends regions with one wait for the NIC. Afterwards the regions can only be dropped. May
    /// sleep, up to about a second.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the NIC may still access the memory of some regions. That memory stays reserved
    /// until the NIC has answered.
    ///
    /// ```
    /// use extoll_core::{atu::Region, nic::Nic};
    /// use kernel::prelude::*;
    ///
    /// fn end(nic: &Nic, regions: KVec<Region>) -> Result {
    ///     nic.atu().revoke_all(|| regions.iter())
    /// }
    /// ```
    pub fn revoke_all<'a, I>(&self, regions: impl Fn() -> I) -> Result
    where
        I: Iterator<Item = &'a Region>,
    {
        let mut waits = false;
        for region in regions() {
            let (translation, generation) = region.translation();
            translation.begin(generation);
            waits |= matches!(translation.next(generation), Next::Ask(_));
        }
        let answer = waits.then(|| self.commands.wait_and_drain(&self.ctx));
        let mut result = Ok(());
        for region in regions() {
            let (translation, generation) = region.translation();
            // The answer is valid only for regions of this NIC.
            let answer = answer.filter(|_| core::ptr::eq(&*translation.atu, self));
            if !translation.conclude(generation, answer) {
                result = Err(ETIMEDOUT);
            }
        }
        result
    }

    /// Queues a translation for the reaper. Any context.
    pub(super) fn leave_to_worker(self: &Arc<Self>, translation: &Arc<Translation>) {
        // If the translation is already in a list, the work item that removes it checks its state
        // again.
        if let Ok(item) = ListArc::try_from_arc(translation.clone()) {
            self.revoke_lists.lock().revoked.push_back(item);
        }
        // The work item may already be queued.
        let _ = work::enqueue::<_, 0>(self.clone());
    }

    /// Queues a translation in quarantine for the next poll. Any context.
    pub(super) fn keep_in_quarantine(self: &Arc<Self>, translation: &Arc<Translation>) {
        // If the translation is already in a list, the work item that removes it checks its state
        // again.
        if let Ok(item) = ListArc::try_from_arc(translation.clone()) {
            self.revoke_lists.lock().quarantined.push_back(item);
            self.retry_later();
        }
    }

    fn retry_later(self: &Arc<Self>) {
        let delay = msecs_to_jiffies(RETRY_MS);
        let _ = work::enqueue_delayed::<_, 1>(self.clone(), delay);
    }

    /// Returns a translation that has not ended to the list for its state.
    fn requeue(self: &Arc<Self>, item: ListArc<Translation>) {
        let is_kept = |t: &Translation| matches!(t.next(t.generation()), Next::CheckTicket(_));
        if is_kept(&item) {
            self.revoke_lists.lock().quarantined.push_back(item);
            self.retry_later();
            return;
        }
        // After this line, another CPU can add the translation to a list. A CPU that failed to add
        // it before has recorded the reason in the translation's state.
        let translation = item.into_arc();
        if is_kept(&translation) {
            self.keep_in_quarantine(&translation);
        } else if let Some((_, Next::Revoke | Next::Zeroing | Next::Ask(_))) =
            translation.deferred()
        {
            self.leave_to_worker(&translation);
        }
    }

    /// Ends all translations in the reaper's list with one wait for the NIC. May sleep.
    pub(super) fn reap(self: &Arc<Self>) {
        let mut batch = List::new();
        batch.push_all_back(&mut self.revoke_lists.lock().revoked);
        if batch.is_empty() {
            return;
        }
        let mut all = List::new();
        while let Some(item) = batch.pop_front() {
            // The deferred end may be complete by now, and the entries may belong to a new region.
            if let Some((generation, _)) = item.deferred() {
                item.begin(generation);
            }
            all.push_back(item);
        }
        let answer = self.commands.wait_and_drain(&self.ctx);
        while let Some(item) = all.pop_front() {
            let translation = item.as_arc();
            translation.answered(translation.generation(), answer);
            translation.settle_soon();
            self.requeue(item);
        }
    }

    /// Polls for late answers about translations in quarantine. May sleep.
    pub(super) fn poll_quarantine(self: &Arc<Self>) {
        let mut batch = List::new();
        batch.push_all_back(&mut self.revoke_lists.lock().quarantined);
        if batch.is_empty() {
            return;
        }
        let mut requested = None;
        // Answers that arrive after this line wait for the next poll, because writes of the NIC
        // before such an answer may not have arrived.
        let answered = self.commands.answered(&self.ctx);
        self.ctx.wait_for_writes();
        while let Some(item) = batch.pop_front() {
            let translation = item.as_arc();
            let generation = translation.generation();
            if let Next::CheckTicket(ticket) = translation.next(generation) {
                if answered.answers(ticket) {
                    translation.forgotten(generation, Why::Answered);
                } else {
                    // The first answer may be lost, so an answer to a later request is accepted as
                    // well.
                    let next = *requested.get_or_insert_with(|| self.commands.request(&self.ctx));
                    translation.asked_again(generation, next);
                }
            }
            translation.settle_soon();
            self.requeue(item);
        }
    }

    /// Empties the lists after all translations have ended. May sleep.
    pub(super) fn forget_lists(&self) {
        let mut all = List::new();
        {
            let mut lists = self.revoke_lists.lock();
            let RevokeLists {
                revoked,
                quarantined,
            } = &mut *lists;
            all.push_all_back(revoked);
            all.push_all_back(quarantined);
        }
        while let Some(item) = all.pop_front() {
            drop(item.into_arc());
        }
    }
}
