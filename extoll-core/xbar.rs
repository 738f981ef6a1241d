// SPDX-License-Identifier: GPL-2.0-only

//! Outport 10 of the crossbar: set-up, and drain of packets with illegal routing (HW §15.3). Any
//! context.

use crate::hw::Hw;
use wire::regs::xbar::outp::{
    self, Credits0, General, CREDITS_1_DRAIN, DRAIN_PORT, FCCS, GENERAL_INIT,
};

/// Sets up the outport (step 5 of HW §3.1).
pub(crate) fn init(hw: &Hw) {
    hw.rf.write(outp::general(DRAIN_PORT), GENERAL_INIT);
}

/// Executes one round of the drain. Returns whether no credits of the outport are in use; `None` if
/// the register read as all ones.
pub(crate) fn drain_round(hw: &Hw) -> Option<bool> {
    let general = hw.rf.read(outp::general(DRAIN_PORT));
    if general == u64::MAX {
        return None;
    }
    let total = General(general).total_credits_count();
    let sum = outp::fcc_credit_sum(hw.rf.read(outp::fcc_credits(DRAIN_PORT)));
    if total == 0 && sum == 0 {
        return Some(true);
    }
    for class in 0..FCCS as u8 {
        hw.rf.write(
            outp::credits_0(DRAIN_PORT),
            Credits0(0).with_fcc(class).raw(),
        );
    }
    hw.rf.write(outp::credits_1(DRAIN_PORT), CREDITS_1_DRAIN);
    Some(false)
}
