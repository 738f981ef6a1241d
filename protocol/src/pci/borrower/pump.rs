// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Time-outs of a borrower, and the work and messages that it hands to its driver.

use super::types::{EndReason, Entry, LeaseState, Work, WorkState};
use super::Borrower;
use crate::pci::earlier;
use crate::{Memory, Time};
use wire::ids::NodeId;
use wire::pci::{Body, Message, Role};

impl<M: Memory> Borrower<M> {
    /// Processes time-outs. The caller must call this function at [`Borrower::next`] or earlier.
    pub fn time(&mut self, now: Time) {
        for i in 0..self.leases.len() {
            let Some(entry) = self.leases.get(i).and_then(Option::as_ref) else {
                continue;
            };
            let handle = entry.handle;
            match entry.state {
                LeaseState::Asking if entry.until <= now => {
                    self.end_lease(now, handle, EndReason::NoAnswer);
                }
                LeaseState::Up | LeaseState::Opening if self.lost_at(entry) <= now => {
                    self.end_lease(now, handle, EndReason::Lost);
                }
                _ => {}
            }
        }
        self.released_numbers |= self.fences.release(now, &self.limits);
    }

    fn timeout(&self, entry: &Entry) -> u64 {
        self.limits.ticks(entry.grant.map_or(0, |g| g.timeout_ms))
    }

    fn lost_at(&self, entry: &Entry) -> Time {
        entry.confirmed_at.after(self.timeout(entry))
    }

    /// Returns the time at which [`Borrower::time`] and [`Borrower::step`] must be called.
    pub fn next(&self) -> Option<Time> {
        let leases = self.leases.iter().flatten().filter_map(|entry| {
            let access = entry.access.filter(|a| a.result.is_none());
            let access = access.map(|a| a.next.min(a.until));
            match entry.state {
                LeaseState::Asking => Some(entry.next.min(entry.until)),
                LeaseState::Up => earlier(Some(self.lost_at(entry).min(entry.next)), access),
                LeaseState::Opening if entry.why.is_none() => Some(self.lost_at(entry)),
                _ => None,
            }
        });
        let query = self.query.filter(|q| q.answer.is_none());
        let query = query.map(|q| q.next.min(q.until));
        earlier(earlier(leases.min(), query), self.fences.next(&self.limits))
    }

    /// Returns the next operation that may sleep.
    pub fn work(&mut self) -> Option<Work> {
        if self.released_numbers != 0 {
            return Some(Work::Release(core::mem::take(&mut self.released_numbers)));
        }
        for slot in self.leases.iter_mut() {
            let Some(entry) = slot else {
                continue;
            };
            let handle = entry.handle;
            let why = entry.why.unwrap_or(EndReason::Lost);
            match (entry.state, entry.operation, entry.grant) {
                (_, WorkState::OpenScheduled, Some(grant)) => {
                    entry.operation = WorkState::Opening;
                    return Some(Work::Open(handle, grant));
                }
                (_, WorkState::CloseScheduled, _) => {
                    entry.operation = WorkState::Closing;
                    return Some(Work::Close(handle, why));
                }
                (LeaseState::Closed, ..) => {
                    *slot = None;
                    return Some(Work::Closed(handle, why));
                }
                (LeaseState::Up, ..) => {
                    if let Some(grace) = entry.recall.take() {
                        return Some(Work::Recall(handle, grace));
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Returns the next message to be sent.
    pub fn step(&mut self, now: Time) -> Option<(NodeId, Message)> {
        if let Some(answer) = self.answers.pop() {
            return Some(answer);
        }
        for i in 0..self.leases.len() {
            if let Some(step) = self.step_of(now, i) {
                return Some(step);
            }
        }
        if let Some(query) = self.query.as_mut() {
            if query.answer.is_none() && query.next <= now && now < query.until {
                query.next = now.after(self.limits.retry);
                let (node, number, index) = (query.node, query.number, query.index);
                return Some((node, self.message(number, Body::List(index))));
            }
        }
        let (node, lease) = self.fences.due(now, &self.limits)?;
        Some((node, self.message(0, Body::Return(lease))))
    }

    fn step_of(&mut self, now: Time, i: usize) -> Option<(NodeId, Message)> {
        let (limits, sender) = (self.limits, self.incarnation);
        let entry = self.leases.get_mut(i)?.as_mut()?;
        let (id, to) = (entry.id, Role::Lender);
        let (number, body) = match entry.state {
            LeaseState::Asking if entry.next <= now && now < entry.until => {
                let again = core::mem::replace(&mut entry.asked, true);
                self.counters.again = self.counters.again.wrapping_add(again.into());
                entry.next = now.after(entry.interval.max(1));
                entry.interval = entry.interval.saturating_mul(2).min(limits.retry_max);
                entry.confirmed_at = now;
                (entry.handle.0, Body::Borrow(entry.terms))
            }
            LeaseState::Opening | LeaseState::Up if entry.alive_answer.is_some() => {
                let number = entry.alive_answer.take().unwrap_or(0);
                let answer = true;
                (
                    number,
                    Body::Alive {
                        lease: id,
                        to,
                        answer,
                    },
                )
            }
            // Send `ALIVE` before accesses, because the caller of an access repeats the access at
            // short intervals.
            LeaseState::Up if entry.next <= now => {
                let timeout = entry.grant.map_or(0, |g| g.timeout_ms);
                entry.next = now.after((limits.ticks(timeout) / 5).max(1));
                let number = entry.question.0.wrapping_add(1);
                entry.question = (number, now);
                let answer = false;
                (
                    number,
                    Body::Alive {
                        lease: id,
                        to,
                        answer,
                    },
                )
            }
            LeaseState::Up => {
                let access = entry.access.as_mut().filter(|a| a.is_due(now))?;
                access.next = now.after(limits.access_retry);
                // Send a question too, because its answer shows if the lender is reachable. Only
                // one question is open at a time.
                let first = !core::mem::replace(&mut access.again, true);
                if first && entry.confirmed_at >= entry.question.1 {
                    entry.next = now;
                }
                self.counters.again = self.counters.again.wrapping_add(1);
                (access.number, access.body(id))
            }
            _ => return None,
        };
        let message = Message {
            number,
            sender,
            body,
        };
        Some((entry.lender, message))
    }
}
