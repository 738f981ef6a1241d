// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Direct Sockets over Extoll (EXT-DS): formats of the messages between the two ends of a stream
//! (docs/ds-protocol.md).
//!
//! The sender transfers data in VELO messages of up to 120 bytes, whose user tag is the [`Kind`].
//! The receiver can also read data with RMA GETs from the send ring of the sender. A message of a
//! stream begins with a [`Head`], which names the connection and the sender's position in the
//! stream. This module neither allocates nor copies memory.

mod seq;
mod setup;
mod stream;

pub use seq::Seq;
pub use setup::{Answer, Answered, Connect, Decline, Endpoint, Ring, SetupError, Tuple};
pub use stream::{
    Ack, Ended, Head, Message, Reject, Rejected, Words, LAST_DATA, MORE_DATA, SOURCE_MAX,
};

use crate::ids::Vpid;

/// Version of the protocol. A server declines all other versions.
pub const VERSION: u8 = 1;
/// VPID to which negotiation messages are sent on every node.
pub const SERVICE: Vpid = Vpid::DS;
/// Traffic class of all VELO messages and GETs.
pub const TRAFFIC_CLASS: u8 = 2;
/// Limit of NLAs, which have 40 bits (HW §11.1).
const NLA_SPACE: u64 = 1 << 40;

/// Kind of a message. Its code is the user tag of the VELO message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Bytes of the stream.
    Velo,
    /// Bytes of the stream that end a write. The message also acknowledges received data.
    VeloLast,
    /// Bytes of the stream in the send ring, which the receiver may GET.
    RmaInfo,
    /// Acknowledgement and free space of the receive ring. The sender may request an answer.
    RmaAvail,
    /// End of the stream, or of the connection after an error.
    Shutdown,
    /// Bytes of the stream outside of the send ring, which the receiver may GET.
    RmaSource,
    /// Withdrawal of bytes that `RmaSource` announced. The receiver must not GET any more of them.
    RmaCut,
    /// Answer to a withdrawal, with the number of bytes that the receiver will not GET.
    RmaCutDone,
    /// Question of a client whether the server accepts a connection.
    Connect,
    /// Positive answer of the server.
    Offer,
    /// Negative answer of the server.
    Decline,
    /// Notice of the client that it has stopped waiting.
    Cancel,
    /// Notice of the server that it has accepted the connection.
    Accept,
    /// Confirmation of the client that it uses the connection. After this message, the connection
    /// cannot fall back to TCP.
    Confirm,
    /// Notice of the client that it uses TCP instead. The server ignores further messages of this
    /// connection.
    Fallback,
}

impl Kind {
    const TABLE: [(u8, Self); 15] = [
        (0x10, Self::Velo),
        (0x11, Self::VeloLast),
        (0x12, Self::RmaInfo),
        (0x13, Self::RmaAvail),
        (0x14, Self::Shutdown),
        (0x15, Self::RmaSource),
        (0x16, Self::RmaCut),
        (0x17, Self::RmaCutDone),
        (0x20, Self::Connect),
        (0x21, Self::Offer),
        (0x22, Self::Decline),
        (0x23, Self::Cancel),
        (0x24, Self::Accept),
        (0x25, Self::Confirm),
        (0x26, Self::Fallback),
    ];

    /// Returns the user tag.
    #[must_use]
    pub const fn tag(self) -> u8 {
        let mut i = 0;
        while i < Self::TABLE.len() {
            if Self::TABLE[i].1 as u8 == self as u8 {
                return Self::TABLE[i].0;
            }
            i += 1;
        }
        0
    }

    /// Returns the kind with this user tag.
    #[must_use]
    pub const fn from_tag(tag: u8) -> Option<Self> {
        let mut i = 0;
        while i < Self::TABLE.len() {
            if Self::TABLE[i].0 == tag {
                return Some(Self::TABLE[i].1);
            }
            i += 1;
        }
        None
    }

    /// Returns whether messages of this kind belong to a stream. All other messages are sent to
    /// [`SERVICE`].
    #[must_use]
    pub const fn is_stream(self) -> bool {
        self.tag() < 0x20
    }
}

/// Name of a connection that one node has chosen. It consists of an index into the node's table and
/// a generation, which counts earlier uses of that index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ConnId(u32);

impl ConnId {
    /// Number of bits of a name.
    pub const BITS: u32 = 24;
    /// Number of bits of the index.
    pub const INDEX_BITS: u32 = 14;

    /// Returns the name with these values. Drops excess bits.
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        let index = index & ((1 << Self::INDEX_BITS) - 1);
        Self::from_low_bits((generation << Self::INDEX_BITS) | index)
    }

    /// Returns the name in the low 24 bits of `raw`.
    #[must_use]
    pub const fn from_low_bits(raw: u32) -> Self {
        Self(raw & ((1 << Self::BITS) - 1))
    }

    /// Returns the name as a number of 24 bits.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Returns the index into the table.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 & ((1 << Self::INDEX_BITS) - 1)
    }
}
