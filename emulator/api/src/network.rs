//! The network: options and statistics.

use crate::link::{DownPolicy, LinkKnobs, LinkStats};
use serde::{Deserialize, Serialize};

/// Point at which packets without a legal route are dropped (G21, HW §15.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IllegalRouting {
    /// The inport: `routing.illegal_routing`, TE 13.
    #[default]
    Inport,
    /// Outport 10: TE 14. Its credit counts stay used until software sets its credits again.
    Outport,
}

/// Options of the fabric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetConfig {
    /// Handling of packets on a link that is down.
    pub link_down: DownPolicy,
    /// Capacity in bytes of one direction of a link that is down.
    pub link_buffer_bytes: u64,
    /// Capacity in bytes of each virtual channel at a crossbar inport.
    pub input_buffer_bytes: u64,
    /// Capacity in bytes of each lane between the crossbar and its unit.
    pub np_buffer_bytes: u64,
    /// Maximum bytes in flight from the requesters of a NIC: sent, but not stored at the receiver.
    pub tx_credit_bytes: u64,
    /// Point at which packets without a legal route are dropped.
    pub illegal_routing: IllegalRouting,
    /// Time in ns that packets wait before the deadlock detector checks them, and interval of its
    /// checks.
    pub deadlock_check_ns: u64,
    /// Maximum number of links that a packet may cross; 0: number of NICs, at least 64.
    pub hop_limit: u32,
    /// True if network ports that software has not enabled neither inject nor deliver packets.
    pub require_enabled_ports: bool,
    /// Knobs of all links at the start.
    pub link: LinkKnobs,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            link_down: DownPolicy::Drop,
            link_buffer_bytes: 1 << 20,
            input_buffer_bytes: 32 << 10,
            np_buffer_bytes: 32 << 10,
            tx_credit_bytes: 16 << 20,
            illegal_routing: IllegalRouting::default(),
            deadlock_check_ns: 10_000_000,
            hop_limit: 0,
            require_enabled_ports: true,
            link: LinkKnobs::default(),
            seed: 1,
        }
    }
}

/// Reason why the network dropped a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropReason {
    /// No valid table entry.
    IllegalRouting,
    /// Too many links crossed.
    HopLimit,
    /// Multicast tables that copy endlessly.
    CopyLimit,
    /// Route to a link without cable.
    NoCable,
    /// Link down.
    LinkDown,
    /// Buffer of a link that is down is full.
    LinkBuffer,
    /// Network port not enabled.
    PortDisabled,
    /// NIC without power.
    PowerOff,
}

/// Counters of one NIC's crossbar and network ports, since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Packets that the NIC injected.
    pub injected: u64,
    /// Packets delivered to the NIC.
    pub delivered: u64,
    /// Packets that arrived on a link and left on a link.
    pub transit: u64,
    /// Copies made for multicasts.
    pub copies: u64,
    /// Packets dropped because no legal route exists.
    pub illegal_routing: u64,
    /// Packets dropped at the hop limit.
    pub hop_limit: u64,
    /// Multicast packets dropped at the limit of copies.
    pub copy_limit: u64,
    /// Packets dropped because their link has no cable.
    pub no_cable: u64,
    /// Packets dropped because a link was down, or its buffer was full.
    pub link_down: u64,
    /// Packets dropped because the network port was not enabled.
    pub port_disabled: u64,
    /// Packets dropped because the NIC had no power.
    pub power_off: u64,
    /// Deadlocks that input buffers of this NIC were part of.
    pub deadlocks: u64,
}

impl NodeStats {
    /// Counts a drop.
    pub fn count(&mut self, reason: DropReason) {
        let c = match reason {
            DropReason::IllegalRouting => &mut self.illegal_routing,
            DropReason::HopLimit => &mut self.hop_limit,
            DropReason::CopyLimit => &mut self.copy_limit,
            DropReason::NoCable => &mut self.no_cable,
            DropReason::LinkDown | DropReason::LinkBuffer => &mut self.link_down,
            DropReason::PortDisabled => &mut self.port_disabled,
            DropReason::PowerOff => &mut self.power_off,
        };
        *c += 1;
    }

    /// Returns the sum of all drops.
    pub fn drops(&self) -> u64 {
        self.illegal_routing
            + self.hop_limit
            + self.copy_limit
            + self.no_cable
            + self.link_down
            + self.port_disabled
            + self.power_off
    }
}

/// State of one cable, for reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// Both ends as `NIC:PORT`.
    pub ends: (String, String),
    /// True if the cable is plugged in.
    pub up: bool,
    /// True if the link carries packets.
    pub live: bool,
    /// Handling of packets while the link is down.
    pub policy: DownPolicy,
    /// True while the cable goes down and up repeatedly.
    pub flapping: bool,
    /// Knobs.
    pub knobs: LinkKnobs,
    /// Statistics from the first end to the second.
    pub forward: LinkStats,
    /// Statistics from the second end to the first.
    pub backward: LinkStats,
}
