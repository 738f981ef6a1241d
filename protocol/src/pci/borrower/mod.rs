// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The borrower: leases that this node has, and accesses to configuration registers of borrowed
//! devices (docs/pci-protocol.md, Leases).
//!
//! Each lease is in one of these states ([`LeaseState`]):
//!
//! * `Asking`: `BORROW` is repeated until the lender answers. `GRANT` leads to `Opening`. `REFUSE`
//!   (except *not yet*), the deadline, or a `GRANT` that does not match the request leads to
//!   `Closed`.
//! * `Opening`: the driver executes [`Work::Open`], then calls [`Borrower::opened`]. Success leads
//!   to `Up`, an error to `Closed`.
//! * `Up`: the device is usable. `ALIVE` is sent five times per time-out. Messages of the lender,
//!   the time-out, [`UNANSWERED_MAX`] accesses without answer, or [`Borrower::give_back`] lead to
//!   `Closing`.
//! * `Closing`: the driver executes [`Work::Close`], then calls [`Borrower::closed`], which leads
//!   to `Closed`.
//! * `Closed`: [`Work::Closed`] reports the reason and frees the entry. The numbers of the lease
//!   remain fenced ([`Fences`]).
//!
//! The time-out begins when the last question that the lender answered was sent. The borrower
//! therefore closes its windows before the lender gives up.

mod pump;
mod receive;
mod types;

pub use types::{
    AccessError, ConfigAccess, Counters, EndReason, Handle, LeaseEvent, LeaseState, Poll, Work,
};

use super::answers::Answers;
use super::fences::Fences;
use super::{Limits, RandomNumbers};
use crate::{base::flow::Counts, Memory, Time};
use types::{Access, Entry, Query, WorkState};
use wire::ids::NodeId;
use wire::pci::{Body, Borrow, Device, Incarnation, LeaseId, Message, Reason, Status};

/// Number of consecutive unanswered accesses after which a lease is lost, although the lender
/// answers questions about the lease. A lender sends answers to accesses and to questions in the
/// same way. If the network loses a third of all messages, the answer to an access is lost in a few
/// percent of the cases in which the question is answered. [`UNANSWERED_MAX`] such losses in a row
/// are very unlikely. Each access may block its caller for [`Limits::access`], perhaps with
/// interrupts disabled. The constant limits this cost if a lender is malicious.
pub const UNANSWERED_MAX: u32 = 8;

/// Borrower of one node. The documentation of [`super`] describes how a driver uses it.
pub struct Borrower<M: Memory> {
    limits: Limits,
    incarnation: Incarnation,
    random: RandomNumbers,
    /// End of the quarantine, before which no leases are requested.
    begin: Time,
    leases: M::Array<Option<Entry>>,
    fences: Fences<M>,
    answers: Answers,
    query: Option<Query>,
    /// Set of numbers whose fences have been removed, for the next [`Work::Release`].
    released_numbers: u64,
    flow: Counts<LeaseState>,
    counters: Counters,
}

impl<M: Memory> Borrower<M> {
    /// Creates a borrower for up to `leases` leases (1…31). `random` must differ from the number of
    /// every earlier borrower of this node. May sleep if the allocation of memory does.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(now: Time, leases: u16, limits: &Limits, random: u64) -> Result<Self, M::Error> {
        let mut random = RandomNumbers(random);
        let incarnation = Incarnation(random.next_u64());
        Ok(Self {
            limits: *limits,
            incarnation,
            random,
            begin: now.after(limits.quarantine),
            leases: M::array(leases.clamp(1, 31).into(), |_| None)?,
            fences: Fences::new()?,
            answers: Answers::NEW,
            query: None,
            released_numbers: 0,
            flow: Counts::default(),
            counters: Counters::default(),
        })
    }

    /// Asks a lender for the device with this index in its list, and repeats the question until
    /// `until`. Replaces the previous question. Returns the number of the question for
    /// [`Borrower::listed`].
    pub fn list(&mut self, now: Time, node: NodeId, index: u16, until: Time) -> u32 {
        let number = self.random.next_nonzero();
        self.query = Some(Query {
            number,
            node,
            index,
            next: now,
            until,
            answer: None,
        });
        number
    }

    /// Returns the answer to a question: the lender's incarnation and the device.
    /// [`Reason::Unknown`] means that the index is after the end of the list. `Err(None)` means
    /// that the lender did not answer in time. Returns `None` while the question is pending.
    pub fn listed(
        &mut self,
        now: Time,
        number: u32,
    ) -> Option<Result<(Incarnation, Device), Option<Reason>>> {
        let Some(query) = self.query.filter(|q| q.number == number) else {
            return Some(Err(None));
        };
        let answer = match query.answer {
            Some(answer) => answer.map_err(Some),
            None if query.until <= now => Err(None),
            None => return None,
        };
        self.query = None;
        Some(answer)
    }

    /// Requests a device from a lender, and repeats the request until `until`. `terms` contains the
    /// interval numbers that are free in this node. Numbers of leases and fences of this borrower
    /// are removed from them. Returns `None` if the table is full. [`Work::Open`] or
    /// [`Work::Closed`] follows.
    pub fn borrow(
        &mut self,
        now: Time,
        lender: NodeId,
        terms: &Borrow,
        until: Time,
    ) -> Option<Handle> {
        let grants = self.leases.iter().flatten().filter_map(|l| l.grant);
        let windows = grants.clone().fold(0, |set, g| set | g.numbers.bar_set());
        let targets = grants.fold(0, |set, g| set | g.numbers.dma_set());
        let held = targets | self.fences.numbers() | self.released_numbers;
        let terms = Borrow {
            windows: terms.windows & !windows,
            targets: terms.targets & !held,
            ..*terms
        };
        let handle = Handle(self.random.next_nonzero());
        let interval = self.limits.retry;
        let slot = self.leases.iter_mut().find(|l| l.is_none())?;
        *slot = Some(Entry {
            handle,
            lender,
            terms,
            state: LeaseState::Asking,
            id: LeaseId::new(handle.0, 0),
            grant: None,
            until,
            next: now.max(self.begin),
            interval,
            asked: false,
            question: (0, now),
            confirmed_at: now,
            number: 0,
            access: None,
            unanswered: 0,
            operation: WorkState::Idle,
            recall: None,
            recalled: false,
            alive_answer: None,
            why: None,
            confirmed: false,
        });
        Some(handle)
    }

    fn find(&mut self, handle: Handle) -> Option<&mut Entry> {
        let mut all = self.leases.iter_mut().flatten();
        all.find(|l| l.handle == handle)
    }

    fn index(&self, handle: Handle) -> Option<usize> {
        let is = |l: &Option<Entry>| l.as_ref().is_some_and(|l| l.handle == handle);
        self.leases.iter().position(is)
    }

    /// Ends a lease. The caller must remove the device before, because accesses to it are not
    /// possible afterwards. [`Work::Close`] follows if the lease is up, and then [`Work::Closed`].
    pub fn give_back(&mut self, now: Time, handle: Handle) {
        self.end_lease(now, handle, EndReason::GivenBack);
    }

    /// Ends a lease in any state.
    fn end_lease(&mut self, now: Time, handle: Handle, why: EndReason) {
        let limits = self.limits;
        let entry = self
            .index(handle)
            .and_then(|i| self.leases.get_mut(i)?.as_mut());
        let Some(entry) = entry else {
            return;
        };
        entry.why = entry.why.or(Some(why));
        let (node, id, confirmed) = (entry.lender, entry.id, entry.confirmed);
        let c = &mut self.counters;
        match entry.state {
            LeaseState::Asking => {
                self.flow.step(&mut entry.state, LeaseEvent::Ended);
                match why {
                    EndReason::Refused(_) => c.refused = c.refused.wrapping_add(1),
                    EndReason::NoAnswer => c.no_answer = c.no_answer.wrapping_add(1),
                    _ => {}
                }
                // If the request was sent and not refused, the lender may have granted the lease.
                let asked = entry.asked && !matches!(why, EndReason::Refused(_));
                let confirmed = confirmed || !asked;
                self.fences.add(now, (node, id), 0, confirmed, &limits);
            }
            LeaseState::Up => {
                self.flow.step(&mut entry.state, LeaseEvent::Ended);
                entry.operation = WorkState::CloseScheduled;
                match why {
                    EndReason::Lost => c.lost = c.lost.wrapping_add(1),
                    EndReason::Stuck => c.stuck = c.stuck.wrapping_add(1),
                    EndReason::Revoked | EndReason::Unknown => {
                        c.revoked = c.revoked.wrapping_add(1)
                    }
                    _ => {}
                }
            }
            // The lease is being opened and ends afterwards, or has ended already.
            LeaseState::Opening | LeaseState::Closing | LeaseState::Closed => {}
        }
    }

    /// Reports the result of [`Work::Open`]. If `done` is false, the driver has left no interval
    /// open.
    pub fn opened(&mut self, now: Time, handle: Handle, done: bool) {
        let limits = self.limits;
        let entry = self
            .index(handle)
            .and_then(|i| self.leases.get_mut(i)?.as_mut());
        let Some(entry) = entry.filter(|e| e.operation == WorkState::Opening) else {
            return self.misuse();
        };
        entry.operation = WorkState::Idle;
        if done {
            self.flow.step(&mut entry.state, LeaseEvent::Opened);
            self.counters.leases = self.counters.leases.wrapping_add(1);
            if let Some(why) = entry.why {
                self.end_lease(now, handle, why);
            }
            return;
        }
        entry.why = entry.why.or(Some(EndReason::NotOpened));
        let (node, id, confirmed) = (entry.lender, entry.id, entry.confirmed);
        self.flow.step(&mut entry.state, LeaseEvent::Closed);
        // The lender has windows with these numbers, but no driver uses the device. Do not fence
        // the numbers, because another user of this node may have them. Such a user may be the
        // reason for the error.
        entry.grant = None;
        self.fences.add(now, (node, id), 0, confirmed, &limits);
    }

    /// Reports that [`Work::Close`] is complete.
    pub fn closed(&mut self, now: Time, handle: Handle) {
        let limits = self.limits;
        let entry = self
            .index(handle)
            .and_then(|i| self.leases.get_mut(i)?.as_mut());
        let Some(entry) = entry.filter(|e| e.operation == WorkState::Closing) else {
            return self.misuse();
        };
        entry.operation = WorkState::Idle;
        self.flow.step(&mut entry.state, LeaseEvent::Closed);
        let (node, id, confirmed) = (entry.lender, entry.id, entry.confirmed);
        let numbers = entry.grant.map_or(0, |g| g.numbers.dma_set());
        self.fences
            .add(now, (node, id), numbers, confirmed, &limits);
        if confirmed {
            // Send `RETURN` once. If the lender has not confirmed, the fence sends `RETURN`
            // repeatedly instead.
            self.queue_answer(node, Body::Return(id));
        }
    }

    /// Records that a node is down and has no windows any more. The caller must have proof. Missing
    /// messages or a lost link do not suffice.
    pub fn node_down(&mut self, now: Time, node: NodeId) {
        for i in 0..self.leases.len() {
            let entry = self.leases.get_mut(i).and_then(Option::as_mut);
            if let Some(entry) = entry.filter(|e| e.lender == node) {
                entry.confirmed = true;
                let handle = entry.handle;
                self.end_lease(now, handle, EndReason::Lost);
            }
        }
        self.fences.confirm_node(now, node, &self.limits);
    }

    /// Begins an access to a register of the device. A lease has one access at a time. Returns the
    /// number of the access for [`Borrower::poll`], and the message to be sent. May be called in
    /// any context, also with interrupts disabled.
    ///
    /// # Errors
    ///
    /// See [`AccessError`].
    pub fn access(
        &mut self,
        now: Time,
        handle: Handle,
        request: ConfigAccess,
    ) -> Result<(u32, NodeId, Message), AccessError> {
        let (limits, sender) = (self.limits, self.incarnation);
        let entry = self.find(handle).ok_or(AccessError::Lost)?;
        if entry.state != LeaseState::Up {
            return Err(AccessError::Lost);
        }
        if entry.access.is_some() {
            return Err(AccessError::Busy);
        }
        entry.number = entry.number.wrapping_add(1);
        let access = Access {
            number: entry.number,
            begin: now,
            again: false,
            request,
            next: now.after(limits.access_retry),
            until: now.after(limits.access),
            result: None,
        };
        entry.access = Some(access);
        let (number, node) = (entry.number, entry.lender);
        let body = access.body(entry.id);
        self.counters.accesses = self.counters.accesses.wrapping_add(1);
        let message = Message {
            number,
            sender,
            body,
        };
        Ok((number, node, message))
    }

    /// Returns the progress of an access, and removes a finished access. A time-out can end the
    /// lease ([`UNANSWERED_MAX`]); the caller must then call [`Borrower::work`]. May be called in
    /// any context.
    pub fn poll(&mut self, now: Time, handle: Handle, number: u32) -> Poll {
        let index = self.index(handle);
        let entry = index.and_then(|i| self.leases.get_mut(i)?.as_mut());
        let Some(entry) = entry else {
            return Poll::Lost;
        };
        let Some(access) = entry.access.filter(|a| a.number == number) else {
            return Poll::Lost;
        };
        let poll = match access.result {
            Some((status, value)) => Poll::Finished(status, access.value(status, value)),
            None if entry.state != LeaseState::Up => Poll::Lost,
            None if access.until <= now => Poll::TimedOut,
            None => return Poll::Pending(access.next.min(access.until)),
        };
        entry.access = None;
        let c = &mut self.counters;
        match poll {
            Poll::TimedOut => {
                c.timed_out = c.timed_out.wrapping_add(1);
                // Count the access only if the lender has answered a question in the meantime.
                // Otherwise the lender may be unreachable, which the time-out of the lease detects.
                entry.unanswered += u32::from(entry.confirmed_at >= access.begin);
                if entry.unanswered >= UNANSWERED_MAX {
                    self.end_lease(now, handle, EndReason::Stuck);
                }
            }
            Poll::Finished(status, _) => {
                entry.unanswered = 0;
                c.denied = c.denied.wrapping_add((status == Status::Denied).into());
            }
            _ => {}
        }
        poll
    }

    fn misuse(&mut self) {
        self.counters.misused = self.counters.misused.wrapping_add(1);
    }

    fn queue_answer(&mut self, node: NodeId, body: Body) {
        let message = self.message(0, body);
        self.answers.insert(node, message);
    }

    fn message(&self, number: u32, body: Body) -> Message {
        Message {
            number,
            sender: self.incarnation,
            body,
        }
    }

    /// Returns the state of a lease.
    pub fn state(&self, handle: Handle) -> Option<LeaseState> {
        let entry = self.leases.get(self.index(handle)?)?.as_ref()?;
        Some(entry.state)
    }

    /// Returns handle, ID, lender and state of all leases.
    pub fn leases(&self) -> impl Iterator<Item = (Handle, LeaseId, NodeId, LeaseState)> + '_ {
        let all = self.leases.iter().flatten();
        all.map(|l| (l.handle, l.id, l.lender, l.state))
    }

    /// Returns the fences of ended leases.
    pub fn fences(&self) -> &Fences<M> {
        &self.fences
    }

    /// Returns the end of the quarantine, before which no leases are requested.
    pub fn begins(&self) -> Time {
        self.begin
    }

    /// Returns the incarnation, a random number that distinguishes this borrower from earlier
    /// borrowers of this node.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the statistics.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of answers that were dropped. The recipients of dropped answers repeat
    /// their requests.
    pub fn dropped(&self) -> u64 {
        self.answers.dropped
    }

    /// Returns the number of times that each transition of a lease was made.
    pub fn flow(&self) -> &Counts<LeaseState> {
        &self.flow
    }
}
