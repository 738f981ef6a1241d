// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Interval numbers of ended leases that may not be reused yet.
//!
//! A fence keeps the target numbers of one lease. The other end is asked repeatedly to confirm that
//! its windows are closed. After its confirmation, accesses may be in flight for another
//! [`Limits::in_flight_max`]. Then the fence is removed and its numbers are released. Until then
//! this node opens no other target with these numbers, so that late accesses have no effect. A
//! lease without numbers has a fence too, so that the other end is asked to close the lease. Such a
//! fence is removed without confirmation after [`Limits::give_up`].

use super::{earlier, Limits};
use crate::{Memory, Time};
use wire::ids::NodeId;
use wire::pci::LeaseId;

/// Maximum number of fences with numbers. Each fence has at least one number, and 62 numbers exist.
const NUMBERED: usize = 62;
/// Maximum number of fences without numbers. A further fence replaces the oldest.
const OTHERS: usize = 18;

#[derive(Clone, Copy, Debug)]
struct Fence {
    node: NodeId,
    lease: LeaseId,
    numbers: u64,
    /// Time at which the numbers are released; `None` until the other end has confirmed.
    until: Option<Time>,
    /// Time at which the other end is asked next.
    next: Time,
    /// Time between the next question and the question after it, in ticks.
    interval: u64,
    /// Time of the last question; `None` before the first question.
    asked: Option<Time>,
    /// Time at which the lease was closed at this end.
    since: Time,
}

/// Fences of all leases of a [`Lender`](super::Lender) or [`Borrower`](super::Borrower).
pub struct Fences<M: Memory> {
    list: M::Array<Option<Fence>>,
}

impl<M: Memory> Fences<M> {
    pub(super) fn new() -> Result<Self, M::Error> {
        Ok(Self {
            list: M::array(NUMBERED + OTHERS, |_| None)?,
        })
    }

    fn all(&self) -> impl Iterator<Item = &Fence> {
        self.list.iter().flatten()
    }

    fn find(&mut self, node: NodeId, lease: LeaseId) -> Option<&mut Fence> {
        let mut all = self.list.iter_mut().flatten();
        all.find(|f| f.node == node && f.lease == lease)
    }

    /// Adds a fence for a lease that was closed at this end. If the other end has already confirmed
    /// that its windows are closed, the numbers are fenced for `in_flight_max` only.
    pub(super) fn add(
        &mut self,
        now: Time,
        (node, lease): (NodeId, LeaseId),
        numbers: u64,
        confirmed: bool,
        limits: &Limits,
    ) {
        if confirmed && numbers == 0 {
            return;
        }
        let fence = Fence {
            node,
            lease,
            numbers,
            until: confirmed.then_some(now.after(limits.in_flight_max)),
            next: now,
            interval: limits.retry,
            asked: None,
            since: now,
        };
        let free = self.list.iter().position(Option::is_none);
        let others = self.all().filter(|f| f.numbers == 0).count();
        let slot = match free {
            Some(slot) if numbers != 0 || others < OTHERS => Some(slot),
            // A fence without numbers exists, because at most `NUMBERED` fences have numbers.
            _ => (0u32..)
                .zip(self.list.iter())
                .filter_map(|(i, f)| f.as_ref().filter(|f| f.numbers == 0).map(|f| (f.since, i)))
                .min()
                .map(|(_, i)| i as usize),
        };
        if let Some(slot) = slot.and_then(|slot| self.list.get_mut(slot)) {
            *slot = Some(fence);
        }
    }

    /// Records that the other end has closed all windows of a lease. Returns false if the lease has
    /// no fence.
    pub(super) fn confirm(
        &mut self,
        now: Time,
        node: NodeId,
        lease: LeaseId,
        limits: &Limits,
    ) -> bool {
        let Some(fence) = self.find(node, lease) else {
            return false;
        };
        if fence.until.is_none() {
            fence.until = Some(now.after(limits.in_flight_max));
        }
        true
    }

    /// Returns true if the lease has a fence.
    pub(super) fn contains(&mut self, node: NodeId, lease: LeaseId) -> bool {
        self.find(node, lease).is_some()
    }

    /// Asks a node earlier than scheduled, because the node has just sent a message. The time
    /// between two questions remains at least `retry`.
    pub(super) fn hasten(&mut self, now: Time, node: NodeId, limits: &Limits) {
        let fences = self.list.iter_mut().flatten();
        for fence in fences.filter(|f| f.node == node && f.until.is_none()) {
            let soon = fence.asked.map_or(now, |asked| asked.after(limits.retry));
            fence.next = fence.next.min(soon);
        }
    }

    /// Records that a node has no windows any more. The caller must have proof, such as a restart
    /// of the node.
    pub(super) fn confirm_node(&mut self, now: Time, node: NodeId, limits: &Limits) {
        let fences = self.list.iter_mut().flatten();
        for fence in fences.filter(|f| f.node == node && f.until.is_none()) {
            fence.until = Some(now.after(limits.in_flight_max));
        }
    }

    /// Returns the next lease whose confirmation must be requested now, and schedules the
    /// repetition.
    pub(super) fn due(&mut self, now: Time, limits: &Limits) -> Option<(NodeId, LeaseId)> {
        let mut fences = self.list.iter_mut().flatten();
        let fence = fences.find(|f| f.until.is_none() && f.next <= now)?;
        fence.next = now.after(fence.interval);
        fence.interval = fence.interval.saturating_mul(2).min(limits.retry_max);
        fence.asked = Some(now);
        Some((fence.node, fence.lease))
    }

    /// Removes expired fences. Returns the set of numbers that are free again.
    pub(super) fn release(&mut self, now: Time, limits: &Limits) -> u64 {
        let mut free = 0;
        for slot in self.list.iter_mut() {
            let Some(fence) = slot else {
                continue;
            };
            let confirmed = fence.until.is_some_and(|until| until <= now);
            let expired = fence.numbers == 0 && now.since(fence.since) >= limits.give_up;
            if confirmed || expired || (fence.numbers == 0 && fence.until.is_some()) {
                free |= fence.numbers;
                *slot = None;
            }
        }
        free
    }

    /// Returns the set of all fenced numbers.
    #[must_use]
    pub fn numbers(&self) -> u64 {
        self.all().fold(0, |set, f| set | f.numbers)
    }

    /// Returns the number of fences.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all().count()
    }

    /// Returns true if there are no fences.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the unconfirmed leases: node of the other end, lease, set of numbers, and time at
    /// which the lease was closed at this end.
    pub fn open(&self) -> impl Iterator<Item = (NodeId, LeaseId, u64, Time)> + '_ {
        let open = self.all().filter(|f| f.until.is_none());
        open.map(|f| (f.node, f.lease, f.numbers, f.since))
    }

    /// Returns the time at which [`Fences::due`] or [`Fences::release`] must be called.
    pub(super) fn next(&self, limits: &Limits) -> Option<Time> {
        self.all().fold(None, |first, f| {
            let at = f.until.unwrap_or(f.next);
            let expired = (f.numbers == 0).then_some(f.since.after(limits.give_up));
            earlier(first, earlier(Some(at), expired))
        })
    }
}
