// SPDX-License-Identifier: GPL-2.0-only

//! NAPI poll function of an interface. It serves both the VELO and the RMA port, because one
//! context must deliver all frames of a source to keep them in order.
//!
//! The poll function runs in softirq, in a NAPI thread or in a busy-polling process. Bottom halves
//! are off, and it runs on one CPU at a time. `netpoll` runs in any context, also with interrupts
//! off. The caller holds no lock of [`Shared`].

use crate::{
    conf,
    env::{Clock, Frame, KernelMemory, Timed},
    reason::Counter,
    rx_rma::{checksum, Outcome, RmaState},
    rx_velo::{deliver, Run, VeloState},
    shared::Shared,
    tx::Owners,
};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::net::{NapiPoll, Owner, PollCx};
use protocol::{Clock as _, Memory as _, Time};

/// Maximum number of notifications processed in one run, transmit completions included.
const BATCH: usize = 256;

/// Maximum number of batches of notifications that netpoll processes in one call.
const ROUNDS: usize = 4;

/// State that only the poll function uses. It has no lock.
pub(crate) struct State {
    pub(crate) velo: VeloState,
    pub(crate) rma: RmaState,
    /// Frames that netpoll received and that must be delivered.
    undelivered: KVVec<Frame>,
    /// Sockets of frames that netpoll found to be stalled. Netpoll cannot release them, because it
    /// may run with interrupts off.
    owners: KVVec<Option<Owner>>,
    /// Set if `owners` is not empty.
    has_owners: bool,
    /// Time at which netpoll last did the housekeeping of the sending side.
    aged: Time,
    /// Set while messages are deliberately left in the mailbox. A full mailbox slows the senders.
    paused: bool,
}

impl State {
    /// Creates the state without ports. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            velo: VeloState::new()?,
            rma: RmaState::default(),
            undelivered: KVVec::with_capacity(conf::NETPOLL_FRAMES, GFP_KERNEL)?,
            owners: KernelMemory::array(conf::TX_FLIGHT_MAX as usize, |_| None)?,
            has_owners: false,
            aged: Time::default(),
            paused: false,
        })
    }

    /// Drops all frames and announcements that were received but not delivered, and returns their
    /// number. The ports are closed. May sleep.
    pub(crate) fn flush(&mut self, sh: &Shared) -> usize {
        let undelivered = self.undelivered.len();
        self.undelivered.clear();
        self.release_owners();
        self.paused = false;
        undelivered + self.velo.rx.flush(sh)
    }

    /// Releases the sockets that netpoll collected. Interrupts must be enabled.
    fn release_owners(&mut self) {
        if core::mem::take(&mut self.has_owners) {
            self.owners.iter_mut().for_each(|owner| *owner = None);
        }
    }
}

/// Result of processing notifications.
struct Handled {
    /// Number of received frames.
    frames: usize,
    /// Number of notifications, transmit completions included.
    all: usize,
    /// Set if more notifications may be pending.
    more: bool,
}

/// The poll function of an interface.
pub(crate) struct Poll {
    pub(crate) shared: Arc<Shared>,
}

impl Poll {
    /// Processes notifications until `budget` frames were received or [`BATCH`] notifications
    /// processed.
    fn notifications(&self, state: &mut State, budget: usize, cx: &mut PollCx<'_>) -> Handled {
        let sh = &*self.shared;
        let State {
            velo,
            rma,
            undelivered,
            ..
        } = state;
        // Frames from netpoll are older than all others, so they are delivered first and all at
        // once. In this run at most `budget` of them are counted.
        let (mut frames, mut all) = (undelivered.len().min(budget), 0);
        for frame in undelivered.drain_all() {
            deliver(sh, frame, cx);
        }
        // Transmit completions count only against `BATCH`, not against the budget.
        while frames < budget && all < BATCH {
            let chunk = (budget - frames).min(BATCH - all);
            let n = rma.run(sh, chunk, |outcome| match outcome {
                Outcome::Sent(skb) => cx.consume(skb),
                Outcome::Received(skb, node, ticket) => {
                    frames += 1;
                    let checksum = checksum(sh, &skb, false);
                    if let Err(frame) = velo.rx.fetched(ticket, (skb, checksum, node)) {
                        deliver(sh, frame, cx);
                    }
                }
                Outcome::Ended(ticket) => velo.rx.ended(ticket),
            });
            all += n;
            if n < chunk {
                break;
            }
        }
        if all > 0 {
            sh.count(Counter::PollRma);
        }
        velo.rx.deliver(sh, cx);
        let more = frames >= budget || all >= BATCH;
        Handled { frames, all, more }
    }

    /// Processes notifications in any context and keeps received frames for later delivery. Returns
    /// whether there were notifications.
    fn completions(&self, state: &mut State) -> bool {
        let sh = &*self.shared;
        let State {
            velo,
            rma,
            undelivered,
            ..
        } = state;
        let mut all = 0;
        for _ in 0..ROUNDS {
            // `undelivered` has space for the frames of all GETs in flight. No GET is posted during
            // this call.
            let chunk = conf::NETPOLL_FRAMES
                .saturating_sub(undelivered.len())
                .min(BATCH);
            let n = rma.run(sh, chunk, |outcome| match outcome {
                Outcome::Sent(skb) => skb.consume(),
                Outcome::Received(skb, node, ticket) => {
                    let checksum = checksum(sh, &skb, false);
                    if let Err(frame) = velo.rx.fetched(ticket, (skb, checksum, node)) {
                        // Cannot fail: `chunk` is limited to the free capacity.
                        let _ = undelivered.push_within_capacity(frame);
                    }
                }
                Outcome::Ended(ticket) => velo.rx.ended(ticket),
            });
            all += n;
            if n < chunk {
                break;
            }
        }
        all > 0
    }

    /// Does the housekeeping of the sending side, at most once per clock tick. The clock does not
    /// advance while the only CPU has interrupts off. Any context.
    fn age(&self, state: &mut State) {
        let now = Clock.now();
        if core::mem::replace(&mut state.aged, now) != now {
            let mut owners = Owners::new(&mut state.owners);
            // If no slot were free, a socket would be released here, possibly with interrupts off.
            if !owners.is_full() {
                self.shared.tx_age(now, &mut owners);
                state.has_owners = true;
            }
        }
    }
}

impl NapiPoll for Poll {
    type State = State;

    fn poll(&self, state: &mut State, cx: &mut PollCx<'_>) -> usize {
        let budget = cx.budget();
        let sh = &*self.shared;
        state.release_owners();
        sh.tx_unblock();
        sh.count(Counter::PollVelo);
        // Half of the budget is left for messages.
        let handled = self.notifications(state, budget.div_ceil(2), cx);
        let left = budget - handled.frames;
        if left == 0 {
            return budget;
        }
        let velo = &mut state.velo;
        let mut run = Run {
            sh,
            mailbox: velo.mailbox.as_mut(),
            rx: &mut velo.rx,
            cx: &mut *cx,
            now: Clock.now(),
        };
        let ran =
            protocol::eth::poll::run(&mut run, &Timed(&sh.timer), &Clock, left, &sh.periods());
        velo.used |= ran.messages > 0;
        velo.rx.deliver(sh, cx);
        state.paused = ran.paused;
        if handled.more || ran.messages >= left {
            return budget;
        }
        if ran.paused {
            sh.count(Counter::RxPaused);
        }
        // Transmit completions count as work, so that their interrupts are deferred as well.
        (ran.messages + handled.all).min(budget - 1)
    }

    fn arm(&self, state: &mut State) -> bool {
        let sh = &*self.shared;
        let more = state.rma.rearm(sh);
        // The mailbox interrupt stays masked while messages are deliberately left in the mailbox.
        let pending = !state.paused && state.velo.rearm(sh);
        more || pending
    }

    fn netpoll(&self, state: Option<&mut State>) -> bool {
        let found = state.is_some_and(|state| {
            let found = self.completions(state);
            self.age(state);
            found
        });
        // Netpoll must resolve every cause of a stopped queue here, because timers and work items
        // may not run before the caller has sent its data.
        self.shared.tx_poll_port();
        self.shared.tx_unblock();
        found
    }
}
