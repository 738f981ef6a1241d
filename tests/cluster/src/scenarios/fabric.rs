//! More than two nodes: broadcast and multi-hop routes.

use super::expected::TORN;
use super::node::node;
use crate::cluster::{Lab, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeMap;
use std::time::Duration;
use wire::route::{OutPort, PortKind, RouteEntry, RouteWord};

/// Four nodes in a ring.
pub const FOUR: Spec = Spec::new(4).topology("ring:4").memory(384);

/// Eight nodes, each with a neighbour in three directions.
pub const TORUS: Spec = Spec::new(8).topology("torus:2x2x2").memory(384);

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("fabric::broadcast_reaches_all", FOUR, broadcast).gate(),
        Scenario::new("fabric::torus_all_pairs", TORUS, torus).seconds(1200),
        Scenario::new(
            "fabric::torus_under_faults",
            TORUS,
            super::torus::under_faults,
        )
        .finds(TORN)
        .seconds(1200),
    ]
}

fn broadcast(lab: &Lab) -> Result<()> {
    let receivers = (1..4)
        .map(|n| {
            lab.spawn(
                n,
                "timeout 20 socat -u UDP-RECV:7100,reuseaddr STDOUT | head -n 1",
            )
        })
        .collect::<Result<Vec<_>>>()?;
    for n in 1..4 {
        node(lab, n).until("socat listens", "ss -lun | grep -q :7100")?;
    }
    lab.ok(
        0,
        "echo hello | socat -u STDIN UDP-DATAGRAM:10.2.0.255:7100,broadcast",
    )?;
    for (n, r) in receivers.into_iter().enumerate() {
        let out = r.wait(Duration::from_secs(40))?;
        ensure!(
            out.stdout.trim() == "hello",
            "node{} did not hear the broadcast",
            n + 1
        );
    }
    // The whole cluster answers a broadcast ping.
    for n in 0..4 {
        lab.ok(n, "sysctl -q -w net.ipv4.icmp_echo_ignore_broadcasts=0")?;
    }
    // It ends with as many answers of anybody, its own node's included: the others have the time that sending takes.
    let text = lab.ok(0, "ping -b -i 0.5 -c 10 -W 5 10.2.0.255 2>&1; true")?;
    for n in 2..=4 {
        ensure!(
            text.contains(&format!("from 10.2.0.{n}")),
            "10.2.0.{n} did not answer: {text}"
        );
    }
    Ok(())
}

/// All pairs reach each other, and each packet between nodes takes the way that the routing tables of the NICs say.
fn torus(lab: &Lab) -> Result<()> {
    let nodes = lab.spec().nodes;
    let tables = Tables::read(lab)?;
    lab.run("trace", &["on"], PATIENCE)?;
    let reached = (0..nodes).try_for_each(|from| {
        (0..nodes)
            .filter(|to| *to != from)
            .try_for_each(|to| node(lab, from).pings_to(&format!("node{to}"), 2, "-i 0.05"))
    });
    lab.run("trace", &["off"], PATIENCE)?;
    reached?;
    let options = ["print", "--kind", "inject", "--kind", "hop"];
    let trace = lab.run("trace", &options, Duration::from_secs(120))?;
    let packets = packets(&trace)?;
    let mut pairs = BTreeMap::<(u16, u16), u32>::new();
    let mut longest = 0;
    for (number, packet) in &packets {
        let Some((from, to)) = packet.way else {
            continue;
        };
        // What was under way when the trace began or ended shows a part of its way.
        let Some(first) = packet.hops.first().filter(|h| h.nic == from) else {
            continue;
        };
        let mut expected = tables.route(from, first.inport, to)?;
        // An entry says "this node"; which of its ports that is follows from the packet's kind.
        let end = expected.len() - 1;
        if let Some(seen) = packet.hops.get(end) {
            if matches!(seen.outport.kind(), PortKind::Network(_)) {
                expected[end].outport = seen.outport;
            }
        }
        let full = packet.hops.len() == expected.len();
        ensure!(
            packet.hops == expected || !full && expected.starts_with(&packet.hops),
            "packet {number} from {from} to {to} went {:?} instead of {expected:?}",
            packet.hops
        );
        if full {
            longest = longest.max(expected.len());
            *pairs.entry((from, to)).or_default() += 1;
        }
    }
    // Both ways of each pair, as ping is answered.
    ensure!(
        pairs.len() == nodes * (nodes - 1),
        "the trace has the ways of {} pairs: {:?}",
        pairs.len(),
        pairs.keys()
    );
    // Opposite corners are three cables, hence four crossbars, apart, and nobody further.
    ensure!(longest == 4, "the longest way has {longest} crossbars");
    Ok(())
}

/// Passage of a crossbar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hop {
    nic: u16,
    inport: OutPort,
    outport: OutPort,
}

/// What the trace tells of a packet.
#[derive(Default)]
struct Packet {
    /// Source and destination, if it has one destination.
    way: Option<(u16, u16)>,
    hops: Vec<Hop>,
}

/// A port as the trace names it: `n0`, `link 3`.
fn port(text: &str) -> Option<OutPort> {
    match text.strip_prefix("link ") {
        Some(n) => OutPort::link(n.parse().ok()?),
        None => OutPort::network(text.strip_prefix('n')?.parse().ok()?),
    }
}

fn packets(trace: &str) -> Result<BTreeMap<u64, Packet>> {
    let mut packets = BTreeMap::<u64, Packet>::new();
    for line in trace.lines() {
        // Others than hops are told in words of their own.
        let Some((head, (left, right))) = line
            .split_once(": ")
            .and_then(|(head, what)| Some((head, what.split_once(" -> ")?)))
        else {
            continue;
        };
        let bad = || format!("not of the expected form: {line}");
        let number = |before: &str| -> Option<u64> {
            let mut words = head.split_whitespace().skip_while(|w| *w != before);
            words.nth(1)?.parse().ok()
        };
        let nic = number("nic").with_context(bad)? as u16;
        let packet = packets
            .entry(number("packet").with_context(bad)?)
            .or_default();
        if let (Some(inport), Some(outport)) = (port(left), port(right)) {
            packet.hops.push(Hop {
                nic,
                inport,
                outport,
            });
        } else if let Some(to) = right.strip_prefix("node ") {
            let to = to.split([' ', ',']).next().and_then(|n| n.parse().ok());
            packet.way = Some((nic, to.with_context(bad)?));
        }
    }
    ensure!(!packets.is_empty(), "the trace is empty");
    Ok(packets)
}

/// The routing tables of all NICs, and what their links lead to.
struct Tables {
    /// Entries of the local tables by NIC and inport.
    local: BTreeMap<(u16, OutPort), Vec<RouteEntry>>,
    /// From NIC and link to NIC and link.
    cables: BTreeMap<(u16, u8), (u16, u8)>,
}

impl Tables {
    fn read(lab: &Lab) -> Result<Self> {
        let mut local = BTreeMap::new();
        for number in 0..lab.spec().nodes {
            // All node IDs here are in the first entry of the global tables, which leads to the local ones.
            let script = "cd /sys/bus/pci/drivers/extoll/0000:*/extoll_rf; for i in $(seq 0 10); do \
                echo $i $(head -n 1 extoll_rf_nw_xbar_rf_inp${i}_grt_raw) $(head -n 8 extoll_rf_nw_xbar_rf_inp${i}_lrt_p0_raw); done";
            for line in lab.ok(number, script)?.lines() {
                let mut words = line.split(' ');
                let inport = words.next().and_then(|n| OutPort::new(n.parse().ok()?));
                let entries = words
                    .map(|w| {
                        let word = RouteWord(u64::from_str_radix(w, 16)?);
                        RouteEntry::decode(word).map_err(|p| anyhow::anyhow!("port {p}: {line}"))
                    })
                    .collect::<Result<Vec<_>>>()?;
                let (global, entries) = entries.split_first().with_context(|| line.to_owned())?;
                ensure!(
                    *global == RouteEntry::Local && entries.len() == 8,
                    "inport {inport:?} of NIC {number}: {line}"
                );
                let place = (number as u16, inport.with_context(|| line.to_owned())?);
                local.insert(place, entries.to_vec());
            }
        }
        let mut cables = BTreeMap::new();
        let status = lab.status()?;
        for link in status["fabric"]["links"].as_array().context("no links")? {
            let end = |n: usize| -> Result<(u16, u8)> {
                let text = link["ends"][n].as_str().context("no end")?;
                let (nic, port) = text.split_once(':').with_context(|| text.to_owned())?;
                Ok((nic.parse()?, port.parse()?))
            };
            let (a, b) = (end(0)?, end(1)?);
            cables.insert(a, b);
            cables.insert(b, a);
        }
        Ok(Self { local, cables })
    }

    /// The crossbars that a packet passes which enters the first one by `inport`.
    fn route(&self, from: u16, inport: OutPort, to: u16) -> Result<Vec<Hop>> {
        let (mut nic, mut inport) = (from, inport);
        let mut hops = vec![];
        loop {
            let entries = self.local.get(&(nic, inport)).context("no table")?;
            let Some(RouteEntry::Port(outport)) = entries.get(usize::from(to)) else {
                bail!("no route from {from} to {to} at NIC {nic}: {entries:?}");
            };
            ensure!(hops.len() < 8, "from {from} to {to} in a circle: {hops:?}");
            let PortKind::Link(link) = outport.kind() else {
                ensure!(nic == to, "the way from {from} to {to} ends at {nic}");
                hops.push(Hop {
                    nic,
                    inport,
                    outport: *outport,
                });
                return Ok(hops);
            };
            hops.push(Hop {
                nic,
                inport,
                outport: *outport,
            });
            let end = self.cables.get(&(nic, link));
            let (next, link) = *end.with_context(|| format!("no cable at {nic}:{link}"))?;
            inport = OutPort::link(link).context("link")?;
            nic = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_is_read() -> Result<()> {
        let trace = "1.5 ms  nic 0   packet 7: velo node 0 -> node 1 vpid 254, n0, 98 bytes\n\
            1.6 ms  nic 0   packet 7: n0 -> link 2\n1.7 ms  nic 1   packet 7: link 2 -> n0\n";
        let packets = packets(trace)?;
        let packet = &packets[&7];
        assert_eq!(packet.way, Some((0, 1)));
        assert_eq!(packet.hops.len(), 2);
        assert_eq!(Some(packet.hops[1].inport), OutPort::link(2));
        Ok(())
    }
}
