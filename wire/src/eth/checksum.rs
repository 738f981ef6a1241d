// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Unfinished checksums of TCP and UDP: senders may leave a frame with the sum of the pseudo header
//! only, for hardware to add the rest, and vendor peers do so by default (EXT §8).
//!
//! Such a frame shows nothing about what happened to it on its way. All others have a checksum that
//! the receiver's stack can verify.

use super::{HEADER_LEN, VLAN_TAG};

/// Ethernet types (IEEE 802).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86DD;
const VLAN: [u16; 2] = [0x8100, 0x88A8];
/// Most VLAN tags that are looked behind.
const TAGS: u32 = 2;
/// IP protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Where an unfinished checksum is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unfinished {
    /// Byte of the frame that the layer-4 header begins with.
    pub start: u16,
    /// Bytes from there to the checksum.
    pub offset: u16,
}

/// Big-endian word of `frame` at `at`.
fn word(frame: &[u8], at: usize) -> Option<u16> {
    let bytes = frame.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

/// Sum of the words of `bytes`, whose number is even; what is carried out of the low half is not
/// added yet.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2).map(|w| match w {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    });
    words.sum()
}

/// The ones' complement sum in 16 bits.
fn fold(sum: u32) -> u16 {
    let once = (sum & 0xFFFF) + (sum >> 16);
    ((once & 0xFFFF) + (once >> 16)) as u16
}

/// An IP packet in a frame.
struct Packet<'a> {
    /// Source and destination.
    addresses: &'a [u8],
    protocol: u8,
    /// Where layer 4 begins in the frame, and how long it is.
    start: usize,
    len: usize,
}

/// The packet of a frame, if it is no fragment and has no extension headers.
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
            // More fragments, or not the first one.
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

/// Where the checksum of `frame` is, if it is one of TCP or UDP that was left unfinished.
///
/// One frame of 65,536 whose checksum is finished looks like an unfinished one. Finishing it once
/// more does not change it, unless it is wrong.
#[must_use]
pub fn unfinished(frame: &[u8]) -> Option<Unfinished> {
    let packet = packet(frame)?;
    let layer4 = frame.get(packet.start..)?.get(..packet.len)?;
    let offset = match packet.protocol {
        TCP if layer4.len() >= 20 => 16,
        // A datagram that does not fill its packet has another pseudo header.
        UDP if layer4.len() >= 8 && usize::from(word(layer4, 4)?) == layer4.len() => 6,
        _ => return None,
    };
    // Lengths are those of IP, below 65,536.
    let pseudo = sum(packet.addresses) + u32::from(packet.protocol) + packet.len as u32;
    (word(layer4, offset)? == fold(pseudo)).then_some(Unfinished {
        start: u16::try_from(packet.start).ok()?,
        offset: offset as u16,
    })
}
