// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Lustre networking over Extoll (EX-LND): formats of the messages between two nodes
//! (docs/lnd-protocol.md).
//!
//! Payload is transferred in VELO messages of up to 120 bytes, whose user tag is the [`Kind`], or
//! read by RMA GETs from memory that its owner has announced. No node writes to memory of another
//! node. This module neither allocates nor copies memory.

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

/// Version of the protocol. The answer to a peer with another version contains this version.
pub const VERSION: u8 = 1;
/// VPID that sends and receives messages on every node. It also owns the memory that GETs read.
pub const VPID: Vpid = Vpid::LND;
/// Traffic class of all messages and GETs.
pub const TRAFFIC_CLASS: u8 = 2;

/// Kind of a message. Its code is the user tag of the VELO message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Request for a session.
    Hello,
    /// Answer to a request for a session.
    Welcome,
    /// Notice that the sender knows no session with this key.
    Stale,
    /// LNet message, or its beginning.
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
    /// Header of 72 bytes, with network addresses of 8 bytes.
    Nid4,
    /// Header of 96 bytes, with network addresses of 20 bytes.
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

    /// Returns the maximum number of payload bytes that follow the header in a [`Kind::Request`].
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

/// Header of an LNet message as LNet's own functions encode it. Only the first [`Form::words`]
/// quadwords are used.
pub type Header = [u64; 12];

/// Identity of a request within a session. It consists of its slot at the sender and a number that
/// counts the requests in that slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RequestId {
    /// Slot of the request at the sender.
    pub slot: u8,
    /// Number of the request in its slot, modulo 65,536. The first request has number 1.
    pub seq: u16,
}
