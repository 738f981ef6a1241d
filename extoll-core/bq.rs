// SPDX-License-Identifier: GPL-2.0-only

//! Buffer queues: VELO mailboxes and RMA notification queues (HW §7).
//!
//! Ownership: the NIC writes slots from its write pointer up to one slot before the read pointer that software last
//! wrote to `rp`; a slot whose status word (last word) is not zero belongs to software, which reads it, zeroes the
//! status word, advances, and tells the NIC from time to time. Only the owner of a [`Queue`]'s reading side advances.

use crate::{dma::DmaWords, hw::Hw, nic::Nic};
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

/// `extoll_bq` part of the probe (HW §3.2).
pub(crate) fn init(nic: &Nic) -> Result {
    for unit in [Unit::Velo, Unit::Rma] {
        for vpid in Vpid::all() {
            clear(&*nic.access().ok_or(ENODEV)?, unit, vpid);
        }
    }
    let hw = nic.access().ok_or(ENODEV)?;
    for unit in [Unit::Velo, Unit::Rma] {
        hw.rf.update(BqRegs(unit).general(), |v| {
            General(v).with_enable(true).raw()
        });
    }
    Ok(())
}

/// Stops both queue engines.
pub(crate) fn stop(nic: &Nic) {
    let Some(hw) = nic.alive_access() else { return };
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
        let mut segments = KVec::with_capacity(count as usize, GFP_KERNEL)?;
        for k in 0..count {
            let memory = DmaWords::new(dev, SEGMENT_BYTES as usize / 8)?;
            let desc = SegmentDesc {
                slot,
                slots: per_segment,
                base: memory.address(),
            };
            dcq.write(k as usize, desc.encode().map_err(|_| ERANGE)?.raw());
            segments.push(memory, GFP_KERNEL)?;
        }
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

    fn segment_word(&self, k: usize) -> SegmentWord {
        SegmentWord(self.dcq.read(k)).with_valid(true)
    }

    /// Creation order of HW §7; interrupts of the VPID are armed.
    pub(crate) fn install(&self, hw: &Hw) -> Result {
        let regs = BqRegs(self.unit);
        let segments = self.segments.len() as u32;
        let dcq = DcqBase {
            segments,
            page: self.dcq.address(),
        }
        .encode()
        .map_err(|_| ERANGE)?;
        hw.rf.write(
            regs.ub(self.vpid),
            Ub(0).with_slots_minus_1(self.slots - 1).raw(),
        );
        hw.rf.write(regs.dcq_base_dcq_ub(self.vpid), dcq.raw());
        hw.rf.write(
            regs.wp_lwp_dcq_rp(self.vpid),
            WritePointers::initial(segments).raw(),
        );
        hw.rf
            .write(regs.rp(self.vpid), Rp(0).with_irq_retrigger(true).raw());
        hw.rf.write(
            regs.c_base_size_valid(self.vpid),
            self.segment_word(0).raw(),
        );
        hw.rf.write(
            regs.n_base_size_valid(self.vpid),
            self.segment_word(1).raw(),
        );
        Ok(())
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
