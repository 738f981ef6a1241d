//! PCIe devices lent to other nodes (`protocol::pci`): two to five nodes, one or two of which lend
//! devices, over a network that loses, delays, repeats and swaps messages, with crashes, power cuts,
//! reloads, cut links, administrators that take devices back, other users of interval numbers, and
//! somebody who forges, and a borrower that does not wait for answers.
//!
//! Messages go as words and are parsed again. Of the NICs there are the tables of intervals, which is
//! all that leases are about: accesses of borrowers and DMA of devices go through them and take a
//! while. What must hold:
//! * No window leads to anything but what is open for its own lease: neither those of borrowers to
//!   BARs, nor those of devices that master the bus to memory. That is looked at when a table
//!   changes, and for each access when it arrives.
//! * A register is written at most once for each write, and only within the lease.
//! * No function has its pin enabled, or MSI with an address outside of its borrower's window.
//! * Between two leases a device is reset.
//! * Every request ends by its deadline, and nothing spins.
//! * When everything is quiet both ends agree about all leases, devices can be borrowed, and all
//!   interval numbers are free but those of leases, and of nodes that never came back.

mod device;
mod drive;
mod fault;
mod forge;
mod judge;
mod net;
mod node;
mod types;
mod user;

use anyhow::Result;
use device::Function;
use fault::Fault;
use net::Net;
use node::{Job, Node};
use protocol::pci::{Handle, Limits};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

pub use types::{Mutation, Summary, Violation};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// No message and no access is on its way for longer.
const LONGEST: u64 = 60 * MS;
/// A driver takes no longer for what may sleep, but for what is slow.
const WORK_MOST: u64 = 40 * MS;
/// Resets of some nodes' devices take as long, and so do their drivers when a device is gone.
/// Nothing that others wait for comes behind that.
const SLOW_MOST: u64 = 2_500 * MS;
/// Nor to look at its clock.
const LAG: u64 = 5 * MS;
/// Time-out of a lease; in runs in which nodes differ some lives have the longest one.
const TIMEOUT_MS: u32 = 400;
const LONGEST_MS: u32 = 1_000;
/// From when a lease is over to when nothing goes through its windows any more.
const END: u64 = 4 * WORK_MOST + 4 * LAG;
/// Times in ns.
const LIMITS: Limits = Limits {
    ms: MS,
    timeout_ms: TIMEOUT_MS,
    longest_ms: TIMEOUT_MS,
    ask: 30 * MS,
    ask_most: 400 * MS,
    hold: LONGEST + 10 * MS,
    quarantine: 0,
    access: 100 * MS,
    access_again: 15 * MS,
    give_up: 2_000 * MS,
    per_node: 3,
    dma_most: 1 << 20,
    reset_pause: 100 * MS,
}
.with_quarantine(END);
/// Faults begin before this.
const BUSY: u64 = 5_000 * MS;
/// Faults are over by then, and what they cause.
const CALM: u64 = BUSY + 6_000 * MS;
/// Devices are borrowed one after the other from then on, which must go well.
const EACH: u64 = 2_000 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A message arrives: its number in the network.
    Message(u64),
    /// An access arrives.
    Packet(u64),
    /// A node's driver looks at its clock; of this life.
    Poll(usize, u32),
    /// It has something to do that takes a while.
    Job(u64),
    /// Somebody wants to borrow something.
    Want(usize),
    /// Somebody uses what he has.
    Use(u64),
    /// A device masters the bus.
    Dma(usize),
    /// An access to a register is looked after.
    Look(u64),
    Fault(usize),
    Heal(usize),
    Forge,
    /// A lease that must come about: which one.
    Demand(usize),
    Demanded(usize),
    /// Everything is given back.
    GiveBack,
}

/// A lease that somebody has asked for.
#[derive(Debug, Clone, Copy)]
struct Request {
    node: usize,
    life: u32,
    handle: Handle,
    lender: usize,
    function: usize,
    until: u64,
    /// It is up, or over.
    settled: bool,
    up: bool,
    demanded: bool,
    /// The number of its DMA window.
    slot: u8,
    /// Where its device stores to cause interrupts.
    interrupts: u64,
}

/// A run.
pub struct Rig {
    seed: u64,
    rng: SmallRng,
    mutation: Option<Mutation>,
    now: u64,
    net: Net,
    nodes: Vec<Node>,
    functions: Vec<Function>,
    faults: Vec<(Fault, u64)>,
    jobs: HashMap<u64, (usize, u32, Job)>,
    requests: BTreeMap<u64, Request>,
    looks: HashMap<u64, (u64, u32, u64)>,
    /// Values of writes, and how often they were made.
    writes: HashMap<u32, u32>,
    next_write: u32,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    polls: u64,
    /// Leases are kept to the end.
    keep: bool,
    forger: bool,
    /// A node that does not keep to the rules with its own leases, and what it has said last.
    liar: Option<usize>,
    /// Nodes have different time-outs, and some are slow.
    mixed: bool,
    lies: u32,
    /// Names of leases that a forger may have heard of.
    heard: Vec<wire::pci::LeaseId>,
    summary: Summary,
    trace: Option<Vec<String>>,
}

impl Rig {
    /// A run of this seed, with an error in the glue if asked for.
    ///
    /// # Errors
    ///
    /// It can't be set up.
    pub fn new(seed: u64, mutation: Option<Mutation>, trace: bool) -> Result<Self> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let count = rng.random_range(2..=5usize);
        let mixed = rng.random_bool(0.5);
        // Of two lenders one does not know what the other one has.
        let lenders = rng.random_range(1 + usize::from(mixed)..=2);
        let net = Net::new(&mut rng, count);
        let nodes = (0..count).map(|_| Node::new(mixed, &mut rng)).collect();
        let functions = (0..rng.random_range(lenders..=3))
            .map(|i| Function::new(i % lenders, &mut rng))
            .collect();
        let (keep, forger) = (rng.random_bool(0.5), rng.random_bool(0.25));
        let liar = rng.random_bool(0.3).then(|| rng.random_range(0..count));
        let mut rig = Self {
            seed,
            rng,
            mutation,
            now: 0,
            net,
            nodes,
            functions,
            faults: Vec::new(),
            jobs: HashMap::new(),
            requests: BTreeMap::new(),
            looks: HashMap::new(),
            writes: HashMap::new(),
            next_write: 1,
            events: BinaryHeap::new(),
            number: 0,
            polls: 0,
            keep,
            forger,
            liar,
            mixed,
            lies: 1 << 20,
            heard: Vec::new(),
            summary: Summary::default(),
            trace: trace.then(Vec::new),
        };
        rig.set_up()?;
        Ok(rig)
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        let at = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:12.3} us  {}", at as f64 / US as f64, what()));
        }
    }

    /// What happened so far, if it was to be kept.
    pub fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    fn name(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn at(&mut self, time: u64, event: Event) {
        let number = self.name();
        self.events.push(Reverse((time, number, event)));
    }

    fn within(&mut self, least: u64, most: u64) -> u64 {
        self.now + self.rng.random_range(least..=most)
    }

    fn set_up(&mut self) -> Result<()> {
        let count = self.nodes.len();
        for node in 0..count {
            self.start(node)?;
            for _ in 0..self.rng.random_range(0..=8) {
                let at = self.rng.random_range(0..BUSY);
                self.at(at, Event::Want(node));
            }
        }
        for device in 0..self.functions.len() {
            self.at(0, Event::Dma(device));
        }
        for _ in 0..self.rng.random_range(0..=7) {
            self.add_fault();
        }
        if self.mixed {
            self.add_reloads();
        }
        self.summary.faults = self.faults.len() as u64;
        if self.forger {
            for _ in 0..self.rng.random_range(1..300) {
                let at = self.rng.random_range(0..CALM);
                self.at(at, Event::Forge);
            }
        }
        self.at(BUSY + 1_000 * MS, Event::GiveBack);
        let keep = self.keep;
        for i in 0..self.functions.len() {
            let at = CALM + i as u64 * EACH;
            self.at(at, Event::Demand(i));
            if !keep {
                self.at(at + EACH - 200 * MS, Event::Demanded(i));
            }
        }
        Ok(())
    }

    fn end(&self) -> u64 {
        CALM + self.functions.len() as u64 * EACH + 3_000 * MS
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
                at: self.now,
                what: format!("{e:#}"),
            }),
        }
    }

    fn steps(&mut self) -> Result<()> {
        let end = self.end();
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > end {
                break;
            }
            self.now = at;
            self.step(event)?;
        }
        self.now = end;
        self.check_end()
    }

    fn step(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Message(i) => self.deliver(i),
            Event::Packet(i) => self.arrive(i),
            Event::Poll(node, life) => self.poll(node, life),
            Event::Job(i) => self.job(i),
            Event::Want(node) => self.want(node),
            Event::Use(i) => self.use_it(i),
            Event::Dma(device) => self.dma(device),
            Event::Look(i) => self.look(i),
            Event::Fault(i) => self.begin(i),
            Event::Heal(i) => self.heal(i),
            Event::Forge => self.forge(),
            Event::Demand(device) => self.demand(device),
            Event::Demanded(device) => self.demanded(device),
            Event::GiveBack => self.give_all_back(),
        }
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
