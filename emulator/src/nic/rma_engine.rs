//! RMA transfers under way: the packets of puts at the requester and of get responses at the responder (HW §10.3).
//!
//! Commands and requests wait in flows, one per VPID and traffic class here or at the node that asks: within a flow they are
//! executed in order and one after the other (HW §10.8, G12). Between flows nothing is ordered, and chance decides packet by
//! packet which goes on. A call of the NIC sends a limited number of packets, so that a transfer of 8 MiB keeps nobody waiting.
//!
//! The memory of a packet is translated and read when the packet is sent, not before, and a fault ends the transfer there. A flow
//! may pause before it begins something and between packets (`rma-begin-ns`): nothing says when a source is read, only the
//! requester's notification that it was.

use super::late::Late;
use super::rma::RmaCommand;
use super::rma_mem::{FaultKind, Note, Source, Space};
use super::rma_regs::{Half, Reader, RmaError};
use super::tx::HOLD_COST;
use super::{Body, Nic, NicConfig, Part, RmaKind, RmaMessage};
use crate::env::{Dest, Env, NetPort, Packet, Stream};
use crate::lane::{Lane, Receipt};
use crate::seed::{self, Purpose};
use rand::rngs::SmallRng;
use rand::Rng;
use std::collections::VecDeque;
use wire::ids::{NodeId, Unit};
use wire::regs::rma as regs;
use wire::rma::FRAGMENT;

/// Packets that one call sends.
const TURN: usize = 64;
/// One in so many commands and requests, and one in so many packets, is preceded by a pause.
const BEGIN: u32 = 4;
const BETWEEN: u32 = 32;
/// Failed transfers of which the completer still expects packets; beyond, the oldest is forgotten.
const FAILED: usize = 256;

/// A pause without a time.
const ASKING: u64 = u64::MAX;

/// What is done in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// Commands of a VPID here.
    Requester {
        /// The VPID.
        vpid: u8,
        /// Traffic class.
        tc: u8,
    },
    /// Requests from a VPID of another node.
    Responder {
        /// The other node.
        node: u16,
        /// The VPID there.
        vpid: u8,
        /// Traffic class.
        tc: u8,
    },
}

impl Flow {
    /// Where its packets go.
    fn lane(self) -> Lane {
        match self {
            Self::Requester { tc, .. } => Lane::rma(tc),
            Self::Responder { .. } => Lane::RMA_RESPONSES,
        }
    }

    /// Writes that requests in it come after (HW §10.8).
    fn stream(self) -> Option<Stream> {
        match self {
            Self::Requester { .. } => None,
            Self::Responder { node, vpid, tc } => Some(Stream::Rma {
                node,
                vpid,
                tc,
                response: false,
            }),
        }
    }
}

/// Something that has not begun yet.
pub(super) enum Task {
    Command(RmaCommand),
    /// Request from a node that asks for a response, with its traffic class and the credit of the sender, which comes back when the
    /// answer begins.
    Serve(u16, u8, RmaMessage, Option<Receipt>),
}

/// A transfer whose packets are being sent.
pub(super) struct Transfer {
    /// The sub-unit that sends it.
    pub(super) by: Reader,
    pub(super) half: Half,
    /// About the notifications of this side, and whether they are wanted.
    pub(super) note: Note,
    pub(super) wanted: bool,
    /// Where the data are read.
    pub(super) space: Space,
    pub(super) from: u64,
    /// Where they are written at the other end.
    pub(super) to: u64,
    pub(super) len: u32,
    /// Bytes sent.
    pub(super) done: u32,
    /// Of the next packet, while other devices are asked for it.
    pub(super) source: Option<Source>,
    pub(super) number: u32,
    /// What all its packets say.
    pub(super) message: RmaMessage,
    pub(super) node: u16,
    pub(super) tc: u8,
}

struct Queue {
    flow: Flow,
    now: Option<Transfer>,
    waiting: VecDeque<Task>,
    /// It pauses until then; 0: it does not; [`ASKING`]: until other devices have answered.
    until: u64,
}

impl Queue {
    fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.now.is_some())
    }
}

pub(super) struct Engine {
    /// Flows with something in them.
    queues: Vec<Queue>,
    /// Tasks and transfers in them.
    len: usize,
    /// Number of the last transfer.
    number: u32,
    /// Transfers to this node of which a packet could not be written: node that sends it and its number.
    failed: VecDeque<(u16, u32)>,
    /// Packets that the current call may send.
    turn: usize,
    rng: SmallRng,
    late: Late,
}

impl Engine {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        Self {
            queues: Vec::new(),
            len: 0,
            number: 0,
            failed: VecDeque::new(),
            turn: TURN,
            rng: cfg.draws(Purpose::Transfers),
            late: Late::new(cfg, Purpose::Pauses, cfg.rma_begin_ns),
        }
    }

    pub(super) fn reseed(&mut self, seed: u64) {
        self.rng = seed::rng(seed, 0, Purpose::Transfers);
        self.late.reseed(seed);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queues.is_empty()
    }

    /// True if a flow has something to send and does not pause.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.queues.iter().any(|q| q.until == 0)
    }

    /// When the first pause ends.
    pub(super) fn next_due(&self) -> Option<u64> {
        let pauses = self.queues.iter().map(|q| q.until);
        pauses.filter(|at| *at != 0 && *at != ASKING).min()
    }

    /// Ends the pauses that are over.
    pub(super) fn wake(&mut self, now: u64) {
        let due = |q: &&mut Queue| q.until != ASKING && (1..=now).contains(&q.until);
        self.queues.iter_mut().filter(due).for_each(|q| q.until = 0);
    }

    /// End of a pause that begins now, one in so many times; else 0.
    fn pause(&mut self, every: u32, now: u64) -> u64 {
        match self.late.draw_one_in(every) {
            0 => 0,
            ns => now.saturating_add(ns),
        }
    }

    /// Commands, requests and transfers that are not done.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// As [`Engine::len`], of what goes out in one lane.
    pub(super) fn len_in(&self, lane: Lane) -> usize {
        let here = self.queues.iter().filter(|q| q.flow.lane() == lane);
        here.map(Queue::len).sum()
    }

    /// Lanes in which something is left to send now.
    pub(super) fn lanes(&self) -> u16 {
        let ready = self.queues.iter().filter(|q| q.until == 0);
        ready.fold(0, |set, q| set | q.flow.lane().bit())
    }

    /// A packet arrives. What is already going on sends one in return and no more, or two NICs that send to each other would
    /// fill the network.
    pub(super) fn pace(&mut self) {
        self.turn = if self.is_ready() { 1 } else { TURN };
    }

    pub(super) fn push(&mut self, flow: Flow, task: Task, now: u64) {
        self.len += 1;
        if let Some(q) = self.queues.iter_mut().find(|q| q.flow == flow) {
            q.waiting.push_back(task);
            return;
        }
        let until = self.pause(BEGIN, now);
        self.queues.push(Queue {
            flow,
            now: None,
            waiting: VecDeque::from([task]),
            until,
        });
    }

    /// Number for a new transfer.
    pub(super) fn number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// Draws whose turn it is, of those with an open lane.
    fn draw(&mut self, open: u16) -> Option<usize> {
        let may = |q: &Queue| q.until == 0 && q.flow.lane().bit() & open != 0;
        let ready = self.queues.iter().filter(|q| may(q)).count();
        let nth = match ready {
            0 => return None,
            1 => 0,
            n => self.rng.random_range(0..n),
        };
        let mut all = self.queues.iter().enumerate().filter(|(_, q)| may(q));
        all.nth(nth).map(|(i, _)| i)
    }

    /// Forgets everything that has to do with a VPID of this node; returns how much that was, and how many commands that had not
    /// begun.
    fn forget(&mut self, vpid: u8) -> (usize, usize) {
        let before = self.len;
        let mut commands = 0;
        for q in &mut self.queues {
            let requester = matches!(q.flow, Flow::Requester { vpid: v, .. } if v == vpid);
            if q.now.as_ref().is_some_and(|t| t.note.vpid == vpid) {
                q.now = None;
                // What it has asked for comes to nobody.
                q.until = if q.until == ASKING { 0 } else { q.until };
            }
            q.waiting.retain(|task| match task {
                Task::Command(_) => {
                    commands += usize::from(requester);
                    !requester
                }
                Task::Serve(_, _, m, _) => m.peer_vpid != vpid,
            });
        }
        self.queues.retain(|q| q.len() != 0);
        self.len = self.queues.iter().map(Queue::len).sum();
        (before - self.len, commands)
    }

    /// A packet of a transfer arrives: true if it belongs to one that has failed before, so that it is left out.
    pub(super) fn leave_out(&mut self, from: u16, part: Part) -> bool {
        if self.failed.is_empty() {
            return false;
        }
        let this = |t: &(u16, u32)| *t == (from, part.transfer);
        let Some(i) = self.failed.iter().position(this) else {
            return false;
        };
        // The end of the failed one never came, and its number is in use again.
        if part.first || part.last {
            self.failed.remove(i);
        }
        !part.first
    }

    /// A packet of a transfer could not be written.
    pub(super) fn fail(&mut self, from: u16, part: Part) {
        if part.last {
            return;
        }
        if self.failed.len() >= FAILED {
            self.failed.pop_front();
        }
        self.failed.push_back((from, part.transfer));
    }
}

impl Nic {
    /// Queues a request of another node. They are limited like messages on hold.
    pub(super) fn rma_serve(&mut self, from: u16, tc: u8, m: RmaMessage, env: &Env<'_>) {
        let cost = (self.rma.engine.len() as u64).saturating_mul(HOLD_COST);
        if cost > self.cfg.hold_limit_bytes {
            self.counters.drops.hold_limit = self.counters.drops.hold_limit.wrapping_add(1);
            return;
        }
        let flow = Flow::Responder {
            node: from,
            vpid: m.origin_vpid,
            tc,
        };
        let receipt = self.tx.receipt.take();
        let task = Task::Serve(from, tc, m, receipt);
        self.rma.engine.push(flow, task, env.host.now_ns());
    }

    /// Sends packets as far as a turn goes and the network takes them.
    pub(super) fn run_rma(&mut self, env: &mut Env<'_>) {
        self.rma.engine.wake(env.host.now_ns());
        let mut open = self.tx_open_lanes(env);
        for _ in 0..std::mem::replace(&mut self.rma.engine.turn, TURN) {
            let Some(i) = self.rma.engine.draw(open) else {
                break;
            };
            let lane = self.rma.engine.queues.get(i).map(|q| q.flow.lane());
            self.rma_step(i, env);
            // All lanes are looked at again only when something has changed for one: this is done for every packet.
            if env.tx_credit == 0 || lane.is_none_or(|lane| self.tx_blocked(lane, env)) {
                open = self.tx_open_lanes(env);
            }
        }
    }

    /// Lets a queue go on by one packet.
    fn rma_step(&mut self, i: usize, env: &mut Env<'_>) {
        let Some(q) = self.rma.engine.queues.get_mut(i) else {
            return;
        };
        let stream = q.flow.stream();
        let transfer = match q.now.take() {
            Some(transfer) => Some(transfer),
            None => match q.waiting.pop_front() {
                Some(Task::Command(command)) => self.rma_begin(&command, env),
                Some(Task::Serve(from, tc, message, _credit)) => {
                    self.rma_answer(from, tc, message, env)
                }
                None => None,
            },
        };
        let left = transfer.and_then(|t| self.rma_send_part(t, stream, env));
        let engine = &mut self.rma.engine;
        let Some(q) = engine.queues.get_mut(i) else {
            return;
        };
        let every = if left.is_none() { BEGIN } else { BETWEEN };
        if left.is_none() {
            engine.len -= 1;
        }
        let asking = left.as_ref().is_some_and(|t| t.source.is_some());
        q.now = left;
        if asking {
            q.until = ASKING;
            return;
        }
        if q.len() == 0 {
            engine.queues.swap_remove(i);
            return;
        }
        let until = engine.pause(every, env.host.now_ns());
        if let Some(q) = engine.queues.get_mut(i) {
            q.until = until;
        }
    }

    /// Sends the next packet of a transfer and gives back what is left of it.
    fn rma_send_part(
        &mut self,
        mut t: Transfer,
        stream: Option<Stream>,
        env: &mut Env<'_>,
    ) -> Option<Transfer> {
        let at = t.from.wrapping_add(t.done.into());
        let to = t.to.wrapping_add(t.done.into());
        let n = (t.len - t.done).min(FRAGMENT);
        if let Some(stream) = stream {
            env.host.enter(stream);
        }
        let read = match t.source.take() {
            Some(source) => Ok(source),
            None => self.rma_read(t.by, t.space, at, n, env),
        };
        if stream.is_some() {
            env.host.leave();
        }
        let read = match read {
            Ok(source) if !source.missing.is_empty() => {
                t.source = Some(source);
                return Some(t);
            }
            Ok(source) if source.failed => Err(FaultKind::Dma),
            Ok(source) => Ok(source.data),
            Err(fault) => Err(fault),
        };
        let failed = read.as_ref().err().copied();
        let last = failed.is_some() || t.done + n == t.len;
        let part = Part {
            transfer: t.number,
            first: t.done == 0,
            last,
        };
        self.count_part(&t, failed, n);
        // A put of which nothing was sent needs no end. A get does: the origin waits for an answer (G17).
        if failed.is_none() || matches!(t.by, Reader::Responder) || !part.first {
            let data = read.map_err(|_| n);
            let kind = match t.by {
                Reader::Requester => RmaKind::Put {
                    addr: to,
                    part,
                    data,
                },
                Reader::Responder => RmaKind::GetResponse {
                    write_addr: to,
                    part,
                    data,
                },
            };
            self.send_part(&t, kind, n, env);
        }
        let wanted = t.wanted || (failed.is_some() && self.rma_force_errors());
        if wanted && (last || t.note.mode.ntr) {
            let error = failed.map_or(0, |_| t.note.kind.code());
            self.notify(t.note, at, n.saturating_sub(1), error, env);
        }
        t.done += n;
        (!last).then_some(t)
    }

    /// Another device has answered a load for a transfer, or has not.
    pub(super) fn rma_loaded(&mut self, number: u64, data: Option<Vec<u8>>) {
        let mine = |t: &Transfer| {
            let source = t.source.as_ref();
            source.is_some_and(|s| s.missing.iter().any(|m| m.0 == number))
        };
        let mut queues = self.rma.engine.queues.iter_mut();
        // Without one the VPID was closed.
        let Some(q) = queues.find(|q| q.now.as_ref().is_some_and(mine)) else {
            return;
        };
        let Some(t) = &mut q.now else { return };
        let Some(source) = &mut t.source else { return };
        let Some(i) = source.missing.iter().position(|m| m.0 == number) else {
            return;
        };
        let (_, offset, len) = source.missing.swap_remove(i);
        let to = source.data.get_mut(offset..offset + len);
        match (data, to) {
            (Some(from), Some(to)) if from.len() == len => to.copy_from_slice(&from),
            _ => source.failed = true,
        }
        let (perf, failed) = (t.by.perf(), source.failed);
        if source.missing.is_empty() {
            q.until = 0;
        }
        if failed {
            self.rma_count(perf.answers, Half::High, 1);
        } else {
            self.rma_count(perf.answers, Half::Low, 1);
            self.rma_count_bytes(perf.bytes, len as u64);
        }
    }

    fn send_part(&mut self, t: &Transfer, kind: RmaKind, bytes: u32, env: &mut Env<'_>) {
        let message = RmaMessage {
            kind,
            ..t.message.bare()
        };
        let packet = Packet {
            src: self.node_id(),
            dst: Dest::Node(NodeId(t.node)),
            port: NetPort::RmaCompleter,
            tc: t.tc,
            bytes,
            body: Body::Rma(Box::new(message)),
        };
        self.inject(packet, env);
    }

    /// Counters for a packet that is sent, or for a failure in its place (G29).
    fn count_part(&mut self, t: &Transfer, failed: Option<FaultKind>, n: u32) {
        match (t.by, failed) {
            (Reader::Requester, Some(fault)) => {
                self.rma_transfer_error(RmaError::RequesterTranslation, fault);
            }
            (Reader::Responder, Some(fault)) => {
                let error = match fault {
                    FaultKind::Illegal => RmaError::ResponderCommand,
                    FaultKind::Translation | FaultKind::Dma => RmaError::ResponderTranslation,
                };
                self.rma_transfer_error(error, fault);
            }
            (Reader::Requester, None) => {
                self.rma_count(regs::PERF_REQUESTER_OUT_0, t.half, 1);
                self.rma_count_bytes(regs::PERF_REQUESTER_OUT_6, n.into());
                let sum = &mut self.counters.rma.put_bytes;
                *sum = sum.wrapping_add(n.into());
            }
            (Reader::Responder, None) => {
                self.rma_count_bytes(regs::PERF_RESPONDER_OUT_4, n.into());
                let sum = &mut self.counters.rma.served_bytes;
                *sum = sum.wrapping_add(n.into());
            }
        }
        // An answer without data is one, too.
        if matches!(t.by, Reader::Responder) {
            self.rma_count(regs::PERF_RESPONDER_OUT_0, t.half, 1);
        }
    }

    /// A VPID was closed: what is left of its commands, and of requests to it, is dropped. The other ends see no end of it, as
    /// when a packet is lost.
    pub(super) fn rma_close(&mut self, vpid: u8, env: &Env<'_>) {
        let (dropped, commands) = self.rma.engine.forget(vpid);
        // They do not keep the requester any more.
        for _ in 0..commands {
            self.wcbuf_left(Unit::Rma, vpid, env);
        }
        let n = &mut self.counters.drops.hold_closed;
        *n = n.wrapping_add(dropped as u64);
    }
}
