//! Frames with wrong checksums.

use super::{hostile::velo, node::node, on_pair};
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::Result;

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![on_pair("hostile::bad_checksums", bad_checksums)]
}

fn forge(lab: &Lab, packet: String) -> Result<()> {
    lab.fault(&["forge", "1", &packet]).map(drop)
}

/// Internet checksum of data with an even number of bytes, added to `start`.
fn internet_checksum(start: u32, data: &[u8]) -> u16 {
    let mut sum = data.chunks(2).fold(start, |sum, c| {
        sum + u32::from(c[0]) * 256 + u32::from(c.get(1).copied().unwrap_or(0))
    });
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Frame from node 9 to a UDP port of node 1 that nobody listens on, its checksum right or wrong.
fn udp_frame(payload: usize, right: bool) -> Vec<u8> {
    let mut udp = vec![0x30, 0x39, 0x7a, 0x69]; // Ports 12345 and 31337.
    udp.extend(((8 + payload) as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend((0..payload).map(|i| i as u8));
    let addresses = [10, 2, 0, 10, 10, 2, 0, 2];
    let pseudo: u32 = addresses
        .chunks(2)
        .map(|c| u32::from(c[0]) * 256 + u32::from(c[1]))
        .sum();
    let sum = internet_checksum(pseudo + 17 + udp.len() as u32, &udp);
    let sum = if right { sum } else { sum ^ 0x5555 };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    let mut ip = vec![0x45, 0];
    ip.extend(((20 + udp.len()) as u16).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip.extend(addresses);
    let sum = internet_checksum(0, &ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0x2e, 0x87, 4, 7, 0, 1, 0x2e, 0x87, 4, 7, 0, 9, 8, 0];
    frame.extend(ip);
    frame.extend(udp);
    frame
}

/// The stack verifies checksums of frames that came in several messages, of which one could be missing; others are trusted.
fn bad_checksums(lab: &Lab) -> Result<()> {
    let count = |name: &str| node(lab, 1).snmp("Udp", name);
    let send = |frame: &[u8]| -> Result<()> {
        let (first, rest) = frame.split_at(frame.len().min(120));
        if rest.is_empty() {
            return forge(lab, velo(9, 254, 3, 0, first));
        }
        forge(lab, velo(9, 254, 0, 1, first))?;
        forge(lab, velo(9, 254, 3, 0, rest))
    };
    for (payload, right, moves) in [
        (16, true, "NoPorts"),
        (16, false, "NoPorts"),
        (120, true, "NoPorts"),
        (120, false, "InCsumErrors"),
    ] {
        let before = count(moves)?;
        send(&udp_frame(payload, right))?;
        lab.until(
            &format!(
                "{moves} counts a frame with {payload} bytes of data, checksum right: {right}"
            ),
            PATIENCE,
            |_| Ok(count(moves)? == before + 1),
        )?;
    }
    Ok(())
}
