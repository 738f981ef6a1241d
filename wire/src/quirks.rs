// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Assumptions about the chip's formats. docs/hardware.md lists these assumptions and open
//! questions ("G n").
//!
//! Some code relies on an assumption by its structure, without a constant. The table lists this
//! code, and its change after a test on a board:
//!
//! | Gap | Code | Possible result of a test, and change |
//! |---|---|---|
//! | G4 | `snq/program.rs` `Style::Single` | bursts work for all events: remove the style |
//! | G6 | `snq/mod.rs` `Ring::blank` | a restart begins at entry 0: return 0 for all headers |
//! | G8 | `velo.rs` requester address | bits `[24:22]` have a meaning: decode them |
//! | G9 | `velo.rs` status word: EOM, ERR | the meaning is known: check the bits |
//! | G12 | `rma.rs` `Descriptor::decode` | commands with an odd quadword fail: reject them |
//! | G13 | `eth/message.rs` `from_notification` | the reported code is known: accept only this code |
//! | G13, G17 | `rma/fault.rs` `of` | the meaning of error bits is known: correct the table |
//! | G16 | `rma.rs` `LockTarget` | the units differ: choose the unit for each use |
//! | G17 | `atu.rs` `GatEntry::translate` | large pages are translated otherwise: correct it |
//! | G20 | `regs/pcie.rs`, `tlp/backdoor.rs` `info` | the bit positions are known: correct them |
//! | G20 | `tlp/words.rs` `pack`, `unpack` | the header uses other quadwords: correct the layout |
//! | G21 | `route.rs` | the entry format is known: replace the format, which drivers do not use |

use core::ops::Range;

/// G18: does target base 0 mean the default base or physical address 0? Intervals for which nothing
/// is opened lead to this address instead: 90 TiB, where no machine has memory or devices. Remove
/// when a base is known that rejects all accesses.
pub(crate) const UNMAPPED_ADDRESS: u64 = 0x5A00_0000_0000;

/// G26: which bus addresses does the bridge turn into interrupts? Drivers refuse memory in this
/// range. Correct when the size of the range is known.
pub(crate) const INTERRUPT_ADDRESSES: Range<u64> = 0xFD_0000_0000..0xFE_0000_0000;
