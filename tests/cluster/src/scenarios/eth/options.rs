//! Parameters and settings of exn (docs/exn.md). Each has its documented effect, which ends when
//! exn is loaded without the setting.

use super::hostile::velo;
use crate::cluster::{modules, Lab, PATIENCE};
use crate::scenarios::node::{node, value};
use crate::scenarios::on_pair;
use crate::Scenario;
use anyhow::{ensure, Context, Result};

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("exn::parameters", parameters).gate(),
        on_pair("exn::ring_size", ring_size),
        on_pair("exn::group_frames", group_frames),
    ]
}

const PINGS: u64 = 20;

/// The module parameters of exn work as documented.
fn parameters(lab: &Lab) -> Result<()> {
    let result = threshold(lab)
        .and_then(|()| default_node(lab))
        .and_then(|()| prefix(lab));
    // Restores the defaults before the result is checked, because other scenarios need them.
    both_with(lab, "")?;
    result
}

/// Loads exn on both nodes with these options and waits until they reach each other.
fn both_with(lab: &Lab, options: &str) -> Result<()> {
    for n in 0..2 {
        let load = modules::modprobe("exn", options);
        node(lab, n).ok(&format!("rmmod exn && {load}"))?;
        node(lab, n).address_back()?;
    }
    node(lab, 0).back()?;
    node(lab, 1).back()
}

/// `velo_threshold` and the tunable select which frames are sent as messages, up to the maximum
/// length of a message.
fn threshold(lab: &Lab) -> Result<()> {
    let node = node(lab, 0);
    for (options, bytes, eager) in [("velo_threshold=2000", 2000, true), ("", 120, false)] {
        node.reload_exn(options)?;
        let shown = node.ok("ethtool --get-tunable exn0 tx-copybreak")?;
        ensure!(value(&shown, "tx-copybreak") == Some(bytes), "{shown}");
        let above = node.is_so("ethtool --set-tunable exn0 tx-copybreak 30602")?;
        ensure!(!above, "a threshold of 30602 was accepted");
        let shown = node.ok("ethtool --get-tunable exn0 tx-copybreak")?;
        ensure!(value(&shown, "tx-copybreak") == Some(bytes), "{shown}");
        let sent = || -> Result<[u64; 2]> {
            Ok([
                node.ethtool("tx_eager_frames")?,
                node.ethtool("tx_rdv_frames")?,
            ])
        };
        let before = sent()?;
        node.pings(PINGS as usize, "-i 0.02 -s 1000")?;
        let after = sent()?;
        let [messages, announced] = [after[0] - before[0], after[1] - before[1]];
        let (many, few) = if eager {
            (messages, announced)
        } else {
            (announced, messages)
        };
        ensure!(
            many >= PINGS && few < PINGS,
            "'{options}': {messages} messages, {announced} announced"
        );
    }
    Ok(())
}

/// Frames to a foreign MAC address go to the default node. Without a default node, short frames go
/// to all nodes, and long frames are dropped and counted.
fn default_node(lab: &Lab) -> Result<()> {
    let (from, to) = (node(lab, 0), node(lab, 1));
    for (options, size, way) in [
        ("default_nodeid=1", 500, 0),
        ("", 500, 1),
        ("default_nodeid=1", 56, 0),
        ("", 56, 2),
    ] {
        from.reload_exn(options)?;
        let count = || -> Result<[u64; 3]> {
            Ok([
                to.ethtool("rx_eager_frames")? + to.ethtool("rx_rdv_frames")?,
                from.ethtool("tx_no_route")?,
                from.ethtool("tx_flooded_frames")?,
            ])
        };
        from.ok("ip neigh replace 10.2.0.2 lladdr 02:00:00:00:00:42 nud permanent dev exn0")?;
        let before = count()?;
        // The network stack of node 1 drops frames for other hosts.
        let out = lab.sh_for(
            0,
            &format!("ping -q -c {PINGS} -i 0.02 -W 1 -s {size} 10.2.0.2"),
            PATIENCE,
        )?;
        let after = count()?;
        from.ok("ip neigh del 10.2.0.2 dev exn0")?;
        ensure!(out.status == 1, "{out:?}");
        let more = [0, 1, 2].map(|n| after[n] - before[n]);
        let [_, dropped, flooded] = more;
        let right = more[way] >= PINGS && (way == 1 || dropped == 0) && (way == 2 || flooded == 0);
        ensure!(
            right,
            "'{options}', {size} bytes: came, dropped, flooded {more:?}"
        );
    }
    Ok(())
}

/// The parameter `mac` sets the first bytes of all MAC addresses.
fn prefix(lab: &Lab) -> Result<()> {
    both_with(lab, "mac=0x0e112233")?;
    for n in 0..2 {
        let link = node(lab, n).ok("ip link show exn0")?;
        ensure!(link.contains(&format!("0e:11:22:33:00:0{n} ")), "{link}");
    }
    node(lab, 0).pings(5, "-i 0.02")?;
    node(lab, 0).pings(5, "-i 0.02 -s 3000")
}

/// The length of the transmit ring limits the announced frames in flight. The receive ring has a
/// fixed length.
fn ring_size(lab: &Lab) -> Result<()> {
    const DEFAULT: u64 = 256;
    let node = node(lab, 0);
    let in_flight = "4 to 512 announced frames may be in flight";
    for (bad, why) in [
        ("tx 3", in_flight),
        // The kernel itself rejects this size.
        ("tx 513", "requested ring size exceeds maximum"),
        ("rx 16", "the mailbox can't be resized"),
    ] {
        let out = lab.sh_for(0, &format!("ethtool -G exn0 {bad}"), PATIENCE)?;
        ensure!(
            out.status != 0 && out.stderr.contains(why),
            "{bad}: {out:?}"
        );
    }
    let stops = |length: u64| -> Result<u64> {
        node.ok(&format!("ethtool -G exn0 tx {length}"))?;
        let shown = node.ok("ethtool -g exn0")?;
        let (_, current) = shown
            .split_once("Current hardware settings:")
            .with_context(|| shown.clone())?;
        ensure!(value(current, "TX") == Some(length), "{shown}");
        let before = node.ethtool("tx_stop_full")?;
        // Sends five pings at once, because the socket of ping holds no more than six answers of
        // this size.
        for _ in 0..8 {
            node.pings(5, "-l 5 -i 0.02 -s 20000")?;
        }
        Ok(node.ethtool("tx_stop_full")? - before)
    };
    let result = stops(4).and_then(|few| Ok((few, stops(DEFAULT)?)));
    node.ok(&format!(
        "ethtool -g exn0 | grep -A 9 Current | grep -q 'TX:.*{DEFAULT}$' || ethtool -G exn0 tx {DEFAULT}"
    ))?;
    let (few, many) = result?;
    ensure!(
        few > 0 && many == 0,
        "the queue was stopped {few} times with a ring of 4, {many} times with {DEFAULT}"
    );
    Ok(())
}

/// Frames to a group may have the maximum length of a message. The sender ignores its own frames.
fn group_frames(lab: &Lab) -> Result<()> {
    let (from, to) = (node(lab, 0), node(lab, 1));
    let broadcast = |bytes: u32| {
        from.ok(&format!(
            "head -c {bytes} /dev/zero >/tmp/frame && socat -u -b 65000 OPEN:/tmp/frame UDP-DATAGRAM:10.2.0.255:7100,broadcast; rm /tmp/frame"
        ))
    };
    let count = || -> Result<[u64; 2]> {
        Ok([
            from.ethtool("tx_multicast_long")?,
            to.ethtool("rx_broadcast_frames")?,
        ])
    };
    let before = count()?;
    broadcast(30_000)?;
    lab.until("the longest frame to all arrives", PATIENCE, |_| {
        Ok(count()?[1] > before[1])
    })?;
    ensure!(count()?[0] == before[0], "30,000 bytes are too long");
    broadcast(40_000)?;
    let after = count()?;
    ensure!(after[0] == before[0] + 1, "{before:?} -> {after:?}");

    let own = from.ethtool("rx_own_multicast")?;
    let mut frame = vec![0xff; 6];
    frame.extend([0x2e, 0x87, 4, 7, 0, 0, 8, 0, 1, 2]);
    lab.fault(&["forge", "0", &velo(0, 254, 3, 0, &frame)])?;
    lab.until("the own frame is counted", PATIENCE, |_| {
        Ok(from.ethtool("rx_own_multicast")? == own + 1)
    })
}
