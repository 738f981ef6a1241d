// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages that negotiate a connection (docs/ds-protocol.md, Negotiation). All go to the service VPID.

use super::stream::{Reject, Rejected};
use super::{ConnId, Kind, Seq, NLA_SPACE, VERSION};
use crate::ids::{Nla, Vpid};

/// Smallest and largest ring, as powers of two of bytes.
const RING_LOG2: core::ops::RangeInclusive<u8> = 12..=24;

bits! {
    /// First quadword of all these messages.
    pub struct SetupWord {
        /// Version of the protocol.
        version / with_version: u8 [7:0];
        /// Why it is declined.
        reason / with_reason: u8 [15:8];
        /// Bytes of the sender's send ring, as a power of two.
        send / with_send: u8 [20:16];
        /// Bytes of the sender's receive ring, as a power of two.
        receive / with_receive: u8 [28:24];
        /// The sender takes [`Kind::RmaSource`]. Of [`Kind::Connect`] and [`Kind::Accept`].
        sources / with_sources: bool [29:29];
        /// Random number of the client.
        cookie / with_cookie: u32 [63:32];
    }
}

bits! {
    /// Second quadword: who is meant, and who speaks.
    pub struct NamesWord {
        /// Connection as the receiver named it; of [`Kind::Connect`] and [`Kind::Cancel`] 0.
        to / with_to: u32 [23:0];
        /// Connection as the sender named it.
        from / with_from: u32 [47:24];
    }
}

bits! {
    /// Third quadword: where the sender receives, and where its stream begins.
    pub struct PlaceWord {
        /// VPID of its mailbox.
        velo / with_velo: u16 [7:0];
        /// VPID of its send ring.
        rma / with_rma: u16 [15:8];
        /// Number of the first byte that it will send.
        isn / with_isn: u32 [63:32];
    }
}

bits! {
    /// Fifth quadword of [`Kind::Connect`]: TCP ports.
    pub struct PortsWord {
        /// Of the client.
        client / with_client: u16 [15:0];
        /// Of the server.
        server / with_server: u16 [31:16];
    }
}

/// The ring that one end sends from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ring {
    /// Where it is, for GETs of the peer.
    pub nla: Nla,
    /// Its bytes, as a power of two, 12…24.
    pub log2: u8,
}

impl Ring {
    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        1 << (self.log2 & 31)
    }
}

/// One end of a connection, as the other one needs it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Endpoint {
    /// Its name there.
    pub id: ConnId,
    /// VPID of its mailbox.
    pub velo: Vpid,
    /// VPID of its send ring.
    pub rma: Vpid,
    /// Number of the first byte that it sends.
    pub isn: Seq,
    /// Its send ring.
    pub ring: Ring,
    /// Bytes of its receive ring, as a power of two, 12…24.
    pub receive_log2: u8,
    /// It takes [`Kind::RmaSource`]; older ends don't.
    pub sources: bool,
}

/// TCP's name of a connection, as the client sees it. IPv4 addresses are mapped (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tuple {
    /// Address of the client.
    pub client: [u8; 16],
    /// Address of the server.
    pub server: [u8; 16],
    /// Port of the client.
    pub client_port: u16,
    /// Port of the server.
    pub server_port: u16,
}

/// [`Kind::Connect`] and [`Kind::Cancel`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Connect {
    /// Random number; answers repeat it.
    pub cookie: u32,
    /// The client.
    pub client: Endpoint,
    /// The connection.
    pub tuple: Tuple,
}

/// Why a server declines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decline {
    /// Another version of the protocol.
    Version,
    /// Nobody listens on that port with a socket that could.
    NoListener,
    /// Too many connections of this node wait to be taken.
    Busy,
    /// No memory or no other resource.
    Resources,
    /// It is switched off.
    Off,
}

impl Decline {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Version,
        Self::NoListener,
        Self::Busy,
        Self::Resources,
        Self::Off,
    ];

    /// The number in a message, from 1 on.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// What a number says.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code.checked_sub(1)?)).copied()
    }
}

/// The other messages of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// [`Kind::Offer`], to the client.
    Offer,
    /// [`Kind::Decline`], to the client.
    Decline(Decline),
    /// [`Kind::Accept`], to the client.
    Accept(Endpoint),
    /// [`Kind::Confirm`], to the server.
    Confirm,
    /// [`Kind::Fallback`], to the server.
    Fallback,
}

/// Why a message of the negotiation is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SetupError {
    /// It speaks another version; the client's cookie and name are where version 1 has them.
    Version {
        /// Random number of the client.
        cookie: u32,
        /// The connection at the sender.
        from: ConnId,
    },
    /// It is malformed.
    Rejected(Rejected),
}

impl From<Rejected> for SetupError {
    fn from(e: Rejected) -> Self {
        Self::Rejected(e)
    }
}

/// Quadwords of [`Kind::Connect`].
const CONNECT_WORDS: usize = 9;
/// Quadwords of [`Kind::Accept`].
const ACCEPT_WORDS: usize = 4;
/// Quadwords of the others.
const SHORT_WORDS: usize = 2;

const fn names(to: ConnId, from: ConnId) -> u64 {
    NamesWord(0).with_to(to.raw()).with_from(from.raw()).raw()
}

const fn first(cookie: u32) -> SetupWord {
    SetupWord(0).with_version(VERSION).with_cookie(cookie)
}

const fn place(end: &Endpoint) -> u64 {
    PlaceWord(0)
        .with_velo(end.velo.get())
        .with_rma(end.rma.get())
        .with_isn(end.isn.0)
        .raw()
}

const fn sizes(word: SetupWord, end: &Endpoint) -> u64 {
    word.with_send(end.ring.log2)
        .with_receive(end.receive_log2)
        .with_sources(end.sources)
        .raw()
}

fn endpoint(word: &impl Fn(usize) -> u64) -> Result<Endpoint, Rejected> {
    let (first, place) = (SetupWord(word(0)), PlaceWord(word(2)));
    for log2 in [first.send(), first.receive()] {
        if !RING_LOG2.contains(&log2) {
            return Err(Rejected::new(Reject::Field, log2.into()));
        }
    }
    let nla = word(3);
    let room = NLA_SPACE.checked_sub(nla);
    if room.is_none_or(|room| room < 1 << first.send()) {
        return Err(Rejected::new(Reject::Field, nla));
    }
    Ok(Endpoint {
        id: ConnId::from_low_bits(NamesWord(word(1)).from()),
        velo: Vpid::from_low_bits(place.velo().into()),
        rma: Vpid::from_low_bits(place.rma().into()),
        isn: Seq(place.isn()),
        ring: Ring {
            nla: Nla(nla),
            log2: first.send(),
        },
        receive_log2: first.receive(),
        sources: first.sources(),
    })
}

const fn address([low, high]: [u64; 2]) -> [u8; 16] {
    ((low as u128) | ((high as u128) << 64)).to_le_bytes()
}

const fn halves(address: [u8; 16]) -> [u64; 2] {
    let value = u128::from_le_bytes(address);
    [value as u64, (value >> 64) as u64]
}

/// Length of a message of this many quadwords.
fn length(len: u16, words: usize) -> Result<(), Rejected> {
    if usize::from(len) == 8 * words {
        Ok(())
    } else {
        Err(Rejected::new(Reject::Length, len.into()))
    }
}

fn version(word: &impl Fn(usize) -> u64) -> Result<(), SetupError> {
    let first = SetupWord(word(0));
    if first.version() == VERSION {
        return Ok(());
    }
    Err(SetupError::Version {
        cookie: first.cookie(),
        from: ConnId::from_low_bits(NamesWord(word(1)).from()),
    })
}

impl Connect {
    /// Length in bytes.
    pub const LEN: u16 = 8 * CONNECT_WORDS as u16;

    /// Its quadwords.
    #[must_use]
    pub const fn words(&self) -> [u64; CONNECT_WORDS] {
        let ports = PortsWord(0)
            .with_client(self.tuple.client_port)
            .with_server(self.tuple.server_port)
            .raw();
        let [client, server] = [halves(self.tuple.client), halves(self.tuple.server)];
        [
            sizes(first(self.cookie), &self.client),
            names(ConnId::from_low_bits(0), self.client.id),
            place(&self.client),
            self.client.ring.nla.0,
            ports,
            client[0],
            client[1],
            server[0],
            server[1],
        ]
    }

    /// Reads a message of `len` bytes; `word` gives its quadwords.
    ///
    /// # Errors
    ///
    /// Another version, or it is malformed.
    pub fn parse(len: u16, word: impl Fn(usize) -> u64) -> Result<Self, SetupError> {
        // Another version may have another length, but not less than these two words.
        if usize::from(len) >= 8 * SHORT_WORDS {
            version(&word)?;
        }
        length(len, CONNECT_WORDS)?;
        let ports = PortsWord(word(4));
        Ok(Self {
            cookie: SetupWord(word(0)).cookie(),
            client: endpoint(&word)?,
            tuple: Tuple {
                client: address([word(5), word(6)]),
                server: address([word(7), word(8)]),
                client_port: ports.client(),
                server_port: ports.server(),
            },
        })
    }
}

/// An [`Answer`] with those whom it is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Answered {
    /// Random number of the client.
    pub cookie: u32,
    /// The connection as the receiver named it.
    pub to: ConnId,
    /// The connection as the sender named it; 0 before it has a name.
    pub from: ConnId,
    /// What is said.
    pub answer: Answer,
}

impl Answered {
    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self.answer {
            Answer::Offer => Kind::Offer,
            Answer::Decline(_) => Kind::Decline,
            Answer::Accept(_) => Kind::Accept,
            Answer::Confirm => Kind::Confirm,
            Answer::Fallback => Kind::Fallback,
        }
    }

    /// Its quadwords, and how many of them there are.
    #[must_use]
    pub const fn words(&self) -> ([u64; ACCEPT_WORDS], usize) {
        let (word, names) = (first(self.cookie), names(self.to, self.from));
        match &self.answer {
            Answer::Accept(end) => (
                [sizes(word, end), names, place(end), end.ring.nla.0],
                ACCEPT_WORDS,
            ),
            Answer::Decline(why) => (
                [word.with_reason(why.code()).raw(), names, 0, 0],
                SHORT_WORDS,
            ),
            _ => ([word.raw(), names, 0, 0], SHORT_WORDS),
        }
    }

    /// Reads a message of `len` bytes of this kind; `word` gives its quadwords.
    ///
    /// # Errors
    ///
    /// Another version, or it is malformed.
    pub fn parse(kind: Kind, len: u16, word: impl Fn(usize) -> u64) -> Result<Self, SetupError> {
        if usize::from(len) >= 8 * SHORT_WORDS {
            match version(&word) {
                // Who speaks another version may say so in that.
                Err(SetupError::Version { cookie, from }) if kind == Kind::Decline => {
                    return Ok(Self {
                        cookie,
                        to: ConnId::from_low_bits(NamesWord(word(1)).to()),
                        from,
                        answer: Answer::Decline(Decline::Version),
                    });
                }
                other => other?,
            }
        }
        let words = match kind {
            Kind::Accept => ACCEPT_WORDS,
            _ => SHORT_WORDS,
        };
        length(len, words)?;
        let (first, names) = (SetupWord(word(0)), NamesWord(word(1)));
        let answer = match kind {
            Kind::Offer => Answer::Offer,
            Kind::Decline => match Decline::from_code(first.reason()) {
                Some(why) => Answer::Decline(why),
                None => return Err(Rejected::new(Reject::Field, first.reason().into()).into()),
            },
            Kind::Accept => Answer::Accept(endpoint(&word)?),
            Kind::Confirm => Answer::Confirm,
            Kind::Fallback => Answer::Fallback,
            other => return Err(Rejected::new(Reject::Service, other.tag().into()).into()),
        };
        Ok(Self {
            cookie: first.cookie(),
            to: ConnId::from_low_bits(names.to()),
            from: ConnId::from_low_bits(names.from()),
            answer,
        })
    }
}
