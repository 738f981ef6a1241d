//! Frames with wrong checksums.

use super::{hostile::velo, node::node, on_pair};
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::Result;

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("hostile::bad_checksums", bad_checksums),
        on_pair("exn::checksum_options", options),
    ]
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

/// Delivers a frame to node 1 in as many messages as it needs.
fn send(lab: &Lab, frame: &[u8]) -> Result<()> {
    let (first, rest) = frame.split_at(frame.len().min(120));
    if rest.is_empty() {
        return forge(lab, velo(9, 254, 3, 0, first));
    }
    forge(lab, velo(9, 254, 0, 1, first))?;
    forge(lab, velo(9, 254, 3, 0, rest))
}

/// A frame that `send` has node 1 receive moves this counter of UDP there, once.
fn moves(lab: &Lab, counter: &str, what: &str, send: impl FnOnce() -> Result<()>) -> Result<()> {
    let count = || node(lab, 1).snmp("Udp", counter);
    let before = count()?;
    send()?;
    lab.until(&format!("{counter} counts {what}"), PATIENCE, |_| {
        Ok(count()? == before + 1)
    })
}

/// What a receiver has verified is chosen by `verify_rx_csum`; what a sender leaves unfinished, by `skip_tx_csum`.
///
/// Without `skip_tx_csum` the driver does not offer the stack to finish checksums, so the stack does it: only the receiver can tell.
fn options(lab: &Lab) -> Result<()> {
    let result = (|| -> Result<()> {
        for (option, payload, counter) in [
            ("verify_rx_csum=1", 16, "InCsumErrors"),
            ("verify_rx_csum=2", 120, "NoPorts"),
        ] {
            node(lab, 1).reload_exn(option)?;
            let frame = udp_frame(payload, false);
            moves(lab, counter, option, || send(lab, &frame))?;
        }
        for (skip, verify, counter) in [
            ("skip_tx_csum=1", "", "NoPorts"),
            ("skip_tx_csum=1", "verify_rx_csum=1", "InCsumErrors"),
            ("", "verify_rx_csum=1", "NoPorts"),
        ] {
            node(lab, 0).reload_exn(skip)?;
            node(lab, 1).reload_exn(verify)?;
            moves(lab, counter, &format!("'{skip}' '{verify}'"), || {
                let line = "echo hello | socat -u STDIN UDP-SENDTO:10.2.0.2:31337";
                node(lab, 0).ok(line).map(drop)
            })?;
        }
        Ok(())
    })();
    // Back before anything is judged: the others need the defaults.
    for n in 0..2 {
        node(lab, n).reload_exn("")?;
    }
    result
}

/// The stack verifies checksums of frames that came in several messages, of which one could be missing; others are trusted.
fn bad_checksums(lab: &Lab) -> Result<()> {
    for (payload, right, counter) in [
        (16, true, "NoPorts"),
        (16, false, "NoPorts"),
        (120, true, "NoPorts"),
        (120, false, "InCsumErrors"),
    ] {
        let what = format!("a frame with {payload} bytes of data, checksum right: {right}");
        moves(lab, counter, &what, || {
            send(lab, &udp_frame(payload, right))
        })?;
    }
    Ok(())
}
