// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages that a lender receives from borrowers.

use super::types::{Access, DeviceEvent, Ended, Lease, OfferState, WorkState};
use super::Lender;
use crate::pci::config::Filter;
use crate::{Memory, Time};
use wire::ids::NodeId;
use wire::pci::{Body, Borrow, Incarnation, Kind, LeaseId, Message, Reason, Role, Status};

impl<M: Memory> Lender<M> {
    /// Processes a message for a lender. `from` is the sender's node, as reported by the NIC.
    pub fn receive(&mut self, now: Time, from: NodeId, message: &Message) {
        let (number, sender) = (message.number, message.sender);
        match message.body {
            Body::List(index) => self.list(from, number, index),
            Body::Borrow(borrow) => self.borrow(now, from, (number, sender), &borrow),
            Body::Read(id, _) | Body::Write(id, ..) | Body::Reset(id) => {
                self.access(now, from, id, message);
            }
            Body::Return(id) => self.returned(now, from, sender, id),
            Body::Revoked(id) => self.revoked(now, from, id),
            Body::Alive {
                lease,
                to: Role::Lender,
                answer,
            } => self.alive(now, from, (number, answer), lease),
            _ => self.count_unexpected(),
        }
        // The sender is reachable. It may have been restarted since its lease began.
        self.fences.hasten(now, from, &self.limits);
        self.question_old_leases(now, from, sender);
    }

    /// Processes a request of another protocol version, of which only kind and number are known.
    pub fn receive_other_version(&mut self, from: NodeId, kind: Kind, number: u32) {
        // `LIST` contains no lease ID.
        let lease = match kind {
            Kind::List => LeaseId::NONE,
            Kind::Borrow => LeaseId::new(number, 0),
            _ => return self.count_unexpected(),
        };
        self.queue_refusal(from, number, Reason::Version, lease);
    }

    fn count_unexpected(&mut self) {
        self.counters.odd = self.counters.odd.wrapping_add(1);
    }

    /// Asks a node about its leases if they belong to another incarnation than the node's message.
    /// The message does not end these leases, because it may be older than the leases.
    fn question_old_leases(&mut self, now: Time, from: NodeId, sender: Incarnation) {
        for entry in self.devices.iter_mut().flatten() {
            let lent = matches!(entry.state, OfferState::Lent | OfferState::Recalling);
            let Some(lease) = entry.lease.as_mut().filter(|_| lent) else {
                continue;
            };
            if lease.node == from && lease.incarnation != sender {
                // Keep an interval of at least `retry` between two questions.
                lease.question = lease.question.min(now.after(self.limits.retry));
            }
        }
    }

    fn list(&mut self, from: NodeId, number: u32, index: u16) {
        let all = self.devices.iter().flatten().filter(|d| !d.withdrawn);
        let count = all.clone().count() as u16;
        let described = all.clone().nth(index.into()).map(|d| d.description());
        match described {
            Some(device) => {
                let device = wire::pci::Device {
                    index,
                    count,
                    ..device
                };
                self.queue_answer(from, number, Body::Device(device));
            }
            None => self.queue_refusal(from, number, Reason::Unknown, LeaseId::NONE),
        }
    }

    fn borrow(
        &mut self,
        now: Time,
        from: NodeId,
        (nonce, sender): (u32, Incarnation),
        borrow: &Borrow,
    ) {
        match self.try_borrow(now, from, (nonce, sender), borrow) {
            Ok(()) => {}
            Err(why) => self.queue_refusal(from, nonce, why, LeaseId::new(nonce, 0)),
        }
    }

    fn try_borrow(
        &mut self,
        now: Time,
        from: NodeId,
        (nonce, sender): (u32, Incarnation),
        borrow: &Borrow,
    ) -> Result<(), Reason> {
        if borrow.lender != self.incarnation {
            return Err(Reason::Generation);
        }
        if now < self.begin {
            return Err(Reason::NotYet);
        }
        let mut all = self.devices.iter().flatten();
        let his = |l: &Lease| l.node == from;
        let have = all
            .clone()
            .filter_map(|d| d.lease.as_ref())
            .filter(|l| his(l));
        let have = have.count();
        // Include devices whose lease is still being opened.
        let used = all
            .clone()
            .filter_map(|d| d.lease.as_ref())
            .fold(0, |set, l| {
                set | l.opened.map_or(0, |o| o.numbers.bar_set())
            });
        let device = all.find(|d| d.offer.handle == borrow.handle && !d.withdrawn);
        let device = device.ok_or(Reason::Unknown)?;
        if let Some(lease) = &device.lease {
            let same = his(lease) && lease.incarnation == sender && lease.id.nonce() == nonce;
            let over = device.state == OfferState::Fencing || lease.end_after_open.is_some();
            if !same || over {
                return Err(Reason::Lent);
            }
            let granted = device.state != OfferState::Granting;
            self.counters.again = self.counters.again.wrapping_add(1);
            if let Some(lease) = self.entry(borrow.handle).and_then(|e| e.lease.as_mut()) {
                lease.pending.grant = granted;
                lease.last_message = now;
            }
            return Ok(());
        }
        match device.state {
            OfferState::Free => {}
            OfferState::Broken => return Err(Reason::Broken),
            _ => return Err(Reason::Lent),
        }
        if device.offer.generation != borrow.generation {
            return Err(Reason::Generation);
        }
        if have >= self.limits.per_node.into() {
            return Err(Reason::TooMany);
        }
        if borrow.dma > self.limits.dma_max {
            return Err(Reason::NoRoom);
        }
        let bars = borrow.windows & !used & !self.fences.numbers() & !self.released_numbers;
        let links = borrow.targets;
        let wanted = device.offer.bars.iter().flatten().count() as u32;
        if bars.count_ones() < wanted || links.count_ones() < 2 {
            return Err(Reason::NoInterval);
        }
        let lease = Lease {
            id: LeaseId::new(nonce, self.random.next_nonzero()),
            node: from,
            incarnation: sender,
            bars,
            links,
            dma: borrow.dma,
            opened: None,
            last_message: now,
            question: now,
            grace: now,
            again: now,
            interval: self.limits.retry,
            number: 0,
            access: Access::None,
            filter: Filter::new(None),
            reset_not_before: now,
            reset_delayed: false,
            pending: Default::default(),
            end_after_open: None,
            confirmed: false,
            returned_name: None,
            closed: false,
        };
        let index = self
            .devices
            .iter()
            .position(|d| d.as_ref().is_some_and(|d| d.offer.handle == borrow.handle));
        let entry = index.and_then(|i| self.devices.get_mut(i)?.as_mut());
        if let Some(entry) = entry {
            self.flow.step(&mut entry.state, DeviceEvent::Borrow);
            entry.lease = Some(lease);
            entry.operation = WorkState::OpenScheduled;
        }
        Ok(())
    }

    /// Returns the device of a node's lease if the lease has not ended.
    fn lent(&mut self, from: NodeId, id: LeaseId) -> Option<u32> {
        let lent = |state| matches!(state, OfferState::Lent | OfferState::Recalling);
        let mut all = self.devices.iter().flatten().filter(|d| lent(d.state));
        let has = |l: &Lease| l.node == from && l.id == id;
        let entry = all.find(|d| d.lease.as_ref().is_some_and(has))?;
        Some(entry.offer.handle)
    }

    /// Returns true if the lease has ended and its intervals are not closed yet.
    fn is_closing(&self, from: NodeId, id: LeaseId) -> bool {
        let mut leases = self
            .devices
            .iter()
            .flatten()
            .filter_map(|d| d.lease.as_ref());
        leases.any(|l| l.node == from && l.id == id && !l.closed)
    }

    /// Answers a request for a lease that the sender does not have.
    fn no_lease(&mut self, from: NodeId, number: u32, id: LeaseId) {
        self.count_unexpected();
        // Do not answer before the intervals are closed, because the answer confirms that they are
        // closed.
        if !self.is_closing(from, id) {
            self.queue_refusal(from, number, Reason::Lease, id);
        }
    }

    fn access(&mut self, now: Time, from: NodeId, id: LeaseId, message: &Message) {
        let Some(handle) = self.lent(from, id) else {
            return self.no_lease(from, message.number, id);
        };
        let Some(entry) = self.entry(handle) else {
            return;
        };
        let layout = &entry.layout;
        let Some(lease) = &mut entry.lease else {
            return;
        };
        lease.last_message = now;
        // Access numbers increase. An access with a number before the last number is never
        // executed.
        let ahead = message.number.wrapping_sub(lease.number) as i32;
        let again = ahead == 0 && !matches!(lease.access, Access::None);
        // Do not replace an access in progress, because the filter checks a later access against
        // completed writes.
        let busy = matches!(lease.access, Access::Issued | Access::Scheduled(..));
        if again {
            lease.pending.done = matches!(lease.access, Access::Finished(..));
            self.counters.again = self.counters.again.wrapping_add(1);
            return;
        }
        if ahead <= 0 || busy {
            // Drop the request, because the borrower repeats it.
            return self.count_unexpected();
        }
        lease.number = message.number;
        lease.pending.done = false;
        let resetting = entry.reset_wanted || entry.operation != WorkState::Idle;
        let ones = match message.body {
            Body::Read(_, register) => register.ones(),
            _ => 0,
        };
        if resetting {
            lease.access = Access::Finished(Status::Resetting, ones);
        } else if let Body::Reset(_) = message.body {
            entry.reset_wanted = true;
            lease.reset_delayed = now < lease.reset_not_before;
            lease.access = Access::Finished(Status::Done, 0);
            self.counters.resets = self.counters.resets.wrapping_add(1);
        } else {
            lease.access = Self::check_access(layout, lease, &message.body);
        }
        let entry = self.entry(handle);
        let Some(lease) = entry.and_then(|e| e.lease.as_mut()) else {
            return;
        };
        lease.pending.done = matches!(lease.access, Access::Finished(..));
        if let Access::Finished(Status::Denied, _) = lease.access {
            self.counters.denied = self.counters.denied.wrapping_add(1);
        }
    }

    fn alive(&mut self, now: Time, from: NodeId, (number, answer): (u32, bool), id: LeaseId) {
        let Some(handle) = self.lent(from, id) else {
            return self.no_lease(from, number, id);
        };
        let pause = self.limits.ticks(self.limits.timeout_ms) / 2;
        if let Some(lease) = self.entry(handle).and_then(|e| e.lease.as_mut()) {
            lease.last_message = now;
            lease.question = now.after(pause);
            if !answer {
                lease.pending.alive = Some(number);
            }
        }
    }

    /// Processes `RETURN`, which means that the borrower has closed its windows and ends the lease.
    fn returned(&mut self, now: Time, from: NodeId, sender: Incarnation, id: LeaseId) {
        let mut all = self.devices.iter_mut().flatten();
        let his = |l: &Lease| match id.key() {
            // The borrower never received the grant, and knows only its half of the ID.
            0 => l.id.nonce() == id.nonce() && l.incarnation == sender,
            _ => l.id == id,
        };
        let has = |l: &Lease| l.node == from && !l.closed && his(l);
        let entry = all.find(|d| d.lease.as_ref().is_some_and(has));
        if let Some(entry) = entry {
            let handle = entry.offer.handle;
            if let Some(lease) = &mut entry.lease {
                lease.confirmed = true;
                // `RETURNED` contains the ID that the borrower used.
                lease.returned_name = Some(id);
            }
            return self.end_lease(now, handle, Ended::Returned);
        }
        self.fences.confirm(now, from, id, &self.limits);
        self.queue_answer(from, 0, Body::Returned(id));
    }

    /// Processes `REVOKED`, which means that the borrower has closed its windows.
    fn revoked(&mut self, now: Time, from: NodeId, id: LeaseId) {
        if self.fences.confirm(now, from, id, &self.limits) {
            return;
        }
        let mut all = self.devices.iter_mut().flatten();
        let has = |l: &Lease| l.node == from && l.id == id && !l.closed;
        let Some(entry) = all.find(|d| d.lease.as_ref().is_some_and(has)) else {
            return self.count_unexpected();
        };
        let handle = entry.offer.handle;
        if let Some(lease) = &mut entry.lease {
            lease.confirmed = true;
        }
        self.end_lease(now, handle, Ended::Returned);
    }
}
