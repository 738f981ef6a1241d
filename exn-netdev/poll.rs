// SPDX-License-Identifier: GPL-2.0-only

//! The poll function of the interface, for both units: only one context delivers frames, so that
//! those of a source stay in their order.

use crate::{
    conf,
    machine::{Clock, Frame, Kernel, Timed},
    reason::Counter,
    rx_rma::{checksum, Outcome, RmaState},
    rx_velo::{deliver, Run, VeloState},
    shared::Shared,
    tx::Owners,
};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::net::{NapiPoll, Owner, PollCx};
use protocol::{Clock as _, Memory as _, Time};

/// Most notifications handled in one run, transmit completions included.
const BATCH: usize = 256;

/// Most times in a row that netpoll takes so many.
const ROUNDS: usize = 4;

/// What only the poll function uses.
pub(crate) struct State {
    pub(crate) velo: VeloState,
    pub(crate) rma: RmaState,
    /// Frames that netpoll has found, and that wait for nothing but delivery.
    found: KVVec<Frame>,
    /// Owners of frames that netpoll has found to stand still: they can't be dropped there.
    owners: KVVec<Option<Owner>>,
    /// There are some.
    owed: bool,
    /// When netpoll did the housekeeping of the sending side last.
    aged: Time,
    /// Messages are left in the mailbox: it fills and holds the network back.
    paused: bool,
}

impl State {
    /// Without ports. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            velo: VeloState::new()?,
            rma: RmaState::default(),
            found: KVVec::with_capacity(conf::FOUND, GFP_KERNEL)?,
            owners: Kernel::array(conf::TX_FLIGHT_MAX as usize, |_| None)?,
            owed: false,
            aged: Time::default(),
            paused: false,
        })
    }

    /// Forgets what was received; returns the number of announcements and frames. The ports are
    /// closed. May sleep.
    pub(crate) fn flush(&mut self, sh: &Shared) -> usize {
        let found = self.found.len();
        self.found.clear();
        self.disown();
        self.paused = false;
        found + self.velo.rx.flush(sh)
    }

    /// Drops what netpoll has left. Not with interrupts disabled.
    fn disown(&mut self) {
        if core::mem::take(&mut self.owed) {
            self.owners.iter_mut().for_each(|owner| *owner = None);
        }
    }
}

/// Notifications that were handled.
struct Handled {
    /// Frames that were received.
    frames: usize,
    all: usize,
    /// There may be more.
    more: bool,
}

/// Handles messages and notifications of the ports.
pub(crate) struct Poll {
    pub(crate) shared: Arc<Shared>,
}

impl Poll {
    /// Takes notifications of up to `budget` received frames.
    fn notifications(&self, state: &mut State, budget: usize, cx: &mut PollCx<'_>) -> Handled {
        let sh = &*self.shared;
        let State {
            velo, rma, found, ..
        } = state;
        // All at once, as they came before the others; that is what this run does, then.
        let (mut frames, mut all) = (found.len().min(budget), 0);
        for frame in found.drain_all() {
            deliver(sh, frame, cx);
        }
        // Frames that were sent are not counted, but bounded.
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

    /// Takes notifications in any context; received frames are delivered later. Returns whether
    /// there were any.
    fn completions(&self, state: &mut State) -> bool {
        let sh = &*self.shared;
        let State {
            velo, rma, found, ..
        } = state;
        let mut all = 0;
        for _ in 0..ROUNDS {
            // There is room for all fetches that can be in flight, and no new ones begin.
            let chunk = conf::FOUND.saturating_sub(found.len()).min(BATCH);
            let n = rma.run(sh, chunk, |outcome| match outcome {
                Outcome::Sent(skb) => skb.consume(),
                Outcome::Received(skb, node, ticket) => {
                    let checksum = checksum(sh, &skb, false);
                    if let Err(frame) = velo.rx.fetched(ticket, (skb, checksum, node)) {
                        // There is room for as many as were asked for.
                        let _ = found.push_within_capacity(frame);
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

    /// Housekeeping of the sending side in any context, as often as the clock moves. It stands still
    /// if the only processor has interrupts off.
    fn age(&self, state: &mut State) {
        let now = Clock.now();
        if core::mem::replace(&mut state.aged, now) != now {
            let mut owners = Owners::new(&mut state.owners);
            // One that finds no place would be dropped at once.
            if !owners.is_full() {
                self.shared.tx_age(now, &mut owners);
                state.owed = true;
            }
        }
    }
}

impl NapiPoll for Poll {
    type State = State;

    fn poll(&self, state: &mut State, cx: &mut PollCx<'_>) -> usize {
        let budget = cx.budget();
        let sh = &*self.shared;
        state.disown();
        sh.tx_unblock();
        sh.count(Counter::PollVelo);
        // Messages get their part, too.
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
        // What was sent counts, too, so that its interrupts can be deferred as well.
        (ran.messages + handled.all).min(budget - 1)
    }

    fn arm(&self, state: &mut State) -> bool {
        let sh = &*self.shared;
        let more = state.rma.rearm(sh);
        // The interrupt of a mailbox that is left to fill stays masked until there is room.
        let pending = !state.paused && state.velo.rearm(sh);
        more || pending
    }

    fn netpoll(&self, state: Option<&mut State>) -> bool {
        let found = state.is_some_and(|state| {
            let found = self.completions(state);
            self.age(state);
            found
        });
        // All that can hold the queue has to be looked at here. Timers and work items may not get
        // to run until the caller has sent what it has.
        self.shared.tx_poll_port();
        self.shared.tx_unblock();
        found
    }
}
