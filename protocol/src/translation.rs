// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Life of a translation: what the NIC knows of registered memory, how it is made to forget that,
//! and when the memory may be given back (HW §11.3, G17).
//!
//! Several parties may end the same translation at the same time: its owner, a change of the
//! address space that the memory belongs to, whoever waits for answers of the NIC, and unbinding.
//! Each asks [`Life::next`] what is to be done, does it, and reports. What must be done by one of
//! them only is given to one: the zeroing of the entries, and the giving back. Nothing is given
//! back before the NIC has answered, or has lost its access to memory.
//!
//! A translation that has ended may begin anew with the same entries ([`Life::begin_again`]). A
//! [`Turn`] tells such lives apart, so that whoever comes late from an earlier one changes nothing.
//! Who can't wait leaves the end to a worker ([`Life::leave`]), which asks which life was left to it
//! ([`Life::left`]) when it comes: by then there may be another one, which is its owner's.

use crate::{base::flow, tickets::Ticket};

crate::flow! {
    /// How far the end of a translation has come.
    states Phase {
        /// The NIC translates.
        Live,
        /// One party zeroes the entries and commands the flush.
        Zeroing,
        /// That is done; the NIC is to say that it has forgotten the translations.
        Flushed,
        /// It did not say so in time. Everything stays reserved until it does.
        Quarantined,
        /// It has said so, or can't access memory any more. Memory and NLAs may be given back.
        Forgotten,
        /// One party gives them back.
        Releasing,
        /// They are given back.
        Gone,
    }
    /// What happens to a translation.
    events Event {
        /// Somebody wants it ended.
        Revoke,
        /// The entries are zero, and the flush is commanded.
        Zeroed,
        /// The NIC answered to a question that was asked behind the flush.
        Answered,
        /// It did not in time.
        TimedOut,
        /// It has no access to memory any more.
        CutOff,
        /// Somebody begins to give memory and NLAs back.
        Release,
        /// All is given back.
        Released,
        /// The same entries are used for other memory.
        Again,
    }
    transitions {
        Live + Revoke => Zeroing;
        Zeroing + Zeroed => Flushed;
        Flushed + Answered => Forgotten;
        Flushed + CutOff => Forgotten;
        Flushed + TimedOut => Quarantined;
        Quarantined + Answered => Forgotten;
        Quarantined + CutOff => Forgotten;
        Forgotten + Release => Releasing;
        Releasing + Released => Gone;
        Gone + Again => Live;
    }
}

/// Which life of a translation is meant. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Turn(u64);

impl Turn {
    /// As a number that is never 0.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Number of a flush command, counted by whoever commands them, so that one wait for the NIC can do
/// for many translations: what it answers to a question covers all flushes that were counted
/// before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Flush(pub u64);

/// What became of a question to the NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Answer {
    /// Last flush that was counted before the question was asked.
    pub upto: Flush,
    /// Whether the NIC answered in time; if not, what it has to answer, if it could be asked.
    pub result: Result<(), Option<Ticket>>,
}

/// What brings the end of a translation nearer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// [`Life::revoke`] it.
    Revoke,
    /// Somebody zeroes the entries; wait a moment.
    Zeroing,
    /// Somebody gives things back; wait.
    Releasing,
    /// Ask the NIC, unless that was done behind this flush, and report what it [`Life::answered`].
    Ask(Flush),
    /// In quarantine: look whether this is answered, and report [`Life::forgotten`] or
    /// [`Life::asked_again`].
    Look(Option<Ticket>),
    /// [`Life::release`] it.
    Release,
    /// Nothing: that life is over.
    Done,
}

/// Why the NIC does not use a translation any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It answered late, to the ticket of [`Next::Look`].
    Answered,
    /// It has no access to memory any more.
    CutOff,
}

/// What an [`Answer`] means for a translation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Nothing: it does not cover the flush, or somebody else has reported one.
    None,
    /// The NIC has forgotten the translation.
    Forgotten,
    /// It has not said so in time: from now on this is in quarantine.
    Quarantined,
}

/// Pages of a region by number, the first one and the one after the last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pages {
    /// First page.
    pub first: usize,
    /// Page after the last.
    pub end: usize,
}

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Life {
    phase: Phase,
    turn: u64,
    /// That of [`Phase::Flushed`].
    flush: Flush,
    /// Pages that the owner of the memory may have replaced.
    suspects: Option<Pages>,
    /// In quarantine: what the NIC has to answer.
    ticket: Option<Ticket>,
    /// The end of this life is left to a worker.
    left: bool,
}

impl Default for Life {
    fn default() -> Self {
        Self::new()
    }
}

impl Life {
    /// Live, for the first time.
    pub const fn new() -> Self {
        Self {
            phase: Phase::Live,
            turn: 1,
            flush: Flush(0),
            suspects: None,
            ticket: None,
            left: false,
        }
    }

    /// Over; [`Life::begin_again`] begins the first one.
    pub const fn over() -> Self {
        Self {
            phase: Phase::Gone,
            ..Self::new()
        }
    }

    /// Present phase.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Present life.
    pub const fn turn(&self) -> Turn {
        Turn(self.turn)
    }

    fn step(&mut self, turn: Turn, event: Event) -> bool {
        let next = flow::Flow::next(self.phase, event);
        match next.filter(|_| turn.0 == self.turn) {
            Some(next) => {
                self.phase = next;
                true
            }
            None => false,
        }
    }

    /// What is to be done for the end of this life.
    pub fn next(&self, turn: Turn) -> Next {
        if turn.0 != self.turn {
            return Next::Done;
        }
        match self.phase {
            Phase::Live => Next::Revoke,
            Phase::Zeroing => Next::Zeroing,
            Phase::Releasing => Next::Releasing,
            Phase::Flushed => Next::Ask(self.flush),
            Phase::Quarantined => Next::Look(self.ticket),
            Phase::Forgotten => Next::Release,
            Phase::Gone => Next::Done,
        }
    }

    /// Leaves the end of this life to a worker, begun or not.
    pub fn leave(&mut self, turn: Turn) {
        self.left |= self.next(turn) != Next::Done;
    }

    /// The present life and what is to be done for its end, if that was left to a worker.
    pub fn left(&self) -> Option<(Turn, Next)> {
        let (turn, next) = (self.turn(), self.next(self.turn()));
        (self.left && next != Next::Done).then_some((turn, next))
    }

    /// Begins the end. True for one caller only, who then has the entries: he zeroes them, commands
    /// the flush, and calls [`Life::zeroed`].
    #[must_use]
    pub fn revoke(&mut self, turn: Turn) -> bool {
        let first = self.step(turn, Event::Revoke);
        if first {
            self.suspects = None;
        }
        first
    }

    /// The entries are zero, and the flush is commanded and counted.
    pub fn zeroed(&mut self, turn: Turn, flush: Flush) {
        if self.step(turn, Event::Zeroed) {
            self.flush = flush;
        }
    }

    /// What the NIC answered, perhaps to a question that was asked for others.
    pub fn answered(&mut self, turn: Turn, answer: Answer) -> Effect {
        if self.phase != Phase::Flushed || self.flush > answer.upto {
            return Effect::None;
        }
        match answer.result {
            Ok(()) if self.step(turn, Event::Answered) => Effect::Forgotten,
            Err(ticket) if self.step(turn, Event::TimedOut) => {
                self.ticket = ticket;
                Effect::Quarantined
            }
            _ => Effect::None,
        }
    }

    /// The NIC does not use the translation any more. True if this is news.
    pub fn forgotten(&mut self, turn: Turn, why: Why) -> bool {
        match why {
            Why::Answered if self.phase == Phase::Quarantined => self.step(turn, Event::Answered),
            Why::Answered => false,
            Why::CutOff => self.step(turn, Event::CutOff),
        }
    }

    /// It was asked again, with this ticket. Only who has none needs it.
    pub fn asked_again(&mut self, turn: Turn, ticket: Option<Ticket>) {
        if turn.0 == self.turn && self.phase == Phase::Quarantined {
            self.ticket = self.ticket.or(ticket);
        }
    }

    /// Begins to give memory and NLAs back. True for one caller only, who does that, and then calls
    /// [`Life::released`].
    #[must_use]
    pub fn release(&mut self, turn: Turn) -> bool {
        self.step(turn, Event::Release)
    }

    /// All is given back.
    pub fn released(&mut self, turn: Turn) {
        self.step(turn, Event::Released);
    }

    /// Begins another life; `None` unless the last one is over.
    #[must_use]
    pub fn begin_again(&mut self) -> Option<Turn> {
        if !self.step(Turn(self.turn), Event::Again) {
            return None;
        }
        self.turn += 1;
        self.ticket = None;
        self.left = false;
        Some(Turn(self.turn))
    }

    /// Notes that pages may have been replaced. False if they don't matter any more.
    pub fn suspect(&mut self, pages: Pages) -> bool {
        if self.phase != Phase::Live {
            return false;
        }
        let all = self.suspects.unwrap_or(pages);
        self.suspects = Some(Pages {
            first: all.first.min(pages.first),
            end: all.end.max(pages.end),
        });
        true
    }

    /// Takes the pages that are to be looked at.
    pub fn take_suspects(&mut self) -> Option<Pages> {
        self.suspects.take()
    }
}
