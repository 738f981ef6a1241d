// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Routing and multicast table entries.
//!
//! **MODEL decision, not a hardware fact.** The locations and sizes of the tables are known (HW
//! §15.2), but their entry formats on Tourmalet are not (G21). This project defines the formats
//! below. The emulated fabric forwards packets by them, and the management software of that fabric
//! writes them. Software must never write these formats to a real card, except through a table that
//! an administrator supplies. The split of a node ID into table indices and the port numbers (0–6
//! links, 7–10 network ports n0–n3) are inferences of the reference.
//!
//! A lookup starts in the global table at node ID `[15:10]`. A valid entry without the local flag
//! names the outport. A valid entry with the local flag continues the lookup in the local table at
//! node ID `[9:0]`, whose entry names the outport. All other cases are illegal routing. An entry
//! that names any network port means "this node". The kind of the packet selects one of n0–n3,
//! because one entry per node cannot tell them apart.

use crate::ids::NodeId;
use core::fmt;

/// Crossbar outport, 0…10.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OutPort(u8);

/// Destination of a crossbar port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortKind {
    /// Link 0…6.
    Link(u8),
    /// Network port 0…3 (n0…n3): delivery on this node.
    Network(u8),
}

impl OutPort {
    /// Number of ports.
    pub const COUNT: u8 = 11;
    /// First network port.
    pub const FIRST_NETWORK: u8 = 7;

    /// Returns the port `number`; `None` above 10.
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::COUNT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Returns the port of link `link`; `None` above 6.
    pub const fn link(link: u8) -> Option<Self> {
        if link < Self::FIRST_NETWORK {
            Some(Self(link))
        } else {
            None
        }
    }

    /// Returns the port of network port `n`; `None` above 3.
    pub const fn network(n: u8) -> Option<Self> {
        if n < Self::COUNT - Self::FIRST_NETWORK {
            Some(Self(Self::FIRST_NETWORK + n))
        } else {
            None
        }
    }

    /// Returns the number, 0…10.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the link or network port of this outport.
    pub const fn kind(self) -> PortKind {
        if self.0 < Self::FIRST_NETWORK {
            PortKind::Link(self.0)
        } else {
            PortKind::Network(self.0 - Self::FIRST_NETWORK)
        }
    }
}

impl fmt::Display for OutPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            PortKind::Link(n) => write!(f, "link {n}"),
            PortKind::Network(n) => write!(f, "n{n}"),
        }
    }
}

bits! {
    /// Entry of a global or local routing table with any bit pattern.
    pub struct RouteWord {
        /// The entry is valid.
        valid / with_valid: bool [0:0];
        /// Global table only: the local table determines the port.
        local / with_local: bool [1:1];
        /// Outport number.
        outport / with_outport: u8 [7:4];
        /// Deterministic virtual channel, 0 or 1, for packets that leave through a link. Two
        /// channels keep rings free of deadlocks.
        dvc / with_dvc: u8 [8:8];
        /// Reserved, for example for alternative ports of adaptive routing; written as 0, ignored
        /// on reading.
        spare / with_spare: u64 [63:9];
    }
}

/// Meaning of a routing table entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RouteEntry {
    /// No route.
    Invalid,
    /// Global table only: the local table determines the port.
    Local,
    /// Packets leave through this port.
    Port(OutPort),
}

impl RouteEntry {
    /// Returns the table word with spare bits 0.
    pub const fn encode(self) -> RouteWord {
        let word = RouteWord(0);
        match self {
            RouteEntry::Invalid => word,
            RouteEntry::Local => word.with_valid(true).with_local(true),
            RouteEntry::Port(port) => word.with_valid(true).with_outport(port.get()),
        }
    }

    /// Decodes a table word. `Err` carries an outport number above 10.
    pub const fn decode(word: RouteWord) -> Result<Self, u8> {
        if !word.valid() {
            return Ok(RouteEntry::Invalid);
        }
        if word.local() {
            return Ok(RouteEntry::Local);
        }
        match OutPort::new(word.outport()) {
            Some(port) => Ok(RouteEntry::Port(port)),
            None => Err(word.outport()),
        }
    }
}

/// Reason why a node has no route.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RouteError {
    /// The global entry is invalid.
    NoSegment,
    /// The local entry is invalid or has the local flag itself.
    NoNode,
    /// An entry names an outport above 10.
    BadPort(u8),
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteError::NoSegment => f.write_str("no global routing table entry"),
            RouteError::NoNode => f.write_str("no local routing table entry"),
            RouteError::BadPort(port) => write!(f, "routing table entry names outport {port}"),
        }
    }
}

/// Finds the outport for `node`. `grt` and `lrt` return the words of the global table (0…63) and
/// local table (0…1023) at an index.
pub fn lookup(
    node: NodeId,
    grt: impl FnOnce(u8) -> RouteWord,
    lrt: impl FnOnce(u16) -> RouteWord,
) -> Result<OutPort, RouteError> {
    match RouteEntry::decode(grt(node.segment())).map_err(RouteError::BadPort)? {
        RouteEntry::Invalid => Err(RouteError::NoSegment),
        RouteEntry::Port(port) => Ok(port),
        RouteEntry::Local => {
            match RouteEntry::decode(lrt(node.local())).map_err(RouteError::BadPort)? {
                RouteEntry::Port(port) => Ok(port),
                RouteEntry::Invalid | RouteEntry::Local => Err(RouteError::NoNode),
            }
        }
    }
}

/// Number of multicast groups.
pub const MCAST_GROUPS: u16 = 64;

bits! {
    /// Entry of a multicast table: the packet is copied to every outport whose bit is set.
    pub struct McastEntry {
        /// Bit i: outport i.
        ports / with_ports: u16 [10:0];
    }
}

impl McastEntry {
    /// Returns the entry with `port` added.
    #[must_use]
    pub const fn with(self, port: OutPort) -> Self {
        Self(self.0 | (1 << port.get()))
    }

    /// Returns whether `port` is in the entry.
    pub const fn has(self, port: OutPort) -> bool {
        (self.0 >> port.get()) & 1 != 0
    }

    /// Iterates over the outports in ascending order.
    pub fn iter(self) -> impl Iterator<Item = OutPort> + Clone {
        (0..OutPort::COUNT)
            .filter_map(OutPort::new)
            .filter(move |port| self.has(*port))
    }
}
