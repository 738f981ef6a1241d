//! The fabric: crossbars that forward packets by the tables that software wrote, and cables between
//! them.
//!
//! [`Network`] moves packets. It reports work for the world as [`Outcome`]s (deliver a packet to a
//! NIC, raise a trigger event) and never calls a NIC. A packet uses credit of the NIC that injected
//! it until it is stored or dropped.
//!
//! All buffers are finite. A packet waits while the next buffer is full, and a NIC may inject a
//! packet only while there is buffer space and credit. The memory of the whole fabric is therefore
//! bounded.

mod barrier;
mod deadlock;
mod flow;
mod link;
mod order;
mod regs;
pub mod routes;

pub use extoll_emulator_api::link::{DownPolicy, LinkKnobs, LinkStats, MAX_DAMAGE};
pub use extoll_emulator_api::network::{
    DropReason, IllegalRouting, LinkInfo, NetConfig, NodeStats,
};
pub use extoll_emulator_api::topology;
pub use link::Flap;
pub use regs::{NodeRegs, PortAction, SharedRegs, NP_BASE, XBAR_PORTS};

use crate::env::{Dest, Packet};
use crate::lane::{Lane, Receipt, LANES, OVERHEAD};
use crate::nic::Body;
use crate::seed::{self, Purpose};
use crate::trace::{Event, Tracer};
use flow::{Crossbar, InputQueue};
use link::{Cable, Damage};
use rand::rngs::SmallRng;
use rand::Rng;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use topology::{End, Topology, LINKS};

/// Number of the trigger event of an inport that received a packet without a legal route (HW §6.5).
const TE_XBAR_INPORT: u8 = 13;
/// Number of the trigger event of an outport (HW §6.5).
const TE_XBAR_OUTPORT: u8 = 14;
/// Number of the trigger event of a barrier.
const TE_BARRIER_RELEASED: u8 = 15;
/// Number of the trigger event of a global interrupt.
const TE_GLOBAL_INTERRUPT: u8 = 16;
/// Number of the trigger event of a link port.
const TE_LINK_PORT: u8 = 17;
/// Number of the trigger event of the link MAC.
const TE_LINK_MAC: u8 = 20;

/// A packet in flight.
pub(crate) struct Flit {
    /// Number that identifies the packet in traces.
    id: u64,
    pkt: Packet,
    lane: Lane,
    /// Credit of the NIC that injected the packet, which the packet uses.
    credit: Receipt,
    hops: u32,
    /// Set of crossbar outputs through which the packet must still leave; 0 if it has not been
    /// routed.
    todo: u32,
    /// Deterministic virtual channel on which the packet arrived.
    dvc: u8,
    /// Number of link crossings that the copies of a multicast may still make in total.
    copies: Option<Rc<Cell<u32>>>,
    /// State for the delivery order; `None` unless the packet is a VELO message.
    order: Option<Rc<order::Message>>,
}

/// Work that the world must do for the network.
#[derive(Debug)]
pub enum Outcome {
    /// Deliver the packet to this NIC. The world drops the receipt when the packet has been stored.
    Deliver(usize, Packet, Receipt),
    /// Raise the trigger event with this number at this NIC.
    Event(usize, u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Arrive { cable: usize, side: usize },
    Flap { cable: usize },
    Deadlock,
}

struct Node {
    regs: Rc<RefCell<NodeRegs>>,
    /// GUID and node ID that software reads from the registers.
    identity: (u32, u16),
    powered: bool,
    frozen: bool,
    xbar: Crossbar,
    in_flight: Rc<Cell<u64>>,
    /// Number of bytes that SMFU packets in flight occupy. The credit of requesters does not
    /// include them.
    smfu_in_flight: Rc<Cell<u64>>,
    stats: NodeStats,
    /// Cable at each link port, and the side of the cable.
    ports: [Option<(usize, usize)>; LINKS as usize],
}

/// State of the fabric.
pub struct Network {
    cfg: NetConfig,
    nodes: Vec<Node>,
    cables: Vec<Cable>,
    /// Input queues whose head may be able to advance.
    steps: VecDeque<InputQueue>,
    /// NICs and lanes that have packets to deliver.
    ready: VecDeque<(usize, Lane)>,
    /// NICs and numbers of trigger events to raise.
    events: VecDeque<(usize, u8)>,
    /// Input queues whose head waited for a link when it was last checked.
    stalled: Vec<InputQueue>,
    /// Descriptions of the deadlocks that were found, oldest first.
    deadlocks: Vec<String>,
    timers: BTreeSet<(u64, Timer)>,
    order: order::Order,
    rng: SmallRng,
    next_id: u64,
    now: u64,
}

impl Network {
    /// Returns a fabric with empty routing tables. All links come up.
    pub fn new(topology: &Topology, cfg: NetConfig) -> Self {
        let node = |i| Node {
            regs: Rc::new(RefCell::new(NodeRegs::new())),
            identity: (0, 0),
            powered: true,
            frozen: false,
            xbar: {
                let mut rng = seed::rng(cfg.seed, i, Purpose::Arbiters);
                Crossbar::new(|| rng.random())
            },
            in_flight: Rc::default(),
            smfu_in_flight: Rc::default(),
            stats: NodeStats::default(),
            ports: [None; LINKS as usize],
        };
        let mut nodes: Vec<Node> = (0..topology.nodes).map(node).collect();
        let mut cables = Vec::new();
        for (i, &(a, b)) in topology.cables.iter().enumerate() {
            for (side, end) in [a, b].into_iter().enumerate() {
                nodes[end.nic].ports[usize::from(end.port)] = Some((i, side));
            }
            cables.push(Cable::new(a, b, cfg.link_down, cfg.link));
        }
        Self {
            rng: seed::rng(cfg.seed, 0, Purpose::Network),
            cfg,
            nodes,
            cables,
            steps: VecDeque::new(),
            ready: VecDeque::new(),
            events: VecDeque::new(),
            stalled: Vec::new(),
            deadlocks: Vec::new(),
            timers: BTreeSet::new(),
            order: order::Order::default(),
            next_id: 0,
            now: 0,
        }
    }

    /// Returns the network registers of a NIC, which the caller installs in the NIC.
    pub fn shared_regs(&self, nic: usize) -> SharedRegs {
        SharedRegs(Rc::clone(&self.nodes[nic].regs))
    }

    /// Returns the options of the fabric.
    pub fn config(&self) -> &NetConfig {
        &self.cfg
    }

    fn regs(&self, nic: usize) -> RefMut<'_, NodeRegs> {
        self.nodes[nic].regs.borrow_mut()
    }

    /// Returns the number of bytes that the requesters of this NIC may send now, in all lanes
    /// together.
    pub fn tx_credit(&self, nic: usize) -> u64 {
        let used = self.nodes[nic].in_flight.get();
        self.cfg.tx_credit_bytes.saturating_sub(used)
    }

    /// Returns the counter of bytes that SMFU packets of this NIC occupy until they are stored.
    pub fn smfu_in_flight(&self, nic: usize) -> Rc<Cell<u64>> {
        Rc::clone(&self.nodes[nic].smfu_in_flight)
    }

    /// Returns the number of free bytes of each lane of this NIC; all 0 while the NIC is frozen.
    pub fn tx_room(&self, nic: usize) -> [u64; LANES] {
        let mut room = [0; LANES];
        if !self.nodes[nic].frozen {
            for lane in Lane::all() {
                room[lane.index()] = self.lane_room(nic, lane);
            }
        }
        room
    }

    /// Returns the set of lanes into which this NIC may send now.
    pub fn tx_open(&self, nic: usize) -> u16 {
        let node = &self.nodes[nic];
        let (frozen, credit) = (node.frozen, self.tx_credit(nic) > 0);
        let open = |l: &Lane| (credit || !l.is_request()) && self.lane_room(nic, *l) > 0;
        let open = Lane::all().filter(|l| !frozen && open(l));
        open.fold(0, |set, lane| set | lane.bit())
    }

    /// Returns true if the NIC is frozen.
    pub fn is_frozen(&self, nic: usize) -> bool {
        self.nodes[nic].frozen
    }

    /// Returns the statistics of a NIC's crossbar, the number of bytes of its packets that have not
    /// been stored, and the number of bytes that wait for its units.
    pub fn node_stats(&self, nic: usize) -> (&NodeStats, u64, u64) {
        let n = &self.nodes[nic];
        let in_flight = n.in_flight.get() + n.smfu_in_flight.get();
        (&n.stats, in_flight, n.xbar.waiting_bytes())
    }

    /// Returns the state of all cables.
    pub fn links(&self) -> Vec<LinkInfo> {
        let info = |c: &Cable| LinkInfo {
            ends: (c.ends[0].to_string(), c.ends[1].to_string()),
            up: c.up,
            live: c.live,
            policy: c.policy,
            flapping: c.flap.is_some(),
            knobs: c.knobs,
            forward: c.dirs[0].stats.clone(),
            backward: c.dirs[1].stats.clone(),
        };
        self.cables.iter().map(info).collect()
    }

    /// Returns the ends of the cables that carry no packets now.
    pub fn dead_cables(&self) -> Vec<(End, End)> {
        self.cables
            .iter()
            .filter(|c| !c.live)
            .map(|c| (c.ends[0], c.ends[1]))
            .collect()
    }

    /// Returns true if packets can advance or outcomes are pending.
    pub fn busy(&self) -> bool {
        !self.steps.is_empty() || !self.events.is_empty() || !self.ready.is_empty()
    }

    /// Returns the time at which the caller must call [`Network::run`] next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the GUID and the node ID of a NIC that were last set.
    pub fn identity(&self, nic: usize) -> (u32, u16) {
        self.nodes[nic].identity
    }

    /// Sets GUID and node ID of a NIC to the current values of its registers.
    pub fn set_identity(&mut self, nic: usize, guid: u32, node_id: u16) {
        self.nodes[nic].identity = (guid, node_id);
    }

    /// Accepts a packet that a NIC sends.
    pub fn inject(&mut self, nic: usize, pkt: Packet, trace: &mut Tracer) {
        let np = pkt.port as usize;
        self.next_id += 1;
        let id = self.next_id;
        if trace.on() {
            let (dst, group) = match pkt.dst {
                Dest::Node(n) => (n.0, false),
                Dest::Group(g) => (g.into(), true),
            };
            let body = pkt.body.kind().to_owned();
            let vpid = pkt.body.target_vpid();
            let ev = Event::Inject {
                id,
                src: pkt.src.0,
                dst,
                group,
                port: np as u8,
                vpid,
                bytes: pkt.bytes,
                body,
            };
            trace.record(nic, self.now, ev);
        }
        let copies = matches!(pkt.dst, Dest::Group(_))
            .then(|| Rc::new(Cell::new(2 * self.nodes.len() as u32 + 16)));
        let in_flight = match Lane::of(&pkt) {
            Lane::SMFU => Rc::clone(&self.nodes[nic].smfu_in_flight),
            _ => Rc::clone(&self.nodes[nic].in_flight),
        };
        let order = match &pkt.body {
            Body::Velo(m) => {
                let to = match pkt.dst {
                    Dest::Node(n) => Some(n.0),
                    Dest::Group(_) => None,
                };
                Some(self.order.send((nic, m.src_vpid), id, to))
            }
            _ => None,
        };
        let flit = Flit {
            id,
            lane: Lane::of(&pkt),
            credit: Receipt::new(in_flight, u64::from(pkt.bytes) + OVERHEAD),
            pkt,
            hops: 0,
            todo: 0,
            dvc: 0,
            copies,
            order,
        };
        self.nodes[nic].stats.injected += 1;
        let enabled = {
            let mut regs = self.regs(nic);
            let port = &mut regs.nps[np];
            port.to_network.0 = port.to_network.0.wrapping_add(1);
            let enabled = port.enabled() || !self.cfg.require_enabled_ports;
            if enabled {
                port.to_network.1 = port.to_network.1.wrapping_add(1);
            }
            enabled
        };
        if !self.nodes[nic].powered {
            self.discard(nic, flit, DropReason::PowerOff, trace);
        } else if !enabled {
            self.discard(nic, flit, DropReason::PortDisabled, trace);
        } else {
            self.enter(nic, flit);
        }
    }

    /// Moves packets in up to `budget` crossbar steps. Returns the number of steps done.
    /// [`Network::outcome`] returns the resulting work.
    pub fn run(&mut self, now: u64, budget: usize, trace: &mut Tracer) -> usize {
        self.now = self.now.max(now);
        let mut left = budget;
        while left > 0 {
            if let Some(step) = self.steps.pop_front() {
                left -= 1;
                self.advance(step, trace);
            } else if self.timers.first().is_some_and(|(at, _)| *at <= self.now) {
                left -= 1;
                match self.timers.pop_first() {
                    Some((_, Timer::Arrive { cable, side })) => self.arrive(cable, side),
                    Some((_, Timer::Flap { cable })) => self.flap(cable, trace),
                    Some((_, Timer::Deadlock)) => self.find_deadlocks(),
                    None => {}
                }
            } else {
                break;
            }
        }
        budget - left
    }

    fn discard(&mut self, nic: usize, flit: Flit, reason: DropReason, trace: &mut Tracer) {
        self.nodes[nic].stats.count(reason);
        if trace.on() {
            trace.record(
                nic,
                self.now,
                Event::Drop {
                    id: flit.id,
                    reason,
                },
            );
        }
        if flit.order.is_some() {
            drop(flit);
            self.ready_all_messages();
        }
    }

    fn raise(&mut self, nic: usize, te: u8) {
        if self.nodes[nic].powered {
            self.events.push_back((nic, te));
        }
    }

    /// Updates the counters of both link ports for a packet and its retransmissions.
    fn count_sent(&self, from: End, to: End, damage: &Damage) {
        let mut regs = self.regs(from.nic);
        let lp = &mut regs.links[usize::from(from.port)];
        lp.sent = lp.sent.wrapping_add(1);
        for i in 0..damage.corrupted + damage.lost {
            lp.resend(i >= damage.corrupted, i + 1);
        }
        drop(regs);
        if damage.corrupted > 0 {
            let mut regs = self.regs(to.nic);
            for _ in 0..damage.corrupted {
                regs.links[usize::from(to.port)].damaged();
            }
        }
    }
}

mod control;

#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod tests;
