//! RMA transfers in progress: packets of PUTs at the requester, and of GET responses at the
//! responder (HW §10.3).
//!
//! Commands and requests queue in flows. Each traffic class of each local or remote VPID has a
//! flow. Within a flow, they are executed one after the other in order (HW §10.8, G12). There is no
//! order between flows: the flow of the next packet is random. A call of the NIC sends a limited
//! number of packets, so that a transfer of 8 MiB does not delay other transfers.
//!
//! The memory of a packet is translated and read when the packet is sent. A fault ends the transfer
//! at this packet. A flow may pause before a command or request and between packets
//! (`rma-begin-ns`), because the reference does not specify when a source is read. Software can
//! rely only on the requester's notification, which reports that the source was read.

use super::random_delay::RandomDelay;
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

/// Maximum number of packets that one call sends.
const BUDGET: usize = 64;
/// Average number of commands, requests or packets of which one is preceded by a pause.
const BEGIN: u32 = 4;
const BETWEEN: u32 = 32;
/// Maximum number of failed transfers whose remaining packets the completer discards. If there are
/// more, the oldest failed transfer is removed from the list.
const FAILED: usize = 256;

/// Value of [`Queue::until`] while answers of other devices are pending.
const ASKING: u64 = u64::MAX;

/// A flow: commands or requests that are executed in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// Commands of a local VPID.
    Requester {
        /// VPID that posted the commands.
        vpid: u8,
        /// Traffic class.
        tc: u8,
    },
    /// Requests from a VPID of another node.
    Responder {
        /// Node that sent the requests.
        node: u16,
        /// VPID of that node that sent the requests.
        vpid: u8,
        /// Traffic class.
        tc: u8,
    },
}

impl Flow {
    /// Returns the lane of the flow's packets.
    fn lane(self) -> Lane {
        match self {
            Self::Requester { tc, .. } => Lane::rma(tc),
            Self::Responder { .. } => Lane::RMA_RESPONSES,
        }
    }

    /// Returns the stream of the writes that precede requests of the flow (HW §10.8).
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

/// A command or request that has not begun.
pub(super) enum Task {
    Command(RmaCommand),
    /// A request of another node, with the node, the traffic class, the message, and the credit of
    /// the sender. The credit returns when the response begins.
    Serve(u16, u8, RmaMessage, Option<Receipt>),
}

/// A transfer whose packets are being sent.
pub(super) struct Transfer {
    /// Sub-unit that sends the transfer.
    pub(super) by: Reader,
    pub(super) half: Half,
    /// Content of this side's notification.
    pub(super) note: Note,
    /// True if this side's notification is requested.
    pub(super) wanted: bool,
    /// Address space of the source.
    pub(super) space: Space,
    /// Address of the source.
    pub(super) from: u64,
    /// Destination address on the other side.
    pub(super) to: u64,
    pub(super) len: u32,
    /// Number of bytes that have been sent.
    pub(super) done: u32,
    /// Data of the next packet while loads from other devices are pending; `None` at other times.
    pub(super) source: Option<Source>,
    pub(super) number: u32,
    /// Content that all packets of the transfer have in common.
    pub(super) message: RmaMessage,
    pub(super) node: u16,
    pub(super) tc: u8,
}

struct Queue {
    flow: Flow,
    now: Option<Transfer>,
    waiting: VecDeque<Task>,
    /// Time in ns at which a pause ends; 0 for no pause; [`ASKING`] for a pause until other devices
    /// have answered.
    until: u64,
}

impl Queue {
    fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.now.is_some())
    }
}

pub(super) struct Engine {
    /// Queues of the flows that are not empty.
    queues: Vec<Queue>,
    /// Number of tasks and transfers in all flows.
    len: usize,
    /// Number of the transfer that began last.
    number: u32,
    /// Transfers to this node that failed because a packet could not be written, as sending node
    /// and transfer number.
    failed: VecDeque<(u16, u32)>,
    /// Number of packets that the current call may still send.
    budget: usize,
    rng: SmallRng,
    delay: RandomDelay,
}

impl Engine {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        Self {
            queues: Vec::new(),
            len: 0,
            number: 0,
            failed: VecDeque::new(),
            budget: BUDGET,
            rng: cfg.draws(Purpose::Transfers),
            delay: RandomDelay::new(cfg, Purpose::Pauses, cfg.rma_begin_ns),
        }
    }

    pub(super) fn reseed(&mut self, seed: u64) {
        self.rng = seed::rng(seed, 0, Purpose::Transfers);
        self.delay.reseed(seed);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns true if a flow that does not pause can send.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.queues.iter().any(|q| q.until == 0)
    }

    /// Returns the time at which the first pause ends.
    pub(super) fn next_due(&self) -> Option<u64> {
        let pauses = self.queues.iter().map(|q| q.until);
        pauses.filter(|at| *at != 0 && *at != ASKING).min()
    }

    /// Ends the pauses that are due.
    pub(super) fn wake(&mut self, now: u64) {
        let due = |q: &&mut Queue| q.until != ASKING && (1..=now).contains(&q.until);
        self.queues.iter_mut().filter(due).for_each(|q| q.until = 0);
    }

    /// Returns the end of a new pause in one of `every` calls on average, and 0 in the others.
    fn pause(&mut self, every: u32, now: u64) -> u64 {
        match self.delay.draw_one_in(every) {
            0 => 0,
            ns => now.saturating_add(ns),
        }
    }

    /// Returns the number of unfinished commands, requests and transfers.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of unfinished commands, requests and transfers in one lane.
    pub(super) fn len_in(&self, lane: Lane) -> usize {
        let here = self.queues.iter().filter(|q| q.flow.lane() == lane);
        here.map(Queue::len).sum()
    }

    /// Returns the set of lanes in which packets can be sent now.
    pub(super) fn lanes(&self) -> u16 {
        let ready = self.queues.iter().filter(|q| q.until == 0);
        ready.fold(0, |set, q| set | q.flow.lane().bit())
    }

    /// Limits the call that receives a packet to one packet of current transfers. Otherwise, two
    /// NICs that send to each other would fill the network.
    pub(super) fn pace(&mut self) {
        self.budget = if self.is_ready() { 1 } else { BUDGET };
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

    /// Returns the number for a new transfer.
    pub(super) fn number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// Returns the index of a random flow that can send in a lane of `open`.
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

    /// Removes all tasks and transfers of a local VPID. Returns their number, and the number of
    /// commands among them that had not begun.
    fn forget(&mut self, vpid: u8) -> (usize, usize) {
        let before = self.len;
        let mut commands = 0;
        for q in &mut self.queues {
            let requester = matches!(q.flow, Flow::Requester { vpid: v, .. } if v == vpid);
            if q.now.as_ref().is_some_and(|t| t.note.vpid == vpid) {
                q.now = None;
                // Answers of other devices to the removed transfer are ignored.
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

    /// Returns true if an arriving packet belongs to a transfer that has failed. The caller must
    /// discard the packet.
    pub(super) fn leave_out(&mut self, from: u16, part: Part) -> bool {
        if self.failed.is_empty() {
            return false;
        }
        let this = |t: &(u16, u32)| *t == (from, part.transfer);
        let Some(i) = self.failed.iter().position(this) else {
            return false;
        };
        // A first packet means that the last packet of the failed transfer was lost and that a new
        // transfer uses its number.
        if part.first || part.last {
            self.failed.remove(i);
        }
        !part.first
    }

    /// Records that a packet of a transfer could not be written.
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
    /// Queues a request of another node. The limit for messages on hold also limits these requests.
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

    /// Sends packets until the limit of this call is reached or the network accepts no more.
    pub(super) fn run_rma(&mut self, env: &mut Env<'_>) {
        self.rma.engine.wake(env.host.now_ns());
        let mut open = self.tx_open_lanes(env);
        for _ in 0..std::mem::replace(&mut self.rma.engine.budget, BUDGET) {
            let Some(i) = self.rma.engine.draw(open) else {
                break;
            };
            let lane = self.rma.engine.queues.get(i).map(|q| q.flow.lane());
            self.rma_step(i, env);
            // All open lanes are computed again only after a change, because this loop runs for
            // every packet.
            if env.tx_credit == 0 || lane.is_none_or(|lane| self.tx_blocked(lane, env)) {
                open = self.tx_open_lanes(env);
            }
        }
    }

    /// Sends one packet of a queue.
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

    /// Sends the next packet of a transfer. Returns the transfer if packets remain.
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
        // A PUT that fails before its first packet sends no packet. A GET sends one packet, because
        // the origin waits for a response (G17).
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

    /// Processes the answer of another device to a load of a transfer; `data` is `None` if the load
    /// failed.
    pub(super) fn rma_loaded(&mut self, number: u64, data: Option<Vec<u8>>) {
        let mine = |t: &Transfer| {
            let source = t.source.as_ref();
            source.is_some_and(|s| s.missing.iter().any(|m| m.0 == number))
        };
        let mut queues = self.rma.engine.queues.iter_mut();
        // If no flow matches, the VPID was closed after the load began.
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

    /// Counts a packet that is sent, or a failure instead of a packet (G29).
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
        // A response without data counts, too.
        if matches!(t.by, Reader::Responder) {
            self.rma_count(regs::PERF_RESPONDER_OUT_0, t.half, 1);
        }
    }

    /// Drops the remaining commands of a closed VPID, and requests from other nodes to the VPID.
    /// The other sides receive no last packet for these transfers, as after a lost packet.
    pub(super) fn rma_close(&mut self, vpid: u8, env: &Env<'_>) {
        let (dropped, commands) = self.rma.engine.forget(vpid);
        // The dropped commands no longer occupy the requester.
        for _ in 0..commands {
            self.wcbuf_left(Unit::Rma, vpid, env);
        }
        let n = &mut self.counters.drops.hold_closed;
        *n = n.wrapping_add(dropped as u64);
    }
}
