// SPDX-License-Identifier: GPL-2.0-only

//! Execution of an engine: the work items and the softirq that run the state machine, and the calls
//! of completions and listeners.
//!
//! The spinlock `inner`, which disables interrupts, protects the state. It is released after each
//! batch and before each call.

use super::{CallIn, Completion, Listener, Quiet, RmaError};
use crate::{
    memory::KernelMemory,
    rma::{Descriptor, Notification, Notifications, PageOptions, Requester, SendError},
    vpid::Client,
};
use kernel::{
    impl_has_delayed_work, impl_has_work,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, SpinLockIrq,
    },
    time::{msecs_to_jiffies, Instant, Monotonic},
    workqueue::{DelayedWork, Work, WorkItem},
};
use kernel_ext::{
    sched::cond_resched,
    tasklet::{Soft, Tasklet},
    work,
};
use protocol::{
    transfer::{Event, Port, Queue, Transfers, Unclaimed},
    Time, TransportError,
};

/// Maximum number of notifications processed, and of transfers ended, while the lock is held once.
pub(super) const BATCH: usize = 32;
/// Maximum number of commands posted while the lock is held once.
const POSTS: usize = 8;
/// Maximum number of passes of the work item before it requeues itself. A peer may send
/// notifications faster than the engine processes them.
const ROUNDS: usize = 32;
/// Maximum number of completions, and of notifications for the listener, that are called in a row.
pub(super) const CALLS: usize = 256;

/// State that the lock protects.
pub(super) struct Inner {
    pub(super) requester: Requester,
    pub(super) notifications: Notifications,
    pub(super) table: Transfers<KernelMemory, Arc<dyn Completion>>,
    /// Receiver of notifications that belong to no transfer. Dropped with the engine, because it
    /// may contain a [`Submitter`].
    pub(super) listener: Option<(Arc<dyn Listener>, CallIn)>,
    pub(super) unclaimed: Unclaimed<KernelMemory>,
    /// Time at which the work item for deadlines will run, if known.
    pub(super) scheduled: Option<Time>,
}

/// Work items and state of an engine.
#[pin_data]
pub(super) struct Shared {
    /// Origin of the engine's clock, which counts nanoseconds.
    pub(super) epoch: Instant<Monotonic>,
    /// State of the engine; `None` after the engine was dropped.
    #[pin]
    pub(super) inner: SpinLockIrq<Option<Inner>>,
    pub(super) closing: AtomicFlag,
    #[pin]
    pub(super) poll: Work<Shared, 0>,
    #[pin]
    pub(super) deadline: DelayedWork<Shared, 1>,
    #[pin]
    pub(super) calls: Work<Shared, 2>,
}

impl_has_work! {
    impl HasWork<Shared, 0> for Shared { self.poll }
    impl HasWork<Shared, 2> for Shared { self.calls }
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
            this.enqueue_calls();
        }
    }
}

pub(super) struct WorkClient(pub(super) Arc<Shared>);

impl Client for WorkClient {
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

/// Tasklet that processes notifications in a softirq.
struct SoftPoll(Arc<Shared>);

impl Soft for SoftPoll {
    fn run(tasklet: &Tasklet<Self>) {
        if tasklet.0.run_soft() && !tasklet.0.closing.load(Relaxed) {
            tasklet.schedule();
        }
    }
}

/// Client of the port that schedules the softirq. Otherwise like [`WorkClient`]. Drop waits for the
/// softirq.
pub(super) struct SoftClient {
    shared: Arc<Shared>,
    poll: Arc<Tasklet<SoftPoll>>,
}

impl SoftClient {
    /// Allocates the tasklet. May sleep.
    pub(super) fn new(shared: &Arc<Shared>) -> Result<Self> {
        let poll = Tasklet::new(Ok::<_, Error>(SoftPoll(shared.clone())));
        Ok(Self {
            shared: shared.clone(),
            poll: Arc::pin_init(poll, GFP_KERNEL)?,
        })
    }
}

impl Client for SoftClient {
    fn interrupt(&self) {
        self.poll.schedule();
    }

    fn writable(&self) {
        self.poll.schedule();
    }

    fn down(&self) {
        self.shared.enqueue_poll();
    }
}

/// Port through which the state machine posts commands.
struct Poster<'a>(&'a Requester);

impl Port for Poster<'_> {
    fn post(&mut self, page: PageOptions, descriptor: &Descriptor) -> Result<(), TransportError> {
        match self.0.post(page, descriptor) {
            Ok(()) => Ok(()),
            Err(SendError::Full | SendError::Retry) => Err(TransportError::Later),
            Err(SendError::Down | SendError::Invalid) => Err(TransportError::Never),
        }
    }
}

/// Result of [`Shared::step`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StepResult {
    /// Work remains, so another step must follow.
    More,
    /// No work remains; an interrupt or a deadline starts the next step.
    Nothing,
    /// The NIC was removed.
    Dead,
}

impl CallIn {
    pub(super) fn queue(self) -> Queue {
        match self {
            CallIn::Process => Queue::Deferred,
            CallIn::Poll => Queue::Direct,
        }
    }
}

impl Inner {
    pub(super) fn post(&mut self, now: Time) -> bool {
        self.table
            .post(&mut Poster(&self.requester), now, POSTS)
            .more
    }

    /// Processes notifications, ends overdue transfers, and posts commands.
    fn step(&mut self, now: Time) -> StepResult {
        if !self.requester.context().is_alive() {
            return StepResult::Dead;
        }
        let Self {
            notifications,
            table,
            listener,
            unclaimed,
            ..
        } = self;
        let taken = notifications.poll(BATCH, |n| {
            if !table.process_notification(n) && listener.is_some() {
                // The queue counts notifications that do not fit.
                unclaimed.push(n);
            }
        });
        let overdue = table.expire(now, BATCH);
        let more = self.post(now);
        if taken == BATCH || overdue || more || self.notifications.rearm() {
            StepResult::More
        } else {
            StepResult::Nothing
        }
    }
}

impl Inner {
    fn listens_in(&self, context: CallIn) -> bool {
        self.listener.as_ref().is_some_and(|(_, c)| *c == context)
    }

    /// Returns whether no call is running or pending.
    pub(super) fn is_idle(&self) -> bool {
        self.table.is_empty() && !self.unclaimed.is_busy()
    }

    /// Returns the next notification for the listener, if the listener requested this context.
    fn next_notification(&mut self, context: CallIn) -> Option<(Arc<dyn Listener>, Notification)> {
        let (listener, c) = self.listener.as_ref()?;
        if *c != context {
            return None;
        }
        let listener = listener.clone();
        Some((listener, self.unclaimed.pop()?))
    }
}

impl Shared {
    /// Calls `f` with the lock held; returns `None` after the engine was dropped.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        let mut guard = self.inner.lock();
        Option::as_mut(&mut *guard).map(f)
    }

    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(0))
    }

    pub(super) fn enqueue_poll(self: &Arc<Self>) {
        if !self.closing.load(Relaxed) {
            // The work item may be queued already.
            let _ = work::enqueue::<_, 0>(self.clone());
        }
    }

    fn enqueue_calls(self: &Arc<Self>) {
        if !self.closing.load(Relaxed) {
            let _ = work::enqueue::<_, 2>(self.clone());
        }
    }

    /// Queues the work item for the next deadline. Called with the lock held.
    pub(super) fn schedule(self: &Arc<Self>, inner: &mut Inner, now: Time) {
        let Some(next) = inner.table.next_deadline() else {
            return;
        };
        // An earlier run of the work item does no harm.
        if self.closing.load(Relaxed) || inner.scheduled.is_some_and(|at| at <= next) {
            return;
        }
        inner.scheduled = Some(next);
        let ms = next.since(now) / 1_000_000 + 1;
        let _ = work::cancel_delayed::<_, 1>(self);
        let delay = msecs_to_jiffies(ms.min(3_600_000) as u32);
        let _ = work::enqueue_delayed::<_, 1>(self.clone(), delay);
    }

    /// Runs one step. Any context.
    pub(super) fn step(self: &Arc<Self>) -> StepResult {
        let now = self.now();
        let result = self.with(|inner| {
            let result = inner.step(now);
            self.schedule(inner, now);
            result
        });
        result.unwrap_or(StepResult::Nothing)
    }

    /// Runs the work item for notifications until the queue is empty and armed, or until [`ROUNDS`]
    /// passes are done.
    fn run(self: &Arc<Self>) {
        for _ in 0..ROUNDS {
            let result = self.step();
            if result == StepResult::Dead {
                self.end();
            }
            let more = self.call(CallIn::Poll);
            self.queue_calls(CallIn::Process);
            if result != StepResult::More && !more {
                return;
            }
            cond_resched();
        }
        self.enqueue_poll();
    }

    /// Runs one step in a softirq. Returns whether work remains. May run concurrently with the work
    /// item, because both arm the queue when it is empty.
    fn run_soft(self: &Arc<Self>) -> bool {
        let result = self.step();
        if result == StepResult::Dead {
            // The following steps may sleep.
            self.enqueue_poll();
            return false;
        }
        let more = self.call_some(CallIn::Poll, BATCH);
        self.queue_calls(CallIn::Process);
        result == StepResult::More || more
    }

    /// Ends all transfers because the NIC was removed.
    fn end(self: &Arc<Self>) {
        let Some(requester) = self.with(|inner| inner.requester.clone()) else {
            return;
        };
        // The NIC must be cut off from memory before owners are notified that their memory is safe.
        requester.context().isolate();
        drop(requester);
        self.close(Quiet::Settled);
    }

    /// Ends all transfers and reports `quiet` as the way in which they became quiet.
    pub(super) fn close(&self, quiet: Quiet) {
        let step = |inner: &mut Inner| inner.table.close(quiet, self.now(), BATCH);
        while self.with(step) == Some(true) {}
    }

    /// Queues the work item that calls the owners and the listener of a context, if calls are
    /// pending.
    pub(super) fn queue_calls(self: &Arc<Self>, context: CallIn) {
        let waits = self.with(|inner| {
            inner.table.has_events(context.queue())
                || inner.listens_in(context) && inner.unclaimed.is_ready()
        });
        if waits == Some(true) {
            match context {
                CallIn::Process => self.enqueue_calls(),
                CallIn::Poll => self.enqueue_poll(),
            }
        }
    }

    /// Calls the owners and the listener that requested this context. Returns whether calls remain.
    pub(super) fn call(&self, context: CallIn) -> bool {
        self.call_some(context, CALLS)
    }

    fn call_some(&self, context: CallIn, most: usize) -> bool {
        let owners = self.call_owners(context.queue(), most);
        let listener = self.call_listener(context, most);
        owners || listener
    }

    pub(super) fn call_owners(&self, queue: Queue, most: usize) -> bool {
        for _ in 0..most {
            let event = self.with(|inner| inner.table.next_event(queue));
            let Some(event) = event.flatten() else {
                return false;
            };
            let ticket = event.ticket;
            if !complete(event) {
                self.with(|inner| inner.table.report_done(ticket));
            }
        }
        true
    }

    fn call_listener(&self, context: CallIn, most: usize) -> bool {
        for _ in 0..most {
            // `Engine::drop` sets `closing`, then takes the lock and waits for running calls.
            let next = self.with(|inner| {
                if self.closing.load(Relaxed) {
                    None
                } else {
                    inner.next_notification(context)
                }
            });
            let Some((listener, n)) = next.flatten() else {
                return false;
            };
            listener.notified(&n);
            self.with(|inner| inner.unclaimed.processed());
        }
        true
    }
}

/// Calls a completion. Returns whether this was its last call.
fn complete(event: Event<Arc<dyn Completion>>) -> bool {
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
