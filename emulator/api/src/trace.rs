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
    /// Event that happened at the NIC.
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
    /// A write to the register file.
    RegWrite {
        /// Originator of the access.
        by: By,
        /// Byte offset of the register.
        offset: u32,
        /// Value that was written.
        value: u64,
    },
    /// A read from the register file.
    RegRead {
        /// Originator of the access.
        by: By,
        /// Byte offset of the register.
        offset: u32,
        /// Value that was read.
        value: u64,
    },
    /// A complete descriptor at a requester.
    Descriptor {
        /// Network port of the unit.
        port: u8,
        /// Source VPID.
        vpid: u16,
        /// Quadwords of the descriptor.
        words: Vec<u64>,
    },
    /// A DMA access by the NIC.
    Dma {
        /// True for a write to host memory.
        write: bool,
        /// Bus address.
        addr: u64,
        /// Length in bytes.
        len: usize,
    },
    /// An MSI message to the host.
    Msi {
        /// Number of the vector.
        vector: u16,
    },
    /// A report of an error of software.
    Diagnostic {
        /// Description of the error.
        text: String,
    },
    /// The injection of a packet by the NIC.
    Inject {
        /// Number of the packet. Copies of a packet have the same number.
        id: u64,
        /// Source node ID.
        src: u16,
        /// Destination node ID or group.
        dst: u16,
        /// True if the destination is a group.
        group: bool,
        /// Number of the network port.
        port: u8,
        /// Destination VPID.
        vpid: u16,
        /// Length of the payload in bytes.
        bytes: u32,
        /// Kind of packet.
        body: String,
    },
    /// The passage of a packet through the NIC's crossbar.
    Hop {
        /// Number of the packet.
        id: u64,
        /// Crossbar inport: 0…6 link, 7…10 network port.
        inport: u8,
        /// Crossbar outport.
        outport: u8,
    },
    /// The delivery of a packet to the NIC.
    Deliver {
        /// Number of the packet.
        id: u64,
        /// Number of the network port.
        port: u8,
    },
    /// The drop of a packet by the network.
    Drop {
        /// Number of the packet.
        id: u64,
        /// Reason of the drop.
        reason: DropReason,
    },
    /// A change of a link's state.
    Link {
        /// Number of the link port.
        port: u8,
        /// True if the link carries packets now.
        up: bool,
    },
    /// A write to the configuration space.
    ConfigWrite {
        /// Byte offset of the write.
        offset: u64,
        /// Bytes that were written.
        data: Vec<u8>,
    },
    /// An event that concerns the whole NIC, such as connection, reset or power.
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
    /// When the line is not a record.
    pub fn parse(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line)
    }
}
