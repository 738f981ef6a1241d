// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Requests, their fragments, and the type of all messages (docs/lnd-protocol.md, Messages).

use super::session::check_len;
use super::{Form, Header, Hello, Key, Kind, Note, Notes, RequestId, Welcome};
use crate::ids::{Nla, Vpid};
use crate::velo::MAX_LEN;
use core::fmt;

/// Maximum number of payload bytes in a [`Kind::Fragment`]. Every fragment except the last has this
/// number of bytes.
pub const FRAGMENT_DATA: u16 = MAX_LEN - 8;
/// Maximum number of fragments per request.
pub const MAX_FRAGMENTS: u8 = 63;
/// Maximum payload of an LNet message in bytes.
pub const MAX_PAYLOAD: u32 = 1 << 20;
bits! {
    /// First quadword of all messages of a session.
    pub struct HeadWord {
        /// Key of the receiver's end of the session.
        key / with_key: u32 [31:0];
        /// Number of the request in its slot.
        seq / with_seq: u16 [47:32];
        /// Slot of the request.
        slot / with_slot: u8 [55:48];
        /// Index of the fragment; 0 for the request.
        part / with_part: u8 [63:56];
    }
}

bits! {
    /// Second quadword of a request.
    pub struct TermsWord {
        /// Number of payload bytes.
        len / with_len: u32 [20:0];
        /// True if the receiver must GET the payload.
        fetch / with_fetch: bool [22:22];
        /// Code of [`Form`].
        form / with_form: u8 [24:24];
    }
}

bits! {
    /// Third quadword of a request whose payload the receiver must GET.
    pub struct SourceWord {
        /// NLA of the first payload byte.
        nla / with_nla: u64 [39:0];
        /// VPID that owns the payload's memory.
        vpid / with_vpid: u8 [47:40];
    }
}

/// Memory of the sender that the receiver of a request reads by GET.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    /// NLA of the first payload byte.
    pub nla: Nla,
    /// VPID that owns the payload's memory.
    pub vpid: Vpid,
}

/// Location of a request's payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Payload {
    /// The request and its fragments contain the payload, which has this number of bytes.
    Inline(u16),
    /// The receiver must GET the payload from memory of the sender. The number is the payload's
    /// length in bytes, at least 1.
    Remote(u32, Source),
}

impl Payload {
    /// Returns the number of payload bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        match *self {
            Self::Inline(len) => len as u32,
            Self::Remote(len, _) => len,
        }
    }

    /// Returns whether the payload is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Request: an LNet message, or its header and the first bytes of its payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Key of the receiver's end of the session.
    pub key: Key,
    /// Slot and number of the request.
    pub id: RequestId,
    /// Form of the header.
    pub form: Form,
    /// Header of the LNet message. Quadwords after [`Form::words`] are zero.
    pub header: Header,
    /// Location of the payload.
    pub payload: Payload,
}

/// Fragment with further payload bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fragment {
    /// Key of the receiver's end of the session.
    pub key: Key,
    /// Slot and number of the request.
    pub id: RequestId,
    /// Index of the fragment, 1…[`MAX_FRAGMENTS`].
    pub part: u8,
    /// Number of payload bytes in the fragment, 1…[`FRAGMENT_DATA`].
    pub len: u16,
}

/// Message of a session. The payload of [`Message::Request`] and [`Message::Fragment`] follows the
/// quadwords of [`Message::words`], up to the end of the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Request for a session, see [`Kind::Hello`].
    Hello(Hello),
    /// Answer to a request for a session, see [`Kind::Welcome`].
    Welcome(Welcome),
    /// Notice that a session is unknown, see [`Kind::Stale`].
    Stale(Key),
    /// LNet message or its beginning, see [`Kind::Request`].
    Request(Request),
    /// Further payload of a request, see [`Kind::Fragment`].
    Fragment(Fragment),
    /// Notes about requests, see [`Kind::Notes`].
    Notes(Key, Notes),
}

/// Reason why a message is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reject {
    /// The user tag belongs to no kind of message.
    Tag,
    /// The length does not fit the other fields.
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
            Reject::Length => write!(f, "invalid length {value}"),
            Reject::Field => write!(f, "invalid field value {value:#x}"),
        }
    }
}

/// Quadwords of a message that precede its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Words {
    words: [u64; 15],
    count: u8,
}

impl Words {
    pub(super) const fn new(some: [u64; 4], count: u8) -> Self {
        let mut words = [0; 15];
        let mut i = 0;
        while i < 4 {
            words[i] = some[i];
            i += 1;
        }
        Self { words, count }
    }

    fn extend(&mut self, more: impl IntoIterator<Item = u64>) {
        let mut rest = self.words.iter_mut().skip(self.count.into());
        for (word, slot) in more.into_iter().zip(&mut rest) {
            *slot = word;
            self.count += 1;
        }
    }

    /// Returns the quadwords.
    #[must_use]
    pub fn as_slice(&self) -> &[u64] {
        self.words.get(..self.count.into()).unwrap_or_default()
    }
}

const fn head(key: Key, id: RequestId, part: u8) -> u64 {
    HeadWord(0)
        .with_key(key.0)
        .with_seq(id.seq)
        .with_slot(id.slot)
        .with_part(part)
        .raw()
}

/// Returns the number of fragments of a request with `len` bytes of payload. Returns `None` if the
/// number exceeds [`MAX_FRAGMENTS`].
#[must_use]
pub const fn fragments(form: Form, len: u32) -> Option<u8> {
    let rest = len.saturating_sub(form.data() as u32);
    let count = rest.div_ceil(FRAGMENT_DATA as u32);
    if count <= MAX_FRAGMENTS as u32 {
        Some(count as u8)
    } else {
        None
    }
}

/// Returns the offset and length in bytes of the payload chunk in a part of a request. Part 0 is
/// the request itself, and the other parts are fragments.
#[must_use]
pub const fn pieces(form: Form, len: u16, part: u8) -> (u16, u16) {
    let first = form.data();
    let (at, most) = match part {
        0 => (0, first),
        n => (first + (n as u16 - 1) * FRAGMENT_DATA, FRAGMENT_DATA),
    };
    let left = len.saturating_sub(at);
    (at, if left < most { left } else { most })
}

impl Request {
    fn words(&self) -> Words {
        let terms = TermsWord(0)
            .with_len(self.payload.len())
            .with_form(self.form.code());
        let head = head(self.key, self.id, 0);
        let mut words = match self.payload {
            Payload::Inline(_) => Words::new([head, terms.raw(), 0, 0], 2),
            Payload::Remote(_, source) => {
                let source = SourceWord(0)
                    .with_nla(source.nla.0)
                    .with_vpid(source.vpid.get() as u8);
                Words::new([head, terms.with_fetch(true).raw(), source.raw(), 0], 3)
            }
        };
        words.extend(self.header.into_iter().take(self.form.words()));
        words
    }

    /// Returns the number of payload bytes that the request itself contains.
    const fn data_len(&self) -> u16 {
        match self.payload {
            Payload::Inline(len) => pieces(self.form, len, 0).1,
            Payload::Remote(..) => 0,
        }
    }

    const fn data_offset(&self) -> u16 {
        let fixed = match self.payload {
            Payload::Inline(_) => 16,
            Payload::Remote(..) => 24,
        };
        fixed + self.form.bytes()
    }

    fn parse(len: u16, word: impl Fn(usize) -> u64) -> Result<Self, Rejected> {
        let head = HeadWord(word(0));
        let terms = TermsWord(word(1));
        let wrong = |value| Err(Rejected::new(Reject::Field, value));
        if len < 16 {
            return Err(Rejected::new(Reject::Length, len.into()));
        }
        if head.part() != 0 {
            return wrong(head.part().into());
        }
        if terms.raw() & !TermsWord::KNOWN != 0 || terms.len() > MAX_PAYLOAD {
            return wrong(terms.raw());
        }
        let form = match terms.form() {
            0 => Form::Nid4,
            _ => Form::Nid16,
        };
        let payload = if terms.fetch() {
            let source = SourceWord(word(2));
            let end = source.nla().checked_add(terms.len().into());
            let inside = end.is_some_and(|end| end <= 1 << 40);
            if terms.len() == 0 || source.raw() & !SourceWord::KNOWN != 0 || !inside {
                return wrong(source.raw());
            }
            let source = Source {
                nla: Nla(source.nla()),
                vpid: Vpid::from(source.vpid()),
            };
            Payload::Remote(terms.len(), source)
        } else if fragments(form, terms.len()).is_some() {
            Payload::Inline(terms.len() as u16)
        } else {
            return wrong(terms.raw());
        };
        let first = match payload {
            Payload::Inline(_) => 2,
            Payload::Remote(..) => 3,
        };
        let mut header = [0; 12];
        for (i, slot) in header.iter_mut().take(form.words()).enumerate() {
            *slot = word(first + i);
        }
        let request = Self {
            key: Key(head.key()),
            id: RequestId {
                slot: head.slot(),
                seq: head.seq(),
            },
            form,
            header,
            payload,
        };
        if request.data_offset() + request.data_len() == len {
            Ok(request)
        } else {
            Err(Rejected::new(Reject::Length, len.into()))
        }
    }
}

impl Fragment {
    fn parse(len: u16, raw: u64) -> Result<Self, Rejected> {
        let head = HeadWord(raw);
        let Some(data) = len.checked_sub(8).filter(|n| *n >= 1) else {
            return Err(Rejected::new(Reject::Length, len.into()));
        };
        if head.part() == 0 || head.part() > MAX_FRAGMENTS {
            return Err(Rejected::new(Reject::Field, head.part().into()));
        }
        Ok(Self {
            key: Key(head.key()),
            id: RequestId {
                slot: head.slot(),
                seq: head.seq(),
            },
            part: head.part(),
            len: data,
        })
    }
}

impl Message {
    /// Returns the kind of the message.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Welcome(_) => Kind::Welcome,
            Self::Stale(_) => Kind::Stale,
            Self::Request(_) => Kind::Request,
            Self::Fragment(_) => Kind::Fragment,
            Self::Notes(..) => Kind::Notes,
        }
    }

    /// Returns the quadwords that precede the payload.
    #[must_use]
    pub fn words(&self) -> Words {
        match self {
            Self::Hello(hello) => hello.words(),
            Self::Welcome(welcome) => welcome.words(),
            Self::Stale(key) => Words::new([key.0.into(), 0, 0, 0], 1),
            Self::Request(request) => request.words(),
            Self::Fragment(f) => Words::new([head(f.key, f.id, f.part), 0, 0, 0], 1),
            Self::Notes(key, notes) => {
                let head = head(*key, RequestId::default(), 0);
                let mut words = Words::new([head, 0, 0, 0], 1);
                words.extend(notes.as_slice().iter().map(|n| n.word()));
                words
            }
        }
    }

    /// Returns the number of payload bytes in the message.
    #[must_use]
    pub const fn data_len(&self) -> u16 {
        match self {
            Self::Request(request) => request.data_len(),
            Self::Fragment(fragment) => fragment.len,
            _ => 0,
        }
    }

    /// Returns the offset of the payload in the message, in bytes.
    #[must_use]
    pub const fn data_offset(&self) -> u16 {
        match self {
            Self::Hello(_) => 16,
            Self::Welcome(_) => 32,
            Self::Stale(_) | Self::Fragment(_) => 8,
            Self::Request(request) => request.data_offset(),
            Self::Notes(_, notes) => notes.len(),
        }
    }

    /// Returns the length of the whole message in bytes.
    #[must_use]
    pub const fn len(&self) -> u16 {
        self.data_offset() + self.data_len()
    }

    /// Returns false, because every message has a first quadword.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Decodes a message of `len` bytes with user tag `tag`. `word` returns a quadword of the
    /// message by its index.
    ///
    /// # Errors
    ///
    /// The message is invalid.
    pub fn parse(tag: u8, len: u16, word: impl Fn(usize) -> u64) -> Result<Self, Rejected> {
        let Some(kind) = Kind::from_tag(tag) else {
            return Err(Rejected::new(Reject::Tag, tag.into()));
        };
        let wrong = Rejected::new(Reject::Length, len.into());
        if len > MAX_LEN {
            return Err(wrong);
        }
        match kind {
            Kind::Hello => {
                check_len(len, 16, &word)?;
                Ok(Self::Hello(Hello::parse(word)?))
            }
            Kind::Welcome => {
                check_len(len, 32, &word)?;
                Ok(Self::Welcome(Welcome::parse(word)?))
            }
            Kind::Stale => {
                if len != 8 {
                    return Err(wrong);
                }
                let raw = word(0);
                let key = u32::try_from(raw).map_err(|_| Rejected::new(Reject::Field, raw))?;
                Ok(Self::Stale(Key(key)))
            }
            Kind::Request => Ok(Self::Request(Request::parse(len, word)?)),
            Kind::Fragment => Ok(Self::Fragment(Fragment::parse(len, word(0))?)),
            Kind::Notes => {
                if len % 8 != 0 || len == 0 {
                    return Err(wrong);
                }
                let head = HeadWord(word(0));
                if head.raw() >> 32 != 0 {
                    return Err(Rejected::new(Reject::Field, head.raw()));
                }
                let mut notes = Notes::NONE;
                for i in 1..usize::from(len / 8) {
                    notes.push(Note::parse(word(i))?);
                }
                Ok(Self::Notes(Key(head.key()), notes))
            }
        }
    }
}
