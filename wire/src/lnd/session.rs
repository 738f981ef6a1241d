// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages that begin and end sessions (docs/lnd-protocol.md, Sessions).

use super::message::{Reject, Rejected, Words};

/// Key of one end of a session. Every message to that end contains it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Key(pub u32);

/// Random number that a network interface draws when it starts. It changes with every restart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Incarnation(pub u64);

/// Checks the length of a [`Hello`] or [`Welcome`]. Messages of other versions may be longer. Their
/// fields of version 1 are at the same positions, so that the ends can read each other's version.
pub(super) fn check_len(
    len: u16,
    least: u16,
    word: &impl Fn(usize) -> u64,
) -> Result<(), Rejected> {
    let longer = len > least && len % 8 == 0;
    let other = longer && FirstWord(word(0)).version() != super::VERSION;
    if len == least || other {
        Ok(())
    } else {
        Err(Rejected::new(Reject::Length, len.into()))
    }
}

bits! {
    /// First quadword of [`Hello`] and [`Welcome`].
    pub struct FirstWord {
        /// Version of the protocol.
        version / with_version: u8 [7:0];
        /// Code of the [`Answer`].
        answer / with_answer: u8 [15:8];
        /// Number of slots for requests of the other end − 1.
        slots / with_slots: u8 [23:16];
        /// Key of the sender's end of the session.
        key / with_key: u32 [63:32];
    }
}

/// Properties of one end of a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Hello {
    /// Version of the protocol.
    pub version: u8,
    /// Maximum number of concurrent requests from the other end, 1…256.
    pub slots: u16,
    /// Key that the other end puts into its messages.
    pub key: Key,
    /// Incarnation of this end.
    pub incarnation: Incarnation,
}

/// Answer to a request for a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// The session exists.
    Yes,
    /// The answering end does not support the requested version, but only the version in the
    /// answer.
    Version,
    /// The answering end has no free entry for this peer.
    Full,
    /// The answering end is shutting down.
    Closing,
}

impl Answer {
    /// All answers.
    pub const ALL: [Self; 4] = [Self::Yes, Self::Version, Self::Full, Self::Closing];

    /// Returns the code in a message.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the answer with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Answer to a [`Hello`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Welcome {
    /// Result of the request.
    pub answer: Answer,
    /// End that answers the request.
    pub own: Hello,
    /// Key in the [`Hello`] that is answered.
    pub key: Key,
    /// Incarnation in the [`Hello`] that is answered.
    pub incarnation: Incarnation,
}

impl Hello {
    const fn first(self, answer: Answer) -> u64 {
        FirstWord(0)
            .with_version(self.version)
            .with_answer(answer.code())
            .with_slots(self.slots.wrapping_sub(1) as u8)
            .with_key(self.key.0)
            .raw()
    }

    pub(super) const fn words(self) -> Words {
        Words::new([self.first(Answer::Yes), self.incarnation.0, 0, 0], 2)
    }

    fn read(first: FirstWord, second: u64) -> Result<Self, Rejected> {
        let unknown = first.raw() & !FirstWord::KNOWN;
        // Messages of other versions may have more fields.
        if first.version() == super::VERSION && unknown != 0 {
            return Err(Rejected::new(Reject::Field, unknown));
        }
        Ok(Self {
            version: first.version(),
            slots: u16::from(first.slots()) + 1,
            key: Key(first.key()),
            incarnation: Incarnation(second),
        })
    }

    pub(super) fn parse(word: impl Fn(usize) -> u64) -> Result<Self, Rejected> {
        let first = FirstWord(word(0));
        if first.version() == super::VERSION && first.answer() != 0 {
            return Err(Rejected::new(Reject::Field, first.answer().into()));
        }
        Self::read(first, word(1))
    }
}

impl Welcome {
    pub(super) const fn words(self) -> Words {
        let first = self.own.first(self.answer);
        Words::new(
            [
                first,
                self.own.incarnation.0,
                self.incarnation.0,
                self.key.0 as u64,
            ],
            4,
        )
    }

    pub(super) fn parse(word: impl Fn(usize) -> u64) -> Result<Self, Rejected> {
        let first = FirstWord(word(0));
        let other = first.version() != super::VERSION;
        let answer = match Answer::from_code(first.answer()) {
            Some(answer) => answer,
            None if other => Answer::Version,
            None => return Err(Rejected::new(Reject::Field, first.answer().into())),
        };
        if !other && word(3) > u32::MAX.into() {
            return Err(Rejected::new(Reject::Field, word(3)));
        }
        Ok(Self {
            answer,
            own: Hello::read(first, word(1))?,
            key: Key(word(3) as u32),
            incarnation: Incarnation(word(2)),
        })
    }
}
