// SPDX-License-Identifier: GPL-2.0-only

//! The sending side: eager frames as VELO messages, the others announced and kept until the peer
//! has fetched them.
//!
//! A frame that can't go out at once (no credit, too many in flight) is *parked*: the queue is
//! stopped, and the frame goes first when there is room again. So the stack never gets a frame
//! back, and a frame of several messages of which some were sent is finished before anything else
//! is sent: messages of two frames never interleave. Of a long one a few messages are sent at a
//! time, as interrupts are off meanwhile; it is parked in between.
//!
//! Receivers may deliver frames as they come. So a short frame is announced as well as long as
//! announced ones of its flow are on their way, which it would overtake in a message.

use crate::{
    conf,
    machine::{Clock, TxBuffer},
    outgoing::{Outgoing, Tx},
    reason::{Counter, Reason},
    shared::Shared,
};
use extoll_core::velo::{self, Header, SendError};
use kernel::sync::atomic::Relaxed;
use kernel_ext::net::{BqlDone, Owner, SkBuff, TxMapping, TxQueue};
use protocol::{
    eth::rendezvous::{Admitted, AnnouncePort, Ended, Limits, Unsent},
    Clock as _, Refused, Time,
};
use wire::{
    eth::{self, Announcement, Completion, Path},
    ids::NodeId,
    velo::{Descriptor, Target},
};

/// What became of a frame.
pub(crate) enum Sent {
    /// Sent or announced. The frame is given back if nobody needs it any more.
    Done,
    /// Some of it. It is parked, and the rest can go at once: [`Tx::proceed`].
    Part,
    /// No room: it is parked, and the queue is stopped.
    Parked(Counter),
    /// Not sent.
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

/// The port as the machine sees it.
struct Messages<'a>(&'a velo::Sender);

impl AnnouncePort for Messages<'_> {
    fn announce(&mut self, to: NodeId, announcement: &Announcement) -> Result<(), Refused> {
        self.0
            .send(
                header(eth::announcement_descriptor(to)),
                &announcement.encode(),
            )
            .map_err(|e| match e {
                SendError::Full | SendError::Retry => Refused::Later,
                SendError::Down | SendError::Invalid => Refused::Never,
            })
    }
}

impl Tx {
    /// Sends a frame of an open interface, or parks it. Gives a frame that is not sent back.
    fn send(
        &mut self,
        sh: &Shared,
        frame: Outgoing,
        queue: Option<&TxQueue<'_>>,
    ) -> (Sent, Option<SkBuff>) {
        // Moved out and back (under the lock), which is cheaper than a reference.
        let Some(port) = self.port.take() else {
            return (Sent::Dropped(Reason::TxPort, 0), Some(frame.skb));
        };
        let announce = match (frame.path, frame.target) {
            (_, Target::Node(_)) if frame.sent > 0 => false,
            (path, Target::Node(node)) => {
                self.announced.sends(&Clock, node);
                path == Path::Rendezvous || self.announced.is_moving(node, frame.flow)
            }
            (path, Target::Group(_)) => path == Path::Rendezvous,
        };
        let result = match announce {
            true => self.announce(sh, &port, frame, queue),
            false => self.send_eager(sh, &port, frame),
        };
        self.port = Some(port);
        result
    }

    fn park(&mut self, frame: Outgoing, why: Counter) -> (Sent, Option<SkBuff>) {
        self.parked = Some(frame);
        (Sent::Parked(why), None)
    }

    fn send_eager(
        &mut self,
        sh: &Shared,
        port: &velo::Sender,
        mut frame: Outgoing,
    ) -> (Sent, Option<SkBuff>) {
        let len = frame.skb.len();
        let Ok(pieces) = eth::eager_pieces(len) else {
            return (
                Sent::Dropped(Reason::TxLong, u64::from(len)),
                Some(frame.skb),
            );
        };
        let total = pieces.len();
        // All of it or nothing: a frame is not begun without credit for its end.
        let mut result = port.reserve(total - frame.sent.min(total));
        if result.is_ok() {
            if frame.sent == 0 {
                frame.skb.tx_timestamp();
            }
            for piece in pieces.skip(frame.sent).take(conf::BURST) {
                result = port.send(
                    header(piece.descriptor(frame.target)),
                    piece.data(frame.skb.data()),
                );
                if result.is_err() {
                    break;
                }
                frame.sent += 1;
            }
        }
        match result {
            Ok(()) if frame.sent < total => {
                self.parked = Some(frame);
                (Sent::Part, None)
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
            Err(SendError::Full | SendError::Retry) => self.park(frame, Counter::TxStopCredit),
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
            Admitted::Later => return self.park(frame, Counter::TxStopFull),
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
                return self.park(frame, Counter::TxStopCredit)
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
            // The device is unbound only after the port was closed.
            Ok(None) | Err(_) => return (Sent::Dropped(Reason::TxPort, 0), skb),
        };
        // What goes to a peer that stands still is not charged: it would stop the queue for all
        // others.
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
                    Unsent::Refused(Refused::Later) => self.park(
                        Outgoing {
                            skb,
                            target,
                            path,
                            flow,
                            sent: 0,
                        },
                        Counter::TxStopCredit,
                    ),
                    Unsent::Refused(Refused::Never) => {
                        (Sent::Dropped(Reason::TxPort, 0), Some(skb))
                    }
                    Unsent::Table => (Sent::Dropped(Reason::TxMap, u64::from(len)), Some(skb)),
                }
            }
        }
    }

    /// Undoes the making of what was not announced.
    fn take_back(sh: &Shared, buffer: TxBuffer) -> Option<SkBuff> {
        let mut done = BqlDone::default();
        if let Some(token) = buffer.bql {
            done.add(token);
        }
        sh.ndev.bql_done(done);
        let unmapped = sh.nic.with_bound_atomic(|dev| buffer.map.unmap(dev).ok());
        // Its owner was not given up, as it never was in flight.
        unmapped.ok()??.into_frame().ok()
    }

    /// Tells whoever prepares a frame whether its flow matters.
    fn publish(&self, sh: &Shared) {
        sh.moving.store(self.announced.moving() as u32, Relaxed);
    }

    /// Sends a frame, and stops the queue if it can't.
    fn send_or_stop(
        &mut self,
        sh: &Shared,
        frame: Outgoing,
        queue: Option<&TxQueue<'_>>,
    ) -> (Sent, Option<SkBuff>) {
        let result = self.send(sh, frame, queue);
        if let (Sent::Parked(why), false) = (&result.0, self.stopped) {
            self.stop_queue(sh, *why);
        }
        result
    }

    fn stop_queue(&mut self, sh: &Shared, why: Counter) {
        self.stopped = true;
        sh.ndev.stop_queue();
        sh.count(why);
    }

    /// Takes a frame from the stack; with the lock of its queue held. After [`Sent::Part`] the rest
    /// is to be sent with [`Tx::proceed`] before that is let go of.
    pub(crate) fn transmit(
        &mut self,
        sh: &Shared,
        frame: Outgoing,
        queue: &TxQueue<'_>,
    ) -> (Sent, Option<SkBuff>) {
        let result = self.send_or_stop(sh, frame, Some(queue));
        let full = self.announced.moving() >= sh.conf.flight() as usize;
        if full && !self.stopped {
            self.stop_queue(sh, Counter::TxStopFull);
        }
        result
    }

    /// Sends more of the frame that is parked. Somebody else may have done so: the poll function
    /// does not wait for the queue's lock.
    pub(crate) fn proceed(&mut self, sh: &Shared) -> (Sent, Option<SkBuff>) {
        match self.parked.take() {
            Some(frame) => self.send_or_stop(sh, frame, None),
            None => (Sent::Done, None),
        }
    }

    /// There may be room again: sends what is parked, then wakes the queue. Gives back a frame that
    /// is done, with its fate.
    pub(crate) fn unblock(&mut self, sh: &Shared) -> Option<(Sent, Option<SkBuff>)> {
        let result = self.parked.is_some().then(|| self.proceed(sh));
        if self.parked.is_some() {
            return result;
        }
        let limit = sh.conf.flight() as usize;
        if self.stopped && self.port.is_some() && self.announced.moving() <= limit - limit / 4 {
            self.stopped = false;
            sh.ndev.wake_queue();
            sh.count(Counter::TxWake);
        }
        result
    }

    /// A notification ends an announced frame.
    pub(crate) fn notified(&mut self, sh: &Shared, c: &Completion) -> Ended<TxBuffer> {
        let ended = self.announced.notified(&Clock, &sh.limits(), c);
        self.publish(sh);
        ended
    }

    /// `node` says that it dropped the frame at `address`: whether there is one.
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

    /// Marks what stands still, gives up what is overdue. Returns node and number of the frames
    /// given up, and whether all of it was done.
    pub(crate) fn age(
        &mut self,
        sh: &Shared,
        limits: &Limits,
        done: &mut BqlDone,
        owners: &mut Owners<'_>,
    ) -> (Option<(NodeId, u64)>, bool) {
        // The time is asked for with the lock held: the other processor may just have announced
        // something.
        let settled = self.port.as_ref().map_or(Time::default(), |port| {
            let (posted, sent) = port.progress();
            self.settled.update(Clock.now(), posted, sent)
        });
        let result = self.announced.age(
            &Clock,
            limits,
            settled,
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

/// Owners of frames that stand still, as many as there are places. They are to be dropped without a
/// lock, and with interrupts on.
pub(crate) struct Owners<'a> {
    places: &'a mut [Option<Owner>],
    used: usize,
}

impl<'a> Owners<'a> {
    /// Behind those that are there already.
    pub(crate) fn new(places: &'a mut [Option<Owner>]) -> Self {
        let used = places.iter().take_while(|place| place.is_some()).count();
        Self { places, used }
    }

    fn push(&mut self, owner: Owner) {
        if let Some(place) = self.places.get_mut(self.used) {
            *place = Some(owner);
            self.used += 1;
        }
    }

    /// Whether there is no place for another one.
    pub(crate) fn is_full(&self) -> bool {
        self.used == self.places.len()
    }
}

impl TxBuffer {
    /// The frame stops counting against shared limits and is detached from its socket: TCP sends
    /// nothing again that it believes to be in a queue, and other senders would wait for room in
    /// their send buffer.
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
