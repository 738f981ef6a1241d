// SPDX-License-Identifier: GPL-2.0-only

//! Buffer queue of a process: layout by its wish (HW §7), memory that it maps and consumes itself. What it writes there
//! harms only itself: the kernel reads nothing but the status word of one slot, to answer poll.

use crate::{bq, dma::DmaWords, hw::Hw};
use kernel::{
    device::{self, Bound},
    prelude::*,
    sync::Arc,
};
use kernel_ext::{chardev::Part, security::LockedPages};
use wire::{
    bq::{SlotCode, MAX_SEGMENTS, MAX_SEGMENT_SLOTS},
    ids::{BusAddr, Unit, Vpid},
    regs::BqRegs,
};

const PAGE: u64 = BusAddr::PAGE_SIZE;
/// Largest queue in bytes.
pub(super) const MAX_BYTES: u64 = 64 << 20;

/// Sizes in bytes, as the process set them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) bytes: u64,
    pub(super) segment: u64,
}

impl Layout {
    /// Segments and slots per segment. `EINVAL`: no whole number of segments, more than 512 of them, a segment of more
    /// than 65,536 slots, or more than 64 MiB.
    fn check(self, slot: SlotCode) -> Result<(u32, u32)> {
        let Self { bytes, segment } = self;
        let segment = segment.min(bytes);
        if bytes == 0 || bytes > MAX_BYTES || segment == 0 || bytes % segment != 0 {
            return Err(EINVAL);
        }
        let count = bytes / segment;
        let slots = segment / u64::from(slot.bytes());
        if segment % PAGE != 0
            || count > u64::from(MAX_SEGMENTS)
            || slots > u64::from(MAX_SEGMENT_SLOTS)
        {
            return Err(EINVAL);
        }
        Ok((count as u32, slots as u32))
    }
}

/// Memory of one queue.
pub(super) struct Queue {
    unit: Unit,
    vpid: Vpid,
    slot: SlotCode,
    per_segment: u32,
    segments: KVec<Arc<DmaWords>>,
    dcq: DmaWords,
    _charge: LockedPages,
}

impl Queue {
    /// Allocates zeroed memory, charged to the calling process. May sleep. `EINVAL` see [`Layout::check`]; `ENOMEM`: no
    /// memory or limit exceeded.
    pub(super) fn new(
        dev: &device::Device<Bound>,
        unit: Unit,
        vpid: Vpid,
        slot: SlotCode,
        layout: Layout,
    ) -> Result<Self> {
        let (count, per_segment) = layout.check(slot)?;
        let charge = LockedPages::charge((layout.bytes / PAGE) as usize)?;
        let dcq = DmaWords::accounted(dev, PAGE as usize / 8)?;
        let memory = |words| {
            let memory = Arc::new(DmaWords::accounted(dev, words)?, GFP_KERNEL)?;
            let address = memory.address();
            Ok((memory, address))
        };
        let segments = bq::segments(&dcq, slot, count, per_segment, memory)?;
        Ok(Self {
            unit,
            vpid,
            slot,
            per_segment,
            segments,
            dcq,
            _charge: charge,
        })
    }

    pub(super) fn slots(&self) -> u32 {
        self.per_segment * self.segments.len() as u32
    }

    /// Tells the NIC; `arm`: interrupts of the VPID are armed.
    pub(super) fn install(&self, hw: &Hw, arm: bool) -> Result {
        let count = self.segments.len() as u32;
        let slots = self.slots();
        bq::install(hw, self.unit, self.vpid, slots, count, &self.dcq, arm)
    }

    /// Takes the queue from the NIC, which has seen that when this returns.
    pub(super) fn remove(unit: Unit, vpid: Vpid, hw: &Hw) {
        bq::clear(hw, unit, vpid);
        hw.rf.read(BqRegs(unit).ub(vpid));
    }

    /// Status word of a slot; 0 outside of the queue.
    pub(super) fn status(&self, slot: u32) -> u64 {
        let words = self.slot.bytes() / 8;
        let segment = self.segments.get((slot / self.per_segment) as usize);
        let word = (slot % self.per_segment) * words + words - 1;
        segment.map_or(0, |s| s.read(word as usize))
    }

    /// What to map behind the page of the read pointer.
    pub(super) fn parts(&self, parts: &mut KVec<Part>) -> Result {
        for segment in &self.segments {
            let pages = segment.words() / (PAGE as usize / 8);
            parts.push(Part::new(segment.clone(), 0, pages), GFP_KERNEL)?;
        }
        Ok(())
    }
}
