// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Lustre networking over Extoll (EX-LND): formats of the messages between two nodes
//! (docs/lnd-protocol.md).
//!
//! Data travels in VELO messages of up to 120 bytes, whose user tag is the [`Kind`], and in RMA
//! GETs from memory that its owner has announced. No node writes to memory of another node. The
//! code neither allocates nor copies.

mod message;
mod notes;
mod session;

pub use message::{
    fragments, pieces, Fragment, Message, Payload, Reject, Rejected, Request, Source, Words,
    FRAGMENT_DATA, MAX_FRAGMENTS, MAX_PAYLOAD,
};
pub use notes::{Note, NoteKind, Notes, Verdict};
pub use session::{Answer, Hello, Incarnation, Key, Welcome};

use crate::ids::Vpid;

/// Version of the protocol. A peer with another version receives an answer that names this one.
pub const VERSION: u8 = 1;
/// VPID on every node that sends and receives messages, and owns the memory that GETs read.
pub const VPID: Vpid = Vpid::LND;
/// Traffic class of all messages and GETs.
pub const TRAFFIC_CLASS: u8 = 2;

/// Kind of a message, which is its user tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Request for a session.
    Hello,
    /// Answer to a request for a session.
    Welcome,
    /// The receiver knows no session with this key.
    Stale,
    /// An LNet message, or its beginning.
    Request,
    /// Further payload of a request.
    Fragment,
    /// Notes about the state of requests.
    Notes,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Hello,
        Self::Welcome,
        Self::Stale,
        Self::Request,
        Self::Fragment,
        Self::Notes,
    ];

    /// Returns the user tag.
    #[must_use]
    pub const fn tag(self) -> u8 {
        0x30 + self as u8
    }

    /// Returns the kind with this user tag.
    #[must_use]
    pub fn from_tag(tag: u8) -> Option<Self> {
        let index = tag.checked_sub(0x30)?;
        Self::ALL.get(usize::from(index)).copied()
    }
}

/// Form of an LNet message's header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// Network addresses of 8 bytes: 72 bytes.
    Nid4,
    /// Network addresses of 20 bytes: 96 bytes.
    Nid16,
}

impl Form {
    /// Returns the number of quadwords of a header.
    #[must_use]
    pub const fn words(self) -> usize {
        match self {
            Self::Nid4 => 9,
            Self::Nid16 => 12,
        }
    }

    /// Returns the number of bytes of a header.
    #[must_use]
    pub const fn bytes(self) -> u16 {
        match self {
            Self::Nid4 => 72,
            Self::Nid16 => 96,
        }
    }

    /// Returns the maximum number of payload bytes behind it in a [`Kind::Request`].
    #[must_use]
    pub const fn data(self) -> u16 {
        match self {
            Self::Nid4 => 32,
            Self::Nid16 => 8,
        }
    }

    const fn code(self) -> u8 {
        self as u8
    }
}

/// Header of an LNet message, in the encoding of LNet's own functions. Only the first
/// [`Form::words`] quadwords are used.
pub type Header = [u64; 12];

/// Identity of a request within a session: its slot at the sender, and a number that counts the
/// requests of that slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RequestId {
    /// Slot.
    pub slot: u8,
    /// Number, modulo 65,536. The first one is 1.
    pub seq: u16,
}
