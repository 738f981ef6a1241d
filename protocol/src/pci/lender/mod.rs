// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The lender: devices that this node offers, and their leases (docs/pci-protocol.md, Leases).
//!
//! Each offered device is in one of these states ([`OfferState`]):
//!
//! * `Free`: the device may be borrowed. A valid `BORROW` leads to `Granting`.
//! * `Granting`: the driver executes [`Work::Open`], then calls [`Lender::opened`]. Success leads
//!   to `Lent`, and `GRANT` is sent. After an error `REFUSE` is sent, and the device is `Free`
//!   again, or `Broken` if the function cannot be reset.
//! * `Lent`: the borrower uses the device. [`Lender::reclaim`] with a grace period leads to
//!   `Recalling`.
//! * `Recalling`: `REVOKE` is repeated until the borrower returns the device or the grace period
//!   ends.
//! * `Fencing`: the lease has ended. The driver executes [`Work::Close`] and [`Work::Reset`]. Then
//!   the device is `Free` again, or `Broken` if the reset failed. The numbers of the lease remain
//!   fenced ([`Fences`]).
//! * `Broken`: the device is not lent until [`Lender::repair`] is called.
//!
//! A lease ends, and the state of its device becomes `Fencing`, when the borrower returns the
//! device, is reported as down, or sends no message during the time-out. The lease also ends when a
//! reset fails, and when the device is reclaimed or withdrawn.

mod pump;
mod receive;
mod types;

pub use types::{
    Config, Counters, DeviceEvent, OfferState, Open, OpenError, Opened, Step, Work, Write,
};

use super::answers::Answers;
use super::config::{Filter, Layout, Verdict};
use super::fences::Fences;
use super::{Limits, RandomNumbers, Reach};
use crate::{base::flow::Counts, Memory, Time};
use types::{Access, Ended, Entry, Lease, WorkState};
use wire::ids::NodeId;
use wire::pci::{
    Body, Device, DeviceState, Incarnation, LeaseId, Message, Reason, Status, LONGEST_LEASE_MS,
};
use wire::smfu::PAGE;

/// Lender of one node. The documentation of [`super`] describes how a driver uses it.
pub struct Lender<M: Memory> {
    limits: Limits,
    incarnation: Incarnation,
    random: RandomNumbers,
    /// End of the quarantine, before which no leases are granted.
    begin: Time,
    devices: M::Array<Option<Entry>>,
    fences: Fences<M>,
    answers: Answers,
    /// Set of numbers whose fences have been removed, for the next [`Work::Release`].
    released_numbers: u64,
    /// Index of the device that [`Lender::work`] checks first for an open or a reset.
    next_device: usize,
    closing: bool,
    flow: Counts<OfferState>,
    counters: Counters,
}

impl<M: Memory> Lender<M> {
    /// Creates a lender for up to `devices` devices (1…64). `random` must differ from the number of
    /// every earlier lender of this node. May sleep if the allocation of memory does.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(now: Time, devices: u16, limits: &Limits, random: u64) -> Result<Self, M::Error> {
        let mut random = RandomNumbers(random);
        let incarnation = Incarnation(random.next_u64());
        let longest = limits.longest_ms.clamp(1, LONGEST_LEASE_MS);
        let limits = Limits {
            timeout_ms: limits.timeout_ms.clamp(1, longest),
            ..*limits
        };
        Ok(Self {
            limits,
            incarnation,
            random,
            begin: now.after(limits.quarantine),
            devices: M::array(devices.clamp(1, 64).into(), |_| None)?,
            fences: Fences::new()?,
            answers: Answers::NEW,
            released_numbers: 0,
            next_device: 0,
            closing: false,
            flow: Counts::default(),
            counters: Counters::default(),
        })
    }

    /// Offers a device and returns its handle. Uses only the identity, location and BARs in
    /// `device`. Returns `None` if the table is full, the device has no memory BAR, or the lender
    /// is closing. The device must be in the state that it has after a reset.
    pub fn offer(&mut self, device: &Device, layout: &Layout) -> Option<u32> {
        if !device.has_valid_bars() || self.closing {
            return None;
        }
        let handle = self.random.next_nonzero();
        let slot = self.devices.iter_mut().find(|d| d.is_none())?;
        let generation = 1;
        *slot = Some(Entry {
            offer: Device {
                handle,
                generation,
                ..*device
            },
            layout: *layout,
            state: OfferState::Free,
            lease: None,
            operation: WorkState::Idle,
            reset_wanted: false,
            withdrawn: false,
        });
        Some(handle)
    }

    fn entry(&mut self, handle: u32) -> Option<&mut Entry> {
        let mut all = self.devices.iter_mut().flatten();
        all.find(|d| d.offer.handle == handle)
    }

    fn index(&self, handle: u32) -> Option<usize> {
        let is = |d: &Option<Entry>| d.as_ref().is_some_and(|d| d.offer.handle == handle);
        self.devices.iter().position(is)
    }

    /// Withdraws a device, and ends its lease, if any. [`Work::Gone`] follows.
    pub fn withdraw(&mut self, now: Time, handle: u32) {
        if let Some(entry) = self.entry(handle) {
            entry.withdrawn = true;
        }
        self.end_lease(now, handle, Ended::Reclaimed);
    }

    /// Asks the borrower to return the device within `grace_ms` milliseconds, after which the lease
    /// ends. Ends the lease at once if `grace_ms` is 0. Returns false if the device is not lent.
    pub fn reclaim(&mut self, now: Time, handle: u32, grace_ms: u32) -> bool {
        let ticks = self.limits.ticks(grace_ms);
        let retry = self.limits.retry;
        let Some(i) = self.index(handle) else {
            return false;
        };
        let Some(entry) = self.devices.get_mut(i).and_then(Option::as_mut) else {
            return false;
        };
        let Some(lease) = &mut entry.lease else {
            return false;
        };
        match entry.state {
            OfferState::Lent | OfferState::Recalling if grace_ms > 0 => {
                let end = now.after(ticks);
                if entry.state == OfferState::Recalling {
                    lease.grace = lease.grace.min(end);
                } else {
                    self.flow.step(&mut entry.state, DeviceEvent::Recall);
                    lease.grace = end;
                }
                lease.pending.revoke = true;
                lease.interval = retry;
                lease.again = now;
            }
            _ => self.end_lease(now, handle, Ended::Reclaimed),
        }
        true
    }

    /// Withdraws all devices, because the module is being unloaded. The caller must wait until
    /// there are no devices, and for a limited time until there are no fences.
    pub fn close(&mut self, now: Time) {
        self.closing = true;
        for i in 0..self.devices.len() {
            if let Some(handle) = self.handle_at(i) {
                self.withdraw(now, handle);
            }
        }
    }

    fn handle_at(&self, i: usize) -> Option<u32> {
        let entry = self.devices.get(i)?.as_ref()?;
        Some(entry.offer.handle)
    }

    /// Records that a node is down and has no windows any more. The caller must have proof. Missing
    /// messages or a lost link do not suffice.
    pub fn node_down(&mut self, now: Time, node: NodeId) {
        for i in 0..self.devices.len() {
            let entry = self.devices.get_mut(i).and_then(Option::as_mut);
            let lease = entry.and_then(|e| e.lease.as_mut());
            if let Some(lease) = lease.filter(|lease| lease.node == node) {
                lease.confirmed = true;
                if let Some(handle) = self.handle_at(i) {
                    self.end_lease(now, handle, Ended::Down);
                }
            }
        }
        self.fences.confirm_node(now, node, &self.limits);
    }

    /// Makes a broken device available again. The device is reset before the next lease. Returns
    /// false if the device is not `Broken`.
    pub fn repair(&mut self, handle: u32) -> bool {
        let Some(i) = self.index(handle) else {
            return false;
        };
        match self.devices.get_mut(i).and_then(Option::as_mut) {
            Some(entry) if entry.state == OfferState::Broken => {
                self.flow.step(&mut entry.state, DeviceEvent::Repaired)
            }
            _ => false,
        }
    }

    /// Ends the lease of a device, if it has one. A lease whose intervals are being opened ends
    /// after [`Lender::opened`].
    fn end_lease(&mut self, now: Time, handle: u32, why: Ended) {
        let Some(i) = self.index(handle) else {
            return;
        };
        let Some(entry) = self.devices.get_mut(i).and_then(Option::as_mut) else {
            return;
        };
        let Some(lease) = &mut entry.lease else {
            return;
        };
        match entry.state {
            OfferState::Lent | OfferState::Recalling => {
                self.flow.step(&mut entry.state, DeviceEvent::End);
                entry.offer.generation = entry.offer.generation.wrapping_add(1);
                entry.reset_wanted = false;
                // Drop an access that has not begun.
                if let Access::Scheduled(..) = lease.access {
                    lease.access = Access::None;
                }
                lease.pending = Default::default();
                lease.last_message = now;
                let c = &mut self.counters;
                let count = match why {
                    Ended::Returned => &mut c.returned,
                    Ended::Expired => &mut c.expired,
                    Ended::Reclaimed => &mut c.reclaimed,
                    Ended::Down => &mut c.down,
                    Ended::Broken => &mut c.broken,
                };
                *count = count.wrapping_add(1);
            }
            OfferState::Granting => lease.end_after_open = lease.end_after_open.or(Some(why)),
            _ => {}
        }
    }

    /// Reports the result of [`Work::Open`].
    pub fn opened(&mut self, now: Time, handle: u32, result: Result<Opened, OpenError>) {
        let Some(i) = self.index(handle) else {
            return self.misuse();
        };
        let Some(entry) = self.devices.get_mut(i).and_then(Option::as_mut) else {
            return;
        };
        let (WorkState::Opening, Some(lease)) = (entry.operation, &mut entry.lease) else {
            return self.misuse();
        };
        entry.operation = WorkState::Idle;
        match result {
            Ok(opened) => {
                lease.opened = Some(opened);
                lease.last_message = now;
                lease.question = now.after(self.limits.ticks(self.limits.timeout_ms) / 2);
                lease.pending.grant = true;
                let reach = Reach::new(opened.interrupts, PAGE);
                lease.filter = Filter::new(reach);
                self.flow.step(&mut entry.state, DeviceEvent::Opened);
                self.counters.leases = self.counters.leases.wrapping_add(1);
                if let Some(why) = lease.end_after_open {
                    self.end_lease(now, handle, why);
                }
            }
            Err(why) => {
                let (event, reason) = match why {
                    OpenError::Refuse(reason) => (DeviceEvent::Failed, reason),
                    OpenError::Broken => (DeviceEvent::Broke, Reason::Broken),
                };
                self.flow.step(&mut entry.state, event);
                let (node, id, returned_name) = (lease.node, lease.id, lease.returned_name);
                entry.lease = None;
                match returned_name {
                    Some(id) => self.queue_answer(node, 0, Body::Returned(id)),
                    None => {
                        let nonce = id.nonce();
                        self.queue_refusal(node, nonce, reason, LeaseId::new(nonce, 0));
                    }
                }
            }
        }
    }

    /// Reports that [`Work::Close`] is complete.
    pub fn closed(&mut self, now: Time, handle: u32) {
        let limits = self.limits;
        let entry = self.entry(handle);
        let Some((operation @ WorkState::Closing, Some(lease))) =
            entry.map(|e| (&mut e.operation, &mut e.lease))
        else {
            return self.misuse();
        };
        *operation = WorkState::ResetScheduled;
        lease.closed = true;
        let numbers = lease.opened.map_or(0, |o| o.numbers.bar_set());
        let (node, id, confirmed) = (lease.node, lease.id, lease.confirmed);
        let returned_name = lease.returned_name.take();
        self.fences
            .add(now, (node, id), numbers, confirmed, &limits);
        if let Some(id) = returned_name {
            self.queue_answer(node, 0, Body::Returned(id));
        }
    }

    /// Reports the result of [`Work::Reset`]; `done` is false if the function could not be reset.
    pub fn reset(&mut self, now: Time, handle: u32, done: bool) {
        let Some(i) = self.index(handle) else {
            return self.misuse();
        };
        let Some(entry) = self.devices.get_mut(i).and_then(Option::as_mut) else {
            return;
        };
        if entry.operation != WorkState::Resetting {
            return self.misuse();
        }
        entry.operation = WorkState::Idle;
        if entry.state == OfferState::Fencing && entry.lease.as_ref().is_some_and(|l| l.closed) {
            let event = if done {
                DeviceEvent::Cleared
            } else {
                DeviceEvent::Broke
            };
            self.flow.step(&mut entry.state, event);
            entry.lease = None;
            return;
        }
        if let Some(lease) = &mut entry.lease {
            lease.filter.reset();
            lease.reset_not_before = now.after(self.limits.reset_pause);
        }
        if !done {
            self.end_lease(now, handle, Ended::Broken);
        }
    }

    /// Reports the result of a configuration access. `value` contains the value of a read.
    pub fn configured(&mut self, config: &Config, value: Result<u32, ()>) {
        let Some(entry) = self.entry(config.handle) else {
            return self.misuse();
        };
        let Some(lease) = entry.lease.as_mut().filter(|l| l.id == config.lease) else {
            return self.misuse();
        };
        if !matches!(lease.access, Access::Issued) || lease.number != config.number {
            return self.misuse();
        }
        let ones = config.register.ones();
        lease.access = match value {
            Ok(value) => {
                // The filter tracks completed writes only.
                if config.write.is_some() {
                    lease.filter.executed(&entry.layout, config.register);
                }
                Access::Finished(Status::Done, value & ones)
            }
            Err(()) => Access::Finished(Status::Failed, ones),
        };
        lease.pending.done = true;
        self.counters.accesses = self.counters.accesses.wrapping_add(1);
    }

    fn misuse(&mut self) {
        self.counters.misused = self.counters.misused.wrapping_add(1);
    }

    fn queue_answer(&mut self, node: NodeId, number: u32, body: Body) {
        let message = self.message(number, body);
        self.answers.insert(node, message);
    }

    fn queue_refusal(&mut self, node: NodeId, number: u32, reason: Reason, lease: LeaseId) {
        self.counters.refused = self.counters.refused.wrapping_add(1);
        self.queue_answer(node, number, Body::Refuse(reason, lease));
    }

    fn message(&self, number: u32, body: Body) -> Message {
        Message {
            number,
            sender: self.incarnation,
            body,
        }
    }

    /// Denies or schedules an access.
    fn check_access(layout: &Layout, lease: &mut Lease, body: &Body) -> Access {
        let (register, verdict) = match body {
            Body::Read(_, register) => (*register, lease.filter.read(layout, *register)),
            Body::Write(_, register, value) => {
                (*register, lease.filter.write(layout, *register, *value))
            }
            _ => return Access::None,
        };
        match verdict {
            Verdict::Read => Access::Scheduled(register, None),
            Verdict::Write(write) => {
                Access::Scheduled(Filter::accessed_register(register), Some(write))
            }
            Verdict::Denied => Access::Finished(Status::Denied, register.ones()),
        }
    }

    /// Returns the state of a device.
    pub fn state(&self, handle: u32) -> Option<OfferState> {
        let entry = self.devices.iter().flatten();
        Some(entry.into_iter().find(|d| d.offer.handle == handle)?.state)
    }

    /// Returns all devices as they are described to borrowers, with the IDs of their leases.
    pub fn devices(&self) -> impl Iterator<Item = (Device, Option<LeaseId>)> + '_ {
        let all = self.devices.iter().flatten();
        all.map(|e| (e.description(), e.lease.as_ref().map(|l| l.id)))
    }

    /// Returns the fences of ended leases.
    pub fn fences(&self) -> &Fences<M> {
        &self.fences
    }

    /// Returns the end of the quarantine, before which no leases are granted.
    pub fn begins(&self) -> Time {
        self.begin
    }

    /// Returns the incarnation, a random number that distinguishes this lender from earlier lenders
    /// of this node.
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

    /// Returns the number of times that each transition of a device was made.
    pub fn flow(&self) -> &Counts<OfferState> {
        &self.flow
    }
}

impl Entry {
    /// Returns the device as it is described to borrowers.
    fn description(&self) -> Device {
        let node = self.lease.as_ref().map_or(NodeId(0), |l| l.node);
        let state = match self.state {
            OfferState::Free if self.withdrawn => DeviceState::Fencing,
            OfferState::Free => DeviceState::Free,
            OfferState::Granting | OfferState::Lent | OfferState::Recalling => {
                DeviceState::Lent(node)
            }
            OfferState::Fencing => DeviceState::Fencing,
            OfferState::Broken => DeviceState::Broken,
        };
        Device {
            state,
            ..self.offer
        }
    }
}
