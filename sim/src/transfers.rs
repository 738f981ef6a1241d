//! Runs of `protocol::transfer` on nodes of the emulated fabric: fragment lists with random
//! boundaries, under faults drawn from a seed.
//!
//! What must hold:
//! * Each transfer has one outcome, by its deadline, and becomes quiet once, not before it.
//! * What was done is done: a GET has brought the bytes of the peer, a confirmed PUT has taken them
//!   there.
//! * Memory is not touched after the transfer that used it became quiet: it is overwritten then,
//!   looked at when it is used again, and at the end. What became quiet because the port was closed
//!   rests for as long as late answers are waited for.
//! * Between nodes that no fault hits every transfer succeeds in time, whatever the others do.
//! * Tables keep their bounds; in the end nothing is left.

mod judge;
mod node;

use crate::fabric::{Fabric, MEMORY, MEMORY_BYTES};
use crate::memory::{Block, BLOCK};
use crate::port::FREE;
use anyhow::Result;
use extoll_emulator::network::LinkKnobs;
use extoll_emulator::nic::{Faults, LoseWrite, LossyRing};
use node::{Heard, Node};
use protocol::rendezvous::Buffer;
use protocol::transfer::{
    Capacity, Fragment, Limits, Lock, Move, Queue, Refusal, Tell, Terms, Ticket,
};
use protocol::Time;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use wire::ext_eth::VPID;
use wire::rma::LockTarget;
use wire::transfer::Direction;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Tables of a node: small, so that all bounds are reached.
const CAPACITY: Capacity = Capacity {
    transfers: 48,
    fragments: 200,
    commands: 40,
};
/// As those of the engine, with smaller windows, and times in ns that faults outlast.
const LIMITS: Limits = Limits {
    window: 6,
    window_bytes: 6_000,
    command: 1_500,
    peer: 16,
    absorb: 3_000 * MS,
};
/// Blocks of memory of a node.
const BLOCKS: usize = 128;
/// Where a node keeps what others read, behind its blocks, and how much.
const SOURCE: u64 = FREE + BLOCKS as u64 * BLOCK;
const SOURCE_BYTES: u64 = 0x1_0000;
/// Then come blocks that others write to, so many for each node.
const SINKS: u64 = SOURCE + SOURCE_BYTES;
const SINKS_EACH: u64 = 12;
/// For so long a NIC may hold what is on its way: less than late answers are waited for.
const LONGEST_HOLD: u64 = 1_500 * MS;
/// Traffic and faults begin before this.
const BUSY: u64 = 4_000 * MS;
/// Everything has ended after this.
const END: u64 = BUSY + 3 * LIMITS.absorb + 4_000 * MS;
/// Time-outs of transfers; between nodes that no fault hits they are as long as all of a peer may
/// take on a slow link.
const TIMEOUTS: [std::ops::Range<u64>; 2] = [100 * MS..1_000 * MS, 1_500 * MS..2_500 * MS];
/// By so much an outcome may be late: nodes poll no faster.
const LATE: u64 = 30 * MS;
/// What is in memory that nobody uses.
const POISON: u8 = 0xdb;

const _: () = assert!(SINKS + 4 * SINKS_EACH * BLOCK <= MEMORY + MEMORY_BYTES);

/// An error in the glue, or a limit of the machine that is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Late answers are not waited for.
    NoAbsorb,
    /// Memory is used again when the outcome is known.
    ReuseAtOutcome,
    /// Some notifications name another node.
    OtherNode,
    /// The machine does not hear of some notifications.
    Deaf,
    /// One peer may have all commands.
    NoWindow,
    /// Nobody looks at the deadlines.
    NoTimer,
    /// A lock operation that changes nothing is answered at once, before what it was to wait for.
    HastyFence,
}

impl Mutation {
    /// All of them.
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
        write!(f, "seed {seed}, {:.3} ms: {what}", *at as f64 / MS as f64)
    }
}

/// What runs did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    /// Transfers and lock operations.
    pub taken: u64,
    /// Of these, done.
    pub done: u64,
    /// That had to be done.
    pub demanded: u64,
    /// That became quiet after their outcome, as something late was answered.
    pub settled_late: u64,
    /// That became quiet without an answer.
    pub unanswered: u64,
    /// Fences asked, and late commands that they showed to be over.
    pub fences: u64,
    /// See `fences`.
    pub passed: u64,
    /// Not taken for want of a place.
    pub refused: u64,
    /// Faults.
    pub faults: u64,
}

impl Summary {
    /// The sum of both.
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
    /// A GET that failed, into the same memory.
    Retry(usize),
    Cancel(usize),
    Abort(usize),
    Fault(usize),
    Heal(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The cable loses all it carries.
    Cable(usize),
    Freeze(usize),
    PowerOff(usize),
    /// The port is closed and opened again.
    Restart(usize),
    LoseNotifications(usize),
    RetryEvery(usize),
}

/// A transfer.
struct Transfer {
    node: usize,
    peer: usize,
    ticket: Option<Ticket>,
    what: Option<Move>,
    local: Vec<Fragment>,
    remote: Vec<Fragment>,
    /// What is sent, or was to be brought.
    data: Vec<u8>,
    /// Its own memory, and the sinks of the peer.
    blocks: Vec<Rc<Block>>,
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
    /// With beginning and end.
    faults: Vec<(Fault, u64, u64)>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    transfers: Vec<Transfer>,
    /// Memory that rests until then.
    resting: Vec<(u64, Vec<Rc<Block>>)>,
    /// Sinks by peer and node: when they may be used again, and whether something may be written to
    /// them until then.
    sinks: Vec<Vec<Vec<(u64, bool)>>>,
    mutation: Option<Mutation>,
    summary: Summary,
    trace: Option<Vec<String>>,
}

/// Where a node's sink number `i` is at each peer.
fn sink(node: usize, i: u64) -> u64 {
    SINKS + (node as u64 * SINKS_EACH + i) * BLOCK
}

fn source(node: usize) -> Vec<u8> {
    let mut data = vec![0; SOURCE_BYTES as usize];
    SmallRng::seed_from_u64(0x50 + node as u64).fill(&mut data[..]);
    data
}

/// What a node offers at these places.
fn offered(node: usize, list: &[Fragment]) -> Vec<u8> {
    let from = source(node);
    let part = |f: &Fragment| {
        let at = (f.address - SOURCE) as usize;
        &from[at..at + f.len as usize]
    };
    list.iter().flat_map(part).copied().collect()
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

    fn say(&mut self, what: impl FnOnce() -> String) {
        let at = self.fabric.now();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:12.3} us  {}", at as f64 / US as f64, what()));
        }
    }

    /// What happened so far, if it was to be kept.
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
        // Everybody with everybody, when all faults are over.
        for node in 0..count {
            for _ in 0..count {
                let at = BUSY + LONGEST_HOLD + self.rng.random_range(0..MS);
                self.at(at, Event::Submit(node));
            }
        }
        Ok(())
    }

    fn add_fault(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        let cable = self.rng.random_range(0..self.fabric.cables());
        let fault = match self.rng.random_range(0..6) {
            0 => Fault::Cable(cable),
            1 => Fault::Freeze(node),
            2 => Fault::PowerOff(node),
            3 => Fault::Restart(node),
            4 => Fault::LoseNotifications(node),
            _ => Fault::RetryEvery(node),
        };
        if self.faults.iter().any(|(other, ..)| *other == fault) {
            return;
        }
        for victim in self.victims(fault) {
            self.healthy[victim] = false;
        }
        let at = self.rng.random_range(0..BUSY);
        let longest = [10 * MS, 300 * MS, LONGEST_HOLD][self.rng.random_range(0..3)];
        let end = at + self.rng.random_range(MS..longest);
        self.at(at, Event::Fault(self.faults.len()));
        self.faults.push((fault, at, end.min(BUSY + LONGEST_HOLD)));
    }

    /// Whom a fault concerns: none of their transfers has to succeed.
    fn victims(&self, fault: Fault) -> Vec<usize> {
        match fault {
            Fault::Cable(c) => {
                let ends = self.fabric.world.network().cable_ends(c);
                ends.iter().map(|end| end.nic).collect()
            }
            Fault::Freeze(n)
            | Fault::PowerOff(n)
            | Fault::Restart(n)
            | Fault::LoseNotifications(n)
            | Fault::RetryEvery(n) => vec![n],
        }
    }

    /// Whether the network has lost nothing between the nodes of a transfer since that was
    /// submitted: a lock operation shows that a peer has done what reached it.
    fn is_lossless(&self, t: &Transfer) -> bool {
        !self.faults.iter().any(|(fault, at, end)| {
            let loses = matches!(
                fault,
                Fault::Cable(_) | Fault::PowerOff(_) | Fault::Restart(_)
            );
            let during = *at <= self.fabric.now() && *end >= t.since;
            let victims = self.victims(*fault);
            loses && during && (victims.contains(&t.node) || victims.contains(&t.peer))
        })
    }

    /// Runs to the end.
    ///
    /// # Errors
    ///
    /// What did not hold.
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
                    self.say(|| format!("node {n} cancels one: {done}"));
                    self.excuse(|t| t.ticket == Some(ticket) && t.node == n);
                }
            }
            Event::Abort(n) => {
                let peer = (n + 1) % self.nodes.len();
                self.say(|| format!("node {n} gives node {peer} up"));
                self.nodes[n].abort(&self.fabric, peer);
                self.excuse(|t| t.node == n && t.peer == peer);
            }
            Event::Fault(i) => {
                let (fault, _, end) = self.faults[i];
                self.say(|| format!("{fault:?}"));
                self.begin(fault);
                self.at(end.max(now + 1), Event::Heal(i));
            }
            Event::Heal(i) => {
                let (fault, ..) = self.faults[i];
                self.say(|| format!("{fault:?} ends"));
                self.end(fault)?;
            }
        }
        Ok(())
    }

    /// Nothing is demanded of such transfers.
    fn excuse(&mut self, which: impl Fn(&Transfer) -> bool) {
        for t in self.transfers.iter_mut().filter(|t| which(t)) {
            t.demanded = false;
        }
    }

    /// What has rested for long enough is free.
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

    /// Cuts `bytes` bytes from `address` on into fragments that don't continue each other.
    fn cut(&mut self, places: &[(u64, u64)]) -> Vec<Fragment> {
        let mut all = Vec::new();
        for &(address, len) in places {
            let (mut at, end) = (address, address + len);
            while at < end {
                let len = self.rng.random_range(1..=700).min(end - at);
                all.push(Fragment { address: at, len });
                // Some bytes in between are left out.
                at += len + self.rng.random_range(0..20);
            }
        }
        all
    }

    fn submit(&mut self, n: usize, again: Option<usize>) -> Result<()> {
        if !self.nodes[n].is_up() {
            return Ok(());
        }
        let count = self.nodes.len();
        let peer = match again {
            Some(id) => self.transfers[id].peer,
            None => (n + self.rng.random_range(0..count)) % count,
        };
        let id = self.transfers.len() as u64;
        let now = self.fabric.now();
        let demanded = self.healthy[n] && self.healthy[peer];
        let wait = self
            .rng
            .random_range(TIMEOUTS[usize::from(demanded)].clone());
        let terms = Terms {
            node: crate::port::Port::node_id(peer),
            vpid: VPID,
            class: self.rng.random_range(0..4),
            translate: false,
            deadline: Time(now + wait),
            queue: [Queue::Direct, Queue::Deferred][self.rng.random_range(0..2)],
        };
        let mut t = Transfer {
            node: n,
            peer,
            ticket: None,
            what: None,
            local: Vec::new(),
            remote: Vec::new(),
            data: Vec::new(),
            blocks: Vec::new(),
            sinks: Vec::new(),
            deadline: now + wait,
            since: now,
            demanded,
            outcome: false,
            quiet: false,
        };
        let taken = if again.is_none() && self.rng.random_bool(0.1) {
            let lock = Lock {
                at: [LockTarget::Completer, LockTarget::Responder][self.rng.random_range(0..2)],
                number: self.rng.random_range(0..4),
                compare: i32::MAX,
                add: 1,
            };
            self.nodes[n].lock(&mut self.fabric, &terms, lock, id)
        } else {
            let prepared = match again {
                Some(id) => self.repeat(&mut t, id),
                None => self.prepare(&mut t)?,
            };
            if !prepared {
                return Ok(());
            }
            let what = t.what.unwrap_or(Move {
                direction: Direction::Get,
                tell: Tell::Nothing,
                confirm: false,
            });
            let lists = [&t.local[..], &t.remote[..]];
            self.nodes[n].submit(&mut self.fabric, &terms, what, lists, id)
        };
        self.say(|| {
            let bytes = t.data.len();
            format!(
                "node {n}: {id} of {bytes} bytes with node {peer}: {:?}, {taken:?}",
                t.what
            )
        });
        match taken {
            Ok(ticket) => {
                t.ticket = Some(ticket);
                self.summary.taken += 1;
                self.summary.demanded += u64::from(t.demanded);
            }
            Err(Refusal::Invalid) => anyhow::bail!("a transfer is taken for none"),
            Err(_) => {
                self.summary.refused += 1;
                (t.outcome, t.quiet) = (true, true);
                // Nobody has used the memory.
                self.free(&mut t, 0)?;
            }
        }
        self.transfers.push(t);
        Ok(())
    }

    /// Gives a transfer the memory of an earlier GET, which may be late, and other bytes of the
    /// peer; false if that is quiet.
    fn repeat(&mut self, t: &mut Transfer, id: usize) -> bool {
        let old = &self.transfers[id];
        if old.quiet {
            return false;
        }
        t.what = old.what;
        t.local = old.local.clone();
        t.blocks = old.blocks.clone();
        t.remote = old.remote.clone();
        let last = t.remote.iter().map(|f| f.address + f.len).max();
        let room = SOURCE + SOURCE_BYTES - last.unwrap_or(SOURCE);
        let by = self.rng.random_range(0..=room.min(500));
        for f in &mut t.remote {
            f.address += by;
        }
        t.data = offered(t.peer, &t.remote);
        true
    }

    /// Gives a transfer memory on both sides; false if there is none.
    fn prepare(&mut self, t: &mut Transfer) -> Result<bool> {
        let get = self.rng.random_bool(0.5);
        let mut places = Vec::new();
        for _ in 0..self.rng.random_range(1..=3) {
            let Some(block) = self.nodes[t.node].block() else {
                return Ok(false);
            };
            self.check_poison(t.node, block.address(), BLOCK)?;
            let skip = self.rng.random_range(0..500);
            places.push((
                block.address() + skip,
                self.rng.random_range(1..BLOCK - skip),
            ));
            t.blocks.push(Rc::new(block));
        }
        t.local = self.cut(&places);
        let bytes: u64 = t.local.iter().map(|f| f.len).sum();
        let places = match get {
            true => {
                let len = bytes + 2_000;
                let at = SOURCE + self.rng.random_range(0..SOURCE_BYTES - 8 * len / 5 - 4_000);
                vec![(at, 8 * len / 5)]
            }
            false => match self.take_sinks(t, bytes)? {
                Some(places) => places,
                None => return Ok(false),
            },
        };
        t.remote = self.cut(&places);
        trim(&mut t.remote, &mut t.local);
        let bytes: u64 = t.local.iter().map(|f| f.len).sum();
        if get {
            t.data = offered(t.peer, &t.remote);
        } else {
            t.data = vec![0; bytes as usize];
            self.rng.fill(&mut t.data[..]);
            let mut rest = &t.data[..];
            for f in &t.local {
                let (head, tail) = rest.split_at(f.len as usize);
                self.fabric.fill(t.node, f.address, head)?;
                rest = tail;
            }
        }
        let tells = [
            Tell::Nothing,
            Tell::Each,
            Tell::Last,
            Tell::Value { class: 1, value: 5 },
        ];
        t.what = Some(Move {
            direction: if get { Direction::Get } else { Direction::Put },
            tell: tells[self.rng.random_range(0..4)],
            confirm: !get && self.rng.random_bool(0.8),
        });
        Ok(true)
    }

    /// Sinks at the peer for so many bytes.
    fn take_sinks(&mut self, t: &mut Transfer, bytes: u64) -> Result<Option<Vec<(u64, u64)>>> {
        let now = self.fabric.now();
        let wanted = bytes / BLOCK + 2;
        let mut places = Vec::new();
        for i in 0..SINKS_EACH {
            if places.len() as u64 == wanted {
                break;
            }
            let (free, dirty) = &mut self.sinks[t.peer][t.node][i as usize];
            if *free <= now && !*dirty {
                *free = u64::MAX;
                t.sinks.push(i);
                places.push((sink(t.node, i), BLOCK));
            }
        }
        for (at, len) in &places {
            self.check_poison(t.peer, *at, *len)?;
        }
        if (places.len() as u64) < wanted {
            for i in std::mem::take(&mut t.sinks) {
                self.sinks[t.peer][t.node][i as usize] = (now, false);
            }
            return Ok(None);
        }
        Ok(Some(places))
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Cable(c) => self.fabric.link(c, false),
            Fault::Freeze(n) => self.fabric.world.set_frozen(n, true),
            Fault::PowerOff(n) => {
                self.fabric.world.set_power(n, false);
                self.nodes[n].down(&mut self.fabric);
            }
            Fault::Restart(n) => self.nodes[n].down(&mut self.fabric),
            Fault::LoseNotifications(n) => {
                let count = self.rng.random_range(1..6);
                let lose_writes = vec![LoseWrite {
                    ring: LossyRing::Rma,
                    vpid: None,
                    slot: None,
                    count,
                }];
                self.set_faults(
                    n,
                    Faults {
                        lose_writes,
                        ..Faults::default()
                    },
                );
            }
            Fault::RetryEvery(n) => {
                let wcbuf_retry_every = Some(self.rng.random_range(2..12));
                self.set_faults(
                    n,
                    Faults {
                        wcbuf_retry_every,
                        ..Faults::default()
                    },
                );
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
                    self.set_faults(n, Faults::default());
                }
                if !self.nodes[n].is_up() {
                    self.nodes[n].up(&mut self.fabric)?;
                }
            }
            Fault::LoseNotifications(n) | Fault::RetryEvery(n) => {
                self.set_faults(n, Faults::default());
            }
        }
        Ok(())
    }
}

/// Cuts the longer list to the length of the other one.
fn trim(a: &mut Vec<Fragment>, b: &mut Vec<Fragment>) {
    let sum = |l: &[Fragment]| l.iter().map(|f| f.len).sum::<u64>();
    let bytes = sum(a).min(sum(b));
    for list in [a, b] {
        let mut left = bytes;
        list.retain_mut(|f| {
            f.len = f.len.min(left);
            left -= f.len;
            f.len > 0
        });
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
