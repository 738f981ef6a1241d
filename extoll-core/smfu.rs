// SPDX-License-Identifier: GPL-2.0-only

//! Shared memory functional unit: set-up (HW §12, §3.6). Windows are not offered yet.

use crate::{dma::DmaWords, nic::Nic, stats::Reason};
use kernel::{prelude::*, sync::Arc};
use wire::{
    ids::NodeId,
    regs::{
        np,
        smfu::{self, IntervalControl, StatusControl, RRA_WINDOW, TRAFFIC_CLASS_INIT},
    },
};

/// Smallest exported memory worth having, in KiB.
const MIN_TARGET_KIB: u32 = 64;

/// The exported memory.
pub(crate) struct Smfu {
    _target: Option<DmaWords>,
}

impl Smfu {
    /// Allocates the exported memory and sets the unit up (HW §3.6).
    pub(crate) fn init(nic: &Arc<Nic>) -> Result<Self> {
        let target = Self::allocate(nic)?;
        let hw = nic.access().ok_or(ENODEV)?;
        let window = hw.windows.smfu.0;
        hw.rf.write(smfu::O_START_ADDR, window);
        hw.rf.write(
            smfu::T_START_ADDR_DEFAULT,
            target.as_ref().map_or(0, |t| t.address().0),
        );
        hw.rf.write(smfu::ADDR_MASK, 0);
        hw.rf.write(smfu::TRAFFIC_CLASS, TRAFFIC_CLASS_INIT);
        hw.rf.write(np::general(np::SMFU), np::GENERAL_INIT);
        hw.rf.write(
            smfu::STATUS_CONTROL,
            StatusControl(0).with_enable(true).raw(),
        );
        for i in 0..smfu::INTERVALS - 1 {
            hw.rf.write(smfu::interval_startaddr(i), 0);
            hw.rf.write(smfu::interval_endaddr(i), 0);
            hw.rf.write(smfu::interval_control(i), 0);
        }
        // Interval 0: the remote register file.
        hw.rf.write(
            smfu::interval_control(0),
            IntervalControl::to_node(NodeId(0)).raw(),
        );
        hw.rf.write(smfu::interval_startaddr(0), window);
        hw.rf.write(smfu::interval_endaddr(0), window + RRA_WINDOW);
        drop(hw);
        Ok(Self { _target: target })
    }

    /// Halves the size until memory is found: nothing depends on it before windows are offered.
    fn allocate(nic: &Arc<Nic>) -> Result<Option<DmaWords>> {
        let mut kib = nic
            .params
            .smfu_target_kib
            .checked_next_power_of_two()
            .unwrap_or(0);
        while kib >= MIN_TARGET_KIB {
            if let Ok(memory) = nic.with_bound(|dev| DmaWords::new(dev, kib as usize * 128))? {
                return Ok(Some(memory));
            }
            kib /= 2;
            nic.error(Reason::Memory, u64::from(kib));
        }
        Ok(None)
    }

    /// Switches the unit off, so that nobody reaches the exported memory.
    pub(crate) fn stop(nic: &Nic) {
        let Some(hw) = nic.alive_access() else { return };
        hw.rf.write(smfu::STATUS_CONTROL, 0);
        hw.rf.write(smfu::interval_control(0), 0);
        hw.rf.write(np::general(np::SMFU), 0);
        hw.rf.write(smfu::T_START_ADDR_DEFAULT, 0);
    }
}
