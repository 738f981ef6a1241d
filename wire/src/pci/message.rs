// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Type of all messages of Device Lending (docs/pci-protocol.md, Messages).

use super::lease::RegisterWord;
use super::{Borrow, Device, Grant, Incarnation, Kind, LeaseId, Reason, Register, Status, VERSION};
use core::fmt;

bits! {
    /// First quadword of all messages.
    pub struct HeadWord {
        /// Version of the protocol.
        version / with_version: u8 [7:0];
        /// Size, state, reason, status or direction, depending on the kind. 0 for all other kinds.
        code / with_code: u8 [15:8];
        /// Number of the request; 0 for kinds without a request.
        number / with_number: u32 [63:32];
    }
}

/// Role of an end of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The node that has the device.
    Lender,
    /// The node that uses the device.
    Borrower,
}

/// Contents of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// Request for a device description, see [`Kind::List`]. The number is an index in the lender's
    /// list.
    List(u16),
    /// Description of a device, see [`Kind::Device`].
    Device(Device),
    /// Request to borrow a device, see [`Kind::Borrow`].
    Borrow(Borrow),
    /// Acceptance of a request, see [`Kind::Grant`].
    Grant(Grant),
    /// Rejection of a request, see [`Kind::Refuse`]. The lease name may lack the lender's number.
    Refuse(Reason, LeaseId),
    /// Read of a configuration register, see [`Kind::Read`].
    Read(LeaseId, Register),
    /// Write to a configuration register, see [`Kind::Write`]. The value fits into the register.
    Write(LeaseId, Register, u32),
    /// Result of an access, see [`Kind::Done`]. For a read, the number is the value.
    Done(LeaseId, Status, u32),
    /// Reset of the function, see [`Kind::Reset`].
    Reset(LeaseId),
    /// Return of the device, see [`Kind::Return`].
    Return(LeaseId),
    /// Confirmation of a return, see [`Kind::Returned`].
    Returned(LeaseId),
    /// Request to return the device, see [`Kind::Revoke`]. The number is the borrower's time for
    /// the return in ms. 0 means that the lender has taken the device, and that no access from the
    /// lender can reach the borrower.
    Revoke(LeaseId, u32),
    /// Answer of the borrower to a revocation, see [`Kind::Revoked`].
    Revoked(LeaseId),
    /// Question about a lease, or the answer, see [`Kind::Alive`].
    Alive {
        /// Name of the lease.
        lease: LeaseId,
        /// Role of the end that receives the message.
        to: Role,
        /// True for an answer. It repeats the number of the question.
        answer: bool,
    },
}

/// Any message of Device Lending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// Number of the request, which the answer repeats. 0 in messages that only concern a lease.
    pub number: u32,
    /// Incarnation of the sender.
    pub sender: Incarnation,
    /// Contents of the message.
    pub body: Body,
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

/// Reason why a message cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParseError {
    /// The message has another version. Its number is read from the position in version 1.
    Version {
        /// Kind of the message.
        kind: Kind,
        /// Version of the message.
        version: u8,
        /// Number of the request.
        number: u32,
    },
    /// The message is malformed.
    Rejected(Rejected),
}

impl From<Rejected> for ParseError {
    fn from(e: Rejected) -> Self {
        Self::Rejected(e)
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { version, .. } => write!(f, "version {version} of the protocol"),
            Self::Rejected(rejected) => rejected.fmt(f),
        }
    }
}

/// Maximum number of quadwords of a message.
const WORDS_MAX: usize = 8;

/// Quadwords of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Words {
    words: [u64; WORDS_MAX],
    count: u8,
}

impl Words {
    fn new(head: HeadWord, sender: Incarnation, rest: &[u64]) -> Self {
        let mut words = [0; WORDS_MAX];
        let all = [head.raw(), sender.0];
        let all = all.iter().chain(rest);
        let mut count = 0;
        for (to, word) in words.iter_mut().zip(all) {
            *to = *word;
            count += 1;
        }
        Self { words, count }
    }

    /// Returns the quadwords.
    #[must_use]
    pub fn as_slice(&self) -> &[u64] {
        self.words.get(..self.count.into()).unwrap_or_default()
    }

    /// Returns the length of the message in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u16 {
        8 * self.count as u16
    }
}

/// Returns the direction code of a [`Kind::Alive`].
const fn direction(to: Role, answer: bool) -> u8 {
    matches!(to, Role::Borrower) as u8 | ((answer as u8) << 1)
}

impl Kind {
    /// Returns the number of quadwords of a message of this kind.
    const fn words(self) -> u16 {
        match self {
            Self::Grant => 8,
            Self::Device | Self::Borrow => 7,
            Self::Read | Self::Write | Self::Done | Self::Revoke => 4,
            _ => 3,
        }
    }

    /// Returns whether the first quadword of messages of this kind contains a code.
    const fn has_code(self) -> bool {
        matches!(
            self,
            Self::Device | Self::Refuse | Self::Read | Self::Write | Self::Done | Self::Alive
        )
    }

    /// Returns whether messages of this kind concern a lease and contain no number.
    const fn is_bare(self) -> bool {
        matches!(
            self,
            Self::Return | Self::Returned | Self::Revoke | Self::Revoked
        )
    }
}

impl Message {
    /// Returns the kind of the message.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self.body {
            Body::List(_) => Kind::List,
            Body::Device(_) => Kind::Device,
            Body::Borrow(_) => Kind::Borrow,
            Body::Grant(_) => Kind::Grant,
            Body::Refuse(..) => Kind::Refuse,
            Body::Read(..) => Kind::Read,
            Body::Write(..) => Kind::Write,
            Body::Done(..) => Kind::Done,
            Body::Reset(_) => Kind::Reset,
            Body::Return(_) => Kind::Return,
            Body::Returned(_) => Kind::Returned,
            Body::Revoke(..) => Kind::Revoke,
            Body::Revoked(_) => Kind::Revoked,
            Body::Alive { .. } => Kind::Alive,
        }
    }

    /// Returns the role of the receiver.
    #[must_use]
    pub const fn role(&self) -> Role {
        match self.body {
            Body::List(_)
            | Body::Borrow(_)
            | Body::Read(..)
            | Body::Write(..)
            | Body::Reset(_)
            | Body::Return(_)
            | Body::Revoked(_) => Role::Lender,
            Body::Device(_)
            | Body::Grant(_)
            | Body::Refuse(..)
            | Body::Done(..)
            | Body::Returned(_)
            | Body::Revoke(..) => Role::Borrower,
            Body::Alive { to, .. } => to,
        }
    }

    /// Returns the quadwords of the message.
    #[must_use]
    pub fn words(&self) -> Words {
        let head = HeadWord(0).with_version(VERSION).with_number(self.number);
        let (sender, coded) = (self.sender, |code| head.with_code(code));
        match &self.body {
            Body::List(index) => Words::new(head, sender, &[u64::from(*index)]),
            Body::Device(device) => Words::new(coded(device.state.code()), sender, &device.words()),
            Body::Borrow(borrow) => Words::new(head, sender, &borrow.words()),
            Body::Grant(grant) => Words::new(head, sender, &grant.words()),
            Body::Refuse(reason, lease) => Words::new(coded(reason.code()), sender, &[lease.0]),
            Body::Read(lease, register) => {
                let word = RegisterWord(0).with_offset(register.offset());
                Words::new(coded(register.size()), sender, &[lease.0, word.raw()])
            }
            Body::Write(lease, register, value) => {
                let word = RegisterWord(0)
                    .with_offset(register.offset())
                    .with_value(*value);
                Words::new(coded(register.size()), sender, &[lease.0, word.raw()])
            }
            Body::Done(lease, status, value) => {
                Words::new(coded(status.code()), sender, &[lease.0, (*value).into()])
            }
            Body::Revoke(lease, grace) => Words::new(head, sender, &[lease.0, (*grace).into()]),
            Body::Reset(lease)
            | Body::Return(lease)
            | Body::Returned(lease)
            | Body::Revoked(lease) => Words::new(head, sender, &[lease.0]),
            Body::Alive { lease, to, answer } => {
                Words::new(coded(direction(*to, *answer)), sender, &[lease.0])
            }
        }
    }

    /// Decodes a message with user tag `tag` and length `len`. `word` returns a quadword of the
    /// message by its index.
    ///
    /// # Errors
    ///
    /// The message has another version or is malformed.
    pub fn parse(tag: u8, len: u16, word: impl Fn(usize) -> u64) -> Result<Self, ParseError> {
        let kind = Kind::from_tag(tag).ok_or(Rejected::new(Reject::Tag, tag.into()))?;
        let length = Rejected::new(Reject::Length, len.into());
        if len < 16 || len % 8 != 0 {
            return Err(length.into());
        }
        let head = HeadWord(word(0));
        let (number, version) = (head.number(), head.version());
        if version != VERSION {
            return Err(ParseError::Version {
                kind,
                version,
                number,
            });
        }
        if len != 8 * kind.words() {
            return Err(length.into());
        }
        let wrong_head = head.raw() & !HeadWord::KNOWN != 0
            || (head.code() != 0 && !kind.has_code())
            || (number != 0 && kind.is_bare());
        if wrong_head {
            return Err(Rejected::new(Reject::Field, head.raw()).into());
        }
        let sender = Incarnation(word(1));
        let body = Self::parse_body(kind, head, word)?;
        Ok(Self {
            number,
            sender,
            body,
        })
    }

    fn parse_body(
        kind: Kind,
        head: HeadWord,
        word: impl Fn(usize) -> u64,
    ) -> Result<Body, Rejected> {
        let (code, number) = (head.code(), head.number());
        let wrong = |value| Rejected::new(Reject::Field, value);
        let lease = LeaseId(word(2));
        // Requires the name of a lease that has begun.
        let known = || match (lease.nonce(), lease.key()) {
            (0, _) | (_, 0) => Err(wrong(lease.0)),
            _ => Ok(lease),
        };
        // Requires the name of a lease, or of a request without the lender's number.
        let named = || match lease.nonce() {
            0 => Err(wrong(lease.0)),
            _ => Ok(lease),
        };
        Ok(match kind {
            Kind::List => {
                let index = u16::try_from(word(2)).map_err(|_| wrong(word(2)))?;
                Body::List(index)
            }
            Kind::Device => Body::Device(Device::parse(code, word)?),
            Kind::Borrow => match number {
                0 => return Err(wrong(head.raw())),
                _ => Body::Borrow(Borrow::parse(word)?),
            },
            Kind::Grant => Body::Grant(Grant::parse(number, word)?),
            Kind::Refuse => {
                let reason = Reason::from_code(code).ok_or(wrong(code.into()))?;
                Body::Refuse(reason, lease)
            }
            Kind::Read => {
                let raw = word(3);
                let register = Register::parse(raw, code)?;
                if raw >> 16 != 0 {
                    return Err(wrong(raw));
                }
                Body::Read(known()?, register)
            }
            Kind::Write => {
                let raw = RegisterWord(word(3));
                let register = Register::parse(raw.raw(), code)?;
                let beyond = raw.value() & !register.ones() != 0;
                if beyond || raw.raw() & !RegisterWord::KNOWN != 0 {
                    return Err(wrong(raw.raw()));
                }
                Body::Write(known()?, register, raw.value())
            }
            Kind::Done => {
                let status = Status::from_code(code).ok_or(wrong(code.into()))?;
                let value = u32::try_from(word(3)).map_err(|_| wrong(word(3)))?;
                Body::Done(known()?, status, value)
            }
            Kind::Reset => Body::Reset(known()?),
            Kind::Return => Body::Return(named()?),
            Kind::Returned => Body::Returned(named()?),
            Kind::Revoke => {
                let grace = u32::try_from(word(3)).map_err(|_| wrong(word(3)))?;
                Body::Revoke(known()?, grace)
            }
            Kind::Revoked => Body::Revoked(known()?),
            Kind::Alive => {
                let to = match code {
                    0 | 2 => Role::Lender,
                    1 | 3 => Role::Borrower,
                    _ => return Err(wrong(code.into())),
                };
                Body::Alive {
                    lease: known()?,
                    to,
                    answer: code & 2 != 0,
                }
            }
        })
    }
}
