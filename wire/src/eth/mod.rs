// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Ethernet over Extoll: what network drivers exchange ("EXT §n" cites the protocol reference).
//!
//! A frame (without FCS) travels either *eager*, cut into VELO messages of at most 120 bytes, or by
//! *rendezvous*: a 16-byte announcement, then one RMA get by the receiver. There is no header: all
//! control information is in the VELO descriptor. Nothing here allocates or copies; the receiver's `Reassembler`
//! says where bytes go.

pub mod checksum;
mod message;
mod reject;

pub use message::{
    announcement_descriptor, eager_pieces, get_descriptor, Announcement, Completion, EagerPiece,
    Kind, Message, Side, TooLong, ANNOUNCEMENT_LEN, DROPPED_LEN, GET_PAGE,
};
pub use reject::{Reason, Reject};

use crate::ids::{NodeId, Vpid};
use crate::velo::{RequesterAddr, Target};

/// VPID of the protocol on both units of every node.
pub const VPID: Vpid = Vpid::NET;
/// Traffic class of all VELO messages.
pub const TRAFFIC_CLASS: u8 = 2;
/// VELO requester page that messages are written to.
pub const VELO_PAGE: RequesterAddr = RequesterAddr::page(VPID, TRAFFIC_CLASS);
/// The one multicast group: "all nodes".
pub const GROUP: u16 = 63;
/// Frame bytes in every eager message but the last.
pub const FRAGMENT: u16 = crate::velo::MAX_LEN;
/// Ethernet header bytes.
pub const HEADER_LEN: u32 = 14;
/// Smallest MTU.
pub const MIN_MTU: u32 = 68;
/// Largest MTU that a peer may have, and default of the vendor module (EXT §7).
pub const MAX_MTU: u32 = 65_536;
/// What a VLAN tag adds to a frame, beyond the MTU.
pub const VLAN_TAG: u32 = 4;
/// Longest frame: header, two tags (a VLAN on a VLAN has the MTU of what is below it), and a
/// payload of the largest MTU.
pub const MAX_FRAME: u32 = MAX_MTU + HEADER_LEN + 2 * VLAN_TAG;
/// Longest eager frame that a vendor peer's buffer takes (EXT §3.2).
pub const MAX_EAGER: u32 = 65_536;
/// Longest eager frame that fits one burst of 255 messages, the vendor sender's safe limit (EXT
/// §3.2).
pub const MAX_EAGER_BURST: u32 = 255 * FRAGMENT as u32;
/// Frames of this length or longer use rendezvous by default.
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

    /// MAC address of `node`.
    pub const fn mac(self, node: NodeId) -> [u8; 6] {
        let [a, b, c, d] = self.0;
        let [e, f] = node.0.to_be_bytes();
        [a, b, c, d, e, f]
    }

    /// Node that owns `mac`; `None` unless all four prefix octets match.
    pub const fn node(self, mac: [u8; 6]) -> Option<NodeId> {
        let [a, b, c, d, e, f] = mac;
        let [p, q, r, s] = self.0;
        if a == p && b == q && c == r && d == s {
            Some(NodeId(u16::from_be_bytes([e, f])))
        } else {
            None
        }
    }

    /// Where a frame to `mac` goes (EXT §2.2): any group address to everybody, a local address to
    /// its node, a foreign one to `default_node`. `None`: drop the frame.
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

/// True for multicast and broadcast addresses.
pub const fn is_group_mac(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}

/// MAC address of everybody.
pub const BROADCAST: [u8; 6] = [0xFF; 6];

/// Destination address of a frame; `None` if it is shorter than an address.
pub fn destination(frame: &[u8]) -> Option<[u8; 6]> {
    frame.first_chunk().copied()
}

/// Source address of a frame; `None` if it is too short.
pub fn source(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(6..)?.first_chunk().copied()
}

/// The address as a number, for log lines: its octets from the highest on.
pub const fn as_number(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// How a frame travels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Path {
    /// As VELO messages.
    Eager,
    /// Announced, then fetched.
    Rendezvous,
}

impl Path {
    /// The sender's choice (EXT §3.1): group frames and frames shorter than `threshold` go eager.
    pub const fn choose(len: u32, target: Target, threshold: u32) -> Self {
        if matches!(target, Target::Group(_)) || len < threshold {
            Path::Eager
        } else {
            Path::Rendezvous
        }
    }
}

/// Key under which both sides of a rendezvous find their buffer: word 0 of the notification (EXT
/// §4.3). `start` is the side's own buffer address, `len` the frame length.
pub const fn match_key(start: u64, len: u32) -> u64 {
    crate::rma::last_fragment_start(start, len)
}

/// Size field of the notification that ends a transfer of `len` bytes: bytes of its last fragment −
/// 1 (EXT §4.3).
pub const fn last_size(len: u32) -> u32 {
    len.saturating_sub(1) % crate::rma::FRAGMENT
}

/// True for a frame that the own node sent to a group and that must be dropped on reception (EXT
/// §2.3).
pub fn is_own_group_frame(frame: &[u8], source: NodeId, own: NodeId) -> bool {
    source.0 == own.0 && destination(frame).is_some_and(is_group_mac)
}
