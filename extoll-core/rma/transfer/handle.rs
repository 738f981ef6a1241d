// SPDX-License-Identifier: GPL-2.0-only

//! Completions for those who wait, and for those who give a closure.

use super::{Completion, Done, Quiet, RmaError, Submitter, Ticket};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    static_lock_class,
    sync::{self, Arc, SpinLockIrq},
};

/// The lock checker compares names by address, and literals in generic code may be there more than
/// once.
static LOCK_NAME: &CStr = c"extoll_rma_callback";

/// What was told so far.
#[derive(Default)]
struct Known {
    outcome: Option<Result<Done, RmaError>>,
    quiet: Option<Quiet>,
}

/// What somebody waits for.
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
    /// May sleep.
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

/// A transfer under way. Dropping it neither stops the transfer nor waits for it.
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

    /// The outcome, unless it is still under way. Any context.
    pub fn poll(&self) -> Option<Result<(), RmaError>> {
        let known = self.outcome.known.lock().outcome;
        known.map(|r| r.map(|_| ()))
    }

    /// Waits for the end, which comes by the deadline (give or take a scheduling delay). May sleep.
    ///
    /// # Errors
    ///
    /// See [`RmaError`].
    pub fn wait(&self) -> Result<(), RmaError> {
        self.done().map(|_| ())
    }

    /// Waits for the end, and tells what was done. May sleep.
    ///
    /// # Errors
    ///
    /// See [`RmaError`].
    pub fn done(&self) -> Result<Done, RmaError> {
        self.outcome.ended.wait_for_completion();
        let known = self.outcome.known.lock().outcome;
        known.unwrap_or(Err(RmaError::Down))
    }

    /// Ends it as `Cancelled`, unless it has ended. True if so. Any context.
    ///
    /// ```
    /// use extoll_core::rma::transfer::{Handle, RmaError};
    /// use kernel::sync::{atomic::{AtomicFlag, Relaxed}};
    ///
    /// /// Gives up if told so.
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

    /// How it became quiet, if it is: see [the table](super). Any context.
    pub fn quiet(&self) -> Option<Quiet> {
        self.outcome.known.lock().quiet
    }
}

/// A closure, and what is kept until the transfer is quiet.
#[pin_data]
struct Callback<K: Send + Sync, F: FnOnce(Result<Done, RmaError>) + Send> {
    #[pin]
    f: SpinLockIrq<Option<KBox<F>>>,
    _keep: K,
}

impl<K: Send + Sync, F: FnOnce(Result<Done, RmaError>) + Send> Completion for Callback<K, F> {
    fn done(&self, outcome: Result<Done, RmaError>) {
        let f = self.f.lock().take();
        if let Some(f) = f {
            KBox::into_inner(f)(outcome);
        }
    }
}

/// A completion that calls `f` with the outcome, once, and drops `keep` when the transfer is quiet.
/// May sleep, as it gets memory.
///
/// `keep` is for registered memory, whose drop revokes: whoever has to tell apart how a transfer
/// became quiet writes a [`Completion`]. Ask for [`CallIn::Process`](super::CallIn::Process) if
/// `f` or a drop sleeps; that of a region does not.
///
/// # Errors
///
/// `NoMemory`.
pub fn callback<K, F>(keep: K, f: F) -> Result<Arc<dyn Completion>, RmaError>
where
    K: Send + Sync + 'static,
    F: FnOnce(Result<Done, RmaError>) + Send + 'static,
{
    let f = KBox::new(f, GFP_KERNEL).map_err(|_| RmaError::NoMemory)?;
    let callback = pin_init!(Callback {
        f <- SpinLockIrq::new(Some(f), LOCK_NAME, static_lock_class!()),
        _keep: keep,
    });
    let callback = Arc::pin_init(callback, GFP_KERNEL).map_err(|_| RmaError::NoMemory)?;
    Ok(callback)
}
