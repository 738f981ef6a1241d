//! Flow of packets through crossbars with finite buffers.
//!
//! A packet advances when the next buffer of its channel has space, and waits otherwise. Blocked
//! traffic therefore backs up hop by hop to the senders (HW §9.6, §15).
//!
//! Every inport has a queue per virtual channel. A virtual channel is a channel ([`Lane::channel`])
//! combined with one of two deterministic virtual channels, of which the routing table chooses one.
//!
//! The head of a queue waits for the buffer that it needs next. When space becomes free, it is
//! granted to one waiting head, round robin over the inports. That head wakes the next waiting head
//! afterwards. New heads queue behind waiting heads. Each hop therefore costs a bounded number of
//! steps, regardless of the number of waiting packets.

use super::DownPolicy;
use super::{
    order, DropReason, Flit, IllegalRouting, Network, Outcome, Timer, NP_BASE, TE_XBAR_INPORT,
};
use super::{TE_XBAR_OUTPORT, XBAR_PORTS};
use crate::env::Dest;
use crate::lane::{Lane, CHANNELS, OVERHEAD};
use crate::trace::{Event, Tracer};
use std::collections::VecDeque;
use std::rc::Rc;
use wire::route::{self, McastEntry, RouteWord};

/// Number of inports of a crossbar: seven links, then VELO, RMA and SMFU.
const PLACES: usize = NP_BASE + 3;
/// Number of input queues of a channel.
const INPUTS: usize = 2 * PLACES;
/// Number of outputs of a channel: each link with each of its virtual channels, then the three
/// units.
const OUTPUTS: usize = 2 * NP_BASE + 3;
/// Number of the first output that leads to a unit.
const HERE: usize = 2 * NP_BASE;

/// An input queue of a NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct InputQueue {
    pub(super) nic: u32,
    pub(super) channel: u8,
    /// Inport times two, plus the deterministic virtual channel. The inport is the number of a
    /// link, or [`NP_BASE`] and above for a unit.
    pub(super) input: u8,
}

impl InputQueue {
    pub(super) fn link(nic: usize, port: u8, channel: usize, dvc: usize) -> Self {
        Self {
            nic: nic as u32,
            channel: channel as u8,
            input: port * 2 + dvc as u8,
        }
    }

    fn unit(nic: usize, lane: Lane) -> Self {
        Self::link(
            nic,
            (NP_BASE + lane.port() as usize) as u8,
            lane.channel(),
            0,
        )
    }

    pub(super) fn queue(self) -> usize {
        usize::from(self.channel) * INPUTS + usize::from(self.input)
    }

    /// Returns the number of the link, or [`NP_BASE`] and above for units.
    pub(super) fn port(self) -> usize {
        usize::from(self.input) / 2
    }

    pub(super) fn dvc(self) -> usize {
        usize::from(self.input) % 2
    }
}

/// Packets in an input queue, which wait for the crossbar.
#[derive(Default)]
pub(super) struct Input {
    pub(super) flits: VecDeque<Flit>,
    /// Number of occupied bytes, including packets in flight to this queue.
    pub(super) bytes: u64,
    scheduled: bool,
    /// Set of outputs that are granted to the head of the queue.
    granted: u32,
    /// True while the queue is in the list of the deadlock detector.
    pub(super) listed: bool,
    /// True while the queue is part of a deadlock that has been reported.
    pub(super) reported: bool,
}

/// Maximum number of bytes that a VELO message occupies in a buffer (HW §9).
const LARGEST_MESSAGE: u64 = 120 + OVERHEAD;

/// Inputs that wait for one output.
#[derive(Default, Clone)]
struct Waiters {
    inputs: u32,
    /// True while an input has been granted the output and has not used it.
    granted: bool,
    /// Input with the highest priority in the next grant.
    next: u8,
}

/// Packets that wait for a unit of the NIC in one lane.
#[derive(Default)]
struct Arrived {
    flits: VecDeque<Flit>,
    bytes: u64,
    scheduled: bool,
}

/// The crossbar of a NIC and the buffers around it.
pub(super) struct Crossbar {
    pub(super) inputs: Vec<Input>,
    outputs: Vec<Waiters>,
    arrived: Vec<Arrived>,
    /// Set of lanes from which the units accept packets.
    takes: u16,
}

impl Crossbar {
    /// Returns an empty crossbar. `start` returns the first input of each arbiter.
    pub(super) fn new(mut start: impl FnMut() -> u8) -> Self {
        let mut inputs = Vec::new();
        inputs.resize_with(CHANNELS * INPUTS, Input::default);
        let waiters = || Waiters {
            next: start() % INPUTS as u8,
            ..Waiters::default()
        };
        let mut outputs = Vec::new();
        outputs.resize_with(CHANNELS * OUTPUTS, waiters);
        let mut arrived = Vec::new();
        arrived.resize_with(crate::lane::LANES, Arrived::default);
        Self {
            inputs,
            outputs,
            arrived,
            takes: Lane::EVERY,
        }
    }

    /// Restarts the arbiters. `start` returns the first input of each arbiter.
    pub(super) fn restart(&mut self, mut start: impl FnMut() -> u8) {
        for waiters in &mut self.outputs {
            waiters.next = start() % INPUTS as u8;
        }
    }

    /// Returns the number of bytes that wait for the units.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.arrived.iter().map(|a| a.bytes).sum()
    }
}

/// Iterates over the set bits of a mask, lowest first.
fn ones(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let low = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            low
        })
    })
}

fn fits(used: u64, size: u64, limit: u64) -> bool {
    // A packet larger than the buffer passes alone.
    used == 0 || used + size <= limit
}

impl Network {
    pub(super) fn input(&mut self, at: InputQueue) -> &mut Input {
        &mut self.nodes[at.nic as usize].xbar.inputs[at.queue()]
    }

    fn output(&mut self, nic: usize, channel: usize, output: usize) -> &mut Waiters {
        &mut self.nodes[nic].xbar.outputs[channel * OUTPUTS + output]
    }

    fn schedule(&mut self, at: InputQueue) {
        let input = self.input(at);
        if !input.scheduled && !input.flits.is_empty() {
            input.scheduled = true;
            self.steps.push_back(at);
        }
    }

    /// Appends a packet to a queue in which space for it has been reserved.
    pub(super) fn enqueue(&mut self, at: InputQueue, flit: Flit) {
        self.input(at).flits.push_back(flit);
        self.schedule(at);
    }

    /// Puts a packet that this NIC sends into its crossbar.
    pub(super) fn enter(&mut self, nic: usize, flit: Flit) {
        let at = InputQueue::unit(nic, flit.lane);
        self.input(at).bytes += flit.size();
        self.enqueue(at, flit);
    }

    /// Returns the number of free bytes of a lane of a NIC.
    pub(super) fn lane_room(&self, nic: usize, lane: Lane) -> u64 {
        let used = self.nodes[nic].xbar.inputs[InputQueue::unit(nic, lane).queue()].bytes;
        self.cfg.input_buffer_bytes.saturating_sub(used)
    }

    /// Returns the input queue at the far side of an output, or `None` if the link of the output
    /// carries no packets.
    pub(super) fn far(&self, nic: usize, channel: usize, output: usize) -> Option<InputQueue> {
        if output >= HERE {
            return None;
        }
        let (cable, side) = self.nodes[nic].ports[output / 2]?;
        let cable = &self.cables[cable];
        let to = cable.ends[1 - side];
        cable
            .live
            .then(|| InputQueue::link(to.nic, to.port, channel, output % 2))
    }

    /// Returns true if a packet may leave through this output, because there is space or because
    /// the packet will be dropped.
    fn open(&self, nic: usize, output: usize, lane: Lane, size: u64) -> bool {
        if output >= HERE {
            let used = self.nodes[nic].xbar.arrived[lane.index()].bytes;
            return fits(used, size, self.cfg.np_buffer_bytes);
        }
        self.far(nic, lane.channel(), output).is_none_or(|to| {
            let used = self.nodes[to.nic as usize].xbar.inputs[to.queue()].bytes;
            fits(used, size, self.cfg.input_buffer_bytes)
        })
    }

    /// Grants this output to the next input that waits for it, if the packet of that input fits.
    fn wake(&mut self, nic: usize, channel: usize, output: usize) {
        loop {
            let w = self.output(nic, channel, output);
            if w.granted || w.inputs == 0 {
                return;
            }
            let ahead = w.inputs >> w.next << w.next;
            let input = if ahead != 0 { ahead } else { w.inputs }.trailing_zeros() as u8;
            let at = InputQueue {
                nic: nic as u32,
                channel: channel as u8,
                input,
            };
            let head = self.input(at).flits.front();
            let wants = head.filter(|f| f.todo & (1 << output) != 0);
            let Some((lane, size)) = wants.map(|f| (f.lane, f.size())) else {
                self.output(nic, channel, output).inputs &= !(1 << input);
                continue;
            };
            if !self.open(nic, output, lane, size) {
                return;
            }
            let w = self.output(nic, channel, output);
            w.inputs &= !(1 << input);
            w.next = (input + 1) % INPUTS as u8;
            w.granted = true;
            self.input(at).granted |= 1 << output;
            return self.schedule(at);
        }
    }

    /// Retries all packets that wait for a link. Called after the link went up or down.
    pub(super) fn wake_link(&mut self, nic: usize, port: u8) {
        for channel in 0..CHANNELS {
            for output in [usize::from(port) * 2, usize::from(port) * 2 + 1] {
                let inputs = std::mem::take(&mut self.output(nic, channel, output).inputs);
                for input in ones(inputs) {
                    self.schedule(InputQueue {
                        nic: nic as u32,
                        channel: channel as u8,
                        input: input as u8,
                    });
                }
            }
        }
    }

    /// Frees space in an input queue and wakes the upstream packets that wait for it.
    pub(super) fn free(&mut self, at: InputQueue, size: u64) {
        let input = self.input(at);
        input.bytes = input.bytes.saturating_sub(size);
        if at.port() < NP_BASE {
            if let Some((cable, side)) = self.nodes[at.nic as usize].ports[at.port()] {
                let from = self.cables[cable].ends[1 - side];
                let output = usize::from(from.port) * 2 + at.dvc();
                self.wake(from.nic, at.channel.into(), output);
            }
        }
    }

    /// Routes the head of an input queue and forwards it to all outputs with space.
    pub(super) fn advance(&mut self, at: InputQueue, trace: &mut Tracer) {
        let (nic, channel) = (at.nic as usize, usize::from(at.channel));
        let input = self.input(at);
        input.scheduled = false;
        let granted = std::mem::take(&mut input.granted);
        let head = input.flits.pop_front();
        let waits = head.map_or(0, |flit| self.advance_head(at, flit, granted, trace));
        for output in ones(granted) {
            self.output(nic, channel, output).granted = false;
        }
        // Unused grants are passed on, because other inputs may wait for these outputs.
        for output in ones(granted | waits) {
            self.wake(nic, channel, output);
        }
    }

    /// Forwards the head of a queue. Returns the set of outputs that the head must wait for.
    fn advance_head(
        &mut self,
        at: InputQueue,
        flit: Flit,
        granted: u32,
        trace: &mut Tracer,
    ) -> u32 {
        let nic = at.nic as usize;
        let size = flit.size();
        let todo = match flit.todo {
            0 => self.route(nic, at, &flit),
            todo => Ok(todo),
        };
        match todo {
            Ok(todo) => {
                let (waits, rest) = self.let_out(at, flit, todo, granted, trace);
                if let (Some(mut flit), 1..) = (rest, waits) {
                    flit.todo = waits;
                    self.input(at).flits.push_front(flit);
                    if waits & ((1 << HERE) - 1) != 0 {
                        self.list_stalled(at);
                    }
                    return waits;
                }
            }
            Err(reason) => self.discard(nic, flit, reason, trace),
        }
        self.input(at).reported = false;
        self.free(at, size);
        self.schedule(at);
        0
    }

    /// Forwards a packet to the outputs in `todo` that have space. Returns the outputs that it must
    /// wait for, and the packet if there are such outputs.
    fn let_out(
        &mut self,
        at: InputQueue,
        flit: Flit,
        todo: u32,
        granted: u32,
        trace: &mut Tracer,
    ) -> (u32, Option<Flit>) {
        let (nic, lane, size) = (at.nic as usize, flit.lane, flit.size());
        let me = 1u32 << at.input;
        let mut waits = todo;
        let mut flit = Some(flit);
        for output in ones(todo) {
            let bit = 1 << output;
            let open = self.open(nic, output, lane, size);
            let w = self.output(nic, at.channel.into(), output);
            let turn = granted & bit != 0 || (w.inputs & !me == 0 && !w.granted);
            if !(open && turn) {
                w.inputs |= me;
                if output >= HERE && lane.bit() & Lane::VELO != 0 {
                    self.ready(nic, lane);
                }
                continue;
            }
            w.inputs &= !me;
            waits &= !bit;
            let one = match &flit {
                Some(f) if waits != 0 => {
                    self.nodes[nic].stats.copies += 1;
                    f.copy()
                }
                _ => match flit.take() {
                    Some(f) => f,
                    None => break,
                },
            };
            self.leave(at, output, one, trace);
        }
        (waits, flit)
    }

    fn leave(&mut self, at: InputQueue, output: usize, flit: Flit, trace: &mut Tracer) {
        let nic = at.nic as usize;
        let np = NP_BASE + flit.pkt.port as usize;
        let outport = if output < HERE { output / 2 } else { np };
        let inport = self.inport(at, &flit);
        {
            let mut regs = self.nodes[nic].regs.borrow_mut();
            let sent = &mut regs.inports[inport].sent;
            *sent = sent.wrapping_add(1);
            let sent = &mut regs.outports[outport].sent;
            *sent = sent.wrapping_add(1);
        }
        if trace.on() {
            let event = Event::Hop {
                id: flit.id,
                inport: inport as u8,
                outport: outport as u8,
            };
            trace.record(nic, self.now, event);
        }
        if output < HERE {
            self.transmit(nic, output, flit, trace);
        } else {
            self.arrive_here(nic, flit, trace);
        }
    }

    /// Returns the crossbar inport of a packet in the numbering of the registers.
    fn inport(&self, at: InputQueue, flit: &Flit) -> usize {
        match at.port() {
            link @ 0..NP_BASE => link,
            _ => NP_BASE + flit.pkt.port as usize,
        }
    }

    /// Looks up a packet in the routing tables of its inport. Returns the set of its outputs.
    fn route(&mut self, nic: usize, at: InputQueue, flit: &Flit) -> Result<u32, DropReason> {
        if !self.nodes[nic].powered {
            return Err(DropReason::PowerOff);
        }
        let limit = if self.cfg.hop_limit == 0 {
            self.nodes.len().max(64) as u32
        } else {
            self.cfg.hop_limit
        };
        let inport = self.inport(at, flit);
        let mut guard = self.nodes[nic].regs.borrow_mut();
        let regs = &mut *guard;
        let inp = &mut regs.inports[inport];
        inp.received = inp.received.wrapping_add(1);
        if flit.hops > limit {
            inp.set_possible_deadlock();
            self.events.push_back((nic, TE_XBAR_INPORT));
            return Err(DropReason::HopLimit);
        }
        let ports: Option<(u16, usize)> = match flit.pkt.dst {
            Dest::Node(id) => {
                let mut dvc = 0;
                let mut see = |word: RouteWord| {
                    dvc = usize::from(word.dvc());
                    word
                };
                let grt = |i: u8| RouteWord(inp.grt[usize::from(i)]);
                let lrt = |i: u16| RouteWord(inp.lrt[usize::from(i)]);
                let found = match grt(id.segment()) {
                    w if w.local() => route::lookup(id, grt, |i| see(lrt(i))),
                    _ => route::lookup(id, |i| see(grt(i)), lrt),
                };
                found.ok().map(|port| (1 << port.get(), dvc))
            }
            // A group without other members is legal. A group number out of range is not legal.
            Dest::Group(g) => (g < 64).then(|| {
                let entry = inp.mcast.get(usize::from(g));
                (entry.map_or(0, |&w| McastEntry(w).ports()), 0)
            }),
        };
        let Some((ports, dvc)) = ports else {
            let te = match self.cfg.illegal_routing {
                IllegalRouting::Inport => {
                    inp.set_illegal();
                    TE_XBAR_INPORT
                }
                IllegalRouting::Outport => {
                    inp.sent = inp.sent.wrapping_add(1);
                    regs.outports[XBAR_PORTS - 1].swallow(flit.lane.channel());
                    TE_XBAR_OUTPORT
                }
            };
            self.events.push_back((nic, te));
            return Err(DropReason::IllegalRouting);
        };
        drop(guard);
        let mut todo = 0;
        for link in ones(u32::from(ports) & ((1 << NP_BASE) - 1)) {
            todo |= 1 << (2 * link + dvc);
        }
        if inport < NP_BASE && todo != 0 {
            self.nodes[nic].stats.transit += 1;
        }
        // All network ports mean "this node", because the packet determines the unit.
        if ports >> NP_BASE != 0 {
            todo |= 1 << (HERE + flit.lane.port() as usize);
        }
        Ok(todo)
    }

    fn transmit(&mut self, nic: usize, output: usize, mut flit: Flit, trace: &mut Tracer) {
        let Some((c, side)) = self.nodes[nic].ports[output / 2] else {
            return self.discard(nic, flit, DropReason::NoCable, trace);
        };
        if let Some(left) = &flit.copies {
            if left.get() == 0 {
                return self.discard(nic, flit, DropReason::CopyLimit, trace);
            }
            left.set(left.get() - 1);
        }
        flit.hops += 1;
        flit.todo = 0;
        flit.dvc = (output % 2) as u8;
        let size = flit.size();
        let cable = &mut self.cables[c];
        let dir = &mut cable.dirs[side];
        if !cable.live {
            if cable.policy == DownPolicy::Drop {
                dir.stats.dropped_down += 1;
                return self.discard(nic, flit, DropReason::LinkDown, trace);
            }
            if dir.stats.queued_bytes + size > self.cfg.link_buffer_bytes {
                dir.stats.dropped_full += 1;
                return self.discard(nic, flit, DropReason::LinkBuffer, trace);
            }
        }
        // A packet that is held at a link that is down has already reserved space at the far side.
        let ends = cable.ends;
        let to = ends[1 - side];
        let queue = InputQueue::link(to.nic, to.port, flit.lane.channel(), output % 2);
        self.input(queue).bytes += size;
        let cable = &mut self.cables[c];
        if !cable.live {
            let dir = &mut cable.dirs[side];
            dir.stats.queued_bytes += size;
            dir.queue.push_back((self.now, flit));
            return;
        }
        let damage = cable.damage(&mut self.rng);
        let late = cable.jitter(&mut self.rng);
        let at = cable.schedule(side, flit.pkt.bytes.into(), self.now, &damage, late);
        let dir = &mut cable.dirs[side];
        let direct = at <= self.now && dir.queue.is_empty();
        dir.stats.corrupted += u64::from(damage.corrupted);
        dir.stats.lost += u64::from(damage.lost);
        if !direct {
            if dir.queue.is_empty() {
                self.timers.insert((at, Timer::Arrive { cable: c, side }));
            }
            dir.stats.queued_bytes += size;
            dir.queue.push_back((at, flit));
            return self.count_sent(ends[side], to, &damage);
        }
        self.count_sent(ends[side], to, &damage);
        self.land(c, side, flit);
    }

    /// Puts a packet that leaves a cable into its input queue. Space for it was reserved when it
    /// was sent.
    fn land(&mut self, cable: usize, side: usize, flit: Flit) {
        let c = &mut self.cables[cable];
        let to = c.ends[1 - side];
        c.dirs[side].stats.packets += 1;
        c.dirs[side].stats.bytes += u64::from(flit.pkt.bytes);
        {
            let mut regs = self.nodes[to.nic].regs.borrow_mut();
            let lp = &mut regs.links[usize::from(to.port)];
            lp.received = lp.received.wrapping_add(1);
        }
        let dvc = usize::from(flit.dvc);
        self.enqueue(
            InputQueue::link(to.nic, to.port, flit.lane.channel(), dvc),
            flit,
        );
    }

    pub(super) fn arrive(&mut self, cable: usize, side: usize) {
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

    /// Passes a packet from the crossbar to a unit of this NIC.
    fn arrive_here(&mut self, nic: usize, flit: Flit, trace: &mut Tracer) {
        let enabled = {
            let mut regs = self.regs(nic);
            let port = &mut regs.nps[flit.pkt.port as usize];
            port.to_host.0 = port.to_host.0.wrapping_add(1);
            port.enabled() || !self.cfg.require_enabled_ports
        };
        if !enabled {
            return self.discard(nic, flit, DropReason::PortDisabled, trace);
        }
        let (lane, np) = (flit.lane, flit.pkt.port as usize);
        let arrived = &mut self.nodes[nic].xbar.arrived[lane.index()];
        arrived.bytes += flit.size();
        arrived.flits.push_back(flit);
        let full = arrived.bytes >= self.cfg.np_buffer_bytes;
        {
            let mut regs = self.regs(nic);
            regs.nps[np].waiting = true;
            regs.nps[np].full |= full;
        }
        self.ready(nic, lane);
    }

    /// Schedules a lane for delivery if its unit accepts packets.
    fn ready(&mut self, nic: usize, lane: Lane) {
        let node = &mut self.nodes[nic];
        let arrived = &mut node.xbar.arrived[lane.index()];
        let takes = node.xbar.takes & lane.bit() != 0 && !node.frozen;
        if takes && !arrived.scheduled && !arrived.flits.is_empty() {
            arrived.scheduled = true;
            self.ready.push_back((nic, lane));
        }
    }

    /// Schedules the VELO lanes of this NIC, because their messages may have become deliverable.
    pub(super) fn ready_messages(&mut self, nic: usize) {
        for lane in Lane::all().filter(|l| l.bit() & Lane::VELO != 0) {
            self.ready(nic, lane);
        }
    }

    /// Schedules the VELO lanes of all NICs, because a message has left the network and other
    /// messages may have waited for it.
    pub(super) fn ready_all_messages(&mut self) {
        for nic in 0..self.nodes.len() {
            self.ready_messages(nic);
        }
    }

    /// Returns the index of the next packet of a lane to deliver; usually the first packet. A
    /// message waits for earlier messages of its sender, and other packets pass it. While the
    /// buffer is full, this order is ignored, because the earlier messages could be behind the
    /// buffer.
    fn next_of(&mut self, nic: usize, lane: Lane) -> Option<usize> {
        let node = &self.nodes[nic];
        let (arrived, (_, id)) = (&node.xbar.arrived[lane.index()], node.identity);
        let full = arrived.bytes + LARGEST_MESSAGE > self.cfg.np_buffer_bytes;
        let mut waiting: Vec<&order::Message> = Vec::new();
        for (i, flit) in arrived.flits.iter().enumerate() {
            let Some(message) = &flit.order else {
                return Some(i);
            };
            if waiting.iter().any(|m| m.same_source(message)) {
                continue;
            }
            if full || self.order.is_next(message, nic, id) {
                return Some(i);
            }
            waiting.push(message);
        }
        None
    }

    /// Schedules all lanes of this NIC whose units accept packets.
    pub(super) fn ready_all(&mut self, nic: usize) {
        for lane in Lane::all() {
            self.ready(nic, lane);
        }
    }

    /// Sets the lanes from which the units of this NIC accept packets. Packets of other lanes wait
    /// in the fabric.
    pub fn set_takes(&mut self, nic: usize, lanes: u16) {
        let before = std::mem::replace(&mut self.nodes[nic].xbar.takes, lanes);
        if lanes & !before != 0 {
            self.ready_all(nic);
        }
    }

    /// Returns the next event or delivery that the world must process.
    pub fn outcome(&mut self, trace: &mut Tracer) -> Option<Outcome> {
        while let Some((nic, te)) = self.events.pop_front() {
            if self.nodes[nic].powered {
                return Some(Outcome::Event(nic, te));
            }
        }
        while let Some((nic, lane)) = self.ready.pop_front() {
            let node = &mut self.nodes[nic];
            let arrived = &mut node.xbar.arrived[lane.index()];
            arrived.scheduled = false;
            if node.xbar.takes & lane.bit() == 0 || node.frozen {
                continue;
            }
            let Some(at) = self.next_of(nic, lane) else {
                continue;
            };
            let node = &mut self.nodes[nic];
            let arrived = &mut node.xbar.arrived[lane.index()];
            let Some(flit) = arrived.flits.remove(at) else {
                continue;
            };
            arrived.bytes -= flit.size();
            let empty = arrived.flits.is_empty();
            node.stats.delivered += 1;
            {
                let mut regs = node.regs.borrow_mut();
                let port = &mut regs.nps[flit.pkt.port as usize];
                port.to_host.1 = port.to_host.1.wrapping_add(1);
                port.waiting &= !empty;
                port.full = false;
            }
            if let Some(message) = flit.order {
                message.delivered(nic);
                if Rc::strong_count(&message) == 1 && message.is_multicast() {
                    // Messages may wait for this multicast also at NICs that it has not reached.
                    drop(message);
                    self.ready_all_messages();
                } else {
                    drop(message);
                    self.ready_messages(nic);
                }
            } else {
                self.ready(nic, lane);
            }
            self.wake(nic, lane.channel(), HERE + lane.port() as usize);
            if trace.on() {
                let event = Event::Deliver {
                    id: flit.id,
                    port: flit.pkt.port as u8,
                };
                trace.record(nic, self.now, event);
            }
            return Some(Outcome::Deliver(nic, flit.pkt, flit.credit));
        }
        None
    }

    /// Discards all packets in the buffers of a NIC.
    pub(super) fn lose_buffers(&mut self, nic: usize, trace: &mut Tracer) {
        let xbar = &mut self.nodes[nic].xbar;
        xbar.takes = Lane::EVERY;
        let mut lost = Vec::new();
        for input in &mut xbar.inputs {
            for flit in input.flits.drain(..) {
                input.bytes = input.bytes.saturating_sub(flit.size());
                lost.push(flit);
            }
            (input.granted, input.reported) = (0, false);
        }
        for arrived in &mut xbar.arrived {
            arrived.bytes = 0;
            lost.extend(arrived.flits.drain(..));
        }
        for w in &mut xbar.outputs {
            (w.inputs, w.granted) = (0, false);
        }
        for np in &mut self.regs(nic).nps {
            (np.waiting, np.full) = (false, false);
        }
        for flit in lost {
            self.discard(nic, flit, DropReason::PowerOff, trace);
        }
    }

    /// Frees the space that was reserved for a packet that was lost on a cable.
    pub(super) fn lost_on_cable(&mut self, cable: usize, side: usize, flit: &Flit) {
        let to = self.cables[cable].ends[1 - side];
        let queue = InputQueue::link(to.nic, to.port, flit.lane.channel(), flit.dvc.into());
        self.free(queue, flit.size());
    }

    /// Iterates over the input queues at the far side of the links that the head of a queue waits
    /// for.
    pub(super) fn waits_for(&self, at: InputQueue) -> impl Iterator<Item = InputQueue> + '_ {
        let input = &self.nodes[at.nic as usize].xbar.inputs[at.queue()];
        let todo = input.flits.front().map_or(0, |f| f.todo) & ((1 << HERE) - 1);
        ones(todo).filter_map(move |o| self.far(at.nic as usize, at.channel.into(), o))
    }
}

impl Flit {
    /// Returns the number of bytes that the packet occupies in a buffer: payload and overhead.
    pub(super) fn size(&self) -> u64 {
        self.credit.size()
    }

    fn copy(&self) -> Self {
        Self {
            id: self.id,
            pkt: self.pkt.clone(),
            lane: self.lane,
            credit: self.credit.copy(),
            hops: self.hops,
            todo: 0,
            dvc: 0,
            copies: self.copies.as_ref().map(Rc::clone),
            order: self.order.as_ref().map(Rc::clone),
        }
    }
}
