//! Simulation of Device Lending (`protocol::pci`): two to five nodes, of which one or two lend
//! devices. The network loses, delays, repeats and reorders messages. There are crashes, power
//! cuts, reloads, cut links, administrators that reclaim devices, other users of interval numbers,
//! a forger, and a borrower that does not wait for answers.
//!
//! Messages are sent as words and parsed. NICs are modelled by their tables of intervals only,
//! because leases concern nothing else. Accesses of borrowers and DMA of devices pass through them
//! with a delay. Invariants:
//!
//! * Every window leads only to a target of its own lease. This applies to windows of borrowers to
//!   BARs, and to windows of bus-mastering devices to memory. It is checked whenever a table
//!   changes, and for each access on arrival.
//! * A register is written at most once per write request, and only during the lease.
//! * No function has its interrupt pin enabled, or MSI with an address outside of its borrower's
//!   window.
//! * A device is reset between two leases.
//! * Every request ends by its deadline, and the driver of no node loops endlessly.
//! * At the end of a run the lender and the borrower agree about all leases, and every device can
//!   be borrowed. All interval numbers are free, except those of leases and of nodes that never
//!   came back.

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
/// Maximum delay in ns of messages and accesses.
const LONGEST: u64 = 60 * MS;
/// Maximum duration in ns of a driver's normal work.
const WORK_MOST: u64 = 40 * MS;
/// Maximum duration in ns of slow device resets, and of drivers that lose a device. Other nodes do
/// not wait for them.
const SLOW_MOST: u64 = 2_500 * MS;
/// Maximum delay in ns of a driver's timer.
const LAG: u64 = 5 * MS;
/// Time-out of a lease in ms. In runs with mixed nodes some incarnations use the maximum time-out.
const TIMEOUT_MS: u32 = 400;
const LONGEST_MS: u32 = 1_000;
/// Maximum time in ns from the end of a lease until its windows are closed.
const END: u64 = 4 * WORK_MOST + 4 * LAG;
/// Limits; times in ns.
const LIMITS: Limits = Limits {
    ms: MS,
    timeout_ms: TIMEOUT_MS,
    longest_ms: TIMEOUT_MS,
    retry: 30 * MS,
    retry_max: 400 * MS,
    in_flight_max: LONGEST + 10 * MS,
    quarantine: 0,
    access: 100 * MS,
    access_retry: 15 * MS,
    give_up: 2_000 * MS,
    per_node: 3,
    dma_max: 1 << 20,
    reset_pause: 100 * MS,
}
.with_quarantine(END);
/// Simulated time in ns before which all faults start.
const BUSY: u64 = 5_000 * MS;
/// Simulated time in ns by which faults and their effects have ended.
const CALM: u64 = BUSY + 6_000 * MS;
/// Interval in ns between the requests for each device after the faults; each request must succeed.
const EACH: u64 = 2_000 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A message with this number in the network arrives.
    Message(u64),
    /// An access with this number arrives.
    Packet(u64),
    /// The timer of a node's driver expires in this incarnation of the driver.
    Poll(usize, u32),
    /// A delayed job ends.
    Job(u64),
    /// A node tries to borrow a device.
    Want(usize),
    /// A borrower uses its device.
    Use(u64),
    /// A device makes a DMA access.
    Dma(usize),
    /// A borrower polls for the result of a register access.
    Look(u64),
    Fault(usize),
    Heal(usize),
    Forge,
    /// A device with this number is requested, and the request must succeed.
    Demand(usize),
    Demanded(usize),
    /// All devices are returned.
    GiveBack,
}

/// A requested lease.
#[derive(Debug, Clone, Copy)]
struct Request {
    node: usize,
    life: u32,
    handle: Handle,
    lender: usize,
    function: usize,
    until: u64,
    /// True if the lease is established or has ended.
    answered: bool,
    up: bool,
    demanded: bool,
    /// Interval number of the lease's DMA window.
    slot: u8,
    /// Address that the device writes to raise interrupts.
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
    /// Values of executed writes, with the number of executions of each.
    writes: HashMap<u32, u32>,
    next_write: u32,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    polls: u64,
    /// True if borrowers keep leases until the end of the run.
    keep: bool,
    forger: bool,
    /// Node that breaks the protocol in its own leases; `lies` is the number of its last message.
    liar: Option<usize>,
    /// True if nodes have different lease time-outs and some have slow drivers.
    mixed: bool,
    lies: u32,
    /// IDs of leases that a forger may know.
    seen_leases: Vec<wire::pci::LeaseId>,
    summary: Summary,
    trace: Option<Vec<String>>,
}

impl Rig {
    /// Creates a run of this seed, with an injected bug if requested.
    ///
    /// # Errors
    ///
    /// Fails if the set-up fails.
    pub fn new(seed: u64, mutation: Option<Mutation>, trace: bool) -> Result<Self> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let count = rng.random_range(2..=5usize);
        let mixed = rng.random_bool(0.5);
        // With two lenders, neither knows the devices of the other.
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
            seen_leases: Vec::new(),
            summary: Summary::default(),
            trace: trace.then(Vec::new),
        };
        rig.set_up()?;
        Ok(rig)
    }

    fn log(&mut self, what: impl FnOnce() -> String) {
        let at = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:12.3} us  {}", at as f64 / US as f64, what()));
        }
    }

    /// Returns the events so far, if tracing is enabled.
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
    /// Returns the violated invariant.
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
/// Returns the violated invariant, or an error of the set-up.
pub fn run(seed: u64, mutation: Option<Mutation>) -> Result<Summary, Violation> {
    let failed = |e: anyhow::Error| Violation {
        seed,
        at: 0,
        what: format!("can't be set up: {e:#}"),
    };
    Rig::new(seed, mutation, false).map_err(failed)?.run()
}
