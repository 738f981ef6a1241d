// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `velo_rf` without its write-combining buffers (HW §9). [`crate::velo`] has the formats.

/// Value of `timeout` that the initialisation sequence writes: value 0x20, enabled (HW §3.3).
pub const TIMEOUT_INIT: u64 = 0x1_0000_0020;
/// Value of `completer.target_htax_port` that the initialisation sequence writes.
pub const TARGET_HTAX_PORT_INIT: u16 = 8;

regs! {
    /// Pending interrupts. Bit j of word i belongs to VPID 64 i + j. Read-only (HW §6.5).
    fn int_vec(i < 4) = 0x1200020 + 8, "velo_rf_noti_interrupt_handler_int_vec";
    /// Interrupt retrigger bits, with the layout of `int_vec`.
    fn int_retrig_vec(i < 4) = 0x1200040 + 8, "velo_rf_noti_interrupt_handler_int_retrig_vec";
    /// Identity that the NIC stamps into messages of a VPID, see [`NodeVpidProtDesc`].
    fn node_vpid_prot_desc(vpid) = 0x1200800 + 8, "velo_rf_node_vpid_prot_desc";
    /// Condition for messages that a VPID accepts, see [`CompProtDesc`].
    fn comp_prot_desc(vpid) = 0x1201000 + 8, "velo_rf_comp_prot_desc";
    /// Timeout of full mailboxes, see [`Timeout`].
    const TIMEOUT = 0x1201800, "velo_rf_timeout";
    /// Slot size and alternative port, see [`Completer`].
    const COMPLETER = 0x1201808, "velo_rf_completer";
    /// Numbers of packets received and sent, see [`crate::regs::PacketCounter`].
    const COUNTER_0 = 0x1201810, "velo_rf_counter_0";
    /// Numbers of dropped packets, see [`Counter1`].
    const COUNTER_1 = 0x1201818, "velo_rf_counter_1";
    /// Numbers of requests to the buffer queue unit and of its responses, see [`Counter2`].
    const COUNTER_2 = 0x1201820, "velo_rf_counter_2";
    /// States of the state machines. Read-only.
    const DEBUG_0 = 0x1201828, "velo_rf_debug_0";
    /// ECC flags and last error, see [`Debug1`]. Read-only.
    const DEBUG_1 = 0x1201830, "velo_rf_debug_1";
}

bits! {
    /// Register `node_vpid_prot_desc` (0x1200800 + 8 v), which the NIC stamps into outgoing
    /// messages.
    pub struct NodeVpidProtDesc {
        /// Protection descriptor.
        tx_prot_desc / with_tx_prot_desc: u16 [15:0];
        /// Source node ID.
        tx_nodeid / with_tx_nodeid: u16 [31:16];
        /// Source VPID.
        tx_vpid / with_tx_vpid: u8 [39:32];
    }
}

bits! {
    /// Register `comp_prot_desc` (0x1201000 + 8 v): condition for packets that the VPID accepts.
    pub struct CompProtDesc {
        /// Expected protection descriptor.
        rx_prot_desc / with_rx_prot_desc: u16 [15:0];
        /// True if messages are delivered through the alternative HTAX port.
        htax_reroute / with_htax_reroute: bool [16:16];
        /// True if the mailbox is enabled.
        vpid_enable / with_vpid_enable: bool [17:17];
    }
}

bits! {
    /// Register `timeout` (0x1201800). RMA's `bq_timeout` has the same layout.
    pub struct Timeout {
        /// Timeout value. The unit is unknown (G10).
        value / with_value: u32 [31:0];
        /// True if the timeout is enabled.
        enable / with_enable: bool [32:32];
    }
}

bits! {
    /// `completer` (0x1201808).
    pub struct Completer {
        /// Alternative port as a one-hot number.
        target_htax_port / with_target_htax_port: u16 [8:0];
        /// True for mailbox slots of 128 bytes, false for 64 bytes.
        packets_128b / with_packets_128b: bool [9:9];
    }
}

bits! {
    /// `counter_1` (0x1201818).
    pub struct Counter1 {
        /// Number of packets dropped because of a protection descriptor mismatch.
        wrong_desc / with_wrong_desc: u32 [31:0];
        /// Number of packets dropped because the mailbox was disabled.
        disabled_mbox / with_disabled_mbox: u32 [63:32];
    }
}

bits! {
    /// `counter_2` (0x1201820).
    pub struct Counter2 {
        /// Number of requests to the buffer queue unit.
        bq_requests / with_bq_requests: u32 [31:0];
        /// Number of responses of the buffer queue unit.
        bq_responses / with_bq_responses: u32 [63:32];
    }
}

bits! {
    /// `debug_1` (0x1201830).
    pub struct Debug1 {
        /// Source node of the last error.
        error_snode / with_error_snode: u16 [15:0];
        /// Source VPID of the last error.
        error_svpid / with_error_svpid: u8 [23:16];
        /// Target VPID of the last error.
        error_tvpid / with_error_tvpid: u8 [31:24];
        /// Number of errors.
        error_count / with_error_count: u32 [55:32];
        /// ECC flags.
        ecc / with_ecc: u8 [63:56];
    }
}
