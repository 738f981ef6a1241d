// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `smfu_rf`: shared memory window (HW §12).

use crate::ids::NodeId;

/// Limit of bus addresses in registers of this unit, which have bits \[47:0\].
pub const ADDRESS_END: u64 = 1 << 48;
/// Number of intervals.
pub const INTERVALS: u32 = 64;
/// Size in bytes of the first part of the window, which leads to register files of remote nodes.
pub const RRA_WINDOW: u64 = 0x0200_0000;
/// Value of `traffic_class` that the initialisation sequence writes: np 3, p 2, rsp 2 (HW §3.6).
pub const TRAFFIC_CLASS_INIT: u64 = 0x223;
/// Value of `FuncNo` in every interval: the SMFU unit of the target node.
pub const FUNC_NO: u8 = 3;

regs! {
    /// Enable bit and error flags.
    const STATUS_CONTROL = 0xA000, "smfu_rf_status_control";
    /// Traffic classes of requests and responses, which must differ.
    const TRAFFIC_CLASS = 0xA008, "smfu_rf_traffic_class";
    /// Timeout and its error flag, which writing 1 clears.
    const TIMEOUT_CONTROL = 0xA010, "smfu_rf_timeout_control";
    /// Writing this register clears the counters.
    const COUNTER_RESET = 0xA018, "smfu_rf_counter_reset";
    /// Number of non-posted requests sent. Read-only, 48 bits.
    const SENT_COUNT_NP = 0xA020, "smfu_rf_sent_count_np";
    /// Number of posted requests sent.
    const SENT_COUNT_P = 0xA028, "smfu_rf_sent_count_p";
    /// Number of responses sent.
    const SENT_COUNT_RSP = 0xA030, "smfu_rf_sent_count_rsp";
    /// Number of non-posted requests received.
    const RCVD_COUNT_NP = 0xA038, "smfu_rf_rcvd_count_np";
    /// Number of posted requests received.
    const RCVD_COUNT_P = 0xA040, "smfu_rf_rcvd_count_p";
    /// Number of responses received.
    const RCVD_COUNT_RSP = 0xA048, "smfu_rf_rcvd_count_rsp";
    /// Latency, and number of outstanding requests.
    const MISC_COUNT = 0xA050, "smfu_rf_misc_count";
    /// Base address of the local window (BAR).
    const O_START_ADDR = 0xA058, "smfu_rf_oStartAddr";
    /// Base address of the exported local memory.
    const T_START_ADDR_DEFAULT = 0xA060, "smfu_rf_tStartAddr_default";
    /// Number of bits of the shift in mask mode.
    const N_NODE_OFFSET = 0xA068, "smfu_rf_nNodeOffset";
    /// Mask in mask mode. With 0, all accesses outside of intervals go to node 0.
    const ADDR_MASK = 0xA070, "smfu_rf_addr_mask";
    /// Valid bit and target of interval `i`.
    fn interval_control(i < 64) = 0xA080 + 32, "smfu_rf_interval_control";
    /// First address of interval `i`.
    fn interval_startaddr(i < 64) = 0xA088 + 32, "smfu_rf_interval_startaddr";
    /// End address of interval `i`.
    fn interval_endaddr(i < 64) = 0xA090 + 32, "smfu_rf_interval_endaddr";
    /// Number of packets sent through interval `i`. Read-only.
    fn interval_counter(i < 64) = 0xA098 + 32, "smfu_rf_interval_counter";
    /// Base address of the memory that this node exports for interval `i`.
    fn vpid_t_start_addr(i < 64) = 0xA880 + 8, "smfu_rf_vpid_tStartAddr";
}

bits! {
    /// `status_control` (0xA000).
    pub struct StatusControl {
        /// True if the unit is enabled (EN).
        enable / with_enable: bool [0:0];
        /// Bit ACR of the register.
        acr / with_acr: bool [1:1];
        /// True if the matching store is empty (MSE).
        matching_store_empty / with_matching_store_empty: bool [2:2];
        /// True if the unit is idle (IDL).
        idle / with_idle: bool [3:3];
        /// A single-bit error was corrected (SEC).
        sec / with_sec: bool [4:4];
        /// A double-bit error was detected (DED).
        ded / with_ded: bool [5:5];
        /// Converts posted requests to non-posted requests.
        enable_p2np / with_enable_p2np: bool [8:8];
        /// Forces the PassPW bit of requests.
        force_pass_pw / with_force_pass_pw: bool [9:9];
    }
}

bits! {
    /// `traffic_class` (0xA008).
    pub struct TrafficClass {
        /// Traffic class of non-posted requests.
        tc_np / with_tc_np: u8 [1:0];
        /// Traffic class of posted requests.
        tc_p / with_tc_p: u8 [5:4];
        /// Traffic class of responses.
        tc_rsp / with_tc_rsp: u8 [9:8];
    }
}

bits! {
    /// `timeout_control` (0xA010).
    pub struct TimeoutControl {
        /// Timeout value.
        timeout / with_timeout: u32 [23:0];
        /// A request timed out. Writing 1 clears the bit.
        timeout_err / with_timeout_err: bool [32:32];
    }
}

bits! {
    /// `interval control` (0xA080 + 32 i).
    pub struct IntervalControl {
        /// The interval is valid.
        valid / with_valid: bool [0:0];
        /// Unit of the target node, always [`FUNC_NO`].
        func_no / with_func_no: u8 [10:8];
        /// Target node.
        t_node_id / with_t_node_id: u16 [31:16];
    }
}

impl IntervalControl {
    /// Returns a valid interval that leads to `node`. For node 0 the result is 0x301, which the
    /// initialisation sequence writes.
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
        /// Number of non-posted requests sent.
        sent_count_np / with_sent_count_np: u32 [31:0];
        /// Number of posted requests sent.
        sent_count_p / with_sent_count_p: u32 [63:32];
    }
}

bits! {
    /// `misc_count` (0xA050).
    pub struct MiscCount {
        /// Time from the last request to its response, in clock cycles.
        np2r_clk_cycle_count / with_np2r_clk_cycle_count: u32 [31:0];
        /// True if the count of clock cycles overflowed.
        overflow / with_overflow: bool [32:32];
        /// Maximum number of requests that were outstanding at the same time.
        max_outstanding_nps / with_max_outstanding_nps: u16 [49:40];
    }
}
