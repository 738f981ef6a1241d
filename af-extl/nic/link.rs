// SPDX-License-Identifier: GPL-2.0-only

//! Ports of a NIC as connections use them: sending of messages, and GETs with a check that all data
//! arrived.
//!
//! Softirq or process context, with the connection's lock held; nothing here sleeps.

use super::{
    conn::{Conn, MESSAGE},
    lend::Sink,
    rings::{load, store, Rings},
};
use extoll_core::{
    rma::transfer::{
        CallIn, Completion, Destination, Direction, Done, Lists, Notify, Quiet, RegionPart,
        Request, RmaError, Span as Fragment, Submitter,
    },
    velo::{Header, SendError, Sender, Target},
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc,
    },
    time::Delta,
};
use kernel_ext::{mem::TagPositions, security};
use protocol::{
    base::validity::{tag_offsets, TAG_BYTES, TAG_DISTANCE},
    ds::{self, Get, Span},
    transfer::Failure,
    Time, TransportError,
};
use wire::{
    ds::{Answered, ConnId, Connect, Endpoint, Kind, Message, Ring, Seq, SERVICE, TRAFFIC_CLASS},
    ids::{Nla, NodeId, Vpid},
};

/// Sending side of the ports. Dropped before the NIC is unbound.
pub(super) struct Link {
    pub(super) sender: Sender,
    pub(super) gets: Submitter,
    /// VPID of the rings' registrations.
    pub(super) rma: Vpid,
}

fn refused(e: SendError) -> TransportError {
    match e {
        SendError::Full | SendError::Retry => TransportError::Later,
        SendError::Down | SendError::Invalid => TransportError::Never,
    }
}

fn send(
    port: &Sender,
    (node, vpid): (NodeId, Vpid),
    tag: u8,
    bytes: &[u8],
) -> Result<(), TransportError> {
    let header = Header {
        tag,
        irq: true,
        class: TRAFFIC_CLASS,
        ..Header::new(Target::Node(node), vpid)
    };
    port.send(header, bytes).map_err(refused)
}

/// Stores quadwords as little-endian bytes, as many as fit `to` as a whole.
fn put_words(words: &[u64], to: &mut [u8]) {
    for (to, word) in to.chunks_exact_mut(8).zip(words) {
        if let Some(to) = to.first_chunk_mut() {
            *to = word.to_le_bytes();
        }
    }
}

impl Link {
    /// Describes this end of a connection for the peer.
    pub(super) fn endpoint(&self, name: ConnId, rings: &Rings, isn: Seq) -> Endpoint {
        Endpoint {
            id: name,
            velo: self.sender.vpid(),
            rma: self.rma,
            isn,
            ring: Ring {
                nla: rings.send.nla(),
                log2: rings.send.bytes().trailing_zeros() as u8,
            },
            receive_log2: rings.receive.bytes().trailing_zeros() as u8,
            sources: true,
        }
    }

    fn send_setup(&self, to: NodeId, kind: Kind, words: &[u64]) -> Result<(), TransportError> {
        let mut bytes = [0; MESSAGE];
        put_words(words, &mut bytes);
        let bytes = bytes.get(..8 * words.len()).ok_or(TransportError::Never)?;
        send(&self.sender, (to, SERVICE), kind.tag(), bytes)
    }

    /// Sends a client's request or its withdrawal.
    ///
    /// # Errors
    ///
    /// Returns an error if the port cannot send a message now or is closed.
    pub(super) fn ask(
        &self,
        to: NodeId,
        kind: Kind,
        connect: &Connect,
    ) -> Result<(), TransportError> {
        self.send_setup(to, kind, &connect.words())
    }

    /// Sends an answer of the negotiation.
    pub(super) fn answer(&self, to: NodeId, answered: &Answered) {
        let (words, count) = answered.words();
        if let Some(words) = words.get(..count) {
            // An answer that the port cannot accept is dropped and repeated later.
            let _ = self.send_setup(to, answered.kind(), words);
        }
    }

    /// Sends a message without data to any port. A message that the port cannot send now is lost.
    pub(super) fn send_any(&self, to: (NodeId, Vpid), message: &Message) {
        let mut bytes = [0; MESSAGE];
        put_words(message.words().as_slice(), &mut bytes);
        if let Some(bytes) = bytes.get(..usize::from(message.len())) {
            let _ = send(&self.sender, to, message.kind().tag(), bytes);
        }
    }
}

/// Transmit path of a stream, for one call of its state machine.
pub(super) struct Wire<'a> {
    pub(super) conn: &'a Arc<Conn>,
    pub(super) link: &'a Link,
    /// Rings of the connection; `None` after they were released, when only the end is announced.
    pub(super) rings: Option<&'a Arc<Rings>>,
    /// Memory of a reader that GETs write to.
    pub(super) sink: Option<&'a Arc<Sink>>,
    pub(super) far: Endpoint,
    /// Number of GETs that the connection may post although other connections wait for slots.
    pub(super) get_budget: &'a mut u8,
    /// Set if no slot was free for a GET.
    pub(super) refused: &'a mut bool,
}

impl Wire<'_> {
    /// Queues the connection for a GET slot.
    fn wait(&mut self, seen: u64) -> TransportError {
        *self.refused = true;
        *self.get_budget = 0;
        let nic = &self.conn.nic;
        if nic.get_waiters.wait(self.conn.name.index(), seen) {
            // A slot became free after the attempt, and that notification found no waiter.
            nic.slots_again();
        }
        TransportError::Later
    }
}

impl ds::Port for Wire<'_> {
    fn send(&mut self, message: &Message, data: Span) -> Result<(), TransportError> {
        let mut bytes = [0; MESSAGE];
        put_words(message.words().as_slice(), &mut bytes);
        let (from, len) = (message.data_offset().into(), usize::from(message.len()));
        if data.len > 0 {
            let to = bytes.get_mut(from..len).ok_or(TransportError::Never)?;
            load(&self.rings.ok_or(TransportError::Never)?.send, data, to);
        }
        let bytes = bytes.get(..len).ok_or(TransportError::Never)?;
        let to = (self.conn.peer, self.far.velo);
        send(&self.link.sender, to, message.kind().tag(), bytes)
    }

    fn get(&mut self, get: &Get, post_by: Time, deadline: Time) -> Result<(), TransportError> {
        let rings = self.rings.ok_or(TransportError::Later)?;
        let conn = self.conn;
        let nic = &conn.nic;
        let seen = nic.get_waiters.seen();
        // Connections that already wait are served first.
        if *self.get_budget == 0 && nic.get_waiters.others(conn.name.index()) > 0 {
            let refused = self.wait(seen);
            // The other waiters may wait for slots of another node. If no GET is in flight, no
            // completion of a GET would run them.
            nic.slots_again();
            return Err(refused);
        }
        let ring = &rings.receive;
        // Address that the GET reads: lent memory, which is contiguous, or the peer's send ring.
        let (base, from, from_ring) = match get.source {
            Some(nla) => (nla.0, Span { at: 0, ..get.from }, u32::MAX),
            None => (self.far.ring.nla.0, get.from, self.far.ring.bytes()),
        };
        let from_parts = span_parts(from, from_ring).map(|(at, len)| Fragment {
            address: Nla(base + at as u64),
            len: len as u64,
        });
        // Address that the GET writes: a reader's memory, which is contiguous, or the receive ring.
        let sink = match get.sink {
            Some(at) => Some((self.sink.ok_or(TransportError::Later)?, at)),
            None => None,
        };
        let (region, offset, to, to_ring) = match sink {
            Some((sink, at)) => (sink.region(), 0, Span { at, ..get.to }, u32::MAX),
            None => (ring.region(), ring.offset(), get.to, ring.bytes() as u32),
        };
        let to_parts =
            span_parts(to, to_ring).map(|(at, len)| RegionPart::new(region, offset + at, len));
        let tagged = Tagged {
            rings: rings.clone(),
            sink: sink.map(|(sink, _)| Flight::new(sink)),
            to,
            secret: security::random().to_le_bytes(),
        };
        let completion = Arc::new(
            Fetch {
                conn: conn.clone(),
                id: get.id,
                tagged,
            },
            GFP_ATOMIC,
        );
        let completion = completion.map_err(|_| TransportError::Later)?;
        let request = Request {
            to: Destination {
                node: self.conn.peer,
                vpid: self.far.rma,
                traffic_class: TRAFFIC_CLASS,
                notify: Notify::Nothing,
            },
            direction: Direction::Get,
            lists: Lists::Regions {
                local: used(&to_parts, to, to_ring),
                remote: used(&from_parts, from, from_ring),
            },
            confirm: false,
            timeout: Delta::ZERO,
            context: CallIn::Poll,
        };
        completion.tagged.write();
        // The engine starts the timeout when it is called, which may be much later than the
        // decision of the state machine.
        let now = nic.now();
        let request = Request {
            timeout: delay(now, deadline),
            ..request
        };
        let within = delay(now, post_by);
        match self
            .link
            .gets
            .submit_within(&request, Some(within), completion)
        {
            Ok(_) => {
                *self.get_budget = self.get_budget.saturating_sub(1);
                Ok(())
            }
            Err(RmaError::Busy) => Err(self.wait(seen)),
            // The handler of a lost NIC ends the stream with the proper error.
            Err(RmaError::NoMemory | RmaError::Down) => Err(TransportError::Later),
            Err(_) => Err(TransportError::Never),
        }
    }
}

fn delay(now: Time, at: Time) -> Delta {
    Delta::from_nanos(at.since(now) as i64)
}

/// Splits a span of a ring into two contiguous ranges, each with position and length. The second
/// range is empty unless the span wraps around the end of the ring.
fn span_parts(span: Span, ring: u32) -> [(usize, usize); 2] {
    span.parts(ring)
        .map(|(at, len)| (at as usize, len as usize))
}

/// Returns the ranges that are not empty.
fn used<T>(parts: &[T; 2], span: Span, ring: u32) -> &[T] {
    let count = match span.parts(ring) {
        [_, (_, 0)] => 1,
        _ => 2,
    };
    parts.get(..count).unwrap_or(parts)
}

/// Destination of a GET with validity tags, which the GET must overwrite.
struct Tagged {
    rings: Arc<Rings>,
    /// Reader's memory as destination. With `None`, the receive ring is the destination.
    sink: Option<Flight>,
    /// Range of bytes within the destination.
    to: Span,
    /// Value of the tags.
    secret: [u8; TAG_BYTES as usize],
}

impl Tagged {
    /// Visits the tags until `row` or `divided` returns true, and returns whether one of them did.
    /// `row` gets runs of equally spaced tags in the ring. `divided` gets single tags: a tag that
    /// wraps around the end of the ring, and each tag in a reader's memory.
    fn visit_tags(
        &self,
        mut row: impl FnMut(TagPositions) -> bool,
        mut divided: impl FnMut(Span) -> bool,
    ) -> bool {
        if self.sink.is_some() {
            // The range in a reader's memory does not wrap around.
            return tag_offsets(self.to.len).any(|offset| {
                divided(Span {
                    at: self.to.at + offset,
                    len: TAG_BYTES,
                })
            });
        }
        let ring = self.rings.receive.bytes();
        let step = TAG_DISTANCE as usize;
        let (mut at, mut left) = (self.to.at as usize, tag_offsets(self.to.len).count());
        while left > 0 {
            at &= ring - 1;
            let room = (ring - at).checked_sub(TAG_BYTES as usize);
            let count = room.map_or(0, |room| room / step + 1).min(left);
            if count > 0 && row(TagPositions { at, step, count }) {
                return true;
            }
            at += count * step;
            left -= count;
            if left > 0 && at < ring {
                let tag = Span {
                    at: at as u32,
                    len: TAG_BYTES,
                };
                if divided(tag) {
                    return true;
                }
                at += step;
                left -= 1;
            }
        }
        false
    }

    fn write(&self) {
        let ring = &self.rings.receive;
        let row = |comb| {
            ring.write_tag(comb, self.secret);
            false
        };
        let divided = |tag| {
            match &self.sink {
                Some(flight) => flight.store(tag, &self.secret),
                None => store(ring, tag, &self.secret),
            }
            false
        };
        self.visit_tags(row, divided);
    }

    /// Returns whether a tag was not overwritten, which means that data are missing.
    fn is_left(&self) -> bool {
        let ring = &self.rings.receive;
        let divided = |tag| {
            let mut found = [0; TAG_BYTES as usize];
            match &self.sink {
                Some(flight) => flight.load(tag, &mut found),
                None => load(ring, tag, &mut found),
            }
            found == self.secret
        };
        self.visit_tags(|comb| ring.has_tag(comb, self.secret), divided)
    }
}

/// Reader's memory while a GET may write to it.
struct Flight {
    sink: Arc<Sink>,
    finished: AtomicFlag,
}

impl Flight {
    fn new(sink: &Arc<Sink>) -> Self {
        sink.posted();
        Self {
            sink: sink.clone(),
            finished: AtomicFlag::new(false),
        }
    }

    fn finish(&self) {
        if !self.finished.xchg(true, Relaxed) {
            self.sink.finished();
        }
    }

    /// Leaves the GET in the count of `in_flight`, because the GET may still write. The owner then
    /// revokes the memory before reuse.
    fn keep(&self) {
        self.finished.xchg(true, Relaxed);
    }

    // The range of a tag is always inside the memory, so the result is not checked.
    fn store(&self, tag: Span, from: &[u8]) {
        let pages = self.sink.pages();
        let _ = pages.map(|pages| pages.copy_from(tag.at as usize, from));
    }

    fn load(&self, tag: Span, to: &mut [u8]) {
        let pages = self.sink.pages();
        let _ = pages.map(|pages| pages.copy_to(tag.at as usize, to));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A GET in flight.
struct Fetch {
    conn: Arc<Conn>,
    id: u16,
    tagged: Tagged,
}

impl Completion for Fetch {
    fn done(&self, outcome: Result<Done, RmaError>) {
        let outcome = match outcome {
            Ok(_) if self.tagged.is_left() => {
                self.conn.nic.count_hole();
                Err(Failure::TimedOut)
            }
            Ok(_) => {
                // All data arrived, so no further write follows.
                if let Some(flight) = &self.tagged.sink {
                    flight.finish();
                }
                Ok(())
            }
            Err(RmaError::Fault(fault)) => Err(Failure::Fault(fault)),
            Err(RmaError::Cancelled) => Err(Failure::Cancelled),
            Err(RmaError::PeerLost) => Err(Failure::PeerLost),
            Err(RmaError::Down) => Err(Failure::Down),
            Err(_) => Err(Failure::TimedOut),
        };
        self.conn.get_ended(self.id, Some(outcome), None);
    }

    fn quiet(&self, how: Quiet) {
        if let Some(flight) = &self.tagged.sink {
            match how {
                Quiet::Settled => flight.finish(),
                // The engine has given up the GET without an answer, which may still arrive.
                Quiet::Unanswered | Quiet::Closed => flight.keep(),
            }
        }
        self.conn.get_ended(self.id, None, Some(how));
        self.conn.nic.slot_freed();
    }
}
