// SPDX-License-Identifier: GPL-2.0-only

//! Reads the network state of the NIC (HW §4). Any context.

use crate::{context::Context, hw::Hw};
use kernel::prelude::*;
use wire::regs::info;

/// Reads the network state (steps 4 and 8 of HW §3.1). The monitor later reads the node ID as well.
pub(crate) fn read_network_state(ctx: &Context, hw: &Hw) -> Result {
    let value = hw.rf.read(info::NW_STATE);
    if ctx.check_removed(hw, value) {
        return Err(ENODEV);
    }
    ctx.set_network(value);
    Ok(())
}
