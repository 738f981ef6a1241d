// SPDX-License-Identifier: GPL-2.0-only

//! Completion for callers that wait: and [`Handle`].
//!
//! Spinlocks that disable interrupts protect the results. Waiting and allocation may sleep. Other
//! functions work in any context.

use super::{Completion, Done, Quiet, RmaError, Submitter, Ticket};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{self, Arc, SpinLockIrq},
};

/// Name of the lock of a [`Callback`]. It is a static, because lockdep compares names by address,
/// and a literal in generic code may exist several times.
static LOCK_NAME: &CStr = c"extoll_rma_callback";

/// Results that the engine has reported so far.
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

/// Transfer that was submitted. Dropping the handle neither stops the transfer nor waits for it.
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

    /// Returns the outcome; `None` while the transfer is in flight. Any context.
    pub fn poll(&self) -> Option<Result<(), RmaError>> {
        let known = self.outcome.known.lock().outcome;
        known.map(|r| r.map(|_| ()))
    }

    /// Waits until the transfer ends, at the latest at its deadline (plus a scheduling delay). May
    /// sleep.
    ///
    /// # Errors
    ///
    /// See [`RmaError`].
    pub fn wait(&self) -> Result<(), RmaError> {
        self.done().map(|_| ())
    }

    /// Waits until the transfer ends, and returns its result. May sleep.
    ///
    /// # Errors
    ///
    /// See [`RmaError`].
    pub fn done(&self) -> Result<Done, RmaError> {
        self.outcome.ended.wait_for_completion();
        let known = self.outcome.known.lock().outcome;
        known.unwrap_or(Err(RmaError::Down))
    }

    /// Ends the transfer as `Cancelled`, unless it has ended. Returns whether it was cancelled. Any
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

    /// Returns how the transfer became quiet (see [the table](super)); `None` before that. Any
    /// context.
    pub fn quiet(&self) -> Option<Quiet> {
        self.outcome.known.lock().quiet
    }
}

/// Completion that calls a closure, and keeps an object until the transfer is quiet.
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

/// Makes a completion that calls `f` once with the outcome, and drops `keep` when the transfer is
/// quiet. Allocates memory and may sleep.
///
/// `keep` is for registered memory, because dropping a region revokes it. To distinguish how a
/// transfer became quiet, implement [`Completion`] instead. Use
/// [`CallIn::Process`](super::CallIn::Process) if `f` or the drop of `keep` sleeps. Dropping a
/// region does not sleep.
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
