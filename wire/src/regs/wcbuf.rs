// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `wcbuf_rf` of VELO and RMA: write-combining buffers of requesters (HW §8). [`crate::wcbuf`] has
//! the state word and its protocol.

use crate::ids::{RegOffset, Unit, Vpid};

/// Write-combining timeout that the initialisation sequence writes: active (HW §3.3, §3.5).
pub const TIMEOUT_INIT: u64 = 0x20_0000_0001;

/// Registers of the VELO requester.
pub mod velo {
    regs! {
        /// State word. Each VPID has a separate page.
        fn state(vpid) = 0x1000000 + 0x1000, "velo_rf_wcbuf_rf_state";
        /// Write-combining timeout.
        const TIMEOUT = 0x1100000, "velo_rf_wcbuf_rf_timeout";
        /// Numbers of length errors, see [`super::Errors`].
        const ERRORS0 = 0x1100008, "velo_rf_wcbuf_rf_errors0";
        /// Numbers of alignment and size errors.
        const ERRORS1 = 0x1100010, "velo_rf_wcbuf_rf_errors1";
        /// Control of the copies of states in memory.
        const EVENT_MIRROR = 0x1100018, "velo_rf_wcbuf_rf_event_mirror";
        /// Address of the copies of retried packets in memory.
        const RETRY_MIRROR_BASE = 0x1100020, "velo_rf_wcbuf_rf_retry_mirror_base";
        /// ECC flags.
        const ECC_STATUS = 0x1100028, "velo_rf_wcbuf_rf_ecc_status";
    }
}

/// Registers of the RMA requester.
pub mod rma {
    regs! {
        /// State word. Each VPID has a separate page.
        fn state(vpid) = 0x1400000 + 0x1000, "rma_rf_wcbuf_rf_state";
        /// Write-combining timeout.
        const TIMEOUT = 0x1500000, "rma_rf_wcbuf_rf_timeout";
        /// Numbers of length errors, see [`super::Errors`].
        const ERRORS0 = 0x1500008, "rma_rf_wcbuf_rf_errors0";
        /// Numbers of alignment and size errors.
        const ERRORS1 = 0x1500010, "rma_rf_wcbuf_rf_errors1";
        /// Control of the copies of states in memory.
        const EVENT_MIRROR = 0x1500018, "rma_rf_wcbuf_rf_event_mirror";
        /// Address of the copies of retried packets in memory.
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
    /// Register `timeout`.
    pub struct Timeout {
        /// True if the timeout is active.
        timeout_active / with_timeout_active: bool [0:0];
        /// True if the latency counter is enabled.
        lat_counter_enable / with_lat_counter_enable: bool [1:1];
        /// Value of the latency counter.
        lat_counter_value / with_lat_counter_value: u8 [15:8];
        /// Value of the timeout.
        timeout / with_timeout: u32 [63:32];
    }
}

bits! {
    /// Registers `errors0` and `errors1`. In `errors0`, the first kind is a wrong QW length and the
    /// second a message that is too long. In `errors1`, the first kind is an unaligned message and
    /// the second a packet that is too long.
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
