// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages of the protocol: building and parsing (EXT §3, §4).

use super::{Reason, Reject, FRAGMENT, HEADER_LEN, MAX_EAGER, VPID};
use crate::ids::NodeId;
use crate::rma::{
    self, Command, Modifiers, Notification, NotificationType, NotifySpec, Operation, PageOptions,
};
use crate::velo::{self, Descriptor, Mtt, SourceId, Status, Target};
use core::fmt;

/// Bytes of an announcement.
pub const ANNOUNCEMENT_LEN: u16 = 16;
/// Bytes of a "frame dropped" message.
pub const DROPPED_LEN: u16 = 8;

/// Message kinds: the four values of the VELO message type tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// 0: eager frame, not the last fragment.
    EagerMore,
    /// 1: rendezvous announcement.
    Announcement,
    /// 2: "frame dropped by receiver"; never sent.
    Dropped,
    /// 3: eager frame, last or only fragment.
    EagerLast,
}

impl Kind {
    /// The message type tag.
    pub const fn mtt(self) -> Mtt {
        Mtt::from_low_bits(match self {
            Kind::EagerMore => 0,
            Kind::Announcement => 1,
            Kind::Dropped => 2,
            Kind::EagerLast => 3,
        })
    }

    /// The kind with this message type tag.
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

/// Descriptor of an announcement to `node`.
pub const fn announcement_descriptor(node: NodeId) -> Descriptor {
    descriptor(Target::Node(node), Kind::Announcement, 0, ANNOUNCEMENT_LEN)
}

/// One eager message of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EagerPiece {
    /// Byte offset in the frame.
    pub offset: u32,
    /// Bytes, 1…120.
    pub len: u16,
    /// Fragments still to come, modulo 256.
    pub tag: u8,
    /// No fragment follows.
    pub last: bool,
}

impl EagerPiece {
    /// The VELO descriptor for `target`.
    pub const fn descriptor(&self, target: Target) -> Descriptor {
        let kind = if self.last {
            Kind::EagerLast
        } else {
            Kind::EagerMore
        };
        descriptor(target, kind, self.tag, self.len)
    }

    /// The piece's bytes of `frame`; empty if `frame` is not the frame that the piece was made for.
    pub fn data<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let rest = frame.get(self.offset as usize..).unwrap_or(&[]);
        rest.get(..self.len as usize).unwrap_or(&[])
    }
}

/// A frame that cannot go eager.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TooLong(
    /// Its length in bytes (0: an empty frame).
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

/// The messages for an eager frame of `len` bytes in sending order; they must be sent back to back.
pub fn eager_pieces(
    len: u32,
) -> Result<impl ExactSizeIterator<Item = EagerPiece> + Clone, TooLong> {
    if len == 0 || len > MAX_EAGER {
        return Err(TooLong(len));
    }
    let fragment = FRAGMENT as u32;
    let count = len.div_ceil(fragment) as u16;
    Ok((0..count).map(move |k| {
        let offset = k as u32 * fragment;
        let rest = len - offset;
        let todo = count - 1 - k;
        EagerPiece {
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

/// "A frame lies at this address": payload of a rendezvous announcement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Announcement {
    /// Address at the sender; opaque to the receiver, only echoed in the get.
    pub address: u64,
    /// Frame length in bytes, unchecked.
    pub len: u64,
}

impl Announcement {
    /// The message payload.
    pub fn encode(&self) -> [u8; ANNOUNCEMENT_LEN as usize] {
        let mut bytes = [0; ANNOUNCEMENT_LEN as usize];
        let (address, len) = bytes.split_at_mut(8);
        address.copy_from_slice(&self.address.to_le_bytes());
        len.copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Parses a payload; it must have exactly 16 bytes. The frame length is not judged.
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

    /// The frame length if a receiver with frame limit `max_frame` can take it.
    ///
    /// A refused announcement keeps the sender's buffer occupied (EXT §4.4); up to
    /// [`rma::MAX_LEN`] bytes a receiver can still fetch the frame and throw it away.
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

/// Requester page of the get: interrupts, physical addresses, traffic class 0 (EXT §4.2).
pub const GET_PAGE: rma::RequesterAddr = rma::RequesterAddr::page(
    VPID,
    PageOptions {
        traffic_class: 0,
        rra: false,
        irq: true,
        translate: false,
    },
);

/// The get that answers an announcement of `node`: `len` bytes from its address to the bus address `local`.
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

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Message<'a> {
    /// Part of an eager frame, for the `Reassembler` of its source.
    Eager {
        /// Fragments still to come, modulo 256.
        tag: u8,
        /// Last or only fragment.
        last: bool,
        /// Frame bytes.
        data: &'a [u8],
    },
    /// A frame to fetch.
    Announcement(Announcement),
    /// The peer dropped the frame announced with this address; free the buffer if it is known.
    Dropped {
        /// Address of the announcement.
        address: u64,
    },
}

impl<'a> Message<'a> {
    /// Parses a message; `payload` must be the `status.len` bytes of the slot.
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

/// Which side of a rendezvous a notification ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The frame was read out of our buffer.
    Sent,
    /// The frame arrived in our buffer.
    Received,
}

/// End of a rendezvous, from a notification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// Our side.
    pub side: Side,
    /// Key of the buffer, see [`super::match_key`].
    pub key: u64,
    /// Bytes of the last fragment − 1, see [`super::last_size`]; on errors of whatever failed.
    pub last: u32,
    /// The other node.
    pub peer: NodeId,
    /// Error bits, 0 on success. On error the receiver drops the frame, the sender frees the buffer.
    pub error: u8,
}

impl Completion {
    /// Interprets a notification of VPID 254 (EXT §4.3).
    ///
    /// Any node can have a completer notification with a word 0 of its choice written here, by a put or a notification put. So
    /// only a get counts: our own one at the completer; a peer's at the responder, for which either code of a get may stand (G13).
    pub fn from_notification(notification: &Notification) -> Result<Self, Reject> {
        let side = match (notification.kind, notification.command) {
            (NotificationType::Responder, Command::ByteGet | Command::ByteGetResponse) => {
                Side::Sent
            }
            (NotificationType::Completer, Command::ByteGetResponse) => Side::Received,
            // Which unit of which node found an error says nothing of the code (G13).
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
