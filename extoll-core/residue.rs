// SPDX-License-Identifier: GPL-2.0-only

//! What a port leaves behind when it is closed, and VPIDs that are kept from others because of it.
//!
//! A process may have stored words of a descriptor without completing it (HW §8, G8): the next owner of
//! the VPID would complete it by its own first stores, or send its first command with them. Descriptors
//! may still be on their way, and would be taken for the next owner's. [`wire::residue`] has what is done
//! about that; here it is done.

use crate::{context::Context, stats::Reason};
use kernel::{
    impl_has_delayed_work, new_delayed_work, new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
    time::{delay::fsleep, msecs_to_jiffies, Delta, Instant, Monotonic},
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::work;
use wire::{
    ids::{Unit, Vpid},
    regs::wcbuf,
    residue::{stores, Action, Eraser, Event, Outcome},
    wcbuf::State,
};

/// Pause between looks.
const PAUSE: Delta = Delta::from_micros(20);
/// When a VPID that is kept is looked at for the first time, and how often after that.
const SOON_MS: u32 = 50;
const AGAIN_MS: u32 = 500;
/// VPIDs that can be kept at a time: all of both units.
const MOST: usize = 2 * Vpid::COUNT as usize;

/// Empties requester pages of a VPID that nobody else stores to: `words` is the command. `patience_ms`: how
/// long what is on its way may take. False when the NIC does not say that nothing is, or that it accepted the
/// commands. A NIC that is gone holds nothing. May sleep.
pub(crate) fn clear(
    ctx: &Context,
    unit: Unit,
    vpid: Vpid,
    pages: &[u32],
    words: &[u64],
    patience_ms: u32,
) -> bool {
    let register = wcbuf::state(unit, vpid);
    let began: Instant<Monotonic> = Instant::now();
    let now = || began.elapsed().as_micros_ceil().max(0) as u64;
    let mut machine = Eraser::new(pages.len() as u8, u64::from(patience_ms) * 1000, now());
    let mut action = machine.start();
    if let (Some(hw), Some(page)) = (ctx.alive_access(), pages.first()) {
        hw.window(unit).fence(*page);
    }
    loop {
        if action == Action::Look {
            fsleep(PAUSE);
        }
        let event = {
            let Some(hw) = ctx.alive_access() else {
                return true;
            };
            match action {
                Action::Look => Event::State(State(hw.rf.read(register))),
                Action::Write(state) => {
                    hw.rf.write(register, state.raw());
                    Event::Done
                }
                Action::Store(number) => {
                    let page = pages.get(usize::from(number));
                    for index in stores(words.len() as u8).map(usize::from) {
                        if let (Some(page), Some(word)) = (page, words.get(index)) {
                            hw.window(unit).store(*page, index, *word);
                        }
                    }
                    Event::Done
                }
                // All ones that it read once say nothing.
                Action::End(Outcome::Gone) => return ctx.is_gone(&hw, u64::MAX),
                Action::End(outcome) => return outcome != Outcome::Unclear,
            }
        };
        action = machine.step(event, now());
    }
}

/// Waits until nothing of a VPID is in flight, of which nobody sends any more; false on time-out. May sleep.
pub(crate) fn settle(ctx: &Context, unit: Unit, vpid: Vpid, patience_ms: u32) -> bool {
    clear(ctx, unit, vpid, &[], &[], patience_ms)
}

/// A port that is closed and whose requester holds what its owner left, or commands of his that are not
/// executed. Its drop gives the VPID back.
pub(crate) trait Leftover: Send + Sync {
    /// Nothing is left any more, so that others may have the VPID. May sleep, for about 100 ms.
    fn is_gone(&self) -> bool;
}

struct List {
    ports: KVec<Arc<dyn Leftover>>,
    /// The NIC is about to be given up.
    ended: bool,
}

impl List {
    /// Adds a port; it is given back if it is to be dropped, which is done without the lock.
    fn keep(&mut self, left: Arc<dyn Leftover>) -> Option<Arc<dyn Leftover>> {
        if self.ended {
            return Some(left);
        }
        // There is room for every VPID.
        let _ = self.ports.push_within_capacity(left);
        None
    }
}

/// The closed ports of a NIC whose VPIDs are kept from others.
#[pin_data]
pub(crate) struct Residue {
    ctx: Arc<Context>,
    #[pin]
    list: Mutex<List>,
    #[pin]
    work: DelayedWork<Residue>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Residue> for Residue { self.work }
}

impl WorkItem for Residue {
    type Pointer = Arc<Residue>;

    fn run(this: Arc<Residue>) {
        if this.look() {
            this.schedule(AGAIN_MS);
        }
    }
}

impl Residue {
    /// Nothing is kept. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(ctx: Arc<Context>) -> Result<Arc<Self>> {
        let list = List {
            ports: KVec::with_capacity(MOST, GFP_KERNEL)?,
            ended: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                list <- new_mutex!(list, "extoll_residue"),
                work <- new_delayed_work!("extoll_residue"),
            }),
            GFP_KERNEL,
        )
    }

    fn schedule(self: &Arc<Self>, delay_ms: u32) {
        let _ = work::enqueue_waiting(self.clone(), msecs_to_jiffies(delay_ms));
    }

    /// Keeps a VPID from others for as long as that is necessary. May sleep.
    pub(crate) fn keep(self: &Arc<Self>, unit: Unit, vpid: Vpid, left: Arc<dyn Leftover>) {
        self.ctx
            .error(Reason::Residue, u64::from(vpid.get()) | (unit as u64) << 32);
        let refused = {
            let mut list = self.list.lock();
            let refused = list.keep(left);
            // With the list locked: not after the end.
            if refused.is_none() {
                self.schedule(SOON_MS);
            }
            refused
        };
        drop(refused);
    }

    /// Gives back what is done by now. True if something is left. May sleep.
    fn look(&self) -> bool {
        let count = self.list.lock().ports.len();
        for _ in 0..count {
            // Nothing after the end.
            let next = self.list.lock().ports.remove(0);
            let Ok(left) = next else { break };
            if !left.is_gone() {
                let refused = self.list.lock().keep(left);
                drop(refused);
            }
        }
        !self.list.lock().ports.is_empty()
    }

    /// The NIC is about to be given up: no port is looked at any more, and those that are closed later are
    /// not kept. May sleep.
    pub(crate) fn end(self: &Arc<Self>) {
        let all = {
            let mut list = self.list.lock();
            list.ended = true;
            core::mem::take(&mut list.ports)
        };
        work::cancel_delayed_sync(self);
        drop(all);
    }
}
