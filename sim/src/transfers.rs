//! Simulation of `protocol::transfer` on nodes of the emulated fabric: fragment lists with random
//! boundaries, under faults drawn from a seed.
//!
//! Invariants:
//!
//! * Each transfer has one outcome, by its deadline, and becomes quiet once, after the outcome.
//! * A completed GET has the bytes of the peer; a confirmed PUT has delivered its bytes.
//! * Memory is not accessed after its transfer became quiet. The simulation then overwrites the
//!   memory, and checks it when it is used again and at the end of the run. Memory of transfers
//!   that were ended by closing the port is held off until no late answer can arrive any more.
//! * Between nodes without faults every transfer succeeds in time, whatever other nodes do.
//! * Tables never exceed their limits, and all are empty at the end.

mod fault;
mod judge;
mod node;
mod traffic;

use crate::fabric::{Fabric, MEMORY, MEMORY_BYTES};
use crate::memory::{Block, BLOCK};
use crate::port::FREE;
use anyhow::Result;
use extoll_emulator::network::LinkKnobs;
use fault::Fault;
use node::{Node, Report};
use protocol::transfer::{Capacity, Fragment, Limits, Ticket, TransferKind};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Capacity of a node's tables; small, so that all limits are reached.
const CAPACITY: Capacity = Capacity {
    transfers: 48,
    fragments: 200,
    commands: 40,
};
/// Limits of the engine with smaller windows, and times in ns that faults outlast.
const LIMITS: Limits = Limits {
    window: 6,
    window_bytes: 6_000,
    command: 1_500,
    node: 16,
    node_fragments: 100,
    absorb: 3_000 * MS,
};
/// Number of memory blocks of a node.
const BLOCKS: usize = 128;
/// Address of the memory that peers read, behind the blocks.
const SOURCE: u64 = FREE + BLOCKS as u64 * BLOCK;
/// Size in bytes of the memory that peers read.
const SOURCE_BYTES: u64 = 0x1_0000;
/// Address of the first block that peers write to.
const SINKS: u64 = SOURCE + SOURCE_BYTES;
/// Number of blocks that each peer may write to.
const SINKS_EACH: u64 = 12;
/// Maximum time in ns for which a NIC may hold packets; shorter than the time for which late
/// answers are awaited.
const LONGEST_HOLD: u64 = 1_500 * MS;
/// Simulated time in ns before which random traffic and faults start.
const BUSY: u64 = 4_000 * MS;
/// Simulated time in ns by which all transfers have ended.
const END: u64 = BUSY + 3 * LIMITS.absorb + 4_000 * MS;
/// Time-outs of transfers in ns. Between nodes without faults they cover all of a peer's transfers
/// on a slow link.
const TIMEOUTS: [std::ops::Range<u64>; 2] = [100 * MS..1_000 * MS, 1_500 * MS..2_500 * MS];
/// Maximum delay in ns of an outcome, caused by the interval between polls of a node.
const LATE: u64 = 30 * MS;
/// Value of bytes in free memory.
const POISON: u8 = 0xdb;

const _: () = assert!(SINKS + 4 * SINKS_EACH * BLOCK <= MEMORY + MEMORY_BYTES);

/// A bug that a test injects into the driver code of the simulation or, through a limit, into the
/// state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// The state machine does not wait for late answers.
    NoAbsorb,
    /// Memory is reused when the outcome is known.
    ReuseAtOutcome,
    /// Some notifications name another node.
    OtherNode,
    /// Some notifications are not passed to the state machine.
    Deaf,
    /// A single peer may use all commands and fragments.
    NoWindow,
    /// Deadlines are not checked.
    NoTimer,
    /// A lock operation used as a fence is answered at once, before the commands that it must
    /// follow.
    HastyFence,
}

impl Mutation {
    /// All mutations.
    pub const ALL: &'static [Self] = &[
        Self::NoAbsorb,
        Self::ReuseAtOutcome,
        Self::OtherNode,
        Self::Deaf,
        Self::NoWindow,
        Self::NoTimer,
        Self::HastyFence,
    ];
}

/// A violated invariant.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Seed of the run.
    pub seed: u64,
    /// Simulated time in ns.
    pub at: u64,
    /// Description.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, at, what } = self;
        write!(f, "seed {seed}, {:.3} ms: {what}", *at as f64 / MS as f64)
    }
}

/// Statistics of runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    /// Transfers and lock operations.
    pub taken: u64,
    /// Completed transfers and lock operations.
    pub done: u64,
    /// Transfers and lock operations that had to be completed.
    pub demanded: u64,
    /// Transfers that became quiet after their outcome, when a late command was answered.
    pub settled_late: u64,
    /// Transfers that became quiet without an answer.
    pub unanswered: u64,
    /// Fences posted.
    pub fences: u64,
    /// Late commands that a fence proved to be finished.
    pub passed: u64,
    /// Transfers and lock operations that were rejected for lack of a free slot.
    pub refused: u64,
    /// Faults.
    pub faults: u64,
}

impl Summary {
    /// Returns the sum of two statistics.
    #[must_use]
    pub fn and(self, o: Self) -> Self {
        Self {
            taken: self.taken + o.taken,
            done: self.done + o.done,
            demanded: self.demanded + o.demanded,
            settled_late: self.settled_late + o.settled_late,
            unanswered: self.unanswered + o.unanswered,
            fences: self.fences + o.fences,
            passed: self.passed + o.passed,
            refused: self.refused + o.refused,
            faults: self.faults + o.faults,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Poll(usize),
    Submit(usize),
    /// Repeats a failed GET into the same memory.
    Retry(usize),
    Cancel(usize),
    Abort(usize),
    Fault(usize),
    Heal(usize),
}

/// A transfer.
struct Transfer {
    node: usize,
    peer: usize,
    ticket: Option<Ticket>,
    kind: Option<TransferKind>,
    local: Vec<Fragment>,
    remote: Vec<Fragment>,
    /// Data to be sent, or expected from the peer.
    data: Vec<u8>,
    /// Memory of the transfer on its own node.
    blocks: Vec<Rc<Block>>,
    /// Numbers of the blocks at the peer that the transfer writes to.
    sinks: Vec<u64>,
    since: u64,
    deadline: u64,
    demanded: bool,
    outcome: bool,
    quiet: bool,
}

/// A run.
pub struct Rig {
    seed: u64,
    rng: SmallRng,
    fabric: Fabric,
    nodes: Vec<Node>,
    healthy: Vec<bool>,
    pace: Vec<u64>,
    /// Faults with start and end.
    faults: Vec<(Fault, u64, u64)>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    transfers: Vec<Transfer>,
    /// Memory that is held off until a time.
    resting: Vec<(u64, Vec<Rc<Block>>)>,
    /// By peer and node: for each block that the node writes to, the time in ns at which it may be
    /// reused, and true if it may be written until then.
    sinks: Vec<Vec<Vec<(u64, bool)>>>,
    mutation: Option<Mutation>,
    summary: Summary,
    trace: Option<Vec<String>>,
}

/// Returns the address of a node's sink number `i` at each peer.
fn sink(node: usize, i: u64) -> u64 {
    SINKS + (node as u64 * SINKS_EACH + i) * BLOCK
}

fn source(node: usize) -> Vec<u8> {
    let mut data = vec![0; SOURCE_BYTES as usize];
    SmallRng::seed_from_u64(0x50 + node as u64).fill(&mut data[..]);
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
        let nodes = (0..count)
            .map(|i| Node::new(&fabric, i, BLOCKS, mutation))
            .collect::<Result<Vec<_>>>()?;
        let mut rig = Self {
            seed,
            rng,
            fabric,
            nodes,
            healthy: vec![true; count],
            pace: Vec::new(),
            faults: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            transfers: Vec::new(),
            resting: Vec::new(),
            sinks: vec![vec![vec![(0, false); SINKS_EACH as usize]; count]; count],
            mutation,
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
        let slowest = [0, 10 * US, 50 * US, 5 * MS][self.rng.random_range(0..4)];
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
            let poison = vec![POISON; (MEMORY + MEMORY_BYTES - FREE) as usize];
            self.fabric.fill(node, FREE, &poison)?;
            self.fabric.fill(node, SOURCE, &source(node))?;
            let pace = [20 * US, 200 * US, 2 * MS][self.rng.random_range(0..3)];
            self.pace.push(pace);
            self.nodes[node].up(&mut self.fabric)?;
            self.at(0, Event::Poll(node));
        }
        for _ in 0..self.rng.random_range(1..=5) {
            let node = self.rng.random_range(0..count);
            let at = self.rng.random_range(0..BUSY);
            let spread = [MS, 300 * MS][self.rng.random_range(0..2)];
            for _ in 0..self.rng.random_range(1..=40) {
                let later = self.rng.random_range(0..spread);
                self.at(at + later, Event::Submit(node));
            }
            for _ in 0..self.rng.random_range(0..=4) {
                let later = self.rng.random_range(0..400 * MS);
                self.at(at + later, Event::Cancel(node));
            }
            if self.rng.random_bool(0.2) {
                let later = self.rng.random_range(0..400 * MS);
                self.at(at + later, Event::Abort(node));
            }
        }
        for _ in 0..self.rng.random_range(0..=3) {
            self.add_fault();
        }
        self.summary.faults = self.faults.len() as u64;
        // Transfers between all nodes after all faults.
        for node in 0..count {
            for _ in 0..count {
                let at = BUSY + LONGEST_HOLD + self.rng.random_range(0..MS);
                self.at(at, Event::Submit(node));
            }
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
            Ok(()) => {
                for node in &self.nodes {
                    let c = node.counters();
                    self.summary.fences += c.fences;
                    self.summary.passed += c.passed;
                }
                Ok(self.summary)
            }
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
            for node in 0..self.nodes.len() {
                self.collect(node)?;
                self.nodes[node].check().map_err(anyhow::Error::msg)?;
            }
        }
        self.check_end()
    }

    fn step(&mut self, event: Event) -> Result<()> {
        let now = self.fabric.now();
        match event {
            Event::Poll(n) => {
                self.nodes[n].poll(&mut self.fabric)?;
                self.check_deadlines(n)?;
                self.rest()?;
                let longest = match self.nodes[n].is_idle() {
                    true => LATE / 2,
                    false => self.pace[n],
                };
                let next = now + self.rng.random_range(1..=longest);
                if next < END {
                    self.at(next, event);
                }
            }
            Event::Submit(n) => self.submit(n, None)?,
            Event::Retry(id) => self.submit(self.transfers[id].node, Some(id))?,
            Event::Cancel(n) => {
                let mine = self.transfers.iter().filter(|t| t.node == n && !t.quiet);
                let tickets: Vec<Ticket> = mine.filter_map(|t| t.ticket).collect();
                if !tickets.is_empty() {
                    let ticket = tickets[self.rng.random_range(0..tickets.len())];
                    let done = self.nodes[n].cancel(&self.fabric, ticket);
                    self.record_trace(|| format!("node {n} cancels one: {done}"));
                    self.excuse(|t| t.ticket == Some(ticket) && t.node == n);
                }
            }
            Event::Abort(n) => {
                let peer = (n + 1) % self.nodes.len();
                self.record_trace(|| format!("node {n} gives node {peer} up"));
                self.nodes[n].abort(&self.fabric, peer);
                self.excuse(|t| t.node == n && t.peer == peer);
            }
            Event::Fault(i) => {
                let (fault, _, end) = self.faults[i];
                self.record_trace(|| format!("{fault:?}"));
                self.begin(fault);
                self.at(end.max(now + 1), Event::Heal(i));
            }
            Event::Heal(i) => {
                let (fault, ..) = self.faults[i];
                self.record_trace(|| format!("{fault:?} ends"));
                self.end(fault)?;
            }
        }
        Ok(())
    }

    /// Marks transfers that need not succeed.
    fn excuse(&mut self, which: impl Fn(&Transfer) -> bool) {
        for t in self.transfers.iter_mut().filter(|t| which(t)) {
            t.demanded = false;
        }
    }

    /// Frees memory whose hold-off time has elapsed.
    fn rest(&mut self) -> Result<()> {
        let now = self.fabric.now();
        self.resting.retain(|(until, _)| *until > now);
        for peer in 0..self.nodes.len() {
            for node in 0..self.nodes.len() {
                for i in 0..SINKS_EACH {
                    let (until, dirty) = &mut self.sinks[peer][node][i as usize];
                    if *dirty && *until <= now {
                        *dirty = false;
                        self.fabric
                            .fill(peer, sink(node, i), &[POISON; BLOCK as usize])?;
                    }
                }
            }
        }
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
