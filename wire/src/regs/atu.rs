// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `atu_rf`: address translation unit (HW §11). [`crate::atu`] has the formats.

/// Number of GAT base table entries.
pub const GATS: u32 = 1024;

regs! {
    /// Control register, which enables the unit.
    const CONTROL = 0xC000, "atu_rf_control";
    /// Command register, see [`crate::atu::Command`]. Write-only.
    const CMD_INTERFACE = 0xC008, "atu_rf_cmd_interface";
    /// Numbers of translations and memory reads.
    const CNT_0 = 0xC010, "atu_rf_cnt_0";
    /// Numbers of preload commands and discarded commands.
    const CNT_1 = 0xC018, "atu_rf_cnt_1";
    /// Numbers of all commands and of flushes.
    const CNT_2 = 0xC020, "atu_rf_cnt_2";
    /// Numbers of fences and notifications.
    const CNT_3 = 0xC028, "atu_rf_cnt_3";
    /// Numbers of flushes by VPID and by index.
    const CNT_4 = 0xC030, "atu_rf_cnt_4";
    /// Numbers of requests and following requests.
    const CNT_5 = 0xC038, "atu_rf_cnt_5";
    /// Fill levels of the FIFOs.
    const FIFO_FILL_LEVEL = 0xC040, "atu_rf_fifo_fill_level";
    /// ECC flags.
    const ECC = 0xC048, "atu_rf_ecc";
    /// Accelerator port.
    const EXCEL_PORT = 0xC050, "atu_rf_excel_port";
    /// Accelerator port address.
    const EXCEL_PORT_ADDRESS = 0xC058, "atu_rf_excel_port_address";
    /// TLB preload registers, two words per VPID.
    fn preload(k < 512) = 0xD000 + 8, "atu_rf_preload";
    /// GAT base table, see [`crate::atu::GatBase`].
    fn gat(i < 1024) = 0xE000 + 8, "atu_rf_gat";
}

bits! {
    /// `control` (0xC000).
    pub struct Control {
        /// True if translation is enabled.
        enable / with_enable: bool [0:0];
    }
}

bits! {
    /// `cnt_0` (0xC010).
    pub struct Cnt0 {
        /// Number of translations.
        translations / with_translations: u32 [31:0];
        /// Number of GAT entries read from memory.
        memory_reads / with_memory_reads: u32 [63:32];
    }
}

bits! {
    /// `cnt_2` (0xC020).
    pub struct Cnt2 {
        /// Number of all commands.
        cmds_all / with_cmds_all: u32 [31:0];
        /// Number of flush commands.
        cmds_flushes / with_cmds_flushes: u32 [63:32];
    }
}

bits! {
    /// `cnt_3` (0xC028).
    pub struct Cnt3 {
        /// Number of fence commands.
        cmds_fences / with_cmds_fences: u32 [31:0];
        /// Number of notification commands.
        cmds_noti / with_cmds_noti: u32 [63:32];
    }
}

bits! {
    /// `cnt_4` (0xC030).
    pub struct Cnt4 {
        /// Number of flushes by VPID.
        cmds_vpid / with_cmds_vpid: u16 [15:0];
        /// Number of flushes by index.
        cmds_idx / with_cmds_idx: u16 [31:16];
    }
}

bits! {
    /// `cnt_5` (0xC038).
    pub struct Cnt5 {
        /// Number of requests.
        requests / with_requests: u32 [31:0];
        /// Number of following requests.
        following / with_following: u32 [63:32];
    }
}
