//! Content of packets between NICs. The network does not read it.

use crate::env::{Packet, Stream};
use std::fmt;
use wire::rma::{Command, Mode, NotifySpec};

/// Content of a packet, by unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A VELO message.
    Velo(Box<VeloMessage>),
    /// An RMA request or response.
    Rma(Box<RmaMessage>),
    /// An SMFU request or response.
    Smfu(Box<SmfuMessage>),
}

/// Address space of an SMFU request at the target (HW §12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmfuSpace {
    /// Memory. Addresses are relative to the base of this interval at the target, or relative to
    /// the default base for `None`.
    Memory(Option<u8>),
    /// The register file.
    Registers,
}

/// A load from or a store to the shared memory window, or the response to a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmfuMessage {
    /// A posted write.
    Write {
        /// Address space of `addr`.
        space: SmfuSpace,
        /// Global address (HW §12).
        addr: u64,
        /// Bytes to write.
        data: Vec<u8>,
    },
    /// A non-posted read.
    Read {
        /// Address space of `addr`.
        space: SmfuSpace,
        /// Global address (HW §12).
        addr: u64,
        /// Number of bytes to read. A read of 0 bytes only pushes the earlier writes.
        len: u32,
        /// Tag that the response repeats.
        tag: u64,
    },
    /// A response to a read.
    Response {
        /// Tag of the request.
        tag: u64,
        /// Data that was read; `None` if the target could not read it.
        data: Option<Vec<u8>>,
    },
}

/// A VELO message with the identity of its sender (HW §9.3).
#[derive(Clone, PartialEq, Eq)]
pub struct VeloMessage {
    /// Source node ID, which the requester wrote.
    pub src_node: u16,
    /// Source VPID, which the requester wrote.
    pub src_vpid: u16,
    /// Protection descriptor, which the requester wrote.
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
    /// Payload. If `len` does not fill the last quadword, the remaining bytes of that quadword are
    /// those that the sender stored there.
    pub data: [u8; 120],
}

impl VeloMessage {
    /// Returns the payload as stored in the mailbox, which contains whole quadwords.
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

/// An RMA request or response. The *origin* is the side that posted the descriptor; the *peer* is
/// the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RmaMessage {
    /// VPID that posted the descriptor at the origin.
    pub origin_vpid: u8,
    /// Destination VPID that the descriptor contains.
    pub peer_vpid: u8,
    /// Protection descriptor of the origin VPID.
    pub protection: u16,
    /// Command code in the encoding of notifications (HW §10.2). A response has the code of a
    /// response command.
    pub command: Command,
    /// Notifications that the descriptor requests.
    pub notify: NotifySpec,
    /// Page options and modifiers in the encoding of notifications (HW §10.4).
    pub mode: Mode,
    /// Content whose form depends on the command.
    pub kind: RmaKind,
}

/// Position of a packet in its transfer. Hardware splits a transfer into packets of up to 496 bytes
/// (HW §10.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Number that the sending NIC gave to the transfer. After a failure, the receiver uses it to
    /// discard the remaining packets of the transfer.
    pub transfer: u32,
    /// True for the first packet.
    pub first: bool,
    /// True for the last packet.
    pub last: bool,
}

impl Part {
    /// Position of the only packet of a transfer.
    pub const WHOLE: Self = Self {
        transfer: 0,
        first: true,
        last: true,
    };
}

/// Content of an [`RmaMessage`], by command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RmaKind {
    /// A packet of a PUT, with data to write at the peer.
    Put {
        /// Address at the peer to which the data of this packet is written.
        addr: u64,
        /// Position of the packet in the transfer.
        part: Part,
        /// Bytes to write, or the number of bytes if the requester could not read them. A packet
        /// without data is the last packet of its transfer.
        data: Result<Vec<u8>, u32>,
    },
    /// An immediate PUT, which writes up to 8 bytes from the descriptor at the peer.
    Immediate {
        /// Address at the peer to which the bytes are written.
        addr: u64,
        /// Number of bytes, 1…8.
        len: u8,
        /// Bytes to write, in little-endian order.
        value: u64,
    },
    /// A notification PUT.
    Notify {
        /// Class of the notification: bits [7:0] of notification word 1.
        class: u8,
        /// Value of the notification: notification word 0.
        value: u64,
    },
    /// A request of a GET to read at the peer.
    GetRequest {
        /// Address at the peer from which the data is read.
        read_addr: u64,
        /// Address at the origin to which the data is written. The response repeats it.
        write_addr: u64,
        /// Length in bytes.
        len: u32,
    },
    /// A packet of the response to [`RmaKind::GetRequest`].
    GetResponse {
        /// Address at the origin to which the data of this packet is written.
        write_addr: u64,
        /// Position of the packet in the response.
        part: Part,
        /// Data that was read, or the number of bytes if the responder could not read them (G17). A
        /// packet without data is the last packet of the response.
        data: Result<Vec<u8>, u32>,
    },
    /// A fetch-compare-and-add request.
    LockRequest {
        /// True if the completer executes the request, false if the responder does. Both behave
        /// alike (G16).
        at_completer: bool,
        /// Number of the lock, 24 bits.
        number: u32,
        /// Compare operand.
        compare: i32,
        /// Value to add.
        add: i32,
    },
    /// A response to [`RmaKind::LockRequest`].
    LockResponse {
        /// Number of the lock, 24 bits.
        number: u32,
        /// True if the operation changed the value.
        success: bool,
        /// Value of the lock after the operation.
        value: i32,
        /// Error bits for the notification. They tell which unit failed.
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

    /// Returns a copy whose `kind` is a placeholder.
    pub(super) fn bare(&self) -> Self {
        Self {
            kind: RmaKind::Notify { class: 0, value: 0 },
            ..*self
        }
    }
}

impl Packet {
    /// Returns the stream of the writes that this packet causes at its target. Writes to receive
    /// queues have additional streams.
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
