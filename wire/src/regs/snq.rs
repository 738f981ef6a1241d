// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `snq_rf`: system notification queue (HW §6.2). Formats and program: [`crate::snq`].

/// Number of ring entries in the initialisation sequence (HW §6.3).
pub const ENTRIES: u16 = 256;
/// `irq_0` as the initialisation sequence writes it: posted write of one QW to 0xFD_2300_0000 (HW
/// §6.2).
pub const IRQ_0_INIT: u64 = 0xFD23_0000_0040_002D;
/// `irq_1` as the initialisation sequence writes it.
pub const IRQ_1_INIT: u64 = 0x0300_0100_0000;
/// `irq_2` as the initialisation sequence writes it.
pub const IRQ_2_INIT: u64 = 0;
/// `htax` as the initialisation sequence writes it: port 0 and posted channel for entries and
/// interrupts.
pub const HTAX_INIT: u64 = 0x20_1201;
/// Alignment of the ring in bytes (`queue_balt` contains the address / 1024).
pub const QUEUE_ALIGN: u64 = 1024;

regs! {
    /// Bit i enables trigger event i, see [`crate::snq::TriggerMask`].
    const TRIGGER_ENABLE = 0x10000, "snq_rf_trigger_enable";
    /// Raises events by software.
    const TRIGGER_NOW = 0x10008, "snq_rf_trigger_now";
    /// Enables events for one occurrence; write-only.
    const TRIGGER_ONCE_ENABLE = 0x10010, "snq_rf_trigger_once_enable";
    /// Events enabled for one occurrence.
    const TRIGGER_ONCE = 0x10018, "snq_rf_trigger_once";
    /// Ring address / 1024.
    const QUEUE_BALT = 0x10020, "snq_rf_queue_balt";
    /// Ring entries − 1.
    const QUEUE_MSLT = 0x10028, "snq_rf_queue_mslt";
    /// Next entry that hardware writes; read-only.
    const QUEUE_WPLT = 0x10030, "snq_rf_queue_wplt";
    /// Last entry that software consumed.
    const QUEUE_RPLT = 0x10038, "snq_rf_queue_rplt";
    /// Watermark and arming.
    const IRQ_WATERMARK = 0x10040, "snq_rf_irq_watermark";
    /// Interrupt packet, first header QW.
    const IRQ_0 = 0x10048, "snq_rf_irq_0";
    /// Interrupt packet, second header QW.
    const IRQ_1 = 0x10050, "snq_rf_irq_1";
    /// Interrupt packet, payload QW.
    const IRQ_2 = 0x10058, "snq_rf_irq_2";
    /// State and ECC flags.
    const DBG_0 = 0x10060, "snq_rf_dbg_0";
    /// Run/stop.
    const EXECUTE = 0x10068, "snq_rf_execute";
    /// On-chip ports used for entries and interrupts.
    const HTAX = 0x10070, "snq_rf_htax";
    /// Micro-program, one instruction per word.
    fn program_ram(pc < 256) = 0x10800 + 8, "snq_rf_program_ram";
}

bits! {
    /// `queue_balt` (0x10020).
    pub struct QueueBalt {
        /// Ring bus address / 1024.
        address_div_1024 / with_address_div_1024: u64 [53:0];
    }
}

bits! {
    /// `queue_mslt`, `queue_wplt`, `queue_rplt` (0x10028, 0x10030, 0x10038).
    pub struct QueueIndex {
        /// Entry index.
        index / with_index: u16 [15:0];
    }
}

bits! {
    /// `irq_watermark` (0x10040).
    pub struct IrqWatermark {
        /// Entry index that triggers the interrupt.
        watermark / with_watermark: u16 [15:0];
        /// Armed.
        enable / with_enable: bool [16:16];
    }
}

bits! {
    /// `execute` (0x10068).
    pub struct Execute {
        /// Programs run.
        enable / with_enable: bool [0:0];
    }
}

bits! {
    /// `dbg_0` (0x10060).
    pub struct Dbg0 {
        /// Output state.
        htout_state / with_htout_state: u8 [2:0];
        /// Execution state.
        execute_state / with_execute_state: u8 [6:3];
        /// Register handler state.
        rf_handler / with_rf_handler: u8 [9:7];
        /// Output FIFO double-bit error.
        out_fifo_ded / with_out_fifo_ded: bool [10:10];
        /// Output FIFO single-bit error.
        out_fifo_sec / with_out_fifo_sec: bool [11:11];
        /// Program RAM double-bit error.
        pram_ded / with_pram_ded: bool [12:12];
        /// Program RAM single-bit error.
        pram_sec / with_pram_sec: bool [13:13];
    }
}

bits! {
    /// `htax` (0x10070).
    pub struct Htax {
        /// One-hot port for entries.
        snqm_port_oh / with_snqm_port_oh: u16 [8:0];
        /// One-hot virtual channel for entries.
        snqm_vc_oh / with_snqm_vc_oh: u8 [11:9];
        /// One-hot port for interrupts.
        irq_port_oh / with_irq_port_oh: u16 [20:12];
        /// One-hot virtual channel for interrupts.
        irq_vc_oh / with_irq_vc_oh: u8 [23:21];
    }
}

bits! {
    /// `irq_0`: sized-write request header (HW §6.2).
    pub struct IrqHeader {
        /// 0x2D: posted dword write.
        command / with_command: u8 [5:0];
        /// Payload dwords − 1.
        count / with_count: u8 [25:22];
        /// Address bits `[39:2]`, see [`IrqHeader::address`].
        address_39_2 / with_address_39_2: u64 [63:26];
    }
}

impl IrqHeader {
    /// Returns the address of the interrupt packet.
    pub const fn address(self) -> u64 {
        self.address_39_2() << 2
    }
}
