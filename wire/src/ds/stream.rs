// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages of a stream (docs/ds-protocol.md, Stream messages).

use super::{ConnId, Kind, Seq, NLA_SPACE};
use crate::ids::Nla;
use crate::velo::MAX_LEN;
use core::fmt;

/// Maximum number of stream bytes in a [`Kind::Velo`] message.
pub const MORE_DATA: u16 = MAX_LEN - 8;
/// Maximum number of stream bytes in a [`Kind::VeloLast`] message.
pub const LAST_DATA: u16 = MAX_LEN - 16;
/// Maximum number of bytes that one [`Kind::RmaSource`] announces.
pub const SOURCE_MAX: u32 = 4 << 20;

bits! {
    /// First quadword of every message of a stream.
    pub struct HeadWord {
        /// Position in the sender's stream.
        seq / with_seq: u32 [31:0];
        /// Name of the connection at the receiver.
        conn / with_conn: u32 [55:32];
        /// Number of marks in the stream before this position, modulo 256. Senders write 0, because
        /// this version has no marks.
        marks / with_marks: u8 [63:56];
    }
}

bits! {
    /// Second quadword of messages that acknowledge data.
    pub struct AckWord {
        /// Position up to which all data was received.
        ack / with_ack: u32 [31:0];
        /// Position up to which the receive ring has space.
        edge / with_edge: u32 [63:32];
    }
}

bits! {
    /// Third quadword of [`Kind::RmaInfo`] and [`Kind::RmaSource`].
    pub struct InfoWord {
        /// Number of announced bytes.
        len / with_len: u32 [31:0];
        /// True if the announced bytes end a write.
        push / with_push: bool [32:32];
    }
}

bits! {
    /// Third quadword of [`Kind::RmaAvail`].
    pub struct AvailWord {
        /// The sender requests an answer.
        ask / with_ask: bool [0:0];
        /// The data after `ack` was lost and must be sent again.
        again / with_again: bool [1:1];
        /// Name of the connection at the sender of this message.
        own / with_own: u32 [55:32];
    }
}

bits! {
    /// Third quadword of [`Kind::RmaCut`] and [`Kind::RmaCutDone`].
    pub struct CutWord {
        /// Position after the last withdrawn byte.
        end / with_end: u32 [31:0];
        /// Number of bytes before `end`. [`Kind::RmaCut`] withdraws them, and [`Kind::RmaCutDone`]
        /// promises not to GET them.
        bytes / with_bytes: u32 [63:32];
    }
}

bits! {
    /// Third quadword of [`Kind::Shutdown`].
    pub struct ShutdownWord {
        /// Code of [`Ended`].
        how / with_how: u8 [7:0];
    }
}

/// Connection of a message, and position of the message in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Head {
    /// Name of the connection at the receiver.
    pub conn: ConnId,
    /// Position in the sender's stream. If the message has no data, the position of the next data.
    pub seq: Seq,
    /// Number of marks before the position, always 0.
    pub marks: u8,
}

/// Acknowledgement of data that the sender of the message has received.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ack {
    /// Position up to which all data was received.
    pub ack: Seq,
    /// Position up to which the receive ring has space.
    pub edge: Seq,
}

/// Reason why a stream ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ended {
    /// The sender has sent all data. The other direction continues.
    Finished,
    /// The connection was aborted.
    Reset,
    /// The sender of the message does not know the connection.
    Unknown,
    /// The peer violated the protocol.
    Violation,
    /// The peer did not answer.
    TimedOut,
    /// The NIC has failed.
    Down,
}

impl Ended {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::Finished,
        Self::Reset,
        Self::Unknown,
        Self::Violation,
        Self::TimedOut,
        Self::Down,
    ];

    /// Returns the code in a message.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the reason with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Message of a stream. The data of [`Message::Velo`] and [`Message::VeloLast`] follows the
/// quadwords of [`Message::words`], up to the end of the message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Message {
    /// Bytes of the stream, see [`Kind::Velo`].
    Velo {
        /// Position of the message.
        head: Head,
        /// Number of bytes, 1…[`MORE_DATA`].
        len: u16,
    },
    /// Bytes that end a write, see [`Kind::VeloLast`].
    VeloLast {
        /// Position of the message.
        head: Head,
        /// Acknowledgement.
        ack: Ack,
        /// Number of stream bytes, 1…[`LAST_DATA`].
        len: u16,
    },
    /// Announcement of bytes in the send ring, see [`Kind::RmaInfo`].
    RmaInfo {
        /// Position of the message.
        head: Head,
        /// Acknowledgement.
        ack: Ack,
        /// Number of announced bytes, at least 1.
        len: u32,
        /// True if the bytes end a write.
        push: bool,
    },
    /// Acknowledgement and free space, see [`Kind::RmaAvail`].
    RmaAvail {
        /// Position of the message.
        head: Head,
        /// Acknowledgement.
        ack: Ack,
        /// True if an answer is requested.
        ask: bool,
        /// True if the data after `ack` must be sent again.
        again: bool,
        /// Name of the connection at the sender of this message.
        own: ConnId,
    },
    /// End of the stream, see [`Kind::Shutdown`].
    Shutdown {
        /// Position of the end of the stream.
        head: Head,
        /// Acknowledgement.
        ack: Ack,
        /// Reason why the stream ends.
        how: Ended,
    },
    /// Announcement of bytes outside of the send ring, see [`Kind::RmaSource`].
    RmaSource {
        /// Position of the message.
        head: Head,
        /// Acknowledgement.
        ack: Ack,
        /// Address of the announced bytes.
        nla: Nla,
        /// Number of announced bytes, 1…[`SOURCE_MAX`].
        len: u32,
        /// True if the bytes end a write.
        push: bool,
    },
    /// Withdrawal of announced bytes, see [`Kind::RmaCut`].
    RmaCut {
        /// Position of the message.
        head: Head,
        /// Acknowledgement.
        ack: Ack,
        /// Position after the last announced byte.
        end: Seq,
        /// Number of withdrawn bytes before `end`, 1…[`SOURCE_MAX`].
        len: u32,
    },
    /// Answer to a withdrawal, see [`Kind::RmaCutDone`].
    RmaCutDone {
        /// Position of the message.
        head: Head,
        /// Acknowledgement.
        ack: Ack,
        /// Position after the last announced byte.
        end: Seq,
        /// Number of bytes before `end` that the receiver does not GET.
        left: u32,
    },
}

/// Reason why a message is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reject {
    /// The user tag belongs to no kind of message.
    Tag,
    /// Messages of this kind belong to the service VPID.
    Service,
    /// The length does not fit the kind.
    Length,
    /// A field has an invalid value.
    Field,
}

/// [`Reject`] with the offending value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rejected {
    /// Reason of the rejection.
    pub why: Reject,
    /// Offending tag, length or field.
    pub value: u64,
}

impl Rejected {
    pub(super) const fn new(why: Reject, value: u64) -> Self {
        Self { why, value }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        match self.why {
            Reject::Tag => write!(f, "unknown tag {value:#x}"),
            Reject::Service => write!(f, "message with tag {value:#x} for another VPID"),
            Reject::Length => write!(f, "invalid length {value}"),
            Reject::Field => write!(f, "invalid field value {value:#x}"),
        }
    }
}

/// Quadwords of a message that precede its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Words {
    words: [u64; 4],
    count: u8,
}

impl Words {
    const fn new([a, b, c]: [u64; 3], count: u8) -> Self {
        let words = [a, b, c, 0];
        Self { words, count }
    }

    /// Returns the quadwords.
    #[must_use]
    pub fn as_slice(&self) -> &[u64] {
        self.words.get(..self.count.into()).unwrap_or_default()
    }
}

impl Head {
    const fn word(self) -> u64 {
        HeadWord(0)
            .with_seq(self.seq.0)
            .with_conn(self.conn.raw())
            .with_marks(self.marks)
            .raw()
    }

    const fn from_word(raw: u64) -> Self {
        let word = HeadWord(raw);
        Self {
            conn: ConnId::from_low_bits(word.conn()),
            seq: Seq(word.seq()),
            marks: word.marks(),
        }
    }
}

impl Ack {
    const fn word(self) -> u64 {
        AckWord(0).with_ack(self.ack.0).with_edge(self.edge.0).raw()
    }

    const fn from_word(raw: u64) -> Self {
        let word = AckWord(raw);
        Self {
            ack: Seq(word.ack()),
            edge: Seq(word.edge()),
        }
    }
}

/// Checks the number of bytes that a message announces or withdraws.
fn source(len: u32) -> Result<(), Rejected> {
    match len {
        1..=SOURCE_MAX => Ok(()),
        _ => Err(Rejected::new(Reject::Field, len.into())),
    }
}

impl Message {
    /// Returns the kind of the message.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Velo { .. } => Kind::Velo,
            Self::VeloLast { .. } => Kind::VeloLast,
            Self::RmaInfo { .. } => Kind::RmaInfo,
            Self::RmaAvail { .. } => Kind::RmaAvail,
            Self::Shutdown { .. } => Kind::Shutdown,
            Self::RmaSource { .. } => Kind::RmaSource,
            Self::RmaCut { .. } => Kind::RmaCut,
            Self::RmaCutDone { .. } => Kind::RmaCutDone,
        }
    }

    /// Returns the position of the message.
    #[must_use]
    pub const fn head(&self) -> Head {
        match self {
            Self::Velo { head, .. }
            | Self::VeloLast { head, .. }
            | Self::RmaInfo { head, .. }
            | Self::RmaAvail { head, .. }
            | Self::Shutdown { head, .. }
            | Self::RmaSource { head, .. }
            | Self::RmaCut { head, .. }
            | Self::RmaCutDone { head, .. } => *head,
        }
    }

    /// Returns the quadwords before the data.
    #[must_use]
    pub const fn words(&self) -> Words {
        match *self {
            Self::Velo { head, .. } => Words::new([head.word(), 0, 0], 1),
            Self::VeloLast { head, ack, .. } => Words::new([head.word(), ack.word(), 0], 2),
            Self::RmaInfo {
                head,
                ack,
                len,
                push,
            } => {
                let info = InfoWord(0).with_len(len).with_push(push).raw();
                Words::new([head.word(), ack.word(), info], 3)
            }
            Self::RmaAvail {
                head,
                ack,
                ask,
                again,
                own,
            } => {
                let avail = AvailWord(0)
                    .with_ask(ask)
                    .with_again(again)
                    .with_own(own.raw())
                    .raw();
                Words::new([head.word(), ack.word(), avail], 3)
            }
            Self::Shutdown { head, ack, how } => {
                let end = ShutdownWord(0).with_how(how.code()).raw();
                Words::new([head.word(), ack.word(), end], 3)
            }
            Self::RmaSource {
                head,
                ack,
                nla,
                len,
                push,
            } => {
                let info = InfoWord(0).with_len(len).with_push(push).raw();
                Words {
                    words: [head.word(), ack.word(), info, nla.0],
                    count: 4,
                }
            }
            Self::RmaCut {
                head,
                ack,
                end,
                len,
            } => {
                let cut = CutWord(0).with_end(end.0).with_bytes(len).raw();
                Words::new([head.word(), ack.word(), cut], 3)
            }
            Self::RmaCutDone {
                head,
                ack,
                end,
                left,
            } => {
                let cut = CutWord(0).with_end(end.0).with_bytes(left).raw();
                Words::new([head.word(), ack.word(), cut], 3)
            }
        }
    }

    /// Returns the number of stream bytes in the message.
    #[must_use]
    pub const fn data_len(&self) -> u16 {
        match *self {
            Self::Velo { len, .. } | Self::VeloLast { len, .. } => len,
            _ => 0,
        }
    }

    /// Returns the offset of the data in the message, in bytes.
    #[must_use]
    pub const fn data_offset(&self) -> u16 {
        match self {
            Self::Velo { .. } => 8,
            Self::VeloLast { .. } => 16,
            Self::RmaSource { .. } => 32,
            _ => 24,
        }
    }

    /// Returns the length of the whole message in bytes.
    #[must_use]
    pub const fn len(&self) -> u16 {
        self.data_offset() + self.data_len()
    }

    /// Returns false, because every message has a head.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Decodes a message of `len` bytes with user tag `tag`. `word` returns a quadword of the
    /// message by its index.
    ///
    /// # Errors
    ///
    /// The message is not a valid message of a stream.
    pub fn parse(tag: u8, len: u16, word: impl Fn(usize) -> u64) -> Result<Self, Rejected> {
        let Some(kind) = Kind::from_tag(tag) else {
            return Err(Rejected::new(Reject::Tag, tag.into()));
        };
        let wrong = Rejected::new(Reject::Length, len.into());
        let data = |offset: u16, most: u16| match len.checked_sub(offset) {
            Some(data) if data >= 1 && data <= most => Ok(data),
            _ => Err(wrong),
        };
        let whole = || if len == 24 { Ok(()) } else { Err(wrong) };
        match kind {
            Kind::Velo => {
                let len = data(8, MORE_DATA)?;
                let head = Head::from_word(word(0));
                Ok(Self::Velo { head, len })
            }
            Kind::VeloLast => {
                let len = data(16, LAST_DATA)?;
                let (head, ack) = (Head::from_word(word(0)), Ack::from_word(word(1)));
                Ok(Self::VeloLast { head, ack, len })
            }
            Kind::RmaInfo => {
                whole()?;
                let info = InfoWord(word(2));
                if info.len() == 0 || info.len() > i32::MAX as u32 {
                    return Err(Rejected::new(Reject::Field, info.raw()));
                }
                Ok(Self::RmaInfo {
                    head: Head::from_word(word(0)),
                    ack: Ack::from_word(word(1)),
                    len: info.len(),
                    push: info.push(),
                })
            }
            Kind::RmaAvail => {
                whole()?;
                let avail = AvailWord(word(2));
                Ok(Self::RmaAvail {
                    head: Head::from_word(word(0)),
                    ack: Ack::from_word(word(1)),
                    ask: avail.ask(),
                    again: avail.again(),
                    own: ConnId::from_low_bits(avail.own()),
                })
            }
            Kind::Shutdown => {
                whole()?;
                let end = ShutdownWord(word(2));
                let Some(how) = Ended::from_code(end.how()) else {
                    return Err(Rejected::new(Reject::Field, end.raw()));
                };
                Ok(Self::Shutdown {
                    head: Head::from_word(word(0)),
                    ack: Ack::from_word(word(1)),
                    how,
                })
            }
            Kind::RmaSource => {
                if len != 32 {
                    return Err(wrong);
                }
                let (info, nla) = (InfoWord(word(2)), word(3));
                source(info.len())?;
                let room = NLA_SPACE.checked_sub(nla);
                if room.is_none_or(|room| room < info.len().into()) {
                    return Err(Rejected::new(Reject::Field, nla));
                }
                Ok(Self::RmaSource {
                    head: Head::from_word(word(0)),
                    ack: Ack::from_word(word(1)),
                    nla: Nla(nla),
                    len: info.len(),
                    push: info.push(),
                })
            }
            Kind::RmaCut => {
                whole()?;
                let cut = CutWord(word(2));
                source(cut.bytes())?;
                Ok(Self::RmaCut {
                    head: Head::from_word(word(0)),
                    ack: Ack::from_word(word(1)),
                    end: Seq(cut.end()),
                    len: cut.bytes(),
                })
            }
            Kind::RmaCutDone => {
                whole()?;
                let cut = CutWord(word(2));
                if cut.bytes() > SOURCE_MAX {
                    return Err(Rejected::new(Reject::Field, cut.raw()));
                }
                Ok(Self::RmaCutDone {
                    head: Head::from_word(word(0)),
                    ack: Ack::from_word(word(1)),
                    end: Seq(cut.end()),
                    left: cut.bytes(),
                })
            }
            _ => Err(Rejected::new(Reject::Service, tag.into())),
        }
    }
}
