// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! RMA formats (HW §10): requester page, descriptor and notification, and the splitting of
//! transfers.

mod fault;

pub use fault::{Fault, FaultCause, FaultUnit};

use crate::ids::{NodeId, Vpid};
use core::fmt;

/// Maximum number of payload bytes per network packet (HW §10.3).
pub const FRAGMENT: u32 = 496;
/// Maximum length of a put or get in bytes.
pub const MAX_LEN: u32 = 1 << 23;
/// Maximum length of an immediate put in bytes.
pub const MAX_IMMEDIATE: u8 = 8;
/// Size of the requester window in bytes (HW §1.2).
pub const WINDOW: u32 = 0x0200_0000;

/// Options of a request, which select the requester page (HW §10.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct PageOptions {
    /// Traffic class, 0…3. The low two bits are used.
    pub traffic_class: u8,
    /// True if the address on the remote side is a register offset.
    pub rra: bool,
    /// True if each notification of the command also raises an interrupt.
    pub irq: bool,
    /// True if memory addresses are NLAs, false if they are bus addresses.
    pub translate: bool,
}

impl PageOptions {
    /// Returns the page index 0…31. Its bits are traffic class `[1:0]`, RRA `[2]`, IRQ `[3]`, TE
    /// `[4]`.
    pub const fn index(self) -> u8 {
        (self.traffic_class & 3)
            | ((self.rra as u8) << 2)
            | ((self.irq as u8) << 3)
            | ((self.translate as u8) << 4)
    }

    /// Decodes a page index. Uses only bits `[4:0]`.
    pub const fn from_index(index: u8) -> Self {
        Self {
            traffic_class: index & 3,
            rra: index & 4 != 0,
            irq: index & 8 != 0,
            translate: index & 16 != 0,
        }
    }
}

/// Address inside the RMA requester window (HW §10.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequesterAddr {
    /// Source VPID.
    pub vpid: Vpid,
    /// Page options.
    pub options: PageOptions,
    /// Byte offset in the page, 0…4095. The low twelve bits are used.
    pub offset: u16,
}

impl RequesterAddr {
    /// Returns the start of the page of `vpid` with `options`.
    pub const fn page(vpid: Vpid, options: PageOptions) -> Self {
        Self {
            vpid,
            options,
            offset: 0,
        }
    }

    /// Returns the byte offset inside the window.
    pub const fn encode(self) -> u32 {
        (self.offset as u32 & 0xFFF)
            | ((self.vpid.get() as u32) << 12)
            | ((self.options.index() as u32) << 20)
    }

    /// Decodes a byte offset inside the window. Ignores bits above 24.
    pub const fn decode(addr: u32) -> Self {
        Self {
            vpid: Vpid::from_low_bits((addr >> 12) as u64),
            options: PageOptions::from_index(((addr >> 20) & 0x1F) as u8),
            offset: (addr & 0xFFF) as u16,
        }
    }
}

/// Command codes in descriptors and notifications (HW §10.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// 0: read of remote memory.
    ByteGet,
    /// 1: read of remote memory in quadwords.
    QwGet,
    /// 2: write to remote memory.
    BytePut,
    /// 3: write to remote memory in quadwords.
    QwPut,
    /// 5: notification without data.
    NotificationPut,
    /// 6: write of bytes that the descriptor contains.
    ImmediatePut,
    /// 10: response to a get. Hardware generates it, and notifications contain it.
    ByteGetResponse,
    /// 11: response to a quadword get, which hardware generates.
    QwGetResponse,
    /// 12: request of a fetch-compare-and-add.
    Lock,
    /// 13: response to a lock request, which hardware generates.
    LockResponse,
}

impl Command {
    /// Returns the four-bit code.
    pub const fn code(self) -> u8 {
        match self {
            Command::ByteGet => 0,
            Command::QwGet => 1,
            Command::BytePut => 2,
            Command::QwPut => 3,
            Command::NotificationPut => 5,
            Command::ImmediatePut => 6,
            Command::ByteGetResponse => 10,
            Command::QwGetResponse => 11,
            Command::Lock => 12,
            Command::LockResponse => 13,
        }
    }

    /// Returns the command with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Command::ByteGet,
            1 => Command::QwGet,
            2 => Command::BytePut,
            3 => Command::QwPut,
            5 => Command::NotificationPut,
            6 => Command::ImmediatePut,
            10 => Command::ByteGetResponse,
            11 => Command::QwGetResponse,
            12 => Command::Lock,
            13 => Command::LockResponse,
            _ => return None,
        })
    }
}

/// Set of notifications that a command requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct NotifySpec {
    /// Bit 0: notification at the origin, after the request was sent.
    pub requester: bool,
    /// Bit 1: notification at the target, after data was read or the lock operation was performed.
    pub responder: bool,
    /// Bit 2: notification at the node to which the data was written.
    pub completer: bool,
}

impl NotifySpec {
    /// Spec without a notification.
    pub const NONE: Self = Self::from_bits(0);

    /// Decodes the three bits of a spec.
    pub const fn from_bits(bits: u8) -> Self {
        Self {
            requester: bits & 1 != 0,
            responder: bits & 2 != 0,
            completer: bits & 4 != 0,
        }
    }

    /// Returns the three bits of the spec.
    pub const fn bits(self) -> u8 {
        self.requester as u8 | ((self.responder as u8) << 1) | ((self.completer as u8) << 2)
    }
}

/// Modifiers of a command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Modifiers {
    /// 1: multicast.
    pub multicast: bool,
    /// 2: notification replicate, which sends one notification per fragment.
    pub ntr: bool,
    /// 4: accelerator read.
    pub era: bool,
    /// 8: accelerator write.
    pub ewa: bool,
}

impl Modifiers {
    /// Set without a modifier.
    pub const NONE: Self = Self::from_bits(0);

    /// Decodes the four bits of a modifier field.
    pub const fn from_bits(bits: u8) -> Self {
        Self {
            multicast: bits & 1 != 0,
            ntr: bits & 2 != 0,
            era: bits & 4 != 0,
            ewa: bits & 8 != 0,
        }
    }

    /// Returns the four bits of the modifier field.
    pub const fn bits(self) -> u8 {
        self.multicast as u8
            | ((self.ntr as u8) << 1)
            | ((self.era as u8) << 2)
            | ((self.ewa as u8) << 3)
    }
}

bits! {
    /// Word 0 of a descriptor with any bit pattern (HW §10.2). [`Descriptor`] is the checked form.
    pub struct DescriptorWord {
        /// Descriptor length in quadwords, always 3.
        length_qws / with_length_qws: u8 [1:0];
        /// Command code.
        command / with_command: u8 [5:2];
        /// Destination VPID.
        vpid / with_vpid: u8 [15:8];
        /// Destination node.
        node / with_node: u16 [31:16];
        /// Requested notifications.
        notify / with_notify: u8 [34:32];
        /// Modifiers of the command.
        modifiers / with_modifiers: u8 [38:35];
        /// Byte count − 1, notification class or lock target.
        count / with_count: u32 [62:40];
    }
}

/// Unit of the target node that performs a lock operation. Both units behave equally (G16).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockTarget {
    /// The completer (bit 40 = 0).
    Completer,
    /// The responder (bit 40 = 1).
    Responder,
}

/// Operation of a descriptor, with its operands.
///
/// Addresses are bus addresses, NLAs or register offsets, depending on the [`PageOptions`] of the
/// requester page to which the descriptor is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Reads remote memory into local memory.
    Get {
        /// True for the quadword variant, whose length and addresses are multiples of 8.
        qw: bool,
        /// Number of bytes, 1…[`MAX_LEN`].
        len: u32,
        /// Address in the memory of the remote node, which is read.
        remote: u64,
        /// Address in local memory, which is written.
        local: u64,
    },
    /// Writes local memory to remote memory.
    Put {
        /// True for the quadword variant, whose length and addresses are multiples of 8.
        qw: bool,
        /// Number of bytes, 1…[`MAX_LEN`].
        len: u32,
        /// Address in local memory, which is read.
        local: u64,
        /// Address in the memory of the remote node, which is written.
        remote: u64,
    },
    /// Sends only a notification that contains a value.
    NotificationPut {
        /// Class, which the notification's size field contains.
        class: u8,
        /// Value of the notification's word 0.
        value: u64,
    },
    /// Writes up to eight bytes that the descriptor contains.
    ImmediatePut {
        /// Number of bytes, 1…8.
        len: u8,
        /// Address in the memory of the remote node, which is written.
        remote: u64,
        /// Bytes to write, in little-endian order.
        value: u64,
    },
    /// Fetch-compare-and-add operation: if lock ≤ compare then lock += add.
    Lock {
        /// Unit that performs the operation.
        at: LockTarget,
        /// Number of the lock, 24 bits.
        number: u32,
        /// Compare operand.
        compare: i32,
        /// Addend.
        add: i32,
    },
}

/// Valid descriptor: three quadwords, which software writes at page offsets 0, 8, 16.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Descriptor {
    /// Destination node.
    pub node: NodeId,
    /// Destination VPID.
    pub vpid: Vpid,
    /// Requested notifications.
    pub notify: NotifySpec,
    /// Modifiers of the command.
    pub modifiers: Modifiers,
    /// Operation with its operands.
    pub op: Operation,
}

/// Reason why a descriptor is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DescriptorError {
    /// The length field of word 0 has this value instead of 3.
    LengthField(u8),
    /// Software must not issue the command with this code.
    Command(u8),
    /// The byte count is 0 or above the limit of the command.
    Count(u32),
    /// A length or address of a quadword command is not a multiple of 8. Only encoding reports this
    /// error (G12).
    Unaligned,
    /// The lock number exceeds 24 bits.
    LockNumber(u32),
    /// Bits that must be 0 are set: index of the word (0…2), and its set bits.
    Reserved(u8, u64),
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescriptorError::LengthField(n) => {
                write!(f, "descriptor length field is {n} instead of 3")
            }
            DescriptorError::Command(code) => {
                write!(f, "command {code} cannot be issued by software")
            }
            DescriptorError::Count(n) => write!(f, "byte count {n} is out of range"),
            DescriptorError::Unaligned => {
                f.write_str("length or address of a quadword command is not a multiple of 8")
            }
            DescriptorError::LockNumber(n) => write!(f, "lock number {n:#x} exceeds 24 bits"),
            DescriptorError::Reserved(word, bits) => {
                write!(f, "reserved bits {bits:#x} of word {word} are set")
            }
        }
    }
}

const fn zero(word: u8, bits: u64) -> Result<(), DescriptorError> {
    if bits == 0 {
        Ok(())
    } else {
        Err(DescriptorError::Reserved(word, bits))
    }
}

fn transfer(qw: bool, len: u32, a: u64, b: u64) -> Result<u32, DescriptorError> {
    if len == 0 || len > MAX_LEN {
        return Err(DescriptorError::Count(len));
    }
    if qw && (len as u64 | a | b) % 8 != 0 {
        return Err(DescriptorError::Unaligned);
    }
    Ok(len - 1)
}

impl Descriptor {
    /// Returns the command code of the operation.
    pub const fn command(&self) -> Command {
        match self.op {
            Operation::Get { qw: false, .. } => Command::ByteGet,
            Operation::Get { qw: true, .. } => Command::QwGet,
            Operation::Put { qw: false, .. } => Command::BytePut,
            Operation::Put { qw: true, .. } => Command::QwPut,
            Operation::NotificationPut { .. } => Command::NotificationPut,
            Operation::ImmediatePut { .. } => Command::ImmediatePut,
            Operation::Lock { .. } => Command::Lock,
        }
    }

    /// Returns the three quadwords, or an error if the fields do not form a legal descriptor.
    pub fn encode(&self) -> Result<[u64; 3], DescriptorError> {
        let (count, word1, word2) = match self.op {
            Operation::Get {
                qw,
                len,
                remote,
                local,
            } => (transfer(qw, len, remote, local)?, remote, local),
            Operation::Put {
                qw,
                len,
                local,
                remote,
            } => (transfer(qw, len, remote, local)?, local, remote),
            Operation::NotificationPut { class, value } => (class as u32, value, 0),
            Operation::ImmediatePut { len, remote, value } => {
                if len == 0 || len > MAX_IMMEDIATE {
                    return Err(DescriptorError::Count(len as u32));
                }
                (len as u32 - 1, remote, value)
            }
            Operation::Lock {
                at,
                number,
                compare,
                add,
            } => {
                if number >= 1 << 24 {
                    return Err(DescriptorError::LockNumber(number));
                }
                let word1 = ((compare as u32 as u64) << 32) | number as u64;
                (
                    matches!(at, LockTarget::Responder) as u32,
                    word1,
                    (add as u32 as u64) << 32,
                )
            }
        };
        let word0 = DescriptorWord(0)
            .with_length_qws(3)
            .with_command(self.command().code())
            .with_vpid(self.vpid.get() as u8)
            .with_node(self.node.0)
            .with_notify(self.notify.bits())
            .with_modifiers(self.modifiers.bits())
            .with_count(count);
        Ok([word0.raw(), word1, word2])
    }

    /// Decodes three quadwords as the hardware does. Accepts unaligned quadword commands (G12).
    pub fn decode(words: [u64; 3]) -> Result<Self, DescriptorError> {
        let [raw, word1, word2] = words;
        let word0 = DescriptorWord(raw);
        if word0.length_qws() != 3 {
            return Err(DescriptorError::LengthField(word0.length_qws()));
        }
        zero(0, raw & !DescriptorWord::KNOWN)?;
        let illegal = DescriptorError::Command(word0.command());
        let count = word0.count();
        let op = match Command::from_code(word0.command()).ok_or(illegal)? {
            command @ (Command::ByteGet | Command::QwGet) => Operation::Get {
                qw: command == Command::QwGet,
                len: count + 1,
                remote: word1,
                local: word2,
            },
            command @ (Command::BytePut | Command::QwPut) => Operation::Put {
                qw: command == Command::QwPut,
                len: count + 1,
                local: word1,
                remote: word2,
            },
            Command::NotificationPut => {
                zero(0, (count as u64 & !0xFF) << 40)?;
                zero(2, word2)?;
                Operation::NotificationPut {
                    class: count as u8,
                    value: word1,
                }
            }
            Command::ImmediatePut => {
                zero(0, (count as u64 & !7) << 40)?;
                Operation::ImmediatePut {
                    len: count as u8 + 1,
                    remote: word1,
                    value: word2,
                }
            }
            Command::Lock => {
                zero(0, (count as u64 & !1) << 40)?;
                zero(1, word1 & 0xFF00_0000)?;
                zero(2, word2 & 0xFFFF_FFFF)?;
                Operation::Lock {
                    at: if count == 0 {
                        LockTarget::Completer
                    } else {
                        LockTarget::Responder
                    },
                    number: (word1 & 0xFF_FFFF) as u32,
                    compare: (word1 >> 32) as u32 as i32,
                    add: (word2 >> 32) as u32 as i32,
                }
            }
            Command::ByteGetResponse | Command::QwGetResponse | Command::LockResponse => {
                return Err(illegal)
            }
        };
        Ok(Self {
            node: NodeId(word0.node()),
            vpid: Vpid::from_low_bits(word0.vpid() as u64),
            notify: NotifySpec::from_bits(word0.notify()),
            modifiers: Modifiers::from_bits(word0.modifiers()),
            op,
        })
    }
}

/// Unit that wrote a notification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NotificationType {
    /// 1: requester of the origin.
    Requester,
    /// 2: responder of the target.
    Responder,
    /// 4: completer of the node to which the data was written.
    Completer,
}

impl NotificationType {
    /// Returns the one-hot code, which is also the error bit of the unit.
    pub const fn code(self) -> u8 {
        match self {
            NotificationType::Requester => 1,
            NotificationType::Responder => 2,
            NotificationType::Completer => 4,
        }
    }

    /// Returns the unit with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(NotificationType::Requester),
            2 => Some(NotificationType::Responder),
            4 => Some(NotificationType::Completer),
            _ => None,
        }
    }
}

/// Mode bits of a notification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Mode {
    /// 1: the command accessed registers.
    pub rra: bool,
    /// 2: the notification raised an interrupt.
    pub irq: bool,
    /// 4: the addresses of the command are NLAs.
    pub translate: bool,
    /// 8: the command has the modifier accelerator write.
    pub ewa: bool,
    /// 16: the command has the modifier notification replicate.
    pub ntr: bool,
    /// 32: the command has the modifier accelerator read.
    pub era: bool,
}

impl Mode {
    /// Decodes the six bits of a mode field.
    pub const fn from_bits(bits: u8) -> Self {
        Self {
            rra: bits & 1 != 0,
            irq: bits & 2 != 0,
            translate: bits & 4 != 0,
            ewa: bits & 8 != 0,
            ntr: bits & 16 != 0,
            era: bits & 32 != 0,
        }
    }

    /// Returns the six bits of the mode field.
    pub const fn bits(self) -> u8 {
        self.rra as u8
            | ((self.irq as u8) << 1)
            | ((self.translate as u8) << 2)
            | ((self.ewa as u8) << 3)
            | ((self.ntr as u8) << 4)
            | ((self.era as u8) << 5)
    }

    /// Returns the mode bits that notifications of a command with these options and modifiers have
    /// (G13).
    pub const fn of(options: PageOptions, modifiers: Modifiers) -> Self {
        Self {
            rra: options.rra,
            irq: options.irq,
            translate: options.translate,
            ewa: modifiers.ewa,
            ntr: modifiers.ntr,
            era: modifiers.era,
        }
    }
}

bits! {
    /// Word 1 of a notification with any bit pattern (HW §10.4). [`Notification`] is the checked
    /// form.
    pub struct NotificationWord {
        /// Number of bytes of the last fragment − 1, or class.
        size / with_size: u32 [22:0];
        /// Remote VPID.
        vpid / with_vpid: u8 [30:23];
        /// Remote node.
        node / with_node: u16 [47:32];
        /// Type of the notification, one-hot.
        kind / with_kind: u8 [50:48];
        /// Command code.
        command / with_command: u8 [54:51];
        /// Mode bits.
        mode / with_mode: u8 [60:55];
        /// Error bits, one for each unit.
        error / with_error: u8 [63:61];
    }
}

/// Valid notification of 16 bytes: word 0, then word 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Notification {
    /// Address of the last fragment, value, or lock result, depending on the command.
    pub word0: u64,
    /// Size field as received: number of bytes of the last fragment − 1, or class in bits `[7:0]`.
    pub size_field: u32,
    /// Remote VPID.
    pub vpid: Vpid,
    /// Remote node.
    pub node: NodeId,
    /// Unit that wrote the notification.
    pub kind: NotificationType,
    /// Command that caused the notification.
    pub command: Command,
    /// Mode bits.
    pub mode: Mode,
    /// Error bits: 1 requester, 2 responder, 4 completer; 0 on success.
    pub error: u8,
}

/// Reason why a notification is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NotificationError {
    /// The type is this code instead of 1, 2 or 4.
    Type(u8),
    /// The command has this unknown code.
    Command(u8),
}

impl fmt::Display for NotificationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotificationError::Type(code) => {
                write!(f, "notification type {code} is none of 1, 2, 4")
            }
            NotificationError::Command(code) => write!(f, "unknown command {code} in notification"),
        }
    }
}

impl Notification {
    /// Returns the two quadwords. Drops excess bits of `size_field` (23 bits) and `error` (3 bits).
    pub const fn encode(&self) -> [u64; 2] {
        let word1 = NotificationWord(0)
            .with_size(self.size_field)
            .with_vpid(self.vpid.get() as u8)
            .with_node(self.node.0)
            .with_kind(self.kind.code())
            .with_command(self.command.code())
            .with_mode(self.mode.bits())
            .with_error(self.error);
        [self.word0, word1.raw()]
    }

    /// Decodes a queue slot. Returns `Ok(None)` if word 1 is 0, which marks a free slot.
    pub const fn decode(words: [u64; 2]) -> Result<Option<Self>, NotificationError> {
        let [word0, raw] = words;
        if raw == 0 {
            return Ok(None);
        }
        let word1 = NotificationWord(raw);
        let Some(kind) = NotificationType::from_code(word1.kind()) else {
            return Err(NotificationError::Type(word1.kind()));
        };
        let Some(command) = Command::from_code(word1.command()) else {
            return Err(NotificationError::Command(word1.command()));
        };
        Ok(Some(Self {
            word0,
            size_field: word1.size(),
            vpid: Vpid::from_low_bits(word1.vpid() as u64),
            node: NodeId(word1.node()),
            kind,
            command,
            mode: Mode::from_bits(word1.mode()),
            error: word1.error(),
        }))
    }

    /// Returns the number of bytes in the last fragment. The command must be a transfer of data.
    pub const fn last_size(&self) -> u32 {
        self.size_field.saturating_add(1)
    }

    /// Returns the class of a notification put.
    pub const fn class(&self) -> u8 {
        self.size_field as u8
    }
}

bits! {
    /// Word 0 of a lock notification (HW §10.4).
    pub struct LockResult {
        /// Number of the lock.
        number / with_number: u32 [23:0];
        /// 1 if the comparison was true and the value was added.
        result / with_result: u8 [31:24];
        /// Value of the lock after the operation.
        value / with_value: u32 [63:32];
    }
}

/// Returns the address of the last fragment of a transfer of `len` bytes at `start` (HW §10.4).
/// Returns `start` if `len` is 0.
pub const fn last_fragment_start(start: u64, len: u32) -> u64 {
    start.wrapping_add((len.saturating_sub(1) / FRAGMENT * FRAGMENT) as u64)
}

/// Returns the number of bytes in the last fragment of a transfer of `len` bytes; 0 if `len` is 0.
pub const fn last_fragment_len(len: u32) -> u32 {
    if len == 0 {
        0
    } else {
        (len - 1) % FRAGMENT + 1
    }
}

/// Part of a transfer that one packet carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fragment {
    /// Byte offset from the start of the transfer.
    pub offset: u32,
    /// Number of bytes, 1…496.
    pub len: u32,
    /// True for the last fragment of the transfer.
    pub last: bool,
}

/// Returns the number of packets for `len` bytes.
pub const fn fragment_count(len: u32) -> u32 {
    len.div_ceil(FRAGMENT)
}

/// Iterates over the packets of a transfer of `len` bytes in order. The alignment of the transfer
/// does not affect the splitting (HW §10.3).
pub fn fragments(len: u32) -> impl Iterator<Item = Fragment> + Clone {
    let count = fragment_count(len);
    (0..count).map(move |i| {
        let offset = i * FRAGMENT;
        let rest = len - offset;
        Fragment {
            offset,
            len: if rest > FRAGMENT { FRAGMENT } else { rest },
            last: i + 1 == count,
        }
    })
}

/// Direction of the data transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From the peer. The transfer is complete when the data is in local memory.
    Get,
    /// To the peer. The transfer is complete when the data has been read from local memory and
    /// sent.
    Put,
}
