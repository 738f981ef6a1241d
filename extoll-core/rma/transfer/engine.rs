// SPDX-License-Identifier: GPL-2.0-only

//! The engine: who runs the machine, when, and who is told.

use super::{
    handle::Outcome, lists::Single, Capacity, Completion, CallIn, Counters, Destination,
    Direction, Done, Handle, Listener, Lock, LockTarget, Locked, Quiet, Request, RmaError, Ticket,
    ABSORB,
};
use crate::{
    rma::{Address, Descriptor, Notification, Notifications, PageOptions, Requester, SendError},
    vpid::Client,
};
use core::ops::Deref;
use kernel::{
    impl_has_delayed_work, impl_has_work, new_delayed_work, new_spinlock_irq, new_work,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, SpinLockIrq,
    },
    time::{delay::fsleep, msecs_to_jiffies, Delta, Instant, Monotonic},
    workqueue::{DelayedWork, Work, WorkItem},
};
use kernel_ext::{sched::cond_resched, work};
use protocol::{
    transfer::{Event, Limits, Move, Port, Queue, Terms, Transfers, Unclaimed},
    Memory, Refused, Time,
};
use wire::ids::NodeId;

/// Notifications taken, and transfers ended, with the lock held once.
const BATCH: usize = 32;
/// Commands posted with the lock held once.
const POSTS: usize = 8;
/// So many times in a row; then others get their turn: a peer may notify faster than that is
/// handled.
const ROUNDS: usize = 32;
/// Owners told, and notifications handed on, in a row.
const CALLS: usize = 256;

/// Memory of the kernel. Getting it may sleep.
struct Kernel;

impl Memory for Kernel {
    type Array<T> = KVVec<T>;
    type Error = Error;

    fn array<T>(len: usize, mut make: impl FnMut(usize) -> T) -> Result<KVVec<T>> {
        let mut array = KVVec::with_capacity(len, GFP_KERNEL)?;
        for i in 0..len {
            array.push(make(i), GFP_KERNEL)?;
        }
        Ok(array)
    }
}

/// What an engine is made with.
pub struct Setup {
    /// Sizes of the tables: about 700 bytes per transfer, 24 per fragment, 80 per command.
    pub capacity: Capacity,
    /// Gets the notifications that no transfer waits for; without one they are counted and dropped.
    pub listener: Option<(Arc<dyn Listener>, CallIn)>,
    /// Notifications on their way to the listener.
    pub unclaimed: u16,
    /// Of these, of one node.
    pub unclaimed_per_node: u16,
}

impl Default for Setup {
    /// 512 transfers with 2,048 fragments, 512 commands in flight, no listener.
    fn default() -> Self {
        Self {
            capacity: Capacity {
                transfers: 512,
                fragments: 2048,
                commands: 512,
            },
            listener: None,
            unclaimed: 1024,
            unclaimed_per_node: 256,
        }
    }
}

/// What the lock protects.
struct Inner {
    requester: Requester,
    notifications: Notifications,
    table: Transfers<Kernel, Arc<dyn Completion>>,
    /// Gets what no transfer waits for. Here, as it may have a [`Submitter`].
    listener: Option<(Arc<dyn Listener>, CallIn)>,
    unclaimed: Unclaimed<Kernel>,
    /// When the item for deadlines runs, if it is known.
    scheduled: Option<Time>,
}

/// Work of an engine.
#[pin_data]
struct Shared {
    /// Ticks are nanoseconds since then.
    epoch: Instant<Monotonic>,
    /// `None` once the engine was dropped.
    #[pin]
    inner: SpinLockIrq<Option<Inner>>,
    closing: AtomicFlag,
    #[pin]
    poll: Work<Shared, 0>,
    #[pin]
    deadline: DelayedWork<Shared, 1>,
    #[pin]
    tell: Work<Shared, 2>,
}

impl_has_work! {
    impl HasWork<Shared, 0> for Shared { self.poll }
    impl HasWork<Shared, 2> for Shared { self.tell }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Shared, 1> for Shared { self.deadline }
}

impl WorkItem<0> for Shared {
    type Pointer = Arc<Shared>;

    fn run(this: Arc<Shared>) {
        this.run();
    }
}

impl WorkItem<1> for Shared {
    type Pointer = Arc<Shared>;

    fn run(this: Arc<Shared>) {
        this.with(|inner| inner.scheduled = None);
        this.run();
    }
}

impl WorkItem<2> for Shared {
    type Pointer = Arc<Shared>;

    fn run(this: Arc<Shared>) {
        if this.call(CallIn::Process) {
            this.enqueue_tell();
        }
    }
}

struct Kick(Arc<Shared>);

impl Client for Kick {
    fn interrupt(&self) {
        self.0.enqueue_poll();
    }

    fn writable(&self) {
        self.0.enqueue_poll();
    }

    fn down(&self) {
        self.0.enqueue_poll();
    }
}

/// Posts the machine's commands.
struct Poster<'a>(&'a Requester);

impl Port for Poster<'_> {
    fn post(&mut self, page: PageOptions, descriptor: &Descriptor) -> Result<(), Refused> {
        match self.0.post(page, descriptor) {
            Ok(()) => Ok(()),
            Err(SendError::Full | SendError::Retry) => Err(Refused::Later),
            Err(SendError::Down | SendError::Invalid) => Err(Refused::Never),
        }
    }
}

/// What one step found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// There is more to do.
    More,
    /// The next interrupt, or deadline, tells when there is.
    Nothing,
    /// The NIC is gone.
    Dead,
}

impl CallIn {
    fn queue(self) -> Queue {
        match self {
            CallIn::Process => Queue::Deferred,
            CallIn::Poll => Queue::Direct,
        }
    }
}

impl Inner {
    fn post(&mut self, now: Time) -> bool {
        self.table
            .post(&mut Poster(&self.requester), now, POSTS)
            .more
    }

    /// Takes notifications, ends what is overdue, posts.
    fn step(&mut self, now: Time) -> Found {
        if !self.requester.context().is_alive() {
            return Found::Dead;
        }
        let Self {
            notifications,
            table,
            listener,
            unclaimed,
            ..
        } = self;
        let taken = notifications.poll(BATCH, |n| {
            if !table.take(n) && listener.is_some() {
                // What does not fit is counted.
                unclaimed.push(n);
            }
        });
        let overdue = table.expire(now, BATCH);
        let more = self.post(now);
        match taken == BATCH || overdue || more || self.notifications.rearm() {
            true => Found::More,
            false => Found::Nothing,
        }
    }
}

impl Inner {
    fn listens_in(&self, context: CallIn) -> bool {
        self.listener.as_ref().is_some_and(|(_, c)| *c == context)
    }

    /// The next notification for the listener, if it is called in this context.
    fn hear(&mut self, context: CallIn) -> Option<(Arc<dyn Listener>, Notification)> {
        let (listener, c) = self.listener.as_ref()?;
        if *c != context {
            return None;
        }
        let listener = listener.clone();
        Some((listener, self.unclaimed.pop()?))
    }
}

impl Shared {
    /// Calls `f` with the lock held; `None` once the engine was dropped.
    fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        let mut guard = self.inner.lock();
        Option::as_mut(&mut *guard).map(f)
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(0))
    }

    fn enqueue_poll(self: &Arc<Self>) {
        if !self.closing.load(Relaxed) {
            // Queued already is fine.
            let _ = work::enqueue::<_, 0>(self.clone());
        }
    }

    fn enqueue_tell(self: &Arc<Self>) {
        if !self.closing.load(Relaxed) {
            let _ = work::enqueue::<_, 2>(self.clone());
        }
    }

    /// Has the item for deadlines run when the next one is due. With the lock held.
    fn schedule(self: &Arc<Self>, inner: &mut Inner, now: Time) {
        let Some(next) = inner.table.next_deadline() else {
            return;
        };
        // An earlier look does no harm.
        if self.closing.load(Relaxed) || inner.scheduled.is_some_and(|at| at <= next) {
            return;
        }
        inner.scheduled = Some(next);
        let ms = next.since(now) / 1_000_000 + 1;
        let _ = work::cancel_delayed::<_, 1>(self);
        let delay = msecs_to_jiffies(ms.min(3_600_000) as u32);
        let _ = work::enqueue_delayed::<_, 1>(self.clone(), delay);
    }

    /// One step, in any context.
    fn step(self: &Arc<Self>) -> Found {
        let now = self.now();
        let found = self.with(|inner| {
            let found = inner.step(now);
            self.schedule(inner, now);
            found
        });
        found.unwrap_or(Found::Nothing)
    }

    /// The work item for notifications: until the queue is empty and armed, or others have to get
    /// their turn.
    fn run(self: &Arc<Self>) {
        for _ in 0..ROUNDS {
            let found = self.step();
            if found == Found::Dead {
                self.end();
            }
            let more = self.call(CallIn::Poll);
            self.look_after(CallIn::Process);
            if found != Found::More && !more {
                return;
            }
            cond_resched();
        }
        self.enqueue_poll();
    }

    /// The NIC is gone.
    fn end(self: &Arc<Self>) {
        let Some(requester) = self.with(|inner| inner.requester.clone()) else {
            return;
        };
        // Before owners believe that their memory is out of its reach.
        requester.context().isolate();
        drop(requester);
        self.close(Quiet::Settled);
    }

    /// Ends everything.
    fn close(&self, quiet: Quiet) {
        let step = |inner: &mut Inner| inner.table.close(quiet, self.now(), BATCH);
        while self.with(step) == Some(true) {}
    }

    /// Has the item run that calls owners and the listener in this context, if there is something
    /// for it.
    fn look_after(self: &Arc<Self>, context: CallIn) {
        let waits = self.with(|inner| {
            inner.table.has_events(context.queue())
                || inner.listens_in(context) && inner.unclaimed.is_ready()
        });
        if waits == Some(true) {
            match context {
                CallIn::Process => self.enqueue_tell(),
                CallIn::Poll => self.enqueue_poll(),
            }
        }
    }

    /// Calls owners and the listener that want to be called in this context. True if there is more.
    fn call(&self, context: CallIn) -> bool {
        let owners = self.call_owners(context.queue(), CALLS);
        let listener = self.call_listener(context, CALLS);
        owners || listener
    }

    fn call_owners(&self, queue: Queue, most: usize) -> bool {
        for _ in 0..most {
            let event = self.with(|inner| inner.table.next_event(queue));
            let Some(event) = event.flatten() else {
                return false;
            };
            let ticket = event.ticket;
            if !tell(event) {
                self.with(|inner| inner.table.told(ticket));
            }
        }
        true
    }

    fn call_listener(&self, context: CallIn, most: usize) -> bool {
        for _ in 0..most {
            let next = self.with(|inner| inner.hear(context));
            let Some((listener, n)) = next.flatten() else {
                return false;
            };
            listener.notified(&n);
            self.with(|inner| inner.unclaimed.taken());
        }
        true
    }
}

/// Tells an owner; true if that was the last that he hears.
fn tell(event: Event<Arc<dyn Completion>>) -> bool {
    if let Some(outcome) = event.outcome {
        event.token.done(outcome.map_err(RmaError::from));
    }
    match event.quiet {
        Some(how) => {
            event.token.quiet(how);
            true
        }
        None => false,
    }
}

/// A reference to an engine, to be given to whoever submits. It neither keeps the port open nor the
/// engine: when that was dropped everything is refused with `Down`.
#[derive(Clone)]
pub struct Submitter(Arc<Shared>);

/// A port used for transfers, and its owner: all of [`Submitter`], by several threads at once.
///
/// Drop ends all transfers with `Down` and calls the completions that were not called yet, whatever
/// context they asked for, closes the port, and may sleep. It waits for completions that are being
/// called, so it must not happen in one.
pub struct Engine {
    requester: Requester,
    submitter: Submitter,
}

impl Deref for Engine {
    type Target = Submitter;

    fn deref(&self) -> &Submitter {
        &self.submitter
    }
}

impl Engine {
    /// Takes a port, which must not have a client, with the default [`Setup`]. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(requester: Requester, notifications: Notifications) -> Result<Self> {
        Self::with(requester, notifications, Setup::default())
    }

    /// Takes a port, which must not have a client. May sleep; afterwards no memory is needed.
    ///
    /// ```
    /// # use extoll_core::rma::{self, transfer::{CallIn, Listener}, DEFAULT_QUEUE_BYTES};
    /// use extoll_core::{nic::Nic, rma::transfer::{Capacity, Engine, Setup}};
    /// use kernel::{prelude::*, sync::Arc};
    ///
    /// /// For 256 transfers of up to 257 fragments on either side at a time.
    /// fn engine(
    ///     port: (rma::Requester, rma::Notifications),
    ///     target: Arc<dyn Listener>,
    /// ) -> Result<Engine> {
    ///     let setup = Setup {
    ///         capacity: Capacity { transfers: 256, fragments: 256 * 2 * 257, commands: 512 },
    ///         listener: Some((target, CallIn::Process)),
    ///         ..Setup::default()
    ///     };
    ///     Engine::with(port.0, port.1, setup)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn with(requester: Requester, notifications: Notifications, setup: Setup) -> Result<Self> {
        let Setup {
            capacity,
            listener,
            unclaimed,
            unclaimed_per_node,
        } = setup;
        let absorb = u64::try_from(ABSORB.as_nanos()).unwrap_or(u64::MAX);
        let limits = Limits::new(capacity.transfers.div_ceil(2), absorb);
        let inner = Inner {
            requester: requester.clone(),
            notifications,
            table: Transfers::new(&capacity, &limits)?,
            listener,
            unclaimed: Unclaimed::new(unclaimed, unclaimed_per_node)?,
            scheduled: None,
        };
        let shared = Arc::pin_init(
            pin_init!(Shared {
                epoch: Instant::now(),
                inner <- new_spinlock_irq!(Some(inner), "extoll_rma_engine"),
                closing: AtomicFlag::new(false),
                poll <- new_work!("extoll_rma_engine"),
                deadline <- new_delayed_work!("extoll_rma_deadline"),
                tell <- new_work!("extoll_rma_tell"),
            }),
            GFP_KERNEL,
        )?;
        let kick = Arc::new(Kick(shared.clone()), GFP_KERNEL)?;
        requester.attach(kick);
        // What is there already, and arms.
        shared.enqueue_poll();
        Ok(Self {
            requester,
            submitter: Submitter(shared),
        })
    }

    /// The port, e.g. to register memory for its VPID.
    pub fn requester(&self) -> &Requester {
        &self.requester
    }

    /// A reference for others.
    pub fn submitter(&self) -> Submitter {
        self.submitter.clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let shared = &self.submitter.0;
        shared.closing.store(true, Relaxed);
        self.requester.detach();
        // Nobody starts them any more but themselves, and they look whether the engine is closing.
        work::cancel_sync::<Shared, 0>(shared);
        work::cancel_sync::<Shared, 2>(shared);
        work::cancel_delayed_sync::<Shared, 1>(shared);
        shared.close(Quiet::Closed);
        loop {
            let direct = shared.call_owners(Queue::Direct, CALLS);
            if !shared.call_owners(Queue::Deferred, CALLS) && !direct {
                // Somebody who polls may be calling one.
                if shared.with(|inner| inner.table.is_empty()) != Some(false) {
                    break;
                }
                fsleep(Delta::from_millis(1));
            }
            cond_resched();
        }
        // One may have been started just before they were told not to.
        work::cancel_sync::<Shared, 0>(shared);
        work::cancel_sync::<Shared, 2>(shared);
        // The port is closed with its last reference, which `self` has.
        let inner = Option::take(&mut *shared.inner.lock());
        drop(inner);
    }
}

impl Submitter {
    /// Takes a transfer. `completion` hears of its end; without success it is dropped and hears
    /// nothing. Neither sleeps nor gets memory; any context, apart from the drop of the completion,
    /// if the reference is the last one.
    ///
    /// # Errors
    ///
    /// `Invalid`: not the same number of bytes on both sides, or none, an address range that wraps
    /// around, or local memory that may not be used so. `Busy`: no place for it, its fragments, or
    /// one more of this peer; some is free when a transfer of the engine becomes quiet. `Down`.
    pub fn submit(
        &self,
        request: &Request<'_>,
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
        self.take(&to, timeout, context, |inner, mut terms| {
            if !lists.is_allowed(inner.requester.vpid(), direction) {
                return Err((RmaError::Invalid, completion));
            }
            terms.translate = lists.translate();
            let (local, remote) = (lists.local(), lists.remote());
            let taken = inner.table.submit(&terms, what, local, remote, completion);
            taken.map_err(|(why, completion)| (why.into(), completion))
        })
    }

    /// Takes a fetch-compare-and-add on a lock of the peer's VPID: if its value is at most
    /// `compare`, `add` is added. Operations on one lock of a peer are made one after the other. As
    /// [`Submitter::submit`]; [`Locked::of`] reads the outcome.
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
            deadline: Time(now.0.saturating_add(timeout.as_nanos().max(0) as u64)),
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
    /// interrupt and the work item. True if there is more. Any context that those owners allow for.
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

    /// What happened so far. Any context.
    pub fn counters(&self) -> Counters {
        let counters = self.0.with(|inner| *inner.table.counters());
        counters.unwrap_or_default()
    }

    /// Notifications for the listener that did not fit. Any context.
    pub fn unclaimed_dropped(&self) -> u64 {
        let dropped = self.0.with(|inner| inner.unclaimed.dropped());
        dropped.unwrap_or(0)
    }

    /// Transfers under way, late, or with something to tell their owner, and commands in flight.
    /// Any context.
    pub fn under_way(&self) -> (usize, usize) {
        let numbers = self
            .0
            .with(|inner| (inner.table.len(), inner.table.in_flight()));
        numbers.unwrap_or((0, 0))
    }

    /// Reads `len` bytes of the peer's memory; done when they are in local memory. May sleep, as it
    /// gets memory for the handle.
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
        self.single(Direction::Get, to, address, len, timeout, false)
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
        self.single(Direction::Put, to, address, len, timeout, false)
    }

    /// As [`Submitter::put`], but done when the peer's completer has processed all of it, shown by
    /// a lock operation behind the data that changes nothing. A dead peer is a `TimedOut`.
    ///
    /// # Errors
    ///
    /// As [`Submitter::get`].
    pub fn put_confirmed(
        &self,
        to: Destination,
        address: Address<'_>,
        len: u64,
        timeout: Delta,
    ) -> Result<Handle, RmaError> {
        self.single(Direction::Put, to, address, len, timeout, true)
    }

    fn single(
        &self,
        direction: Direction,
        to: Destination,
        address: Address<'_>,
        len: u64,
        timeout: Delta,
        confirm: bool,
    ) -> Result<Handle, RmaError> {
        let single = Single::new(address, len).ok_or(RmaError::Invalid)?;
        let request = Request {
            to,
            direction,
            lists: single.lists(),
            confirm,
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
