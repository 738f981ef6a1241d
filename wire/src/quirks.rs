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
//! | G13 | `eth/message.rs` `from_notification` | the code is known: accept only this code |
//! | G13, G17 | `rma/fault.rs` `of` | the meaning of error bits is known: correct the table |
//! | G16 | `rma.rs` `LockTarget` | the units differ: choose the unit for each use |
//! | G17 | `atu.rs` `GatEntry::translate` | large pages are translated otherwise: correct it |
//! | G20 | `regs/pcie.rs`, `tlp/backdoor.rs` `info` | the bits are known: correct them |
//! | G20 | `tlp/words.rs` `pack`, `unpack` | the header uses other quadwords: correct the layout |
//! | G21 | `route.rs` | the format is known: replace it; drivers do not use it |

use core::ops::Range;

/// Base address of intervals without a mapping: 90 TiB, where no machine has memory or devices. It
/// is unknown whether target base 0 means the default base or physical address 0 (G18). This
/// constant is obsolete when a base is known that rejects all accesses.
pub(crate) const UNMAPPED_ADDRESS: u64 = 0x5A00_0000_0000;

/// Range of bus addresses in which drivers use no memory, because the bridge turns some of these
/// addresses into interrupts. The real size of the range is unknown (G26).
pub(crate) const INTERRUPT_ADDRESSES: Range<u64> = 0xFD_0000_0000..0xFE_0000_0000;
