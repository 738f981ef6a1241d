// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `htax_bridge_rf` and `htax_rf`: on-chip routing of host accesses (HW §5). [`crate::htax`]
//! computes the intervals.

/// Number of address intervals.
pub const INTERVALS: u32 = 6;
/// Value of `general` that the initialisation sequence writes: enabled, VC mode, default one-hot 8,
/// default port 8 (HW §3.1).
pub const GENERAL_INIT: u64 = 0x8088;

regs! {
    /// Number of the page after the last page of interval i.
    fn intvl_upper(i < 6) = 0x9200 + 24, "htax_bridge_rf_intvl_upper";
    /// Page number before the first page of interval i.
    fn intvl_lower(i < 6) = 0x9208 + 24, "htax_bridge_rf_intvl_lower";
    /// Target and virtual channels of interval i.
    fn intvl_control(i < 6) = 0x9210 + 24, "htax_bridge_rf_intvl_control";
    /// Default port and enables.
    const GENERAL = 0x9290, "htax_bridge_rf_general";
    /// Debug word of the state machine. Read-only.
    const DEBUG = 0x9298, "htax_bridge_rf_debug";
    /// Number of posted packets, see [`crate::regs::PacketCounter`].
    const POSTED_COUNTER = 0x92A0, "htax_bridge_rf_posted_counter";
    /// Number of non-posted packets.
    const NONPOSTED_COUNTER = 0x92A8, "htax_bridge_rf_nonposted_counter";
    /// Number of responses.
    const RESPONSE_COUNTER = 0x92B0, "htax_bridge_rf_response_counter";
    /// Number of discarded packets. A discarded packet causes trigger event 9.
    const DISCARDED_COUNTER = 0x92B8, "htax_bridge_rf_discarded_counter";
    /// ECC flags.
    const ERROR_ECC = 0x92C0, "htax_bridge_rf_error_ecc";
    /// Crossbar assertions, first word. Read-only.
    const DEBUG_0 = 0x9300, "htax_rf_debug_0";
    /// Crossbar assertions, second word. Read-only.
    const DEBUG_1 = 0x9308, "htax_rf_debug_1";
    /// Crossbar activity. Read-only.
    const DEBUG_2 = 0x9310, "htax_rf_debug_2";
    /// Request and grant lines of each port. Read-only.
    fn port_debug(i < 9) = 0x9318 + 8, "htax_rf_port_debug";
}

bits! {
    /// Bound of an interval, in `intvl_upper` and `intvl_lower`.
    pub struct Bound {
        /// Page number (address / 4096).
        bound / with_bound: u64 [51:0];
    }
}

bits! {
    /// `intvl_control` (0x9210 + 24 i).
    pub struct IntvlControl {
        /// True if the interval is enabled.
        enable / with_enable: bool [0:0];
        /// Number of the second-level target port.
        port / with_port: u8 [4:1];
        /// Port of the local unit as a one-hot number.
        port_oh / with_port_oh: u16 [13:5];
        /// Mask of virtual channels: 1 posted, 2 non-posted, 4 response.
        vcs / with_vcs: u8 [16:14];
    }
}

bits! {
    /// `general` (0x9290).
    pub struct General {
        /// Port for accesses outside of all intervals.
        default_port / with_default_port: u8 [3:0];
        /// Port for accesses outside of all intervals, as a one-hot number.
        default_port_oh / with_default_port_oh: u16 [12:4];
        /// Masks the error bit.
        mask_error_bit / with_mask_error_bit: bool [13:13];
        /// True in store-and-forward mode.
        use_sf_mode / with_use_sf_mode: bool [14:14];
        /// True if the bridge is enabled.
        enable / with_enable: bool [15:15];
        /// True if extended MMIO is enabled.
        enable_emmio / with_enable_emmio: bool [16:16];
    }
}

bits! {
    /// `discarded_counter` (0x92B8).
    pub struct DiscardedCounter {
        /// Number of discarded posted packets.
        posted / with_posted: u16 [15:0];
        /// Number of discarded non-posted packets.
        nonposted / with_nonposted: u16 [31:16];
        /// Number of discarded responses.
        response / with_response: u16 [47:32];
    }
}

bits! {
    /// `error_ecc` (0x92C0).
    pub struct ErrorEcc {
        /// Single-bit error in the tag map.
        tagmap_sec / with_tagmap_sec: bool [0:0];
        /// Double-bit error in the tag map.
        tagmap_ded / with_tagmap_ded: bool [1:1];
    }
}
