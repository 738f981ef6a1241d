//! Content of packets between NICs. The network reads only the envelope.

use crate::env::{Packet, Stream};
use std::fmt;
use wire::rma::{Command, Mode, NotifySpec};

/// Payload of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// VELO message.
    Velo(Box<VeloMessage>),
    /// RMA request or response.
    Rma(Box<RmaMessage>),
    /// SMFU request or response.
    Smfu(Box<SmfuMessage>),
}

/// Address space of an SMFU request at the target (HW §12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmfuSpace {
    /// Memory, relative to the base of this interval at the target; `None`: relative to the default
    /// base.
    Memory(Option<u8>),
    /// The register file.
    Registers,
}

/// A load or store in the shared memory window, or the response to a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmfuMessage {
    /// Posted write.
    Write {
        /// Address space of `addr`.
        space: SmfuSpace,
        /// Global address (HW §12).
        addr: u64,
        /// Bytes to write.
        data: Vec<u8>,
    },
    /// Non-posted read.
    Read {
        /// Address space of `addr`.
        space: SmfuSpace,
        /// Global address.
        addr: u64,
        /// Number of bytes to read; 0: the read only pushes the writes before it.
        len: u32,
        /// Tag that the response repeats.
        tag: u64,
    },
    /// Response to a read.
    Response {
        /// Tag of the request.
        tag: u64,
        /// The data; `None` if the target could not read them.
        data: Option<Vec<u8>>,
    },
}

/// A VELO message with the identity that the requester wrote into it (HW §9.3).
#[derive(Clone, PartialEq, Eq)]
pub struct VeloMessage {
    /// Source node, written by the requester.
    pub src_node: u16,
    /// Source VPID, written by the requester.
    pub src_vpid: u16,
    /// Protection descriptor, written by the requester.
    pub protection: u16,
    /// Destination VPID, 10 bits.
    pub dst_vpid: u16,
    /// Message type tag, 0…3.
    pub mtt: u8,
    /// User tag.
    pub tag: u8,
    /// True to request an interrupt at the receiver.
    pub interrupt: bool,
    /// Number of valid bytes of `data`, 1…120.
    pub len: u8,
    /// Payload. Bytes of the last quadword beyond `len` hold the values that the sender stored
    /// there.
    pub data: [u8; 120],
}

impl VeloMessage {
    /// Returns the payload with the length stored in the mailbox: whole quadwords.
    pub fn padded(&self) -> &[u8] {
        let n = usize::from(self.len).div_ceil(8) * 8;
        &self.data[..n.min(self.data.len())]
    }
}

impl fmt::Debug for VeloMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "VeloMessage {{ from {}:{} pd {:#x} to vpid {} mtt {} tag {} irq {} len {} data ",
            self.src_node,
            self.src_vpid,
            self.protection,
            self.dst_vpid,
            self.mtt,
            self.tag,
            self.interrupt,
            self.len
        )?;
        for byte in self.padded() {
            write!(f, "{byte:02x}")?;
        }
        write!(f, " }}")
    }
}

/// RMA request or response. `origin` is the side that posted the descriptor, `peer` the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RmaMessage {
    /// VPID that posted the descriptor.
    pub origin_vpid: u8,
    /// VPID named as destination in the descriptor.
    pub peer_vpid: u8,
    /// Protection descriptor of the origin VPID.
    pub protection: u16,
    /// Command code, as notifications report it (HW §10.2). A response carries a response command.
    pub command: Command,
    /// Notifications that the descriptor requests.
    pub notify: NotifySpec,
    /// Page options and modifiers as encoded in notifications (HW §10.4).
    pub mode: Mode,
    /// Content that depends on the command.
    pub kind: RmaKind,
}

/// Position of a packet in its transfer. Hardware splits a transfer into packets of up to 496 bytes
/// (HW §10.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Number that the sending NIC gave the transfer, by which the receiver discards the remaining
    /// packets of a failed transfer.
    pub transfer: u32,
    /// True for the first packet.
    pub first: bool,
    /// True for the last packet.
    pub last: bool,
}

impl Part {
    /// The part of a transfer that has only one packet.
    pub const WHOLE: Self = Self {
        transfer: 0,
        first: true,
        last: true,
    };
}

/// Content of an [`RmaMessage`] that depends on the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RmaKind {
    /// Data to write at the peer.
    Put {
        /// Address at the peer for the data of this packet.
        addr: u64,
        /// Position of the packet in the transfer.
        part: Part,
        /// Bytes to write, or the number of bytes if the requester could not read them. A packet
        /// without data is the last one of its transfer.
        data: Result<Vec<u8>, u32>,
    },
    /// Up to 8 bytes from the descriptor to write at the peer.
    Immediate {
        /// Address at the peer.
        addr: u64,
        /// Number of bytes, 1…8.
        len: u8,
        /// Value, little endian.
        value: u64,
    },
    /// Notification put.
    Notify {
        /// Class, [7:0] of notification word 1.
        class: u8,
        /// Notification word 0.
        value: u64,
    },
    /// Request to read at the peer.
    GetRequest {
        /// Address at the peer.
        read_addr: u64,
        /// Address at the origin, echoed in the response.
        write_addr: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Response to [`RmaKind::GetRequest`].
    GetResponse {
        /// Address at the origin for the data of this packet.
        write_addr: u64,
        /// Position of the packet in the response.
        part: Part,
        /// The data, or their number of bytes if the responder could not read them (G17). A packet
        /// without data is the last one.
        data: Result<Vec<u8>, u32>,
    },
    /// Fetch-compare-and-add.
    LockRequest {
        /// True if the completer executes the request, else the responder. Both behave alike (G16).
        at_completer: bool,
        /// Lock number, 24 bits.
        number: u32,
        /// Compare operand.
        compare: i32,
        /// Value to add.
        add: i32,
    },
    /// Response to [`RmaKind::LockRequest`].
    LockResponse {
        /// Lock number, 24 bits.
        number: u32,
        /// True if the value was changed.
        success: bool,
        /// Value after the operation.
        value: i32,
        /// Error bits for the notification, which name the unit that failed.
        error: u8,
    },
}

impl RmaMessage {
    /// Returns true for a response to a request of `origin_vpid`.
    fn is_response(&self) -> bool {
        matches!(
            self.kind,
            RmaKind::GetResponse { .. } | RmaKind::LockResponse { .. }
        )
    }

    /// Returns a copy with a placeholder as `kind`.
    pub(super) fn bare(&self) -> Self {
        Self {
            kind: RmaKind::Notify { class: 0, value: 0 },
            ..*self
        }
    }
}

impl Packet {
    /// Returns the stream of the writes that this packet causes at its target, besides the streams
    /// of receive queues.
    pub(super) fn stream(&self) -> Option<Stream> {
        match &self.body {
            Body::Velo(_) => None,
            Body::Rma(m) => Some(Stream::Rma {
                node: self.src.0,
                vpid: m.origin_vpid,
                tc: self.tc,
                response: m.is_response(),
            }),
            Body::Smfu(_) => Some(Stream::Smfu { node: self.src.0 }),
        }
    }
}

impl Body {
    /// Returns a short name for traces and counters.
    pub fn kind(&self) -> &'static str {
        match self {
            Body::Velo(_) => "velo",
            Body::Rma(m) => match m.kind {
                RmaKind::Put { .. } => "rma-put",
                RmaKind::Immediate { .. } => "rma-immediate-put",
                RmaKind::Notify { .. } => "rma-notification-put",
                RmaKind::GetRequest { .. } => "rma-get-request",
                RmaKind::GetResponse { .. } => "rma-get-response",
                RmaKind::LockRequest { .. } => "rma-lock-request",
                RmaKind::LockResponse { .. } => "rma-lock-response",
            },
            Body::Smfu(m) => match **m {
                SmfuMessage::Write { .. } => "smfu-write",
                SmfuMessage::Read { .. } => "smfu-read",
                SmfuMessage::Response { .. } => "smfu-response",
            },
        }
    }

    /// Returns the VPID that receives the packet at its destination; 0 for units without VPIDs.
    pub fn target_vpid(&self) -> u16 {
        match self {
            Body::Velo(m) => m.dst_vpid,
            Body::Rma(m) => match m.kind {
                RmaKind::GetResponse { .. } | RmaKind::LockResponse { .. } => m.origin_vpid.into(),
                _ => m.peer_vpid.into(),
            },
            Body::Smfu(_) => 0,
        }
    }
}
