// SPDX-License-Identifier: GPL-2.0-only

//! What is asked of an engine.

use super::{
    handle::Outcome,
    lists::Single,
    run::{Found, Inner, Shared, BATCH},
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
    transfer::{Move, Queue, Terms},
    Time,
};
use wire::ids::NodeId;

/// A time in the clock of an engine.
fn after(now: Time, delay: Delta) -> Time {
    Time(now.0.saturating_add(delay.as_nanos().max(0) as u64))
}

/// A reference to an engine, to be given to whoever submits. It neither keeps the port open nor the
/// engine: when that was dropped everything is refused with `Down`.
#[derive(Clone)]
pub struct Submitter(pub(super) Arc<Shared>);

impl Submitter {
    /// Takes a transfer. `completion` hears of its end; without success it is dropped and hears
    /// nothing. Neither sleeps nor gets memory; any context, apart from the drop of the completion,
    /// if the reference is the last one.
    ///
    /// # Errors
    ///
    /// `Invalid`: not the same number of bytes on both sides, or none, an address range that wraps
    /// around, or local memory that may not be used so. `Busy`: no place for it, its fragments, or
    /// one more of this node; some is free when a transfer of the engine becomes quiet. `Down`.
    pub fn submit(
        &self,
        request: &Request<'_>,
        completion: Arc<dyn Completion>,
    ) -> Result<Ticket, RmaError> {
        self.submit_within(request, None, completion)
    }

    /// As [`Submitter::submit`] for a transfer whose commands may not be posted later than `within`
    /// from now: what waits for room until then times out.
    ///
    /// # Errors
    ///
    /// As [`Submitter::submit`].
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
        let what = Move {
            direction,
            tell: to.tell,
            confirm,
        };
        // Not from when the lock was free.
        let post_by = within.map(|within| after(self.0.now(), within));
        self.take(&to, timeout, context, |inner, mut terms| {
            if !lists.is_allowed(&inner.requester, direction) {
                return Err((RmaError::Invalid, completion));
            }
            terms.translate = lists.translate();
            terms.post_by = post_by;
            let (local, remote) = (lists.local(), lists.remote());
            let taken = inner.table.submit(&terms, what, local, remote, completion);
            taken.map_err(|(why, completion)| (why.into(), completion))
        })
    }

    /// Takes a fetch-compare-and-add on a lock of the peer's VPID: if its value is at most
    /// `compare`, `add` is added. Operations on one lock of a peer are made one after the other. As
    /// [`Submitter::submit`]; [`Locked::of`] reads the outcome.
    ///
    /// ```
    /// use extoll_core::rma::{
    ///     transfer::{callback, CallIn, Destination, Locked, RmaError, Submitter},
    ///     LockTarget,
    /// };
    /// use kernel::{prelude::*, time::Delta};
    ///
    /// /// Takes a ticket of the peer: counts its lock 3 up.
    /// fn ticket(engine: &Submitter, to: Destination) -> Result<(), RmaError> {
    ///     let told = callback((), |outcome| match outcome {
    ///         Ok(done) => pr_info!("ticket {}\n", Locked::of(&done).value),
    ///         Err(e) => pr_info!("no ticket: {e:?}\n"),
    ///     })?;
    ///     let (lock, operands) = ((LockTarget::Completer, 3), (i32::MAX, 1));
    ///     let how = (Delta::from_secs(1), CallIn::Poll);
    ///     engine.submit_lock(to, lock, operands, how, told).map(drop)
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
        self.take(&to, timeout, context, |inner, terms| {
            let taken = inner.table.submit_lock(&terms, lock, completion);
            taken.map_err(|(why, completion)| (why.into(), completion))
        })
    }

    fn take(
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
            // Whoever closes it takes the lock afterwards.
            if self.0.closing.load(Relaxed) || !inner.requester.context().is_alive() {
                return None;
            }
            let submit = submit.take()?;
            let taken = submit(inner, terms);
            // What is over already is told by the work item.
            let more = taken.is_ok() && inner.post(now) || inner.table.has_events(Queue::Direct);
            self.0.schedule(inner, now);
            Some((taken, more))
        });
        // Without the lock, as they drop the completion.
        let (taken, more) = done.flatten().ok_or(RmaError::Down)?;
        if more {
            self.0.enqueue_poll();
        }
        self.0.look_after(CallIn::Process);
        taken.map_err(|(why, _)| why)
    }

    /// Ends a transfer as `Cancelled`, unless it has ended: true if so. No further command is
    /// posted; those on their way are late, see [the table](super). Any context.
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

    /// Ends all transfers with a node, on any VPID, as `PeerLost`: those that were submitted before
    /// the call. For whoever learns in another way that the peer died, or was started again. What
    /// is on its way is late, see [the table](super). Any context.
    ///
    /// ```
    /// use extoll_core::rma::transfer::Submitter;
    /// use wire::ids::NodeId;
    ///
    /// /// The peer has said hello with another incarnation stamp than the one known.
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

    /// Others may have waited for what ended, and owners want to know.
    fn after_ends(&self) {
        self.0.enqueue_poll();
        self.0.look_after(CallIn::Process);
    }

    /// Handles what has arrived, and calls owners (and the listener) that want to be called in
    /// [`CallIn::Poll`] on the caller's stack: for callers that have no time to wait for the
    /// interrupt and the work item. True if there is more: the interrupt is off then, so call again.
    /// Any context that those owners allow for.
    #[must_use = "if there is more, no interrupt tells of it"]
    pub fn poll(&self) -> bool {
        let found = self.0.step();
        if found == Found::Dead {
            // Process context is needed.
            self.0.enqueue_poll();
        }
        let more = self.0.call(CallIn::Poll);
        self.0.look_after(CallIn::Process);
        more || found == Found::More
    }

    /// What happened so far; docs/counters.md has the meaning of each. Any context.
    ///
    /// ```
    /// use extoll_core::rma::transfer::Submitter;
    /// use kernel::{prelude::*, fmt};
    ///
    /// /// A line for debugfs.
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

    /// Reads `len` bytes of the peer's memory; done when they are in local memory. May sleep, as it
    /// gets memory for the handle.
    ///
    /// ```
    /// use extoll_core::{
    ///     atu::Region,
    ///     rma::{transfer::{Destination, RmaError, Submitter}, Address},
    /// };
    /// use kernel::time::Delta;
    /// use wire::ids::Nla;
    ///
    /// /// Fetches a page, changes it by `f`, and takes it back.
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
    /// `Invalid`, `Busy`, `NoMemory`, `Down`; the others by the handle.
    pub fn get(
        &self,
        to: Destination,
        address: Address<'_>,
        len: u64,
        timeout: Delta,
    ) -> Result<Handle, RmaError> {
        self.single(Direction::Get, to, address, len, timeout)
    }

    /// Writes `len` bytes to the peer's memory; done when local memory has been read and the data
    /// sent. Only the peer learns of an error there. May sleep, as it gets memory for the handle.
    ///
    /// # Errors
    ///
    /// As [`Submitter::get`].
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

    /// Takes a transfer for somebody who waits. The request's context does not matter. May sleep,
    /// as it gets memory for the handle.
    ///
    /// # Errors
    ///
    /// As [`Submitter::submit`], and `NoMemory`.
    pub fn start(&self, request: &Request<'_>) -> Result<Handle, RmaError> {
        let request = Request {
            context: CallIn::Poll,
            ..*request
        };
        let outcome = Outcome::new()?;
        let ticket = self.submit(&request, outcome.clone())?;
        Ok(Handle::new(outcome, self.clone(), ticket))
    }

    /// Fetch-compare-and-add on lock `number` of the peer's VPID, see [`Submitter::submit_lock`].
    /// Sleeps until the outcome is there.
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
        let told = outcome.clone();
        let ticket = self.submit_lock(to, (at, number), operands, how, told)?;
        let done: Done = Handle::new(outcome, self.clone(), ticket).done()?;
        Ok(Locked::of(&done))
    }
}
