// SPDX-License-Identifier: GPL-2.0-only

//! Interface for submitters: submitting, cancelling, aborting and polling.
//!
//! Each call acquires the engine's spinlock, which disables interrupts. Functions run in any
//! context unless their comment says otherwise.

use super::{
    handle::Outcome,
    lists::Single,
    run::{Inner, Shared, StepResult, BATCH},
    CallIn, Completion, Counters, Destination, Direction, Done, Handle, Lock, LockTarget, Locked,
    Request, RmaError, Ticket,
};
use crate::rma::Address;
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
    time::Delta,
};
use protocol::{
    transfer::{Queue, Terms, TransferKind},
    Time,
};
use wire::ids::NodeId;

/// Returns the time `delay` after `now`, in an engine's clock.
fn after(now: Time, delay: Delta) -> Time {
    Time(now.0.saturating_add(delay.as_nanos().max(0) as u64))
}

/// Reference to an engine, for submitters. It keeps neither the engine alive nor the port open.
/// After the engine was dropped, all calls fail with `Down`.
#[derive(Clone)]
pub struct Submitter(pub(super) Arc<Shared>);

impl Submitter {
    /// Submits a transfer. `completion` is called at its end. On an error, `completion` is dropped
    /// without a call. Does not sleep, and allocates no memory. Any context in which the last
    /// reference to `completion` may be dropped.
    ///
    /// # Errors
    ///
    /// `Invalid`: zero bytes, different lengths on both sides, an address range that wraps around,
    /// or local memory without the necessary access. `Busy`: no free slot for the transfer or its
    /// fragments, or the node's limit is reached. Slots become free when transfers of the engine
    /// become quiet. `Down`.
    pub fn submit(
        &self,
        request: &Request<'_>,
        completion: Arc<dyn Completion>,
    ) -> Result<Ticket, RmaError> {
        self.submit_within(request, None, completion)
    }

    /// Submits a transfer like [`Submitter::submit`], and limits the time until its commands are
    /// posted. The transfer times out if a command was not posted within `within`.
    ///
    /// # Errors
    ///
    /// The errors of [`Submitter::submit`].
    pub fn submit_within(
        &self,
        request: &Request<'_>,
        within: Option<Delta>,
        completion: Arc<dyn Completion>,
    ) -> Result<Ticket, RmaError> {
        let Request {
            to,
            direction,
            lists,
            confirm,
            timeout,
            context,
        } = *request;
        let kind = TransferKind {
            direction,
            notify: to.notify,
            confirm,
        };
        // Read before locking, so that the wait for the lock is included.
        let post_by = within.map(|within| after(self.0.now(), within));
        self.submit_with(&to, timeout, context, |inner, mut terms| {
            if !lists.is_allowed(&inner.requester, direction) {
                return Err((RmaError::Invalid, completion));
            }
            terms.translate = lists.translate();
            terms.post_by = post_by;
            let (local, remote) = (lists.local(), lists.remote());
            let taken = inner.table.submit(&terms, kind, local, remote, completion);
            taken.map_err(|(error, completion)| (error.into(), completion))
        })
    }

    /// Submits a fetch-compare-and-add on a lock of the peer's VPID: if the lock's value is not
    /// greater than `compare`, `add` is added to it. Operations on the same lock of a peer are
    /// serialized. [`Locked::of`] decodes the outcome. Otherwise like [`Submitter::submit`].
    ///
    /// ```
    /// use extoll_core::rma::{
    ///     transfer::{CallIn, Completion, Destination, RmaError, Submitter, Ticket},
    ///     LockTarget,
    /// };
    /// use kernel::{sync::Arc, time::Delta};
    ///
    /// /// Draws a ticket from the peer by adding 1 to its lock 3.
    /// fn ticket(
    ///     engine: &Submitter,
    ///     to: Destination,
    ///     completion: Arc<dyn Completion>,
    /// ) -> Result<Ticket, RmaError> {
    ///     let (lock, operands) = ((LockTarget::Completer, 3), (i32::MAX, 1));
    ///     let how = (Delta::from_secs(1), CallIn::Poll);
    ///     engine.submit_lock(to, lock, operands, how, completion)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// `Invalid` for a lock number of more than 24 bits, `Busy`, `Down`.
    pub fn submit_lock(
        &self,
        to: Destination,
        (at, number): (LockTarget, u32),
        (compare, add): (i32, i32),
        (timeout, context): (Delta, CallIn),
        completion: Arc<dyn Completion>,
    ) -> Result<Ticket, RmaError> {
        let lock = Lock {
            at,
            number,
            compare,
            add,
        };
        self.submit_with(&to, timeout, context, |inner, terms| {
            let taken = inner.table.submit_lock(&terms, lock, completion);
            taken.map_err(|(error, completion)| (error.into(), completion))
        })
    }

    fn submit_with(
        &self,
        to: &Destination,
        timeout: Delta,
        context: CallIn,
        submit: impl FnOnce(&mut Inner, Terms) -> Result<Ticket, (RmaError, Arc<dyn Completion>)>,
    ) -> Result<Ticket, RmaError> {
        let now = self.0.now();
        let terms = Terms {
            node: to.node,
            vpid: to.vpid,
            class: to.traffic_class,
            translate: false,
            deadline: after(now, timeout),
            post_by: None,
            queue: context.queue(),
        };
        let mut submit = Some(submit);
        let done = self.0.with(|inner| {
            // `Engine::drop` sets `closing` before it takes the lock.
            if self.0.closing.load(Relaxed) || !inner.requester.context().is_alive() {
                return None;
            }
            let submit = submit.take()?;
            let taken = submit(inner, terms);
            // The work item reports transfers that have ended already.
            let more = taken.is_ok() && inner.post(now) || inner.table.has_events(Queue::Direct);
            self.0.schedule(inner, now);
            Some((taken, more))
        });
        // Called without the lock, because this drops completions.
        let (taken, more) = done.flatten().ok_or(RmaError::Down)?;
        if more {
            self.0.enqueue_poll();
        }
        self.0.queue_calls(CallIn::Process);
        taken.map_err(|(error, _)| error)
    }

    /// Ends a transfer as `Cancelled`, unless it has ended. Returns whether it was cancelled. No
    /// further command is posted; commands in flight become late, see [the table](super). Any
    /// context.
    pub fn cancel(&self, ticket: Ticket) -> bool {
        let now = self.0.now();
        let cancelled = self.0.with(|inner| {
            let cancelled = inner.table.cancel(ticket, now);
            self.0.schedule(inner, now);
            cancelled
        });
        if cancelled == Some(true) {
            self.after_ends();
        }
        cancelled.unwrap_or(false)
    }

    /// Ends, as `PeerLost`, all transfers with any VPID of a node that were submitted before the
    /// call. This is for callers that know from another source that the peer died or was restarted.
    /// Commands in flight become late, see [the table](super). Any context.
    ///
    /// ```
    /// use extoll_core::rma::transfer::Submitter;
    /// use wire::ids::NodeId;
    ///
    /// /// The peer has sent a hello with a new incarnation stamp.
    /// fn restarted(engine: &Submitter, node: NodeId) {
    ///     engine.abort(node);
    ///     // Transfers with the new incarnation may be submitted at once.
    /// }
    /// ```
    pub fn abort(&self, node: NodeId) {
        let mut mark = None;
        let mut step = || {
            let now = self.0.now();
            self.0.with(|inner| {
                let mark = *mark.get_or_insert(inner.table.mark());
                let more = inner.table.abort(node, mark, now, BATCH);
                self.0.schedule(inner, now);
                more
            })
        };
        while step() == Some(true) {}
        self.after_ends();
    }

    /// Starts the work items after transfers have ended. Their completions are pending, and other
    /// transfers may have waited for them.
    fn after_ends(&self) {
        self.0.enqueue_poll();
        self.0.queue_calls(CallIn::Process);
    }

    /// Processes notifications that have arrived, and calls the owners and the listener that
    /// requested [`CallIn::Poll`] directly. This is for callers that cannot wait for the interrupt
    /// and the work item. Returns whether work remains. The caller must then call again, because
    /// the interrupt is not armed. Any context that those owners permit.
    #[must_use = "if there is more, no interrupt tells of it"]
    pub fn poll(&self) -> bool {
        let result = self.0.step();
        if result == StepResult::Dead {
            // The following steps require process context.
            self.0.enqueue_poll();
        }
        let more = self.0.call(CallIn::Poll);
        self.0.queue_calls(CallIn::Process);
        more || result == StepResult::More
    }

    /// Returns the counters, which docs/counters.md explains. Any context.
    ///
    /// ```
    /// use extoll_core::rma::transfer::Submitter;
    /// use kernel::{prelude::*, fmt};
    ///
    /// /// Writes a line to debugfs.
    /// fn show(engine: &Submitter, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    ///     let c = engine.counters();
    ///     let refused = c.refused_transfers + c.refused_fragments + c.refused_peer;
    ///     writeln!(f, "done {} refused {refused}", c.done)
    /// }
    /// ```
    pub fn counters(&self) -> Counters {
        let counters = self.0.with(|inner| *inner.table.counters());
        counters.unwrap_or_default()
    }

    /// Reads `len` bytes of the peer's memory. The transfer is done when the bytes are in local
    /// memory. May sleep, because it allocates the handle.
    ///
    /// ```
    /// use extoll_core::{
    ///     atu::Region,
    ///     rma::{transfer::{Destination, RmaError, Submitter}, Address},
    /// };
    /// use kernel::time::Delta;
    /// use wire::ids::Nla;
    ///
    /// /// Fetches a page, changes it with `f`, and writes it back.
    /// fn update(
    ///     engine: &Submitter,
    ///     at: Destination,
    ///     region: &Region,
    ///     remote: Nla,
    ///     f: impl FnOnce(),
    /// ) -> Result<(), RmaError> {
    ///     let page = Address::Region { region, offset: 0, remote };
    ///     let second = Delta::from_secs(1);
    ///     engine.get(at, page, 4096, second)?.wait()?;
    ///     f();
    ///     engine.put(at, page, 4096, second)?.wait()
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// `Invalid`, `Busy`, `NoMemory`, `Down`. The handle reports other errors.
    pub fn get(
        &self,
        to: Destination,
        address: Address<'_>,
        len: u64,
        timeout: Delta,
    ) -> Result<Handle, RmaError> {
        self.single(Direction::Get, to, address, len, timeout)
    }

    /// Writes `len` bytes to the peer's memory. The transfer is done when local memory was read and
    /// the data was sent. Errors at the peer are reported only to the peer. May sleep, because it
    /// allocates the handle.
    ///
    /// # Errors
    ///
    /// The errors of [`Submitter::get`].
    pub fn put(
        &self,
        to: Destination,
        address: Address<'_>,
        len: u64,
        timeout: Delta,
    ) -> Result<Handle, RmaError> {
        self.single(Direction::Put, to, address, len, timeout)
    }

    fn single(
        &self,
        direction: Direction,
        to: Destination,
        address: Address<'_>,
        len: u64,
        timeout: Delta,
    ) -> Result<Handle, RmaError> {
        let single = Single::new(address, len).ok_or(RmaError::Invalid)?;
        let request = Request {
            to,
            direction,
            lists: single.lists(),
            confirm: false,
            timeout,
            context: CallIn::Poll,
        };
        self.start(&request)
    }

    /// Submits a transfer for a caller that waits with the handle. `request.context` is ignored.
    /// May sleep, because it allocates the handle.
    ///
    /// # Errors
    ///
    /// The errors of [`Submitter::submit`], and `NoMemory`.
    pub fn start(&self, request: &Request<'_>) -> Result<Handle, RmaError> {
        let request = Request {
            context: CallIn::Poll,
            ..*request
        };
        let outcome = Outcome::new()?;
        let ticket = self.submit(&request, outcome.clone())?;
        Ok(Handle::new(outcome, self.clone(), ticket))
    }

    /// Executes a fetch-compare-and-add on lock `number` of the peer's VPID, see
    /// [`Submitter::submit_lock`]. Sleeps until the operation has ended.
    ///
    /// # Errors
    ///
    /// See [`RmaError`].
    pub fn lock(
        &self,
        to: Destination,
        at: LockTarget,
        number: u32,
        operands: (i32, i32),
        timeout: Delta,
    ) -> Result<Locked, RmaError> {
        let outcome = Outcome::new()?;
        let how = (timeout, CallIn::Poll);
        let completion = outcome.clone();
        let ticket = self.submit_lock(to, (at, number), operands, how, completion)?;
        let done: Done = Handle::new(outcome, self.clone(), ticket).done()?;
        Ok(Locked::of(&done))
    }
}
