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
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// Who accesses a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// The host the NIC sits in.
    Host,
    /// Another node, by remote register access.
    Remote,
    /// An SNQ program.
    Snq,
    /// Set-up and control of the emulator.
    Management,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Event {
    /// Register file write.
    RegWrite {
        /// Who.
        by: By,
        /// Byte offset.
        offset: u32,
        /// Value.
        value: u64,
    },
    /// Register file read.
    RegRead {
        /// Who.
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
    /// DMA.
    Dma {
        /// To host memory.
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
    /// Software did something wrong.
    Diagnostic {
        /// What.
        text: String,
    },
    /// A NIC injects a packet.
    Inject {
        /// Number of the packet; its copies have the same.
        id: u64,
        /// Source node ID.
        src: u16,
        /// Destination node ID or group.
        dst: u16,
        /// The destination is a group.
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
    /// A packet passes a crossbar.
    Hop {
        /// Number of the packet.
        id: u64,
        /// Crossbar inport: 0…6 link, 7…10 network port.
        inport: u8,
        /// Crossbar outport.
        outport: u8,
    },
    /// A packet is handed to the NIC.
    Deliver {
        /// Number of the packet.
        id: u64,
        /// Network port.
        port: u8,
    },
    /// The network drops a packet.
    Drop {
        /// Number of the packet.
        id: u64,
        /// Why.
        reason: DropReason,
    },
    /// A link changes state.
    Link {
        /// Link port.
        port: u8,
        /// Carries packets now.
        up: bool,
    },
    /// Configuration space write.
    ConfigWrite {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        data: Vec<u8>,
    },
    /// Something that happens to the NIC as a whole: connect, reset, power.
    State {
        /// What.
        text: String,
    },
}

impl Record {
    /// From a line of the file.
    ///
    /// # Errors
    ///
    /// It is no record.
    pub fn parse(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line)
    }
}
