// SPDX-License-Identifier: GPL-2.0-only

//! Processing of RMA notifications. A responder notification ends an announced frame of this node,
//! a completer notification ends a GET of this node.
//!
//! The poll function, netpoll and `stop` use these functions. Each notification needs the lock `rx`
//! or `tx` of [`Shared`]; they are never held together.

use crate::{
    conf,
    env::{Clock, RxBuffer},
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
    /// Does the housekeeping of GETs: replaces a used scratch buffer and ends overdue GETs. All
    /// GETs that were given to the port before `posted_before` have reached the NIC.
    pub(crate) fn rx_tick(&self, now: Time, posted_before: Time) {
        let limits = self.limits();
        let (lost, needs_scratch) = {
            let mut rx = self.rx.lock();
            let free = |buffer: RxBuffer| buffer.free(&self.nic);
            (
                rx.age(&Clock, &limits, posted_before, free),
                rx.needs_scratch(),
            )
        };
        // If the allocation fails, the next housekeeping retries it.
        let fresh = needs_scratch.then(|| self.scratch_buffer().ok()).flatten();
        if let Some(scratch) = fresh {
            self.set_scratch(Some(scratch));
        }
        if let Some((node, n)) = lost {
            self.reject_many(Reason::RxTimeout, n, Some(node), n);
            self.unanswered(node, now);
        }
    }

    /// Allocates a scratch buffer, the target of GETs whose data is discarded.
    pub(crate) fn scratch_buffer(&self) -> Result<RxBuffer> {
        let make = |dev: &BoundDevice| RxBuffer::scratch(dev, &self.ndev, conf::MAX_FRAME);
        self.nic.with_bound_atomic(make)?
    }

    /// Replaces or removes the scratch buffer.
    pub(crate) fn set_scratch(&self, scratch: Option<RxBuffer>) {
        let old = self.rx.lock().set_scratch(scratch);
        if let Some(old) = old {
            old.free(&self.nic);
        }
    }

    /// Ends the GET that a completer notification names. Calls `on_outcome` with the frame, or with
    /// [`Outcome::Ended`] if the frame failed.
    fn rx_complete(&self, dev: &BoundDevice, c: &Completion, on_outcome: impl FnOnce(Outcome)) {
        let ended = self.rx.lock().notified(&Clock, c);
        let (buffer, reason, detail, ticket) = match ended {
            Fetched::Frame(buffer, node, ticket) => {
                // Cannot fail: the ports are closed, and buffers removed, before the driver is
                // unbound.
                let Some((skb, hole)) = buffer.complete(dev) else {
                    return;
                };
                if let Some(at) = hole {
                    // The data in the hole is stale kernel memory, which must not reach the stack.
                    drop(skb);
                    (None, Reason::RxHole, at.into(), ticket)
                } else if !eth::is_own_group_frame(skb.data(), node, self.nic.node()) {
                    self.count(Counter::RxRdv);
                    return on_outcome(Outcome::Received(skb, node, ticket));
                } else {
                    drop(skb);
                    (None, Reason::RxOwnMulticast, 0, ticket)
                }
            }
            Fetched::Discarded(ticket) => (None, Reason::RxDiscarded, c.key, ticket),
            Fetched::Failed(buffer, error, ticket) => {
                (buffer, Reason::RxNotifyError, error.into(), ticket)
            }
            // The GET timed out earlier, so its frame has no position in the order.
            Fetched::Late(buffer) => (buffer, Reason::Late, c.key, None),
            Fetched::Unmatched => return self.unmatched(c.peer, c.key),
        };
        if let Some(buffer) = buffer {
            drop(buffer.map.discard(dev));
        }
        if let Some(ticket) = ticket {
            on_outcome(Outcome::Ended(ticket));
        }
        self.reject(reason, Some(c.peer), detail);
    }
}

/// RMA state that only the poll function uses. It has no lock.
#[derive(Default)]
pub(crate) struct RmaState {
    pub(crate) queue: Option<rma::Notifications>,
    /// Set if notifications were read since the interrupt was armed.
    pub(crate) used: bool,
}

impl RmaState {
    /// Processes up to `budget` notifications. Returns their number.
    pub(crate) fn run(
        &mut self,
        sh: &Shared,
        budget: usize,
        mut on_outcome: impl FnMut(Outcome),
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
                            let sent = |skb| on_outcome(Outcome::Sent(skb));
                            sh.tx_complete(dev, &c, &mut done, sent);
                        }
                        Side::Received => sh.rx_complete(dev, &c, &mut on_outcome),
                    },
                    Err(reject) => {
                        sh.reject(Reason::BadNotify, Some(notification.node), reject.got)
                    }
                }
            })
        });
        // Cannot fail: the ports are closed before the NIC is unbound.
        let n = handled.unwrap_or(0);
        if n > 0 {
            self.used = true;
            sh.notified(Clock.now());
            sh.ndev.bql_done(done);
            sh.tx_unblock();
        }
        n
    }

    /// Arms the interrupt if it fired or if notifications were read since. Returns whether
    /// notifications are pending.
    pub(crate) fn rearm(&mut self, sh: &Shared) -> bool {
        let fired = sh.rma_fired.xchg(false, Relaxed);
        let used = core::mem::take(&mut self.used);
        let queue = self.queue.as_mut().filter(|_| fired || used);
        queue.is_some_and(|queue| queue.rearm())
    }
}

/// Event that a notification reports.
pub(crate) enum Outcome {
    /// The peer has fetched an announced frame.
    Sent(Unmapped),
    /// This node has fetched a frame. The ticket is the frame's position in the order of frames.
    Received(RxSkb, NodeId, Option<Ticket>),
    /// The frame with this position in the order failed.
    Ended(Ticket),
}

/// Returns the checksum state of a received frame. `several` says whether it came in several
/// messages.
///
/// A frame with an unfinished checksum is protected only by the link CRC and the message tags. The
/// checksums of all other frames are left to the stack, which usually computes them while it copies
/// the frame.
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
