// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Direct Sockets over Extoll (EXT-DS): what the two ends of a stream exchange (docs/ds-protocol.md).
//!
//! Everything travels as VELO messages of at most 120 bytes, whose user tag is the [`Kind`], and as
//! RMA GETs from the send ring of its writer. A message of a stream begins with a [`Head`]: which
//! connection, and where in the stream its sender is. Nothing here allocates or copies.

mod seq;
mod setup;
mod stream;

pub use seq::Seq;
pub use setup::{Answer, Answered, Connect, Decline, Endpoint, Ring, SetupError, Tuple};
pub use stream::{
    Ack, Ended, Head, Message, Reject, Rejected, Words, LAST_DATA, MORE_DATA, SOURCE_MAX,
};

use crate::ids::Vpid;

/// Version of the protocol; others are declined.
pub const VERSION: u8 = 1;
/// Where connections are negotiated, on every node.
pub const SERVICE: Vpid = Vpid::DS;
/// Traffic class of all VELO messages and GETs.
pub const TRAFFIC_CLASS: u8 = 2;
/// End of the NLAs: 40 bits (HW §11.1).
const NLA_SPACE: u64 = 1 << 40;

/// What a message is: its user tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Bytes of the stream.
    Velo,
    /// Bytes of the stream, the last of what was sent together; tells what was received, too.
    VeloLast,
    /// Bytes of the stream that the receiver may fetch.
    RmaInfo,
    /// What was received, and how much room there is; may ask for an answer.
    RmaAvail,
    /// The stream ends here, or has ended with an error.
    Shutdown,
    /// Bytes of the stream that the receiver may fetch from elsewhere than the send ring.
    RmaSource,
    /// Of these nothing more is to be fetched.
    RmaCut,
    /// So much of them will not be.
    RmaCutDone,
    /// A client asks whether a server would take a connection.
    Connect,
    /// It would.
    Offer,
    /// It would not.
    Decline,
    /// The client does not wait any longer.
    Cancel,
    /// The server has taken the connection.
    Accept,
    /// The client uses it. Nobody falls back from here on.
    Confirm,
    /// The client uses TCP: nothing that was sent here counts.
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

    /// The user tag.
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

    /// The kind with this user tag.
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

    /// Whether it belongs to a connection; the others go to [`SERVICE`].
    #[must_use]
    pub const fn is_stream(self) -> bool {
        self.tag() < 0x20
    }
}

/// Names a connection to the node that chose it: a place in its table, and how often that place was
/// used before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ConnId(u32);

impl ConnId {
    /// Bits of it.
    pub const BITS: u32 = 24;
    /// Bits of the place.
    pub const INDEX_BITS: u32 = 14;

    /// Place `index`, generation `generation`; what does not fit is cut off.
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        let index = index & ((1 << Self::INDEX_BITS) - 1);
        Self::from_low_bits((generation << Self::INDEX_BITS) | index)
    }

    /// What the low 24 bits say.
    #[must_use]
    pub const fn from_low_bits(raw: u32) -> Self {
        Self(raw & ((1 << Self::BITS) - 1))
    }

    /// The 24 bits.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The place in the table.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 & ((1 << Self::INDEX_BITS) - 1)
    }
}
