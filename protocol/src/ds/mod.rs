// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Direct sockets (DS): the state machines of the connections of `af_extl.ko`
//! (docs/ds-protocol.md).
//!
//! A connection has two streams, one for each direction. A stream is a sequence of bytes with
//! consecutive 32-bit sequence numbers ([`Seq`]). The sender keeps unacknowledged bytes in its send
//! ring, and the receiver keeps unread bytes in its receive ring. The sequence number of a byte
//! determines its offset in both rings.
//!
//! Short data are sent in VELO messages and copied to the receive ring. Long data are announced by
//! a message, and the receiver fetches them from the send ring by RMA GET. A *source* is memory of
//! the sender outside of the send ring, from which the receiver fetches directly. Only the messages
//! define the order of a stream. No order between messages and GETs, or between GETs, is assumed.
//! No node writes to memory of another node, because the target of a PUT cannot know that all of
//! its packets have arrived.
//!
//! Messages and GETs can be lost. A receiver accepts only the expected sequence number, and reports
//! a gap. A sender that receives no acknowledgement asks its peer for one. A failed GET is posted
//! again.
//!
//! # State machines
//!
//! * [`Client`]: negotiation of a connecting socket. Its states ([`Opening`]) lead from `Asking`
//!   over `Offered` and `Waiting` to `Direct` or `Tcp`.
//! * [`Pending`]: clients that asked this server, and whose TCP connections the program has not
//!   accepted.
//! * [`Server`]: an accepted connection until its client confirms it. The outcome is in
//!   [`Accepted`].
//! * [`Stream`]: a connection that transfers data. Its states ([`StreamState`]) are those of TCP,
//!   and its events are in [`StreamEvent`]. It contains a [`Sending`] and a [`Receiving`]
//!   direction.
//!
//! # Driver
//!
//! The state machines contain no locks, clock or I/O, and do not allocate memory after their
//! creation. The driver of a [`Stream`] holds a lock and has these duties:
//!
//! * It passes each message to [`Stream::receive`]. For [`Received::Data`] it copies the data to
//!   the receive ring.
//! * It calls [`Stream::commit`] after it copied a program's data to the send ring, and
//!   [`Stream::consume`] after the program read from the receive ring.
//! * It calls [`Stream::pump`] after each event, when the port can accept messages again, and at
//!   [`Stream::deadline`]. `pump` sends messages and posts GETs through a [`Port`].
//! * It reports the result of each GET to [`Stream::get_ended`]. A GET is successful only if all
//!   its packets arrived, which [`crate::base::validity`] proves.
//! * It frees the receive ring after [`Stream::is_quiet`], and the send ring after
//!   [`Stream::send_ring_free`].
//!
//! # Memory that a peer reads
//!
//! A GET must return the announced bytes, and no later contents of the same memory. Therefore a GET
//! is posted only if the peer is known to have been alive within [`Limits::fresh`]. A closed
//! connection keeps its send ring as long as such a GET may arrive, unless the peer acknowledged
//! all bytes.

mod client;
mod fallback;
mod lending;
mod peers;
mod pump;
mod receiving;
mod sending;
mod server;
mod shares;
mod source;
mod stream;
mod timing;
mod wait_queue;

pub use client::{Client, ClientMessage, OpenLimits, Opening, OpeningEvent};
pub use fallback::Fallback;
pub use peers::{FailureKey, Failures, Host, Program, SilentNodes};
pub use receiving::{Get, Receiving};
pub use sending::Sending;
pub use server::{decline, Accepted, ConnectRequest, Pending, Server};
pub use shares::Shares;
pub use source::{SourceId, SourceState, SOURCES};
pub use stream::{unknown, End, Port, Ready, Received, RingFree, Stream, StreamEvent, StreamState};
pub use wait_queue::{Round, WaitQueue};

use wire::ds::Seq;

/// Maximum number of announced ranges of a stream that are not fetched yet.
pub const MAX_RANGES: usize = 32;

/// Limits of a stream. Times are in ticks, and sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Minimum size of announced data. Shorter data are sent in messages.
    pub threshold: u32,
    /// Maximum size of a GET.
    pub chunk: u32,
    /// Number of times that a NIC unit may reject a GET before the connection is aborted.
    pub tries: u8,
    /// Time after which a GET without result counts as failed. The time is doubled with each
    /// failure. The connection is aborted if no GET succeeds for `give_up`.
    pub get: u64,
    /// Maximum age of the peer's last sign of life when the stream decides to post a GET. The GET
    /// must be posted before twice this time has passed since the sign of life.
    pub fresh: u64,
    /// Maximum time for which a message or a GET is in flight. A node must take longer than 2 ×
    /// (`fresh` + `hold`) to restart.
    pub hold: u64,
    /// Time without an acknowledgement after which the peer is asked. The time is doubled with each
    /// question, up to `ask_most`.
    pub ask: u64,
    /// Maximum time between two questions to a peer.
    pub ask_most: u64,
    /// Time after which a peer that does not answer questions counts as dead.
    pub give_up: u64,
    /// Time after which a connection that the program closed is aborted, if the peer neither
    /// acknowledges data nor ends its direction.
    pub orphan: u64,
    /// Time for which a finished connection still answers a peer that did not receive the last
    /// message.
    pub linger: u64,
    /// Maximum delay of corked data.
    pub cork: u64,
}

/// Ring sizes and initial sequence numbers of both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Sequence number of the first byte that this end sends.
    pub send_isn: Seq,
    /// Sequence number of the first byte that this end receives.
    pub receive_isn: Seq,
    /// Size of this end's send ring in bytes; a power of two.
    pub send_ring: u32,
    /// Size of this end's receive ring in bytes; a power of two.
    pub receive_ring: u32,
    /// Size of the peer's receive ring in bytes; a power of two.
    pub peer_ring: u32,
    /// Size of the peer's send ring in bytes; a power of two.
    pub peer_send: u32,
    /// True if both ends accept sources.
    pub sources: bool,
}

/// Consecutive bytes of a ring. The bytes may wrap to the beginning of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Offset of the first byte in the ring.
    pub at: u32,
    /// Number of bytes.
    pub len: u32,
}

impl Span {
    /// Returns the chunks before and after the wrap in a ring of `ring` bytes, as (offset, length).
    #[must_use]
    pub const fn parts(self, ring: u32) -> [(u32, u32); 2] {
        let before = ring - self.at;
        if self.len <= before {
            [(self.at, self.len), (0, 0)]
        } else {
            [(self.at, before), (0, self.len - before)]
        }
    }
}

/// Protocol violations of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Violation {
    /// The peer acknowledges bytes that were never sent.
    Ack,
    /// The peer offers more free bytes than the size of its receive ring.
    Edge,
    /// The peer sends more data than the receive ring has free bytes.
    Room,
    /// The peer sends data after the end of its stream.
    BehindEnd,
    /// The peer announces more bytes than its send ring holds.
    Ring,
    /// The peer withdraws a further source before the reader has passed the previous eight
    /// withdrawn ranges.
    TooManyWithdrawn,
}

/// Statistics of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes sent in messages, including repeated bytes.
    pub velo_bytes: u64,
    /// Messages with data sent.
    pub velo_messages: u64,
    /// Bytes announced, including repeated bytes.
    pub announced_bytes: u64,
    /// Announcements sent.
    pub announcements: u64,
    /// Bytes received in messages in the correct order.
    pub velo_received: u64,
    /// Bytes of accepted announcements.
    pub rma_received: u64,
    /// GETs posted.
    pub gets: u64,
    /// GETs repeated after a failure.
    pub gets_again: u64,
    /// Questions sent to the peer.
    pub asked: u64,
    /// Number of times that unacknowledged data were sent again.
    pub rewinds: u64,
    /// Messages that contain only bytes which were received before.
    pub old: u64,
    /// Messages that arrived while earlier bytes were missing.
    pub gaps: u64,
    /// Messages of unsupported types, and messages whose sequence number is too far from the
    /// expected one.
    pub foreign: u64,
    /// Messages without data sent.
    pub control: u64,
    /// Bytes of sources announced, including repeated bytes.
    pub source_bytes: u64,
    /// Bytes of the peer's sources for which a first GET was posted, to the ring or to a reader's
    /// memory.
    pub source_received: u64,
    /// Bytes fetched directly to a reader's memory.
    pub sunk: u64,
    /// Withdrawals of announced sources sent.
    pub cuts: u64,
}
