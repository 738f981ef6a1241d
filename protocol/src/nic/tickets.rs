// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Questions to a unit of the NIC that executes commands in order, and the unit's answers (HW
//! §11.3, G17).
//!
//! A question is a command that makes the unit write a word of host memory. This write is the
//! answer, and it shows that all earlier commands were executed. Questions are numbered. The answer
//! to any later question answers a [`Ticket`] too, because an answer may be lost or late.
//!
//! The number of words is small. A word is reused only after a question was answered that is later
//! than the last question with this word. The last question may have been asked twice
//! ([`Ask::Again`]), and its second answer must not count for another question.

/// Number of a question. Its answer shows that all commands issued before the question were
/// executed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

/// Next step to ask a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Clear the word with this index, and then issue the command that writes it.
    New(Ticket, usize),
    /// Repeat the command that writes the word with this index, without clearing the word. No word
    /// is free, perhaps because all answers were lost. The answer counts for existing tickets only,
    /// because it may be the late first answer.
    Again(usize),
}

/// Numbers of the questions that were asked and answered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tickets {
    words: u64,
    /// Number of the last question.
    asked: u64,
    /// Highest number that is known to be answered.
    answered: u64,
}

impl Tickets {
    /// Creates the state without questions. `words` is the number of words for answers, at least 2.
    pub const fn new(words: u32) -> Self {
        Self {
            words: if words < 2 { 2 } else { words as u64 },
            asked: 0,
            answered: 0,
        }
    }

    const fn word(&self, number: u64) -> usize {
        // `words` is never 0.
        match number.checked_rem(self.words) {
            Some(word) => word as usize,
            None => 0,
        }
    }

    /// Checks for answers. `is_written` returns true if a word was written since it was cleared.
    pub fn check(&mut self, mut is_written: impl FnMut(usize) -> bool) {
        let mut open = (self.answered + 1..=self.asked).rev();
        if let Some(newest) = open.find(|n| is_written(self.word(*n))) {
            self.answered = newest;
        }
    }

    /// Begins the next question. The caller must check for answers first.
    #[must_use]
    pub fn ask(&mut self) -> Ask {
        if self.asked - self.answered >= self.words - 1 {
            return Ask::Again(self.word(self.asked));
        }
        self.asked += 1;
        Ask::New(Ticket(self.asked), self.word(self.asked))
    }

    /// Returns true if the ticket is answered, as of the last check.
    pub const fn is_answered(&self, ticket: Ticket) -> bool {
        ticket.0 <= self.answered
    }

    /// Returns the number of questions that were asked.
    pub const fn asked(&self) -> u64 {
        self.asked
    }

    /// Returns the number of questions that are known to be answered.
    pub const fn answered(&self) -> u64 {
        self.answered
    }
}
