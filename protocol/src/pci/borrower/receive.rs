// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages that a borrower receives from lenders.

use super::types::{EndReason, Entry, Handle, LeaseEvent, LeaseState, WorkState};
use super::Borrower;
use crate::{Memory, Time};
use wire::ids::NodeId;
use wire::pci::{Body, Grant, Incarnation, LeaseId, Message, Reason, Role, Status};

impl<M: Memory> Borrower<M> {
    /// Processes a message for a borrower. `from` is the sender's node, as reported by the NIC.
    pub fn receive(&mut self, now: Time, from: NodeId, message: &Message) {
        let (number, sender) = (message.number, message.sender);
        match message.body {
            Body::Device(device) => self.device(from, number, Ok((sender, device))),
            Body::Grant(grant) => self.grant(now, from, sender, &grant),
            Body::Refuse(reason, id) => self.refused(now, from, number, reason, id),
            Body::Done(id, status, value) => self.done(from, number, id, status, value),
            Body::Returned(id) => {
                if !self.fences.confirm(now, from, id, &self.limits) {
                    self.count_unexpected();
                }
            }
            Body::Revoke(id, grace) => self.revoke(now, from, id, grace),
            Body::Alive {
                lease,
                to: Role::Borrower,
                answer,
            } => self.alive(from, (number, answer), lease),
            _ => self.count_unexpected(),
        }
        self.fences.hasten(now, from, &self.limits);
    }

    /// Processes a `REFUSE` of another protocol version, which means [`Reason::Version`]. Only its
    /// number is known, which is the number of the request.
    pub fn receive_other_version(&mut self, now: Time, from: NodeId, number: u32) {
        if self.query.is_some_and(|q| q.number == number) {
            return self.device(from, number, Err(Reason::Version));
        }
        self.refused(now, from, number, Reason::Version, LeaseId::new(number, 0));
    }

    fn count_unexpected(&mut self) {
        self.counters.odd = self.counters.odd.wrapping_add(1);
    }

    /// Returns the lease from this lender that has the nonce of `id`. The nonce is the half of the
    /// ID that the borrower has chosen.
    fn by_nonce(&mut self, from: NodeId, id: LeaseId) -> Option<&mut Entry> {
        let entry = self.find(Handle(id.nonce()))?;
        Some(entry).filter(|e| e.lender == from)
    }

    /// Returns the lease from this lender whose whole ID is `id`.
    fn by_name(&mut self, from: NodeId, id: LeaseId) -> Option<&mut Entry> {
        self.by_nonce(from, id).filter(|e| e.id == id)
    }

    fn device(
        &mut self,
        from: NodeId,
        number: u32,
        answer: Result<(Incarnation, wire::pci::Device), Reason>,
    ) {
        match &mut self.query {
            Some(query) if query.number == number && query.node == from => {
                query.answer = Some(answer);
            }
            _ => self.count_unexpected(),
        }
    }

    fn grant(&mut self, now: Time, from: NodeId, sender: Incarnation, grant: &Grant) {
        let id = grant.lease;
        let own = self.incarnation == grant.borrower;
        // Reject a longer time-out, because the lease could outlast the quarantine after a restart
        // of this node.
        let longest = self.limits.longest_ms;
        // Return an unknown or ended lease, because it has no open intervals at this end.
        let stray = |s: &mut Self| {
            s.count_unexpected();
            if s.fences.contains(from, id) {
                return;
            }
            s.queue_answer(from, Body::Return(id));
        };
        let Some(entry) = self.by_nonce(from, id) else {
            return stray(self);
        };
        match entry.state {
            // The `GRANT` is a repetition.
            LeaseState::Opening | LeaseState::Up | LeaseState::Closing if entry.id == id => {
                return self.count_unexpected();
            }
            LeaseState::Asking => {}
            _ => return stray(self),
        }
        let terms = &entry.terms;
        let numbers = &grant.numbers;
        let fits = own
            && grant.timeout_ms <= longest
            && terms.lender == sender
            && terms.generation == grant.generation
            && numbers.bar_set() & !terms.windows == 0
            && numbers.dma_set() & !terms.targets == 0;
        let handle = entry.handle;
        entry.id = id;
        if !fits {
            self.counters.wrong = self.counters.wrong.wrapping_add(1);
            return self.end_lease(now, handle, EndReason::Wrong);
        }
        let grant = *grant;
        let index = self.index(handle);
        let entry = index.and_then(|i| self.leases.get_mut(i)?.as_mut());
        if let Some(entry) = entry {
            entry.grant = Some(grant);
            entry.next = now;
            entry.operation = WorkState::OpenScheduled;
            self.flow.step(&mut entry.state, LeaseEvent::Granted);
        }
    }

    fn refused(&mut self, now: Time, from: NodeId, number: u32, reason: Reason, id: LeaseId) {
        if id == LeaseId::NONE {
            return self.device(from, number, Err(reason));
        }
        if id.key() != 0 {
            if reason != Reason::Lease {
                return self.count_unexpected();
            }
            // `REFUSE` for an unknown lease confirms that the lender has no windows for it.
            if self.fences.confirm(now, from, id, &self.limits) {
                return;
            }
            if let Some(entry) = self.by_name(from, id) {
                entry.confirmed = true;
                let handle = entry.handle;
                return self.end_lease(now, handle, EndReason::Unknown);
            }
            return self.count_unexpected();
        }
        match self.by_nonce(from, id) {
            Some(entry) if entry.state == LeaseState::Asking => {
                // After *not yet*, `BORROW` is repeated.
                if reason != Reason::NotYet {
                    let handle = entry.handle;
                    self.end_lease(now, handle, EndReason::Refused(reason));
                }
            }
            _ => self.count_unexpected(),
        }
    }

    fn done(&mut self, from: NodeId, number: u32, id: LeaseId, status: Status, value: u32) {
        let entry = self.by_name(from, id);
        let access = entry.and_then(|e| e.access.as_mut());
        match access {
            Some(access) if access.number == number && access.result.is_none() => {
                access.result = Some((status, value));
            }
            _ => self.count_unexpected(),
        }
    }

    fn revoke(&mut self, now: Time, from: NodeId, id: LeaseId, grace: u32) {
        let cut = grace == 0;
        if let Some(entry) = self.by_nonce(from, id) {
            let handle = entry.handle;
            let known = entry.id == id;
            match entry.state {
                // `GRANT` was lost, or arrives later.
                LeaseState::Asking => {
                    entry.id = id;
                    entry.confirmed = cut;
                    self.end_lease(now, handle, EndReason::Revoked);
                    if cut {
                        self.queue_answer(from, Body::Revoked(id));
                    }
                    return;
                }
                LeaseState::Opening | LeaseState::Up | LeaseState::Closing if known => {
                    entry.confirmed |= cut;
                    if !cut && !entry.recalled {
                        entry.recalled = true;
                        entry.recall = Some(grace);
                    }
                    if cut {
                        self.end_lease(now, handle, EndReason::Revoked);
                    }
                    return;
                }
                // The lease has ended at this end already.
                _ => {}
            }
        }
        if cut {
            self.fences.confirm(now, from, id, &self.limits);
        }
        self.queue_answer(from, Body::Revoked(id));
    }

    fn alive(&mut self, from: NodeId, (number, answer): (u32, bool), id: LeaseId) {
        let fenced = self.fences.contains(from, id);
        match self.by_nonce(from, id) {
            Some(entry) if entry.id == id => match entry.state {
                LeaseState::Up if answer && entry.question.0 == number => {
                    entry.confirmed_at = entry.confirmed_at.max(entry.question.1);
                }
                LeaseState::Up | LeaseState::Opening if !answer => {
                    entry.alive_answer = Some(number);
                }
                // The end of a closing lease is reported after its windows are closed.
                _ => {}
            },
            // Wait, because `GRANT` may still arrive.
            Some(entry) if entry.state == LeaseState::Asking => {}
            _ if answer || fenced => {}
            _ => {
                self.count_unexpected();
                self.queue_answer(from, Body::Return(id));
            }
        }
    }
}
