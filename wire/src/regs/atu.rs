// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `atu_rf`: address translation unit (HW §11). Formats: [`crate::atu`].

/// Number of GAT base table entries.
pub const GATS: u32 = 1024;

regs! {
    /// Enables the unit.
    const CONTROL = 0xC000, "atu_rf_control";
    /// Commands, see [`crate::atu::Command`]; write-only.
    const CMD_INTERFACE = 0xC008, "atu_rf_cmd_interface";
    /// Translations and memory reads.
    const CNT_0 = 0xC010, "atu_rf_cnt_0";
    /// Preload commands and discarded ones.
    const CNT_1 = 0xC018, "atu_rf_cnt_1";
    /// All commands and flushes.
    const CNT_2 = 0xC020, "atu_rf_cnt_2";
    /// Fences and notifications.
    const CNT_3 = 0xC028, "atu_rf_cnt_3";
    /// Flushes by VPID and by index.
    const CNT_4 = 0xC030, "atu_rf_cnt_4";
    /// Requests and following requests.
    const CNT_5 = 0xC038, "atu_rf_cnt_5";
    /// FIFO fill levels.
    const FIFO_FILL_LEVEL = 0xC040, "atu_rf_fifo_fill_level";
    /// ECC flags.
    const ECC = 0xC048, "atu_rf_ecc";
    /// Accelerator port.
    const EXCEL_PORT = 0xC050, "atu_rf_excel_port";
    /// Accelerator port address.
    const EXCEL_PORT_ADDRESS = 0xC058, "atu_rf_excel_port_address";
    /// TLB preload, two words per VPID.
    fn preload(k < 512) = 0xD000 + 8, "atu_rf_preload";
    /// GAT base table, see [`crate::atu::GatBase`].
    fn gat(i < 1024) = 0xE000 + 8, "atu_rf_gat";
}

bits! {
    /// `control` (0xC000).
    pub struct Control {
        /// Translation enabled.
        enable / with_enable: bool [0:0];
    }
}

bits! {
    /// `cnt_0` (0xC010).
    pub struct Cnt0 {
        /// Translations.
        translations / with_translations: u32 [31:0];
        /// GATe reads from memory.
        memory_reads / with_memory_reads: u32 [63:32];
    }
}

bits! {
    /// `cnt_2` (0xC020).
    pub struct Cnt2 {
        /// All commands.
        cmds_all / with_cmds_all: u32 [31:0];
        /// Flushes.
        cmds_flushes / with_cmds_flushes: u32 [63:32];
    }
}

bits! {
    /// `cnt_3` (0xC028).
    pub struct Cnt3 {
        /// Fences.
        cmds_fences / with_cmds_fences: u32 [31:0];
        /// Notifications.
        cmds_noti / with_cmds_noti: u32 [63:32];
    }
}

bits! {
    /// `cnt_4` (0xC030).
    pub struct Cnt4 {
        /// Flushes by VPID.
        cmds_vpid / with_cmds_vpid: u16 [15:0];
        /// Flushes by index.
        cmds_idx / with_cmds_idx: u16 [31:16];
    }
}

bits! {
    /// `cnt_5` (0xC038).
    pub struct Cnt5 {
        /// Requests.
        requests / with_requests: u32 [31:0];
        /// Following requests.
        following / with_following: u32 [63:32];
    }
}
