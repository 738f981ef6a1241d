//! Simulation of network interfaces of Lustre (`protocol::lnd`) on the nodes of an emulated fabric.
//! Memory is behind the address translation units. There are seeded latency, loss, reordered and
//! repeated messages, power cuts, restarts, and a node that forges messages.
//!
//! LNet of each node sends letters (LNet messages) to other nodes and to its own. It treats
//! received letters in every permitted manner: it accepts all bytes, a part or none, at once or
//! much later, or it rejects the letter. Invariants:
//!
//! * The owner of each letter gets one outcome, by its deadline plus the duration of a revocation,
//!   and the outcome is true. LNet of the peer has seen a delivered letter once and an undelivered
//!   letter never.
//! * LNet gets exactly the bytes sent. Data that it accepts are fetched, or their transfer fails,
//!   in time.
//! * Between nodes without faults each letter is delivered, whatever other nodes do.
//! * Returned memory is neither read (its contents would show in other letters) nor written (it is
//!   overwritten, and checked when it is used again).
//! * Every letter ends, and all memory and addresses are returned.

mod fault;
mod forge;
mod held;
mod judge;
mod memory;
mod node;
mod types;

use crate::fabric::Fabric;
use crate::port::Port;
use anyhow::Result;
use extoll_emulator::network::LinkKnobs;
use fault::Fault;
use node::{Node, Report, Wish};
use protocol::lnd::{Capacity, Limits, Outcome};
use protocol::transfer;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub use types::{Mutation, Plan, Summary, Violation};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Limits; times in ns.
const LIMITS: Limits = Limits {
    ask: 50 * MS,
    ask_most: 400 * MS,
    give_up: 2_500 * MS,
    dead: 1_000 * MS,
    busy: 20 * MS,
    fresh: 100 * MS,
    hold: 500 * MS,
    port: 300 * MS,
    get: 200 * MS,
    tries: 8,
    receive: 4_000 * MS,
};
/// Maximum time in ns for which a network loses or holds packets.
const LONGEST: u64 = 400 * MS;
/// Maximum time in ns for which a port holds a message.
const KEPT: u64 = LIMITS.port - held::GIVEN_UP - 10 * MS;
/// Minimum duration of a restart in ns: longer than a GET that an earlier message has caused.
const SHORTEST_RESTART: u64 = 2 * (LIMITS.fresh + LIMITS.hold);
const TRANSFERS: transfer::Capacity = transfer::Capacity {
    transfers: 64,
    fragments: 256,
    commands: 60,
};
const TRANSFER_LIMITS: transfer::Limits = transfer::Limits {
    window: 12,
    window_bytes: 60_000,
    command: 8_000,
    // Small enough that two silent nodes leave slots for others.
    node: 20,
    node_fragments: 100,
    absorb: 1_500 * MS,
};
/// Simulated time in ns before which random letters and faults start.
const BUSY: u64 = 3_000 * MS;
/// Simulated time in ns by which all letters have ended.
const END: u64 = BUSY + 20_000 * MS;
/// Maximum time in ns between polls of an idle node.
const IDLE: u64 = 15 * MS;
/// Maximum time in ns between polls of a busy node.
const SLOWEST: u64 = 4 * MS;
/// Minimum time-out in ns of a letter between healthy nodes.
const AMPLE: u64 = 4_000 * MS;

const _: () = assert!(LIMITS.hold > LONGEST);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Poll(usize),
    Send(usize),
    Forge(usize),
    Fault(usize),
    Heal(usize),
}

/// An LNet message.
#[derive(Debug)]
struct Letter {
    from: usize,
    to: usize,
    data: Vec<u8>,
    there: bool,
    deadline: u64,
    demanded: bool,
    outcome: Option<Outcome>,
    released: bool,
    /// Decision of the peer's LNet, and the data that it got.
    wish: Option<Wish>,
    got: Option<Option<Vec<u8>>>,
    /// True if one of the two nodes was restarted before the letter ended.
    excused: bool,
}

/// A run.
pub struct Rig {
    seed: u64,
    rng: SmallRng,
    fabric: Fabric,
    nodes: Vec<Node>,
    healthy: Vec<bool>,
    /// Node that may forge messages.
    hostile: Option<usize>,
    large: bool,
    plan: Plan,
    pace: Vec<u64>,
    waits: Vec<u64>,
    faults: Vec<(Fault, u64)>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    letters: Vec<Letter>,
    summary: Summary,
    trace: Option<Vec<String>>,
}

/// Returns the payload of a letter.
fn payload(id: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    SmallRng::seed_from_u64(0x77 ^ id).fill(&mut data[..]);
    data
}

impl Rig {
    /// Creates a run of this seed, with an injected bug if requested.
    ///
    /// # Errors
    ///
    /// Fails if the emulator rejects an operation.
    pub fn new(seed: u64, mutation: Option<Mutation>, trace: bool) -> Result<Self> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let count = rng.random_range(2..=4usize);
        let fabric = Fabric::new(count, seed)?;
        let large = rng.random_bool(0.7);
        // The nodes may have different capacities.
        let alike = rng.random_bool(0.5);
        let first = [1, 4, 8][rng.random_range(0..3)];
        let capacities: Vec<Capacity> = (0..count)
            .map(|_| Capacity {
                peers: match large {
                    true => 6,
                    // Each node is one of its own peers.
                    false => rng.random_range(1..=count as u16),
                },
                sends: 32,
                receives: if large { 64 } else { 5 },
                slots: match alike {
                    true => first,
                    false => [1, 4, 8][rng.random_range(0..3)],
                },
                fetches: TRANSFERS.transfers as u32 / 4,
            })
            .collect();
        let plan = Plan {
            revoke: [10 * US, 5 * MS, 50 * MS][rng.random_range(0..3)],
            patience: [50 * MS, 3_000 * MS][rng.random_range(0..2)],
            keeps: rng.random_bool(0.5),
            give_up: LIMITS.give_up,
            numbers: [0, u16::MAX - 3][rng.random_range(0..2)],
            command: [8_000, 2_000, 600][rng.random_range(0..3)],
        };
        // Some nodes give up a peer before a slow link has retransmitted damaged packets.
        let rash: Vec<bool> = (0..count).map(|_| rng.random_bool(0.25)).collect();
        let nodes = (0..count)
            .map(|i| {
                let give_up = if rash[i] { 120 * MS } else { LIMITS.give_up };
                let plan = Plan { give_up, ..plan };
                Node::new(&fabric, i, capacities[i], rng.random(), plan, mutation)
            })
            .collect::<Result<Vec<_>>>()?;
        let hostile = rng.random_bool(0.25).then(|| rng.random_range(0..count));
        let mut rig = Self {
            seed,
            rng,
            fabric,
            nodes,
            healthy: rash.iter().map(|rash| !rash).collect(),
            hostile,
            large,
            plan,
            pace: Vec::new(),
            waits: vec![IDLE; count],
            faults: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            letters: Vec::new(),
            summary: Summary::default(),
            trace: trace.then(Vec::new),
        };
        rig.set_up()?;
        Ok(rig)
    }

    fn record_trace(&mut self, what: impl FnOnce() -> String) {
        let at = self.fabric.now();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:12.3} us  {}", at as f64 / US as f64, what()));
        }
    }

    /// Returns the events so far, if tracing is enabled.
    pub fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, event)));
    }

    fn set_up(&mut self) -> Result<()> {
        let count = self.nodes.len();
        let slowest = [0, 10 * US, 100 * US, 3 * MS][self.rng.random_range(0..4)];
        for cable in 0..self.fabric.cables() {
            let damaged = if self.rng.random_bool(0.3) { 0.1 } else { 0.0 };
            let knobs = LinkKnobs {
                jitter_ns: 0,
                latency_ns: self.rng.random_range(0..=slowest),
                bytes_per_second: 0,
                corrupt_rate: damaged,
                loss_rate: damaged,
            };
            self.fabric.knobs(cable, knobs);
        }
        for node in 0..count {
            self.pace
                .push([20 * US, 200 * US, 2 * MS][self.rng.random_range(0..3)]);
            self.nodes[node].up(&mut self.fabric)?;
            // Some ports reorder messages, and repeat some.
            if self.rng.random_bool(0.3) {
                let held = &mut self.nodes[node].held;
                held.likely = 0.05;
                held.longest = [50 * US, 20 * MS][self.rng.random_range(0..2)];
                held.repeat_every = self.rng.random_bool(0.5).then_some(13);
            }
            self.at(0, Event::Poll(node));
        }
        for _ in 0..self.rng.random_range(1..=6) {
            let node = self.rng.random_range(0..count);
            let at = self.rng.random_range(0..BUSY);
            let spread = [MS, 300 * MS][self.rng.random_range(0..2)];
            for _ in 0..self.rng.random_range(1..=20) {
                let later = self.rng.random_range(0..spread);
                self.at(at + later, Event::Send(node));
            }
        }
        // Bursts from all nodes.
        for _ in 0..self.rng.random_range(0..=2) {
            let at = self.rng.random_range(0..BUSY);
            for node in 0..count {
                for _ in 0..self.rng.random_range(1..=12) {
                    let later = self.rng.random_range(0..6 * MS);
                    self.at(at + later, Event::Send(node));
                }
            }
        }
        for _ in 0..self.rng.random_range(0..=6) {
            self.add_fault();
        }
        if let Some(node) = self.hostile {
            self.healthy[node] = false;
            for _ in 0..self.rng.random_range(1..400) {
                let at = self.rng.random_range(0..BUSY + 1_000 * MS);
                self.at(at, Event::Forge(node));
            }
        }
        self.summary.faults = self.faults.len() as u64;
        // Letters after all faults.
        for node in 0..count {
            self.at(BUSY + 2_500 * MS, Event::Send(node));
        }
        Ok(())
    }

    /// Runs to the end.
    ///
    /// # Errors
    ///
    /// Returns the violated invariant.
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

    fn steps(&mut self) -> Result<()> {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.fabric.advance(at)?;
            self.step(event)?;
        }
        self.check_end()
    }

    fn step(&mut self, event: Event) -> Result<()> {
        let now = self.fabric.now();
        match event {
            Event::Poll(n) => {
                let count = self.nodes.len() as u16;
                self.nodes[n].poll(&mut self.fabric, count)?;
                self.collect(n)?;
                self.check_deadlines(n)?;
                // Models interrupts: messages stay in the mailbox for a while.
                let busy = self.nodes[n].was_busy();
                self.waits[n] = match self.nodes[n].is_idle() {
                    true => IDLE,
                    false if busy => self.pace[n],
                    false => (2 * self.waits[n]).min(SLOWEST),
                };
                let longest = self.waits[n];
                let next = now + self.rng.random_range(1..=longest);
                if next < END {
                    self.at(next, event);
                }
            }
            Event::Send(n) => self.send(n)?,
            Event::Forge(n) => self.forge(n),
            Event::Fault(i) => {
                let (fault, end) = self.faults[i];
                self.record_trace(|| format!("{fault:?}"));
                self.begin(fault)?;
                self.at(end.max(now + 1), Event::Heal(i));
            }
            Event::Heal(i) => {
                let (fault, _) = self.faults[i];
                self.record_trace(|| format!("{fault:?} ends"));
                self.end(fault)?;
            }
        }
        Ok(())
    }

    /// LNet of a node sends a letter, possibly to itself.
    fn send(&mut self, from: usize) -> Result<()> {
        let now = self.fabric.now();
        let count = self.nodes.len();
        let to = self.rng.random_range(0..count);
        let id = self.letters.len() as u64;
        let there = self.rng.random_bool(0.6);
        let most = self.rng.random_range(0..3);
        let len = match there {
            true => self.rng.random_range(1..=[600, 12_000, 12_000][most]),
            false => self.rng.random_range(0..=[40, 300, 4096][most]),
        };
        let data = payload(id, len);
        // Messages held by LNet occupy slots unless LNet copies them, so that others may wait too
        // long.
        let prompt = self.large && (self.plan.keeps || self.plan.patience < AMPLE / 20);
        let demanded = prompt && self.healthy[from] && self.healthy[to];
        let wait = match demanded {
            true => self.rng.random_range(AMPLE..2 * AMPLE),
            // The time-out is often shorter than the delivery takes.
            false if self.rng.random_bool(0.2) => self.rng.random_range(MS..12 * MS),
            false if self.rng.random_bool(0.3) => self.rng.random_range(MS..60 * MS),
            false => self.rng.random_range(20 * MS..AMPLE),
        };
        let deadline = now + wait;
        let node = Port::node_id(to);
        let taken =
            self.nodes[from].submit(&self.fabric, node, id, data.clone(), there, deadline)?;
        self.record_trace(|| {
            format!("{id}: {from} to {to}, {len} bytes, there: {there}, {wait} ns, taken: {taken}")
        });
        self.summary.letters += 1;
        self.summary.refused += u64::from(!taken);
        self.letters.push(Letter {
            from,
            to,
            data,
            there,
            deadline,
            demanded: demanded && taken,
            outcome: None,
            released: false,
            wish: None,
            got: None,
            // The owner gets no outcome.
            excused: !taken,
        });
        self.summary.demanded += u64::from(demanded && taken);
        Ok(())
    }
}

/// Runs one seed.
///
/// # Errors
///
/// Returns the violated invariant, or an error of the set-up.
pub fn run(seed: u64, mutation: Option<Mutation>) -> Result<Summary, Violation> {
    let failed = |e: anyhow::Error| Violation {
        seed,
        at: 0,
        what: format!("can't be set up: {e:#}"),
    };
    Rig::new(seed, mutation, false).map_err(failed)?.run()
}
