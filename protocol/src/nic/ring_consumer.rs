// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! State machine without I/O of the consumer of a buffer queue (HW §7, G10). It tracks the read
//! position and detects lost writes and lost interrupts (G7).
//!
//! DMA writes are posted. A lost write leaves a *hole*: a slot whose status word stays 0 although
//! the NIC's write pointer has passed the slot. Without detection, the queue would stall at the
//! hole forever. A slot is therefore skipped if two checks, some time apart, find that it is empty
//! and that the write pointer has passed it.
//!
//! One slot always stays unused: the stored read pointer never reaches the slot that is read next.
//! Therefore equal pointers mean that the queue is full. If the NIC's write pointer is at the slot
//! that is read next, the queue is empty. This is true for both rules of G10, even while data that
//! the NIC has sent is still in flight to memory.
//!
//! The owner checks for holes while it polls an empty queue. The cost is one register read per
//! interval. If the owner waits for interrupts, a timer checks once, some time after the queue was
//! armed. If the pointers differ, the timer makes the owner poll. No timer runs while the queue
//! stays idle.

use super::quirks::{CONFIRMED_ARMINGS, MIN_COMMIT_SLOTS};
use crate::Time;

/// Maximum number of consumed slots before the read pointer is updated. The limit is a quarter of
/// the queue if that is less.
const COMMIT_SLOTS: u32 = 256;

/// State while the next slot is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Empty {
    /// Time at which the slot was found empty, or of the last check.
    since: Time,
    /// Number of slots by which the NIC's write pointer was ahead at the last check.
    unread: u32,
}

/// Consumer of a ring of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingConsumer {
    slots: u32,
    /// Minimum time between two checks of an empty slot, in ticks.
    hole_interval: u64,
    next: u32,
    /// Position up to which free slots were reported to the NIC.
    committed: u32,
    /// Read pointer that was stored last.
    stored: u32,
    empty: Option<Empty>,
    /// Number of slots from `next` on whose content should have arrived.
    overdue: u32,
}

impl RingConsumer {
    /// Returns the state for slot 0 of a new queue of `slots` slots. `hole_interval` is the minimum
    /// time in ticks between two checks of a slot that remains empty.
    #[must_use]
    pub const fn new(slots: u32, hole_interval: u64) -> Self {
        Self {
            slots,
            hole_interval,
            next: 0,
            committed: 0,
            stored: initial(slots),
            empty: None,
            overdue: 0,
        }
    }

    /// Returns the index of the next slot to read.
    #[inline]
    #[must_use]
    pub const fn next(&self) -> u32 {
        self.next
    }

    /// Returns the slot that is `by` slots behind `slot`; `by` must not exceed the number of slots.
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

    /// Returns the number of slots from `from` to `to`, not counting `to`.
    const fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from {
            to - from
        } else {
            to + self.slots - from
        }
    }

    /// Returns the number of slots between the next slot to read and the NIC's write pointer
    /// `pointer`.
    #[must_use]
    pub const fn unread(&self, pointer: u32) -> u32 {
        if pointer >= self.slots {
            0
        } else {
            self.distance(self.next, pointer)
        }
    }

    /// Marks the next `n` slots as consumed and free.
    #[inline]
    pub fn advance(&mut self, n: u32) {
        self.next = self.after(self.next, n);
        self.overdue = self.overdue.saturating_sub(n);
        self.empty = None;
    }

    /// Handles an empty slot, which is the next slot or a later slot of the same message. Returns
    /// the number of slots, beginning with the next slot, whose content should have arrived; 0 if
    /// there is no hole. `read_unread` reads the NIC's write pointer and returns the number of
    /// unread slots before it.
    pub fn overdue(&mut self, now: Time, read_unread: impl FnOnce(&Self) -> u32) -> u32 {
        if self.overdue != 0 {
            return self.overdue;
        }
        let Some(empty) = self.empty else {
            self.empty = Some(Empty {
                since: now,
                unread: 0,
            });
            return 0;
        };
        if now.since(empty.since) < self.hole_interval {
            return 0;
        }
        let unread = read_unread(self);
        self.empty = Some(Empty { since: now, unread });
        if unread != 0 {
            self.overdue = empty.unread;
        }
        self.overdue
    }

    /// Returns true if enough slots are free to update the NIC's read pointer.
    #[inline]
    #[must_use]
    pub const fn is_commit_due(&self) -> bool {
        let quarter = self.slots / 4;
        let limit = if quarter < MIN_COMMIT_SLOTS {
            MIN_COMMIT_SLOTS
        } else if quarter < COMMIT_SLOTS {
            quarter
        } else {
            COMMIT_SLOTS
        };
        self.distance(self.committed, self.next) >= limit
    }

    /// Releases free slots to the NIC without arming the interrupt. Returns the read pointer to
    /// store.
    ///
    /// Storing an unchanged pointer may clear the NIC's "full" flag (G10), after which the NIC
    /// would overwrite unread slots. This function therefore leaves one free slot unreported, so
    /// that the arming store always changes the pointer.
    pub fn free(&mut self) -> u32 {
        self.committed = self.next;
        self.stored = self.after(self.next, self.slots - 2);
        self.stored
    }

    /// Returns the read pointer to store with the arming of the interrupt. Returns `None` if the
    /// NIC already has this pointer and the queue may become full before the store arrives (see
    /// [`RingConsumer::free`]). The owner must then poll again later. `pointer` reads the NIC's
    /// write pointer; it is called only if the NIC already has this read pointer, and returns
    /// `None` if the NIC is not present.
    ///
    /// The NIC may write up to half of the queue between this read and the store. The caller must
    /// therefore store the returned value without delay.
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

/// Returns the read pointer of an empty queue of `slots` slots whose first slot is read next.
#[must_use]
pub const fn initial(slots: u32) -> u32 {
    slots.saturating_sub(1)
}

/// Returns true if the unchanged read pointer `rp` may be stored again while the NIC's write
/// pointer is `wp`. At least half of the queue must be free. Equal pointers mean that the queue is
/// full.
#[must_use]
pub const fn may_store_again(slots: u32, rp: u32, wp: u32) -> bool {
    if rp >= slots || wp >= slots {
        return false;
    }
    let room = if rp >= wp { rp - wp } else { rp + slots - wp };
    room != 0 && room >= slots / 2
}

/// Guard against lost interrupts: decides whether a register read must confirm each arming store
/// before the queue is polled.
///
/// The NIC may write a message that requires an interrupt while the arming store is in flight. The
/// NIC may then lose the interrupt, before the driver can see the message (G7). A poll right after
/// the store does not find the message, but a poll after a register read does. A register read
/// costs more than all other steps together. The guard therefore requires it only after a message
/// was found without an interrupt. It then requires a read for the next [`LostIrqGuard::FIRST`]
/// stores, and for four times as many after each further message of this kind. If the NIC often
/// loses interrupts, every store is confirmed in the end.
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
    /// Number of stores to confirm after the first message without an interrupt.
    pub const FIRST: u32 = CONFIRMED_ARMINGS;
    /// Initial state, before any message was found without an interrupt.
    pub const NONE: LostIrqGuard = LostIrqGuard {
        left: 0,
        next: Self::FIRST,
    };

    /// Records that a message was found without an interrupt.
    pub fn found(&mut self) {
        self.left = self.next;
        self.next = self.next.saturating_mul(4);
    }

    /// Returns true if the current arming store must be confirmed.
    #[inline]
    pub fn must_confirm(&mut self) -> bool {
        let due = self.left != 0;
        if due && self.next != u32::MAX {
            self.left -= 1;
        }
        due
    }
}
