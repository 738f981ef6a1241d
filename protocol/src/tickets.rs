// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Questions to a unit that executes commands in order, and which of them are answered (HW §11.3,
//! G17).
//!
//! Each question is a command that makes the unit write a word of host memory. Questions are
//! numbered, so that a [`Ticket`] with a lower number is answered with any later one: an answer may
//! get lost or be late. There are few words. One is used again only when the answer to a later
//! question than the last one for this word was seen, since that one may have been asked twice
//! ([`Ask::Again`]), and its second answer must not pass for that to somebody else.

/// Number of a question. When it is answered, all commands given before it was asked are executed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

/// What to do to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Clear this word, then give the command with it.
    New(Ticket, usize),
    /// Give the command with this word once more, without clearing it: no word is free, perhaps
    /// because all answers got lost. It answers for all who have asked, but for nobody new, as the
    /// first one may be late only.
    Again(usize),
}

/// Which questions are asked and answered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tickets {
    words: u64,
    /// Number asked last, and highest one that is known to be answered.
    asked: u64,
    seen: u64,
}

impl Tickets {
    /// None so far; `words` words for answers, of which at least two are needed.
    pub const fn new(words: u32) -> Self {
        Self {
            words: if words < 2 { 2 } else { words as u64 },
            asked: 0,
            seen: 0,
        }
    }

    const fn word(&self, number: u64) -> usize {
        // There are some.
        match number.checked_rem(self.words) {
            Some(word) => word as usize,
            None => 0,
        }
    }

    /// Looks for answers: `is_written` tells of a word whether it was written since it was cleared.
    pub fn look(&mut self, mut is_written: impl FnMut(usize) -> bool) {
        let mut open = (self.seen + 1..=self.asked).rev();
        if let Some(newest) = open.find(|n| is_written(self.word(*n))) {
            self.seen = newest;
        }
    }

    /// The next question. Look for answers before.
    #[must_use]
    pub fn ask(&mut self) -> Ask {
        if self.asked - self.seen >= self.words - 1 {
            return Ask::Again(self.word(self.asked));
        }
        self.asked += 1;
        Ask::New(Ticket(self.asked), self.word(self.asked))
    }

    /// Whether it is answered, as far as was looked.
    pub const fn is_answered(&self, ticket: Ticket) -> bool {
        ticket.0 <= self.seen
    }

    /// Questions asked so far.
    pub const fn asked(&self) -> u64 {
        self.asked
    }

    /// Of these, those known to be answered.
    pub const fn answered(&self) -> u64 {
        self.seen
    }
}
