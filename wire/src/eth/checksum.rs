// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Unfinished checksums of TCP and UDP. A sender may store only the sum of the pseudo header and
//! leave the sum of the data to the NIC. Vendor peers do so by default (EXT §8).
//!
//! An unfinished checksum does not reveal damage in transit. The receiver's network stack verifies
//! all other checksums.

use super::{HEADER_LEN, VLAN_TAG};

/// Ethernet type of IPv4 (IEEE 802).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86DD;
const VLAN: [u16; 2] = [0x8100, 0x88A8];
/// Maximum number of VLAN tags that are skipped.
const TAGS: u32 = 2;
/// IP protocol number of TCP.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Position of an unfinished checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unfinished {
    /// Offset of the layer-4 header in the frame.
    pub start: u16,
    /// Offset of the checksum in the layer-4 header.
    pub offset: u16,
}

/// Returns the big-endian word of `frame` at `at`.
fn word(frame: &[u8], at: usize) -> Option<u16> {
    let bytes = frame.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

/// Returns the sum of the 16-bit words of `bytes`, which must have an even length. Carries out of
/// the low 16 bits remain in the high half.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2).map(|w| match w {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    });
    words.sum()
}

/// Folds the carries of a sum into its low 16 bits (ones' complement).
fn fold(sum: u32) -> u16 {
    let once = (sum & 0xFFFF) + (sum >> 16);
    ((once & 0xFFFF) + (once >> 16)) as u16
}

/// IP packet in a frame.
struct Packet<'a> {
    /// Source and destination address.
    addresses: &'a [u8],
    protocol: u8,
    /// Offset of layer 4 in the frame, and its length in bytes.
    start: usize,
    len: usize,
}

/// Returns the packet of a frame, unless it is a fragment or has extension headers.
fn packet(frame: &[u8]) -> Option<Packet<'_>> {
    let mut at = HEADER_LEN as usize - 2;
    let mut kind = word(frame, at)?;
    for _ in 0..TAGS {
        if VLAN.contains(&kind) {
            at += VLAN_TAG as usize;
            kind = word(frame, at)?;
        }
    }
    let ip = at + 2;
    let header = frame.get(ip..)?;
    match kind {
        IPV4 => {
            let [first, ..] = *header.first_chunk::<20>()?;
            let len = usize::from(first & 15) * 4;
            let total = usize::from(word(header, 2)?);
            // False for a fragment of an IP packet.
            let whole = word(header, 6)? & 0x3FFF == 0;
            (first >> 4 == 4 && len >= 20 && whole && total <= header.len()).then_some(())?;
            Some(Packet {
                addresses: header.get(12..20)?,
                protocol: *header.get(9)?,
                start: ip + len,
                len: total.checked_sub(len)?,
            })
        }
        IPV6 => {
            let [first, ..] = *header.first_chunk::<40>()?;
            let len = usize::from(word(header, 4)?);
            (first >> 4 == 6 && len <= header.len() - 40).then_some(())?;
            Some(Packet {
                addresses: header.get(8..40)?,
                protocol: *header.get(6)?,
                start: ip + 40,
                len,
            })
        }
        _ => None,
    }
}

/// Returns the position of the checksum of `frame` if it belongs to TCP or UDP and is unfinished.
///
/// A finished checksum looks unfinished with a probability of 1 in 65,536. Finishing it again does
/// not change it, unless the checksum is wrong.
#[must_use]
pub fn unfinished(frame: &[u8]) -> Option<Unfinished> {
    let packet = packet(frame)?;
    let layer4 = frame.get(packet.start..)?.get(..packet.len)?;
    let offset = match packet.protocol {
        TCP if layer4.len() >= 20 => 16,
        // A datagram that is shorter than its packet is skipped, because its pseudo header has
        // another length.
        UDP if layer4.len() >= 8 && usize::from(word(layer4, 4)?) == layer4.len() => 6,
        _ => return None,
    };
    // The sum cannot overflow, because IP lengths are below 65,536.
    let pseudo = sum(packet.addresses) + u32::from(packet.protocol) + packet.len as u32;
    (word(layer4, offset)? == fold(pseudo)).then_some(Unfinished {
        start: u16::try_from(packet.start).ok()?,
        offset: offset as u16,
    })
}
