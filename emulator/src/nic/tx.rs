//! Transmission of packets and flow control of the NIC.
//!
//! Packets enter the outbox at once. While the network accepts no packets in a lane, the packets of
//! the lane wait in order. RMA commands and requests wait in `rma_engine.rs`. For the receive side,
//! this file determines the lanes from which the units accept packets.

use super::{Nic, Pressure};
use crate::env::{Env, Packet, Stream};
use crate::lane::{Lane, Receipt, LANES, OVERHEAD};
use std::collections::{BTreeMap, VecDeque};
use wire::ids::Unit;

/// Approximate number of bytes of the emulator's memory that an item on hold uses in addition to
/// its data.
pub(super) const HOLD_COST: u64 = 256;
/// Number of pending requests of other nodes at which the responder accepts no more requests.
const SERVE_LIMIT: usize = 64;

#[derive(Default)]
pub(super) struct Tx {
    /// Waiting packets of each lane. A packet of a VELO descriptor has the VPID of the descriptor.
    queues: [VecDeque<(Packet, Option<u8>)>; LANES],
    waiting: usize,
    /// Lanes of the waiting messages of each VPID, in sending order. A message never enters the
    /// network before earlier messages of its VPID (HW §9.1).
    messages: BTreeMap<u8, VecDeque<Lane>>,
    /// Credit of the packet that is being received. Code that holds the packet back takes the
    /// credit.
    pub(super) receipt: Option<Receipt>,
    /// Stream of all writes that the received packet causes, at once or later.
    pub(super) stream: Option<Stream>,
    pub(super) pressure: Pressure,
}

impl Tx {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Returns the index of the first packet of a lane that may be sent. A message that waits for
    /// an earlier message in another lane is skipped. It blocks only messages of its VPID.
    fn next(&self, lane: Lane) -> Option<usize> {
        self.queues[lane.index()]
            .iter()
            .position(|(_, from)| match from {
                // Earlier packets of this VPID in this queue were already skipped. Only the lane of
                // the VPID's oldest waiting message therefore decides.
                Some(vpid) => self
                    .messages
                    .get(vpid)
                    .and_then(VecDeque::front)
                    .is_none_or(|first| *first == lane),
                None => true,
            })
    }

    fn take_next(&mut self, lane: Lane) -> Option<(Packet, Option<u8>)> {
        let at = self.next(lane)?;
        self.queues[lane.index()].remove(at)
    }
}

impl Nic {
    /// Returns true if no packet can be sent in this lane now, or if packets already wait in the
    /// lane.
    pub(super) fn tx_blocked(&self, lane: Lane, env: &Env<'_>) -> bool {
        !self.tx.queues[lane.index()].is_empty() || self.tx_closed(lane, env)
    }

    /// Returns the set of lanes in which a packet can be sent now and no packet waits.
    pub(super) fn tx_open_lanes(&self, env: &Env<'_>) -> u16 {
        let open = Lane::all().filter(|l| !self.tx_blocked(*l, env));
        open.fold(0, |set, l| set | l.bit())
    }

    fn tx_closed(&self, lane: Lane, env: &Env<'_>) -> bool {
        let credit = env.tx_credit != 0 || !lane.is_request();
        !credit || env.tx_room[lane.index()] == 0 || self.tx_halted() & lane.bit() != 0
    }

    /// Returns the set of lanes in which this NIC does not send, because notifications of its
    /// commands would find no slot.
    fn tx_halted(&self) -> u16 {
        if self.hold_full(Unit::Rma) {
            Lane::RMA_REQUESTS
        } else {
            0
        }
    }

    /// Returns the number of packets, commands and requests that wait for the network in this lane.
    pub(super) fn tx_len(&self, lane: Lane) -> usize {
        self.tx.queues[lane.index()].len() + self.rma.engine.len_in(lane)
    }

    /// Returns true if a requester must reject descriptors for this lane.
    pub(super) fn tx_full(&self, lane: Lane) -> bool {
        self.tx_len(lane) >= self.cfg.tx_queue_limit
    }

    /// Returns the set of lanes in which packets wait only for the network.
    pub fn tx_waiting_lanes(&self) -> u16 {
        let waits = |l: &Lane| self.tx.next(*l).is_some();
        let waiting = Lane::all().filter(waits);
        let waiting = waiting.fold(self.rma.engine.lanes(), |set, l| set | l.bit());
        waiting & !self.tx_halted()
    }

    /// Returns the set of lanes from which the units accept packets now. Packets of other lanes
    /// wait in the network. A lane is missing if mailboxes or notification queues and the unit's
    /// hold buffer are full (HW §9.6, G10), or if the responder's responses are blocked.
    pub fn takes(&self) -> u16 {
        let mut lanes = Lane::EVERY;
        if self.hold_full(Unit::Velo) {
            lanes &= !Lane::VELO;
        }
        if self.hold_full(Unit::Rma) {
            lanes &= !(Lane::RMA_REQUESTS | Lane::RMA_RESPONSES.bit());
        }
        if self.tx_len(Lane::RMA_RESPONSES) >= SERVE_LIMIT {
            lanes &= !Lane::RMA_REQUESTS;
        }
        lanes
    }

    /// Sends a packet in the order of its lane. `from` is the VPID of the VELO descriptor that the
    /// packet is made from.
    pub(super) fn send(&mut self, packet: Packet, from: Option<u8>, env: &mut Env<'_>) {
        let lane = Lane::of(&packet);
        if self.tx_blocked(lane, env) || from.is_some_and(|v| self.tx.messages.contains_key(&v)) {
            self.tx.waiting += 1;
            if let Some(vpid) = from {
                self.tx.messages.entry(vpid).or_default().push_back(lane);
            }
            self.tx.queues[lane.index()].push_back((packet, from));
        } else {
            self.leave(packet, from, env);
        }
    }

    fn leave(&mut self, packet: Packet, from: Option<u8>, env: &mut Env<'_>) {
        self.inject(packet, env);
        if let Some(vpid) = from {
            self.wcbuf_left(Unit::Velo, vpid, env);
        }
    }

    /// Puts a packet into the outbox.
    pub(super) fn inject(&mut self, packet: Packet, env: &mut Env<'_>) {
        self.counters.packets_sent = self.counters.packets_sent.wrapping_add(1);
        let cost = u64::from(packet.bytes) + OVERHEAD;
        let room = &mut env.tx_room[Lane::of(&packet).index()];
        for left in [&mut env.tx_credit, room] {
            if *left != u64::MAX {
                *left = left.saturating_sub(cost);
            }
        }
        env.outbox.push_back(packet);
    }

    /// Sends waiting packets while the network accepts them.
    pub(super) fn run_tx(&mut self, env: &mut Env<'_>) {
        let mut left = true;
        // A packet that leaves one lane may unblock another lane.
        while std::mem::take(&mut left) {
            for lane in Lane::all() {
                while !self.tx_closed(lane, env) {
                    let Some((packet, from)) = self.tx.take_next(lane) else {
                        break;
                    };
                    self.tx.waiting -= 1;
                    left |= self.tx_left(from);
                    self.leave(packet, from, env);
                }
            }
        }
    }

    /// Records that a message of this VPID has entered the network. Returns true if the VPID's next
    /// message waits in another lane.
    fn tx_left(&mut self, from: Option<u8>) -> bool {
        let Some(lanes) = from.and_then(|v| self.tx.messages.get_mut(&v)) else {
            return false;
        };
        let lane = lanes.pop_front();
        let next = lanes.front().copied();
        if let (Some(vpid), None) = (from, next) {
            self.tx.messages.remove(&vpid);
        }
        next.is_some() && next != lane
    }
}
