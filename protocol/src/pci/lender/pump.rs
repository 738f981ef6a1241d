// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Time-outs of a lender, and the work and messages that it hands to its driver.

use super::types::{Access, Config, Ended, Entry, OfferState, Open, Step, Work, WorkState};
use super::Lender;
use crate::pci::earlier;
use crate::{Memory, Time};
use wire::pci::{Body, Grant, Message, Numbers, Role};

impl<M: Memory> Lender<M> {
    /// Processes time-outs. The caller must call this function at [`Lender::next`] or earlier.
    pub fn time(&mut self, now: Time) {
        let timeout = self.limits.ticks(self.limits.timeout_ms);
        for i in 0..self.devices.len() {
            let Some(entry) = self.devices.get_mut(i).and_then(Option::as_mut) else {
                continue;
            };
            let handle = entry.offer.handle;
            let Some(lease) = &mut entry.lease else {
                continue;
            };
            lease.reset_delayed &= now < lease.reset_not_before;
            let recalling = entry.state == OfferState::Recalling;
            if !recalling && entry.state != OfferState::Lent {
                continue;
            }
            if recalling && lease.grace <= now {
                self.end_lease(now, handle, Ended::Reclaimed);
            } else if now.since(lease.last_message) >= timeout {
                self.end_lease(now, handle, Ended::Expired);
            } else {
                if recalling && lease.again <= now {
                    lease.pending.revoke = true;
                }
                if lease.question <= now {
                    lease.question = now.after(self.limits.retry);
                    lease.pending.question = true;
                }
            }
        }
        self.released_numbers |= self.fences.release(now, &self.limits);
    }

    /// Returns the time at which [`Lender::time`] and [`Lender::step`] must be called.
    pub fn next(&self) -> Option<Time> {
        let timeout = self.limits.ticks(self.limits.timeout_ms);
        let lent = self.devices.iter().flatten().filter_map(|entry| {
            let lease = entry.lease.as_ref()?;
            let mut first = lease.last_message.after(timeout).min(lease.question);
            if lease.reset_delayed {
                first = first.min(lease.reset_not_before);
            }
            match entry.state {
                OfferState::Lent => Some(first),
                OfferState::Recalling => Some(first.min(lease.grace).min(lease.again)),
                _ => None,
            }
        });
        earlier(lent.min(), self.fences.next(&self.limits))
    }

    /// Returns the next operation that may sleep. Operations that end leases are returned first,
    /// because other nodes wait for them with a deadline. Opens and resets of the devices are
    /// returned in round-robin order, so that one borrower cannot delay the other devices.
    pub fn work(&mut self) -> Option<Work> {
        if self.released_numbers != 0 {
            return Some(Work::Release(core::mem::take(&mut self.released_numbers)));
        }
        if let Some(work) = self.devices.iter_mut().find_map(Self::ending) {
            return Some(work);
        }
        let count = self.devices.len().max(1);
        for i in (self.next_device..count).chain(0..self.next_device) {
            let entry = self.devices.get_mut(i).and_then(Option::as_mut);
            if let Some(work) = entry.and_then(Self::next_operation) {
                self.next_device = (i + 1) % count;
                return Some(work);
            }
        }
        None
    }

    /// Returns the operation that ends a lease or removes a withdrawn device.
    fn ending(slot: &mut Option<Entry>) -> Option<Work> {
        let entry = slot.as_mut()?;
        let handle = entry.offer.handle;
        let Some(lease) = &entry.lease else {
            if entry.withdrawn {
                *slot = None;
                return Some(Work::Gone(handle));
            }
            return None;
        };
        let idle = entry.operation == WorkState::Idle && !matches!(lease.access, Access::Issued);
        if !idle || entry.state != OfferState::Fencing {
            return None;
        }
        entry.operation = WorkState::Closing;
        let numbers = lease.opened.map_or(Numbers::default(), |o| o.numbers);
        Some(Work::Close(handle, numbers))
    }

    /// Returns the next open or reset of a device.
    fn next_operation(entry: &mut Entry) -> Option<Work> {
        let handle = entry.offer.handle;
        let lease = entry.lease.as_ref()?;
        let wanted =
            entry.reset_wanted && !lease.reset_delayed && !matches!(lease.access, Access::Issued);
        match entry.operation {
            WorkState::OpenScheduled => {
                entry.operation = WorkState::Opening;
                Some(Work::Open(Open {
                    handle,
                    borrower: lease.node,
                    bars: lease.bars,
                    links: lease.links,
                    dma: lease.dma,
                }))
            }
            WorkState::ResetScheduled => {
                entry.operation = WorkState::Resetting;
                Some(Work::Reset(handle))
            }
            WorkState::Idle if wanted => {
                entry.reset_wanted = false;
                entry.operation = WorkState::Resetting;
                Some(Work::Reset(handle))
            }
            _ => None,
        }
    }

    /// Returns the next message or configuration access, for any context.
    pub fn step(&mut self, now: Time) -> Option<Step> {
        if let Some((node, message)) = self.answers.pop() {
            return Some(Step::Send(node, message));
        }
        for i in 0..self.devices.len() {
            if let Some(step) = self.step_of(now, i) {
                return Some(step);
            }
        }
        let (node, lease) = self.fences.due(now, &self.limits)?;
        Some(Step::Send(node, self.message(0, Body::Revoke(lease, 0))))
    }

    fn step_of(&mut self, now: Time, i: usize) -> Option<Step> {
        let (limits, sender) = (self.limits, self.incarnation);
        let entry = self.devices.get_mut(i)?.as_mut()?;
        let lease = entry.lease.as_mut()?;
        if !matches!(entry.state, OfferState::Lent | OfferState::Recalling) {
            return None;
        }
        let resetting = entry.operation != WorkState::Idle || entry.reset_wanted;
        if let (Access::Scheduled(register, write), false) = (lease.access, resetting) {
            lease.access = Access::Issued;
            return Some(Step::Config(Config {
                handle: entry.offer.handle,
                lease: lease.id,
                number: lease.number,
                register,
                write,
            }));
        }
        let (pending, id) = (&mut lease.pending, lease.id);
        let (number, body) = if core::mem::take(&mut pending.grant) {
            let opened = lease.opened?;
            let grant = Grant {
                lease: id,
                generation: entry.offer.generation,
                timeout_ms: limits.timeout_ms,
                numbers: opened.numbers,
                dma: opened.dma,
                interrupts: opened.interrupts,
                borrower: lease.incarnation,
            };
            (id.nonce(), Body::Grant(grant))
        } else if let (Access::Finished(status, value), true) =
            (lease.access, core::mem::take(&mut pending.done))
        {
            (lease.number, Body::Done(id, status, value))
        } else if let Some(number) = pending.alive.take() {
            let (to, answer) = (Role::Borrower, true);
            let lease = id;
            (number, Body::Alive { lease, to, answer })
        } else if core::mem::take(&mut pending.question) {
            let (to, answer) = (Role::Borrower, false);
            let lease = id;
            (0, Body::Alive { lease, to, answer })
        } else if core::mem::take(&mut pending.revoke) {
            lease.again = now.after(lease.interval);
            lease.interval = lease.interval.saturating_mul(2).min(limits.retry_max);
            let left = lease.grace.since(now) / limits.ms.max(1);
            // Use at least 1, because 0 would mean that the lease has ended.
            let left = u32::try_from(left).unwrap_or(u32::MAX).max(1);
            (0, Body::Revoke(id, left))
        } else {
            return None;
        };
        let message = Message {
            number,
            sender,
            body,
        };
        Some(Step::Send(lease.node, message))
    }
}
