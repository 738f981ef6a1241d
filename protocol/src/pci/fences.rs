// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Interval numbers of leases that are over, which may not be used for anything else yet.
//!
//! The other end is asked again and again whether its window is gone. When it has said so, accesses
//! may still be on their way for [`Limits::hold`]; then the numbers are released. Nobody else may have
//! them before, in this node: they are to lead nowhere.

use super::{sooner, Limits};
use crate::{Memory, Time};
use wire::ids::NodeId;
use wire::pci::LeaseId;

/// Leases with numbers: each has one at least, and there are 62.
const NUMBERED: usize = 62;
/// Leases without; of these the oldest are forgotten.
const OTHERS: usize = 18;

#[derive(Clone, Copy, Debug)]
struct Fence {
    node: NodeId,
    lease: LeaseId,
    numbers: u64,
    /// The other end has said it: when the numbers are released.
    until: Option<Time>,
    /// When it is asked next, and how long the pause behind that is.
    next: Time,
    interval: u64,
    /// When it was asked last.
    asked: Option<Time>,
    since: Time,
}

/// See the module's documentation.
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

    /// The numbers of a lease may not be used until its other end has said that it reaches nothing
    /// by them, if it has not done so, and `hold` longer.
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
            until: confirmed.then_some(now.after(limits.hold)),
            next: now,
            interval: limits.ask,
            asked: None,
            since: now,
        };
        let free = self.list.iter().position(Option::is_none);
        let others = self.all().filter(|f| f.numbers == 0).count();
        let place = match free {
            Some(place) if numbers != 0 || others < OTHERS => Some(place),
            // There is one without numbers, as each with some has others.
            _ => (0u32..)
                .zip(self.list.iter())
                .filter_map(|(i, f)| f.as_ref().filter(|f| f.numbers == 0).map(|f| (f.since, i)))
                .min()
                .map(|(_, i)| i as usize),
        };
        if let Some(place) = place.and_then(|place| self.list.get_mut(place)) {
            *place = Some(fence);
        }
    }

    /// The other end has said that it reaches nothing any more by a lease: whether that is one of
    /// these.
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
            fence.until = Some(now.after(limits.hold));
        }
        true
    }

    /// Whether a lease is one of these.
    pub(super) fn knows(&mut self, node: NodeId, lease: LeaseId) -> bool {
        self.find(node, lease).is_some()
    }

    /// A node is there: it is asked soon, but not more often than every `ask`.
    pub(super) fn kick(&mut self, now: Time, node: NodeId, limits: &Limits) {
        let fences = self.list.iter_mut().flatten();
        for fence in fences.filter(|f| f.node == node && f.until.is_none()) {
            let soon = fence.asked.map_or(now, |asked| asked.after(limits.ask));
            fence.next = fence.next.min(soon);
        }
    }

    /// A node reaches nothing any more: whoever says so knows.
    pub(super) fn forget(&mut self, now: Time, node: NodeId, limits: &Limits) {
        let fences = self.list.iter_mut().flatten();
        for fence in fences.filter(|f| f.node == node && f.until.is_none()) {
            fence.until = Some(now.after(limits.hold));
        }
    }

    /// The next lease that is to be asked about now, which counts as done.
    pub(super) fn due(&mut self, now: Time, limits: &Limits) -> Option<(NodeId, LeaseId)> {
        let mut fences = self.list.iter_mut().flatten();
        let fence = fences.find(|f| f.until.is_none() && f.next <= now)?;
        fence.next = now.after(fence.interval);
        fence.interval = fence.interval.saturating_mul(2).min(limits.ask_most);
        fence.asked = Some(now);
        Some((fence.node, fence.lease))
    }

    /// Ends what is over; numbers that are free again, as a set.
    pub(super) fn release(&mut self, now: Time, limits: &Limits) -> u64 {
        let mut free = 0;
        for place in self.list.iter_mut() {
            let Some(fence) = place else {
                continue;
            };
            let said = fence.until.is_some_and(|until| until <= now);
            let vain = fence.numbers == 0 && now.since(fence.since) >= limits.give_up;
            if said || vain || (fence.numbers == 0 && fence.until.is_some()) {
                free |= fence.numbers;
                *place = None;
            }
        }
        free
    }

    /// Numbers of all of these, as a set.
    #[must_use]
    pub fn numbers(&self) -> u64 {
        self.all().fold(0, |set, f| set | f.numbers)
    }

    /// How many leases these are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all().count()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Leases of which the other end has not said yet that it reaches nothing, with its node, the
    /// numbers, and since when.
    pub fn open(&self) -> impl Iterator<Item = (NodeId, LeaseId, u64, Time)> + '_ {
        let open = self.all().filter(|f| f.until.is_none());
        open.map(|f| (f.node, f.lease, f.numbers, f.since))
    }

    /// When something is to be done next.
    pub(super) fn next(&self, limits: &Limits) -> Option<Time> {
        self.all().fold(None, |first, f| {
            let at = f.until.unwrap_or(f.next);
            let vain = (f.numbers == 0).then_some(f.since.after(limits.give_up));
            sooner(first, sooner(Some(at), vain))
        })
    }
}
