// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `gpio_rf`: general purpose pins (HW §1.3).

regs! {
    /// Output pins. Write-only.
    const OUT = 0x9000, "gpio_rf_out";
    /// Input pins, which trigger event 8 records.
    const IN = 0x9008, "gpio_rf_in";
}
