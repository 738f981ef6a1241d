// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Notes: what ends tell each other of requests (docs/lnd-protocol.md, Notes).

use super::message::{Reject, Rejected};
use super::Place;
use core::fmt;

bits! {
    /// A note.
    pub struct NoteWord {
        /// See [`What`].
        what / with_what: u8 [7:0];
        /// Place of the request.
        slot / with_slot: u8 [15:8];
        /// Its number.
        seq / with_seq: u16 [31:16];
        /// See [`Verdict`].
        verdict / with_verdict: u8 [39:32];
    }
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// LNet has it, with all of the payload that it wanted.
    Done,
    /// There was no place for it, and LNet has not seen it: it may be sent again after a while.
    Busy,
    /// LNet did not take it.
    Refused,
    /// LNet has seen it, but the payload could not be had.
    Failed,
    /// It was cancelled before LNet saw it.
    Cancelled,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Done,
        Self::Busy,
        Self::Refused,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The number in a note.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What a number says.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// What a note says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum What {
    /// Who has sent the request wants to know what becomes of it.
    Ask,
    /// Who has sent the request does not want it any more.
    Cancel,
    /// What became of the request; nothing follows.
    Answer(Verdict),
    /// The request is there and not done.
    Working,
    /// The request, or a part of it, did not come.
    Missing,
    /// A sign of life is wanted.
    Ping,
    /// Here it is.
    Pong,
}

/// A note; of [`What::Ping`] and [`What::Pong`] the place has no meaning.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Note {
    /// What.
    pub what: What,
    /// Of which request.
    pub place: Place,
}

impl Note {
    /// A note of no request.
    #[must_use]
    pub const fn bare(what: What) -> Self {
        Self {
            what,
            place: Place { slot: 0, seq: 0 },
        }
    }

    /// As a quadword.
    #[must_use]
    pub const fn word(self) -> u64 {
        let (what, verdict) = match self.what {
            What::Ask => (1, 0),
            What::Cancel => (2, 0),
            What::Answer(v) => (3, v.code()),
            What::Working => (4, 0),
            What::Missing => (5, 0),
            What::Ping => (6, 0),
            What::Pong => (7, 0),
        };
        NoteWord(0)
            .with_what(what)
            .with_slot(self.place.slot)
            .with_seq(self.place.seq)
            .with_verdict(verdict)
            .raw()
    }

    /// What a quadword says.
    ///
    /// # Errors
    ///
    /// It is no note.
    pub fn parse(raw: u64) -> Result<Self, Rejected> {
        let word = NoteWord(raw);
        let wrong = Rejected::new(Reject::Field, raw);
        if raw & !NoteWord::KNOWN != 0 || (word.verdict() != 0 && word.what() != 3) {
            return Err(wrong);
        }
        let what = match word.what() {
            1 => What::Ask,
            2 => What::Cancel,
            3 => What::Answer(Verdict::from_code(word.verdict()).ok_or(wrong)?),
            4 => What::Working,
            5 => What::Missing,
            6 => What::Ping,
            7 => What::Pong,
            _ => return Err(wrong),
        };
        let place = Place {
            slot: word.slot(),
            seq: word.seq(),
        };
        let bare = matches!(what, What::Ping | What::Pong);
        if bare && place != Place::default() {
            return Err(wrong);
        }
        Ok(Self { what, place })
    }
}

/// Notes of one message.
#[derive(Clone, Copy)]
pub struct Notes {
    notes: [Note; Self::MOST],
    count: u8,
}

impl PartialEq for Notes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Notes {}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl Default for Notes {
    fn default() -> Self {
        Self::NONE
    }
}

impl Notes {
    /// Notes in one message at most.
    pub const MOST: usize = 14;
    /// No notes: a message with them says that its sender has the session.
    pub const NONE: Self = Self {
        notes: [Note::bare(What::Pong); Self::MOST],
        count: 0,
    };

    /// Adds one; false if there is no room.
    pub fn push(&mut self, note: Note) -> bool {
        let Some(place) = self.notes.get_mut(usize::from(self.count)) else {
            return false;
        };
        *place = note;
        self.count += 1;
        true
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[Note] {
        self.notes.get(..self.count.into()).unwrap_or_default()
    }

    /// Whether none more fits.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.count as usize == Self::MOST
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of a message with them.
    pub(super) const fn len(&self) -> u16 {
        8 + 8 * self.count as u16
    }
}
