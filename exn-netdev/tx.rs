// SPDX-License-Identifier: GPL-2.0-only

//! Sending: eager frames as VELO messages, the others announced and kept until the peer has fetched them.
//!
//! A frame that can't go out at once (no credit, too many in flight) is *parked*: the queue is stopped, and the frame goes first when there
//! is room again. So the stack never gets a frame back, and a frame of several messages of which some were sent (the port began to
//! repair itself in between) is finished before anything else is sent: messages of two frames never interleave.

use crate::{
    conf,
    machine::{Clock, Sender, TxBuffer},
    reason::{Counter, Reason},
    shared::Shared,
};
use extoll_core::velo::{self, Header, SendError};
use kernel::prelude::*;
use kernel_ext::{
    mem::BoundDevice,
    net::{BqlDone, Owner, SkBuff, TxMapping, TxQueue, Unmapped},
};
use protocol::{
    flow::Counts,
    poll::Settled,
    rendezvous::{Admitted, AnnouncePort, Ended, FlightState, Limits, Unsent},
    Clock as _, Refused, Time,
};
use wire::{
    ext_eth::{self, Announcement, Completion, Path},
    ids::NodeId,
    velo::{Descriptor, Target},
};

/// A frame on its way to the port.
struct Parked {
    skb: SkBuff,
    target: Target,
    path: Path,
    /// Messages of it that were sent.
    sent: usize,
}

/// What became of a frame.
enum Sent {
    /// Sent or announced.
    Done,
    /// No room: it was parked.
    Parked(Counter),
    /// Not sent.
    Dropped(Reason, u64),
}

/// Sending side of an interface.
pub(crate) struct Tx {
    port: Option<velo::Sender>,
    /// What the port has sent.
    settled: Settled,
    announced: Sender,
    parked: Option<Parked>,
    /// The queue was stopped by this module.
    stopped: bool,
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
                header(ext_eth::announcement_descriptor(to)),
                &announcement.encode(),
            )
            .map_err(|e| match e {
                SendError::Full | SendError::Retry => Refused::Later,
                SendError::Down | SendError::Invalid => Refused::Never,
            })
    }
}

impl Tx {
    /// An empty one. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            port: None,
            settled: Settled::default(),
            announced: Sender::new(conf::TX_FLIGHT_MAX as u16, conf::TX_QUARANTINE)?,
            parked: None,
            stopped: false,
        })
    }

    /// Takes the port into use.
    pub(crate) fn start(&mut self, port: velo::Sender) {
        self.port = Some(port);
        self.settled = Settled::default();
        self.stopped = false;
    }

    /// Gives the port back, and the frame that waited for it: both to be dropped without the lock.
    pub(crate) fn stop(&mut self) -> (Option<velo::Sender>, Option<SkBuff>) {
        (self.port.take(), self.parked.take().map(|p| p.skb))
    }

    /// Gives up messages that the NIC doesn't take, if a frame waits for that.
    pub(crate) fn reset_port(&self) {
        if let (Some(port), Some(_)) = (&self.port, &self.parked) {
            if port.reserve(1).is_err() {
                port.reset();
            }
        }
    }

    /// Announced frames in flight and in quarantine.
    pub(crate) fn gauges(&self) -> (u64, u64) {
        (
            self.announced.active() as u64,
            self.announced.given_up() as u64,
        )
    }

    /// Whether a frame is parked, and whether the queue is stopped.
    pub(crate) fn blocked(&self) -> (bool, bool) {
        (self.parked.is_some(), self.stopped)
    }

    /// Whether housekeeping has something to do.
    pub(crate) fn needs_tick(&self) -> bool {
        !self.announced.is_empty() || self.parked.is_some()
    }

    /// Whether the port is open.
    pub(crate) fn is_open(&self) -> bool {
        self.port.is_some()
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.announced.active() == 0
    }

    /// Takes one frame out at `down`, true if it was in flight, to be dropped without the lock; the port is closed.
    pub(crate) fn flush_one(&mut self) -> Option<(bool, TxMapping)> {
        let (active, buffer) = self.announced.flush_one()?;
        Some((active, buffer.map))
    }

    /// What happened to announced frames.
    pub(crate) fn counts(&self) -> &Counts<FlightState> {
        self.announced.counts()
    }

    /// Sends a frame of an open interface, or parks it. Gives a frame that is not sent back.
    fn send(
        &mut self,
        sh: &Shared,
        frame: Parked,
        queue: Option<&TxQueue<'_>>,
    ) -> (Sent, Option<SkBuff>) {
        // Moved out and back (under the lock), which is cheaper than a reference.
        let Some(port) = self.port.take() else {
            return (Sent::Dropped(Reason::TxPort, 0), Some(frame.skb));
        };
        let result = match frame.path {
            Path::Eager => self.send_eager(sh, &port, frame),
            Path::Rendezvous => self.announce(sh, &port, frame, queue),
        };
        self.port = Some(port);
        result
    }

    fn park(&mut self, frame: Parked, why: Counter) -> (Sent, Option<SkBuff>) {
        self.parked = Some(frame);
        (Sent::Parked(why), None)
    }

    fn send_eager(
        &mut self,
        sh: &Shared,
        port: &velo::Sender,
        mut frame: Parked,
    ) -> (Sent, Option<SkBuff>) {
        let len = frame.skb.len();
        let Ok(pieces) = ext_eth::eager_pieces(len) else {
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
            for piece in pieces.skip(frame.sent) {
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
        frame: Parked,
        queue: Option<&TxQueue<'_>>,
    ) -> (Sent, Option<SkBuff>) {
        let Target::Node(node) = frame.target else {
            return (Sent::Dropped(Reason::TxMulticastLong, 0), Some(frame.skb));
        };
        let prompt = match self.announced.admit(node, &sh.limits()) {
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
        let (len, target, path) = (frame.skb.len(), frame.target, frame.path);
        let mut skb = Some(frame.skb);
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
        // What goes to a peer that stands still is not charged: it would stop the queue for all others.
        let bql = queue.filter(|_| prompt).map(|q| q.bql_sent(len));
        let buffer = TxBuffer { map, bql };
        match self
            .announced
            .announce(&Clock, &mut Messages(port), node, buffer, len)
        {
            Ok(()) => {
                sh.count(Counter::TxRdv);
                (Sent::Done, None)
            }
            Err((buffer, why)) => {
                let Some(skb) = Self::take_back(sh, buffer) else {
                    return (Sent::Dropped(Reason::TxMap, u64::from(len)), None);
                };
                match why {
                    Unsent::Refused(Refused::Later) => self.park(
                        Parked {
                            skb,
                            target,
                            path,
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

    /// Takes a frame from the stack.
    fn transmit(
        &mut self,
        sh: &Shared,
        frame: Parked,
        queue: &TxQueue<'_>,
    ) -> (Sent, Option<SkBuff>) {
        let result = self.send(sh, frame, Some(queue));
        let stop = match &result.0 {
            Sent::Parked(why) => Some(*why),
            _ if self.announced.moving() >= sh.conf.flight() as usize => Some(Counter::TxStopFull),
            _ => None,
        };
        if let Some(why) = stop {
            self.stopped = true;
            sh.ndev.stop_queue();
            sh.count(why);
        }
        result
    }

    /// There may be room again: sends what is parked, then wakes the queue. Gives back a frame that is done, with its fate.
    fn unblock(&mut self, sh: &Shared) -> Option<(Sent, Option<SkBuff>)> {
        let mut result = None;
        if let Some(frame) = self.parked.take() {
            let sent = self.send(sh, frame, None);
            if self.parked.is_some() {
                return None;
            }
            result = Some(sent);
        }
        let limit = sh.conf.flight() as usize;
        if self.stopped && self.port.is_some() && self.announced.moving() <= limit - limit / 4 {
            self.stopped = false;
            sh.ndev.wake_queue();
            sh.count(Counter::TxWake);
        }
        result
    }

    /// Marks what stands still, gives up what is overdue. Returns node and number of the frames given up, and whether all of it was done.
    fn age(
        &mut self,
        sh: &Shared,
        limits: &Limits,
        done: &mut BqlDone,
        owners: &mut Owners,
    ) -> (Option<(NodeId, u64)>, bool) {
        // The time is asked for with the lock held: the other processor may just have announced something.
        let settled = self.port.as_ref().map_or(Time::default(), |port| {
            let (posted, sent) = port.progress();
            self.settled.update(Clock.now(), posted, sent)
        });
        self.announced.age(
            &Clock,
            limits,
            settled,
            |buffer| {
                buffer.stalled(sh, done, owners);
                !owners.is_full()
            },
            |buffer| buffer.free(&sh.nic),
        )
    }
}

/// Owners of frames that stand still: to be dropped without a lock.
#[derive(Default)]
struct Owners {
    owners: [Option<Owner>; 32],
    used: usize,
}

impl Owners {
    fn push(&mut self, owner: Owner) {
        if let Some(place) = self.owners.get_mut(self.used) {
            *place = Some(owner);
            self.used += 1;
        }
    }

    fn is_full(&self) -> bool {
        self.used == self.owners.len()
    }
}

impl TxBuffer {
    /// The frame stops counting against shared limits and is detached from its socket: TCP sends nothing again that it believes to be
    /// in a queue, and other senders would wait for room in their send buffer.
    fn stalled(&mut self, sh: &Shared, done: &mut BqlDone, owners: &mut Owners) {
        if let Some(token) = self.bql.take() {
            done.add(token);
        }
        if let Some(owner) = self.map.owner() {
            owners.push(owner);
        }
        sh.count(Counter::TxStalled);
    }
}

impl Shared {
    fn account(&self, sent: Sent, skb: Option<SkBuff>, node: Option<NodeId>) {
        match (sent, skb) {
            (Sent::Done, Some(skb)) => skb.consume(),
            (Sent::Dropped(reason, detail), skb) => {
                drop(skb);
                self.reject(reason, node, detail);
            }
            (Sent::Done | Sent::Parked(_), _) => {}
        }
    }

    /// Takes a frame from the stack: sends it, parks it, or drops it with a reason. Returns whether housekeeping is needed.
    pub(crate) fn transmit(&self, mut skb: SkBuff, queue: &TxQueue<'_>) -> bool {
        let (target, path) = match self.prepare(&mut skb) {
            Ok(way) => way,
            Err((reason, detail)) => {
                drop(skb);
                self.reject(reason, None, detail);
                return false;
            }
        };
        let node = match target {
            Target::Node(node) => Some(node),
            Target::Group(_) => None,
        };
        let frame = Parked {
            skb,
            target,
            path,
            sent: 0,
        };
        let ((sent, skb), tick) = {
            let mut tx = self.tx.lock();
            (tx.transmit(self, frame, queue), tx.needs_tick())
        };
        self.account(sent, skb, node);
        tick
    }

    /// Checks a frame, makes it contiguous, finishes its checksum, and chooses its way.
    fn prepare(&self, skb: &mut SkBuff) -> Result<(Target, Path), (Reason, u64)> {
        let len = skb.len();
        // Until the stack has noticed that the carrier is gone.
        if !self.ndev.carrier_ok() {
            return Err((Reason::TxNoCarrier, u64::from(len)));
        }
        if len < ext_eth::HEADER_LEN {
            return Err((Reason::TxShort, u64::from(len)));
        }
        if len > conf::MAX_FRAME {
            return Err((Reason::TxLong, u64::from(len)));
        }
        if skb.checksum_unfinished() && !conf::skip_tx_checksum() {
            skb.finish_checksum()
                .map_err(|_| (Reason::TxChecksum, u64::from(len)))?;
            self.count(Counter::TxChecksummed);
        }
        if !skb.is_linear() {
            skb.linearize()
                .map_err(|_| (Reason::TxNoMemory, u64::from(len)))?;
            self.count(Counter::TxLinearized);
        }
        let mac = ext_eth::destination(skb.data()).ok_or((Reason::TxShort, u64::from(len)))?;
        let detail = mac.iter().fold(0, |n, b| n << 8 | u64::from(*b));
        let target = self
            .prefix
            .target(mac, conf::default_node())
            .ok_or((Reason::TxNoRoute, detail))?;
        let path = Path::choose(len, target, self.conf.threshold());
        if matches!(target, Target::Group(_)) && len > conf::MAX_EAGER {
            return Err((Reason::TxMulticastLong, u64::from(len)));
        }
        Ok((target, path))
    }

    /// There may be room: sends what is parked and wakes the queue. Not with a lock of this module.
    pub(crate) fn tx_unblock(&self) {
        let result = self.tx.lock().unblock(self);
        if let Some((sent, skb)) = result {
            self.account(sent, skb, None);
        }
    }

    /// Ends an announced frame by its notification; `consume` frees a frame that was sent.
    pub(crate) fn tx_complete(
        &self,
        dev: &BoundDevice,
        c: &Completion,
        done: &mut BqlDone,
        consume: impl FnOnce(Unmapped),
    ) {
        let ended = self.tx.lock().announced.notified(c);
        self.tx_ended(dev, ended, c, done, consume);
    }

    /// The peer says that it dropped an announced frame.
    pub(crate) fn tx_dropped(&self, node: NodeId, address: u64) {
        let (mut done, mut owners) = (BqlDone::default(), Owners::default());
        let found = self
            .tx
            .lock()
            .announced
            .dropped(&Clock, node, address, |buffer| {
                buffer.stalled(self, &mut done, &mut owners);
            });
        drop(owners);
        self.ndev.bql_done(done);
        let reason = match found {
            true => Reason::TxPeerDropped,
            false => Reason::DropUnmatched,
        };
        self.reject(reason, Some(node), address);
    }

    fn tx_ended(
        &self,
        dev: &BoundDevice,
        ended: Ended<TxBuffer>,
        c: &Completion,
        done: &mut BqlDone,
        consume: impl FnOnce(Unmapped),
    ) {
        let (peer, value) = (c.peer, c.key);
        let (buffer, failed) = match ended {
            Ended::Fetched(buffer) => (buffer, None),
            Ended::Failed(buffer, error) => {
                (buffer, Some((Reason::TxNotifyError, u64::from(error))))
            }
            Ended::Late(buffer) => (buffer, Some((Reason::Late, value))),
            Ended::Unmatched => return self.unmatched(peer, value),
        };
        if let Some(token) = buffer.bql {
            done.add(token);
        }
        // The frames are of this binding: nothing is kept beyond it.
        let Ok(skb) = buffer.map.unmap(dev) else {
            return;
        };
        match failed {
            Some((reason, detail)) => {
                drop(skb);
                self.reject(reason, Some(peer), detail);
            }
            None => {
                self.ndev.count_tx(1, u64::from(skb.len()));
                self.count(Counter::TxRdvDone);
                consume(skb);
            }
        }
    }

    /// Housekeeping of the sending side.
    pub(crate) fn tx_tick(&self, now: u64) {
        let limits = self.limits();
        loop {
            let (mut done, mut owners) = (BqlDone::default(), Owners::default());
            let (lost, all) = self.tx.lock().age(self, &limits, &mut done, &mut owners);
            drop(owners);
            self.ndev.bql_done(done);
            if let Some((node, n)) = lost {
                self.reject_many(Reason::TxTimeout, n, Some(node), n);
                self.unanswered(node, now);
            }
            if all {
                break;
            }
        }
        self.tx_unblock();
    }
}
