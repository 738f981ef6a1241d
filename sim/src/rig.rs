//! A run: nodes, traffic, faults drawn from a seed, and what must hold.
//!
//! * A frame is delivered at most once and unaltered.
//! * Memory that was announced is not given back while the peer may still fetch it: before the peer has fetched it, or time-out and
//!   quarantine are over.
//! * Frames between healthy nodes arrive within [`BOUND`], whatever the others do; one may be dropped only while an older one to the same
//!   peer is stalled.
//! * Tables keep their bounds; in the end nothing waits, and all memory is back.

use crate::fabric::Fabric;
use crate::node::{Mutation, Node, Outgoing, Report, LIMITS, MAX_FRAME};
use crate::port::Port;
use anyhow::{Context, Result};
use extoll_emulator::control::Forged;
use extoll_emulator::network::LinkKnobs;
use extoll_emulator::nic::{Faults, LoseWrite, LossyRing};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// In this time a frame between healthy nodes arrives: what two dead peers hold up in both directions, and some.
pub const BOUND: u64 = 2 * LIMITS.timeout + 2_000 * MS;
/// Traffic and faults begin before this.
const BUSY: u64 = 6_000 * MS;
/// Faults have ended after this time more.
const LONGEST_FAULT: u64 = 8_000 * MS;
/// Everything has ended after this.
const END: u64 = BUSY + LONGEST_FAULT + 2 * (LIMITS.timeout + LIMITS.keep) + 10_000 * MS;
/// Bytes of a frame before its pattern: length, number.
const HEAD: usize = 24;

/// What is wrong, and when.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Seed of the run.
    pub seed: u64,
    /// When, in ns.
    pub at: u64,
    /// What.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, at, what } = self;
        let ms = *at as f64 / MS as f64;
        write!(f, "seed {seed}, {ms:.3} ms: {what}")
    }
}

/// What a run did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    /// Frames handed over.
    pub frames: u64,
    /// Of these, delivered.
    pub delivered: u64,
    /// Frames between healthy nodes.
    pub healthy: u64,
    /// Steps of the simulation.
    pub steps: u64,
    /// Faults.
    pub faults: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Poll(usize),
    Tick(usize),
    Submit(usize),
    Fault(usize),
    Heal(usize),
    Forge(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The cable loses all it carries.
    Cable(usize),
    Freeze(usize),
    PowerOff(usize),
    Restart(usize),
    Slow(usize),
    NoMemory(usize),
    LoseMessages(usize),
    LoseNotifications(usize),
    RetryEvery(usize),
}

impl Fault {
    /// Whom it concerns: none of their frames has to arrive.
    fn victims(self, ends: &[[usize; 2]]) -> Vec<usize> {
        match self {
            Self::Cable(c) => ends[c].to_vec(),
            Self::Freeze(n)
            | Self::PowerOff(n)
            | Self::Restart(n)
            | Self::Slow(n)
            | Self::NoMemory(n)
            | Self::LoseMessages(n)
            | Self::LoseNotifications(n)
            | Self::RetryEvery(n) => vec![n],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Queued,
    Announced,
    Delivered,
    Dropped,
}

struct Frame {
    from: usize,
    to: usize,
    len: u32,
    at: u64,
    fate: Fate,
}

struct Announced {
    id: u64,
    at: u64,
    fetched: bool,
}

/// A run.
pub struct Rig {
    seed: u64,
    rng: SmallRng,
    fabric: Fabric,
    nodes: Vec<Node>,
    /// Nodes that no fault hits, and that behave.
    healthy: Vec<bool>,
    /// Nodes that send what no protocol allows; for their frames nothing holds.
    hostile: Vec<bool>,
    /// Mean time between polls, in ns.
    pace: Vec<u64>,
    /// Time between polls that find nothing.
    idle: Vec<u64>,
    /// When each node polls next.
    poll_at: Vec<u64>,
    /// What each NIC had delivered when its node was woken last.
    heard: Vec<u64>,
    faults: Vec<(Fault, u64)>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    frames: Vec<Frame>,
    /// By node and address.
    announced: BTreeMap<(usize, u64), Announced>,
    summary: Summary,
    trace: Option<Vec<String>>,
}

fn pattern(id: u64, len: usize) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(id ^ 0x5eed);
    let mut data = vec![0; len.max(HEAD)];
    rng.fill(&mut data[..]);
    // Not a group address: the frame is a unicast one.
    data[0] &= !1;
    data[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    data[16..24].copy_from_slice(&id.to_le_bytes());
    data.truncate(len);
    data
}

fn word(data: &[u8], at: usize) -> u64 {
    data.get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map_or(u64::MAX, u64::from_le_bytes)
}

impl Rig {
    /// A run of this seed, with an error in the glue if asked for.
    ///
    /// # Errors
    ///
    /// The emulator refuses something.
    pub fn new(seed: u64, mutation: Option<Mutation>, trace: bool) -> Result<Self> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let count = rng.random_range(2..=4usize);
        let fabric = Fabric::new(count, seed)?;
        let nodes = (0..count)
            .map(|i| Node::new(&fabric, i, mutation))
            .collect::<Result<Vec<_>>>()?;
        let mut rig = Self {
            seed,
            rng,
            fabric,
            nodes,
            healthy: vec![true; count],
            hostile: vec![false; count],
            pace: Vec::new(),
            idle: vec![0; count],
            poll_at: vec![0; count],
            heard: vec![0; count],
            faults: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            frames: Vec::new(),
            announced: BTreeMap::new(),
            summary: Summary::default(),
            trace: trace.then(Vec::new),
        };
        rig.set_up()?;
        Ok(rig)
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        let at = self.fabric.now();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:12.3} us  {}", at as f64 / US as f64, what()));
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, event)));
    }

    fn set_up(&mut self) -> Result<()> {
        let count = self.nodes.len();
        let slowest = [0, 0, 10 * US, 50 * US, 5 * MS][self.rng.random_range(0..5)];
        for cable in 0..self.fabric.cables() {
            let damaged = self.rng.random_bool(0.3);
            let knobs = LinkKnobs {
                jitter_ns: 0,
                latency_ns: self.rng.random_range(0..=slowest),
                bytes_per_second: 0,
                corrupt_rate: if damaged { 0.1 } else { 0.0 },
                loss_rate: if damaged { 0.1 } else { 0.0 },
            };
            self.fabric.knobs(cable, knobs);
        }
        for node in 0..count {
            let pace = [20 * US, 100 * US, 1000 * US][self.rng.random_range(0..3)];
            self.pace.push(pace);
            self.nodes[node].up(&mut self.fabric)?;
            self.poll(node, 0);
            self.at(0, Event::Tick(node));
        }
        let mut bursts = Vec::new();
        for _ in 0..self.rng.random_range(1..=4) {
            let (node, at) = (
                self.rng.random_range(0..count),
                self.rng.random_range(0..BUSY),
            );
            bursts.push(at);
            for _ in 0..self.rng.random_range(1..=40) {
                let later = self.rng.random_range(0..20 * MS);
                self.at(at + later, Event::Submit(node));
            }
        }
        if self.rng.random_bool(0.25) {
            let node = self.rng.random_range(0..count);
            (self.hostile[node], self.healthy[node]) = (true, false);
            for _ in 0..self.rng.random_range(1..80) {
                // Most while frames are under way.
                let at = match self.rng.random_bool(0.8) {
                    true => {
                        bursts[self.rng.random_range(0..bursts.len())]
                            + self.rng.random_range(0..25 * MS)
                    }
                    false => self.rng.random_range(0..BUSY),
                };
                self.at(at, Event::Forge(node));
            }
        }
        let ends = self.cable_ends();
        for _ in 0..self.rng.random_range(0..=3) {
            let node = self.rng.random_range(0..count);
            let fault = match self.rng.random_range(0..9) {
                0 => Fault::Cable(self.rng.random_range(0..ends.len())),
                1 => Fault::Freeze(node),
                2 => Fault::PowerOff(node),
                3 => Fault::Restart(node),
                4 => Fault::Slow(node),
                5 => Fault::NoMemory(node),
                6 => Fault::LoseMessages(node),
                7 => Fault::LoseNotifications(node),
                _ => Fault::RetryEvery(node),
            };
            if self.faults.iter().any(|(other, _)| *other == fault) {
                continue;
            }
            for victim in fault.victims(&ends) {
                self.healthy[victim] = false;
            }
            let at = self.rng.random_range(0..BUSY);
            let longest = [10 * MS, 500 * MS, LONGEST_FAULT][self.rng.random_range(0..3)];
            let end = at + self.rng.random_range(1..longest);
            self.at(at, Event::Fault(self.faults.len()));
            self.faults.push((fault, end));
        }
        self.summary.faults = self.faults.len() as u64;
        Ok(())
    }

    /// Nodes at both ends of each cable.
    fn cable_ends(&self) -> Vec<[usize; 2]> {
        let network = self.fabric.world.network();
        (0..self.fabric.cables())
            .map(|c| network.cable_ends(c).map(|end| end.nic))
            .collect()
    }

    /// Runs to the end.
    ///
    /// # Errors
    ///
    /// What did not hold.
    pub fn run(&mut self) -> Result<Summary, Violation> {
        match self.steps() {
            Ok(()) => Ok(self.summary),
            Err(e) => Err(Violation {
                seed: self.seed,
                at: self.fabric.now(),
                what: format!("{e:#}"),
            }),
        }
    }

    /// What happened so far, if it was to be kept.
    pub fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// Transitions of all machines.
    pub fn transitions(&self) -> String {
        let all = self.nodes.iter();
        let texts: Vec<String> = all
            .map(|n| format!("node {}\n{}", n.nic, n.transitions()))
            .collect();
        texts.concat()
    }

    fn steps(&mut self) -> Result<()> {
        while let Some(Reverse((at, ..))) = self.events.peek() {
            // What the world does before that may wake a node.
            let until = match self.fabric.world.next_deadline() {
                Some(deadline) => deadline.clamp(self.fabric.now(), *at),
                None => *at,
            };
            let due = until >= *at;
            self.fabric.advance(until)?;
            self.listen();
            if !due {
                continue;
            }
            let Some(Reverse((at, _, event))) = self.events.pop() else {
                break;
            };
            if let Event::Poll(n) = event {
                if at != self.poll_at[n] {
                    continue;
                }
            }
            self.summary.steps += 1;
            self.step(event)?;
            self.listen();
            for node in 0..self.nodes.len() {
                self.collect(node)?;
                self.nodes[node].check().map_err(anyhow::Error::msg)?;
            }
            if self.summary.steps % 16 == 0 {
                self.check_bound()?;
            }
        }
        self.check_end()
    }

    /// Nodes whose NIC delivered something poll soon, as after an interrupt.
    fn listen(&mut self) {
        let now = self.fabric.now();
        for n in 0..self.nodes.len() {
            let c = self.fabric.world.chip_counters(n);
            let delivered = c.velo.received.wrapping_add(c.rma.notifications);
            if delivered != self.heard[n] {
                self.heard[n] = delivered;
                self.idle[n] = self.pace[n];
                let at = now + self.rng.random_range(1..=self.pace[n]);
                if self.poll_at[n] <= now || at < self.poll_at[n] {
                    self.poll(n, at);
                }
            }
        }
    }

    fn poll(&mut self, node: usize, at: u64) {
        self.poll_at[node] = at;
        self.at(at, Event::Poll(node));
    }

    fn finished(&self) -> bool {
        self.fabric.now() > BUSY + LONGEST_FAULT && self.nodes.iter().all(Node::is_idle)
    }

    fn step(&mut self, event: Event) -> Result<()> {
        let now = self.fabric.now();
        match event {
            Event::Poll(n) => {
                let budget = self.rng.random_range(1..16);
                let worked = self.nodes[n].poll(&mut self.fabric, budget)?;
                let quiet = self.nodes[n].is_quiet();
                // Without work polls get rarer: an interrupt will tell, or housekeeping find what it missed.
                let rarest = if quiet { 250 * MS } else { 10 * MS };
                self.idle[n] = match worked {
                    true => self.pace[n],
                    false => (self.idle[n] * 4).clamp(self.pace[n], rarest.max(self.pace[n])),
                };
                let wait = self.rng.random_range(1..=2 * self.idle[n]);
                if now < END && !self.finished() {
                    self.poll(n, now + wait);
                }
            }
            Event::Tick(n) => {
                // The processor that does this may have looked at the clock before the last step of another one.
                let stale = now.saturating_sub(self.rng.random_range(0..5 * MS));
                self.nodes[n].tick(&mut self.fabric, stale);
                let pause = match self.nodes[n].is_quiet() {
                    true => 200 * MS,
                    false => 20 * MS,
                };
                if now < END && !self.finished() {
                    self.at(now + pause, Event::Tick(n));
                }
            }
            Event::Submit(n) => self.submit(n)?,
            Event::Fault(i) => {
                let (fault, end) = self.faults[i];
                self.say(|| format!("{fault:?} until {:.3} ms", end as f64 / MS as f64));
                self.begin(fault);
                self.at(end.max(now + 1), Event::Heal(i));
            }
            Event::Heal(i) => {
                let (fault, _) = self.faults[i];
                self.say(|| format!("{fault:?} ends"));
                self.end(fault)?;
            }
            Event::Forge(n) => self.forge(n)?,
        }
        Ok(())
    }

    fn submit(&mut self, from: usize) -> Result<()> {
        let count = self.nodes.len();
        let to = (from + self.rng.random_range(1..count)) % count;
        let len = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(HEAD as u32..100),
            1 => [496, 497, 992, 993][self.rng.random_range(0..4)],
            _ => self.rng.random_range(100..=MAX_FRAME),
        };
        // A stack keeps no more frames for a stopped queue than this.
        if !self.nodes[from].is_up() || self.nodes[from].backlog() >= 24 {
            return Ok(());
        }
        let Some(block) = self.nodes[from].pool.take() else {
            return Ok(());
        };
        let id = self.frames.len() as u64;
        block.fill(&pattern(id, len as usize))?;
        self.frames.push(Frame {
            from,
            to,
            len,
            at: self.fabric.now(),
            fate: Fate::Queued,
        });
        self.summary.frames += 1;
        self.summary.healthy += u64::from(self.healthy[from] && self.healthy[to]);
        self.say(|| format!("node {from}: frame {id}, {len} bytes to node {to}"));
        let frame = Outgoing { id, to, block, len };
        self.nodes[from].submit(&mut self.fabric, frame);
        Ok(())
    }

    fn begin(&mut self, fault: Fault) {
        let lose = |ring, count| Faults {
            lose_writes: vec![LoseWrite {
                ring,
                vpid: None,
                slot: None,
                count,
            }],
            ..Faults::default()
        };
        match fault {
            Fault::Cable(c) => self.fabric.link(c, false),
            Fault::Freeze(n) => self.fabric.world.set_frozen(n, true),
            Fault::PowerOff(n) => {
                self.fabric.world.set_power(n, false);
                self.nodes[n].down(&mut self.fabric);
            }
            Fault::Restart(n) => self.nodes[n].down(&mut self.fabric),
            Fault::Slow(n) => self.pace[n] *= 1000,
            Fault::NoMemory(n) => self.nodes[n].short_of_memory = true,
            Fault::LoseMessages(n) => {
                let count = self.rng.random_range(1..4);
                self.set_faults(n, lose(LossyRing::Velo, count));
            }
            Fault::LoseNotifications(n) => {
                let count = self.rng.random_range(1..4);
                self.set_faults(n, lose(LossyRing::Rma, count));
            }
            Fault::RetryEvery(n) => {
                let every = Some(self.rng.random_range(2..12));
                let faults = Faults {
                    wcbuf_retry_every: every,
                    ..Faults::default()
                };
                self.set_faults(n, faults);
            }
        }
    }

    /// A NIC that is off has no faults.
    fn set_faults(&mut self, nic: usize, faults: Faults) {
        if self.fabric.world.is_on(nic) {
            let set = self.fabric.world.set_faults(nic, faults);
            debug_assert!(set.is_ok());
        }
    }

    fn end(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Cable(c) => self.fabric.link(c, true),
            Fault::Freeze(n) => self.fabric.world.set_frozen(n, false),
            Fault::PowerOff(n) | Fault::Restart(n) => {
                if !self.fabric.world.is_on(n) {
                    self.fabric.world.set_power(n, true);
                    let now = self.fabric.now();
                    self.fabric.advance(now)?;
                    self.fabric.boot(n)?;
                }
                if !self.nodes[n].is_up() {
                    self.nodes[n].up(&mut self.fabric)?;
                }
            }
            Fault::Slow(n) => self.pace[n] /= 1000,
            Fault::NoMemory(n) => self.nodes[n].short_of_memory = false,
            Fault::LoseMessages(n) | Fault::LoseNotifications(n) | Fault::RetryEvery(n) => {
                self.set_faults(n, Faults::default());
            }
        }
        Ok(())
    }

    /// Something from `node` that no protocol allows, or a repetition.
    fn forge(&mut self, node: usize) -> Result<()> {
        let count = self.nodes.len();
        let to = (node + self.rng.random_range(1..count)) % count;
        // Addresses that are in use are the interesting ones.
        let mut known: Vec<u64> = self.announced.keys().map(|(_, address)| *address).collect();
        known.sort_unstable();
        let address = match known.len() {
            n if n > 0 && self.rng.random_bool(0.8) => known[self.rng.random_range(0..n)],
            _ => self.rng.random(),
        };
        let len = match self.rng.random_range(0..3) {
            0 => self.rng.random_range(0..14),
            1 => self.rng.random_range(14..=u64::from(MAX_FRAME)),
            _ => self.rng.random(),
        };
        let velo = |mtt, payload: &[u64]| Forged::Velo {
            src_node: node as u16,
            src_vpid: 254,
            protection: 0,
            vpid: 254,
            mtt,
            tag: 0,
            data: payload
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .map(|b| format!("{b:02x}"))
                .collect::<Vec<_>>()
                .concat(),
        };
        let forged = match self.rng.random_range(0..5) {
            0 | 1 => velo(1, &[address, len]),
            2 => velo(2, &[address]),
            kind => {
                // A notification of a transfer that names this node, with the key of somebody's frame.
                let kind = if kind == 3 {
                    wire::rma::NotificationType::Responder
                } else {
                    wire::rma::NotificationType::Completer
                };
                let frame = self.announced.iter().find(|((_, a), _)| *a == address);
                let len = frame.map_or(100, |(_, f)| self.frames[f.id as usize].len);
                let notification = wire::rma::Notification {
                    word0: wire::ext_eth::match_key(address, len),
                    size_field: 0,
                    vpid: wire::ext_eth::VPID,
                    node: Port::node_id(node),
                    kind,
                    command: wire::rma::Command::from_code(0).context("GET")?,
                    mode: wire::rma::Mode::from_bits(2),
                    error: u8::from(self.rng.random_bool(0.2)),
                };
                Forged::Slot {
                    unit: extoll_emulator::nic::QueueUnit::Rma,
                    vpid: 254,
                    words: notification.encode(),
                }
            }
        };
        self.say(|| format!("node {to} gets {forged:?}"));
        if self.fabric.world.is_on(to) {
            self.fabric.world.forge(to, &forged)?;
        }
        Ok(())
    }

    /// Takes the reports of a node in, and checks them.
    fn collect(&mut self, node: usize) -> Result<()> {
        let now = self.fabric.now();
        for report in std::mem::take(&mut self.nodes[node].reports) {
            self.say(|| match &report {
                Report::Delivered { from, data } => {
                    let id = word(data, 16);
                    format!("node {node}: delivered frame {id} of node {from}")
                }
                other => format!("node {node}: {other:?}"),
            });
            match report {
                Report::Announced { id, address } => {
                    self.frames[id as usize].fate = Fate::Announced;
                    let entry = Announced {
                        id,
                        at: now,
                        fetched: false,
                    };
                    if let Some(old) = self.announced.insert((node, address), entry) {
                        self.check_reuse(&old, now)?;
                    }
                }
                Report::Dropped { id, peer } => {
                    let frame = &mut self.frames[id as usize];
                    frame.fate = Fate::Dropped;
                    let (from, to) = (frame.from, frame.to);
                    let both = self.healthy[from] && self.healthy[to];
                    // A healthy peer may be held up by others for a while, but then it owes something.
                    let owes = self.announced.iter().any(|((at, _), a)| {
                        *at == from
                            && self.frames[a.id as usize].to == to
                            && !a.fetched
                            && a.at + LIMITS.stall <= now
                    });
                    anyhow::ensure!(
                        !both || (peer && owes),
                        "frame {id} was dropped, though its peer is healthy and owes nothing"
                    );
                }
                Report::Ended { address, fetched } => {
                    if let Some(a) = self.announced.get_mut(&(node, address)) {
                        a.fetched |= fetched;
                        let id = a.id as usize;
                        let to = self.frames[id].to;
                        // A hostile peer says what it likes about its own frames.
                        if fetched && !self.hostile[to] && self.healthy[node] && self.healthy[to] {
                            let got = self.frames[id].fate == Fate::Delivered;
                            anyhow::ensure!(
                                got || self.frames[id].at + BOUND > now,
                                "frame {id} ended late and undelivered"
                            );
                        }
                    }
                }
                Report::Delivered { from, data } => self.delivered(node, from.into(), &data)?,
                Report::Get { .. } => {}
                Report::Refused { from } => {
                    let both =
                        self.healthy[node] && self.healthy.get(usize::from(from)) == Some(&true);
                    anyhow::ensure!(!both, "node {node} refused a frame of node {from}");
                }
            }
        }
        Ok(())
    }

    /// Memory of an earlier announcement is used again.
    fn check_reuse(&self, old: &Announced, now: u64) -> Result<()> {
        let frame = &self.frames[old.id as usize];
        let told = frame.fate == Fate::Delivered || old.fetched || self.hostile[frame.to];
        // Between a restart and the end of the quarantine memory is held as well.
        anyhow::ensure!(
            told || now >= old.at + LIMITS.keep,
            "memory of frame {} is used again {} ms after it was announced, and it was never fetched",
            old.id,
            (now - old.at) / MS
        );
        Ok(())
    }

    fn delivered(&mut self, node: usize, from: usize, data: &[u8]) -> Result<()> {
        // For what a hostile node announces nothing holds; it may even repeat what others have announced to it.
        if self.hostile.get(from) != Some(&false) || self.hostile[node] {
            return Ok(());
        }
        let id = word(data, 16);
        let Some(frame) = self.frames.get_mut(id as usize) else {
            anyhow::bail!(
                "node {node} got {} bytes that are no frame of node {from}",
                data.len()
            );
        };
        anyhow::ensure!(
            (frame.from, frame.to, frame.len as usize) == (from, node, data.len()),
            "node {node} got frame {id} of node {} to node {} from node {from}, {} of {} bytes",
            frame.from,
            frame.to,
            data.len(),
            frame.len
        );
        anyhow::ensure!(data == pattern(id, data.len()), "frame {id} was altered");
        anyhow::ensure!(frame.fate != Fate::Delivered, "frame {id} came twice");
        frame.fate = Fate::Delivered;
        self.summary.delivered += 1;
        Ok(())
    }

    /// Frames between healthy nodes arrive in time.
    fn check_bound(&self) -> Result<()> {
        let now = self.fabric.now();
        for (id, f) in self.frames.iter().enumerate() {
            let both = self.healthy[f.from] && self.healthy[f.to];
            anyhow::ensure!(
                !both || matches!(f.fate, Fate::Delivered | Fate::Dropped) || now < f.at + BOUND,
                "frame {id} of node {} has not reached node {} after {} ms, though both are healthy; it is {:?}",
                f.from,
                f.to,
                (now - f.at) / MS,
                f.fate
            );
        }
        Ok(())
    }

    fn check_end(&mut self) -> Result<()> {
        self.check_bound()?;
        for node in &self.nodes {
            anyhow::ensure!(node.is_idle(), "node {} still waits at the end", node.nic);
            let scratch = usize::from(node.is_up());
            anyhow::ensure!(
                node.pool.used() == scratch,
                "node {} lost {} buffers",
                node.nic,
                node.pool.used() - scratch
            );
        }
        Ok(())
    }
}

/// Runs one seed.
///
/// # Errors
///
/// What did not hold, or why the run could not be made.
pub fn run(seed: u64, mutation: Option<Mutation>) -> Result<Summary, Violation> {
    let failed = |e: anyhow::Error| Violation {
        seed,
        at: 0,
        what: format!("can't be set up: {e:#}"),
    };
    Rig::new(seed, mutation, false).map_err(failed)?.run()
}
