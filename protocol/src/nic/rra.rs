// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Remote register access over RMA: matches notifications with requests (HW §13).
//!
//! Any number of requests may be outstanding. The answer to a read is a completer notification. The
//! notification contains the address of the local quadword to which the value was written. Each
//! read therefore uses a separate quadword. If an answer is overdue, its quadword is not reused
//! before the answer arrives or [`EXPIRY_S`] seconds have passed. A late answer is therefore never
//! mistaken for the answer to a later request, and never overwrites a later value.
//!
//! The answer to a write is a requester notification, which contains only the node and the value.
//! These notifications arrive in order (HW §10.8), but a notification may be lost. Among equal
//! writes, a notification is therefore assigned to a waiting write rather than to an overdue write.
//! This is correct because the notification proves for each of these writes that the NIC sent the
//! value to the node.

use wire::ids::NodeId;

pub use super::quirks::EXPIRY_S;

/// Progress of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Waiting,
    /// Answered with these error bits. The requester has not collected the answer yet.
    Done(u8),
    /// The requester has given up, but the answer may still arrive.
    Overdue,
}

/// Relation of a notification to the outstanding requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The notification answers a waiting request.
    Awaited,
    /// The notification answers a request that was given up.
    Late,
    /// The notification matches no request.
    Unknown,
}

/// State of one quadword of the answer buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    state: State,
    node: NodeId,
    since_s: u32,
}

impl Slot {
    /// Free slot.
    pub const FREE: Self = Self {
        state: State::Free,
        node: NodeId(0),
        since_s: 0,
    };
}

/// Answer buffer, as a slice of slots.
pub struct Reads<'a>(pub &'a mut [Slot]);

impl Reads<'_> {
    /// Claims a slot for a request to `node`. Prefers the first free slot at or after index `from`,
    /// cyclically. If no slot is free, claims the overdue slot with the oldest request, provided
    /// that this request is at least [`EXPIRY_S`] old.
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

    /// Processes a completer notification of `node` with error bits for slot `index`.
    pub fn complete(&mut self, index: usize, node: NodeId, error: u8) -> Answer {
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

    /// Returns the error bits of the answer once and frees the slot. The caller must read the value
    /// before this call.
    pub fn take_result(&mut self, index: usize) -> Option<u8> {
        let slot = self.0.get_mut(index)?;
        let State::Done(error) = slot.state else {
            return None;
        };
        *slot = Slot::FREE;
        Some(error)
    }

    /// Returns true if an answer may still arrive.
    pub fn is_expected(&self, now_s: u32) -> bool {
        self.0.iter().any(|s| match s.state {
            State::Free | State::Done(_) => false,
            State::Waiting => true,
            State::Overdue => now_s.wrapping_sub(s.since_s) < EXPIRY_S,
        })
    }

    /// Frees the slot of a request that was not sent.
    pub fn cancel(&mut self, index: usize) {
        if let Some(slot) = self.0.get_mut(index) {
            *slot = Slot::FREE;
        }
    }

    /// Records that the requester waits no longer. If the answer has arrived, the slot becomes
    /// free.
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

/// Writes without a notification, in the order of their requests.
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
    /// Maximum number of outstanding writes, including overdue writes.
    pub const MAX: usize = 64;

    /// Adds a write. Returns the ID of the write, or `None` if [`Writes::MAX`] writes are
    /// outstanding.
    pub fn push(&mut self, node: NodeId, value: u64, now_s: u32) -> Option<u32> {
        for slot in &mut self.list {
            let forgotten =
                |w: Write| w.state == State::Overdue && now_s.wrapping_sub(w.since_s) >= EXPIRY_S;
            if slot.is_some_and(forgotten) {
                *slot = None;
            }
        }
        let slot = self.list.iter_mut().find(|p| p.is_none())?;
        let id = self.next;
        self.next = id.wrapping_add(1);
        *slot = Some(Write {
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
        all.find(|slot| slot.is_some_and(|w| w.id == id))
    }

    /// Removes a write that was not sent.
    pub fn cancel(&mut self, id: u32) {
        if let Some(slot) = self.find(id) {
            *slot = None;
        }
    }

    /// Records that the requester waits no longer. If the notification has arrived, the write is
    /// removed.
    pub fn give_up(&mut self, id: u32, now_s: u32) {
        let Some(slot) = self.find(id) else { return };
        match slot {
            Some(w) if w.state == State::Waiting => {
                w.state = State::Overdue;
                w.since_s = now_s;
            }
            _ => *slot = None,
        }
    }

    /// Returns the error bits of the notification once and removes the write.
    pub fn take_result(&mut self, id: u32) -> Option<u8> {
        let slot = self.find(id)?;
        let Some(Write {
            state: State::Done(error),
            ..
        }) = *slot
        else {
            return None;
        };
        *slot = None;
        Some(error)
    }

    /// Processes a requester notification with error bits. The notification is assigned to the
    /// oldest waiting write that matches, or else to the oldest overdue write that matches. Older
    /// overdue writes are removed, because their notifications cannot arrive any more. Overdue
    /// writes that match too are kept.
    pub fn complete(&mut self, node: NodeId, value: u64, error: u8) -> Answer {
        let next = self.next;
        let age = |id: u32| next.wrapping_sub(id);
        let equal = |w: &Write| w.node == node && w.value == value;
        let open = |w: &Write| matches!(w.state, State::Waiting | State::Overdue);
        let fits = self.list.iter().flatten().filter(|w| equal(w) && open(w));
        let found = fits.max_by_key(|w| (w.state == State::Waiting, age(w.id)));
        let Some(Write { id, state, .. }) = found.copied() else {
            return Answer::Unknown;
        };
        for slot in &mut self.list {
            let overtaken =
                |w: Write| w.state == State::Overdue && age(w.id) > age(id) && !equal(&w);
            if slot.is_some_and(overtaken) {
                *slot = None;
            }
        }
        let Some(slot) = self.find(id) else {
            return Answer::Unknown;
        };
        if state == State::Overdue {
            *slot = None;
            return Answer::Late;
        }
        if let Some(w) = slot {
            w.state = State::Done(error);
        }
        Answer::Awaited
    }
}
