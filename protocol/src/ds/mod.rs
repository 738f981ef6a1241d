// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Direct sockets (EXT-DS): the machine of one stream connection (docs/ds-protocol.md).
//!
//! Each direction is a stream of bytes with consecutive numbers ([`Seq`]). The
//! sender keeps what was not acknowledged in its send ring, the receiver what was not read in a ring
//! of its own; in both each byte has its place. Small pieces travel in VELO messages, which the
//! receiver copies to their place. Long ones are announced by a message, and the receiver fetches them
//! from the send ring to their place by a GET, which tells it when they are there. So the order of the
//! stream is that of the messages; nothing is assumed of the order between messages and GETs, nor
//! between GETs, and no peer writes to memory here.
//!
//! Whoever drives the machine makes sure that a GET has brought all: see [`crate::base::marks`].
//!
//! (A PUT would need proof that it arrived: nobody is told of one that the network loses, and what
//! is asked of the peer behind it is answered nevertheless.)
//!
//! What can get lost are messages (a link that goes away, a mailbox that loses one) and GETs. A
//! receiver takes what comes next and nothing else, and says so if there is a gap. A sender that
//! hears nothing asks. A GET that fails is made anew.
//!
//! **Memory that a peer reads from.** What is fetched must be what was announced, not what is in that
//! memory after the peer was restarted, or has used it for something else. So a GET is posted only
//! while the peer is known to have been alive within [`Limits::fresh`], and an end that is gone keeps
//! its send ring for as long as such a GET may come ([`Stream::send_ring_free`]), unless the peer has
//! acknowledged all.
//!
//! The machine copies nothing: it says which bytes go where, and whoever drives it has the rings.

mod client;
mod fallback;
mod lending;
mod line;
mod peers;
mod pump;
mod receiving;
mod sending;
mod server;
mod shares;
mod source;
mod stream;
mod timing;

pub use client::{Client, ClientSays, OpenLimits, Opened, Opening};
pub use fallback::Fallback;
pub use line::{Line, Round};
pub use peers::{Failures, Host, Program, SilentNodes, Subject};
pub use receiving::{Get, Receiving};
pub use sending::Sending;
pub use server::{decline, Accepted, Asked, Pending, Server};
pub use shares::Shares;
pub use source::{SourceId, SourceState, SOURCES};
pub use stream::{unknown, End, Heard, Port, Ready, RingFree, Step, Stream, StreamState};

use wire::ds::Seq;

/// Pieces of a stream that are announced and not there.
pub const FETCHES: usize = 32;

/// Times in ticks, sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// So much that is to be sent is announced, less goes by messages.
    pub threshold: u32,
    /// Bytes of a GET.
    pub chunk: u32,
    /// How often a unit may refuse a GET.
    pub tries: u8,
    /// A GET that has not brought its bytes after this time has failed; twice as long the second time,
    /// and so on. If none succeeds for `give_up` the connection is lost.
    pub get: u64,
    /// A GET is decided upon within this time of when the peer was known to be alive, and posted within
    /// twice of it.
    pub fresh: u64,
    /// How long a message or a GET may be on its way. A node takes longer to restart than twice
    /// `fresh` and this together.
    pub hold: u64,
    /// After so long without an answer the peer is asked; doubled each time, up to `ask_most`.
    pub ask: u64,
    /// See `ask`.
    pub ask_most: u64,
    /// A peer that was asked and says nothing for so long is dead.
    pub give_up: u64,
    /// A connection that nobody has open any more, and whose peer neither acknowledges more nor
    /// finishes, ends after this time.
    pub orphan: u64,
    /// For so long a connection that has ended in order answers a peer who has missed that.
    pub linger: u64,
    /// Corked data waits for so long at most.
    pub cork: u64,
}

/// Sizes and first numbers of both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Number of the first byte that is sent.
    pub send_isn: Seq,
    /// Number of the first byte that is received.
    pub receive_isn: Seq,
    /// Bytes of the own send ring, a power of two.
    pub send_ring: u32,
    /// Bytes of the own receive ring, a power of two.
    pub receive_ring: u32,
    /// Bytes of the peer's receive ring, a power of two.
    pub peer_ring: u32,
    /// Bytes of the peer's send ring, a power of two.
    pub peer_send: u32,
    /// Both ends take sources.
    pub sources: bool,
}

/// Bytes of a ring one behind the other; they may go on at its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// The first one, counted from the beginning of the ring.
    pub at: u32,
    /// Number of bytes.
    pub len: u32,
}

impl Span {
    /// The parts before and behind the end of a ring of `ring` bytes, as offset and length.
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

/// How a peer broke the rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    /// It acknowledges what was never sent.
    Ack,
    /// It has more room than its ring has bytes.
    Edge,
    /// It sends more than there is room for.
    Room,
    /// It sends data behind the end of its stream.
    BehindEnd,
    /// It announces more than its ring holds.
    Ring,
    /// It withdraws more than it may before the reader is past that.
    Voids,
}

/// What happened to a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes sent by messages, those that were repeated included.
    pub velo_bytes: u64,
    /// Messages with data sent.
    pub velo_messages: u64,
    /// Bytes announced, those that were repeated included.
    pub announced_bytes: u64,
    /// Announcements sent.
    pub announcements: u64,
    /// Bytes received in order by messages.
    pub velo_received: u64,
    /// Bytes that were announced to be fetched.
    pub rma_received: u64,
    /// GETs posted.
    pub gets: u64,
    /// Of these, made anew.
    pub gets_again: u64,
    /// Times that the peer was asked.
    pub asked: u64,
    /// Times that data was sent once more.
    pub rewinds: u64,
    /// Messages that came twice.
    pub old: u64,
    /// Messages that came too early.
    pub gaps: u64,
    /// Messages of another stream.
    pub foreign: u64,
    /// Other messages sent.
    pub control: u64,
    /// Bytes announced of sources, those that were repeated included.
    pub source_bytes: u64,
    /// Bytes of sources that were to be fetched, to the ring or to a reader's memory.
    pub source_received: u64,
    /// Bytes fetched to a reader's memory.
    pub sunk: u64,
    /// Sources that were withdrawn after they had been announced.
    pub cuts: u64,
}
