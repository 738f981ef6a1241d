// SPDX-License-Identifier: GPL-2.0-only

//! Buffer queues: VELO mailboxes and RMA notification queues (HW §7).
//!
//! Ownership: the NIC writes slots from its write pointer up to one slot before the read pointer that software last
//! wrote to `rp`; a slot whose status word (last word) is not zero belongs to software, which reads it, zeroes the
//! status word, advances, and tells the NIC from time to time. Only the owner of a [`Queue`]'s reading side advances.

use crate::{context::Context, dma::DmaWords, hw::Hw};
use kernel::{
    device::{self, Bound},
    prelude::*,
};
use wire::{
    bq::{DcqBase, General, Rp, SegmentDesc, SegmentWord, SlotCode, Ub, WritePointers},
    ids::{BusAddr, Unit, Vpid},
    regs::BqRegs,
};

/// Memory per segment.
const SEGMENT_BYTES: u32 = 256 * 1024;

/// Writes 0 to the six registers of a VPID, in the order of HW §3.2.
pub(crate) fn clear(hw: &Hw, unit: Unit, vpid: Vpid) {
    let regs = BqRegs(unit);
    for reg in [
        regs.ub(vpid),
        regs.dcq_base_dcq_ub(vpid),
        regs.c_base_size_valid(vpid),
        regs.n_base_size_valid(vpid),
        regs.wp_lwp_dcq_rp(vpid),
        regs.rp(vpid),
    ] {
        hw.rf.write(reg, 0);
    }
}

/// Sets up a queue of `slots` slots in the creation order of HW §7; `arm`: interrupts of the VPID are armed. `dcq` has the words of `segments`
/// segments. With one segment the next one is the same (HW §7 for VELO; G10). `ERANGE`: no such number of segments.
pub(crate) fn install(
    hw: &Hw,
    unit: Unit,
    vpid: Vpid,
    slots: u32,
    segments: u32,
    dcq: &DmaWords,
    arm: bool,
) -> Result {
    let page = dcq.address();
    let base = DcqBase { segments, page }.encode().map_err(|_| ERANGE)?;
    let segment = |k: u32| {
        let k = if k < segments { k } else { 0 };
        SegmentWord(dcq.read(k as usize)).with_valid(true).raw()
    };
    let regs = BqRegs(unit);
    for (reg, value) in [
        (regs.ub(vpid), Ub(0).with_slots_minus_1(slots - 1).raw()),
        (regs.dcq_base_dcq_ub(vpid), base.raw()),
        (
            regs.wp_lwp_dcq_rp(vpid),
            WritePointers::initial(segments).raw(),
        ),
        (regs.rp(vpid), Rp(0).with_irq_retrigger(arm).raw()),
        (regs.c_base_size_valid(vpid), segment(0)),
        (regs.n_base_size_valid(vpid), segment(1)),
    ] {
        hw.rf.write(reg, value);
    }
    Ok(())
}

/// Makes `count` segments of `slots` slots each of what `allocate` gives for a number of words, with its address, and notes them in
/// `dcq`. May sleep.
pub(crate) fn segments<T>(
    dcq: &DmaWords,
    slot: SlotCode,
    count: u32,
    slots: u32,
    allocate: impl Fn(usize) -> Result<(T, BusAddr)>,
) -> Result<KVec<T>> {
    let mut segments = KVec::with_capacity(count as usize, GFP_KERNEL)?;
    for k in 0..count {
        let (memory, base) = allocate((slots * slot.bytes() / 8) as usize)?;
        let desc = SegmentDesc { slot, slots, base };
        dcq.write(k as usize, desc.encode().map_err(|_| ERANGE)?.raw());
        segments.push(memory, GFP_KERNEL)?;
    }
    Ok(segments)
}

/// `extoll_bq` part of the probe (HW §3.2).
pub(crate) fn init(ctx: &Context) -> Result {
    for unit in [Unit::Velo, Unit::Rma] {
        for vpid in Vpid::all() {
            clear(&*ctx.access().ok_or(ENODEV)?, unit, vpid);
        }
    }
    let hw = ctx.access().ok_or(ENODEV)?;
    for unit in [Unit::Velo, Unit::Rma] {
        hw.rf.update(BqRegs(unit).general(), |v| {
            General(v).with_enable(true).raw()
        });
    }
    Ok(())
}

/// Stops both queue engines.
pub(crate) fn stop(ctx: &Context) {
    let Some(hw) = ctx.alive_access() else { return };
    for unit in [Unit::Velo, Unit::Rma] {
        hw.rf.update(BqRegs(unit).general(), |v| {
            General(v).with_enable(false).raw()
        });
    }
}

/// Memory of one queue, with its place in the hardware.
pub(crate) struct Queue {
    unit: Unit,
    vpid: Vpid,
    slot: SlotCode,
    segments: KVec<DmaWords>,
    dcq: DmaWords,
    slots: u32,
    /// Slots per segment as a power of two.
    shift: u32,
}

impl Queue {
    /// Allocates zeroed memory for `bytes`, a power of two of at least two segments. May sleep.
    pub(crate) fn new(
        dev: &device::Device<Bound>,
        unit: Unit,
        vpid: Vpid,
        slot: SlotCode,
        bytes: u32,
    ) -> Result<Self> {
        if !bytes.is_power_of_two() || !(2 * SEGMENT_BYTES..=64 << 20).contains(&bytes) {
            return Err(EINVAL);
        }
        let count = bytes / SEGMENT_BYTES;
        let per_segment = SEGMENT_BYTES >> slot.bytes().trailing_zeros();
        let dcq = DmaWords::new(dev, BusAddr::PAGE_SIZE as usize / 8)?;
        let memory = |words| {
            let memory = DmaWords::new(dev, words)?;
            let address = memory.address();
            Ok((memory, address))
        };
        let segments = segments(&dcq, slot, count, per_segment, memory)?;
        Ok(Self {
            unit,
            vpid,
            slot,
            segments,
            dcq,
            slots: count * per_segment,
            shift: per_segment.trailing_zeros(),
        })
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Tells the NIC; interrupts of the VPID are armed.
    pub(crate) fn install(&self, hw: &Hw) -> Result {
        let count = self.segments.len() as u32;
        install(hw, self.unit, self.vpid, self.slots, count, &self.dcq, true)
    }

    /// Word `word` of slot `slot`; 0 outside.
    pub(crate) fn read(&self, slot: u32, word: u32) -> u64 {
        let (k, i) = self.place(slot, word);
        self.segments.get(k).map_or(0, |s| s.read(i))
    }

    /// Status word of a slot: its last word.
    pub(crate) fn status(&self, slot: u32) -> u64 {
        self.read(slot, self.slot.bytes() / 8 - 1)
    }

    /// Gives a slot back: its status word becomes 0.
    pub(crate) fn free(&self, slot: u32) {
        let (k, i) = self.place(slot, self.slot.bytes() / 8 - 1);
        if let Some(s) = self.segments.get(k) {
            s.write(i, 0);
        }
    }

    fn place(&self, slot: u32, word: u32) -> (usize, usize) {
        let k = slot >> self.shift;
        let in_segment = slot & ((1 << self.shift) - 1);
        (
            k as usize,
            (in_segment * (self.slot.bytes() / 8) + word) as usize,
        )
    }

    /// The slot after `slot`.
    pub(crate) fn next(&self, slot: u32, by: u32) -> u32 {
        // The number of slots is a power of two.
        (slot + by) & (self.slots - 1)
    }

    /// Tells the NIC the next slot to be read: a logical index, not one within a segment (G10); `rearm` unmasks the
    /// interrupt of the VPID.
    pub(crate) fn commit(&self, hw: &Hw, slot: u32, rearm: bool) {
        hw.rf.write(
            BqRegs(self.unit).rp(self.vpid),
            Rp(0).with_lrp(slot).with_irq_retrigger(rearm).raw(),
        );
    }
}
