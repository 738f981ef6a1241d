// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Formats of buffer queues (HW §7): segment descriptors and queue registers.
//! [`crate::regs::velo_bq`] and [`crate::regs::rma_bq`] have the register offsets.

use crate::ids::BusAddr;
use core::fmt;

/// Maximum number of segments per descriptor page.
pub const MAX_SEGMENTS: u32 = 512;
/// Maximum number of slots per segment.
pub const MAX_SEGMENT_SLOTS: u32 = 1 << 16;

/// Slot size code of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotCode {
    /// 16 bytes: RMA notifications.
    B16,
    /// 32 bytes.
    B32,
    /// 64 bytes: small VELO slots.
    B64,
    /// 128 bytes: large VELO slots.
    B128,
}

impl SlotCode {
    /// Returns the two-bit code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Decodes the two-bit code. Uses only bits `[1:0]` of `code`.
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => SlotCode::B16,
            1 => SlotCode::B32,
            2 => SlotCode::B64,
            _ => SlotCode::B128,
        }
    }

    /// Returns the slot size in bytes.
    pub const fn bytes(self) -> u32 {
        16 << self as u8
    }
}

impl From<crate::velo::SlotSize> for SlotCode {
    fn from(size: crate::velo::SlotSize) -> Self {
        match size {
            crate::velo::SlotSize::B64 => SlotCode::B64,
            crate::velo::SlotSize::B128 => SlotCode::B128,
        }
    }
}

/// Reason why a queue layout is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Error {
    /// The number of slots of a segment is not in 1…65,536.
    Slots(u32),
    /// The number of segments is not in 1…512.
    Segments(u32),
    /// The base address is not page aligned or needs more than 52 bits.
    Base(BusAddr),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Slots(n) => write!(f, "{n} slots per segment is not in 1…{MAX_SEGMENT_SLOTS}"),
            Error::Segments(n) => write!(f, "{n} segments is not in 1…{MAX_SEGMENTS}"),
            Error::Base(addr) => write!(f, "base {addr} is not a page address below 2^52"),
        }
    }
}

bits! {
    /// Segment descriptor in a descriptor page or register. [`SegmentDesc`] is the checked form.
    pub struct SegmentWord {
        /// Code of the slot size.
        slot_code / with_slot_code: u8 [1:0];
        /// Number of slots − 1.
        slots_minus_1 / with_slots_minus_1: u16 [17:2];
        /// Bits `[51:12]` of the base address.
        base_page / with_base_page: u64 [57:18];
        /// Valid bit, which is used only in registers.
        valid / with_valid: bool [58:58];
    }
}

impl SegmentWord {
    /// Decodes the segment. Every bit pattern describes a segment. The valid bit is ignored.
    pub const fn segment(self) -> SegmentDesc {
        SegmentDesc {
            slot: SlotCode::from_code(self.slot_code()),
            slots: self.slots_minus_1() as u32 + 1,
            base: BusAddr(self.base_page() << 12),
        }
    }
}

/// Memory segment of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SegmentDesc {
    /// Code of the slot size.
    pub slot: SlotCode,
    /// Number of slots, 1…65,536.
    pub slots: u32,
    /// Page-aligned address of the first byte.
    pub base: BusAddr,
}

impl SegmentDesc {
    /// Returns the form for the descriptor page, without the valid bit.
    pub const fn encode(&self) -> Result<SegmentWord, Error> {
        if self.slots == 0 || self.slots > MAX_SEGMENT_SLOTS {
            return Err(Error::Slots(self.slots));
        }
        if !self.base.is_page() {
            return Err(Error::Base(self.base));
        }
        Ok(SegmentWord(0)
            .with_slot_code(self.slot.code())
            .with_slots_minus_1((self.slots - 1) as u16)
            .with_base_page(self.base.0 >> 12))
    }

    /// Returns the size of the segment in bytes, at most 8 MiB.
    pub const fn bytes(&self) -> u32 {
        self.slots.saturating_mul(self.slot.bytes())
    }
}

bits! {
    /// Word of the register `dcq_base_dcq_ub`. [`DcqBase`] is the checked form.
    pub struct DcqBaseWord {
        /// Number of segments − 1.
        dcq_ub / with_dcq_ub: u16 [15:0];
        /// Bits `[51:12]` of the address of the descriptor page.
        base_page / with_base_page: u64 [55:16];
    }
}

/// Descriptor page of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DcqBase {
    /// Number of segments, 1…512.
    pub segments: u32,
    /// Address of the descriptor page.
    pub page: BusAddr,
}

impl DcqBase {
    /// Returns the register value.
    pub const fn encode(&self) -> Result<DcqBaseWord, Error> {
        if self.segments == 0 || self.segments > MAX_SEGMENTS {
            return Err(Error::Segments(self.segments));
        }
        if !self.page.is_page() {
            return Err(Error::Base(self.page));
        }
        Ok(DcqBaseWord(0)
            .with_dcq_ub((self.segments - 1) as u16)
            .with_base_page(self.page.0 >> 12))
    }

    /// Decodes and checks a register value.
    pub const fn decode(word: DcqBaseWord) -> Result<Self, Error> {
        let segments = word.dcq_ub() as u32 + 1;
        if segments > MAX_SEGMENTS {
            return Err(Error::Segments(segments));
        }
        Ok(Self {
            segments,
            page: BusAddr(word.base_page() << 12),
        })
    }
}

bits! {
    /// Register `ub`.
    pub struct Ub {
        /// Total number of slots − 1.
        slots_minus_1 / with_slots_minus_1: u32 [31:0];
    }
}

bits! {
    /// Register `wp_lwp_dcq_rp`.
    pub struct WritePointers {
        /// Index of the next descriptor that the NIC reads.
        dcq_rp / with_dcq_rp: u16 [15:0];
        /// Write pointer inside the segment (inferred).
        wp / with_wp: u16 [31:16];
        /// Logical write pointer in slots.
        lwp / with_lwp: u32 [63:32];
    }
}

impl WritePointers {
    /// Returns the value for a new queue of `segments` segments (HW §7). `dcq_rp` is 0 for fewer
    /// than three segments, and 2 otherwise.
    pub const fn initial(segments: u32) -> Self {
        Self(0).with_dcq_rp(if segments < 3 { 0 } else { 2 })
    }
}

bits! {
    /// Register `rp`.
    pub struct Rp {
        /// Logical read pointer: number of the next slot to read.
        lrp / with_lrp: u32 [31:0];
        /// Writing 1 re-enables interrupts of the VPID. Writing 0 leaves them unchanged.
        irq_retrigger / with_irq_retrigger: bool [32:32];
    }
}

bits! {
    /// Register `general`.
    pub struct General {
        /// True if the queue engine is enabled.
        enable / with_enable: bool [0:0];
        /// The assertion of the upper bound has failed.
        ub_assert / with_ub_assert: bool [1:1];
        /// A full queue has timed out.
        timeout_assert / with_timeout_assert: bool [2:2];
        /// The assertion of the logical write pointer has failed.
        lwp_assert / with_lwp_assert: bool [3:3];
        /// VPID of the last error.
        error_queue / with_error_queue: u8 [11:4];
        /// Number of errors.
        error_count / with_error_count: u32 [43:12];
    }
}

bits! {
    /// Register `debug`.
    pub struct Debug {
        /// State of the queue engine.
        state / with_state: u8 [4:0];
        /// Number of descriptors received.
        rcvd_dcqs / with_rcvd_dcqs: u32 [36:5];
        /// Double-bit error in the RAM.
        ram_ded / with_ram_ded: bool [37:37];
        /// Single-bit error in the RAM.
        ram_sec / with_ram_sec: bool [38:38];
    }
}
