//! Connections of direct sockets (`protocol::ds`) between the nodes of an emulated fabric, under
//! seeded latency, loss, repeated messages, power cuts, restarts, and a node that forges messages.
//!
//! They are negotiated, before and besides a modelled connection of TCP (`tcp`, `setup`): programs
//! ask or don't, listen with either socket, accept at once, late or never. Then they write and read
//! pieces of random sizes at their pace, end their direction, close early, abort. What must hold:
//! * Both ends of a connection use the same, or one has an error; it is decided in time, and
//!   whoever uses TCP has a reason. A note is taken for its own connection only, and none is left.
//! * What is read is what was written, byte by byte; the end of a stream comes where its writer
//!   ended it, and nowhere else.
//! * A connection between nodes that were not restarted, and whose programs behave, carries all and
//!   ends in order, whatever the network loses for less than 400 ms, and whatever others do.
//! * Everything ends. Rings that were given back are not written to any more (they are overwritten,
//!   and looked at when they are used again), and all come back.
//! * Someone else's message changes nothing.
//! * Who waits for a place for a GET waits for one turn of each other connection at most.

mod fault;
mod forge;
mod held;
mod judge;
mod lent;
mod marked;
mod node;
mod places;
mod posting;
mod setup;
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
/// Bytes of the memory of a ring; rings are at most as long.
const RING_BYTES: u64 = 4096;
/// Rings of a node.
const RINGS: u64 = 48;
/// No network loses or holds what it carries for longer than this.
const LONGEST: u64 = 400 * MS;
/// So long a port may keep what it has taken, longer than anything is on its way.
const HELD: u64 = 1_700 * MS;
/// So long at most one of RMA: late answers are waited for.
const COMMANDS_HELD: u64 = 900 * MS;
/// Times in ns.
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
    // Longer than a port may keep what would be answered.
    linger: 2_600 * MS,
    cork: 30 * MS,
};
/// Times of the negotiation, in ns.
const OPENING: OpenLimits = OpenLimits {
    ask: 20 * MS,
    asks: 4,
    accept: 200 * MS,
    refresh: 100 * MS,
    keep: 700 * MS,
    // Longer than a port may keep what was said.
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
/// Connections and faults begin before this.
const BUSY: u64 = 3_000 * MS;
/// Everything has ended after this.
const END: u64 = BUSY + 20_000 * MS;
/// Programs that write slowly hurry from then on, or some would not be done at the end.
const HURRY: u64 = BUSY + 10_000 * MS;
/// A node that does nothing polls at least so often.
const IDLE: u64 = 15 * MS;
/// One with connections polls so often.
const SLOWEST: u64 = 4 * MS;

/// An error in the glue, or a limit of the machine that is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Bytes are taken to be there when their GET is posted.
    Hasty,
    /// The send ring is used for something else when the connection is over.
    SendRingAtEnd,
    /// So is the receive ring.
    ReceiveRingAtEnd,
    /// GETs are posted whenever the peer was last known to be alive.
    Stale,
    /// Nobody asks.
    NeverAsk,
    /// Anybody's messages are taken.
    Unsourced,
    /// GETs count as done whatever is missing in them.
    Unmarked,
    /// The end of TCP's connection decides that TCP is used.
    FinDecides,
    /// The note of a client stays when its connection is taken as one of TCP.
    NoteKept,
    /// A note stays when it is taken, and one that comes again is taken again.
    TakenTwice,
    /// Answers are believed whoever says them, and whatever their cookie is.
    AnyAnswer,
    /// Who uses TCP keeps its rings.
    RingsKept,
    /// A client that uses TCP does not answer.
    NoAnswer,
    /// Notes are forgotten at once.
    KeepZero,
    /// The server does not wait for its client.
    ShortConfirm,
    /// The client does not wait for the answer before TCP's SYN.
    EarlySyn,
    /// What a port has taken counts as sent.
    HeldIsSent,
    /// Memory of a program that withdraws it is used again before the peer has answered.
    SourceAtOnce,
    /// Memory of a reader is used again when it has been taken back.
    SinkAtOnce,
    /// Memory changes when it was announced.
    SourceChanged,
    /// What was withdrawn counts as sent.
    WithdrawnCounts,
    /// What is elsewhere is fetched from the ring.
    RingForSource,
    /// Who got a place for a GET and wants more is the first one again.
    StaysFirst,
}

impl Mutation {
    /// All of them.
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
    /// Connections.
    pub connections: u64,
    /// Of these, that had to carry all.
    pub demanded: u64,
    /// Ends that finished in order.
    pub finished: u64,
    /// Ends with an error.
    pub failed: u64,
    /// Bytes read.
    pub bytes: u64,
    /// GETs, and those made anew.
    pub gets: u64,
    /// See `gets`.
    pub gets_again: u64,
    /// Times that data was sent once more.
    pub rewinds: u64,
    /// Times that a peer was asked.
    pub asked: u64,
    /// Messages that came twice, too early, or belonged to another stream.
    pub odd: u64,
    /// Faults.
    pub faults: u64,
    /// GETs that were done and had lost something.
    pub holes: u64,
    /// Times that a GET had to wait for a place.
    pub waited: u64,
    /// Connections that were not begun, as the client's node was off.
    pub refused: u64,
    /// Bytes announced in programs' memory, and fetched to it.
    pub lent: u64,
    /// See `lent`.
    pub sunk: u64,
    /// Times that such memory was withdrawn after it was announced.
    pub cuts: u64,
    /// Ends that used streams, TCP, or did not know what the peer does.
    pub direct: u64,
    /// See `direct`.
    pub tcp: u64,
    /// See `direct`.
    pub lost: u64,
    /// Notes that another connection of the same addresses and ports had left.
    pub foreign_notes: u64,
    /// Connections that had the addresses and ports of an older one.
    pub reused: u64,
    /// Reasons for TCP, as bits of their numbers.
    pub reasons: u32,
}

impl Summary {
    /// The sum of both.
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
    /// A program ends it.
    Leave(usize, usize),
    Forge(usize),
    Fault(usize),
    Heal(usize),
}

/// What a program does at one end.
#[derive(Debug, Clone)]
struct Side {
    node: usize,
    /// Bytes that it writes.
    plan: u64,
    written: u64,
    /// Of what it sends from its memory it waits for so much.
    lent: u64,
    /// It sends so, and takes it so.
    lends: bool,
    /// It has ended its direction.
    shut: bool,
    read: u64,
    eof: bool,
    /// Why its end was over when it left.
    end: Option<End>,
    left: bool,
    /// Its node was restarted.
    crashed: bool,
    /// There is a program, which knows that TCP's connection is there since then.
    begun: bool,
    since: u64,
    carrier: Decision,
    write_pace: u64,
    read_pace: u64,
    largest: usize,
}

/// A connection.
#[derive(Debug, Clone)]
struct Pair {
    sides: [Side; 2],
    /// It has to carry all.
    demanded: bool,
    tcp: Tcp,
    /// When both ends had left.
    gone: u64,
}

/// A run.
pub struct Rig {
    seed: u64,
    rng: SmallRng,
    fabric: Fabric,
    nodes: Vec<Node>,
    /// What it says can't be relied on.
    hostile: Option<usize>,
    mutation: Option<Mutation>,
    /// Nothing is in the way of any connection.
    clean: bool,
    /// Messages of negotiations may come late, a second time.
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

/// Byte `at` of what a side of a pair writes.
fn byte(pair: usize, side: usize, at: u64) -> u8 {
    let key = ((pair as u64) << 40) ^ ((side as u64) << 39) ^ (at >> 3);
    let mixed = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed.rotate_left(23) ^ mixed).to_le_bytes()[(at & 7) as usize]
}

impl Rig {
    /// A run of this seed, with an error in the glue if asked for.
    ///
    /// # Errors
    ///
    /// The emulator refuses something.
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
        // When all faults are over.
        for _ in 0..2 {
            self.at(BUSY + 2_000 * MS, Event::Connect);
        }
        Ok(())
    }

    /// Runs to the end.
    ///
    /// # Errors
    ///
    /// What did not hold.
    pub fn run(&mut self) -> Result<Summary, Violation> {
        match self.steps() {
            Ok(()) => {
                self.summary.holes = self.nodes.iter().map(|n| n.holes).sum();
                self.summary.waited = self.nodes.iter().map(|n| n.places.waited).sum();
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
                // A driver has interrupts; here messages wait for a while.
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
                self.say(|| format!("{fault:?}"));
                self.begin(fault)?;
                self.at(end.max(now + 1), Event::Heal(i));
            }
            Event::Heal(i) => {
                let (fault, _) = self.faults[i];
                self.say(|| format!("{fault:?} ends"));
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
/// What did not hold, or why the run could not be made.
pub fn run(seed: u64, mutation: Option<Mutation>) -> Result<Summary, Violation> {
    let failed = |e: anyhow::Error| Violation {
        seed,
        at: 0,
        what: format!("can't be set up: {e:#}"),
    };
    Rig::new(seed, mutation, false).map_err(failed)?.run()
}
