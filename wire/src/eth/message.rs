// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages of Ethernet over Extoll: encoding and decoding (EXT §3, §4).

use super::{Reason, Reject, FRAGMENT, HEADER_LEN, MAX_EAGER, VPID};
use crate::ids::NodeId;
use crate::rma::{
    self, Command, Modifiers, Notification, NotificationType, NotifySpec, Operation, PageOptions,
};
use crate::velo::{self, Descriptor, Mtt, SourceId, Status, Target};
use core::fmt;

/// Length of an announcement in bytes.
pub const ANNOUNCEMENT_LEN: u16 = 16;
/// Length of a "frame dropped" message in bytes.
pub const DROPPED_LEN: u16 = 8;

/// Kind of a message: one of the four values of the VELO message type tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// 0: fragment of an eager frame that other fragments follow.
    EagerMore,
    /// 1: rendezvous announcement.
    Announcement,
    /// 2: "frame dropped by receiver", which this project never sends.
    Dropped,
    /// 3: last or only fragment of an eager frame.
    EagerLast,
}

impl Kind {
    /// Returns the message type tag.
    pub const fn mtt(self) -> Mtt {
        Mtt::from_low_bits(match self {
            Kind::EagerMore => 0,
            Kind::Announcement => 1,
            Kind::Dropped => 2,
            Kind::EagerLast => 3,
        })
    }

    /// Returns the kind with this message type tag.
    pub const fn from_mtt(mtt: Mtt) -> Self {
        match mtt.get() {
            0 => Kind::EagerMore,
            1 => Kind::Announcement,
            2 => Kind::Dropped,
            _ => Kind::EagerLast,
        }
    }
}

const fn descriptor(target: Target, kind: Kind, tag: u8, len: u16) -> Descriptor {
    Descriptor {
        target,
        vpid: VPID,
        mtt: kind.mtt(),
        irq: true,
        tag,
        len,
    }
}

/// Returns the descriptor of an announcement to `node`.
pub const fn announcement_descriptor(node: NodeId) -> Descriptor {
    descriptor(Target::Node(node), Kind::Announcement, 0, ANNOUNCEMENT_LEN)
}

/// Fragment of an eager frame, sent as one message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EagerFragment {
    /// Byte offset in the frame.
    pub offset: u32,
    /// Number of bytes, 1…120.
    pub len: u16,
    /// Number of fragments that follow, modulo 256.
    pub tag: u8,
    /// True for the last fragment.
    pub last: bool,
}

impl EagerFragment {
    /// Returns the VELO descriptor for `target`.
    pub const fn descriptor(&self, target: Target) -> Descriptor {
        let kind = if self.last {
            Kind::EagerLast
        } else {
            Kind::EagerMore
        };
        descriptor(target, kind, self.tag, self.len)
    }

    /// Returns the bytes of `frame` that this fragment carries. Returns no bytes if the fragment
    /// exceeds the frame.
    pub fn data<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let rest = frame.get(self.offset as usize..).unwrap_or(&[]);
        rest.get(..self.len as usize).unwrap_or(&[])
    }
}

/// Error for a frame that cannot be sent eagerly.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TooLong(
    /// Frame length in bytes; 0 for an empty frame.
    pub u32,
);

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "frame of {} bytes cannot be sent in messages, limits 1…{MAX_EAGER}",
            self.0
        )
    }
}

/// Iterates over the messages of an eager frame of `len` bytes in sending order. The sender must
/// send them back to back.
pub fn eager_fragments(
    len: u32,
) -> Result<impl ExactSizeIterator<Item = EagerFragment> + Clone, TooLong> {
    if len == 0 || len > MAX_EAGER {
        return Err(TooLong(len));
    }
    let fragment = FRAGMENT as u32;
    let count = len.div_ceil(fragment) as u16;
    Ok((0..count).map(move |k| {
        let offset = k as u32 * fragment;
        let rest = len - offset;
        let todo = count - 1 - k;
        EagerFragment {
            offset,
            len: if rest > fragment {
                FRAGMENT
            } else {
                rest as u16
            },
            tag: todo as u8,
            last: todo == 0,
        }
    }))
}

/// Payload of a rendezvous announcement: location of a frame at the sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Announcement {
    /// Address of the frame at the sender. The receiver repeats it unchanged in the GET.
    pub address: u64,
    /// Frame length in bytes as received. [`Announcement::frame_len`] checks it.
    pub len: u64,
}

impl Announcement {
    /// Returns the message payload.
    pub fn encode(&self) -> [u8; ANNOUNCEMENT_LEN as usize] {
        let mut bytes = [0; ANNOUNCEMENT_LEN as usize];
        let (address, len) = bytes.split_at_mut(8);
        address.copy_from_slice(&self.address.to_le_bytes());
        len.copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Decodes a payload, which must have exactly 16 bytes. The frame length is not checked.
    pub fn decode(payload: &[u8]) -> Result<Self, Reject> {
        let parts = payload
            .split_first_chunk::<8>()
            .map(|(address, rest)| (*address, <[u8; 8]>::try_from(rest)));
        match parts {
            Some((address, Ok(len))) => Ok(Self {
                address: u64::from_le_bytes(address),
                len: u64::from_le_bytes(len),
            }),
            _ => Err(Reject::new(
                Reason::AnnouncementLength,
                payload.len() as u64,
                ANNOUNCEMENT_LEN as u64,
            )),
        }
    }

    /// Returns the frame length if a receiver with frame limit `max_frame` can accept it.
    ///
    /// The buffer of a rejected announcement stays occupied at the sender (EXT §4.4). A receiver
    /// can avoid this by a GET of up to [`rma::MAX_LEN`] bytes whose data it discards.
    pub const fn frame_len(&self, max_frame: u32) -> Result<u32, Reject> {
        if self.len < HEADER_LEN as u64 {
            return Err(Reject::new(Reason::Runt, self.len, HEADER_LEN as u64));
        }
        if self.len > max_frame as u64 || self.len > rma::MAX_LEN as u64 {
            return Err(Reject::new(
                Reason::AnnouncedSize,
                self.len,
                max_frame as u64,
            ));
        }
        Ok(self.len as u32)
    }
}

/// Requester page of the GET: with interrupts, physical addresses and traffic class 0 (EXT §4.2).
pub const GET_PAGE: rma::RequesterAddr = rma::RequesterAddr::page(
    VPID,
    PageOptions {
        traffic_class: 0,
        rra: false,
        irq: true,
        translate: false,
    },
);

/// Returns the GET that answers an announcement of `node`. It reads `len` bytes from the announced
/// address to the local bus address `local`.
pub const fn get_descriptor(
    node: NodeId,
    announcement: &Announcement,
    len: u32,
    local: u64,
) -> rma::Descriptor {
    rma::Descriptor {
        node,
        vpid: VPID,
        notify: NotifySpec {
            requester: false,
            responder: true,
            completer: true,
        },
        modifiers: Modifiers::NONE,
        op: Operation::Get {
            qw: false,
            len,
            remote: announcement.address,
            local,
        },
    }
}

/// Received message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Message<'a> {
    /// Fragment of an eager frame, to be passed to the `Reassembler` for its source node.
    Eager {
        /// Number of fragments that follow, modulo 256.
        tag: u8,
        /// True for the last or only fragment.
        last: bool,
        /// Bytes of the frame.
        data: &'a [u8],
    },
    /// Announcement of a frame that the receiver must GET.
    Announcement(Announcement),
    /// The peer dropped the frame that was announced with this address. If this node has a buffer
    /// at the address, it frees the buffer.
    Dropped {
        /// Address of the frame in the announcement.
        address: u64,
    },
}

impl<'a> Message<'a> {
    /// Decodes a message. `payload` must be the `status.len` bytes of the slot.
    pub fn parse(status: &Status, payload: &'a [u8]) -> Result<Self, Reject> {
        let len = payload.len() as u64;
        if payload.is_empty() {
            return Err(Reject::new(Reason::Empty, 0, velo::MAX_LEN as u64));
        }
        if len > velo::MAX_LEN as u64 || len != status.len as u64 {
            return Err(Reject::new(Reason::MessageLength, len, status.len as u64));
        }
        let SourceId { vpid, .. } = status.source;
        if vpid.get() != VPID.get() {
            return Err(Reject::new(
                Reason::SourceVpid,
                vpid.get() as u64,
                VPID.get() as u64,
            ));
        }
        match Kind::from_mtt(status.mtt) {
            Kind::EagerMore => Ok(Message::Eager {
                tag: status.tag,
                last: false,
                data: payload,
            }),
            Kind::EagerLast => Ok(Message::Eager {
                tag: status.tag,
                last: true,
                data: payload,
            }),
            Kind::Announcement => Announcement::decode(payload).map(Message::Announcement),
            Kind::Dropped => match <[u8; DROPPED_LEN as usize]>::try_from(payload) {
                Ok(bytes) => Ok(Message::Dropped {
                    address: u64::from_le_bytes(bytes),
                }),
                Err(_) => Err(Reject::new(Reason::DroppedLength, len, DROPPED_LEN as u64)),
            },
        }
    }
}

/// Role of this node in a rendezvous that a notification completes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The peer has read the frame from the local buffer.
    Sent,
    /// The frame has arrived in the local buffer.
    Received,
}

/// End of a rendezvous that a notification reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// Local side of the rendezvous.
    pub side: Side,
    /// Key of the buffer, see [`super::match_key`].
    pub key: u64,
    /// Number of bytes of the last fragment − 1, see [`super::last_size`]. On an error, the value
    /// belongs to the failed packet.
    pub last: u32,
    /// Node ID of the peer.
    pub peer: NodeId,
    /// Error bits, 0 on success. On an error, the receiver drops the frame and the sender frees the
    /// buffer.
    pub error: u8,
}

impl Completion {
    /// Decodes a notification of VPID 254 (EXT §4.3).
    ///
    /// Any node can cause a completer notification with any word 0 on this VPID, by a put or a
    /// notification put. Only notifications of GETs are therefore accepted: the completer's for a
    /// GET of this node, and the responder's for a GET of a peer. The responder may report either
    /// command code of a GET (G13).
    pub fn from_notification(notification: &Notification) -> Result<Self, Reject> {
        let side = match (notification.kind, notification.command) {
            (NotificationType::Responder, Command::ByteGet | Command::ByteGetResponse) => {
                Side::Sent
            }
            (NotificationType::Completer, Command::ByteGetResponse) => Side::Received,
            // The command code in an error notification depends on the failing unit, which is
            // unspecified (G13).
            (NotificationType::Completer, Command::ByteGet) if notification.error != 0 => {
                Side::Received
            }
            _ => {
                let command = notification.command.code() as u64;
                return Err(Reject::new(
                    Reason::NotificationType,
                    notification.kind.code() as u64,
                    command,
                ));
            }
        };
        Ok(Self {
            side,
            key: notification.word0,
            last: notification.size_field,
            peer: notification.node,
            error: notification.error,
        })
    }
}
