// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Remote register access over RMA: which notification answers which request (HW §13).
//!
//! A read is answered by a completer notification that names the quadword of local memory the value was written to, so
//! every read gets a quadword of its own. One whose answer is overdue is not used again before the answer came or
//! [`EXPIRY_S`] seconds went by: a late answer neither is taken for a later request's, nor overwrites a later value.
//! A write is answered by a requester notification that names node and value only; those come in order (HW §10.8). One may get
//! lost, though, so that of equal writes the one that is waited for comes first: it is behind the others, and an answer to one of
//! them still says that the NIC sends that value to that node.

use crate::ids::NodeId;

/// After so many seconds a request without answer is forgotten.
pub const EXPIRY_S: u32 = 60;

/// What a quadword of the answer buffer is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    Waiting,
    Overdue,
}

/// A quadword of the answer buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    state: Use,
    node: NodeId,
    since_s: u32,
}

impl Slot {
    /// Not in use.
    pub const FREE: Self = Self {
        state: Use::Free,
        node: NodeId(0),
        since_s: 0,
    };
}

/// What a completer notification for a slot means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The answer that is waited for.
    Awaited,
    /// The answer to a request that was given up.
    Late,
    /// Nobody asked.
    Unknown,
}

/// The answer buffer as a slice of slots.
pub struct Reads<'a>(pub &'a mut [Slot]);

impl Reads<'_> {
    /// Takes a slot for a request to `node`: the first free one at or after index `from`, cyclically, else the one that
    /// is overdue for longest, provided that is [`EXPIRY_S`] or more.
    pub fn claim(&mut self, from: usize, node: NodeId, now_s: u32) -> Option<usize> {
        let len = self.0.len();
        let age = |s: &Slot| now_s.wrapping_sub(s.since_s);
        let free = (from..len)
            .chain(0..from.min(len))
            .find(|i| self.0.get(*i).is_some_and(|s| s.state == Use::Free));
        let index = free.or_else(|| {
            let overdue = self.0.iter().enumerate();
            overdue
                .filter(|(_, s)| s.state == Use::Overdue && age(s) >= EXPIRY_S)
                .max_by_key(|(_, s)| age(s))
                .map(|(i, _)| i)
        })?;
        *self.0.get_mut(index)? = Slot {
            state: Use::Waiting,
            node,
            since_s: now_s,
        };
        Some(index)
    }

    /// A completer notification of `node` for slot `index` arrived: the slot is free unless nobody asked.
    pub fn settle(&mut self, index: usize, node: NodeId) -> Answer {
        let Some(slot) = self.0.get_mut(index).filter(|s| s.node == node) else {
            return Answer::Unknown;
        };
        let answer = match slot.state {
            Use::Free => return Answer::Unknown,
            Use::Waiting => Answer::Awaited,
            Use::Overdue => Answer::Late,
        };
        *slot = Slot::FREE;
        answer
    }

    /// Whether an answer may still come.
    pub fn is_expected(&self, now_s: u32) -> bool {
        self.0.iter().any(|s| match s.state {
            Use::Free => false,
            Use::Waiting => true,
            Use::Overdue => now_s.wrapping_sub(s.since_s) < EXPIRY_S,
        })
    }

    /// The request was not sent.
    pub fn cancel(&mut self, index: usize) {
        if let Some(slot) = self.0.get_mut(index) {
            *slot = Slot::FREE;
        }
    }

    /// Nobody waits for the answer any more.
    pub fn give_up(&mut self, index: usize, now_s: u32) {
        if let Some(slot) = self.0.get_mut(index) {
            slot.state = Use::Overdue;
            slot.since_s = now_s;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Write {
    id: u32,
    node: NodeId,
    value: u64,
    since_s: u32,
}

/// Writes without notification yet, in order.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    list: [Option<Write>; Self::MAX],
    next: u32,
}

impl Writes {
    /// Writes that can be outstanding, overdue ones included.
    pub const MAX: usize = 16;

    /// Notes a write; its identity, or `None` when [`Writes::MAX`] are outstanding.
    pub fn push(&mut self, node: NodeId, value: u64, now_s: u32) -> Option<u32> {
        for place in &mut self.list {
            if place.is_some_and(|w| now_s.wrapping_sub(w.since_s) >= EXPIRY_S) {
                *place = None;
            }
        }
        let place = self.list.iter_mut().find(|p| p.is_none())?;
        let id = self.next;
        self.next = id.wrapping_add(1);
        *place = Some(Write {
            id,
            node,
            value,
            since_s: now_s,
        });
        Some(id)
    }

    /// The write was not sent.
    pub fn cancel(&mut self, id: u32) {
        for place in &mut self.list {
            if place.is_some_and(|w| w.id == id) {
                *place = None;
            }
        }
    }

    /// A requester notification arrived: the write it belongs to, which is `awaited` if that fits, else the oldest that fits.
    /// Older ones, whose notifications cannot come any more, are forgotten, but for those that the notification may have
    /// been for.
    pub fn settle(&mut self, node: NodeId, value: u64, awaited: Option<u32>) -> Option<u32> {
        let next = self.next;
        let age = |id: u32| next.wrapping_sub(id);
        let equal = |w: &Write| w.node == node && w.value == value;
        let fits = self.list.iter().flatten().filter(|w| equal(w));
        let id = fits
            .map(|w| w.id)
            .max_by_key(|id| (Some(*id) == awaited, age(*id)))?;
        for place in &mut self.list {
            if place.is_some_and(|w| w.id == id || (age(w.id) > age(id) && !equal(&w))) {
                *place = None;
            }
        }
        Some(id)
    }
}
