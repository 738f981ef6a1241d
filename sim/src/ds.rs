//! Simulation of direct sockets (`protocol::ds`) between the nodes of an emulated fabric, under
//! seeded latency, loss, repeated messages, power cuts, restarts, and a node that forges messages.
//!
//! The nodes negotiate each connection beside a modelled TCP connection (`tcp`, `setup`). Clients
//! ask for a direct connection or not; servers listen with a direct or with a TCP socket, and
//! accept at once, late or never. Programs write and read chunks of random sizes at their own pace,
//! end their direction, close early, or abort. Invariants:
//!
//! * Both ends of a connection use the same path, or one end has an error. The decision is made in
//!   time, and an end that uses TCP has a reason. A server uses a client's request only for the
//!   connection of the request, and no request remains at the end.
//! * Data read are the data written, byte by byte. The end of a stream occurs exactly where its
//!   writer ended it.
//! * A connection between nodes that were not restarted and whose programs behave carries all data
//!   and ends in order. This holds if the network loses packets for less than 400 ms, whatever
//!   other connections do.
//! * Every connection ends. Returned rings are not written any more (the simulation overwrites
//!   them, and checks them when they are used again), and all rings are returned.
//! * Messages that a third node forges have no effect.
//! * While a connection waits for a GET slot, each other connection posts at most one budget of
//!   GETs.

mod fault;
mod forge;
mod held;
mod judge;
mod lent;
mod node;
mod posting;
mod setup;
mod slots;
mod tagged;
mod tcp;

use crate::fabric::Fabric;
use anyhow::Result;
use extoll_emulator::network::LinkKnobs;
use fault::Fault;
use node::Node;
use protocol::ds::{End, Limits, OpenLimits};
use protocol::transfer;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use setup::Decision;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tcp::{Segment, Tcp};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Size of a ring's memory in bytes; maximum length of a ring.
const RING_BYTES: u64 = 4096;
/// Number of rings of a node.
const RINGS: u64 = 48;
/// Maximum time in ns for which a network loses or holds packets.
const LONGEST: u64 = 400 * MS;
/// Maximum time in ns that a port holds accepted messages; longer than any packet is in flight.
const HELD: u64 = 1_700 * MS;
/// Maximum time in ns that a port holds RMA commands while it waits for late answers.
const COMMANDS_HELD: u64 = 900 * MS;
/// Limits of streams; times in ns.
const LIMITS: Limits = Limits {
    threshold: 300,
    chunk: 3_000,
    tries: 8,
    get: 200 * MS,
    fresh: 100 * MS,
    hold: 500 * MS,
    ask: 50 * MS,
    ask_most: 400 * MS,
    give_up: 2_500 * MS,
    orphan: 4_000 * MS,
    // Longer than the time for which a port holds messages that the peer would answer.
    linger: 2_600 * MS,
    cork: 30 * MS,
};
/// Limits of the negotiation; times in ns.
const OPENING: OpenLimits = OpenLimits {
    ask: 20 * MS,
    asks: 4,
    accept: 200 * MS,
    refresh: 100 * MS,
    keep: 700 * MS,
    // Longer than the time for which a port holds messages.
    confirm: 2_200 * MS,
    silent: 500 * MS,
    late: 60 * MS,
};
const TRANSFERS: transfer::Capacity = transfer::Capacity {
    transfers: 64,
    fragments: 256,
    commands: 60,
};
const TRANSFER_LIMITS: transfer::Limits = transfer::Limits {
    window: 12,
    window_bytes: 20_000,
    command: 4_000,
    node: 40,
    node_fragments: 200,
    absorb: 1_500 * MS,
};
/// Simulated time in ns before which all connections and faults start.
const BUSY: u64 = 3_000 * MS;
/// Simulated time in ns by which all connections and faults have ended.
const END: u64 = BUSY + 20_000 * MS;
/// Simulated time in ns at which slow writers speed up, because they would not finish otherwise.
const HURRY: u64 = BUSY + 10_000 * MS;
/// Maximum time in ns between polls of an idle node.
const IDLE: u64 = 15 * MS;
/// Maximum time in ns between polls of a node with connections.
const SLOWEST: u64 = 4 * MS;

/// A bug that a test injects into the driver code of the simulation or, through a limit, into the
/// state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A GET's data count as received when it is posted.
    Hasty,
    /// The send ring is reused when the connection has ended.
    SendRingAtEnd,
    /// The receive ring is reused when the connection has ended.
    ReceiveRingAtEnd,
    /// GETs are posted whenever the peer was last known to be alive.
    Stale,
    /// Peers that are silent are never asked whether they are alive.
    NeverAsk,
    /// Messages are accepted from any source.
    Unsourced,
    /// GETs count as complete although data are missing.
    Unmarked,
    /// A FIN on TCP's connection selects TCP.
    FinDecides,
    /// The server keeps the request of a client when TCP carries the accepted connection.
    NoteKept,
    /// The server keeps a request after it was used, so that a repeated request finds it again.
    TakenTwice,
    /// Answers are accepted from any source and with any cookie.
    AnyAnswer,
    /// An end that uses TCP keeps its rings.
    RingsKept,
    /// A client that uses TCP does not answer.
    NoAnswer,
    /// The server forgets requests at once.
    KeepZero,
    /// The server does not wait for its client.
    ShortConfirm,
    /// The client sends TCP's SYN before it has received the answer.
    EarlySyn,
    /// Messages that a port still holds count as sent.
    HeldIsSent,
    /// Source memory that a program withdraws is reused before the peer has answered.
    SourceAtOnce,
    /// Memory of a reader is reused as soon as it is withdrawn.
    SinkAtOnce,
    /// Announced memory changes.
    SourceChanged,
    /// Withdrawn bytes count as sent.
    WithdrawnCounts,
    /// Data in source memory are fetched from the ring.
    RingForSource,
    /// A connection that got a GET slot and wants another stays first in the queue.
    StaysFirst,
}

impl Mutation {
    /// All mutations.
    pub const ALL: &'static [Self] = &[
        Self::Hasty,
        Self::SendRingAtEnd,
        Self::ReceiveRingAtEnd,
        Self::Stale,
        Self::NeverAsk,
        Self::Unsourced,
        Self::Unmarked,
        Self::FinDecides,
        Self::NoteKept,
        Self::TakenTwice,
        Self::AnyAnswer,
        Self::RingsKept,
        Self::NoAnswer,
        Self::KeepZero,
        Self::ShortConfirm,
        Self::EarlySyn,
        Self::HeldIsSent,
        Self::SourceAtOnce,
        Self::SinkAtOnce,
        Self::SourceChanged,
        Self::WithdrawnCounts,
        Self::RingForSource,
        Self::StaysFirst,
    ];
}

fn limits(mutation: Option<Mutation>) -> Limits {
    match mutation {
        Some(Mutation::Stale) => Limits {
            fresh: 1 << 40,
            ..LIMITS
        },
        Some(Mutation::NeverAsk) => Limits {
            ask: 1 << 40,
            ask_most: 1 << 40,
            ..LIMITS
        },
        _ => LIMITS,
    }
}

fn opening(mutation: Option<Mutation>) -> OpenLimits {
    match mutation {
        Some(Mutation::KeepZero) => OpenLimits { keep: 0, ..OPENING },
        Some(Mutation::ShortConfirm) => OpenLimits {
            confirm: 15 * MS,
            ..OPENING
        },
        _ => OPENING,
    }
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
    /// Connections.
    pub connections: u64,
    /// Connections that had to carry all data.
    pub demanded: u64,
    /// Ends that finished in order.
    pub finished: u64,
    /// Ends with an error.
    pub failed: u64,
    /// Bytes read.
    pub bytes: u64,
    /// GETs.
    pub gets: u64,
    /// Repeated GETs.
    pub gets_again: u64,
    /// Number of times that a stream sent data again.
    pub rewinds: u64,
    /// Number of times that a node asked a peer whether it is alive.
    pub asked: u64,
    /// Messages that were repeated, early, or of another stream.
    pub odd: u64,
    /// Faults.
    pub faults: u64,
    /// Completed GETs with holes.
    pub holes: u64,
    /// Number of times that a GET waited for a slot.
    pub waited: u64,
    /// Connections that did not start, because the client's node was off.
    pub refused: u64,
    /// Bytes announced in programs' memory.
    pub lent: u64,
    /// Bytes fetched into programs' memory.
    pub sunk: u64,
    /// Number of times that announced memory was withdrawn.
    pub cuts: u64,
    /// Ends that used streams.
    pub direct: u64,
    /// Ends that used TCP.
    pub tcp: u64,
    /// Ends to which the peer's decision remained unknown.
    pub lost: u64,
    /// Requests that another connection with the same addresses and ports left behind.
    pub foreign_notes: u64,
    /// Connections with the addresses and ports of an older one.
    pub reused: u64,
    /// Reasons for TCP, as a bit mask of their numbers.
    pub reasons: u32,
}

impl Summary {
    /// Returns the sum of two statistics.
    #[must_use]
    pub fn and(self, o: Self) -> Self {
        Self {
            connections: self.connections + o.connections,
            demanded: self.demanded + o.demanded,
            finished: self.finished + o.finished,
            failed: self.failed + o.failed,
            bytes: self.bytes + o.bytes,
            gets: self.gets + o.gets,
            gets_again: self.gets_again + o.gets_again,
            rewinds: self.rewinds + o.rewinds,
            asked: self.asked + o.asked,
            odd: self.odd + o.odd,
            faults: self.faults + o.faults,
            holes: self.holes + o.holes,
            waited: self.waited + o.waited,
            refused: self.refused + o.refused,
            lent: self.lent + o.lent,
            sunk: self.sunk + o.sunk,
            cuts: self.cuts + o.cuts,
            direct: self.direct + o.direct,
            tcp: self.tcp + o.tcp,
            lost: self.lost + o.lost,
            foreign_notes: self.foreign_notes + o.foreign_notes,
            reused: self.reused + o.reused,
            reasons: self.reasons | o.reasons,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Poll(usize),
    Connect,
    Open(usize),
    Tcp(usize, usize, Segment),
    Accept(usize),
    Write(usize, usize),
    Read(usize, usize),
    /// A program closes its end.
    Leave(usize, usize),
    Forge(usize),
    Fault(usize),
    Heal(usize),
}

/// State of a program at one end.
#[derive(Debug, Clone)]
struct Side {
    node: usize,
    /// Number of bytes that the program writes.
    plan: u64,
    written: u64,
    /// Number of bytes in flight from the program's own memory.
    lent: u64,
    /// True if the program sends from and receives into its own memory.
    lends: bool,
    /// True after the program has ended its direction of the stream.
    shut: bool,
    read: u64,
    eof: bool,
    /// Reason of the end of the connection, as seen when the program closed its end.
    end: Option<End>,
    left: bool,
    /// True after the node was restarted.
    crashed: bool,
    /// True if the program knows, since `since`, that TCP's connection is established.
    begun: bool,
    since: u64,
    carrier: Decision,
    write_pace: u64,
    read_pace: u64,
    largest: usize,
}

/// A connection with both ends.
#[derive(Debug, Clone)]
struct Pair {
    sides: [Side; 2],
    /// True if the connection must carry all data.
    demanded: bool,
    tcp: Tcp,
    /// Time in ns at which both programs had closed their ends.
    gone: u64,
}

/// A run.
pub struct Rig {
    seed: u64,
    rng: SmallRng,
    fabric: Fabric,
    nodes: Vec<Node>,
    /// Node that may forge messages.
    hostile: Option<usize>,
    mutation: Option<Mutation>,
    /// True if the run has no faults that would explain a fallback to TCP.
    clean: bool,
    /// True if messages of negotiations may be repeated late.
    echoes: bool,
    pace: Vec<u64>,
    waits: Vec<u64>,
    faults: Vec<(Fault, u64)>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    pairs: Vec<Pair>,
    summary: Summary,
    trace: Option<Vec<String>>,
}

/// Returns byte `at` of the data that a side of a pair writes.
fn byte(pair: usize, side: usize, at: u64) -> u8 {
    let key = ((pair as u64) << 40) ^ ((side as u64) << 39) ^ (at >> 3);
    let mixed = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed.rotate_left(23) ^ mixed).to_le_bytes()[(at & 7) as usize]
}

impl Rig {
    /// Creates a run of this seed, with an injected bug if requested.
    ///
    /// # Errors
    ///
    /// Fails if the emulator rejects an operation.
    pub fn new(seed: u64, mutation: Option<Mutation>, trace: bool) -> Result<Self> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let count = rng.random_range(2..=3usize);
        let fabric = Fabric::new(count, seed)?;
        let nodes = (0..count)
            .map(|i| Node::new(&fabric, i, rng.random(), mutation))
            .collect::<Result<Vec<_>>>()?;
        let clean = rng.random_bool(0.08);
        let hostile = rng.random_bool(0.25).then(|| rng.random_range(0..count));
        let hostile = hostile.filter(|_| !clean);
        let mut rig = Self {
            seed,
            rng,
            fabric,
            nodes,
            hostile,
            mutation,
            clean,
            echoes: false,
            pace: Vec::new(),
            waits: vec![IDLE; count],
            faults: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            pairs: Vec::new(),
            summary: Summary::default(),
            trace: trace.then(Vec::new),
        };
        rig.set_up()?;
        Ok(rig)
    }

    fn log(&mut self, what: impl FnOnce() -> String) {
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
        let most = if self.clean { 3 } else { 4 };
        let slowest = [0, 10 * US, 100 * US, 3 * MS][self.rng.random_range(0..most)];
        for cable in 0..self.fabric.cables() {
            let damaged = self.rng.random_bool(0.3) && !self.clean;
            let damaged = if damaged { 0.1 } else { 0.0 };
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
            self.at(0, Event::Poll(node));
        }
        for _ in 0..self.rng.random_range(1..=12) {
            let at = self.rng.random_range(0..BUSY);
            self.at(at, Event::Connect);
        }
        if !self.clean {
            for _ in 0..self.rng.random_range(0..=8) {
                self.add_fault();
            }
            let node = self.rng.random_range(0..count);
            match self.rng.random_range(0..20) {
                0 => self.nodes[node].setup.off = true,
                1 => self.nodes[node].setup.version += 1,
                _ => {}
            }
        }
        if let Some(node) = self.hostile {
            for _ in 0..self.rng.random_range(1..400) {
                let at = self.rng.random_range(0..BUSY + 1_000 * MS);
                self.at(at, Event::Forge(node));
            }
        }
        self.summary.faults = self.faults.len() as u64;
        // Connections after all faults.
        for _ in 0..2 {
            self.at(BUSY + 2_000 * MS, Event::Connect);
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
                self.summary.holes = self.nodes.iter().map(|n| n.holes).sum();
                self.summary.waited = self.nodes.iter().map(|n| n.slots.waited).sum();
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
        }
        self.check_end()
    }

    fn step(&mut self, event: Event) -> Result<()> {
        let now = self.fabric.now();
        match event {
            Event::Poll(n) => {
                self.poll(n)?;
                self.check_waiting(n)?;
                self.check_reused(n)?;
                self.check_ends(n)?;
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
            Event::Connect => self.connect()?,
            Event::Open(pair) => self.open(pair)?,
            Event::Tcp(pair, to, segment) => self.segment(pair, to, segment)?,
            Event::Accept(pair) => self.accept(pair)?,
            Event::Write(pair, side) => self.write(pair, side)?,
            Event::Read(pair, side) => self.read(pair, side)?,
            Event::Leave(pair, side) => {
                let abort = self.rng.random_bool(0.5);
                self.leave(pair, side, abort)?;
            }
            Event::Forge(n) => match self.rng.random_bool(0.5) {
                true => self.forge(n),
                false => self.forge_setup(n),
            },
            Event::Fault(i) => {
                let (fault, end) = self.faults[i];
                self.log(|| format!("{fault:?}"));
                self.begin(fault)?;
                self.at(end.max(now + 1), Event::Heal(i));
            }
            Event::Heal(i) => {
                let (fault, _) = self.faults[i];
                self.log(|| format!("{fault:?} ends"));
                self.end(fault)?;
            }
        }
        Ok(())
    }

    fn side(&mut self, node: usize) -> Side {
        let most = [200, 5_000, 40_000][self.rng.random_range(0..3)];
        Side {
            node,
            plan: self.rng.random_range(0..most),
            written: 0,
            lent: 0,
            lends: self.rng.random_bool(0.6),
            shut: false,
            read: 0,
            eof: false,
            end: None,
            left: false,
            crashed: false,
            begun: false,
            since: 0,
            carrier: Decision::Waiting,
            write_pace: [20 * US, MS, 20 * MS, 1_500 * MS][self.rng.random_range(0..4)],
            read_pace: [20 * US, MS, 10 * MS][self.rng.random_range(0..3)],
            largest: [20, 400, 4_000][self.rng.random_range(0..3)],
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
