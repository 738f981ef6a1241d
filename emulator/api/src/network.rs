//! Options and statistics of the network.

use crate::link::{DownPolicy, LinkKnobs, LinkStats};
use serde::{Deserialize, Serialize};

/// Stage of the crossbar that drops packets without a legal route (G21, HW §15.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IllegalRouting {
    /// The inport, which sets `routing.illegal_routing` and raises trigger event 13.
    #[default]
    Inport,
    /// Outport 10, which raises trigger event 14. The credits that the packet used stay in use
    /// until software sets the credits of the outport again.
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
    /// Capacity in bytes of each lane between the crossbar and a unit.
    pub np_buffer_bytes: u64,
    /// Maximum number of bytes from the requesters of a NIC that are sent, but not stored at the
    /// receiver.
    pub tx_credit_bytes: u64,
    /// Stage of the crossbar that drops packets without a legal route.
    pub illegal_routing: IllegalRouting,
    /// Time in ns that packets must have waited before the deadlock detector checks them. The
    /// detector checks once in this time.
    pub deadlock_check_ns: u64,
    /// Maximum number of links that a packet may cross; 0 means the number of NICs, but at least
    /// 64.
    pub hop_limit: u32,
    /// True if network ports that software has not enabled neither inject nor deliver packets.
    pub require_enabled_ports: bool,
    /// Knobs of all cables at the start.
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
    /// The routing table has no valid entry.
    IllegalRouting,
    /// The packet crossed too many links.
    HopLimit,
    /// Multicast tables copied the packet endlessly.
    CopyLimit,
    /// The route uses a link without a cable.
    NoCable,
    /// The link was down.
    LinkDown,
    /// The link was down and its buffer was full.
    LinkBuffer,
    /// The network port was not enabled.
    PortDisabled,
    /// The NIC had no power.
    PowerOff,
}

/// Counters of one NIC's crossbar and network ports since the emulator started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Packets that the NIC injected.
    pub injected: u64,
    /// Packets delivered to the NIC.
    pub delivered: u64,
    /// Packets that arrived on a link and left on another link.
    pub transit: u64,
    /// Copies that the crossbar made of multicast packets.
    pub copies: u64,
    /// Packets dropped because no legal route exists.
    pub illegal_routing: u64,
    /// Packets dropped at the hop limit.
    pub hop_limit: u64,
    /// Multicast packets dropped at the limit of copies.
    pub copy_limit: u64,
    /// Packets dropped because their link has no cable.
    pub no_cable: u64,
    /// Packets dropped because a link was down, or was down with a full buffer.
    pub link_down: u64,
    /// Packets dropped because the network port was not enabled.
    pub port_disabled: u64,
    /// Packets dropped because the NIC had no power.
    pub power_off: u64,
    /// Deadlocks that involved input buffers of this NIC.
    pub deadlocks: u64,
}

impl NodeStats {
    /// Counts a dropped packet.
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

    /// Returns the number of dropped packets.
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
    /// Knobs of the cable.
    pub knobs: LinkKnobs,
    /// Statistics from the first end to the second.
    pub forward: LinkStats,
    /// Statistics from the second end to the first.
    pub backward: LinkStats,
}
