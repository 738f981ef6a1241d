//! What NICs send each other. The network looks at the envelope only.

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

/// Where an SMFU request ends at the target (HW §12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmfuSpace {
    /// Memory: the base of this interval at the target, or the default base.
    Memory(Option<u8>),
    /// The register file.
    Registers,
}

/// A load or store to the shared memory window, or the answer to a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmfuMessage {
    /// Posted write.
    Write {
        /// What `addr` means.
        space: SmfuSpace,
        /// Global address (HW §12).
        addr: u64,
        /// Bytes to write.
        data: Vec<u8>,
    },
    /// Non-posted read.
    Read {
        /// What `addr` means.
        space: SmfuSpace,
        /// Global address.
        addr: u64,
        /// Bytes to read; 0: only pushes the writes before it.
        len: u32,
        /// Matches the response to the request.
        tag: u64,
    },
    /// Answer to a read.
    Response {
        /// Tag of the request.
        tag: u64,
        /// The data; none if the target could not read.
        data: Option<Vec<u8>>,
    },
}

/// A VELO message with the identity that the requester stamped on it (HW §9.3).
#[derive(Clone, PartialEq, Eq)]
pub struct VeloMessage {
    /// Stamped source node.
    pub src_node: u16,
    /// Stamped source VPID.
    pub src_vpid: u16,
    /// Stamped protection descriptor.
    pub protection: u16,
    /// Destination VPID, 10 bits.
    pub dst_vpid: u16,
    /// Message type tag, 0…3.
    pub mtt: u8,
    /// User tag.
    pub tag: u8,
    /// Interrupt request at the receiver.
    pub interrupt: bool,
    /// Valid bytes of `data`, 1…120.
    pub len: u8,
    /// Payload; bytes of the last quadword beyond `len` are what the sender stored there.
    pub data: [u8; 120],
}

impl VeloMessage {
    /// Payload as stored in the mailbox: whole quadwords.
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

/// RMA request or response. `origin` is the side that posted the descriptor, `peer` the other one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RmaMessage {
    /// VPID that posted the descriptor.
    pub origin_vpid: u8,
    /// VPID named as destination in the descriptor.
    pub peer_vpid: u8,
    /// Protection descriptor of the origin VPID.
    pub protection: u16,
    /// Command as notifications show it (HW §10.2): responses carry the response commands.
    pub command: Command,
    /// Notifications asked for.
    pub notify: NotifySpec,
    /// Page options and modifiers as notifications show them (HW §10.4).
    pub mode: Mode,
    /// What is asked or answered.
    pub kind: RmaKind,
}

/// Place of a packet in its transfer: hardware splits one into packets of at most 496 bytes (HW §10.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Number that the sending NIC gave the transfer, so that the receiver can leave out the rest of one that failed.
    pub transfer: u32,
    /// No packet of it came before.
    pub first: bool,
    /// No packet of it follows.
    pub last: bool,
}

impl Part {
    /// A transfer of one packet.
    pub const WHOLE: Self = Self {
        transfer: 0,
        first: true,
        last: true,
    };
}

/// The variable part of an [`RmaMessage`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RmaKind {
    /// Data to write at the peer.
    Put {
        /// Address at the peer of what is in this packet.
        addr: u64,
        /// Which packet of the transfer this is.
        part: Part,
        /// Bytes to write; or how many there would be, had the requester been able to read them. That is the last packet.
        data: Result<Vec<u8>, u32>,
    },
    /// Up to 8 bytes out of the descriptor to write at the peer.
    Immediate {
        /// Address at the peer.
        addr: u64,
        /// 1…8.
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
        /// Bytes.
        len: u32,
    },
    /// Answer to [`RmaKind::GetRequest`].
    GetResponse {
        /// Address at the origin of what is in this packet.
        write_addr: u64,
        /// Which packet of the response this is.
        part: Part,
        /// The data; or how many bytes there would be, had the responder been able to read them (G17). That is the last
        /// packet.
        data: Result<Vec<u8>, u32>,
    },
    /// Fetch-compare-and-add.
    LockRequest {
        /// Asked of the completer, else of the responder; both do the same (G16).
        at_completer: bool,
        /// Lock number, 24 bits.
        number: u32,
        /// Compare operand.
        compare: i32,
        /// Value to add.
        add: i32,
    },
    /// Answer to [`RmaKind::LockRequest`].
    LockResponse {
        /// Lock number, 24 bits.
        number: u32,
        /// True if the value was changed.
        success: bool,
        /// Value after the operation.
        value: i32,
        /// Error bits for the notification: the unit that failed.
        error: u8,
    },
}

impl RmaMessage {
    /// Answers a request that came from `origin_vpid`.
    fn is_response(&self) -> bool {
        matches!(
            self.kind,
            RmaKind::GetResponse { .. } | RmaKind::LockResponse { .. }
        )
    }

    /// The same without what is variable: a placeholder stands there.
    pub(super) fn bare(&self) -> Self {
        Self {
            kind: RmaKind::Notify { class: 0, value: 0 },
            ..*self
        }
    }
}

impl Packet {
    /// The order in which the target writes what this packet makes it write, apart from that of receive queues.
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
    /// Short name for traces and counters.
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

    /// VPID that receives the packet at its destination; 0 for units without.
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
