//! What is left of the traffic between two nodes while others attack one of them, or don't answer it.

use super::expected::OF_INPUT;
use super::hostile::{announcement, velo};
use super::node::{node, volume, Node};
use super::{guest, on_pair};
use crate::cluster::{as_slow, Lab, Running, Spec, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

/// Three nodes, each joined to the others.
const THREE: Spec = Spec::new(3).topology("full:3").memory(384);

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    let in_three = |name, run| Scenario::new(name, THREE, run);
    vec![
        in_three("survival::announce_and_die", announce_and_die).finds(OF_INPUT),
        in_three("survival::dying_peers", dying_peers).finds(OF_INPUT),
        in_three("survival::runts", runts).finds(OF_INPUT),
        in_three("survival::floods", floods).finds(OF_INPUT),
        in_three("survival::late_fetches", late_fetches).finds(OF_INPUT),
        on_pair("survival::frozen_peer", frozen_peer).finds(OF_INPUT),
        on_pair("survival::down_under_flood", down_under_flood).finds(OF_INPUT),
    ]
}

/// The node that is attacked, and the one whose traffic with it is to go on.
const VICTIM: usize = 1;
const THIRD: usize = 2;
/// The part of its rate that it keeps.
const PART: f64 = 0.8;
/// How long the traffic is watched each time, with and without the attack by turns.
const INTERVAL: Duration = Duration::from_secs(4);
/// Time-out and quarantine of exn in ms: the least that it allows, on a machine that may stand still.
const TIMES: &str = "rdv_timeout_ms=2000 rdv_quarantine_ms=7000";

/// TCP between nodes 1 and 2 in both directions, at about half of the rate that the machine gives
/// it: what the attack costs the processors is not what is looked for.
struct Stream<'a> {
    lab: &'a Lab,
    client: Running,
}

impl<'a> Stream<'a> {
    fn start(lab: &'a Lab) -> Result<Self> {
        const PORT: u16 = 5900;
        node(lab, THIRD).ok(&format!("pkill iperf3; iperf3 -s -D -p {PORT}"))?;
        let listens = format!("ss -ltn | grep -q :{PORT}");
        node(lab, THIRD).until("iperf3 listens", &listens)?;
        let client = format!("exec iperf3 -c node{THIRD} -p {PORT} --bidir");
        let count = || received(node(lab, THIRD));
        let before = count()?;
        node(lab, VICTIM).ok(&format!("{client} -t 4"))?;
        let all = count()?;
        let rate = (all.bytes - before.bytes) as f64 / 4.0;
        let pace = (rate * 8.0 / 4.0) as u64;
        let client = lab.spawn(VICTIM, &format!("{client} -t 3600 -b {pace}"))?;
        lab.until("the stream runs", PATIENCE, |_| {
            Ok(count()?.bytes > all.bytes + 100_000)
        })?;
        Ok(Self { lab, client })
    }

    /// Bytes per second while `f` runs.
    fn rate(&self, f: impl FnOnce() -> Result<()>) -> Result<f64> {
        let before = received(node(self.lab, THIRD))?;
        f()?;
        let after = received(node(self.lab, THIRD))?;
        Ok((after.bytes - before.bytes) as f64 / (after.at - before.at))
    }

    fn end(self) -> Result<()> {
        self.client.stop();
        for n in [VICTIM, THIRD] {
            node(self.lab, n).ok("pkill iperf3; true")?;
        }
        Ok(())
    }
}

/// What has come to a node's interface until when, in seconds of its own clock.
#[derive(Debug, Clone, Copy)]
struct Received {
    at: f64,
    bytes: u64,
}

fn received(node: Node<'_>) -> Result<Received> {
    let text = node.ok("cat /proc/uptime /sys/class/net/exn0/statistics/rx_bytes")?;
    let mut words = text.split_whitespace();
    let (at, bytes) = (words.next(), words.nth(1));
    Ok(Received {
        at: at.context("no time")?.parse()?,
        bytes: bytes.context("no bytes")?.parse()?,
    })
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Has the attack by turns with as much time without it. `attack` is called again and again with the
/// number of the turn. One of `signs`, counters of the victim, has to show that it is one.
fn survives(
    lab: &Lab,
    signs: &[&str],
    attack: impl Fn(usize) -> Result<()>,
    between: impl Fn() -> Result<()>,
) -> Result<()> {
    for n in 0..3 {
        node(lab, n).reload_exn(TIMES)?;
    }
    let victim = node(lab, VICTIM);
    let sum = || -> Result<u64> { signs.iter().map(|name| victim.ethtool(name)).sum() };
    let before = sum()?;
    let stream = Stream::start(lab)?;
    let interval = as_slow(INTERVAL);
    let (mut calm, mut attacked) = (Vec::new(), Vec::new());
    for turn in 0..volume(5, 15) {
        between()?;
        calm.push(stream.rate(|| {
            std::thread::sleep(interval);
            Ok(())
        })?);
        attacked.push(stream.rate(|| {
            let end = Instant::now() + interval;
            while Instant::now() < end {
                attack(turn)?;
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        })?);
    }
    between()?;
    stream.end()?;
    let more = sum()? - before;
    ensure!(more > 0, "{signs:?} did not move");
    let rates = format!("without: {calm:.0?}, attacked: {attacked:.0?} bytes/s, {signs:?} +{more}");
    let part = median(attacked) / median(calm);
    println!("        {part:.2} of the rate is left: {rates}");
    ensure!(part >= PART, "{part:.2} of the rate is left: {rates}");
    // What is owed is given up, and nothing is left of it.
    let idle = "ethtool -S exn0 | awk '/rx_rdv_in_flight|rx_rdv_waiting|tx_rdv_in_flight/ \
                {n += $2} END {exit n > 0}'";
    victim.until("nothing is in flight", idle)?;
    for n in 0..3 {
        node(lab, n).reload_exn("")?;
    }
    Ok(())
}

/// Delivers packets to the victim, `count` times.
fn forge(lab: &Lab, count: u32, packets: &[String]) -> Result<()> {
    let (victim, count) = (VICTIM.to_string(), count.to_string());
    let mut args = vec!["forge", &victim, "--count", &count];
    args.extend(packets.iter().map(String::as_str));
    lab.fault(&args).map(drop)
}

/// A node announces more than there is room for and is never heard of again: another one each time,
/// and the last one is node 0, which loses its power in the middle of its work.
fn announce_and_die(lab: &Lab) -> Result<()> {
    let signs = ["rx_waiting_bound", "rx_peer_bound", "rx_rdv_timeout"];
    survives(
        lab,
        &signs,
        |turn| forge(lab, 1500, &[announcement(20 + turn as u16, 0x1000, 1500)]),
        || Ok(()),
    )?;
    let stream = Stream::start(lab)?;
    let load = lab.spawn(0, &format!("ping -q -f -s 3000 -w 600 node{VICTIM}"))?;
    let calm = stream.rate(|| {
        std::thread::sleep(as_slow(INTERVAL));
        Ok(())
    })?;
    lab.fault(&["power-off", "0"])?;
    drop(load);
    let dead = stream.rate(|| {
        std::thread::sleep(as_slow(INTERVAL));
        Ok(())
    })?;
    stream.end()?;
    lab.fault(&["power-on", "0"])?;
    node(lab, 0).back()?;
    // Its own traffic is gone, so the others have rather more.
    ensure!(
        dead >= PART * calm,
        "{dead:.0} instead of {calm:.0} bytes/s after its death"
    );
    Ok(())
}

/// 64 nodes announce something now and then, and none of them is there.
fn dying_peers(lab: &Lab) -> Result<()> {
    let all: Vec<String> = (100..164).map(|n| announcement(n, 0x1000, 1500)).collect();
    survives(
        lab,
        &["rx_peer_bound", "rx_rdv_timeout"],
        |_| forge(lab, 3, &all),
        || Ok(()),
    )
}

/// Frames that are shorter than a header, in messages and announced, by a node that lets them be
/// fetched and by one that is not there.
fn runts(lab: &Lab) -> Result<()> {
    let packets = |turn: usize| {
        let len = 1 + turn as u64 % 13;
        [
            announcement(0, 0x1000, len),
            announcement(9, 0x1000, len),
            velo(9, 254, 3, 0, &[0; 5]),
        ]
    };
    survives(
        lab,
        &["rx_short"],
        |turn| forge(lab, 20, &packets(turn)),
        || Ok(()),
    )
}

/// Messages and notifications that mean nothing, and frames that nobody wants.
fn floods(lab: &Lab) -> Result<()> {
    let mut frame = vec![0x2e, 0x87, 4, 7, 0, VICTIM as u8, 0x2e, 0x87, 4, 7, 0, 9];
    // An Ethernet type for experiments.
    frame.extend([0x88, 0xb5, 1, 2, 3, 4]);
    let packets = [
        velo(9, 254, 3, 0, &frame),
        velo(9, 254, 2, 0, &[7; 8]),
        velo(9, 254, 2, 0, &[1]),
        velo(9, 254, 0, 3, &[0; 16]),
        r#"{"kind":"notification","src_node":9,"src_vpid":254,"vpid":254,"value":4660}"#.into(),
    ];
    survives(
        lab,
        &["notify_bad", "drop_unmatched"],
        |_| forge(lab, 25, &packets),
        || Ok(()),
    )
}

/// Node 0 fetches what it gets from node 1 just before it counts as stalled, while that has more for
/// it than may be in flight.
fn late_fetches(lab: &Lab) -> Result<()> {
    // A timer polls node 0, and nothing else as long as there is traffic.
    let poll = |ns: u64, rounds: u32| {
        node(lab, 0).ok(&format!(
            "cd /sys/class/net/exn0 && echo {ns} >gro_flush_timeout \
             && echo {rounds} >napi_defer_hard_irqs"
        ))
    };
    let load = |lab: &Lab| -> Result<Running> {
        let victim = node(lab, VICTIM);
        victim.ok("ethtool -G exn0 tx 64")?;
        node(lab, 0).ok("pkill iperf3; iperf3 -s -D -p 5901")?;
        node(lab, 0).until("iperf3 listens", "ss -ltn | grep -q :5901")?;
        lab.spawn(
            VICTIM,
            "while :; do iperf3 -u -c node0 -p 5901 -P 8 -b 3M -l 1400 -t 3600; sleep 0.2; done",
        )
    };
    let mut running = None;
    let result = {
        let running = std::cell::RefCell::new(&mut running);
        survives(
            lab,
            &["tx_peer_bound"],
            |_| {
                std::thread::sleep(Duration::from_millis(200));
                poll(90_000_000, 20_000).map(drop)
            },
            || {
                let mut running = running.borrow_mut();
                if running.is_none() {
                    **running = Some(load(lab)?);
                }
                poll(0, 0).map(drop)
            },
        )
    };
    if let Some(running) = running {
        running.stop();
    }
    for n in [0, VICTIM] {
        node(lab, n).ok("pkill iperf3; true")?;
    }
    poll(0, 0)?;
    node(lab, VICTIM).ok("ethtool -G exn0 tx 256")?;
    result
}

/// A peer that stands still: TCP sends again what it does not fetch, and sockets have their room back,
/// though the frames stay where they are.
fn frozen_peer(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    let (from, to) = (node(lab, 0), node(lab, 1));
    to.ok("rm -f /tmp/got; pkill socat; true")?;
    let sink = lab.spawn(
        1,
        "exec socat -u TCP-LISTEN:7500,reuseaddr STDOUT | md5sum >/tmp/got",
    )?;
    to.until("socat listens", "ss -ltn | grep -q :7500")?;
    // Each line is sent by itself, by one process: a node may take a second to begin some.
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
        // Its socket holds a few; it goes on getting rid of them.
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

/// The interface goes down in time, however many notifications come while a fetch is not answered.
fn down_under_flood(lab: &Lab) -> Result<()> {
    let victim = node(lab, VICTIM);
    // Twice as long as what is allowed.
    let (flood, most) = (as_slow(Duration::from_secs(20)), 10.0);
    let end = Instant::now() + flood;
    let slot = r#"{"kind":"notification","src_node":9,"src_vpid":254,"vpid":254,"value":4660}"#;
    let took = std::thread::scope(|scope| {
        let flood = scope.spawn(|| -> Result<()> {
            while Instant::now() < end {
                forge(lab, 500, &[slot.into()])?;
            }
            Ok(())
        });
        let down = (|| {
            std::thread::sleep(Duration::from_secs(1));
            forge(lab, 4, &[announcement(9, 0x1000, 1500)])?;
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
