// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `nw:barrier_rf`: barriers and global interrupts (HW §15.5).

regs! {
    /// State of barrier k. Each barrier has a separate page.
    fn units_work_set(k < 16) = 0x440000 + 0x1000, "nw_barrier_rf_units_work_set";
    /// State of global interrupt k. Each global interrupt has a separate page.
    fn interrupts_work_set(k < 4) = 0x450000 + 0x1000, "nw_barrier_rf_interrupts_work_set";
    /// Configuration of barrier k.
    fn units_config(k < 16) = 0x454000 + 8, "nw_barrier_rf_units_config_config";
    /// Configuration of global interrupt k.
    fn interrupts_config(k < 4) = 0x454080 + 8, "nw_barrier_rf_interrupts_config_config";
}

bits! {
    /// `units work_set`.
    pub struct UnitsWorkSet {
        /// True when the host has reached the barrier.
        reached / with_reached: bool [0:0];
        /// True when the barrier is released in phase 0.
        released_0 / with_released_0: bool [1:1];
        /// True when the barrier is released in phase 1.
        released_1 / with_released_1: bool [2:2];
        /// Current phase, 0 or 1.
        released_active / with_released_active: bool [3:3];
    }
}

bits! {
    /// `interrupts work_set`.
    pub struct InterruptsWorkSet {
        /// Writing 1 raises the interrupt on all nodes.
        trigger / with_trigger: bool [0:0];
        /// True if the interrupt was raised.
        interrupt / with_interrupt: bool [1:1];
    }
}

bits! {
    /// `units config`. The layout is that of a sibling chip with seven links (HW §15.5).
    pub struct UnitsConfig {
        /// True if the node takes part in the barrier.
        enable / with_enable: bool [0:0];
        /// Mask of links to children in the tree.
        child_nodes / with_child_nodes: u8 [7:1];
        /// Mask of links to the parent; 0 at the root.
        parent_nodes / with_parent_nodes: u8 [14:8];
        /// Number of arrivals that the barrier expects from the host.
        host_count / with_host_count: u8 [18:15];
        /// Writing 1 resets the barrier to its initial state.
        reset / with_reset: bool [19:19];
    }
}
