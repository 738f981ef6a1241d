// SPDX-License-Identifier: GPL-2.0-only

//! Identity of the NIC and network state (HW §4).

use crate::{context::Context, hw::Hw};
use kernel::prelude::*;
use wire::regs::info;

/// HW §3.1 steps 4 and 8: reads the network state. The node ID is read along with it from then on.
pub(crate) fn read_network_state(ctx: &Context, hw: &Hw) -> Result {
    let value = hw.rf.read(info::NW_STATE);
    if ctx.is_gone(hw, value) {
        return Err(ENODEV);
    }
    ctx.set_network(value);
    Ok(())
}
