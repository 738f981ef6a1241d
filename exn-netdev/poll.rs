// SPDX-License-Identifier: GPL-2.0-only

//! The poll function of the interface, for both units: only one context delivers frames, so that those of a source stay in their order.

use crate::{
    machine::{Clock, Timed},
    reason::Counter,
    rx_rma::{checksum, Outcome, RmaState},
    rx_velo::{Run, VeloState},
    shared::Shared,
};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::net::{self, NapiPoll, PollCx, Polled};

/// Most notifications handled in one run, transmit completions included.
const BATCH: usize = 256;

/// What only the poll function uses.
pub(crate) struct State {
    pub(crate) velo: VeloState,
    pub(crate) rma: RmaState,
}

impl State {
    /// Without ports. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            velo: VeloState::new()?,
            rma: RmaState::default(),
        })
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
        let State { velo, rma } = state;
        let checksum = checksum(false);
        let (mut frames, mut all) = (0, 0);
        // Frames that were sent are not counted, but bounded.
        while frames < budget && all < BATCH {
            let chunk = (budget - frames).min(BATCH - all);
            let n = rma.run(sh, chunk, |outcome| match outcome {
                Outcome::Sent(skb) => cx.consume(skb),
                Outcome::Received(skb, node, ticket) => {
                    frames += 1;
                    velo.rx.fetched(sh, ticket, (skb, checksum, node), cx);
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
            velo.rx.deliver(sh, cx);
        }
        let more = frames >= budget || all >= BATCH;
        Handled { frames, all, more }
    }
}

impl NapiPoll for Poll {
    type State = State;

    fn poll(&self, state: &mut State, cx: &mut PollCx<'_>) -> Polled {
        let budget = cx.budget();
        let sh = &*self.shared;
        sh.tx_unblock();
        sh.count(Counter::PollVelo);
        // Messages get their part, too.
        let handled = self.notifications(state, budget.div_ceil(2), cx);
        let left = budget - handled.frames;
        if left == 0 {
            return Polled::More;
        }
        let State { velo, rma } = state;
        let mut run = Run {
            sh,
            mailbox: velo.mailbox.as_mut(),
            rx: &mut velo.rx,
            cx: &mut *cx,
            now: net::jiffies64(),
        };
        let ran = protocol::poll::run(&mut run, &Timed(&sh.timer), &Clock, left, &sh.periods());
        velo.used |= ran.messages > 0;
        velo.rx.deliver(sh, cx);
        if handled.more || ran.messages >= left {
            return Polled::More;
        }
        // What was sent counts, too, so that its interrupts can be deferred as well.
        let work = (ran.messages + handled.all).min(budget - 1);
        if ran.paused {
            // The mailbox fills and holds the network back; its interrupt stays masked until there is room.
            sh.count(Counter::RxPaused);
            return match rma.rearm(sh) {
                true => Polled::More,
                false => Polled::Done(work),
            };
        }
        if cx.defers(work) {
            return Polled::Deferred(work);
        }
        // Both, whatever the first one says.
        let more = [rma.rearm(sh), velo.rearm(sh)];
        match more.contains(&true) {
            true => Polled::More,
            false => Polled::Done(work),
        }
    }

    fn netpoll(&self) {
        self.shared.tx_unblock();
    }
}
