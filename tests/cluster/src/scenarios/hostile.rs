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
