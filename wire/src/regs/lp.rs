// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `nw:lp_top_rf`: link ports lp0…lp6 (HW §15.4).

use crate::ids::NodeId;

/// Number of links.
pub const PORTS: u32 = 7;
/// `lp_in` value that clears both "received" flags and sets the buffer threshold to 3 (HW §15.4).
pub const LP_IN_CLEAR: u64 = 0x0180_0000_0000_0003;

regs! {
    /// Numbers of packets, see [`crate::regs::PacketCounter`].
    fn counter(#lp < 7) = 0x460000 + 0x80, "nw_lp_top_rf_lp#_counter";
    /// Link state and error flags.
    fn status(#lp < 7) = 0x460008 + 0x80, "nw_lp_top_rf_lp#_status";
    /// Retransmission counters.
    fn retransmission_counters(#lp < 7) = 0x460010 + 0x80, "nw_lp_top_rf_lp#_retransmission_counters";
    /// IDs that the neighbours exchange.
    fn ids(#lp < 7) = 0x460018 + 0x80, "nw_lp_top_rf_lp#_ids";
    /// State of the receive side.
    fn lp_in(#lp < 7) = 0x460020 + 0x80, "nw_lp_top_rf_lp#_lp_in";
    /// States of the state machines. Read-only.
    fn lp_fsm_states(#lp < 7) = 0x460028 + 0x80, "nw_lp_top_rf_lp#_lp_fsm_states";
    /// State of the send side. Read-only.
    fn lp_out_status(#lp < 7) = 0x460030 + 0x80, "nw_lp_top_rf_lp#_lp_out_status";
    /// State of the send arbiter. Read-only.
    fn lp_out_arbiter(#lp < 7) = 0x460038 + 0x80, "nw_lp_top_rf_lp#_lp_out_arbiter";
    /// Acknowledge counters.
    fn ack_counter(#lp < 7) = 0x460040 + 0x80, "nw_lp_top_rf_lp#_ack_counter";
    /// Credit counter.
    fn credit_counter(#lp < 7) = 0x460048 + 0x80, "nw_lp_top_rf_lp#_credit_counter";
    /// Info handler.
    fn info_handler(#lp < 7) = 0x460050 + 0x80, "nw_lp_top_rf_lp#_info_handler";
    /// Buffer timeout.
    fn timeout(#lp < 7) = 0x460058 + 0x80, "nw_lp_top_rf_lp#_timeout";
    /// ECC flags and handshakes.
    fn debug(#lp < 7) = 0x460060 + 0x80, "nw_lp_top_rf_lp#_debug";
}

bits! {
    /// `status` (+0x08).
    pub struct Status {
        /// True if the link is enabled.
        enable / with_enable: bool [0:0];
        /// True if the link is up.
        ready / with_ready: bool [1:1];
        /// Number of retransmission attempts.
        retrans_attempts / with_retrans_attempts: u8 [5:2];
        /// True when low-level initialisation is complete.
        low_level_link_init / with_low_level_link_init: bool [6:6];
        /// A cell CRC error occurred.
        cell_crc_error / with_cell_crc_error: bool [7:7];
        /// A packet CRC error occurred.
        packet_crc_error / with_packet_crc_error: bool [8:8];
        /// A packet length error occurred.
        packet_length_error / with_packet_length_error: bool [9:9];
        /// A protocol error occurred.
        protocol_error / with_protocol_error: bool [10:10];
        /// The receive FIFO is full.
        lp_in_fifo_full / with_lp_in_fifo_full: bool [11:11];
    }
}

bits! {
    /// `retransmission_counters` (+0x10).
    pub struct RetransmissionCounters {
        /// Number of errors.
        errors / with_errors: u16 [13:0];
        /// Number of retransmissions.
        retransmissions / with_retransmissions: u16 [27:14];
        /// Number of negative acknowledges received.
        nack_received / with_nack_received: u16 [41:28];
        /// Number of packets that were sent again.
        retrans_send / with_retrans_send: u16 [55:42];
        /// Number of timeouts.
        retransmission_timeouts / with_retransmission_timeouts: u8 [63:56];
    }
}

bits! {
    /// `ids` (+0x18).
    pub struct Ids {
        /// Writing 1 sends the GUID of this node to the neighbour.
        send_guid / with_send_guid: bool [0:0];
        /// Writing 1 sends the node ID and the port of this node to the neighbour.
        send_ids / with_send_ids: bool [1:1];
        /// GUID of the neighbour.
        remote_guid / with_remote_guid: u32 [25:2];
        /// Node ID of the neighbour.
        remote_node_id / with_remote_node_id: u16 [41:26];
        /// Number of the link at the neighbour.
        remote_lp_id / with_remote_lp_id: u8 [45:42];
    }
}

impl Ids {
    /// Returns the neighbour's node ID as a [`NodeId`].
    pub const fn remote_node(self) -> NodeId {
        NodeId(self.remote_node_id())
    }
}

bits! {
    /// `lp_in` (+0x20).
    pub struct LpIn {
        /// The neighbour's GUID arrived.
        guid_received / with_guid_received: bool [0:0];
        /// The neighbour's node ID arrived.
        node_id_received / with_node_id_received: bool [1:1];
        /// Number of info cells received.
        info_received / with_info_received: u16 [17:2];
        /// Number of acknowledge cells received.
        ack_received / with_ack_received: u16 [33:18];
        /// Number of barrier cells received.
        barrier_received / with_barrier_received: u16 [49:34];
        /// Number of cells received with CRC errors.
        cell_crc_error / with_cell_crc_error: u8 [53:50];
        /// A retransmission is expected.
        wait_for_retransmission / with_wait_for_retransmission: bool [54:54];
        /// Buffer threshold.
        buffer_threshold / with_buffer_threshold: u8 [60:55];
        /// The receive buffer ran empty.
        buffer_underrun / with_buffer_underrun: bool [61:61];
    }
}
