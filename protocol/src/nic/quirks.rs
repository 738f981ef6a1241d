// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Assumptions about the chip on which the state machines of the NIC rely. docs/hardware.md lists
//! the open questions ("G n").
//!
//! Code that relies on an assumption by its structure, without a constant:
//!
//! | Gap | Where | When a board has answered |
//! |---|---|---|
//! | G8 | `reclaim.rs` `stores` | closing a VPID empties its pages: remove the function |
//! | G10 | `ring_consumer.rs` `initial`, `free`, `arm` | equal pointers mean empty: use all slots |
//! | G10 | `ring_consumer.rs` `may_store_again` | "full" is a comparison: always store |
//! | G17 | `nla.rs` `size_code`, `cut` | large pages do not work: 4 KiB only |
//! | G17 | `tickets.rs`, `translation.rs` | commands are executed at once: do not wait |
//! | G18 | `smfu.rs` `Targets::base` | the meaning of base 0 is known: use 0 for "no target" |
//! | G26 | `../pci/reach.rs` `Reach::message` | address or data are reported: one per vector |

/// G7: does the NIC lose an interrupt that becomes due while the arming store is in flight? Number
/// of armings that a register read confirms after the first lost interrupt was found. Remove the
/// guard if the NIC raises such an interrupt after the arming.
pub(super) const CONFIRMED_ARMINGS: u32 = 10_000;

/// G10: does the store of an unchanged read pointer clear the flag of a full queue? Minimum number
/// of consumed slots for an update. A smaller update would store the pointer of the last arming
/// again. Remove the constant if such a store is harmless.
pub(super) const MIN_COMMIT_SLOTS: u32 = 2;

/// G11: how long after its store is a descriptor counted? Time in microseconds for which the state
/// must stay the same before the requester counts as idle. Remove the constant if a read of the
/// state register waits for stores to requester pages.
pub(super) const QUIET_US: u64 = 100;

/// G11: minimum number of reads of the state within [`QUIET_US`]. Remove the constant together with
/// [`QUIET_US`].
pub(super) const QUIET_READS: u8 = 3;

/// G11: factor by which the waiting time for commands stored by the reclaim exceeds the waiting
/// time for commands of the last owner. The NIC has had time for the last owner's commands before
/// the wait begins. Remove the constant when the maximum time is known.
pub(super) const RECLAIM_SHARE: u64 = 5;

/// G15: how late can an answer arrive? Time in seconds after which a request for a remote register
/// without an answer is dropped. Remove the constant if the NIC can distinguish late answers, or
/// when the maximum age of answers is known.
pub const EXPIRY_S: u32 = 60;
