// SPDX-License-Identifier: GPL-2.0-only

//! Fetches in flight, and the poll function of the RMA unit: notifications end announced frames (of ours) and fetches (by us).

use crate::{
    conf,
    reason::{Counter, Reason},
    rx_velo::VeloPoll,
    shared::{ms, since, Shared},
    slots::Slots,
};
use extoll_core::{quarantine::Batch, rma};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::net::{
    self, BqlDone, Checksum, Napi, NapiPoll, PollCx, Polled, RxMapping, RxSkb, SkBuff,
};
use wire::{
    ext_eth::{self, Completion, Side},
    ids::NodeId,
};

/// Most notifications handled in one run, transmit completions included.
const BATCH: usize = 256;

/// A fetch.
pub(crate) struct Fetch {
    pub(crate) buffer: RxMapping,
    /// Into the scratch buffer: the frame is thrown away.
    pub(crate) scratch: bool,
    pub(crate) node: NodeId,
    /// When it was posted, in jiffies.
    pub(crate) born: u64,
    /// Not answered in time; the buffer stays mapped, and what arrives is thrown away.
    pub(crate) lost: bool,
}

#[derive(Default)]
struct Source {
    flight: u16,
    lost: u16,
}

/// Fetches in flight, by the address of their last fragment.
pub(crate) struct Fetches {
    flight: Slots<Fetch>,
    sources: Slots<Source>,
    /// Those that were not answered in time.
    lost: usize,
    /// For frames that are fetched only to free the sender's buffer; `None` while in use.
    scratch: Option<RxMapping>,
    /// Room for what is left when the port is closed.
    batch: Option<Batch>,
}

/// What a source may do.
pub(crate) enum Allowed {
    /// Fetch now.
    Yes,
    /// Not now.
    Later,
    /// It leaves too much unanswered.
    No(u64),
}

/// What ended.
enum Ended {
    Frame(RxMapping, NodeId),
    Discarded,
    Failed(Option<RxMapping>, Reason, u64),
    Unmatched,
}

impl Fetches {
    /// None. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            flight: Slots::new(conf::RX_FLIGHT)?,
            sources: Slots::new(conf::RX_FLIGHT)?,
            lost: 0,
            scratch: None,
            batch: None,
        })
    }

    /// Number in flight.
    pub(crate) fn len(&self) -> usize {
        self.flight.len()
    }

    /// Whether any is still expected to be answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.flight.len() == self.lost
    }

    /// Puts the scratch buffer in its place (back).
    pub(crate) fn set_scratch(&mut self, scratch: Option<RxMapping>) -> Option<RxMapping> {
        core::mem::replace(&mut self.scratch, scratch)
    }

    /// Sets or takes the place for what is left when the port is closed.
    pub(crate) fn set_batch(&mut self, batch: Option<Batch>) -> Option<Batch> {
        core::mem::replace(&mut self.batch, batch)
    }

    /// Takes the scratch buffer.
    pub(crate) fn take_scratch(&mut self) -> Option<RxMapping> {
        self.scratch.take()
    }

    /// Whether a frame of this source may be fetched.
    pub(crate) fn allowed(&self, node: NodeId) -> Allowed {
        let (flight, lost) = self
            .sources
            .get(u64::from(node.0))
            .map_or((0, 0), |s| (s.flight, s.lost));
        if lost > 0 && flight >= conf::RX_PEER_BOUND / 4 {
            return Allowed::No(u64::from(flight));
        }
        if flight >= conf::RX_PEER_BOUND || self.flight.is_full() {
            return Allowed::Later;
        }
        Allowed::Yes
    }

    /// Adds a fetch; gives it back if there is no place.
    pub(crate) fn insert(&mut self, key: u64, fetch: Fetch) -> Result<(), Fetch> {
        let source = u64::from(fetch.node.0);
        self.flight.insert(key, fetch)?;
        if self.sources.get(source).is_none() {
            // There is room: no more sources than fetches.
            let _ = self.sources.insert(source, Source::default());
        }
        if let Some(s) = self.sources.get_mut(source) {
            s.flight += 1;
        }
        Ok(())
    }

    /// Removes a fetch.
    pub(crate) fn remove(&mut self, key: u64) -> Option<Fetch> {
        let fetch = self.flight.remove(key)?;
        self.leave(&fetch);
        Some(fetch)
    }

    fn leave(&mut self, fetch: &Fetch) {
        if fetch.lost {
            self.lost = self.lost.saturating_sub(1);
        }
        let key = u64::from(fetch.node.0);
        let gone = self.sources.get_mut(key).is_some_and(|s| {
            s.flight = s.flight.saturating_sub(1);
            if fetch.lost {
                s.lost = s.lost.saturating_sub(1);
            }
            s.flight == 0
        });
        if gone {
            self.sources.remove(key);
        }
    }

    /// Takes any fetch out, after the port was closed.
    pub(crate) fn flush_one(&mut self) -> Option<Fetch> {
        let (_, fetch) = self.flight.pop_oldest()?;
        self.leave(&fetch);
        Some(fetch)
    }

    fn complete(&mut self, c: &Completion) -> Ended {
        if self.flight.get(c.key).is_none_or(|f| f.node != c.peer) {
            return Ended::Unmatched;
        }
        let Some(fetch) = self.remove(c.key) else {
            return Ended::Unmatched;
        };
        let Fetch {
            buffer,
            scratch,
            node,
            lost,
            ..
        } = fetch;
        let buffer = if scratch {
            self.scratch = Some(buffer);
            None
        } else {
            Some(buffer)
        };
        if c.error != 0 {
            return Ended::Failed(buffer, Reason::RxNotifyError, u64::from(c.error));
        }
        if lost {
            return Ended::Failed(buffer, Reason::Late, c.key);
        }
        match buffer {
            Some(buffer) => Ended::Frame(buffer, node),
            None => Ended::Discarded,
        }
    }

    /// Marks what is overdue and frees what was for long. Returns source and number of those newly overdue.
    fn age(&mut self, now: u64) -> Option<(NodeId, u64)> {
        let (timeout, keep) = (ms(conf::timeout_ms()), ms(conf::quarantine_ms()));
        let mut lost: Option<(NodeId, u64)> = None;
        let Self {
            flight,
            sources,
            lost: total,
            ..
        } = self;
        flight.for_each_mut(|_, f| {
            if since(now, f.born) < timeout {
                return false;
            }
            if !f.lost {
                f.lost = true;
                *total += 1;
                if let Some(s) = sources.get_mut(u64::from(f.node.0)) {
                    s.lost += 1;
                }
                lost = Some((f.node, lost.map_or(0, |(_, n)| n) + 1));
            }
            true
        });
        while self
            .flight
            .oldest()
            .is_some_and(|(_, f)| since(now, f.born) >= timeout + keep)
        {
            let Some(fetch) = self.flush_one() else { break };
            if fetch.scratch {
                self.scratch = Some(fetch.buffer);
            }
        }
        lost
    }
}

impl Shared {
    /// Housekeeping of the fetches. Returns whether it is needed again.
    pub(crate) fn rx_tick(&self, now: u64) -> bool {
        let (lost, again) = {
            let mut rx = self.rx.lock();
            (rx.age(now), rx.len() > 0)
        };
        if let Some((node, n)) = lost {
            self.reject_many(Reason::RxTimeout, n, Some(node), n);
            self.unanswered(node, now);
        }
        again
    }

    /// Ends a fetch; `deliver` takes the frame.
    fn rx_complete(&self, c: &Completion, deliver: impl FnOnce(RxSkb)) {
        let ended = self.rx.lock().complete(c);
        match ended {
            Ended::Frame(buffer, node) => {
                let skb = buffer.complete();
                if ext_eth::is_own_group_frame(skb.data(), node, self.nic.node()) {
                    return self.reject(Reason::RxOwnMulticast, Some(node), 0);
                }
                self.count(Counter::RxRdv);
                deliver(skb);
            }
            Ended::Discarded => self.reject(Reason::RxDiscarded, Some(c.peer), c.key),
            Ended::Failed(buffer, reason, detail) => {
                drop(buffer);
                self.reject(reason, Some(c.peer), detail);
            }
            Ended::Unmatched => self.unmatched(c.peer, c.key),
        }
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
