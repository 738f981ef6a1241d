//! Random input: calls, mappings and stores by unprivileged processes, and packets that no correct
//! NIC sends.
//!
//! `FUZZ_SEED` sets the seed, `FUZZ_SECONDS` the duration.

use super::expected::OF_INPUT;
use super::leaks::Usage;
use super::node::{node, volume};
use super::torus::{finish, prepare, survivors, work, Flow, Kind};
use super::{on_pair, uapi};
use crate::cluster::{Lab, LogMark, PATIENCE};
use crate::Scenario;
use anyhow::{bail, ensure, Context, Result};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Default seed.
const SEED: u64 = 1;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("fuzz::unprivileged", |lab| {
            uapi::random_calls(lab, seed(), seconds())
        })
        .finds(OF_INPUT)
        .seconds(900),
        on_pair("fuzz::fabric", fabric).finds(OF_INPUT).seconds(900),
    ]
}

/// Returns a number from the environment. Panics if the text is not a number. The panic fails the
/// scenario.
fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => match text.parse() {
            Ok(number) => number,
            Err(_) => panic!("{name}={text:?} is not a number"),
        },
        Err(_) => default,
    }
}

/// Returns the seed of all random choices.
pub fn seed() -> u64 {
    setting("FUZZ_SEED", SEED)
}

fn seconds() -> u64 {
    setting("FUZZ_SECONDS", volume(12, 30))
}

struct Random(SmallRng);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.random()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0.random_range(0..n)
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn hex(&mut self, bytes: u64) -> String {
        (0..bytes).fold(String::new(), |mut text, _| {
            // Writing to a string can't fail.
            let _ = write!(text, "{:02x}", self.next() as u8);
            text
        })
    }
}

/// Numbers of the node under attack and of its peer.
const TARGET: usize = 1;
const PEER: usize = 0;
/// User ID of the traffic's processes.
const USER: u64 = 1000;
/// VPIDs of the register access port and of the network driver.
const RRA: u64 = 252;
const NETWORK: u64 = 254;
/// VPIDs that stay closed.
const CLOSED: [u64; 2] = [77, 200];
/// Ports that commands of extoll_bench open for a short time, as pairs of "is VELO" and VPID.
const SHORT_LIVED: [(bool, u64); 3] = [(true, 1), (false, 1), (false, 2)];
/// Number of packets per delivery.
const BATCH: usize = 48;
/// Maximum number of log lines per reason within one interval (docs/driver.md, docs/exn.md).
const LINES: u64 = 4;
const INTERVAL_S: u64 = 10;
/// Numbers of the base driver's reasons that the input must cause: impossible status words and
/// notifications, error bits, closed VPIDs, unrequested answers.
const MOVED: [usize; 5] = [7, 8, 9, 18, 27];

/// Returns a packet for one of the open `ports` (pairs of "is VELO" and VPID) or for a closed one.
fn packet(rng: &mut Random, ports: &[(bool, u64)]) -> String {
    let (velo, vpid) = match rng.below(8) {
        0 => (rng.below(2) == 0, rng.one(&CLOSED)),
        _ => rng.one(ports),
    };
    let any = rng.below(1 << 16);
    let node = rng.one(&[PEER as u64, TARGET as u64, 9, 11, 0xFFFE, 0xFFFF, any]);
    let any = rng.below(256);
    let from = rng.one(&[NETWORK, RRA, vpid, any]);
    let any = rng.below(1 << 16);
    let protection = rng.one(&[0, USER, any]);
    if velo {
        return message(rng, vpid, node, from, protection);
    }
    let head = format!(r#""src_node":{node},"src_vpid":{from},"vpid":{vpid}"#);
    match rng.below(3) {
        0 => notification(rng, vpid, node, from),
        1 => format!(
            r#"{{"kind":"notification",{head},"class":{},"value":{}}}"#,
            rng.below(256),
            rng.next()
        ),
        _ => {
            // All commands except those that the hardware permits to every node: accesses to
            // registers and physical addresses.
            let command = rng.one(&[0, 1, 2, 3, 5, 6, 10, 11, 12, 13]);
            let len = match command {
                6 => 1 + rng.below(8),
                _ => rng.below(4097),
            };
            // The address is beyond all registered memory or in the first page, which is never
            // registered.
            let address = rng.one(&[0, 8, 1 << 46]) | rng.below(1 << 12);
            let mode = 4 | (rng.below(32) << 1);
            let size = rng.one(&[0, 1, 8, 120]);
            format!(
                r#"{{"kind":"rma",{head},"protection":{protection},"command":{command},"notify":{},"mode":{mode},"address":{address},"second":{},"len":{len},"data":"{}","error":{}}}"#,
                rng.below(8),
                rng.next(),
                rng.hex(size),
                rng.below(8),
            )
        }
    }
}

/// Returns a message, or a mailbox slot with an invalid status.
fn message(rng: &mut Random, vpid: u64, node: u64, from: u64, protection: u64) -> String {
    if rng.below(3) > 0 {
        // VPIDs may have more than 8 bits.
        let vpid = vpid | rng.one(&[0, 0, 0, 256, 768]);
        let size = 1 + rng.below(120);
        return format!(
            r#"{{"kind":"velo","src_node":{node},"src_vpid":{from},"protection":{protection},"vpid":{vpid},"mtt":{},"tag":{},"data":"{}"}}"#,
            rng.below(4),
            rng.below(256),
            rng.hex(size)
        );
    }
    let any = rng.next();
    let length = rng.one(&[0, 121, 128, 4095]);
    let bad = node | (from << 16) | (length << 48) | (1 << 24);
    let status = rng.one(&[any, any | (1 << 63), bad, bad | (0xF << 60)]);
    slot("velo", vpid, rng.next(), status)
}

/// Returns a notification that no unit writes, or one that was not requested.
fn notification(rng: &mut Random, vpid: u64, node: u64, from: u64) -> String {
    let kind = rng.one(&[1, 2, 4, 0, 3, 7]);
    let command = rng.one(&[0, 1, 2, 3, 5, 6, 10, 11, 12, 13, 4, 15]);
    let (mode, error) = (rng.below(64), rng.one(&[0, 1, 2, 4, 7]));
    let word = rng.below(1 << 23)
        | (from << 23)
        | (node << 32)
        | (kind << 48)
        | (command << 51)
        | (mode << 55)
        | (error << 61);
    let any = rng.next() | 1;
    let word = rng.one(&[word | (1 << 23), word | (1 << 23), any]);
    let value = rng.next();
    let value = rng.one(&[value, value & 0xFFF, 0]);
    slot("rma", vpid, value, word)
}

fn slot(unit: &str, vpid: u64, first: u64, last: u64) -> String {
    format!(r#"{{"kind":"slot","unit":"{unit}","vpid":{vpid},"words":[{first},{last}]}}"#)
}

/// Returns the open ports of the target as pairs of "is VELO" and VPID.
fn ports(lab: &Lab) -> Result<Vec<(bool, u64)>> {
    let ports = node(lab, TARGET).ports()?;
    Ok(ports.iter().map(|p| (p.is_velo, p.vpid)).collect())
}

/// Checks that no reason of any driver exceeds its limit of log lines.
fn few_lines(lab: &Lab, mark: &LogMark, start: Instant) -> Result<()> {
    let limit = LINES * (start.elapsed().as_secs() / INTERVAL_S + 2);
    let log = lab.log_since(mark)?;
    let heads = log.lines().filter_map(|l| {
        let at = l.find("reason ")?;
        let number = l[at..].find(": ")?;
        Some(&l[l.find(']')?..at + number])
    });
    let mut heads: Vec<&str> = heads.collect();
    heads.sort_unstable();
    ensure!(!heads.is_empty(), "nothing was logged:\n{log}");
    for same in heads.chunk_by(|a, b| a == b) {
        ensure!(
            same.len() as u64 <= limit,
            "{} lines of '{}', at most {limit} expected",
            same.len(),
            same[0]
        );
    }
    Ok(())
}

/// Reads a register of the peer while unrequested answers arrive.
fn remote_register(lab: &Lab) -> Result<()> {
    let command =
        format!("extollctl --json reg read info_rf_node --node {PEER} --timeout-us 5000000");
    let text = lab.ok(TARGET, &command)?;
    let read: serde_json::Value = serde_json::from_str(&text)?;
    let fields = read["fields"].as_array().context("no fields")?;
    let id = fields.iter().find(|f| f["name"] == "id");
    let id = id.with_context(|| text.clone())?["value"].as_u64();
    ensure!(id == Some(PEER as u64), "another register: {text}");
    Ok(())
}

/// Random packets from the fabric neither crash the drivers nor disturb their traffic.
fn fabric(lab: &Lab) -> Result<()> {
    let (seed, seconds) = (seed(), seconds());
    println!("        FUZZ_SEED={seed} FUZZ_SECONDS={seconds}");
    for node in [PEER, TARGET] {
        prepare(lab, node)?;
    }
    remote_register(lab)?;
    let before = Usage::of(node(lab, TARGET))?;
    let user = format!("setpriv --reuid={USER} --regid={USER} --clear-groups -- ");
    let mut flows = [Kind::User, Kind::Kernel, Kind::Tcp]
        .into_iter()
        .map(|kind| Flow::start_as(lab, (kind, TARGET, PEER), &user))
        .collect::<Result<Vec<_>>>()?;
    work(lab, &flows, 2, |_| true).context("before the fuzz")?;
    let mark = lab.log_mark(TARGET)?;
    let (start, first) = (Instant::now(), node(lab, TARGET).reasons()?);
    bombard(lab, seed, Duration::from_secs(seconds), &mut flows)?;
    work(lab, &flows, 2, |_| true).context("after the fuzz")?;
    few_lines(lab, &mark, start)?;
    finish(lab, &mut flows)?;
    survivors(lab, |_| true)?;
    let last = node(lab, TARGET).reasons()?;
    for number in MOVED {
        ensure!(
            last.get(number) > first.get(number),
            "reason {number} did not move: {first:?} -> {last:?}"
        );
    }
    for number in [PEER, TARGET] {
        lab.ok(number, "ip link set exn0 down; ip link set exn0 up")?;
    }
    for number in [PEER, TARGET] {
        node(lab, number).back()?;
        node(lab, number).pings(20, "-i 0.02 -s 3000")?;
    }
    remote_register(lab)?;
    before.is_back(node(lab, TARGET))?;
    for node in [PEER, TARGET] {
        lab.ok(node, "rmmod extoll_bench")?;
    }
    Ok(())
}

/// Delivers batches for the given time. No flow may end during that time.
fn bombard(lab: &Lab, seed: u64, time: Duration, flows: &mut [Flow]) -> Result<()> {
    let mut rng = Random(SmallRng::seed_from_u64(seed));
    let (start, mut delivered) = (Instant::now(), 0);
    while start.elapsed() < time {
        for flow in flows.iter_mut() {
            let mut running = flow.running.take().context("ended before")?;
            if !running.is_running() {
                bail!("{} ended: {:?}", flow.log(), running.wait(PATIENCE)?);
            }
            flow.running = Some(running);
        }
        let mut ports = ports(lab)?;
        ports.extend(SHORT_LIVED);
        let packets: Vec<String> = (0..BATCH).map(|_| packet(&mut rng, &ports)).collect();
        let target = TARGET.to_string();
        let mut args = vec!["forge", &target];
        args.extend(packets.iter().map(String::as_str));
        lab.fault(&args)?;
        delivered += packets.len();
        remote_register(lab).with_context(|| format!("after {delivered} packets"))?;
    }
    println!("        {delivered} packets");
    ensure!(delivered > 2 * BATCH, "too few packets in {time:?}");
    Ok(())
}
