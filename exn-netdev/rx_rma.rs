// SPDX-License-Identifier: GPL-2.0-only

//! The end of fetches, and the poll function of the RMA unit: notifications end announced frames (of ours) and fetches (by us).

use crate::{
    conf,
    machine::{Clock, RxBuffer},
    reason::{Counter, Reason},
    rx_velo::VeloPoll,
    shared::Shared,
};
use extoll_core::rma;
use kernel::sync::{atomic::Relaxed, Arc};
use kernel_ext::net::{self, BqlDone, Checksum, Napi, NapiPoll, PollCx, Polled, RxSkb, SkBuff};
use protocol::{rendezvous::Fetched, Time};
use wire::ext_eth::{self, Completion, Side};

/// Most notifications handled in one run, transmit completions included.
const BATCH: usize = 256;

impl Shared {
    /// Housekeeping of the fetches.
    ///
    /// All GETs that were given to the port before `settled` are with the NIC.
    pub(crate) fn rx_tick(&self, now: u64, settled: Time) {
        let limits = self.limits();
        let (lost, needs_scratch) = {
            let mut rx = self.rx.lock();
            (rx.age(&Clock, &limits, settled, drop), rx.needs_scratch())
        };
        // Without memory the next run tries again.
        let fresh = needs_scratch
            .then(|| self.ndev.map_rx(conf::MAX_FRAME).ok())
            .flatten();
        if let Some(scratch) = fresh {
            let old = self.rx.lock().set_scratch(Some(RxBuffer(scratch)));
            drop(old);
        }
        if let Some((node, n)) = lost {
            self.reject_many(Reason::RxTimeout, n, Some(node), n);
            self.unanswered(node, now);
        }
    }

    /// Ends a fetch; `deliver` takes the frame.
    fn rx_complete(&self, c: &Completion, deliver: impl FnOnce(RxSkb)) {
        let ended = self.rx.lock().notified(&Clock, c);
        let (buffer, reason, detail) = match ended {
            Fetched::Frame(RxBuffer(buffer), node) => {
                let skb = buffer.complete();
                if ext_eth::is_own_group_frame(skb.data(), node, self.nic.node()) {
                    return self.reject(Reason::RxOwnMulticast, Some(node), 0);
                }
                self.count(Counter::RxRdv);
                return deliver(skb);
            }
            Fetched::Discarded => (None, Reason::RxDiscarded, c.key),
            Fetched::Failed(buffer, error) => (buffer, Reason::RxNotifyError, u64::from(error)),
            Fetched::Late(buffer) => (buffer, Reason::Late, c.key),
            Fetched::Unmatched => return self.unmatched(c.peer, c.key),
        };
        drop(buffer);
        self.reject(reason, Some(c.peer), detail);
    }
}

/// Handles the notifications of the port.
pub(crate) struct RmaPoll {
    pub(crate) shared: Arc<Shared>,
    pub(crate) velo: Arc<Napi<VeloPoll>>,
}

/// What only the poll function uses.
#[derive(Default)]
pub(crate) struct RmaState {
    pub(crate) queue: Option<rma::Notifications>,
}

impl RmaPoll {
    /// Handles up to `budget` notifications. `consume` frees a frame that was sent, `deliver` takes one that was received and says
    /// whether it counts.
    pub(crate) fn run(
        &self,
        state: &mut RmaState,
        budget: usize,
        mut each: impl FnMut(Outcome),
    ) -> usize {
        let Some(queue) = state.queue.as_mut() else {
            return 0;
        };
        let sh = &*self.shared;
        let mut done = BqlDone::default();
        let n = queue.poll(budget, |notification| {
            match Completion::from_notification(notification) {
                Ok(c) => match c.side {
                    Side::Sent => sh.tx_complete(&c, &mut done, |skb| each(Outcome::Sent(skb))),
                    Side::Received => sh.rx_complete(&c, |skb| each(Outcome::Received(skb))),
                },
                Err(reject) => sh.reject(Reason::BadNotify, Some(notification.node), reject.got),
            }
        });
        if n > 0 {
            sh.notified(net::jiffies64());
            sh.ndev.bql_done(done);
            sh.tx_unblock();
        }
        n
    }
}

/// A frame that is done.
pub(crate) enum Outcome {
    /// It was sent.
    Sent(SkBuff),
    /// It was received.
    Received(RxSkb),
}

impl NapiPoll for RmaPoll {
    type State = RmaState;

    fn poll(&self, state: &mut RmaState, cx: &mut PollCx<'_>) -> Polled {
        let budget = cx.budget();
        let sh = &*self.shared;
        sh.count(Counter::PollRma);
        let checksum = checksum(false);
        let (mut received, mut handled) = (0, 0);
        // Frames that were sent are not counted, but bounded.
        while received < budget && handled < BATCH {
            let chunk = (budget - received).min(BATCH - handled);
            let n = self.run(state, chunk, |outcome| match outcome {
                Outcome::Sent(skb) => cx.consume(skb),
                Outcome::Received(skb) => {
                    received += 1;
                    if let Err(skb) = cx.receive(skb, checksum) {
                        sh.reject(Reason::RxShort, None, u64::from(skb.len()));
                    }
                }
            });
            handled += n;
            if n < chunk {
                break;
            }
        }
        if handled > 0 && sh.waiting.load(Relaxed) > 0 {
            // Places and memory may be free again.
            self.velo.schedule();
        }
        if received >= budget || handled >= BATCH {
            return Polled::More;
        }
        // What was sent counts, too, so that its interrupts can be deferred as well.
        let work = handled.min(budget - 1);
        if cx.defers(work) {
            return Polled::Deferred(work);
        }
        if state.queue.as_mut().is_some_and(|queue| queue.rearm()) {
            return Polled::More;
        }
        Polled::Done(work)
    }
}

/// How a received frame is marked, which came in several messages or not.
pub(crate) fn checksum(several: bool) -> Checksum {
    if conf::verify_rx_checksum(several) {
        Checksum::Unknown
    } else {
        Checksum::Verified
    }
}
