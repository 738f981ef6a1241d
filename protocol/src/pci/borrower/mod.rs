// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The borrower: its leases, and accesses to configuration registers (docs/pci-protocol.md, The borrower).

mod hear;
mod pump;
mod types;

pub use types::{Ask, Counters, Handle, LeaseEvent, LeaseState, Poll, Refused, Why, Work};

use super::fences::Fences;
use super::strays::Strays;
use super::{Draw, Limits};
use crate::{base::flow::Counts, Memory, Time};
use types::{Access, Doing, Entry, Query};
use wire::ids::NodeId;
use wire::pci::{Body, Borrow, Device, Incarnation, LeaseId, Message, Reason, Status};

/// After so many accesses in a row that the lender has not answered in time, although it said meanwhile
/// that the lease goes on, the lease is lost. A lender answers both by the same means: a network
/// that loses a third of all messages makes it answer an access and its repetitions less often
/// than the question beside them once in some tens of cases, and so many times in a row
/// practically never. Each access costs whoever makes it [`Limits::access`], perhaps with
/// interrupts disabled, so that a lender that does it on purpose costs that much and no more.
pub const UNANSWERED_MOST: u32 = 8;

/// Leases of a node. See the documentation of [`super`].
pub struct Borrower<M: Memory> {
    limits: Limits,
    incarnation: Incarnation,
    draw: Draw,
    /// Before this no leases are asked for.
    begin: Time,
    leases: M::Array<Option<Entry>>,
    fences: Fences<M>,
    strays: Strays,
    query: Option<Query>,
    free: u64,
    flow: Counts<LeaseState>,
    counters: Counters,
}

impl<M: Memory> Borrower<M> {
    /// For so many leases. `random` is a number that no other life of the borrower has had. May sleep
    /// where getting memory does.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(now: Time, leases: u16, limits: &Limits, random: u64) -> Result<Self, M::Error> {
        let mut draw = Draw(random);
        let incarnation = Incarnation(draw.long());
        Ok(Self {
            limits: *limits,
            incarnation,
            draw,
            begin: now.after(limits.quarantine),
            leases: M::array(leases.clamp(1, 31).into(), |_| None)?,
            fences: Fences::new()?,
            strays: Strays::NEW,
            query: None,
            free: 0,
            flow: Counts::default(),
            counters: Counters::default(),
        })
    }

    /// Asks a lender which device has this index in its list, until `until`. One question at a time:
    /// the last one counts. Its number, for [`Borrower::listed`].
    pub fn list(&mut self, now: Time, node: NodeId, index: u16, until: Time) -> u32 {
        let number = self.draw.short();
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

    /// The answer to a question, with the life of the lender; [`Reason::Unknown`]: there are no more.
    /// `Err(None)`: nobody has answered. `None`: to be looked for again.
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

    /// Asks a lender for a device, until `until`. Interval numbers in `terms` are those that are free in
    /// the node; those of this machine's leases are left out. `None` if there is no room.
    /// [`Work::Open`] or [`Work::Over`] follows.
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
        let held = targets | self.fences.numbers() | self.free;
        let terms = Borrow {
            windows: terms.windows & !windows,
            targets: terms.targets & !held,
            ..*terms
        };
        let handle = Handle(self.draw.short());
        let interval = self.limits.ask;
        let place = self.leases.iter_mut().find(|l| l.is_none())?;
        *place = Some(Entry {
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
            sure: now,
            number: 0,
            access: None,
            unanswered: 0,
            doing: Doing::Nothing,
            recall: None,
            recalled: false,
            say_alive: None,
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

    /// A lease is not wanted any more. Accesses to the device end: it is to be removed before.
    /// [`Work::Close`] follows, unless it is not up; in the end [`Work::Over`].
    pub fn give_back(&mut self, now: Time, handle: Handle) {
        self.finish(now, handle, Why::GivenBack);
    }

    /// A lease ends, whatever its state.
    fn finish(&mut self, now: Time, handle: Handle, why: Why) {
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
                    Why::Refused(_) => c.refused = c.refused.wrapping_add(1),
                    Why::NoAnswer => c.no_answer = c.no_answer.wrapping_add(1),
                    _ => {}
                }
                // The lender may have granted it.
                let asked = entry.asked && !matches!(why, Why::Refused(_));
                let confirmed = confirmed || !asked;
                self.fences.add(now, (node, id), 0, confirmed, &limits);
            }
            LeaseState::Up => {
                self.flow.step(&mut entry.state, LeaseEvent::Ended);
                entry.doing = Doing::Close(false);
                match why {
                    Why::Lost => c.lost = c.lost.wrapping_add(1),
                    Why::Stuck => c.stuck = c.stuck.wrapping_add(1),
                    Why::Revoked | Why::Unknown => c.revoked = c.revoked.wrapping_add(1),
                    _ => {}
                }
            }
            // When it is open.
            LeaseState::Opening | LeaseState::Closing | LeaseState::Over => {}
        }
    }

    /// The intervals of a lease are open, or nothing of them is, and their numbers are as they were.
    pub fn opened(&mut self, now: Time, handle: Handle, done: bool) {
        let limits = self.limits;
        let entry = self
            .index(handle)
            .and_then(|i| self.leases.get_mut(i)?.as_mut());
        let Some(entry) = entry.filter(|e| e.doing == Doing::Open(true)) else {
            return self.misuse();
        };
        entry.doing = Doing::Nothing;
        if done {
            self.flow.step(&mut entry.state, LeaseEvent::Opened);
            self.counters.leases = self.counters.leases.wrapping_add(1);
            if let Some(why) = entry.why {
                self.finish(now, handle, why);
            }
            return;
        }
        entry.why = entry.why.or(Some(Why::NotOpened));
        let (node, id, confirmed) = (entry.lender, entry.id, entry.confirmed);
        self.flow.step(&mut entry.state, LeaseEvent::Closed);
        // The lender has windows with the numbers, but nobody drives the device. Perhaps they are in
        // use here, which is why this failed.
        entry.grant = None;
        self.fences.add(now, (node, id), 0, confirmed, &limits);
    }

    /// The intervals of a lease are closed.
    pub fn closed(&mut self, now: Time, handle: Handle) {
        let limits = self.limits;
        let entry = self
            .index(handle)
            .and_then(|i| self.leases.get_mut(i)?.as_mut());
        let Some(entry) = entry.filter(|e| e.doing == Doing::Close(true)) else {
            return self.misuse();
        };
        entry.doing = Doing::Nothing;
        self.flow.step(&mut entry.state, LeaseEvent::Closed);
        let (node, id, confirmed) = (entry.lender, entry.id, entry.confirmed);
        let numbers = entry.grant.map_or(0, |g| g.numbers.dma_set());
        self.fences
            .add(now, (node, id), numbers, confirmed, &limits);
        if confirmed {
            // He asks again otherwise.
            self.say(node, Body::Return(id));
        }
    }

    /// A node is down and has no windows any more. Only who knows that may say so: that nothing is
    /// heard of it, or its link is gone, does not mean it.
    pub fn node_down(&mut self, now: Time, node: NodeId) {
        for i in 0..self.leases.len() {
            let entry = self.leases.get_mut(i).and_then(Option::as_mut);
            if let Some(entry) = entry.filter(|e| e.lender == node) {
                entry.confirmed = true;
                let handle = entry.handle;
                self.finish(now, handle, Why::Lost);
            }
        }
        self.fences.forget(now, node, &self.limits);
    }

    /// Begins an access to a register of the device. One at a time. Its number, for
    /// [`Borrower::poll`], and the message to be sent. Any context, also with interrupts disabled.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    pub fn access(
        &mut self,
        now: Time,
        handle: Handle,
        ask: Ask,
    ) -> Result<(u32, NodeId, Message), Refused> {
        let (limits, sender) = (self.limits, self.incarnation);
        let entry = self.find(handle).ok_or(Refused::Lost)?;
        if entry.state != LeaseState::Up {
            return Err(Refused::Lost);
        }
        if entry.access.is_some() {
            return Err(Refused::Busy);
        }
        entry.number = entry.number.wrapping_add(1);
        let access = Access {
            number: entry.number,
            begin: now,
            again: false,
            ask,
            next: now.after(limits.access_again),
            until: now.after(limits.access),
            over: None,
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

    /// How far an access is; one that is over is forgotten. If it has timed out the lease may be over by
    /// that ([`UNANSWERED_MOST`]), so that there is work. Any context.
    pub fn poll(&mut self, now: Time, handle: Handle, number: u32) -> Poll {
        let index = self.index(handle);
        let entry = index.and_then(|i| self.leases.get_mut(i)?.as_mut());
        let Some(entry) = entry else {
            return Poll::Lost;
        };
        let Some(access) = entry.access.filter(|a| a.number == number) else {
            return Poll::Lost;
        };
        let poll = match access.over {
            Some((status, value)) => Poll::Over(status, access.value(status, value)),
            None if entry.state != LeaseState::Up => Poll::Lost,
            None if access.until <= now => Poll::TimedOut,
            None => return Poll::Pending(access.next.min(access.until)),
        };
        entry.access = None;
        let c = &mut self.counters;
        match poll {
            Poll::TimedOut => {
                c.timed_out = c.timed_out.wrapping_add(1);
                // A question of meanwhile was answered. If none was the lender may be out of reach,
                // which the lease's own time-out is for.
                entry.unanswered += u32::from(entry.sure >= access.begin);
                if entry.unanswered >= UNANSWERED_MOST {
                    self.finish(now, handle, Why::Stuck);
                }
            }
            Poll::Over(status, _) => {
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

    fn say(&mut self, node: NodeId, body: Body) {
        let message = self.message(0, body);
        self.strays.put(node, message);
    }

    fn message(&self, number: u32, body: Body) -> Message {
        Message {
            number,
            sender: self.incarnation,
            body,
        }
    }

    /// State of a lease.
    pub fn state(&self, handle: Handle) -> Option<LeaseState> {
        let entry = self.leases.get(self.index(handle)?)?.as_ref()?;
        Some(entry.state)
    }

    /// All leases: handle, name, lender, state.
    pub fn leases(&self) -> impl Iterator<Item = (Handle, LeaseId, NodeId, LeaseState)> + '_ {
        let all = self.leases.iter().flatten();
        all.map(|l| (l.handle, l.id, l.lender, l.state))
    }

    /// Numbers that may not be used, and why.
    pub fn fences(&self) -> &Fences<M> {
        &self.fences
    }

    /// Before this no leases are asked for.
    pub fn begins(&self) -> Time {
        self.begin
    }

    /// Names this life.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Answers that were dropped for others: whoever misses one asks again.
    pub fn dropped(&self) -> u64 {
        self.strays.dropped
    }

    /// How often each step in the life of a lease was made.
    pub fn flow(&self) -> &Counts<LeaseState> {
        &self.flow
    }
}
