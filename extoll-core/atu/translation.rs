// SPDX-License-Identifier: GPL-2.0-only

//! What the NIC and the memory management know of a region. How it ends is [`Life`]'s affair, which
//! tells each party what to do; here is how that is done.
//!
//! A change of the address space revokes at once in the notifier; what may sleep is left to work
//! items.

use super::{
    end::RevokeClient,
    memory::{Memory, Nlps},
    registry::{BoundHold, TranslationNode, VpidUse},
    reserve::Reserved,
    tables::{Place, Rest, RestNode},
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
    mem::{DmaRoom, PageList, Watch, PAGE},
    work,
};
use protocol::{
    tickets::Ticket,
    translation::{Answer, Effect, Life, Next, Phase, Turn, Why},
};
use wire::{
    ids::{Nla, Vpid},
    nla::Range,
};

/// Pause while somebody else zeroes entries or gives memory back.
const MOMENT: Delta = Delta::from_micros(100);

/// What becomes of the NLAs when the translation has ended.
pub(super) enum Home {
    /// They go back to the space, to rest first.
    Space {
        node: RestNode,
        rest: Rest,
        account: Option<Arc<TableAccount>>,
        _vpid: VpidUse,
    },
    /// The translation goes back to its reserve, with all that it needs.
    Reserve(Arc<Reserved>),
}

/// Whether whoever ends a translation may sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    May,
    Never,
}

/// What a translation needs for other memory.
pub(super) struct Spare {
    pub(super) node: TranslationNode,
    pub(super) room: DmaRoom,
}

pub(super) struct State {
    pub(super) life: Life,
    pub(super) place: Option<Place>,
    pub(super) memory: Option<Memory>,
    pub(super) nlps: Nlps,
    pub(super) home: Option<Home>,
    pub(super) bound: Option<BoundHold>,
    /// Of a reserve, not in use.
    pub(super) spare: Option<Spare>,
    /// Tells of changes of user memory.
    pub(super) watch: Option<Arc<Watch>>,
    /// Hears of the end.
    pub(super) client: Option<Arc<dyn RevokeClient>>,
    /// To be dropped where sleeping is allowed.
    pub(super) leftover: Option<Arc<PageList>>,
}

/// See the module.
#[pin_data]
pub(super) struct Translation {
    pub(super) atu: Arc<Atu>,
    pub(super) vpid: Vpid,
    pub(super) range: Range,
    pub(super) access: Access,
    /// First address in the address space of user memory, 0 for other memory.
    pub(super) start: usize,
    /// The number of the life in which it is live, else 0, for those that can't take the lock.
    pub(super) live: Atomic<u64>,
    #[pin]
    pub(super) state: SpinLockIrq<State>,
    /// Looks at suspect pages, and gives memory back.
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

    /// NLA of the first page. Any context.
    pub(super) fn nla(&self) -> Nla {
        Nla(self.range.first * PAGE as u64)
    }

    /// The present life. Any context.
    pub(super) fn turn(&self) -> Turn {
        self.state.lock().life.turn()
    }

    /// Whether it is live in `turn`. Any context.
    pub(super) fn is_live(&self, turn: Turn) -> bool {
        self.live.load(Relaxed) == turn.get()
    }

    /// What is to be done for its end. Any context.
    pub(super) fn next(&self, turn: Turn) -> Next {
        self.state.lock().life.next(turn)
    }

    /// Changes the state of its life, and the gauges with it. Any context.
    fn step<R>(&self, f: impl FnOnce(&mut Life) -> R) -> R {
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

    /// Zeroes the entries and commands the flush, unless somebody else did or does: false then.
    /// Does not allocate; takes as long as it takes for all pages. Sleeps only if it `may`.
    fn revoke(&self, turn: Turn, may: Sleep) -> bool {
        let first = self.step(|life| {
            let first = life.revoke(turn);
            if first {
                self.live.store(0, Relaxed);
            }
            first
        });
        if !first {
            return false;
        }
        let place = self.state.lock().place.take();
        if let Some(place) = &place {
            place.zero();
        }
        let (commands, ctx) = (&self.atu.commands, self.ctx());
        let flush = match may {
            Sleep::Never => commands.flush(ctx, self.range),
            Sleep::May => commands.flush_slowly(ctx, self.range),
        };
        self.state.lock().place = place;
        self.step(|life| life.zeroed(turn, flush));
        true
    }

    /// Revokes; when this returns the NIC was told. May sleep.
    pub(super) fn begin(&self, turn: Turn) {
        loop {
            match self.next(turn) {
                Next::Revoke => {
                    self.revoke(turn, Sleep::May);
                }
                Next::Zeroing => fsleep(MOMENT),
                _ => return,
            }
        }
    }

    /// What the NIC answered, perhaps to a question that was asked for others, and
    /// [`Commands::settle`](super::commands::Commands::settle) gave. May sleep.
    pub(super) fn answered(self: &Arc<Self>, turn: Turn, answer: Answer) -> Effect {
        let effect = self.step(|life| life.answered(turn, answer));
        if effect == Effect::Quarantined {
            let detail = self.nla().0 | u64::from(self.vpid.get()) << 48;
            self.ctx().error(Reason::AtuTimeout, detail);
            self.tell();
            self.atu.keep_in_quarantine(self);
        }
        effect
    }

    /// Ends it, with an answer of the NIC as for [`Translation::answered`] if that covers it, else
    /// with one of its own. False if
    /// there was none in time, and it is in quarantine. May sleep, about a second at most.
    pub(super) fn conclude(self: &Arc<Self>, turn: Turn, mut answer: Option<Answer>) -> bool {
        loop {
            match self.next(turn) {
                Next::Revoke => {
                    self.revoke(turn, Sleep::May);
                }
                Next::Zeroing | Next::Releasing => fsleep(MOMENT),
                Next::Ask(_) => {
                    let answer = match answer.take() {
                        Some(answer) => answer,
                        None => self.atu.commands.settle(self.ctx()),
                    };
                    self.answered(turn, answer);
                }
                Next::Look(ticket) => {
                    if !self.atu.commands.seen(self.ctx()).answers(ticket) {
                        return false;
                    }
                    self.ctx().let_writes_arrive();
                    self.forgotten(turn, Why::Answered);
                }
                Next::Release => self.release(turn),
                Next::Done => return true,
            }
        }
    }

    /// Gives everything back, as the NIC has no access to memory any more. May sleep.
    pub(super) fn cut_off(self: &Arc<Self>) {
        let turn = self.turn();
        self.begin(turn);
        self.forgotten(turn, Why::CutOff);
        self.conclude(turn, None);
        self.cancel();
    }

    /// The NIC does not use it any more, and what it had begun to write has arrived.
    pub(super) fn forgotten(&self, turn: Turn, why: Why) {
        self.step(|life| life.forgotten(turn, why));
    }

    /// In quarantine: the NIC was asked again.
    pub(super) fn asked_again(&self, turn: Turn, ticket: Option<Ticket>) {
        self.step(|life| life.asked_again(turn, ticket));
    }

    /// Gives everything back, unless somebody else does or did. May sleep; one of a reserve neither
    /// waits for memory nor for anybody who does.
    fn release(self: &Arc<Self>, turn: Turn) {
        if !self.step(|life| life.release(turn)) {
            return;
        }
        // Nobody schedules it for suspects any more. One that runs finds nothing to do.
        work::cancel_delayed(self);
        let (watch, place, memory, home, bound, nlps) = {
            let mut state = self.state.lock();
            (
                state.watch.take(),
                state.place.take(),
                state.memory.take(),
                state.home.take(),
                state.bound.take(),
                core::mem::take(&mut state.nlps),
            )
        };
        drop(watch);
        let (atu, ctx) = (&self.atu, self.ctx());
        let node = |page| atu.registry.lock().take(page);
        let mut reserved = None;
        match home {
            Some(Home::Reserve(home)) => {
                let unmapped = memory.and_then(|memory| memory.unmap(ctx));
                let (pages, room) = unmapped.unzip();
                let node = node(self.range.first).map(|node| node.into_reservation());
                let mut state = self.state.lock();
                state.spare = match (node, room) {
                    (Some(node), Some(room)) => Some(Spare { node, room }),
                    _ => None,
                };
                state.place = place;
                drop(state);
                drop(pages);
                reserved = Some(home);
            }
            home => {
                drop(place);
                if let Some(memory) = memory {
                    memory.release(ctx);
                }
                // Before somebody else gets the range, under whose number it was entered.
                drop(node(self.range.first));
                if let Some(Home::Space {
                    node,
                    rest,
                    account,
                    ..
                }) = home
                {
                    atu.free(self.range, Some((node, rest)), account.as_deref());
                }
            }
        }
        atu.gauges.pages.fetch_sub(self.range.pages, Relaxed);
        for (all, own) in atu.gauges.nlps.iter().zip(nlps) {
            all.fetch_sub(own, Relaxed);
        }
        self.step(|life| life.released(turn));
        // Taken before the next turn can have its own, and called after: who hears of the end of a
        // region of a reserve may register another one.
        let told = self.take_client();
        if let Some(reserved) = reserved {
            reserved.give_back(self.clone());
        }
        if let Some((client, result)) = told {
            client.revoked(result);
        }
        // Last: unbinding waits for it.
        drop(bound);
    }

    /// Revokes, and leaves the rest to the worker. Any context, but takes as long as it takes.
    ///
    /// For notifiers, which do not wait for the NIC: the pages stay pinned until it has answered, so
    /// that what it still writes meets memory that nobody else has.
    pub(super) fn die(self: &Arc<Self>) {
        let turn = self.turn();
        if self.revoke(turn, Sleep::Never) {
            self.state.lock().life.leave(turn);
            self.atu.leave_to_worker(self);
        }
    }

    /// Leaves the end to the worker, and begins it here unless that takes long. `client` hears of
    /// it, at once if it has ended or is in quarantine. Once for each life, as the first client would
    /// hear of nothing otherwise. Any context.
    pub(super) fn abandon(self: &Arc<Self>, turn: Turn, client: Option<Arc<dyn RevokeClient>>) {
        let (known, now) = {
            let mut state = self.state.lock();
            let known = match state.life.next(turn) {
                Next::Done => Some(Ok(())),
                Next::Look(_) => Some(Err(ETIMEDOUT)),
                _ => None,
            };
            let now = match known {
                Some(_) => client,
                None => {
                    state.client = client;
                    None
                }
            };
            state.life.leave(turn);
            (known, now)
        };
        match known {
            None => {
                if self.range.pages <= Atu::AT_ONCE {
                    self.revoke(turn, Sleep::Never);
                }
                self.atu.leave_to_worker(self);
            }
            Some(result) => {
                if let Some(client) = now {
                    client.revoked(result);
                }
                // What the caller drops may be the last reference, to the unit of a NIC that is
                // unbound, too.
                let leftover = self.state.lock().leftover.is_some();
                if leftover || !self.ctx().is_alive() {
                    self.schedule(0);
                }
            }
        }
    }

    /// The life whose end is left to the worker, and what is to be done for it. Any context.
    pub(super) fn left(&self) -> Option<(Turn, Next)> {
        self.state.lock().life.left()
    }

    /// Tells the client of the end, if it is known. Any context.
    fn tell(&self) {
        if let Some((client, result)) = self.take_client() {
            client.revoked(result);
        }
    }

    /// The client, once, and what to tell it of the end, if that is known.
    fn take_client(&self) -> Option<(Arc<dyn RevokeClient>, Result)> {
        let mut state = self.state.lock();
        let result = match state.life.phase() {
            Phase::Gone => Ok(()),
            Phase::Quarantined => Err(ETIMEDOUT),
            _ => return None,
        };
        Some((state.client.take()?, result))
    }

    /// Has memory given back, if the NIC has forgotten it: here if that waits for nobody, else by
    /// the work item. Not in atomic context.
    pub(super) fn settle_soon(self: &Arc<Self>) {
        let (next, reserved) = {
            let state = self.state.lock();
            let next = state.life.next(state.life.turn());
            (next, matches!(&state.home, Some(Home::Reserve(_))))
        };
        if next != Next::Release {
            return;
        }
        if reserved {
            self.settle();
        } else {
            // It may wait for a look at suspects, which do not matter any more.
            work::cancel_delayed(self);
            self.schedule(0);
        }
    }

    /// Gives memory back that the NIC has forgotten. May sleep.
    fn settle(self: &Arc<Self>) {
        let turn = self.turn();
        if self.next(turn) == Next::Release {
            self.release(turn);
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

    /// Of a reserve, not in use: gives up what it keeps. The device must be kept bound. Any
    /// context.
    pub(super) fn empty(&self) {
        let (place, spare) = {
            let mut state = self.state.lock();
            (state.place.take(), state.spare.take())
        };
        drop((place, spare));
    }

    /// Has a list of pages dropped where sleeping is allowed, after the end. Any context.
    pub(super) fn keep(&self, pages: Arc<PageList>) {
        self.state.lock().leftover = Some(pages);
    }

    /// Has the work item run. Any context.
    pub(super) fn schedule(self: &Arc<Self>, delay_ms: u32) {
        let delay = kernel::time::msecs_to_jiffies(delay_ms);
        // Already queued is fine. User memory is looked at and let go with locks of its process,
        // other memory without.
        let _ = match self.start {
            0 => work::enqueue_delayed(self.clone(), delay),
            _ => work::enqueue_waiting(self.clone(), delay),
        };
    }

    /// Stops the work item. May sleep.
    pub(super) fn cancel(self: &Arc<Self>) {
        work::cancel_delayed_sync(self);
    }
}
