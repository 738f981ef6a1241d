// SPDX-License-Identifier: GPL-2.0-only

//! Completion for callers that wait: [`Handle`].
//!
//! The results are under spinlocks that disable interrupts. Waiting and allocation may sleep; other
//! functions work in any context.

use super::{Completion, Done, Quiet, RmaError, Submitter, Ticket};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{self, Arc, SpinLockIrq},
};

/// Results so far.
#[derive(Default)]
struct Known {
    outcome: Option<Result<Done, RmaError>>,
    quiet: Option<Quiet>,
}

/// Completion behind a [`Handle`].
#[pin_data]
pub(super) struct Outcome {
    #[pin]
    known: SpinLockIrq<Known>,
    #[pin]
    ended: sync::Completion,
    #[pin]
    quiet: sync::Completion,
}

impl Outcome {
    /// Allocates a completion. May sleep.
    pub(super) fn new() -> Result<Arc<Self>, RmaError> {
        let outcome = pin_init!(Self {
            known <- new_spinlock_irq!(Known::default(), "extoll_rma_outcome"),
            ended <- sync::Completion::new(),
            quiet <- sync::Completion::new(),
        });
        Arc::pin_init(outcome, GFP_KERNEL).map_err(|_| RmaError::NoMemory)
    }
}

impl Completion for Outcome {
    fn done(&self, outcome: Result<Done, RmaError>) {
        self.known.lock().outcome = Some(outcome);
        self.ended.complete_all();
    }

    fn quiet(&self, how: Quiet) {
        self.known.lock().quiet = Some(how);
        self.quiet.complete_all();
    }
}

/// Transfer in flight. Dropping the handle neither stops the transfer nor waits for it.
#[must_use]
pub struct Handle {
    outcome: Arc<Outcome>,
    submitter: Submitter,
    ticket: Ticket,
}

impl Handle {
    pub(super) fn new(outcome: Arc<Outcome>, submitter: Submitter, ticket: Ticket) -> Self {
        Self {
            outcome,
            submitter,
            ticket,
        }
    }

    /// Returns the outcome, unless the transfer is in flight. Any context.
    pub fn poll(&self) -> Option<Result<(), RmaError>> {
        let known = self.outcome.known.lock().outcome;
        known.map(|r| r.map(|_| ()))
    }

    /// Waits for the end, which comes by the deadline (plus a scheduling delay). May sleep.
    ///
    /// # Errors
    ///
    /// See [`RmaError`].
    pub fn wait(&self) -> Result<(), RmaError> {
        self.done().map(|_| ())
    }

    /// Waits for the end and returns the result. May sleep.
    ///
    /// # Errors
    ///
    /// See [`RmaError`].
    pub fn done(&self) -> Result<Done, RmaError> {
        self.outcome.ended.wait_for_completion();
        let known = self.outcome.known.lock().outcome;
        known.unwrap_or(Err(RmaError::Down))
    }

    /// Ends the transfer as `Cancelled`, unless it has ended. Returns true if it was cancelled. Any
    /// context.
    ///
    /// ```
    /// use extoll_core::rma::transfer::{Handle, RmaError};
    /// use kernel::sync::{atomic::{AtomicFlag, Relaxed}};
    ///
    /// /// Cancels the transfer if `stop` is set, and waits for its end.
    /// fn end(transfer: &Handle, stop: &AtomicFlag) -> Result<(), RmaError> {
    ///     if stop.load(Relaxed) {
    ///         transfer.cancel();
    ///     }
    ///     transfer.wait()
    /// }
    /// ```
    pub fn cancel(&self) -> bool {
        self.submitter.cancel(self.ticket)
    }

    /// Returns how the transfer became quiet, if it has: see [the table](super). Any context.
    pub fn quiet(&self) -> Option<Quiet> {
        self.outcome.known.lock().quiet
    }
}
