// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `snq_rf`: system notification queue (HW §6.2). [`crate::snq`] has the formats and the program.

/// Number of ring entries in the initialisation sequence (HW §6.3).
pub const ENTRIES: u16 = 256;
/// Value of `irq_0` that the initialisation sequence writes: posted write of one QW to
/// 0xFD_2300_0000 (HW §6.2).
pub const IRQ_0_INIT: u64 = 0xFD23_0000_0040_002D;
/// Value of `irq_1` that the initialisation sequence writes.
pub const IRQ_1_INIT: u64 = 0x0300_0100_0000;
/// Value of `irq_2` that the initialisation sequence writes.
pub const IRQ_2_INIT: u64 = 0;
/// Value of `htax` that the initialisation sequence writes: port 0 and posted channel for entries
/// and interrupts.
pub const HTAX_INIT: u64 = 0x20_1201;
/// Alignment of the ring in bytes. `queue_balt` contains the address divided by 1024.
pub const QUEUE_ALIGN: u64 = 1024;

regs! {
    /// Bit i enables trigger event i, see [`crate::snq::TriggerMask`].
    const TRIGGER_ENABLE = 0x10000, "snq_rf_trigger_enable";
    /// Raises events for software.
    const TRIGGER_NOW = 0x10008, "snq_rf_trigger_now";
    /// Enables events for one occurrence. Write-only.
    const TRIGGER_ONCE_ENABLE = 0x10010, "snq_rf_trigger_once_enable";
    /// Mask of the events that are enabled for one occurrence.
    const TRIGGER_ONCE = 0x10018, "snq_rf_trigger_once";
    /// Bus address of the ring, divided by 1024.
    const QUEUE_BALT = 0x10020, "snq_rf_queue_balt";
    /// Number of ring entries − 1.
    const QUEUE_MSLT = 0x10028, "snq_rf_queue_mslt";
    /// Index of the next entry that the NIC writes. Read-only.
    const QUEUE_WPLT = 0x10030, "snq_rf_queue_wplt";
    /// Index of the last entry that software consumed.
    const QUEUE_RPLT = 0x10038, "snq_rf_queue_rplt";
    /// Watermark and arming of the interrupt.
    const IRQ_WATERMARK = 0x10040, "snq_rf_irq_watermark";
    /// First header QW of the interrupt packet.
    const IRQ_0 = 0x10048, "snq_rf_irq_0";
    /// Second header QW of the interrupt packet.
    const IRQ_1 = 0x10050, "snq_rf_irq_1";
    /// Payload QW of the interrupt packet.
    const IRQ_2 = 0x10058, "snq_rf_irq_2";
    /// State and ECC flags.
    const DBG_0 = 0x10060, "snq_rf_dbg_0";
    /// Starts and stops the queue.
    const EXECUTE = 0x10068, "snq_rf_execute";
    /// On-chip ports used for entries and interrupts.
    const HTAX = 0x10070, "snq_rf_htax";
    /// Micro-program, one instruction per word.
    fn program_ram(pc < 256) = 0x10800 + 8, "snq_rf_program_ram";
}

bits! {
    /// `queue_balt` (0x10020).
    pub struct QueueBalt {
        /// Bus address of the ring, divided by 1024.
        address_div_1024 / with_address_div_1024: u64 [53:0];
    }
}

bits! {
    /// `queue_mslt`, `queue_wplt`, `queue_rplt` (0x10028, 0x10030, 0x10038).
    pub struct QueueIndex {
        /// Index of an entry.
        index / with_index: u16 [15:0];
    }
}

bits! {
    /// `irq_watermark` (0x10040).
    pub struct IrqWatermark {
        /// Index of the entry that triggers the interrupt.
        watermark / with_watermark: u16 [15:0];
        /// True if the interrupt is armed.
        enable / with_enable: bool [16:16];
    }
}

bits! {
    /// `execute` (0x10068).
    pub struct Execute {
        /// True while programs may run.
        enable / with_enable: bool [0:0];
    }
}

bits! {
    /// `dbg_0` (0x10060).
    pub struct Dbg0 {
        /// State of the output stage.
        htout_state / with_htout_state: u8 [2:0];
        /// State of the program execution.
        execute_state / with_execute_state: u8 [6:3];
        /// State of the register handler.
        rf_handler / with_rf_handler: u8 [9:7];
        /// Double-bit error in the output FIFO.
        out_fifo_ded / with_out_fifo_ded: bool [10:10];
        /// Single-bit error in the output FIFO.
        out_fifo_sec / with_out_fifo_sec: bool [11:11];
        /// Double-bit error in the program RAM.
        pram_ded / with_pram_ded: bool [12:12];
        /// Single-bit error in the program RAM.
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
    /// Register `irq_0`: header of a sized-write request (HW §6.2).
    pub struct IrqHeader {
        /// Command code. 0x2D is a posted dword write.
        command / with_command: u8 [5:0];
        /// Number of payload dwords − 1.
        count / with_count: u8 [25:22];
        /// Bits `[39:2]` of the address, see [`IrqHeader::address`].
        address_39_2 / with_address_39_2: u64 [63:26];
    }
}

impl IrqHeader {
    /// Returns the address to which the interrupt packet is written.
    pub const fn address(self) -> u64 {
        self.address_39_2() << 2
    }
}
