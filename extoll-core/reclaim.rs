// SPDX-License-Identifier: GPL-2.0-only

//! Reclaim of the VPIDs of closed ports.
//!
//! A process may have stored an incomplete descriptor (HW §8, G8), which the first stores of the
//! VPID's next owner would complete. Descriptors may also still be in flight, and would be counted
//! as those of the next owner. [`protocol::nic::reclaim`] decides how to clear both; this file
//! executes its decisions.
//!
//! A list under a mutex keeps VPIDs that cannot be cleared at once, and a work item retries.
//! Process context; may sleep.

use crate::{context::Context, stats::Reason};
use kernel::{
    impl_has_delayed_work, new_delayed_work, new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
    time::{delay::fsleep, msecs_to_jiffies, Delta, Instant, Monotonic},
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::work;
use protocol::nic::reclaim::{stores, Action, Event, Outcome, Reclaim};
use wire::{
    ids::{Unit, Vpid},
    regs::wcbuf,
    wcbuf::State,
};

/// Pause between two polls of the NIC.
const PAUSE: Delta = Delta::from_micros(20);
/// Delay before the first retry for a kept VPID, and interval of further retries, in milliseconds.
const SOON_MS: u32 = 50;
const AGAIN_MS: u32 = 500;
/// Maximum number of kept VPIDs, i.e. all VPIDs of both units.
const MAX_PORTS: usize = 2 * Vpid::COUNT as usize;

/// Clears the requester pages of a VPID. The caller prevents other stores to them. `words` is a
/// command without effect. `patience_ms` limits the time in milliseconds for packets in flight.
/// Returns true if the NIC confirmed that no packet is in flight and that it accepted the commands.
/// A removed NIC counts as clear. May sleep.
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
    let mut reclaim = Reclaim::new(pages.len() as u8, u64::from(patience_ms) * 1000, now());
    let mut action = reclaim.start();
    if let (Some(hw), Some(page)) = (ctx.alive_access(), pages.first()) {
        hw.window(unit).fence(*page);
    }
    loop {
        if action == Action::ReadState {
            fsleep(PAUSE);
        }
        let event = {
            let Some(hw) = ctx.alive_access() else {
                return true;
            };
            match action {
                Action::ReadState => Event::State(State(hw.rf.read(register))),
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
                // A single register that reads as all ones does not prove that the NIC was removed.
                Action::End(Outcome::Absent) => return ctx.check_removed(&hw, u64::MAX),
                Action::End(outcome) => return outcome != Outcome::Unclear,
            }
        };
        action = reclaim.step(event, now());
    }
}

/// Waits until no packet of a VPID is in flight. The caller prevents new ones. Returns false after
/// a time-out. May sleep.
pub(crate) fn wait_idle(ctx: &Context, unit: Unit, vpid: Vpid, patience_ms: u32) -> bool {
    clear(ctx, unit, vpid, &[], &[], patience_ms)
}

/// Closed port whose requester may contain an incomplete descriptor, or whose commands may not have
/// been executed yet. Drop releases its VPID.
pub(crate) trait PendingPort: Send + Sync {
    /// Clears the port if necessary, and returns whether its VPID can be released. May sleep for
    /// about 100 ms.
    fn is_clear(&self) -> bool;
}

struct List {
    ports: KVec<Arc<dyn PendingPort>>,
    /// Set when the NIC is about to be shut down.
    ended: bool,
}

impl List {
    /// Adds a port. Returns the port if the list has ended; the caller drops it after releasing the
    /// lock.
    fn defer(&mut self, port: Arc<dyn PendingPort>) -> Option<Arc<dyn PendingPort>> {
        if self.ended {
            return Some(port);
        }
        // Cannot fail: the list has capacity for all VPIDs.
        let _ = self.ports.push_within_capacity(port);
        None
    }
}

/// Closed ports of a NIC whose VPIDs are being reclaimed.
#[pin_data]
pub(crate) struct Reclaimer {
    ctx: Arc<Context>,
    #[pin]
    list: Mutex<List>,
    #[pin]
    work: DelayedWork<Reclaimer>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Reclaimer> for Reclaimer { self.work }
}

impl WorkItem for Reclaimer {
    type Pointer = Arc<Reclaimer>;

    fn run(this: Arc<Reclaimer>) {
        if this.poll() {
            this.schedule(AGAIN_MS);
        }
    }
}

impl Reclaimer {
    /// Makes an empty list. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(ctx: Arc<Context>) -> Result<Arc<Self>> {
        let list = List {
            ports: KVec::with_capacity(MAX_PORTS, GFP_KERNEL)?,
            ended: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                list <- new_mutex!(list, "extoll_reclaim"),
                work <- new_delayed_work!("extoll_reclaim"),
            }),
            GFP_KERNEL,
        )
    }

    fn schedule(self: &Arc<Self>, delay_ms: u32) {
        let _ = work::enqueue_waiting(self.clone(), msecs_to_jiffies(delay_ms));
    }

    /// Keeps a VPID until it can be released. May sleep.
    pub(crate) fn defer(self: &Arc<Self>, unit: Unit, vpid: Vpid, port: Arc<dyn PendingPort>) {
        self.ctx
            .error(Reason::Reclaim, u64::from(vpid.get()) | (unit as u64) << 32);
        let refused = {
            let mut list = self.list.lock();
            let refused = list.defer(port);
            // Queued with the list locked, so that the work item is not queued after the end.
            if refused.is_none() {
                self.schedule(SOON_MS);
            }
            refused
        };
        drop(refused);
    }

    /// Releases the VPIDs that are clear by now. Returns whether others remain. May sleep.
    fn poll(&self) -> bool {
        let count = self.list.lock().ports.len();
        for _ in 0..count {
            // The list is empty after the end.
            let next = self.list.lock().ports.remove(0);
            let Ok(port) = next else { break };
            if !port.is_clear() {
                let refused = self.list.lock().defer(port);
                drop(refused);
            }
        }
        !self.list.lock().ports.is_empty()
    }

    /// Ends the reclaim because the NIC is about to be shut down. Releases all VPIDs. VPIDs that
    /// are closed later are not kept. May sleep.
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
