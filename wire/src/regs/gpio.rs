// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `gpio_rf`: general purpose pins (HW §1.3).

regs! {
    /// Outputs; write-only.
    const OUT = 0x9000, "gpio_rf_out";
    /// Inputs, recorded by trigger event 8.
    const IN = 0x9008, "gpio_rf_in";
}
