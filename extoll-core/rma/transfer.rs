// SPDX-License-Identifier: GPL-2.0-only

//! Transfers of any length, with one completion and a deadline each (`wire::transfer` has the protocol).
//!
//! The engine's work items do everything: one is started by interrupts and by room to send, one at the earliest deadline.
//! A transfer that timed out goes on to absorb late notifications for a while, so that these are not taken for those of
//! a later one with the same local address, or lock number. A later one like that first has a lock operation answered that
//! changes nothing, by the unit that owes the old notification: as a unit answers commands in order (HW §10.8), nothing comes for the
//! old one any more, and it is forgotten. So one lost notification does not cost each retry its own.

mod job;

use super::{
    Address, Fault, LockResult, LockTarget, Notification, Notifications, NotifySpec, PageOptions,
    Peer, Requester,
};
use crate::vpid::Client;
use job::{Job, Kind, LockJob, Obstacle, Step};
use kernel::{
    impl_has_delayed_work, impl_has_work, new_delayed_work, new_mutex, new_spinlock, new_work,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, Completion, Mutex, SpinLock,
    },
    time::{msecs_to_jiffies, Delta, Instant, Monotonic},
    workqueue::{DelayedWork, Work, WorkItem},
};
use kernel_ext::{sched::cond_resched, work};
use wire::{
    ids::{NodeId, Vpid},
    transfer::{Direction, LockNumbers, Transfer},
};

/// Notifications taken in one go.
const BUDGET: usize = 64;
/// So many times in a row; then others get their turn: a peer may notify faster than that is handled.
const ROUNDS: usize = 16;
/// How long late notifications are absorbed, in milliseconds. No packet stays in the network as long.
const ABSORB_MS: i64 = 10_000;
/// Most transfers of an engine, absorbing ones included.
const MAX_JOBS: usize = 4096;

/// Why a transfer did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaError {
    /// A unit refused a command.
    Fault(Fault),
    /// Not done by the deadline: the peer is dead, unreachable, has closed its port, or is too slow. A GET may still
    /// write to local memory: a region until it is revoked; memory given by bus address has to go to
    /// [`crate::quarantine`], as dropping the engine helps only until its VPID is opened again.
    TimedOut,
    /// The device is gone, or the engine was dropped.
    Down,
    /// The arguments do not form a legal command, or the local region is dead, too short, of another VPID, or does not
    /// allow the access.
    Invalid,
    /// Too many transfers, or no memory.
    NoMemory,
}

impl From<RmaError> for Error {
    fn from(e: RmaError) -> Error {
        match e {
            RmaError::Fault(_) => EIO,
            RmaError::TimedOut => ETIMEDOUT,
            RmaError::Down => ENODEV,
            RmaError::Invalid => EINVAL,
            RmaError::NoMemory => ENOMEM,
        }
    }
}

/// Where a transfer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Remote node.
    pub node: NodeId,
    /// Remote VPID.
    pub vpid: Vpid,
    /// Traffic class, 0…3.
    pub traffic_class: u8,
    /// PUTs: every command (of up to 8 MiB) notifies the peer, with interrupt, when its data is there or was refused.
    pub notify_peer: bool,
}

impl Destination {
    fn peer(&self, notify: NotifySpec) -> Peer {
        Peer {
            notify,
            page: PageOptions {
                traffic_class: self.traffic_class,
                irq: true,
                ..PageOptions::default()
            },
            ..Peer::new(self.node, self.vpid)
        }
    }
}

/// What a lock operation did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locked {
    /// The value was at most the compare operand, and was changed.
    pub success: bool,
    /// The value afterwards.
    pub value: i32,
}

/// What everybody sees of a transfer: its outcome.
#[pin_data]
struct Outcome {
    #[pin]
    result: SpinLock<Option<Result<u64, RmaError>>>,
    #[pin]
    ended: Completion,
}

impl Outcome {
    fn end(&self, result: Result<u64, RmaError>) {
        self.result.lock().get_or_insert(result);
        self.ended.complete_all();
    }
}

/// A transfer under way. Dropping it does not stop the transfer.
#[must_use]
pub struct Handle(Arc<Outcome>);

impl Handle {
    /// The outcome, unless it is still under way. Process context.
    pub fn poll(&self) -> Option<Result<(), RmaError>> {
        (*self.0.result.lock()).map(|r| r.map(|_| ()))
    }

    /// Waits for the end, which comes by the deadline (give or take a scheduling delay). May sleep.
    ///
    /// # Errors
    ///
    /// See [`RmaError`].
    pub fn wait(&self) -> Result<(), RmaError> {
        self.value().map(|_| ())
    }

    fn value(&self) -> Result<u64, RmaError> {
        self.0.ended.wait_for_completion();
        (*self.0.result.lock()).unwrap_or(Err(RmaError::Down))
    }
}

struct Inner {
    notifications: Notifications,
    /// In the order of submission.
    jobs: KVec<Job>,
    /// Of the command posted last.
    order: u64,
    numbers: LockNumbers,
}

/// Work of an engine.
#[pin_data]
struct Shared {
    requester: Requester,
    #[pin]
    inner: Mutex<Option<Inner>>,
    closing: AtomicFlag,
    #[pin]
    work: Work<Shared, 0>,
    #[pin]
    deadline: DelayedWork<Shared, 1>,
}

impl_has_work! {
    impl HasWork<Shared, 0> for Shared { self.work }
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
        this.run();
    }
}

struct Kick(Arc<Shared>);

impl Client for Kick {
    fn interrupt(&self) {
        self.0.kick();
    }

    fn writable(&self) {
        self.0.kick();
    }

    fn down(&self) {
        self.0.kick();
    }
}

fn left_ms(until: Instant<Monotonic>) -> i64 {
    (until - Instant::now()).as_millis()
}

impl Inner {
    /// Notifications, posting, deadlines; until the queue is empty and armed. False if it is not so far after some rounds.
    fn run(&mut self, requester: &Requester) -> bool {
        for _ in 0..ROUNDS {
            let Self {
                notifications,
                jobs,
                ..
            } = self;
            let taken = notifications.poll(BUDGET, |n| Self::take(jobs, n));
            self.post(requester);
            if self.expire() {
                // Others may have waited for those that ended.
                self.post(requester);
            }
            if taken < BUDGET && !self.notifications.rearm() {
                return true;
            }
            cond_resched();
        }
        false
    }

    fn take(jobs: &mut KVec<Job>, n: &Notification) {
        let posted = jobs.iter().enumerate();
        let locks = posted.filter(|(_, job)| job.is_answer(n));
        let found = if let Some((i, _)) = locks.min_by_key(|(_, job)| job.last) {
            jobs.get_mut(i).map(|job| (i, job.answered(n)))
        } else {
            let mut all = jobs.iter_mut().enumerate();
            all.find_map(|(i, job)| Some((i, (job.take(n)?, None))))
        };
        let Some((i, (step, passed))) = found else {
            return;
        };
        if let Step::Ended(result) = step {
            if let Ok(job) = jobs.remove(i) {
                job.outcome.end(result);
            }
        }
        if let Some(passed) = passed {
            jobs.retain(|job| !job.is_over(&passed));
        }
    }

    /// Whether job `i` can post: finds a number for its lock operation, and puts another one before its first command where its
    /// notification could be taken for that of a job that timed out.
    fn prepare(&mut self, i: usize) -> bool {
        let Some(job) = self.jobs.get(i) else {
            return false;
        };
        let (peer, begun) = (job.peer(), job.last != 0);
        if !begun && !job.timed_out && !job.wants_number() {
            let mut others = self.jobs.iter();
            match others.find_map(|other| job.obstacle(other)) {
                None => {}
                Some(Obstacle::Wait) => return false,
                Some(Obstacle::Ask(lock)) => {
                    if let Some(job) = self.jobs.get_mut(i) {
                        job.then = Some(core::mem::replace(&mut job.kind, Kind::Lock(lock)));
                    }
                }
            }
        }
        if !self.jobs.get(i).is_some_and(Job::wants_number) {
            return true;
        }
        let others = self.jobs.iter().filter(|other| other.peer() == peer);
        let used = others.fold(0u16, |used, other| match &other.kind {
            Kind::Lock(LockJob {
                number: Some(n), ..
            }) => used | 1u16.checked_shl(*n).unwrap_or(0),
            _ => used,
        });
        let number = self.numbers.take(used);
        if let Some(Kind::Lock(lock)) = self.jobs.get_mut(i).map(|job| &mut job.kind) {
            lock.number = number;
        }
        number.is_some()
    }

    fn post(&mut self, requester: &Requester) {
        let mut i = 0;
        while i < self.jobs.len() {
            if !self.prepare(i) {
                i += 1;
                continue;
            }
            let Some(job) = self.jobs.get_mut(i) else {
                return;
            };
            match job.post(requester, &mut self.order) {
                Ok(true) => i += 1,
                Ok(false) => {
                    job.give_number_back();
                    return;
                }
                Err(e) => {
                    requester.context().isolate();
                    if let Ok(job) = self.jobs.remove(i) {
                        job.outcome.end(Err(e));
                    }
                }
            }
        }
    }

    /// True if a job timed out or stopped absorbing.
    fn expire(&mut self) -> bool {
        let (mut i, mut changed) = (0, false);
        while let Some(job) = self.jobs.get_mut(i) {
            if left_ms(job.until) > 0 {
                i += 1;
                continue;
            }
            changed = true;
            if !job.timed_out {
                job.outcome.end(Err(RmaError::TimedOut));
                job.timed_out = true;
                if let Kind::Move { transfer, .. } = &mut job.kind {
                    transfer.stop();
                }
                job.until = Instant::<Monotonic>::now() + Delta::from_millis(ABSORB_MS);
                if job.is_outstanding() {
                    continue;
                }
            }
            let _ = self.jobs.remove(i);
        }
        changed
    }

    /// Milliseconds to the next deadline.
    fn next_ms(&self) -> Option<u32> {
        let next = self.jobs.iter().map(|job| left_ms(job.until)).min()?;
        Some(next.clamp(0, 60_000) as u32 + 1)
    }

    fn end(&mut self, error: RmaError) {
        while let Some(job) = self.jobs.pop() {
            job.outcome.end(Err(error));
        }
    }
}

impl Shared {
    fn run(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        let Some(inner) = Option::as_mut(&mut *inner) else {
            return;
        };
        if !self.requester.context().is_alive() {
            // Before the local memory of what is under way is given up.
            self.requester.context().isolate();
            inner.end(RmaError::Down);
            return;
        }
        self.advance(inner);
    }

    /// Has everything done that can be done now, or soon.
    fn advance(self: &Arc<Self>, inner: &mut Inner) {
        if !inner.run(&self.requester) {
            self.kick();
        }
        self.schedule(inner);
    }

    fn kick(self: &Arc<Self>) {
        if !self.closing.load(Relaxed) {
            // Queued already is fine.
            let _ = work::enqueue::<_, 0>(self.clone());
        }
    }

    fn schedule(self: &Arc<Self>, inner: &Inner) {
        if let Some(ms) = inner.next_ms() {
            // An earlier look does no harm.
            let _ = work::cancel_delayed::<_, 1>(self);
            let delay = msecs_to_jiffies(ms);
            let _ = work::enqueue_delayed::<_, 1>(self.clone(), delay);
        }
    }
}

/// A port used for transfers. All methods may be called by several threads at once.
///
/// Drop ends all transfers with `Down`, closes the port, and may sleep.
pub struct Engine(Arc<Shared>);

impl Engine {
    /// Takes a port, which must not have a client. Notifications that no transfer waits for are dropped. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(requester: Requester, notifications: Notifications) -> Result<Self> {
        let inner = Inner {
            notifications,
            jobs: KVec::new(),
            order: 0,
            numbers: LockNumbers::default(),
        };
        let shared = Arc::pin_init(
            pin_init!(Shared {
                requester,
                inner <- new_mutex!(Some(inner), "extoll_rma_engine"),
                closing: AtomicFlag::new(false),
                work <- new_work!("extoll_rma_engine"),
                deadline <- new_delayed_work!("extoll_rma_deadline"),
            }),
            GFP_KERNEL,
        )?;
        let kick = Arc::new(Kick(shared.clone()), GFP_KERNEL)?;
        shared.requester.attach(kick);
        Ok(Self(shared))
    }

    /// The port, e.g. to register memory for its VPID.
    pub fn requester(&self) -> &Requester {
        &self.0.requester
    }

    /// Reads `len` bytes of the peer's memory; done when they are in local memory. The local memory must stay until then:
    /// a region does so by itself, as dropping it revokes. May sleep.
    ///
    /// # Errors
    ///
    /// `Invalid`, `NoMemory`, `Down`; the others by the handle.
    pub fn get(
        &self,
        to: Destination,
        address: Address<'_>,
        len: u64,
        timeout: Delta,
    ) -> Result<Handle, RmaError> {
        self.transfer(Direction::Get, to, address, len, timeout, false)
    }

    /// Writes `len` bytes to the peer's memory; done when local memory has been read and the data sent. Only the peer
    /// learns of an error there. May sleep.
    ///
    /// # Errors
    ///
    /// As [`Engine::get`].
    pub fn put(
        &self,
        to: Destination,
        address: Address<'_>,
        len: u64,
        timeout: Delta,
    ) -> Result<Handle, RmaError> {
        self.transfer(Direction::Put, to, address, len, timeout, false)
    }

    /// As [`Engine::put`], but done when the peer's completer has processed all of it, shown by a lock operation behind
    /// the data that changes nothing. A dead peer is a `TimedOut`.
    ///
    /// # Errors
    ///
    /// As [`Engine::get`].
    pub fn put_confirmed(
        &self,
        to: Destination,
        address: Address<'_>,
        len: u64,
        timeout: Delta,
    ) -> Result<Handle, RmaError> {
        self.transfer(Direction::Put, to, address, len, timeout, true)
    }

    fn transfer(
        &self,
        direction: Direction,
        to: Destination,
        address: Address<'_>,
        len: u64,
        timeout: Delta,
        confirm: bool,
    ) -> Result<Handle, RmaError> {
        let vpid = self.0.requester.vpid();
        let ends = address
            .ends(vpid, direction == Direction::Get, len)
            .filter(|ends| ends.remote.checked_add(len).is_some())
            .ok_or(RmaError::Invalid)?;
        let transfer =
            Transfer::new(direction, to.node, to.vpid, ends.local, len).ok_or(RmaError::Invalid)?;
        let kind = Kind::Move {
            transfer,
            direction,
            ends,
        };
        self.submit(to, kind, timeout, confirm)
    }

    /// Fetch-compare-and-add on lock `number` of the peer's VPID, see [`Requester::lock`]. Sleeps until the outcome is
    /// there.
    ///
    /// # Errors
    ///
    /// See [`RmaError`].
    pub fn lock(
        &self,
        to: Destination,
        at: LockTarget,
        number: u32,
        (compare, add): (i32, i32),
        timeout: Delta,
    ) -> Result<Locked, RmaError> {
        let job = LockJob {
            at,
            traffic_class: to.traffic_class,
            number: Some(number),
            any_number: false,
            compare,
            add,
            posted: false,
        };
        let word = self
            .submit(to, Kind::Lock(job), timeout, false)?
            .value()
            .map(LockResult)?;
        Ok(Locked {
            success: word.result() == 1,
            value: word.value() as i32,
        })
    }

    fn submit(
        &self,
        to: Destination,
        kind: Kind,
        timeout: Delta,
        confirm: bool,
    ) -> Result<Handle, RmaError> {
        let outcome = Arc::pin_init(
            pin_init!(Outcome {
                result <- new_spinlock!(None, "extoll_rma_outcome"),
                ended <- Completion::new(),
            }),
            GFP_KERNEL,
        )
        .map_err(|_| RmaError::NoMemory)?;
        let job = Job {
            outcome: outcome.clone(),
            to,
            kind,
            then: None,
            last: 0,
            confirm,
            until: Instant::<Monotonic>::now() + timeout,
            timed_out: false,
        };
        let mut inner = self.0.inner.lock();
        let inner = Option::as_mut(&mut *inner).ok_or(RmaError::Down)?;
        if !self.0.requester.context().is_alive() {
            return Err(RmaError::Down);
        }
        if inner.jobs.len() >= MAX_JOBS {
            return Err(RmaError::NoMemory);
        }
        inner
            .jobs
            .push(job, GFP_KERNEL)
            .map_err(|_| RmaError::NoMemory)?;
        self.0.advance(inner);
        Ok(Handle(outcome))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.closing.store(true, Relaxed);
        self.0.requester.detach();
        // Nobody starts them any more but the work item itself, which finds nothing to do then.
        let inner = self.0.inner.lock().take();
        work::cancel_sync::<Shared, 0>(&self.0);
        work::cancel_delayed_sync::<Shared, 1>(&self.0);
        if let Some(mut inner) = inner {
            inner.end(RmaError::Down);
        }
    }
}
