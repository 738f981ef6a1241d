// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! PCIe transaction layer packets, as far as they pass the NIC's PCIe bridge and its backdoor (HW §14):
//! memory and configuration requests and completions.
//!
//! Layouts are those of the PCI Express Base Specification, chapter 2.2: a header of three or four dwords, then
//! the payload. Header dwords are numbers here, with `Fmt` in bits 31…29 of the first; payload is bytes in
//! address order. How both lie in the quadwords of the backdoor is [`words`].

use core::fmt;

pub mod backdoor;
mod header;
pub mod words;

pub use header::{Kind, Tlp};

/// Most payload that a packet can have, in dwords.
pub const MAX_DWORDS: u16 = 1024;
/// Requests must not cross a boundary of this many bytes.
pub const PAGE: u64 = 4096;
/// Completions may be cut at multiples of this many bytes (read completion boundary).
pub const RCB: u32 = 64;

/// Bus, device and function number of a requester, completer or target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bdf(pub u16);

impl Bdf {
    /// From its parts; bits that do not fit are dropped.
    pub const fn new(bus: u8, device: u8, function: u8) -> Self {
        Self(((bus as u16) << 8) | ((device as u16 & 31) << 3) | (function as u16 & 7))
    }

    /// Bus number.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Device number, 0…31.
    pub const fn device(self) -> u8 {
        (self.0 >> 3) as u8 & 31
    }

    /// Function number, 0…7.
    pub const fn function(self) -> u8 {
        self.0 as u8 & 7
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:02x}:{:02x}.{}",
            self.bus(),
            self.device(),
            self.function()
        )
    }
}

impl fmt::Debug for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Configuration requests: for a device on the link (type 0), or to be passed on by bridges (type 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CfgType {
    /// Type 0.
    Type0,
    /// Type 1.
    Type1,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// Successful.
    Success,
    /// Unsupported request.
    Unsupported,
    /// Configuration request retry.
    Retry,
    /// Completer abort.
    Abort,
}

impl Status {
    const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Unsupported => 1,
            Self::Retry => 2,
            Self::Abort => 4,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Success,
            1 => Self::Unsupported,
            2 => Self::Retry,
            4 => Self::Abort,
            _ => return None,
        })
    }
}

/// Dwords that a request names, and which bytes of the first and last one it means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Address of the first dword, a multiple of 4.
    pub addr: u64,
    /// Dwords, 1…1024.
    pub dwords: u16,
    /// Byte enables of the first dword.
    pub first_be: u8,
    /// Byte enables of the last dword; 0 if there is only one.
    pub last_be: u8,
}

impl Span {
    /// The request for `len` contiguous bytes at `addr`; 0 bytes make a request without enabled bytes (a read of
    /// it flushes posted writes). `None`: it would cross a 4 KiB boundary or the end of the address space.
    pub const fn bytes(addr: u64, len: u32) -> Option<Self> {
        let skip = (addr & 3) as u32;
        if len == 0 {
            return Some(Self {
                addr: addr & !3,
                dwords: 1,
                first_be: 0,
                last_be: 0,
            });
        }
        if len as u64 > PAGE - addr % PAGE {
            return None;
        }
        let dwords = (skip + len).div_ceil(4);
        let head = (0xF << skip) & 0xF;
        let tail = 0xF >> ((4 - (skip + len) % 4) % 4);
        Some(Self {
            addr: addr & !3,
            dwords: dwords as u16,
            first_be: if dwords == 1 { head & tail } else { head },
            last_be: if dwords == 1 { 0 } else { tail },
        })
    }

    /// Enables of dword `i`.
    pub const fn enables(&self, i: u16) -> u8 {
        if i == 0 {
            self.first_be
        } else if i + 1 == self.dwords {
            self.last_be
        } else if i < self.dwords {
            0xF
        } else {
            0
        }
    }

    /// First and last enabled byte as offset from `addr` and length: what a completion of a read carries, and
    /// for contiguous enables exactly the bytes meant. `(0, 0)` if no byte is enabled.
    pub const fn extent(&self) -> (u32, u32) {
        if self.first_be == 0 {
            return (0, 0);
        }
        let start = self.first_be.trailing_zeros();
        let last = if self.dwords > 1 {
            self.last_be
        } else {
            self.first_be
        };
        let end = (self.dwords as u32 - 1) * 4 + 8 - last.leading_zeros();
        (start, end - start)
    }

    /// Byte count field of the first completion of a read (specification 2.2.9): at least 1.
    pub const fn byte_count(&self) -> u16 {
        let (_, len) = self.extent();
        if len == 0 {
            1
        } else {
            len as u16
        }
    }

    const fn check(&self) -> Result<(), Error> {
        if self.dwords == 0 || self.dwords > MAX_DWORDS {
            return Err(Error::Length);
        }
        if self.addr & 3 != 0 {
            return Err(Error::Address);
        }
        if self.dwords as u64 * 4 > PAGE - self.addr % PAGE {
            return Err(Error::CrossesPage);
        }
        if self.first_be > 0xF || self.last_be > 0xF {
            return Err(Error::ByteEnables);
        }
        if self.dwords == 1 {
            return if self.last_be == 0 {
                Ok(())
            } else {
                Err(Error::ByteEnables)
            };
        }
        if self.first_be == 0 || self.last_be == 0 {
            return Err(Error::ByteEnables);
        }
        // Holes are allowed in requests of one dword and of one aligned quadword only.
        let holes = self.dwords > 2 || self.addr & 7 != 0;
        let first_ok = matches!(self.first_be, 0xF | 0xE | 0xC | 0x8);
        let last_ok = matches!(self.last_be, 0xF | 0x7 | 0x3 | 0x1);
        if holes && !(first_ok && last_ok) {
            return Err(Error::ByteEnables);
        }
        Ok(())
    }
}

/// One of the completions that answer a read of `len` bytes at `addr`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// Offset from the first byte read.
    pub offset: u32,
    /// Bytes of this piece.
    pub len: u32,
    /// Byte count field: bytes left, this piece included.
    pub byte_count: u16,
    /// Lower address field.
    pub lower_addr: u8,
}

impl Piece {
    /// Dwords of payload.
    pub const fn dwords(&self) -> u16 {
        ((self.lower_addr as u32 % 4 + self.len).div_ceil(4)) as u16
    }
}

/// Cuts the answer to a read into completions of at most `max_payload` bytes, cut at the read completion boundary.
/// A read without enabled bytes gets none; its answer is one dword with byte count 1.
pub fn pieces(addr: u64, len: u32, max_payload: u32) -> impl Iterator<Item = Piece> {
    let max = (max_payload / RCB).max(1) * RCB;
    let mut offset = 0;
    core::iter::from_fn(move || {
        if offset >= len || len > PAGE as u32 {
            return None;
        }
        let at = addr.wrapping_add(offset as u64);
        let n = (max - (at % RCB as u64) as u32).min(len - offset);
        let piece = Piece {
            offset,
            len: n,
            byte_count: (len - offset) as u16,
            lower_addr: (at & 0x7F) as u8,
        };
        offset += n;
        Some(piece)
    })
}

/// Why a packet can't be encoded or decoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Error {
    /// `Fmt` and `Type` of a packet that this crate does not know; the byte.
    Type(u8),
    /// A digest, address type, hint or extended tag, or a reserved bit.
    Feature,
    /// Length field out of range for the kind of packet.
    Length,
    /// Address not a multiple of 4, or below 4 GiB in a four-dword header.
    Address,
    /// The request crosses a 4 KiB boundary.
    CrossesPage,
    /// Byte enables that the specification forbids.
    ByteEnables,
    /// Completion status that does not exist, or one that does not go with data.
    Status,
    /// Register number of a configuration request out of range.
    Register,
    /// Payload does not have the length that the header says, or does not fit.
    Payload,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(t) => write!(f, "packet type {t:#04x} is not supported"),
            Self::Feature => f.write_str("digest, address type, hint or reserved bits set"),
            Self::Length => f.write_str("length field out of range"),
            Self::Address => f.write_str("address does not fit the header"),
            Self::CrossesPage => f.write_str("crosses a 4 KiB boundary"),
            Self::ByteEnables => f.write_str("forbidden byte enables"),
            Self::Status => f.write_str("bad completion status"),
            Self::Register => f.write_str("configuration register out of range"),
            Self::Payload => f.write_str("payload length does not match the header"),
        }
    }
}
