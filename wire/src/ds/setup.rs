// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages that negotiate a connection (docs/ds-protocol.md, Negotiation). They are sent to the
//! service VPID.

use super::stream::{Reject, Rejected};
use super::{ConnId, Kind, Seq, NLA_SPACE, VERSION};
use crate::ids::{Nla, Vpid};

/// Allowed ring sizes: binary logarithms of the number of bytes.
const RING_LOG2: core::ops::RangeInclusive<u8> = 12..=24;

bits! {
    /// First quadword of all negotiation messages.
    pub struct SetupWord {
        /// Version of the protocol.
        version / with_version: u8 [7:0];
        /// Code of the reason in [`Kind::Decline`].
        reason / with_reason: u8 [15:8];
        /// Binary logarithm of the size of the sender's send ring in bytes.
        send / with_send: u8 [20:16];
        /// Binary logarithm of the size of the sender's receive ring in bytes.
        receive / with_receive: u8 [28:24];
        /// True if the sender supports [`Kind::RmaSource`]. Used in [`Kind::Connect`] and
        /// [`Kind::Accept`].
        sources / with_sources: bool [29:29];
        /// Random number that the client chooses.
        cookie / with_cookie: u32 [63:32];
    }
}

bits! {
    /// Second quadword: names of the connection at both ends.
    pub struct NamesWord {
        /// Name of the connection at the receiver; 0 in [`Kind::Connect`] and [`Kind::Cancel`].
        to / with_to: u32 [23:0];
        /// Name of the connection at the sender.
        from / with_from: u32 [47:24];
    }
}

bits! {
    /// Third quadword: VPIDs of the sender, and start of its stream.
    pub struct PlaceWord {
        /// VPID of the sender's mailbox.
        velo / with_velo: u16 [7:0];
        /// VPID of the sender's send ring.
        rma / with_rma: u16 [15:8];
        /// Position of the first byte that the sender will send.
        isn / with_isn: u32 [63:32];
    }
}

bits! {
    /// Fifth quadword of [`Kind::Connect`]: TCP ports.
    pub struct PortsWord {
        /// Port of the client.
        client / with_client: u16 [15:0];
        /// Port of the server.
        server / with_server: u16 [31:16];
    }
}

/// Send ring of one end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ring {
    /// Address of the ring for the peer's GETs.
    pub nla: Nla,
    /// Binary logarithm of the size in bytes, 12…24.
    pub log2: u8,
}

impl Ring {
    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        1 << (self.log2 & 31)
    }
}

/// Properties of one end of a connection that the peer needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Endpoint {
    /// Name of the connection at this end.
    pub id: ConnId,
    /// VPID of the mailbox of this end.
    pub velo: Vpid,
    /// VPID of the send ring of this end.
    pub rma: Vpid,
    /// Position of the first byte that this end sends.
    pub isn: Seq,
    /// Send ring of this end.
    pub ring: Ring,
    /// Binary logarithm of the size of the receive ring in bytes, 12…24.
    pub receive_log2: u8,
    /// True if this end supports [`Kind::RmaSource`]. Older versions do not support it.
    pub sources: bool,
}

/// TCP addresses and ports of a connection. IPv4 addresses have the form `::ffff:a.b.c.d`.
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

/// Contents of [`Kind::Connect`] and [`Kind::Cancel`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Connect {
    /// Random number that answers repeat.
    pub cookie: u32,
    /// End of the client.
    pub client: Endpoint,
    /// TCP addresses and ports of the connection.
    pub tuple: Tuple,
}

/// Reason why a server declines a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decline {
    /// The server has another version of the protocol.
    Version,
    /// No suitable socket listens on the server's port.
    NoListener,
    /// Too many connections of the client's node wait to be accepted.
    Busy,
    /// The server lacks memory or another resource.
    Resources,
    /// Direct sockets are disabled on the server.
    Off,
}

impl Decline {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::Version,
        Self::NoListener,
        Self::Busy,
        Self::Resources,
        Self::Off,
    ];

    /// Returns the code of the reason in a message, at least 1.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the reason with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code.checked_sub(1)?)).copied()
    }
}

/// Negotiation message other than [`Connect`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// [`Kind::Offer`], which the server sends.
    Offer,
    /// [`Kind::Decline`], which the server sends.
    Decline(Decline),
    /// [`Kind::Accept`], which the server sends.
    Accept(Endpoint),
    /// [`Kind::Confirm`], which the client sends.
    Confirm,
    /// [`Kind::Fallback`], which the client sends.
    Fallback,
}

/// Reason why a negotiation message is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SetupError {
    /// The sender has another version of the protocol. The cookie and the name are read from their
    /// positions in version 1.
    Version {
        /// Random number of the client.
        cookie: u32,
        /// Name of the connection at the sender.
        from: ConnId,
    },
    /// The message is malformed.
    Rejected(Rejected),
}

impl From<Rejected> for SetupError {
    fn from(e: Rejected) -> Self {
        Self::Rejected(e)
    }
}

/// Number of quadwords of [`Kind::Connect`].
const CONNECT_WORDS: usize = 9;
/// Number of quadwords of [`Kind::Accept`].
const ACCEPT_WORDS: usize = 4;
/// Number of quadwords of the other kinds of messages.
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

/// Checks that a message has the length of `words` quadwords.
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
    /// Length of the message in bytes.
    pub const LEN: u16 = 8 * CONNECT_WORDS as u16;

    /// Returns the quadwords of the message.
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

    /// Decodes a message of `len` bytes. `word` returns a quadword of the message by its index.
    ///
    /// # Errors
    ///
    /// The message has another version or is malformed.
    pub fn parse(len: u16, word: impl Fn(usize) -> u64) -> Result<Self, SetupError> {
        // Messages of other versions may have other lengths, but begin with the two quadwords read
        // here.
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

/// [`Answer`] with the names of its connection at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Answered {
    /// Random number of the client.
    pub cookie: u32,
    /// Name of the connection at the receiver.
    pub to: ConnId,
    /// Name of the connection at the sender; 0 before the sender has chosen a name.
    pub from: ConnId,
    /// Contents of the message.
    pub answer: Answer,
}

impl Answered {
    /// Returns the kind of the message.
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

    /// Returns the quadwords of the message and their number.
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

    /// Decodes a message of `len` bytes and kind `kind`. `word` returns a quadword of the message
    /// by its index.
    ///
    /// # Errors
    ///
    /// The message has another version or is malformed.
    pub fn parse(kind: Kind, len: u16, word: impl Fn(usize) -> u64) -> Result<Self, SetupError> {
        if usize::from(len) >= 8 * SHORT_WORDS {
            match version(&word) {
                // A peer of another version may decline in its own version.
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
