// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Remote register access over RMA: which notification answers which request (HW §13).
//!
//! Any number of requests may be outstanding. A read is answered by a completer notification that
//! names the quadword of local memory the value was written to, so every read gets a quadword of
//! its own. One whose answer is overdue is not used again before the answer came or [`EXPIRY_S`]
//! seconds went by: a late answer neither is taken for a later request's, nor overwrites a later
//! value. A write is answered by a requester notification that names node and value only; those
//! come in order (HW §10.8). One may get lost, though, so that of equal writes those that are
//! waited for come before overdue ones: an answer to any of them says that the NIC sends that value
//! to that node.

use wire::ids::NodeId;

/// After so many seconds a request without answer is forgotten.
pub const EXPIRY_S: u32 = 60;

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Waiting,
    /// Answered, with error bits; nobody has fetched that yet.
    Done(u8),
    /// Nobody waits for the answer any more.
    Overdue,
}

/// What a notification means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// An answer that is waited for.
    Awaited,
    /// The answer to a request that was given up.
    Late,
    /// Nobody asked.
    Unknown,
}

/// A quadword of the answer buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    state: State,
    node: NodeId,
    since_s: u32,
}

impl Slot {
    /// Not in use.
    pub const FREE: Self = Self {
        state: State::Free,
        node: NodeId(0),
        since_s: 0,
    };
}

/// The answer buffer as a slice of slots.
pub struct Reads<'a>(pub &'a mut [Slot]);

impl Reads<'_> {
    /// Takes a slot for a request to `node`: the first free one at or after index `from`,
    /// cyclically, else the one that is overdue for longest, provided that is [`EXPIRY_S`] or more.
    pub fn claim(&mut self, from: usize, node: NodeId, now_s: u32) -> Option<usize> {
        let len = self.0.len();
        let age = |s: &Slot| now_s.wrapping_sub(s.since_s);
        let free = (from..len)
            .chain(0..from.min(len))
            .find(|i| self.0.get(*i).is_some_and(|s| s.state == State::Free));
        let index = free.or_else(|| {
            let overdue = self.0.iter().enumerate();
            overdue
                .filter(|(_, s)| s.state == State::Overdue && age(s) >= EXPIRY_S)
                .max_by_key(|(_, s)| age(s))
                .map(|(i, _)| i)
        })?;
        *self.0.get_mut(index)? = Slot {
            state: State::Waiting,
            node,
            since_s: now_s,
        };
        Some(index)
    }

    /// A completer notification of `node` for slot `index` arrived, with error bits.
    pub fn settle(&mut self, index: usize, node: NodeId, error: u8) -> Answer {
        let Some(slot) = self.0.get_mut(index).filter(|s| s.node == node) else {
            return Answer::Unknown;
        };
        match slot.state {
            State::Waiting => {
                slot.state = State::Done(error);
                Answer::Awaited
            }
            State::Overdue => {
                *slot = Slot::FREE;
                Answer::Late
            }
            State::Free | State::Done(_) => Answer::Unknown,
        }
    }

    /// The error bits of the answer, once: the slot is free afterwards, so read the value before.
    pub fn fetch(&mut self, index: usize) -> Option<u8> {
        let slot = self.0.get_mut(index)?;
        let State::Done(error) = slot.state else {
            return None;
        };
        *slot = Slot::FREE;
        Some(error)
    }

    /// Whether an answer may still come.
    pub fn is_expected(&self, now_s: u32) -> bool {
        self.0.iter().any(|s| match s.state {
            State::Free | State::Done(_) => false,
            State::Waiting => true,
            State::Overdue => now_s.wrapping_sub(s.since_s) < EXPIRY_S,
        })
    }

    /// The request was not sent.
    pub fn cancel(&mut self, index: usize) {
        if let Some(slot) = self.0.get_mut(index) {
            *slot = Slot::FREE;
        }
    }

    /// Nobody waits for the answer any more. If it is there, the slot is free.
    pub fn give_up(&mut self, index: usize, now_s: u32) {
        let Some(slot) = self.0.get_mut(index) else {
            return;
        };
        match slot.state {
            State::Waiting => {
                slot.state = State::Overdue;
                slot.since_s = now_s;
            }
            State::Done(_) => *slot = Slot::FREE,
            State::Free | State::Overdue => {}
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Write {
    id: u32,
    node: NodeId,
    value: u64,
    since_s: u32,
    state: State,
}

/// Writes without notification yet, in order.
#[derive(Clone, Debug)]
pub struct Writes {
    list: [Option<Write>; Self::MAX],
    next: u32,
}

impl Default for Writes {
    fn default() -> Self {
        Self {
            list: [None; Self::MAX],
            next: 0,
        }
    }
}

impl Writes {
    /// Writes that can be outstanding, overdue ones included.
    pub const MAX: usize = 64;

    /// Notes a write; its identity, or `None` when [`Writes::MAX`] are outstanding.
    pub fn push(&mut self, node: NodeId, value: u64, now_s: u32) -> Option<u32> {
        for place in &mut self.list {
            let forgotten =
                |w: Write| w.state == State::Overdue && now_s.wrapping_sub(w.since_s) >= EXPIRY_S;
            if place.is_some_and(forgotten) {
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
            state: State::Waiting,
        });
        Some(id)
    }

    fn find(&mut self, id: u32) -> Option<&mut Option<Write>> {
        let mut all = self.list.iter_mut();
        all.find(|place| place.is_some_and(|w| w.id == id))
    }

    /// The write was not sent.
    pub fn cancel(&mut self, id: u32) {
        if let Some(place) = self.find(id) {
            *place = None;
        }
    }

    /// Nobody waits for the notification any more. If it came, the write is forgotten.
    pub fn give_up(&mut self, id: u32, now_s: u32) {
        let Some(place) = self.find(id) else { return };
        match place {
            Some(w) if w.state == State::Waiting => {
                w.state = State::Overdue;
                w.since_s = now_s;
            }
            _ => *place = None,
        }
    }

    /// The error bits of the notification, once.
    pub fn fetch(&mut self, id: u32) -> Option<u8> {
        let place = self.find(id)?;
        let Some(Write {
            state: State::Done(error),
            ..
        }) = *place
        else {
            return None;
        };
        *place = None;
        Some(error)
    }

    /// A requester notification arrived, with error bits: it belongs to the oldest write that fits
    /// and is waited for, else to the oldest that fits. Overdue ones older than that, whose
    /// notifications cannot come any more, are forgotten, but for those that the notification may
    /// have been for.
    pub fn settle(&mut self, node: NodeId, value: u64, error: u8) -> Answer {
        let next = self.next;
        let age = |id: u32| next.wrapping_sub(id);
        let equal = |w: &Write| w.node == node && w.value == value;
        let open = |w: &Write| matches!(w.state, State::Waiting | State::Overdue);
        let fits = self.list.iter().flatten().filter(|w| equal(w) && open(w));
        let found = fits.max_by_key(|w| (w.state == State::Waiting, age(w.id)));
        let Some(Write { id, state, .. }) = found.copied() else {
            return Answer::Unknown;
        };
        for place in &mut self.list {
            let overtaken =
                |w: Write| w.state == State::Overdue && age(w.id) > age(id) && !equal(&w);
            if place.is_some_and(overtaken) {
                *place = None;
            }
        }
        let Some(place) = self.find(id) else {
            return Answer::Unknown;
        };
        if state == State::Overdue {
            *place = None;
            return Answer::Late;
        }
        if let Some(w) = place {
            w.state = State::Done(error);
        }
        Answer::Awaited
    }
}
