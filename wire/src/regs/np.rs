// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `np_top_rf`: network ports n0…n3 (HW §15.1).

/// Number of network ports.
pub const PORTS: u32 = 4;
/// Network port n0, which belongs to VELO (inferred, HW §15.1).
pub const VELO: u32 = 0;
/// Network port n1, which belongs to the RMA completer.
pub const RMA_COMPLETER: u32 = 1;
/// Network port n2, which belongs to the RMA responder.
pub const RMA_RESPONDER: u32 = 2;
/// Network port n3, which belongs to the SMFU.
pub const SMFU: u32 = 3;
/// Value of `general` that the initialisation sequence writes for n0: enabled, utilisation 40 (HW
/// §3.3).
pub const GENERAL_INIT_VELO: u64 = 81;
/// Value of `general` that the initialisation sequence writes for n1, n2 and n3 (HW §3.5, §3.6).
pub const GENERAL_INIT: u64 = 0xFF;

regs! {
    /// Number of packets from the host side to the network, see [`crate::regs::PacketCounter`].
    fn hp2np_counter(#n < 4) = 0x9400 + 0x80, "np_top_rf_n#_hp2np_counter";
    /// Number of packets from the network to the host side.
    fn np2hp_counter(#n < 4) = 0x9408 + 0x80, "np_top_rf_n#_np2hp_counter";
    /// Credit counts. Read-only.
    fn np_debug_0(#n < 4) = 0x9410 + 0x80, "np_top_rf_n#_np_debug_0";
    /// Enable bit and mode.
    fn general(#n < 4) = 0x9418 + 0x80, "np_top_rf_n#_general";
    /// Initial credits of each class.
    fn credits_0(#n < 4) = 0x9420 + 0x80, "np_top_rf_n#_credits_0";
    /// Initial totals of credits.
    fn credits_1(#n < 4) = 0x9428 + 0x80, "np_top_rf_n#_credits_1";
    /// Mask of available flow control classes.
    fn avail_fcc(#n < 4) = 0x9430 + 0x80, "np_top_rf_n#_avail_fcc";
    /// Packet framing of raw injection.
    fn raw_ctrl(#n < 4) = 0x9438 + 0x80, "np_top_rf_n#_raw_ctrl";
    /// Data lanes of raw injection.
    fn ln_raw(#n < 4, i < 2) = 0x9440 + 0x80 + 8, "np_top_rf_n#_ln_raw";
    /// ECC flags.
    fn np_debug_1(#n < 4) = 0x9450 + 0x80, "np_top_rf_n#_np_debug_1";
}

bits! {
    /// `general` (+0x18).
    pub struct General {
        /// True if the port is enabled.
        enable / with_enable: bool [0:0];
        /// Buffer utilisation.
        utilization / with_utilization: u8 [6:1];
        /// True in store-and-forward mode.
        recv_mode / with_recv_mode: bool [7:7];
        /// True if the buffer is empty.
        empty / with_empty: bool [8:8];
        /// True if the port is disabled.
        disabled / with_disabled: bool [9:9];
        /// True if the buffer is full.
        full / with_full: bool [10:10];
        /// Total number of credits.
        total_credits_count / with_total_credits_count: u8 [18:11];
    }
}
