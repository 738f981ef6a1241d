//! Frames with wrong checksums and frames with lost packets.

use super::hostile::velo;
use crate::cluster::{Lab, PATIENCE};
use crate::scenarios::expected::OF_INPUT;
use crate::scenarios::node::node;
use crate::scenarios::{guest, on_pair};
use crate::Scenario;
use anyhow::{ensure, Result};
use std::fmt::Write;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("hostile::bad_checksums", bad_checksums)
            .gate()
            .finds(OF_INPUT),
        on_pair("stack::forwarded_checksums", forwarded),
        on_pair("exn::checksum_options", options),
        on_pair("exn::lost_packets", lost_packets),
    ]
}

fn forge(lab: &Lab, packet: String) -> Result<()> {
    lab.fault(&["forge", "1", &packet]).map(drop)
}

/// Returns the Internet checksum of data with an even number of bytes, added to `start`.
fn internet_checksum(start: u32, data: &[u8]) -> u16 {
    let mut sum = data.chunks(2).fold(start, |sum, c| {
        sum + u32::from(c[0]) * 256 + u32::from(c.get(1).copied().unwrap_or(0))
    });
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Checksum that a test frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sum {
    Right,
    Wrong,
    /// Sum of the pseudo header only, which the network card would complete.
    Unfinished,
}

/// Returns a frame from node `from` to a closed UDP port of node `to`.
fn udp_frame(from: u8, to: u8, target: [u8; 4], payload: usize, sum: Sum) -> Vec<u8> {
    let mut udp = vec![0x30, 0x39, 0x7a, 0x69]; // Ports 12345 and 31337.
    udp.extend(((8 + payload) as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend((0..payload).map(|i| i as u8));
    let addresses = [[10, 2, 0, 77], target].concat();
    let pseudo: u32 = addresses
        .chunks(2)
        .map(|c| u32::from(c[0]) * 256 + u32::from(c[1]))
        .sum();
    let start = pseudo + 17 + udp.len() as u32;
    let finished = internet_checksum(start, &udp);
    let field = match sum {
        Sum::Right => finished,
        Sum::Wrong => finished ^ 0x5555,
        Sum::Unfinished => !internet_checksum(start, &[]),
    };
    udp[6..8].copy_from_slice(&field.to_be_bytes());
    let mut ip = vec![0x45, 0];
    ip.extend(((20 + udp.len()) as u16).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip.extend(addresses);
    let sum = internet_checksum(0, &ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0x2e, 0x87, 4, 7, 0, to, 0x2e, 0x87, 4, 7, 0, from, 8, 0];
    frame.extend(ip);
    frame.extend(udp);
    frame
}

/// Returns a UDP frame from an absent node to a closed port of node 1.
fn to_node_1(payload: usize, sum: Sum) -> Vec<u8> {
    udp_frame(9, 1, [10, 2, 0, 2], payload, sum)
}

/// Sends a raw frame from node 0.
fn send_raw(lab: &Lab, frame: &[u8]) -> Result<()> {
    let mut hex = String::new();
    for byte in frame {
        // Writing to a string can't fail.
        let _ = write!(hex, "{byte:02x}");
    }
    node(lab, 0)
        .ok(&format!("{} raw exn0 {hex}", guest::program("net")))
        .map(drop)
}

/// Delivers a frame to node 1, split into messages.
fn send(lab: &Lab, frame: &[u8]) -> Result<()> {
    let (first, rest) = frame.split_at(frame.len().min(120));
    if rest.is_empty() {
        return forge(lab, velo(9, 254, 3, 0, first));
    }
    forge(lab, velo(9, 254, 0, 1, first))?;
    forge(lab, velo(9, 254, 3, 0, rest))
}

/// Checks that the frame sent by `send` increments this UDP counter of node 1 by one.
fn moves(lab: &Lab, counter: &str, what: &str, send: impl FnOnce() -> Result<()>) -> Result<()> {
    moves_at(lab, 1, counter, what, send)
}

/// Checks that the frame sent by `send` increments this UDP counter of a node by one.
fn moves_at(
    lab: &Lab,
    number: usize,
    counter: &str,
    what: &str,
    send: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let count = || node(lab, number).snmp("Udp", counter);
    let before = count()?;
    send()?;
    lab.until(&format!("{counter} counts {what}"), PATIENCE, |_| {
        Ok(count()? == before + 1)
    })
}

/// `verify_rx_csum` selects the frames that the receiver verifies. `skip_tx_csum` selects the
/// checksums that the sender leaves unfinished.
///
/// Without `skip_tx_csum`, the driver does not offer checksum offload. The network stack then
/// finishes the checksums, so only the receiver can show the difference.
fn options(lab: &Lab) -> Result<()> {
    let result = (|| -> Result<()> {
        for (option, payload, counter) in [
            ("exn.verify_rx_csum=1", 16, "InCsumErrors"),
            ("exn.verify_rx_csum=2", 120, "NoPorts"),
        ] {
            node(lab, 1).reload_exn(option)?;
            let frame = to_node_1(payload, Sum::Wrong);
            moves(lab, counter, option, || send(lab, &frame))?;
        }
        for (skip, verify, counter) in [
            ("exn.skip_tx_csum=1", "", "NoPorts"),
            ("exn.skip_tx_csum=1", "exn.verify_rx_csum=1", "InCsumErrors"),
            ("", "exn.verify_rx_csum=1", "NoPorts"),
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
    // Restores the defaults before the result is checked, because other scenarios need them.
    for n in 0..2 {
        node(lab, n).reload_exn("")?;
    }
    result
}

/// The network stack verifies received frames, whether they arrived in one message, in several
/// messages or by GET. Only unfinished checksums are accepted unverified, because vendor peers send
/// these by default. Frames in several messages are always verified, because a message could be
/// missing.
fn bad_checksums(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    let unfinished = || node(lab, 1).ethtool("rx_csum_unfinished");
    for (sum, one, several) in [
        (Sum::Right, "NoPorts", "NoPorts"),
        (Sum::Wrong, "InCsumErrors", "InCsumErrors"),
        (Sum::Unfinished, "NoPorts", "InCsumErrors"),
    ] {
        let before = unfinished()?;
        let what = format!("{sum:?} in one message");
        moves(lab, one, &what, || send(lab, &to_node_1(16, sum)))?;
        let what = format!("{sum:?} in several messages");
        moves(lab, several, &what, || send(lab, &to_node_1(120, sum)))?;
        let what = format!("{sum:?} by GET");
        let frame = udp_frame(0, 1, [10, 2, 0, 2], 1400, sum);
        moves(lab, one, &what, || send_raw(lab, &frame))?;
        let more = unfinished()? - before;
        let expected = if sum == Sum::Unfinished { 2 } else { 0 };
        ensure!(more == expected, "{sum:?}: {more} unfinished");
    }
    let switch = |on: &str| node(lab, 1).ok(&format!("ethtool -K exn0 rx {on}"));
    switch("off")?;
    let result = moves(lab, "InCsumErrors", "checksum verified", || {
        send(lab, &to_node_1(16, Sum::Unfinished))
    });
    switch("on")?;
    result?;
    moves(lab, "NoPorts", "frame accepted", || {
        send(lab, &to_node_1(16, Sum::Unfinished))
    })
}

/// A frame with a lost packet is never delivered, even if its checksum is unfinished and only the
/// driver can detect the loss. The next frame is delivered.
fn lost_packets(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    let count = || -> Result<_> {
        let node = node(lab, 1);
        Ok((node.ethtool("rx_rdv_hole")?, node.snmp("Udp", "NoPorts")?))
    };
    for sum in [Sum::Unfinished, Sum::Right] {
        let frame = udp_frame(0, 1, [10, 2, 0, 2], 1400, sum);
        let (holes, taken) = count()?;
        // The frame has three packets. The second is dropped; the first, with the headers, arrives.
        lab.fault(&["lose-inner", "1", "--every", "2"])?;
        let found = send_raw(lab, &frame).and_then(|()| {
            let what = format!("{sum:?}: a frame with a hole ends");
            lab.until(&what, PATIENCE, |_| Ok(count()? != (holes, taken)))
        });
        lab.fault(&["lose-inner", "1", "--every", "0"])?;
        found?;
        let after = count()?;
        ensure!(
            after == (holes + 1, taken),
            "{sum:?}: counters of holes and frames were {holes}, {taken}, are {after:?}"
        );
        let what = format!("{sum:?}, whole");
        moves(lab, "NoPorts", &what, || send_raw(lab, &frame))?;
    }
    Ok(())
}

/// Frames that node 1 forwards leave with a finished checksum. They return to node 0, which
/// verifies every frame.
fn forwarded(lab: &Lab) -> Result<()> {
    const TARGET: [u8; 4] = [10, 99, 0, 1];
    guest::install(lab, 0)?;
    let nodes = [node(lab, 0), node(lab, 1)];
    let forwarding = nodes[1].ok("cat /proc/sys/net/ipv4/ip_forward")?;
    let result = (|| {
        nodes[0].ok("ip addr add 10.99.0.1/32 dev lo && ethtool -K exn0 rx off")?;
        nodes[1].ok(
            "echo 1 >/proc/sys/net/ipv4/ip_forward && ip route add 10.99.0.1/32 via 10.2.0.1",
        )?;
        // One frame fits into a message, the other is fetched by GET.
        for payload in [16, 1400] {
            for (sum, counter) in [
                (Sum::Right, "NoPorts"),
                (Sum::Unfinished, "NoPorts"),
                (Sum::Wrong, "InCsumErrors"),
            ] {
                let frame = udp_frame(0, 1, TARGET, payload, sum);
                let what = format!("{sum:?} with {payload} bytes");
                moves_at(lab, 0, counter, &what, || send_raw(lab, &frame))?;
            }
        }
        Ok(())
    })();
    nodes[0].ok("ethtool -K exn0 rx on; ip addr del 10.99.0.1/32 dev lo")?;
    let forwarding = forwarding.trim();
    nodes[1].ok(&format!(
        "ip route del 10.99.0.1/32; echo {forwarding} >/proc/sys/net/ipv4/ip_forward"
    ))?;
    result
}
