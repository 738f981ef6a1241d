// SPDX-License-Identifier: GPL-2.0-only

//! HTAX bridge: assignment of BAR ranges to units (HW §5, step 3 of HW §3.1). Any context.

use crate::hw::Hw;
use kernel::prelude::*;
use wire::regs::htax;

/// Writes the six intervals and enables the bridge.
pub(crate) fn init(hw: &Hw) -> Result {
    for (i, interval) in hw.windows.bus.intervals().ok_or(EINVAL)? {
        hw.rf.write(htax::intvl_upper(i), interval.upper.raw());
        hw.rf.write(htax::intvl_lower(i), interval.lower.raw());
        hw.rf.write(htax::intvl_control(i), interval.control.raw());
    }
    hw.rf.write(htax::GENERAL, htax::GENERAL_INIT);
    Ok(())
}
