// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `nw:barrier_rf`: barriers and global interrupts (HW §15.5).

regs! {
    /// Barrier k; each barrier has its own page.
    fn units_work_set(k < 16) = 0x440000 + 0x1000, "nw_barrier_rf_units_work_set";
    /// Global interrupt k; each global interrupt has its own page.
    fn interrupts_work_set(k < 4) = 0x450000 + 0x1000, "nw_barrier_rf_interrupts_work_set";
    /// Configuration of barrier k.
    fn units_config(k < 16) = 0x454000 + 8, "nw_barrier_rf_units_config_config";
    /// Configuration of global interrupt k.
    fn interrupts_config(k < 4) = 0x454080 + 8, "nw_barrier_rf_interrupts_config_config";
}

bits! {
    /// `units work_set`.
    pub struct UnitsWorkSet {
        /// The host reached the barrier.
        reached / with_reached: bool [0:0];
        /// The barrier is released in phase 0.
        released_0 / with_released_0: bool [1:1];
        /// The barrier is released in phase 1.
        released_1 / with_released_1: bool [2:2];
        /// Current phase, 0 or 1.
        released_active / with_released_active: bool [3:3];
    }
}

bits! {
    /// `interrupts work_set`.
    pub struct InterruptsWorkSet {
        /// Raises the interrupt on all nodes.
        trigger / with_trigger: bool [0:0];
        /// The interrupt was raised.
        interrupt / with_interrupt: bool [1:1];
    }
}

bits! {
    /// `units config`: layout of a sibling with seven links (HW §15.5).
    pub struct UnitsConfig {
        /// The node takes part in the barrier.
        enable / with_enable: bool [0:0];
        /// Links that lead to children in the tree.
        child_nodes / with_child_nodes: u8 [7:1];
        /// Links that lead to the parent; 0 at the root.
        parent_nodes / with_parent_nodes: u8 [14:8];
        /// Number of arrivals of the host that complete the host's part.
        host_count / with_host_count: u8 [18:15];
        /// Resets the barrier to its initial state.
        reset / with_reset: bool [19:19];
    }
}
