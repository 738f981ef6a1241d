//! A node with an unresponsive peer, and a node that is flooded.

use super::hostile::announcement;
use crate::cluster::{as_slow, Lab, PATIENCE};
use crate::scenarios::expected::OF_INPUT;
use crate::scenarios::node::node;
use crate::scenarios::{guest, on_pair};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("survival::frozen_peer", frozen_peer).finds(OF_INPUT),
        on_pair("survival::down_under_flood", down_under_flood).finds(OF_INPUT),
    ]
}

/// With a stalled peer, TCP retransmits the data that the peer does not fetch. Sockets get their
/// buffer space back, although the NIC still holds the frames.
fn frozen_peer(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    let (from, to) = (node(lab, 0), node(lab, 1));
    to.ok("rm -f /tmp/got; pkill socat; true")?;
    let sink = lab.spawn(
        1,
        "exec socat -u TCP-LISTEN:7500,reuseaddr STDOUT | md5sum >/tmp/got",
    )?;
    to.until("socat listens", "ss -ltn | grep -q :7500")?;
    // One process writes one line at a time, because a node may need a second to start a process.
    const LINES: u32 = 400;
    let sum = from.ok(&format!("head -c {} /dev/zero | md5sum", LINES * 4000))?;
    let source = lab.spawn(
        0,
        &format!(
            "python3 -c 'import os, time\nfor i in range({LINES}): \
             os.write(1, bytes(4000)); time.sleep(0.02)' | socat -u STDIN TCP:node1:7500"
        ),
    )?;
    from.until("data flow", "ss -tn | grep -q 'ESTAB.*:7500'")?;
    let retransmitted = || from.snmp("Tcp", "RetransSegs");
    let before = (retransmitted()?, from.ethtool("tx_rdv_stalled")?);
    lab.fault(&["freeze", "1"])?;
    let frozen = (|| {
        lab.until("TCP sends again", PATIENCE, |_| {
            Ok(retransmitted()? >= before.0 + 2)
        })?;
        // The socket holds only a few datagrams, but can send more.
        let room = format!("{} room 10.2.0.2 7501 6", guest::program("net"));
        let sent = from.ok(&room)?.trim().parse::<u64>()?;
        ensure!(
            sent > 20,
            "only {sent} datagrams left a socket that holds a few"
        );
        let pinned = from.ethtool("tx_rdv_in_flight")? + from.ethtool("tx_rdv_quarantined")?;
        ensure!(pinned > 0, "nothing is kept for the peer");
        Ok(())
    })();
    lab.fault(&["thaw", "1"])?;
    frozen?;
    ensure!(
        from.ethtool("tx_rdv_stalled")? > before.1,
        "nothing was stalled"
    );
    let out = source.wait(2 * PATIENCE)?;
    ensure!(out.status == 0, "{out:?}");
    sink.wait(PATIENCE)?;
    let got = to.ok("cat /tmp/got")?;
    ensure!(got == sum, "{got} instead of {sum}");
    from.back()
}

/// Number of the flooded node.
const VICTIM: usize = 1;

/// Delivers a packet to the flooded node `count` times.
fn forge(lab: &Lab, count: u32, packet: &str) -> Result<()> {
    let (victim, count) = (VICTIM.to_string(), count.to_string());
    lab.fault(&["forge", &victim, "--count", &count, packet])
        .map(drop)
}

/// The interface can be set down within the time limit while a GET is unanswered and notifications
/// keep arriving.
fn down_under_flood(lab: &Lab) -> Result<()> {
    let victim = node(lab, VICTIM);
    // The flood lasts twice as long as the limit.
    let (flood, most) = (as_slow(Duration::from_secs(20)), 10.0);
    let end = Instant::now() + flood;
    let slot = r#"{"kind":"notification","src_node":9,"src_vpid":254,"vpid":254,"value":4660}"#;
    let took = std::thread::scope(|scope| {
        let flood = scope.spawn(|| -> Result<()> {
            while Instant::now() < end {
                forge(lab, 500, slot)?;
            }
            Ok(())
        });
        let down = (|| {
            std::thread::sleep(Duration::from_secs(1));
            forge(lab, 4, &announcement(9, 0x1000, 1500))?;
            let script = "a=$(cut -d' ' -f1 /proc/uptime); ip link set exn0 down; \
                          b=$(cut -d' ' -f1 /proc/uptime); echo $a $b";
            let text = victim.ok(script)?;
            let mut times = text.split_whitespace().map(str::parse::<f64>);
            let (a, b) = times.next().zip(times.next()).context(text.clone())?;
            anyhow::Ok(b? - a?)
        })();
        flood.join().unwrap_or_else(|_| Ok(()))?;
        down
    })?;
    ensure!(took < most, "it took {took} s");
    victim.ok("ip link set exn0 up")?;
    victim.back()?;
    node(lab, 0).back()
}
