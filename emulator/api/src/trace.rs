//! Records of the trace file.

use crate::network::DropReason;
use serde::{Deserialize, Serialize};

/// One line of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Nanoseconds since the start of the emulator.
    pub t: u64,
    /// Index of the NIC.
    pub nic: usize,
    /// Event that happened.
    #[serde(flatten)]
    pub event: Event,
}

/// Originator of a register access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// Host that the NIC is part of.
    Host,
    /// Another node, by remote register access.
    Remote,
    /// An SNQ program.
    Snq,
    /// Set-up step or control socket of the emulator.
    Management,
}

/// Event of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Event {
    /// Register file write.
    RegWrite {
        /// Originator of the access.
        by: By,
        /// Byte offset.
        offset: u32,
        /// Value.
        value: u64,
    },
    /// Register file read.
    RegRead {
        /// Originator of the access.
        by: By,
        /// Byte offset.
        offset: u32,
        /// Value.
        value: u64,
    },
    /// A complete descriptor at a requester.
    Descriptor {
        /// Network port of the unit.
        port: u8,
        /// Source VPID.
        vpid: u16,
        /// Quadwords.
        words: Vec<u64>,
    },
    /// DMA access.
    Dma {
        /// True for a write to host memory.
        write: bool,
        /// Bus address.
        addr: u64,
        /// Bytes.
        len: usize,
    },
    /// MSI message.
    Msi {
        /// Vector.
        vector: u16,
    },
    /// Report of an error of software.
    Diagnostic {
        /// Description of the error.
        text: String,
    },
    /// Injection of a packet by a NIC.
    Inject {
        /// Number of the packet, which its copies share.
        id: u64,
        /// Source node ID.
        src: u16,
        /// Destination node ID or group.
        dst: u16,
        /// True if the destination is a group.
        group: bool,
        /// Network port.
        port: u8,
        /// Destination VPID.
        vpid: u16,
        /// Payload bytes.
        bytes: u32,
        /// Kind of packet.
        body: String,
    },
    /// Passage of a packet through a crossbar.
    Hop {
        /// Number of the packet.
        id: u64,
        /// Crossbar inport: 0…6 link, 7…10 network port.
        inport: u8,
        /// Crossbar outport.
        outport: u8,
    },
    /// Delivery of a packet to the NIC.
    Deliver {
        /// Number of the packet.
        id: u64,
        /// Network port.
        port: u8,
    },
    /// Drop of a packet by the network.
    Drop {
        /// Number of the packet.
        id: u64,
        /// Reason of the drop.
        reason: DropReason,
    },
    /// Change of a link's state.
    Link {
        /// Link port.
        port: u8,
        /// True if the link carries packets now.
        up: bool,
    },
    /// Configuration space write.
    ConfigWrite {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        data: Vec<u8>,
    },
    /// Event of the NIC as a whole: connect, reset, power.
    State {
        /// Description of the event.
        text: String,
    },
}

impl Record {
    /// Parses a line of the file.
    ///
    /// # Errors
    ///
    /// The line is not a record.
    pub fn parse(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line)
    }
}
