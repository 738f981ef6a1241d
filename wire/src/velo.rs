// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! VELO formats (HW §9): requester address, descriptor, status word and mailbox slots.

use crate::ids::{NodeId, Vpid};
use core::fmt;

/// Maximum length of a message in bytes.
pub const MAX_LEN: u16 = 120;
/// Size of the requester window in bytes (HW §1.2).
pub const WINDOW: u32 = 0x0200_0000;

/// Two-bit message type tag. Software defines its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Mtt(u8);

impl Mtt {
    /// Returns the tag in the low two bits of `value`.
    pub const fn from_low_bits(value: u8) -> Self {
        Self(value & 3)
    }

    /// Returns the tag, 0…3.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Address inside the VELO requester window (HW §9.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequesterAddr {
    /// Source VPID.
    pub vpid: Vpid,
    /// Traffic class, 0…3. The low two bits are used.
    pub traffic_class: u8,
    /// Byte offset in the page, 0…4095. The low twelve bits are used.
    pub offset: u16,
}

impl RequesterAddr {
    /// Returns the start of the page of `vpid` for traffic class `traffic_class`.
    pub const fn page(vpid: Vpid, traffic_class: u8) -> Self {
        Self {
            vpid,
            traffic_class,
            offset: 0,
        }
    }

    /// Returns the byte offset inside the window.
    pub const fn encode(self) -> u32 {
        (self.offset as u32 & 0xFFF)
            | ((self.vpid.get() as u32) << 12)
            | ((self.traffic_class as u32 & 3) << 20)
    }

    /// Decodes a byte offset inside the window. Ignores bits `[24:22]` (G8).
    pub const fn decode(addr: u32) -> Self {
        Self {
            vpid: Vpid::from_low_bits((addr >> 12) as u64),
            traffic_class: ((addr >> 20) & 3) as u8,
            offset: (addr & 0xFFF) as u16,
        }
    }
}

bits! {
    /// Software descriptor with any bit pattern (HW §9.2). [`Descriptor`] is the checked form.
    pub struct DescriptorWord {
        /// Destination node or multicast group.
        target / with_target: u16 [15:0];
        /// Destination VPID. The low eight bits are used.
        vpid / with_vpid: u16 [25:16];
        /// True if the message is delivered to the multicast group in `target`.
        multicast / with_multicast: bool [31:31];
        /// Message type tag.
        mtt / with_mtt: u8 [33:32];
        /// True if the message raises an interrupt at the receiver.
        irq / with_irq: bool [34:34];
        /// User tag.
        tag / with_tag: u8 [47:40];
        /// Length of the message in bytes.
        len / with_len: u16 [59:48];
    }
}

bits! {
    /// Status quadword of a mailbox slot with any bit pattern (HW §9.4). [`Status`] is the checked
    /// form.
    pub struct StatusWord {
        /// Source node.
        node / with_node: u16 [15:0];
        /// Source VPID. The low eight bits are used.
        vpid / with_vpid: u16 [25:16];
        /// Message type tag.
        mtt / with_mtt: u8 [33:32];
        /// End-of-message flag.
        eom / with_eom: bool [36:36];
        /// Error flag.
        err / with_err: bool [37:37];
        /// User tag.
        tag / with_tag: u8 [47:40];
        /// Length of the whole message in bytes.
        len / with_len: u16 [59:48];
    }
}

/// Reason why a descriptor or status word is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Error {
    /// The length is 0 or above [`MAX_LEN`].
    Length(u16),
    /// Bits that must be 0 are set.
    Reserved(u64),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Length(len) => write!(f, "length {len} is not in 1…{MAX_LEN}"),
            Error::Reserved(bits) => write!(f, "reserved bits {bits:#x} are set"),
        }
    }
}

/// Destination of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// A single node.
    Node(NodeId),
    /// All nodes of a multicast group.
    Group(u16),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Node(node) => write!(f, "node {node}"),
            Target::Group(group) => write!(f, "group {group}"),
        }
    }
}

/// Valid software descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Descriptor {
    /// Destination node or group.
    pub target: Target,
    /// Destination VPID.
    pub vpid: Vpid,
    /// Message type tag.
    pub mtt: Mtt,
    /// True if the message raises an interrupt at the receiver.
    pub irq: bool,
    /// User tag.
    pub tag: u8,
    /// Length of the message in bytes, 1…120.
    pub len: u16,
}

const fn check_len(len: u16) -> Result<(), Error> {
    if len == 0 || len > MAX_LEN {
        Err(Error::Length(len))
    } else {
        Ok(())
    }
}

/// Upper two bits of the ten-bit VPID fields, which are unused (HW §4.2).
const VPID_UNUSED: u64 = 0x300 << 16;

impl Descriptor {
    /// Returns the descriptor quadword. Fails if the length is out of range.
    pub const fn encode(&self) -> Result<u64, Error> {
        if let Err(e) = check_len(self.len) {
            return Err(e);
        }
        let (target, multicast) = match self.target {
            Target::Node(node) => (node.0, false),
            Target::Group(group) => (group, true),
        };
        Ok(DescriptorWord(0)
            .with_target(target)
            .with_vpid(self.vpid.get())
            .with_multicast(multicast)
            .with_mtt(self.mtt.get())
            .with_irq(self.irq)
            .with_tag(self.tag)
            .with_len(self.len)
            .raw())
    }

    /// Decodes a descriptor quadword. Fails unless the length is 1…120 and all reserved bits are 0.
    pub const fn decode(raw: u64) -> Result<Self, Error> {
        let word = DescriptorWord(raw);
        let reserved = raw & (!DescriptorWord::KNOWN | VPID_UNUSED);
        if let Err(e) = check_len(word.len()) {
            return Err(e);
        }
        if reserved != 0 {
            return Err(Error::Reserved(reserved));
        }
        let target = if word.multicast() {
            Target::Group(word.target())
        } else {
            Target::Node(NodeId(word.target()))
        };
        Ok(Self {
            target,
            vpid: Vpid::from_low_bits(word.vpid() as u64),
            mtt: Mtt::from_low_bits(word.mtt()),
            irq: word.irq(),
            tag: word.tag(),
            len: word.len(),
        })
    }

    /// Returns the number of payload quadwords that follow the descriptor.
    pub const fn payload_qws(&self) -> u16 {
        self.len.div_ceil(8)
    }
}

/// Sender of a message, which bits `[23:0]` of the status word contain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SourceId {
    /// Source node.
    pub node: NodeId,
    /// Source VPID.
    pub vpid: Vpid,
}

impl SourceId {
    /// Returns the 24-bit form that the user API uses: node in `[15:0]`, VPID in `[23:16]`.
    pub const fn raw(self) -> u32 {
        self.node.0 as u32 | ((self.vpid.get() as u32) << 16)
    }

    /// Decodes the 24-bit form.
    pub const fn from_raw(raw: u32) -> Self {
        Self {
            node: NodeId(raw as u16),
            vpid: Vpid::from_low_bits((raw >> 16) as u64),
        }
    }
}

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.vpid)
    }
}

/// Valid status word of a mailbox slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Status {
    /// Sender of the message. The NIC stamps it into the status word.
    pub source: SourceId,
    /// Message type tag.
    pub mtt: Mtt,
    /// End-of-message flag, which is unreliable (G9).
    pub eom: bool,
    /// Error flag, whose semantics are unknown (G9).
    pub err: bool,
    /// User tag.
    pub tag: u8,
    /// Length of the whole message in bytes, 1…120.
    pub len: u16,
}

impl Status {
    /// Returns the status quadword. Fails if the length is out of range.
    pub const fn encode(&self) -> Result<u64, Error> {
        if let Err(e) = check_len(self.len) {
            return Err(e);
        }
        Ok(StatusWord(0)
            .with_node(self.source.node.0)
            .with_vpid(self.source.vpid.get())
            .with_mtt(self.mtt.get())
            .with_eom(self.eom)
            .with_err(self.err)
            .with_tag(self.tag)
            .with_len(self.len)
            .raw())
    }

    /// Decodes the status quadword of a slot. Returns `Ok(None)` for 0, which marks a free slot.
    ///
    /// Ignores unknown bits, because no source documents all of them and a receiver must not fail
    /// on them.
    pub const fn decode(raw: u64) -> Result<Option<Self>, Error> {
        if raw == 0 {
            return Ok(None);
        }
        let word = StatusWord(raw);
        if let Err(e) = check_len(word.len()) {
            return Err(e);
        }
        Ok(Some(Self {
            source: SourceId {
                node: NodeId(word.node()),
                vpid: Vpid::from_low_bits(word.vpid() as u64),
            },
            mtt: Mtt::from_low_bits(word.mtt()),
            eom: word.eom(),
            err: word.err(),
            tag: word.tag(),
            len: word.len(),
        }))
    }
}

/// Size of mailbox slots. All mailboxes have the same setting (HW §9.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotSize {
    /// 64-byte slots with 56 payload bytes each. A long message occupies several slots.
    B64,
    /// 128-byte slots. Each slot contains one message.
    B128,
}

/// Part of a message that is in one slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotPart {
    /// Index of the slot within the message, 0…2.
    pub slot: u8,
    /// Byte offset of the part inside the slot.
    pub slot_offset: u8,
    /// Byte offset of the part inside the message.
    pub message_offset: u8,
    /// Number of bytes of the message in this slot.
    pub len: u8,
}

impl SlotSize {
    /// Returns the slot size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            SlotSize::B64 => 64,
            SlotSize::B128 => 128,
        }
    }

    /// Returns the number of payload bytes per slot.
    pub const fn capacity(self) -> u16 {
        match self {
            SlotSize::B64 => 56,
            SlotSize::B128 => 120,
        }
    }

    /// Returns the byte offset of the status quadword inside a slot.
    pub const fn status_offset(self) -> u32 {
        self.bytes() - 8
    }

    /// Returns the number of slots of a message of `len` bytes, 1…3. A length above [`MAX_LEN`]
    /// counts as [`MAX_LEN`].
    pub const fn slots_for(self, len: u16) -> u32 {
        let len = if len > MAX_LEN { MAX_LEN } else { len };
        if len == 0 {
            1
        } else {
            len.div_ceil(self.capacity()) as u32
        }
    }

    /// Iterates over the parts of a message of `len` bytes in slot order. Each part ends directly
    /// before the status word of its slot.
    ///
    /// The iterator is empty for length 0. A length above [`MAX_LEN`] counts as [`MAX_LEN`].
    pub fn parts(self, len: u16) -> impl ExactSizeIterator<Item = SlotPart> + Clone {
        let len = if len > MAX_LEN { MAX_LEN } else { len };
        let capacity = self.capacity();
        let count = len.div_ceil(capacity);
        let status = self.status_offset() as u16;
        (0..count).map(move |slot| {
            let start = slot * capacity;
            let rest = len - start;
            let part = if rest > capacity { capacity } else { rest };
            SlotPart {
                slot: slot as u8,
                slot_offset: (status - part.div_ceil(8) * 8) as u8,
                message_offset: start as u8,
                len: part as u8,
            }
        })
    }
}
