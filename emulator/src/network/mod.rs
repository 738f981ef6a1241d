//! The fabric: crossbars that forward by the tables software wrote, and the cables between them.
//!
//! [`Network`] moves packets and tells the world what to do by [`Outcome`]s (deliver to a NIC, raise a trigger event). It
//! never calls a NIC. Every packet is accounted to the NIC that injected it until it is delivered or dropped, and a NIC may
//! inject only while it has credit, which bounds the memory of the whole fabric.

mod barrier;
mod link;
mod regs;
pub mod routes;
pub mod topology;

pub use link::{DownPolicy, Flap, LinkKnobs, LinkStats, MAX_DAMAGE};
pub use regs::{NodeRegs, PortAction, SharedRegs, NP_BASE, XBAR_PORTS};

use crate::env::{Dest, Packet};
use crate::trace::{Event, Tracer};
use link::{Cable, Damage};
use rand::rngs::SmallRng;
use rand::SeedableRng;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use topology::{End, Topology, LINKS};
use wire::route::{self, McastEntry, RouteWord};

/// Trigger event of an inport that saw illegal routing (HW §6.5).
const TE_XBAR_INPORT: u8 = 13;
/// Trigger event of a barrier.
const TE_BARRIER_RELEASED: u8 = 15;
/// Trigger event of a global interrupt.
const TE_GLOBAL_INTERRUPT: u8 = 16;
/// Trigger event of a link port.
const TE_LINK_PORT: u8 = 17;
/// Trigger event of the link MAC.
const TE_LINK_MAC: u8 = 20;

/// Options of the fabric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetConfig {
    /// What a link that is down does with packets.
    pub link_down: DownPolicy,
    /// Bytes that one direction of a link that is down holds.
    pub link_buffer_bytes: u64,
    /// Bytes that wait for a frozen NIC; above, packets are dropped and counted.
    pub np_buffer_bytes: u64,
    /// Payload bytes that a NIC may have under way.
    pub tx_credit_bytes: u64,
    /// Links that a packet may cross; 0: as many as there are NICs, at least 64.
    pub hop_limit: u32,
    /// Network ports that software has not enabled neither inject nor deliver.
    pub require_enabled_ports: bool,
    /// Knobs of all links at the start.
    pub link: LinkKnobs,
    /// Seed of all random draws.
    pub seed: u64,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            link_down: DownPolicy::Drop,
            link_buffer_bytes: 1 << 20,
            np_buffer_bytes: 4 << 20,
            tx_credit_bytes: 16 << 20,
            hop_limit: 0,
            require_enabled_ports: true,
            link: LinkKnobs::default(),
            seed: 1,
        }
    }
}

/// Why the network dropped a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropReason {
    /// No valid table entry.
    IllegalRouting,
    /// Crossed too many links.
    HopLimit,
    /// Multicast tables that copy without end.
    CopyLimit,
    /// Routed to a link without cable.
    NoCable,
    /// Link down.
    LinkDown,
    /// Buffer of a link that is down is full.
    LinkBuffer,
    /// Network port not enabled.
    PortDisabled,
    /// The NIC is frozen and its buffer full.
    Frozen,
    /// The NIC is powered off.
    PowerOff,
}

/// Packets of one NIC's crossbar and network ports. Counters run up from the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Packets that the NIC injected.
    pub injected: u64,
    /// Packets delivered to the NIC.
    pub delivered: u64,
    /// Packets that passed through from link to link.
    pub transit: u64,
    /// Copies made for multicasts.
    pub copies: u64,
    /// Drops: no legal route.
    pub illegal_routing: u64,
    /// Drops: hop limit.
    pub hop_limit: u64,
    /// Drops: copy limit of multicasts.
    pub copy_limit: u64,
    /// Drops: link without cable.
    pub no_cable: u64,
    /// Drops: link down, or its buffer full.
    pub link_down: u64,
    /// Drops: network port not enabled.
    pub port_disabled: u64,
    /// Drops: frozen and buffer full.
    pub frozen: u64,
    /// Drops: powered off.
    pub power_off: u64,
}

impl NodeStats {
    fn count(&mut self, reason: DropReason) {
        let c = match reason {
            DropReason::IllegalRouting => &mut self.illegal_routing,
            DropReason::HopLimit => &mut self.hop_limit,
            DropReason::CopyLimit => &mut self.copy_limit,
            DropReason::NoCable => &mut self.no_cable,
            DropReason::LinkDown | DropReason::LinkBuffer => &mut self.link_down,
            DropReason::PortDisabled => &mut self.port_disabled,
            DropReason::Frozen => &mut self.frozen,
            DropReason::PowerOff => &mut self.power_off,
        };
        *c += 1;
    }

    /// All drops.
    pub fn drops(&self) -> u64 {
        self.illegal_routing
            + self.hop_limit
            + self.copy_limit
            + self.no_cable
            + self.link_down
            + self.port_disabled
            + self.frozen
            + self.power_off
    }
}

/// A packet under way.
pub(crate) struct Flit {
    /// Number for traces.
    id: u64,
    pkt: Packet,
    /// NIC that injected it.
    origin: usize,
    hops: u32,
    /// Link crossings that all copies of a multicast may still make.
    copies: Option<Rc<Cell<u32>>>,
}

impl Flit {
    /// Accounted size: payload and bookkeeping.
    fn size(&self) -> u64 {
        u64::from(self.pkt.bytes) + 64
    }

    fn copy(&self) -> Self {
        Self {
            id: self.id,
            pkt: self.pkt.clone(),
            origin: self.origin,
            hops: self.hops,
            copies: self.copies.clone(),
        }
    }
}

/// What the world has to do for the network.
#[derive(Debug)]
pub enum Outcome {
    /// Hand the packet to this NIC.
    Deliver(usize, Packet),
    /// Raise the trigger event at this NIC.
    Event(usize, u8),
}

struct Step {
    nic: usize,
    inport: usize,
    flit: Flit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Arrive { cable: usize, side: usize },
    Flap { cable: usize },
}

struct Node {
    regs: Rc<RefCell<NodeRegs>>,
    /// GUID and node ID as software sees them.
    identity: (u32, u16),
    powered: bool,
    frozen: bool,
    waiting: VecDeque<Flit>,
    waiting_bytes: u64,
    in_flight: u64,
    stats: NodeStats,
    /// Cable and side of each link port.
    ports: [Option<(usize, usize)>; LINKS as usize],
}

/// State of one cable, for reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// Both ends as `NIC:PORT`.
    pub ends: (String, String),
    /// Plugged in.
    pub up: bool,
    /// Carries packets.
    pub live: bool,
    /// What happens while it is down.
    pub policy: DownPolicy,
    /// Goes down and up by itself.
    pub flapping: bool,
    /// Knobs.
    pub knobs: LinkKnobs,
    /// First end to second end.
    pub forward: LinkStats,
    /// Second end to first end.
    pub backward: LinkStats,
}

/// The fabric.
pub struct Network {
    cfg: NetConfig,
    nodes: Vec<Node>,
    cables: Vec<Cable>,
    steps: VecDeque<Step>,
    outcomes: VecDeque<(Outcome, Option<(usize, u64)>)>,
    timers: BTreeSet<(u64, Timer)>,
    rng: SmallRng,
    next_id: u64,
    now: u64,
}

impl Network {
    /// A fabric with empty tables; all links come up.
    pub fn new(topology: &Topology, cfg: NetConfig) -> Self {
        let node = || Node {
            regs: Rc::new(RefCell::new(NodeRegs::new())),
            identity: (0, 0),
            powered: true,
            frozen: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            in_flight: 0,
            stats: NodeStats::default(),
            ports: [None; LINKS as usize],
        };
        let mut nodes: Vec<Node> = (0..topology.nodes).map(|_| node()).collect();
        let mut cables = Vec::new();
        for (i, &(a, b)) in topology.cables.iter().enumerate() {
            for (side, end) in [a, b].into_iter().enumerate() {
                nodes[end.nic].ports[usize::from(end.port)] = Some((i, side));
            }
            cables.push(Cable::new(a, b, cfg.link_down, cfg.link));
        }
        Self {
            rng: SmallRng::seed_from_u64(cfg.seed),
            cfg,
            nodes,
            cables,
            steps: VecDeque::new(),
            outcomes: VecDeque::new(),
            timers: BTreeSet::new(),
            next_id: 0,
            now: 0,
        }
    }

    /// The registers of a NIC, to be installed in it.
    pub fn shared_regs(&self, nic: usize) -> SharedRegs {
        SharedRegs(Rc::clone(&self.nodes[nic].regs))
    }

    /// Options.
    pub fn config(&self) -> &NetConfig {
        &self.cfg
    }

    fn regs(&self, nic: usize) -> RefMut<'_, NodeRegs> {
        self.nodes[nic].regs.borrow_mut()
    }

    /// Payload bytes that this NIC may inject now.
    pub fn tx_credit(&self, nic: usize) -> u64 {
        let n = &self.nodes[nic];
        if n.frozen {
            return 0;
        }
        self.cfg.tx_credit_bytes.saturating_sub(n.in_flight)
    }

    /// True if the NIC is frozen.
    pub fn is_frozen(&self, nic: usize) -> bool {
        self.nodes[nic].frozen
    }

    /// Statistics of a NIC's crossbar, bytes of its packets under way, bytes waiting for it while frozen.
    pub fn node_stats(&self, nic: usize) -> (&NodeStats, u64, u64) {
        let n = &self.nodes[nic];
        (&n.stats, n.in_flight, n.waiting_bytes)
    }

    /// State of all cables.
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

    /// Ends of the cables that carry nothing now.
    pub fn dead_cables(&self) -> Vec<(End, End)> {
        self.cables
            .iter()
            .filter(|c| !c.live)
            .map(|c| (c.ends[0], c.ends[1]))
            .collect()
    }

    /// True if packets are ready to move or outcomes to be fetched.
    pub fn busy(&self) -> bool {
        !self.steps.is_empty() || !self.outcomes.is_empty()
    }

    /// When [`Network::run`] has something to do next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// GUID and node ID of a NIC as last told.
    pub fn identity(&self, nic: usize) -> (u32, u16) {
        self.nodes[nic].identity
    }

    /// Tells the network GUID and node ID of a NIC as its registers show them now.
    pub fn set_identity(&mut self, nic: usize, guid: u32, node_id: u16) {
        self.nodes[nic].identity = (guid, node_id);
    }

    /// Takes a packet from a NIC.
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
        let flit = Flit {
            id,
            pkt,
            origin: nic,
            hops: 0,
            copies,
        };
        self.nodes[nic].in_flight += flit.size();
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
            self.steps.push_back(Step {
                nic,
                inport: NP_BASE + np,
                flit,
            });
        }
    }

    /// Moves packets: at most `budget` crossbar passes. What it leads to is fetched with [`Network::outcome`].
    pub fn run(&mut self, now: u64, budget: usize, trace: &mut Tracer) -> usize {
        self.now = self.now.max(now);
        let mut left = budget;
        while left > 0 {
            if let Some(step) = self.steps.pop_front() {
                left -= 1;
                self.cross(step, trace);
            } else if self.timers.first().is_some_and(|(at, _)| *at <= self.now) {
                left -= 1;
                match self.timers.pop_first() {
                    Some((_, Timer::Arrive { cable, side })) => self.arrive(cable, side),
                    Some((_, Timer::Flap { cable })) => self.flap(cable, trace),
                    None => {}
                }
            } else {
                break;
            }
        }
        budget - left
    }

    /// The next thing for the world to do.
    pub fn outcome(&mut self) -> Option<Outcome> {
        let (outcome, credit) = self.outcomes.pop_front()?;
        if let Some((origin, size)) = credit {
            self.release(origin, size);
        }
        Some(outcome)
    }

    fn release(&mut self, origin: usize, size: u64) {
        let n = &mut self.nodes[origin].in_flight;
        *n = n.saturating_sub(size);
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
        self.release(flit.origin, flit.size());
    }

    fn raise(&mut self, nic: usize, te: u8) {
        if self.nodes[nic].powered {
            self.outcomes.push_back((Outcome::Event(nic, te), None));
        }
    }

    /// One pass through a crossbar.
    fn cross(&mut self, step: Step, trace: &mut Tracer) {
        let Step { nic, inport, flit } = step;
        if !self.nodes[nic].powered {
            return self.discard(nic, flit, DropReason::PowerOff, trace);
        }
        let limit = if self.cfg.hop_limit == 0 {
            self.nodes.len().max(64) as u32
        } else {
            self.cfg.hop_limit
        };
        let mut regs = self.nodes[nic].regs.borrow_mut();
        let inp = &mut regs.inports[inport];
        inp.received = inp.received.wrapping_add(1);
        let ports: Result<u16, DropReason> = match flit.pkt.dst {
            _ if flit.hops > limit => {
                inp.set_possible_deadlock();
                Err(DropReason::HopLimit)
            }
            Dest::Node(id) => {
                let found = route::lookup(
                    id,
                    |i| RouteWord(inp.grt[usize::from(i)]),
                    |i| RouteWord(inp.lrt[usize::from(i)]),
                );
                found
                    .map(|p| 1 << p.get())
                    .map_err(|_| DropReason::IllegalRouting)
            }
            Dest::Group(g) => {
                let entry = inp
                    .mcast
                    .get(usize::from(g))
                    .map_or(0, |&w| McastEntry(w).ports());
                // Nobody else in the group is legal; a group that does not exist is not.
                if g < 64 {
                    Ok(entry)
                } else {
                    Err(DropReason::IllegalRouting)
                }
            }
        };
        let ports = match ports {
            Ok(p) => p,
            Err(reason) => {
                if reason == DropReason::IllegalRouting {
                    inp.set_illegal();
                }
                drop(regs);
                self.discard(nic, flit, reason, trace);
                return self.raise(nic, TE_XBAR_INPORT);
            }
        };
        // All network ports mean "here": the unit comes with the packet.
        let np = NP_BASE + flit.pkt.port as usize;
        let here = ports >> NP_BASE != 0;
        let links = ports & ((1 << NP_BASE) - 1);
        let n = links.count_ones() + u32::from(here);
        inp.sent = inp.sent.wrapping_add(n);
        for p in (0..NP_BASE)
            .filter(|p| (links >> p) & 1 != 0)
            .chain(here.then_some(np))
        {
            let out = &mut regs.outports[p];
            out.sent = out.sent.wrapping_add(1);
        }
        drop(regs);
        if inport < NP_BASE && links != 0 {
            self.nodes[nic].stats.transit += 1;
        }
        if n == 0 {
            return self.release(flit.origin, flit.size());
        }
        let mut flit = Some(flit);
        let mut left = n;
        for p in (0..XBAR_PORTS).filter(|&p| {
            if p < NP_BASE {
                (links >> p) & 1 != 0
            } else {
                here && p == np
            }
        }) {
            left -= 1;
            let one = match (&flit, left) {
                (Some(f), 1..) => {
                    self.nodes[f.origin].in_flight += f.size();
                    self.nodes[nic].stats.copies += 1;
                    f.copy()
                }
                _ => match flit.take() {
                    Some(f) => f,
                    None => return,
                },
            };
            if trace.on() {
                trace.record(
                    nic,
                    self.now,
                    Event::Hop {
                        id: one.id,
                        inport: inport as u8,
                        outport: p as u8,
                    },
                );
            }
            if p < NP_BASE {
                self.transmit(nic, p, one, trace);
            } else {
                self.deliver(nic, one, trace);
            }
        }
    }

    fn deliver(&mut self, nic: usize, flit: Flit, trace: &mut Tracer) {
        let np = flit.pkt.port as usize;
        let enabled = {
            let mut regs = self.regs(nic);
            let port = &mut regs.nps[np];
            port.to_host.0 = port.to_host.0.wrapping_add(1);
            port.enabled() || !self.cfg.require_enabled_ports
        };
        if !enabled {
            return self.discard(nic, flit, DropReason::PortDisabled, trace);
        }
        let node = &mut self.nodes[nic];
        if node.frozen {
            if node.waiting_bytes + flit.size() > self.cfg.np_buffer_bytes {
                node.regs.borrow_mut().nps[np].full = true;
                return self.discard(nic, flit, DropReason::Frozen, trace);
            }
            node.waiting_bytes += flit.size();
            node.regs.borrow_mut().nps[np].waiting = true;
            node.waiting.push_back(flit);
            return;
        }
        self.hand_over(nic, flit, trace);
    }

    fn hand_over(&mut self, nic: usize, flit: Flit, trace: &mut Tracer) {
        {
            let mut regs = self.regs(nic);
            let port = &mut regs.nps[flit.pkt.port as usize];
            port.to_host.1 = port.to_host.1.wrapping_add(1);
        }
        self.nodes[nic].stats.delivered += 1;
        if trace.on() {
            trace.record(
                nic,
                self.now,
                Event::Deliver {
                    id: flit.id,
                    port: flit.pkt.port as u8,
                },
            );
        }
        let credit = Some((flit.origin, flit.size()));
        self.outcomes
            .push_back((Outcome::Deliver(nic, flit.pkt), credit));
    }

    fn transmit(&mut self, nic: usize, port: usize, mut flit: Flit, trace: &mut Tracer) {
        let Some((c, side)) = self.nodes[nic].ports[port] else {
            return self.discard(nic, flit, DropReason::NoCable, trace);
        };
        if let Some(left) = &flit.copies {
            if left.get() == 0 {
                return self.discard(nic, flit, DropReason::CopyLimit, trace);
            }
            left.set(left.get() - 1);
        }
        flit.hops += 1;
        let size = flit.size();
        let cable = &mut self.cables[c];
        if !cable.live {
            if cable.policy == DownPolicy::Drop {
                cable.dirs[side].stats.dropped_down += 1;
                return self.discard(nic, flit, DropReason::LinkDown, trace);
            }
            if cable.dirs[side].stats.queued_bytes + size > self.cfg.link_buffer_bytes {
                cable.dirs[side].stats.dropped_full += 1;
                return self.discard(nic, flit, DropReason::LinkBuffer, trace);
            }
            cable.dirs[side].stats.queued_bytes += size;
            cable.dirs[side].queue.push_back((self.now, flit));
            return;
        }
        let damage = cable.damage(&mut self.rng);
        let late = cable.jitter(&mut self.rng);
        let at = cable.schedule(side, flit.pkt.bytes.into(), self.now, &damage, late);
        let direct = at <= self.now && cable.dirs[side].queue.is_empty();
        let dir = &mut cable.dirs[side];
        dir.stats.corrupted += u64::from(damage.corrupted);
        dir.stats.lost += u64::from(damage.lost);
        let ends = cable.ends;
        if !direct {
            if dir.queue.is_empty() {
                self.timers.insert((at, Timer::Arrive { cable: c, side }));
            }
            dir.stats.queued_bytes += size;
            dir.queue.push_back((at, flit));
            self.count_sent(ends[side], ends[1 - side], &damage);
            return;
        }
        self.count_sent(ends[side], ends[1 - side], &damage);
        self.land(c, side, flit);
    }

    /// Counters of both link ports for a packet that was sent, perhaps several times.
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

    /// A packet comes out of a cable.
    fn land(&mut self, cable: usize, side: usize, flit: Flit) {
        let c = &mut self.cables[cable];
        let to = c.ends[1 - side];
        c.dirs[side].stats.packets += 1;
        c.dirs[side].stats.bytes += u64::from(flit.pkt.bytes);
        let mut regs = self.nodes[to.nic].regs.borrow_mut();
        let lp = &mut regs.links[usize::from(to.port)];
        lp.received = lp.received.wrapping_add(1);
        drop(regs);
        self.steps.push_back(Step {
            nic: to.nic,
            inport: to.port.into(),
            flit,
        });
    }

    fn arrive(&mut self, cable: usize, side: usize) {
        let dir = &mut self.cables[cable].dirs[side];
        let Some((_, flit)) = dir.queue.pop_front() else {
            return;
        };
        dir.stats.queued_bytes -= flit.size();
        if let Some((at, _)) = dir.queue.front() {
            self.timers.insert((*at, Timer::Arrive { cable, side }));
        }
        self.land(cable, side, flit);
    }
}

mod control;

#[cfg(test)]
mod tests;
