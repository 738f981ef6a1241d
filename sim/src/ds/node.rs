//! A node with stream connections: messages, GETs and rings, driven like by a socket module.

use super::held::Held;
use super::lent::Lent;
use super::posting::{message_descriptor, Poster, Wire};
use super::setup::Negotiation;
use super::slots;
use super::tagged::Tagged;
use super::{Mutation, LIMITS, RINGS, RING_BYTES, TRANSFERS, TRANSFER_LIMITS};
use crate::fabric::Fabric;
use crate::port::{Port, FREE};
use crate::Heap;
use anyhow::{ensure, Result};
use protocol::ds::{unknown, End, Geometry, Received, RingFree, Span, Stream};
use protocol::transfer::{self, Queue, Quiet, Transfers};
use protocol::Time;
use std::collections::HashMap;
use wire::ds::{ConnId, Kind, Message};
use wire::eth::VPID;
use wire::velo::{self, Mtt, SourceId, Target};

/// Maximum size of a GET in bytes while slots are scarce, so that a ring needs several GETs.
const SMALL_CHUNK: u32 = 250;
/// Value of bytes in unassigned memory.
pub const POISON: u8 = 0xdb;

/// One end of a connection.
pub struct Conn {
    /// State machine of the stream.
    pub stream: Stream,
    /// Number of the connection.
    pub pair: usize,
    /// Side within the connection; 0 is the client.
    pub side: usize,
    /// Node of the other end.
    pub peer: usize,
    /// Unique number of this end over all nodes.
    pub serial: u64,
    send_ring: Option<u64>,
    receive_ring: Option<u64>,
    /// Address of the send ring of the other end.
    peer_ring: u64,
    geometry: Geometry,
    /// True while a program has the socket open.
    pub open: bool,
    /// Memory that the program is sending.
    pub lent: Option<Lent>,
    /// Number of bytes of the program's last lent memory that belong to the stream.
    pub sent: Option<u64>,
    /// Memory of the program into which data are fetched.
    pub sink: Option<u64>,
    pub(super) waits: slots::Waits,
}

/// A ring that must not be used yet: end of the hold-off in ns, address of the ring.
type HeldOff = (u64, u64);

/// A node.
pub struct Node {
    pub(super) nic: usize,
    pub(super) port: Option<Port>,
    transfers: Transfers<Heap, (u64, u16)>,
    /// Connections by slot.
    pub conns: Vec<Option<Conn>>,
    generation: u32,
    free: Vec<u64>,
    held_off: Vec<HeldOff>,
    pub(super) mutation: Option<Mutation>,
    hasty: Vec<(u64, u16)>,
    /// GETs in flight.
    tagged: HashMap<(u64, u16), Tagged>,
    /// Number of completed GETs with holes.
    pub holes: u64,
    /// Every n-th message is sent twice.
    pub repeat_every: Option<u64>,
    /// True while the node has no slot for GETs.
    pub refuses_gets: bool,
    /// Messages and commands held by its ports.
    pub held: Held,
    sent: u64,
    busy: bool,
    /// Time at which the mailbox was last seen empty.
    empty: Time,
    /// Ends that were removed: pair, side, reason.
    pub ended: Vec<(usize, usize, End)>,
    /// Rings that became free since the last call of [`Node::take_reused`].
    reused: Vec<u64>,
    /// Number of messages that belong to no connection.
    pub strays: u64,
    serial: u64,
    /// Unfinished GETs into programs' memory: key of the GET, address of the memory.
    pub(super) in_flight: Vec<((u64, u16), u64)>,
    /// Addresses of programs' memory that was withdrawn while a GET could still write to it.
    pub(super) withdrawn_sinks: Vec<u64>,
    /// Connections that wait for a GET slot.
    pub(super) slots: slots::Slots,
    /// State of the negotiations.
    pub setup: Negotiation,
}

fn table() -> Transfers<Heap, (u64, u16)> {
    match Transfers::new(&TRANSFERS, &TRANSFER_LIMITS) {
        Ok(table) => table,
        Err(e) => match e {},
    }
}

impl Node {
    /// Creates a node without a port.
    ///
    /// # Errors
    ///
    /// Fails if its memory can't be written.
    pub fn new(
        fabric: &Fabric,
        nic: usize,
        generation: u32,
        mutation: Option<Mutation>,
    ) -> Result<Self> {
        let rings: Vec<u64> = (0..RINGS).map(|i| FREE + i * RING_BYTES).collect();
        fabric.fill(nic, FREE, &vec![POISON; (RINGS * RING_BYTES) as usize])?;
        Ok(Self {
            nic,
            port: None,
            transfers: table(),
            conns: Vec::new(),
            generation,
            free: rings,
            held_off: Vec::new(),
            mutation,
            hasty: Vec::new(),
            tagged: HashMap::new(),
            holes: 0,
            repeat_every: None,
            refuses_gets: false,
            held: Held::default(),
            sent: 0,
            busy: true,
            empty: Time(fabric.now()),
            ended: Vec::new(),
            reused: Vec::new(),
            strays: 0,
            serial: 0,
            in_flight: Vec::new(),
            withdrawn_sinks: Vec::new(),
            slots: slots::Slots::new(),
            setup: Negotiation::new((u64::from(generation) << 20) | nic as u64),
        })
    }

    /// Opens the port.
    ///
    /// # Errors
    ///
    /// Fails if the NIC rejects an access.
    pub fn up(&mut self, fabric: &mut Fabric) -> Result<()> {
        self.port = Some(Port::open(fabric, self.nic)?);
        Ok(())
    }

    /// Crashes the node, which loses its state. Its memory may be reused as soon as it is back.
    ///
    /// # Errors
    ///
    /// Fails if its memory can't be written.
    pub fn crash(&mut self, fabric: &mut Fabric, generation: u32) -> Result<()> {
        if let Some(port) = self.port.take() {
            port.close(fabric);
        }
        let kept = (self.serial, self.strays, self.holes);
        let Negotiation {
            off,
            version,
            short,
            ..
        } = self.setup;
        *self = Self::new(fabric, self.nic, generation, self.mutation)?;
        (self.serial, self.strays, self.holes) = kept;
        (self.setup.off, self.setup.version) = (off, version);
        self.setup.short = short;
        Ok(())
    }

    pub(super) fn mutation(&self) -> Option<Mutation> {
        self.mutation
    }

    /// Returns the node's number.
    pub fn nic(&self) -> usize {
        self.nic
    }

    /// Returns true if the port is open.
    pub fn is_up(&self) -> bool {
        self.port.is_some()
    }

    /// Returns true if messages were sent or received since the last call.
    pub fn was_busy(&mut self) -> bool {
        std::mem::take(&mut self.busy)
    }

    /// Returns true if no connection, transfer or negotiation is active.
    pub fn is_idle(&self) -> bool {
        self.transfers.is_empty()
            && self.conns.iter().all(Option::is_none)
            && !self.setup.is_waiting()
    }

    /// Returns a free ring, after checking that it was not written since its return.
    pub(super) fn ring(&mut self, fabric: &Fabric) -> Result<Option<u64>> {
        let now = fabric.now();
        while let Some(i) = self.held_off.iter().position(|(until, _)| *until <= now) {
            let (_, ring) = self.held_off.swap_remove(i);
            self.give_back(fabric, ring)?;
        }
        let Some(ring) = self.free.pop() else {
            return Ok(None);
        };
        let mut data = vec![0; RING_BYTES as usize];
        fabric.load(self.nic, ring, &mut data)?;
        ensure!(
            data.iter().all(|b| *b == POISON),
            "memory of node {} at {ring:#x} was written to while nobody used it",
            self.nic
        );
        Ok(Some(ring))
    }

    /// Makes memory unusable until the given time.
    pub(super) fn hold_off(&mut self, until: u64, ring: u64) {
        self.held_off.push((until, ring));
    }

    pub(super) fn give_back(&mut self, fabric: &Fabric, ring: u64) -> Result<()> {
        fabric.fill(self.nic, ring, &[POISON; RING_BYTES as usize])?;
        // The last ring is used next, which reveals late writes.
        self.free.push(ring);
        self.reused.push(ring);
        Ok(())
    }

    /// Returns the rings that became free since the last call.
    pub fn take_reused(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.reused)
    }

    /// Returns true if a GET of this node that may be in flight writes to a ring or, with `reads`,
    /// reads from it.
    pub fn uses(&self, (nic, ring): (usize, u64), now: u64, reads: bool) -> bool {
        let mut gets = self.tagged.values().filter(|m| m.deadline.0 > now);
        gets.any(|m| reads && m.from == (nic, ring) || (self.nic, m.ring) == (nic, ring))
    }

    /// Reserves a slot and rings for a connection: name, send ring, receive ring.
    ///
    /// # Errors
    ///
    /// Fails if unused memory was written.
    pub fn prepare(&mut self, fabric: &Fabric) -> Result<Option<(ConnId, u64, u64)>> {
        if self.port.is_none() {
            return Ok(None);
        }
        let Some(send) = self.ring(fabric)? else {
            return Ok(None);
        };
        let Some(receive) = self.ring(fabric)? else {
            self.free.push(send);
            return Ok(None);
        };
        let all = self.conns.len();
        let free = |i: &usize| self.conns[*i].is_none() && !self.setup.has(*i);
        let index = (0..all).find(free).unwrap_or(all);
        if index == all {
            self.conns.push(None);
        }
        self.generation += 1;
        Ok(Some((
            ConnId::new(index as u32, self.generation),
            send,
            receive,
        )))
    }

    /// Creates a connection in a reserved slot.
    #[allow(clippy::too_many_arguments)]
    pub fn establish(
        &mut self,
        fabric: &Fabric,
        (own, send, receive): (ConnId, u64, u64),
        (peer, peer_id, peer_ring): (usize, ConnId, u64),
        geometry: Geometry,
        (pair, side): (usize, usize),
    ) {
        self.serial += 1;
        let conn = Conn {
            stream: Stream::new(own, peer_id, &geometry, Time(fabric.now())),
            pair,
            side,
            peer,
            serial: self.serial,
            send_ring: Some(send),
            receive_ring: Some(receive),
            peer_ring,
            geometry,
            open: true,
            lent: None,
            sent: None,
            sink: None,
            waits: slots::Waits::default(),
        };
        self.conns[own.index() as usize] = Some(conn);
    }

    /// Returns the end of a connection on this node.
    pub fn find(&mut self, pair: usize, side: usize) -> Option<&mut Conn> {
        let mut all = self.conns.iter_mut().flatten();
        all.find(|c| c.pair == pair && c.side == side)
    }

    /// Returns the state of an end as text.
    pub fn describe(&self, pair: usize, side: usize) -> String {
        let mut all = self.conns.iter().flatten();
        let conn = all.find(|c| c.pair == pair && c.side == side);
        conn.map_or_else(|| "gone".to_owned(), |c| format!("{:?}", c.stream))
    }

    /// Writes bytes to the stream, up to the free space. Returns the number of bytes.
    ///
    /// # Errors
    ///
    /// Fails if the memory can't be written.
    pub fn write(
        &mut self,
        fabric: &Fabric,
        pair: (usize, usize),
        data: &[u8],
        more: bool,
    ) -> Result<usize> {
        let nic = self.nic;
        let Some(conn) = self.find(pair.0, pair.1) else {
            return Ok(0);
        };
        let (Some(ring), true) = (conn.send_ring, conn.stream.can_send()) else {
            return Ok(0);
        };
        let room = conn.stream.sending().room();
        let len = room.len.min(data.len() as u32);
        let span = Span { at: room.at, len };
        let mut remainder = data;
        for (at, len) in span.parts(conn.geometry.send_ring) {
            let (part, behind) = remainder.split_at(len as usize);
            fabric.fill(nic, ring + u64::from(at), part)?;
            remainder = behind;
        }
        conn.stream.commit(len, more, Time(fabric.now()));
        Ok(len as usize)
    }

    /// Reads up to `len` bytes.
    ///
    /// # Errors
    ///
    /// Fails if the memory can't be read.
    pub fn read(&mut self, fabric: &Fabric, pair: (usize, usize), len: usize) -> Result<Vec<u8>> {
        let nic = self.nic;
        let Some(conn) = self.find(pair.0, pair.1) else {
            return Ok(Vec::new());
        };
        let Some(ring) = conn.receive_ring else {
            return Ok(Vec::new());
        };
        let all = conn.stream.receiving().readable();
        let span = Span {
            len: all.len.min(len as u32),
            ..all
        };
        let mut data = Vec::new();
        for (at, len) in span.parts(conn.geometry.receive_ring) {
            let mut part = vec![0; len as usize];
            fabric.load(nic, ring + u64::from(at), &mut part)?;
            data.extend(part);
        }
        conn.stream.consume(span.len, &LIMITS);
        Ok(data)
    }

    /// Sends any message, like an attacker on the node.
    pub fn forge(&mut self, fabric: &mut Fabric, to: usize, tag: u8, bytes: &[u8]) {
        if let Some(port) = &mut self.port {
            let descriptor = velo::Descriptor {
                target: Target::Node(Port::node_id(to)),
                vpid: VPID,
                mtt: Mtt::from_low_bits(0),
                irq: false,
                tag,
                len: bytes.len() as u16,
            };
            let _ = port.send(fabric, descriptor, bytes);
        }
    }

    /// Processes all pending events.
    ///
    /// # Errors
    ///
    /// Fails if an invariant is violated or memory can't be accessed.
    pub fn poll(&mut self, fabric: &mut Fabric) -> Result<()> {
        let Some(port) = &mut self.port else {
            return Ok(());
        };
        // A requester that has dropped a command drops all later ones until the driver polls it.
        port.look(fabric);
        self.held.release(port, fabric);
        while let Some(message) = self
            .port
            .as_mut()
            .map(|p| p.message(fabric))
            .transpose()?
            .flatten()
        {
            self.busy = true;
            self.receive(
                fabric,
                message.status.source,
                message.status.tag,
                &message.data,
            )?;
        }
        // Every message received from now on was sent after this time.
        self.empty = Time(fabric.now());
        self.negotiate(fabric)?;
        self.transfers(fabric)?;
        self.pump(fabric)?;
        self.give_slots(fabric)?;
        // Posts the submitted transfers.
        self.transfers(fabric)?;
        self.reap(fabric)
    }

    fn receive(
        &mut self,
        fabric: &mut Fabric,
        source: SourceId,
        tag: u8,
        bytes: &[u8],
    ) -> Result<()> {
        let word = |i: usize| {
            let mut raw = [0; 8];
            for (to, from) in raw.iter_mut().zip(bytes.iter().skip(8 * i)) {
                *to = *from;
            }
            u64::from_le_bytes(raw)
        };
        if let Some(kind) = Kind::from_tag(tag).filter(|kind| !kind.is_stream()) {
            self.setup_received(fabric, source.node, kind, (bytes.len() as u16, word));
            return Ok(());
        }
        let Ok(message) = Message::parse(tag, bytes.len() as u16, word) else {
            self.strays += 1;
            return Ok(());
        };
        let now = Time(fabric.now());
        let nic = self.nic;
        let id = message.head().conn;
        self.stream_received(fabric, id, source.node);
        let unsourced = self.mutation == Some(Mutation::Unsourced);
        let slot = self
            .conns
            .get_mut(id.index() as usize)
            .and_then(Option::as_mut);
        let conn = slot.filter(|c| {
            c.stream.own() == id && (unsourced || Port::node_id(c.peer) == source.node)
        });
        let Some(conn) = conn else {
            self.strays += 1;
            if let (Some(answer), Some(port)) = (unknown(&message), &mut self.port) {
                let words = answer.words();
                let bytes: Vec<u8> = words
                    .as_slice()
                    .iter()
                    .flat_map(|w| w.to_le_bytes())
                    .collect();
                let descriptor = message_descriptor(source.node, &answer);
                let _ = self.held.send(port, fabric, 0, (descriptor, &bytes));
            }
            return Ok(());
        };
        if let Received::Data { skip, to } = conn.stream.receive(&message, self.empty, &LIMITS, now)
        {
            let ring = conn.receive_ring.unwrap_or(0);
            let mut data = &bytes[usize::from(message.data_offset() + skip)..];
            for (at, len) in to.parts(conn.geometry.receive_ring) {
                let (part, remainder) = data.split_at(len as usize);
                fabric.fill(nic, ring + u64::from(at), part)?;
                data = remainder;
            }
            ensure!(data.is_empty(), "data of a message is left over");
        }
        Ok(())
    }

    fn transfers(&mut self, fabric: &mut Fabric) -> Result<()> {
        let Some(port) = &mut self.port else {
            return Ok(());
        };
        while let Some(n) = port.notification(fabric)? {
            self.busy = true;
            self.transfers.process_notification(&n);
        }
        let now = Time(fabric.now());
        while self.transfers.expire(now, 4) {}
        let held = &mut self.held;
        let mut poster = Poster { port, held, fabric };
        while self.transfers.post(&mut poster, now, 8).more {}
        for token in std::mem::take(&mut self.hasty) {
            self.ended(token, Some(Ok(())), None, now);
        }
        for queue in [Queue::Direct, Queue::Deferred] {
            while let Some(e) = self.transfers.next_event(queue) {
                if e.quiet.is_none() {
                    self.transfers.report_done(e.ticket);
                }
                let mut outcome = e.outcome.map(|o| o.map(drop));
                let tagged = outcome.and_then(|_| self.tagged.remove(&e.token));
                let done = tagged.filter(|_| outcome == Some(Ok(())));
                if let Some(tagged) = done {
                    if tagged.is_left(fabric, self.nic)? {
                        self.holes += 1;
                        if self.mutation != Some(Mutation::Unmarked) {
                            outcome = Some(Err(transfer::Failure::TimedOut));
                        }
                    }
                }
                self.ended(e.token, outcome, e.quiet, now);
            }
        }
        Ok(())
    }

    fn ended(
        &mut self,
        (serial, id): (u64, u16),
        outcome: Option<Result<(), transfer::Failure>>,
        quiet: Option<Quiet>,
        now: Time,
    ) {
        if quiet.is_some() {
            let mut in_flight = self.in_flight.iter();
            if let Some(i) = in_flight.position(|(token, _)| *token == (serial, id)) {
                self.in_flight.swap_remove(i);
            }
        }
        let mut all = self.conns.iter_mut().flatten();
        if let Some(conn) = all.find(|c| c.serial == serial) {
            conn.stream.get_ended(id, outcome, quiet, &LIMITS, now);
        }
    }

    fn pump(&mut self, fabric: &mut Fabric) -> Result<()> {
        for i in 0..self.conns.len() {
            self.pump_one(fabric, i)?;
        }
        Ok(())
    }

    /// Lets a connection send.
    pub(super) fn pump_one(&mut self, fabric: &mut Fabric, i: usize) -> Result<()> {
        let mut limits = super::limits(self.mutation);
        if self.slots.few.is_some() {
            limits.chunk = SMALL_CHUNK;
        }
        let now = Time(fabric.now());
        let port = self.port.as_mut();
        if let (Some(port), Some(conn)) = (port, self.conns[i].as_mut()) {
            let before = conn.stream.counters().gets;
            conn.waits.refused = false;
            let mut wire = Wire {
                port,
                fabric,
                transfers: &mut self.transfers,
                hasty: &mut self.hasty,
                tagged: &mut self.tagged,
                in_flight: &mut self.in_flight,
                sink: conn.sink.unwrap_or(0),
                mutation: self.mutation,
                repeat_every: self.repeat_every,
                refuses_gets: self.refuses_gets,
                held: &mut self.held,
                slots: &mut self.slots,
                waits: &mut conn.waits,
                index: i as u32,
                sent: &mut self.sent,
                serial: conn.serial,
                peer: conn.peer,
                send_ring: conn.send_ring.unwrap_or(0),
                receive_ring: conn.receive_ring.unwrap_or(0),
                peer_ring: conn.peer_ring,
                geometry: conn.geometry,
            };
            // Without credits, the next poll tries again.
            let _ = conn.stream.pump(&mut wire, &limits, now, 64);
            conn.stream.check().map_err(anyhow::Error::msg)?;
            let gets = conn.stream.counters().gets - before;
            self.count_gets(i, gets)?;
        }
        Ok(())
    }

    /// Releases rings and connections that have ended.
    fn reap(&mut self, fabric: &Fabric) -> Result<()> {
        let now = Time(fabric.now());
        self.reuse_withdrawn(fabric)?;
        for i in 0..self.conns.len() {
            let pair = self.conns[i].as_ref().map(|c| (c.pair, c.side));
            if let Some(pair) = pair {
                self.settle_lent(fabric, pair)?;
            }
            let Some(conn) = self.conns[i].as_mut() else {
                continue;
            };
            let ended = conn.stream.end().is_some();
            if ended && (!self.held.has(conn.serial) || self.mutation == Some(Mutation::HeldIsSent))
            {
                conn.stream.committed(now);
            }
            let hasty = self.mutation == Some(Mutation::ReceiveRingAtEnd);
            let mut back = Vec::new();
            // A program may still read the data in the ring.
            if ended && !conn.open && (conn.stream.is_quiet() || hasty) {
                back.extend(conn.receive_ring.take());
            }
            let free = match conn.stream.send_ring_free(&LIMITS) {
                RingFree::No => None,
                RingFree::Now => Some(0),
                RingFree::Uncommitted => None,
                RingFree::At(_) if self.mutation == Some(Mutation::SendRingAtEnd) => Some(0),
                RingFree::At(at) => Some(at.0),
            };
            if let (Some(at), Some(ring)) = (free, conn.send_ring) {
                conn.send_ring = None;
                match at {
                    0 => back.push(ring),
                    at => self.held_off.push((at, ring)),
                }
            }
            let gone = !conn.open && conn.stream.can_drop(now, &LIMITS);
            let lent = conn.lent.is_some() || conn.sink.is_some();
            if gone && !lent && conn.send_ring.is_none() && conn.receive_ring.is_none() {
                let end = conn.stream.end();
                self.ended
                    .extend(end.map(|end| (conn.pair, conn.side, end)));
                self.conns[i] = None;
                self.slots.forget(i);
            }
            for ring in back {
                self.give_back(fabric, ring)?;
            }
        }
        Ok(())
    }

    /// Checks unused memory at the end of a run.
    ///
    /// # Errors
    ///
    /// Fails if unused memory was written or is missing.
    pub fn check_end(&mut self, fabric: &Fabric) -> Result<()> {
        let nic = self.nic;
        let left: Vec<String> = self
            .conns
            .iter()
            .flatten()
            .map(|c| format!("{}/{}: {:?}", c.pair, c.side, c.stream))
            .collect();
        ensure!(
            left.is_empty(),
            "node {nic} has connections at the end: {left:?}"
        );
        self.check_setups(fabric)?;
        ensure!(self.is_idle(), "node {nic} has transfers at the end");
        let mut rings = 0;
        let held_off = self
            .held_off
            .iter()
            .filter(|(until, _)| *until > fabric.now())
            .count();
        ensure!(held_off == 0, "rings of node {nic} are held off at the end");
        let mut taken = Vec::new();
        while let Some(ring) = self.ring(fabric)? {
            rings += 1;
            taken.push(ring);
        }
        ensure!(rings == RINGS, "node {nic} has lost rings");
        self.free = taken;
        Ok(())
    }
}
