// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `smfu_rf`: shared memory window (HW §12).

use crate::ids::NodeId;

/// Bus addresses in registers of this unit are below this one: they have bits \[47:0\].
pub const ADDRESS_END: u64 = 1 << 48;
/// Number of intervals.
pub const INTERVALS: u32 = 64;
/// Part of the window, from its start, that leads to the remote register file, in bytes.
pub const RRA_WINDOW: u64 = 0x0200_0000;
/// `traffic_class` as the initialisation sequence writes it: np 3, p 2, rsp 2 (HW §3.6).
pub const TRAFFIC_CLASS_INIT: u64 = 0x223;
/// `FuncNo` of every interval: the SMFU unit at the target.
pub const FUNC_NO: u8 = 3;

regs! {
    /// Enable and error flags.
    const STATUS_CONTROL = 0xA000, "smfu_rf_status_control";
    /// Traffic classes; those of requests and responses must differ.
    const TRAFFIC_CLASS = 0xA008, "smfu_rf_traffic_class";
    /// Timeout and its error flag (cleared by writing 1).
    const TIMEOUT_CONTROL = 0xA010, "smfu_rf_timeout_control";
    /// Clears the counters.
    const COUNTER_RESET = 0xA018, "smfu_rf_counter_reset";
    /// Non-posted requests sent; read-only, 48 bits.
    const SENT_COUNT_NP = 0xA020, "smfu_rf_sent_count_np";
    /// Posted requests sent.
    const SENT_COUNT_P = 0xA028, "smfu_rf_sent_count_p";
    /// Responses sent.
    const SENT_COUNT_RSP = 0xA030, "smfu_rf_sent_count_rsp";
    /// Non-posted requests received.
    const RCVD_COUNT_NP = 0xA038, "smfu_rf_rcvd_count_np";
    /// Posted requests received.
    const RCVD_COUNT_P = 0xA040, "smfu_rf_rcvd_count_p";
    /// Responses received.
    const RCVD_COUNT_RSP = 0xA048, "smfu_rf_rcvd_count_rsp";
    /// Latency and outstanding requests.
    const MISC_COUNT = 0xA050, "smfu_rf_misc_count";
    /// Base of the local window (BAR).
    const O_START_ADDR = 0xA058, "smfu_rf_oStartAddr";
    /// Base of the exported local memory.
    const T_START_ADDR_DEFAULT = 0xA060, "smfu_rf_tStartAddr_default";
    /// Shift for mask mode.
    const N_NODE_OFFSET = 0xA068, "smfu_rf_nNodeOffset";
    /// Mask for mask mode; 0 sends all accesses outside intervals to node 0.
    const ADDR_MASK = 0xA070, "smfu_rf_addr_mask";
    /// Interval: valid, target.
    fn interval_control(i < 64) = 0xA080 + 32, "smfu_rf_interval_control";
    /// Interval: first address.
    fn interval_startaddr(i < 64) = 0xA088 + 32, "smfu_rf_interval_startaddr";
    /// Interval: end address.
    fn interval_endaddr(i < 64) = 0xA090 + 32, "smfu_rf_interval_endaddr";
    /// Interval: packets sent; read-only.
    fn interval_counter(i < 64) = 0xA098 + 32, "smfu_rf_interval_counter";
    /// Base of the memory that this node exports for interval `i`.
    fn vpid_t_start_addr(i < 64) = 0xA880 + 8, "smfu_rf_vpid_tStartAddr";
}

bits! {
    /// `status_control` (0xA000).
    pub struct StatusControl {
        /// Enable (EN).
        enable / with_enable: bool [0:0];
        /// ACR.
        acr / with_acr: bool [1:1];
        /// Matching store empty (MSE).
        matching_store_empty / with_matching_store_empty: bool [2:2];
        /// Idle (IDL).
        idle / with_idle: bool [3:3];
        /// Single-bit error corrected (SEC).
        sec / with_sec: bool [4:4];
        /// Double-bit error detected (DED).
        ded / with_ded: bool [5:5];
        /// Posted to non-posted conversion.
        enable_p2np / with_enable_p2np: bool [8:8];
        /// Forces the PassPW bit.
        force_pass_pw / with_force_pass_pw: bool [9:9];
    }
}

bits! {
    /// `traffic_class` (0xA008).
    pub struct TrafficClass {
        /// Non-posted requests.
        tc_np / with_tc_np: u8 [1:0];
        /// Posted requests.
        tc_p / with_tc_p: u8 [5:4];
        /// Responses.
        tc_rsp / with_tc_rsp: u8 [9:8];
    }
}

bits! {
    /// `timeout_control` (0xA010).
    pub struct TimeoutControl {
        /// Timeout value.
        timeout / with_timeout: u32 [23:0];
        /// A request timed out; write 1 to clear.
        timeout_err / with_timeout_err: bool [32:32];
    }
}

bits! {
    /// `interval control` (0xA080 + 32 i).
    pub struct IntervalControl {
        /// The interval is valid.
        valid / with_valid: bool [0:0];
        /// Unit at the target, always [`FUNC_NO`].
        func_no / with_func_no: u8 [10:8];
        /// Target node.
        t_node_id / with_t_node_id: u16 [31:16];
    }
}

impl IntervalControl {
    /// Returns a valid interval that leads to `node`. For node 0 this is the value 0x301 of the
    /// initialisation sequence.
    pub const fn to_node(node: NodeId) -> Self {
        Self(0)
            .with_valid(true)
            .with_func_no(FUNC_NO)
            .with_t_node_id(node.0)
    }
}

bits! {
    /// `interval counter` (0xA098 + 32 i).
    pub struct IntervalCounter {
        /// Non-posted requests sent.
        sent_count_np / with_sent_count_np: u32 [31:0];
        /// Posted requests sent.
        sent_count_p / with_sent_count_p: u32 [63:32];
    }
}

bits! {
    /// `misc_count` (0xA050).
    pub struct MiscCount {
        /// Time from the last request to its response, in clock cycles.
        np2r_clk_cycle_count / with_np2r_clk_cycle_count: u32 [31:0];
        /// The count of clock cycles overflowed.
        overflow / with_overflow: bool [32:32];
        /// Maximum number of requests that were outstanding at a time.
        max_outstanding_nps / with_max_outstanding_nps: u16 [49:40];
    }
}
