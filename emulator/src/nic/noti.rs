//! Interrupt vectors of the units, which have one bit per VPID (HW §6.5, G7).

use super::{IrqMissed, Nic, Te};
use crate::env::Accessor;
use wire::ids::{RegOffset, Unit};
use wire::regs::{rma, velo};

/// Set of VPIDs, as one bit per VPID.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bits([u64; 4]);

impl Bits {
    pub(super) fn take(&mut self, vpid: u8) -> bool {
        let was = self.get(vpid);
        self.0[usize::from(vpid >> 6)] &= !(1 << (vpid & 63));
        was
    }

    pub(super) fn set(&mut self, vpid: u8) {
        self.0[usize::from(vpid >> 6)] |= 1 << (vpid & 63);
    }

    fn get(&self, vpid: u8) -> bool {
        self.0[usize::from(vpid >> 6)] & (1 << (vpid & 63)) != 0
    }
}

/// Interrupt state of a unit.
#[derive(Default)]
pub(super) struct Vectors {
    /// Register `int_vec`: VPIDs that raised an interrupt which no SNQ program has reported.
    pending: Bits,
    /// VPIDs that may raise an interrupt.
    armed: Bits,
    /// VPIDs that requested an interrupt while they were disarmed.
    missed: Bits,
}

fn word(unit: Unit, offset: RegOffset, first: fn(Unit) -> RegOffset) -> Option<usize> {
    let i = (offset.0.checked_sub(first(unit).0)? / 8) as usize;
    (i < 4).then_some(i)
}

fn int_vec(unit: Unit) -> RegOffset {
    match unit {
        Unit::Velo => velo::int_vec(0),
        Unit::Rma => rma::int_vec(0),
    }
}

fn int_retrig_vec(unit: Unit) -> RegOffset {
    match unit {
        Unit::Velo => velo::int_retrig_vec(0),
        Unit::Rma => rma::int_retrig_vec(0),
    }
}

impl Nic {
    fn vectors(&mut self, unit: Unit) -> &mut Vectors {
        &mut self.queues[unit as usize].vectors
    }

    fn vector_event(&mut self, unit: Unit) {
        self.raise(match unit {
            Unit::Velo => Te::VeloNotification,
            Unit::Rma => Te::RmaNotification,
        });
    }

    /// Raises or records the interrupt that a stored message or notification requested.
    pub(super) fn request_interrupt(&mut self, unit: Unit, vpid: u8) {
        let remember = self.cfg.irq_missed == IrqMissed::Remember;
        let v = self.vectors(unit);
        if v.armed.take(vpid) {
            v.pending.set(vpid);
            self.vector_event(unit);
        } else if remember {
            v.missed.set(vpid);
        }
    }

    /// Arms this VPID, which enables its next interrupt.
    pub(super) fn arm_interrupt(&mut self, unit: Unit, vpid: u8) {
        let v = self.vectors(unit);
        v.armed.set(vpid);
        if v.missed.take(vpid) {
            self.request_interrupt(unit, vpid);
        }
    }

    /// Disarms the VPID of a queue that was removed.
    pub(super) fn forget_interrupt(&mut self, unit: Unit, vpid: u8) {
        let v = self.vectors(unit);
        v.armed.take(vpid);
        v.missed.take(vpid);
    }

    /// Reads `int_vec` or `int_retrig_vec`. An SNQ program clears the bits of `int_vec` that it
    /// reads (G4).
    pub(super) fn vector_read(
        &mut self,
        unit: Unit,
        offset: RegOffset,
        by: Accessor,
    ) -> Option<u64> {
        if let Some(i) = word(unit, offset, int_vec) {
            let bits = &mut self.vectors(unit).pending.0[i];
            let value = *bits;
            if by == Accessor::Snq {
                *bits = 0;
            }
            return Some(value);
        }
        word(unit, offset, int_retrig_vec).map(|i| self.vectors(unit).armed.0[i])
    }

    /// Writes `int_retrig_vec`: arms the VPIDs whose bits are 1.
    pub(super) fn vector_write(&mut self, unit: Unit, offset: RegOffset, value: u64) -> bool {
        let Some(i) = word(unit, offset, int_retrig_vec) else {
            return false;
        };
        for bit in (0..64).filter(|bit| value & (1 << bit) != 0) {
            self.arm_interrupt(unit, (i * 64 + bit) as u8);
        }
        true
    }
}
