// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `nw:xbar_rf`: crossbar inports and outports (HW §15.2, §15.3). [`crate::route`] has the table
//! entries.

/// Number of crossbar ports: seven links and four network ports (inferred, HW §15.2).
pub const PORTS: u32 = 11;

/// Registers of the crossbar inports.
pub mod inp {
    /// Number of entries of a multicast table.
    pub const MCAST_ENTRIES: u32 = 64;
    /// Number of entries of a global routing table.
    pub const GRT_ENTRIES: u32 = 64;
    /// Number of entries of a local routing table.
    pub const LRT_ENTRIES: u32 = 1024;

    regs! {
        /// Routing options and error flags.
        fn routing(#port < 11) = 0x400000 + 0x4000, "nw_xbar_rf_inp#_routing";
        /// Number of packets received, in bits `[31:0]`.
        fn rcvd_counter(#port < 11) = 0x400008 + 0x4000, "nw_xbar_rf_inp#_rcvd_counter";
        /// Number of packets passed on, in bits `[31:0]`.
        fn send_counter(#port < 11) = 0x400010 + 0x4000, "nw_xbar_rf_inp#_send_counter";
        /// ECC flags of queues and routing RAMs.
        fn debug(#port < 11) = 0x400018 + 0x4000, "nw_xbar_rf_inp#_debug";
        /// Multicast table. The index is the group.
        fn mcast(#port < 11, group < 64) = 0x400200 + 0x4000 + 8, "nw_xbar_rf_inp#_mcast";
        /// Global routing table. The index is bits `[15:10]` of the node ID.
        fn grt(#port < 11, index < 64) = 0x400400 + 0x4000 + 8, "nw_xbar_rf_inp#_grt";
        /// Local routing table. The index is bits `[9:0]` of the node ID.
        fn lrt(#port < 11, index < 1024) = 0x402000 + 0x4000 + 8, "nw_xbar_rf_inp#_lrt";
    }

    bits! {
        /// `routing` (+0x00).
        pub struct Routing {
            /// True if packets may switch between deterministic and adaptive channels.
            allow_dvc_avc_switch / with_allow_dvc_avc_switch: bool [0:0];
            /// True if packets must use the deterministic channel 0.
            force_dvc_to_zero / with_force_dvc_to_zero: bool [1:1];
            /// A packet had no legal route. The inport then causes trigger event 13.
            illegal_routing / with_illegal_routing: bool [2:2];
            /// True if a deadlock is possible.
            pos_dead / with_pos_dead: bool [3:3];
            /// Timeout after which the inport assumes a deadlock.
            timeout_value / with_timeout_value: u32 [35:4];
        }
    }
}

/// Registers of the crossbar outports.
pub mod outp {
    /// Outport that the initialisation sequence configures. Software drains it after illegal
    /// routing.
    pub const DRAIN_PORT: u32 = 10;
    /// Value of `general` that the initialisation sequence writes for [`DRAIN_PORT`] (HW §3.1).
    pub const GENERAL_INIT: u64 = 0x400_0000;
    /// Value of `credits_1` that drains an outport after illegal routing (HW §15.3).
    pub const CREDITS_1_DRAIN: u64 = 0x28_3000_8000;
    /// Number of flow control classes.
    pub const FCCS: u32 = 10;

    regs! {
        /// Number of packets sent, in bits `[31:0]`.
        fn counter(#port < 11) = 0x42C000 + 0x40, "nw_xbar_rf_outp#_counter";
        /// Credits of ten classes, six bits each. Read-only.
        fn fcc_credits(#port < 11) = 0x42C008 + 0x40, "nw_xbar_rf_outp#_fcc_credits";
        /// Numbers of credits, and assertion bits.
        fn general(#port < 11) = 0x42C010 + 0x40, "nw_xbar_rf_outp#_general";
        /// Register that sets the credits of one class.
        fn credits_0(#port < 11) = 0x42C018 + 0x40, "nw_xbar_rf_outp#_credits_0";
        /// Register that sets totals and maxima.
        fn credits_1(#port < 11) = 0x42C020 + 0x40, "nw_xbar_rf_outp#_credits_1";
        /// Mask of available classes. Write-only.
        fn avail_fcc(#port < 11) = 0x42C028 + 0x40, "nw_xbar_rf_outp#_avail_fcc";
    }

    bits! {
        /// Register `general` (+0x10). Fields above bit 7 are known only from a sibling chip and
        /// may have other positions on Tourmalet (HW §15.3).
        pub struct General {
            /// Total number of credits.
            total_credits_count / with_total_credits_count: u8 [7:0];
        }
    }

    bits! {
        /// `credits_0` (+0x18).
        pub struct Credits0 {
            /// New credit count of the class.
            new_fcc_count / with_new_fcc_count: u8 [5:0];
            /// Number of the class, 0…9.
            fcc / with_fcc: u8 [9:6];
        }
    }

    bits! {
        /// `credits_1` (+0x20).
        pub struct Credits1 {
            /// New total number of credits.
            new_total_count / with_new_total_count: u8 [7:0];
            /// New maximum of the total.
            new_max_total_count / with_new_max_total_count: u8 [15:8];
            /// New number of shared credits.
            new_shared_count / with_new_shared_count: u8 [23:16];
            /// New maximum of the shared credits.
            new_max_shared_count / with_new_max_shared_count: u8 [31:24];
            /// New maximum number of credits per class.
            new_max_fcc_count / with_new_max_fcc_count: u8 [37:32];
        }
    }

    /// Returns the sum of the ten six-bit counts in `fcc_credits`.
    pub const fn fcc_credit_sum(raw: u64) -> u32 {
        let mut sum = 0;
        let mut class = 0;
        while class < FCCS {
            sum += ((raw >> (6 * class)) & 0x3F) as u32;
            class += 1;
        }
        sum
    }
}
