//! The network: options and statistics.

use crate::link::{DownPolicy, LinkKnobs, LinkStats};
use serde::{Deserialize, Serialize};

/// Where packets without a legal route end (G21, HW §15.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IllegalRouting {
    /// At the inport: `routing.illegal_routing`, TE 13.
    #[default]
    Inport,
    /// In outport 10, whose credit counts stay up until software sets its credits anew: TE 14.
    Outport,
}

/// Options of the fabric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetConfig {
    /// What a link that is down does with packets.
    pub link_down: DownPolicy,
    /// Bytes that one direction of a link that is down holds.
    pub link_buffer_bytes: u64,
    /// Bytes that each virtual channel has room for at a crossbar inport.
    pub input_buffer_bytes: u64,
    /// Bytes that each lane has room for between the crossbar and its unit.
    pub np_buffer_bytes: u64,
    /// Bytes that the requesters of a NIC may have under way: sent and not stored at the receiver.
    pub tx_credit_bytes: u64,
    /// Where packets without a legal route end.
    pub illegal_routing: IllegalRouting,
    /// Time in ns for which packets wait until the deadlock detector looks at them, and between its looks.
    pub deadlock_check_ns: u64,
    /// Links that a packet may cross; 0: as many as there are NICs, at least 64.
    pub hop_limit: u32,
    /// Network ports that software has not enabled neither inject nor deliver.
    pub require_enabled_ports: bool,
    /// Knobs of all links at the start.
    pub link: LinkKnobs,
    /// Seed of all random draws.
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

/// Why the network dropped a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropReason {
    /// No valid table entry.
    IllegalRouting,
    /// Crossed too many links.
    HopLimit,
    /// Multicast tables that copy without end.
    CopyLimit,
    /// Routed to a link without cable.
    NoCable,
    /// Link down.
    LinkDown,
    /// Buffer of a link that is down is full.
    LinkBuffer,
    /// Network port not enabled.
    PortDisabled,
    /// The NIC is powered off.
    PowerOff,
}

/// Packets of one NIC's crossbar and network ports. Counters run up from the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Packets that the NIC injected.
    pub injected: u64,
    /// Packets delivered to the NIC.
    pub delivered: u64,
    /// Packets that passed through from link to link.
    pub transit: u64,
    /// Copies made for multicasts.
    pub copies: u64,
    /// Drops: no legal route.
    pub illegal_routing: u64,
    /// Drops: hop limit.
    pub hop_limit: u64,
    /// Drops: copy limit of multicasts.
    pub copy_limit: u64,
    /// Drops: link without cable.
    pub no_cable: u64,
    /// Drops: link down, or its buffer full.
    pub link_down: u64,
    /// Drops: network port not enabled.
    pub port_disabled: u64,
    /// Drops: powered off.
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

    /// All drops.
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
    /// Plugged in.
    pub up: bool,
    /// Carries packets.
    pub live: bool,
    /// What happens while it is down.
    pub policy: DownPolicy,
    /// Goes down and up by itself.
    pub flapping: bool,
    /// Knobs.
    pub knobs: LinkKnobs,
    /// First end to second end.
    pub forward: LinkStats,
    /// Second end to first end.
    pub backward: LinkStats,
}
