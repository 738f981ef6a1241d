// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Notes about requests that both ends exchange (docs/lnd-protocol.md, Messages).

use super::message::{Reject, Rejected};
use super::RequestId;
use core::fmt;

bits! {
    /// Note that is encoded as a quadword.
    pub struct NoteWord {
        /// Code of the [`NoteKind`].
        kind / with_kind: u8 [7:0];
        /// Slot of the request.
        slot / with_slot: u8 [15:8];
        /// Number of the request.
        seq / with_seq: u16 [31:16];
        /// Code of the [`Verdict`].
        verdict / with_verdict: u8 [39:32];
    }
}

/// Result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// LNet has accepted the request and has received all the payload that it wanted.
    Done,
    /// The receiver has dropped the request before LNet received it, because all slots were in use.
    /// The sender may repeat the request later.
    Busy,
    /// LNet has rejected the request.
    Refused,
    /// LNet has received the request, but its payload could not be read.
    Failed,
    /// The request was cancelled before LNet received it.
    Cancelled,
}

impl Verdict {
    /// All results.
    pub const ALL: [Self; 5] = [
        Self::Done,
        Self::Busy,
        Self::Refused,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Returns the code in a note.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the result with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Contents of a note.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoteKind {
    /// The sender of the request asks for the state of the request.
    Ask,
    /// The sender of the request cancels it.
    Cancel,
    /// Final result of the request.
    Answer(Verdict),
    /// The request has arrived and is in progress.
    Working,
    /// The request or one of its fragments has not arrived.
    Missing,
    /// Question whether the other end is alive.
    Ping,
    /// Answer to [`NoteKind::Ping`].
    Pong,
}

/// Note about a request. `id` has no meaning in [`NoteKind::Ping`] and [`NoteKind::Pong`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Note {
    /// Contents of the note.
    pub kind: NoteKind,
    /// Slot and number of the request.
    pub id: RequestId,
}

impl Note {
    /// Returns a note that concerns no request.
    #[must_use]
    pub const fn bare(kind: NoteKind) -> Self {
        Self {
            kind,
            id: RequestId { slot: 0, seq: 0 },
        }
    }

    /// Returns the note as a quadword.
    #[must_use]
    pub const fn word(self) -> u64 {
        let (kind, verdict) = match self.kind {
            NoteKind::Ask => (1, 0),
            NoteKind::Cancel => (2, 0),
            NoteKind::Answer(v) => (3, v.code()),
            NoteKind::Working => (4, 0),
            NoteKind::Missing => (5, 0),
            NoteKind::Ping => (6, 0),
            NoteKind::Pong => (7, 0),
        };
        NoteWord(0)
            .with_kind(kind)
            .with_slot(self.id.slot)
            .with_seq(self.id.seq)
            .with_verdict(verdict)
            .raw()
    }

    /// Decodes a quadword.
    ///
    /// # Errors
    ///
    /// The quadword is not a valid note.
    pub fn parse(raw: u64) -> Result<Self, Rejected> {
        let word = NoteWord(raw);
        let wrong = Rejected::new(Reject::Field, raw);
        if raw & !NoteWord::KNOWN != 0 || (word.verdict() != 0 && word.kind() != 3) {
            return Err(wrong);
        }
        let kind = match word.kind() {
            1 => NoteKind::Ask,
            2 => NoteKind::Cancel,
            3 => NoteKind::Answer(Verdict::from_code(word.verdict()).ok_or(wrong)?),
            4 => NoteKind::Working,
            5 => NoteKind::Missing,
            6 => NoteKind::Ping,
            7 => NoteKind::Pong,
            _ => return Err(wrong),
        };
        let id = RequestId {
            slot: word.slot(),
            seq: word.seq(),
        };
        let bare = matches!(kind, NoteKind::Ping | NoteKind::Pong);
        if bare && id != RequestId::default() {
            return Err(wrong);
        }
        Ok(Self { kind, id })
    }
}

/// List of notes in one message.
#[derive(Clone, Copy)]
pub struct Notes {
    notes: [Note; Self::MAX],
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
    /// Maximum number of notes per message.
    pub const MAX: usize = 14;
    /// Empty list. A message with an empty list confirms that its sender has the session.
    pub const NONE: Self = Self {
        notes: [Note::bare(NoteKind::Pong); Self::MAX],
        count: 0,
    };

    /// Adds a note. Returns false if the list is full.
    pub fn push(&mut self, note: Note) -> bool {
        let Some(slot) = self.notes.get_mut(usize::from(self.count)) else {
            return false;
        };
        *slot = note;
        self.count += 1;
        true
    }

    /// Returns all notes.
    #[must_use]
    pub fn as_slice(&self) -> &[Note] {
        self.notes.get(..self.count.into()).unwrap_or_default()
    }

    /// Returns whether the list is full.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.count as usize == Self::MAX
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the length in bytes of a message with these notes.
    pub(super) const fn len(&self) -> u16 {
        8 + 8 * self.count as u16
    }
}
