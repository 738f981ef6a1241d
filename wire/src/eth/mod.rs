// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Ethernet over Extoll: formats of the messages between network drivers. "EXT §n" cites the
//! protocol reference.
//!
//! A frame (without FCS) is sent in one of two ways. An *eager* frame is cut into VELO messages of
//! at most 120 bytes. For a *rendezvous*, the sender announces the frame in a message of 16 bytes,
//! and the receiver reads it with one RMA GET. Frames have no additional header, because all
//! control information is in the VELO descriptor. This module neither allocates nor copies memory.

pub mod checksum;
mod message;
mod reject;

pub use message::{
    announcement_descriptor, eager_fragments, get_descriptor, Announcement, Completion,
    EagerFragment, Kind, Message, Side, TooLong, ANNOUNCEMENT_LEN, DROPPED_LEN, GET_PAGE,
};
pub use reject::{Reason, Reject};

use crate::ids::{NodeId, Vpid};
use crate::velo::{RequesterAddr, Target};

/// VPID that the protocol uses for VELO and RMA on every node.
pub const VPID: Vpid = Vpid::NET;
/// Traffic class of all VELO messages.
pub const TRAFFIC_CLASS: u8 = 2;
/// VELO requester page for the messages.
pub const VELO_PAGE: RequesterAddr = RequesterAddr::page(VPID, TRAFFIC_CLASS);
/// Multicast group of all nodes, the only group that the protocol uses.
pub const GROUP: u16 = 63;
/// Number of frame bytes in every eager message except the last.
pub const FRAGMENT: u16 = crate::velo::MAX_LEN;
/// Length of an Ethernet header in bytes.
pub const HEADER_LEN: u32 = 14;
/// Minimum MTU.
pub const MIN_MTU: u32 = 68;
/// Maximum MTU of a peer, and default of the vendor module (EXT §7).
pub const MAX_MTU: u32 = 65_536;
/// Length of a VLAN tag in bytes, which the MTU does not include.
pub const VLAN_TAG: u32 = 4;
/// Maximum frame length in bytes: a header, two VLAN tags, and the maximum MTU. Two tags occur
/// because a VLAN on top of a VLAN has the MTU of the lower device.
pub const MAX_FRAME: u32 = MAX_MTU + HEADER_LEN + 2 * VLAN_TAG;
/// Maximum length in bytes of an eager frame that fits a vendor peer's buffer (EXT §3.2).
pub const MAX_EAGER: u32 = 65_536;
/// Maximum length in bytes of an eager frame in one burst of 255 messages. The vendor's sender
/// supports this length (EXT §3.2).
pub const MAX_EAGER_BURST: u32 = 255 * FRAGMENT as u32;
/// Default of the frame length in bytes from which frames are sent by rendezvous.
pub const DEFAULT_THRESHOLD: u32 = 120;

/// First four octets of a node's MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MacPrefix(pub [u8; 4]);

impl Default for MacPrefix {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl MacPrefix {
    /// The default prefix, 2e:87:04:07.
    pub const DEFAULT: Self = Self([0x2E, 0x87, 0x04, 0x07]);

    /// Returns the MAC address of `node`.
    pub const fn mac(self, node: NodeId) -> [u8; 6] {
        let [a, b, c, d] = self.0;
        let [e, f] = node.0.to_be_bytes();
        [a, b, c, d, e, f]
    }

    /// Returns the node with the address `mac`; `None` if the first four octets differ from the
    /// prefix.
    pub const fn node(self, mac: [u8; 6]) -> Option<NodeId> {
        let [a, b, c, d, e, f] = mac;
        let [p, q, r, s] = self.0;
        if a == p && b == q && c == r && d == s {
            Some(NodeId(u16::from_be_bytes([e, f])))
        } else {
            None
        }
    }

    /// Returns the destination of a frame to `mac` (EXT §2.2). A group address leads to all nodes,
    /// an address with this prefix to its node, and any other address to `default_node`. `None`
    /// means that the frame must be dropped.
    pub const fn target(self, mac: [u8; 6], default_node: Option<NodeId>) -> Option<Target> {
        if is_group_mac(mac) {
            return Some(Target::Group(GROUP));
        }
        match (self.node(mac), default_node) {
            (Some(node), _) | (None, Some(node)) => Some(Target::Node(node)),
            (None, None) => None,
        }
    }
}

/// Returns whether `mac` is a multicast or broadcast address.
pub const fn is_group_mac(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}

/// Broadcast MAC address.
pub const BROADCAST: [u8; 6] = [0xFF; 6];

/// Returns the destination address of a frame; `None` if the frame is too short.
pub fn destination(frame: &[u8]) -> Option<[u8; 6]> {
    frame.first_chunk().copied()
}

/// Returns the source address of a frame; `None` if the frame is too short.
pub fn source(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(6..)?.first_chunk().copied()
}

/// Returns the address as a number for log lines. The first octet becomes the most significant one.
pub const fn as_number(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Method of sending a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Path {
    /// The frame is sent in VELO messages.
    Eager,
    /// The frame is announced by a message, and the receiver reads it with a GET.
    Rendezvous,
}

impl Path {
    /// Returns the method that the sender chooses (EXT §3.1): eager for group frames and for frames
    /// shorter than `threshold` bytes.
    pub const fn choose(len: u32, target: Target, threshold: u32) -> Self {
        if matches!(target, Target::Group(_)) || len < threshold {
            Path::Eager
        } else {
            Path::Rendezvous
        }
    }
}

/// Returns the key that identifies a buffer of a rendezvous: word 0 of the notification (EXT §4.3).
/// `start` is the address of this side's buffer, and `len` is the frame length in bytes.
pub const fn match_key(start: u64, len: u32) -> u64 {
    crate::rma::last_fragment_start(start, len)
}

/// Returns the size field of the notification that completes a transfer of `len` bytes. It is the
/// number of bytes of the last fragment − 1 (EXT §4.3).
pub const fn last_size(len: u32) -> u32 {
    len.saturating_sub(1) % crate::rma::FRAGMENT
}

/// Returns whether this node itself sent a received frame to a group. The receiver must drop such a
/// frame (EXT §2.3).
pub fn is_own_group_frame(frame: &[u8], source: NodeId, own: NodeId) -> bool {
    source.0 == own.0 && destination(frame).is_some_and(is_group_mac)
}
