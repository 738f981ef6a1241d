// SPDX-License-Identifier: GPL-2.0-only

//! Translations: table entries, DMA mapping and MMU watch of one region.
//!
//! The state machine [`Lifecycle`] decides how a translation ends. This file executes the steps.
//! The owner, an MMU notifier, a work item and unbinding may end a translation at the same time, so
//! a spinlock that disables interrupts protects the state. Work items execute the steps that may
//! sleep.

use super::{
    memory::{HwPages, Memory},
    registry::{BoundHold, TranslationNode, VpidUse},
    reserve::ReserveInner,
    revoke::RevokeClient,
    tables::{HoldOff, HoldOffNode, TableRange},
    Access, Atu, TableAccount,
};
use crate::{context::Context, stats::Reason};
use kernel::{
    impl_has_delayed_work,
    list::{impl_list_arc_safe, impl_list_item, AtomicTracker, ListLinks, TryNewListArc},
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, SpinLockIrq,
    },
    time::{delay::fsleep, Delta},
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::{
    mem::{PageList, PreallocatedTable, Watch, PAGE},
    work,
};
use protocol::nic::{
    nla::NlaRange,
    tickets::Ticket,
    translation::{Answer, Effect, Generation, Lifecycle, Next, Phase, Why},
};
use wire::ids::{Nla, Vpid};

/// Pause between two checks while another CPU zeroes entries or frees the memory.
const PAUSE: Delta = Delta::from_micros(100);

/// Determines what happens to the NLAs after the translation has ended.
pub(super) enum Owner {
    /// The NLA space frees the NLAs, after a hold-off time.
    Space {
        node: HoldOffNode,
        hold_off: HoldOff,
        account: Option<Arc<TableAccount>>,
        _vpid: VpidUse,
    },
    /// The translation returns to its reserve with all its resources.
    Reserve(Arc<ReserveInner>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    May,
    Never,
}

pub(super) struct Spare {
    pub(super) node: TranslationNode,
    pub(super) room: PreallocatedTable,
}

pub(super) struct State {
    pub(super) life: Lifecycle,
    pub(super) table_range: Option<TableRange>,
    pub(super) memory: Option<Memory>,
    pub(super) hw_pages: HwPages,
    pub(super) owner: Option<Owner>,
    pub(super) bound: Option<BoundHold>,
    /// Resources of a translation of a reserve; `None` while the translation is in use.
    pub(super) spare: Option<Spare>,
    pub(super) watch: Option<Arc<Watch>>,
    pub(super) client: Option<Arc<dyn RevokeClient>>,
    pub(super) leftover: Option<Arc<PageList>>,
}

/// Table entries, DMA mapping and MMU watch of one region.
#[pin_data]
pub(super) struct Translation {
    pub(super) atu: Arc<Atu>,
    pub(super) vpid: Vpid,
    pub(super) range: NlaRange,
    pub(super) access: Access,
    /// First address in the process's address space; 0 for kernel memory.
    pub(super) start: usize,
    /// Number of the live generation; 0 if no generation is live. Readable without the lock.
    pub(super) live: Atomic<u64>,
    #[pin]
    pub(super) state: SpinLockIrq<State>,
    #[pin]
    pub(super) work: DelayedWork<Translation>,
    #[pin]
    pub(super) links: ListLinks,
    #[pin]
    pub(super) listed: AtomicTracker,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Translation> for Translation { self.work }
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Translation { tracked_by listed: AtomicTracker; }
}

impl_list_item! {
    impl ListItem<0> for Translation { using ListLinks { self.links }; }
}

impl WorkItem for Translation {
    type Pointer = Arc<Translation>;

    fn run(this: Arc<Translation>) {
        this.verify();
        this.settle();
    }
}

impl Translation {
    pub(super) fn ctx(&self) -> &Context {
        &self.atu.ctx
    }

    /// Returns the NLA of the first page. Any context.
    pub(super) fn nla(&self) -> Nla {
        Nla(self.range.first * PAGE as u64)
    }

    /// Returns the current generation. Any context.
    pub(super) fn generation(&self) -> Generation {
        self.state.lock().life.generation()
    }

    /// Returns whether generation `generation` is live. Any context.
    pub(super) fn is_live(&self, generation: Generation) -> bool {
        self.live.load(Relaxed) == generation.get()
    }

    /// Returns the next step towards the end of generation `generation`. Any context.
    pub(super) fn next(&self, generation: Generation) -> Next {
        self.state.lock().life.next(generation)
    }

    /// Changes the state machine by `f` and updates the statistics. Any context.
    fn step<R>(&self, f: impl FnOnce(&mut Lifecycle) -> R) -> R {
        let gauges = &self.atu.gauges;
        let class = |phase| match phase {
            Phase::Live | Phase::Gone => None,
            Phase::Quarantined => Some(&gauges.quarantined),
            _ => Some(&gauges.ending),
        };
        let mut state = self.state.lock();
        let before = class(state.life.phase());
        let result = f(&mut state.life);
        let after = class(state.life.phase());
        drop(state);
        if let Some(gauge) = after {
            gauge.add(1, Relaxed);
        }
        if let Some(gauge) = before {
            gauge.fetch_sub(1, Relaxed);
        }
        result
    }

    /// Zeroes the entries and issues the flush. Returns false if another CPU is doing or has done
    /// this. Allocates no memory. The duration is proportional to the number of pages. Sleeps only
    /// with [`Sleep::May`].
    fn revoke(&self, generation: Generation, may: Sleep) -> bool {
        let first = self.step(|life| {
            let first = life.revoke(generation);
            if first {
                self.live.store(0, Relaxed);
            }
            first
        });
        if !first {
            return false;
        }
        let table_range = self.state.lock().table_range.take();
        if let Some(table_range) = &table_range {
            table_range.zero();
        }
        let (commands, ctx) = (&self.atu.commands, self.ctx());
        let flush = match may {
            Sleep::Never => commands.flush(ctx, self.range),
            Sleep::May => commands.flush_slowly(ctx, self.range),
        };
        self.state.lock().table_range = table_range;
        self.step(|life| life.zeroed(generation, flush));
        true
    }

    /// Revokes the translation. The flush has been issued when this function returns. May sleep.
    pub(super) fn begin(&self, generation: Generation) {
        loop {
            match self.next(generation) {
                Next::Revoke => {
                    self.revoke(generation, Sleep::May);
                }
                Next::Zeroing => fsleep(PAUSE),
                _ => return,
            }
        }
    }

    /// Processes an answer of the NIC. The answer may have been requested for other translations.
    /// May sleep.
    pub(super) fn answered(self: &Arc<Self>, generation: Generation, answer: Answer) -> Effect {
        let effect = self.step(|life| life.answered(generation, answer));
        if effect == Effect::Quarantined {
            let detail = self.nla().0 | u64::from(self.vpid.get()) << 48;
            self.ctx().error(Reason::AtuTimeout, detail);
            self.notify();
            self.atu.keep_in_quarantine(self);
        }
        effect
    }

    /// Ends the translation. Uses `answer` if it covers the flush, otherwise requests another
    /// answer. If the NIC does not answer in time, returns false and leaves the translation in
    /// quarantine. May sleep, up to about a second.
    pub(super) fn conclude(
        self: &Arc<Self>,
        generation: Generation,
        mut answer: Option<Answer>,
    ) -> bool {
        loop {
            match self.next(generation) {
                Next::Revoke => {
                    self.revoke(generation, Sleep::May);
                }
                Next::Zeroing | Next::Releasing => fsleep(PAUSE),
                Next::Ask(_) => {
                    let answer = match answer.take() {
                        Some(answer) => answer,
                        None => self.atu.commands.wait_and_drain(self.ctx()),
                    };
                    self.answered(generation, answer);
                }
                Next::CheckTicket(ticket) => {
                    if !self.atu.commands.answered(self.ctx()).answers(ticket) {
                        return false;
                    }
                    self.ctx().wait_for_writes();
                    self.forgotten(generation, Why::Answered);
                }
                Next::Release => self.release(generation),
                Next::Done => return true,
            }
        }
    }

    /// Frees all resources. The NIC can no longer access memory. May sleep.
    pub(super) fn cut_off(self: &Arc<Self>) {
        let generation = self.generation();
        self.begin(generation);
        self.forgotten(generation, Why::CutOff);
        self.conclude(generation, None);
        self.cancel();
    }

    /// Records that the NIC does not use the translation any more and that its writes have arrived.
    pub(super) fn forgotten(&self, generation: Generation, why: Why) {
        self.step(|life| life.forgotten(generation, why));
    }

    /// Records another request to the NIC for a translation in quarantine.
    pub(super) fn asked_again(&self, generation: Generation, ticket: Option<Ticket>) {
        self.step(|life| life.asked_again(generation, ticket));
    }

    /// Frees all resources, unless another CPU is doing or has done this. May sleep. For a
    /// translation of a reserve, does not allocate memory or wait for an allocation.
    fn release(self: &Arc<Self>, generation: Generation) {
        if !self.step(|life| life.release(generation)) {
            return;
        }
        work::cancel_delayed(self);
        let (watch, table_range, memory, owner, bound, hw_pages) = {
            let mut state = self.state.lock();
            (
                state.watch.take(),
                state.table_range.take(),
                state.memory.take(),
                state.owner.take(),
                state.bound.take(),
                core::mem::take(&mut state.hw_pages),
            )
        };
        drop(watch);
        let (atu, ctx) = (&self.atu, self.ctx());
        let node = |page| atu.registry.lock().remove(page);
        let mut reserved = None;
        match owner {
            Some(Owner::Reserve(owner)) => {
                let unmapped = memory.and_then(|memory| memory.unmap(ctx));
                let (pages, room) = unmapped.unzip();
                let node = node(self.range.first).map(|node| node.into_reservation());
                let mut state = self.state.lock();
                state.spare = match (node, room) {
                    (Some(node), Some(room)) => Some(Spare { node, room }),
                    _ => None,
                };
                state.table_range = table_range;
                drop(state);
                drop(pages);
                reserved = Some(owner);
            }
            owner => {
                drop(table_range);
                if let Some(memory) = memory {
                    memory.release(ctx);
                }
                // The node's key is the first page, so the node goes before the range is freed.
                drop(node(self.range.first));
                if let Some(Owner::Space {
                    node,
                    hold_off,
                    account,
                    ..
                }) = owner
                {
                    atu.free(self.range, Some((node, hold_off)), account.as_deref());
                }
            }
        }
        atu.gauges.pages.fetch_sub(self.range.pages, Relaxed);
        for (all, own) in atu.gauges.hw_pages.iter().zip(hw_pages) {
            all.fetch_sub(own, Relaxed);
        }
        self.step(|life| life.released(generation));
        // The client is taken before the next generation can set another one. It is called after
        // the translation has returned to the reserve, because the client may register another
        // region.
        let notified = self.take_client();
        if let Some(reserved) = reserved {
            reserved.give_back(self.clone());
        }
        if let Some((client, result)) = notified {
            client.revoked(result);
        }
        // Dropped last, because unbinding waits until this value is dropped.
        drop(bound);
    }

    /// Revokes the translation, and leaves the other steps to the work item. Any context. The
    /// duration is proportional to the number of pages.
    ///
    /// MMU notifiers use this function, because they must not wait for the NIC. The pages stay
    /// pinned until the NIC has answered, so late writes cannot reach memory of a new owner.
    pub(super) fn revoke_now(self: &Arc<Self>) {
        let generation = self.generation();
        if self.revoke(generation, Sleep::Never) {
            self.state.lock().life.defer(generation);
            self.atu.leave_to_worker(self);
        }
    }

    /// Leaves the remaining steps to the work item. If there are few entries, zeroes them here.
    /// `client` is called at the end, or at once if the translation has ended or is in quarantine.
    /// This function is called once per generation, because a second call would replace the first
    /// client. Any context.
    pub(super) fn abandon(
        self: &Arc<Self>,
        generation: Generation,
        client: Option<Arc<dyn RevokeClient>>,
    ) {
        let (known, now) = {
            let mut state = self.state.lock();
            let known = match state.life.next(generation) {
                Next::Done => Some(Ok(())),
                Next::CheckTicket(_) => Some(Err(ETIMEDOUT)),
                _ => None,
            };
            let now = match known {
                Some(_) => client,
                None => {
                    state.client = client;
                    None
                }
            };
            state.life.defer(generation);
            (known, now)
        };
        match known {
            None => {
                if self.range.pages <= Atu::MAX_INLINE_PAGES {
                    self.revoke(generation, Sleep::Never);
                }
                self.atu.leave_to_worker(self);
            }
            Some(result) => {
                if let Some(client) = now {
                    client.revoked(result);
                }
                // The work item drops the pages, because it may sleep. The caller may hold the last
                // reference to the translation and thus to the unit of an unbound NIC.
                let leftover = self.state.lock().leftover.is_some();
                if leftover || !self.ctx().is_alive() {
                    self.schedule(0);
                }
            }
        }
    }

    /// Returns the generation whose remaining steps were left to the work item, and its next step.
    /// Any context.
    pub(super) fn deferred(&self) -> Option<(Generation, Next)> {
        self.state.lock().life.deferred()
    }

    /// Calls the client if the result is known. Any context.
    fn notify(&self) {
        if let Some((client, result)) = self.take_client() {
            client.revoked(result);
        }
    }

    /// Returns the client and its result, and removes the client; `None` until the result is known.
    fn take_client(&self) -> Option<(Arc<dyn RevokeClient>, Result)> {
        let mut state = self.state.lock();
        let result = match state.life.phase() {
            Phase::Gone => Ok(()),
            Phase::Quarantined => Err(ETIMEDOUT),
            _ => return None,
        };
        Some((state.client.take()?, result))
    }

    /// Frees the memory if the NIC has confirmed the flush: at once for a translation of a reserve,
    /// which needs no waiting, otherwise in the work item. Not in atomic context.
    pub(super) fn settle_soon(self: &Arc<Self>) {
        let (next, reserved) = {
            let state = self.state.lock();
            let next = state.life.next(state.life.generation());
            (next, matches!(&state.owner, Some(Owner::Reserve(_))))
        };
        if next != Next::Release {
            return;
        }
        if reserved {
            self.settle();
        } else {
            work::cancel_delayed(self);
            self.schedule(0);
        }
    }

    /// Frees the memory if the NIC has confirmed the flush. May sleep.
    fn settle(self: &Arc<Self>) {
        let generation = self.generation();
        if self.next(generation) == Next::Release {
            self.release(generation);
        }
        let leftover = {
            let mut state = self.state.lock();
            match state.life.phase() {
                Phase::Gone => state.leftover.take(),
                _ => None,
            }
        };
        drop(leftover);
    }

    /// Frees the resources of an unused translation of a reserve. The caller keeps the device
    /// bound. Any context.
    pub(super) fn empty(&self) {
        let (table_range, spare) = {
            let mut state = self.state.lock();
            (state.table_range.take(), state.spare.take())
        };
        drop((table_range, spare));
    }

    /// Stores pages to be dropped after the end, in a context that may sleep. Any context.
    pub(super) fn drop_later(&self, pages: Arc<PageList>) {
        self.state.lock().leftover = Some(pages);
    }

    /// Queues the work item with a delay. Any context.
    pub(super) fn schedule(self: &Arc<Self>, delay_ms: u32) {
        let delay = kernel::time::msecs_to_jiffies(delay_ms);
        // For user memory, the work item waits for locks of the process.
        let _ = match self.start {
            0 => work::enqueue_delayed(self.clone(), delay),
            _ => work::enqueue_waiting(self.clone(), delay),
        };
    }

    /// Cancels the work item and waits for it. May sleep.
    pub(super) fn cancel(self: &Arc<Self>) {
        work::cancel_delayed_sync(self);
    }
}
