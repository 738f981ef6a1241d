// SPDX-License-Identifier: GPL-2.0-only

//! Sending side. Short frames are sent as VELO messages ("eager"). All others are announced and
//! kept until the peer has fetched them. All functions run with the lock `tx` of [`Shared`] held,
//! i.e. with interrupts off.
//!
//! A frame that cannot be sent at once (no credit, too many frames in flight) becomes the *pending*
//! frame, and the queue is stopped. The pending frame is sent before any other. Therefore the stack
//! never gets a frame back, and messages of two frames never interleave. Only a few messages of a
//! long frame are sent at a time, because interrupts are off. Between these bursts the frame is
//! pending.
//!
//! Receivers may deliver eager frames at once, so an eager frame could overtake announced frames.
//! Therefore a short frame is also announced while announced frames of its flow are in flight.

use crate::{
    conf,
    env::{Clock, TxBuffer},
    outgoing::{Outgoing, Tx},
    reason::{Counter, Reason},
    shared::Shared,
};
use extoll_core::velo::{self, Header, SendError};
use kernel::sync::atomic::Relaxed;
use kernel_ext::net::{BqlDone, Owner, SkBuff, TxMapping, TxQueue};
use protocol::{
    eth::rendezvous::{Admitted, AnnouncePort, Ended, Limits, Unsent},
    Clock as _, Time, TransportError,
};
use wire::{
    eth::{self, Announcement, Completion, Path},
    ids::NodeId,
    velo::{Descriptor, Target},
};

/// Result of sending a frame.
pub(crate) enum Sent {
    /// The frame was sent or announced. It is returned if it may be freed.
    Done,
    /// Some messages of the frame were sent. The frame is pending, and [`Tx::proceed`] can send
    /// more at once.
    Partial,
    /// The frame is pending, and the queue is stopped. The counter names the cause.
    Pending(Counter),
    /// The frame was not sent. Contains the reason and a value for the log line.
    Dropped(Reason, u64),
}

fn header(d: Descriptor) -> Header {
    Header {
        mtt: d.mtt,
        tag: d.tag,
        irq: d.irq,
        ..Header::new(d.target, d.vpid)
    }
}

/// VELO port through which the state machine sends announcements.
struct Messages<'a>(&'a velo::Sender);

impl AnnouncePort for Messages<'_> {
    fn announce(&mut self, to: NodeId, announcement: &Announcement) -> Result<(), TransportError> {
        self.0
            .send(
                header(eth::announcement_descriptor(to)),
                &announcement.encode(),
            )
            .map_err(|e| match e {
                SendError::Full | SendError::Retry => TransportError::Later,
                SendError::Down | SendError::Invalid => TransportError::Never,
            })
    }
}

impl Tx {
    /// Sends a frame of an open interface or makes it pending. Returns the frame if it may be
    /// freed.
    fn send(
        &mut self,
        sh: &Shared,
        frame: Outgoing,
        queue: Option<&TxQueue<'_>>,
    ) -> (Sent, Option<SkBuff>) {
        // The port is moved out of `self` and back, which is cheaper than cloning it.
        let Some(port) = self.port.take() else {
            return (Sent::Dropped(Reason::TxPort, 0), Some(frame.skb));
        };
        let announce = match (frame.path, frame.target) {
            (_, Target::Node(_)) if frame.sent > 0 => false,
            (path, Target::Node(node)) => {
                self.announced.sends(&Clock, node);
                path == Path::Rendezvous || self.announced.flow_in_flight(node, frame.flow)
            }
            (path, Target::Group(_)) => path == Path::Rendezvous,
        };
        let result = if announce {
            self.announce(sh, &port, frame, queue)
        } else {
            self.send_eager(sh, &port, frame)
        };
        self.port = Some(port);
        result
    }

    fn defer(&mut self, frame: Outgoing, why: Counter) -> (Sent, Option<SkBuff>) {
        self.pending = Some(frame);
        (Sent::Pending(why), None)
    }

    fn send_eager(
        &mut self,
        sh: &Shared,
        port: &velo::Sender,
        mut frame: Outgoing,
    ) -> (Sent, Option<SkBuff>) {
        let len = frame.skb.len();
        let Ok(fragments) = eth::eager_fragments(len) else {
            return (
                Sent::Dropped(Reason::TxLong, u64::from(len)),
                Some(frame.skb),
            );
        };
        let total = fragments.len();
        // The first message of a frame is sent only with credit for all of its messages.
        let mut result = port.reserve(total - frame.sent.min(total));
        if result.is_ok() {
            if frame.sent == 0 {
                frame.skb.tx_timestamp();
            }
            for fragment in fragments.skip(frame.sent).take(conf::BURST) {
                result = port.send(
                    header(fragment.descriptor(frame.target)),
                    fragment.data(frame.skb.data()),
                );
                if result.is_err() {
                    break;
                }
                frame.sent += 1;
            }
        }
        match result {
            Ok(()) if frame.sent < total => {
                self.pending = Some(frame);
                (Sent::Partial, None)
            }
            Ok(()) => {
                sh.ndev.count_tx(1, u64::from(len));
                sh.counters.add(Counter::TxFragments, total as u64);
                sh.count(match frame.target {
                    Target::Group(_) => Counter::TxMulticast,
                    Target::Node(_) => Counter::TxEager,
                });
                (Sent::Done, Some(frame.skb))
            }
            Err(SendError::Full | SendError::Retry) => self.defer(frame, Counter::TxStopCredit),
            Err(SendError::Down | SendError::Invalid) => (
                Sent::Dropped(Reason::TxPort, frame.sent as u64),
                Some(frame.skb),
            ),
        }
    }

    fn announce(
        &mut self,
        sh: &Shared,
        port: &velo::Sender,
        frame: Outgoing,
        queue: Option<&TxQueue<'_>>,
    ) -> (Sent, Option<SkBuff>) {
        let Target::Node(node) = frame.target else {
            return (Sent::Dropped(Reason::TxMulticastLong, 0), Some(frame.skb));
        };
        let prompt = match self.announced.admit(&Clock, node, &sh.limits()) {
            Admitted::Yes { prompt } => prompt,
            Admitted::Later => return self.defer(frame, Counter::TxStopFull),
            Admitted::No(flight) => {
                return (
                    Sent::Dropped(Reason::TxPeerBound, flight as u64),
                    Some(frame.skb),
                )
            }
        };
        match port.reserve(1) {
            Ok(()) => {}
            Err(SendError::Full | SendError::Retry) => {
                return self.defer(frame, Counter::TxStopCredit)
            }
            Err(_) => return (Sent::Dropped(Reason::TxPort, 0), Some(frame.skb)),
        }
        let Outgoing {
            skb,
            target,
            path,
            flow,
            ..
        } = frame;
        let len = skb.len();
        let mut skb = Some(skb);
        let map = sh.nic.with_bound_atomic(|dev| {
            let mut skb = skb.take()?;
            skb.tx_timestamp();
            Some(TxMapping::map(dev, skb))
        });
        let map = match map {
            Ok(Some(Ok(map))) => map,
            Ok(Some(Err((skb, _)))) => {
                return (Sent::Dropped(Reason::TxMap, u64::from(len)), Some(skb))
            }
            // Cannot happen: the port is closed before the device is unbound.
            Ok(None) | Err(_) => return (Sent::Dropped(Reason::TxPort, 0), skb),
        };
        // Frames to a slow peer are not charged to the byte queue limit, because they would stop
        // the queue for all other peers.
        let bql = queue.filter(|_| prompt).map(|q| q.bql_sent(len));
        let buffer = TxBuffer { map, bql };
        match self
            .announced
            .announce(&Clock, &mut Messages(port), node, buffer, len, flow)
        {
            Ok(()) => {
                self.publish(sh);
                sh.count(Counter::TxRdv);
                if path == Path::Eager {
                    sh.count(Counter::TxShortRdv);
                }
                (Sent::Done, None)
            }
            Err((buffer, why)) => {
                let Some(skb) = Self::take_back(sh, buffer) else {
                    return (Sent::Dropped(Reason::TxMap, u64::from(len)), None);
                };
                match why {
                    Unsent::Refused(TransportError::Later) => self.defer(
                        Outgoing {
                            skb,
                            target,
                            path,
                            flow,
                            sent: 0,
                        },
                        Counter::TxStopCredit,
                    ),
                    Unsent::Refused(TransportError::Never) => {
                        (Sent::Dropped(Reason::TxPort, 0), Some(skb))
                    }
                    Unsent::Table => (Sent::Dropped(Reason::TxMap, u64::from(len)), Some(skb)),
                }
            }
        }
    }

    /// Unmaps a frame that could not be announced, and removes it from the byte queue limit.
    fn take_back(sh: &Shared, buffer: TxBuffer) -> Option<SkBuff> {
        let mut done = BqlDone::default();
        if let Some(token) = buffer.bql {
            done.add(token);
        }
        sh.ndev.bql_done(done);
        let unmapped = sh.nic.with_bound_atomic(|dev| buffer.map.unmap(dev).ok());
        // Cannot fail: only a frame in flight can lose its owner.
        unmapped.ok()??.into_frame().ok()
    }

    /// Updates the gauge of announced frames in flight.
    fn publish(&self, sh: &Shared) {
        sh.in_flight
            .store(self.announced.in_flight() as u32, Relaxed);
    }

    /// Sends a frame. Stops the queue if the frame becomes pending.
    fn send_or_stop(
        &mut self,
        sh: &Shared,
        frame: Outgoing,
        queue: Option<&TxQueue<'_>>,
    ) -> (Sent, Option<SkBuff>) {
        let result = self.send(sh, frame, queue);
        if let (Sent::Pending(why), false) = (&result.0, self.stopped) {
            self.stop_queue(sh, *why);
        }
        result
    }

    fn stop_queue(&mut self, sh: &Shared, why: Counter) {
        self.stopped = true;
        sh.ndev.stop_queue();
        sh.count(why);
    }

    /// Sends a frame of the stack, with the lock of its transmit queue held. After
    /// [`Sent::Partial`] the caller sends the remainder with [`Tx::proceed`] before it releases
    /// that lock.
    pub(crate) fn transmit(
        &mut self,
        sh: &Shared,
        frame: Outgoing,
        queue: &TxQueue<'_>,
    ) -> (Sent, Option<SkBuff>) {
        let result = self.send_or_stop(sh, frame, Some(queue));
        let full = self.announced.in_flight() >= sh.conf.flight() as usize;
        if full && !self.stopped {
            self.stop_queue(sh, Counter::TxStopFull);
        }
        result
    }

    /// Sends more messages of the pending frame. Another CPU may already have sent them, because
    /// the poll function does not hold the lock of the transmit queue.
    pub(crate) fn proceed(&mut self, sh: &Shared) -> (Sent, Option<SkBuff>) {
        match self.pending.take() {
            Some(frame) => self.send_or_stop(sh, frame, None),
            None => (Sent::Done, None),
        }
    }

    /// Sends the pending frame, if there is one, and returns the result. Wakes the queue if another
    /// frame can be sent.
    pub(crate) fn unblock(&mut self, sh: &Shared) -> Option<(Sent, Option<SkBuff>)> {
        let result = self.pending.is_some().then(|| self.proceed(sh));
        if self.pending.is_some() {
            return result;
        }
        let limit = sh.conf.flight() as usize;
        if self.stopped && self.port.is_some() && self.announced.in_flight() <= limit - limit / 4 {
            self.stopped = false;
            sh.ndev.wake_queue();
            sh.count(Counter::TxWake);
        }
        result
    }

    /// Ends the announced frame that a notification names.
    pub(crate) fn notified(&mut self, sh: &Shared, c: &Completion) -> Ended<TxBuffer> {
        let ended = self.announced.notified(&Clock, &sh.limits(), c);
        self.publish(sh);
        ended
    }

    /// Handles a message in which `node` reports that it dropped the frame at `address`. Returns
    /// whether there is such a frame.
    pub(crate) fn dropped(
        &mut self,
        sh: &Shared,
        node: NodeId,
        address: u64,
        done: &mut BqlDone,
        owners: &mut Owners<'_>,
    ) -> bool {
        let found = self.announced.dropped(&Clock, node, address, |buffer| {
            buffer.stalled(sh, done, owners);
        });
        self.publish(sh);
        found
    }

    /// Marks stalled frames and ends overdue frames. Returns whether all work was done. If frames
    /// were ended, the result also contains one of their peers and the number of its frames.
    pub(crate) fn age(
        &mut self,
        sh: &Shared,
        limits: &Limits,
        done: &mut BqlDone,
        owners: &mut Owners<'_>,
    ) -> (Option<(NodeId, u64)>, bool) {
        // The time is read with the lock held, because another CPU may just have announced a frame.
        let posted_before = self.port.as_ref().map_or(Time::default(), |port| {
            let (posted, sent) = port.progress();
            self.posted.update(Clock.now(), posted, sent)
        });
        let result = self.announced.age(
            &Clock,
            limits,
            posted_before,
            |buffer| {
                buffer.stalled(sh, done, owners);
                !owners.is_full()
            },
            |buffer| buffer.free(&sh.nic),
        );
        self.publish(sh);
        result
    }
}

/// Sockets of stalled frames, in slots provided by the caller. The caller drops them with no lock
/// held and interrupts enabled.
pub(crate) struct Owners<'a> {
    slots: &'a mut [Option<Owner>],
    used: usize,
}

impl<'a> Owners<'a> {
    /// Uses the free slots that follow the occupied ones.
    pub(crate) fn new(slots: &'a mut [Option<Owner>]) -> Self {
        let used = slots.iter().take_while(|slot| slot.is_some()).count();
        Self { slots, used }
    }

    fn push(&mut self, owner: Owner) {
        if let Some(slot) = self.slots.get_mut(self.used) {
            *slot = Some(owner);
            self.used += 1;
        }
    }

    /// Returns whether no slot is free.
    pub(crate) fn is_full(&self) -> bool {
        self.used == self.slots.len()
    }
}

impl TxBuffer {
    /// Stops charging the frame to the byte queue limit, and detaches the frame from its socket.
    /// Otherwise TCP would not retransmit the segment, because it counts as queued. Other senders
    /// would wait for space in their send buffers.
    fn stalled(&mut self, sh: &Shared, done: &mut BqlDone, owners: &mut Owners<'_>) {
        if let Some(token) = self.bql.take() {
            done.add(token);
        }
        if let Some(owner) = self.map.owner() {
            owners.push(owner);
        }
        sh.count(Counter::TxStalled);
    }
}
