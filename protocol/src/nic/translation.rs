// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Life cycle of a translation of registered memory. It defines how the NIC is made to drop the
//! translation, and when memory and NLAs may be freed (HW §11.3, G17).
//!
//! 1. `Live`: the NIC translates addresses to the memory.
//! 2. `Zeroing`: one context clears the translation entries and commands a flush of the NIC's
//!    cache.
//! 3. `Flushed`: the NIC must confirm the flush.
//! 4. `Forgotten`: the NIC has confirmed the flush, or has lost its access to host memory. Memory
//!    and NLAs may be freed.
//! 5. `Releasing`, `Gone`: one context frees memory and NLAs, and has freed them.
//!
//! If the NIC does not confirm in time, the translation is `Quarantined` until the NIC confirms.
//! Its memory and NLAs remain reserved.
//!
//! Several contexts may end a translation at the same time: its owner, the MMU notifier, a context
//! that waits for answers of the NIC, and the driver's unbinding. Each of them calls
//! [`Lifecycle::next`], executes the operation, and reports the result. [`Lifecycle::revoke`] and
//! [`Lifecycle::release`] return true for one context only, which clears the entries or frees the
//! memory.
//!
//! After the end, the same entries can be used for another translation
//! ([`Lifecycle::begin_again`]). Each translation has a [`Generation`]. Reports of earlier
//! generations have no effect. A context that must not wait defers the end to a work item
//! ([`Lifecycle::defer`]). The work item ends the deferred generation ([`Lifecycle::deferred`]),
//! because the current generation may belong to a new owner.

use crate::{base::flow, nic::tickets::Ticket};

crate::flow! {
    /// States of a translation.
    states Phase {
        /// The NIC translates.
        Live,
        /// One context clears the entries and commands the flush.
        Zeroing,
        /// The flush is commanded, and the NIC must confirm it.
        Flushed,
        /// The NIC did not confirm in time. Memory and NLAs remain reserved until it confirms.
        Quarantined,
        /// The NIC has confirmed the flush, or has no access to host memory any more. Memory and
        /// NLAs may be freed.
        Forgotten,
        /// One context frees memory and NLAs.
        Releasing,
        /// Memory and NLAs are freed.
        Gone,
    }
    /// Events of a translation.
    events Event {
        /// A context ends the translation.
        Revoke,
        /// The entries are cleared, and the flush is commanded.
        Zeroed,
        /// The NIC answered a question that was asked after the flush.
        Answered,
        /// The NIC did not answer in time.
        TimedOut,
        /// The NIC has no access to host memory any more.
        CutOff,
        /// A context begins to free memory and NLAs.
        Release,
        /// Memory and NLAs are freed.
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

/// Generation of a translation; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Generation(u64);

impl Generation {
    /// Returns the generation as a number, which is never 0.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Number of a flush command, counted by the driver. The answer to one question covers all flushes
/// that were counted before it, so that one wait serves many translations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Flush(pub u64);

/// Result of a question to the NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Answer {
    /// Last flush that was counted before the question was asked.
    pub upto: Flush,
    /// `Err` if the NIC did not answer in time, with the ticket of the question if it could be
    /// asked.
    pub result: Result<(), Option<Ticket>>,
}

/// Next operation for the end of a translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Call [`Lifecycle::revoke`].
    Revoke,
    /// Wait, because another context clears the entries.
    Zeroing,
    /// Wait, because another context frees memory and NLAs.
    Releasing,
    /// Ask the NIC, unless a question was asked after this flush. Report the result by
    /// [`Lifecycle::answered`].
    Ask(Flush),
    /// Check if this ticket is answered. Report the result by [`Lifecycle::forgotten`] or
    /// [`Lifecycle::asked_again`].
    CheckTicket(Option<Ticket>),
    /// Call [`Lifecycle::release`].
    Release,
    /// This generation has ended.
    Done,
}

/// Reason for which the NIC does not use a translation any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The NIC answered late, to the ticket of [`Next::CheckTicket`].
    Answered,
    /// The NIC has no access to host memory any more.
    CutOff,
}

/// Effect of an [`Answer`] on a translation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// No effect, because the answer does not cover the flush, or because another context has
    /// reported an answer.
    None,
    /// The NIC has forgotten the translation.
    Forgotten,
    /// The NIC did not answer in time, so the translation is in quarantine.
    Quarantined,
}

/// Range of pages of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pages {
    /// Number of the first page.
    pub first: usize,
    /// Number of the page after the last page of the range.
    pub end: usize,
}

/// State of a translation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lifecycle {
    phase: Phase,
    generation: u64,
    /// Number of the flush, in [`Phase::Flushed`].
    flush: Flush,
    /// Range of pages that the owner of the memory may have replaced.
    replaced_pages: Option<Pages>,
    /// Ticket that the NIC must answer, while the translation is in quarantine.
    ticket: Option<Ticket>,
    /// True if the end of this generation was left to a work item.
    deferred: bool,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self::new()
    }
}

impl Lifecycle {
    /// Creates a live translation of the first generation.
    pub const fn new() -> Self {
        Self {
            phase: Phase::Live,
            generation: 1,
            flush: Flush(0),
            replaced_pages: None,
            ticket: None,
            deferred: false,
        }
    }

    /// Creates an ended translation, on which [`Lifecycle::begin_again`] can be called.
    pub const fn over() -> Self {
        Self {
            phase: Phase::Gone,
            ..Self::new()
        }
    }

    /// Returns the current phase.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the current generation.
    pub const fn generation(&self) -> Generation {
        Generation(self.generation)
    }

    fn step(&mut self, generation: Generation, event: Event) -> bool {
        let next = flow::Flow::next(self.phase, event);
        match next.filter(|_| generation.0 == self.generation) {
            Some(next) => {
                self.phase = next;
                true
            }
            None => false,
        }
    }

    /// Returns the next operation for the end of this generation.
    pub fn next(&self, generation: Generation) -> Next {
        if generation.0 != self.generation {
            return Next::Done;
        }
        match self.phase {
            Phase::Live => Next::Revoke,
            Phase::Zeroing => Next::Zeroing,
            Phase::Releasing => Next::Releasing,
            Phase::Flushed => Next::Ask(self.flush),
            Phase::Quarantined => Next::CheckTicket(self.ticket),
            Phase::Forgotten => Next::Release,
            Phase::Gone => Next::Done,
        }
    }

    /// Leaves the end of this generation to a work item, in any phase.
    pub fn defer(&mut self, generation: Generation) {
        self.deferred |= self.next(generation) != Next::Done;
    }

    /// Returns the generation and the next operation if the end was left to a work item.
    pub fn deferred(&self) -> Option<(Generation, Next)> {
        let (generation, next) = (self.generation(), self.next(self.generation()));
        (self.deferred && next != Next::Done).then_some((generation, next))
    }

    /// Begins the end of this generation. Returns true to only one caller, which clears the
    /// entries, commands the flush, and calls [`Lifecycle::zeroed`].
    #[must_use]
    pub fn revoke(&mut self, generation: Generation) -> bool {
        let first = self.step(generation, Event::Revoke);
        if first {
            self.replaced_pages = None;
        }
        first
    }

    /// Reports that the entries are cleared, and the flush is commanded and counted.
    pub fn zeroed(&mut self, generation: Generation, flush: Flush) {
        if self.step(generation, Event::Zeroed) {
            self.flush = flush;
        }
    }

    /// Reports the result of a question to the NIC, which may have been asked for another
    /// translation.
    pub fn answered(&mut self, generation: Generation, answer: Answer) -> Effect {
        if self.phase != Phase::Flushed || self.flush > answer.upto {
            return Effect::None;
        }
        match answer.result {
            Ok(()) if self.step(generation, Event::Answered) => Effect::Forgotten,
            Err(ticket) if self.step(generation, Event::TimedOut) => {
                self.ticket = ticket;
                Effect::Quarantined
            }
            _ => Effect::None,
        }
    }

    /// Reports that the NIC does not use the translation any more. Returns false if this was
    /// reported before.
    pub fn forgotten(&mut self, generation: Generation, why: Why) -> bool {
        match why {
            Why::Answered if self.phase == Phase::Quarantined => {
                self.step(generation, Event::Answered)
            }
            Why::Answered => false,
            Why::CutOff => self.step(generation, Event::CutOff),
        }
    }

    /// Reports a further question. Its ticket is stored if the translation has none.
    pub fn asked_again(&mut self, generation: Generation, ticket: Option<Ticket>) {
        if generation.0 == self.generation && self.phase == Phase::Quarantined {
            self.ticket = self.ticket.or(ticket);
        }
    }

    /// Begins the release. Returns true to only one caller, which frees memory and NLAs, and calls
    /// [`Lifecycle::released`].
    #[must_use]
    pub fn release(&mut self, generation: Generation) -> bool {
        self.step(generation, Event::Release)
    }

    /// Reports that memory and NLAs are freed.
    pub fn released(&mut self, generation: Generation) {
        self.step(generation, Event::Released);
    }

    /// Begins the next generation. Returns `None` unless the current generation has ended.
    #[must_use]
    pub fn begin_again(&mut self) -> Option<Generation> {
        if !self.step(Generation(self.generation), Event::Again) {
            return None;
        }
        self.generation += 1;
        self.ticket = None;
        self.deferred = false;
        Some(Generation(self.generation))
    }

    /// Records that pages may have been replaced. Returns false if the translation is ending, so
    /// that the pages need not be checked.
    pub fn suspect(&mut self, pages: Pages) -> bool {
        if self.phase != Phase::Live {
            return false;
        }
        let all = self.replaced_pages.unwrap_or(pages);
        self.replaced_pages = Some(Pages {
            first: all.first.min(pages.first),
            end: all.end.max(pages.end),
        });
        true
    }

    /// Returns the range of pages to be checked, and clears it.
    pub fn take_replaced_pages(&mut self) -> Option<Pages> {
        self.replaced_pages.take()
    }
}
