// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Layout of packets in the quadwords of the PCIe backdoor (HW §14).
//!
//! **MODEL decision, not a hardware fact** (G20): quadwords 0 and 1 contain header dwords 0…3 as
//! numbers with `Fmt` in the top byte. Dwords 0 and 2 are the low halves. The payload begins in
//! quadword 2, even after a header of three dwords. Byte 0 of the payload is the lowest byte. The
//! receive FIFO has the same layout.

use super::{Error, Tlp};

/// Number of quadwords of the header.
pub const HEADER: usize = 2;
/// Maximum payload that the backdoor accepts, in dwords (T table 3.2).
pub const PAYLOAD_DWORDS: u16 = 32;
/// Maximum number of quadwords of a packet.
pub const MAX: usize = HEADER + PAYLOAD_DWORDS as usize / 2;

/// Packet as quadwords.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Words {
    qw: [u64; MAX],
    len: u8,
}

impl Words {
    /// Returns the quadwords.
    pub fn as_slice(&self) -> &[u64] {
        self.qw.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// Returns the number of payload quadwords, which is the value for `payload_qw_length`.
    pub const fn payload_qws(&self) -> u8 {
        self.len - HEADER as u8
    }
}

/// Packs a packet. Fails if a field is out of range, or if the length of `payload` exceeds the
/// maximum or differs from the header.
pub fn pack(tlp: &Tlp, payload: &[u8]) -> Result<Words, Error> {
    let dw = tlp.encode()?;
    let dwords = tlp.payload_dwords();
    if payload.len() != usize::from(dwords) * 4 || dwords > PAYLOAD_DWORDS {
        return Err(Error::Payload);
    }
    let pair = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
    let mut qw = [0; MAX];
    qw[0] = pair(dw[0], dw[1]);
    qw[1] = pair(dw[2], dw[3]);
    for (to, from) in qw[HEADER..].iter_mut().zip(payload.chunks(8)) {
        let mut raw = [0; 8];
        raw[..from.len()].copy_from_slice(from);
        *to = u64::from_le_bytes(raw);
    }
    Ok(Words {
        qw,
        len: (HEADER + payload.len().div_ceil(8)) as u8,
    })
}

/// Unpacks a packet from quadwords and copies its payload to `payload`. Returns the packet and the
/// length of its payload in bytes. Fails if the header is invalid, or if `qw` or `payload` is
/// shorter than the payload.
pub fn unpack(qw: &[u64], payload: &mut [u8]) -> Result<(Tlp, usize), Error> {
    let (Some(&a), Some(&b)) = (qw.first(), qw.get(1)) else {
        return Err(Error::Payload);
    };
    let tlp = Tlp::decode([a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32])?;
    let len = usize::from(tlp.payload_dwords()) * 4;
    let from = qw.get(HEADER..).unwrap_or(&[]);
    let to = payload.get_mut(..len).ok_or(Error::Payload)?;
    if from.len() * 8 < len {
        return Err(Error::Payload);
    }
    for (chunk, word) in to.chunks_mut(8).zip(from) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    Ok((tlp, len))
}
