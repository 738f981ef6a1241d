//! A run: nodes, traffic, faults drawn from a seed, and what must hold.
//!
//! * A frame is delivered at most once and unaltered.
//! * Memory that was announced is not given back while the peer may still fetch it, nor memory that a GET may still write: before
//!   the end was notified, or time-out and quarantine are over.
//! * Frames between nodes that behave, and have no fault or had none for [`SETTLE`], arrive within [`BOUND`], whatever the others do; one
//!   may be dropped only while an older one to the same peer is stalled, or was given up and none was fetched since.
//! * Tables keep their bounds; in the end nothing waits, and all memory is back.

mod forge;
mod judge;

use crate::fabric::Fabric;
use crate::node::{Again, Node, Outgoing};
use crate::setup::{Full, Mutation, LIMITS, MAX_FRAME};
use anyhow::Result;
use extoll_emulator::network::LinkKnobs;
use extoll_emulator::nic::{Faults, LoseWrite, LossyRing};
use protocol::rendezvous::Buffer;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// In this time a frame between healthy nodes arrives: what two dead peers hold up in both directions, and some.
pub const BOUND: u64 = 2 * LIMITS.timeout + 2_000 * MS;
/// Grace period after a node's last fault: what it owes is given up by then, and too old to be fetched.
pub const SETTLE: u64 = 2 * LIMITS.timeout + 500 * MS;
/// Traffic and faults begin before this.
const BUSY: u64 = 6_000 * MS;
/// Faults have ended after this time more. It is longer than memory of unanswered transfers is kept.
const LONGEST_FAULT: u64 = 8_000 * MS;
/// For so long a NIC may hold what is on its way. Nobody can do anything about what is held for longer than memory is kept.
const LONGEST_HOLD: u64 = LIMITS.timeout;
/// Then each node sends a frame to each other one.
const CALM: u64 = BUSY + LONGEST_FAULT + SETTLE;
/// Everything has ended after this.
const END: u64 = CALM + 2 * (LIMITS.timeout + LIMITS.keep) + 10_000 * MS;
/// By so much what processors take for the time may be late.
const LATE: u64 = 5 * MS;
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
    /// Frames that had to arrive.
    pub healthy: u64,
    /// Of these, with an end that had a fault before.
    pub recovered: u64,
    /// Steps of the simulation.
    pub steps: u64,
    /// Faults.
    pub faults: u64,
    /// Tables that were full.
    pub full: Full,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The poll function for messages runs.
    Poll(usize),
    /// The one for notifications.
    Notify(usize),
    Timer(usize),
    /// The base driver looks for what no interrupt told of.
    Watch(usize),
    Submit(usize),
    /// One to the other.
    Send(usize, usize),
    Fault(usize),
    Heal(usize),
    Forge(usize, usize),
    /// A hostile node announces to another one what can be fetched.
    Crowd(usize, usize),
    /// It says that it has dropped all that was announced to it.
    Deny(usize, usize),
    /// The NIC of a hostile node holds all answers back, or no longer.
    Withhold(usize, bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The cable loses all it carries.
    Cable(usize),
    Freeze(usize),
    PowerOff(usize),
    Restart(usize),
    /// Off and on again, and nothing is remembered.
    Reboot(usize),
    Slow(usize),
    /// No poll function runs.
    Stuck(usize),
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
            | Self::Reboot(n)
            | Self::Slow(n)
            | Self::Stuck(n)
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
    /// It has to arrive.
    demanded: bool,
}

struct Announced {
    id: u64,
    at: u64,
    /// When it was known to be fetched.
    fetched: Option<u64>,
    /// The port was closed since.
    flushed: bool,
}

/// A GET.
struct Got {
    at: u64,
    /// The port was closed since.
    flushed: bool,
}

/// A run.
pub struct Rig {
    seed: u64,
    rng: SmallRng,
    fabric: Fabric,
    nodes: Vec<Node>,
    /// Nodes that no fault hits, and that behave.
    healthy: Vec<bool>,
    /// Faults that each node has at present.
    ill: Vec<usize>,
    /// When it had the last one.
    healed: Vec<u64>,
    /// Nodes whose poll functions don't run.
    stuck: Vec<bool>,
    /// From a node to another: nothing is demanded of such frames, as somebody speaks in the name of the first.
    forged: Vec<Vec<bool>>,
    /// Until when what they deliver may be wrong, as the first has forgotten what it has announced.
    forgotten: Vec<u64>,
    /// Nodes that send what no protocol allows; for their frames nothing holds.
    hostile: Vec<bool>,
    /// Mean time between polls, in ns.
    pace: Vec<u64>,
    /// When each node polls next, for messages and for notifications.
    poll_at: [Vec<u64>; 2],
    /// Its interrupt for messages is masked.
    masked: Vec<bool>,
    /// Messages that each node's NIC had delivered at times since, of which some were not read.
    unread: Vec<VecDeque<(u64, u64)>>,
    /// When its timer is known to go off.
    timer_at: Vec<Option<u64>>,
    /// What each NIC had delivered when its node was woken last.
    heard: [Vec<u64>; 2],
    faults: Vec<(Fault, u64)>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    frames: Vec<Frame>,
    /// By node and address.
    announced: BTreeMap<(usize, u64), Announced>,
    /// Memory that GETs write to.
    gets: BTreeMap<(usize, u64), Got>,
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
        // Most nodes against one.
        let siege = rng.random_bool(0.1);
        let count = match siege {
            true => 5,
            false => rng.random_range(2..=5usize),
        };
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
            ill: vec![0; count],
            healed: vec![0; count],
            stuck: vec![false; count],
            forged: vec![vec![false; count]; count],
            forgotten: vec![0; count],
            pace: Vec::new(),
            poll_at: [vec![0; count], vec![0; count]],
            masked: vec![false; count],
            unread: vec![VecDeque::new(); count],
            timer_at: vec![None; count],
            heard: [vec![0; count], vec![0; count]],
            faults: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            frames: Vec::new(),
            announced: BTreeMap::new(),
            gets: BTreeMap::new(),
            summary: Summary::default(),
            trace: trace.then(Vec::new),
        };
        rig.set_up(siege)?;
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

    fn set_up(&mut self, siege: bool) -> Result<()> {
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
            self.wake(node, 0, 1);
            self.at(0, Event::Watch(node));
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
        if siege {
            self.siege(&bursts);
        } else if self.rng.random_bool(0.4) {
            let node = self.rng.random_range(0..count);
            self.hostility(node, &bursts);
        } else if self.rng.random_bool(0.15) {
            self.blackout();
        }
        let ends = self.cable_ends();
        for _ in 0..self.rng.random_range(0..=3) {
            let node = self.rng.random_range(0..count);
            let fault = match self.rng.random_range(0..11) {
                0 => Fault::Cable(self.rng.random_range(0..ends.len())),
                1 => Fault::Freeze(node),
                2 => Fault::PowerOff(node),
                3 => Fault::Restart(node),
                4 => Fault::Slow(node),
                5 => Fault::NoMemory(node),
                6 => Fault::LoseMessages(node),
                7 => Fault::LoseNotifications(node),
                8 => Fault::Stuck(node),
                9 => Fault::Reboot(node),
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
            let longest = match fault {
                Fault::Freeze(_) => longest.min(LONGEST_HOLD),
                _ => longest,
            };
            let shortest = match fault {
                // Long enough that nothing is in flight to the memory of before the reboot.
                Fault::Reboot(_) => 100 * MS,
                _ => 1,
            };
            let end = at + self.rng.random_range(1..longest).max(shortest);
            self.at(at, Event::Fault(self.faults.len()));
            self.faults.push((fault, end));
        }
        self.summary.faults = self.faults.len() as u64;
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                let at = CALM + self.rng.random_range(0..200 * MS);
                self.at(at, Event::Send(from, to));
            }
        }
        // Soon after a fault, too.
        for (fault, end) in self.faults.clone() {
            for victim in fault.victims(&ends) {
                let other = (victim + self.rng.random_range(1..count)) % count;
                let at = end + SETTLE + self.rng.random_range(1..500 * MS);
                self.at(at, Event::Send(victim, other));
                self.at(at, Event::Send(other, victim));
            }
        }
        Ok(())
    }

    /// All nodes but two stand still, and one of those has frames for all others.
    fn blackout(&mut self) {
        let count = self.nodes.len();
        let (node, at) = (
            self.rng.random_range(0..count),
            self.rng.random_range(0..BUSY),
        );
        let alive = (node + 1) % count;
        for other in (0..count).filter(|n| ![node, alive].contains(n)) {
            self.healthy[other] = false;
            let end = at + self.rng.random_range(LIMITS.timeout..LONGEST_FAULT);
            self.at(at, Event::Fault(self.faults.len()));
            self.faults.push((Fault::Stuck(other), end));
        }
        for _ in 0..150 {
            let later = self.rng.random_range(MS..1_500 * MS);
            self.at(at + later, Event::Submit(node));
        }
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
            Ok(()) => {
                let all = self.nodes.iter().map(Node::full);
                self.summary.full = all.fold(Full::default(), Full::or);
                Ok(self.summary)
            }
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
            // It was put off, or came earlier.
            match event {
                Event::Poll(n) if at != self.poll_at[0][n] => continue,
                Event::Notify(n) if at != self.poll_at[1][n] => continue,
                _ => {}
            }
            self.summary.steps += 1;
            self.step(event)?;
            self.listen();
            for node in 0..self.nodes.len() {
                self.collect(node)?;
                self.nodes[node].check().map_err(anyhow::Error::msg)?;
                self.set_timer(node);
            }
            if self.summary.steps % 16 == 0 {
                self.check_bound()?;
            }
        }
        self.check_end()
    }

    /// Nodes whose NIC delivered something poll soon, as after an interrupt.
    fn listen(&mut self) {
        for n in 0..self.nodes.len() {
            let c = self.fabric.world.chip_counters(n);
            for (unit, delivered) in [c.velo.received, c.rma.notifications]
                .into_iter()
                .enumerate()
            {
                if delivered == self.heard[unit][n] {
                    continue;
                }
                self.heard[unit][n] = delivered;
                if unit == 0 {
                    self.unread[n].push_back((delivered, self.fabric.now()));
                }
                if unit == 1 || !self.masked[n] {
                    self.wake(n, unit, self.pace[n]);
                }
            }
        }
    }

    /// A poll function of `node` runs within `time`, if it doesn't anyway.
    fn wake(&mut self, node: usize, unit: usize, time: u64) {
        let now = self.fabric.now();
        let at = now + self.rng.random_range(1..=time);
        let planned = self.poll_at[unit][node];
        if self.ends() || (planned > now && planned <= at) {
            return;
        }
        self.poll_at[unit][node] = at;
        self.at(at, [Event::Poll(node), Event::Notify(node)][unit].clone());
    }

    /// The timer of a node was perhaps set.
    fn set_timer(&mut self, node: usize) {
        let timer = self.nodes[node].timer();
        if timer != self.timer_at[node] {
            self.timer_at[node] = timer;
            if let Some(at) = timer.filter(|at| *at < END) {
                self.at(at.max(self.fabric.now()), Event::Timer(node));
            }
        }
    }

    fn finished(&self) -> bool {
        self.fabric.now() > CALM + BOUND && self.nodes.iter().all(Node::is_idle)
    }

    /// Nothing has to happen any more.
    fn ends(&self) -> bool {
        self.fabric.now() >= END || self.finished()
    }

    fn step(&mut self, event: Event) -> Result<()> {
        let now = self.fabric.now();
        match event {
            Event::Poll(n) if !self.stuck[n] => {
                let budget = self.rng.random_range(1..16);
                // The processor may have looked at the clock before the last step of another one.
                let stale = now.saturating_sub(self.rng.random_range(0..LATE));
                let again = self.nodes[n].poll(&mut self.fabric, stale, budget)?;
                self.masked[n] = again != Again::Interrupt;
                self.check_unread(n)?;
                if again == Again::Soon {
                    self.wake(n, 0, self.pace[n]);
                }
            }
            Event::Notify(n) if !self.stuck[n] => {
                let budget = self.rng.random_range(1..16);
                let (again, other) = self.nodes[n].poll_notifications(&mut self.fabric, budget)?;
                if again == Again::Soon {
                    self.wake(n, 1, self.pace[n]);
                }
                if other {
                    self.wake(n, 0, self.pace[n]);
                }
            }
            Event::Poll(_) | Event::Notify(_) => {}
            Event::Timer(n) => {
                if self.nodes[n].ring(now) {
                    self.timer_at[n] = None;
                    self.wake(n, 0, self.pace[n]);
                }
            }
            Event::Watch(n) => {
                self.nodes[n].release(now);
                if !self.masked[n] && self.nodes[n].overlooked(&mut self.fabric) {
                    self.wake(n, 0, self.pace[n]);
                    self.wake(n, 1, self.pace[n]);
                }
                let pause = if self.nodes[n].is_idle() { 200 } else { 50 };
                if !self.ends() {
                    self.at(now + pause * MS, Event::Watch(n));
                }
            }
            Event::Submit(n) => {
                let count = self.nodes.len();
                let to = (n + self.rng.random_range(1..count)) % count;
                self.submit(n, to)?;
            }
            Event::Send(from, to) => self.submit(from, to)?,
            Event::Fault(i) => {
                let (fault, end) = self.faults[i];
                self.say(|| format!("{fault:?} until {:.3} ms", end as f64 / MS as f64));
                self.fall_ill(fault);
                self.begin(fault)?;
                self.at(end.max(now + 1), Event::Heal(i));
            }
            Event::Heal(i) => {
                let (fault, _) = self.faults[i];
                self.say(|| format!("{fault:?} ends"));
                self.end(fault)?;
                for victim in fault.victims(&self.cable_ends()) {
                    self.ill[victim] -= 1;
                    self.healed[victim] = now;
                }
            }
            Event::Forge(n, to) => self.forge(n, to)?,
            Event::Crowd(n, to) => self.announce(n, to)?,
            Event::Deny(n, to) => self.deny(n, to)?,
            Event::Withhold(n, hold) => {
                self.say(|| format!("node {n} answers: {}", !hold));
                self.fabric.world.set_frozen(n, hold);
            }
        }
        Ok(())
    }

    /// Of the frames of the victims that are under way nothing is demanded any more.
    fn fall_ill(&mut self, fault: Fault) {
        let victims = fault.victims(&self.cable_ends());
        for victim in &victims {
            self.ill[*victim] += 1;
        }
        for frame in &mut self.frames {
            let open = matches!(frame.fate, Fate::Queued | Fate::Announced);
            if open && (victims.contains(&frame.from) || victims.contains(&frame.to)) {
                frame.demanded = false;
            }
        }
    }

    fn submit(&mut self, from: usize, to: usize) -> Result<()> {
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
        self.check_get(from, block.address())?;
        block.fill(&pattern(id, len as usize))?;
        let demanded = self.is_demanded(from, to);
        self.frames.push(Frame {
            from,
            to,
            len,
            at: self.fabric.now(),
            fate: Fate::Queued,
            demanded,
        });
        self.summary.frames += 1;
        self.summary.healthy += u64::from(demanded);
        let pristine = self.healthy[from] && self.healthy[to];
        self.summary.recovered += u64::from(demanded && !pristine);
        self.say(|| format!("node {from}: frame {id}, {len} bytes to node {to}"));
        let frame = Outgoing { id, to, block, len };
        self.nodes[from].submit(&mut self.fabric, frame);
        Ok(())
    }

    fn begin(&mut self, fault: Fault) -> Result<()> {
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
                self.down(n);
            }
            Fault::Restart(n) => self.down(n),
            Fault::Reboot(n) => {
                self.fabric.world.set_power(n, false);
                self.nodes[n].forget(&mut self.fabric)?;
                self.forgotten[n] = u64::MAX;
                self.announced.retain(|(node, _), _| *node != n);
                self.gets.retain(|(node, _), _| *node != n);
            }
            Fault::Stuck(n) => self.stuck[n] = true,
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
        Ok(())
    }

    /// The port of a node is closed.
    fn down(&mut self, node: usize) {
        self.nodes[node].down(&mut self.fabric);
        for ((n, _), a) in &mut self.announced {
            a.flushed |= *n == node;
        }
        for ((n, _), got) in &mut self.gets {
            got.flushed |= *n == node;
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
            Fault::PowerOff(n) | Fault::Restart(n) | Fault::Reboot(n) => {
                if let Fault::Reboot(_) = fault {
                    self.forgotten[n] = self.fabric.now() + LIMITS.timeout + LIMITS.keep;
                }
                if !self.fabric.world.is_on(n) {
                    self.fabric.world.set_power(n, true);
                    let now = self.fabric.now();
                    self.fabric.advance(now)?;
                    self.fabric.boot(n)?;
                    // What it had before, it has no more.
                    self.set_faults(n, Faults::default());
                }
                if !self.nodes[n].is_up() {
                    self.nodes[n].up(&mut self.fabric)?;
                    self.masked[n] = false;
                    self.timer_at[n] = None;
                    self.wake(n, 0, self.pace[n]);
                }
            }
            Fault::Stuck(n) => {
                self.stuck[n] = false;
                self.wake(n, 0, self.pace[n]);
                self.wake(n, 1, self.pace[n]);
            }
            Fault::Slow(n) => self.pace[n] /= 1000,
            Fault::NoMemory(n) => self.nodes[n].short_of_memory = false,
            Fault::LoseMessages(n) | Fault::LoseNotifications(n) | Fault::RetryEvery(n) => {
                self.set_faults(n, Faults::default());
            }
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
