// SPDX-License-Identifier: GPL-2.0-only

//! Sending: eager frames as VELO messages, the others announced and kept until the peer has fetched them.
//!
//! A frame that can't go out at once (no credit, too many in flight) is *parked*: the queue is stopped, and the frame goes first when there
//! is room again. So the stack never gets a frame back, and a frame of several messages of which some were sent (the port began to
//! repair itself in between) is finished before anything else is sent: messages of two frames never interleave.

use crate::{
    conf,
    reason::{Counter, Reason},
    shared::{ms, since, Shared},
    slots::Slots,
};
use extoll_core::velo::{self, Header, SendError};
use kernel::prelude::*;
use kernel_ext::net::{self, BqlDone, BqlToken, SkBuff, TxMapping, TxQueue};
use wire::{
    ext_eth::{self, Announcement, Completion, Path},
    ids::NodeId,
    velo::{Descriptor, Target},
};

/// An announced frame.
struct Flight {
    map: TxMapping,
    node: NodeId,
    /// When it was announced (in quarantine: given up), in jiffies.
    born: u64,
    /// Counts as stalled: given back to the byte queue limit, and held against the peer.
    stalled: bool,
    bql: Option<BqlToken>,
}

/// Announced frames of one peer.
#[derive(Default)]
struct Peer {
    flight: u16,
    stalled: u16,
}

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
    active: Slots<Flight>,
    quarantine: Slots<Flight>,
    peers: Slots<Peer>,
    parked: Option<Parked>,
    /// The queue was stopped by this module.
    stopped: bool,
}

/// Frames to be freed without the lock.
pub(crate) enum Ended {
    /// Fetched by the peer.
    Fetched(SkBuff),
    /// Reported as failed.
    Failed(Reason, u64),
    /// Matches nothing that is pending.
    Unmatched(Reason),
}

fn header(d: Descriptor) -> Header {
    Header {
        target: d.target,
        vpid: d.vpid,
        mtt: d.mtt,
        tag: d.tag,
        irq: d.irq,
    }
}

impl Tx {
    /// An empty one. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            port: None,
            active: Slots::new(conf::TX_FLIGHT_MAX as u16)?,
            quarantine: Slots::new(conf::TX_QUARANTINE)?,
            peers: Slots::new(conf::TX_FLIGHT_MAX as u16)?,
            parked: None,
            stopped: false,
        })
    }

    /// Takes the port into use.
    pub(crate) fn start(&mut self, port: velo::Sender) {
        self.port = Some(port);
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
        (self.active.len() as u64, self.quarantine.len() as u64)
    }

    /// Whether a frame is parked, and whether the queue is stopped.
    pub(crate) fn blocked(&self) -> (bool, bool) {
        (self.parked.is_some(), self.stopped)
    }

    /// Whether housekeeping has something to do.
    pub(crate) fn needs_tick(&self) -> bool {
        self.active.len() + self.quarantine.len() > 0 || self.parked.is_some()
    }

    /// Whether the port is open.
    pub(crate) fn is_open(&self) -> bool {
        self.port.is_some()
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.active.len() == 0
    }

    /// Removes one frame of those given up at `down`, to be dropped without the lock; the port is closed.
    pub(crate) fn flush_one(&mut self) -> Option<(bool, TxMapping)> {
        if let Some((_, f)) = self.active.pop_oldest() {
            Self::leave(&mut self.peers, &f);
            return Some((true, f.map));
        }
        self.quarantine.pop_oldest().map(|(_, f)| (false, f.map))
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
        let limit = sh.conf.flight() as usize;
        let (flight, stalled) = self
            .peers
            .get(u64::from(node.0))
            .map_or((0, 0), |p| (p.flight, p.stalled));
        if stalled > 0 && flight >= conf::STALLED_PEER_BOUND {
            return (
                Sent::Dropped(Reason::TxPeerBound, u64::from(flight)),
                Some(frame.skb),
            );
        }
        // One peer does not get the last quarter.
        if self.active.len() >= limit || usize::from(flight) >= limit - limit / 4 {
            return self.park(frame, Counter::TxStopFull);
        }
        match port.reserve(1) {
            Ok(()) => {}
            Err(SendError::Full | SendError::Retry) => {
                return self.park(frame, Counter::TxStopCredit)
            }
            Err(_) => return (Sent::Dropped(Reason::TxPort, 0), Some(frame.skb)),
        }
        let (len, target, path) = (frame.skb.len(), frame.target, frame.path);
        let mut map = match sh.ndev.map_tx(frame.skb) {
            Ok(map) => map,
            Err((skb, _)) => return (Sent::Dropped(Reason::TxMap, u64::from(len)), Some(skb)),
        };
        map.skb_mut().tx_timestamp();
        let announcement = Announcement {
            address: map.addr(),
            len: u64::from(len),
        };
        let key = ext_eth::match_key(map.addr(), len);
        // What goes to a peer that stands still is not charged: it would stop the queue for all others.
        let bql = queue.filter(|_| stalled == 0).map(|q| q.bql_sent(len));
        let entry = Flight {
            map,
            node,
            born: net::jiffies64(),
            stalled: false,
            bql,
        };
        // The notification may come at once, so the entry must be there before the message is sent (the lock is held).
        if let Err(entry) = self.active.insert(key, entry) {
            return (
                Sent::Dropped(Reason::TxMap, key),
                Some(Self::take_back(sh, entry)),
            );
        }
        if flight == 0 {
            // There is room: no more peers than frames.
            let _ = self.peers.insert(u64::from(node.0), Peer::default());
        }
        if let Some(p) = self.peers.get_mut(u64::from(node.0)) {
            p.flight += 1;
        }
        match port.send(
            header(ext_eth::announcement_descriptor(node)),
            &announcement.encode(),
        ) {
            Ok(()) => {
                sh.count(Counter::TxRdv);
                (Sent::Done, None)
            }
            Err(e) => {
                let Some(entry) = self.active.remove(key) else {
                    return (Sent::Dropped(Reason::TxPort, 0), None);
                };
                Self::leave(&mut self.peers, &entry);
                let skb = Self::take_back(sh, entry);
                match e {
                    SendError::Full | SendError::Retry => self.park(
                        Parked {
                            skb,
                            target,
                            path,
                            sent: 0,
                        },
                        Counter::TxStopCredit,
                    ),
                    SendError::Down | SendError::Invalid => {
                        (Sent::Dropped(Reason::TxPort, 0), Some(skb))
                    }
                }
            }
        }
    }

    /// Undoes the making of an entry that was not announced.
    fn take_back(sh: &Shared, entry: Flight) -> SkBuff {
        let mut done = BqlDone::default();
        if let Some(token) = entry.bql {
            done.add(token);
        }
        sh.ndev.bql_done(done);
        entry.map.unmap()
    }

    /// An entry leaves the active ones.
    fn leave(peers: &mut Slots<Peer>, entry: &Flight) {
        let key = u64::from(entry.node.0);
        let gone = peers.get_mut(key).is_some_and(|p| {
            p.flight = p.flight.saturating_sub(1);
            if entry.stalled {
                p.stalled = p.stalled.saturating_sub(1);
            }
            p.flight == 0
        });
        if gone {
            peers.remove(key);
        }
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
            _ if self.active.len() >= sh.conf.flight() as usize => Some(Counter::TxStopFull),
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
        if self.stopped && self.port.is_some() && self.active.len() <= limit - limit / 4 {
            self.stopped = false;
            sh.ndev.wake_queue();
            sh.count(Counter::TxWake);
        }
        result
    }

    /// A responder notification.
    fn complete(&mut self, c: &Completion, done: &mut BqlDone) -> Ended {
        match self.active.get(c.key) {
            Some(f) if f.node == c.peer => {}
            Some(_) => return Ended::Unmatched(Reason::Unmatched),
            None => {
                return match self.quarantine.remove(c.key) {
                    Some(_) => Ended::Unmatched(Reason::Late),
                    None => Ended::Unmatched(Reason::Unmatched),
                }
            }
        }
        let Some(f) = self.active.remove(c.key) else {
            return Ended::Unmatched(Reason::Unmatched);
        };
        Self::leave(&mut self.peers, &f);
        if let Some(token) = f.bql {
            done.add(token);
        }
        if c.error != 0 {
            return Ended::Failed(Reason::TxNotifyError, u64::from(c.error));
        }
        Ended::Fetched(f.map.unmap())
    }

    /// The peer says that it dropped the frame at `address`.
    fn dropped(&mut self, node: NodeId, address: u64, done: &mut BqlDone) -> Ended {
        let mut key = None;
        self.active.for_each_mut(|k, f| {
            if f.node == node && f.map.addr() == address {
                key = Some(k);
            }
            key.is_none()
        });
        match key.and_then(|k| self.active.remove(k)) {
            Some(f) => {
                Self::leave(&mut self.peers, &f);
                if let Some(token) = f.bql {
                    done.add(token);
                }
                Ended::Failed(Reason::TxPeerDropped, address)
            }
            None => Ended::Unmatched(Reason::DropUnmatched),
        }
    }

    /// Marks what stands still, gives up what is overdue. Returns node and number of the frames given up.
    fn age(&mut self, sh: &Shared, now: u64, done: &mut BqlDone) -> Option<(NodeId, u64)> {
        let Self {
            active,
            peers,
            quarantine,
            ..
        } = self;
        let stall = ms(conf::STALL_MS);
        active.for_each_mut(|_, f| {
            if since(now, f.born) < stall {
                return false;
            }
            if !f.stalled {
                f.stalled = true;
                if let Some(p) = peers.get_mut(u64::from(f.node.0)) {
                    p.stalled += 1;
                }
                if let Some(token) = f.bql.take() {
                    done.add(token);
                }
                sh.count(Counter::TxStalled);
            }
            true
        });
        let keep = ms(conf::quarantine_ms());
        while quarantine
            .oldest()
            .is_some_and(|(_, f)| since(now, f.born) >= keep)
        {
            quarantine.pop_oldest();
        }
        let timeout = ms(conf::timeout_ms());
        let mut lost: Option<(NodeId, u64)> = None;
        while !quarantine.is_full()
            && active
                .oldest()
                .is_some_and(|(_, f)| since(now, f.born) >= timeout)
        {
            let Some((key, mut f)) = active.pop_oldest() else {
                break;
            };
            Self::leave(peers, &f);
            f.born = now;
            lost = Some((f.node, lost.map_or(0, |(_, n)| n) + 1));
            // Can't be in use there: the memory of both is mapped.
            let _ = quarantine.insert(key, f);
        }
        lost
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
        if len > ext_eth::MAX_FRAME {
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
        c: &Completion,
        done: &mut BqlDone,
        consume: impl FnOnce(SkBuff),
    ) {
        let ended = self.tx.lock().complete(c, done);
        self.tx_ended(ended, c.peer, c.key, consume);
    }

    /// Ends an announced frame because the peer says that it dropped it.
    pub(crate) fn tx_dropped(&self, node: NodeId, address: u64) {
        let mut done = BqlDone::default();
        let ended = self.tx.lock().dropped(node, address, &mut done);
        self.ndev.bql_done(done);
        self.tx_ended(ended, node, address, |_| {});
    }

    fn tx_ended(&self, ended: Ended, peer: NodeId, value: u64, consume: impl FnOnce(SkBuff)) {
        match ended {
            Ended::Fetched(skb) => {
                self.ndev.count_tx(1, u64::from(skb.len()));
                self.count(Counter::TxRdvDone);
                consume(skb);
            }
            Ended::Failed(reason, detail) => self.reject(reason, Some(peer), detail),
            Ended::Unmatched(Reason::Unmatched) => self.unmatched(peer, value),
            Ended::Unmatched(reason) => self.reject(reason, Some(peer), value),
        }
    }

    /// Housekeeping of the sending side. Returns whether it is needed again.
    pub(crate) fn tx_tick(&self, now: u64) -> bool {
        let mut done = BqlDone::default();
        let (lost, again) = {
            let mut tx = self.tx.lock();
            let lost = tx.age(self, now, &mut done);
            (lost, tx.needs_tick())
        };
        self.ndev.bql_done(done);
        if let Some((node, n)) = lost {
            self.reject_many(Reason::TxTimeout, n, Some(node), n);
            self.unanswered(node, now);
        }
        self.tx_unblock();
        again
    }
}
