//! Input that nobody should send, and hardware that is not what it should be.

use super::PAIR;
use crate::cluster::{Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::fmt::Write;
use std::time::Duration;

/// Two nodes whose modules are loaded by hand.
const BARE: Spec = Spec {
    nodes: 2,
    args: &["--topology", "pair", "--no-modules"],
};

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    let s = |name, run| Scenario {
        name,
        spec: PAIR,
        run,
    };
    vec![
        s("hostile::messages", messages),
        s("hostile::endless_fragments", endless_fragments),
        s("hostile::flood_of_bad_messages", flood),
        s("hostile::bad_checksums", bad_checksums),
        Scenario {
            name: "hostile::pci_identity",
            spec: BARE,
            run: pci_identity,
        },
    ]
}

fn forge(lab: &Lab, packet: &str) -> Result<()> {
    lab.fault(&["forge", "1", packet]).map(drop)
}

fn velo(node: u16, vpid: u8, mtt: u8, tag: u8, data: &[u8]) -> String {
    let mut hex = String::new();
    for b in data {
        // Writing to a string can't fail.
        let _ = write!(hex, "{b:02x}");
    }
    format!(
        r#"{{"kind":"velo","src_node":{node},"src_vpid":{vpid},"vpid":254,"mtt":{mtt},"tag":{tag},"data":"{hex}"}}"#
    )
}

fn announcement(node: u16, address: u64, length: u64) -> String {
    let mut data = address.to_le_bytes().to_vec();
    data.extend(length.to_le_bytes());
    velo(node, 254, 1, 0, &data)
}

/// Each bad message moves exactly the counter that names its reason, is logged with it, and does no harm.
fn messages(lab: &Lab) -> Result<()> {
    let frame = [0x2e, 0x87, 4, 7, 0, 1, 0x2e, 0x87, 4, 7, 0, 9, 8, 0, 1, 2];
    let notification =
        r#"{"kind":"notification","src_node":9,"src_vpid":254,"vpid":254,"value":305419896}"#;
    let cases: &[(&str, String)] = &[
        ("rx_bad_source", velo(9, 17, 3, 0, &frame)),
        ("rx_bad_type", velo(9, 254, 2, 0, &[1])),
        ("rx_bad_announce_length", velo(9, 254, 1, 0, &[0; 15])),
        ("rx_bad_announce_size", announcement(9, 0x1000, u64::MAX)),
        ("rx_bad_announce_size", announcement(9, 0x1000, 65_551)),
        ("rx_short", announcement(9, 0x1000, 0)),
        ("rx_bad_fragment_length", velo(9, 254, 0, 3, &[0; 16])),
        // From another node: what node 9 sends after the broken fragment counts as the rest of that frame.
        ("rx_short", velo(8, 254, 3, 0, &[0; 5])),
        ("drop_unmatched", velo(9, 254, 2, 0, &[7; 8])),
        ("notify_unmatched", notification.into()),
    ];
    for (counter, packet) in cases {
        let before = lab.ethtool(1, counter)?;
        forge(lab, packet)?;
        lab.until(
            &format!("{counter} counts {packet}"),
            Duration::from_secs(10),
            |l| Ok(l.ethtool(1, counter)? > before),
        )?;
    }
    // A frame from a node that is not there is fetched from nobody: the fetch is given up and counted.
    let before = lab.ethtool(1, "rx_rdv_timeout")?;
    forge(lab, &announcement(9, 0x1000, 1500))?;
    lab.until("the fetch from an absent node is given up", PATIENCE, |l| {
        Ok(l.ethtool(1, "rx_rdv_timeout")? > before)
    })?;
    let log = lab.ok(1, "dmesg | grep -c 'exn'")?;
    ensure!(
        log.trim().parse::<u32>().unwrap_or(0) > 0,
        "nothing was logged"
    );
    lab.ok(0, "ping -q -c 20 -i 0.02 -s 3000 -w 20 node1")?;
    Ok(())
}

/// Fragments whose last one never comes: discarded after a while, counted, and not appended to the next frame.
fn endless_fragments(lab: &Lab) -> Result<()> {
    let before = lab.ethtool(1, "rx_partial_timeout")?;
    let mut data = vec![0xff; 6];
    data.extend([0x2e, 0x87, 4, 7, 0, 9, 8, 0]);
    data.resize(120, 0);
    forge(lab, &velo(9, 254, 0, 5, &data))?;
    lab.until("the partial frame is discarded", PATIENCE, |l| {
        Ok(l.ethtool(1, "rx_partial_timeout")? > before)
    })?;
    lab.ok(0, "ping -q -c 5 -i 0.02 -w 20 node1")?;
    Ok(())
}

/// Many bad messages: all counted, few logged, the node stays usable.
fn flood(lab: &Lab) -> Result<()> {
    lab.ok(1, "dmesg -C")?;
    let before = lab.ethtool(1, "rx_bad_announce_length")?;
    let packet = velo(9, 254, 1, 0, &[0; 9]);
    for _ in 0..100 {
        forge(lab, &packet)?;
    }
    lab.until("all are counted", PATIENCE, |l| {
        Ok(l.ethtool(1, "rx_bad_announce_length")? == before + 100)
    })?;
    let lines: u32 = lab
        .ok(1, "dmesg | wc -l")?
        .trim()
        .parse()
        .context("wc -l prints a number")?;
    ensure!(lines < 60, "100 bad messages made {lines} lines of log");
    lab.ok(0, "ping -q -c 5 -i 0.02 -w 20 node1")?;
    Ok(())
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
    let count = |name: &str| -> Result<u64> {
        let text = lab.ok(1, "cat /proc/net/snmp")?;
        let mut udp = text.lines().filter_map(|l| l.strip_prefix("Udp: "));
        let (names, values) = (udp.next().unwrap_or(""), udp.next().unwrap_or(""));
        names
            .split(' ')
            .zip(values.split(' '))
            .find(|(n, _)| *n == name)
            .and_then(|(_, v)| v.parse().ok())
            .with_context(|| format!("no {name} in {text}"))
    };
    let send = |frame: &[u8]| -> Result<()> {
        let (first, rest) = frame.split_at(frame.len().min(120));
        if rest.is_empty() {
            return forge(lab, &velo(9, 254, 3, 0, first));
        }
        forge(lab, &velo(9, 254, 0, 1, first))?;
        forge(lab, &velo(9, 254, 3, 0, rest))
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
            Duration::from_secs(10),
            |_| Ok(count(moves)? == before + 1),
        )?;
    }
    Ok(())
}

/// NICs that the driver has to refuse, each with a line that says why; afterwards the good one works again.
fn pci_identity(lab: &Lab) -> Result<()> {
    let cases = [
        (r#"{"revision":66}"#, r#"{"revision":64}"#, "revision"),
        (r#"{"msi":false}"#, r#"{"msi":true}"#, "MSI"),
        (
            r#"{"bar0-size":67108864}"#,
            r#"{"bar0-size":268435456}"#,
            "BAR 0",
        ),
        (
            r#"{"bar2-size":1048576}"#,
            r#"{"bar2-size":268435456}"#,
            "BAR 2",
        ),
    ];
    let restart = |fields: &str| -> Result<()> {
        lab.fault(&["power-off", "1"])?;
        lab.fault(&["pci", "1", fields])?;
        lab.fault(&["power-on", "1"]).map(drop)
    };
    for (bad, good, reason) in cases {
        restart(bad)?;
        let result = (|| -> Result<()> {
            lab.ok(1, "modprobe exn; modprobe extoll")?;
            let log = lab.ok(1, "dmesg | grep extoll")?;
            ensure!(
                log.lines().any(|l| l.contains(reason)),
                "no line names the {reason}:\n{log}"
            );
            let links = lab.ok(1, "ip link; ls /sys/bus/pci/drivers/extoll")?;
            ensure!(
                !links.contains("exn0") && !links.contains("0000:"),
                "the NIC was accepted:\n{links}"
            );
            lab.ok(1, "rmmod exn extoll")?;
            lab.assert_clean_log()
        })();
        result.with_context(|| bad.to_string())?;
        restart(good)?;
    }
    for node in 0..2 {
        lab.ok(
            node,
            &format!(
                "modprobe exn && ip addr add 10.2.0.{}/24 dev exn0 && ip link set exn0 up",
                node + 1
            ),
        )?;
    }
    lab.ok(0, "ping -q -c 3 -i 0.1 -w 20 10.2.0.2")?;
    Ok(())
}
