// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `nw:phy_rf`: the register that the notification program records (HW §15.5).

regs! {
    /// Training status of a link. The meaning of its bits is unknown.
    fn status_training(#link < 7) = 0x486110 + 0x8000, "nw_phy_rf_link#_rf_statusTraining";
}
