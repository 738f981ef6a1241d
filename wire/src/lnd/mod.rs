// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Lustre networking over Extoll (EX-LND): what two nodes exchange (docs/lnd-protocol.md).
//!
//! Everything travels as VELO messages of at most 120 bytes, whose user tag is the [`Kind`], and as
//! RMA GETs from memory that its owner has announced. Nobody writes to memory of another node.
//! Nothing here allocates or copies.

mod message;
mod notes;
mod session;

pub use message::{
    fragments, pieces, Fragment, Message, Payload, Reject, Rejected, Request, Source, Words,
    FRAGMENTS, FRAGMENT_DATA, MAX_PAYLOAD,
};
pub use notes::{Note, Notes, Verdict, What};
pub use session::{Answer, Hello, Incarnation, Key, Welcome};

use crate::ids::Vpid;

/// Version of the protocol; peers that don't speak it are told.
pub const VERSION: u8 = 1;
/// Where messages go and come from, and whose memory GETs read, on every node.
pub const VPID: Vpid = Vpid::LND;
/// Traffic class of all messages and GETs.
pub const TRAFFIC_CLASS: u8 = 2;

/// What a message is: its user tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A node wants a session.
    Hello,
    /// The answer.
    Welcome,
    /// There is no session with this key.
    Stale,
    /// An LNet message, or its beginning.
    Request,
    /// More payload of it.
    Fragment,
    /// What becomes of requests.
    Notes,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Hello,
        Self::Welcome,
        Self::Stale,
        Self::Request,
        Self::Fragment,
        Self::Notes,
    ];

    /// The user tag.
    #[must_use]
    pub const fn tag(self) -> u8 {
        0x30 + self as u8
    }

    /// The kind with this user tag.
    #[must_use]
    pub fn from_tag(tag: u8) -> Option<Self> {
        let index = tag.checked_sub(0x30)?;
        Self::ALL.get(usize::from(index)).copied()
    }
}

/// Which form the header of an LNet message has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// Network addresses of 8 bytes: 72 bytes.
    Nid4,
    /// Network addresses of 20 bytes: 96 bytes.
    Nid16,
}

impl Form {
    /// Quadwords of a header.
    #[must_use]
    pub const fn words(self) -> usize {
        match self {
            Self::Nid4 => 9,
            Self::Nid16 => 12,
        }
    }

    /// Bytes of a header.
    #[must_use]
    pub const fn bytes(self) -> u16 {
        match self {
            Self::Nid4 => 72,
            Self::Nid16 => 96,
        }
    }

    /// Bytes of payload behind it in a [`Kind::Request`].
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

/// Header of an LNet message, as LNet's own functions write it; [`Form::words`] quadwords count.
pub type Header = [u64; 12];

/// Which request of a session: the place that it has at its sender, and how many had that before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// The place.
    pub slot: u8,
    /// The number, modulo 65,536. The first one is 1.
    pub seq: u16,
}
