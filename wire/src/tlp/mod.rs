// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! PCIe transaction layer packets that the NIC's PCIe bridge and its backdoor transfer (HW §14):
//! memory requests, configuration requests and completions.
//!
//! The PCI Express Base Specification (chapter 2.2) defines the layouts. A packet is a header of
//! three or four dwords, then the payload. A header dword is a number with `Fmt` in bits 31…29 of
//! dword 0. The payload is a slice of bytes in address order. [`words`] defines the layout of both
//! in the quadwords of the backdoor.

use core::fmt;

pub mod backdoor;
mod header;
pub mod words;

pub use header::{Kind, Tlp};

/// Maximum payload of a packet in dwords.
pub const MAX_DWORDS: u16 = 1024;
/// Boundary in bytes that a request must not cross.
pub const PAGE: u64 = 4096;
/// Read completion boundary in bytes. A completion may be split at multiples of this number.
pub const RCB: u32 = 64;

/// Bus, device and function number of a requester, completer or target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bdf(pub u16);

impl Bdf {
    /// Returns the number with these parts. Drops excess bits.
    pub const fn new(bus: u8, device: u8, function: u8) -> Self {
        Self(((bus as u16) << 8) | ((device as u16 & 31) << 3) | (function as u16 & 7))
    }

    /// Returns the bus number.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Returns the device number, 0…31.
    pub const fn device(self) -> u8 {
        (self.0 >> 3) as u8 & 31
    }

    /// Returns the function number, 0…7.
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

/// Type of a configuration request: 0 for a device on the link, 1 for a device behind a bridge.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CfgType {
    /// Type 0, for a device on the link.
    Type0,
    /// Type 1, for a device behind a bridge.
    Type1,
}

/// Status of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// The request was successful.
    Success,
    /// The completer does not support the request.
    Unsupported,
    /// The device is not ready, so the requester must retry the configuration request.
    Retry,
    /// The completer aborted the request.
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

/// Dwords that a request accesses, with byte enables of the first and last dword.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Address of the first dword, a multiple of 4.
    pub addr: u64,
    /// Number of dwords, 1…1024.
    pub dwords: u16,
    /// Byte enables of the first dword.
    pub first_be: u8,
    /// Byte enables of the last dword; 0 for a single dword.
    pub last_be: u8,
}

impl Span {
    /// Returns the request for `len` contiguous bytes at `addr`. With `len` 0, no byte is enabled.
    /// A read without enabled bytes flushes posted writes. Returns `None` if the request would
    /// cross a 4 KiB boundary or the end of the address space.
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

    /// Returns the byte enables of dword `i`.
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

    /// Returns the range from the first to the last enabled byte as its offset from `addr` and its
    /// length in bytes. Returns `(0, 0)` if no byte is enabled. Completions of a read carry this
    /// range. If the enables are contiguous, it contains exactly the requested bytes.
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

    /// Returns the byte count field of the first completion of a read (specification 2.2.9), which
    /// is at least 1.
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
        // The specification allows gaps between enabled bytes only in requests of one dword or one
        // aligned quadword.
        let holes = self.dwords > 2 || self.addr & 7 != 0;
        let first_ok = matches!(self.first_be, 0xF | 0xE | 0xC | 0x8);
        let last_ok = matches!(self.last_be, 0xF | 0x7 | 0x3 | 0x1);
        if holes && !(first_ok && last_ok) {
            return Err(Error::ByteEnables);
        }
        Ok(())
    }
}

/// Completion that answers a part of a read request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadCompletion {
    /// Offset in bytes from the first byte of the read.
    pub offset: u32,
    /// Number of bytes in this completion.
    pub len: u32,
    /// Byte count field: number of remaining bytes, including this completion.
    pub byte_count: u16,
    /// Lower address field.
    pub lower_addr: u8,
}

impl ReadCompletion {
    /// Returns the number of dwords of payload.
    pub const fn dwords(&self) -> u16 {
        ((self.lower_addr as u32 % 4 + self.len).div_ceil(4)) as u16
    }
}

/// Splits the answer to a read of `len` bytes at `addr` into completions of at most `max_payload`
/// bytes. The completions end at read completion boundaries. A read without enabled bytes yields no
/// completion here. Its answer is one dword with byte count 1.
pub fn completions(addr: u64, len: u32, max_payload: u32) -> impl Iterator<Item = ReadCompletion> {
    let max = (max_payload / RCB).max(1) * RCB;
    let mut offset = 0;
    core::iter::from_fn(move || {
        if offset >= len || len > PAGE as u32 {
            return None;
        }
        let at = addr.wrapping_add(offset as u64);
        let n = (max - (at % RCB as u64) as u32).min(len - offset);
        let completion = ReadCompletion {
            offset,
            len: n,
            byte_count: (len - offset) as u16,
            lower_addr: (at & 0x7F) as u8,
        };
        offset += n;
        Some(completion)
    })
}

/// Reason why a packet cannot be encoded or decoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Error {
    /// Unknown packet type, with the byte that contains `Fmt` and `Type`.
    Type(u8),
    /// Unsupported feature (digest, address type, hint, extended tag), or reserved bit that is set.
    Feature,
    /// Length field that is out of range for the kind of packet.
    Length,
    /// Address that is not a multiple of 4, or an address below 4 GiB in a header of four dwords.
    Address,
    /// Request that crosses a 4 KiB boundary.
    CrossesPage,
    /// Byte enables that the specification forbids.
    ByteEnables,
    /// Completion status that is unknown or that permits no data.
    Status,
    /// Register number of a configuration request that is out of range.
    Register,
    /// Payload whose length differs from the header, or that does not fit into the buffer.
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
