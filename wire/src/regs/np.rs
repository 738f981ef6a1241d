// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `np_top_rf`: network ports n0…n3 (HW §15.1).

/// Number of network ports.
pub const PORTS: u32 = 4;
/// n0: VELO (inferred, HW §15.1).
pub const VELO: u32 = 0;
/// n1: RMA completer.
pub const RMA_COMPLETER: u32 = 1;
/// n2: RMA responder.
pub const RMA_RESPONDER: u32 = 2;
/// n3: SMFU.
pub const SMFU: u32 = 3;
/// `general` of n0 as the initialisation sequence writes it: enabled, utilisation 40 (HW §3.3).
pub const GENERAL_INIT_VELO: u64 = 81;
/// `general` of n1, n2, n3 as the initialisation sequence writes it (HW §3.5, §3.6).
pub const GENERAL_INIT: u64 = 0xFF;

regs! {
    /// Packets from the host side to the network, see [`crate::regs::PacketCounter`].
    fn hp2np_counter(#n < 4) = 0x9400 + 0x80, "np_top_rf_n#_hp2np_counter";
    /// Packets from the network to the host side.
    fn np2hp_counter(#n < 4) = 0x9408 + 0x80, "np_top_rf_n#_np2hp_counter";
    /// Credit counts; read-only.
    fn np_debug_0(#n < 4) = 0x9410 + 0x80, "np_top_rf_n#_np_debug_0";
    /// Enable and mode.
    fn general(#n < 4) = 0x9418 + 0x80, "np_top_rf_n#_general";
    /// Credit initialisation, per class.
    fn credits_0(#n < 4) = 0x9420 + 0x80, "np_top_rf_n#_credits_0";
    /// Credit initialisation, totals.
    fn credits_1(#n < 4) = 0x9428 + 0x80, "np_top_rf_n#_credits_1";
    /// Mask of available flow control classes.
    fn avail_fcc(#n < 4) = 0x9430 + 0x80, "np_top_rf_n#_avail_fcc";
    /// Raw injection: packet framing.
    fn raw_ctrl(#n < 4) = 0x9438 + 0x80, "np_top_rf_n#_raw_ctrl";
    /// Raw injection: data lanes.
    fn ln_raw(#n < 4, i < 2) = 0x9440 + 0x80 + 8, "np_top_rf_n#_ln_raw";
    /// ECC flags.
    fn np_debug_1(#n < 4) = 0x9450 + 0x80, "np_top_rf_n#_np_debug_1";
}

bits! {
    /// `general` (+0x18).
    pub struct General {
        /// Port enabled.
        enable / with_enable: bool [0:0];
        /// Buffer utilisation.
        utilization / with_utilization: u8 [6:1];
        /// Store-and-forward.
        recv_mode / with_recv_mode: bool [7:7];
        /// Buffer empty.
        empty / with_empty: bool [8:8];
        /// Port disabled.
        disabled / with_disabled: bool [9:9];
        /// Buffer full.
        full / with_full: bool [10:10];
        /// Credits in total.
        total_credits_count / with_total_credits_count: u8 [18:11];
    }
}
