// SPDX-License-Identifier: GPL-2.0-only

//! The end of fetches: notifications end announced frames (of ours) and fetches (by us).

use crate::{
    conf,
    machine::{Clock, RxBuffer},
    reason::{Counter, Reason},
    shared::Shared,
};
use extoll_core::rma;
use kernel::{prelude::*, sync::atomic::Relaxed};
use kernel_ext::{
    mem::BoundDevice,
    net::{BqlDone, Checksum, RxSkb, Unmapped},
};
use protocol::{
    eth::{order::Ticket, rendezvous::Fetched},
    Clock as _, Time,
};
use wire::{
    eth::{
        self,
        checksum::{unfinished, Unfinished},
        Completion, Side,
    },
    ids::NodeId,
};

impl Shared {
    /// Housekeeping of the fetches.
    ///
    /// All GETs that were given to the port before `settled` are with the NIC.
    pub(crate) fn rx_tick(&self, now: Time, settled: Time) {
        let limits = self.limits();
        let (lost, needs_scratch) = {
            let mut rx = self.rx.lock();
            let free = |buffer: RxBuffer| buffer.free(&self.nic);
            (rx.age(&Clock, &limits, settled, free), rx.needs_scratch())
        };
        // Without memory the next run tries again.
        let fresh = needs_scratch.then(|| self.scratch_buffer().ok()).flatten();
        if let Some(scratch) = fresh {
            self.set_scratch(Some(scratch));
        }
        if let Some((node, n)) = lost {
            self.reject_many(Reason::RxTimeout, n, Some(node), n);
            self.unanswered(node, now);
        }
    }

    /// Makes a scratch buffer.
    pub(crate) fn scratch_buffer(&self) -> Result<RxBuffer> {
        let make = |dev: &BoundDevice| RxBuffer::scratch(dev, &self.ndev, conf::MAX_FRAME);
        self.nic.with_bound_atomic(make)?
    }

    /// Replaces the scratch buffer, or takes it away.
    pub(crate) fn set_scratch(&self, scratch: Option<RxBuffer>) {
        let old = self.rx.lock().set_scratch(scratch);
        if let Some(old) = old {
            old.free(&self.nic);
        }
    }

    /// Ends a fetch; `each` takes the frame, or hears that there will be none.
    fn rx_complete(&self, dev: &BoundDevice, c: &Completion, each: impl FnOnce(Outcome)) {
        let ended = self.rx.lock().notified(&Clock, c);
        let (buffer, reason, detail, ticket) = match ended {
            Fetched::Frame(buffer, node, ticket) => {
                // The buffers are of this binding: nothing is kept beyond it.
                let Some((skb, hole)) = buffer.complete(dev) else {
                    return;
                };
                if let Some(at) = hole {
                    // Nobody may see what was in that memory before.
                    drop(skb);
                    (None, Reason::RxHole, at.into(), ticket)
                } else if !eth::is_own_group_frame(skb.data(), node, self.nic.node()) {
                    self.count(Counter::RxRdv);
                    return each(Outcome::Received(skb, node, ticket));
                } else {
                    drop(skb);
                    (None, Reason::RxOwnMulticast, 0, ticket)
                }
            }
            Fetched::Discarded(ticket) => (None, Reason::RxDiscarded, c.key, ticket),
            Fetched::Failed(buffer, error, ticket) => {
                (buffer, Reason::RxNotifyError, error.into(), ticket)
            }
            // Nothing waits for it any more.
            Fetched::Late(buffer) => (buffer, Reason::Late, c.key, None),
            Fetched::Unmatched => return self.unmatched(c.peer, c.key),
        };
        if let Some(buffer) = buffer {
            drop(buffer.map.discard(dev));
        }
        if let Some(ticket) = ticket {
            each(Outcome::Ended(ticket));
        }
        self.reject(reason, Some(c.peer), detail);
    }
}

/// What only the poll function uses.
#[derive(Default)]
pub(crate) struct RmaState {
    pub(crate) queue: Option<rma::Notifications>,
    /// Something was taken from the queue since it was armed.
    pub(crate) used: bool,
}

impl RmaState {
    /// Handles up to `budget` notifications.
    pub(crate) fn run(
        &mut self,
        sh: &Shared,
        budget: usize,
        mut each: impl FnMut(Outcome),
    ) -> usize {
        let Some(queue) = self.queue.as_mut() else {
            return 0;
        };
        let mut done = BqlDone::default();
        let handled = sh.nic.with_bound_atomic(|dev| {
            queue.poll(budget, |notification| {
                match Completion::from_notification(notification) {
                    Ok(c) => match c.side {
                        Side::Sent => {
                            let sent = |skb| each(Outcome::Sent(skb));
                            sh.tx_complete(dev, &c, &mut done, sent);
                        }
                        Side::Received => sh.rx_complete(dev, &c, &mut each),
                    },
                    Err(reject) => {
                        sh.reject(Reason::BadNotify, Some(notification.node), reject.got)
                    }
                }
            })
        });
        // The ports are closed before the device is unbound.
        let n = handled.unwrap_or(0);
        if n > 0 {
            self.used = true;
            sh.notified(Clock.now());
            sh.ndev.bql_done(done);
            sh.tx_unblock();
        }
        n
    }

    /// Arms the interrupt if it has come since, or something was taken. True if there is more.
    pub(crate) fn rearm(&mut self, sh: &Shared) -> bool {
        let fired = sh.rma_fired.xchg(false, Relaxed);
        let used = core::mem::take(&mut self.used);
        let queue = self.queue.as_mut().filter(|_| fired || used);
        queue.is_some_and(|queue| queue.rearm())
    }
}

/// What a notification says.
pub(crate) enum Outcome {
    /// A frame was sent.
    Sent(Unmapped),
    /// A frame of this node was received, whose place this is.
    Received(RxSkb, NodeId, Option<Ticket>),
    /// The frame of this place will not come.
    Ended(Ticket),
}

/// How a received frame is marked, which came in several messages or not.
///
/// One whose checksum is unfinished says nothing about itself, and all that is known is that the
/// links and the tags of its messages found nothing wrong. All others are left to the stack, which
/// adds them up once, most of them when it puts them together or copies them.
pub(crate) fn checksum(sh: &Shared, frame: &RxSkb, several: bool) -> Checksum {
    match conf::verify_rx_checksum() {
        _ if !sh.ndev.takes_unfinished() => Checksum::Unknown,
        conf::Verify::None => Checksum::Verified,
        _ if several => Checksum::Unknown,
        conf::Verify::All | conf::Verify::Finished => match unfinished(frame.data()) {
            Some(Unfinished { start, offset }) => {
                sh.count(Counter::RxUnfinished);
                Checksum::Unfinished { start, offset }
            }
            None => Checksum::Unknown,
        },
    }
}
