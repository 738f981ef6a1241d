// SPDX-License-Identifier: GPL-2.0-only

//! Assumptions about the chip on which `extoll.ko` and the modules above it rely. docs/hardware.md
//! lists the open questions ("G n"). The constants of state machines and formats are in
//! `protocol/src/nic/quirks.rs` and `wire/src/quirks.rs`.
//!
//! Code whose structure relies on an assumption, without a constant:
//!
//! | Gap | Where | If a board shows that …, then … |
//! |---|---|---|
//! | G2, G27 | `setup.rs` `begin` | reset values are known: omit writes that equal them |
//! | G7 | `user/throttle.rs` `settle`, `renew` | a missed interrupt follows: remove both |
//! | G7 | `velo/mailbox.rs`, `rma/notifications.rs` `rearm` | the same: return no value |
//! | G8 | `mmio.rs` `push` | stores work in any order: do not keep the order |
//! | G8 | `reclaim.rs` `clear` | closing a VPID empties its pages: remove the function |
//! | G9 | `velo/mailbox.rs` `ready` | the first status word is written last: check only that word |
//! | G9 | `exn-netdev/rx_velo.rs` `message` | ERR has a known meaning: handle it accordingly |
//! | G10 | `queue.rs` `commit` | `rp` is an index within the segment: convert the index |
//! | G10 | `queue.rs` `install` | one segment needs no successor: leave the successor invalid |
//! | G10 | `queue.rs` `is_full`, `drain` | the rule for "full" is known: store only one pointer |
//! | G10 | `user/throttle.rs` `arm`, `may_store` | "full" is a comparison: always store |
//! | G14 | `rma/address.rs` `Peer::modifiers` | modifiers work: remove the restriction |
//! | G15 | `quarantine.rs`, `quarantine/` | the NIC drops late answers: free memory at once |
//! | G17 | `atu/commands.rs` `request` | a fence writes no word: use one word per slot |
//! | G17 | `atu/tables.rs` `make` | a new base drops cached entries: do not flush |
//! | G17 | `rra/port.rs` `match_answer` | the reporting unit is known: keep only its match arm |
//! | G18 | `smfu.rs` `init`, `smfu/target.rs` `write_all` | base 0 has a known meaning: write 0 |
//! | G18 | `smfu/window.rs` `disconnect` | accesses fail: do not keep the addresses reserved |
//! | G19 | `setup.rs` `begin`, `rra.rs` `Rra::open` | the target does not check: open on first use |
//! | G20 | `backdoor.rs` `fetch`, `empty` | reading `info` has a known effect: remove one |
//! | G26 | `snq/messages.rs`, `vpci/interrupt_relay.rs` | sources differ: call only one client |

use kernel::time::Delta;

/// G6: does each arming raise an interrupt for entries that have already arrived? The driver polls
/// the notification queue for lost interrupts at this interval in milliseconds, because only the
/// interrupt handler re-arms. Remove when no interrupt is lost.
pub(crate) const SNQ_WATCH_MS: u32 = 1000;

/// G6: can an entry be missing behind the write pointer of the notification queue? The driver waits
/// for it for this time in milliseconds, and then skips it. Remove when entries are never missing.
pub(crate) const SNQ_HOLE_MS: u32 = 100;

/// G7: is a message reported that arrived before its VPID was armed? The monitor of a queue checks
/// for such messages after this time in milliseconds. The consumer skips a slot that stays empty
/// for twice this time. Remove the monitor when missed interrupts follow.
pub(crate) const QUEUE_HOLE_MS: u32 = 100;

/// G7: question as for [`QUEUE_HOLE_MS`]. Delay of the monitor in milliseconds if an entry is known
/// to be in flight. Remove with the monitor.
pub(crate) const QUEUE_SOON_MS: u32 = 1;

/// G10: can a queue of a single segment be used in full? Kernel ports have at least this number of
/// segments. Remove when a queue of one segment wraps correctly.
pub(crate) const MIN_SEGMENTS: u64 = 2;

/// G10: does a NIC admit waiting packets after the VPID was disabled? The driver also drains a
/// closed queue before it disables the VPID, in at most this number of rounds. Remove the earlier
/// drain when packets are still admitted.
pub(crate) const QUEUE_DRAIN_ROUNDS: u32 = 16;

/// G10: question as for [`QUEUE_DRAIN_ROUNDS`]. Time for waiting packets to enter slots that were
/// freed. Remove when the NIC reports that no packet is waiting.
pub(crate) const QUEUE_DRAIN_PAUSE: Delta = Delta::from_micros(20);

/// G10: question as for [`QUEUE_DRAIN_ROUNDS`]. Time limit of draining in milliseconds. It is
/// checked before each round, because freeing all slots of a large queue takes long. Remove with
/// the drain.
pub(crate) const QUEUE_DRAIN_MS: u32 = 100;

/// G10: does storing an unchanged read pointer clear the flag of a full queue? The driver therefore
/// does not store it, and wakes waiting threads of the process after this time in milliseconds.
/// Remove when such a store is harmless.
pub(crate) const USER_RECHECK_MS: u32 = 1;

/// G10: question as for [`USER_RECHECK_MS`]. Number of unsuccessful checks after which the process
/// must poll, because an entry is missing before others. Remove with [`USER_RECHECK_MS`].
pub(crate) const MAX_REFUSED_ARMINGS: u32 = 100;

/// G10: what is the unit of the time-outs of full queues (HW §9.3, §10.7)? Time limit of a repair
/// in milliseconds, after which its packets are discarded. It must exceed the time for which full
/// queues at the peer can block the fabric. When the unit is known, derive the limit from it.
pub(crate) const REPAIR_DEADLINE_MS: i64 = 5000;

/// G11: when are executed commands counted? Time limit in milliseconds for the NIC to empty its
/// buffers after the last notification of a closed RMA VPID. Remove when the count precedes the
/// notification.
pub(crate) const RMA_SETTLE_MS: u32 = 10;

/// G15: can a late answer be distinguished from an answer for the new owner of an NLA? Freed NLAs
/// are reused within this time in milliseconds only if no others are free. Remove when the NIC
/// rejects late answers.
pub(crate) const NLA_HOLD_OFF_MS: u32 = 10_000;

/// G17, G35: does a register read, or a notification of the ATU, flush the writes of other units to
/// memory? Time in which writes of a unit reach memory after the unit was stopped. They take
/// another path than the answer to a register read (HW §5). Remove when a read or a notification
/// flushes them.
pub(crate) const WRITE_DRAIN_TIME: Delta = Delta::from_millis(2);

/// G26: which packet raises MSI vector 0? Interrupt packet of the notification queue, as written by
/// the vendor's driver: two header words and the payload (HW §6.2). When its fields are known,
/// compute the packet.
pub(crate) const INTERRUPT_PACKET: [u64; 3] = [0xFD23_0000_0040_002D, 0x0300_0100_0000, 0];

/// G35: how long does a store to the SMFU window take? Pause before a part of the window is
/// disconnected, in which stores that no load flushes reach their target. Remove when a register
/// read flushes them.
pub(crate) const SMFU_STORE_TIME: Delta = Delta::from_millis(5);
