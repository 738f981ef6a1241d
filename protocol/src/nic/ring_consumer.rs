// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Reading side of a buffer queue, as state machines without I/O: where it is, what the NIC knows of that
//! (HW §7, G10), and what to do about lost writes and lost interrupts (G7).
//!
//! DMA writes are posted. One that gets lost leaves a *hole*: a slot whose status word stays 0 although the
//! NIC's write pointer passed it, behind which everything would wait for ever. A slot that is empty and
//! passed at two looks, a while apart, is skipped.
//!
//! One slot always stays unused: the read pointer is never stored as far as the slot that is read next. So equal
//! pointers mean that the queue is full, and that the NIC's write pointer is at the slot that is read next means that
//! it is empty, by both rules of G10 and whatever the memory shows: what the NIC has written may be on its way.
//!
//! Looks happen while the owner polls an empty queue, which costs a register read per while at most. For an
//! owner that waits for interrupts somebody else looks once, some time after the queue was armed, and has
//! the owner poll if the pointers differ. So nothing runs while nothing arrives.

use crate::Time;

/// Read pointer updates happen at least every this many slots, or quarter of the queue.
const COMMIT_SLOTS: u32 = 256;
/// Fewer than this at a time would store the pointer of the last arming again.
const LEAST_SLOTS: u32 = 2;

/// The next slot was found empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Empty {
    /// When that was noticed, or the last look.
    since: Time,
    /// Slots by which the NIC's write pointer was ahead at the last look.
    ahead: u32,
}

/// The reading side of a ring of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingConsumer {
    slots: u32,
    /// Ticks between two looks at a slot that stays empty.
    hole: u64,
    next: u32,
    /// Up to where the NIC was told of free slots.
    committed: u32,
    /// Read pointer that was stored last.
    stored: u32,
    empty: Option<Empty>,
    /// Slots from `next` on that had to be there by now.
    overdue: u32,
}

impl RingConsumer {
    /// At slot 0 of a new queue of `slots` slots; `hole`: ticks between two looks at a slot that stays
    /// empty.
    #[must_use]
    pub const fn new(slots: u32, hole: u64) -> Self {
        Self {
            slots,
            hole,
            next: 0,
            committed: 0,
            stored: initial(slots),
            empty: None,
            overdue: 0,
        }
    }

    /// Next slot to read.
    #[inline]
    #[must_use]
    pub const fn next(&self) -> u32 {
        self.next
    }

    /// The slot `by`, at most the number of slots, after `slot`.
    #[inline]
    #[must_use]
    pub const fn after(&self, slot: u32, by: u32) -> u32 {
        let next = slot + by;
        if next >= self.slots {
            next - self.slots
        } else {
            next
        }
    }

    /// Slots from `from` up to `to`.
    const fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from {
            to - from
        } else {
            to + self.slots - from
        }
    }

    /// Slots by which the NIC's write pointer is ahead.
    #[must_use]
    pub const fn ahead(&self, pointer: u32) -> u32 {
        if pointer >= self.slots {
            0
        } else {
            self.distance(self.next, pointer)
        }
    }

    /// The next `n` slots were taken, and are free again.
    #[inline]
    pub fn advance(&mut self, n: u32) {
        self.next = self.after(self.next, n);
        self.overdue = self.overdue.saturating_sub(n);
        self.empty = None;
    }

    /// The next slot, or a later one of the same message, is empty: number of slots from the next one on
    /// whose content had to be there by now, 0 if there is no hole. `look` reads the NIC's pointer and tells
    /// by how much it is ahead.
    pub fn overdue(&mut self, now: Time, look: impl FnOnce(&Self) -> u32) -> u32 {
        if self.overdue != 0 {
            return self.overdue;
        }
        let Some(empty) = self.empty else {
            self.empty = Some(Empty {
                since: now,
                ahead: 0,
            });
            return 0;
        };
        if now.since(empty.since) < self.hole {
            return 0;
        }
        let ahead = look(self);
        self.empty = Some(Empty { since: now, ahead });
        if ahead != 0 {
            self.overdue = empty.ahead;
        }
        self.overdue
    }

    /// Whether so many slots are free that the NIC is to be told.
    #[inline]
    #[must_use]
    pub const fn is_commit_due(&self) -> bool {
        let quarter = self.slots / 4;
        let limit = if quarter < LEAST_SLOTS {
            LEAST_SLOTS
        } else if quarter < COMMIT_SLOTS {
            quarter
        } else {
            COMMIT_SLOTS
        };
        self.distance(self.committed, self.next) >= limit
    }

    /// The NIC is told of free slots: the read pointer to store. The interrupt is not armed.
    ///
    /// A store of the pointer that the NIC has already may undo that it found the queue full meanwhile
    /// (G10), and all that is in it is overwritten then. So what only frees leaves one slot to the store
    /// that arms.
    pub fn free(&mut self) -> u32 {
        self.committed = self.next;
        self.stored = self.after(self.next, self.slots - 2);
        self.stored
    }

    /// The read pointer to store with the arming of the interrupt. `None` if that must not be: the NIC has this
    /// pointer already, and so much is in the queue, or on its way there, that it may become full before the store
    /// arrives (see [`RingConsumer::free`]). Then the owner is to look again a while later. `pointer` reads the NIC's write
    /// pointer, which is only asked for in the first case; `None`: there is no NIC.
    ///
    /// What the NIC writes between the read and the store may still be too much: half of the queue. So the owner
    /// stores what it gets at once, with nothing that may take long between.
    pub fn arm(&mut self, pointer: impl FnOnce() -> Option<u32>) -> Option<u32> {
        let rp = self.after(self.next, self.slots - 1);
        if self.stored == rp && !may_store_again(self.slots, rp, pointer()?) {
            return None;
        }
        self.committed = self.next;
        self.stored = rp;
        Some(rp)
    }
}

/// Read pointer of an empty queue of `slots` slots whose first slot is read next.
#[must_use]
pub const fn initial(slots: u32) -> u32 {
    slots.saturating_sub(1)
}

/// Whether the read pointer `rp`, which the NIC has already, may be stored again while its write pointer is `wp`: half of the
/// queue is free at least. Equal pointers mean that it is full.
#[must_use]
pub const fn may_store_again(slots: u32, rp: u32, wp: u32) -> bool {
    if rp >= slots || wp >= slots {
        return false;
    }
    let room = if rp >= wp { rp - wp } else { rp + slots - wp };
    room != 0 && room >= slots / 2
}

/// How often it is made sure that a store that arms has arrived before the queue is looked at.
///
/// An interrupt may be wanted while the store that arms it is on its way, and a NIC may forget it then (G7),
/// before what it tells of can be seen. A look at the queue right after the store does not find that, a look
/// behind the answer to a register read does; but such a read costs more than all the rest. So it is made
/// only once something was found that nobody was told of: the next [`LostIrqGuard::FIRST`] times, and four times as
/// often each time that this happens again. A NIC that forgets so has every store made sure of in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostIrqGuard {
    left: u32,
    next: u32,
}

impl Default for LostIrqGuard {
    fn default() -> Self {
        Self::NONE
    }
}

impl LostIrqGuard {
    /// How often at first.
    pub const FIRST: u32 = 10_000;
    /// Nothing has been found.
    pub const NONE: LostIrqGuard = LostIrqGuard {
        left: 0,
        next: Self::FIRST,
    };

    /// Something was found without an interrupt.
    pub fn found(&mut self) {
        self.left = self.next;
        self.next = self.next.saturating_mul(4);
    }

    /// Whether this time is one of them.
    #[inline]
    pub fn take(&mut self) -> bool {
        let due = self.left != 0;
        if due && self.next != u32::MAX {
            self.left -= 1;
        }
        due
    }
}
