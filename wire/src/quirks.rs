// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Assumptions about formats of the chip on which drivers rely. docs/hardware.md lists the open
//! questions ("G n").
//!
//! Code that relies on an assumption by its structure, without a constant:
//!
//! | Gap | Where | When a board has answered |
//! |---|---|---|
//! | G4 | `snq/program.rs` `Style::Single` | bursts work for all events: remove the style |
//! | G6 | `snq/mod.rs` `Ring::blank` | a restart begins at entry 0: all headers are 0 |
//! | G8 | `velo.rs` requester address | bits `[24:22]` have a meaning: decode them |
//! | G9 | `velo.rs` status word: EOM, ERR | meaning known: rely on it |
//! | G12 | `rma.rs` `Descriptor::decode` | odd quadword commands fail: reject them |
//! | G13 | `eth/message.rs` `from_notification` | reported command code known: accept only it |
//! | G13, G17 | `rma/fault.rs` `of` | meaning of error bits known: correct the table |
//! | G16 | `rma.rs` `LockTarget` | the units differ: choose by use |
//! | G17 | `atu.rs` `GatEntry::translate` | large pages translate otherwise: correct it |
//! | G20 | `regs/pcie.rs`, `tlp/backdoor.rs` `info` | bit positions known: correct them |
//! | G20 | `tlp/words.rs` `pack`, `unpack` | header takes other quadwords: correct the layout |
//! | G21 | `route.rs` | entry format known: replace; drivers do not use it |

use core::ops::Range;

/// G18: does target base 0 mean the default base or physical address 0? Intervals for which nothing
/// is opened lead to this address instead: 90 TiB, where no machine has memory or devices. Remove
/// when a base is known that rejects all accesses.
pub(crate) const UNMAPPED_ADDRESS: u64 = 0x5A00_0000_0000;

/// G26: which bus addresses does the bridge turn into interrupts? Drivers refuse memory in this
/// range. Correct when the size of the range is known.
pub(crate) const INTERRUPT_ADDRESSES: Range<u64> = 0xFD_0000_0000..0xFE_0000_0000;
