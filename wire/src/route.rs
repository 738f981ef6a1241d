// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Entries of routing and multicast tables.
//!
//! **MODEL decision, not a hardware fact.** The locations and sizes of the tables are known (HW
//! §15.2), but their entry formats on Tourmalet are not (G21). This project therefore defines the
//! formats below. The emulated fabric forwards packets by these entries, and the management
//! software of that fabric writes them. Software must never write these formats to a real card,
//! except for a table that an administrator supplies. Two facts are inferences of the reference:
//! the split of a node ID into table indices, and the port numbers (0–6 links, 7–10 network ports
//! n0–n3).
//!
//! A lookup starts in the global table at node ID `[15:10]`. A valid entry without the local flag
//! names the outport. A valid entry with the local flag continues the lookup in the local table at
//! node ID `[9:0]`, whose entry names the outport. All other cases are illegal routing. An entry
//! that names any network port means that the packet is for this node. The kind of the packet then
//! selects one of n0–n3, because a node has only one entry.

use crate::ids::NodeId;
use core::fmt;

/// Crossbar outport, 0…10.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OutPort(u8);

/// Link or network port of an outport.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortKind {
    /// Link number, 0…6.
    Link(u8),
    /// Number of a network port, 0…3 (n0…n3). The packet is delivered on this node.
    Network(u8),
}

impl OutPort {
    /// Number of ports.
    pub const COUNT: u8 = 11;
    /// Number of the first network port.
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

    /// Returns the number of the outport, 0…10.
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
        /// Used only in the global table. True if the local table determines the port.
        local / with_local: bool [1:1];
        /// Outport number.
        outport / with_outport: u8 [7:4];
        /// Deterministic virtual channel, 0 or 1, for packets that leave through a link. Two
        /// channels keep rings of links free of deadlocks.
        dvc / with_dvc: u8 [8:8];
        /// Reserved bits, for example for alternative ports of adaptive routing. Software writes 0,
        /// and readers ignore them.
        spare / with_spare: u64 [63:9];
    }
}

/// Meaning of a routing table entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RouteEntry {
    /// The entry contains no route.
    Invalid,
    /// Used only in the global table. The local table determines the port.
    Local,
    /// Packets leave through this port.
    Port(OutPort),
}

impl RouteEntry {
    /// Returns the table word with reserved bits 0.
    pub const fn encode(self) -> RouteWord {
        let word = RouteWord(0);
        match self {
            RouteEntry::Invalid => word,
            RouteEntry::Local => word.with_valid(true).with_local(true),
            RouteEntry::Port(port) => word.with_valid(true).with_outport(port.get()),
        }
    }

    /// Decodes a table word. An outport number above 10 is returned as `Err`.
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
    /// The local entry is invalid or has the local flag set.
    NoNode,
    /// An entry contains this outport number, which is above 10.
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

/// Finds the outport for `node`. `grt` returns a word of the global table (0…63), and `lrt` a word
/// of the local table (0…1023).
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
    /// Entry of a multicast table. The packet is copied to every outport whose bit is set.
    pub struct McastEntry {
        /// Bit i selects outport i.
        ports / with_ports: u16 [10:0];
    }
}

impl McastEntry {
    /// Returns a copy of the entry with `port` added.
    #[must_use]
    pub const fn with(self, port: OutPort) -> Self {
        Self(self.0 | (1 << port.get()))
    }

    /// Returns whether `port` is in the entry.
    pub const fn has(self, port: OutPort) -> bool {
        (self.0 >> port.get()) & 1 != 0
    }

    /// Iterates over the outports of the entry in ascending order.
    pub fn iter(self) -> impl Iterator<Item = OutPort> + Clone {
        (0..OutPort::COUNT)
            .filter_map(OutPort::new)
            .filter(move |port| self.has(*port))
    }
}
