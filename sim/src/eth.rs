//! Simulation of Ethernet over Extoll: nodes, traffic, faults drawn from a seed. Invariants:
//!
//! * A frame is delivered at most once and unaltered.
//! * Announced memory is not returned before the end of the transfer was notified, because the peer
//!   may still fetch it. Memory of a GET is not returned before the end of the GET was notified,
//!   because the GET may still write to it. In both cases memory without a notification is returned
//!   after the time-out and the quarantine have elapsed.
//! * Frames between nodes that behave, and that had no fault for [`SETTLE`], arrive within
//!   [`BOUND`], whatever other nodes do. A frame may be dropped while an older frame to the same
//!   peer is stalled. It may also be dropped if an older frame was given up and the peer has posted
//!   no GET since, or if the peer fetched a frame late a short time ago.
//! * Frames of a flow arrive in order unless an announced frame stalls, although receivers deliver
//!   frames as they arrive.
//! * Tables keep their limits. In the end no frame is pending, and all memory is returned.

mod fault;
mod forge;
mod judge;
pub mod node;
mod outcome;
mod plan;
pub mod setup;
pub mod survival;
mod traffic;

use crate::eth::node::{Again, Node};
use crate::eth::setup::{Full, Mutation, Tables, LIMITS, SMALL};
use crate::fabric::Fabric;
use anyhow::Result;
use fault::Fault;
pub use outcome::{Summary, Violation};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Maximum time in ns in which a frame between healthy nodes arrives: the delay that two dead peers
/// cause in both directions, with a margin.
pub const BOUND: u64 = 2 * LIMITS.timeout + 2_000 * MS;
/// Time in ns after a node's last fault until its outstanding frames are given up and too old to be
/// fetched.
pub const SETTLE: u64 = 2 * LIMITS.timeout + 500 * MS;
/// Simulated time in ns before which random traffic and faults start.
const BUSY: u64 = 6_000 * MS;
/// Maximum duration of faults in ns; longer than memory of unanswered transfers is kept.
const LONGEST_FAULT: u64 = 8_000 * MS;
/// Maximum time in ns for which a NIC may hold packets. Packets held for longer than memory is kept
/// are beyond any protocol.
const LONGEST_HOLD: u64 = LIMITS.timeout;
/// Simulated time in ns at which each node sends a frame to each other node.
const CALM: u64 = BUSY + LONGEST_FAULT + SETTLE;
/// Simulated time in ns by which all traffic has ended.
const END: u64 = CALM + 2 * (LIMITS.timeout + LIMITS.quarantine) + 10_000 * MS;
/// Maximum lag in ns of the clock that CPUs read.
const LATE: u64 = 5 * MS;
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The poll function for messages runs.
    Poll(usize),
    /// The poll function for notifications runs.
    Notify(usize),
    Timer(usize),
    /// The base driver checks for events without an interrupt.
    Watch(usize),
    Submit(usize),
    /// A node sends a frame to another node.
    Send(usize, usize),
    Fault(usize),
    Heal(usize),
    Forge(usize, usize),
    /// A hostile node announces frames that can be fetched.
    Crowd(usize, usize),
    /// A hostile node reports all frames announced to it as dropped.
    Deny(usize, usize),
    /// The NIC of a hostile node holds back all answers, or stops doing so.
    Withhold(usize, bool),
    /// A stream sends its next frame.
    Next(usize, usize),
    /// An absent peer announces a frame to node 1.
    Die(usize),
    /// A node announces a frame that is shorter than a header.
    Runt(usize, usize),
    /// A node sends a message that does not belong to a frame.
    Chatter(usize, usize),
    /// The poll functions of a node stop or resume.
    Drowse(usize, bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Queued,
    /// Sent in a message.
    Sent,
    Announced,
    Delivered,
    Dropped,
}

struct Frame {
    from: usize,
    to: usize,
    flow: u32,
    len: u32,
    at: u64,
    /// Time in ns at which the frame was announced or sent.
    sent: u64,
    /// Time at which its sender was notified of the GET.
    fetched: Option<u64>,
    fate: Fate,
    /// True if the frame must arrive.
    demanded: bool,
}

struct Announced {
    id: u64,
    at: u64,
    /// Time at which the GET was notified.
    fetched: Option<u64>,
    /// True if the port was closed after the announcement.
    flushed: bool,
}

/// A GET.
struct Got {
    at: u64,
    /// True if the port was closed after the GET was posted.
    flushed: bool,
}

/// A run.
pub struct Rig {
    seed: u64,
    rng: SmallRng,
    fabric: Fabric,
    nodes: Vec<Node>,
    /// Nodes that behave and have no fault.
    healthy: Vec<bool>,
    /// Number of current faults of each node.
    ill: Vec<usize>,
    /// Time of the end of each node's last fault.
    healed: Vec<u64>,
    /// Nodes whose poll functions do not run.
    stuck: Vec<bool>,
    /// By sender and receiver: true if another node forges messages in the sender's name, so that
    /// none of its frames need arrive.
    forged: Vec<Vec<bool>>,
    /// Time until which deliveries of a node may be wrong, because it lost its state about
    /// announced frames.
    forgotten: Vec<u64>,
    /// Nodes that violate the protocol. No invariant holds for their frames.
    hostile: Vec<bool>,
    /// Mean time between polls in ns.
    pace: Vec<u64>,
    /// Times of each node's next polls, for messages and for notifications.
    poll_at: [Vec<u64>; 2],
    /// By node: true if the message interrupt is masked.
    masked: Vec<bool>,
    /// Times and counts of messages that each node's NIC has delivered but the node has not read.
    unread: Vec<VecDeque<(u64, u64)>>,
    /// Known expiry of each node's timer.
    timer_at: Vec<Option<u64>>,
    /// Number of messages and notifications delivered when each node was last woken.
    delivered_before: [Vec<u64>; 2],
    faults: Vec<(Fault, u64)>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    frames: Vec<Frame>,
    /// Frames that are neither delivered nor dropped.
    open: BTreeSet<u64>,
    /// Announced frames by node and address.
    announced: BTreeMap<(usize, u64), Announced>,
    /// By sender and receiver: time of the last GET of an announced frame that had waited for a
    /// long time.
    lagged: BTreeMap<(usize, usize), u64>,
    /// Memory that GETs write to.
    gets: BTreeMap<(usize, u64), Got>,
    summary: Summary,
    /// Streams that send a new frame after each arrival.
    streams: Option<survival::Streams>,
    trace: Option<Vec<String>>,
}

impl Rig {
    /// Creates a run of this seed, with an injected bug if requested.
    ///
    /// # Errors
    ///
    /// Fails if the emulator rejects an operation.
    pub fn new(seed: u64, mutation: Option<Mutation>, trace: bool) -> Result<Self> {
        let mut rng = SmallRng::seed_from_u64(seed);
        // Several nodes attack one node.
        let siege = rng.random_bool(0.1);
        let count = match siege {
            true => 5,
            false => rng.random_range(2..=5usize),
        };
        let mut rig = Self::bare(seed, rng, (count, SMALL), mutation, trace)?;
        rig.set_up(siege)?;
        Ok(rig)
    }

    /// Creates idle nodes with tables of the given size.
    fn bare(
        seed: u64,
        rng: SmallRng,
        (count, tables): (usize, Tables),
        mutation: Option<Mutation>,
        trace: bool,
    ) -> Result<Self> {
        let fabric = Fabric::new(count, seed)?;
        let nodes = (0..count)
            .map(|i| Node::new(&fabric, i, tables, mutation))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
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
            delivered_before: [vec![0; count], vec![0; count]],
            faults: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            frames: Vec::new(),
            open: BTreeSet::new(),
            streams: None,
            announced: BTreeMap::new(),
            lagged: BTreeMap::new(),
            gets: BTreeMap::new(),
            summary: Summary::default(),
            trace: trace.then(Vec::new),
        })
    }

    /// Starts the driver of a node.
    fn start(&mut self, node: usize, pace: u64) -> Result<()> {
        self.pace.push(pace);
        self.nodes[node].up(&mut self.fabric)?;
        self.wake(node, 0, 1);
        self.at(0, Event::Watch(node));
        Ok(())
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

    /// Runs to the end.
    ///
    /// # Errors
    ///
    /// Returns the violated invariant.
    pub fn run(&mut self) -> Result<Summary, Violation> {
        match self.steps() {
            Ok(()) => {
                self.summary.holes = self.nodes.iter().map(|n| n.holes).sum();
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

    /// Returns the events so far, if tracing is enabled.
    pub fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// Returns the transitions of all state machines.
    pub fn transitions(&self) -> String {
        let all = self.nodes.iter();
        let texts: Vec<String> = all
            .map(|n| format!("node {}\n{}", n.nic, n.transitions()))
            .collect();
        texts.concat()
    }

    fn steps(&mut self) -> Result<()> {
        while let Some(Reverse((at, ..))) = self.events.peek() {
            // An earlier event of the world may wake a node.
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
            // The event was rescheduled.
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
                // An attack fills tables as large as the driver's. Checking them at each step would
                // take a third of the run time.
                if self.streams.is_none() || self.summary.steps % 16 == 0 {
                    self.nodes[node].check().map_err(anyhow::Error::msg)?;
                }
                self.set_timer(node);
            }
            if self.summary.steps % 16 == 0 {
                self.check_bound()?;
            }
        }
        self.check_end()
    }

    /// Lets nodes poll soon after their NIC has delivered something, like after an interrupt.
    fn listen(&mut self) {
        for n in 0..self.nodes.len() {
            let c = self.fabric.world.chip_counters(n);
            for (unit, delivered) in [c.velo.received, c.rma.notifications]
                .into_iter()
                .enumerate()
            {
                if delivered == self.delivered_before[unit][n] {
                    continue;
                }
                self.delivered_before[unit][n] = delivered;
                if unit == 0 {
                    self.unread[n].push_back((delivered, self.fabric.now()));
                }
                if unit == 1 || !self.masked[n] {
                    self.wake(n, unit, self.pace[n]);
                }
            }
        }
    }

    /// Schedules a poll function of `node` within `time`, unless it is scheduled already.
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

    /// Updates the timer event of a node.
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

    /// Returns true if no further event is needed.
    fn ends(&self) -> bool {
        self.fabric.now() >= END || self.finished()
    }

    fn step(&mut self, event: Event) -> Result<()> {
        let now = self.fabric.now();
        match event {
            Event::Poll(n) if !self.stuck[n] => {
                let budget = self.rng.random_range(1..16);
                // The CPU may have read the clock before another CPU made its last step.
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
            Event::Send(from, to) => {
                self.submit(from, to)?;
            }
            Event::Next(from, to) => self.next_of_stream(from, to)?,
            Event::Die(i) => self.announce_as(survival::DYING + i as u16, 1)?,
            Event::Runt(n, to) => self.runt(n, to)?,
            Event::Chatter(n, to) => self.chatter(n, to)?,
            Event::Drowse(n, sleeps) => {
                self.stuck[n] = sleeps;
                if !sleeps {
                    self.wake(n, 0, US);
                    self.wake(n, 1, US);
                }
            }
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
