// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Assumptions about the chip on which the state machines of the NIC rely. docs/hardware.md lists
//! the open questions ("G n").
//!
//! Code that relies on an assumption by its structure, without a constant:
//!
//! | Gap | Where | When a board has answered |
//! |---|---|---|
//! | G8 | `reclaim.rs` `stores` | closing a VPID empties its pages: remove |
//! | G10 | `ring_consumer.rs` `initial`, `free`, `arm` | equal pointers mean empty: use all slots |
//! | G10 | `ring_consumer.rs` `may_store_again` | "full" is a comparison: always store |
//! | G17 | `nla.rs` `size_code`, `cut` | large pages do not work: 4 KiB only |
//! | G17 | `tickets.rs`, `translation.rs` | commands are executed at once: do not wait |
//! | G18 | `smfu.rs` `Targets::base` | meaning of base 0 known: use 0 for "nothing" |
//! | G26 | `../pci/reach.rs` `Reach::message` | address or data reported: one per vector |

/// G7: does a NIC forget an interrupt that is wanted while the arming store is on its way? Number
/// of armings that a register read confirms after the first interrupt was found lost. Remove the
/// guard when a missed interrupt follows the arming.
pub(super) const CONFIRMED_ARMINGS: u32 = 10_000;

/// G10: does the store of an unchanged read pointer clear the flag of a full queue? Minimum number
/// of consumed slots for an update. A smaller update would store the pointer of the last arming
/// again. Remove when such a store is harmless.
pub(super) const MIN_COMMIT_SLOTS: u32 = 2;

/// G11: how long after its store is a descriptor counted? Time in microseconds for which the state
/// must stay the same before the requester counts as idle. Remove when a read of the state register
/// waits for stores to requester pages.
pub(super) const QUIET_US: u64 = 100;

/// G11: as for [`QUIET_US`]. Minimum number of reads of the state within that time. Remove with it.
pub(super) const QUIET_READS: u8 = 3;

/// G11: as for [`QUIET_US`]. Factor by which the NIC may take longer for the commands stored by the
/// reclaim than for those of the last owner, which had time before. Remove when the maximum time is
/// known.
pub(super) const RECLAIM_SHARE: u64 = 5;

/// G15: how late can an answer arrive? Time in seconds after which a request for a remote register
/// without an answer is dropped. Remove when the NIC tells late answers from others, or when their
/// maximum age is known.
pub const EXPIRY_S: u32 = 60;
