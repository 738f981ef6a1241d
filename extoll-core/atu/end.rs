// SPDX-License-Identifier: GPL-2.0-only

//! How regions end: many at a time with one wait, without a wait, and what is in quarantine.

use super::{translation::Translation, Atu, Region};
use kernel::{
    list::{List, ListArc},
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies,
};
use kernel_ext::work;
use protocol::translation::{Next, Why};

/// Pause before the NIC is asked again about what is in quarantine, in milliseconds.
const RETRY_MS: u32 = 2000;

/// Hears that a region has ended ([`Region::revoke_async`]). A module that has its own drops a
/// [`kernel_ext::work::Settled`] last, as a worker may run the code of its client, and drop it.
pub trait RevokeClient: Send + Sync {
    /// The memory was given back; or `ETIMEDOUT`: the NIC did not answer in time, and memory and
    /// NLAs stay reserved until it does. Called once, in any context, perhaps before the end was
    /// left to others: it must not sleep.
    fn revoked(&self, result: Result);
}

/// Translations whose end is left to the workers of the unit. Nothing is allocated when one is
/// added.
pub(super) struct Ending {
    /// Revoked, or about to be.
    revoked: List<Translation>,
    /// Unanswered.
    quarantined: List<Translation>,
}

impl Ending {
    pub(super) fn new() -> Self {
        Self {
            revoked: List::new(),
            quarantined: List::new(),
        }
    }
}

impl Atu {
    /// Most pages whose entries are zeroed by whoever drops a region: 128 MiB, which takes a
    /// fraction of a millisecond. Those of more are left to the worker.
    pub(super) const AT_ONCE: u64 = 1 << 15;

    /// Ends regions, and waits for the NIC once for all of them. They are dead then, and can only
    /// be dropped. May sleep, about a second at most.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the NIC may still access the memory of some, which stays reserved until it says
    /// that it does not.
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
            let (translation, turn) = region.translation();
            translation.begin(turn);
            waits |= matches!(translation.next(turn), Next::Ask(_));
        }
        let answer = waits.then(|| self.commands.settle(&self.ctx));
        let mut result = Ok(());
        for region in regions() {
            let (translation, turn) = region.translation();
            // The answer is this NIC's.
            let answer = answer.filter(|_| core::ptr::eq(&*translation.atu, self));
            if !translation.conclude(turn, answer) {
                result = Err(ETIMEDOUT);
            }
        }
        result
    }

    /// Has the worker end a translation whose end is left to it. Any context.
    pub(super) fn leave_to_worker(self: &Arc<Self>, translation: &Arc<Translation>) {
        // In a list already: whoever takes it out of that looks whether it is left to the worker.
        if let Ok(item) = ListArc::try_from_arc(translation.clone()) {
            self.ending.lock().revoked.push_back(item);
        }
        // Queued already is fine.
        let _ = work::enqueue::<_, 0>(self.clone());
    }

    /// Has the worker look after a translation in quarantine. Any context.
    pub(super) fn keep_in_quarantine(self: &Arc<Self>, translation: &Arc<Translation>) {
        // In a list already: whoever takes it out of that looks whether it is in quarantine.
        if let Ok(item) = ListArc::try_from_arc(translation.clone()) {
            self.ending.lock().quarantined.push_back(item);
            self.retry_later();
        }
    }

    fn retry_later(self: &Arc<Self>) {
        let delay = msecs_to_jiffies(RETRY_MS);
        let _ = work::enqueue_delayed::<_, 1>(self.clone(), delay);
    }

    /// Puts one that was taken out of a list where it belongs, if it has not ended.
    fn put(self: &Arc<Self>, item: ListArc<Translation>) {
        let is_kept = |t: &Translation| matches!(t.next(t.turn()), Next::Look(_));
        if is_kept(&item) {
            self.ending.lock().quarantined.push_back(item);
            self.retry_later();
            return;
        }
        // From here on others can put it into a list. Who came too early for that has left a mark.
        let translation = item.into_arc();
        if is_kept(&translation) {
            self.keep_in_quarantine(&translation);
        } else if let Some((_, Next::Revoke | Next::Zeroing | Next::Ask(_))) = translation.left() {
            self.leave_to_worker(&translation);
        }
    }

    /// Ends what is left to the worker, as many as there are with one wait. May sleep.
    pub(super) fn reap(self: &Arc<Self>) {
        let mut batch = List::new();
        batch.push_all_back(&mut self.ending.lock().revoked);
        if batch.is_empty() {
            return;
        }
        let mut all = List::new();
        while let Some(item) = batch.pop_front() {
            // What was left may be over, and the entries be somebody else's.
            if let Some((turn, _)) = item.left() {
                item.begin(turn);
            }
            all.push_back(item);
        }
        let answer = self.commands.settle(&self.ctx);
        while let Some(item) = all.pop_front() {
            let translation = item.as_arc();
            translation.answered(translation.turn(), answer);
            translation.settle_soon();
            self.put(item);
        }
    }

    /// Looks for late answers. May sleep.
    pub(super) fn look_at_quarantine(self: &Arc<Self>) {
        let mut batch = List::new();
        batch.push_all_back(&mut self.ending.lock().quarantined);
        if batch.is_empty() {
            return;
        }
        let mut asked = None;
        // What comes from now on is for the next time, as its writes may not have arrived.
        let seen = self.commands.seen(&self.ctx);
        self.ctx.let_writes_arrive();
        while let Some(item) = batch.pop_front() {
            let translation = item.as_arc();
            let turn = translation.turn();
            if let Next::Look(ticket) = translation.next(turn) {
                if seen.answers(ticket) {
                    translation.forgotten(turn, Why::Answered);
                } else {
                    // The answer to the first one may be lost; that to a later one will do.
                    let next = *asked.get_or_insert_with(|| self.commands.ask(&self.ctx));
                    translation.asked_again(turn, next);
                }
            }
            translation.settle_soon();
            self.put(item);
        }
    }

    /// Empties the lists, when all translations have ended. May sleep.
    pub(super) fn forget_lists(&self) {
        let mut all = List::new();
        {
            let mut ending = self.ending.lock();
            let Ending {
                revoked,
                quarantined,
            } = &mut *ending;
            all.push_all_back(revoked);
            all.push_all_back(quarantined);
        }
        while let Some(item) = all.pop_front() {
            drop(item.into_arc());
        }
    }
}
