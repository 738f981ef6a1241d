// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `wcbuf_rf` of VELO and RMA: requester write-combining buffers (HW §8).
//! The state word and its protocol: [`crate::wcbuf`].

use crate::ids::{RegOffset, Unit, Vpid};

/// Write-combining timeout of the initialisation sequence, active (HW §3.3, §3.5).
pub const TIMEOUT_INIT: u64 = 0x20_0000_0001;

/// VELO.
pub mod velo {
    regs! {
        /// State word, one page per VPID.
        fn state(vpid) = 0x1000000 + 0x1000, "velo_rf_wcbuf_rf_state";
        /// Write-combining timeout.
        const TIMEOUT = 0x1100000, "velo_rf_wcbuf_rf_timeout";
        /// Length errors, see [`super::Errors`].
        const ERRORS0 = 0x1100008, "velo_rf_wcbuf_rf_errors0";
        /// Alignment and size errors.
        const ERRORS1 = 0x1100010, "velo_rf_wcbuf_rf_errors1";
        /// Mirroring of states to memory.
        const EVENT_MIRROR = 0x1100018, "velo_rf_wcbuf_rf_event_mirror";
        /// Mirroring of retried packets to memory.
        const RETRY_MIRROR_BASE = 0x1100020, "velo_rf_wcbuf_rf_retry_mirror_base";
        /// ECC flags.
        const ECC_STATUS = 0x1100028, "velo_rf_wcbuf_rf_ecc_status";
    }
}

/// RMA.
pub mod rma {
    regs! {
        /// State word, one page per VPID.
        fn state(vpid) = 0x1400000 + 0x1000, "rma_rf_wcbuf_rf_state";
        /// Write-combining timeout.
        const TIMEOUT = 0x1500000, "rma_rf_wcbuf_rf_timeout";
        /// Length errors, see [`super::Errors`].
        const ERRORS0 = 0x1500008, "rma_rf_wcbuf_rf_errors0";
        /// Alignment and size errors.
        const ERRORS1 = 0x1500010, "rma_rf_wcbuf_rf_errors1";
        /// Mirroring of states to memory.
        const EVENT_MIRROR = 0x1500018, "rma_rf_wcbuf_rf_event_mirror";
        /// Mirroring of retried packets to memory.
        const RETRY_MIRROR_BASE = 0x1500020, "rma_rf_wcbuf_rf_retry_mirror_base";
        /// ECC flags.
        const ECC_STATUS = 0x1500028, "rma_rf_wcbuf_rf_ecc_status";
    }
}

/// Returns the state register of `vpid` in `unit`.
pub const fn state(unit: Unit, vpid: Vpid) -> RegOffset {
    match unit {
        Unit::Velo => velo::state(vpid),
        Unit::Rma => rma::state(vpid),
    }
}

bits! {
    /// `timeout`.
    pub struct Timeout {
        /// Timeout active.
        timeout_active / with_timeout_active: bool [0:0];
        /// Latency counter enabled.
        lat_counter_enable / with_lat_counter_enable: bool [1:1];
        /// Latency counter value.
        lat_counter_value / with_lat_counter_value: u8 [15:8];
        /// Timeout value.
        timeout / with_timeout: u32 [63:32];
    }
}

bits! {
    /// `errors0` (first: QW length, second: message too long) and `errors1` (first: message not
    /// aligned, second: packet too long).
    pub struct Errors {
        /// Number of errors of the first kind.
        first / with_first: u32 [23:0];
        /// VPID with an error of the first kind.
        first_vpid / with_first_vpid: u8 [31:24];
        /// Number of errors of the second kind.
        second / with_second: u32 [55:32];
        /// VPID with an error of the second kind.
        second_vpid / with_second_vpid: u8 [63:56];
    }
}
