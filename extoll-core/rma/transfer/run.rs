// SPDX-License-Identifier: GPL-2.0-only

//! Who runs the machine, when, and who is told.

use super::{CallIn, Completion, Listener, Quiet, RmaError};
use crate::{
    machine::Kernel,
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
    Refused, Time,
};

/// Notifications taken, and transfers ended, with the lock held once.
pub(super) const BATCH: usize = 32;
/// Commands posted with the lock held once.
const POSTS: usize = 8;
/// So many times in a row; then others get their turn: a peer may notify faster than that is
/// handled.
const ROUNDS: usize = 32;
/// Owners told, and notifications handed on, in a row.
pub(super) const CALLS: usize = 256;

/// What the lock protects.
pub(super) struct Inner {
    pub(super) requester: Requester,
    pub(super) notifications: Notifications,
    pub(super) table: Transfers<Kernel, Arc<dyn Completion>>,
    /// Gets what no transfer waits for. Here, as it may have a [`Submitter`].
    pub(super) listener: Option<(Arc<dyn Listener>, CallIn)>,
    pub(super) unclaimed: Unclaimed<Kernel>,
    /// When the item for deadlines runs, if it is known.
    pub(super) scheduled: Option<Time>,
}

/// Work of an engine.
#[pin_data]
pub(super) struct Shared {
    /// Ticks are nanoseconds since then.
    pub(super) epoch: Instant<Monotonic>,
    /// `None` once the engine was dropped.
    #[pin]
    pub(super) inner: SpinLockIrq<Option<Inner>>,
    pub(super) closing: AtomicFlag,
    #[pin]
    pub(super) poll: Work<Shared, 0>,
    #[pin]
    pub(super) deadline: DelayedWork<Shared, 1>,
    #[pin]
    pub(super) tell: Work<Shared, 2>,
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

pub(super) struct Kick(pub(super) Arc<Shared>);

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

/// Handles notifications in a softirq.
struct SoftPoll(Arc<Shared>);

impl Soft for SoftPoll {
    fn run(tasklet: &Tasklet<Self>) {
        if tasklet.0.run_soft() && !tasklet.0.closing.load(Relaxed) {
            tasklet.schedule();
        }
    }
}

/// As [`Kick`] with a softirq; its drop waits for that.
pub(super) struct SoftKick {
    shared: Arc<Shared>,
    poll: Arc<Tasklet<SoftPoll>>,
}

impl SoftKick {
    /// May sleep.
    pub(super) fn new(shared: &Arc<Shared>) -> Result<Self> {
        let poll = Tasklet::new(Ok::<_, Error>(SoftPoll(shared.clone())));
        Ok(Self {
            shared: shared.clone(),
            poll: Arc::pin_init(poll, GFP_KERNEL)?,
        })
    }
}

impl Client for SoftKick {
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
pub(super) enum Found {
    /// There is more to do.
    More,
    /// The next interrupt, or deadline, tells when there is.
    Nothing,
    /// The NIC is gone.
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

    /// Nobody is called, or will be.
    pub(super) fn is_idle(&self) -> bool {
        self.table.is_empty() && !self.unclaimed.is_busy()
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
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        let mut guard = self.inner.lock();
        Option::as_mut(&mut *guard).map(f)
    }

    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(0))
    }

    pub(super) fn enqueue_poll(self: &Arc<Self>) {
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
    pub(super) fn schedule(self: &Arc<Self>, inner: &mut Inner, now: Time) {
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
    pub(super) fn step(self: &Arc<Self>) -> Found {
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

    /// The same in a softirq: whether there is more. Both may run at a time; either arms the queue when
    /// it is empty.
    fn run_soft(self: &Arc<Self>) -> bool {
        let found = self.step();
        if found == Found::Dead {
            // What is to be done then may sleep.
            self.enqueue_poll();
            return false;
        }
        let more = self.call_some(CallIn::Poll, BATCH);
        self.look_after(CallIn::Process);
        found == Found::More || more
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
    pub(super) fn close(&self, quiet: Quiet) {
        let step = |inner: &mut Inner| inner.table.close(quiet, self.now(), BATCH);
        while self.with(step) == Some(true) {}
    }

    /// Has the item run that calls owners and the listener in this context, if there is something
    /// for it.
    pub(super) fn look_after(self: &Arc<Self>, context: CallIn) {
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
            if !tell(event) {
                self.with(|inner| inner.table.told(ticket));
            }
        }
        true
    }

    fn call_listener(&self, context: CallIn, most: usize) -> bool {
        for _ in 0..most {
            // Whoever closes it takes the lock afterwards, and waits for those who are called.
            let next = self.with(|inner| match self.closing.load(Relaxed) {
                true => None,
                false => inner.hear(context),
            });
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
