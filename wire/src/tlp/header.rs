// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Encoding and decoding of packet headers.

use super::{Bdf, CfgType, Error, Span, Status, MAX_DWORDS};

const DATA: u8 = 0x40;
const FOUR_DWORDS: u8 = 0x20;
const MEM: u8 = 0x00;
const CFG0: u8 = 0x04;
const CFG1: u8 = 0x05;
const CPL: u8 = 0x0A;
/// Bits of dword 0 that this project does not support and that must be 0: T9, T8, LN, TH, TD, AT.
const UNSUPPORTED: u32 = (1 << 23) | (1 << 19) | (1 << 17) | (1 << 16) | (1 << 15) | (3 << 10);

/// Transaction layer packet without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tlp {
    /// Traffic class, 0…7.
    pub traffic_class: u8,
    /// Attribute bits: 0 no snoop, 1 relaxed ordering, 2 ID-based ordering.
    pub attributes: u8,
    /// The payload is marked as invalid (`EP`).
    pub poisoned: bool,
    /// Type of the request or completion, with its fields.
    pub kind: Kind,
}

/// Fields of a header that depend on the type of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Memory read request.
    MemRead {
        /// Function that sends the request.
        requester: Bdf,
        /// Number that matches completions to the request.
        tag: u8,
        /// Bytes to read.
        span: Span,
    },
    /// Memory write request (posted).
    MemWrite {
        /// Function that sends the request.
        requester: Bdf,
        /// Tag, which is unused in posted requests.
        tag: u8,
        /// Bytes to write.
        span: Span,
    },
    /// Configuration read request of one dword.
    CfgRead {
        /// Type 0, or type 1 for a target behind a bridge.
        ty: CfgType,
        /// Function that sends the request.
        requester: Bdf,
        /// Number that matches the completion to the request.
        tag: u8,
        /// Function to read.
        target: Bdf,
        /// Byte offset in configuration space, a multiple of 4 below 4096.
        register: u16,
        /// Byte enables of the dword.
        enables: u8,
    },
    /// Configuration write request of one dword.
    CfgWrite {
        /// Type 0, or type 1 for a target behind a bridge.
        ty: CfgType,
        /// Function that sends the request.
        requester: Bdf,
        /// Number that matches the completion to the request.
        tag: u8,
        /// Function to write.
        target: Bdf,
        /// Byte offset in configuration space, a multiple of 4 below 4096.
        register: u16,
        /// Byte enables of the dword.
        enables: u8,
    },
    /// Completion, with or without data.
    Completion {
        /// Function that sends the completion.
        completer: Bdf,
        /// Status of the request.
        status: Status,
        /// `BCM`, used by PCI-X bridges only.
        modified: bool,
        /// Number of remaining bytes of a read, including this packet, 1…4096.
        byte_count: u16,
        /// Function that sent the request.
        requester: Bdf,
        /// Tag of the request.
        tag: u8,
        /// Low 7 bits of the address of the first payload byte; 0 unless the request was a memory
        /// read.
        lower_addr: u8,
        /// Number of payload dwords, 0 for a completion without data.
        dwords: u16,
    },
}

impl From<Kind> for Tlp {
    /// Returns a packet of traffic class 0 without attributes.
    fn from(kind: Kind) -> Self {
        Self {
            traffic_class: 0,
            attributes: 0,
            poisoned: false,
            kind,
        }
    }
}

const fn id_tag(id: Bdf, tag: u8) -> u32 {
    ((id.0 as u32) << 16) | ((tag as u32) << 8)
}

impl Kind {
    /// Returns a configuration request: `CfgWrite` or `CfgRead`. `from` is the requester and its
    /// tag.
    pub const fn config(
        write: bool,
        ty: CfgType,
        from: (Bdf, u8),
        target: Bdf,
        register: u16,
        enables: u8,
    ) -> Self {
        let (requester, tag) = from;
        if write {
            Self::CfgWrite {
                ty,
                requester,
                tag,
                target,
                register,
                enables,
            }
        } else {
            Self::CfgRead {
                ty,
                requester,
                tag,
                target,
                register,
                enables,
            }
        }
    }

    /// Returns the length field in dwords. In a read request, the field is the requested length.
    const fn length(&self) -> u16 {
        match self {
            Self::MemRead { span, .. } | Self::MemWrite { span, .. } => span.dwords,
            Self::CfgRead { .. } | Self::CfgWrite { .. } => 1,
            Self::Completion { dwords, .. } => *dwords,
        }
    }

    /// Returns the fields `Fmt` and `Type`.
    const fn code(&self) -> u8 {
        match self {
            Self::MemRead { span, .. } => MEM | four(span),
            Self::MemWrite { span, .. } => DATA | MEM | four(span),
            Self::CfgRead { ty, .. } => cfg(*ty),
            Self::CfgWrite { ty, .. } => DATA | cfg(*ty),
            Self::Completion { dwords: 0, .. } => CPL,
            Self::Completion { .. } => DATA | CPL,
        }
    }
}

const fn four(span: &Span) -> u8 {
    if span.addr >> 32 != 0 {
        FOUR_DWORDS
    } else {
        0
    }
}

const fn cfg(ty: CfgType) -> u8 {
    match ty {
        CfgType::Type0 => CFG0,
        CfgType::Type1 => CFG1,
    }
}

impl Tlp {
    /// Returns the number of dwords of the payload that follows the header.
    pub const fn payload_dwords(&self) -> u16 {
        match self.kind {
            Kind::MemRead { .. } | Kind::CfgRead { .. } => 0,
            _ => self.kind.length(),
        }
    }

    /// Returns the header dwords. If the header has three dwords, the fourth is 0. Fails if a field
    /// is out of range.
    pub fn encode(&self) -> Result<[u32; 4], Error> {
        if self.traffic_class > 7 || self.attributes > 7 {
            return Err(Error::Feature);
        }
        let length = self.kind.length();
        let mut dw = [0; 4];
        dw[0] = (u32::from(self.kind.code()) << 24)
            | (u32::from(self.traffic_class) << 20)
            | (u32::from(self.attributes >> 2) << 18)
            | (u32::from(self.poisoned) << 14)
            | (u32::from(self.attributes & 3) << 12)
            | u32::from(length % MAX_DWORDS);
        match self.kind {
            Kind::MemRead {
                requester,
                tag,
                span,
            }
            | Kind::MemWrite {
                requester,
                tag,
                span,
            } => {
                span.check()?;
                dw[1] = id_tag(requester, tag)
                    | (u32::from(span.last_be) << 4)
                    | u32::from(span.first_be);
                if span.addr >> 32 != 0 {
                    dw[2] = (span.addr >> 32) as u32;
                    dw[3] = span.addr as u32;
                } else {
                    dw[2] = span.addr as u32;
                }
            }
            Kind::CfgRead {
                requester,
                tag,
                target,
                register,
                enables,
                ..
            }
            | Kind::CfgWrite {
                requester,
                tag,
                target,
                register,
                enables,
                ..
            } => {
                if register % 4 != 0 || register > 0xFFF {
                    return Err(Error::Register);
                }
                if enables > 0xF {
                    return Err(Error::ByteEnables);
                }
                dw[1] = id_tag(requester, tag) | u32::from(enables);
                dw[2] = (u32::from(target.0) << 16) | u32::from(register);
            }
            Kind::Completion {
                completer,
                status,
                modified,
                byte_count,
                requester,
                tag,
                lower_addr,
                dwords,
            } => {
                if dwords > MAX_DWORDS || !(1..=4096).contains(&byte_count) {
                    return Err(Error::Length);
                }
                if lower_addr > 0x7F {
                    return Err(Error::Address);
                }
                if dwords != 0 && status != Status::Success {
                    return Err(Error::Status);
                }
                dw[1] = (u32::from(completer.0) << 16)
                    | (u32::from(status.code()) << 13)
                    | (u32::from(modified) << 12)
                    | u32::from(byte_count) & 0xFFF;
                dw[2] = id_tag(requester, tag) | u32::from(lower_addr);
            }
        }
        Ok(dw)
    }

    /// Decodes header dwords. Ignores the fourth dword if the header has three.
    pub fn decode(dw: [u32; 4]) -> Result<Self, Error> {
        let code = (dw[0] >> 24) as u8;
        if dw[0] & UNSUPPORTED != 0 {
            return Err(Error::Feature);
        }
        let dwords = match dw[0] as u16 & (MAX_DWORDS - 1) {
            0 => MAX_DWORDS,
            n => n,
        };
        let requester = Bdf((dw[1] >> 16) as u16);
        let tag = (dw[1] >> 8) as u8;
        let data = code & DATA != 0;
        let kind = match code & !DATA {
            MEM | FOUR_DWORDS => {
                let addr = if code & FOUR_DWORDS == 0 {
                    u64::from(dw[2])
                } else if dw[2] == 0 {
                    return Err(Error::Address);
                } else {
                    (u64::from(dw[2]) << 32) | u64::from(dw[3])
                };
                if addr & 3 != 0 {
                    return Err(Error::Feature);
                }
                let span = Span {
                    addr,
                    dwords,
                    first_be: dw[1] as u8 & 0xF,
                    last_be: dw[1] as u8 >> 4,
                };
                span.check()?;
                if data {
                    Kind::MemWrite {
                        requester,
                        tag,
                        span,
                    }
                } else {
                    Kind::MemRead {
                        requester,
                        tag,
                        span,
                    }
                }
            }
            ty @ (CFG0 | CFG1) => {
                let ty = if ty == CFG0 {
                    CfgType::Type0
                } else {
                    CfgType::Type1
                };
                if dwords != 1 {
                    return Err(Error::Length);
                }
                if dw[1] & 0xF0 != 0 {
                    return Err(Error::ByteEnables);
                }
                if dw[2] & 0xF003 != 0 {
                    return Err(Error::Feature);
                }
                let target = Bdf((dw[2] >> 16) as u16);
                let register = dw[2] as u16 & 0xFFC;
                let enables = dw[1] as u8 & 0xF;
                Kind::config(data, ty, (requester, tag), target, register, enables)
            }
            CPL => {
                if dw[2] & 0x80 != 0 {
                    return Err(Error::Feature);
                }
                let status = Status::from_code((dw[1] >> 13) as u8 & 7).ok_or(Error::Status)?;
                if data && status != Status::Success {
                    return Err(Error::Status);
                }
                // The length field of a completion without data is reserved.
                if !data && dw[0] & 0x3FF != 0 {
                    return Err(Error::Length);
                }
                Kind::Completion {
                    completer: requester,
                    status,
                    modified: dw[1] & (1 << 12) != 0,
                    byte_count: match dw[1] as u16 & 0xFFF {
                        0 => 4096,
                        n => n,
                    },
                    requester: Bdf((dw[2] >> 16) as u16),
                    tag: (dw[2] >> 8) as u8,
                    lower_addr: dw[2] as u8 & 0x7F,
                    dwords: if data { dwords } else { 0 },
                }
            }
            _ => return Err(Error::Type(code)),
        };
        Ok(Self {
            traffic_class: (dw[0] >> 20) as u8 & 7,
            attributes: ((dw[0] >> 16) as u8 & 4) | (dw[0] >> 12) as u8 & 3,
            poisoned: dw[0] & (1 << 14) != 0,
            kind,
        })
    }
}
